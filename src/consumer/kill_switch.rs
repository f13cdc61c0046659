//! The kill switch: a consumer whose messages mostly fail pauses itself for a while.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;

use super::options::invalid;
use crate::clock::{Clock, after};
use crate::error::Result;
use crate::handler::{HandlerError, Readiness};

/// When a consumer pauses itself because too many messages fail: a bad deployment, or a dependency that is gone, would
/// otherwise dead-letter a whole queue.
///
/// Of the messages in the last `window`, those count whose handler was called, and those as failures whose handler did
/// not succeed, whatever the class; undecodable payloads too. Once there are `min_messages` of them and the share of
/// failures is at least `failure_share`, nothing is pulled for `pause`. Then one message is tried alone: where it
/// succeeds, all is as before and the count starts anew; where it fails, the next pause begins.
///
/// ```
/// use std::time::Duration;
/// use windlass::consumer::KillSwitch;
///
/// let careful = KillSwitch::default().failure_share(0.2).pause(Duration::from_secs(300));
/// # let _ = careful;
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct KillSwitch {
    window: Duration,
    min_messages: u64,
    failure_share: f64,
    pause: Duration,
}

impl Default for KillSwitch {
    /// Half of at least 10 messages in 60 s; a pause of 60 s.
    fn default() -> Self {
        let minute = Duration::from_secs(60);
        Self { window: minute, min_messages: 10, failure_share: 0.5, pause: minute }
    }
}

impl KillSwitch {
    /// How far back messages count; 60 s by default. Zero is refused when the consumer starts.
    #[must_use]
    pub fn window(mut self, window: Duration) -> Self {
        self.window = window;
        self
    }

    /// How many messages there must have been before it can trip; 10 by default. Zero is read as 1.
    #[must_use]
    pub fn min_messages(mut self, min: u64) -> Self {
        self.min_messages = min.max(1);
        self
    }

    /// From which share of failures on it trips; 0.5 by default. What is not above 0 and at most 1 is refused when the
    /// consumer starts.
    #[must_use]
    pub fn failure_share(mut self, share: f64) -> Self {
        self.failure_share = share;
        self
    }

    /// How long nothing is pulled; 60 s by default. Zero is refused when the consumer starts.
    #[must_use]
    pub fn pause(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }

    pub(super) fn validate(&self) -> Result<()> {
        if !(self.failure_share > 0.0 && self.failure_share <= 1.0) {
            let fix = format!("failure_share is {}; it must be above 0 and at most 1", self.failure_share);
            return Err(invalid("kill_switch", &fix));
        }
        match [("window", self.window), ("pause", self.pause)].iter().find(|(_, time)| time.is_zero()) {
            Some((name, _)) => Err(invalid("kill_switch", &format!("{name} is zero; give it a duration"))),
            None => Ok(()),
        }
    }
}

/// Into how many parts the window is cut: what is older goes part by part.
const PARTS: u32 = 10;

/// A kill switch at work.
pub(super) struct Switch {
    settings: KillSwitch,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

enum State {
    /// The parts of the window, the newest last.
    Counting(VecDeque<Part>),
    /// Nothing is pulled until then; afterwards one message is on trial.
    Tripped { until: Instant },
}

struct Part {
    began: Instant,
    messages: u64,
    failed: u64,
}

/// It has tripped by the last message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Trip {
    pub(super) failed: u64,
    pub(super) of: u64,
    pub(super) pause: Duration,
}

impl Switch {
    pub(super) fn new(settings: KillSwitch, clock: Arc<dyn Clock>) -> Self {
        Self { settings, clock, state: Mutex::new(State::Counting(VecDeque::new())) }
    }

    /// Counts how the work on one message ended. While it has tripped, only the message on trial counts: the others
    /// began before.
    pub(super) fn count<O>(&self, result: &Result<O, HandlerError>, on_trial: bool) -> Option<Trip> {
        let failed = match result {
            Ok(_) => false,
            Err(
                HandlerError::CircuitOpen { .. }
                | HandlerError::BackpressureReject
                | HandlerError::Dropped
                | HandlerError::NotRunning,
            ) => return None,
            Err(_) => true,
        };
        let now = self.clock.now();
        let mut state = self.state();
        let (failed, of) = match &mut *state {
            State::Tripped { until } if !on_trial || now < *until => return None,
            State::Tripped { .. } if failed => (1, 1),
            State::Tripped { .. } => {
                *state = State::Counting(VecDeque::new());
                return None;
            }
            State::Counting(parts) => {
                let (failed, of) = self.add(parts, now, failed);
                let share = failed as f64 / of as f64;
                if of < self.settings.min_messages || share < self.settings.failure_share {
                    return None;
                }
                (failed, of)
            }
        };
        let pause = self.settings.pause;
        *state = State::Tripped { until: after(now, pause) };
        Some(Trip { failed, of, pause })
    }

    /// How many of the window's messages failed, and how many there were.
    fn add(&self, parts: &mut VecDeque<Part>, now: Instant, failed: bool) -> (u64, u64) {
        let window = self.settings.window;
        while parts.front().is_some_and(|part| now.saturating_duration_since(part.began) >= window) {
            parts.pop_front();
        }
        let length = window / PARTS;
        if parts.back().is_none_or(|part| now.saturating_duration_since(part.began) >= length) {
            parts.push_back(Part { began: now, messages: 0, failed: 0 });
        }
        if let Some(part) = parts.back_mut() {
            part.messages += 1;
            part.failed += u64::from(failed);
        }
        parts.iter().fold((0, 0), |(failed, of), part| (failed + part.failed, of + part.messages))
    }

    fn until(&self) -> Option<Instant> {
        match *self.state() {
            State::Tripped { until } => Some(until),
            State::Counting(_) => None,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Readiness for Switch {
    fn is_ready(&self) -> bool {
        self.until().is_none_or(|until| self.clock.now() >= until)
    }

    fn ready(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if let Some(until) = self.until() {
                self.clock.sleep_until(until).await;
            }
        })
    }

    fn is_trial(&self) -> bool {
        self.until().is_some()
    }
}
