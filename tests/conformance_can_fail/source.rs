//! A source that is whole, around the memory source, and the places where a fault can take over.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;
use windlass::clock::{Clock, ControlledClock};
use windlass::conformance::{Cut, Harness};
use windlass::memory::{MemoryBroker, MemoryQueue, MemoryReceipt, MemorySource, QueueOptions};
use windlass::message::Message;
use windlass::source::{Capabilities, Delivery, Health, MessageSource, NackReason, RequeueOrder};
use windlass::{Error, ErrorKind, Result};

pub(crate) type Outcome<'a, T = ()> = BoxFuture<'a, Result<T>>;
pub(crate) type Received = Option<Delivery<Receipt>>;

/// The delay unit of the suite on these sources.
pub(crate) const UNIT: Duration = Duration::from_secs(1);
pub(crate) const LEASE: Duration = Duration::from_secs(10);

/// What the source is made of, before a fault is put in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Everything but a lease and a buffer.
    Usual,
    /// With a lease.
    Leased,
    /// With a lease, and taking messages ahead.
    Buffering,
    /// Nothing that can be declared, and no connection.
    Plain,
}

/// One way in which a source is broken. What is not overridden is whole.
pub(crate) trait Fault: Send + Sync + 'static {
    fn capabilities(&self, whole: Capabilities) -> Capabilities {
        whole
    }

    fn queue_name<'a>(&self, whole: &'a Whole) -> &'a str {
        whole.source.queue_name()
    }

    fn receive<'a>(&'a self, whole: &'a Whole, cancel: &'a CancellationToken) -> Outcome<'a, Received> {
        whole.receive(cancel).boxed()
    }

    fn ack<'a>(&'a self, whole: &'a Whole, receipt: Receipt) -> Outcome<'a> {
        whole.ack(receipt).boxed()
    }

    fn nack<'a>(&'a self, whole: &'a Whole, receipt: Receipt, reason: NackReason) -> Outcome<'a> {
        whole.nack(receipt, reason).boxed()
    }

    fn extend<'a>(&'a self, whole: &'a Whole, receipt: &'a Receipt) -> Outcome<'a> {
        whole.extend(receipt).boxed()
    }

    fn release<'a>(&'a self, whole: &'a Whole) -> Outcome<'a> {
        whole.source.release().boxed()
    }

    fn close<'a>(&'a self, whole: &'a Whole) -> Outcome<'a> {
        whole.source.close().boxed()
    }

    fn health(&self, whole: &Whole) -> Health {
        whole.source.health()
    }

    /// The connection is about to be cut.
    fn cut<'a>(&'a self, _whole: &'a Whole) -> BoxFuture<'a, ()> {
        async {}.boxed()
    }

    /// The source is dropped.
    fn dropped(&self, _whole: &Whole) {}
}

/// Nothing broken.
pub(crate) struct Unbroken;

impl Fault for Unbroken {}

/// What settles a delivery here; it knows its message, so that faults can make something of it.
pub(crate) struct Receipt {
    /// `None` on a delivery that a fault made up or keeps the receipt of.
    pub(crate) real: Option<MemoryReceipt>,
    pub(crate) message: Message,
    /// Counts the deliveries of one source from 0.
    pub(crate) tag: u64,
}

/// The parts that work.
pub(crate) struct Whole {
    pub(crate) source: MemorySource,
    pub(crate) clock: ControlledClock,
    plain: bool,
    tags: AtomicU64,
}

impl Whole {
    pub(crate) async fn receive(&self, cancel: &CancellationToken) -> Result<Received> {
        let Some(Delivery { mut message, receipt }) = self.source.receive(cancel).await? else {
            return Ok(None);
        };
        if self.plain {
            message = message.with_attempt(1).with_redelivered(false).with_delivery_count(None);
        }
        let tag = self.tags.fetch_add(1, Ordering::Relaxed);
        let receipt = Receipt { real: Some(receipt), message: message.clone(), tag };
        Ok(Some(Delivery { message, receipt }))
    }

    pub(crate) async fn ack(&self, receipt: Receipt) -> Result<()> {
        match receipt.real {
            Some(real) => self.source.ack(real).await,
            None => Ok(()),
        }
    }

    pub(crate) async fn nack(&self, receipt: Receipt, reason: NackReason) -> Result<()> {
        let Some(real) = receipt.real else { return Ok(()) };
        match reason {
            NackReason::DeadLetter { cause } if self.plain => {
                self.source.nack(real, NackReason::requeue_now(cause)).await?;
                Err(self.error(ErrorKind::Unsupported, "nack"))
            }
            NackReason::Retry { cause, .. } if self.plain => {
                self.source.nack(real, NackReason::retry(cause)).await
            }
            reason => self.source.nack(real, reason).await,
        }
    }

    pub(crate) async fn extend(&self, receipt: &Receipt) -> Result<()> {
        match &receipt.real {
            Some(real) => self.source.extend(real).await,
            None => Ok(()),
        }
    }

    pub(crate) fn error(&self, kind: ErrorKind, operation: &'static str) -> Error {
        Error::new(kind, operation).with_message("broken on purpose")
    }

    /// How many deliveries there were so far.
    pub(crate) fn delivered(&self) -> u64 {
        self.tags.load(Ordering::Relaxed)
    }

    pub(crate) fn queue(&self) -> &MemoryQueue {
        self.source.queue()
    }
}

/// The whole source with the fault of this run in it.
pub(crate) struct Faulty(Arc<Parts>);

struct Parts {
    whole: Whole,
    fault: Box<dyn Fault>,
}

impl Drop for Parts {
    fn drop(&mut self) {
        self.fault.dropped(&self.whole);
    }
}

impl MessageSource for Faulty {
    type Receipt = Receipt;

    fn queue_name(&self) -> &str {
        self.0.fault.queue_name(&self.0.whole)
    }

    fn system(&self) -> &'static str {
        "memory"
    }

    async fn receive(&self, cancel: &CancellationToken) -> Result<Received> {
        self.0.fault.receive(&self.0.whole, cancel).await
    }

    async fn ack(&self, receipt: Receipt) -> Result<()> {
        self.0.fault.ack(&self.0.whole, receipt).await
    }

    async fn nack(&self, receipt: Receipt, reason: NackReason) -> Result<()> {
        self.0.fault.nack(&self.0.whole, receipt, reason).await
    }

    async fn extend(&self, receipt: &Receipt) -> Result<()> {
        self.0.fault.extend(&self.0.whole, receipt).await
    }

    async fn release(&self) -> Result<()> {
        self.0.fault.release(&self.0.whole).await
    }

    async fn close(&self) -> Result<()> {
        self.0.fault.close(&self.0.whole).await
    }

    fn health(&self) -> Health {
        self.0.fault.health(&self.0.whole)
    }

    fn capabilities(&self) -> Capabilities {
        let claimed = self.0.whole.source.capabilities();
        let whole = if self.0.whole.plain { Capabilities::new() } else { claimed };
        self.0.fault.capabilities(whole)
    }
}

/// How the sources of one run are made.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) shape: Shape,
    pub(crate) fault: fn() -> Box<dyn Fault>,
    pub(crate) patience: Duration,
}

tokio::task_local! {
    /// The plan of the run that a harness is set up in: a harness is made from nothing but the name of a case.
    pub(crate) static PLAN: Plan;
}

pub(crate) struct FaultyHarness {
    plan: Plan,
    clock: ControlledClock,
    queue: MemoryQueue,
    opened: Mutex<Vec<Weak<Parts>>>,
}

impl Harness for FaultyHarness {
    type Source = Faulty;

    async fn set_up(case: &'static str) -> Result<Self> {
        let plan = PLAN.get();
        let clock = ControlledClock::new();
        let mut options = QueueOptions::new();
        if matches!(plan.shape, Shape::Leased | Shape::Buffering) {
            options = options.with_lease(LEASE);
        }
        let queue = MemoryBroker::new(clock.clone()).declare(case, options);
        Ok(Self { plan, clock, queue, opened: Mutex::default() })
    }

    fn capabilities(&self) -> Capabilities {
        let usual = Capabilities::new()
            .with_delayed_retry(true)
            .with_counts_attempts(true)
            .with_dead_letter(true)
            .with_counts_deliveries(true)
            .with_flags_redelivery(true)
            .with_requeue_order(RequeueOrder::Front);
        match self.plan.shape {
            Shape::Usual => usual,
            Shape::Leased | Shape::Buffering => usual.with_lease(Some(LEASE)),
            Shape::Plain => Capabilities::new(),
        }
    }

    async fn source(&self, window: std::num::NonZeroUsize) -> Result<Faulty> {
        let mut source = self.queue.source();
        if self.plan.shape == Shape::Buffering {
            source = source.with_prefetch(window.get());
        }
        let plain = self.plan.shape == Shape::Plain;
        let whole = Whole { source, clock: self.clock.clone(), plain, tags: AtomicU64::new(0) };
        let parts = Arc::new(Parts { whole, fault: (self.plan.fault)() });
        self.opened.lock().unwrap().push(Arc::downgrade(&parts));
        Ok(Faulty(parts))
    }

    async fn publish(&self, message: Message) -> Result<()> {
        self.queue.publish(message);
        Ok(())
    }

    async fn dead_letters(&self) -> Result<Vec<Message>> {
        Ok(self.queue.dead_letter_queue().pending())
    }

    async fn cut(&self) -> Result<Cut> {
        let opened: Vec<_> = self.opened.lock().unwrap().iter().filter_map(Weak::upgrade).collect();
        for parts in opened {
            parts.fault.cut(&parts.whole).await;
        }
        if self.plan.shape == Shape::Plain {
            return Ok(Cut::NoConnection);
        }
        self.queue.cut();
        Ok(Cut::Done)
    }

    async fn pass(&self, time: Duration) {
        self.clock.advance(time).await;
    }

    fn clock(&self) -> &dyn Clock {
        &self.clock
    }

    fn delay_unit(&self) -> Duration {
        UNIT
    }

    fn patience(&self) -> Duration {
        self.plan.patience
    }
}
