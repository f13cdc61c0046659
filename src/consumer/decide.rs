//! What the end of a message means for it: the settlement with nothing left open, and a wait where it comes again at once.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::ended::Ended;
use super::stats::bump;
use super::worker::Worker;
use crate::handler::{Handler, panic_text};
use crate::message::Message;
use crate::source::{Cause, MessageSource, NackReason, RequeueOrder, Settlement};

impl<S: MessageSource, H: Handler<T>, T: Send + 'static> Worker<'_, S, H, T> {
    /// Why the message is not to be acked, with nothing left open; `None` to ack it. Boxed, so that acks, which are
    /// most, move a null pointer and no more.
    pub(super) fn decide(&self, ended: &Ended<H::Output>, message: &Message) -> Option<Box<NackReason>> {
        let work = self.work;
        let result = match ended {
            Ended::Handled(result) => result,
            Ended::HandedBack(cause) => return Some(Box::new(NackReason::requeue_now(*cause))),
            Ended::CutShort => return Some(Box::new(NackReason::requeue_now("shutting_down"))),
        };
        let decided = catch_unwind(AssertUnwindSafe(|| match (work.on_result)(result, message) {
            Settlement::Ack => None,
            Settlement::Nack(reason) => Some(Box::new(reason)),
        }));
        let mut reason = decided.unwrap_or_else(|panic| {
            bump(&self.slot.counters.on_result_panics);
            let panic = panic_text(panic);
            tracing::error!(queue = work.source.queue_name(), id = message.id(), panic, "on_result panicked");
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
    pub(super) async fn damp(&mut self, reason: Option<&NackReason>, settled: bool) {
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
