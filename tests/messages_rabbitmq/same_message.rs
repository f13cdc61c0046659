//! A retry is the same message, in its own queue, and it outlives the broker.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lapin::ExchangeKind;
use lapin::options::{ExchangeDeclareOptions, QueueBindOptions};
use lapin::types::{AMQPValue, FieldArray, FieldTable};
use lapin::{BasicProperties, Channel};
use windlass::codec;
use windlass::consumer::{ConsumerHandle, QueueConsumer, RetryPolicy};
use windlass::handler::Context;
use windlass::message::Message;
use windlass::rabbitmq::{Delivered, RabbitMq, dead_letter_queue, ladder};

use super::desk::{BOTH, connect};
use super::rabbit::{Ledger, Node, Options, QueueType, Raw, Sent, bounded, until};

const EXCHANGE: &str = "fruit";
const KEY: &str = "orange";
const BODY: &[u8] = b"\x00\xff\x80";
const DELAY: Duration = Duration::from_secs(6);

/// All properties that a message can have and a copy may carry.
fn properties() -> BasicProperties {
    let mut inner = FieldTable::default();
    inner.insert("flag".into(), AMQPValue::Boolean(true));
    inner.insert("small".into(), AMQPValue::ShortShortInt(-1));
    let list = vec![AMQPValue::FieldTable(inner.clone()), AMQPValue::LongLongInt(i64::MIN), AMQPValue::Void];
    let mut headers = FieldTable::default();
    headers.insert("inner".into(), AMQPValue::FieldTable(inner));
    headers.insert("list".into(), AMQPValue::FieldArray(FieldArray::from(list)));
    headers.insert("bytes".into(), AMQPValue::ByteArray(b"\x00\xff"[..].into()));
    BasicProperties::default()
        .with_delivery_mode(2)
        .with_priority(5)
        .with_message_id("m-1".into())
        .with_type("fruit.picked".into())
        .with_app_id("garden".into())
        .with_correlation_id("c-1".into())
        .with_reply_to("answers".into())
        .with_content_type("application/octet-stream".into())
        .with_content_encoding("none".into())
        .with_timestamp(1_700_000_000)
        .with_headers(headers)
}

async fn declare(raw: &Raw, exchange: &str, queues: &[String; 2], kind: QueueType) -> Channel {
    let channel = raw.channel().await;
    let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    let declared =
        channel.exchange_declare(exchange.into(), ExchangeKind::Topic, durable, FieldTable::default());
    bounded("declare the exchange", declared).await.expect("it is declared");
    for queue in queues {
        raw.declare(queue, kind, FieldTable::default()).await;
        raw.declare(&dead_letter_queue(queue), kind, FieldTable::default()).await;
        let options = QueueBindOptions::default();
        let bind = channel.queue_bind(
            queue.as_str().into(),
            exchange.into(),
            KEY.into(),
            options,
            FieldTable::default(),
        );
        bounded("bind", bind).await.expect("it is bound");
    }
    channel
}

/// Handles all that comes; fails the first time that a message comes to `q1`.
async fn consume(rabbit: &RabbitMq, queue: &str, came: &Arc<Mutex<Vec<Message>>>) -> ConsumerHandle {
    let source = bounded("open", rabbit.source(queue).open()).await.expect("the queue is there");
    let (came, fails) = (Arc::clone(came), queue.starts_with("q1"));
    let handler = move |_, context: Context| {
        came.lock().unwrap().push(context.message().clone());
        let failed = fails && context.attempt() == 1;
        async move { if failed { Err("not this time") } else { Ok(()) } }
    };
    QueueConsumer::with_decoder(source, codec::bytes, handler)
        .max_concurrent(NonZeroUsize::MIN)
        .retry_policy(RetryPolicy::schedule([DELAY]))
        .start()
        .expect("it starts")
}

async fn until_came(count: usize, came: &Arc<Mutex<Vec<Message>>>, queue: &str) {
    until(&format!("{count} messages of {queue}"), || async {
        (came.lock().unwrap().len() >= count).then_some(())
    })
    .await;
}

/// Two queues that get the same message.
struct Trial {
    queues: [String; 2],
    came: [Arc<Mutex<Vec<Message>>>; 2],
    ledger: Ledger,
}

impl Trial {
    /// Until the first attempt has failed and waits for the next.
    async fn begin(rabbit: &RabbitMq, raw: &Raw, kind: QueueType) -> Self {
        let queues = [format!("q1-{kind}"), format!("q2-{kind}")];
        let trial = Self { queues, came: Default::default(), ledger: Ledger::new() };
        let exchange = format!("{EXCHANGE}-{kind}");
        let channel = declare(raw, &exchange, &trial.queues, kind).await;
        let [first, other] = trial.consume(rabbit).await;
        trial.ledger.published("m-1");
        assert_eq!(raw.publish_with(&exchange, KEY, BODY, properties()).await, Sent::Confirmed);
        trial.ledger.confirmed("m-1");
        until_came(1, &trial.came[0], &trial.queues[0]).await;
        until_came(1, &trial.came[1], &trial.queues[1]).await;
        // Closed in order, so that the broker has the acks before it stops.
        let report = bounded("stop", first.stop()).await;
        assert_eq!(report.stats.retried, 1, "{report:?}");
        assert_eq!(bounded("stop", other.stop()).await.stats.acked, 1);
        drop(channel);
        trial
    }

    async fn consume(&self, rabbit: &RabbitMq) -> [ConsumerHandle; 2] {
        let [first, other] = &self.queues;
        [consume(rabbit, first, &self.came[0]).await, consume(rabbit, other, &self.came[1]).await]
    }

    fn wait_queue(&self) -> String {
        ladder::wait_queue(&self.queues[0], DELAY)
    }

    /// On a broker that has restarted.
    async fn end(self, rabbit: &RabbitMq, raw: &Raw) {
        let [first, other] = self.consume(rabbit).await;
        until_came(2, &self.came[0], &self.queues[0]).await;
        until("it is acked", || async { (first.stats().acked == 1).then_some(()) }).await;
        for consumer in [first, other] {
            assert!(bounded("stop", consumer.stop()).await.is_clean());
        }
        let [at_first, at_other] = [0, 1].map(|at| self.came[at].lock().unwrap().clone());
        assert_eq!((at_first.len(), at_other.len()), (2, 1), "one retry, in its own queue alone");
        let [queue, other] = &self.queues;
        same(&at_first[0], &at_first[1], queue);
        at_first.iter().chain(&at_other).for_each(|message| {
            self.ledger.handled(message.id());
        });
        let wait_queue = self.wait_queue();
        for queue in [queue, other, &wait_queue, &dead_letter_queue(queue), &dead_letter_queue(other)] {
            assert_eq!(raw.count(queue).await.map(|(ready, _)| ready), Some(0), "{queue}");
        }
        assert_eq!(self.ledger.account().duplicates, 2);
    }
}

fn same(first: &Message, retry: &Message, queue: &str) {
    assert_eq!((first.attempt(), retry.attempt()), (1, 2));
    assert_eq!((first.id(), first.body().as_ref()), ("m-1", BODY));
    assert_eq!((retry.id(), retry.body()), (first.id(), first.body()));
    assert_eq!(first.headers().names().collect::<Vec<_>>(), ["bytes", "inner", "list"]);
    for (name, value) in first.headers() {
        assert_eq!(retry.headers().get(name), Some(value));
    }
    assert_eq!(retry.content_type(), first.content_type());
    assert_eq!(retry.content_encoding(), first.content_encoding());
    assert_eq!(retry.correlation_property(), first.correlation_property());
    let (came, again) =
        (first.metadata::<Delivered>().unwrap().clone(), retry.metadata::<Delivered>().unwrap().clone());
    assert_eq!((came.exchange.starts_with(EXCHANGE), came.routing_key.as_str()), (true, KEY));
    assert_eq!(
        (again.exchange.as_str(), again.routing_key.as_str()),
        ("", queue),
        "by the name of the queue"
    );
    assert!(again.properties.persistent);
    assert_eq!(again.properties, came.properties);
}

// BC-04
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_is_the_same_message_in_its_own_queue_also_when_the_broker_restarts_meanwhile() {
    let node = Node::start(Options::new()).await;
    let (rabbit, raw) = (connect(&node.uri()).await, Raw::connect(&node.uri()).await);
    let mut trials = Vec::new();
    for kind in BOTH {
        trials.push(Trial::begin(&rabbit, &raw, kind).await);
    }
    for trial in &trials {
        let waiting = raw.count(&trial.wait_queue()).await;
        assert_eq!(waiting.map(|(ready, _)| ready), Some(1), "the broker stops during the delay");
    }
    // In order: a broker that is killed forgets acks of a classic queue, too.
    node.ctl(&["stop_app"]).await;
    node.ctl(&["start_app"]).await;
    bounded("disconnect", rabbit.disconnect()).await;
    raw.close().await;
    let (rabbit, raw) = (connect(&node.uri()).await, Raw::connect(&node.uri()).await);
    for trial in trials {
        trial.end(&rabbit, &raw).await;
    }
    raw.close().await;
    bounded("disconnect", rabbit.disconnect()).await;
}
