//! A queue with its dead-letter queue, a connection of the adapter, and a ledger of all that is published there.

use std::num::NonZeroU16;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lapin::types::{AMQPValue, FieldTable};
use tokio_util::sync::CancellationToken;
use windlass::message::Message;
use windlass::rabbitmq::{
    DeadLetterTo, RabbitMq, RabbitMqConfig, RabbitReceipt, RabbitSource, dead_letter_queue,
};
use windlass::source::{Delivery, MessageSource, NackReason};

use super::props::Props;
use super::rabbit::{Ledger, Node, QueueType, Raw, bounded};
use super::wire::{Got, Wire};

pub(crate) const BOTH: [QueueType; 2] = [QueueType::Classic, QueueType::Quorum];

/// As long as a retry waits that the test does not care about.
pub(crate) const SOON: Duration = Duration::from_millis(1);

pub(crate) struct Desk {
    pub(crate) queue: String,
    pub(crate) kind: QueueType,
    pub(crate) raw: Raw,
    pub(crate) wire: Wire,
    pub(crate) rabbit: RabbitMq,
    pub(crate) ledger: Ledger,
}

pub(crate) async fn connect(uri: &str) -> RabbitMq {
    let config = RabbitMqConfig::from_uri(uri)
        .expect("a URI")
        .with_reconnect_delay(Duration::from_millis(20))
        .with_reconnect_max_delay(Duration::from_millis(200));
    bounded("connect", RabbitMq::connect(config)).await.expect("the broker accepts the connection")
}

impl Desk {
    /// On the node that all tests share.
    pub(crate) async fn new(name: &str, kind: QueueType) -> Self {
        Self::on(Node::shared().await, name, kind).await
    }

    /// The queue dead-letters what is rejected to its dead-letter queue, too.
    pub(crate) async fn on(node: &Node, name: &str, kind: QueueType) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let queue = format!("{name}-{kind}-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let raw = Raw::connect(&node.uri()).await;
        let letters = dead_letter_queue(&queue);
        let mut arguments = FieldTable::default();
        for (argument, value) in
            [("x-dead-letter-exchange", ""), ("x-dead-letter-routing-key", letters.as_str())]
        {
            arguments.insert(argument.into(), AMQPValue::LongString(value.into()));
        }
        raw.declare(&queue, kind, arguments).await;
        raw.declare(&letters, kind, FieldTable::default()).await;
        let wire = Wire::connect(node.amqp_port()).await;
        let rabbit = connect(&node.uri()).await;
        Self { queue, kind, raw, wire, rabbit, ledger: Ledger::new() }
    }

    pub(crate) fn letters(&self) -> String {
        dead_letter_queue(&self.queue)
    }

    /// Publishes as another client would.
    pub(crate) async fn publish(&mut self, props: &Props, body: &[u8]) {
        let id = props.id();
        self.ledger.published(&id);
        self.wire.publish(&self.queue, props, body).await;
        self.ledger.confirmed(&id);
    }

    pub(crate) async fn source(&self, prefetch: u16, to: DeadLetterTo) -> RabbitSource {
        let options = self.rabbit.source(&self.queue).dead_letter_to(to);
        let options = options.prefetch(NonZeroU16::new(prefetch).expect("not zero"));
        let options = options.queue_type(match self.kind {
            QueueType::Classic => windlass::rabbitmq::QueueType::Classic,
            QueueType::Quorum => windlass::rabbitmq::QueueType::Quorum,
        });
        bounded("open a source", options.open()).await.expect("the queue is there")
    }

    /// Receives the next message.
    pub(crate) async fn next(&self, source: &RabbitSource) -> Delivery<RabbitReceipt> {
        let delivery = next(source).await;
        self.ledger.handled(delivery.message.id());
        delivery
    }

    /// Receives the next message and asks for another try of it.
    pub(crate) async fn retry_next(&self, source: &RabbitSource, delay: Duration) -> Message {
        let Delivery { message, receipt } = self.next(source).await;
        let nack = source.nack(receipt, NackReason::retry_after(delay, "again"));
        bounded("nack", nack).await.expect("the copy is taken");
        message
    }

    /// Receives the next message and gives it up.
    pub(crate) async fn give_up_next(&self, source: &RabbitSource, cause: &'static str) -> Message {
        let Delivery { message, receipt } = self.next(source).await;
        let nack = source.nack(receipt, NackReason::dead_letter(cause));
        bounded("nack", nack).await.expect("the letter is taken");
        message
    }

    /// Receives the next message and acks it.
    pub(crate) async fn ack_next(&self, source: &RabbitSource) -> Message {
        let Delivery { message, receipt } = self.next(source).await;
        bounded("ack", source.ack(receipt)).await.expect("the ack is sent");
        self.ledger.acked(message.id());
        message
    }

    /// Waits until there are so many dead letters.
    pub(crate) async fn until_letters(&self, count: u32) {
        let letters = self.letters();
        super::rabbit::until(&format!("{count} dead letters"), || async {
            let (ready, _) = self.raw.count(&letters).await.expect("the queue is there");
            (ready >= count).then_some(())
        })
        .await;
    }

    /// Ends all, asserts that nothing is left in the queue, and that all that was published was handled or is a dead
    /// letter; returns the dead letters.
    pub(crate) async fn finish(mut self, source: RabbitSource) -> Vec<Got> {
        bounded("close", source.close()).await.expect("the source closes");
        let left = self.wire.take_all(&self.queue).await;
        let left: Vec<String> = left.iter().map(|got| got.props.id()).collect();
        assert_eq!(left, [""; 0], "nothing is left in {}", self.queue);
        let letters = self.wire.take_all(&self.letters()).await;
        letters.iter().for_each(|letter| self.ledger.dead_lettered(&letter.props.id()));
        self.ledger.account();
        bounded("disconnect", self.rabbit.disconnect()).await;
        self.raw.close().await;
        letters
    }
}

pub(crate) async fn next(source: &RabbitSource) -> Delivery<RabbitReceipt> {
    let cancel = CancellationToken::new();
    bounded("a delivery", async {
        loop {
            match source.receive(&cancel).await {
                Ok(Some(delivery)) => return delivery,
                Ok(None) => {}
                Err(error) => assert!(error.is_transient(), "{error}"),
            }
        }
    })
    .await
}
