//! A source of whichever broker it is.

use std::any::Any;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::error::Result;
use crate::source::{BoxReceipt, Capabilities, Delivery, DynSource, Health, MessageSource, NackReason};

/// A source of a [`Broker`](super::Broker). Clones share one consumer: closing one closes all.
#[derive(Clone)]
pub struct BrokerSource {
    source: DynSource,
    slot: Option<u32>,
    /// What it came from, which ends with the last that has it.
    _broker: Arc<dyn Any + Send + Sync>,
}

/// The receipt of a [`BrokerSource`].
pub type BrokerReceipt = BoxReceipt;

impl BrokerSource {
    pub(super) fn new(source: impl MessageSource, slot: Option<u32>, broker: impl Any + Send + Sync) -> Self {
        Self { source: DynSource::new(source), slot, _broker: Arc::new(broker) }
    }

    /// Which slot it is, where it [claimed](super::Broker::claim) one.
    pub fn slot(&self) -> Option<u32> {
        self.slot
    }
}

impl fmt::Debug for BrokerSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BrokerSource")
            .field("system", &self.system())
            .field("queue", &self.queue_name())
            .field("slot", &self.slot)
            .finish()
    }
}

#[deny(clippy::missing_trait_methods)]
impl MessageSource for BrokerSource {
    type Receipt = BrokerReceipt;

    fn queue_name(&self) -> &str {
        self.source.queue_name()
    }

    fn system(&self) -> &'static str {
        self.source.system()
    }

    fn expect_in_hand(&self, most: NonZeroUsize) {
        self.source.expect_in_hand(most);
    }

    async fn receive(&self, cancel: &CancellationToken) -> Result<Option<Delivery<BrokerReceipt>>> {
        self.source.receive(cancel).await
    }

    async fn ack(&self, receipt: BrokerReceipt) -> Result<()> {
        self.source.ack(receipt).await
    }

    async fn nack(&self, receipt: BrokerReceipt, reason: NackReason) -> Result<()> {
        self.source.nack(receipt, reason).await
    }

    async fn extend(&self, receipt: &BrokerReceipt) -> Result<()> {
        self.source.extend(receipt).await
    }

    async fn release(&self) -> Result<()> {
        self.source.release().await
    }

    async fn close(&self) -> Result<()> {
        self.source.close().await
    }

    fn health(&self) -> Health {
        self.source.health()
    }

    fn capabilities(&self) -> Capabilities {
        self.source.capabilities()
    }
}
