//! The spans of a consumer, by OpenTelemetry's [conventions for messaging] (1.39).
//!
//! | span | level | kind | around |
//! |---|---|---|---|
//! | `process <queue>` | info | consumer | decoding and the handler, of one message |
//! | `ack <queue>`, `nack <queue>` | debug | client | the answer to the broker, until the broker has it |
//!
//! - The sender of the message is the parent of the process span where the feature `otel` is on and the message has a
//!   `traceparent`, which the conventions leave open where messages come one by one: a trace that shows what a message
//!   has caused is worth more here than one that shows a loop. The ids that came are fields as well
//!   (`windlass.trace_id`, `windlass.parent_id`), with the feature and without, so that log lines can be joined.
//! - How it ended is in `windlass.outcome`, and what was decided in `windlass.settlement` and `windlass.cause`. A span of
//!   a handler that failed has `error.type`, one of the names of [`HandlerError`](crate::HandlerError::class_name), and
//!   the status `ERROR`; so has one of an answer that the broker did not take, with the name of the
//!   [`ErrorKind`](crate::ErrorKind::name).
//! - The answer is a span of its own, and a child of the process span, since the conventions say that it should be. It
//!   is at the level of debug as most ask only whether it failed, which is a warning anyway.
//! - There is no span for `receive`. The conventions have one for each poll of a consumer that asks for messages; a loop
//!   that waits all night would make nothing but spans without a message, and where there is one the conventions let
//!   the process span stand for it.
//! - Where a name is not given, it is not known here: `messaging.client.id`, `server.address`, and
//!   `messaging.rabbitmq.message.delivery_tag`. Later versions of the conventions call `messaging.system`
//!   `messaging.system.name`.
//!
//! [conventions for messaging]: https://github.com/open-telemetry/semantic-conventions/tree/v1.39.0/docs/messaging

use tracing::Span;
use tracing::field::Empty;

use super::ended::Ended;
use crate::error::Result;
use crate::message::Message;
use crate::message::trace::{adopt, follow};
use crate::source::NackReason;

/// The span that the handler runs in. Costs a look at a flag where nobody records it.
pub(super) fn process_span(system: &str, queue: &str, message: &Message) -> Span {
    let span = tracing::info_span!(
        "process",
        otel.name = %format_args!("process {queue}"),
        otel.kind = "consumer",
        otel.status_code = Empty,
        messaging.system = system,
        messaging.operation.name = "process",
        messaging.operation.type = "process",
        messaging.destination.name = queue,
        messaging.message.id = message.id(),
        messaging.message.conversation_id = message.correlation_id(),
        messaging.message.body.size = message.body().len(),
        error.type = Empty,
        windlass.attempt = message.attempt(),
        windlass.trace_id = message.trace_parent().map(|parent| format!("{:032x}", parent.trace_id())),
        windlass.parent_id = message.trace_parent().map(|parent| format!("{:016x}", parent.parent_id())),
        windlass.outcome = Empty,
        windlass.settlement = Empty,
        windlass.cause = Empty,
    );
    follow(&span, message);
    span
}

/// Records in the process span how the work ended, and what was decided.
pub(super) fn record_end<O>(span: &Span, ended: &Ended<O>, reason: Option<&NackReason>) {
    if span.is_disabled() {
        return;
    }
    span.record("windlass.outcome", ended.name());
    if let Ended::Handled(Err(error)) = ended {
        span.record("error.type", error.class_name());
        span.record("otel.status_code", "ERROR");
    }
    span.record("windlass.settlement", settlement(reason));
    if let Some(reason) = reason {
        span.record("windlass.cause", reason.cause().code());
    }
}

/// The span of the answer. It is no child of `process` in the terms of `tracing`, whose parents do not end before their
/// children: how long the handler took must not depend on who listens.
pub(super) fn settle_span(
    system: &str,
    queue: &str,
    message: &Message,
    reason: Option<&NackReason>,
    process: &Span,
) -> Span {
    let operation = if reason.is_some() { "nack" } else { "ack" };
    let span = tracing::debug_span!(
        parent: None,
        "settle",
        otel.name = %format_args!("{operation} {queue}"),
        otel.kind = "client",
        otel.status_code = Empty,
        messaging.system = system,
        messaging.operation.name = operation,
        messaging.operation.type = "settle",
        messaging.destination.name = queue,
        messaging.message.id = message.id(),
        messaging.message.conversation_id = message.correlation_id(),
        error.type = Empty,
        windlass.attempt = message.attempt(),
        windlass.settlement = settlement(reason),
    );
    adopt(&span, process);
    span
}

/// Records in the span of the answer whether the broker took it.
pub(super) fn record_settled(span: &Span, settled: &Result<()>) {
    if let Err(error) = settled {
        span.record("error.type", error.kind().name());
        span.record("otel.status_code", "ERROR");
    }
}

fn settlement(reason: Option<&NackReason>) -> &'static str {
    match reason {
        None => "ack",
        Some(NackReason::Retry { counted: true, .. }) => "retry",
        Some(NackReason::Retry { counted: false, .. }) => "postpone",
        Some(NackReason::DeadLetter { .. }) => "dead_letter",
        Some(NackReason::RequeueNow { .. }) => "requeue",
    }
}
