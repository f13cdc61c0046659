//! How much may wait in a queue, and for how long.
//!
//! A queue without limits pays one look at a flag for them. A queue with a limit of age remembers when each message came
//! and looks for it among those that wait: meant for queues of some hundred messages, as those of dead letters are.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::broker::{Overflow, QueueOptions};
use super::state::State;
use crate::clock::after;
use crate::message::Content;

#[derive(Debug)]
pub(super) struct Limits {
    pub(super) max_messages: Option<NonZeroUsize>,
    pub(super) overflow: Overflow,
    pub(super) max_age: Option<Duration>,
    /// When those came that are in the queue, oldest first. Each has its content for itself, by which it is found.
    arrivals: VecDeque<(Instant, Arc<Content>)>,
    /// Too old, and in somebody's hands: they go once they come back.
    overdue: Vec<Arc<Content>>,
}

impl Limits {
    /// `None` where the options limit nothing.
    pub(super) fn of(options: &QueueOptions) -> Option<Box<Self>> {
        let QueueOptions { max_messages, overflow, max_age, .. } = *options;
        let limited = max_messages.is_some() || max_age.is_some();
        let (arrivals, overdue) = (VecDeque::new(), Vec::new());
        limited.then(|| Box::new(Self { max_messages, overflow, max_age, arrivals, overdue }))
    }

    fn first_due(&self) -> Option<Instant> {
        let (arrived, _) = self.arrivals.front()?;
        self.max_age.map(|age| after(*arrived, age))
    }

    /// It is in the queue no more.
    fn forget(&mut self, content: &Arc<Content>) {
        self.arrivals.retain(|(_, known)| !Arc::ptr_eq(known, content));
        self.overdue.retain(|known| !Arc::ptr_eq(known, content));
    }
}

impl State {
    /// Whether each message has a time at which it goes.
    pub(super) fn has_age_limit(&self) -> bool {
        self.limits.as_ref().is_some_and(|limits| limits.max_age.is_some())
    }

    /// When the next one is too old.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.limits.as_ref()?.first_due()
    }

    /// Whether there is no room for one more, and it is to be refused.
    pub(super) fn is_full(&self) -> bool {
        self.limits.as_ref().is_some_and(|limits| {
            limits.overflow == Overflow::Refuse
                && limits.max_messages.is_some_and(|most| self.ready.len() >= most.get())
        })
    }

    /// As [`publish`](Self::publish), within the limits.
    pub(super) fn publish_limited(&mut self, content: &Arc<Content>, now: Instant) {
        self.expire(now);
        let own = match &mut self.limits {
            Some(limits) if limits.max_age.is_some() => {
                let own = Arc::new((**content).clone());
                limits.arrivals.push_back((now, Arc::clone(&own)));
                own
            }
            _ => Arc::clone(content),
        };
        self.publish(own);
        self.drop_oldest();
    }

    /// Drops the oldest of those that are too many.
    pub(super) fn drop_oldest(&mut self) {
        let Some(limits) = &mut self.limits else { return };
        let Some(most) = limits.max_messages.filter(|_| limits.overflow == Overflow::DropOldest) else {
            return;
        };
        while self.ready.len() > most.get() {
            let Some(oldest) = self.ready.pop_front() else { return };
            limits.forget(&oldest.stored.content);
            self.counts.dropped += 1;
        }
    }

    /// Drops those that are too old. True when there were any.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        let Some(mut limits) = self.limits.take_if(|limits| limits.max_age.is_some()) else { return false };
        while limits.first_due().is_some_and(|due| due <= now) {
            limits.overdue.extend(limits.arrivals.pop_front().map(|(_, content)| content));
        }
        let before = limits.overdue.len();
        limits.overdue.retain(|content| !self.drop_waiting(content));
        let dropped = before - limits.overdue.len();
        self.counts.dropped += dropped as u64;
        self.limits = Some(limits);
        dropped > 0
    }

    /// False where it does not wait here: somebody has it.
    fn drop_waiting(&mut self, content: &Arc<Content>) -> bool {
        if let Some(at) = self.ready.iter().position(|ready| Arc::ptr_eq(&ready.stored.content, content)) {
            return self.ready.remove(at).is_some();
        }
        let mut delayed = self.delayed.iter();
        let found = delayed.find(|(_, stored)| Arc::ptr_eq(&stored.content, content));
        let Some(key) = found.map(|(key, _)| *key) else { return false };
        self.delayed.remove(&key).is_some()
    }

    /// A message has left the queue for good.
    pub(super) fn forget_arrival(&mut self, content: &Arc<Content>) {
        if let Some(limits) = &mut self.limits {
            limits.forget(content);
        }
    }

    pub(super) fn forget_arrivals(&mut self) {
        if let Some(limits) = &mut self.limits {
            limits.arrivals.clear();
            limits.overdue.clear();
        }
    }

    /// Other limits from now on. The age of what waits and had none is counted from now; what is in somebody's hands and
    /// had none goes without.
    #[cfg(feature = "topology")]
    pub(super) fn set_limits(&mut self, options: &QueueOptions, now: Instant) {
        let old = self.limits.take();
        self.limits = Limits::of(options);
        let Some(limits) = &mut self.limits else { return };
        if let Some(old) = old.filter(|old| old.max_age.is_some()) {
            limits.arrivals = old.arrivals;
            limits.overdue = old.overdue;
        } else if limits.max_age.is_some() {
            for ready in &mut self.ready {
                let own = Arc::new((*ready.stored.content).clone());
                limits.arrivals.push_back((now, Arc::clone(&own)));
                ready.to_deliver = None;
                ready.stored.content = own;
            }
        }
        self.expire(now);
        self.drop_oldest();
    }
}
