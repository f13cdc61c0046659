//! Trace contexts of OpenTelemetry's spans.
//!
//! Where no layer of `tracing-opentelemetry` is installed, or it does not record a span, all of these do nothing.

use opentelemetry::Context;
use opentelemetry::trace::{
    SpanContext as OtelContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState,
};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

use super::{SpanContext, TraceParent};
use crate::message::Message;

/// Of the span that this is called in.
pub(crate) fn current() -> Option<SpanContext> {
    of(&Span::current())
}

/// Of `span`, which is started by that: its parent cannot be changed from there on.
pub(crate) fn of(span: &Span) -> Option<SpanContext> {
    if span.is_disabled() {
        return None;
    }
    let context = span.context();
    let context = context.span().span_context().clone();
    let trace_id = u128::from_be_bytes(context.trace_id().to_bytes());
    let parent_id = u64::from_be_bytes(context.span_id().to_bytes());
    let parent =
        TraceParent::new(trace_id.try_into().ok()?, parent_id.try_into().ok()?, context.is_sampled());
    Some(SpanContext { parent, state: context.trace_state().header() })
}

/// Makes `span`, which has not been entered yet, a child of the span that sent `message`. The span that this is called
/// in, if any, becomes a link of it.
pub(crate) fn follow(span: &Span, message: &Message) {
    if let (false, Some(sender)) = (span.is_disabled(), remote(message)) {
        let around = Span::current().context();
        // It fails where nothing records, and there is nothing to do about it.
        let _ = span.set_parent(Context::new().with_remote_span_context(sender));
        span.add_link(around.span().span_context().clone());
    }
}

/// Links `span` to the context that `message` carries.
pub(crate) fn link(span: &Span, message: &Message) {
    if let (false, Some(carried)) = (span.is_disabled(), remote(message)) {
        span.add_link(carried);
    }
}

/// Makes `span`, which has not been entered yet, a child of `parent`, and lets `parent` end before it.
pub(crate) fn adopt(span: &Span, parent: &Span) {
    if !span.is_disabled() && !parent.is_disabled() {
        // As in `follow`.
        let _ = span.set_parent(parent.context());
    }
}

fn remote(message: &Message) -> Option<OtelContext> {
    let parent = message.trace_parent()?;
    let flags = TraceFlags::default().with_sampled(parent.sampled());
    // What is wrong with the state must not keep the parent from being used.
    let state = message.trace_state().and_then(|state| state.parse().ok()).unwrap_or(TraceState::NONE);
    let trace_id = TraceId::from(parent.trace_id().get());
    let span_id = SpanId::from(parent.parent_id().get());
    Some(OtelContext::new(trace_id, span_id, flags, true, state))
}
