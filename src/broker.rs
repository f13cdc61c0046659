//! A broker that is chosen by its URL, so that a deployment changes it by configuration.
//!
//! | URL | broker |
//! |---|---|
//! | `memory:` | queues in this process, of this [`Broker`] alone |
//! | `memory:<name>` | queues in this process, the same for all who open this name while one of them has it |
//! | `amqp://…`, `amqps://…` | RabbitMQ, with the feature `rabbitmq`, as `RabbitMqConfig::from_uri` reads it |
//!
//! What is offered here means the same on all of them: a queue that nobody declared is `NotFound` to whoever would pull
//! from it and `Unroutable` to whoever sends there, a slot that somebody has is `Taken`, what is in a slot or a
//! subscription ends with its connection, and after [`close`](Broker::close) everything is `Closed`. What only one of them
//! has is found behind [`Broker::as_memory`] and `Broker::as_rabbitmq`. No queue is declared here: a topology says which
//! there are.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> windlass::Result<()> {
//! use tokio_util::sync::CancellationToken;
//! use windlass::broker::Broker;
//! use windlass::{Message, MessageSource, Publisher};
//!
//! let url = std::env::var("CHAT_BROKER").unwrap_or_else(|_| "memory:".to_owned());
//! let broker = Broker::open(&url).await?;
//! if let Some(memory) = broker.as_memory() {
//!     memory.queue("writer");
//! }
//! broker.publisher().publish("writer", Message::new("hello")).await?;
//! let source = broker.source("writer").await?;
//! let delivery = source.receive(&CancellationToken::new()).await?.expect("a message is there");
//! source.ack(delivery.receipt).await?;
//! broker.close().await;
//! # Ok(())
//! # }
//! ```

mod backend;
mod memory;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
/// Without the adapter the URL can only be refused.
#[cfg(not(feature = "rabbitmq"))]
mod rabbitmq {
    use super::Broker;
    use crate::error::{Error, ErrorKind, Result};

    pub(super) async fn open(_: &str) -> Result<Broker> {
        let text = "`url` is of RabbitMQ, which this program was built without: build it with the feature `rabbitmq`";
        Err(Error::new(ErrorKind::Unsupported, "open broker").with_message(text))
    }
}
mod source;

use std::fmt;
use std::sync::Arc;

pub use source::{BrokerReceipt, BrokerSource};

use self::backend::Backend;
use crate::error::{Error, ErrorKind, Result};
use crate::message::Message;
use crate::publisher::Publisher;
use crate::queue::{DeleteQueue, Slot};
use crate::source::Health;

/// One broker or another. Cheap to clone; all clones are one connection.
#[derive(Clone)]
pub struct Broker(Arc<dyn Backend>);

impl Broker {
    /// Opens the broker of this URL; the [module](self) has a table.
    ///
    /// RabbitMQ is connected to, and tried again until it is there: bound it with [`within`](crate::clock::within) where
    /// that must not take for ever.
    ///
    /// # Errors
    ///
    /// `Invalid` for a URL that is of none of them, or that cannot be right; `Unsupported` for one whose feature is off;
    /// and those of `RabbitMq::connect`. No error repeats a password.
    ///
    /// # Cancel safety
    ///
    /// Safe: dropping the future ends the tries.
    pub async fn open(url: &str) -> Result<Self> {
        match scheme(url) {
            Some(("memory", name)) => memory::open(name),
            Some(("amqp" | "amqps", _)) => rabbitmq::open(url).await,
            _ => Err(Error::new(ErrorKind::Invalid, "open broker").with_message(format!(
                "`url` {}: there are `memory:`, `memory:<name>`, `amqp://…` and `amqps://…`",
                what_it_is(url)
            ))),
        }
    }

    /// A source on a queue.
    ///
    /// # Errors
    ///
    /// `NotFound` where nobody declared the queue; `Taken` or `Refused` where it is somebody's own; `Closed` after
    /// [`close`](Self::close); and what the broker says, classified.
    ///
    /// # Cancel safety
    ///
    /// Safe: what was opened is closed.
    pub async fn source(&self, queue: &str) -> Result<BrokerSource> {
        self.0.source(queue).await
    }

    /// Claims a slot of a family of queues, and opens a source on its queue, `<family>_<n>`, which is made by this and ends
    /// with the source or its connection, with what is in it. [`BrokerSource::slot`] says which it is.
    ///
    /// # Errors
    ///
    /// `Taken` where somebody has the slot, or all that are to be tried; `Invalid` for the name of a family that is none;
    /// else as for [`source`](Self::source).
    ///
    /// # Cancel safety
    ///
    /// Safe: what was claimed is given up.
    pub async fn claim(&self, family: &str, slot: Slot) -> Result<BrokerSource> {
        self.0.claim(family, slot).await
    }

    /// Subscribes to an exchange: opens a source that gets a copy of each message which is broadcast from here on.
    ///
    /// # Errors
    ///
    /// `NotFound` where nobody declared the exchange; else as for [`source`](Self::source).
    ///
    /// # Cancel safety
    ///
    /// Safe: what was opened is closed.
    pub async fn subscribe(&self, exchange: &str) -> Result<BrokerSource> {
        self.0.subscribe(exchange).await
    }

    /// A publisher.
    pub fn publisher(&self) -> BrokerPublisher {
        BrokerPublisher(Arc::clone(&self.0))
    }

    /// Whether there is a queue of this name.
    ///
    /// # Errors
    ///
    /// `Closed` after [`close`](Self::close); and what the broker says, classified.
    ///
    /// # Cancel safety
    ///
    /// Safe: it only asks.
    pub async fn queue_exists(&self, queue: &str) -> Result<bool> {
        self.0.queue_exists(queue).await
    }

    /// Deletes a queue, as far as `options` allow; how many messages went with it. `None` where there was no such queue.
    /// On RabbitMQ only messages that were ready are counted.
    ///
    /// # Errors
    ///
    /// `Refused` where the options do not allow it; `Taken` or `Refused` where it is somebody's own; `Closed` after
    /// [`close`](Self::close); and what the broker says, classified.
    ///
    /// # Cancel safety
    ///
    /// The queue may be deleted all the same.
    pub async fn delete_queue(&self, queue: &str, options: DeleteQueue) -> Result<Option<usize>> {
        self.0.delete_queue(queue, options).await
    }

    /// Whether it can be worked with now.
    pub fn health(&self) -> Health {
        self.0.health()
    }

    /// The kind of broker, as [`MessageSource::system`](crate::MessageSource::system) has it: `memory`, `rabbitmq`.
    pub fn system(&self) -> &'static str {
        self.0.system()
    }

    /// Closes all sources that were opened by it, and then the connection. Final. What is not settled goes back to the
    /// broker. Takes a few seconds at most; any number of tasks may call it, any number of times.
    ///
    /// # Cancel safety
    ///
    /// Call it again: it goes on where it was.
    pub async fn close(&self) {
        self.0.close().await;
    }
}

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Broker").field("system", &self.system()).field("health", &self.health()).finish()
    }
}

/// Sends messages to a [`Broker`]. Cheap to clone.
#[derive(Clone)]
pub struct BrokerPublisher(Arc<dyn Backend>);

#[deny(clippy::missing_trait_methods)]
impl Publisher for BrokerPublisher {
    async fn publish(&self, queue: &str, message: Message) -> Result<()> {
        self.0.publish(queue, message).await
    }

    async fn broadcast(&self, exchange: &str, message: Message) -> Result<()> {
        self.0.broadcast(exchange, message).await
    }
}

impl fmt::Debug for BrokerPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BrokerPublisher").field("system", &self.0.system()).finish_non_exhaustive()
    }
}

/// The scheme, in lower case where it is one of ours, and what stands behind its colon.
fn scheme(url: &str) -> Option<(&'static str, &str)> {
    let (given, rest) = url.split_once(':')?;
    let known = ["memory", "amqp", "amqps"];
    known.into_iter().find(|known| given.eq_ignore_ascii_case(known)).map(|known| (known, rest))
}

/// Says what is wrong without repeating what may be a password: only what stands before `://` is a scheme for certain.
fn what_it_is(url: &str) -> String {
    let is_scheme = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_alphabetic())
            && text.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    };
    match url.split_once("://") {
        Some((scheme, _)) if is_scheme(scheme) => format!("has the scheme `{scheme}`, which is none of ours"),
        _ if url.is_empty() => "is empty".to_owned(),
        _ => "names no broker".to_owned(),
    }
}
