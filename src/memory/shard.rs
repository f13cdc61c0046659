//! A part of what is in flight and of what was acked, for the threads that receive and ack by it.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use slab::Slab;

use super::state::{MemoryReceipt, Ready, Stored, Taken};

/// In how many parts a queue keeps what is in flight, so that threads which receive and ack at the same time seldom
/// wait for each other. Looking at all of them costs a lock each. A power of two.
pub(super) const SHARDS: usize = 8;

/// The index of the shard by which the calling thread receives. Which one it is shows nowhere.
pub(super) fn own_index() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: Cell<Option<usize>> = const { Cell::new(None) };
    }
    OWN.with(|own| {
        own.get().unwrap_or_else(|| {
            let index = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
            own.set(Some(index));
            index
        })
    })
}

/// The index of the shard that a slot is of.
pub(super) fn index_of(slot: u32) -> usize {
    slot as usize % SHARDS
}

pub(super) struct Shard {
    index: usize,
    /// Whether nothing in the queue waits for time to pass and no fault is scripted, so that an ack needs this shard
    /// only, and a receive this shard and a look at what is ready. Written with the whole queue locked.
    pub(super) quick: bool,
    in_flight: Slab<Unacked>,
    /// The last acks of deliveries that were received by this shard, each with its number among all acks of the queue.
    acked: VecDeque<(u64, Stored)>,
    /// How many deliveries were made by this shard.
    pub(super) delivered: u64,
}

#[derive(Debug)]
pub(super) struct Unacked {
    pub(super) stored: Stored,
    pub(super) tag: u64,
    pub(super) session: u64,
    /// The end of the lease, where the queue has one.
    pub(super) until: Option<Instant>,
}

/// What the history has no more room for; to be dropped once the queue is unlocked.
pub(super) type Forgotten = [Option<Stored>; 2];

impl Shard {
    pub(super) fn new(index: usize, quick: bool) -> Self {
        Self { index, quick, in_flight: Slab::new(), acked: VecDeque::new(), delivered: 0 }
    }

    /// Puts the message that `next` gives, with its tag, among what is in flight. A receipt has 32 bits for where: with
    /// so many in flight, nothing more is delivered.
    ///
    /// All that is made for each message is made where it stays: a value that was just written in pieces, and is then
    /// moved as a whole, costs the processor a wait.
    #[inline]
    pub(super) fn claim(
        &mut self,
        queue: u32,
        session: u64,
        next: impl FnOnce() -> Option<(Ready, u64)>,
    ) -> Option<Taken> {
        let slot = u32::try_from(self.in_flight.vacant_key() * SHARDS + self.index).ok()?;
        let (Ready { stored: Stored { content, attempt, deliveries }, to_deliver }, tag) = next()?;
        let deliveries = deliveries.saturating_add(1);
        let delivered = to_deliver.unwrap_or_else(|| Arc::clone(&content));
        let stored = Stored { content, attempt, deliveries };
        self.in_flight.insert(Unacked { stored, tag, session, until: None });
        Some(Taken { content: delivered, attempt, deliveries, receipt: MemoryReceipt { queue, slot, tag } })
    }

    /// What is at `slot`, which must be of this shard.
    pub(super) fn get(&self, slot: u32) -> Option<&Unacked> {
        self.in_flight.get(slot as usize / SHARDS)
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut Unacked> {
        self.in_flight.get_mut(slot as usize / SHARDS)
    }

    pub(super) fn remove(&mut self, slot: u32) -> Option<Unacked> {
        self.in_flight.try_remove(slot as usize / SHARDS)
    }

    /// Takes out what the tag stands for; `None` when it is stale.
    #[inline]
    pub(super) fn settle(&mut self, slot: u32, tag: u64) -> Option<Unacked> {
        if self.get(slot)?.tag == tag { self.remove(slot) } else { None }
    }

    /// Gives up all that is in flight; how much that was.
    pub(super) fn clear(&mut self) -> usize {
        std::mem::take(&mut self.in_flight).len()
    }

    pub(super) fn len(&self) -> usize {
        self.in_flight.len()
    }

    /// What is in flight, with its slots.
    pub(super) fn in_flight(&self) -> impl Iterator<Item = (u32, &Unacked)> {
        self.in_flight.iter().map(|(key, held)| ((key * SHARDS + self.index) as u32, held))
    }

    /// The last acks by this shard, oldest first; some may be too old for the history by now.
    pub(super) fn acked(&self) -> impl Iterator<Item = &(u64, Stored)> {
        self.acked.iter()
    }

    /// Remembers ack number `number` of the queue among the last `most`.
    ///
    /// What other shards have made too old is forgotten here bit by bit: two for one, so that the histories of all
    /// shards together keep little more than they should.
    #[inline(always)]
    pub(super) fn remember(&mut self, number: u64, stored: Stored, most: usize) -> Forgotten {
        if most == 0 {
            return [Some(stored), None];
        }
        let first = self.forget(number, most);
        let second = if first.is_some() { self.forget(number, most) } else { None };
        self.acked.push_back((number, stored));
        [first, second]
    }

    fn forget(&mut self, number: u64, most: usize) -> Option<Stored> {
        let (oldest, _) = self.acked.front()?;
        if is_forgotten(*oldest, number, most) {
            self.acked.pop_front().map(|(_, stored)| stored)
        } else {
            None
        }
    }
}

/// Whether ack number `old` is not among the last `most` ones, of which `last` is the last.
pub(super) fn is_forgotten(old: u64, last: u64, most: usize) -> bool {
    last.saturating_sub(old) >= most as u64
}
