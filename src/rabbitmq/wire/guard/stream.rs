//! The guard around a stream of bytes.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures::io::{AsyncRead, AsyncWrite};

use super::Guard;

/// As much as is read at once.
const PIECE: usize = 64 * 1_024;

/// A connection to a broker from which nothing comes that the client would not survive. It stands above TLS.
///
/// Reading is never ahead: what was read is handed out before more is asked for.
pub(in crate::rabbitmq) struct Guarded<S> {
    stream: S,
    guard: Guard,
    read: Box<[u8]>,
    /// What passed the guard, and how much of it was handed out.
    passed: Vec<u8>,
    given: usize,
}

impl<S> Guarded<S> {
    pub(in crate::rabbitmq) fn new(stream: S, guard: Guard) -> Self {
        Self { stream, guard, read: vec![0; PIECE].into(), passed: Vec::new(), given: 0 }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let Self { stream, guard, read, passed, given } = self.get_mut();
        if buffer.is_empty() {
            return Poll::Ready(Ok(0));
        }
        while *given == passed.len() {
            let len = ready!(Pin::new(&mut *stream).poll_read(cx, read))?;
            if len == 0 {
                return Poll::Ready(Ok(0));
            }
            passed.clear();
            *given = 0;
            // May pass nothing: a frame that is looked at passes as a whole.
            guard.pass(&read[..len], passed);
        }
        let left = &passed[*given..];
        let len = left.len().min(buffer.len());
        buffer[..len].copy_from_slice(&left[..len]);
        *given += len;
        Poll::Ready(Ok(len))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_close(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use futures::io::AsyncRead;
    use futures::task::noop_waker_ref;

    use super::super::Guard;
    use super::Guarded;

    #[test]
    fn every_byte_is_handed_out_whatever_the_size_of_the_buffer_and_then_the_end() {
        let body = vec![7; 200_000];
        let len = u32::try_from(body.len()).expect("small").to_be_bytes();
        let frame = [&[3, 0, 1][..], &len, &body, &[0xce], &[8, 0, 0, 0, 0, 0, 0, 0xce]].concat();
        for size in [1_000, 65_536, 1 << 20] {
            let mut stream = Guarded::new(frame.as_slice(), Guard::new(0));
            let (mut got, mut buffer) = (Vec::new(), vec![0; size]);
            let mut cx = Context::from_waker(noop_waker_ref());
            loop {
                match Pin::new(&mut stream).poll_read(&mut cx, &mut buffer) {
                    Poll::Ready(Ok(0)) => break,
                    Poll::Ready(Ok(len)) => got.extend_from_slice(&buffer[..len]),
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(got, frame);
        }
    }
}
