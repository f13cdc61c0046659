//! The broker in memory, with what a connection to it would have: its sources end when it is closed.

use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

use futures::FutureExt;
use futures::future::BoxFuture;

use super::backend::Backend;
use super::{Broker, BrokerSource};
use crate::clock::SystemClock;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::{MemoryBroker, MemoryPublisher, MemorySource, WeakSource};
use crate::message::Message;
use crate::publisher::Publisher;
use crate::queue::{DeleteQueue, Slot};
use crate::source::{Health, MessageSource};

pub(super) fn open(name: &str) -> Result<Broker> {
    if name.contains('/') {
        let text = "`url` is of the scheme `memory`, and its name has a slash: write `memory:<name>`";
        return Err(Error::new(ErrorKind::Invalid, "open broker").with_message(text));
    }
    let broker = if name.is_empty() { MemoryBroker::new(SystemClock) } else { MemoryBroker::shared(name) };
    Ok(broker.into())
}

impl From<MemoryBroker> for Broker {
    /// Another connection to the broker: closing it closes the sources that were opened by it, and no others.
    fn from(broker: MemoryBroker) -> Self {
        let publisher = broker.publisher();
        Self(Arc::new(Connection { broker, publisher, sources: Mutex::new(Some(Vec::new())) }))
    }
}

impl Broker {
    /// The broker in memory, where it is one: to declare queues, and to look into them.
    pub fn as_memory(&self) -> Option<&MemoryBroker> {
        (*self.0).as_any().downcast_ref::<Connection>().map(|connection| &connection.broker)
    }
}

struct Connection {
    broker: MemoryBroker,
    publisher: MemoryPublisher,
    /// Those that were opened by it; `None` once it is closed.
    sources: Mutex<Option<Vec<WeakSource>>>,
}

impl Connection {
    fn opened(
        &self,
        operation: &'static str,
        open: impl FnOnce() -> Result<MemorySource>,
    ) -> Result<BrokerSource> {
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        let sources = sources.as_mut().ok_or_else(|| closed(operation))?;
        sources.retain(WeakSource::is_there);
        let source = open()?;
        sources.push(source.downgrade());
        let slot = source.slot();
        Ok(BrokerSource::new(source, slot, self.broker.clone()))
    }

    fn check(&self, operation: &'static str) -> Result<()> {
        let sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        sources.as_ref().map(|_| ()).ok_or_else(|| closed(operation))
    }
}

fn closed(operation: &'static str) -> Error {
    Error::new(ErrorKind::Closed, operation)
}

impl Backend for Connection {
    fn source<'a>(&'a self, queue: &'a str) -> BoxFuture<'a, Result<BrokerSource>> {
        async move { self.opened("open", || self.broker.source(queue)) }.boxed()
    }

    fn claim<'a>(&'a self, family: &'a str, slot: Slot) -> BoxFuture<'a, Result<BrokerSource>> {
        async move { self.opened("claim", || self.broker.claim(family, slot)) }.boxed()
    }

    fn subscribe<'a>(&'a self, exchange: &'a str) -> BoxFuture<'a, Result<BrokerSource>> {
        async move { self.opened("subscribe", || self.broker.subscribe(exchange)) }.boxed()
    }

    fn publish<'a>(&'a self, queue: &'a str, message: Message) -> BoxFuture<'a, Result<()>> {
        async move {
            self.check("publish")?;
            self.publisher.publish(queue, message).await
        }
        .boxed()
    }

    fn broadcast<'a>(&'a self, exchange: &'a str, message: Message) -> BoxFuture<'a, Result<()>> {
        async move {
            self.check("broadcast")?;
            self.publisher.broadcast(exchange, message).await
        }
        .boxed()
    }

    fn queue_exists<'a>(&'a self, queue: &'a str) -> BoxFuture<'a, Result<bool>> {
        async move {
            self.check("look up queue")?;
            Ok(self.broker.queue_exists(queue))
        }
        .boxed()
    }

    fn delete_queue<'a>(
        &'a self,
        queue: &'a str,
        options: DeleteQueue,
    ) -> BoxFuture<'a, Result<Option<usize>>> {
        async move {
            self.check("delete queue")?;
            self.broker.delete_queue(queue, options)
        }
        .boxed()
    }

    fn health(&self) -> Health {
        if self.check("health").is_ok() { Health::Ready } else { Health::Closed }
    }

    fn system(&self) -> &'static str {
        "memory"
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        async move {
            let sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner).take();
            for source in sources.into_iter().flatten().filter_map(|source| source.upgrade()) {
                // It is closed all the same.
                let _ = source.close().await;
            }
        }
        .boxed()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
