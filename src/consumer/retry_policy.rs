//! What a `Retry` leaves open: how long to wait, and when to give up.

use std::time::Duration;

use super::options::invalid;
use crate::backoff::{Backoff, seed};
use crate::error::Result;
use crate::message::Message;
use crate::source::{Cause, NackReason};

/// Fills in the delay that a `Retry` leaves open, by attempt, and dead-letters once the retries are used up, as
/// `retry_exhausted:N` with N attempts made and the last cause as its detail.
///
/// A `Retry` that has a delay keeps it (a zero one becomes 1 ms), whatever the attempt: whoever chose the delay decides
/// when to give up. One that does not count never is the last. Where the source does not count attempts
/// ([`Capabilities::counts_attempts`](crate::source::Capabilities::counts_attempts)), every delivery is the first
/// attempt, and retries do not run out.
///
/// ```
/// use std::time::Duration;
/// use windlass::consumer::RetryPolicy;
///
/// let default = RetryPolicy::default(); // 1 s, 2 s, 4 s
/// let patient = RetryPolicy::schedule([Duration::from_secs(5), Duration::from_secs(60), Duration::from_secs(3_600)]);
/// # let _ = (default, patient);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct RetryPolicy(Delays);

#[derive(Debug, Clone, PartialEq)]
enum Delays {
    Schedule(Vec<Duration>),
    Backoff { backoff: Backoff, retries: u32 },
}

impl RetryPolicy {
    /// One retry after each of these delays, in order. An empty schedule, or one with a zero delay, is refused when
    /// the consumer is started.
    pub fn schedule(delays: impl IntoIterator<Item = Duration>) -> Self {
        Self(Delays::Schedule(delays.into_iter().collect()))
    }

    /// `retries` retries after growing delays. The jitter's seed is the message's id: the same message waits equally
    /// long in every run, and messages that failed together come back apart.
    pub fn backoff(backoff: Backoff, retries: u32) -> Self {
        Self(Delays::Backoff { backoff, retries })
    }

    /// No retry: the first failed attempt is the last.
    pub fn never() -> Self {
        Self::backoff(Backoff::new(Backoff::SHORTEST), 0)
    }

    pub(super) fn validate(&self) -> Result<()> {
        let Delays::Schedule(delays) = &self.0 else { return Ok(()) };
        if delays.is_empty() {
            return Err(invalid("retry_policy", "the schedule is empty; RetryPolicy::never() says that"));
        }
        match delays.iter().position(Duration::is_zero) {
            None => Ok(()),
            Some(index) => {
                let fix = format!("delay {} of the schedule is zero; a retry needs a wait", index + 1);
                Err(invalid("retry_policy", &fix))
            }
        }
    }

    fn retries(&self) -> u32 {
        match &self.0 {
            Delays::Schedule(delays) => u32::try_from(delays.len()).unwrap_or(u32::MAX),
            Delays::Backoff { retries, .. } => *retries,
        }
    }

    /// The delay after a failed attempt; `None` when it was the last.
    fn delay(&self, attempt: u32, seed: u64) -> Option<Duration> {
        match &self.0 {
            Delays::Schedule(delays) => {
                let index = usize::try_from(attempt.max(1) - 1).unwrap_or(usize::MAX);
                delays.get(index).map(|delay| clamp(*delay))
            }
            Delays::Backoff { backoff, retries } => {
                (attempt <= *retries).then(|| backoff.delay(attempt, seed))
            }
        }
    }

    /// The reason with nothing left open.
    pub(super) fn complete(&self, reason: NackReason, message: &Message) -> NackReason {
        match reason {
            NackReason::Retry { delay: None, counted, cause } => {
                let attempt = message.attempt();
                // One that does not count cannot be the last: it waits as long as the last counted one would.
                let counting = if counted { attempt } else { attempt.min(self.retries().max(1)) };
                match self.delay(counting, seed(message.id())) {
                    None if !counted => NackReason::postpone(Duration::from_secs(1), cause),
                    Some(delay) => NackReason::Retry { delay: Some(delay), counted, cause },
                    None => NackReason::dead_letter(
                        Cause::new(format!("retry_exhausted:{attempt}")).with_detail(cause.to_string()),
                    ),
                }
            }
            NackReason::Retry { delay: Some(delay), counted, cause } => {
                NackReason::Retry { delay: Some(clamp(delay)), counted, cause }
            }
            NackReason::DeadLetter { .. } | NackReason::RequeueNow { .. } => reason,
        }
    }
}

impl Default for RetryPolicy {
    /// 1 s, 2 s, 4 s, without jitter.
    fn default() -> Self {
        Self::backoff(Backoff::new(Duration::from_secs(1)).with_jitter(0.0), 3)
    }
}

/// Never zero: a retry that does not wait is a hot loop.
fn clamp(delay: Duration) -> Duration {
    delay.clamp(Backoff::SHORTEST, Backoff::LONGEST)
}
