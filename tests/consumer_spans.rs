//! The spans of a consumer, and of a traced publisher, as a subscriber sees them.

#![allow(clippy::unwrap_used)]

mod support;

use bytes::Bytes;
use tracing::Level;
use windlass::clock::ControlledClock;
use windlass::memory::{MemoryBroker, MemoryQueue};
use windlass::publisher::{Publisher, Traced};
use windlass::source::NackReason;
use windlass::{Context, Error, ErrorKind, HandlerError, Message, QueueConsumer, codec};

use support::faulty::{Act, Faulty, Op};
use support::spans::{Fields, fields, recording};
use support::{SECOND, prompt, queue, stop_on};

const TRACE_PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// What all spans of the message `m-1` have in common.
fn common(queue: &MemoryQueue) -> Fields {
    fields([
        ("messaging.system", "memory"),
        ("messaging.destination.name", queue.name()),
        ("messaging.message.id", "m-1"),
        ("messaging.message.conversation_id", "c-7"),
        ("windlass.attempt", "1"),
    ])
}

async fn failing(_: Bytes, _: Context) -> Result<(), HandlerError> {
    assert_eq!(tracing::Span::current().metadata().map(|span| span.name()), Some("process"));
    Err(HandlerError::terminal("no"))
}

/// By OpenTelemetry's semantic conventions for messaging.
#[tokio::test]
async fn a_handler_runs_in_a_span_with_the_attributes_of_its_message() {
    let (spans, _guard) = recording(Level::INFO);
    let (clock, queue) = queue();
    queue.publish(Message::new("12345").with_id("m-1").with_correlation_id("c-7"));
    let consumer = QueueConsumer::with_decoder(queue.source(), codec::bytes, failing);
    let handle = consumer.clock(clock.clone()).start().unwrap();
    queue.until(|queue| queue.counts().dead_lettered == 1).await.unwrap();
    let _ = prompt(handle.stop()).await;
    let mut expected = common(&queue);
    expected.extend(fields([
        ("otel.name", &format!("process {}", queue.name())),
        ("otel.kind", "consumer"),
        ("otel.status_code", "ERROR"),
        ("messaging.operation.name", "process"),
        ("messaging.operation.type", "process"),
        ("messaging.message.body.size", "5"),
        ("error.type", "terminal"),
        ("windlass.outcome", "terminal"),
        ("windlass.settlement", "dead_letter"),
        ("windlass.cause", "terminal"),
    ]));
    assert_eq!(spans.all(), [("process", expected)]);
}

#[tokio::test]
async fn the_answer_is_a_span_of_its_own_at_the_level_of_debug() {
    let (spans, _guard) = recording(Level::DEBUG);
    let (clock, queue) = queue();
    queue.publish(Message::new("12345").with_id("m-1").with_correlation_id("c-7"));
    let consumer = QueueConsumer::with_decoder(queue.source(), codec::bytes, async |_: Bytes, _: Context| {
        Ok::<_, HandlerError>(())
    });
    let handle = consumer.clock(clock.clone()).start().unwrap();
    queue.until(|queue| queue.counts().acked == 1).await.unwrap();
    let _ = prompt(handle.stop()).await;
    let mut expected = common(&queue);
    expected.extend(fields([
        ("otel.name", &format!("ack {}", queue.name())),
        ("otel.kind", "client"),
        ("messaging.operation.name", "ack"),
        ("messaging.operation.type", "settle"),
        ("windlass.settlement", "ack"),
    ]));
    assert_eq!(spans.named("settle"), [expected]);
    let process = &spans.named("process")[0];
    assert_eq!(
        (process["windlass.outcome"].as_str(), process["windlass.settlement"].as_str()),
        ("done", "ack")
    );
    assert!(!process.contains_key("error.type") && !process.contains_key("otel.status_code"), "{process:?}");
    assert_eq!(spans.closed(), ["process", "settle"], "the handler's span does not wait for the answer");
}

#[tokio::test]
async fn each_settlement_has_its_name_in_both_spans() {
    let (spans, _guard) = recording(Level::DEBUG);
    let (clock, queue) = queue();
    for id in ["retry", "postpone", "requeue", "dead_letter"] {
        queue.publish(Message::new("x").with_id(id));
    }
    let consumer = QueueConsumer::with_decoder(queue.source(), codec::bytes, async |_: Bytes, _: Context| {
        Ok::<_, HandlerError>(())
    })
    .on_result(|_, message| {
        let hour = 3_600 * SECOND;
        let again = message.redelivered();
        match message.id() {
            "retry" => NackReason::retry_after(hour, "mine").into(),
            "postpone" => NackReason::postpone(hour, "mine").into(),
            "requeue" if !again => NackReason::requeue_now("mine").into(),
            _ => NackReason::dead_letter("mine").into(),
        }
    });
    let handle = consumer.clock(clock.clone()).start().unwrap();
    clock.advance(SECOND).await;
    queue.until(|queue| queue.counts().dead_lettered == 2).await.unwrap();
    let _ = stop_on(&clock, &handle).await;
    for span in ["process", "settle"] {
        let seen: Vec<_> = spans
            .named(span)
            .iter()
            .map(|fields| (fields["messaging.message.id"].clone(), fields["windlass.settlement"].clone()))
            .collect();
        for id in ["retry", "postpone", "requeue", "dead_letter"] {
            assert!(seen.contains(&(id.to_owned(), id.to_owned())), "{span} of {id}: {seen:?}");
        }
    }
    assert!(spans.named("process").iter().all(|fields| fields["windlass.cause"] == "mine"));
    assert!(spans.named("settle").iter().all(|fields| fields["messaging.operation.name"] == "nack"));
}

#[tokio::test]
async fn a_handler_that_a_drain_cuts_short_says_so_in_its_span() {
    let (spans, _guard) = recording(Level::INFO);
    let (clock, queue) = queue();
    queue.publish(Message::new("x"));
    let endless = async |_: Bytes, _: Context| std::future::pending::<Result<(), HandlerError>>().await;
    let consumer = QueueConsumer::with_decoder(queue.source(), codec::bytes, endless);
    let handle = consumer.clock(clock.clone()).start().unwrap();
    queue.until(|queue| queue.counts().in_flight == 1).await.unwrap();
    let _ = stop_on(&clock, &handle).await;
    let span = &spans.named("process")[0];
    let recorded =
        ["windlass.outcome", "windlass.settlement", "windlass.cause"].map(|name| span[name].as_str());
    assert_eq!(recorded, ["cut_short", "requeue", "shutting_down"]);
    assert!(!span.contains_key("error.type"), "the handler did not fail: {span:?}");
}

#[tokio::test]
async fn an_answer_that_the_broker_does_not_take_is_an_error_of_its_span_alone() {
    let (spans, _guard) = recording(Level::DEBUG);
    let (clock, queue) = queue();
    let source = Faulty::new(queue.source(), |op, nth| match (op, nth) {
        (Op::Ack, 1) => Act::Fail(Error::new(ErrorKind::Disconnected, "ack")),
        _ => Act::Pass,
    });
    queue.publish(Message::new("x"));
    let consumer = QueueConsumer::with_decoder(source, codec::bytes, async |_: Bytes, _: Context| {
        Ok::<_, HandlerError>(())
    });
    let handle = consumer.clock(clock.clone()).start().unwrap();
    clock.settle().await;
    assert_eq!(spans.closed(), ["process", "settle"]);
    let _ = stop_on(&clock, &handle).await;
    let settle = &spans.named("settle")[0];
    assert_eq!(
        (settle["error.type"].as_str(), settle["otel.status_code"].as_str()),
        ("disconnected", "ERROR")
    );
    assert!(!spans.named("process")[0].contains_key("error.type"));
}

#[tokio::test]
async fn the_ids_that_came_with_a_message_are_fields_of_its_span() {
    let (spans, _guard) = recording(Level::INFO);
    let (clock, queue) = queue();
    queue.publish(Message::new("x").with_header("traceparent", TRACE_PARENT));
    queue.publish(Message::new("x").with_header("traceparent", "garbage"));
    let consumer = QueueConsumer::with_decoder(queue.source(), codec::bytes, failing);
    let handle = consumer.clock(clock.clone()).start().unwrap();
    queue.until(|queue| queue.counts().dead_lettered == 2).await.unwrap();
    let _ = prompt(handle.stop()).await;
    let [with, without] = spans.named("process").try_into().unwrap();
    assert_eq!(with["windlass.trace_id"], "4bf92f3577b34da6a3ce929d0e0e4736");
    assert_eq!(with["windlass.parent_id"], "00f067aa0ba902b7");
    assert!(!without.contains_key("windlass.trace_id") && !without.contains_key("windlass.parent_id"));
}

#[tokio::test]
async fn a_traced_publish_is_a_span_with_the_attributes_of_its_message() {
    let (spans, _guard) = recording(Level::INFO);
    let broker = MemoryBroker::new(ControlledClock::new());
    let queue = broker.queue("work");
    let traced = Traced::new("memory", broker.publisher());
    let message = Message::new("12345").with_id("m-1").with_correlation_id("c-7");
    traced.publish(queue.name(), message).await.unwrap();
    let mut expected = common(&queue);
    expected.remove("windlass.attempt");
    expected.extend(fields([
        ("otel.name", &format!("send {}", queue.name())),
        ("otel.kind", "producer"),
        ("messaging.operation.name", "send"),
        ("messaging.operation.type", "send"),
        ("messaging.message.body.size", "5"),
        ("windlass.outcome", "confirmed"),
    ]));
    assert_eq!(spans.all(), [("send", expected)]);
    let sent = &queue.pending()[0];
    assert!(sent.headers().is_empty(), "nothing records it for OpenTelemetry: {sent:?}");
}

#[tokio::test]
async fn a_publish_that_fails_is_an_error_of_its_span_and_one_event_of_bounded_size() {
    let (spans, _guard) = recording(Level::INFO);
    let traced = Traced::new("memory", MemoryBroker::new(ControlledClock::new()).publisher());
    let missing = "é".repeat(1_000);
    let error = traced.publish(&missing, Message::new("x").with_id("m-1")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unroutable);
    let span = &spans.named("send")[0];
    assert_eq!(
        [&span["windlass.outcome"], &span["error.type"], &span["otel.status_code"]],
        ["failed", "unroutable", "ERROR"]
    );
    let events = spans.events();
    assert_eq!(events.len(), 1, "{events:?}");
    let event = &events[0];
    assert_eq!(event["message"], "publish failed");
    assert_eq!((event["error.type"].as_str(), event["transient"].as_str()), ("unroutable", "false"));
    assert_eq!(event["messaging.message.id"], "m-1");
    assert!(event.values().all(|value| value.len() <= 512), "{event:?}");
}

#[tokio::test]
async fn a_publish_that_nobody_waits_for_says_so_in_its_span() {
    let (spans, _guard) = recording(Level::INFO);
    let traced = Traced::new("memory", MemoryBroker::new(ControlledClock::new()).publisher());
    {
        let mut publishing =
            std::pin::pin!(traced.publish_with("later", Message::new("x"), |_, _| std::future::pending()));
        assert!(futures::poll!(publishing.as_mut()).is_pending());
    }
    assert_eq!(spans.named("send")[0]["windlass.outcome"], "dropped");
}
