//! The clock that a test controls.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant, SystemTime};

use futures::future;
use tokio::sync::Notify;

use super::{Clock, Sleep, SystemClock, TEST_BOUND, after, within};
use crate::error::{Error, ErrorKind, Result};

/// A clock that moves only when told. Clones are handles to the same clock.
///
/// [`advance`](Self::advance) goes from deadline to deadline and lets the woken tasks run at each, so that a task
/// which sleeps 1 s three times in a row has done so after `advance(3 s)`. On tokio's current-thread runtime (the
/// default of `#[tokio::test]`) the same test takes the same steps every time. On the multi-thread runtime tasks run
/// beside the clock: wait there for a condition instead of counting on what ran between two steps.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use std::time::Duration;
/// use windlass::clock::{Clock, ControlledClock};
///
/// let clock = ControlledClock::new();
/// let start = clock.now();
/// let nap = tokio::spawn(clock.sleep(Duration::from_secs(3_600)));
/// clock.advance(Duration::from_secs(3_600)).await;
/// nap.await.unwrap();
/// assert_eq!(clock.now() - start, Duration::from_secs(3_600));
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct ControlledClock(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Tells `until_sleepers` that a sleeper came.
    slept: Notify,
}

#[derive(Debug)]
struct State {
    now: Instant,
    wall: SystemTime,
    sleepers: BTreeMap<(Instant, u64), Waker>,
    next_id: u64,
    /// Counts sleeps that began or ended, so that `settle` sees whether anything still moves.
    activity: u64,
}

impl ControlledClock {
    /// A clock that stands at 2026-01-01 00:00:00 UTC.
    pub fn new() -> Self {
        Self::starting_at(SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600))
    }

    /// A clock whose wall time stands at `wall`.
    pub fn starting_at(wall: SystemTime) -> Self {
        let state = State { now: Instant::now(), wall, sleepers: BTreeMap::new(), next_id: 0, activity: 0 };
        Self(Arc::new(Shared { state: Mutex::new(state), slept: Notify::new() }))
    }

    /// Moves monotonic and wall time by `duration`, from deadline to deadline, and lets the woken tasks run after
    /// each step.
    ///
    /// Needs a tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Dropped in the middle, the clock stands at the deadline that it had reached.
    pub async fn advance(&self, duration: Duration) {
        self.settle().await;
        let end = after(self.now(), duration);
        while self.step(end) {
            self.settle().await;
        }
    }

    /// Moves wall time alone, to `wall`: `clock.jump_wall(clock.wall() - HOUR)`. No sleeper wakes.
    pub fn jump_wall(&self, wall: SystemTime) {
        self.lock().wall = wall;
    }

    /// How many sleeps have begun and neither ended nor been dropped.
    pub fn sleepers(&self) -> usize {
        self.lock().sleepers.len()
    }

    /// When the next sleeper wakes.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.lock().sleepers.keys().next().map(|(deadline, _)| *deadline)
    }

    /// Waits until at least `count` sleep, for at most 10 s of real time.
    ///
    /// # Errors
    ///
    /// `Timeout` when fewer sleep by then; the text says how many.
    ///
    /// # Cancel safety
    ///
    /// Safe: it only looks.
    pub async fn until_sleepers(&self, count: usize) -> Result<()> {
        let reached = async {
            loop {
                let slept = self.0.slept.notified();
                if self.sleepers() >= count {
                    return;
                }
                slept.await;
            }
        };
        within(&SystemClock, TEST_BOUND, reached).await.ok_or_else(|| {
            Error::new(ErrorKind::Timeout, "until_sleepers")
                .with_message(format!("{} sleep, waited for {count}", self.sleepers()))
        })
    }

    /// Lets all tasks that can run do so, until no sleep has begun or ended for 16 rounds of yielding. On the
    /// current-thread runtime a yield comes back after the other ready tasks ran, so that these rounds mean that all
    /// of them wait; a task that yields more often than that between two sleeps falls behind the clock.
    ///
    /// # Cancel safety
    ///
    /// Safe: it only yields.
    pub async fn settle(&self) {
        const QUIET_ROUNDS: u32 = 16;
        const MOST_ROUNDS: u32 = 10_000;
        let mut quiet = 0;
        let mut seen = self.lock().activity;
        for _ in 0..MOST_ROUNDS {
            tokio::task::yield_now().await;
            let activity = self.lock().activity;
            quiet = if activity == seen { quiet + 1 } else { 0 };
            seen = activity;
            if quiet == QUIET_ROUNDS {
                return;
            }
        }
    }

    /// Moves to the next deadline up to `end`, or to `end`; wakes who slept until then. False once at `end` with
    /// nothing left to wake.
    fn step(&self, end: Instant) -> bool {
        let mut woken = Vec::new();
        let more = {
            let mut state = self.lock();
            let next =
                state.sleepers.keys().next().map(|(deadline, _)| *deadline).filter(|next| *next <= end);
            let target = next.unwrap_or(end).max(state.now);
            let moved = target - state.now;
            // At the end of its range a wall clock stands still.
            state.wall = state.wall.checked_add(moved).unwrap_or(state.wall);
            state.now = target;
            while let Some(entry) = state.sleepers.first_entry().filter(|entry| entry.key().0 <= target) {
                woken.push(entry.remove());
            }
            state.activity += woken.len() as u64;
            next.is_some()
        };
        // Outside the lock: a waker may run anything.
        woken.into_iter().for_each(Waker::wake);
        more
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for ControlledClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for ControlledClock {
    fn now(&self) -> Instant {
        self.lock().now
    }

    fn wall(&self) -> SystemTime {
        self.lock().wall
    }

    fn sleep_until(&self, deadline: Instant) -> Sleep {
        let mut sleeper = Sleeper { clock: self.clone(), deadline, id: None };
        Box::pin(future::poll_fn(move |context| sleeper.poll(context.waker())))
    }
}

/// One sleep; it counts as a sleeper from its first poll until it ends or is dropped.
struct Sleeper {
    clock: ControlledClock,
    deadline: Instant,
    id: Option<u64>,
}

impl Sleeper {
    fn poll(&mut self, waker: &Waker) -> Poll<()> {
        // Wakers are cloned and dropped outside the lock: one may own a sleep of this very clock.
        let waker = waker.clone();
        let mut state = self.clock.lock();
        if state.now >= self.deadline {
            // `step` took the entry out, unless the deadline had passed before.
            let entry = self.id.take().and_then(|id| state.sleepers.remove(&(self.deadline, id)));
            drop(state);
            drop(entry);
            return Poll::Ready(());
        }
        if self.id.is_none() {
            self.id = Some(state.next_id);
            state.next_id += 1;
            state.activity += 1;
        }
        let before = self.id.and_then(|id| state.sleepers.insert((self.deadline, id), waker));
        drop(state);
        drop(before);
        self.clock.0.slept.notify_waiters();
        Poll::Pending
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let Some(id) = self.id else { return };
        let mut state = self.clock.lock();
        let entry = state.sleepers.remove(&(self.deadline, id));
        state.activity += u64::from(entry.is_some());
        drop(state);
        drop(entry);
    }
}
