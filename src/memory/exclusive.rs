//! Queues of somebody's own: slots that are claimed, and subscriptions to an exchange.

use std::sync::{Arc, Weak};

use uuid::Uuid;

use super::broker::{Broker, MemoryBroker};
use super::handle::MemoryQueue;
use super::queue::{DeadLetterTo, Queue};
use super::source::MemorySource;
use crate::error::{Error, ErrorKind, Result};
use crate::queue::{Slot, check_name};

/// What makes a source the owner of its queue: the queue ends with it.
pub(super) struct Hold {
    broker: Weak<Broker>,
    queue: Arc<Queue>,
    of: Of,
}

enum Of {
    Slot(u32),
    Subscription { exchange: String },
}

impl Hold {
    pub(super) fn slot(&self) -> Option<u32> {
        match self.of {
            Of::Slot(n) => Some(n),
            Of::Subscription { .. } => None,
        }
    }

    /// Gives the queue up: it is deleted with what is in it.
    fn release(&self) {
        match (self.broker.upgrade(), &self.of) {
            (Some(broker), Of::Slot(_)) => broker.release_slot(&self.queue),
            (Some(broker), Of::Subscription { exchange }) => broker.unsubscribe(exchange, &self.queue),
            (None, _) => {
                self.queue.delete();
            }
        }
        self.queue.wake_all();
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.release();
    }
}

impl MemoryBroker {
    /// Claims a slot of a family of queues, and opens a source on its queue, `<family>_<n>`.
    ///
    /// The queue is made by this call, and is the claimant's alone until the source, its clones and the sources made of it
    /// by `with_…` are all closed or dropped; then it is deleted with what is in it, as an exclusive queue of
    /// RabbitMQ is when its connection ends. Its dead letters go to `<family>.dlq`, and stay there.
    ///
    /// # Errors
    ///
    /// `Taken` where somebody has the slot, or all that are to be tried; `Refused` where a queue of this name was made
    /// for everybody; `Invalid` for the name of a family that is none.
    pub fn claim(&self, family: &str, slot: Slot) -> Result<MemorySource> {
        for n in slot.candidates() {
            let name = Slot::queue(family, n);
            check_name("claim", "family", family).and_then(|()| check_name("claim", "queue", &name))?;
            let dead_letter_to = DeadLetterTo::own(family);
            let made = self.0.make_slot(&name, || {
                Arc::new(Queue::exclusive(&name, dead_letter_to, self.0.surroundings()))
            })?;
            if let Some(queue) = made {
                return Ok(self.held(queue, Of::Slot(n)));
            }
        }
        let which = match slot {
            Slot::Number(n) => format!("slot {n}"),
            Slot::FirstFree { most } => format!("all slots from 1 to {most}"),
        };
        Err(Error::new(ErrorKind::Taken, "claim").with_message(which).with_context("family", family))
    }

    /// Subscribes to an exchange: opens a source on a queue of its own that gets a copy of each message which is
    /// [broadcast](crate::Publisher::broadcast) from here on.
    ///
    /// The queue has no name by which others find it, and is deleted with what is in it when the source is closed or
    /// dropped. The source calls it `<exchange>.subscriber`. What is given up is dropped: everybody has a copy, and this
    /// one would outlive its queue.
    ///
    /// # Errors
    ///
    /// `NotFound` where nobody [declared](Self::declare_exchange) the exchange.
    pub fn subscribe(&self, exchange: &str) -> Result<MemorySource> {
        let dead_letter_to = DeadLetterTo::Nowhere(format!("{exchange}.{}.dlq", Uuid::new_v4()));
        let name = format!("{exchange}.subscriber");
        let queue = Arc::new(Queue::exclusive(&name, dead_letter_to, self.0.surroundings()));
        if !self.0.lock().bind(exchange, &queue) {
            return Err(Error::new(ErrorKind::NotFound, "subscribe").with_context("exchange", exchange));
        }
        Ok(self.held(queue, Of::Subscription { exchange: exchange.to_owned() }))
    }

    fn held(&self, queue: Arc<Queue>, of: Of) -> MemorySource {
        let hold = Hold { broker: Arc::downgrade(&self.0), queue: Arc::clone(&queue), of };
        MemorySource::held(MemoryQueue(queue), Arc::new(hold))
    }
}

impl Broker {
    /// Makes the queue of a slot; `None` where somebody has it.
    fn make_slot(&self, name: &str, make: impl FnOnce() -> Arc<Queue>) -> Result<Option<Arc<Queue>>> {
        let mut registry = self.lock();
        match registry.find(name) {
            Some(queue) if queue.exclusive => Ok(None),
            Some(_) => Err(Error::new(ErrorKind::Refused, "claim")
                .with_message("the queue is there for everybody, and so is no slot")
                .with_context("queue", name)),
            None => {
                let queue = make();
                registry.insert(name, &queue);
                Ok(Some(queue))
            }
        }
    }

    fn release_slot(&self, queue: &Arc<Queue>) {
        let mut registry = self.lock();
        // Somebody else may have the slot by now.
        if registry.find(&queue.name).is_some_and(|there| Arc::ptr_eq(there, queue)) {
            registry.delete(&queue.name);
        }
    }

    fn unsubscribe(&self, exchange: &str, queue: &Arc<Queue>) {
        self.lock().unbind(exchange, queue);
        queue.delete();
    }
}
