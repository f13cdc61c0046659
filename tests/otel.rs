//! The spans of publishers and consumers as OpenTelemetry gets them: one trace from the first message to the last.

#![allow(clippy::unwrap_used)]

mod support;

use bytes::Bytes;
use opentelemetry::trace::{SpanId, SpanKind, Status, TraceId, TracerProvider};
use opentelemetry_sdk::trace::{InMemorySpanExporter, Sampler, SdkTracerProvider, SpanData};
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Layer, SubscriberExt};
use windlass::clock::ControlledClock;
use windlass::consumer::ConsumerHandle;
use windlass::memory::{MemoryBroker, MemoryPublisher};
use windlass::message::TraceParent;
use windlass::publisher::{Publisher, Traced};
use windlass::{Context, HandlerError, Message, QueueConsumer, codec};

use support::{prompt, stop_on};

const TRACE_PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const STATE: &str = "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE";

/// OpenTelemetry on this thread, a broker with the queues `first` and `second`, and a publisher that is traced.
struct Stage {
    exporter: InMemorySpanExporter,
    clock: ControlledClock,
    broker: MemoryBroker,
    publisher: Traced<MemoryPublisher>,
    _provider: SdkTracerProvider,
    _guard: DefaultGuard,
}

impl Stage {
    fn new() -> Self {
        Self::with(Sampler::AlwaysOn, LevelFilter::DEBUG)
    }

    /// `level` is that of windlass; all else is recorded anyway.
    fn with(sampler: Sampler, level: LevelFilter) -> Self {
        let exporter = InMemorySpanExporter::default();
        let provider =
            SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).with_sampler(sampler).build();
        let filter = Targets::new().with_default(LevelFilter::INFO).with_target("windlass", level);
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test")).with_filter(filter);
        let guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(layer));
        let clock = ControlledClock::new();
        let broker = MemoryBroker::new(clock.clone());
        broker.queue("first");
        broker.queue("second");
        let publisher = Traced::new("memory", broker.publisher());
        Self { exporter, clock, broker, publisher, _provider: provider, _guard: guard }
    }

    fn spans(&self) -> Vec<SpanData> {
        self.exporter.get_finished_spans().unwrap()
    }

    /// The one span of this name.
    fn span(&self, name: &str) -> SpanData {
        let spans = self.spans();
        let mut named = spans.iter().filter(|span| span.name == name);
        let names = || spans.iter().map(|span| &span.name).collect::<Vec<_>>();
        let first = named.next().unwrap_or_else(|| panic!("no span {name}, but {:?}", names()));
        assert!(named.next().is_none(), "more than one span {name}");
        first.clone()
    }

    /// A consumer of a queue whose handler does nothing.
    fn acking(&self, queue: &str) -> ConsumerHandle {
        let done = async |_: Bytes, _: Context| Ok::<_, HandlerError>(());
        QueueConsumer::with_decoder(self.broker.queue(queue).source(), codec::bytes, done)
            .clock(self.clock.clone())
            .start()
            .unwrap()
    }

    async fn until_acked(&self, queue: &str, consumer: &ConsumerHandle) {
        self.broker.queue(queue).until(|queue| queue.counts().acked == 1).await.unwrap();
        let _ = prompt(consumer.stop()).await;
    }
}

fn ids(span: &SpanData) -> (TraceId, SpanId) {
    (span.span_context.trace_id(), span.span_context.span_id())
}

/// Asserts that `child` is a child of `parent`, over a message or within this process.
fn assert_child(child: &SpanData, parent: &SpanData, remote: bool) {
    let (trace, id) = ids(parent);
    assert_eq!((child.span_context.trace_id(), child.parent_span_id), (trace, id), "{}", child.name);
    assert_eq!(child.parent_span_is_remote, remote, "{}", child.name);
}

fn attribute(span: &SpanData, name: &str) -> Option<String> {
    span.attributes.iter().find(|each| each.key.as_str() == name).map(|each| each.value.to_string())
}

fn pending(stage: &Stage, queue: &str) -> Message {
    stage.broker.queue(queue).pending().remove(0)
}

#[tokio::test]
async fn the_span_of_a_consumer_is_a_child_of_the_span_that_published() {
    let stage = Stage::new();
    stage.publisher.publish("first", Message::new("{}").with_id("m-1")).await.unwrap();
    let carried = pending(&stage, "first").trace_parent().unwrap();
    let consumer = stage.acking("first");
    stage.until_acked("first", &consumer).await;
    let (send, process) = (stage.span("send first"), stage.span("process first"));
    assert_child(&process, &send, true);
    assert_eq!(ids(&send), ((carried.trace_id().get()).into(), (carried.parent_id().get()).into()));
    assert_eq!((send.parent_span_id, carried.sampled()), (SpanId::INVALID, true));
    assert_eq!((send.span_kind.clone(), process.span_kind.clone()), (SpanKind::Producer, SpanKind::Consumer));
    assert_eq!((&send.status, &process.status), (&Status::Unset, &Status::Unset));
    for span in [&send, &process] {
        assert_eq!(attribute(span, "messaging.system").as_deref(), Some("memory"));
        assert_eq!(attribute(span, "messaging.destination.name").as_deref(), Some("first"));
        assert_eq!(attribute(span, "messaging.message.id").as_deref(), Some("m-1"));
        assert_eq!(attribute(span, "error.type"), None);
    }
    assert_eq!(attribute(&send, "windlass.outcome").as_deref(), Some("confirmed"));
    assert_eq!(attribute(&process, "windlass.settlement").as_deref(), Some("ack"));
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Order {
    count: u32,
}

#[tokio::test]
async fn a_chain_of_json_messages_is_one_trace_with_each_span_below_the_one_that_caused_it() {
    let stage = Stage::new();
    let forward = {
        let publisher = stage.publisher.clone();
        move |order: Order, context: Context| {
            let publisher = publisher.clone();
            async move {
                let body = serde_json::to_vec(&Order { count: order.count + 1 })?;
                publisher.publish("second", context.carry(Message::new(body))).await?;
                anyhow::Ok(())
            }
        }
    };
    let last = async |order: Order, context: Context| {
        assert_eq!((order.count, context.correlation_id()), (2, "order-7"));
        Ok::<_, HandlerError>(())
    };
    let source = |name| stage.broker.queue(name).source();
    let consumers = [
        QueueConsumer::new(source("first"), forward).clock(stage.clock.clone()).start().unwrap(),
        QueueConsumer::new(source("second"), last).clock(stage.clock.clone()).start().unwrap(),
    ];
    stage.publisher.publish("first", Message::new(r#"{"count": 1}"#).with_id("order-7")).await.unwrap();
    stage.until_acked("second", &consumers[1]).await;
    let _ = prompt(consumers[0].stop()).await;
    assert_child(&stage.span("process first"), &stage.span("send first"), true);
    assert_child(&stage.span("send second"), &stage.span("process first"), false);
    assert_child(&stage.span("process second"), &stage.span("send second"), true);
    let send = stage.span("send second");
    assert_eq!((send.span_kind, send.links.len()), (SpanKind::Producer, 0));
}

#[tokio::test]
async fn a_publisher_that_is_not_traced_sends_the_context_of_the_handler_that_carries() {
    let stage = Stage::new();
    let publisher = stage.broker.publisher();
    let forward = move |_: Bytes, context: Context| {
        let publisher = publisher.clone();
        async move { publisher.publish("second", context.carry(Message::new("{}"))).await }
    };
    let consumer = QueueConsumer::with_decoder(stage.broker.queue("first").source(), codec::bytes, forward)
        .clock(stage.clock.clone())
        .start()
        .unwrap();
    let second = stage.acking("second");
    let sent = Message::new("{}").with_header("traceparent", TRACE_PARENT).with_header("tracestate", STATE);
    stage.broker.queue("first").publish(sent);
    stage.until_acked("first", &consumer).await;
    stage.until_acked("second", &second).await;
    let process = stage.span("process first");
    assert_eq!(ids(&process).0.to_string(), &TRACE_PARENT[3..35]);
    assert_eq!(process.span_context.trace_state().header(), STATE);
    let onward = stage.span("process second");
    assert_child(&onward, &process, true);
    assert_eq!(onward.span_context.trace_state().header(), STATE, "the state goes along");
}

#[tokio::test]
async fn a_context_that_somebody_put_on_the_message_stays_and_is_linked_to() {
    let stage = Stage::new();
    let own: TraceParent = TRACE_PARENT.parse().unwrap();
    stage.publisher.publish("first", Message::new("{}").with_trace_parent(own)).await.unwrap();
    assert_eq!(pending(&stage, "first").trace_parent(), Some(own));
    let send = stage.span("send first");
    assert_eq!(send.span_kind, SpanKind::Client);
    assert_ne!(ids(&send).0.to_string(), &TRACE_PARENT[3..35]);
    let links: Vec<_> = send.links.iter().map(|link| link.span_context.span_id().to_string()).collect();
    assert_eq!(links, ["00f067aa0ba902b7"]);
}

#[tokio::test]
async fn the_answer_is_a_child_of_the_process_span_which_ends_before_it() {
    let stage = Stage::new();
    stage.publisher.publish("first", Message::new("{}")).await.unwrap();
    let consumer = stage.acking("first");
    stage.until_acked("first", &consumer).await;
    let (process, ack) = (stage.span("process first"), stage.span("ack first"));
    assert_child(&ack, &process, false);
    assert_eq!(ack.span_kind, SpanKind::Client);
    assert!(process.end_time <= ack.end_time);
    let order: Vec<_> = stage.spans().iter().map(|span| span.name.to_string()).collect();
    assert_eq!(order, ["send first", "process first", "ack first"]);
}

#[tokio::test]
async fn a_failure_is_the_status_of_its_span() {
    let stage = Stage::new();
    stage.publisher.publish("missing", Message::new("{}")).await.unwrap_err();
    let failing = async |_: Bytes, _: Context| Err::<(), _>(HandlerError::terminal("no"));
    let queue = stage.broker.queue("first");
    let consumer = QueueConsumer::with_decoder(queue.source(), codec::bytes, failing)
        .clock(stage.clock.clone())
        .start()
        .unwrap();
    queue.publish(Message::new("{}"));
    queue.until(|queue| queue.counts().dead_lettered == 1).await.unwrap();
    let _ = stop_on(&stage.clock, &consumer).await;
    for (name, kind) in [("send missing", "unroutable"), ("process first", "terminal")] {
        let span = stage.span(name);
        assert!(matches!(span.status, Status::Error { .. }), "{name}: {:?}", span.status);
        assert_eq!(attribute(&span, "error.type").as_deref(), Some(kind), "{name}");
    }
    assert_eq!(stage.span("nack first").status, Status::Unset);
}

#[tokio::test]
async fn a_state_that_cannot_be_read_does_not_lose_the_parent() {
    let stage = Stage::new();
    let sent =
        Message::new("{}").with_header("traceparent", TRACE_PARENT).with_header("tracestate", "no state,=");
    stage.broker.queue("first").publish(sent);
    let consumer = stage.acking("first");
    stage.until_acked("first", &consumer).await;
    let process = stage.span("process first");
    assert_eq!(process.parent_span_id.to_string(), "00f067aa0ba902b7");
    assert_eq!(process.span_context.trace_state().header(), "");
}

#[tokio::test]
async fn a_context_that_cannot_be_read_begins_a_trace() {
    let stage = Stage::new();
    stage.broker.queue("first").publish(Message::new("{}").with_header("traceparent", "garbage"));
    let consumer = stage.acking("first");
    stage.until_acked("first", &consumer).await;
    let process = stage.span("process first");
    assert_eq!((process.parent_span_id, process.span_context.is_valid()), (SpanId::INVALID, true));
}

#[tokio::test]
async fn a_trace_that_is_not_sampled_says_so_to_the_consumer() {
    let sampler = Sampler::ParentBased(Box::new(Sampler::AlwaysOff));
    let stage = Stage::with(sampler, LevelFilter::DEBUG);
    stage.publisher.publish("first", Message::new("{}")).await.unwrap();
    assert!(!pending(&stage, "first").trace_parent().unwrap().sampled());
    let consumer = stage.acking("first");
    stage.until_acked("first", &consumer).await;
    assert!(stage.spans().is_empty());
}

#[tokio::test]
async fn the_span_around_a_publish_is_sent_where_that_of_the_publish_is_filtered_out() {
    let stage = Stage::with(Sampler::AlwaysOn, LevelFilter::OFF);
    {
        let _around = tracing::info_span!("around").entered();
        stage.publisher.publish("first", Message::new("{}")).await.unwrap();
    }
    let carried = pending(&stage, "first").trace_parent().unwrap();
    assert_eq!(stage.spans().len(), 1);
    assert_eq!(ids(&stage.span("around")).1, SpanId::from(carried.parent_id().get()));
}

#[tokio::test]
async fn a_span_around_the_consumer_is_a_link_and_the_sender_the_parent() {
    let stage = Stage::new();
    let sent = Message::new("{}").with_header("traceparent", TRACE_PARENT);
    stage.broker.queue("first").publish(sent);
    {
        let _around = tracing::info_span!("around").entered();
        let consumer = stage.acking("first");
        stage.until_acked("first", &consumer).await;
    }
    let process = stage.span("process first");
    assert_eq!(process.parent_span_id.to_string(), "00f067aa0ba902b7");
    let links: Vec<_> = process.links.iter().map(|link| link.span_context.span_id()).collect();
    assert_eq!(links, [ids(&stage.span("around")).1]);
}

#[tokio::test]
async fn nothing_is_put_on_a_message_where_nothing_records_for_opentelemetry() {
    let _guard = tracing::subscriber::set_default(tracing_subscriber::registry());
    let broker = MemoryBroker::new(ControlledClock::new());
    let queue = broker.queue("first");
    Traced::new("memory", broker.publisher()).publish("first", Message::new("{}")).await.unwrap();
    assert!(queue.pending()[0].headers().is_empty());
}
