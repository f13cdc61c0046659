//! The kill switch: a consumer whose messages mostly fail pauses itself, and tries again with one.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use windlass::clock::ControlledClock;
use windlass::codec;
use windlass::consumer::{
    ChangeKind, ConsumerChange, ConsumerEvent, ConsumerHandle, KillSwitch, Observer, Obstacle, QueueConsumer,
    Status,
};
use windlass::handler::{Context, HandlerError};
use windlass::memory::MemoryQueue;
use windlass::message::Message;

use support::{Log, SECOND, at_most, prompt, publish, queue, stop_on};

const MINUTE: Duration = Duration::from_secs(60);

#[derive(Clone, Default)]
struct Trips(Log<(u64, u64, Duration)>);

impl Observer for Trips {
    fn on_message(&self, _: &ConsumerEvent) {}

    fn on_change(&self, change: &ConsumerChange) {
        if let ChangeKind::Tripped { failed, of, pause } = change.kind {
            self.0.add((failed, of, pause));
        }
    }
}

/// Messages with the body `bad` are dead-lettered by the handler, as are all while `broken` is set.
struct Service {
    clock: ControlledClock,
    queue: MemoryQueue,
    broken: Arc<AtomicBool>,
    calls: Arc<AtomicUsize>,
    trips: Trips,
    handle: ConsumerHandle,
}

impl Service {
    fn new(switch: KillSwitch, loops: usize) -> Self {
        let (clock, queue) = queue();
        let (broken, calls, trips) = (Arc::new(AtomicBool::new(false)), Arc::default(), Trips::default());
        let handler = {
            let (broken, calls) = (Arc::clone(&broken), Arc::clone(&calls));
            move |body: Bytes, _: Context| {
                AtomicUsize::fetch_add(&calls, 1, Ordering::Relaxed);
                let fails = body == "bad" || broken.load(Ordering::Relaxed);
                async move { if fails { Err(HandlerError::terminal("a bad deployment")) } else { Ok(()) } }
            }
        };
        let handle = QueueConsumer::with_decoder(queue.source(), codec::bytes, handler)
            .max_concurrent(at_most(loops))
            .clock(clock.clone())
            .kill_switch(switch)
            .observer(trips.clone())
            .start()
            .unwrap();
        Self { clock, queue, broken, calls, trips, handle }
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }
}

#[tokio::test]
async fn a_bad_deployment_does_not_dead_letter_the_whole_queue() {
    let service = Service::new(KillSwitch::default(), 1);
    service.broken.store(true, Ordering::Relaxed);
    publish(&service.queue, 1_000);
    service.clock.settle().await;
    assert_eq!((service.calls(), service.queue.counts().dead_lettered), (10, 10));
    assert_eq!(service.trips.0.all(), [(10, 10, MINUTE)]);
    assert_eq!(
        (service.handle.status(), service.handle.waiting_for()),
        (Status::Waiting, Some(Obstacle::KillSwitch))
    );
    service.clock.advance(Duration::from_secs(59)).await;
    assert_eq!(service.calls(), 10);
    // One message on trial, which fails too.
    service.clock.advance(SECOND).await;
    assert_eq!((service.calls(), service.handle.stats().trips), (11, 2));
    assert_eq!(service.trips.0.all()[1], (1, 1, MINUTE));
    service.broken.store(false, Ordering::Relaxed);
    service.clock.advance(MINUTE).await;
    prompt(service.queue.until(|queue| queue.counts().acked == 989)).await.unwrap();
    assert_eq!(service.handle.status(), Status::Running);
}

#[tokio::test]
async fn the_trial_is_one_message_with_any_number_of_loops() {
    let service = Service::new(KillSwitch::default(), 8);
    service.broken.store(true, Ordering::Relaxed);
    publish(&service.queue, 1_000);
    service.clock.settle().await;
    let tripped = service.calls();
    assert!((10..=17).contains(&tripped), "those in hand at most: {tripped}");
    for trial in 1..=5 {
        service.clock.advance(MINUTE).await;
        assert_eq!(service.calls(), tripped + trial);
    }
}

#[tokio::test]
async fn a_share_below_the_threshold_does_not_trip_it() {
    let service = Service::new(KillSwitch::default().failure_share(0.5), 1);
    // The first failure comes last, so that no share on the way is higher.
    for number in 0..100 {
        service.queue.publish(Message::new(if number % 5 == 4 { "bad" } else { "good" }));
    }
    prompt(service.queue.until(|queue| queue.counts().dead_lettered == 20)).await.unwrap();
    assert_eq!((service.handle.stats().trips, service.handle.status()), (0, Status::Running));
}

#[tokio::test]
async fn failures_that_are_older_than_the_window_do_not_count() {
    let service = Service::new(KillSwitch::default().min_messages(10).window(MINUTE), 1);
    for _ in 0..9 {
        service.queue.publish(Message::new("bad"));
    }
    service.clock.settle().await;
    service.clock.advance(MINUTE).await;
    for _ in 0..9 {
        service.queue.publish(Message::new("bad"));
    }
    service.clock.settle().await;
    assert_eq!((service.calls(), service.handle.stats().trips), (18, 0));
    service.queue.publish(Message::new("bad"));
    service.clock.settle().await;
    assert_eq!(service.handle.stats().trips, 1);
}

#[tokio::test]
async fn a_tripped_switch_does_not_delay_a_stop_or_a_pause() {
    let service = Service::new(KillSwitch::default().min_messages(1), 2);
    service.queue.publish(Message::new("bad"));
    service.clock.settle().await;
    assert_eq!(service.handle.status(), Status::Waiting);
    prompt(service.handle.pause()).await;
    assert_eq!(service.handle.status(), Status::Paused);
    prompt(service.handle.resume()).await;
    service.clock.settle().await;
    assert_eq!(service.handle.status(), Status::Waiting);
    let (report, took) = stop_on(&service.clock, &service.handle).await;
    assert!(report.is_clean() && took < SECOND, "{report:?} {took:?}");
}

#[tokio::test]
async fn settings_that_make_no_sense_are_refused_by_name() {
    let senseless = [
        (KillSwitch::default().failure_share(0.0), "failure_share"),
        (KillSwitch::default().failure_share(-1.0), "failure_share"),
        (KillSwitch::default().failure_share(1.01), "failure_share"),
        (KillSwitch::default().failure_share(f64::NAN), "failure_share"),
        (KillSwitch::default().window(Duration::ZERO), "window"),
        (KillSwitch::default().pause(Duration::ZERO), "pause"),
    ];
    for (switch, field) in senseless {
        let (clock, queue) = queue();
        let handler = |_: Bytes, _: Context| async { Ok::<_, HandlerError>(()) };
        let consumer = QueueConsumer::with_decoder(queue.source(), codec::bytes, handler);
        let error = consumer.clock(clock).kill_switch(switch).start().unwrap_err();
        assert!(error.to_string().contains("kill_switch") && error.to_string().contains(field), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever the settings: nothing panics, a queue of good messages is worked off, a stop is prompt.
    #[test]
    fn no_setting_keeps_good_messages_from_being_handled(
        window in 1_u64..=u64::MAX, pause in 1_u64..=u64::MAX, share in 1e-300_f64..=1.0, min in any::<u64>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let switch = KillSwitch::default()
                .window(Duration::from_nanos(window))
                .pause(Duration::from_secs(pause))
                .failure_share(share)
                .min_messages(min);
            let service = Service::new(switch, 2);
            publish(&service.queue, 30);
            prompt(service.queue.until(|queue| queue.counts().acked == 30)).await.unwrap();
            service.queue.publish(Message::new("bad"));
            service.clock.settle().await;
            let (report, _) = stop_on(&service.clock, &service.handle).await;
            assert!(report.is_clean(), "{report:?}");
        });
    }
}
