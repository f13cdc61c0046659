//! What these tests share: a queue with its dead letters, of one test's own.

use std::num::NonZeroUsize;
use std::time::{Duration, SystemTime};

use futures::StreamExt;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use tokio_util::sync::CancellationToken;
use windlass::clock::{Clock, SystemClock};
use windlass::rabbitmq::dead_letters::{
    DeadLetterQueue, DeadMessage, Peeked, RedriveError, RedriveOptions, Redriven,
};
use windlass::rabbitmq::{RabbitMq, RabbitMqConfig, dead_letter_queue};
use windlass::source::{Cause, DeadLetter};
use windlass::{Message, Publisher};

use crate::rabbit::{Node, QueueType, Raw, RawMessage, bounded};

pub(crate) const KINDS: [QueueType; 2] = [QueueType::Classic, QueueType::Quorum];

/// What a bootstrapper gives a dead-letter queue.
pub(crate) const HIGH: u32 = 1_000_000;

/// Quick to try again.
pub(crate) fn config(uri: &str) -> RabbitMqConfig {
    RabbitMqConfig::from_uri(uri)
        .expect("the URI of a node")
        .with_reconnect_delay(Duration::from_millis(50))
        .with_reconnect_max_delay(Duration::from_millis(400))
}

pub(crate) fn at_most(count: usize) -> NonZeroUsize {
    NonZeroUsize::new(count).expect("not zero")
}

pub(crate) fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

pub(crate) fn table<const N: usize>(entries: [(&str, AMQPValue); N]) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in entries {
        table.insert(name.into(), value);
    }
    table
}

/// Those of the messages, in their order.
pub(crate) fn ids(messages: &[DeadMessage]) -> Vec<&str> {
    messages.iter().map(|dead| dead.message.id()).collect()
}

pub(crate) fn raw_ids(messages: &[RawMessage]) -> Vec<&str> {
    messages.iter().map(RawMessage::id).collect()
}

/// `m-1`, `m-2` and so on.
pub(crate) fn names(numbers: impl IntoIterator<Item = usize>) -> Vec<String> {
    numbers.into_iter().map(|number| format!("m-{number}")).collect()
}

/// A queue with its dead-letter queue.
pub(crate) struct Bench {
    pub(crate) queue: String,
    pub(crate) dlq: String,
    pub(crate) raw: Raw,
    pub(crate) rabbit: RabbitMq,
}

impl Bench {
    pub(crate) async fn new(node: &Node, name: &str, kind: QueueType) -> Self {
        Self::with(node, name, kind, FieldTable::default(), FieldTable::default()).await
    }

    /// With a high delivery limit for the dead letters, which classic queues do not know.
    pub(crate) async fn high(node: &Node, name: &str, kind: QueueType) -> Self {
        let arguments = match kind {
            QueueType::Quorum => table([("x-delivery-limit", AMQPValue::LongUInt(HIGH))]),
            QueueType::Classic => FieldTable::default(),
        };
        Self::with(node, name, kind, FieldTable::default(), arguments).await
    }

    pub(crate) async fn with(
        node: &Node,
        name: &str,
        kind: QueueType,
        arguments: FieldTable,
        of_dead_letters: FieldTable,
    ) -> Self {
        let rabbit = RabbitMq::connect(config(&node.uri())).await.expect("the node takes it");
        Self::connected(node, rabbit, name, kind, (arguments, of_dead_letters)).await
    }

    pub(crate) async fn connected(
        node: &Node,
        rabbit: RabbitMq,
        name: &str,
        kind: QueueType,
        (arguments, of_dead_letters): (FieldTable, FieldTable),
    ) -> Self {
        let raw = Raw::connect(&node.uri()).await;
        let queue = format!("{name}-{kind}");
        let dlq = dead_letter_queue(&queue);
        raw.declare(&queue, kind, arguments).await;
        raw.declare(&dlq, kind, of_dead_letters).await;
        Self { queue, dlq, raw, rabbit }
    }

    pub(crate) fn letters(&self) -> DeadLetterQueue {
        self.rabbit.dead_letters(&self.dlq)
    }

    /// What this crate writes when it dead-letters, `ago` before now.
    pub(crate) fn letter(&self, id: &str, cause: Cause, ago: Duration) -> Message {
        let message = Message::new("body").with_id(id).with_header("shard", 3_i32).with_attempt(4);
        let at = SystemClock.wall() - ago;
        let letter = DeadLetter::new(cause, &message, self.queue.as_str(), at);
        let headers = letter.stamp(message.headers().clone());
        message.with_headers(headers)
    }

    /// Puts these into the dead-letter queue, in this order.
    pub(crate) async fn put(&self, letters: impl IntoIterator<Item = Message>) {
        let publisher = self.rabbit.publisher();
        let publishes = letters.into_iter().map(|letter| publisher.publish(&self.dlq, letter));
        let mut outcomes = futures::stream::iter(publishes).buffered(256);
        // With a budget of tokio's they would not be sent in their order.
        let all = tokio::task::unconstrained(async {
            while let Some(outcome) = outcomes.next().await {
                outcome.expect("it is published");
            }
        });
        bounded("the letters are published", all).await;
    }

    /// Puts `m-1` to `m-<count>` there, with the cause `terminal`, a minute old.
    pub(crate) async fn put_many(&self, count: usize) {
        let age = Duration::from_secs(60);
        let cause = Cause::new("terminal").with_detail("declined");
        self.put(names(1..=count).iter().map(|id| self.letter(id, cause.clone(), age))).await;
    }

    pub(crate) async fn peek(&self, most: usize) -> Peeked {
        self.letters().peek(at_most(most)).await.expect("it can be looked at")
    }

    pub(crate) async fn redrive(&self, options: RedriveOptions) -> Result<Redriven, RedriveError> {
        self.letters().redrive(options, &CancellationToken::new(), |_| {}).await
    }

    /// Publishes by the default exchange, with these headers.
    pub(crate) async fn publish_raw(&self, queue: &str, id: &str, headers: FieldTable) {
        let properties =
            BasicProperties::default().with_message_id(id.into()).with_delivery_mode(2).with_headers(headers);
        let sent = self.raw.publish_with("", queue, b"body", properties).await;
        assert_eq!(sent, crate::rabbit::Sent::Confirmed);
    }
}

/// The time that is between the two, in whichever order.
pub(crate) fn apart(one: SystemTime, two: SystemTime) -> Duration {
    one.duration_since(two).unwrap_or_else(|error| error.duration())
}
