//! What is in a queue, and what each operation makes of it. No locks, no waiting, no clock: time is an argument.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime};

use slab::Slab;

use super::broker::QueueOptions;
use crate::error::Error;
use crate::message::{Content, Message};
use crate::source::{Delivery, NackReason, RequeueOrder};

/// A message as the queue keeps it.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    content: Arc<Content>,
    /// A second count on the content, for its first delivery: taken when the message is published, since counting then
    /// costs nothing, and later a wait for memory with the queue locked.
    to_deliver: Option<Arc<Content>>,
    attempt: u32,
    /// How often it was delivered since it was published or last retried.
    deliveries: u64,
}

/// The receipt of a [`MemorySource`](super::MemorySource).
#[derive(Debug)]
pub struct MemoryReceipt {
    queue: u32,
    slot: u32,
    tag: u64,
}

#[derive(Debug)]
struct Unacked {
    stored: Stored,
    tag: u64,
    session: u64,
    /// The end of the lease, where the queue has one.
    until: Option<Instant>,
}

/// Where a script makes an operation fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FaultPoint {
    /// The next `receive`; nothing is taken.
    Receive,
    /// The next `ack`; the message comes back.
    Ack,
    /// The next `nack`; the message comes back, whatever the reason was.
    Nack,
    /// The next `publish`; the message is not taken.
    Publish,
    /// The next `extend`; the lease stays as it is.
    Extend,
    /// The next `release`; nothing is handed back.
    Release,
    /// The next `close`; the source is closed all the same.
    Close,
}

/// How much is where in a queue, and what has happened to it so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct QueueCounts {
    /// Waiting to be delivered.
    pub pending: usize,
    /// Waiting for a retry's delay to end.
    pub delayed: usize,
    /// Delivered and not settled; buffered in a source included.
    pub in_flight: usize,
    /// Waiting in the dead-letter queue.
    pub dead_lettered: usize,
    /// How many were published so far.
    pub published: u64,
    /// How many deliveries were made so far.
    pub delivered: u64,
    /// How many were acked so far.
    pub acked: u64,
    /// How many were nacked so far, for whatever reason.
    pub nacked: u64,
    /// How many deliveries came back without an answer so far: cut, closed, released, lease over, settle failed.
    pub returned: u64,
}

/// What was taken; made into a delivery once the queue is unlocked.
pub(super) struct Taken {
    content: Arc<Content>,
    attempt: u32,
    deliveries: u64,
    receipt: MemoryReceipt,
}

impl Taken {
    pub(super) fn into_delivery(self, received_at: SystemTime) -> Delivery<MemoryReceipt> {
        let message = Message::from_content(self.content)
            .with_attempt(self.attempt)
            .with_redelivered(self.deliveries > 1)
            .with_delivery_count(Some(self.deliveries))
            .with_received_at(received_at);
        Delivery { message, receipt: self.receipt }
    }
}

/// What is left to do after a nack, once the message was taken out.
pub(super) enum Nacked {
    Kept,
    /// To be put into the dead-letter queue.
    Dead(Message),
}

pub(super) struct State {
    /// Told apart from the receipts of other queues by this.
    id: u32,
    order: RequeueOrder,
    lease: Option<Duration>,
    ready: VecDeque<Stored>,
    delayed: BTreeMap<(Instant, u64), Stored>,
    unacked: Slab<Unacked>,
    /// Which leases end when; an entry whose tag is settled is passed over.
    leases: BTreeMap<(Instant, u64), u32>,
    /// What sources have taken and not yet passed on, by session.
    buffers: BTreeMap<u64, VecDeque<MemoryReceipt>>,
    sequence: u64,
    faults: VecDeque<(FaultPoint, Error)>,
    acked: VecDeque<Stored>,
    nacked: VecDeque<(Stored, NackReason)>,
    history: usize,
    counts: QueueCounts,
}

impl State {
    pub(super) fn new(options: QueueOptions) -> Self {
        static NEXT_ID: AtomicU32 = AtomicU32::new(0);
        Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            order: options.requeue_order,
            lease: options.lease,
            ready: VecDeque::new(),
            delayed: BTreeMap::new(),
            unacked: Slab::new(),
            leases: BTreeMap::new(),
            buffers: BTreeMap::new(),
            sequence: 0,
            faults: VecDeque::new(),
            acked: VecDeque::new(),
            nacked: VecDeque::new(),
            history: options.history,
            counts: QueueCounts::default(),
        }
    }

    /// Whether anything here waits for time to pass, so that callers can skip asking the clock.
    pub(super) fn is_timed(&self) -> bool {
        self.lease.is_some() || !self.delayed.is_empty()
    }

    /// Brings back what is due: delays that ended, leases that ran out. True when something came.
    pub(super) fn sweep(&mut self, now: Instant) -> bool {
        let mut came = false;
        while let Some(entry) = self.delayed.first_entry().filter(|entry| entry.key().0 <= now) {
            self.ready.push_back(entry.remove());
            came = true;
        }
        let mut expired = Vec::new();
        while let Some(entry) = self.leases.first_entry().filter(|entry| entry.key().0 <= now) {
            let (until, tag) = *entry.key();
            let slot = entry.remove();
            if self
                .unacked
                .get(slot as usize)
                .is_some_and(|held| held.tag == tag && held.until == Some(until))
            {
                expired.push(slot);
            }
        }
        came |= !expired.is_empty();
        self.bring_back(expired);
        came
    }

    /// When the next delay or lease ends.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let delay = self.delayed.first_key_value().map(|((due, _), _)| *due);
        let lease = self.leases.first_key_value().map(|((until, _), _)| *until);
        delay.into_iter().chain(lease).min()
    }

    pub(super) fn publish(&mut self, content: Arc<Content>) {
        self.counts.published += 1;
        let to_deliver = Some(Arc::clone(&content));
        self.ready.push_back(Stored { content, to_deliver, attempt: 1, deliveries: 0 });
    }

    /// Delivers the next message to `session`, through its buffer where it prefetches.
    pub(super) fn take(&mut self, session: u64, prefetch: usize, now: Option<Instant>) -> Option<Taken> {
        let receipt =
            if prefetch == 0 { self.claim(session, now)? } else { self.buffered(session, prefetch, now)? };
        if let (true, Some(now)) = (prefetch > 0, now) {
            // The lease is the receiver's: it begins when the message is handed over.
            self.extend(&receipt, now);
        }
        let stored = &mut self.unacked.get_mut(receipt.slot as usize)?.stored;
        let content = stored.to_deliver.take().unwrap_or_else(|| Arc::clone(&stored.content));
        let taken = Taken { content, attempt: stored.attempt, deliveries: stored.deliveries, receipt };
        self.counts.delivered += 1;
        Some(taken)
    }

    fn claim(&mut self, session: u64, now: Option<Instant>) -> Option<MemoryReceipt> {
        // A receipt has 32 bits for the slot: with so many in flight, nothing more is delivered.
        let slot = u32::try_from(self.unacked.vacant_key()).ok()?;
        let mut stored = self.ready.pop_front()?;
        stored.deliveries += 1;
        let tag = self.next();
        let until = self.lease.zip(now).map(|(lease, now)| crate::clock::after(now, lease));
        self.unacked.insert(Unacked { stored, tag, session, until });
        if let Some(until) = until {
            self.leases.insert((until, tag), slot);
        }
        Some(MemoryReceipt { queue: self.id, slot, tag })
    }

    fn buffered(&mut self, session: u64, prefetch: usize, now: Option<Instant>) -> Option<MemoryReceipt> {
        while let Some(receipt) = self.buffers.entry(session).or_default().pop_front() {
            if self.held(&receipt).is_some() {
                return Some(receipt);
            }
        }
        for _ in 0..prefetch {
            let Some(receipt) = self.claim(session, now) else { break };
            self.buffers.entry(session).or_default().push_back(receipt);
        }
        self.buffers.entry(session).or_default().pop_front()
    }

    /// What the receipt stands for; `None` when it is stale.
    fn held(&self, receipt: &MemoryReceipt) -> Option<&Unacked> {
        let ours = receipt.queue == self.id;
        self.unacked.get(receipt.slot as usize).filter(|held| ours && held.tag == receipt.tag)
    }

    fn settle(&mut self, receipt: &MemoryReceipt) -> Option<Stored> {
        self.held(receipt)?;
        let held = self.unacked.remove(receipt.slot as usize);
        if let Some(until) = held.until {
            self.leases.remove(&(until, held.tag));
        }
        Some(held.stored)
    }

    /// `None` when the receipt is stale; else what the history has no more room for, to be dropped once the queue is
    /// unlocked.
    pub(super) fn ack(&mut self, receipt: &MemoryReceipt) -> Option<Option<Stored>> {
        let stored = self.settle(receipt)?;
        self.counts.acked += 1;
        Some(keep(&mut self.acked, stored, self.history))
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
                        let sequence = self.next();
                        self.delayed.insert((crate::clock::after(now, delay), sequence), again);
                    }
                    None => self.ready.push_back(again),
                }
                Nacked::Kept
            }
            NackReason::RequeueNow { .. } => {
                match self.order {
                    RequeueOrder::Back => self.ready.push_back(stored.clone()),
                    RequeueOrder::Front | RequeueOrder::Unknown => self.ready.push_front(stored.clone()),
                }
                Nacked::Kept
            }
            NackReason::DeadLetter { .. } => Nacked::Dead(stored.message()),
        };
        keep(&mut self.nacked, (stored, reason), self.history);
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
        let Some((held, lease)) = self.unacked.get_mut(receipt.slot as usize).zip(self.lease) else {
            return false;
        };
        let until = crate::clock::after(now, lease);
        if let Some(old) = held.until.replace(until) {
            self.leases.remove(&(old, held.tag));
        }
        self.leases.insert((until, held.tag), receipt.slot);
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
        let of_session = self.unacked.iter().filter(|(_, held)| held.session == session);
        self.bring_back(of_session.map(|(slot, _)| slot as u32).collect());
    }

    /// Everything that anybody holds comes back.
    pub(super) fn cut(&mut self) {
        self.buffers.clear();
        self.bring_back(self.unacked.iter().map(|(slot, _)| slot as u32).collect());
    }

    /// Deliveries come back without an answer: to the front, in the order in which they were delivered.
    fn bring_back(&mut self, slots: Vec<u32>) {
        let mut back: Vec<Unacked> =
            slots.into_iter().map(|slot| self.unacked.remove(slot as usize)).collect();
        back.sort_by_key(|held| held.tag);
        self.counts.returned += back.len() as u64;
        for held in back.into_iter().rev() {
            if let Some(until) = held.until {
                self.leases.remove(&(until, held.tag));
            }
            self.ready.push_front(held.stored);
        }
    }

    pub(super) fn script(&mut self, point: FaultPoint, error: Error) {
        self.faults.push_back((point, error));
    }

    /// The scripted error for this operation, if one is due.
    pub(super) fn fault(&mut self, point: FaultPoint) -> Option<Error> {
        if self.faults.is_empty() {
            return None;
        }
        let index = self.faults.iter().position(|(at, _)| *at == point)?;
        self.faults.remove(index).map(|(_, error)| error)
    }

    pub(super) fn counts(&self, dead_lettered: usize) -> QueueCounts {
        QueueCounts {
            pending: self.ready.len(),
            delayed: self.delayed.len(),
            in_flight: self.unacked.len(),
            dead_lettered,
            ..self.counts
        }
    }

    pub(super) fn pending(&self) -> Vec<Message> {
        self.ready.iter().map(Stored::message).collect()
    }

    pub(super) fn delayed(&self) -> Vec<Message> {
        self.delayed.values().map(Stored::message).collect()
    }

    pub(super) fn in_flight(&self) -> Vec<Message> {
        let mut held: Vec<&Unacked> = self.unacked.iter().map(|(_, held)| held).collect();
        held.sort_by_key(|held| held.tag);
        held.into_iter().map(|held| held.stored.message()).collect()
    }

    pub(super) fn acked(&self) -> Vec<Message> {
        self.acked.iter().map(Stored::message).collect()
    }

    pub(super) fn nacked(&self) -> Vec<(Message, NackReason)> {
        self.nacked.iter().map(|(stored, reason)| (stored.message(), reason.clone())).collect()
    }

    fn next(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }
}

impl Stored {
    fn message(&self) -> Message {
        Message::from_content(Arc::clone(&self.content))
            .with_attempt(self.attempt)
            .with_redelivered(self.deliveries > 1)
            .with_delivery_count((self.deliveries > 0).then_some(self.deliveries))
    }
}

/// Adds to a history; what does not fit any more is returned.
fn keep<T>(history: &mut VecDeque<T>, entry: T, most: usize) -> Option<T> {
    if most == 0 {
        return Some(entry);
    }
    let oldest = if history.len() == most { history.pop_front() } else { None };
    history.push_back(entry);
    oldest
}
