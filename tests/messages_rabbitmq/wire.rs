//! AMQP 0-9-1 by hand: sends properties as bytes and gets them as bytes, so that what no client can encode or decode is
//! sent and seen all the same. Every step is bounded.

use std::net::Ipv4Addr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::props::Props;
use super::rabbit::bounded;

const METHOD: u8 = 1;
const HEADER: u8 = 2;
const BODY: u8 = 3;
const HEARTBEAT: u8 = 8;
const END: u8 = 0xce;

const START_OK: [u8; 4] = [0, 10, 0, 11];
const TUNE_OK: [u8; 4] = [0, 10, 0, 31];
const OPEN: [u8; 4] = [0, 10, 0, 40];
const CHANNEL_OPEN: [u8; 4] = [0, 20, 0, 10];
const CONFIRM_SELECT: [u8; 4] = [0, 85, 0, 10];
const PUBLISH: [u8; 4] = [0, 60, 0, 40];
const ACK: [u8; 4] = [0, 60, 0, 80];
const GET: [u8; 4] = [0, 60, 0, 70];
const GET_OK: [u8; 4] = [0, 60, 0, 71];
const GET_EMPTY: [u8; 4] = [0, 60, 0, 72];

/// A connection with one channel that confirms.
#[derive(Debug)]
pub(crate) struct Wire {
    stream: TcpStream,
}

/// A message as it lay in a queue.
#[derive(Debug)]
pub(crate) struct Got {
    pub(crate) props: Props,
    pub(crate) body: Vec<u8>,
}

impl Wire {
    /// As `guest`, on `/`, with the largest frame that the broker takes.
    pub(crate) async fn connect(port: u16) -> Self {
        bounded("connect by hand", async {
            let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.expect("it listens");
            let mut wire = Self { stream };
            wire.stream.write_all(b"AMQP\x00\x00\x09\x01").await.unwrap();
            wire.method().await;
            let login = [&long(b"\0guest\0guest")[..], &short("en_US")].concat();
            wire.call(0, &START_OK, &[&long(b"")[..], &short("PLAIN"), &login].concat()).await;
            let tune = wire.method().await;
            // No heartbeats: nothing here would send them.
            wire.call(0, &TUNE_OK, &[&tune[4..10], &[0, 0]].concat()).await;
            wire.call(0, &OPEN, &[&short("/")[..], &[0, 0]].concat()).await;
            wire.method().await;
            wire.call(1, &CHANNEL_OPEN, &[0]).await;
            wire.method().await;
            wire.call(1, &CONFIRM_SELECT, &[0]).await;
            wire.method().await;
            wire
        })
        .await
    }

    /// Publishes to a queue and waits for the confirm.
    ///
    /// # Panics
    ///
    /// Where the broker answers anything else.
    pub(crate) async fn publish(&mut self, queue: &str, props: &Props, body: &[u8]) {
        let answer = bounded("publish by hand", async {
            self.call(1, &PUBLISH, &[&[0, 0][..], &short(""), &short(queue), &[0]].concat()).await;
            let size = u64::try_from(body.len()).unwrap().to_be_bytes();
            self.send(HEADER, 1, &[&[0, 60, 0, 0][..], &size, &props.encode()].concat()).await;
            if !body.is_empty() {
                self.send(BODY, 1, body).await;
            }
            self.method().await
        });
        let answer = answer.await;
        assert_eq!(answer[..4], ACK, "the broker confirms: {}", String::from_utf8_lossy(&answer));
    }

    /// Takes the next message out of the queue.
    pub(crate) async fn get(&mut self, queue: &str) -> Option<Got> {
        bounded("get by hand", async {
            self.call(1, &GET, &[&[0, 0][..], &short(queue), &[1]].concat()).await;
            let answer = self.method().await;
            if answer[..4] == GET_EMPTY {
                return None;
            }
            assert_eq!(answer[..4], GET_OK, "{}", String::from_utf8_lossy(&answer));
            let (_, header) = self.receive().await;
            let size = usize::try_from(u64::from_be_bytes(header[4..12].try_into().unwrap())).unwrap();
            let mut body = Vec::new();
            while body.len() < size {
                body.extend(self.receive().await.1);
            }
            Some(Got { props: Props::decode(&header[12..]), body })
        })
        .await
    }

    /// Takes all that is ready out of the queue.
    pub(crate) async fn take_all(&mut self, queue: &str) -> Vec<Got> {
        let mut all = Vec::new();
        while let Some(got) = self.get(queue).await {
            all.push(got);
        }
        all
    }

    async fn call(&mut self, channel: u16, method: &[u8; 4], arguments: &[u8]) {
        self.send(METHOD, channel, &[&method[..], arguments].concat()).await;
    }

    async fn send(&mut self, kind: u8, channel: u16, payload: &[u8]) {
        let len = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let frame = [&[kind][..], &channel.to_be_bytes(), &len, payload, &[END]].concat();
        self.stream.write_all(&frame).await.expect("the broker reads");
    }

    async fn method(&mut self) -> Vec<u8> {
        let (kind, payload) = self.receive().await;
        assert_eq!(kind, METHOD, "the broker sends a method");
        payload
    }

    async fn receive(&mut self) -> (u8, Vec<u8>) {
        loop {
            let mut head = [0; 7];
            self.stream.read_exact(&mut head).await.expect("the broker answers");
            let len = usize::try_from(u32::from_be_bytes(head[3..].try_into().unwrap())).unwrap();
            let mut payload = vec![0; len + 1];
            self.stream.read_exact(&mut payload).await.expect("the broker sends whole frames");
            assert_eq!(payload.pop(), Some(END));
            if head[0] != HEARTBEAT {
                return (head[0], payload);
            }
        }
    }
}

fn short(text: &str) -> Vec<u8> {
    [&[u8::try_from(text.len()).unwrap()][..], text.as_bytes()].concat()
}

fn long(bytes: &[u8]) -> Vec<u8> {
    [&u32::try_from(bytes.len()).unwrap().to_be_bytes()[..], bytes].concat()
}
