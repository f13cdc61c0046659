//! Queues that know the type of their payloads.
//!
//! ```
//! # #[cfg(feature = "json")]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> windlass::Result<()> {
//! use windlass::clock::SystemClock;
//! use windlass::memory::MemoryBroker;
//! use windlass::queue::{PublisherExt, Queue, QueueFamily};
//! use windlass::{Context, HandlerError, QueueConsumer};
//!
//! #[derive(serde::Serialize, serde::Deserialize)]
//! pub struct Created {
//!     id: u64,
//! }
//!
//! pub const WRITER: Queue<Created> = Queue::new("writer");
//! pub const TRANSPORT: QueueFamily<Created> = QueueFamily::new("websockets-transport");
//!
//! let broker = MemoryBroker::new(SystemClock);
//! let queue = broker.queue(WRITER.name());
//! broker.publisher().send(&WRITER, &Created { id: 7 }).await?;
//!
//! let consumer = QueueConsumer::of(&WRITER, queue.source(), async |created: Created, _: Context| {
//!     assert_eq!(created.id, 7);
//!     Ok::<_, HandlerError>(())
//! });
//! let handle = consumer.start()?;
//! queue.until(|queue| queue.counts().acked == 1).await?;
//! handle.stop().await;
//! assert_eq!(TRANSPORT.slot(1).name(), "websockets-transport_1");
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "json"))]
//! # fn main() {}
//! ```
//!
//! # What does not compile
//!
//! Sending a payload of another type:
//!
//! ```compile_fail,E0308
//! use windlass::codec::Raw;
//! use windlass::queue::{PublisherExt, Queue};
//!
//! const WRITER: Queue<bytes::Bytes, Raw> = Queue::with_codec("writer", Raw);
//!
//! async fn send(publisher: windlass::memory::MemoryPublisher) -> windlass::Result<()> {
//!     publisher.send(&WRITER, &7_u32).await
//! }
//! ```
//!
//! where the same with `&bytes::Bytes::new()` does:
//!
//! ```
//! use windlass::codec::Raw;
//! use windlass::queue::{PublisherExt, Queue};
//!
//! const WRITER: Queue<bytes::Bytes, Raw> = Queue::with_codec("writer", Raw);
//!
//! async fn send(publisher: windlass::memory::MemoryPublisher) -> windlass::Result<()> {
//!     publisher.send(&WRITER, &bytes::Bytes::new()).await
//! }
//! ```
//!
//! A handler of another type:
//!
//! ```compile_fail,E0631
//! use windlass::codec::Raw;
//! use windlass::memory::MemorySource;
//! use windlass::queue::Queue;
//! use windlass::{Context, HandlerError, QueueConsumer};
//!
//! const WRITER: Queue<bytes::Bytes, Raw> = Queue::with_codec("writer", Raw);
//!
//! async fn handle(_: String, _: Context) -> Result<(), HandlerError> {
//!     Ok(())
//! }
//!
//! fn consume(source: MemorySource) {
//!     let _ = QueueConsumer::of(&WRITER, source, handle);
//! }
//! ```
//!
//! where one of the queue's does:
//!
//! ```
//! use windlass::codec::Raw;
//! use windlass::memory::MemorySource;
//! use windlass::queue::Queue;
//! use windlass::{Context, HandlerError, QueueConsumer};
//!
//! const WRITER: Queue<bytes::Bytes, Raw> = Queue::with_codec("writer", Raw);
//!
//! async fn handle(_: bytes::Bytes, _: Context) -> Result<(), HandlerError> {
//!     Ok(())
//! }
//!
//! fn consume(source: MemorySource) {
//!     let _ = QueueConsumer::of(&WRITER, source, handle);
//! }
//! ```

mod delete;
mod name;
mod send;
mod slot;

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

pub use delete::DeleteQueue;
pub use name::{LONGEST_NAME, check_name};
pub use send::PublisherExt;
pub use slot::Slot;

use crate::codec::{Codec, CodecError, Encoded, Json, Received};
use crate::error::{Error, ErrorKind, Result};
use crate::message::Message;

/// What [`Queue::max_body_bytes`] is where nothing else is said: 16 MiB, what RabbitMQ 4 takes where nobody changed it.
pub const DEFAULT_MAX_BODY_BYTES: usize = 16 * 1024 * 1024;

/// A queue: its name, the type of its payloads, and the [`Codec`] that they go through.
///
/// A constant that publisher and consumer share: what is sent to it and what is handled from it agree on `T` when they
/// are compiled. `T` is any type that the codec takes; JSON takes what serde can both write and read.
///
/// Names are checked where they are used, by [`check`](Self::check): before anything is sent, and where a consumer
/// starts.
pub struct Queue<T, C = Json> {
    name: Cow<'static, str>,
    codec: C,
    max_body_bytes: usize,
    payload: PhantomData<fn(T) -> T>,
}

impl<T> Queue<T> {
    /// A queue of JSON.
    pub const fn new(name: &'static str) -> Self {
        Self::with_codec(name, Json)
    }
}

impl<T, C> Queue<T, C> {
    /// A queue with a codec of its own.
    pub const fn with_codec(name: &'static str, codec: C) -> Self {
        Self {
            name: Cow::Borrowed(name),
            codec,
            max_body_bytes: DEFAULT_MAX_BODY_BYTES,
            payload: PhantomData,
        }
    }

    /// The largest body on the wire, packed where the codec packs, in bytes; 16 MiB by default. A larger one is not
    /// sent, and is dead-lettered when it comes.
    #[must_use]
    pub const fn max_body_bytes(mut self, bytes: usize) -> Self {
        self.max_body_bytes = bytes;
        self
    }

    /// The same under a name that is known only when the program runs.
    #[must_use]
    pub fn named(self, name: impl Into<Cow<'static, str>>) -> Self {
        Self { name: name.into(), ..self }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The codec.
    pub fn codec(&self) -> &C {
        &self.codec
    }

    /// Whether brokers take the name, and those that are made of it; see [`check_name`].
    ///
    /// # Errors
    ///
    /// `Invalid`, with the field and the byte length.
    pub fn check(&self) -> Result<()> {
        check_name("check queue", "queue", &self.name)
    }

    /// A message with this payload: what [`PublisherExt::send`] sends. For what else is done with messages, such as
    /// sending them to an exchange or later.
    ///
    /// # Errors
    ///
    /// `Invalid`, where the codec refuses the payload or its body would be too large.
    pub fn message(&self, payload: &T) -> Result<Message>
    where
        C: Codec<T>,
    {
        self.message_on(payload, Message::new(""))
    }

    /// The payload of a message; for a loop over [`deliveries`](crate::deliveries), and for dead letters.
    ///
    /// # Errors
    ///
    /// What is wrong with the body.
    pub fn decode(&self, message: &Message) -> Result<T, CodecError>
    where
        C: Codec<T>,
    {
        self.check_size(message.body().len())?;
        self.codec.decode(Received::new(message))
    }

    fn check_size(&self, bytes: usize) -> Result<(), CodecError> {
        let limit = self.max_body_bytes;
        if bytes > limit { Err(CodecError::BodyTooLarge { bytes, limit }) } else { Ok(()) }
    }

    fn message_on(&self, payload: &T, envelope: Message) -> Result<Message>
    where
        C: Codec<T>,
    {
        let encoded = self.codec.encode(payload).and_then(|encoded| {
            self.check_size(encoded.body.len())?;
            Ok(encoded)
        });
        let Encoded { body, content_type, content_encoding } = encoded.map_err(|error| {
            Error::new(ErrorKind::Invalid, "publish")
                .with_message("the payload cannot be sent")
                .with_context("queue", self.name.as_ref())
                .with_source(error)
        })?;
        let mut message = envelope.with_body(body);
        if let Some(content_type) = content_type {
            message = message.with_content_type(content_type);
        }
        if let Some(encoding) = content_encoding {
            message = message.with_content_encoding(encoding);
        }
        Ok(message)
    }
}

impl<T, C: Clone> Clone for Queue<T, C> {
    fn clone(&self) -> Self {
        Self {
            name: self.name.clone(),
            codec: self.codec.clone(),
            max_body_bytes: self.max_body_bytes,
            payload: PhantomData,
        }
    }
}

impl<T, C> fmt::Debug for Queue<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("name", &self.name)
            .field("payload", &std::any::type_name::<T>())
            .field("codec", &std::any::type_name::<C>())
            .field("max_body_bytes", &self.max_body_bytes)
            .finish()
    }
}

/// Queues of the same kind, one for each slot: `<pattern>_<n>`.
pub struct QueueFamily<T, C = Json>(Queue<T, C>);

impl<T> QueueFamily<T> {
    /// Queues of JSON.
    pub const fn new(pattern: &'static str) -> Self {
        Self::with_codec(pattern, Json)
    }
}

impl<T, C> QueueFamily<T, C> {
    /// Queues with a codec of their own.
    pub const fn with_codec(pattern: &'static str, codec: C) -> Self {
        Self(Queue::with_codec(pattern, codec))
    }

    /// As [`Queue::max_body_bytes`], for each of them.
    #[must_use]
    pub const fn max_body_bytes(mut self, bytes: usize) -> Self {
        self.0.max_body_bytes = bytes;
        self
    }

    /// What the names begin with.
    pub fn pattern(&self) -> &str {
        self.0.name()
    }

    /// The queue of slot `n`. Where the pattern is empty, so is the name: it is refused where it is used.
    pub fn slot(&self, n: u32) -> Queue<T, C>
    where
        C: Clone,
    {
        match self.pattern() {
            "" => self.0.clone(),
            pattern => self.0.clone().named(Slot::queue(pattern, n)),
        }
    }
}

impl<T, C: Clone> Clone for QueueFamily<T, C> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T, C> fmt::Debug for QueueFamily<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("QueueFamily").field(&self.0).finish()
    }
}
