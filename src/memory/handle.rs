//! A handle to a queue: to publish to it, to look into it, to wait for it, and to make it fail.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::queue::{Changes, Queue};
use super::source::MemorySource;
use super::state::{FaultPoint, QueueCounts};
use crate::clock::{Clock, SystemClock, TEST_BOUND, within};
use crate::error::{Error, ErrorKind, Result};
use crate::message::Message;
use crate::source::{DeadLetter, NackReason};

/// One queue of a [`MemoryBroker`](super::MemoryBroker): a handle to publish to it, to look into it, and to make it
/// fail. Cheap to clone.
#[derive(Clone)]
pub struct MemoryQueue(pub(super) Arc<Queue>);

impl MemoryQueue {
    /// The name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// A source that pulls from this queue, one message at a time. Of a queue that is somebody's own, a
    /// [slot](super::MemoryBroker::claim) or a [subscription](super::MemoryBroker::subscribe), it gets nothing: its
    /// `receive` fails with `Taken`.
    pub fn source(&self) -> MemorySource {
        MemorySource::of(self.clone())
    }

    /// Puts a message into the queue, whatever the fault script says. A queue that is full or was deleted does not take
    /// it, without a word; whoever wants to be told uses a
    /// [publisher](super::MemoryBroker::publisher).
    pub fn publish(&self, message: Message) {
        // What was refused shows in the counts, at which those look who publish by hand.
        let _ = self.0.put(&mut self.0.lock(), &message);
    }

    /// The queue of the dead letters of this one.
    pub fn dead_letter_queue(&self) -> MemoryQueue {
        MemoryQueue(self.0.dead_letters())
    }

    /// How much is where, and what has happened so far. Exact, where the histories keep the last ones only.
    pub fn counts(&self) -> QueueCounts {
        let dead = self.0.known_dead_letters().map_or(0, |dead| dead.lock_swept().counts(0).pending);
        self.0.lock_swept().counts(dead)
    }

    /// What waits to be delivered, the next one first.
    pub fn pending(&self) -> Vec<Message> {
        self.0.lock_swept().pending()
    }

    /// What waits for a delay to end, the soonest first.
    pub fn delayed(&self) -> Vec<Message> {
        self.0.lock_swept().delayed()
    }

    /// What was delivered and is not settled, in order of delivery; what a source has buffered included.
    pub fn in_flight(&self) -> Vec<Message> {
        self.0.lock_swept().in_flight()
    }

    /// The last acks, oldest first: as many as [`QueueOptions::history`](super::QueueOptions::history).
    pub fn acked(&self) -> Vec<Message> {
        self.0.lock_swept().acked()
    }

    /// The last nacks with their reasons, oldest first: as many as the history keeps.
    pub fn nacked(&self) -> Vec<(Message, NackReason)> {
        self.0.lock_swept().nacked()
    }

    /// What is in the dead-letter queue, with what is written on it, oldest first.
    pub fn dead_lettered(&self) -> Vec<(Message, DeadLetter)> {
        let Some(dead) = self.0.known_dead_letters() else { return Vec::new() };
        let messages = dead.lock_swept().pending();
        messages
            .into_iter()
            .filter_map(|message| DeadLetter::of(&message).map(|letter| (message, letter)))
            .collect()
    }

    /// Waits until `condition` holds, for at most 10 s of real time. It is looked at now, and at each change of the
    /// queue.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> windlass::Result<()> {
    /// # use windlass::{clock::ControlledClock, memory::MemoryBroker, message::Message};
    /// let queue = MemoryBroker::new(ControlledClock::new()).queue("orders");
    /// queue.publish(Message::new("{}"));
    /// queue.until(|queue| queue.counts().pending == 1).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `Timeout` when it does not hold by then; the text says how the queue stands.
    ///
    /// # Cancel safety
    ///
    /// Safe: it only looks.
    pub async fn until(&self, condition: impl FnMut(&Self) -> bool) -> Result<()> {
        self.until_within(TEST_BOUND, condition).await
    }

    /// As [`until`](Self::until), for at most `bound` of real time.
    ///
    /// # Errors
    ///
    /// `Timeout`, as for [`until`](Self::until).
    ///
    /// # Cancel safety
    ///
    /// Safe: it only looks.
    pub async fn until_within(&self, bound: Duration, condition: impl FnMut(&Self) -> bool) -> Result<()> {
        within(&SystemClock, bound, self.holds(condition)).await.ok_or_else(|| {
            let message = format!("not within {bound:?}; the queue stands at {:?}", self.counts());
            self.0.error(ErrorKind::Timeout, "until").with_message(message)
        })
    }

    async fn holds(&self, mut condition: impl FnMut(&Self) -> bool) {
        let _watcher = Watcher::new(&self.0.changes);
        loop {
            let changed = self.0.changes.changed.notified();
            if condition(self) {
                return;
            }
            let due = self.0.next_due();
            // Only waits are lost here: the loop looks again.
            tokio::select! {
                biased;
                () = changed => {}
                () = wait_until(&*self.0.clock, due) => {}
            }
        }
    }

    /// Makes the next operation at `point` fail with `error`. Several for the same point fail one after the other.
    pub fn fail_next(&self, point: FaultPoint, error: Error) {
        let mut whole = self.0.lock_all();
        whole.script(point, error);
        whole.locked.news.all = true;
    }

    /// Cuts the connection of every source of this queue: what is in flight comes back, to the front and in order,
    /// and its receipts are stale. The sources connect again by themselves.
    ///
    /// A queue that is somebody's own, a [slot](super::MemoryBroker::claim) or a
    /// [subscription](super::MemoryBroker::subscribe), goes with its connection, as on RabbitMQ: what waits in it, for a
    /// retry too, and what is in flight is gone. It is made again at once, for the same source.
    pub fn cut(&self) {
        self.0.cut();
    }
}

impl fmt::Debug for MemoryQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryQueue").field("name", &self.0.name).field("counts", &self.counts()).finish()
    }
}

/// Sleeps until `due`, or for ever where nothing is due.
pub(super) async fn wait_until(clock: &dyn Clock, due: Option<Instant>) {
    match due {
        Some(due) => clock.sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// Counts itself among those that want to hear of changes, as long as it lives.
struct Watcher<'a>(&'a Changes);

impl<'a> Watcher<'a> {
    fn new(changes: &'a Changes) -> Self {
        changes.watchers.fetch_add(1, Ordering::SeqCst);
        Self(changes)
    }
}

impl Drop for Watcher<'_> {
    fn drop(&mut self) {
        self.0.watchers.fetch_sub(1, Ordering::SeqCst);
    }
}
