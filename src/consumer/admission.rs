//! What has to say yes before a loop pulls: the user's readiness, the circuit around the handler, the kill switch.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::Notify;

use super::observer::Obstacle;
use crate::clock::{Clock, after, within};
use crate::handler::{Readiness, panic_text};

/// How often somebody who waits asks again without having been told: for a `ready` that never returns.
pub(super) const ASK_AGAIN: Duration = Duration::from_secs(1);

/// How long a `ready` that returns too early is not called again.
const NOT_SOONER: Duration = Duration::from_millis(100);

pub(super) struct Admission {
    obstacles: Vec<(Obstacle, Arc<dyn Readiness>)>,
    /// Whether a loop works on the one message that may be under way on trial.
    on_trial: AtomicBool,
    trial_over: Notify,
}

pub(super) enum Admitted<'a> {
    Freely,
    /// One message, alone, until the pass is dropped.
    OnTrial(TrialPass<'a>),
    /// Another loop is on trial.
    AfterTheTrial,
    No(Obstacle),
}

pub(super) struct TrialPass<'a>(&'a Admission);

impl Drop for TrialPass<'_> {
    fn drop(&mut self) {
        self.0.on_trial.store(false, Ordering::Release);
        self.0.trial_over.notify_waiters();
    }
}

impl Admission {
    pub(super) fn new(obstacles: impl IntoIterator<Item = (Obstacle, Option<Arc<dyn Readiness>>)>) -> Self {
        let given = |(obstacle, readiness): (_, Option<_>)| Some((obstacle, readiness?));
        Self {
            obstacles: obstacles.into_iter().filter_map(given).collect(),
            on_trial: AtomicBool::new(false),
            trial_over: Notify::new(),
        }
    }

    /// Whether one more message may be pulled.
    pub(super) fn ask(&self) -> Admitted<'_> {
        if self.obstacles.is_empty() {
            return Admitted::Freely;
        }
        if let Some(obstacle) = self.obstacle() {
            return Admitted::No(obstacle);
        }
        if !self.obstacles.iter().any(|(_, readiness)| is_trial(&**readiness)) {
            return Admitted::Freely;
        }
        match self.on_trial.swap(true, Ordering::AcqRel) {
            false => Admitted::OnTrial(TrialPass(self)),
            true => Admitted::AfterTheTrial,
        }
    }

    /// The first that says no.
    pub(super) fn obstacle(&self) -> Option<Obstacle> {
        let says_no = |(obstacle, readiness): &(_, Arc<dyn Readiness>)| {
            (!says_yes(*obstacle, &**readiness)).then_some(*obstacle)
        };
        self.obstacles.iter().find_map(says_no)
    }

    /// Whether the user's own readiness says no.
    pub(super) fn is_not_ready(&self) -> bool {
        !self.obstacles.is_empty() && self.user_says_no()
    }

    fn user_says_no(&self) -> bool {
        self.obstacles.iter().any(|(obstacle, readiness)| {
            *obstacle == Obstacle::Readiness && !says_yes(*obstacle, &**readiness)
        })
    }

    /// Waits until none says no.
    pub(super) async fn cleared(&self, clock: &dyn Clock) {
        while self.obstacle().is_some() {
            for (obstacle, readiness) in &self.obstacles {
                wait_for(*obstacle, &**readiness, clock).await;
            }
        }
    }

    /// Waits until the user's own readiness says yes.
    pub(super) async fn ready(&self, clock: &dyn Clock) {
        for (obstacle, readiness) in &self.obstacles {
            if *obstacle == Obstacle::Readiness {
                wait_for(*obstacle, &**readiness, clock).await;
            }
        }
    }

    /// Waits until the loop on trial has its answer, or for a while: whoever else uses the same circuit may have closed
    /// it.
    pub(super) async fn trial_over(&self, clock: &dyn Clock) {
        let over = self.trial_over.notified();
        if self.on_trial.load(Ordering::Acquire) {
            within(clock, ASK_AGAIN, over).await;
        }
    }
}

async fn wait_for(obstacle: Obstacle, readiness: &dyn Readiness, clock: &dyn Clock) {
    while !says_yes(obstacle, readiness) {
        let sooner = after(clock.now(), NOT_SOONER);
        // What panics or never returns is asked again all the same.
        let told =
            within(clock, ASK_AGAIN, AssertUnwindSafe(async { readiness.ready().await }).catch_unwind());
        let told = told.await;
        if told.is_some() && !says_yes(obstacle, readiness) {
            clock.sleep_until(sooner).await;
        }
    }
}

/// One that panics says no: nothing is known of what it stands for.
fn says_yes(obstacle: Obstacle, readiness: &dyn Readiness) -> bool {
    catch_unwind(AssertUnwindSafe(|| readiness.is_ready())).unwrap_or_else(|panic| {
        tracing::error!(
            obstacle = obstacle.name(),
            panic = panic_text(panic),
            "is_ready panicked: read as no"
        );
        false
    })
}

/// One that panics is on trial: the more careful of the two.
fn is_trial(readiness: &dyn Readiness) -> bool {
    catch_unwind(AssertUnwindSafe(|| readiness.is_trial())).unwrap_or(true)
}
