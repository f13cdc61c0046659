//! What a consumer tells beside the messages: idle times, waits, pauses, its end; and samples at intervals.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::time::{Duration, Instant};

use bytes::Bytes;
use windlass::clock::{Clock, ControlledClock};
use windlass::codec;
use windlass::consumer::{
    ChangeKind, ConsumerChange, ConsumerEvent, ConsumerSample, Observer, QueueConsumer, Status,
};
use windlass::handler::{Context, Handler, HandlerError};
use windlass::memory::{MemoryQueue, MemorySource};

use support::{Log, SECOND, at_most, millis_after, prompt, publish, queue, stop_on};

/// All that it was told, and when.
#[derive(Clone)]
struct Told {
    clock: ControlledClock,
    changes: Log<(Instant, ChangeKind)>,
    samples: Log<(Instant, ConsumerSample)>,
    every: Option<Duration>,
}

impl Told {
    fn new(clock: &ControlledClock) -> Self {
        Self { clock: clock.clone(), changes: Log::new(), samples: Log::new(), every: None }
    }

    fn names(&self) -> Vec<&'static str> {
        self.changes.all().iter().map(|(_, kind)| kind.name()).collect()
    }

    fn idle_at(&self, start: Instant) -> Vec<u128> {
        let times: Vec<_> = self
            .changes
            .all()
            .iter()
            .filter_map(|(at, kind)| matches!(kind, ChangeKind::Idle { .. }).then_some(*at))
            .collect();
        millis_after(start, &times)
    }
}

impl Observer for Told {
    fn on_message(&self, _: &ConsumerEvent) {}

    fn on_change(&self, change: &ConsumerChange) {
        assert_eq!(&*change.queue, "work");
        self.changes.add((self.clock.now(), change.kind.clone()));
    }

    fn sample_every(&self) -> Option<Duration> {
        self.every
    }

    fn on_sample(&self, sample: &ConsumerSample) {
        self.samples.add((self.clock.now(), sample.clone()));
    }
}

fn consumer(
    queue: &MemoryQueue,
    told: &Told,
) -> QueueConsumer<MemorySource, impl Handler<Bytes, Output = ()> + use<>, Bytes> {
    let clock = told.clock.clone();
    let handler = move |_: Bytes, _: Context| {
        let nap = clock.sleep(SECOND);
        async move {
            nap.await;
            Ok::<_, HandlerError>(())
        }
    };
    QueueConsumer::with_decoder(queue.source(), codec::bytes, handler)
        .max_concurrent(at_most(2))
        .clock(told.clock.clone())
        .observer(told.clone())
}

const TEN: Duration = Duration::from_secs(10);

#[tokio::test]
async fn an_idle_time_is_told_once_and_again_only_after_another_message() {
    let (clock, queue) = queue();
    let (told, start) = (Told::new(&clock), clock.now());
    let _handle = consumer(&queue, &told).idle_after(TEN).start().unwrap();
    clock.advance(Duration::from_secs(60)).await;
    assert_eq!(told.idle_at(start), [10_000]);
    publish(&queue, 1);
    clock.advance(Duration::from_secs(60)).await;
    // The message came at 60 s and took one.
    assert_eq!(told.idle_at(start), [10_000, 71_000]);
}

#[tokio::test]
async fn messages_that_keep_coming_and_handlers_that_run_long_are_no_idle_time() {
    let (clock, queue) = queue();
    let (told, start) = (Told::new(&clock), clock.now());
    let _handle = consumer(&queue, &told).idle_after(TEN).start().unwrap();
    for _ in 0..10 {
        publish(&queue, 1);
        clock.advance(Duration::from_secs(9)).await;
    }
    assert_eq!(told.idle_at(start), [] as [u128; 0]);
    clock.advance(TEN).await;
    // The last came at 81 s and took one.
    assert_eq!(told.idle_at(start), [92_000]);
}

#[tokio::test]
async fn a_handler_that_runs_longer_than_the_idle_time_is_no_idle_time() {
    let (clock, queue) = queue();
    let (told, start) = (Told::new(&clock), clock.now());
    publish(&queue, 1);
    let _handle = consumer(&queue, &told).idle_after(Duration::from_millis(300)).start().unwrap();
    clock.advance(SECOND).await;
    assert_eq!(told.idle_at(start), [] as [u128; 0]);
    clock.advance(SECOND).await;
    assert_eq!(told.idle_at(start), [1_300]);
}

#[tokio::test]
async fn a_pause_is_no_idle_time() {
    let (clock, queue) = queue();
    let told = Told::new(&clock);
    let handle = consumer(&queue, &told).idle_after(TEN).start().unwrap();
    prompt(handle.pause()).await;
    clock.advance(Duration::from_secs(60)).await;
    assert_eq!(told.names(), ["paused"]);
    prompt(handle.resume()).await;
    clock.advance(Duration::from_secs(20)).await;
    assert_eq!(told.names(), ["paused", "resumed", "idle"]);
}

#[tokio::test]
async fn the_end_is_told_last_with_its_report() {
    let (clock, queue) = queue();
    let told = Told::new(&clock);
    let handle = consumer(&queue, &told).start().unwrap();
    publish(&queue, 1);
    clock.settle().await;
    let (report, _) = stop_on(&clock, &handle).await;
    assert_eq!((report.finished, told.names()), (1, vec!["stopped"]));
    let Some((_, ChangeKind::Stopped { report: told })) = told.changes.all().pop() else { panic!() };
    assert_eq!((told.finished, told.stats), (1, report.stats));
}

#[tokio::test]
async fn samples_come_at_their_interval_while_nothing_happens_too_and_at_the_end() {
    let (clock, queue) = queue();
    let start = clock.now();
    let told = Told { every: Some(TEN), ..Told::new(&clock) };
    publish(&queue, 1);
    let handle = consumer(&queue, &told).start().unwrap();
    clock.settle().await;
    clock.advance(Duration::from_secs(35)).await;
    prompt(handle.pause()).await;
    clock.advance(TEN).await;
    let (_, took) = stop_on(&clock, &handle).await;
    let samples = told.samples.all();
    let times: Vec<_> = samples.iter().map(|(at, _)| *at).collect();
    assert_eq!(millis_after(start, &times), [0, 10_000, 20_000, 30_000, 40_000]);
    let statuses: Vec<_> = samples.iter().map(|(_, sample)| sample.status).collect();
    assert_eq!(statuses[..4], [Status::Running; 4]);
    assert_eq!(statuses[4], Status::Paused);
    assert_eq!((samples[1].1.stats.acked, samples[1].1.in_flight), (1, 0));
    assert!(took < SECOND);
}
