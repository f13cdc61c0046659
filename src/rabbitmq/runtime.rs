//! Runs lapin on tokio, over a stream of ours: lapin takes its stream only from a runtime whose streams are of that type.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_compat::Compat;
use async_rs::traits::{Executor, Reactor, RuntimeKit};
use async_rs::util::Task;
use async_rs::{Runtime, Tokio};
use futures::Stream;
use futures::io::{AsyncRead, AsyncWrite};
use lapin::tcp::AsyncTcpStream;
use lapin::uri::AMQPUri;
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use super::wire::{Guard, Guarded};
use crate::clock::{Clock, within};

/// What lapin reads and writes: TCP or TLS, with nothing in it that lapin would not survive.
pub(super) type Guarding = Guarded<AsyncTcpStream<Compat<TcpStream>>>;

/// How long what is waited for may take once lapin's thread has ended, which says why on other threads, too.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Makes a connection over `stream`.
pub(super) async fn connect(
    uri: AMQPUri,
    stream: Guarding,
    properties: lapin::ConnectionProperties,
    clock: &dyn Clock,
) -> lapin::Result<lapin::Connection> {
    let ended = CancellationToken::new();
    let thread = ended.clone().drop_guard();
    // lapin may ask for a stream again; it gets the one that there is, and then an error: trying again is ours.
    let stream = Mutex::new(Some(AsyncTcpStream::Plain(stream)));
    let take = async move |_: AMQPUri, _: Runtime<Kit>| {
        // lapin's thread owns this closure, and drops it when it ends.
        let _ = &thread;
        let taken = stream.lock().unwrap_or_else(PoisonError::into_inner).take();
        taken.ok_or_else(|| io::Error::from(io::ErrorKind::ConnectionAborted).into())
    };
    let connector = lapin::Connection::connector(uri, Runtime::new(Kit(Tokio::current())), take, properties);
    let mut connected = pin!(connector);
    // lapin tells nobody of a connection that is cut while it prepares its answer to the broker's first words. Only a
    // wait is lost here.
    tokio::select! {
        biased;
        connected = &mut connected => connected,
        () = ended.cancelled() => match within(clock, LAST_WORDS, connected).await {
            Some(connected) => connected,
            None => Err(io::Error::from(io::ErrorKind::ConnectionAborted).into()),
        },
    }
}

/// Tokio, but for the type of its streams.
#[derive(Clone, Debug)]
pub(super) struct Kit(Tokio);

impl RuntimeKit for Kit {}

impl Executor for Kit {
    type Task<T: Send + 'static> = <Tokio as Executor>::Task<T>;

    fn block_on<T, F: Future<Output = T>>(&self, future: F) -> T {
        self.0.block_on(future)
    }

    fn spawn<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        future: F,
    ) -> Task<Self::Task<T>> {
        self.0.spawn(future)
    }

    fn spawn_blocking<T: Send + 'static, F: FnOnce() -> T + Send + 'static>(
        &self,
        work: F,
    ) -> Task<Self::Task<T>> {
        self.0.spawn_blocking(work)
    }
}

impl Reactor for Kit {
    type TcpStream = Guarding;
    type Sleep = <Tokio as Reactor>::Sleep;

    /// lapin registers nothing: it is given its one stream by [`connect`].
    fn register<S: Read + Write + Send + 'static>(
        &self,
        _: S,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Send + Unpin + 'static> {
        Err::<Guarding, _>(io::ErrorKind::Unsupported.into())
    }

    fn sleep(&self, duration: Duration) -> Self::Sleep {
        Reactor::sleep(&self.0, duration)
    }

    fn interval(&self, duration: Duration) -> impl Stream<Item = Instant> + Send + 'static {
        self.0.interval(duration)
    }

    fn tcp_connect_addr(
        &self,
        address: SocketAddr,
    ) -> impl Future<Output = io::Result<Self::TcpStream>> + Send + 'static {
        let connected = self.0.tcp_connect_addr(address);
        async move { Ok(Guarded::new(AsyncTcpStream::Plain(connected.await?), Guard::new(0))) }
    }
}
