//! A source that fails as its script says, around a source in memory.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use tokio_util::sync::CancellationToken;
use windlass::Error;
use windlass::memory::{MemoryReceipt, MemorySource};
use windlass::source::{Capabilities, Delivery, Health, MessageSource, NackReason};

/// An operation of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    Receive,
    Ack,
    Nack,
    Extend,
    Release,
    Close,
}

/// What becomes of one call.
#[derive(Debug, Clone)]
pub(crate) enum Act {
    /// The source in memory does it.
    Pass,
    /// It panics.
    Panic,
    /// It never returns, cancelled or not.
    Hang,
    /// It fails.
    Fail(Error),
    /// It does nothing and returns at once: `Ok(None)` for a receive.
    Nothing,
    /// For a receive: it looks for a message only once it was cancelled.
    Late,
    /// For a receive: the message was taken from the broker this long ago, and lay in a buffer.
    Buffered(Duration),
    /// For a receive: the message does not say when it was taken.
    Undated,
}

type Script = Box<dyn Fn(Op, u64) -> Act + Send + Sync>;

/// A source that asks its script about each call: the operation, and the how many-th of it this is, from 1.
pub(crate) struct Faulty {
    inner: MemorySource,
    script: Script,
    calls: Calls,
    capabilities: Capabilities,
}

/// How often each operation was called.
#[derive(Debug, Clone, Default)]
pub(crate) struct Calls(Arc<[AtomicU64; 6]>);

impl Calls {
    pub(crate) fn of(&self, op: Op) -> u64 {
        self.0[op as usize].load(Ordering::SeqCst)
    }

    fn count(&self, op: Op) -> u64 {
        self.0[op as usize].fetch_add(1, Ordering::SeqCst) + 1
    }
}

impl Faulty {
    pub(crate) fn new(inner: MemorySource, script: impl Fn(Op, u64) -> Act + Send + Sync + 'static) -> Self {
        let capabilities = inner.capabilities();
        Self { inner, script: Box::new(script), calls: Calls::default(), capabilities }
    }

    pub(crate) fn with_capabilities(mut self, capabilities: Capabilities) -> Self {
        self.capabilities = capabilities;
        self
    }

    pub(crate) fn calls(&self) -> Calls {
        self.calls.clone()
    }

    fn next(&self, op: Op) -> Act {
        (self.script)(op, self.calls.count(op))
    }

    /// True when the call is to be passed on.
    async fn act(&self, op: Op, act: Act) -> Result<bool, Error> {
        match act {
            Act::Pass | Act::Late | Act::Buffered(_) | Act::Undated => Ok(true),
            Act::Nothing => Ok(false),
            Act::Panic => panic!("{op:?} panics"),
            Act::Hang => pending().await,
            Act::Fail(error) => Err(error),
        }
    }

    async fn passes(&self, op: Op) -> Result<bool, Error> {
        self.act(op, self.next(op)).await
    }
}

impl MessageSource for Faulty {
    type Receipt = MemoryReceipt;

    fn queue_name(&self) -> &str {
        self.inner.queue_name()
    }

    fn system(&self) -> &'static str {
        self.inner.system()
    }

    async fn receive(&self, cancel: &CancellationToken) -> windlass::Result<Option<Delivery<MemoryReceipt>>> {
        let act = self.next(Op::Receive);
        if matches!(act, Act::Late) {
            cancel.cancelled().await;
            return self.inner.receive(&CancellationToken::new()).await;
        }
        if !self.act(Op::Receive, act.clone()).await? {
            return Ok(None);
        }
        let delivery = self.inner.receive(cancel).await?;
        Ok(delivery.map(|Delivery { message, receipt }| {
            let at = match act {
                Act::Buffered(time) => message.received_at() - time,
                Act::Undated => SystemTime::UNIX_EPOCH,
                _ => message.received_at(),
            };
            Delivery { message: message.with_received_at(at), receipt }
        }))
    }

    async fn ack(&self, receipt: MemoryReceipt) -> windlass::Result<()> {
        if self.passes(Op::Ack).await? { self.inner.ack(receipt).await } else { Ok(()) }
    }

    async fn nack(&self, receipt: MemoryReceipt, reason: NackReason) -> windlass::Result<()> {
        if self.passes(Op::Nack).await? { self.inner.nack(receipt, reason).await } else { Ok(()) }
    }

    async fn extend(&self, receipt: &MemoryReceipt) -> windlass::Result<()> {
        if self.passes(Op::Extend).await? { self.inner.extend(receipt).await } else { Ok(()) }
    }

    async fn release(&self) -> windlass::Result<()> {
        if self.passes(Op::Release).await? { self.inner.release().await } else { Ok(()) }
    }

    async fn close(&self) -> windlass::Result<()> {
        if self.passes(Op::Close).await? { self.inner.close().await } else { Ok(()) }
    }

    fn health(&self) -> Health {
        self.inner.health()
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }
}
