//! Which dead letters are sent back, where to, and how fast.

use std::collections::BTreeSet;
use std::num::{NonZeroU16, NonZeroU32, NonZeroU64};
use std::time::{Duration, SystemTime};

use super::death::DeadMessage;
use crate::error::{Error, ErrorKind, Result};
use crate::rabbitmq::declare::check_short;
use crate::source::Cause;

/// How many copies are published and not yet confirmed, by default.
const IN_FLIGHT: NonZeroU16 = NonZeroU16::new(64).unwrap();

/// Which dead letters [`redrive`](super::DeadLetterQueue::redrive) sends back, where to, and how fast. All by default,
/// each to the queue that it came from, as fast as they are confirmed.
///
/// What is said here is all asked of a message: it has one of the causes, and one of the ids, and the age.
///
/// ```
/// use std::num::NonZeroU32;
/// use std::time::Duration;
/// use windlass::rabbitmq::dead_letters::RedriveOptions;
///
/// let options = RedriveOptions::new()
///     .cause("retry_exhausted")
///     .younger_than(Duration::from_secs(3_600))
///     .rate(NonZeroU32::new(100).unwrap());
/// ```
#[derive(Debug, Clone)]
#[must_use = "options do nothing until `redrive` has them"]
pub struct RedriveOptions {
    pub(super) to: Option<String>,
    causes: Vec<String>,
    ids: BTreeSet<String>,
    older_than: Option<Duration>,
    younger_than: Option<Duration>,
    pub(super) limit: Option<NonZeroU64>,
    pub(super) rate: Option<NonZeroU32>,
    pub(super) dry_run: bool,
    pub(super) in_flight: NonZeroU16,
}

impl Default for RedriveOptions {
    fn default() -> Self {
        Self {
            to: None,
            causes: Vec::new(),
            ids: BTreeSet::new(),
            older_than: None,
            younger_than: None,
            limit: None,
            rate: None,
            dry_run: false,
            in_flight: IN_FLIGHT,
        }
    }
}

impl RedriveOptions {
    /// All messages, each to where it came from.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sends them to this queue, wherever they came from; those too of which that is not known.
    pub fn to(mut self, queue: impl Into<String>) -> Self {
        self.to = Some(queue.into());
        self
    }

    /// Those with this cause; given more than once, those with any of them. It is a code (`terminal`), the beginning of
    /// one up to a colon (`retry_exhausted`, for `retry_exhausted:3`), or a code and the beginning of the detail
    /// (`terminal: card`).
    pub fn cause(mut self, cause: impl Into<String>) -> Self {
        self.causes.push(cause.into());
        self
    }

    /// Those with this message id; given more than once, those with any of them.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.ids.insert(id.into());
        self
    }

    /// Those that died at least so long ago. One whose time of death is not known stays.
    pub fn older_than(mut self, age: Duration) -> Self {
        self.older_than = Some(age);
        self
    }

    /// Those that died less long ago than this. One whose time of death is not known stays.
    pub fn younger_than(mut self, age: Duration) -> Self {
        self.younger_than = Some(age);
        self
    }

    /// At most so many, the first ones. All by default.
    pub fn limit(mut self, messages: NonZeroU64) -> Self {
        self.limit = Some(messages);
        self
    }

    /// At most so many in a second, evenly. As fast as they are confirmed by default.
    pub fn rate(mut self, messages_per_second: NonZeroU32) -> Self {
        self.rate = Some(messages_per_second);
        self
    }

    /// Counts what would be sent back, and sends nothing. False by default.
    pub fn dry_run(mut self, dry_run: bool) -> Self {
        self.dry_run = dry_run;
        self
    }

    /// How many copies are published and not yet confirmed. 64 by default. About twice as many messages are in memory; more where many
    /// stay, since they are passed over in windows that grow, as far as 64 MiB go by the largest body seen so far.
    pub fn in_flight(mut self, messages: NonZeroU16) -> Self {
        self.in_flight = messages;
        self
    }

    /// Whether this can be meant for the dead letters in `queue`; [`redrive`](super::DeadLetterQueue::redrive) asks, too.
    ///
    /// # Errors
    ///
    /// `Invalid`, with the option: a target that is empty, too long or `queue` itself, an empty cause or id.
    pub fn validate(&self, queue: &str) -> Result<()> {
        let invalid = |text: String| Err(Error::new(ErrorKind::Invalid, "redrive").with_message(text));
        if let Some(to) = &self.to {
            check_short("redrive", "target queue `to`", to)?;
            if to.is_empty() {
                return invalid("`to` is empty: name the queue, or leave it out".to_owned());
            }
            if to == queue {
                return invalid(format!(
                    "`to` is `{queue}` itself: name the queue that the messages belong in"
                ));
            }
        }
        if self.causes.iter().any(String::is_empty) {
            return invalid("a `cause` is empty: leave it out to redrive all causes".to_owned());
        }
        if self.ids.iter().any(String::is_empty) {
            return invalid("an `id` is empty: leave it out to redrive all messages".to_owned());
        }
        Ok(())
    }

    /// Whether the message is one of those that are asked for, by the age that it has at `now`.
    pub(super) fn matches(&self, dead: &DeadMessage, now: SystemTime) -> bool {
        let cause = dead.death.cause.as_ref();
        let age = || dead.death.at.map(|at| now.duration_since(at).unwrap_or_default());
        (self.causes.is_empty()
            || cause.is_some_and(|cause| self.causes.iter().any(|asked| is(cause, asked))))
            && (self.ids.is_empty() || self.ids.contains(dead.message.id()))
            && self.older_than.is_none_or(|least| age().is_some_and(|age| age >= least))
            && self.younger_than.is_none_or(|most| age().is_some_and(|age| age < most))
    }
}

fn is(cause: &Cause, asked: &str) -> bool {
    let text = cause.to_string();
    match text.strip_prefix(asked) {
        // The detail may be given in part, a code only up to a colon.
        Some(rest) => rest.is_empty() || rest.starts_with(':') || asked.len() > cause.code().len(),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::{RedriveOptions, is};
    use crate::source::Cause;

    #[test]
    fn a_cause_is_asked_for_by_its_code_the_beginning_of_it_or_its_detail() {
        let exhausted = Cause::new("retry_exhausted:3").with_detail("timeout:50ms");
        for asked in [
            "retry_exhausted",
            "retry_exhausted:3",
            "retry_exhausted:3: time",
            "retry_exhausted:3: timeout:50ms",
        ] {
            assert!(is(&exhausted, asked), "{asked}");
        }
        for asked in ["retry", "retry_exhausted:", "retry_exhausted:4", "timeout", "retry_exhausted:3: x"] {
            assert!(!is(&exhausted, asked), "{asked}");
        }
        assert!(is(&Cause::new("rejected"), "rejected") && !is(&Cause::new("rejected"), "reject"));
    }

    #[test]
    fn what_cannot_be_meant_is_refused_by_name() {
        for (options, field) in [
            (RedriveOptions::new().to(""), "`to`"),
            (RedriveOptions::new().to("orders.dlq"), "`to`"),
            (RedriveOptions::new().to("q".repeat(256)), "`to`"),
            (RedriveOptions::new().cause(""), "`cause`"),
            (RedriveOptions::new().id(""), "`id`"),
        ] {
            let error = options.validate("orders.dlq").expect_err("refused");
            assert!(error.to_string().contains(field), "{error}");
        }
        assert!(RedriveOptions::new().to("orders").validate("orders.dlq").is_ok());
    }
}
