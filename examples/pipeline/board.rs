//! What was seen at the ends of the pipeline, for the table and for the tests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::Post;

/// Everybody who sees something writes it here. Lines go by the id that they were written with.
#[derive(Debug, Default)]
pub(crate) struct Board {
    tally: Mutex<Tally>,
    changed: Notify,
}

#[derive(Debug, Default, Clone)]
pub(crate) struct Tally {
    /// By line: what its client got.
    pub(crate) delivered: BTreeMap<String, Delivered>,
    /// The lines that the last stage has sent to a slot.
    pub(crate) routed: BTreeSet<String>,
    /// The lines that the sink has.
    pub(crate) sunk: BTreeSet<String>,
    /// How often the sink was given what it has already.
    pub(crate) sunk_before: u64,
    /// How many posts of each client the metrics worker has heard.
    pub(crate) heard: BTreeMap<u32, u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Delivered {
    pub(crate) slot: u32,
    pub(crate) post: Post,
    pub(crate) times: u64,
}

impl Tally {
    /// The lines that were sent to a slot and have not arrived.
    pub(crate) fn under_way(&self) -> impl Iterator<Item = &str> {
        self.routed.iter().filter(|line| !self.delivered.contains_key(*line)).map(String::as_str)
    }
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn tally(&self) -> Tally {
        self.lock().clone()
    }

    pub(super) fn write<T>(&self, write: impl FnOnce(&mut Tally) -> T) -> T {
        let written = write(&mut self.lock());
        self.changed.notify_waiters();
        written
    }

    /// Waits until it is so. Whoever calls it bounds it.
    pub(crate) async fn until(&self, mut condition: impl FnMut(&Tally) -> bool) {
        loop {
            let changed = self.changed.notified();
            if condition(&self.lock()) {
                return;
            }
            changed.await;
        }
    }
}
