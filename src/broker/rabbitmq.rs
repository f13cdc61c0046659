//! RabbitMQ.

use std::any::Any;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;

use super::backend::Backend;
use super::{Broker, BrokerSource};
use crate::error::Result;
use crate::message::Message;
use crate::publisher::Publisher;
use crate::queue::{DeleteQueue, Slot};
use crate::rabbitmq::{RabbitMq, RabbitMqConfig, RabbitPublisher, SourceOptions};
use crate::source::Health;

pub(super) async fn open(url: &str) -> Result<Broker> {
    Ok(RabbitMq::connect(RabbitMqConfig::from_uri(url)?).await?.into())
}

impl From<RabbitMq> for Broker {
    fn from(rabbit: RabbitMq) -> Self {
        let publisher = rabbit.publisher();
        Self(Arc::new(Connection { rabbit, publisher }))
    }
}

impl Broker {
    /// The adapter, where it is RabbitMQ: for what only that has, such as its events and the options of its sources.
    pub fn as_rabbitmq(&self) -> Option<&RabbitMq> {
        (*self.0).as_any().downcast_ref::<Connection>().map(|connection| &connection.rabbit)
    }
}

struct Connection {
    rabbit: RabbitMq,
    publisher: RabbitPublisher,
}

impl Connection {
    async fn opened(&self, options: SourceOptions) -> Result<BrokerSource> {
        let source = options.open().await?;
        let slot = source.slot();
        Ok(BrokerSource::new(source, slot, self.rabbit.clone()))
    }
}

impl Backend for Connection {
    fn source<'a>(&'a self, queue: &'a str) -> BoxFuture<'a, Result<BrokerSource>> {
        self.opened(self.rabbit.source(queue)).boxed()
    }

    fn claim<'a>(&'a self, family: &'a str, slot: Slot) -> BoxFuture<'a, Result<BrokerSource>> {
        self.opened(self.rabbit.claim(family, slot)).boxed()
    }

    fn subscribe<'a>(&'a self, exchange: &'a str) -> BoxFuture<'a, Result<BrokerSource>> {
        self.opened(self.rabbit.subscribe(exchange)).boxed()
    }

    fn publish<'a>(&'a self, queue: &'a str, message: Message) -> BoxFuture<'a, Result<()>> {
        self.publisher.publish(queue, message).boxed()
    }

    fn broadcast<'a>(&'a self, exchange: &'a str, message: Message) -> BoxFuture<'a, Result<()>> {
        self.publisher.broadcast(exchange, message).boxed()
    }

    fn queue_exists<'a>(&'a self, queue: &'a str) -> BoxFuture<'a, Result<bool>> {
        self.rabbit.queue_exists(queue).boxed()
    }

    fn delete_queue<'a>(
        &'a self,
        queue: &'a str,
        options: DeleteQueue,
    ) -> BoxFuture<'a, Result<Option<usize>>> {
        async move {
            let deleted = self.rabbit.delete_queue(queue, options).await?;
            Ok(deleted.map(|messages| usize::try_from(messages).unwrap_or(usize::MAX)))
        }
        .boxed()
    }

    fn health(&self) -> Health {
        self.rabbit.health()
    }

    fn system(&self) -> &'static str {
        "rabbitmq"
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.rabbit.disconnect().boxed()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
