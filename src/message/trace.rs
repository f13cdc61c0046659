//! Trace contexts: the headers that tie a message to the work that caused it, as OpenTelemetry and others read them.
//!
//! The headers are `traceparent` and `tracestate` of the W3C's [Trace Context] (Recommendation of 23 November 2021,
//! level 1), as text and with their names in lower case. That recommendation is for HTTP; the W3C's draft for AMQP is
//! for AMQP 1.0 and never left the draft stage, and what OpenTelemetry's libraries put on messages is the text of HTTP.
//!
//! Nothing here looks into `tracestate`: it belongs to the tracing systems that wrote it, and goes where `traceparent`
//! goes.
//!
//! [Trace Context]: https://www.w3.org/TR/2021/REC-trace-context-1-20211123/

use std::fmt;
use std::num::{NonZeroU64, NonZeroU128};
use std::str::FromStr;

use super::{HeaderValue, Message};
use crate::error::{Error, ErrorKind};

#[cfg(feature = "otel")]
mod otel;
#[cfg(not(feature = "otel"))]
mod otel {
    //! Without OpenTelemetry a span has no context, and nothing becomes of one.

    use tracing::Span;

    use super::SpanContext;
    use crate::message::Message;

    pub(crate) fn current() -> Option<SpanContext> {
        None
    }

    pub(crate) fn of(_: &Span) -> Option<SpanContext> {
        None
    }

    pub(crate) fn follow(_: &Span, _: &Message) {}

    pub(crate) fn link(_: &Span, _: &Message) {}

    pub(crate) fn adopt(_: &Span, _: &Span) {}
}

pub(crate) use otel::{adopt, current, follow, link, of};

const TRACE_PARENT: &str = "traceparent";
const TRACE_STATE: &str = "tracestate";

/// The longest correlation id that goes into the property: a short string of AMQP 0-9-1 carries no more.
const LONGEST_PROPERTY: usize = 255;

/// Which trace a message belongs to, and which span in it the message comes from: the header `traceparent`.
///
/// It is written as version 00. Headers of higher versions are read as far as version 00 goes, as the
/// [recommendation](https://www.w3.org/TR/trace-context-1/#versioning-of-traceparent) asks; of the flags, `sampled` is
/// the only one that it defines, and the only one that is kept.
///
/// ```
/// use windlass::message::{Message, TraceParent};
///
/// let parent: TraceParent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".parse()?;
/// assert_eq!(format!("{:032x}", parent.trace_id()), "4bf92f3577b34da6a3ce929d0e0e4736");
/// assert!(parent.sampled());
/// assert_eq!(Message::new("{}").with_trace_parent(parent).trace_parent(), Some(parent));
/// # Ok::<_, windlass::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceParent {
    trace_id: NonZeroU128,
    parent_id: NonZeroU64,
    sampled: bool,
}

impl TraceParent {
    /// Of its parts.
    pub fn new(trace_id: NonZeroU128, parent_id: NonZeroU64, sampled: bool) -> Self {
        Self { trace_id, parent_id, sampled }
    }

    /// The id of the trace; `{:032x}` shows it as tracing systems do.
    pub fn trace_id(&self) -> NonZeroU128 {
        self.trace_id
    }

    /// The id of the span that the message comes from; `{:016x}` shows it as tracing systems do.
    pub fn parent_id(&self) -> NonZeroU64 {
        self.parent_id
    }

    /// Whether whoever sent the message may have recorded that span.
    pub fn sampled(&self) -> bool {
        self.sampled
    }

    fn parse(header: &[u8]) -> Option<Self> {
        let (fields, more) = header.split_first_chunk::<55>()?;
        let version = hex(&fields[..2])?;
        let ends_well = match version {
            0 => more.is_empty(),
            0xff => false,
            _ => matches!(more, [] | [b'-', ..]),
        };
        if !ends_well || [fields[2], fields[35], fields[52]] != *b"---" {
            return None;
        }
        let trace_id = NonZeroU128::new(hex(&fields[3..35])?)?;
        let parent_id = NonZeroU64::new(u64::try_from(hex(&fields[36..52])?).ok()?)?;
        Some(Self { trace_id, parent_id, sampled: hex(&fields[53..])? & 1 == 1 })
    }
}

/// At most 32 digits, all in lower case.
fn hex(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |number, digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(value))
    })
}

impl FromStr for TraceParent {
    type Err = Error;

    /// Reads the value of a `traceparent` header.
    ///
    /// # Errors
    ///
    /// `Invalid`, where it is none: too short, too long for version 00, of version ff, in upper case, or with an id of
    /// zeros.
    fn from_str(header: &str) -> Result<Self, Error> {
        Self::parse(header.as_bytes()).ok_or_else(|| {
            Error::new(ErrorKind::Invalid, "parse").with_message("not a W3C traceparent header")
        })
    }
}

/// The value of a `traceparent` header of version 00.
impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace_id, self.parent_id, u8::from(self.sampled))
    }
}

impl fmt::Debug for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TraceParent({self})")
    }
}

/// What a span puts on a message that is sent in it.
pub(crate) struct SpanContext {
    pub(crate) parent: TraceParent,
    /// Empty where there is none.
    pub(crate) state: String,
}

impl SpanContext {
    pub(crate) fn put_on(self, message: Message) -> Message {
        message.edit(|content| {
            content.headers.insert(TRACE_PARENT, self.parent.to_string());
            if self.state.is_empty() {
                content.headers.remove(TRACE_STATE);
            } else {
                content.headers.insert(TRACE_STATE, self.state);
            }
        })
    }
}

impl Message {
    /// The trace context that came with the message: its header `traceparent`, as text or as bytes. `None` where there
    /// is none and where it cannot be read.
    pub fn trace_parent(&self) -> Option<TraceParent> {
        match self.headers().get(TRACE_PARENT)? {
            HeaderValue::Text(text) => TraceParent::parse(text.as_bytes()),
            HeaderValue::Bytes(bytes) => TraceParent::parse(bytes),
            _ => None,
        }
    }

    /// What the tracing systems on the way say beside it: the header `tracestate`, as it came. `None` where there is no
    /// [`trace_parent`](Self::trace_parent), without which it means nothing.
    pub fn trace_state(&self) -> Option<&str> {
        self.trace_parent()?;
        let state = match self.headers().get(TRACE_STATE)? {
            HeaderValue::Text(text) => text,
            HeaderValue::Bytes(bytes) => std::str::from_utf8(bytes).ok()?,
            _ => return None,
        };
        Some(state).filter(|state| !state.trim().is_empty())
    }

    /// Sets the header `traceparent`. A `tracestate` that came with a context of another trace goes.
    #[must_use]
    pub fn with_trace_parent(self, parent: TraceParent) -> Self {
        let stale = self.trace_parent().is_some_and(|old| old.trace_id != parent.trace_id);
        self.edit(|content| {
            content.headers.insert(TRACE_PARENT, parent.to_string());
            if stale {
                content.headers.remove(TRACE_STATE);
            }
        })
    }

    /// Says that this message is sent because of `cause`: gives it the correlation id of `cause` and its trace
    /// context, each unless it has one. In a handler, [`Context::carry`](crate::Context::carry) does this.
    ///
    /// The [correlation id](Self::correlation_id) goes into the broker's property, so that consumers in other languages
    /// find it where they look; one of more than 255 bytes, which no property of AMQP carries, into the header
    /// `x-correlation-id`. A message has one where a header or the property says so; its own id is none.
    ///
    /// The trace context is that of the current span where the feature `otel` is on and OpenTelemetry has one, else the
    /// headers `traceparent` and `tracestate` of `cause`, as they came.
    #[must_use]
    pub fn caused_by(self, cause: &Message) -> Self {
        self.correlated_with(cause).traced_with(cause)
    }

    fn correlated_with(self, cause: &Message) -> Self {
        let id = cause.correlation_id();
        if id.is_empty() || self.given_correlation_id().is_some() {
            self
        } else if id.len() <= LONGEST_PROPERTY {
            self.with_correlation_id(id)
        } else {
            self.with_header("x-correlation-id", id)
        }
    }

    fn traced_with(self, cause: &Message) -> Self {
        if self.trace_parent().is_some() {
            return self;
        }
        if let Some(current) = current() {
            return current.put_on(self);
        }
        if cause.trace_parent().is_none() {
            return self;
        }
        // As they came, flags and versions that are not known here included: whoever only passes a context on is not
        // to change it. One is not passed on without the other.
        self.edit(|content| {
            for name in [TRACE_PARENT, TRACE_STATE] {
                match cause.headers().get(name) {
                    Some(value) => content.headers.insert(name, value.clone()),
                    None => content.headers.remove(name),
                };
            }
        })
    }
}
