//! An HTTP server that answers as a test says.

use std::future::Future;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;
use windlass::clock::{Clock, SystemClock, within};
use windlass::management::{Management, ManagementConfig};

/// What is done with a request.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    /// A status, a content type and a body.
    Body(u16, &'static str, String),
    /// A redirect to this URL.
    Redirect(String),
    /// Nothing is answered, and the connection stays open.
    Silence,
    /// The connection is closed.
    Close,
    /// The head, and then a byte now and then, for ever.
    Drip,
    /// The head, and then a body without an end.
    Endless,
    /// Half of what the head promises, and then the end.
    Half,
}

impl Reply {
    pub(crate) fn json(status: u16, body: &Value) -> Self {
        Self::Body(status, "application/json", body.to_string())
    }

    pub(crate) fn html(status: u16) -> Self {
        Self::Body(status, "text/html", "<html><body>Welcome to the router</body></html>".to_owned())
    }
}

/// The first line of a request, its head and its body.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) line: String,
    pub(crate) head: String,
    pub(crate) body: String,
}

pub(crate) struct Server {
    pub(crate) port: u16,
    seen: Arc<Mutex<Vec<Request>>>,
    _serving: AbortOnDropHandle<()>,
}

impl Server {
    pub(crate) async fn start(reply: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let port = listener.local_addr().expect("it has one").port();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (log, reply) = (Arc::clone(&seen), Arc::new(reply));
        let serving = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (client, _) = listener.accept().await.expect("a client");
                let (log, reply) = (Arc::clone(&log), Arc::clone(&reply));
                // A client that has gone is no fault of the server's.
                connections.spawn(async move { serve(client, &log, &*reply).await.ok() });
            }
        });
        Self { port, seen, _serving: AbortOnDropHandle::new(serving) }
    }

    /// Always the same.
    pub(crate) async fn always(reply: Reply) -> Self {
        Self::start(move |_| reply.clone()).await
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub(crate) fn config(&self) -> ManagementConfig {
        ManagementConfig::default().with_url(self.url())
    }

    pub(crate) fn management(&self) -> Management {
        Management::new(self.config()).expect("a configuration")
    }

    pub(crate) fn seen(&self) -> Vec<Request> {
        self.seen.lock().unwrap().clone()
    }
}

async fn serve(
    mut client: TcpStream,
    log: &Mutex<Vec<Request>>,
    reply: &(dyn Fn(&Request) -> Reply + Send + Sync),
) -> std::io::Result<()> {
    let mut bytes = Vec::new();
    let request = loop {
        let mut part = [0; 4096];
        let read = client.read(&mut part).await?;
        if read == 0 {
            return Ok(());
        }
        bytes.extend_from_slice(&part[..read]);
        if let Some(request) = complete(&bytes) {
            break request;
        }
    };
    log.lock().unwrap().push(request.clone());
    match reply(&request) {
        Reply::Body(status, kind, body) => {
            let head = format!(
                "HTTP/1.1 {status} x\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                body.len()
            );
            client.write_all(head.as_bytes()).await?;
            client.write_all(body.as_bytes()).await?;
        }
        Reply::Redirect(url) => {
            let head = format!(
                "HTTP/1.1 302 x\r\nLocation: {url}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            );
            client.write_all(head.as_bytes()).await?;
        }
        Reply::Silence => std::future::pending().await,
        Reply::Close => {}
        Reply::Drip => {
            client.write_all(b"HTTP/1.1 200 x\r\nContent-Length: 1000000\r\n\r\n").await?;
            loop {
                client.write_all(b" ").await?;
                SystemClock.sleep(Duration::from_millis(5)).await;
            }
        }
        Reply::Endless => {
            client.write_all(b"HTTP/1.1 200 x\r\nConnection: close\r\n\r\n").await?;
            loop {
                client.write_all(&[b' '; 65_536]).await?;
            }
        }
        Reply::Half => {
            client.write_all(b"HTTP/1.1 200 x\r\nContent-Length: 100\r\n\r\n{\"rabbitmq").await?;
        }
    }
    client.shutdown().await
}

fn complete(bytes: &[u8]) -> Option<Request> {
    let text = String::from_utf8_lossy(bytes);
    let (head, body) = text.split_once("\r\n\r\n")?;
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    if body.len() < length.unwrap_or(0) {
        return None;
    }
    let line = head.lines().next().unwrap_or_default().to_owned();
    Some(Request { line, head: head.to_owned(), body: body.to_owned() })
}

/// What must end by itself; the bound is for a test that would hang.
pub(crate) async fn bounded<F: Future>(work: F) -> F::Output {
    within(&SystemClock, Duration::from_secs(20), work).await.expect("it ends")
}
