//! What a broker behind a URL can do.

use std::any::Any;

use futures::future::BoxFuture;

use super::BrokerSource;
use crate::error::Result;
use crate::message::Message;
use crate::queue::{DeleteQueue, Slot};
use crate::source::Health;

/// Each method is documented at the method of [`Broker`](super::Broker) that calls it.
pub(super) trait Backend: Send + Sync + 'static {
    fn source<'a>(&'a self, queue: &'a str) -> BoxFuture<'a, Result<BrokerSource>>;
    fn claim<'a>(&'a self, family: &'a str, slot: Slot) -> BoxFuture<'a, Result<BrokerSource>>;
    fn subscribe<'a>(&'a self, exchange: &'a str) -> BoxFuture<'a, Result<BrokerSource>>;
    fn publish<'a>(&'a self, queue: &'a str, message: Message) -> BoxFuture<'a, Result<()>>;
    fn broadcast<'a>(&'a self, exchange: &'a str, message: Message) -> BoxFuture<'a, Result<()>>;
    fn queue_exists<'a>(&'a self, queue: &'a str) -> BoxFuture<'a, Result<bool>>;
    fn delete_queue<'a>(
        &'a self,
        queue: &'a str,
        options: DeleteQueue,
    ) -> BoxFuture<'a, Result<Option<usize>>>;
    fn health(&self) -> Health;
    fn system(&self) -> &'static str;
    fn close(&self) -> BoxFuture<'_, ()>;

    /// For what only one of them has.
    fn as_any(&self) -> &dyn Any;
}
