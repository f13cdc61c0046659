//! What a consumer told, kept for tests and snapshots.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::event::ConsumerEvent;
use super::observer::{CalledFrom, ChangeKind, ConsumerChange, Observer};
use super::supervisor::Report;
use crate::clock::{SystemClock, TEST_BOUND, within};
use crate::error::{Error, ErrorKind, Result};
use crate::source::{NackReason, Settlement};

/// An [`Observer`] that keeps the last events and changes of one or more consumers, for tests. Clones are handles to the
/// same journal.
///
/// Its `Display` has one line for each entry, without times, so that the text of a run on a controlled clock is the same
/// every time and can be compared as a whole. What was forgotten has a line of its own at the top.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> windlass::Result<()> {
/// # use std::time::Duration;
/// # use windlass::{clock::ControlledClock, codec, memory::MemoryBroker};
/// # use windlass::{Context, HandlerError, Message};
/// use windlass::consumer::{Journal, QueueConsumer};
///
/// let clock = ControlledClock::new();
/// let queue = MemoryBroker::new(clock.clone()).queue("orders");
/// queue.publish(Message::new("").with_id("m-1"));
///
/// let journal = Journal::new();
/// let handler = async |_: bytes::Bytes, context: Context| match context.attempt() {
///     1 => Err(HandlerError::failed("reset")),
///     _ => Ok(()),
/// };
/// let consumer = QueueConsumer::with_decoder(queue.source(), codec::bytes, handler);
/// let handle = consumer.observer(journal.clone()).clock(clock.clone()).start()?;
/// journal.until(|journal| journal.len() == 1).await?;
/// clock.advance(Duration::from_secs(1)).await;
/// assert_eq!(
///     journal.to_string(),
///     "orders m-1 attempt 1: failed -> retry in 1s (handler_error: reset)\n\
///      orders m-1 attempt 2: done -> ack\n"
/// );
/// # drop(handle);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Journal(Arc<Shared>);

struct Shared {
    most: NonZeroUsize,
    kept: Mutex<Kept>,
    added: Notify,
}

#[derive(Default)]
struct Kept {
    entries: VecDeque<JournalEntry>,
    forgotten: u64,
}

/// One thing that a consumer told.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum JournalEntry {
    /// What became of a message.
    Message(Box<ConsumerEvent>),
    /// What else happened.
    Change(Box<ConsumerChange>),
}

impl Journal {
    /// How many entries are kept unless another number is given.
    const MOST: NonZeroUsize = NonZeroUsize::MIN.saturating_add(9_999);

    /// A journal of the last 10,000 entries.
    pub fn new() -> Self {
        Self::last(Self::MOST)
    }

    /// A journal of the last `most` entries; older ones are forgotten, and counted.
    pub fn last(most: NonZeroUsize) -> Self {
        Self(Arc::new(Shared { most, kept: Mutex::default(), added: Notify::new() }))
    }

    /// All that is kept, oldest first.
    pub fn entries(&self) -> Vec<JournalEntry> {
        self.lock().entries.iter().cloned().collect()
    }

    /// The events that are kept, oldest first.
    pub fn events(&self) -> Vec<ConsumerEvent> {
        let events = |entry: &JournalEntry| match entry {
            JournalEntry::Message(event) => Some(ConsumerEvent::clone(event)),
            JournalEntry::Change(_) => None,
        };
        self.lock().entries.iter().filter_map(events).collect()
    }

    /// The changes that are kept, oldest first.
    pub fn changes(&self) -> Vec<ConsumerChange> {
        let changes = |entry: &JournalEntry| match entry {
            JournalEntry::Message(_) => None,
            JournalEntry::Change(change) => Some(ConsumerChange::clone(change)),
        };
        self.lock().entries.iter().filter_map(changes).collect()
    }

    /// How many entries are kept.
    pub fn len(&self) -> usize {
        self.lock().entries.len()
    }

    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many entries were forgotten, since more than it keeps came after them.
    pub fn forgotten(&self) -> u64 {
        self.lock().forgotten
    }

    /// Begins anew: nothing is kept, and nothing counts as forgotten.
    pub fn clear(&self) {
        let before = std::mem::take(&mut *self.lock());
        // Outside the lock: an error of somebody else's may do anything when it is dropped.
        drop(before);
    }

    /// Waits until `condition` holds, for at most 10 s of real time. It is looked at now, and after each entry.
    ///
    /// # Errors
    ///
    /// `Timeout` when it does not hold by then; the text has the last lines.
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
    pub async fn until_within(
        &self,
        bound: Duration,
        mut condition: impl FnMut(&Self) -> bool,
    ) -> Result<()> {
        let holds = async {
            loop {
                let added = self.0.added.notified();
                if condition(self) {
                    return;
                }
                added.await;
            }
        };
        within(&SystemClock, bound, holds).await.ok_or_else(|| {
            let message = format!("not within {bound:?}; the journal has {}", self.summary());
            Error::new(ErrorKind::Timeout, "until").with_message(message)
        })
    }

    /// For an error: how much there is, and the end of it.
    fn summary(&self) -> String {
        const SHOWN: usize = 5;
        let kept = self.lock();
        let count = kept.entries.len();
        let mut text = format!("{count} entries and has forgotten {}", kept.forgotten);
        if count > 0 {
            text += ", it ends with";
        }
        for entry in kept.entries.iter().skip(count.saturating_sub(SHOWN)) {
            let _ = write!(text, "\n{entry}");
        }
        text
    }

    fn add(&self, entry: JournalEntry) {
        let forgotten = {
            let mut kept = self.lock();
            let full = kept.entries.len() >= self.0.most.get();
            let forgotten = if full { kept.entries.pop_front() } else { None };
            kept.forgotten += u64::from(full);
            kept.entries.push_back(entry);
            forgotten
        };
        self.0.added.notify_waiters();
        drop(forgotten);
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Journal {
    fn default() -> Self {
        Self::new()
    }
}

/// It never leaves the loop: a test wants each entry, and in its place.
impl Observer for Journal {
    fn on_message(&self, event: &ConsumerEvent) {
        self.add(JournalEntry::Message(Box::new(event.clone())));
    }

    fn on_change(&self, change: &ConsumerChange) {
        self.add(JournalEntry::Change(Box::new(change.clone())));
    }

    fn called_from(&self) -> CalledFrom {
        CalledFrom::Loop
    }
}

impl fmt::Display for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kept = self.lock();
        if kept.forgotten > 0 {
            writeln!(f, "({} forgotten)", kept.forgotten)?;
        }
        kept.entries.iter().try_for_each(|entry| writeln!(f, "{entry}"))
    }
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kept = self.lock();
        f.debug_struct("Journal")
            .field("entries", &kept.entries.len())
            .field("most", &self.0.most)
            .field("forgotten", &kept.forgotten)
            .finish()
    }
}

/// One line, without times.
impl fmt::Display for JournalEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = OneLine(f);
        match self {
            Self::Message(event) => write_event(&mut line, event),
            Self::Change(change) => write_change(&mut line, change),
        }
    }
}

/// Names, ids and details are other people's: what would break the line is escaped.
struct OneLine<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl fmt::Write for OneLine<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|char| match char {
            char if char.is_control() => write!(self.0, "{}", char.escape_default()),
            char => self.0.write_char(char),
        })
    }
}

fn write_event(line: &mut OneLine<'_, '_>, event: &ConsumerEvent) -> fmt::Result {
    let (queue, id, attempt) = (&event.queue, event.message.id(), event.message.attempt());
    write!(line, "{queue} {id} attempt {attempt}: {} -> ", event.outcome.name())?;
    match &event.settlement {
        Settlement::Ack => write!(line, "ack"),
        Settlement::Nack(reason) => {
            match reason {
                NackReason::Retry { delay, counted, .. } => {
                    write!(line, "retry")?;
                    delay.map_or(Ok(()), |delay| write!(line, " in {delay:?}"))?;
                    line.write_str(if *counted { "" } else { ", not counted" })
                }
                NackReason::DeadLetter { .. } => write!(line, "dead-letter"),
                NackReason::RequeueNow { .. } => write!(line, "requeue"),
            }?;
            write!(line, " ({})", reason.cause())
        }
    }?;
    event.settle_error.as_ref().map_or(Ok(()), |error| write!(line, ", not taken: {}", error.kind()))
}

fn write_change(line: &mut OneLine<'_, '_>, change: &ConsumerChange) -> fmt::Result {
    write!(line, "{}: {}", change.queue, change.kind.name())?;
    match &change.kind {
        ChangeKind::Idle { after } => write!(line, " for {after:?}"),
        ChangeKind::Waiting { obstacle } => write!(line, " for {}", obstacle.name()),
        ChangeKind::Tripped { failed, of, pause } => {
            write!(line, " for {pause:?}, {failed} of {of} failed")
        }
        ChangeKind::Stopped { report } => write_report(line, report),
        ChangeKind::Ready | ChangeKind::Paused | ChangeKind::Resumed => Ok(()),
    }
}

fn write_report(line: &mut OneLine<'_, '_>, report: &Report) -> fmt::Result {
    let Report { finished, requeued, abandoned, error, close_error, .. } = report;
    write!(line, ", {finished} finished, {requeued} requeued, {abandoned} abandoned")?;
    error.as_ref().map_or(Ok(()), |error| write!(line, ", error: {}", error.kind()))?;
    close_error.as_ref().map_or(Ok(()), |error| write!(line, ", close error: {}", error.kind()))
}
