//! Sources that fail: in receive, in settling, in release and close, by errors and by never returning.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::time::Duration;

use bytes::Bytes;
use windlass::backoff::Backoff;
use windlass::clock::{Clock, ControlledClock};
use windlass::codec;
use windlass::consumer::{ConsumerHandle, QueueConsumer, Status};
use windlass::handler::{Context, HandlerError};
use windlass::memory::{FaultPoint, MemoryQueue};
use windlass::source::{Health, MessageSource, Settlement};
use windlass::{Error, ErrorKind};

use support::faulty::{Act, Calls, Faulty, Op};
use support::{Events, SECOND, at_most, ids, millis_after, ms, prompt, publish, queue, stop_on};

fn gone(operation: &'static str) -> Error {
    Error::new(ErrorKind::Disconnected, operation).with_message("connection reset")
}

async fn done(_: Bytes, _: Context) -> Result<(), HandlerError> {
    Ok(())
}

/// A running consumer whose handler succeeds, on a source that fails as its script says.
struct Bench {
    clock: ControlledClock,
    queue: MemoryQueue,
    calls: Calls,
    events: Events,
    handle: ConsumerHandle,
}

impl Bench {
    fn new(script: impl Fn(Op, u64) -> Act + Send + Sync + 'static) -> Self {
        Self::with_loops(1, script)
    }

    fn with_loops(loops: usize, script: impl Fn(Op, u64) -> Act + Send + Sync + 'static) -> Self {
        let (clock, queue) = queue();
        let source = Faulty::new(queue.source(), script);
        let (calls, events) = (source.calls(), Events::new());
        let handle = QueueConsumer::with_decoder(source, codec::bytes, done)
            .max_concurrent(at_most(loops))
            .receive_backoff(Backoff::new(ms(100)).with_jitter(0.0))
            .on_event(events.observer())
            .clock(clock.clone())
            .start()
            .unwrap();
        Self { clock, queue, calls, events, handle }
    }
}

#[tokio::test]
async fn failed_receives_back_off_on_the_clock_and_all_messages_come_in_the_end() {
    let bench = Bench::new(|op, nth| match (op, nth) {
        (Op::Receive, 1..=5) => Act::Fail(gone("receive")),
        _ => Act::Pass,
    });
    publish(&bench.queue, 3);
    bench.clock.settle().await;
    assert_eq!(bench.calls.of(Op::Receive), 1, "no second try while the clock stands still");
    bench.clock.advance(10 * SECOND).await;
    assert_eq!(ids(&bench.queue.acked()), ["m-1", "m-2", "m-3"]);
    let stats = prompt(bench.handle.stop()).await.stats;
    assert_eq!((stats.receive_errors, stats.acked), (5, 3));
}

/// "From 100 ms, doubling, to 30 s by default": one loop that fails must wait as documented.
#[tokio::test]
async fn the_wait_after_failed_receives_doubles_from_one_to_the_next() {
    let (clock, queue) = queue();
    let start = clock.now();
    let times = support::Log::new();
    let source = Faulty::new(queue.source(), {
        let (clock, times) = (clock.clone(), times.clone());
        move |op, _| {
            if op != Op::Receive {
                return Act::Pass;
            }
            times.add(clock.now());
            Act::Fail(gone("receive"))
        }
    });
    let handle = QueueConsumer::with_decoder(source, codec::bytes, done)
        .receive_backoff(Backoff::new(ms(100)).with_jitter(0.0))
        .clock(clock.clone())
        .start()
        .unwrap();
    clock.advance(ms(3_200)).await;
    assert_eq!(millis_after(start, &times.all()), [0, 100, 300, 700, 1_500, 3_100]);
    drop(handle);
}

#[tokio::test]
async fn a_source_that_is_down_is_not_asked_often_whatever_the_number_of_loops() {
    let bench = Bench::with_loops(16, |op, _| match op {
        Op::Receive => Act::Fail(gone("receive")),
        _ => Act::Pass,
    });
    bench.clock.advance(600 * SECOND).await;
    let calls = bench.calls.of(Op::Receive);
    assert!((16 * 20..=16 * 60).contains(&calls), "{calls} calls in 10 minutes by 16 loops");
    assert_eq!(prompt(bench.handle.stop()).await.stats.receive_errors, calls);
}

#[tokio::test]
async fn the_backoff_starts_anew_after_a_receive_that_worked() {
    let bench = Bench::new(|op, nth| match (op, nth) {
        (Op::Receive, 1..=9 | 11..) => Act::Fail(gone("receive")),
        _ => Act::Pass,
    });
    publish(&bench.queue, 1);
    while bench.calls.of(Op::Receive) < 11 {
        bench.clock.advance(ms(100)).await;
    }
    assert_eq!(bench.queue.counts().acked, 1);
    bench.clock.advance(ms(100)).await;
    assert_eq!(bench.calls.of(Op::Receive), 12, "100 ms after the first failure of the new row");
    drop(bench.handle);
}

/// BC-22, a (bbc/sqs-consumer#346): the broker is down, the wait is long, and stop is asked.
#[tokio::test]
async fn stop_does_not_sit_out_the_wait_after_a_failed_receive() {
    let bench = Bench::with_loops(4, |op, _| match op {
        Op::Receive => Act::Fail(gone("receive")),
        _ => Act::Pass,
    });
    bench.clock.advance(600 * SECOND).await;
    let calls = bench.calls.of(Op::Receive);
    let report = prompt(bench.handle.stop()).await;
    assert!(report.is_clean() && report.took.is_zero(), "{report:?}");
    // BC-22, d (bbc/sqs-consumer#346): nothing connects after that.
    bench.clock.advance(600 * SECOND).await;
    assert_eq!(bench.calls.of(Op::Receive), calls);
}

#[tokio::test]
async fn an_error_that_cannot_be_helped_ends_the_consumer_and_stands_in_the_report() {
    let bench = Bench::with_loops(3, |op, nth| match (op, nth) {
        (Op::Receive, 5) => Act::Fail(Error::new(ErrorKind::Unauthorized, "receive")),
        _ => Act::Pass,
    });
    publish(&bench.queue, 20);
    let report = prompt(bench.handle.wait()).await;
    assert_eq!(report.error.as_ref().map(Error::kind), Some(ErrorKind::Unauthorized));
    assert!(!report.is_clean());
    assert_eq!((bench.handle.status(), bench.calls.of(Op::Close)), (Status::Stopped, 1));
    let counts = bench.queue.counts();
    assert_eq!((counts.in_flight, counts.pending + counts.acked as usize), (0, 20), "{counts:?}");
    let again = prompt(bench.handle.stop()).await;
    assert_eq!(again.error.map(|error| error.kind()), Some(ErrorKind::Unauthorized), "the same report");
}

#[tokio::test]
async fn an_error_of_a_transient_kind_that_says_it_cannot_be_helped_ends_the_consumer() {
    let bench = Bench::new(|op, _| match op {
        Op::Receive => Act::Fail(gone("receive").with_transient(false)),
        _ => Act::Pass,
    });
    let report = prompt(bench.handle.wait()).await;
    assert_eq!(report.error.map(|error| error.kind()), Some(ErrorKind::Disconnected));
}

#[tokio::test]
async fn handlers_under_way_are_finished_when_another_loop_ends_by_an_error() {
    let (clock, queue) = queue();
    let source = Faulty::new(queue.source(), |op, nth| match (op, nth) {
        (Op::Receive, 2) => Act::Fail(Error::new(ErrorKind::NotFound, "receive").with_transient(false)),
        _ => Act::Pass,
    });
    let handler = {
        let clock = clock.clone();
        move |_: Bytes, _: Context| {
            let nap = clock.sleep(3 * SECOND);
            async move {
                nap.await;
                Ok::<_, HandlerError>(())
            }
        }
    };
    let consumer = QueueConsumer::with_decoder(source, codec::bytes, handler);
    let handle = consumer.max_concurrent(at_most(2)).clock(clock.clone()).start().unwrap();
    publish(&queue, 5);
    clock.settle().await;
    assert_eq!(handle.status(), Status::Stopping);
    clock.advance(3 * SECOND).await;
    let report = prompt(handle.wait()).await;
    assert_eq!((report.finished, report.stats.acked, queue.counts().pending), (1, 1, 4), "{report:?}");
}

/// A source that answers "nothing" at once must not keep the processor busy: its waits grow to 100 ms.
#[tokio::test]
async fn a_source_that_has_nothing_at_once_and_for_ever_is_not_asked_at_full_speed() {
    let bench = Bench::new(|op, _| if op == Op::Receive { Act::Nothing } else { Act::Pass });
    bench.clock.settle().await;
    assert!(bench.calls.of(Op::Receive) <= 3, "while the clock stands still");
    bench.clock.advance(10 * SECOND).await;
    let calls = bench.calls.of(Op::Receive);
    assert!((50..=400).contains(&calls), "{calls} calls in 10 s");
    assert!(prompt(bench.handle.stop()).await.is_clean());
}

#[tokio::test]
async fn a_source_with_an_idle_time_of_its_own_is_asked_again_without_a_wait() {
    let (clock, queue) = queue();
    let source = queue.source().with_idle(ms(20));
    let handle =
        QueueConsumer::with_decoder(source, codec::bytes, done).clock(clock.clone()).start().unwrap();
    clock.advance(10 * SECOND).await;
    publish(&queue, 1);
    clock.settle().await;
    assert_eq!(queue.counts().acked, 1);
    drop(handle);
}

#[tokio::test]
async fn a_failed_ack_is_counted_and_told_and_the_message_comes_again() {
    let (clock, queue) = queue();
    let events = Events::new();
    let consumer =
        QueueConsumer::with_decoder(queue.source(), codec::bytes, done).on_event(events.observer());
    let handle = consumer.clock(clock.clone()).start().unwrap();
    queue.fail_next(FaultPoint::Ack, gone("ack"));
    publish(&queue, 1);
    clock.advance(ms(500)).await;
    let events = events.all();
    let kinds: Vec<_> = events.iter().map(|event| event.settle_error.as_ref().map(Error::kind)).collect();
    assert_eq!(kinds, [Some(ErrorKind::Disconnected), None]);
    assert_eq!(events[0].settlement, Settlement::Ack);
    assert!(events[1].message.redelivered() && events[1].message.attempt() == 1);
    let stats = prompt(handle.stop()).await.stats;
    assert_eq!((stats.settle_errors, stats.acked, stats.received), (1, 1, 2));
    assert_eq!(queue.counts().acked, 1);
}

#[tokio::test]
async fn a_failed_nack_is_no_attempt_and_the_message_comes_again() {
    let (clock, queue) = queue();
    let consumer = QueueConsumer::with_decoder(queue.source(), codec::bytes, async |_: Bytes, _: Context| {
        Err::<(), _>(HandlerError::failed("no"))
    });
    let handle = consumer.clock(clock.clone()).start().unwrap();
    queue.fail_next(FaultPoint::Nack, gone("nack"));
    publish(&queue, 1);
    clock.advance(ms(500)).await;
    assert_eq!(queue.delayed()[0].attempt(), 2);
    let stats = prompt(handle.stop()).await.stats;
    assert_eq!((stats.settle_errors, stats.retried, stats.received), (1, 1, 2));
}

/// Each failed ack brings the message back at once: the handler must not run at full speed for as long as that lasts.
#[tokio::test]
async fn acks_that_fail_again_and_again_do_not_spin() {
    let (clock, queue) = queue();
    for _ in 0..1_000 {
        queue.fail_next(FaultPoint::Ack, gone("ack"));
    }
    let consumer = QueueConsumer::with_decoder(queue.source(), codec::bytes, done);
    let handle = consumer.clock(clock.clone()).start().unwrap();
    publish(&queue, 1);
    clock.settle().await;
    assert!(
        queue.counts().delivered <= 10,
        "{} deliveries while the clock stands still",
        queue.counts().delivered
    );
    drop(handle);
}

#[tokio::test]
async fn an_ack_that_never_returns_is_given_up_after_the_settle_timeout() {
    let bench = Bench::new(|op, nth| match (op, nth) {
        (Op::Ack, 1) => Act::Hang,
        _ => Act::Pass,
    });
    publish(&bench.queue, 2);
    bench.clock.advance(ms(29_999)).await;
    assert_eq!((bench.queue.counts().acked, bench.handle.in_flight()), (0, 1));
    bench.clock.advance(ms(1)).await;
    assert_eq!(bench.handle.in_flight(), 0);
    bench.clock.advance(ms(500)).await;
    assert_eq!(ids(&bench.queue.acked()), ["m-2"]);
    let events = bench.events.all();
    assert_eq!(events[0].settle_error.as_ref().map(Error::kind), Some(ErrorKind::Timeout));
    assert_eq!(events[0].timings.settling, Duration::from_secs(30));
    let report = prompt(bench.handle.stop()).await;
    assert_eq!(report.stats.settle_errors, 1);
    assert_eq!(ids(&bench.queue.pending()), ["m-1"], "closing the source brings it back");
}

#[tokio::test]
async fn an_ack_that_never_returns_does_not_hold_a_drain_for_ever() {
    let bench = Bench::new(|op, _| if op == Op::Ack { Act::Hang } else { Act::Pass });
    publish(&bench.queue, 1);
    bench.clock.settle().await;
    let (report, took) = stop_on(&bench.clock, &bench.handle).await;
    assert_eq!((report.finished, report.requeued, report.abandoned), (0, 0, 1), "{report:?}");
    assert!(took <= Duration::from_secs(17), "drain timeout, grace and close timeout: {took:?}");
    assert_eq!(ids(&bench.queue.pending()), ["m-1"]);
}

#[tokio::test]
async fn a_receive_that_ignores_its_token_holds_neither_pause_nor_stop() {
    let bench = Bench::with_loops(2, |op, _| if op == Op::Receive { Act::Hang } else { Act::Pass });
    bench.clock.settle().await;
    let pausing = tokio::spawn({
        let handle = bench.handle.clone();
        async move { handle.pause().await }
    });
    bench.clock.advance(2 * SECOND).await;
    assert!(pausing.is_finished(), "bounded by the grace");
    assert_eq!(bench.handle.status(), Status::Paused);
    prompt(bench.handle.resume()).await;
    bench.clock.settle().await;
    let (report, took) = stop_on(&bench.clock, &bench.handle).await;
    assert!(report.is_clean() && took <= 2 * SECOND, "{took:?} {report:?}");
}

#[tokio::test]
async fn release_and_close_that_never_return_are_bounded_and_reported() {
    for hanging in [Op::Release, Op::Close] {
        let bench = Bench::new(move |op, _| if op == hanging { Act::Hang } else { Act::Pass });
        publish(&bench.queue, 1);
        bench.clock.settle().await;
        let (report, took) = stop_on(&bench.clock, &bench.handle).await;
        let error = report.close_error.as_ref().unwrap();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{hanging:?}");
        assert!(!report.is_clean() && took == 5 * SECOND, "{hanging:?} {took:?}");
        assert_eq!(report.stats.acked, 1);
    }
}

#[tokio::test]
async fn release_and_close_that_fail_stand_in_the_report_and_the_source_is_closed_all_the_same() {
    for point in [FaultPoint::Release, FaultPoint::Close] {
        let (clock, queue) = queue();
        let source = queue.source().with_prefetch(10);
        let consumer = QueueConsumer::with_decoder(source.clone(), codec::bytes, done);
        let handle = consumer.clock(clock.clone()).start().unwrap();
        clock.settle().await;
        queue.fail_next(point, gone("script").with_message("scripted"));
        let report = prompt(handle.stop()).await;
        assert!(report.close_error.unwrap().to_string().contains("scripted"), "{point:?}");
        assert_eq!(source.health(), Health::Closed);
        assert_eq!(queue.counts().in_flight, 0);
    }
}

#[tokio::test]
async fn a_release_that_fails_at_a_pause_pauses_all_the_same() {
    let (clock, queue) = queue();
    let consumer = QueueConsumer::with_decoder(queue.source(), codec::bytes, done);
    let handle = consumer.clock(clock.clone()).start().unwrap();
    queue.fail_next(FaultPoint::Release, gone("release"));
    prompt(handle.pause()).await;
    publish(&queue, 1);
    clock.advance(SECOND).await;
    assert_eq!((handle.status(), queue.counts().pending), (Status::Paused, 1));
    drop(handle);
}

#[tokio::test]
async fn a_cut_connection_makes_the_answer_stale_and_the_message_comes_again() {
    let (clock, queue) = queue();
    let events = Events::new();
    let handler = {
        let clock = clock.clone();
        move |_: Bytes, _: Context| {
            let nap = clock.sleep(SECOND);
            async move {
                nap.await;
                Ok::<_, HandlerError>(())
            }
        }
    };
    let consumer =
        QueueConsumer::with_decoder(queue.source(), codec::bytes, handler).on_event(events.observer());
    let handle = consumer.clock(clock.clone()).start().unwrap();
    publish(&queue, 1);
    clock.advance(ms(500)).await;
    queue.cut();
    clock.advance(5 * SECOND).await;
    let kinds: Vec<_> =
        events.all().iter().map(|event| event.settle_error.as_ref().map(Error::kind)).collect();
    assert_eq!(kinds, [Some(ErrorKind::Stale), None]);
    assert_eq!((queue.counts().acked, queue.counts().returned), (1, 1));
    assert_eq!(prompt(handle.stop()).await.stats.settle_errors, 1);
}

#[tokio::test]
async fn a_source_without_dead_letters_keeps_the_message() {
    let (clock, queue) = queue();
    let refused = Error::new(ErrorKind::Unsupported, "nack");
    let source = Faulty::new(queue.source(), move |op, _| match op {
        Op::Nack => Act::Fail(refused.clone()),
        _ => Act::Pass,
    });
    let consumer = QueueConsumer::with_decoder(source, codec::bytes, async |_: Bytes, _: Context| {
        Err::<(), _>(HandlerError::terminal("no"))
    });
    let handle = consumer.clock(clock.clone()).start().unwrap();
    publish(&queue, 1);
    clock.settle().await;
    let report = prompt(handle.stop()).await;
    assert_eq!((report.stats.settle_errors, report.stats.dead_lettered), (1, 0));
    assert_eq!(ids(&queue.pending()), ["m-1"]);
}
