//! Stands between a client and the management API, and does something just before one certain request goes through.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::BoxFuture;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

pub(crate) type Meddling = Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

pub(crate) struct Meddler {
    pub(crate) port: u16,
    /// How often the request came.
    pub(crate) times: Arc<AtomicUsize>,
    _serving: AbortOnDropHandle<()>,
}

impl Meddler {
    /// Meddles before each request whose first line begins with `request`.
    pub(crate) async fn start(target: u16, request: String, meddling: Meddling) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let port = listener.local_addr().expect("it has one").port();
        let times = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&times);
        let serving = tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.expect("a client");
                pass(client, target, &request, &meddling, &counted).await.expect("the request goes through");
            }
        });
        Self { port, times, _serving: AbortOnDropHandle::new(serving) }
    }
}

/// One request for each connection: the answer says that it is closed.
async fn pass(
    mut client: TcpStream,
    target: u16,
    wanted: &str,
    meddling: &Meddling,
    times: &AtomicUsize,
) -> std::io::Result<()> {
    let mut request = Vec::new();
    let end = loop {
        let mut part = [0; 4096];
        let read = client.read(&mut part).await?;
        if read == 0 {
            return Ok(());
        }
        request.extend_from_slice(&part[..read]);
        if let Some(end) = complete(&request) {
            break end;
        }
    };
    let text = String::from_utf8_lossy(&request[..end]).into_owned();
    if text.starts_with(wanted) {
        times.fetch_add(1, Ordering::SeqCst);
        meddling().await;
    }
    let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, target)).await?;
    let text = text.replacen("\r\n", "\r\nConnection: close\r\n", 1);
    server.write_all(text.as_bytes()).await?;
    let mut answer = Vec::new();
    server.read_to_end(&mut answer).await?;
    client.write_all(&answer).await?;
    client.shutdown().await
}

/// Where the request ends, once all of it is there.
fn complete(request: &[u8]) -> Option<usize> {
    let text = String::from_utf8_lossy(request);
    let (head, _) = text.split_once("\r\n\r\n")?;
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    let end = head.len() + 4 + length.unwrap_or(0);
    (request.len() >= end).then_some(end)
}
