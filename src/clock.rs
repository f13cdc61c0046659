//! Time: every wait and every "now" of this crate goes through a [`Clock`].
//!
//! [`SystemClock`] is tokio's time. [`ControlledClock`] moves only when a test tells it to. This module is the only
//! one that may name tokio's or the standard library's clocks; a lint keeps the rest of the crate off them.

#![allow(clippy::disallowed_methods)]

mod controlled;

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant, SystemTime};

use futures::future::{self, BoxFuture, Either};
use futures::poll;

pub use controlled::ControlledClock;

/// A wait that ends at its deadline. Dropping it is harmless.
pub type Sleep = BoxFuture<'static, ()>;

/// Where time comes from: a monotonic clock for waits and durations, a wall clock for dates.
///
/// Delays follow monotonic time alone, so that a step of the wall clock moves none of them.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Now, by monotonic time.
    fn now(&self) -> Instant;

    /// Now, by the wall clock, which may jump in either direction.
    fn wall(&self) -> SystemTime;

    /// Waits until `deadline`.
    fn sleep_until(&self, deadline: Instant) -> Sleep;

    /// Waits for `duration`; one that is too long to add to now waits for [`LONGEST_WAIT`].
    fn sleep(&self, duration: Duration) -> Sleep {
        self.sleep_until(after(self.now(), duration))
    }
}

/// The longest wait: about 30 years, which is what tokio's timers can hold.
pub const LONGEST_WAIT: Duration = Duration::from_secs(86_400 * 365 * 30);

/// `duration` after `start`, and [`LONGEST_WAIT`] after it at most: adding never panics.
pub fn after(start: Instant, duration: Duration) -> Instant {
    start.checked_add(duration.min(LONGEST_WAIT)).unwrap_or(start)
}

/// Tokio's time. Waits need a tokio runtime with its timer enabled; a paused tokio clock is followed.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        tokio::time::Instant::now().into_std()
    }

    fn wall(&self) -> SystemTime {
        SystemTime::now()
    }

    fn sleep_until(&self, deadline: Instant) -> Sleep {
        Box::pin(tokio::time::sleep_until(deadline.into()))
    }
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Instant {
        (**self).now()
    }

    fn wall(&self) -> SystemTime {
        (**self).wall()
    }

    fn sleep_until(&self, deadline: Instant) -> Sleep {
        (**self).sleep_until(deadline)
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        (**self).sleep(duration)
    }
}

/// Waits for `work`, at most for `bound`; `None` when the bound passed first, and then `work` is dropped.
///
/// The timer is set only once `work` has to wait, so that work which is done at once costs no timer.
///
/// # Cancel safety
///
/// Dropping it drops `work`.
pub async fn within<F: Future>(clock: &dyn Clock, bound: Duration, work: F) -> Option<F::Output> {
    let mut work = pin!(work);
    if let Poll::Ready(output) = poll!(work.as_mut()) {
        return Some(output);
    }
    match future::select(work, clock.sleep(bound)).await {
        Either::Left((output, _)) => Some(output),
        Either::Right(((), _)) => None,
    }
}

/// How long the waits of tests (`until…`) last at most, in real time, unless they say otherwise: 10 s.
pub(crate) const TEST_BOUND: Duration = Duration::from_secs(10);
