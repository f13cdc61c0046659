//! Queues of one test, a connection of the adapter, by way of a proxy or not, and a ledger of all that is published.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lapin::types::{AMQPValue, FieldTable};
use windlass::message::Message;
use windlass::publisher::Publisher;
use windlass::rabbitmq::{RabbitMq, RabbitMqConfig, RabbitPublisher};
use windlass::{ErrorKind, Result};

use super::rabbit::{Ledger, Node, Proxy, QueueType, Raw, bounded};

pub(crate) struct Desk {
    pub(crate) node: &'static Node,
    pub(crate) proxy: Proxy,
    pub(crate) raw: Raw,
    pub(crate) rabbit: RabbitMq,
    pub(crate) publisher: RabbitPublisher,
    pub(crate) ledger: Ledger,
    prefix: String,
}

impl Desk {
    pub(crate) async fn new(name: &str) -> Self {
        Self::with_timeout(name, Duration::from_secs(10)).await
    }

    /// The publisher goes by way of the proxy, and waits so long for a confirm.
    pub(crate) async fn with_timeout(name: &str, timeout: Duration) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let node = Node::shared().await;
        let proxy = Proxy::start(node.amqp_port());
        let config = RabbitMqConfig::from_uri(&node.uri_at(proxy.port()))
            .expect("a URI")
            .with_publish_timeout(timeout)
            .with_reconnect_delay(Duration::from_millis(20))
            .with_reconnect_max_delay(Duration::from_millis(200));
        let rabbit =
            bounded("connect", RabbitMq::connect(config)).await.expect("the broker accepts the connection");
        Self {
            node,
            proxy,
            raw: Raw::connect(&node.uri()).await,
            publisher: rabbit.publisher(),
            rabbit,
            ledger: Ledger::new(),
            prefix: format!("{name}-{}", NEXT.fetch_add(1, Ordering::Relaxed)),
        }
    }

    /// The name of a queue or an exchange of this test.
    pub(crate) fn name(&self, name: &str) -> String {
        format!("{}-{name}", self.prefix)
    }

    pub(crate) async fn queue(&self, name: &str, kind: QueueType) -> String {
        let queue = self.name(name);
        self.raw.declare(&queue, kind, FieldTable::default()).await;
        queue
    }

    /// A queue that takes `most` messages and refuses the rest.
    pub(crate) async fn full_at(&self, name: &str, most: i64) -> String {
        let queue = self.name(name);
        let mut arguments = FieldTable::default();
        arguments.insert("x-max-length".into(), AMQPValue::LongLongInt(most));
        arguments.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
        self.raw.declare(&queue, QueueType::Classic, arguments).await;
        queue
    }

    /// Publishes, and writes down what was told.
    pub(crate) async fn publish(&self, queue: &str, message: Message) -> Result<()> {
        publish(&self.publisher, &self.ledger, queue, message).await
    }

    /// Takes all out of the queues, and asserts that what was told is true. Returns how many there were in each.
    pub(crate) async fn account(&self, queues: &[&str]) -> Vec<usize> {
        let mut counts = Vec::new();
        for queue in queues {
            let all = self.raw.take_all(queue).await;
            all.iter().for_each(|message| self.ledger.queued(message.id()));
            counts.push(all.len());
        }
        self.ledger.account();
        counts
    }

    pub(crate) async fn end(self) {
        bounded("disconnect", self.rabbit.disconnect()).await;
        self.raw.close().await;
    }
}

/// Publishes, and writes down what was told: that it is there, that it is not, or that this is not known.
pub(crate) async fn publish(
    publisher: &RabbitPublisher,
    ledger: &Ledger,
    queue: &str,
    message: Message,
) -> Result<()> {
    let id = message.id().to_owned();
    ledger.published(&id);
    let outcome = publisher.publish(queue, message).await;
    note(ledger, &id, &outcome);
    outcome
}

pub(crate) fn note(ledger: &Ledger, id: &str, outcome: &Result<()>) {
    match outcome.as_ref().map_err(|error| error.kind()) {
        Ok(()) => ledger.confirmed(id),
        Err(ErrorKind::Unconfirmed) => {}
        Err(_) => ledger.refused(id),
    }
}

pub(crate) fn message(id: impl Into<String>) -> Message {
    Message::new("x").with_id(id)
}

pub(crate) fn kind(outcome: &Result<()>) -> Option<ErrorKind> {
    outcome.as_ref().err().map(|error| error.kind())
}
