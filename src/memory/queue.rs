//! One queue: its locks, and who is told of what has changed.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::broker::{Broker, QueueOptions};
use super::locked::Locked;
use super::parts::Parts;
use super::shard::own_index;
use super::state::{FaultPoint, MemoryReceipt};
use super::whole::{Nacked, Whole};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::message::Message;
use crate::queue::DeleteQueue;
use crate::source::{DeadLetter, Delivery, NackReason, RequeueOrder};

pub(super) struct Queue {
    pub(super) name: String,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) lease: Option<Duration>,
    pub(super) order: RequeueOrder,
    /// As it was made.
    pub(super) options: QueueOptions,
    /// It is one claimant's or one subscriber's: nobody else pulls from it, and it ends with its connection.
    pub(super) exclusive: bool,
    parts: Parts,
    /// A message is there, or the time at which the next one is due has changed.
    pub(super) arrived: Notify,
    pub(super) changes: Arc<Changes>,
    /// How many sources are open on it.
    pub(super) sources: AtomicUsize,
    broker: Weak<Broker>,
    dead_letter_to: DeadLetterTo,
    dead_letters: OnceLock<Arc<Queue>>,
}

/// Where the dead letters of a queue go.
pub(super) enum DeadLetterTo {
    /// To the queue of this name.
    Queue(String),
    /// Nowhere: the message is gone. Who looks for them nevertheless is shown the queue of this name.
    Nowhere(String),
}

impl DeadLetterTo {
    /// To `<name>.dlq`.
    pub(super) fn own(name: &str) -> Self {
        Self::Queue(format!("{name}.dlq"))
    }
}

/// What a queue has from its broker.
pub(super) struct Surroundings {
    pub(super) clock: Arc<dyn Clock>,
    pub(super) changes: Arc<Changes>,
    pub(super) broker: Weak<Broker>,
}

/// Changes of any queue of a broker, for those who wait for a condition: it may look at more queues than one.
#[derive(Debug, Default)]
pub(super) struct Changes {
    pub(super) changed: Notify,
    /// How many wait, so that nothing is told where nobody does.
    pub(super) watchers: AtomicUsize,
}

impl Queue {
    /// A queue that anybody may use.
    pub(super) fn shared(name: &str, options: QueueOptions, surroundings: Surroundings) -> Self {
        Self::new(name, options, DeadLetterTo::own(name), false, surroundings)
    }

    /// A queue of somebody's own.
    pub(super) fn exclusive(name: &str, dead_letter_to: DeadLetterTo, surroundings: Surroundings) -> Self {
        Self::new(name, QueueOptions::new(), dead_letter_to, true, surroundings)
    }

    fn new(
        name: &str,
        options: QueueOptions,
        dead_letter_to: DeadLetterTo,
        exclusive: bool,
        surroundings: Surroundings,
    ) -> Self {
        let Surroundings { clock, changes, broker } = surroundings;
        Self {
            name: name.to_owned(),
            clock,
            lease: options.lease,
            order: options.requeue_order,
            options,
            exclusive,
            parts: Parts::new(options),
            arrived: Notify::new(),
            changes,
            sources: AtomicUsize::new(0),
            broker,
            dead_letter_to,
            dead_letters: OnceLock::new(),
        }
    }

    /// The state alone: for what touches nothing that is in flight, and makes nothing wait for time to pass.
    pub(super) fn lock(&self) -> Locked<'_> {
        Locked::new(self, self.parts.state())
    }

    pub(super) fn lock_all(&self) -> Whole<'_> {
        Whole::new(&self.parts, self.parts.shards(), self.lock())
    }

    /// Everything locked, with what is due brought back.
    pub(super) fn lock_swept(&self) -> Whole<'_> {
        let mut whole = self.lock_all();
        if whole.is_timed() && whole.sweep(self.clock.now()) {
            whole.locked.everything_moved();
        }
        whole
    }

    pub(super) fn tell(&self) {
        // Whoever watches has counted itself before it took the lock under which this change was made, or after.
        if self.changes.watchers.load(Ordering::Relaxed) > 0 {
            self.changes.changed.notify_waiters();
        }
    }

    pub(super) fn error(&self, kind: ErrorKind, operation: &'static str) -> Error {
        Error::new(kind, operation).with_context("queue", &self.name)
    }

    pub(super) fn publish(&self, message: &Message) -> Result<()> {
        let mut state = self.lock();
        if let Some(error) = state.fault(FaultPoint::Publish) {
            return Err(error);
        }
        self.put(&mut state, message)
    }

    /// Puts a message into this queue, of which `state` is the state, unless it was deleted or is full.
    pub(super) fn put(&self, state: &mut Locked<'_>, message: &Message) -> Result<()> {
        if state.is_restricted() {
            self.put_restricted(state, message)?;
        } else {
            state.publish(Arc::clone(message.content()));
        }
        state.news.one = true;
        state.news.changed = true;
        Ok(())
    }

    #[cold]
    fn put_restricted(&self, state: &mut Locked<'_>, message: &Message) -> Result<()> {
        // What is too old leaves room.
        state.expire(self.clock.now());
        if let Some(error) = self.refusal(state, "publish") {
            return Err(error);
        }
        state.publish_limited(message.content(), self.clock.now());
        // Who waits must know when the next one is too old.
        state.news.all |= state.has_age_limit();
        Ok(())
    }

    /// Why the queue takes no message now, where it does not.
    fn refusal(&self, state: &Locked<'_>, operation: &'static str) -> Option<Error> {
        let refused = |kind, text| Some(self.error(kind, operation).with_message(text));
        if state.deleted {
            refused(ErrorKind::Unroutable, "the queue was deleted")
        } else if state.is_full() {
            refused(ErrorKind::Refused, "the queue is full")
        } else {
            None
        }
    }

    /// Whether the queue may be deleted.
    pub(super) fn check_delete(&self, options: DeleteQueue) -> Result<()> {
        const OPERATION: &str = "delete queue";
        if self.exclusive {
            return Err(self.error(ErrorKind::Taken, OPERATION));
        }
        let refused = |text: String| {
            Err(self.error(ErrorKind::Refused, OPERATION).with_message(text).with_transient(false))
        };
        let (messages, sources) = (self.ready(), self.sources.load(Ordering::Relaxed));
        if options.if_empty && messages > 0 {
            return refused(format!("{messages} messages are in it: `if_empty(false)` deletes them with it"));
        }
        if options.if_unused && sources > 0 {
            return refused(format!("it has {sources} consumers: `if_unused(false)` takes it from them"));
        }
        Ok(())
    }

    /// Deletes what is in the queue, and the queue until it is [revived](Self::revive); how many messages that were.
    /// Those that wait for one are not told yet: whoever calls this may hold a lock of the broker.
    pub(super) fn delete(&self) -> usize {
        let mut whole = self.lock_all();
        whole.deleted = true;
        whole.drop_all()
    }

    /// The queue is there again, and empty.
    pub(super) fn revive(&self) {
        self.lock_all().deleted = false;
    }

    pub(super) fn is_deleted(&self) -> bool {
        self.lock().deleted
    }

    /// How many messages are ready, delayed ones not among them.
    pub(super) fn ready(&self) -> usize {
        self.lock().ready.len()
    }

    /// Everybody who waits looks again.
    pub(super) fn wake_all(&self) {
        self.arrived.notify_waiters();
        self.tell();
    }

    /// Cuts the connection of every source. An exclusive queue goes with its connection, and is made again at once.
    pub(super) fn cut(&self) {
        let mut whole = self.lock_swept();
        if self.exclusive {
            whole.drop_all();
        } else {
            whole.cut();
        }
        whole.locked.everything_moved();
    }

    /// `open` is asked under a lock that ending the session takes too, so that a session which ends at the same time
    /// takes nothing more.
    pub(super) fn take(
        &self,
        session: u64,
        prefetch: usize,
        open: impl FnOnce() -> bool,
    ) -> Result<Option<Delivery<MemoryReceipt>>> {
        if prefetch == 0
            && let Some(mut shard) = self.parts.quick(own_index())
        {
            if !open() {
                return Err(self.error(ErrorKind::Closed, "receive"));
            }
            let next = || self.parts.state().next_ready();
            let Some(taken) = shard.claim(self.parts.id, session, next) else { return Ok(None) };
            shard.delivered += 1;
            drop(shard);
            self.tell();
            return Ok(Some(taken.into_delivery(self.clock.wall())));
        }
        self.take_slowly(session, prefetch, open)
    }

    fn take_slowly(
        &self,
        session: u64,
        prefetch: usize,
        open: impl FnOnce() -> bool,
    ) -> Result<Option<Delivery<MemoryReceipt>>> {
        let mut whole = self.lock_all();
        let now = whole.is_timed().then(|| self.clock.now());
        if now.is_some_and(|now| whole.sweep(now)) {
            whole.locked.everything_moved();
        }
        if !open() {
            return Err(self.error(ErrorKind::Closed, "receive"));
        }
        if whole.deleted {
            return Err(self.error(ErrorKind::NotFound, "receive").with_message("the queue was deleted"));
        }
        if let Some(error) = whole.fault(FaultPoint::Receive) {
            return Err(error);
        }
        let due = whole.next_due();
        let Some(taken) = whole.take(session, prefetch, now) else { return Ok(None) };
        whole.locked.news.all |= whole.next_due() != due;
        whole.locked.news.changed = true;
        drop(whole);
        Ok(Some(taken.into_delivery(self.clock.wall())))
    }

    /// When the next delay or lease ends.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.lock().next_due()
    }

    pub(super) fn ack(&self, receipt: &MemoryReceipt) -> Result<()> {
        let stale = || self.error(ErrorKind::Stale, "ack");
        // What is forgotten is dropped last, once all is unlocked.
        let _forgotten;
        if let Some(mut shard) = self.parts.quick_of(receipt) {
            let held = shard.settle(receipt.slot, receipt.tag).ok_or_else(stale)?;
            _forgotten = shard.remember(self.parts.next_ack(), held.stored, self.parts.history);
            drop(shard);
            self.tell();
            return Ok(());
        }
        let mut whole = self.lock_swept();
        if let Some(error) = whole.fault(FaultPoint::Ack) {
            return Err(self.failed_settle(&mut whole, receipt, error));
        }
        _forgotten = whole.ack(receipt).ok_or_else(stale)?;
        whole.locked.news.changed = true;
        drop(whole);
        Ok(())
    }

    pub(super) fn nack(&self, receipt: &MemoryReceipt, reason: NackReason) -> Result<()> {
        // Looked up before the lock is taken: making the dead-letter queue takes the broker's lock.
        let kept = matches!(self.dead_letter_to, DeadLetterTo::Queue(_));
        let is_dead = matches!(reason, NackReason::DeadLetter { .. });
        let dead_letters = (is_dead && kept).then(|| self.dead_letters());
        let cause = reason.cause().clone();
        let mut whole = self.lock_swept();
        if let Some(error) = whole.fault(FaultPoint::Nack) {
            return Err(self.failed_settle(&mut whole, receipt, error));
        }
        let due = whole.next_due();
        // Locks are taken from a queue to its dead-letter queue only, never the other way.
        let mut dead = dead_letters.as_deref().map(|queue| (queue, queue.lock()));
        if let Some((_, state)) = &mut dead {
            // What is too old leaves room.
            state.expire(self.clock.now());
        }
        // Asked before the message is taken out of this one.
        if let Some(error) = dead.as_ref().and_then(|(queue, state)| queue.refusal(state, "nack")) {
            return Err(self.failed_settle(&mut whole, receipt, error));
        }
        match whole.nack(receipt, reason, self.clock.now()) {
            None => return Err(self.error(ErrorKind::Stale, "nack")),
            Some(Nacked::Dead(message)) => {
                let letter = DeadLetter::new(cause, &message, &self.name, self.clock.wall());
                let headers = letter.stamp(message.headers().clone());
                match &mut dead {
                    // There is room, as was seen above.
                    Some((queue, state)) => queue.put(state, &message.with_headers(headers))?,
                    None => whole.counts.dropped += 1,
                }
            }
            Some(Nacked::Kept) => {
                whole.locked.news.all = whole.next_due() != due;
                whole.locked.news.one = true;
            }
        }
        whole.locked.news.changed = true;
        // Both queues are unlocked, and only then the news of either are told.
        let _dead_news = dead.map(|(_, state)| state.unlock());
        drop(whole);
        Ok(())
    }

    fn failed_settle(&self, whole: &mut Whole<'_>, receipt: &MemoryReceipt, error: Error) -> Error {
        if !whole.fail_settle(receipt) {
            return self.error(ErrorKind::Stale, "settle");
        }
        whole.locked.news.one = true;
        whole.locked.news.changed = true;
        error
    }

    pub(super) fn extend(&self, receipt: &MemoryReceipt) -> Result<()> {
        if self.lease.is_none() {
            return Err(self.error(ErrorKind::Unsupported, "extend"));
        }
        let mut whole = self.lock_swept();
        if let Some(error) = whole.fault(FaultPoint::Extend) {
            return Err(error);
        }
        if whole.extend(receipt, self.clock.now()) {
            Ok(())
        } else {
            Err(self.error(ErrorKind::Stale, "extend"))
        }
    }

    pub(super) fn release(&self, session: u64) -> Result<()> {
        let mut whole = self.lock_swept();
        if let Some(error) = whole.fault(FaultPoint::Release) {
            return Err(error);
        }
        whole.release(session);
        whole.locked.everything_moved();
        Ok(())
    }

    pub(super) fn end_session(&self, session: u64, close: impl FnOnce()) -> Result<()> {
        let mut whole = self.lock_swept();
        close();
        whole.end_session(session);
        whole.locked.everything_moved();
        whole.fault(FaultPoint::Close).map_or(Ok(()), Err)
    }

    /// The dead-letter queue, if it was made.
    pub(super) fn known_dead_letters(&self) -> Option<&Queue> {
        self.dead_letters.get().map(|dead| &**dead)
    }

    /// The dead-letter queue; made anew where somebody deleted it.
    pub(super) fn dead_letters(&self) -> Arc<Queue> {
        let (DeadLetterTo::Queue(name) | DeadLetterTo::Nowhere(name)) = &self.dead_letter_to;
        let known = self.dead_letters.get_or_init(|| {
            match self.broker.upgrade() {
                Some(broker) => broker.queue(name),
                // The broker is gone but for this queue: its dead letters are still looked at from here.
                None => Arc::new(Queue::shared(
                    name,
                    QueueOptions::new(),
                    Surroundings {
                        clock: Arc::clone(&self.clock),
                        changes: Arc::clone(&self.changes),
                        broker: Weak::new(),
                    },
                )),
            }
        });
        match self.broker.upgrade() {
            Some(broker) if known.is_deleted() => broker.queue(name),
            _ => Arc::clone(known),
        }
    }
}
