//! A publisher whose messages can be followed.

use std::fmt;
use std::future::Future;

use tracing::field::Empty;
use tracing::{Instrument, Span};

use super::Publisher;
use crate::error::{Error, Result};
use crate::message::Message;
use crate::message::trace::{current, link, of};

/// A publisher that makes a span of each publish, and puts the trace context on what is sent.
///
/// The span is `send <queue>`, at the level of info, with the names of OpenTelemetry's
/// [conventions for messaging](https://github.com/open-telemetry/semantic-conventions/tree/v1.39.0/docs/messaging)
/// (1.39): `messaging.system`, `messaging.operation.name` and `messaging.operation.type` (`send`),
/// `messaging.destination.name`, `messaging.message.id`, `messaging.message.conversation_id`,
/// `messaging.message.body.size`. `windlass.outcome` says `confirmed`, `failed`, or `dropped` where nobody waited for
/// the outcome. A span of a publish that failed has `error.type`, the name of the
/// [`ErrorKind`](crate::ErrorKind::name), and the status `ERROR`; the failure is an event at the level of warn as well, with the same names and `transient`.
///
/// With the feature `otel` the message carries the context of this span in the headers `traceparent` and `tracestate`,
/// so that the spans of its consumer are children of it. Where the span is filtered out, it carries the context of the
/// span around it. A context that is on the message already stays, as the conventions ask, and is linked to; only one
/// that names the span around this publish, as [`Context::carry`](crate::Context::carry) sets it, is replaced: this
/// span is a child of that. Without the feature nothing is put on the message. The kind is `producer`, or `client` where
/// the message keeps a context that is not of this span.
///
/// ```
/// # async fn send() -> windlass::Result<()> {
/// use windlass::clock::SystemClock;
/// use windlass::memory::MemoryBroker;
/// use windlass::publisher::{Publisher, Traced};
/// use windlass::Message;
///
/// let broker = MemoryBroker::new(SystemClock);
/// let publisher = Traced::new("memory", broker.publisher());
/// publisher.publish("orders", Message::new("{}")).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Traced<P> {
    system: &'static str,
    publisher: P,
}

impl<P: Publisher> Traced<P> {
    /// Follows what `publisher` sends. `system` is the kind of broker, by the name that OpenTelemetry has for it where
    /// it has one, and the same as [`MessageSource::system`](crate::MessageSource::system) at the other end: `rabbitmq`,
    /// `memory`.
    pub fn new(system: &'static str, publisher: P) -> Self {
        Self { system, publisher }
    }

    /// The publisher itself.
    pub fn get_ref(&self) -> &P {
        &self.publisher
    }

    /// Sends `message` to `destination` by `send`, in a span as [`publish`](Publisher::publish) does: for what a
    /// publisher can do beside that, such as to send to an exchange, or later.
    ///
    /// # Errors
    ///
    /// As `send`.
    ///
    /// # Cancel safety
    ///
    /// As `send`.
    pub async fn publish_with<'a, F, Fut>(
        &'a self,
        destination: &str,
        message: Message,
        send: F,
    ) -> Result<()>
    where
        F: FnOnce(&'a P, Message) -> Fut,
        Fut: Future<Output = Result<()>>,
    {
        let span = send_span(self.system, destination, &message);
        let message = attach(&span, message);
        // For the event of a failure.
        let told = message.clone();
        let watch = Watch { span: &span, over: false };
        let sent = send(&self.publisher, message).instrument(span.clone()).await;
        watch.ended(destination, &told, &sent);
        sent
    }
}

impl<P: Publisher> Publisher for Traced<P> {
    async fn publish(&self, queue: &str, message: Message) -> Result<()> {
        self.publish_with(queue, message, |publisher, message| publisher.publish(queue, message)).await
    }

    async fn broadcast(&self, exchange: &str, message: Message) -> Result<()> {
        self.publish_with(exchange, message, |publisher, message| publisher.broadcast(exchange, message))
            .await
    }
}

impl<P: fmt::Debug> fmt::Debug for Traced<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Traced").field("system", &self.system).field("publisher", &self.publisher).finish()
    }
}

fn send_span(system: &str, destination: &str, message: &Message) -> Span {
    tracing::info_span!(
        "send",
        otel.name = %format_args!("send {destination}"),
        otel.kind = if keeps_its_context(message) { "client" } else { "producer" },
        otel.status_code = Empty,
        messaging.system = system,
        messaging.operation.name = "send",
        messaging.operation.type = "send",
        messaging.destination.name = destination,
        messaging.message.id = message.id(),
        messaging.message.conversation_id = message.correlation_id(),
        messaging.message.body.size = message.body().len(),
        error.type = Empty,
        windlass.outcome = Empty,
    )
}

/// Whether the context that the message carries is of another span than the one around this publish.
fn keeps_its_context(message: &Message) -> bool {
    message.trace_parent().is_some_and(|carried| current().is_none_or(|around| around.parent != carried))
}

fn attach(span: &Span, message: Message) -> Message {
    let Some(own) = of(span).or_else(current) else { return message };
    if keeps_its_context(&message) {
        link(span, &message);
        return message;
    }
    own.put_on(message)
}

/// Sees how a publish ends, also where it is dropped before.
struct Watch<'a> {
    span: &'a Span,
    over: bool,
}

impl Watch<'_> {
    fn ended(mut self, destination: &str, message: &Message, sent: &Result<()>) {
        self.over = true;
        match sent {
            Ok(()) => {
                self.span.record("windlass.outcome", "confirmed");
            }
            Err(error) => {
                self.span.record("windlass.outcome", "failed");
                self.span.record("error.type", error.kind().name());
                self.span.record("otel.status_code", "ERROR");
                self.span.in_scope(|| report(destination, message, error));
            }
        }
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if !self.over {
            self.span.record("windlass.outcome", "dropped");
        }
    }
}

/// What stands behind the error is for whoever gets it: printing that may run code of anybody's.
fn report(destination: &str, message: &Message, error: &Error) {
    tracing::warn!(
        messaging.destination.name = cut(destination),
        messaging.message.id = cut(message.id()),
        error.type = error.kind().name(),
        transient = error.is_transient(),
        error = cut(&error.to_string()),
        "publish failed"
    );
}

/// The longest text of a field of an event, in bytes.
const LONGEST: usize = 512;

fn cut(text: &str) -> &str {
    let end = (0..=text.len().min(LONGEST)).rev().find(|&index| text.is_char_boundary(index));
    &text[..end.unwrap_or(0)]
}
