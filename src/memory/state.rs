//! What waits in a queue, and what a queue has counted and been told. No locks, no waiting, no clock: time is an
//! argument.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::broker::QueueOptions;
use super::limits::Limits;
use crate::error::Error;
use crate::message::{Content, Message};
use crate::source::{Delivery, NackReason, RequeueOrder};

/// A message as the queue keeps it.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    pub(super) content: Arc<Content>,
    pub(super) attempt: u32,
    /// How often it was delivered since it was published or last retried.
    pub(super) deliveries: u32,
}

/// A message that is to be delivered next.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) stored: Stored,
    /// A second count on the content, for its first delivery: taken when the message is published, since counting then
    /// costs nothing, and later a wait for memory with the queue locked.
    pub(super) to_deliver: Option<Arc<Content>>,
}

impl From<Stored> for Ready {
    fn from(stored: Stored) -> Self {
        Self { stored, to_deliver: None }
    }
}

/// The receipt of a [`MemorySource`](super::MemorySource).
#[derive(Debug)]
pub struct MemoryReceipt {
    pub(super) queue: u32,
    pub(super) slot: u32,
    pub(super) tag: u64,
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
    /// How many are gone without an answer so far: over a limit of the queue, too old, or in a queue that was deleted or
    /// lost its connection with what was in it.
    pub dropped: u64,
}

/// What was taken; made into a delivery once the queue is unlocked.
pub(super) struct Taken {
    pub(super) content: Arc<Content>,
    pub(super) attempt: u32,
    pub(super) deliveries: u32,
    pub(super) receipt: MemoryReceipt,
}

impl Taken {
    pub(super) fn into_delivery(self, received_at: SystemTime) -> Delivery<MemoryReceipt> {
        let Self { content, attempt, deliveries, receipt } = self;
        Delivery { message: Message::delivered(content, attempt, deliveries.into(), received_at), receipt }
    }
}

/// What waits, and all else that is not in the shards.
///
/// What each receive needs comes first and in this order, so that it is on the cache line of the lock.
#[repr(C)]
pub(super) struct State {
    pub(super) ready: VecDeque<Ready>,
    sequence: u64,
    pub(super) order: RequeueOrder,
    pub(super) lease: Option<Duration>,
    pub(super) delayed: BTreeMap<(Instant, u64), Stored>,
    /// The slots of leased deliveries, by the end of the lease and the tag.
    pub(super) leases: BTreeMap<(Instant, u64), u32>,
    /// What sources have taken and not yet passed on, by session.
    pub(super) buffers: BTreeMap<u64, VecDeque<MemoryReceipt>>,
    faults: VecDeque<(FaultPoint, Error)>,
    /// It was deleted: it takes nothing and gives nothing until it is made again.
    pub(super) deleted: bool,
    pub(super) limits: Option<Box<Limits>>,
    pub(super) nacked: VecDeque<(Stored, NackReason)>,
    /// But for what the shards know better.
    pub(super) counts: QueueCounts,
}

impl State {
    pub(super) fn new(options: QueueOptions) -> Self {
        Self {
            ready: VecDeque::new(),
            sequence: 0,
            order: options.requeue_order,
            lease: options.lease,
            delayed: BTreeMap::new(),
            leases: BTreeMap::new(),
            buffers: BTreeMap::new(),
            faults: VecDeque::new(),
            deleted: false,
            limits: Limits::of(&options),
            nacked: VecDeque::new(),
            counts: QueueCounts::default(),
        }
    }

    /// Whether anything here waits for time to pass, so that callers can skip asking the clock.
    pub(super) fn is_timed(&self) -> bool {
        self.lease.is_some() || !self.delayed.is_empty() || self.has_age_limit()
    }

    /// See [`Shard::quick`](super::shard::Shard::quick).
    pub(super) fn is_quick(&self) -> bool {
        !self.is_timed() && self.faults.is_empty() && !self.deleted
    }

    /// Whether a message is not simply taken.
    pub(super) fn is_restricted(&self) -> bool {
        self.deleted || self.limits.is_some()
    }

    /// When the next delay or lease ends, or a message is too old.
    pub(super) fn next_due(&self) -> Option<Instant> {
        let delay = self.delayed.first_key_value().map(|((due, _), _)| *due);
        let lease = self.leases.first_key_value().map(|((until, _), _)| *until);
        delay.into_iter().chain(lease).chain(self.next_expiry()).min()
    }

    pub(super) fn publish(&mut self, content: Arc<Content>) {
        self.counts.published += 1;
        let to_deliver = Some(Arc::clone(&content));
        self.ready.push_back(Ready { stored: Stored { content, attempt: 1, deliveries: 0 }, to_deliver });
    }

    /// Takes out the next message, and gives its delivery a tag.
    pub(super) fn next_ready(&mut self) -> Option<(Ready, u64)> {
        let ready = self.ready.pop_front()?;
        Some((ready, self.next_tag()))
    }

    pub(super) fn next_tag(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
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

    pub(super) fn pending(&self) -> Vec<Message> {
        self.ready.iter().map(|ready| ready.stored.message()).collect()
    }

    pub(super) fn delayed(&self) -> Vec<Message> {
        self.delayed.values().map(Stored::message).collect()
    }

    pub(super) fn nacked(&self) -> Vec<(Message, NackReason)> {
        self.nacked.iter().map(|(stored, reason)| (stored.message(), reason.clone())).collect()
    }
}

impl Stored {
    pub(super) fn message(&self) -> Message {
        Message::from_content(Arc::clone(&self.content))
            .with_attempt(self.attempt)
            .with_redelivered(self.deliveries > 1)
            .with_delivery_count((self.deliveries > 0).then_some(self.deliveries.into()))
    }
}
