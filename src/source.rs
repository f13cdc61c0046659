//! The contract that every broker adapter implements: pull a message, settle it once.

mod capabilities;
mod dead_letter;
mod erased;
mod polled;
mod settlement;

use std::future::Future;
use std::num::NonZeroUsize;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

pub use capabilities::{Capabilities, Health, RequeueOrder};
pub use dead_letter::DeadLetter;
pub use erased::{BoxReceipt, DynSource};
pub use polled::{PolledReceipt, PolledSource};
pub use settlement::{Cause, NackReason, Settlement};

use crate::error::Result;
use crate::message::Message;

/// A message with what its source needs to settle it.
#[derive(Debug)]
#[must_use = "a delivery that is not settled stays with the broker"]
pub struct Delivery<R> {
    /// The message.
    pub message: Message,
    /// What the source needs to settle this delivery: opaque, used up by settling, bound to the channel it came on.
    pub receipt: R,
}

/// Where messages are pulled from: one queue of one broker.
///
/// An adapter classifies its errors and never decides policy: it neither retries nor drops. The rich types
/// ([`QueueConsumer`](crate::consumer::QueueConsumer), [`Deliveries`](crate::deliveries::Deliveries)) do that once for
/// all of them. What an implementation must keep is stated at each method, and the `conformance` suite checks it.
///
/// A receipt is consumed by value, so that settling twice does not compile. It carries the generation of its channel:
/// once that is gone, settling fails with `Stale`, sends nothing, and the broker delivers the message again. It is
/// unique across all sources: one that is handed to another source settles none of that one's deliveries.
///
/// A failed settle never loses the message: it stays with the broker and comes again. So does whatever was received and
/// not settled when the source is closed, or dropped without being closed.
pub trait MessageSource: Send + Sync + 'static {
    /// What settles one delivery. Not `Clone`: a delivery has one answer.
    type Receipt: Send + Sync + 'static;

    /// The name of the queue, for events, spans and metrics.
    fn queue_name(&self) -> &str;

    /// The kind of broker, by the name that OpenTelemetry has for it where it has one: `rabbitmq`, `aws_sqs`.
    fn system(&self) -> &'static str;

    /// Says that at most `most` deliveries will be in hand at once, before the first `receive`. A source that takes
    /// messages ahead sizes by it how many; others need not care, and the default does nothing.
    fn expect_in_hand(&self, most: NonZeroUsize) {
        let _ = most;
    }

    /// Waits for a message.
    ///
    /// `Ok(None)` means that nothing came within the source's own idle time, or that `cancel` fired: call again or
    /// stop. Several tasks may call it at once; each message goes to one of them. One receiver gets the messages in the
    /// order of publishing, as long as none is put back. Where deliveries are leased, the lease begins when the
    /// delivery is returned: a source that takes messages ahead extends them as it hands them over.
    ///
    /// # Errors
    ///
    /// Whatever the broker said, classified. `Closed` once [`close`](Self::close) was called. Transient errors are
    /// worth another call after a wait, which is the caller's to choose; one that is not
    /// ([`is_transient`](crate::error::Error::is_transient)) ends the consumer or the stream that pulls.
    ///
    /// # Cancel safety
    ///
    /// Returns promptly when `cancel` fires. Dropping the future loses no message: what was taken from the broker
    /// lives in the source, never only in the future.
    fn receive(
        &self,
        cancel: &CancellationToken,
    ) -> impl Future<Output = Result<Option<Delivery<Self::Receipt>>>> + Send;

    /// Tells the broker that the message is done with.
    ///
    /// # Errors
    ///
    /// `Stale` when the delivery is no longer ours. After an error the message stays with the broker and comes again;
    /// after `Timeout` or `Disconnected` it is not known whether the broker was told, and the message is done with or
    /// comes again.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves it open whether the broker was told; the message is done with or comes again.
    fn ack(&self, receipt: Self::Receipt) -> impl Future<Output = Result<()>> + Send;

    /// Tells the broker that the message is not done with, and what should become of it.
    ///
    /// # Errors
    ///
    /// As for [`ack`](Self::ack); `Unsupported` for a reason that the broker cannot honour or the adapter does not
    /// know, and then the message comes again.
    ///
    /// # Cancel safety
    ///
    /// As for [`ack`](Self::ack).
    fn nack(&self, receipt: Self::Receipt, reason: NackReason) -> impl Future<Output = Result<()>> + Send;

    /// Keeps the lease of a delivery alive, on brokers that lease ([`Capabilities::lease`]); starts it anew.
    ///
    /// # Errors
    ///
    /// `Stale` when the lease is over. `Unsupported` where nothing is leased.
    ///
    /// # Cancel safety
    ///
    /// Safe: at worst the lease is not extended.
    fn extend(&self, receipt: &Self::Receipt) -> impl Future<Output = Result<()>> + Send;

    /// Hands back to the broker what is buffered here and was not yet received, so that other consumers get it while
    /// this one is paused or drains. Deliveries already received are not touched. The next `receive` pulls again.
    ///
    /// # Errors
    ///
    /// Whatever the broker said. What could not be handed back goes back when the source is closed.
    ///
    /// # Cancel safety
    ///
    /// Safe: what was not handed back is still buffered.
    fn release(&self) -> impl Future<Output = Result<()>> + Send;

    /// Ends the source: settlements are flushed, what is unsettled goes back to the broker, waiting `receive`s return
    /// `Closed`. Prompt, and idempotent from any number of tasks.
    ///
    /// # Errors
    ///
    /// What went wrong on the way; the source is closed all the same.
    ///
    /// # Cancel safety
    ///
    /// Call it again: it goes on where it was.
    fn close(&self) -> impl Future<Output = Result<()>> + Send;

    /// Whether messages can come now, and the last error if not.
    fn health(&self) -> Health;

    /// What the broker behind this source can do. The answer does not change.
    fn capabilities(&self) -> Capabilities;
}

#[deny(clippy::missing_trait_methods)]
impl<S: MessageSource> MessageSource for Arc<S> {
    type Receipt = S::Receipt;

    fn queue_name(&self) -> &str {
        (**self).queue_name()
    }

    fn system(&self) -> &'static str {
        (**self).system()
    }

    fn expect_in_hand(&self, most: NonZeroUsize) {
        (**self).expect_in_hand(most);
    }

    fn receive(
        &self,
        cancel: &CancellationToken,
    ) -> impl Future<Output = Result<Option<Delivery<Self::Receipt>>>> + Send {
        (**self).receive(cancel)
    }

    fn ack(&self, receipt: Self::Receipt) -> impl Future<Output = Result<()>> + Send {
        (**self).ack(receipt)
    }

    fn nack(&self, receipt: Self::Receipt, reason: NackReason) -> impl Future<Output = Result<()>> + Send {
        (**self).nack(receipt, reason)
    }

    fn extend(&self, receipt: &Self::Receipt) -> impl Future<Output = Result<()>> + Send {
        (**self).extend(receipt)
    }

    fn release(&self) -> impl Future<Output = Result<()>> + Send {
        (**self).release()
    }

    fn close(&self) -> impl Future<Output = Result<()>> + Send {
        (**self).close()
    }

    fn health(&self) -> Health {
        (**self).health()
    }

    fn capabilities(&self) -> Capabilities {
        (**self).capabilities()
    }
}
