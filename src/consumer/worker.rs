//! One loop: pull a message, handle it, settle it, tell of it. `max_concurrent` of these make a consumer.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::{Duration, Instant, SystemTime};

use futures::{FutureExt, poll};

use tracing::Instrument;

use super::control::{Gate, Phase, Shared};
use super::ended::Ended;
use super::event::{Outcome, Timings};
use super::held::Held;
use super::stats::{Activity, Slot, bump};
use super::work::{Work, caught, shown};
use crate::backoff::Backoff;
use crate::clock::{after, within};
use crate::error::{Error, ErrorKind, Result};
use crate::handler::{Cancellation, Context, Handler, HandlerError, panic_text};
use crate::message::Message;
use crate::source::{Cause, MessageSource, NackReason, RequeueOrder, Settlement};

impl Phase {
    fn hand_back_cause(self) -> &'static str {
        match self {
            Self::Open | Self::Paused => "paused",
            Self::Stopping => "shutting_down",
        }
    }
}

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

struct Worker<'a, S: MessageSource, H: Handler<T>, T> {
    work: &'a Work<S, H, T>,
    slot: &'a Slot,
    index: usize,
    control: &'a Shared,
    /// Which change of the gate this loop has seen.
    version: u64,
    /// What the gate was then, with a pull token of this loop's own.
    seen: Gate,
    /// Cancels the context of the handler that this loop runs.
    context: Arc<Cancellation>,
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
            match self.phase() {
                Phase::Open => {}
                Phase::Paused => {
                    self.park().await;
                    continue;
                }
                Phase::Stopping => return None,
            }
            let mut held = None;
            match self.receive(&mut held).await {
                Ok(()) => match &mut held {
                    Some(held) => self.process(held).await,
                    None => self.wait_if_idle_too_soon().await,
                },
                Err(error) => {
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
    fn phase(&mut self) -> Phase {
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

    /// Waits, or until the gate changes; not at all where it is not open.
    async fn wait(&mut self, time: Duration) {
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

    async fn process(&mut self, held: &mut Held<'_, S::Receipt>) {
        let work = self.work;
        self.slot.set(Activity::Handling);
        bump(&self.slot.counters.received);
        let started = self.now_if_observed();
        let phase = self.phase();
        let mut ended = Ended::HandedBack;
        if phase == Phase::Open {
            self.attempt(held, &mut ended).await;
        }
        let reason = self.decide(&ended, phase, &held.message);
        let handled = self.now_if_observed();
        let Some(receipt) = held.take_receipt() else { return };
        self.slot.set(Activity::Settling);
        let settled = work.settle(receipt, reason.as_deref()).await;
        let settled_ok = settled.is_ok();
        self.slot.count(ended.ending(), reason.as_deref(), settled_ok);
        if self.phase() == Phase::Stopping {
            self.slot.count_drained(ended.ending(), settled_ok);
        }
        if let Err(error) = &settled {
            work.report_settle_error(&held.message, reason.as_deref(), error);
        }
        if let (Some(started), Some(handled)) = (started, handled) {
            let timings = Timings {
                received_at: held.message.received_at(),
                handling: handled.saturating_duration_since(started),
                settling: work.clock.now().saturating_duration_since(handled),
            };
            let message = held.message.clone();
            // What the handler returned may panic when it is dropped; the message is told of all the same.
            let outcome = catch_unwind(AssertUnwindSafe(|| ended.into())).unwrap_or(Outcome::Done);
            work.tell(self.slot, message, outcome, reason.as_deref().cloned(), settled.err(), timings);
        }
        self.slot.set(Activity::Pulling);
        self.damp(reason.as_deref(), settled_ok).await;
        self.yield_after_a_spell(held.message.received_at()).await;
    }

    /// The time is the message's own: asking the clock again would cost as much as all the counting. Where it stands
    /// still or jumps, the number of messages decides.
    async fn yield_after_a_spell(&mut self, received_at: SystemTime) {
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

    fn now_if_observed(&self) -> Option<Instant> {
        (!self.work.observers.is_empty()).then(|| self.work.clock.now())
    }

    /// Decodes and handles.
    async fn attempt(&mut self, held: &Held<'_, S::Receipt>, ended: &mut Ended<H::Output>) {
        self.renew_context();
        *ended = Ended::CutShort;
        self.call(held, ended).await;
        if let Ended::Handled(Err(HandlerError::Validation { .. })) = ended {
            bump(&self.slot.counters.invalid);
        }
    }

    /// A message has a token of its own where anybody could tell: where the one before was asked for, is still held, or
    /// was cancelled with its lease.
    fn renew_context(&mut self) {
        let context = &self.context;
        let leased = self.work.capabilities.lease.is_some();
        if context.was_asked_for()
            || Arc::strong_count(context) > 1
            || (leased && context.token().is_cancelled())
        {
            self.context = Arc::new(Cancellation::new(self.work.contexts.child_token()));
        }
    }

    async fn call(&self, held: &Held<'_, S::Receipt>, ended: &mut Ended<H::Output>) {
        let work = self.work;
        let context = Context::shared(held.message.clone(), Arc::clone(&self.context));
        let span = self.span(&held.message);
        // Pinned before it is wrapped, so that the wrapper moves a pointer and not the handler.
        let handled = pin!(async {
            let returned = {
                let handle = pin!(async {
                    *ended = Ended::Handled(match (work.decode)(&held.message) {
                        Ok(payload) => work.handler.handle(payload, context).await,
                        Err(error) => Err(HandlerError::invalid_input(error)),
                    });
                });
                AssertUnwindSafe(handle).catch_unwind().await
            };
            if let Err(panic) = returned {
                bump(&self.slot.counters.panics);
                *ended = Ended::Handled(Err(HandlerError::from_panic(panic)));
            }
            span.record("windlass.outcome", ended.name());
        });
        let mut call = pin!(handled.instrument(span.clone()));
        // Asked once before the rest is set up: a handler that need not wait costs no more than its call.
        if poll!(call.as_mut()).is_pending() {
            // The handler is looked at first: one that is done is never dropped. The others only watch.
            tokio::select! {
                biased;
                () = call => {}
                () = work.abandon.cancelled() => {}
                never = self.keep_lease(held) => match never {},
            }
        }
    }

    /// The span that the handler runs in, by OpenTelemetry's semantic conventions for messaging (1.27). Costs a look at
    /// a flag where nobody records it.
    fn span(&self, message: &Message) -> tracing::Span {
        tracing::info_span!(
            "process",
            otel.name = %format_args!("process {}", self.work.source.queue_name()),
            otel.kind = "consumer",
            messaging.system = self.work.source.system(),
            messaging.operation.name = "process",
            messaging.operation.type = "process",
            messaging.destination.name = self.work.source.queue_name(),
            messaging.message.id = message.id(),
            messaging.message.conversation_id = message.correlation_id(),
            messaging.message.body.size = message.body().len(),
            windlass.attempt = message.attempt(),
            windlass.outcome = tracing::field::Empty,
        )
    }

    /// Extends the lease three times as often as needed, so that one failed extend costs nothing. Once it is lost the
    /// handler's context is cancelled, and nothing more is done: settling will say `Stale`.
    async fn keep_lease(&self, held: &Held<'_, S::Receipt>) -> std::convert::Infallible {
        let work = self.work;
        let (Some(lease), Some(receipt)) = (work.capabilities.lease, held.receipt()) else {
            return std::future::pending().await;
        };
        let interval = (lease / 3).max(Duration::from_millis(1));
        let mut next = after(work.clock.now(), interval);
        loop {
            work.clock.sleep_until(next).await;
            // An extend that hangs is given up when the next is due, which still is in time.
            next = after(work.clock.now(), interval);
            let extended =
                within(&*work.clock, interval, caught("extend", async { work.source.extend(receipt).await }))
                    .await;
            let error = match extended {
                Some(Ok(())) => continue,
                Some(Err(error)) => error,
                None => Error::new(ErrorKind::Timeout, "extend"),
            };
            let lost = error.kind() == ErrorKind::Stale;
            tracing::warn!(
                queue = work.source.queue_name(),
                message = held.message.id(),
                lost,
                error = shown(&error),
                "could not extend the lease"
            );
            if lost {
                bump(&self.slot.counters.leases_lost);
                self.context.token().cancel();
                return std::future::pending().await;
            }
        }
    }

    /// Why the message is not to be acked, with nothing left open; `None` to ack it. Boxed, so that acks, which are
    /// most, move a null pointer and no more.
    fn decide(&self, ended: &Ended<H::Output>, phase: Phase, message: &Message) -> Option<Box<NackReason>> {
        let work = self.work;
        let result = match ended {
            Ended::Handled(result) => result,
            Ended::HandedBack => return Some(Box::new(NackReason::requeue_now(phase.hand_back_cause()))),
            Ended::CutShort => {
                return Some(Box::new(NackReason::requeue_now(Phase::Stopping.hand_back_cause())));
            }
        };
        let decided = catch_unwind(AssertUnwindSafe(|| match (work.on_result)(result, message) {
            Settlement::Ack => None,
            Settlement::Nack(reason) => Some(Box::new(reason)),
        }));
        let mut reason = decided.unwrap_or_else(|panic| {
            bump(&self.slot.counters.on_result_panics);
            let panic = panic_text(panic);
            tracing::error!(
                queue = work.source.queue_name(),
                message = message.id(),
                panic,
                "on_result panicked"
            );
            let cause = Cause::new("on_result_panic").with_detail(panic);
            Some(Box::new(NackReason::retry(cause)))
        })?;
        *reason = self.keep_from_the_front(work.options.retry.complete(*reason, message));
        Some(reason)
    }

    /// Where a requeued message goes to the front of the queue, requeueing it over and over would let nothing else
    /// through. From the third in a row on it is postponed instead, for as long as this loop would have waited.
    fn keep_from_the_front(&self, reason: NackReason) -> NackReason {
        let capabilities = &self.work.capabilities;
        let in_a_row = self.work.requeues.load(Ordering::Relaxed).saturating_add(1);
        match reason {
            NackReason::RequeueNow { cause }
                if in_a_row > 2
                    && capabilities.delayed_retry
                    && capabilities.requeue_order != RequeueOrder::Back =>
            {
                NackReason::postpone(self.requeue_delay(in_a_row), cause)
            }
            other => other,
        }
    }

    fn requeue_delay(&self, in_a_row: u32) -> Duration {
        self.work.options.requeue_backoff.delay(in_a_row, self.index as u64)
    }

    /// Waits before the next pull where the message can come again at once, longer the more of them were put back in
    /// a row, by any loop.
    async fn damp(&mut self, reason: Option<&NackReason>, settled: bool) {
        let requeues = &self.work.requeues;
        let in_a_row = requeues.load(Ordering::Relaxed).saturating_add(1);
        let waits = match reason {
            // The broker has it still and delivers it again: no harm in that once, as after a cut connection.
            _ if !settled => in_a_row > 1,
            Some(NackReason::RequeueNow { .. }) => true,
            Some(NackReason::Retry { .. }) if !self.work.capabilities.delayed_retry => true,
            Some(NackReason::Retry { counted: false, .. }) => false,
            None | Some(NackReason::Retry { .. } | NackReason::DeadLetter { .. }) => {
                if in_a_row > 1 {
                    requeues.store(0, Ordering::Relaxed);
                }
                return;
            }
        };
        requeues.fetch_add(1, Ordering::Relaxed);
        if waits {
            self.wait(self.requeue_delay(in_a_row)).await;
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
