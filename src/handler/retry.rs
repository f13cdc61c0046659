//! Trying again within the process.

use std::num::NonZeroU32;
use std::time::Duration;

use super::HandlerError;
use crate::backoff::{Backoff, seed};

/// How often a handler is tried before its failure is the message's, and the waits between.
///
/// It is for failures that pass within moments: the message stays in hand, and its slot taken, while it waits. What
/// takes longer is better left to the consumer's own retry policy, which gives the message back to the broker.
///
/// Tried again is what may go better: `Failed`, `Timeout`, `Panicked`. All else goes through at once. When the last try
/// fails as well, the result is [`HandlerError::RetryExhausted`] with the last error, a [`HandlerError`], in it.
///
/// ```
/// use std::num::NonZeroU32;
/// use std::time::Duration;
/// use windlass::backoff::Backoff;
/// use windlass::handler::Retry;
///
/// let three_times = NonZeroU32::new(3).unwrap();
/// let retry = Retry::new(three_times).with_backoff(Backoff::new(Duration::from_millis(50)));
/// assert_eq!(retry.max_attempts(), three_times);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
#[must_use = "it does nothing until it is given to `Policies::retry`"]
pub struct Retry {
    max_attempts: NonZeroU32,
    backoff: Backoff,
}

impl Retry {
    /// Tries at most `max_attempts` times, the first try included, with waits of 100 ms, 200 ms, 400 ms and so on up to
    /// 30 s, each with a tenth of jitter. With 1 nothing is tried again, and a failure is `RetryExhausted` at once.
    pub const fn new(max_attempts: NonZeroU32) -> Self {
        Self { max_attempts, backoff: Backoff::new(Duration::from_millis(100)) }
    }

    /// The waits between the tries. The jitter's seed is the message's id: the same message waits equally long in
    /// every run, and messages that failed together are tried apart.
    pub const fn with_backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// How often it tries, the first try included.
    pub fn max_attempts(&self) -> NonZeroU32 {
        self.max_attempts
    }

    /// How long it waits after try number `attempt` failed.
    pub(super) fn delay(&self, attempt: u32, id: &str) -> Duration {
        self.backoff.delay(attempt, seed(id))
    }
}

/// Whether another try may go better.
pub(super) fn is_worth_another(error: &HandlerError) -> bool {
    match error {
        HandlerError::Failed(_) | HandlerError::Timeout { .. } | HandlerError::Panicked { .. } => true,
        HandlerError::Validation { .. }
        | HandlerError::Terminal(_)
        | HandlerError::RetryExhausted { .. }
        | HandlerError::CircuitOpen { .. }
        | HandlerError::BackpressureReject
        | HandlerError::Dropped
        | HandlerError::NotRunning => false,
    }
}
