//! lapin by hand: what a test sets up, sends or looks at beside the adapter. Every operation is bounded.

use std::fmt;

use lapin::options::{
    BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions,
    QueuePurgeOptions,
};
use lapin::tcp::OwnedTLSConfig;
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};

use super::bounded;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QueueType {
    Classic,
    Quorum,
}

impl fmt::Display for QueueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Classic => "classic",
            Self::Quorum => "quorum",
        })
    }
}

/// What the broker said to a mandatory, confirmed message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Sent {
    Confirmed,
    /// No queue: the code and the text of the return.
    Returned(u16, String),
    Refused,
}

/// A message as it lay in the queue.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RawMessage {
    pub(crate) body: Vec<u8>,
    pub(crate) properties: BasicProperties,
    pub(crate) redelivered: bool,
    pub(crate) exchange: String,
    pub(crate) routing_key: String,
}

impl RawMessage {
    /// Its `message_id`.
    ///
    /// # Panics
    ///
    /// Where it has none.
    pub(crate) fn id(&self) -> &str {
        self.properties.message_id().as_ref().expect("it has an id").as_str()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&AMQPValue> {
        self.properties.headers().as_ref()?.inner().get(name)
    }
}

/// A connection with a channel that confirms.
#[derive(Debug)]
pub(crate) struct Raw {
    connection: Connection,
    channel: Channel,
}

impl Raw {
    /// # Panics
    ///
    /// As all here: when the broker refuses or does not answer within the bound.
    pub(crate) async fn connect(uri: &str) -> Self {
        Self::try_connect(uri, OwnedTLSConfig::default()).await.expect("the broker accepts the connection")
    }

    pub(crate) async fn try_connect(uri: &str, tls: OwnedTLSConfig) -> lapin::Result<Self> {
        bounded("connect", async {
            let properties = ConnectionProperties::default().with_connection_name("raw".into());
            let runtime = lapin::runtime::default_runtime()?;
            let connection = Connection::connect_with_config(uri, properties, tls, runtime).await?;
            let channel = connection.create_channel().await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            Ok(Self { connection, channel })
        })
        .await
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// A channel of the test's own, without confirms.
    pub(crate) async fn channel(&self) -> Channel {
        bounded("open a channel", self.connection.create_channel()).await.expect("a channel is opened")
    }

    /// Declares a durable queue.
    pub(crate) async fn declare(&self, queue: &str, kind: QueueType, mut arguments: FieldTable) {
        let kind = AMQPValue::LongString(kind.to_string().into());
        arguments.insert("x-queue-type".into(), kind);
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        let declared = self.channel.queue_declare(queue.into(), options, arguments);
        bounded("declare", declared).await.expect("the queue is declared");
    }

    /// Publishes by the default exchange, persistent, with `id` as `message_id`.
    pub(crate) async fn publish(&self, queue: &str, id: &str, body: &[u8]) -> Sent {
        let properties = BasicProperties::default().with_message_id(id.into()).with_delivery_mode(2);
        self.publish_with("", queue, body, properties).await
    }

    /// Publishes exactly this, mandatory, and waits for the confirm.
    pub(crate) async fn publish_with(
        &self,
        exchange: &str,
        routing_key: &str,
        body: &[u8],
        properties: BasicProperties,
    ) -> Sent {
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let confirmation = bounded("publish and wait for the confirm", async {
            let publish =
                self.channel.basic_publish(exchange.into(), routing_key.into(), options, body, properties);
            publish.await?.await
        });
        match confirmation.await.expect("the broker answers") {
            Confirmation::Ack(None) => Sent::Confirmed,
            Confirmation::Ack(Some(returned)) => {
                Sent::Returned(returned.reply_code, returned.reply_text.to_string())
            }
            Confirmation::Nack(_) => Sent::Refused,
            Confirmation::NotRequested => unreachable!("the channel confirms"),
        }
    }

    /// Takes the next message out of the queue.
    pub(crate) async fn get(&self, queue: &str) -> Option<RawMessage> {
        let got = self.channel.basic_get(queue.into(), BasicGetOptions { no_ack: true });
        let delivery = bounded("get", got).await.expect("the queue can be read")?.delivery;
        Some(RawMessage {
            body: delivery.data,
            properties: delivery.properties,
            redelivered: delivery.redelivered,
            exchange: delivery.exchange.to_string(),
            routing_key: delivery.routing_key.to_string(),
        })
    }

    /// Takes all that is ready out of the queue.
    pub(crate) async fn take_all(&self, queue: &str) -> Vec<RawMessage> {
        let mut all = Vec::new();
        while let Some(message) = self.get(queue).await {
            all.push(message);
        }
        all
    }

    /// Drops all that is ready, and says how much that was.
    pub(crate) async fn purge(&self, queue: &str) -> u32 {
        let purged = self.channel.queue_purge(queue.into(), QueuePurgeOptions::default());
        bounded("purge", purged).await.expect("the queue can be purged")
    }

    pub(crate) async fn delete(&self, queue: &str) {
        let deleted = self.channel.queue_delete(queue.into(), QueueDeleteOptions::default());
        bounded("delete", deleted).await.expect("the queue can be deleted");
    }

    /// How many messages are ready and how many consumers there are, now; `None` where there is no such queue.
    pub(crate) async fn count(&self, queue: &str) -> Option<(u32, u32)> {
        // Where there is no queue, the broker closes the channel.
        let channel = self.channel().await;
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let declared = channel.queue_declare(queue.into(), options, FieldTable::default());
        let counts = match bounded("count", declared).await {
            Ok(found) => Some((found.message_count(), found.consumer_count())),
            Err(error) if error.to_string().contains("404") || error.to_string().contains("NOT_FOUND") => {
                return None;
            }
            Err(error) => panic!("count {queue}: {error}"),
        };
        bounded("close", channel.close(200, "done".into())).await.expect("the channel can be closed");
        counts
    }

    pub(crate) async fn close(self) {
        let _ = bounded("close", self.connection.close(200, "done".into())).await;
    }
}
