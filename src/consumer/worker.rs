//! One loop: pull a message, handle it, settle it, tell of it. `max_concurrent` of these make a consumer.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::{Duration, Instant, SystemTime};

use futures::{FutureExt, poll};

use super::admission::Admitted;
use super::control::{Gate, Phase, Shared};
use super::held::Held;
use super::stats::{Activity, Slot, bump};
use super::work::{Work, shown};
use crate::backoff::Backoff;
use crate::error::{Error, Result};
use crate::handler::{Cancellation, Handler, panic_text};
use crate::source::MessageSource;

/// Runs loop number `index` until the consumer stops or its source can do no more; that error is returned. A panic in
/// it, which can come from the source or from a handler that is dropped, starts it again after a wait.
pub(super) async fn run<S: MessageSource, H: Handler<T>, T: Send + 'static>(
    work: Arc<Work<S, H, T>>,
    index: usize,
    control: Arc<Shared>,
) -> Option<Error> {
    let mut worker = Worker::new(&work, index, &control);
    loop {
        match AssertUnwindSafe(worker.pull_and_handle()).catch_unwind().await {
            Ok(error) => return error,
            Err(panic) => {
                tracing::error!(queue = work.source.queue_name(), panic = panic_text(panic), "loop panicked");
                bump(&worker.slot.counters.loop_panics);
                worker.wait_after_error().await;
            }
        }
    }
}

pub(super) struct Worker<'a, S: MessageSource, H: Handler<T>, T> {
    pub(super) work: &'a Work<S, H, T>,
    pub(super) slot: &'a Slot,
    pub(super) index: usize,
    pub(super) control: &'a Shared,
    /// Which change of the gate this loop has seen.
    version: u64,
    /// What the gate was then, with a pull token of this loop's own.
    seen: Gate,
    /// Cancels the context of the handler that this loop runs.
    pub(super) context: Arc<Cancellation>,
    idle_since: Option<Instant>,
    idle_streak: u32,
    /// How many messages came since this loop last yielded, and when the first of them came.
    spell: (u32, SystemTime),
}

/// After how many messages, or after how long, a loop yields, which a source that always has a message and a handler
/// that never waits would not do otherwise. Tokio's budget of 128 would cost more per message than the rest of the
/// loop's upkeep, since the task moves to another thread at each yield.
const LONGEST_SPELL: (u32, Duration) = (4_096, Duration::from_millis(2));

impl<'a, S: MessageSource, H: Handler<T>, T: Send + 'static> Worker<'a, S, H, T> {
    fn new(work: &'a Work<S, H, T>, index: usize, control: &'a Shared) -> Self {
        let (version, seen) = look(control);
        let context = Arc::new(Cancellation::new(work.contexts.child_token()));
        Self {
            work,
            slot: &work.slots[index],
            index,
            control,
            version,
            seen,
            context,
            idle_since: None,
            idle_streak: 0,
            spell: (0, SystemTime::UNIX_EPOCH),
        }
    }

    async fn pull_and_handle(&mut self) -> Option<Error> {
        loop {
            self.slot.set(Activity::Pulling);
            let turn = match &self.work.ordering {
                Some(ordering) => Some(ordering.pull().await),
                None => None,
            };
            match self.phase() {
                Phase::Open => {}
                Phase::Waiting(_) | Phase::Paused => {
                    drop(turn);
                    self.park().await;
                    continue;
                }
                Phase::Stopping => return None,
            }
            let pass = match self.work.admission.ask() {
                Admitted::Freely => None,
                Admitted::OnTrial(pass) => Some(pass),
                Admitted::AfterTheTrial => {
                    drop(turn);
                    self.wait_for_the_trial().await;
                    continue;
                }
                Admitted::No(obstacle) => {
                    self.control.hold(obstacle);
                    continue;
                }
            };
            let mut held = None;
            match self.receive(&mut held).await {
                Ok(()) => match &mut held {
                    Some(held) => {
                        if let Some(ordering) = &self.work.ordering {
                            held.line_up(ordering);
                        }
                        drop(turn);
                        self.process(held, pass.is_some()).await;
                    }
                    None => {
                        drop(turn);
                        self.wait_if_idle_too_soon().await;
                    }
                },
                Err(error) => {
                    drop((turn, pass));
                    bump(&self.slot.counters.receive_errors);
                    if !error.is_transient() {
                        return Some(error);
                    }
                    self.report_receive_error(&error);
                    self.wait_after_error().await;
                }
            }
        }
    }

    /// The phase now; looks at the gate only when it has changed, which is one load of an atomic.
    #[inline]
    pub(super) fn phase(&mut self) -> Phase {
        if self.control.gate.version() != self.version {
            (self.version, self.seen) = look(self.control);
        }
        self.seen.phase
    }

    async fn park(&mut self) {
        self.slot.set(Activity::Parked);
        self.work.parked.notify_one();
        self.control.gate.changed_since(self.version).await;
    }

    /// Another loop has the one message that may be under way.
    async fn wait_for_the_trial(&mut self) {
        self.slot.set(Activity::Parked);
        self.work.parked.notify_one();
        // Only waits are lost here.
        tokio::select! {
            biased;
            () = self.work.admission.trial_over(&*self.work.clock) => {}
            () = self.control.gate.changed_since(self.version) => {}
        }
    }

    /// Waits, or until the gate changes; not at all where it is not open.
    pub(super) async fn wait(&mut self, time: Duration) {
        if self.phase() != Phase::Open {
            return;
        }
        self.slot.set(Activity::Parked);
        self.work.parked.notify_one();
        let sleep = self.work.clock.sleep(time);
        // Only waits are lost here.
        tokio::select! {
            biased;
            () = sleep => {}
            () = self.control.gate.changed_since(self.version) => {}
        }
    }

    /// What is received is written to where it stays, as all that is made for each message is: moving it from hand to
    /// hand would cost more than making it.
    async fn receive(&self, held: &mut Option<Held<'a, S::Receipt>>) -> Result<()> {
        let work = self.work;
        let mut receive = pin!(async {
            let delivery = work.source.receive(&self.seen.pull).await?;
            *held = delivery.map(|delivery| Held::new(delivery, &work.lost));
            Ok(())
        });
        // Asked once before the rest is set up: in a busy queue the message is there.
        let received = match poll!(receive.as_mut()) {
            Poll::Ready(received) => received,
            Poll::Pending => {
                let overdue = async {
                    self.seen.pull.cancelled().await;
                    work.clock.sleep(work.options.grace).await;
                };
                // Dropping `receive` loses no message, by contract; and only one that does not return when it is
                // cancelled is dropped.
                tokio::select! {
                    biased;
                    received = receive => received,
                    () = overdue => Ok(()),
                }
            }
        };
        if received.is_ok() && work.receive_errors.load(Ordering::Relaxed) != 0 {
            work.receive_errors.store(0, Ordering::Relaxed);
        }
        received
    }

    fn report_receive_error(&self, error: &Error) {
        let queue = self.work.source.queue_name();
        // The loops fail together: one line for the outage is enough.
        if self.work.receive_errors.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!(queue, error = shown(error), "receive failed, trying again");
        } else {
            tracing::debug!(queue, error = shown(error), "receive failed again");
        }
    }

    async fn wait_after_error(&mut self) {
        let loops = u32::try_from(self.work.options.max_concurrent.get()).unwrap_or(u32::MAX);
        let failures = self.work.receive_errors.load(Ordering::Relaxed);
        let delay = self.work.options.receive_backoff.delay(failures.div_ceil(loops), self.index as u64);
        self.wait(delay).await;
    }

    /// A source that says at once that nothing came, again and again, must not make this loop spin.
    async fn wait_if_idle_too_soon(&mut self) {
        let now = self.work.clock.now();
        let last = self.idle_since.replace(now);
        if last.is_none_or(|last| now.saturating_duration_since(last) >= Duration::from_millis(1)) {
            self.idle_streak = 0;
            return;
        }
        self.idle_streak = self.idle_streak.saturating_add(1);
        let backoff = Backoff::new(Duration::from_millis(1)).with_max(Duration::from_millis(100));
        self.wait(backoff.delay(self.idle_streak, self.index as u64)).await;
        // The wait is no idle time of the source's.
        self.idle_since = Some(self.work.clock.now());
    }

    /// The time is the message's own: asking the clock again would cost as much as all the counting. Where it stands
    /// still or jumps, the number of messages decides.
    pub(super) async fn yield_after_a_spell(&mut self, received_at: SystemTime) {
        let (messages, since) = &mut self.spell;
        *messages += 1;
        // Looked at now and then: comparing times costs more than counting.
        if *messages % 8 != 0 {
            return;
        }
        let (most, longest) = LONGEST_SPELL;
        if *messages >= most || received_at.duration_since(*since).is_ok_and(|spell| spell >= longest) {
            self.spell = (0, received_at);
            tokio::task::yield_now().await;
        }
    }
}

fn look(control: &Shared) -> (u64, Gate) {
    // The version first: a change that comes in between is seen twice, which is harmless.
    let version = control.gate.version();
    let gate = control.gate.with(Clone::clone);
    (version, Gate { pull: gate.pull.child_token(), ..gate })
}

/// However a loop ends, aborted too: it pulls and handles nothing any more.
impl<S: MessageSource, H: Handler<T>, T> Drop for Worker<'_, S, H, T> {
    fn drop(&mut self) {
        self.slot.set(Activity::Parked);
        self.work.parked.notify_one();
    }
}
