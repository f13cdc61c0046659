//! What lapin was given to write and has not written yet: its own queue has no bound, and a broker that is short of
//! something reads slowly.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// How many bytes may wait for the socket. More wait with their callers, whose time-out then says that nothing was sent.
const MOST: usize = 8 * 1_024 * 1_024;

/// What a small message counts for, in bytes.
const LEAST: usize = 1_024;

#[derive(Clone, Default)]
pub(super) struct Unwritten(Arc<Inner>);

#[derive(Default)]
struct Inner {
    bytes: AtomicUsize,
    /// Told when there are fewer.
    fewer: Notify,
}

/// A message that is not written yet; it is, once this is dropped.
pub(super) struct Writing {
    unwritten: Unwritten,
    bytes: usize,
}

impl Unwritten {
    pub(super) fn has_room(&self) -> bool {
        self.0.bytes.load(Ordering::Relaxed) < MOST
    }

    /// Waits until there is less than there was.
    pub(super) async fn fewer(&self) {
        self.0.fewer.notified().await;
    }

    /// A message with a body of so many bytes.
    pub(super) fn add(&self, len: usize) -> Writing {
        let bytes = len.max(LEAST);
        self.0.bytes.fetch_add(bytes, Ordering::Relaxed);
        Writing { unwritten: self.clone(), bytes }
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        let Inner { bytes, fewer } = &*self.unwritten.0;
        bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        fewer.notify_one();
    }
}
