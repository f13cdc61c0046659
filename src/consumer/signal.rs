//! A value that others wait for.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// A value, and a count of its changes. As tokio's `watch`, but whoever waits is woken in the order of waiting: `watch`
/// spreads its waiters at random, and on a controlled clock every run must take the same steps.
pub(super) struct Signal<T> {
    value: Mutex<T>,
    version: AtomicU64,
    changed: Notify,
}

impl<T> Signal<T> {
    pub(super) fn new(value: T) -> Self {
        Self { value: Mutex::new(value), version: AtomicU64::new(0), changed: Notify::new() }
    }

    /// How often it has changed; one load of an atomic.
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Looks at the value.
    pub(super) fn with<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        look(&self.lock())
    }

    /// Changes the value where `change` says that it has; returns how often it has changed by then.
    pub(super) fn change(&self, change: impl FnOnce(&mut T) -> bool) -> u64 {
        let mut value = self.lock();
        if !change(&mut value) {
            return self.version();
        }
        let version = self.version.fetch_add(1, Ordering::Release) + 1;
        drop(value);
        self.changed.notify_waiters();
        version
    }

    /// Waits for a change after the one counted `seen`.
    pub(super) async fn changed_since(&self, seen: u64) {
        loop {
            let changed = self.changed.notified();
            if self.version() != seen {
                return;
            }
            changed.await;
        }
    }

    /// Waits until `look` finds something.
    pub(super) async fn find<R>(&self, mut look: impl FnMut(&T) -> Option<R>) -> R {
        loop {
            let changed = self.changed.notified();
            if let Some(found) = self.with(&mut look) {
                return found;
            }
            changed.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, T> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
