//! The erased twin of a source, for `dyn` use.

use std::any::Any;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;

use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use super::{Capabilities, Delivery, Health, MessageSource, NackReason};
use crate::error::{Error, ErrorKind, Result};

/// Any source behind one type, so that a deployment can choose its broker at run time. Cheap to clone.
///
/// Costs one allocation for each call and one for each receipt.
///
/// ```
/// use windlass::memory::MemorySource;
/// use windlass::clock::SystemClock;
/// use windlass::source::{DynSource, MessageSource};
///
/// let source = DynSource::new(MemorySource::new(SystemClock));
/// assert!(source.health().is_ready());
/// ```
#[derive(Clone)]
pub struct DynSource(Arc<dyn ErasedSource>);

/// The receipt of a [`DynSource`]: the receipt of the source within.
pub struct BoxReceipt(Box<dyn Any + Send + Sync>);

impl DynSource {
    /// Erases the type of `source`.
    pub fn new<S: MessageSource>(source: S) -> Self {
        Self(Arc::new(source))
    }
}

impl fmt::Debug for DynSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DynSource").field("queue", &self.0.queue_name()).finish_non_exhaustive()
    }
}

impl fmt::Debug for BoxReceipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoxReceipt").finish_non_exhaustive()
    }
}

trait ErasedSource: Send + Sync + 'static {
    fn queue_name(&self) -> &str;
    fn system(&self) -> &'static str;
    fn expect_in_hand(&self, most: NonZeroUsize);
    fn receive<'a>(
        &'a self,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<Option<Delivery<BoxReceipt>>>>;
    fn ack(&self, receipt: BoxReceipt) -> BoxFuture<'_, Result<()>>;
    fn nack(&self, receipt: BoxReceipt, reason: NackReason) -> BoxFuture<'_, Result<()>>;
    fn extend<'a>(&'a self, receipt: &'a BoxReceipt) -> BoxFuture<'a, Result<()>>;
    fn release(&self) -> BoxFuture<'_, Result<()>>;
    fn close(&self) -> BoxFuture<'_, Result<()>>;
    fn health(&self) -> Health;
    fn capabilities(&self) -> Capabilities;
}

fn foreign(operation: &'static str) -> Error {
    Error::new(ErrorKind::Stale, operation).with_message("the receipt is of another source")
}

impl<S: MessageSource> ErasedSource for S {
    fn queue_name(&self) -> &str {
        MessageSource::queue_name(self)
    }

    fn system(&self) -> &'static str {
        MessageSource::system(self)
    }

    fn expect_in_hand(&self, most: NonZeroUsize) {
        MessageSource::expect_in_hand(self, most);
    }

    fn receive<'a>(
        &'a self,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<Option<Delivery<BoxReceipt>>>> {
        Box::pin(async move {
            let delivery = MessageSource::receive(self, cancel).await?;
            Ok(delivery.map(|delivery| Delivery {
                message: delivery.message,
                receipt: BoxReceipt(Box::new(delivery.receipt)),
            }))
        })
    }

    fn ack(&self, receipt: BoxReceipt) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let receipt = receipt.0.downcast::<S::Receipt>().map_err(|_| foreign("ack"))?;
            MessageSource::ack(self, *receipt).await
        })
    }

    fn nack(&self, receipt: BoxReceipt, reason: NackReason) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let receipt = receipt.0.downcast::<S::Receipt>().map_err(|_| foreign("nack"))?;
            MessageSource::nack(self, *receipt, reason).await
        })
    }

    fn extend<'a>(&'a self, receipt: &'a BoxReceipt) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let receipt = receipt.0.downcast_ref::<S::Receipt>().ok_or_else(|| foreign("extend"))?;
            MessageSource::extend(self, receipt).await
        })
    }

    fn release(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(MessageSource::release(self))
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(MessageSource::close(self))
    }

    fn health(&self) -> Health {
        MessageSource::health(self)
    }

    fn capabilities(&self) -> Capabilities {
        MessageSource::capabilities(self)
    }
}

#[deny(clippy::missing_trait_methods)]
impl MessageSource for DynSource {
    type Receipt = BoxReceipt;

    fn queue_name(&self) -> &str {
        self.0.queue_name()
    }

    fn system(&self) -> &'static str {
        self.0.system()
    }

    fn expect_in_hand(&self, most: NonZeroUsize) {
        self.0.expect_in_hand(most);
    }

    async fn receive(&self, cancel: &CancellationToken) -> Result<Option<Delivery<BoxReceipt>>> {
        self.0.receive(cancel).await
    }

    async fn ack(&self, receipt: BoxReceipt) -> Result<()> {
        self.0.ack(receipt).await
    }

    async fn nack(&self, receipt: BoxReceipt, reason: NackReason) -> Result<()> {
        self.0.nack(receipt, reason).await
    }

    async fn extend(&self, receipt: &BoxReceipt) -> Result<()> {
        self.0.extend(receipt).await
    }

    async fn release(&self) -> Result<()> {
        self.0.release().await
    }

    async fn close(&self) -> Result<()> {
        self.0.close().await
    }

    fn health(&self) -> Health {
        self.0.health()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }
}
