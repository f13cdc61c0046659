//! From a message in hand to its answer: its turn, the handler, holds, its lease, the settlement.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures::{FutureExt, poll};
use tracing::{Instrument, Span};

use super::control::Phase;
use super::ended::Ended;
use super::event::{Outcome, Timings};
use super::held::Held;
use super::kill_switch::Trip;
use super::observer::{ChangeKind, Obstacle};
use super::stats::{Activity, bump};
use super::trace::{process_span, record_end, record_held, record_settled, settle_span};
use super::work::{caught, shown};
use super::worker::Worker;
use crate::clock::{after, within};
use crate::error::{Error, ErrorKind};
use crate::handler::{Cancellation, Context, Handler, HandlerError};
use crate::message::Message;
use crate::source::MessageSource;

/// The cause for handing back what has not begun, where the phase asks for it.
fn end_of_waiting(phase: Phase) -> Option<&'static str> {
    match phase {
        Phase::Open | Phase::Waiting(_) => None,
        Phase::Paused => Some("paused"),
        Phase::Stopping => Some("shutting_down"),
    }
}

/// Zero where the source does not say when it took the message.
fn waited(message: &Message, now: SystemTime) -> Duration {
    let received_at = message.received_at();
    if received_at == SystemTime::UNIX_EPOCH {
        return Duration::ZERO;
    }
    now.duration_since(received_at).unwrap_or_default()
}

impl<S: MessageSource, H: Handler<T>, T: Send + 'static> Worker<'_, S, H, T> {
    /// From the message in hand to its answer. `on_trial` is whether it is the only one under way until it is known how
    /// it went.
    pub(super) async fn process(&mut self, held: &mut Held<'_, S::Receipt>, on_trial: bool) {
        let work = self.work;
        self.slot.set(Activity::Handling);
        bump(&self.slot.counters.received);
        self.note_activity();
        let started = self.now_if_observed();
        let waited = started.map(|_| waited(&held.message, work.clock.wall())).unwrap_or_default();
        // From now on: the time in line counts.
        let hold_until =
            work.options.readiness.is_some().then(|| after(work.clock.now(), work.options.hold_timeout));
        let mut ended = Ended::CutShort;
        let mut span = Span::none();
        match self.why_not_begin(held).await {
            None => self.work_on(held, hold_until, &mut ended, &mut span).await,
            Some(instead) => ended = instead,
        }
        self.count_for_the_kill_switch(&ended, on_trial);
        let reason = self.decide(&ended, &held.message);
        record_end(&span, &ended, reason.as_deref());
        let handled = self.now_if_observed();
        let Some(receipt) = held.take_receipt() else { return };
        self.slot.set(Activity::Settling);
        let (system, queue) = (work.source.system(), work.source.queue_name());
        let span = settle_span(system, queue, &held.message, reason.as_deref(), span);
        let settled = work.settle(receipt, reason.as_deref()).await;
        record_settled(span, &settled);
        let settled_ok = settled.is_ok();
        // The next with its key begins.
        held.place = None;
        self.note_activity();
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
                waited,
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

    fn now_if_observed(&self) -> Option<Instant> {
        (!self.work.observers.is_empty()).then(|| self.work.clock.now())
    }

    /// Where somebody wants to know of idle times.
    fn note_activity(&self) {
        if self.work.options.idle_after.is_some() {
            self.slot.set_last_active(self.work.clock.now().saturating_duration_since(self.work.started));
        }
    }

    fn count_for_the_kill_switch(&self, ended: &Ended<H::Output>, on_trial: bool) {
        let (Some(switch), Ended::Handled(result)) = (&self.work.kill_switch, ended) else { return };
        let Some(Trip { failed, of, pause }) = switch.count(result, on_trial) else { return };
        bump(&self.slot.counters.trips);
        tracing::warn!(
            queue = self.work.source.queue_name(),
            failed,
            of,
            ?pause,
            "the kill switch has tripped"
        );
        self.work.tell_change(self.slot, ChangeKind::Tripped { failed, of, pause });
    }

    /// Waits in line behind those with the same key. `None` when the handler may be called.
    async fn why_not_begin(&mut self, held: &mut Held<'_, S::Receipt>) -> Option<Ended<H::Output>> {
        if let Some(error) = held.refused.take() {
            bump(&self.slot.counters.panics);
            return Some(Ended::Handled(Err(error)));
        }
        if let Some(place) = held.place.as_ref().filter(|place| !place.is_first()) {
            // Only waits are lost here: the place stays with the message.
            tokio::select! {
                biased;
                () = place.turn() => {}
                _ = self.control.gate.find(|gate| end_of_waiting(gate.phase)) => {}
                () = self.lease_lost(held) => return Some(Ended::HandedBack("lease_lost")),
            }
        }
        match self.phase() {
            // What is pulled is settled by what comes of it, or held.
            Phase::Open | Phase::Waiting(Obstacle::Readiness | Obstacle::Circuit) => None,
            Phase::Waiting(Obstacle::KillSwitch) => Some(Ended::HandedBack("kill_switch")),
            other => {
                if let Some(place) = &held.place {
                    place.turn_to_go_back(self.work.capabilities.requeue_order).await;
                }
                Some(Ended::HandedBack(end_of_waiting(other).unwrap_or("paused")))
            }
        }
    }

    /// Handles the message, again after each outage that the failure may be due to, `until` then where there is a
    /// readiness; `span` is that of the last time.
    async fn work_on(
        &mut self,
        held: &Held<'_, S::Receipt>,
        until: Option<Instant>,
        ended: &mut Ended<H::Output>,
        span: &mut Span,
    ) {
        let work = self.work;
        loop {
            if let Some(until) = until.filter(|_| work.admission.is_not_ready())
                && let Some(cause) = self.hold(held, until).await
            {
                *ended = Ended::HandedBack(cause);
                return;
            }
            self.attempt(held, ended, span).await;
            if until.is_none() || !ended.may_be_an_outage() || !work.admission.is_not_ready() {
                return;
            }
            record_held(span, ended);
            bump(&self.slot.counters.held);
            // For a readiness that says yes and no in turn.
            tokio::task::yield_now().await;
        }
    }

    /// Waits until the user's readiness says yes; else returns the cause for handing the message back.
    async fn hold(&self, held: &Held<'_, S::Receipt>, until: Instant) -> Option<&'static str> {
        let work = self.work;
        if work.clock.now() >= until {
            return Some("not_ready");
        }
        self.control.hold(Obstacle::Readiness);
        // Only waits are lost here.
        tokio::select! {
            biased;
            cause = self.control.gate.find(|gate| end_of_waiting(gate.phase)) => Some(cause),
            () = work.admission.ready(&*work.clock) => None,
            () = work.clock.sleep_until(until) => Some("not_ready"),
            () = self.lease_lost(held) => Some("lease_lost"),
        }
    }

    /// Decodes and handles, in a span that is left in `span` for what is known only later.
    async fn attempt(&mut self, held: &Held<'_, S::Receipt>, ended: &mut Ended<H::Output>, span: &mut Span) {
        self.renew_context();
        *ended = Ended::CutShort;
        self.call(held, ended, span).await;
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

    async fn call(&self, held: &Held<'_, S::Receipt>, ended: &mut Ended<H::Output>, span: &mut Span) {
        let work = self.work;
        let context = Context::shared(held.message.clone(), Arc::clone(&self.context));
        *span = process_span(work.source.system(), work.source.queue_name(), &held.message);
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
        });
        let mut call = pin!(handled.instrument(span.clone()));
        // Asked once before the rest is set up: a handler that need not wait costs no more than its call.
        if poll!(call.as_mut()).is_pending() {
            // The handler is looked at first: one that is done is never dropped. The others only watch.
            tokio::select! {
                biased;
                () = call => {}
                () = work.abandon.cancelled() => {}
                () = async { self.lease_lost(held).await; std::future::pending().await } => {}
            }
        }
    }

    /// Extends the lease three times as often as needed, so that one failed extend costs nothing. Returns once it is
    /// lost, with the handler's context cancelled: settling will say `Stale`.
    async fn lease_lost(&self, held: &Held<'_, S::Receipt>) {
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
                id = held.message.id(),
                lost,
                error = shown(&error),
                "could not extend the lease"
            );
            if lost {
                bump(&self.slot.counters.leases_lost);
                self.context.token().cancel();
                return;
            }
        }
    }
}
