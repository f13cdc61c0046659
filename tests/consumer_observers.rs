//! Observers that are slow, hang or panic: they keep up themselves and no message.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{ThreadId, current};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use windlass::clock::{Clock, ControlledClock, Sleep, SystemClock};
use windlass::codec;
use windlass::consumer::{CalledFrom, ConsumerEvent, Observer, QueueConsumer};
use windlass::handler::{Context, HandlerError};
use windlass::memory::{MemoryBroker, MemoryQueue, MemorySource};

use support::{Events, Log, SECOND, ms, prompt, publish, queue, stop_on};

/// How much waits for an observer on its thread.
const MOST_WAITING: u64 = 1_024;

async fn done(_: Bytes, _: Context) -> Result<(), HandlerError> {
    Ok(())
}

fn consumer(
    queue: &MemoryQueue,
    clock: impl Clock,
) -> QueueConsumer<MemorySource, impl windlass::handler::Handler<Bytes, Output = ()>, Bytes> {
    QueueConsumer::with_decoder(queue.source(), codec::bytes, done).clock(clock)
}

/// A queue on real time, by which alone an observer is slow.
fn real_queue() -> MemoryQueue {
    MemoryBroker::new(SystemClock).queue("work")
}

/// Blocks until the other end is dropped, 10 s at most.
fn block(gate: &Mutex<Receiver<()>>) {
    let released = gate.lock().unwrap().recv_timeout(Duration::from_secs(10));
    assert_eq!(released, Err(RecvTimeoutError::Disconnected), "nobody let it go");
}

/// Takes 20 ms of real time, without a sleep.
fn dawdle() {
    let (_kept, never) = channel::<()>();
    assert_eq!(never.recv_timeout(ms(20)), Err(RecvTimeoutError::Timeout));
}

/// A clock that anybody can put ahead, by milliseconds, at any moment.
#[derive(Debug)]
struct Skewed {
    clock: ControlledClock,
    ahead: Arc<AtomicU64>,
}

impl Clock for Skewed {
    fn now(&self) -> Instant {
        self.clock.now() + ms(self.ahead.load(Ordering::SeqCst))
    }

    fn wall(&self) -> SystemTime {
        self.clock.wall()
    }

    fn sleep_until(&self, deadline: Instant) -> Sleep {
        self.clock.sleep(deadline - self.now())
    }
}

/// Calls a closure from a thread of its own, from the start.
struct OnThread<F>(F);

impl<F: Fn(&ConsumerEvent) + Send + Sync + 'static> Observer for OnThread<F> {
    fn on_message(&self, event: &ConsumerEvent) {
        (self.0)(event);
    }

    fn called_from(&self) -> CalledFrom {
        CalledFrom::Thread
    }
}

/// An observer that blocks while the gate is closed, and a log of what it was told.
fn gated() -> (Sender<()>, Log<String>, impl Fn(&ConsumerEvent) + Send + Sync + 'static) {
    let (gate, closed) = channel();
    let (closed, told) = (Mutex::new(closed), Log::new());
    let log = told.clone();
    let observer = move |event: &ConsumerEvent| {
        block(&closed);
        log.add(event.message.id().to_owned());
    };
    (gate, told, observer)
}

fn numbered(count: usize) -> Vec<String> {
    (1..=count).map(|number| format!("m-{number}")).collect()
}

#[tokio::test]
async fn an_observer_that_was_slow_once_keeps_up_no_message_after_that_and_misses_none() {
    let queue = real_queue();
    let (gate, told, observer) = gated();
    let first = AtomicUsize::new(0);
    let quick = Events::new();
    let handle = consumer(&queue, SystemClock)
        .on_event(move |event| match first.fetch_add(1, Ordering::SeqCst) {
            0 => dawdle(),
            _ => observer(event),
        })
        .on_event(quick.observer())
        .start()
        .unwrap();
    publish(&queue, 101);
    queue.until(|queue| queue.counts().acked == 101).await.unwrap();
    assert_eq!(told.len(), 0, "it blocks");
    // The last event is told after its ack.
    let quick_one = async {
        while quick.len() < 101 {
            tokio::task::yield_now().await;
        }
    };
    prompt(quick_one).await;
    drop(gate);
    let report = prompt(handle.stop()).await;
    assert_eq!(told.all(), numbered(101)[1..], "in order, and all before the end");
    assert_eq!((report.stats.observer_drops, report.stats.observer_panics), (0, 0));
}

/// What makes the observer above slow is the time on the consumer's clock and nothing else.
#[tokio::test]
async fn on_a_clock_that_stands_still_a_slow_observer_stays_in_the_loop() {
    let (clock, queue) = queue();
    let threads = Log::new();
    let seen = threads.clone();
    let slow = move |_: &ConsumerEvent| {
        seen.add(current().id());
        dawdle();
    };
    let handle = consumer(&queue, clock.clone()).on_event(slow).start().unwrap();
    publish(&queue, 3);
    clock.advance(SECOND).await;
    assert_eq!(threads.all(), [current().id(); 3]);
    drop(handle);
}

#[tokio::test]
async fn an_observer_that_takes_time_on_the_clock_is_moved_to_one_thread_of_its_own() {
    let (clock, queue) = queue();
    let threads: Log<ThreadId> = Log::new();
    let seen = threads.clone();
    let skewed = Skewed { clock: clock.clone(), ahead: Arc::default() };
    let ahead = Arc::clone(&skewed.ahead);
    let slow = move |_: &ConsumerEvent| {
        seen.add(current().id());
        ahead.fetch_add(11, Ordering::SeqCst);
    };
    let handle = consumer(&queue, skewed).on_event(slow).start().unwrap();
    publish(&queue, 4);
    queue.until(|queue| queue.counts().acked == 4).await.unwrap();
    // With the clock at rest: the threads are in real time.
    let _ = prompt(handle.stop()).await;
    let threads = threads.all();
    assert_eq!((threads.len(), threads[0]), (4, current().id()));
    assert!(threads[1..].iter().all(|thread| *thread == threads[1] && *thread != threads[0]), "{threads:?}");
}

#[tokio::test]
async fn an_observer_that_hangs_for_ever_keeps_up_neither_messages_nor_the_end() {
    let (clock, queue) = queue();
    let (gate, told, observer) = gated();
    let quick = Events::new();
    let handle = consumer(&queue, clock.clone())
        .on_event(quick.observer())
        .observer(OnThread(observer))
        .close_timeout(3 * SECOND)
        .start()
        .unwrap();
    publish(&queue, 3_000);
    queue.until(|queue| queue.counts().acked == 3_000).await.unwrap();
    let (report, took) = stop_on(&clock, &handle).await;
    assert_eq!(quick.len(), 3_000);
    assert_eq!(told.len(), 0, "it hangs");
    assert!((3 * SECOND..4 * SECOND).contains(&took), "it was waited for {took:?}");
    // It is in the call for the first one, unless its thread came to nothing yet, and is told nothing more: the end
    // is one thing more than the messages.
    assert!((2_999..=3_001).contains(&report.stats.observer_drops), "{report:?}");
    assert!(report.is_clean(), "{report:?}");
    drop(gate);
}

#[tokio::test]
async fn what_does_not_fit_into_the_queue_of_an_observer_is_dropped_and_counted() {
    let (clock, queue) = queue();
    let (gate, told, observer) = gated();
    let handle = consumer(&queue, clock.clone()).observer(OnThread(observer)).start().unwrap();
    publish(&queue, 2_000);
    queue.until(|queue| queue.counts().acked == 2_000).await.unwrap();
    clock.settle().await;
    let drops = handle.stats().observer_drops;
    // The thread has one in hand, unless it has not come to it yet.
    let fit = MOST_WAITING..=MOST_WAITING + 1;
    assert!(fit.contains(&(2_000 - drops)), "{drops}");
    drop(gate);
    let report = prompt(handle.stop()).await;
    // The end is one thing more to tell, and may come before the thread has made room for it.
    let dropped = report.stats.observer_drops - drops;
    assert!(dropped <= 1, "the rest was told before the end, but for {dropped}");
    assert_eq!(told.len() as u64, 2_000 - drops);
}

#[tokio::test]
async fn an_observer_that_panics_on_its_thread_is_called_again_and_counted() {
    let (clock, queue) = queue();
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let observer = OnThread(move |_: &ConsumerEvent| {
        counted.fetch_add(1, Ordering::SeqCst);
        panic!("an observer on its thread");
    });
    let handle = consumer(&queue, clock.clone()).observer(observer).start().unwrap();
    publish(&queue, 5);
    queue.until(|queue| queue.counts().acked == 5).await.unwrap();
    let report = prompt(handle.stop()).await;
    assert_eq!(calls.load(Ordering::SeqCst), 5);
    assert_eq!((report.stats.observer_panics, report.stats.observer_drops), (5, 0));
}

#[tokio::test]
async fn one_that_wants_to_stay_in_the_loop_is_never_moved() {
    struct Stays(Log<ThreadId>);
    impl Observer for Stays {
        fn on_message(&self, _: &ConsumerEvent) {
            dawdle();
            self.0.add(current().id());
        }
        fn called_from(&self) -> CalledFrom {
            CalledFrom::Loop
        }
    }
    let (queue, threads) = (real_queue(), Log::new());
    let handle = consumer(&queue, SystemClock).observer(Stays(threads.clone())).start().unwrap();
    publish(&queue, 3);
    queue.until(|queue| queue.counts().acked == 3).await.unwrap();
    let _ = prompt(handle.stop()).await;
    assert_eq!(threads.all(), [current().id(); 3]);
}

/// A slow one among quick ones: nobody else is taken for it.
#[tokio::test]
async fn only_the_slow_one_of_several_is_moved() {
    let ((clock, queue), threads) = (queue(), Log::new());
    let skewed = Skewed { clock: clock.clone(), ahead: Arc::default() };
    let seen = |name: &'static str, takes: u64| {
        let (threads, ahead) = (threads.clone(), Arc::clone(&skewed.ahead));
        move |event: &ConsumerEvent| {
            // Not with the second, where the slow one runs beside the others.
            if event.message.id() == "m-1" {
                ahead.fetch_add(takes, Ordering::SeqCst);
            }
            threads.add((name, current().id()));
        }
    };
    let (before, slow, after) = (seen("before", 10), seen("slow", 11), seen("after", 10));
    let consumer = consumer(&queue, skewed).on_event(before).on_event(slow).on_event(after);
    let handle = consumer.start().unwrap();
    publish(&queue, 2);
    queue.until(|queue| queue.counts().acked == 2).await.unwrap();
    // With the clock at rest: the threads are in real time.
    let _ = prompt(handle.stop()).await;
    let own = current().id();
    let elsewhere: Vec<_> = threads.all().into_iter().filter(|(_, thread)| *thread != own).collect();
    assert_eq!((threads.len(), elsewhere.len()), (6, 1));
    assert_eq!(elsewhere[0].0, "slow");
}
