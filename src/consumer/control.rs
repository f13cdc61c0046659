//! What the handle, the supervisor and the loops share: what is wanted, and what is.

use std::sync::{Arc, Mutex, PoisonError};

use tokio_util::sync::CancellationToken;

use super::handle::{ConsumerHandle, Status};
use super::observer::Obstacle;
use super::signal::Signal;
use super::stats::Stats;
use super::supervisor::Report;
use crate::error::{Error, ErrorKind};
use crate::source::Health;

/// What the holders of the handle want.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Pull and handle.
    Open,
    /// Pull nothing until this is over.
    Waiting(Obstacle),
    /// Pull nothing.
    Paused,
    /// Pull nothing, and end. Final.
    Stopping,
}

/// What is wanted, as the loops see it: at once, and not only when the supervisor gets to it, so that no handler begins
/// once `stop` or `pause` was called.
#[derive(Debug, Clone)]
pub(super) struct Gate {
    pub(super) phase: Phase,
    /// Cancelled when the phase changes; the next one has another.
    pub(super) pull: CancellationToken,
}

impl Gate {
    /// Returns what it was before, whose token is to be cancelled.
    fn enter(&mut self, phase: Phase) -> Self {
        std::mem::replace(self, Self { phase, pull: CancellationToken::new() })
    }
}

/// What is.
#[derive(Debug, Clone)]
pub(super) struct State {
    pub(super) status: Status,
    /// Which change of the gate the supervisor has carried out.
    pub(super) reached: u64,
    pub(super) report: Option<Report>,
}

/// What a running consumer shows.
pub(super) trait View: Send + Sync {
    fn in_flight(&self) -> usize;
    fn stats(&self) -> Stats;
    fn health(&self) -> Health;
}

pub(super) struct Shared {
    pub(super) gate: Signal<Gate>,
    pub(super) state: Signal<State>,
    /// Until the consumer has ended: what it shows holds its handler, which may hold a handle.
    view: Mutex<Option<Arc<dyn View>>>,
}

impl Shared {
    /// Asks for a phase; returns which change of the gate that is, or was.
    pub(super) fn ask(&self, phase: Phase) -> u64 {
        let mut before = None;
        let version = self.gate.change(|gate| {
            // One that waits is open as far as those are concerned who ask for that.
            let changes = match gate.phase {
                Phase::Stopping => false,
                Phase::Waiting(_) => phase != Phase::Open,
                now => now != phase,
            };
            if changes {
                before = Some(gate.enter(phase));
            }
            changes
        });
        // Those whom this wakes find the gate changed already.
        if let Some(before) = before {
            before.pull.cancel();
        }
        version
    }

    /// For the loops: pulls nothing until `obstacle` is over, unless something else is wanted.
    pub(super) fn hold(&self, obstacle: Obstacle) {
        let mut before = None;
        self.gate.change(|gate| {
            if gate.phase == Phase::Open {
                before = Some(gate.enter(Phase::Waiting(obstacle)));
            }
            before.is_some()
        });
        if let Some(before) = before {
            before.pull.cancel();
        }
    }

    /// For the supervisor: pulls again, unless something else is wanted by now.
    pub(super) fn admit(&self) {
        self.gate.change(|gate| {
            let waits = matches!(gate.phase, Phase::Waiting(_));
            if waits {
                gate.phase = Phase::Open;
                gate.pull = CancellationToken::new();
            }
            waits
        });
    }

    pub(super) fn view(&self) -> Option<Arc<dyn View>> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn show(&self, view: Option<Arc<dyn View>>) {
        let before = std::mem::replace(&mut *self.view.lock().unwrap_or_else(PoisonError::into_inner), view);
        // Outside the lock: it may be the last that holds the handler.
        drop(before);
    }

    pub(super) fn phase(&self) -> Phase {
        self.gate.with(|gate| gate.phase)
    }

    pub(super) fn status(&self) -> Status {
        self.state.with(|state| state.status)
    }
}

/// The consumer's end: made with it, taken over by the supervisor.
pub(super) struct Control {
    owner: Owner,
    guard: Arc<StopOnDrop>,
}

/// Whoever has this makes the state. When it is dropped the consumer has ended, reported or not.
pub(super) struct Owner(pub(super) Arc<Shared>);

/// Asks for a stop when dropped.
pub(super) struct StopOnDrop(pub(super) Arc<Shared>);

impl Control {
    pub(super) fn new() -> Self {
        let gate = Gate { phase: Phase::Open, pull: CancellationToken::new() };
        let state = State { status: Status::Idle, reached: 0, report: None };
        let (gate, state) = (Signal::new(gate), Signal::new(state));
        let shared = Arc::new(Shared { gate, state, view: Mutex::new(None) });
        Self { guard: Arc::new(StopOnDrop(Arc::clone(&shared))), owner: Owner(shared) }
    }

    pub(super) fn handle(&self) -> ConsumerHandle {
        ConsumerHandle::new(Arc::clone(&self.owner.0), Arc::clone(&self.guard))
    }

    /// Hands over to the supervisor, which does not count as a holder of the handle. The consumer counts as started
    /// from here on.
    pub(super) fn start(self, view: Arc<dyn View>) -> Owner {
        self.owner.0.show(Some(view));
        self.owner.set_status(Status::Running);
        self.owner
    }
}

impl Owner {
    pub(super) fn set_status(&self, status: Status) {
        self.0.state.change(|state| std::mem::replace(&mut state.status, status) != status);
    }

    /// The status that follows from change number `reached` of the gate.
    pub(super) fn reach(&self, status: Status, reached: u64) {
        self.0.state.change(|state| {
            (state.status, state.reached) = (status, reached);
            true
        });
    }

    pub(super) fn report(&self, report: Report) {
        self.0.state.change(|state| {
            state.status = Status::Stopped;
            state.report = Some(report);
            true
        });
        self.0.show(None);
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let (status, reported) = self.0.state.with(|state| (state.status, state.report.is_some()));
        match status {
            _ if reported => {}
            Status::Idle => self.report(Report::default()),
            _ => {
                let error = Error::new(ErrorKind::Closed, "run consumer");
                let error = error.with_message("its runtime was shut down before it had drained");
                self.report(Report { error: Some(error), ..Report::default() });
            }
        }
    }
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.ask(Phase::Stopping);
    }
}
