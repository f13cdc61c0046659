//! A circuit breaker: after failures in a row nothing is called for a while, and then one call tries.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use tokio::sync::Notify;

use super::retry::is_worth_another;
use super::{HandlerError, Readiness};
use crate::clock::{Clock, LONGEST_WAIT, SystemClock, after};

/// Stops calling what fails again and again, until there is hope that it works.
///
/// - **Closed**: all calls go through. `Failed`, `Timeout` and `Panicked` count as failures, and `Ok` begins the count
///   anew; all other results, such as a payload that is not valid, say nothing about what the handler depends on.
/// - **Open**, once `threshold` failures came in a row: nothing is called for `reset`, and the result of each call is
///   [`HandlerError::CircuitOpen`] with the time until one goes through.
/// - **Half open**, after that: one call goes through on trial. `Ok` closes the circuit, a failure opens it again. A
///   result that says nothing, and a call that is dropped, give the trial to the next call. A trial that has not ended
///   after `reset` gives it to the next call too, and once that has begun, its own result no longer matters.
///
/// What became of a call that had begun before the circuit opened, or before it closed, does not matter.
///
/// Cheap to clone; all clones are one circuit, for handlers that depend on the same thing. As a [`Readiness`] it is
/// ready when a call would go through, and on trial when that call would decide; a consumer whose handler has a circuit
/// breaker asks it before each pull.
///
/// ```
/// use std::num::NonZeroU32;
/// use std::time::Duration;
/// use windlass::handler::{CircuitBreaker, CircuitState};
///
/// let payments = CircuitBreaker::new(NonZeroU32::new(5).unwrap(), Duration::from_secs(30));
/// assert_eq!(payments.state(), CircuitState::Closed { failures: 0 });
/// ```
#[derive(Clone)]
pub struct CircuitBreaker(Arc<Shared>);

struct Shared {
    threshold: NonZeroU32,
    reset: Duration,
    clock: OnceLock<Arc<dyn Clock>>,
    circuit: Mutex<Circuit>,
    /// The generation while the circuit is closed, else zero: a call of a healthy handler takes no lock.
    closed: AtomicU64,
    /// Whether failures are being counted.
    failing: AtomicBool,
    changed: Notify,
}

struct Circuit {
    phase: Phase,
    /// One more with each change of the phase: what began in an earlier one says nothing.
    generation: u64,
}

#[derive(Clone, Copy)]
enum Phase {
    Closed { failures: u32 },
    Open { until: Instant },
    Trial { until: Instant },
}

/// What a [`CircuitBreaker`] does with calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CircuitState {
    /// They go through.
    Closed {
        /// How many have failed in a row.
        failures: u32,
    },
    /// None goes through.
    Open {
        /// How long until one does.
        closes_in: Duration,
    },
    /// One goes through, and decides.
    HalfOpen {
        /// Whether it is under way, so that no other goes through.
        trial: bool,
    },
}

impl CircuitBreaker {
    /// Opens after `threshold` failures in a row, for `reset`, on the clock of the first handler that is built with it.
    ///
    /// A reset of zero is refused by [`Policies::build`](super::Policies::build); one that is longer than
    /// [`LONGEST_WAIT`](crate::clock::LONGEST_WAIT) is read as that.
    pub fn new(threshold: NonZeroU32, reset: Duration) -> Self {
        Self(Arc::new(Shared {
            threshold,
            reset: reset.min(LONGEST_WAIT),
            clock: OnceLock::new(),
            circuit: Mutex::new(Circuit { phase: Phase::Closed { failures: 0 }, generation: 1 }),
            closed: AtomicU64::new(1),
            failing: AtomicBool::new(false),
            changed: Notify::new(),
        }))
    }

    /// What it does with calls now.
    pub fn state(&self) -> CircuitState {
        let phase = self.phase();
        match (phase, self.time_left(phase)) {
            (Phase::Closed { failures }, _) => CircuitState::Closed { failures },
            (Phase::Open { .. }, Some(closes_in)) => CircuitState::Open { closes_in },
            (Phase::Trial { .. }, Some(_)) => CircuitState::HalfOpen { trial: true },
            (Phase::Open { .. } | Phase::Trial { .. }, None) => CircuitState::HalfOpen { trial: false },
        }
    }

    pub(super) fn reset(&self) -> Duration {
        self.0.reset
    }

    /// Gives it a clock where it has none: it is built into one handler after the other.
    pub(super) fn adopt(&self, clock: &Arc<dyn Clock>) {
        self.0.clock.get_or_init(|| Arc::clone(clock));
    }

    /// Lets a call through, or says how long until it would.
    pub(super) fn admit(&self) -> Result<Admitted<'_>, HandlerError> {
        let generation = self.0.closed.load(Ordering::Acquire);
        if generation != 0 {
            return Ok(Admitted { breaker: self, generation, trial: false });
        }
        // The clock is somebody else's code, and is asked outside the lock.
        let now = self.clock().now();
        let mut circuit = self.lock();
        let trial = match circuit.phase {
            Phase::Closed { .. } => false,
            Phase::Open { until } | Phase::Trial { until } => {
                let closes_in = until.saturating_duration_since(now);
                if !closes_in.is_zero() {
                    return Err(HandlerError::CircuitOpen { closes_in });
                }
                true
            }
        };
        if trial {
            self.enter(&mut circuit, Phase::Trial { until: after(now, self.0.reset) });
        }
        let generation = circuit.generation;
        drop(circuit);
        if trial {
            self.0.changed.notify_waiters();
        }
        Ok(Admitted { breaker: self, generation, trial })
    }

    fn succeeded(&self, call: &Admitted<'_>) {
        // Without a failure there is nothing to begin anew. One that is being counted at this moment came later.
        if !call.trial && !self.0.failing.load(Ordering::Acquire) {
            return;
        }
        let mut circuit = self.lock();
        if circuit.generation != call.generation {
            return;
        }
        match &mut circuit.phase {
            Phase::Closed { failures } => {
                *failures = 0;
                self.0.failing.store(false, Ordering::Release);
            }
            Phase::Trial { .. } => {
                self.enter(&mut circuit, Phase::Closed { failures: 0 });
                drop(circuit);
                self.0.changed.notify_waiters();
            }
            Phase::Open { .. } => {}
        }
    }

    fn failed(&self, call: &Admitted<'_>) {
        let now = self.clock().now();
        let mut circuit = self.lock();
        if circuit.generation != call.generation {
            return;
        }
        if let Phase::Closed { failures } = &mut circuit.phase {
            *failures = failures.saturating_add(1);
            self.0.failing.store(true, Ordering::Release);
            if *failures < self.0.threshold.get() {
                return;
            }
        }
        self.enter(&mut circuit, Phase::Open { until: after(now, self.0.reset) });
        drop(circuit);
        self.0.changed.notify_waiters();
    }

    /// The trial said nothing: the next call may try at once.
    fn give_back(&self, call: &Admitted<'_>) {
        let mut circuit = self.lock();
        if circuit.generation != call.generation {
            return;
        }
        // Of a time that has passed: the trial's own end less the time that it was given.
        if let Phase::Trial { until } = circuit.phase {
            let until = until.checked_sub(self.0.reset).unwrap_or(until);
            self.enter(&mut circuit, Phase::Open { until });
            drop(circuit);
            self.0.changed.notify_waiters();
        }
    }

    fn enter(&self, circuit: &mut Circuit, phase: Phase) {
        circuit.phase = phase;
        circuit.generation += 1;
        let closed = matches!(phase, Phase::Closed { .. });
        self.0.failing.store(false, Ordering::Release);
        self.0.closed.store(if closed { circuit.generation } else { 0 }, Ordering::Release);
    }

    /// How long until a call goes through; `None` when it would now.
    fn time_left(&self, phase: Phase) -> Option<Duration> {
        match phase {
            Phase::Closed { .. } => None,
            Phase::Open { until } | Phase::Trial { until } => {
                Some(until.saturating_duration_since(self.clock().now())).filter(|left| !left.is_zero())
            }
        }
    }

    fn phase(&self) -> Phase {
        self.lock().phase
    }

    fn clock(&self) -> &dyn Clock {
        self.0.clock.get_or_init(|| Arc::new(SystemClock))
    }

    fn lock(&self) -> MutexGuard<'_, Circuit> {
        self.0.circuit.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Readiness for CircuitBreaker {
    fn is_ready(&self) -> bool {
        self.0.closed.load(Ordering::Acquire) != 0 || self.time_left(self.phase()).is_none()
    }

    fn ready(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            loop {
                let changed = self.0.changed.notified();
                let Some(left) = self.time_left(self.phase()) else { return };
                // Only waits are lost here.
                tokio::select! {
                    biased;
                    () = changed => {}
                    () = self.clock().sleep(left) => {}
                }
            }
        })
    }

    fn is_trial(&self) -> bool {
        self.0.closed.load(Ordering::Acquire) == 0
            && matches!(self.state(), CircuitState::HalfOpen { trial: false })
    }
}

impl fmt::Debug for CircuitBreaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CircuitBreaker")
            .field("threshold", &self.0.threshold)
            .field("reset", &self.0.reset)
            .field("state", &self.state())
            .finish()
    }
}

/// A call that the circuit let through. A trial that is dropped without a result is given back.
pub(super) struct Admitted<'a> {
    breaker: &'a CircuitBreaker,
    generation: u64,
    trial: bool,
}

impl Admitted<'_> {
    /// Tells the circuit what became of the call.
    pub(super) fn end<T>(mut self, result: &Result<T, HandlerError>) {
        let trial = self.trial;
        match result {
            Ok(_) => self.breaker.succeeded(&self),
            Err(error) if is_worth_another(error) => self.breaker.failed(&self),
            Err(_) if trial => self.breaker.give_back(&self),
            Err(_) => {}
        }
        self.trial = false;
    }
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        if self.trial {
            self.breaker.give_back(self);
        }
    }
}
