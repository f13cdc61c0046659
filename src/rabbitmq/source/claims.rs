//! Which slots the sources of one connection have: the broker would give them to it again.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The queues that sources of a connection have claimed.
#[derive(Clone, Default)]
pub(in crate::rabbitmq) struct Claims(Arc<Mutex<HashSet<String>>>);

/// One of them; it is free again once this is dropped.
pub(super) struct Claim {
    claims: Claims,
    queue: String,
}

impl Claims {
    fn lock(&self) -> MutexGuard<'_, HashSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a source has claimed this queue.
    pub(in crate::rabbitmq) fn has(&self, queue: &str) -> bool {
        self.lock().contains(queue)
    }

    /// `None` where another source has it.
    pub(super) fn claim(&self, queue: &str) -> Option<Claim> {
        let claimed = self.lock().insert(queue.to_owned());
        claimed.then(|| Claim { claims: self.clone(), queue: queue.to_owned() })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.claims.lock().remove(&self.queue);
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Claim").field(&self.queue).finish()
    }
}
