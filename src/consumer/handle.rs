//! What others do with a running consumer: stop, pause, resume, look.

use std::fmt;
use std::sync::Arc;

use super::control::{Phase, Shared, StopOnDrop};
use super::observer::Obstacle;
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
    /// It pulls nothing until something is over: its readiness says no, a circuit is open, or its kill switch has
    /// tripped. [`ConsumerHandle::waiting_for`] says which.
    Waiting,
    /// It pulls nothing; what was under way may still run.
    Paused,
    /// It drains.
    Stopping,
    /// It has ended, and its source is closed.
    Stopped,
}

/// A handle to a consumer. Cheap to clone; when the last one is dropped, the consumer drains and ends by itself.
#[derive(Clone)]
#[must_use = "the consumer drains when its last handle is dropped"]
pub struct ConsumerHandle {
    shared: Arc<Shared>,
    guard: Arc<StopOnDrop>,
}

impl ConsumerHandle {
    pub(super) fn new(shared: Arc<Shared>, guard: Arc<StopOnDrop>) -> Self {
        Self { shared, guard }
    }

    /// Drains: no handler starts any more, what runs is waited for (`drain_timeout`), then cancelled, then dropped and
    /// put back; settlements are flushed and the source is closed. Prompt where handlers and broker are; at worst it
    /// takes `drain_timeout`, `drain_grace`, five times `close_timeout` and 3 s, which is 39 s by default. From any
    /// number of tasks; all get the same report. A consumer that was not started gives an empty one at once, and ends
    /// when it is started.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not take the request back.
    pub async fn stop(&self) -> Report {
        self.shared.ask(Phase::Stopping);
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
        self.shared.state.find(|state| state.report.clone()).await
    }

    /// Pulls nothing more until [`resume`](Self::resume); what is buffered goes back to the broker, what runs goes on.
    /// Resolves once that is so. Twice is as once; before the start it makes the consumer start paused; while it
    /// stops it does nothing.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not take the request back.
    pub async fn pause(&self) {
        self.reach(Phase::Paused).await;
    }

    /// Pulls again after a [`pause`](Self::pause).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not take the request back.
    pub async fn resume(&self) {
        self.reach(Phase::Open).await;
    }

    /// Asks, and waits until the supervisor has carried it out, or cannot: not started, ended, or somebody else wants
    /// something else.
    async fn reach(&self, wanted: Phase) {
        let version = self.shared.ask(wanted);
        if self.shared.status() == Status::Idle {
            return;
        }
        let reached = self.shared.state.find(|state| {
            let there =
                state.reached >= version || matches!(state.status, Status::Stopping | Status::Stopped);
            there.then_some(())
        });
        // Only waits are lost here.
        tokio::select! {
            biased;
            () = reached => {}
            () = self.shared.gate.find(|gate| (gate.phase != wanted).then_some(())) => {}
        }
    }

    /// Where the consumer is in its life. Stopped before the start counts as stopped.
    pub fn status(&self) -> Status {
        match self.shared.status() {
            Status::Idle if self.shared.phase() == Phase::Stopping => Status::Stopped,
            status => status,
        }
    }

    /// What keeps the consumer from pulling, where it waits for something.
    pub fn waiting_for(&self) -> Option<Obstacle> {
        match self.shared.phase() {
            Phase::Waiting(obstacle) => Some(obstacle),
            Phase::Open | Phase::Paused | Phase::Stopping => None,
        }
    }

    /// How many messages are being handled or settled.
    pub fn in_flight(&self) -> usize {
        self.shared.view().map_or(0, |view| view.in_flight())
    }

    /// What has been counted so far.
    pub fn stats(&self) -> Stats {
        match self.shared.view() {
            Some(view) => view.stats(),
            None => self
                .shared
                .state
                .with(|state| state.report.as_ref().map(|report| report.stats))
                .unwrap_or_default(),
        }
    }

    /// The health of the source.
    pub fn health(&self) -> Health {
        match self.shared.view() {
            Some(view) => view.health(),
            None if self.shared.status() == Status::Stopped => Health::Closed,
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
