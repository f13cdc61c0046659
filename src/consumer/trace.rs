//! The spans of a consumer, as the page of [`consumer`](super) has them.

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
    record_outcome(span, ended);
    span.record("windlass.settlement", settlement(reason));
    if let Some(reason) = reason {
        span.record("windlass.cause", reason.cause().code());
    }
}

/// Records in the process span that the message is held, and handled again in a span of its own.
pub(super) fn record_held<O>(span: &Span, ended: &Ended<O>) {
    record_outcome(span, ended);
    span.record("windlass.settlement", "held");
}

fn record_outcome<O>(span: &Span, ended: &Ended<O>) {
    span.record("windlass.outcome", ended.name());
    if let Ended::Handled(Err(error)) = ended {
        span.record("error.type", error.class_name());
        span.record("otel.status_code", "ERROR");
    }
}

/// The span of the answer; `process` ends here. It is no child of it in the terms of `tracing`, whose parents do not
/// end before their children: how long the handler took must not depend on who listens.
pub(super) fn settle_span(
    system: &str,
    queue: &str,
    message: &Message,
    reason: Option<&NackReason>,
    process: Span,
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
    adopt(&span, &process);
    span
}

/// Records in the span of the answer whether the broker took it, and ends the span.
pub(super) fn record_settled(span: Span, settled: &Result<()>) {
    if let Err(error) = settled {
        span.record("error.type", error.kind().name());
        span.record("otel.status_code", "ERROR");
    }
    drop(span);
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
