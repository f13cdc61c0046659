//! What all loops of a consumer share, and what each does at the end of a message: settle it, tell of it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::task::Poll;
use std::time::Instant;

use futures::{FutureExt, poll};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::admission::Admission;
use super::control::View;
use super::event::{ConsumerEvent, Outcome, Timings};
use super::handle::Status;
use super::held::LostDeliveries;
use super::kill_switch::Switch;
use super::observer::{ChangeKind, ConsumerChange, ConsumerSample};
use super::observers::Observers;
use super::options::Options;
use super::ordering::Ordering;
use super::stats::{Slot, Stats, in_flight, sum};
use super::{Decode, OnResult};
use crate::clock::Clock;
use crate::error::{Chain, Error, ErrorKind, Result};
use crate::handler::{Handler, panic_text};
use crate::message::Message;
use crate::source::{Capabilities, Health, MessageSource, NackReason, Settlement};

/// What all loops of a consumer share.
pub(super) struct Work<S: MessageSource, H: Handler<T>, T> {
    pub(super) source: S,
    pub(super) handler: H,
    pub(super) decode: Decode<T>,
    pub(super) on_result: OnResult<H::Output>,
    pub(super) observers: Observers,
    pub(super) admission: Admission,
    pub(super) kill_switch: Option<Arc<Switch>>,
    pub(super) ordering: Option<Ordering>,
    /// When it was started.
    pub(super) started: Instant,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) options: Options,
    pub(super) capabilities: Capabilities,
    pub(super) slots: Vec<Slot>,
    pub(super) lost: LostDeliveries<S::Receipt>,
    /// Told when a loop parks or ends.
    pub(super) parked: Notify,
    /// Cancels the contexts of all handlers.
    pub(super) contexts: CancellationToken,
    /// Makes all loops drop their handlers and put the messages back.
    pub(super) abandon: CancellationToken,
    /// Makes all loops give up the answers that they wait for.
    pub(super) hurry: CancellationToken,
    /// How many messages were put back in a row.
    pub(super) requeues: AtomicU32,
    /// How many receives failed in a row.
    pub(super) receive_errors: AtomicU32,
}

impl<S: MessageSource, H: Handler<T>, T> Work<S, H, T> {
    /// Gives the broker the answer, within the settle time-out: an ack where there is no reason not to.
    pub(super) async fn settle(&self, receipt: S::Receipt, reason: Option<&NackReason>) -> Result<()> {
        // Pinned here and at each step, so that a pointer is passed on and not the future.
        match reason {
            None => {
                let answer = pin!(async { self.source.ack(receipt).await });
                self.bounded(pin!(caught("ack", answer))).await
            }
            Some(reason) => {
                let answer = pin!(async { self.source.nack(receipt, reason.clone()).await });
                self.bounded(pin!(caught("nack", answer))).await
            }
        }
    }

    async fn bounded(&self, mut answer: Pin<&mut impl Future<Output = Result<()>>>) -> Result<()> {
        if let Poll::Ready(settled) = poll!(answer.as_mut()) {
            return settled;
        }
        let late = |why| Err(Error::new(ErrorKind::Timeout, "settle").with_message(why));
        // Dropping an answer leaves it open whether the broker has it: the message is done with or comes again.
        tokio::select! {
            biased;
            settled = answer => settled,
            () = self.clock.sleep(self.options.settle_timeout) => late("the broker did not answer in time"),
            () = self.hurry.cancelled() => late("the broker did not answer before the drain was over"),
        }
    }

    pub(super) fn report_settle_error(&self, message: &Message, reason: Option<&NackReason>, error: &Error) {
        let settlement = reason.map_or("ack".to_owned(), ToString::to_string);
        tracing::warn!(
            queue = self.source.queue_name(),
            id = message.id(),
            settlement,
            error = shown(error),
            "the broker did not take the answer, the message comes again"
        );
    }

    /// The supervisor's own slot: a counter has one writer.
    pub(super) fn supervisors_slot(&self) -> &Slot {
        &self.slots[self.options.max_concurrent.get()]
    }

    /// The slot of what happens by time alone.
    pub(super) fn pulse_slot(&self) -> &Slot {
        &self.slots[self.options.max_concurrent.get() + 1]
    }

    /// Tells all observers of something beside the messages; `slot` is the caller's own.
    pub(super) fn tell_change(&self, slot: &Slot, kind: ChangeKind) {
        if self.observers.is_empty() {
            return;
        }
        let change = ConsumerChange { queue: self.source.queue_name().into(), at: self.clock.wall(), kind };
        self.observers.tell_change(slot, &*self.clock, &change);
    }

    /// Gives a sample to those observers that want one by now; `slot` is the caller's own.
    pub(super) fn sample(&self, slot: &Slot, status: Status) {
        let sample = ConsumerSample {
            queue: self.source.queue_name().into(),
            at: self.clock.wall(),
            status,
            in_flight: in_flight(&self.slots),
            stats: sum(&self.slots),
        };
        self.observers.tell_sample(slot, &*self.clock, &sample);
    }

    /// Tells all observers of a message.
    pub(super) fn tell(
        &self,
        slot: &Slot,
        message: Message,
        outcome: Outcome,
        reason: Option<NackReason>,
        settle_error: Option<Error>,
        timings: Timings,
    ) {
        let queue = self.source.queue_name().to_owned();
        let settlement = reason.map_or(Settlement::Ack, Settlement::Nack);
        let event = ConsumerEvent { queue, message, outcome, settlement, settle_error, timings };
        self.observers.tell_message(slot, &*self.clock, &event);
    }
}

impl<S: MessageSource, H: Handler<T>, T> View for Work<S, H, T> {
    fn in_flight(&self) -> usize {
        in_flight(&self.slots)
    }

    fn stats(&self) -> Stats {
        sum(&self.slots)
    }

    fn health(&self) -> Health {
        self.source.health()
    }
}

/// A source that panics is one that fails; `done` calls it, since the call itself may panic.
pub(super) async fn caught(operation: &'static str, done: impl Future<Output = Result<()>>) -> Result<()> {
    AssertUnwindSafe(done).catch_unwind().await.unwrap_or_else(|panic| {
        let message = format!("the source panicked: {}", panic_text(panic));
        Err(Error::new(ErrorKind::Other, operation).with_message(message))
    })
}

/// An error and all that is behind it, for a log line: somebody else's error may panic when it is printed.
pub(super) fn shown(error: &Error) -> String {
    catch_unwind(AssertUnwindSafe(|| Chain(error).to_string()))
        .unwrap_or_else(|_| format!("{}: an error that panics when it is printed", error.kind()))
}
