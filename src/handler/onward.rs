//! A worker that sends onward: what it returns is published and confirmed before its message is acked.

mod outgoing;

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;

use futures::stream::{FuturesUnordered, StreamExt};
use uuid::Uuid;

pub use outgoing::Outgoing;

use self::outgoing::{Destination, Ready};
use super::{Context, Handler, HandlerError, Readiness};
use crate::error::{Error, ErrorKind, Result};
use crate::publisher::Publisher;

/// The namespace of the ids that are derived.
const NAMESPACE: Uuid = Uuid::from_u128(0x8d1c_3f0e_27b5_4a6b_9c64_51e2_0b7a_f3d9);

/// How many messages of one handler call are on their way at once, unless said otherwise.
const IN_FLIGHT: NonZeroUsize = NonZeroUsize::new(16).unwrap();

/// A handler that returns what is to be sent onward, and succeeds once the broker has confirmed all of it.
///
/// A consumer acks a message after its handler has succeeded. So what the message leads to is with the broker before the
/// message is gone, and a crash at any point in between makes the message come again: something may be sent twice, and
/// nothing is lost. The handler within publishes nothing, and so cannot get the order wrong.
///
/// It returns one [`Outgoing`], several (a `Vec`, an array), or none (`None`, an empty `Vec`): whatever is an iterator of
/// them. Where it fails or panics, nothing is sent.
///
/// ```
/// # #[cfg(feature = "json")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> windlass::Result<()> {
/// use windlass::clock::SystemClock;
/// use windlass::handler::{Onward, Outgoing};
/// use windlass::memory::MemoryBroker;
/// use windlass::queue::{PublisherExt, Queue};
/// use windlass::{Context, HandlerError, QueueConsumer};
///
/// const ORDERS: Queue<Vec<String>> = Queue::new("orders");
/// const PARCELS: Queue<String> = Queue::new("parcels");
///
/// let broker = MemoryBroker::new(SystemClock);
/// let (orders, parcels) = (broker.queue(ORDERS.name()), broker.queue(PARCELS.name()));
/// broker.publisher().send(&ORDERS, &vec!["lamp".to_owned(), "desk".to_owned()]).await?;
///
/// let pack = async |items: Vec<String>, _: Context| {
///     let parcels = items.iter().map(|item| Outgoing::to(&PARCELS, item));
///     Ok::<_, HandlerError>(parcels.collect::<Vec<_>>())
/// };
/// let packer = Onward::new("packer", broker.publisher(), pack);
/// let consumer = QueueConsumer::of(&ORDERS, orders.source(), packer).start()?;
/// orders.until(|orders| orders.counts().acked == 1).await?;
/// assert_eq!(parcels.counts().pending, 2);
/// # consumer.stop().await;
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "json"))]
/// # fn main() {}
/// ```
///
/// # What goes along, and ids
///
/// Each message gets the correlation id and the trace context of the one that it is sent because of, unless it has its
/// own ([`Context::carry`]).
///
/// Its id is derived: the same message, handled again by the same worker, leads to the same ids, so that whoever
/// receives them can tell those that came before. It is the UUID v5, in the namespace
/// `8d1c3f0e-27b5-4a6b-9c64-51e20b7af3d9`, of these five, with a NUL between each two: the worker's name, the id of the
/// message that came, `queue` or `exchange`, the name of that, and which one it is among those that go there from this
/// call, from 1. [`Outgoing::with_id`] gives one of its own instead. Ids that are the same need a handler that returns
/// the same for the same message, and a message that was sent with an id: a broker may give another at each delivery to
/// one that has none.
///
/// # Errors
///
/// | what went wrong | becomes | so that by default |
/// |---|---|---|
/// | the handler itself | what it says | |
/// | a payload that cannot be encoded, a name or a header that cannot be sent (`Invalid`) | [`HandlerError::Validation`] of the output | it is dead-lettered |
/// | a publisher that cannot broadcast (`Unsupported`) | [`HandlerError::Terminal`] | it is dead-lettered |
/// | a publisher that was closed (`Closed`) | [`HandlerError::NotRunning`] | it is put back, and no attempt is counted |
/// | all else: not sent, refused, no such queue, not confirmed | [`HandlerError::Failed`], with the queue | it is tried again later |
///
/// Nothing is sent where one of the payloads cannot be encoded. Once one is not confirmed, no further one is begun, those
/// under way are waited for, and the message is handled again as a whole.
///
/// A broker that takes nothing for a while uses up attempts. [`Policies`](super::Policies) with a circuit breaker, put
/// around this, stop the pulls meanwhile.
///
/// # Cancel safety
///
/// Dropped in the middle, some messages may have been sent; the consumer puts its message back, and they are sent again,
/// with the same ids.
#[derive(Clone)]
pub struct Onward<P, H> {
    name: Arc<str>,
    publisher: P,
    handler: H,
    max_in_flight: NonZeroUsize,
}

impl<P: Publisher, H> Onward<P, H> {
    /// Sends by `publisher` what `handler` returns. `name` is the worker's, and part of the ids that it gives: workers
    /// that may get the same message, such as a copy of a broadcast, each need one of their own, and it must stay the
    /// same from one start to the next.
    pub fn new(name: impl Into<Arc<str>>, publisher: P, handler: H) -> Self {
        Self { name: name.into(), publisher, handler, max_in_flight: IN_FLIGHT }
    }

    /// How many messages of one call are on their way at once; 16 by default. They are begun in the order in which they
    /// are returned. With 1 each is confirmed before the next is begun, so that they also arrive in that order whatever
    /// the broker.
    #[must_use]
    pub fn max_in_flight(mut self, most: NonZeroUsize) -> Self {
        self.max_in_flight = most;
        self
    }

    fn ready(&self, returned: Vec<Outgoing>, context: &Context) -> Result<Vec<Ready>> {
        let mut counts: HashMap<Destination, u64> = HashMap::new();
        let mut ready = Vec::with_capacity(returned.len());
        for outgoing in returned {
            let count = counts.entry(outgoing.destination().clone()).or_default();
            *count += 1;
            let id = derived_id(&self.name, context.message().id(), outgoing.destination(), *count);
            ready.push(outgoing.into_ready(id, context)?);
        }
        Ok(ready)
    }

    async fn send(&self, all: Vec<Ready>) -> Result<()> {
        let total = all.len();
        let (mut confirmed, mut failed) = (0, None);
        let mut waiting = all.into_iter();
        let mut under_way = FuturesUnordered::new();
        loop {
            while failed.is_none() && under_way.len() < self.max_in_flight.get() {
                let Some(next) = waiting.next() else { break };
                under_way.push(self.send_one(next));
            }
            match under_way.next().await {
                None => break,
                Some(Ok(())) => confirmed += 1,
                Some(Err(error)) => failed = failed.or(Some(error)),
            }
        }
        failed
            .map_or(Ok(()), |error| Err(error.with_message(format!("{confirmed} of {total} were confirmed"))))
    }

    async fn send_one(&self, ready: Ready) -> Result<()> {
        let Ready { destination, message } = ready;
        let sent = match &destination {
            Destination::Queue(queue) => self.publisher.publish(queue, message).await,
            Destination::Exchange(exchange) => self.publisher.broadcast(exchange, message).await,
        };
        sent.map_err(|error| {
            Error::new(error.kind(), "send onward")
                .with_transient(error.is_transient())
                .with_context(destination.kind(), destination.name())
                .with_source(error)
        })
    }
}

impl<P, H, T> Handler<T> for Onward<P, H>
where
    P: Publisher,
    H: Handler<T>,
    H::Output: IntoIterator<Item = Outgoing>,
    T: Send + 'static,
{
    /// How many messages were sent.
    type Output = usize;

    async fn handle(&self, payload: T, context: Context) -> Result<usize, HandlerError> {
        let returned = self.handler.handle(payload, context.clone()).await?;
        let returned: Vec<Outgoing> = returned.into_iter().collect();
        let ready = self.ready(returned, &context).map_err(classified)?;
        let count = ready.len();
        self.send(ready).await.map_err(classified)?;
        Ok(count)
    }

    /// What the handler within says.
    fn readiness(&self) -> Option<Arc<dyn Readiness>> {
        self.handler.readiness()
    }
}

impl<P: fmt::Debug, H> fmt::Debug for Onward<P, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Onward")
            .field("name", &self.name)
            .field("publisher", &self.publisher)
            .field("max_in_flight", &self.max_in_flight)
            .finish_non_exhaustive()
    }
}

fn derived_id(worker: &str, cause: &str, to: &Destination, count: u64) -> String {
    let text = format!("{worker}\0{cause}\0{}\0{}\0{count}", to.kind(), to.name());
    Uuid::new_v5(&NAMESPACE, text.as_bytes()).to_string()
}

fn classified(error: Error) -> HandlerError {
    match error.kind() {
        ErrorKind::Invalid => HandlerError::invalid_output(error),
        ErrorKind::Unsupported => HandlerError::terminal(error),
        ErrorKind::Closed => HandlerError::NotRunning,
        ErrorKind::Disconnected
        | ErrorKind::Refused
        | ErrorKind::Unroutable
        | ErrorKind::Unconfirmed
        | ErrorKind::Stale
        | ErrorKind::NotFound
        | ErrorKind::Unauthorized
        | ErrorKind::Timeout
        | ErrorKind::Taken
        | ErrorKind::Other => HandlerError::failed(error),
    }
}
