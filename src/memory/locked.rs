//! A queue's state under its lock, and what is to be told once it is unlocked.

use std::ops::{Deref, DerefMut};
use std::sync::MutexGuard;

use super::queue::Queue;
use super::state::State;

/// The state, locked. Who is to be woken is written down, and woken after the unlocking: a waker may look at the queue.
pub(super) struct Locked<'a> {
    // Dropped first.
    state: MutexGuard<'a, State>,
    pub(super) news: News<'a>,
}

pub(super) struct News<'a> {
    queue: &'a Queue,
    /// A message is there for one receiver.
    pub(super) one: bool,
    /// Messages are there for several, or the time at which the next one is due has changed: everybody who waits must
    /// know, since whoever wakes first may be busy by then.
    pub(super) all: bool,
    /// Something has changed, for those who wait for a condition.
    pub(super) changed: bool,
}

impl<'a> Locked<'a> {
    pub(super) fn new(queue: &'a Queue, state: MutexGuard<'a, State>) -> Self {
        Self { state, news: News { queue, one: false, all: false, changed: false } }
    }

    /// Everything may be elsewhere now.
    pub(super) fn everything_moved(&mut self) {
        self.news.all = true;
        self.news.changed = true;
    }

    /// Unlocks the state; the news are told when they are dropped.
    pub(super) fn unlock(self) -> News<'a> {
        self.news
    }
}

impl Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Drop for News<'_> {
    fn drop(&mut self) {
        if self.all {
            self.queue.arrived.notify_waiters();
        }
        if self.one {
            self.queue.arrived.notify_one();
        }
        if self.changed {
            self.queue.tell();
        }
    }
}
