//! Whether it makes sense to begin work now.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::future::BoxFuture;
use tokio::sync::Notify;

/// Says whether it makes sense to begin work now: that what handlers depend on is there.
///
/// A consumer asks before each pull, and pulls nothing while the answer is no; see
/// [`QueueConsumer::readiness`](crate::consumer::QueueConsumer::readiness). [`ReadinessFlag`] is one that a service sets
/// itself, from its health checks; a [`CircuitBreaker`](super::CircuitBreaker) is one that the results of calls set.
pub trait Readiness: Send + Sync + 'static {
    /// Whether work can begin. Asked often: it must be quick, and must not wait.
    fn is_ready(&self) -> bool;

    /// Waits until it is so. It may return too early or not at all: whoever waits asks [`is_ready`](Self::is_ready)
    /// again, and does so now and then by itself.
    ///
    /// # Cancel safety
    ///
    /// Must be safe to drop: waits are dropped when the consumer stops.
    fn ready(&self) -> BoxFuture<'_, ()>;

    /// Whether, being ready, it is so only on trial: one message at a time, until it is known how that one went. A
    /// circuit breaker that is half open says so.
    fn is_trial(&self) -> bool {
        false
    }
}

#[deny(clippy::missing_trait_methods)]
impl<R: Readiness + ?Sized> Readiness for Arc<R> {
    fn is_ready(&self) -> bool {
        (**self).is_ready()
    }

    fn ready(&self) -> BoxFuture<'_, ()> {
        (**self).ready()
    }

    fn is_trial(&self) -> bool {
        (**self).is_trial()
    }
}

/// Readiness that a service sets itself. Cheap to clone; all clones are one flag.
///
/// ```
/// use windlass::handler::{Readiness, ReadinessFlag};
///
/// let database = ReadinessFlag::new(true);
/// database.set(false); // a health check failed
/// assert!(!database.is_ready());
/// ```
#[derive(Debug, Clone)]
pub struct ReadinessFlag(Arc<Flag>);

#[derive(Debug)]
struct Flag {
    ready: AtomicBool,
    /// Told when it becomes ready. Wakes in the order of waiting, so that runs on a controlled clock repeat.
    became_ready: Notify,
}

impl ReadinessFlag {
    /// A flag that stands at `ready`.
    pub fn new(ready: bool) -> Self {
        Self(Arc::new(Flag { ready: AtomicBool::new(ready), became_ready: Notify::new() }))
    }

    /// Sets it.
    pub fn set(&self, ready: bool) {
        self.0.ready.store(ready, Ordering::SeqCst);
        if ready {
            self.0.became_ready.notify_waiters();
        }
    }
}

impl Readiness for ReadinessFlag {
    fn is_ready(&self) -> bool {
        self.0.ready.load(Ordering::SeqCst)
    }

    fn ready(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            loop {
                let became_ready = self.0.became_ready.notified();
                if self.is_ready() {
                    return;
                }
                became_ready.await;
            }
        })
    }
}
