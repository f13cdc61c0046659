//! The span that each handler runs in.

#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing_subscriber::layer::{Context as LayerContext, Layer, SubscriberExt};
use windlass::codec;
use windlass::{Context, HandlerError, Message, QueueConsumer};

use support::{Log, prompt, queue};

type Fields = BTreeMap<&'static str, String>;

/// Keeps what is recorded of spans, in order.
struct Recorder(Log<Fields>);

struct Collect(Fields);

impl Visit for Collect {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}").trim_matches('"').to_owned());
    }
}

impl<S: tracing::Subscriber> Layer<S> for Recorder {
    fn on_new_span(&self, attributes: &Attributes<'_>, _: &Id, _: LayerContext<'_, S>) {
        let mut fields = Collect(Fields::from([("name", attributes.metadata().name().to_owned())]));
        attributes.record(&mut fields);
        self.0.add(fields.0);
    }

    fn on_record(&self, _: &Id, values: &Record<'_>, _: LayerContext<'_, S>) {
        let mut fields = Collect(Fields::new());
        values.record(&mut fields);
        self.0.add(fields.0);
    }
}

/// By OpenTelemetry's semantic conventions for messaging.
#[tokio::test]
async fn a_handler_runs_in_a_span_with_the_attributes_of_its_message() {
    let recorded = Log::new();
    let _guard =
        tracing::subscriber::set_default(tracing_subscriber::registry().with(Recorder(recorded.clone())));
    let (clock, queue) = queue();
    queue.publish(Message::new("12345").with_id("m-1").with_correlation_id("c-7"));
    let consumer = QueueConsumer::with_decoder(queue.source(), codec::bytes, async |_: Bytes, _: Context| {
        assert_eq!(tracing::Span::current().metadata().map(|span| span.name()), Some("process"));
        Err::<(), _>(HandlerError::terminal("no"))
    });
    let handle = consumer.clock(clock.clone()).start().unwrap();
    queue.until(|queue| queue.counts().dead_lettered == 1).await.unwrap();
    let _ = prompt(handle.stop()).await;
    let recorded = recorded.all();
    let expected = [
        ("name", "process"),
        ("otel.name", &format!("process {}", queue.name())),
        ("otel.kind", "consumer"),
        ("messaging.system", "memory"),
        ("messaging.operation.name", "process"),
        ("messaging.operation.type", "process"),
        ("messaging.destination.name", queue.name()),
        ("messaging.message.id", "m-1"),
        ("messaging.message.conversation_id", "c-7"),
        ("messaging.message.body.size", "5"),
        ("windlass.attempt", "1"),
    ];
    let expected: Fields = expected.into_iter().map(|(name, value)| (name, value.to_owned())).collect();
    assert_eq!(recorded, [expected, Fields::from([("windlass.outcome", "terminal".to_owned())])]);
}
