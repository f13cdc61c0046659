//! Which queues and exchanges a broker has, by name. No locks: the broker has one around it.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use super::broker::QueueOptions;
use super::queue::Queue;

#[derive(Default)]
pub(super) struct Registry {
    queues: BTreeMap<String, Arc<Queue>>,
    /// Those that were deleted while somebody had a handle to them: the same comes back when it is made again.
    deleted: BTreeMap<String, Weak<Queue>>,
    /// The queues that hear what is sent to an exchange. Shared with those who are just sending.
    exchanges: BTreeMap<String, Arc<Vec<Arc<Queue>>>>,
}

impl Registry {
    pub(super) fn names(&self) -> Vec<&String> {
        self.queues.keys().collect()
    }

    pub(super) fn find(&self, name: &str) -> Option<&Arc<Queue>> {
        self.queues.get(name)
    }

    pub(super) fn insert(&mut self, name: &str, queue: &Arc<Queue>) {
        self.deleted.remove(name);
        self.queues.insert(name.to_owned(), Arc::clone(queue));
    }

    /// The queue of this name that was deleted, where somebody still has it and it was as `options` say.
    pub(super) fn revive(&mut self, name: &str, options: &QueueOptions) -> Option<Arc<Queue>> {
        let queue = self.deleted.remove(name)?.upgrade().filter(|queue| queue.options == *options)?;
        queue.revive();
        self.insert(name, &queue);
        Some(queue)
    }

    /// Takes out a queue and deletes what is in it; how many messages that were.
    pub(super) fn delete(&mut self, name: &str) -> Option<(Arc<Queue>, usize)> {
        let queue = self.queues.remove(name)?;
        self.deleted.retain(|_, queue| queue.strong_count() > 0);
        if !queue.exclusive {
            self.deleted.insert(name.to_owned(), Arc::downgrade(&queue));
        }
        let messages = queue.delete();
        Some((queue, messages))
    }

    pub(super) fn declare_exchange(&mut self, name: &str) {
        self.exchanges.entry(name.to_owned()).or_default();
    }

    /// Who hears what is sent to this exchange; `None` where there is no such exchange.
    pub(super) fn listeners(&self, exchange: &str) -> Option<Arc<Vec<Arc<Queue>>>> {
        self.exchanges.get(exchange).cloned()
    }

    /// False where there is no such exchange.
    pub(super) fn bind(&mut self, exchange: &str, queue: &Arc<Queue>) -> bool {
        let Some(listeners) = self.exchanges.get_mut(exchange) else { return false };
        Arc::make_mut(listeners).push(Arc::clone(queue));
        true
    }

    pub(super) fn unbind(&mut self, exchange: &str, queue: &Arc<Queue>) {
        if let Some(listeners) = self.exchanges.get_mut(exchange) {
            Arc::make_mut(listeners).retain(|listener| !Arc::ptr_eq(listener, queue));
        }
    }
}
