//! Calls the observers: each behind a net, in the loop while it is quick, on a thread of its own once it is not.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio_util::sync::{CancellationToken, DropGuard};

use super::event::ConsumerEvent;
use super::observer::{CalledFrom, ConsumerChange, ConsumerSample, Observer};
use super::stats::{Slot, bump};
use crate::clock::{Clock, within};
use crate::handler::panic_text;

/// A call that takes longer than this is the last in the loop.
const SLOW: Duration = Duration::from_millis(10);

/// How much waits for an observer on a thread; what does not fit is dropped.
const MOST_WAITING: usize = 1_024;

/// The shortest time between two samples.
const LEAST_BETWEEN_SAMPLES: Duration = Duration::from_millis(10);

/// All observers of a consumer, in the order in which they were added.
#[derive(Default)]
pub(super) struct Observers(Vec<Observed>);

struct Observed {
    observer: Arc<dyn Observer>,
    called_from: CalledFrom,
    sample_every: Option<Duration>,
    last_sample: Mutex<Option<Instant>>,
    /// Where it is called once it is not called in the loop any more; `None` where no thread could be had.
    outside: OnceLock<Option<Outside>>,
}

/// What an observer is told, as it is where it happens.
#[derive(Clone, Copy)]
enum Told<'a> {
    Message(&'a ConsumerEvent),
    Change(&'a ConsumerChange),
    Sample(&'a ConsumerSample),
}

/// The same, for a thread.
#[derive(Clone)]
enum Kept {
    Message(Arc<ConsumerEvent>),
    Change(Arc<ConsumerChange>),
    Sample(Arc<ConsumerSample>),
}

impl Told<'_> {
    fn to(self, observer: &dyn Observer) {
        match self {
            Self::Message(event) => observer.on_message(event),
            Self::Change(change) => observer.on_change(change),
            Self::Sample(sample) => observer.on_sample(sample),
        }
    }

    fn queue(&self) -> &str {
        match self {
            Self::Message(event) => &event.queue,
            Self::Change(change) => &change.queue,
            Self::Sample(sample) => &sample.queue,
        }
    }

    fn kept(self) -> Kept {
        match self {
            Self::Message(event) => Kept::Message(Arc::new(event.clone())),
            Self::Change(change) => Kept::Change(Arc::new(change.clone())),
            Self::Sample(sample) => Kept::Sample(Arc::new(sample.clone())),
        }
    }
}

impl Kept {
    fn told(&self) -> Told<'_> {
        match self {
            Self::Message(event) => Told::Message(event),
            Self::Change(change) => Told::Change(change),
            Self::Sample(sample) => Told::Sample(sample),
        }
    }
}

impl Observers {
    pub(super) fn push(&mut self, observer: impl Observer) {
        self.0.push(Observed {
            called_from: observer.called_from(),
            sample_every: observer.sample_every().map(|every| every.max(LEAST_BETWEEN_SAMPLES)),
            observer: Arc::new(observer),
            last_sample: Mutex::new(None),
            outside: OnceLock::new(),
        });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How often [`tell_sample`](Self::tell_sample) is to be called: the shortest time that any of them wants.
    pub(super) fn sample_every(&self) -> Option<Duration> {
        self.0.iter().filter_map(|observed| observed.sample_every).min()
    }

    /// Tells of a message. `slot` is the caller's own, where panics and drops are counted.
    pub(super) fn tell_message(&self, slot: &Slot, clock: &dyn Clock, event: &ConsumerEvent) {
        self.tell(slot, clock, Told::Message(event), |_, _| true);
    }

    /// Tells of a change.
    pub(super) fn tell_change(&self, slot: &Slot, clock: &dyn Clock, change: &ConsumerChange) {
        self.tell(slot, clock, Told::Change(change), |_, _| true);
    }

    /// Gives a sample to those that want one by now.
    pub(super) fn tell_sample(&self, slot: &Slot, clock: &dyn Clock, sample: &ConsumerSample) {
        self.tell(slot, clock, Told::Sample(sample), Observed::wants_sample);
    }

    fn tell(&self, slot: &Slot, clock: &dyn Clock, told: Told<'_>, wants: fn(&Observed, Instant) -> bool) {
        if self.is_empty() {
            return;
        }
        // One reading is the end of one call and the beginning of the next.
        let mut began = clock.now();
        let mut kept = None;
        for (index, observed) in self.0.iter().enumerate() {
            if !wants(observed, began) {
                continue;
            }
            if let Some(outside) = observed.outside(index, told.queue()) {
                outside.give(slot, told.queue(), kept.get_or_insert_with(|| told.kept()));
                continue;
            }
            call(&*observed.observer, told, || bump(&slot.counters.observer_panics));
            let ended = clock.now();
            let took = ended.saturating_duration_since(began);
            began = ended;
            if took > SLOW && observed.called_from == CalledFrom::LoopWhileQuick {
                observed.move_out(index, told.queue(), took);
            }
        }
    }

    /// Lets the threads tell what they still have, and waits for them, `bound` at most. What is not told by then is
    /// dropped, and a thread that hangs in a call is left behind. Nothing is told on threads after this.
    pub(super) async fn end(&self, slot: &Slot, clock: &dyn Clock, bound: Duration) {
        let outside: Vec<&Outside> =
            self.0.iter().filter_map(|observed| observed.outside.get()?.as_ref()).collect();
        outside.iter().for_each(|outside| outside.close());
        within(clock, bound, async {
            for outside in &outside {
                outside.ended.cancelled().await;
            }
        })
        .await;
        outside.iter().for_each(|outside| outside.leave(slot, bound));
    }
}

impl Observed {
    /// Whether its time between two samples is over, which is counted from here on if so.
    fn wants_sample(&self, now: Instant) -> bool {
        let Some(every) = self.sample_every else { return false };
        let mut last = self.last_sample.lock().unwrap_or_else(PoisonError::into_inner);
        let due = last.is_none_or(|last| now.saturating_duration_since(last) >= every);
        if due {
            *last = Some(now);
        }
        due
    }

    fn outside(&self, index: usize, queue: &str) -> Option<&Outside> {
        match self.called_from {
            CalledFrom::Loop => None,
            CalledFrom::LoopWhileQuick => self.outside.get()?.as_ref(),
            CalledFrom::Thread => {
                self.outside.get_or_init(|| Outside::start(&self.observer, index, queue)).as_ref()
            }
        }
    }

    fn move_out(&self, index: usize, queue: &str, took: Duration) {
        self.outside.get_or_init(|| {
            tracing::warn!(
                queue,
                observer = index,
                ?took,
                "an observer is slow, from now on it is called from a thread of its own"
            );
            Outside::start(&self.observer, index, queue)
        });
    }
}

/// The thread that calls one observer, from the consumer's side.
struct Outside {
    index: usize,
    /// `None` once the consumer has ended.
    entries: Mutex<Option<SyncSender<Kept>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Fires when the thread has ended.
    ended: CancellationToken,
    shared: Arc<Progress>,
    warned: AtomicBool,
}

/// What the thread and the consumer both know.
#[derive(Default)]
struct Progress {
    /// How many entries are in the queue. Whoever takes one off this tells it or counts it as dropped.
    waiting: AtomicUsize,
    /// How many calls panicked since somebody last looked: a counter of a loop has one writer, which is not the thread.
    panics: AtomicU64,
}

impl Progress {
    /// False where the consumer no longer waits and has counted all that was left as dropped.
    fn take(&self) -> bool {
        let one_less = |waiting: usize| waiting.checked_sub(1);
        self.waiting.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok()
    }
}

impl Outside {
    fn start(observer: &Arc<dyn Observer>, index: usize, queue: &str) -> Option<Self> {
        let (entries, received) = sync_channel(MOST_WAITING);
        let (shared, ended) = (Arc::new(Progress::default()), CancellationToken::new());
        let thread = std::thread::Builder::new().name("windlass-observer".to_owned()).spawn({
            let (observer, shared) = (Arc::clone(observer), Arc::clone(&shared));
            let ended = ended.clone().drop_guard();
            move || run(observer, &received, &shared, ended)
        });
        let thread = match thread {
            Ok(thread) => Mutex::new(Some(thread)),
            Err(error) => {
                tracing::warn!(queue, observer = index, %error, "no thread for an observer, it stays in the loop");
                return None;
            }
        };
        let entries = Mutex::new(Some(entries));
        Some(Self { index, entries, thread, ended, shared, warned: AtomicBool::new(false) })
    }

    fn give(&self, slot: &Slot, queue: &str, kept: &Kept) {
        self.collect_panics(slot);
        if self.try_give(kept) {
            return;
        }
        bump(&slot.counters.observer_drops);
        if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                queue,
                observer = self.index,
                most_waiting = MOST_WAITING,
                "an observer cannot keep up, what it is not told is counted as observer_drops"
            );
        }
    }

    fn try_give(&self, kept: &Kept) -> bool {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(entries) = &*entries else { return false };
        // Counted before the thread can have it.
        self.shared.waiting.fetch_add(1, Ordering::SeqCst);
        let given = entries.try_send(kept.clone()).is_ok();
        if !given {
            self.shared.waiting.fetch_sub(1, Ordering::SeqCst);
        }
        given
    }

    /// Moves the count of panics to where it is seen.
    fn collect_panics(&self, slot: &Slot) {
        if self.shared.panics.load(Ordering::Relaxed) > 0 {
            let panics = self.shared.panics.swap(0, Ordering::Relaxed);
            (0..panics).for_each(|_| bump(&slot.counters.observer_panics));
        }
    }

    /// Nothing more comes: the thread ends once it has told what it has.
    fn close(&self) {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(entries);
    }

    /// Joins the thread where it has ended, and leaves it behind where it has not.
    fn leave(&self, slot: &Slot, bound: Duration) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(thread) = thread else { return };
        if self.ended.is_cancelled() {
            // It has nothing left to do: this takes no time.
            if let Err(panic) = thread.join() {
                tracing::error!(
                    observer = self.index,
                    panic = panic_text(panic),
                    "an observer's thread panicked"
                );
            }
        } else {
            let dropped = self.shared.waiting.swap(0, Ordering::SeqCst);
            (0..dropped).for_each(|_| bump(&slot.counters.observer_drops));
            tracing::warn!(
                observer = self.index,
                dropped,
                ?bound,
                "an observer did not end in time, its thread is left behind"
            );
        }
        self.collect_panics(slot);
    }
}

/// The thread. The guard is dropped last: whoever waits for it finds that nothing of the observer is left here.
fn run(observer: Arc<dyn Observer>, entries: &Receiver<Kept>, progress: &Progress, ended: DropGuard) {
    while let Ok(kept) = entries.recv() {
        if !progress.take() {
            break;
        }
        call(&*observer, kept.told(), || {
            progress.panics.fetch_add(1, Ordering::Relaxed);
        });
        // What is in it is the user's, and may panic when it is dropped.
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(kept)));
        dropped.unwrap_or_else(|panic| drop(panic_text(panic)));
    }
    drop(observer);
    drop(ended);
}

/// Calls one observer, behind a net of its own.
fn call(observer: &dyn Observer, told: Told<'_>, on_panic: impl FnOnce()) {
    let Err(panic) = catch_unwind(AssertUnwindSafe(|| told.to(observer))) else { return };
    on_panic();
    let (queue, panic) = (told.queue(), panic_text(panic));
    match told {
        Told::Message(event) => {
            tracing::error!(queue, id = event.message.id(), panic, "an observer panicked");
        }
        Told::Change(change) => {
            tracing::error!(queue, change = change.kind.name(), panic, "an observer panicked");
        }
        Told::Sample(_) => tracing::error!(queue, panic, "an observer panicked at a sample"),
    }
}

#[cfg(test)]
mod tests;
