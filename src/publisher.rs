//! The other half of the contract: sending a message to a queue and knowing that it arrived.

mod traced;

use std::future::Future;
use std::sync::Arc;

pub use traced::Traced;

use crate::error::{Error, ErrorKind, Result};
use crate::message::Message;

/// Where messages are sent to: one broker.
pub trait Publisher: Send + Sync + 'static {
    /// Sends `message` to `queue` and resolves when the broker has confirmed that it has it.
    ///
    /// Only what was sent is sent on: id, body, headers and properties. How a message came (attempt, redelivered,
    /// delivery count) is not, so that a received message which is published onward starts at attempt 1.
    ///
    /// # Errors
    ///
    /// `Disconnected`: not sent. `Refused`: the broker said no. `Unroutable`: there is no such queue. `Unconfirmed`:
    /// unknown, because no confirm came in time or the connection went first; it is never reported as success and
    /// never sent again silently. `Invalid`: the message or the name cannot be sent; nothing was.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves it open whether the broker took the message.
    fn publish(&self, queue: &str, message: Message) -> impl Future<Output = Result<()>> + Send;

    /// Sends `message` to all who listen to `exchange`, each of whom gets a copy, and resolves when the broker has
    /// confirmed that it has it. Nobody need listen.
    ///
    /// # Errors
    ///
    /// As for [`publish`](Self::publish), but that `NotFound` says that there is no such exchange. `Unsupported` where
    /// the broker, or its adapter, has no such thing; that is what this does unless an adapter overrides it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves it open whether the broker took the message.
    fn broadcast(&self, exchange: &str, message: Message) -> impl Future<Output = Result<()>> + Send {
        let _ = message;
        let error = Error::new(ErrorKind::Unsupported, "broadcast").with_context("exchange", exchange);
        std::future::ready(Err(error))
    }
}

#[deny(clippy::missing_trait_methods)]
impl<P: Publisher> Publisher for Arc<P> {
    fn publish(&self, queue: &str, message: Message) -> impl Future<Output = Result<()>> + Send {
        (**self).publish(queue, message)
    }

    fn broadcast(&self, exchange: &str, message: Message) -> impl Future<Output = Result<()>> + Send {
        (**self).broadcast(exchange, message)
    }
}
