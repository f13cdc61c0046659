//! As much of HTTP as the management API needs.

use std::fmt::Write as _;
use std::io;
use std::net::Ipv4Addr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A request to the loopback interface. HTTP/1.0, so that the answer ends with the connection and has no chunks.
pub(crate) struct Request<'a> {
    pub(crate) port: u16,
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    pub(crate) headers: &'a [(&'a str, &'a str)],
    pub(crate) body: &'a str,
}

impl Request<'_> {
    /// The status and the body.
    pub(crate) async fn send(&self) -> io::Result<(u16, String)> {
        let Self { port, method, path, headers, body } = self;
        let mut request = format!("{method} {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n");
        for (name, value) in *headers {
            write!(request, "{name}: {value}\r\n").expect("a string can be written to");
        }
        write!(request, "Content-Length: {}\r\n\r\n{body}", body.len()).expect("a string can be written to");
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, *port)).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        let answer = String::from_utf8_lossy(&answer);
        let bad = || io::Error::new(io::ErrorKind::InvalidData, format!("not an HTTP answer: {answer:?}"));
        let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(bad)?;
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(bad)?;
        Ok((status, body.to_owned()))
    }
}

/// One segment of a path: everything but the plainest letters is escaped.
pub(crate) fn segment(text: &str) -> String {
    text.bytes().fold(String::new(), |mut escaped, byte| {
        if byte.is_ascii_alphanumeric() || b"-_.".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            write!(escaped, "%{byte:02X}").expect("a string can be written to");
        }
        escaped
    })
}

/// The value of an `Authorization` header.
pub(crate) fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", base64(format!("{user}:{password}").as_bytes()))
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let bits = (0..3).fold(0, |bits, at| bits << 8 | usize::from(*chunk.get(at).unwrap_or(&0)));
        for place in 0..4 {
            // One letter more than there are bytes; the rest is padding.
            let letter = if place <= chunk.len() { LETTERS[bits >> (18 - 6 * place) & 63] } else { b'=' };
            text.push(char::from(letter));
        }
    }
    text
}
