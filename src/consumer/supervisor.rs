//! The one task that owns the loops: it starts, pauses and drains them, and puts back what they lost.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering as Order};
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::QueueConsumer;
use super::admission::Admission;
use super::control::{Owner, Phase, Shared};
use super::event::{Outcome, Timings};
use super::handle::Status;
use super::held::LostDeliveries;
use super::kill_switch::Switch;
use super::observer::{ChangeKind, Obstacle};
use super::options::Options;
use super::ordering::Ordering;
use super::pulse;
use super::stats::{Activity, Ending, Slot, Stats, in_flight, sum};
use super::work::{Work, caught, shown};
use super::worker;
use crate::clock::within;
use crate::error::{Error, ErrorKind, Result};
use crate::handler::{Handler, Readiness, panic_text};
use crate::message::Message;
use crate::source::{Capabilities, Delivery, MessageSource, NackReason};

/// How a consumer ended.
///
/// `finished`, `requeued` and `abandoned` speak of the messages that were in flight when the drain began.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
#[must_use = "a report says whether everything was settled"]
pub struct Report {
    /// Their handlers ended in time, and the broker took the answer.
    pub finished: u64,
    /// Put back without having been finished.
    pub requeued: u64,
    /// Neither: the broker did not take the answer, or the handler could not be stopped. They come again.
    pub abandoned: u64,
    /// What was counted from start to end.
    pub stats: Stats,
    /// How long the drain took.
    pub took: Duration,
    /// Why the consumer ended by itself, where nobody stopped it.
    pub error: Option<Error>,
    /// What went wrong when the source was released or closed.
    pub close_error: Option<Error>,
}

impl Report {
    /// Whether the drain abandoned nothing, and neither the consumer nor its source ended in an error. Answers that the
    /// broker did not take before the drain are in `stats.settle_errors`.
    pub fn is_clean(&self) -> bool {
        self.abandoned == 0 && self.error.is_none() && self.close_error.is_none()
    }
}

/// How long loops are given to drop their handlers.
const TO_DROP: Duration = Duration::from_secs(1);

pub(super) struct Supervisor<S: MessageSource, H: Handler<T>, T> {
    work: Arc<Work<S, H, T>>,
    control: Owner,
    /// The loops.
    loops: JoinSet<Option<Error>>,
    /// What puts lost messages back.
    returns: JoinSet<PutBack>,
    /// What happens by time alone.
    pulse: JoinSet<()>,
}

impl<S: MessageSource, H: Handler<T>, T: Send + 'static> Supervisor<S, H, T> {
    pub(super) fn new(consumer: QueueConsumer<S, H, T>) -> Self {
        let QueueConsumer { source, handler, decode, on_result, observers, clock, options, control } =
            consumer;
        source.expect_in_hand(options.max_concurrent);
        let kill_switch =
            options.kill_switch.clone().map(|switch| Arc::new(Switch::new(switch, Arc::clone(&clock))));
        let admission = Admission::new([
            (Obstacle::Readiness, options.readiness.clone()),
            (Obstacle::Circuit, handler.readiness()),
            (Obstacle::KillSwitch, kill_switch.clone().map(|switch| switch as Arc<dyn Readiness>)),
        ]);
        // Two more than there are loops: the supervisor's own, for what it puts back, and that of the pulse.
        let slots = (0..options.max_concurrent.get() + 2).map(|_| Slot::default()).collect();
        let work = Arc::new(Work {
            capabilities: source.capabilities(),
            source,
            handler,
            decode,
            on_result,
            observers,
            admission,
            kill_switch,
            ordering: options.key_of.clone().map(Ordering::new),
            started: clock.now(),
            clock,
            options,
            slots,
            lost: LostDeliveries::new(),
            parked: Notify::new(),
            contexts: CancellationToken::new(),
            abandon: CancellationToken::new(),
            hurry: CancellationToken::new(),
            requeues: AtomicU32::new(0),
            receive_errors: AtomicU32::new(0),
        });
        warn_of_endless_retries(&work);
        let control = control.start(Arc::clone(&work) as _);
        Self { work, control, loops: JoinSet::new(), returns: JoinSet::new(), pulse: JoinSet::new() }
    }

    pub(super) async fn run(mut self) {
        // Whatever happens there, what runs is drained and the source is closed.
        let supervised = AssertUnwindSafe(self.supervise()).catch_unwind().await;
        let error = supervised.unwrap_or_else(|panic| {
            Some(Error::new(ErrorKind::Other, "run consumer").with_message(panic_text(panic)))
        });
        if let Some(error) = &error {
            tracing::error!(queue = self.work.source.queue_name(), error = shown(error), "the consumer ends");
        }
        let mut report = self.drain(error).await;
        tracing::info!(
            queue = self.work.source.queue_name(), finished = report.finished, requeued = report.requeued,
            abandoned = report.abandoned, took = ?report.took, "consumer stopped"
        );
        self.pulse.shutdown().await;
        if self.work.observers.sample_every().is_some() {
            self.work.sample(self.work.supervisors_slot(), Status::Stopped);
        }
        self.work.tell_change(self.work.supervisors_slot(), ChangeKind::Stopped { report: report.clone() });
        let work = &self.work;
        work.observers.end(work.supervisors_slot(), &*work.clock, work.options.close_timeout).await;
        report.stats = sum(&work.slots);
        self.control.report(report);
    }

    fn options(&self) -> &Options {
        &self.work.options
    }

    fn shared(&self) -> &Shared {
        &self.control.0
    }

    /// Until it is to stop, or the source can do no more.
    async fn supervise(&mut self) -> Option<Error> {
        self.start_pulse();
        for index in 0..self.options().max_concurrent.get() {
            self.loops.spawn(worker::run(Arc::clone(&self.work), index, Arc::clone(&self.control.0)));
        }
        let mut told = Status::Running;
        loop {
            let seen = self.shared().gate.version();
            let phase = self.shared().phase();
            let status = match phase {
                Phase::Stopping => return None,
                Phase::Open => Status::Running,
                Phase::Waiting(_) => Status::Waiting,
                Phase::Paused => {
                    if !self.hand_back().await || self.shared().gate.version() != seen {
                        continue;
                    }
                    Status::Paused
                }
            };
            self.control.reach(status, seen);
            self.tell_status(std::mem::replace(&mut told, status), phase);
            let waited = match phase {
                Phase::Waiting(_) => Some(wait_out(Arc::clone(&self.work), Arc::clone(&self.control.0))),
                Phase::Open | Phase::Paused | Phase::Stopping => None,
            };
            if let Some(error) = self.wait_for_change(seen, waited).await {
                return Some(error);
            }
        }
    }

    fn start_pulse(&mut self) {
        if self.options().idle_after.is_some() || self.work.observers.sample_every().is_some() {
            self.pulse.spawn(pulse::run(Arc::clone(&self.work), Arc::clone(&self.control.0)));
        }
    }

    fn tell_status(&self, before: Status, phase: Phase) {
        let queue = self.work.source.queue_name();
        match (before, phase) {
            (_, Phase::Waiting(obstacle)) => {
                tracing::info!(queue, obstacle = obstacle.name(), "pulls nothing until this is over");
                self.work.tell_change(self.work.supervisors_slot(), ChangeKind::Waiting { obstacle });
            }
            (Status::Waiting, Phase::Open) => {
                tracing::info!(queue, "pulls again");
                self.work.tell_change(self.work.supervisors_slot(), ChangeKind::Ready);
            }
            (Status::Paused, Phase::Open) => {
                self.work.tell_change(self.work.supervisors_slot(), ChangeKind::Resumed)
            }
            (_, Phase::Paused) if before != Status::Paused => {
                self.work.tell_change(self.work.supervisors_slot(), ChangeKind::Paused)
            }
            (_, Phase::Open | Phase::Paused | Phase::Stopping) => {}
        }
    }

    /// Waits until something else is wanted; meanwhile puts back what is lost. Returns the error of a loop that
    /// ended, since all others will end the same way.
    async fn wait_for_change(
        &mut self,
        seen: u64,
        waited: Option<impl Future<Output = ()>>,
    ) -> Option<Error> {
        let mut waited = pin!(futures::future::OptionFuture::from(waited));
        let mut waits = true;
        loop {
            // Each branch only waits; what has happened stays to be seen by the next call.
            tokio::select! {
                biased;
                () = self.control.0.gate.changed_since(seen) => return None,
                Some(ended) = self.loops.join_next() => {
                    if let Some(error) = ended_with(ended) {
                        return Some(error);
                    }
                }
                () = self.work.lost.added() => self.put_back_lost("loop_panic"),
                // Asks for another phase, which is seen next.
                _ = &mut waited, if waits => waits = false,
                Some(Ok(put_back)) = self.returns.join_next() => self.count(put_back, false),
            }
        }
    }

    /// For a pause: hands back what is buffered. False when something else is wanted meanwhile.
    async fn hand_back(&self) -> bool {
        let work = Arc::clone(&self.work);
        let paused = async {
            if let Err(error) = release(&work).await {
                tracing::warn!(queue = work.source.queue_name(), error = shown(&error), "release failed");
            }
        };
        // Dropping `release` in the middle is safe: what was not handed back is still buffered.
        tokio::select! {
            biased;
            () = paused => true,
            () = self.shared().gate.find(|gate| (gate.phase != Phase::Paused).then_some(())) => false,
        }
    }

    /// Ends everything, in the order of the design: no more pulls; release; wait; cancel; drop; close.
    async fn drain(&mut self, error: Option<Error>) -> Report {
        let work = Arc::clone(&self.work);
        let began = work.clock.now();
        self.control.set_status(Status::Stopping);
        self.shared().ask(Phase::Stopping);
        let (released, ()) = tokio::join!(release(&work), self.end_loops());
        self.put_back_lost("shutting_down");
        self.end_returns().await;
        let closed = bounded(&work, "close", async { work.source.close().await }).await;
        // What a loop still holds now is on a thread that it does not give back.
        let stuck = in_flight(&work.slots) as u64;
        let drained = |count: fn(&Slot) -> u64| work.slots.iter().map(count).sum::<u64>();
        Report {
            finished: drained(|slot| slot.drained.finished.load(Order::Relaxed)),
            requeued: drained(|slot| slot.drained.requeued.load(Order::Relaxed)),
            abandoned: drained(|slot| slot.drained.abandoned.load(Order::Relaxed)) + stuck,
            stats: sum(&work.slots),
            took: work.clock.now().saturating_duration_since(began),
            error,
            close_error: released.and(closed).err(),
        }
    }

    async fn end_loops(&mut self) {
        let work = Arc::clone(&self.work);
        let Options { drain_timeout, grace, close_timeout, .. } = *self.options();
        if self.joined_within(drain_timeout).await {
            return;
        }
        work.contexts.cancel();
        if self.joined_within(grace).await {
            return;
        }
        work.abandon.cancel();
        // Dropping takes no time, unless a handler does not give its thread back.
        if self.joined_within(TO_DROP).await {
            return;
        }
        let settling = work.slots.iter().any(|slot| slot.is(Activity::Settling));
        if settling && self.joined_within(close_timeout).await {
            return;
        }
        // Also for a loop that comes to its answer only now.
        work.hurry.cancel();
        if self.joined_within(TO_DROP).await {
            return;
        }
        self.loops.abort_all();
        self.joined_within(TO_DROP).await;
    }

    /// Waits for what is being put back, as long as for closing; then gives the answers up.
    async fn end_returns(&mut self) {
        let work = Arc::clone(&self.work);
        let hurry = async {
            work.clock.sleep(work.options.close_timeout).await;
            work.hurry.cancel();
            std::future::pending::<()>().await;
        };
        let all = async {
            while let Some(put_back) = self.returns.join_next().await {
                put_back.into_iter().for_each(|put_back| self.count(put_back, true));
            }
        };
        // `hurry` never ends before `all`.
        tokio::select! {
            biased;
            () = all => {}
            () = hurry => {}
        }
    }

    async fn joined_within(&mut self, bound: Duration) -> bool {
        let clock = Arc::clone(&self.work.clock);
        let all = async {
            loop {
                // Only waits are lost here.
                tokio::select! {
                    biased;
                    ended = self.loops.join_next() => if ended.is_none() { return },
                    () = self.work.lost.added() => self.put_back_lost("shutting_down"),
                }
            }
        };
        within(&*clock, bound, all).await.is_some()
    }

    fn count(&self, put_back: PutBack, draining: bool) {
        let PutBack { message, reason, settled } = put_back;
        let work = &*self.work;
        if let Err(error) = &settled {
            work.report_settle_error(&message, Some(&reason), error);
        }
        let slot = work.supervisors_slot();
        slot.count(Ending::CutShort, Some(&reason), settled.is_ok());
        if draining {
            slot.count_drained(Ending::CutShort, settled.is_ok());
        }
        let none = Duration::ZERO;
        let timings =
            Timings { received_at: message.received_at(), waited: none, handling: none, settling: none };
        work.tell(slot, message, Outcome::CutShort, Some(reason), settled.err(), timings);
    }

    /// Puts back what was dropped without an answer, each on a task of this supervisor's, bounded by the settle
    /// time-out.
    fn put_back_lost(&mut self, cause: &'static str) {
        for delivery in self.work.lost.take_all() {
            self.returns.spawn(put_back(Arc::clone(&self.work), delivery, cause));
        }
    }
}

fn warn_of_endless_retries<S: MessageSource, H: Handler<T>, T>(work: &Work<S, H, T>) {
    let Capabilities { counts_attempts, dead_letter, .. } = work.capabilities;
    if !(counts_attempts && dead_letter) {
        tracing::warn!(
            queue = work.source.queue_name(),
            counts_attempts,
            dead_letter,
            "a message that cannot be handled comes again for ever: its source does not count or does not dead-letter"
        );
    }
}

/// A message that a loop lost, and how putting it back went.
struct PutBack {
    message: Message,
    reason: NackReason,
    settled: Result<()>,
}

async fn put_back<S: MessageSource, H: Handler<T>, T>(
    work: Arc<Work<S, H, T>>,
    delivery: Delivery<S::Receipt>,
    cause: &'static str,
) -> PutBack {
    let Delivery { message, receipt } = delivery;
    let reason = NackReason::requeue_now(cause);
    let settled = work.settle(receipt, Some(&reason)).await;
    PutBack { message, reason, settled }
}

/// How long a consumer that waits keeps what is prefetched: to hand it back costs the broker as much as to deliver it,
/// and a quorum queue of RabbitMQ 4.0 counts it as a delivery that failed.
const KEEPS_PREFETCHED: Duration = Duration::from_secs(10);

/// How long it takes at least until a consumer that had to wait pulls again, where nothing says no by then.
const FLICKER: Duration = Duration::from_millis(10);

/// Waits until nothing says no any more, and asks for what is open then. A longer wait hands back what is buffered.
async fn wait_out<S: MessageSource, H: Handler<T>, T>(work: Arc<Work<S, H, T>>, control: Arc<Shared>) {
    let clock = &*work.clock;
    if work.admission.obstacle().is_none() {
        // It is over already, or says yes and no in turn, which must not make the loops spin.
        clock.sleep(FLICKER).await;
    }
    if within(clock, KEEPS_PREFETCHED, work.admission.cleared(clock)).await.is_none() {
        if let Err(error) = release(&work).await {
            tracing::warn!(queue = work.source.queue_name(), error = shown(&error), "release failed");
        }
        work.admission.cleared(clock).await;
    }
    control.admit();
}

/// Waits until no loop pulls, which is prompt, and hands back what is buffered.
async fn release<S: MessageSource, H: Handler<T>, T>(work: &Work<S, H, T>) -> Result<()> {
    let none_pulls = async {
        while work.slots.iter().take(work.options.max_concurrent.get()).any(|slot| slot.is(Activity::Pulling))
        {
            work.parked.notified().await;
        }
    };
    // A loop drops its pull once the grace is over; so a wait of more than that is enough.
    within(&*work.clock, work.options.grace.saturating_mul(2).saturating_add(TO_DROP), none_pulls).await;
    bounded(work, "release", async { work.source.release().await }).await
}

/// Neither a source that hangs nor one that panics keeps the supervisor from its end.
async fn bounded<S: MessageSource, H: Handler<T>, T>(
    work: &Work<S, H, T>,
    operation: &'static str,
    done: impl Future<Output = Result<()>>,
) -> Result<()> {
    let done = within(&*work.clock, work.options.close_timeout, caught(operation, done)).await;
    done.unwrap_or_else(|| Err(Error::new(ErrorKind::Timeout, operation)))
}

fn ended_with(ended: std::result::Result<Option<Error>, tokio::task::JoinError>) -> Option<Error> {
    match ended {
        Ok(error) => error,
        Err(error) => Some(Error::new(ErrorKind::Other, "run loop").with_source(error)),
    }
}
