//! Kinds of fault that many broken sources share.

use std::collections::BTreeMap;
use std::sync::Mutex;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;
use windlass::memory::MemoryReceipt;
use windlass::message::{Headers, Message};
use windlass::source::{DeadLetter, MessageSource, NackReason};
use windlass::{ErrorKind, Result};

use super::source::{Fault, Outcome, Receipt, Received, Shape, Whole};

/// A source that is broken on purpose, and the promises that it breaks.
pub(crate) struct Broken {
    /// What is wrong with it.
    pub(crate) what: &'static str,
    pub(crate) shape: Shape,
    pub(crate) fault: fn() -> Box<dyn Fault>,
    /// The cases that must fail on it; others may.
    pub(crate) breaks: &'static [&'static str],
}

/// Changes each message on its way to the receiver.
pub(crate) struct Alters(pub(crate) fn(&Whole, Message) -> Message);

impl Fault for Alters {
    fn receive<'a>(&'a self, whole: &'a Whole, cancel: &'a CancellationToken) -> Outcome<'a, Received> {
        async move {
            let mut delivery = whole.receive(cancel).await?;
            if let Some(delivery) = &mut delivery {
                delivery.message = (self.0)(whole, delivery.message.clone());
            }
            Ok(delivery)
        }
        .boxed()
    }
}

/// Tells the broker another reason than the one it was given.
pub(crate) struct Rewrites(pub(crate) fn(&Message, NackReason) -> NackReason);

impl Fault for Rewrites {
    fn nack<'a>(&'a self, whole: &'a Whole, receipt: Receipt, reason: NackReason) -> Outcome<'a> {
        let reason = (self.0)(&receipt.message, reason);
        whole.nack(receipt, reason).boxed()
    }
}

/// Makes the dead letter itself, from the message and the headers that ought to be on it.
pub(crate) struct Buries(pub(crate) fn(Message, Headers) -> Message);

impl Fault for Buries {
    fn nack<'a>(&'a self, whole: &'a Whole, receipt: Receipt, reason: NackReason) -> Outcome<'a> {
        async move {
            let NackReason::DeadLetter { cause } = reason else { return whole.nack(receipt, reason).await };
            let message = receipt.message.clone();
            whole.ack(receipt).await?;
            let wall = windlass::clock::Clock::wall(&whole.clock);
            let letter = DeadLetter::new(cause, &message, whole.source.queue_name(), wall);
            let headers = letter.stamp(message.headers().clone());
            whole.queue().dead_letter_queue().publish((self.0)(message, headers));
            Ok(())
        }
        .boxed()
    }
}

/// Deliveries known by number alone, as on a channel of AMQP 0-9-1. Whole, but for what the numbers are used for.
#[derive(Default)]
pub(crate) struct Tags {
    held: Mutex<BTreeMap<u64, MemoryReceipt>>,
    /// What the numbers of the present connection begin at.
    base: Mutex<u64>,
}

impl Tags {
    /// Receives, and keeps the receipt here.
    pub(crate) async fn receive(&self, whole: &Whole, cancel: &CancellationToken) -> Result<Received> {
        let mut delivery = whole.receive(cancel).await?;
        if let Some(delivery) = &mut delivery {
            delivery.receipt.tag -= *self.base.lock().unwrap();
            self.held
                .lock()
                .unwrap()
                .extend(delivery.receipt.real.take().map(|real| (delivery.receipt.tag, real)));
        }
        Ok(delivery)
    }

    /// The receipt of this number, put back into a receipt of ours.
    pub(crate) fn take(&self, whole: &Whole, mut receipt: Receipt) -> Result<Receipt> {
        receipt.real = self.held.lock().unwrap().remove(&receipt.tag);
        if receipt.real.is_some() { Ok(receipt) } else { Err(whole.error(ErrorKind::Stale, "settle")) }
    }

    /// All receipts up to this number.
    pub(crate) fn up_to(&self, tag: u64) -> Vec<MemoryReceipt> {
        let mut held = self.held.lock().unwrap();
        let later = held.split_off(&(tag + 1));
        std::mem::replace(&mut *held, later).into_values().collect()
    }

    pub(crate) async fn extend(&self, whole: &Whole, receipt: &Receipt) -> Result<()> {
        let Some(real) = self.held.lock().unwrap().remove(&receipt.tag) else {
            return Err(whole.error(ErrorKind::Stale, "extend"));
        };
        let extended = whole.source.extend(&real).await;
        self.held.lock().unwrap().insert(receipt.tag, real);
        extended
    }

    pub(crate) async fn extend_all(&self, whole: &Whole) {
        let held = std::mem::take(&mut *self.held.lock().unwrap());
        for real in held.values() {
            // Stale by now, perhaps: then there is nothing to keep alive.
            drop(whole.source.extend(real).await);
        }
        self.held.lock().unwrap().extend(held);
    }

    /// Counts from 0 again, as a new channel does: `next` is how many deliveries there were.
    pub(crate) fn begin_anew(&self, next: u64) {
        self.held.lock().unwrap().clear();
        *self.base.lock().unwrap() = next;
    }

    /// Answers for everything that is held.
    pub(crate) async fn settle_all(&self, whole: &Whole, reason: Option<&NackReason>) {
        for real in self.up_to(u64::MAX - 1) {
            let done = match reason {
                Some(reason) => whole.source.nack(real, reason.clone()).await,
                None => whole.source.ack(real).await,
            };
            // Stale by now, perhaps: that is as good.
            drop(done);
        }
    }
}

/// A source whose deliveries are known by number, with one thing wrong about them.
pub(crate) trait Numbered: Send + Sync + 'static {
    fn tags(&self) -> &Tags;

    fn ack<'a>(&'a self, whole: &'a Whole, receipt: Receipt) -> Outcome<'a> {
        async move { whole.ack(self.tags().take(whole, receipt)?).await }.boxed()
    }

    fn nack<'a>(&'a self, whole: &'a Whole, receipt: Receipt, reason: NackReason) -> Outcome<'a> {
        async move { whole.nack(self.tags().take(whole, receipt)?, reason).await }.boxed()
    }

    fn release<'a>(&'a self, whole: &'a Whole) -> Outcome<'a> {
        whole.source.release().boxed()
    }

    fn close<'a>(&'a self, whole: &'a Whole) -> Outcome<'a> {
        whole.source.close().boxed()
    }

    fn cut<'a>(&'a self, _: &'a Whole) -> BoxFuture<'a, ()> {
        async {}.boxed()
    }
}

/// Makes a fault of a [`Numbered`].
pub(crate) struct ByNumber<N>(pub(crate) N);

impl<N: Numbered> Fault for ByNumber<N> {
    fn receive<'a>(&'a self, whole: &'a Whole, cancel: &'a CancellationToken) -> Outcome<'a, Received> {
        self.0.tags().receive(whole, cancel).boxed()
    }

    fn ack<'a>(&'a self, whole: &'a Whole, receipt: Receipt) -> Outcome<'a> {
        self.0.ack(whole, receipt)
    }

    fn nack<'a>(&'a self, whole: &'a Whole, receipt: Receipt, reason: NackReason) -> Outcome<'a> {
        self.0.nack(whole, receipt, reason)
    }

    fn extend<'a>(&'a self, whole: &'a Whole, receipt: &'a Receipt) -> Outcome<'a> {
        self.0.tags().extend(whole, receipt).boxed()
    }

    fn release<'a>(&'a self, whole: &'a Whole) -> Outcome<'a> {
        self.0.release(whole)
    }

    fn close<'a>(&'a self, whole: &'a Whole) -> Outcome<'a> {
        self.0.close(whole)
    }

    fn cut<'a>(&'a self, whole: &'a Whole) -> BoxFuture<'a, ()> {
        self.0.cut(whole)
    }
}
