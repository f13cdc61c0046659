//! What others do with a running consumer: stop, pause, resume, look.

use std::fmt;
use std::sync::{Arc, OnceLock};

use tokio::sync::watch;

use super::stats::Stats;
use super::supervisor::Report;
use crate::source::Health;

/// Where a consumer is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Status {
    /// Not started.
    Idle,
    /// It pulls and handles messages.
    Running,
    /// It pulls nothing; what was under way may still run.
    Paused,
    /// It drains.
    Stopping,
    /// It has ended, and its source is closed.
    Stopped,
}

/// What the holders of the handle want.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Desired {
    Run,
    Pause,
    /// Final.
    Stop,
}

#[derive(Debug, Clone)]
pub(super) struct State {
    pub(super) status: Status,
    pub(super) report: Option<Report>,
}

/// What a running consumer shows.
pub(super) trait View: Send + Sync {
    fn in_flight(&self) -> usize;
    fn stats(&self) -> Stats;
    fn health(&self) -> Health;
}

/// The consumer's end: made with it, taken over by the supervisor.
pub(super) struct Control {
    shared: Arc<Shared>,
    guard: Arc<StopOnDrop>,
    state: watch::Sender<State>,
}

struct Shared {
    desired: watch::Sender<Desired>,
    state: watch::Receiver<State>,
    view: OnceLock<Arc<dyn View>>,
}

impl Control {
    pub(super) fn new() -> Self {
        let (state, seen) = watch::channel(State { status: Status::Idle, report: None });
        let desired = watch::Sender::new(Desired::Run);
        let shared = Arc::new(Shared { desired, state: seen, view: OnceLock::new() });
        Self { guard: Arc::new(StopOnDrop(Arc::clone(&shared))), shared, state }
    }

    pub(super) fn handle(&self) -> ConsumerHandle {
        ConsumerHandle { shared: Arc::clone(&self.shared), guard: Arc::clone(&self.guard) }
    }

    /// Hands over to the supervisor, which no longer counts as a holder of the handle. The consumer counts as started
    /// from here on.
    pub(super) fn start(self, view: Arc<dyn View>) -> (watch::Receiver<Desired>, watch::Sender<State>) {
        // Fails only if it were set already, which a consumer started by value cannot be.
        let _ = self.shared.view.set(view);
        self.state.send_modify(|state| state.status = Status::Running);
        (self.shared.desired.subscribe(), self.state)
    }
}

/// A handle to a consumer. Cheap to clone; when the last one is dropped, the consumer drains and ends by itself.
#[derive(Clone)]
pub struct ConsumerHandle {
    shared: Arc<Shared>,
    guard: Arc<StopOnDrop>,
}

struct StopOnDrop(Arc<Shared>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.ask(Desired::Stop);
    }
}

impl Shared {
    fn ask(&self, desired: Desired) {
        self.desired.send_if_modified(|current| {
            let changes = *current != Desired::Stop && *current != desired;
            if changes {
                *current = desired;
            }
            changes
        });
    }

    fn status(&self) -> Status {
        self.state.borrow().status
    }
}

impl ConsumerHandle {
    /// Drains: no handler starts any more, what runs is waited for (`drain_timeout`), then cancelled, then dropped and
    /// put back; settlements are flushed and the source is closed. From any number of tasks; all get the same report.
    /// A consumer that was not started gives an empty one at once, and ends when it is started.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not take the request back.
    pub async fn stop(&self) -> Report {
        self.shared.ask(Desired::Stop);
        if self.shared.status() == Status::Idle {
            return Report::default();
        }
        self.wait().await
    }

    /// Waits until the consumer has ended, for whatever reason, without asking it to.
    ///
    /// # Cancel safety
    ///
    /// Safe: it only looks.
    pub async fn wait(&self) -> Report {
        let mut state = self.shared.state.clone();
        // An error means that the consumer was dropped before it was started, or its runtime went away.
        let ended = state.wait_for(|state| state.report.is_some()).await;
        ended.ok().and_then(|state| state.report.clone()).unwrap_or_default()
    }

    /// Pulls nothing more until [`resume`](Self::resume); what is buffered goes back to the broker, what runs goes on.
    /// Resolves once that is so. Twice is as once; before the start it makes the consumer start paused; while it
    /// stops it does nothing.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not take the request back.
    pub async fn pause(&self) {
        self.shared.ask(Desired::Pause);
        self.reach(Desired::Pause, Status::Paused).await;
    }

    /// Pulls again after a [`pause`](Self::pause).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not take the request back.
    pub async fn resume(&self) {
        self.shared.ask(Desired::Run);
        self.reach(Desired::Run, Status::Running).await;
    }

    /// Waits until `status` is reached, or cannot be: not started, ended, or somebody else wants something else.
    async fn reach(&self, wanted: Desired, status: Status) {
        let mut state = self.shared.state.clone();
        let mut desired = self.shared.desired.subscribe();
        if self.shared.status() == Status::Idle {
            return;
        }
        let reached = state.wait_for(|state| {
            state.status == status || matches!(state.status, Status::Stopping | Status::Stopped)
        });
        // Only waits are lost here; an error of either means that the consumer is gone.
        tokio::select! {
            _ = reached => {}
            _ = desired.wait_for(|desired| *desired != wanted) => {}
        }
    }

    /// Where the consumer is in its life. Stopped before the start counts as stopped.
    pub fn status(&self) -> Status {
        match self.shared.status() {
            Status::Idle if *self.shared.desired.borrow() == Desired::Stop => Status::Stopped,
            status => status,
        }
    }

    /// How many messages are being handled.
    pub fn in_flight(&self) -> usize {
        self.shared.view.get().map_or(0, |view| view.in_flight())
    }

    /// What has been counted so far.
    pub fn stats(&self) -> Stats {
        self.shared.view.get().map(|view| view.stats()).unwrap_or_default()
    }

    /// The health of the source.
    pub fn health(&self) -> Health {
        match self.shared.view.get() {
            Some(view) => view.health(),
            None => Health::NotReady { reason: "the consumer is not started".to_owned() },
        }
    }

    /// Stops the consumer when the guard is dropped, whoever else has a handle.
    pub(super) fn stop_on_drop(&self) -> impl Drop + use<> {
        StopOnDrop(Arc::clone(&self.shared))
    }
}

impl fmt::Debug for ConsumerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConsumerHandle")
            .field("status", &self.status())
            .field("in_flight", &self.in_flight())
            .field("handles", &Arc::strong_count(&self.guard))
            .finish()
    }
}
