//! Sending payloads.

use std::future::Future;

use super::{Queue, check_name};
use crate::codec::Codec;
use crate::error::{Error, ErrorKind, Result};
use crate::message::Message;
use crate::publisher::Publisher;

/// Sends payloads to queues that know their type; every [`Publisher`] can.
pub trait PublisherExt: Publisher {
    /// Sends `payload` to `queue`, and resolves when the broker has confirmed that it has it. It is encoded at the
    /// call, before the future is polled.
    ///
    /// # Errors
    ///
    /// `Invalid`, and nothing was sent, where the name of the queue is none ([`check_name`]), the codec refuses the
    /// payload or its body would be too large; else as [`publish`](Publisher::publish).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves it open whether the broker took the message.
    fn send<T, C: Codec<T>>(
        &self,
        queue: &Queue<T, C>,
        payload: &T,
    ) -> impl Future<Output = Result<()>> + Send {
        self.send_with(queue, payload, |message| message)
    }

    /// As [`send`](Self::send), with what else the message is to carry: an id, headers, a correlation id, properties of
    /// the adapter's.
    ///
    /// ```
    /// # use windlass::queue::{PublisherExt, Queue};
    /// # use windlass::codec::Raw;
    /// # const WRITER: Queue<bytes::Bytes, Raw> = Queue::with_codec("writer", Raw);
    /// # async fn send(publisher: impl windlass::Publisher, payload: bytes::Bytes) -> windlass::Result<()> {
    /// publisher.send_with(&WRITER, &payload, |message| message.with_id("m-1").with_header("shard", 3_i32)).await
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`send`](Self::send); also `Invalid` where `edit` sets the body, the content type or the content encoding,
    /// which are the codec's.
    ///
    /// # Cancel safety
    ///
    /// As for [`send`](Self::send).
    fn send_with<T, C: Codec<T>>(
        &self,
        queue: &Queue<T, C>,
        payload: &T,
        edit: impl FnOnce(Message) -> Message,
    ) -> impl Future<Output = Result<()>> + Send {
        let message = build(queue, payload, edit);
        async move { self.publish(queue.name(), message?).await }
    }
}

impl<P: Publisher + ?Sized> PublisherExt for P {}

fn build<T, C: Codec<T>>(
    queue: &Queue<T, C>,
    payload: &T,
    edit: impl FnOnce(Message) -> Message,
) -> Result<Message> {
    check_name("publish", "queue", queue.name())?;
    let envelope = edit(Message::new(""));
    let set = [
        ("body", !envelope.body().is_empty()),
        ("content_type", envelope.content_type().is_some()),
        ("content_encoding", envelope.content_encoding().is_some()),
    ];
    if let Some((field, _)) = set.iter().find(|(_, set)| *set) {
        return Err(Error::new(ErrorKind::Invalid, "publish")
            .with_message(format!("`{field}` is set by hand, and is the codec's: leave it out"))
            .with_context("queue", queue.name()));
    }
    queue.message_on(payload, envelope)
}
