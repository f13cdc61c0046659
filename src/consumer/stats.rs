//! What a consumer has counted.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::clock::after;
use crate::source::NackReason;

macro_rules! counters {
    ($($(#[$doc:meta])+ $name:ident),+ $(,)?) => {
        /// What a consumer has counted since it was started.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        #[non_exhaustive]
        pub struct Stats {
            $($(#[$doc])+ pub $name: u64),+
        }

        /// The counters of one loop. Only that loop writes them, so that counting costs no more than a store.
        #[derive(Debug, Default)]
        pub(super) struct Counters {
            $(pub(super) $name: AtomicU64),+
        }

        impl Counters {
            fn add_to(&self, stats: &mut Stats) {
                $(stats.$name += self.$name.load(Ordering::Relaxed);)+
            }
        }
    };
}

counters! {
    /// Messages received.
    received,
    /// Messages acked.
    acked,
    /// Messages to be tried again, counted attempts or not.
    retried,
    /// Messages dead-lettered.
    dead_lettered,
    /// Messages put back: requeued, handed back, or dropped at the end of a drain.
    requeued,
    /// Messages whose answer the broker did not take; they come again.
    settle_errors,
    /// Of the messages received, those whose handler was not called, or that were held, when the consumer was paused or
    /// stopped, or the hold was over.
    handed_back,
    /// Of the messages received, those whose handler was dropped before it ended.
    cut_short,
    /// Payloads that could not be decoded, and other failed validations.
    invalid,
    /// Handlers that panicked.
    panics,
    /// `on_result`s that panicked.
    on_result_panics,
    /// Observers that panicked. A panic on an observer's own thread is counted with the next thing that it is told.
    observer_panics,
    /// Events, changes and samples that an observer was not told, since it is slow and too much waited for it already.
    observer_drops,
    /// Loops that panicked, in a source or when a handler was dropped, and were started again.
    loop_panics,
    /// Receives that failed.
    receive_errors,
    /// Leases that were lost while a handler ran.
    leases_lost,
    /// Failures that did not count, since the consumer was not ready: their messages were held.
    held,
    /// How often the kill switch tripped.
    trips,
}

/// Adds one. Not atomic as a whole: each counter has one writer.
pub(super) fn bump(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// How the work on a message ended, as far as counting goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// The handler has a result.
    Handled,
    /// The handler was not called.
    HandedBack,
    /// The handler was dropped.
    CutShort,
}

/// What a loop is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Activity {
    /// It waits for a message, or is about to.
    Pulling = 0,
    /// It has a message.
    Handling = 1,
    /// It waits for the broker to take the answer.
    Settling = 2,
    /// It is paused, waits before the next pull, or has ended.
    Parked = 3,
}

/// What one loop is at and what it has counted, on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Slot {
    activity: AtomicU8,
    /// When it last had something to do, in nanoseconds since the start; kept only where somebody wants to know.
    last_active: AtomicU64,
    pub(super) counters: Counters,
    /// Of what was in flight when the drain began.
    pub(super) drained: Drained,
}

/// What a drain did with what was in flight.
#[derive(Debug, Default)]
pub(super) struct Drained {
    pub(super) finished: AtomicU64,
    pub(super) requeued: AtomicU64,
    pub(super) abandoned: AtomicU64,
}

impl Slot {
    pub(super) fn set(&self, activity: Activity) {
        self.activity.store(activity as u8, Ordering::Release);
    }

    pub(super) fn set_last_active(&self, since_start: Duration) {
        self.last_active.store(u64::try_from(since_start.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(super) fn is(&self, activity: Activity) -> bool {
        self.activity.load(Ordering::Acquire) == activity as u8
    }

    /// Counts one message that has its answer, or whose answer failed.
    pub(super) fn count(&self, ending: Ending, reason: Option<&NackReason>, settled: bool) {
        let counters = &self.counters;
        match ending {
            Ending::HandedBack => bump(&counters.handed_back),
            Ending::CutShort => bump(&counters.cut_short),
            Ending::Handled => {}
        }
        bump(match reason {
            _ if !settled => &counters.settle_errors,
            None => &counters.acked,
            Some(NackReason::Retry { .. }) => &counters.retried,
            Some(NackReason::DeadLetter { .. }) => &counters.dead_lettered,
            Some(NackReason::RequeueNow { .. }) => &counters.requeued,
        });
    }

    /// Counts one message that was in flight while the consumer drained.
    pub(super) fn count_drained(&self, ending: Ending, settled: bool) {
        bump(match ending {
            _ if !settled => &self.drained.abandoned,
            Ending::Handled => &self.drained.finished,
            Ending::HandedBack | Ending::CutShort => &self.drained.requeued,
        });
    }
}

/// The sum over all loops.
pub(super) fn sum(slots: &[Slot]) -> Stats {
    let mut stats = Stats::default();
    slots.iter().for_each(|slot| slot.counters.add_to(&mut stats));
    stats
}

/// When a loop last had something to do.
pub(super) fn last_active(slots: &[Slot], started: Instant) -> Instant {
    let last = slots.iter().map(|slot| slot.last_active.load(Ordering::Relaxed)).max().unwrap_or(0);
    after(started, Duration::from_nanos(last))
}

pub(super) fn in_flight(slots: &[Slot]) -> usize {
    slots.iter().filter(|slot| slot.is(Activity::Handling) || slot.is(Activity::Settling)).count()
}
