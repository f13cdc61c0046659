//! What all loops of a consumer share, and what each does at the end of a message: settle it, tell of it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::event::{ConsumerEvent, Outcome, Timings};
use super::handle::View;
use super::held::LostDeliveries;
use super::stats::{Slot, Stats, bump, in_flight, sum};
use super::{Decode, Observer, OnResult, Options};
use crate::clock::{Clock, within};
use crate::error::{Chain, Error, ErrorKind, Result};
use crate::handler::{Handler, HandlerError};
use crate::message::Message;
use crate::source::{Capabilities, Health, MessageSource, NackReason, Settlement};

/// What all loops of a consumer share.
pub(super) struct Work<S: MessageSource, H: Handler<T>, T> {
    pub(super) source: S,
    pub(super) handler: H,
    pub(super) decode: Decode<T>,
    pub(super) on_result: OnResult<H::Output>,
    pub(super) observers: Vec<Observer>,
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
    /// How many messages were put back in a row.
    pub(super) requeues: AtomicU32,
    /// How many receives failed in a row.
    pub(super) receive_errors: AtomicU32,
}

impl<S: MessageSource, H: Handler<T>, T> Work<S, H, T> {
    /// Gives the broker the answer, within the settle time-out: an ack where there is no reason not to.
    pub(super) async fn settle(&self, receipt: S::Receipt, reason: Option<&NackReason>) -> Result<()> {
        let (clock, bound) = (&*self.clock, self.options.settle_timeout);
        // Pinned here, so that a pointer is passed on and not the future.
        let settled = match reason {
            None => within(clock, bound, pin!(self.source.ack(receipt))).await,
            Some(reason) => within(clock, bound, pin!(self.source.nack(receipt, reason.clone()))).await,
        };
        settled.unwrap_or_else(|| Err(Error::new(ErrorKind::Timeout, "settle")))
    }

    pub(super) fn report_settle_error(&self, message: &Message, reason: Option<&NackReason>, error: &Error) {
        let settlement = reason.map_or("ack".to_owned(), ToString::to_string);
        tracing::warn!(
            queue = self.source.queue_name(), message = message.id(), settlement, error = %Chain(error),
            "the broker did not take the answer, the message comes again"
        );
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
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| observer(&event))) {
                bump(&slot.counters.observer_panics);
                let panic = HandlerError::from_panic(panic);
                tracing::error!(queue = event.queue, message = event.message.id(), %panic, "an observer panicked");
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
