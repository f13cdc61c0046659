//! The answer to a delivery: done, or not done and why.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The one answer to a delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "a settlement does nothing until a source is told"]
pub enum Settlement {
    /// Done with.
    Ack,
    /// Not done with.
    Nack(NackReason),
}

impl Settlement {
    /// Why it is not done with, where it is not.
    pub fn nack_reason(&self) -> Option<&NackReason> {
        match self {
            Self::Ack => None,
            Self::Nack(reason) => Some(reason),
        }
    }
}

impl From<NackReason> for Settlement {
    fn from(reason: NackReason) -> Self {
        Self::Nack(reason)
    }
}

impl fmt::Display for Settlement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ack => f.write_str("ack"),
            Self::Nack(reason) => reason.fmt(f),
        }
    }
}

/// Why a delivery is not done with, as an intent. How a broker carries it out is the adapter's; for a reason that it
/// does not know it gives the message back and answers `Unsupported`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum NackReason {
    /// Deliver it again, as the next attempt.
    Retry {
        /// How long to wait first. `None` leaves it open: the consumer's retry policy fills it in, and a source that
        /// is given `None` does not wait.
        delay: Option<Duration>,
        /// Whether it counts as an attempt. It does, unless the message was not to blame (an open circuit breaker).
        counted: bool,
        /// Why.
        cause: Cause,
    },
    /// Never deliver it again; keep it, with its cause, for an operator.
    DeadLetter {
        /// Why.
        cause: Cause,
    },
    /// Put it back now, for whoever comes next; not an attempt. A consumer waits a little before it pulls again, and
    /// from the third in a row on it postpones the message instead, where the queue would deliver it first again.
    RequeueNow {
        /// Why.
        cause: Cause,
    },
}

impl NackReason {
    /// A counted retry whose delay is left to the consumer's policy.
    pub fn retry(cause: impl Into<Cause>) -> Self {
        Self::Retry { delay: None, counted: true, cause: cause.into() }
    }

    /// A counted retry after `delay`, which no policy changes.
    pub fn retry_after(delay: Duration, cause: impl Into<Cause>) -> Self {
        Self::Retry { delay: Some(delay), counted: true, cause: cause.into() }
    }

    /// A retry after `delay` that does not count as an attempt.
    pub fn postpone(delay: Duration, cause: impl Into<Cause>) -> Self {
        Self::Retry { delay: Some(delay), counted: false, cause: cause.into() }
    }

    /// To the dead letters.
    pub fn dead_letter(cause: impl Into<Cause>) -> Self {
        Self::DeadLetter { cause: cause.into() }
    }

    /// Back to the queue, now.
    pub fn requeue_now(cause: impl Into<Cause>) -> Self {
        Self::RequeueNow { cause: cause.into() }
    }

    /// The cause.
    pub fn cause(&self) -> &Cause {
        match self {
            Self::Retry { cause, .. } | Self::DeadLetter { cause } | Self::RequeueNow { cause } => cause,
        }
    }
}

impl fmt::Display for NackReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Retry { delay: Some(delay), cause, .. } => write!(f, "retry after {delay:?}: {cause}"),
            Self::Retry { delay: None, cause, .. } => write!(f, "retry: {cause}"),
            Self::DeadLetter { cause } => write!(f, "dead-letter: {cause}"),
            Self::RequeueNow { cause } => write!(f, "requeue: {cause}"),
        }
    }
}

/// Why a message was not done with: a short code that programs compare, and a detail that people read.
///
/// ```
/// use windlass::source::Cause;
///
/// let cause = Cause::new("terminal").with_detail("card declined");
/// assert_eq!(cause.code(), "terminal");
/// assert_eq!(cause.to_string(), "terminal: card declined");
/// ```
///
/// Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Cause(Arc<Parts>);

/// Behind one pointer, so that a settlement stays small: the loop moves one for each message, and most have no cause.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Parts {
    code: Cow<'static, str>,
    detail: Option<String>,
}

impl Cause {
    /// The longest code, in bytes of UTF-8.
    pub const LONGEST_CODE: usize = 128;

    /// The longest detail, in bytes of UTF-8: brokers carry it in a header, and a header table must fit into one
    /// frame, of which AMQP 0-9-1 promises 4,096 bytes.
    pub const LONGEST_DETAIL: usize = 1_024;

    /// A cause with this code. Longer ones than [`LONGEST_CODE`](Self::LONGEST_CODE) are cut.
    pub fn new(code: impl Into<Cow<'static, str>>) -> Self {
        Self(Arc::new(Parts { code: cut(code.into(), Self::LONGEST_CODE), detail: None }))
    }

    /// Adds what a person wants to know. Longer ones than [`LONGEST_DETAIL`](Self::LONGEST_DETAIL) are cut.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<String>) -> Self {
        let detail = cut(Cow::Owned(detail.into()), Self::LONGEST_DETAIL).into_owned();
        Arc::make_mut(&mut self.0).detail = Some(detail);
        self
    }

    /// The code: one of those in the table of [`on_result`](crate::consumer::default_on_result), or the user's own.
    pub fn code(&self) -> &str {
        &self.0.code
    }

    /// The detail.
    pub fn detail(&self) -> Option<&str> {
        self.0.detail.as_deref()
    }
}

fn cut(text: Cow<'static, str>, longest: usize) -> Cow<'static, str> {
    if text.len() <= longest {
        return text;
    }
    let end = (0..=longest).rev().find(|&index| text.is_char_boundary(index)).unwrap_or(0);
    Cow::Owned(text[..end].to_owned())
}

impl From<&'static str> for Cause {
    fn from(code: &'static str) -> Self {
        Self::new(code)
    }
}

impl From<String> for Cause {
    fn from(code: String) -> Self {
        Self::new(code)
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.detail() {
            Some(detail) => write!(f, "{}: {detail}", self.code()),
            None => f.write_str(self.code()),
        }
    }
}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cause").field("code", &self.code()).field("detail", &self.detail()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::Cause;

    #[test]
    fn a_long_detail_is_cut_between_characters() {
        let cause = Cause::new("terminal").with_detail("é".repeat(1_000));
        assert_eq!(cause.detail().map(str::len), Some(1_024));
        let cause = Cause::new("terminal").with_detail(format!("x{}", "é".repeat(1_000)));
        assert_eq!(cause.detail().map(str::len), Some(1_023));
    }
}
