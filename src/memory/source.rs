//! One consumer of one queue.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::broker::MemoryBroker;
use super::exclusive::Hold;
use super::handle::{MemoryQueue, wait_until};
use super::state::MemoryReceipt;
use crate::clock::{Clock, after};
use crate::error::{ErrorKind, Result};
use crate::source::{Capabilities, Delivery, Health, MessageSource, NackReason};

/// A source on a queue in this process. Clones share one session: closing one closes all, and what they hold goes back
/// when the last is dropped. So does a slot or a subscription end.
#[derive(Clone)]
pub struct MemorySource(Arc<Session>);

/// A source that is not kept open by this.
pub(crate) struct WeakSource(Weak<Session>);

impl WeakSource {
    pub(crate) fn is_there(&self) -> bool {
        self.0.strong_count() > 0
    }

    pub(crate) fn upgrade(&self) -> Option<MemorySource> {
        self.0.upgrade().map(MemorySource)
    }
}

struct Session {
    id: u64,
    queue: MemoryQueue,
    prefetch: usize,
    idle: Option<Duration>,
    slot: Option<u32>,
    /// Of a queue of its own, which is given up with the last session that has this, or had it when it was closed.
    hold: Mutex<Option<Arc<Hold>>>,
    /// The queue is somebody else's.
    shut_out: bool,
    /// Set under the queue's lock, so that nothing is taken once it is set.
    closed: AtomicBool,
    /// Wakes those who wait when the session is closed.
    closing: CancellationToken,
}

impl MemorySource {
    /// A source with a queue of its own, called `memory`: enough for a test of one queue.
    pub fn new(clock: impl Clock) -> Self {
        MemoryBroker::new(clock).queue("memory").source()
    }

    pub(super) fn of(queue: MemoryQueue) -> Self {
        Self::open(queue, None, 0, None)
    }

    /// A source on a queue of its own.
    pub(super) fn held(queue: MemoryQueue, hold: Arc<Hold>) -> Self {
        Self::open(queue, Some(hold), 0, None)
    }

    fn open(queue: MemoryQueue, hold: Option<Arc<Hold>>, prefetch: usize, idle: Option<Duration>) -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        // On a queue that is somebody else's nothing is ever taken.
        let shut_out = queue.0.exclusive && hold.is_none();
        if !shut_out {
            queue.0.sources.fetch_add(1, Ordering::Relaxed);
        }
        Self(Arc::new(Session {
            slot: hold.as_ref().and_then(|hold| hold.slot()),
            hold: Mutex::new(hold),
            shut_out,
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            queue,
            prefetch,
            idle,
            closed: AtomicBool::new(shut_out),
            closing: CancellationToken::new(),
        }))
    }

    /// A new source on the same queue that takes up to `prefetch` messages at a time and keeps them until they are
    /// received or released, as push-based brokers do. 0, the default, takes one as it is received.
    #[must_use]
    pub fn with_prefetch(self, prefetch: usize) -> Self {
        Self::open(self.0.queue.clone(), self.0.hold().clone(), prefetch, self.0.idle)
    }

    /// A new source on the same queue whose `receive` returns `Ok(None)` when nothing came for `idle`. By default it
    /// waits for as long as it is not cancelled.
    #[must_use]
    pub fn with_idle(self, idle: Duration) -> Self {
        Self::open(self.0.queue.clone(), self.0.hold().clone(), self.0.prefetch, Some(idle))
    }

    /// The queue behind this source: to publish to it, look into it, and make it fail.
    pub fn queue(&self) -> &MemoryQueue {
        &self.0.queue
    }

    pub(crate) fn downgrade(&self) -> WeakSource {
        WeakSource(Arc::downgrade(&self.0))
    }

    /// Which slot it is, where it [claimed](MemoryBroker::claim) one.
    pub fn slot(&self) -> Option<u32> {
        self.0.slot
    }

    fn take(&self) -> Result<Option<Delivery<MemoryReceipt>>> {
        let session = &*self.0;
        let taken =
            session.queue.0.take(session.id, session.prefetch, || !session.closed.load(Ordering::Relaxed));
        taken.map_err(|error| {
            if session.shut_out { session.queue.0.error(ErrorKind::Taken, "receive") } else { error }
        })
    }

    async fn wait(&self, cancel: &CancellationToken) -> Result<Option<Delivery<MemoryReceipt>>> {
        let queue = &*self.0.queue.0;
        let clock = &*queue.clock;
        let mut idle = None;
        if let Some(time) = self.0.idle {
            idle = Some(clock.sleep_until(after(clock.now(), time)));
        }
        let mut idle = std::pin::pin!(async move {
            match idle {
                Some(sleep) => sleep.await,
                None => std::future::pending().await,
            }
        });
        loop {
            let mut arrived = std::pin::pin!(queue.arrived.notified());
            // Counted as waiting before it looks: what arrives from here on wakes it.
            arrived.as_mut().enable();
            if let Some(delivery) = self.take()? {
                return Ok(Some(delivery));
            }
            // Should it change from here on, `arrived` says so.
            let due = queue.next_due();
            // Only waits are lost here: what is taken is taken by `take`, in one step.
            tokio::select! {
                biased;
                () = &mut arrived => {}
                () = cancel.cancelled() => return Ok(None),
                () = self.0.closing.cancelled() => {}
                () = wait_until(clock, due) => {}
                () = &mut idle => return Ok(None),
            }
        }
    }
}

impl MessageSource for MemorySource {
    type Receipt = MemoryReceipt;

    fn queue_name(&self) -> &str {
        self.0.queue.name()
    }

    fn system(&self) -> &'static str {
        "memory"
    }

    async fn receive(&self, cancel: &CancellationToken) -> Result<Option<Delivery<MemoryReceipt>>> {
        if cancel.is_cancelled() {
            return Ok(None);
        }
        let taken = self.take();
        if let Ok(None) = taken { self.wait(cancel).await } else { taken }
    }

    async fn ack(&self, receipt: MemoryReceipt) -> Result<()> {
        self.0.queue.0.ack(&receipt)
    }

    async fn nack(&self, receipt: MemoryReceipt, reason: NackReason) -> Result<()> {
        self.0.queue.0.nack(&receipt, reason)
    }

    async fn extend(&self, receipt: &MemoryReceipt) -> Result<()> {
        self.0.queue.0.extend(receipt)
    }

    async fn release(&self) -> Result<()> {
        self.0.queue.0.release(self.0.id)
    }

    async fn close(&self) -> Result<()> {
        let ended = self.0.end();
        // Dropped unlocked: the last one deletes the queue.
        let hold = self.0.hold().take();
        drop(hold);
        ended
    }

    fn health(&self) -> Health {
        let not_ready = |reason: &str| Health::NotReady { reason: reason.to_owned() };
        if self.0.shut_out {
            not_ready("the queue is somebody else's")
        } else if self.0.closed.load(Ordering::Relaxed) {
            Health::Closed
        } else if self.0.queue.0.is_deleted() {
            not_ready("the queue was deleted")
        } else {
            Health::Ready
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new()
            .with_delayed_retry(true)
            .with_counts_attempts(true)
            .with_dead_letter(true)
            .with_counts_deliveries(true)
            .with_flags_redelivery(true)
            .with_requeue_order(self.0.queue.0.order)
            .with_lease(self.0.queue.0.lease)
    }
}

impl Session {
    fn hold(&self) -> MutexGuard<'_, Option<Arc<Hold>>> {
        self.hold.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self) -> Result<()> {
        let ended = self.queue.0.end_session(self.id, || {
            // Any number of tasks may close it.
            if !self.closed.swap(true, Ordering::Relaxed) {
                self.queue.0.sources.fetch_sub(1, Ordering::Relaxed);
            }
        });
        self.closing.cancel();
        ended
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.closed.load(Ordering::Relaxed) {
            // A scripted fault of `close` has nobody here to go to.
            let _ = self.end();
        }
    }
}

impl fmt::Debug for MemorySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemorySource").field("queue", &self.0.queue.name()).finish_non_exhaustive()
    }
}
