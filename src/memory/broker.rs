//! The broker: queues by name, and the publisher.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::handle::MemoryQueue;
use super::queue::{Changes, Queue, Surroundings};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::message::Message;
use crate::publisher::Publisher;
use crate::source::RequeueOrder;

/// Queues in this process, on one clock. Cheap to clone.
///
/// ```
/// use std::time::Duration;
/// use windlass::clock::ControlledClock;
/// use windlass::memory::{MemoryBroker, QueueOptions};
///
/// let broker = MemoryBroker::new(ControlledClock::new());
/// let orders = broker.queue("orders");
/// let leased = broker.declare("leased", QueueOptions::new().with_lease(Duration::from_secs(30)));
/// assert_eq!(broker.queue("orders").name(), orders.name());
/// # drop(leased);
/// ```
#[derive(Clone)]
pub struct MemoryBroker(Arc<Broker>);

pub(super) struct Broker {
    clock: Arc<dyn Clock>,
    changes: Arc<Changes>,
    queues: Mutex<BTreeMap<String, Arc<Queue>>>,
    this: Weak<Broker>,
}

/// How a queue behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueOptions {
    /// For how long a delivery is the receiver's; then it comes back. No lease by default.
    pub lease: Option<Duration>,
    /// Where a requeued message goes: to the front by default, as on a classic queue of RabbitMQ.
    pub requeue_order: RequeueOrder,
    /// How many acks, and how many nacks, are remembered for tests; 10,000 of each by default.
    pub history: usize,
}

impl QueueOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self { lease: None, requeue_order: RequeueOrder::Front, history: 10_000 }
    }

    /// Sets [`lease`](Self::lease); zero means none.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease).filter(|lease| !lease.is_zero());
        self
    }

    /// Sets [`requeue_order`](Self::requeue_order).
    #[must_use]
    pub fn with_requeue_order(mut self, order: RequeueOrder) -> Self {
        self.requeue_order = order;
        self
    }

    /// Sets [`history`](Self::history).
    #[must_use]
    pub fn with_history(mut self, history: usize) -> Self {
        self.history = history;
        self
    }
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryBroker {
    /// A broker without queues, on this clock.
    pub fn new(clock: impl Clock) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(clock);
        Self(Arc::new_cyclic(|this| Broker {
            clock,
            changes: Arc::default(),
            queues: Mutex::new(BTreeMap::new()),
            this: this.clone(),
        }))
    }

    /// The queue of this name; made with the default options if there is none.
    pub fn queue(&self, name: &str) -> MemoryQueue {
        MemoryQueue(self.0.queue(name))
    }

    /// Makes a queue with these options. One that is there already stays as it is.
    pub fn declare(&self, name: &str, options: QueueOptions) -> MemoryQueue {
        MemoryQueue(self.0.declare(name, options))
    }

    /// A publisher to the queues of this broker.
    pub fn publisher(&self) -> MemoryPublisher {
        MemoryPublisher(Arc::clone(&self.0))
    }
}

impl fmt::Debug for MemoryBroker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryBroker").field("queues", &self.0.lock().keys().collect::<Vec<_>>()).finish()
    }
}

impl Broker {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Queue>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn queue(&self, name: &str) -> Arc<Queue> {
        self.declare(name, QueueOptions::new())
    }

    fn declare(&self, name: &str, options: QueueOptions) -> Arc<Queue> {
        let mut queues = self.lock();
        if let Some(queue) = queues.get(name) {
            return Arc::clone(queue);
        }
        let surroundings = Surroundings {
            clock: Arc::clone(&self.clock),
            changes: Arc::clone(&self.changes),
            broker: self.this.clone(),
        };
        let queue = Arc::new(Queue::new(name, options, surroundings));
        queues.insert(name.to_owned(), Arc::clone(&queue));
        queue
    }

    fn find(&self, name: &str) -> Option<Arc<Queue>> {
        self.lock().get(name).cloned()
    }
}

/// Sends messages to the queues of a [`MemoryBroker`]. Cheap to clone.
#[derive(Clone)]
pub struct MemoryPublisher(Arc<Broker>);

impl fmt::Debug for MemoryPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryPublisher").finish_non_exhaustive()
    }
}

impl Publisher for MemoryPublisher {
    async fn publish(&self, queue: &str, message: Message) -> Result<()> {
        let unroutable = || Error::new(ErrorKind::Unroutable, "publish").with_context("queue", queue);
        self.0.find(queue).ok_or_else(unroutable)?.publish(&message)
    }
}
