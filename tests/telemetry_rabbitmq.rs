//! What an operator sees of messages on a real broker: one trace over a chain of queues, and metrics of its consumers.

#![cfg(all(feature = "json", feature = "rabbitmq", feature = "metrics"))]
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "support/rabbit/mod.rs"]
mod rabbit;

use std::num::{NonZeroU64, NonZeroU128};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::sync::mpsc;
use windlass::codec;
use windlass::consumer::{ConsumerHandle, QueueConsumer, RetryPolicy};
use windlass::handler::{Context, Handler, HandlerError};
use windlass::message::{Message, TraceParent};
use windlass::metrics::Metrics;
use windlass::publisher::{Publisher, Traced};
use windlass::rabbitmq::{QueueType, RabbitMq, RabbitMqConfig};

use rabbit::{Node, Raw, bounded, until};

const NAME: &str = "telemetry";
const FRONT: &str = "telemetry-front";
const BACK: &str = "telemetry-back";

async fn consume<H: Handler<Bytes>>(rabbit: &RabbitMq, queue: &str, handler: H) -> ConsumerHandle {
    let source = rabbit.source(queue).queue_type(QueueType::Quorum).open().await.unwrap();
    QueueConsumer::with_decoder(source, codec::bytes, handler)
        .retry_policy(RetryPolicy::schedule([Duration::from_millis(100)]))
        .observer(Metrics::new().sampled_every(Duration::from_millis(50)))
        .start()
        .unwrap()
}

/// Publishes onward what it gets, and only then is done.
async fn send_on(rabbit: &RabbitMq) -> ConsumerHandle {
    let publisher = Arc::new(Traced::new("rabbitmq", rabbit.publisher()));
    consume(rabbit, FRONT, move |body: Bytes, context: Context| {
        let publisher = Arc::clone(&publisher);
        async move { publisher.publish(BACK, context.carry(Message::new(body))).await }
    })
    .await
}

/// Takes each message at its second attempt only.
async fn take(rabbit: &RabbitMq) -> (ConsumerHandle, mpsc::UnboundedReceiver<Message>) {
    let (sender, taken) = mpsc::unbounded_channel();
    let handle = consume(rabbit, BACK, move |_: Bytes, context: Context| {
        let first = context.attempt() == 1;
        if !first {
            let _ = sender.send(context.message().clone());
        }
        async move { if first { Err(HandlerError::failed("not yet")) } else { Ok(()) } }
    })
    .await;
    (handle, taken)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chain_of_queues_is_one_trace_and_its_metrics_say_how_it_stands() {
    let recorder = PrometheusBuilder::new().install_recorder().unwrap();
    let node = Node::shared().await;
    let raw = Raw::connect(&node.uri()).await;
    for queue in [FRONT, BACK] {
        raw.declare(queue, rabbit::QueueType::Quorum, Default::default()).await;
        raw.declare(&format!("{queue}.dlq"), rabbit::QueueType::Quorum, Default::default()).await;
    }
    let config = RabbitMqConfig::from_uri(&node.uri()).unwrap().with_connection_name(NAME);
    let config = config.with_reconnect_delay(Duration::from_millis(50));
    let rabbit = bounded("connect", RabbitMq::connect(config)).await.unwrap();
    let (front, (back, mut taken)) = (send_on(&rabbit).await, take(&rabbit).await);

    let parent = TraceParent::new(NonZeroU128::new(0xfeed).unwrap(), NonZeroU64::new(0xbeef).unwrap(), true);
    let order = |id: &str| Message::new("x").with_id(id).with_correlation_id(format!("order-{id}"));
    let publisher = Traced::new("rabbitmq", rabbit.publisher());
    bounded("publish", publisher.publish(FRONT, order("m-1").with_trace_parent(parent))).await.unwrap();
    let message = bounded("the message has come", taken.recv()).await.unwrap();
    assert_eq!((message.attempt(), message.correlation_id()), (2, "order-m-1"));
    assert_eq!(message.trace_parent().map(|parent| parent.trace_id()), Some(parent.trace_id()));

    let management = node.management();
    let consuming = management.connection_named(&format!("{NAME} (consume)")).await;
    management.close_connection(&consuming.name, "a test").await;
    let shows = |line: &str| recorder.render().lines().any(|shown| shown == line);
    until("the reconnect is counted", || async {
        shows(r#"windlass_reconnects_total{role="consume"} 1"#).then_some(())
    })
    .await;
    bounded("publish", publisher.publish(FRONT, order("m-2"))).await.unwrap();
    let message = bounded("the message has come", taken.recv()).await.unwrap();
    assert_eq!((message.correlation_id(), message.trace_parent()), ("order-m-2", None));
    until("both queues show what was done", || async {
        let done = |queue: &str| {
            shows(&format!(r#"windlass_messages_total{{queue="{queue}",outcome="done",settlement="ack"}} 2"#))
        };
        (done(FRONT) && done(BACK)).then_some(())
    })
    .await;
    assert!(shows(
        r#"windlass_messages_total{queue="telemetry-back",outcome="failed",settlement="retry"} 2"#
    ));
    for handle in [front, back] {
        assert!(bounded("stop", handle.stop()).await.is_clean());
    }
    rabbit.disconnect().await;
    raw.close().await;
}
