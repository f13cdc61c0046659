//! What all loops of a consumer share, and what each does at the end of a message: settle it, tell of it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::task::Poll;
use std::time::{Duration, Instant};

use futures::{FutureExt, poll};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::admission::Admission;
use super::control::View;
use super::event::{ConsumerEvent, Outcome, Timings};
use super::handle::Status;
use super::held::LostDeliveries;
use super::kill_switch::Switch;
use super::observer::{ChangeKind, ConsumerChange, ConsumerSample, Observer};
use super::options::Options;
use super::ordering::Ordering;
use super::stats::{Slot, Stats, bump, in_flight, sum};
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
    pub(super) observers: Vec<Arc<dyn Observer>>,
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
        // Pinned here, so that a pointer is passed on and not the future.
        match reason {
            None => self.bounded(pin!(caught("ack", async { self.source.ack(receipt).await }))).await,
            Some(reason) => {
                self.bounded(pin!(caught("nack", async { self.source.nack(receipt, reason.clone()).await })))
                    .await
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
            message = message.id(),
            settlement,
            error = shown(error),
            "the broker did not take the answer, the message comes again"
        );
    }

    pub(super) fn tell_change(&self, kind: ChangeKind) {
        let change = ConsumerChange { queue: self.source.queue_name().into(), at: self.clock.wall(), kind };
        for observer in &self.observers {
            let _ = catch_unwind(AssertUnwindSafe(|| observer.on_change(&change)));
        }
    }

    pub(super) fn sample_every(&self) -> Option<Duration> {
        self.observers.iter().filter_map(|observer| observer.sample_every()).min()
    }

    pub(super) fn sample(&self, status: Status) {
        let sample = ConsumerSample {
            queue: self.source.queue_name().into(),
            at: self.clock.wall(),
            status,
            in_flight: in_flight(&self.slots),
            stats: sum(&self.slots),
        };
        for observer in &self.observers {
            let _ = catch_unwind(AssertUnwindSafe(|| observer.on_sample(&sample)));
        }
    }

    /// Tells all observers, each behind a net of its own.
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
        for observer in &self.observers {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| observer.on_message(&event))) {
                bump(&slot.counters.observer_panics);
                let panic = panic_text(panic);
                tracing::error!(
                    queue = event.queue,
                    message = event.message.id(),
                    panic,
                    "an observer panicked"
                );
            }
        }
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
