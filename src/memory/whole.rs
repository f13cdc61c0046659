//! A whole queue, locked: every operation but the plain receive, ack and publish.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::MutexGuard;
use std::time::Instant;

use super::locked::Locked;
use super::parts::Parts;
use super::shard::{Forgotten, SHARDS, Shard, Unacked, index_of, is_forgotten, own_index};
use super::state::{MemoryReceipt, QueueCounts, State, Stored, Taken};
use crate::message::Message;
use crate::source::{NackReason, RequeueOrder};

/// What is left to do after a nack, once the message was taken out.
pub(super) enum Nacked {
    Kept,
    /// To be put into the dead-letter queue.
    Dead(Message),
}

/// All parts of a queue, locked. Derefs to the state.
pub(super) struct Whole<'a> {
    parts: &'a Parts,
    // Dropped before the state, whose news are told last.
    shards: [MutexGuard<'a, Shard>; SHARDS],
    pub(super) locked: Locked<'a>,
}

impl<'a> Whole<'a> {
    /// `shards` and `locked` are those of `parts`.
    pub(super) fn new(parts: &'a Parts, shards: [MutexGuard<'a, Shard>; SHARDS], locked: Locked<'a>) -> Self {
        Self { parts, shards, locked }
    }

    /// Brings back what is due: delays that ended, leases that ran out; and drops what is too old. True when something
    /// came or went.
    pub(super) fn sweep(&mut self, now: Instant) -> bool {
        let mut came = false;
        while let Some(entry) = self.locked.delayed.first_entry().filter(|entry| entry.key().0 <= now) {
            let stored = entry.remove();
            self.ready.push_back(stored.into());
            came = true;
        }
        let mut expired = Vec::new();
        while let Some(entry) = self.locked.leases.first_entry().filter(|entry| entry.key().0 <= now) {
            let (until, tag) = *entry.key();
            let slot = entry.remove();
            if self.get(slot).is_some_and(|held| held.tag == tag && held.until == Some(until)) {
                expired.push(slot);
            }
        }
        came |= !expired.is_empty();
        self.bring_back(expired);
        came | self.expire(now)
    }

    /// Delivers the next message to `session`, through its buffer where it prefetches.
    pub(super) fn take(&mut self, session: u64, prefetch: usize, now: Option<Instant>) -> Option<Taken> {
        let taken =
            if prefetch == 0 { self.claim(session, now)? } else { self.buffered(session, prefetch, now)? };
        self.shards[index_of(taken.receipt.slot)].delivered += 1;
        Some(taken)
    }

    fn claim(&mut self, session: u64, now: Option<Instant>) -> Option<Taken> {
        let next = || self.locked.next_ready();
        let taken = self.shards[own_index()].claim(self.parts.id, session, next)?;
        if let Some(now) = now {
            self.extend(&taken.receipt, now);
        }
        Some(taken)
    }

    fn buffered(&mut self, session: u64, prefetch: usize, now: Option<Instant>) -> Option<Taken> {
        let receipt = self.next_buffered(session).or_else(|| {
            for _ in 0..prefetch {
                let Some(Taken { receipt, .. }) = self.claim(session, now) else { break };
                self.buffers.entry(session).or_default().push_back(receipt);
            }
            self.next_buffered(session)
        })?;
        if let Some(now) = now {
            // The lease is the receiver's: it begins when the message is handed over.
            self.extend(&receipt, now);
        }
        let Stored { content, attempt, deliveries } = self.get(receipt.slot)?.stored.clone();
        Some(Taken { content, attempt, deliveries, receipt })
    }

    /// The next that `session` has taken and not yet passed on; those that came back meanwhile are passed over.
    fn next_buffered(&mut self, session: u64) -> Option<MemoryReceipt> {
        loop {
            let receipt = self.buffers.get_mut(&session)?.pop_front()?;
            if self.held(&receipt).is_some() {
                return Some(receipt);
            }
        }
    }

    fn get(&self, slot: u32) -> Option<&Unacked> {
        self.shards[index_of(slot)].get(slot)
    }

    /// What the receipt stands for; `None` when it is stale.
    fn held(&self, receipt: &MemoryReceipt) -> Option<&Unacked> {
        let ours = receipt.queue == self.parts.id;
        self.get(receipt.slot).filter(|held| ours && held.tag == receipt.tag)
    }

    fn settle(&mut self, receipt: &MemoryReceipt) -> Option<Stored> {
        self.held(receipt)?;
        let held = self.shards[index_of(receipt.slot)].remove(receipt.slot)?;
        if let Some(until) = held.until {
            self.leases.remove(&(until, held.tag));
        }
        Some(held.stored)
    }

    /// `None` when the receipt is stale; else what the history has no more room for.
    pub(super) fn ack(&mut self, receipt: &MemoryReceipt) -> Option<Forgotten> {
        let stored = self.settle(receipt)?;
        self.forget_arrival(&stored.content);
        let number = self.parts.next_ack();
        Some(self.shards[index_of(receipt.slot)].remember(number, stored, self.parts.history))
    }

    /// `None` when the receipt is stale.
    pub(super) fn nack(
        &mut self,
        receipt: &MemoryReceipt,
        reason: NackReason,
        now: Instant,
    ) -> Option<Nacked> {
        let stored = self.settle(receipt)?;
        self.counts.nacked += 1;
        let after = match &reason {
            NackReason::Retry { delay, counted, .. } => {
                let mut again = stored.clone();
                again.attempt = again.attempt.saturating_add(u32::from(*counted));
                again.deliveries = 0;
                match delay.filter(|delay| !delay.is_zero()) {
                    Some(delay) => {
                        let sequence = self.next_tag();
                        self.delayed.insert((crate::clock::after(now, delay), sequence), again);
                    }
                    None => self.ready.push_back(again.into()),
                }
                Nacked::Kept
            }
            NackReason::RequeueNow { .. } => {
                match self.order {
                    RequeueOrder::Back => self.ready.push_back(stored.clone().into()),
                    RequeueOrder::Front | RequeueOrder::Unknown => {
                        self.ready.push_front(stored.clone().into());
                    }
                }
                Nacked::Kept
            }
            NackReason::DeadLetter { .. } => {
                self.forget_arrival(&stored.content);
                Nacked::Dead(stored.message())
            }
        };
        keep(&mut self.locked.nacked, (stored, reason), self.parts.history);
        Some(after)
    }

    /// The delivery comes back although it was answered: the answer failed. False when the receipt is stale.
    pub(super) fn fail_settle(&mut self, receipt: &MemoryReceipt) -> bool {
        if self.held(receipt).is_none() {
            return false;
        }
        self.bring_back(vec![receipt.slot]);
        true
    }

    /// False when the receipt is stale.
    pub(super) fn extend(&mut self, receipt: &MemoryReceipt, now: Instant) -> bool {
        if self.held(receipt).is_none() {
            return false;
        }
        let held = self.shards[index_of(receipt.slot)].get_mut(receipt.slot);
        let Some((held, lease)) = held.zip(self.locked.lease) else { return false };
        let until = crate::clock::after(now, lease);
        if let Some(old) = held.until.replace(until) {
            self.locked.leases.remove(&(old, held.tag));
        }
        self.locked.leases.insert((until, held.tag), receipt.slot);
        true
    }

    /// Hands back what `session` has buffered.
    pub(super) fn release(&mut self, session: u64) {
        let buffered = self.buffers.remove(&session).unwrap_or_default();
        let slots = buffered
            .iter()
            .filter(|receipt| self.held(receipt).is_some())
            .map(|receipt| receipt.slot)
            .collect();
        self.bring_back(slots);
    }

    /// Everything that `session` holds comes back.
    pub(super) fn end_session(&mut self, session: u64) {
        self.buffers.remove(&session);
        let of_session = self.all_in_flight().filter(|(_, held)| held.session == session);
        self.bring_back(of_session.map(|(slot, _)| slot).collect());
    }

    /// Everything that anybody holds comes back.
    pub(super) fn cut(&mut self) {
        self.buffers.clear();
        self.bring_back(self.all_in_flight().map(|(slot, _)| slot).collect());
    }

    /// Everything is gone; how much that was.
    pub(super) fn drop_all(&mut self) -> usize {
        let in_flight: usize = self.shards.iter_mut().map(|shard| shard.clear()).sum();
        self.leases.clear();
        self.buffers.clear();
        let ready = std::mem::take(&mut self.ready).len();
        let dropped = in_flight + ready + std::mem::take(&mut self.delayed).len();
        self.forget_arrivals();
        self.counts.dropped += dropped as u64;
        dropped
    }

    /// Deliveries come back without an answer: to the front, in the order in which they were delivered.
    fn bring_back(&mut self, slots: Vec<u32>) {
        let shards = &mut self.shards;
        let mut back: Vec<Unacked> =
            slots.into_iter().filter_map(|slot| shards[index_of(slot)].remove(slot)).collect();
        back.sort_by_key(|held| held.tag);
        self.counts.returned += back.len() as u64;
        for held in back.into_iter().rev() {
            if let Some(until) = held.until {
                self.leases.remove(&(until, held.tag));
            }
            self.ready.push_front(held.stored.into());
        }
    }

    fn all_in_flight(&self) -> impl Iterator<Item = (u32, &Unacked)> {
        self.shards.iter().flat_map(|shard| shard.in_flight())
    }

    pub(super) fn counts(&self, dead_lettered: usize) -> QueueCounts {
        QueueCounts {
            pending: self.ready.len(),
            delayed: self.delayed.len(),
            in_flight: self.shards.iter().map(|shard| shard.len()).sum(),
            dead_lettered,
            delivered: self.shards.iter().map(|shard| shard.delivered).sum(),
            acked: self.parts.acks(),
            ..self.counts
        }
    }

    pub(super) fn in_flight(&self) -> Vec<Message> {
        let mut held: Vec<&Unacked> = self.all_in_flight().map(|(_, held)| held).collect();
        held.sort_by_key(|held| held.tag);
        held.into_iter().map(|held| held.stored.message()).collect()
    }

    pub(super) fn acked(&self) -> Vec<Message> {
        let last = self.parts.acks();
        let mut acked: Vec<&(u64, Stored)> = self
            .shards
            .iter()
            .flat_map(|shard| shard.acked())
            .filter(|(number, _)| !is_forgotten(*number, last, self.parts.history))
            .collect();
        acked.sort_by_key(|(number, _)| *number);
        acked.into_iter().map(|(_, stored)| stored.message()).collect()
    }
}

impl Deref for Whole<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.locked
    }
}

impl DerefMut for Whole<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.locked
    }
}

/// Whatever was done, the shards know from here on whether they are enough.
impl Drop for Whole<'_> {
    fn drop(&mut self) {
        let quick = self.is_quick();
        for shard in &mut self.shards {
            // Only where it changes: a shard that is not written stays in the cache of the thread that uses it.
            if shard.quick != quick {
                shard.quick = quick;
            }
        }
    }
}

/// Adds to a history.
fn keep<T>(history: &mut VecDeque<T>, entry: T, most: usize) {
    if most == 0 {
        return;
    }
    if history.len() == most {
        history.pop_front();
    }
    history.push_back(entry);
}
