//! What is written on a dead letter, in headers of our own.

use std::time::{Duration, SystemTime};

use super::Cause;
use crate::message::{HeaderValue, Headers, Message};

const CAUSE: &str = "windlass-cause";
const DETAIL: &str = "windlass-cause-detail";
const ATTEMPTS: &str = "windlass-attempts";
const QUEUE: &str = "windlass-origin-queue";
const AT: &str = "windlass-dead-lettered-at";

/// What is known of a dead letter: why, after how many attempts, from which queue, and when.
///
/// It travels in the headers `windlass-cause`, `windlass-cause-detail`, `windlass-attempts`, `windlass-origin-queue`
/// and `windlass-dead-lettered-at`; names that begin with `x-` are the broker's. The message's own headers stay.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadLetter {
    /// Why the message was given up.
    pub cause: Cause,
    /// How many attempts had been made.
    pub attempts: u32,
    /// The queue that it was in.
    pub queue: String,
    /// When, to the second.
    pub at: SystemTime,
}

impl DeadLetter {
    /// For adapters: what is written on `message` when it is given up.
    pub fn new(cause: Cause, message: &Message, queue: impl Into<String>, at: SystemTime) -> Self {
        Self { cause, attempts: message.attempt(), queue: queue.into(), at }
    }

    /// For adapters: writes this into the headers of the copy that goes to the dead-letter queue.
    #[must_use]
    pub fn stamp(&self, mut headers: Headers) -> Headers {
        let seconds = self.at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        headers.insert(CAUSE, self.cause.code());
        match self.cause.detail() {
            Some(detail) => headers.insert(DETAIL, detail),
            None => headers.remove(DETAIL),
        };
        headers.insert(ATTEMPTS, self.attempts);
        headers.insert(QUEUE, self.queue.as_str());
        headers.insert(AT, HeaderValue::Timestamp(seconds));
        headers
    }

    /// For adapters: takes all that [`stamp`](Self::stamp) writes out of the headers, for a copy that lives again.
    #[must_use]
    pub fn unstamp(mut headers: Headers) -> Headers {
        for name in [CAUSE, DETAIL, ATTEMPTS, QUEUE, AT] {
            headers.remove(name);
        }
        headers
    }

    /// What is written on `message`; `None` where it bears no cause. Fields that are missing or of another type are
    /// read as one attempt, an unnamed queue and the Unix epoch.
    pub fn of(message: &Message) -> Option<Self> {
        let text = |name| message.headers().get(name).and_then(HeaderValue::as_str);
        let mut cause = Cause::new(text(CAUSE)?.to_owned());
        if let Some(detail) = text(DETAIL) {
            cause = cause.with_detail(detail);
        }
        let attempts = message.headers().get(ATTEMPTS).and_then(HeaderValue::as_i64);
        let at = match message.headers().get(AT) {
            Some(HeaderValue::Timestamp(seconds)) => Duration::from_secs(*seconds),
            _ => Duration::ZERO,
        };
        Some(Self {
            cause,
            attempts: attempts.and_then(|attempts| u32::try_from(attempts).ok()).unwrap_or(1).max(1),
            queue: text(QUEUE).unwrap_or_default().to_owned(),
            at: SystemTime::UNIX_EPOCH.checked_add(at).unwrap_or(SystemTime::UNIX_EPOCH),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::DeadLetter;
    use crate::message::{HeaderValue, Message};
    use crate::source::Cause;

    #[test]
    fn what_was_stamped_is_read_back_and_the_other_headers_stay() {
        let message = Message::new("").with_header("shard", 3_i32).with_attempt(4);
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let letter = DeadLetter::new(Cause::new("terminal").with_detail("declined"), &message, "orders", at);
        let copy = message.clone().with_headers(letter.stamp(message.headers().clone()));
        assert_eq!(DeadLetter::of(&copy), Some(letter));
        assert_eq!(copy.headers().get("shard"), Some(&HeaderValue::I32(3)));
        assert_eq!(DeadLetter::of(&message), None);
        assert_eq!(DeadLetter::unstamp(copy.headers().clone()), *message.headers());
    }

    #[test]
    fn garbage_in_our_headers_is_read_without_a_panic() {
        let message = Message::new("")
            .with_header("windlass-cause", "terminal")
            .with_header("windlass-attempts", -5_i64)
            .with_header("windlass-dead-lettered-at", HeaderValue::Timestamp(u64::MAX));
        let letter = DeadLetter::of(&message).expect("a cause is enough");
        assert_eq!((letter.attempts, letter.at), (1, SystemTime::UNIX_EPOCH));
    }
}
