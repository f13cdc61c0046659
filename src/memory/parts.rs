//! What a queue is made of, each part under a lock of its own.
//!
//! Receiving and acking are most of what happens, by several threads at once; so they touch as little as can be that
//! other threads touch too. Everything else locks all parts and sees a queue that stands still.

use std::ops::Deref;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::broker::QueueOptions;
use super::shard::{SHARDS, Shard, index_of};
use super::state::{MemoryReceipt, State};

/// Locks are taken in the order of the shards, and the state's last.
pub(super) struct Parts {
    /// Told apart from the receipts of other queues by this.
    pub(super) id: u32,
    /// How many acks are remembered.
    pub(super) history: usize,
    shards: [Padded<Mutex<Shard>>; SHARDS],
    state: Padded<Mutex<State>>,
    acks: Padded<AtomicU64>,
}

/// On cache lines of its own: what others write nearby does not slow down whoever has it.
#[repr(align(128))]
struct Padded<T>(T);

impl<T> Deref for Padded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl Parts {
    pub(super) fn new(options: QueueOptions) -> Self {
        static NEXT_ID: AtomicU32 = AtomicU32::new(0);
        let state = State::new(options);
        Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            history: options.history,
            shards: std::array::from_fn(|index| Padded(Mutex::new(Shard::new(index, state.is_quick())))),
            state: Padded(Mutex::new(state)),
            acks: Padded(AtomicU64::new(0)),
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(super) fn shards(&self) -> [MutexGuard<'_, Shard>; SHARDS] {
        std::array::from_fn(|index| lock(&self.shards[index]))
    }

    /// The shard of this index, where it is enough; else the whole queue is to be locked.
    #[inline(always)]
    pub(super) fn quick(&self, index: usize) -> Option<MutexGuard<'_, Shard>> {
        Some(lock(&self.shards[index])).filter(|shard| shard.quick)
    }

    /// The shard that a receipt is of, as [`quick`](Self::quick).
    #[inline]
    pub(super) fn quick_of(&self, receipt: &MemoryReceipt) -> Option<MutexGuard<'_, Shard>> {
        if receipt.queue == self.id { self.quick(index_of(receipt.slot)) } else { None }
    }

    /// The number of an ack: one after all that were made before, by whatever thread.
    pub(super) fn next_ack(&self) -> u64 {
        self.acks.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// How many acks were made.
    pub(super) fn acks(&self) -> u64 {
        self.acks.load(Ordering::Relaxed)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
