//! The broker: queues by name, and the publisher.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::handle::MemoryQueue;
use super::queue::{Changes, Queue, Surroundings};
use super::registry::Registry;
use super::source::MemorySource;
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::message::Message;
use crate::publisher::Publisher;
use crate::queue::DeleteQueue;
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
pub struct MemoryBroker(pub(super) Arc<Broker>);

pub(super) struct Broker {
    clock: Arc<dyn Clock>,
    changes: Arc<Changes>,
    registry: Mutex<Registry>,
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
    /// How many messages may wait; any number by default. What waits for a retry's delay does not count.
    pub max_messages: Option<NonZeroUsize>,
    /// What becomes of a message for which there is no room.
    pub overflow: Overflow,
    /// For how long a message may be in the queue; for ever by default. It then goes without a word, unless somebody has it
    /// in hand: then as soon as it comes back. Meant for queues of some hundred messages.
    pub max_age: Option<Duration>,
}

/// What becomes of a message for which a queue has no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Overflow {
    /// It is refused, and the publisher is told.
    #[default]
    Refuse,
    /// The oldest one that waits is dropped.
    DropOldest,
}

impl QueueOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self {
            lease: None,
            requeue_order: RequeueOrder::Front,
            history: 10_000,
            max_messages: None,
            overflow: Overflow::Refuse,
            max_age: None,
        }
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

    /// Sets [`max_messages`](Self::max_messages).
    #[must_use]
    pub fn with_max_messages(mut self, most: NonZeroUsize) -> Self {
        self.max_messages = Some(most);
        self
    }

    /// Sets [`overflow`](Self::overflow).
    #[must_use]
    pub fn with_overflow(mut self, overflow: Overflow) -> Self {
        self.overflow = overflow;
        self
    }

    /// Sets [`max_age`](Self::max_age); zero means none.
    #[must_use]
    pub fn with_max_age(mut self, age: Duration) -> Self {
        self.max_age = Some(age).filter(|age| !age.is_zero());
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
            registry: Mutex::default(),
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

    /// A source on a queue that somebody made.
    ///
    /// # Errors
    ///
    /// `NotFound` where nobody did; `Taken` where it is somebody's own.
    pub fn source(&self, queue: &str) -> Result<MemorySource> {
        match self.0.find(queue) {
            Some(found) if found.exclusive => Err(found.error(ErrorKind::Taken, "open")),
            Some(found) => Ok(MemoryQueue(found).source()),
            None => Err(Error::new(ErrorKind::NotFound, "open").with_context("queue", queue)),
        }
    }

    /// Whether there is a queue of this name.
    pub fn queue_exists(&self, queue: &str) -> bool {
        self.0.find(queue).is_some()
    }

    /// Deletes a queue, as far as `options` allow; how many messages went with it, those in hand and those that wait for a
    /// delay among them. `None` where there is no such queue. Its dead-letter queue is another, and stays.
    ///
    /// Sources that pull from it are told by `NotFound`, and their receipts are stale. Once a queue of this name is made
    /// again, as it was, they and all handles are on that one.
    ///
    /// # Errors
    ///
    /// `Refused` where the options do not allow it; each source that is open counts as one who consumes. `Taken` where it
    /// is somebody's own.
    pub fn delete_queue(&self, queue: &str, options: DeleteQueue) -> Result<Option<usize>> {
        let mut registry = self.0.lock();
        if let Some(found) = registry.find(queue) {
            found.check_delete(options)?;
        }
        let deleted = registry.delete(queue);
        drop(registry);
        Ok(deleted.map(|(queue, messages)| {
            queue.wake_all();
            messages
        }))
    }

    /// Makes an exchange: what is sent to it goes to all who [subscribe](Self::subscribe). One that is there already stays
    /// as it is.
    pub fn declare_exchange(&self, exchange: &str) {
        self.0.lock().declare_exchange(exchange);
    }

    /// A publisher to the queues of this broker.
    pub fn publisher(&self) -> MemoryPublisher {
        MemoryPublisher(Arc::clone(&self.0))
    }
}

impl fmt::Debug for MemoryBroker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryBroker").field("queues", &self.0.lock().names()).finish()
    }
}

impl Broker {
    pub(super) fn lock(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn queue(&self, name: &str) -> Arc<Queue> {
        self.declare(name, QueueOptions::new())
    }

    fn declare(&self, name: &str, options: QueueOptions) -> Arc<Queue> {
        let mut registry = self.lock();
        if let Some(queue) = registry.find(name) {
            return Arc::clone(queue);
        }
        registry.revive(name, &options).unwrap_or_else(|| {
            let queue = Arc::new(Queue::shared(name, options, self.surroundings()));
            registry.insert(name, &queue);
            queue
        })
    }

    pub(super) fn surroundings(&self) -> Surroundings {
        Surroundings {
            clock: Arc::clone(&self.clock),
            changes: Arc::clone(&self.changes),
            broker: self.this.clone(),
        }
    }

    fn find(&self, name: &str) -> Option<Arc<Queue>> {
        self.lock().find(name).cloned()
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

    async fn broadcast(&self, exchange: &str, message: Message) -> Result<()> {
        let listeners =
            self.0.lock().listeners(exchange).ok_or_else(|| {
                Error::new(ErrorKind::NotFound, "broadcast").with_context("exchange", exchange)
            })?;
        let mut told = Ok(());
        for listener in listeners.iter() {
            match listener.publish(&message) {
                // It has just unsubscribed.
                Err(error) if error.kind() == ErrorKind::Unroutable => {}
                // The others get theirs all the same.
                sent => told = told.and(sent),
            }
        }
        told
    }
}
