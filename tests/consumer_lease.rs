//! Leases: kept while a handler runs, lost when the broker says so, and the contexts that are cancelled then.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio_util::sync::CancellationToken;
use windlass::clock::{Clock, ControlledClock};
use windlass::codec;
use windlass::consumer::{ConsumerHandle, QueueConsumer};
use windlass::handler::{Context, HandlerError};
use windlass::memory::{FaultPoint, MemoryQueue, QueueOptions};
use windlass::{Error, ErrorKind};

use support::faulty::{Act, Calls, Faulty, Op};
use support::{Events, Log, SECOND, at_most, ids, prompt, publish, queue, queue_with};

const LEASE: Duration = Duration::from_secs(30);

/// A consumer whose handler sleeps for `work` or until its context is cancelled, on a queue with a lease of 30 s.
struct Bench {
    clock: ControlledClock,
    queue: MemoryQueue,
    calls: Calls,
    events: Events,
    /// When each handler began, and when its context was cancelled, if it was.
    begun: Log<Instant>,
    cancelled: Log<Instant>,
    handle: ConsumerHandle,
}

impl Bench {
    fn new(work: Duration, script: impl Fn(Op, u64) -> Act + Send + Sync + 'static) -> Self {
        let (clock, queue) = queue_with(QueueOptions::new().with_lease(LEASE));
        let source = Faulty::new(queue.source(), script);
        let (calls, events) = (source.calls(), Events::new());
        let (begun, cancelled) = (Log::new(), Log::new());
        let handler = {
            let (clock, begun, cancelled) = (clock.clone(), begun.clone(), cancelled.clone());
            move |_: Bytes, context: Context| {
                begun.add(clock.now());
                let (clock, cancelled) = (clock.clone(), cancelled.clone());
                async move {
                    tokio::select! {
                        biased;
                        () = context.cancellation().cancelled() => cancelled.add(clock.now()),
                        () = clock.sleep(work) => {}
                    }
                    Ok::<_, HandlerError>(())
                }
            }
        };
        let handle = QueueConsumer::with_decoder(source, codec::bytes, handler)
            .on_event(events.observer())
            .clock(clock.clone())
            .start()
            .unwrap();
        Self { clock, queue, calls, events, begun, cancelled, handle }
    }

    fn settle_errors(&self) -> Vec<Option<ErrorKind>> {
        self.events.all().iter().map(|event| event.settle_error.as_ref().map(Error::kind)).collect()
    }
}

fn pass(_: Op, _: u64) -> Act {
    Act::Pass
}

#[tokio::test]
async fn a_handler_that_takes_ten_leases_keeps_its_message() {
    let bench = Bench::new(10 * LEASE, pass);
    publish(&bench.queue, 1);
    bench.clock.advance(10 * LEASE).await;
    let counts = bench.queue.counts();
    assert_eq!((counts.acked, counts.delivered, counts.returned), (1, 1, 0), "{counts:?}");
    let extends = bench.calls.of(Op::Extend);
    assert!((20..=31).contains(&extends), "{extends} extends");
    let stats = prompt(bench.handle.stop()).await.stats;
    assert_eq!((stats.leases_lost, stats.settle_errors, bench.cancelled.len()), (0, 0, 0));
}

#[tokio::test]
async fn without_a_lease_nothing_is_extended() {
    let (clock, queue) = queue();
    let source = Faulty::new(queue.source(), pass);
    let calls = source.calls();
    let handler = {
        let clock = clock.clone();
        move |_: Bytes, _: Context| {
            let nap = clock.sleep(3_600 * SECOND);
            async move {
                nap.await;
                Ok::<_, HandlerError>(())
            }
        }
    };
    let consumer = QueueConsumer::with_decoder(source, codec::bytes, handler);
    let handle = consumer.clock(clock.clone()).start().unwrap();
    publish(&queue, 1);
    clock.advance(3_600 * SECOND).await;
    assert_eq!((queue.counts().acked, calls.of(Op::Extend)), (1, 0));
    drop(handle);
}

#[tokio::test]
async fn a_lease_lost_by_a_cut_cancels_the_context_and_the_late_answer_is_stale() {
    let bench = Bench::new(100 * SECOND, pass);
    let start = bench.clock.now();
    publish(&bench.queue, 1);
    bench.clock.advance(15 * SECOND).await;
    bench.queue.cut();
    bench.clock.advance(5 * SECOND).await;
    assert_eq!(bench.cancelled.all(), [start + 20 * SECOND], "at the next extend");
    assert_eq!(bench.settle_errors(), [Some(ErrorKind::Stale)]);
    assert_eq!(bench.handle.stats().leases_lost, 1);
    // It comes again, with a context of its own.
    bench.clock.advance(101 * SECOND).await;
    assert_eq!((bench.queue.counts().acked, bench.begun.len(), bench.cancelled.len()), (1, 2, 1));
    assert_eq!(bench.events.all()[1].message.attempt(), 1);
    assert_eq!(prompt(bench.handle.stop()).await.stats.settle_errors, 1);
}

#[tokio::test]
async fn a_handler_that_does_not_heed_a_lost_lease_is_left_to_end() {
    let (clock, queue) = queue_with(QueueOptions::new().with_lease(LEASE));
    let seen = Log::new();
    let handler = {
        let (clock, seen) = (clock.clone(), seen.clone());
        move |_: Bytes, context: Context| {
            let (nap, seen) = (clock.sleep(100 * SECOND), seen.clone());
            async move {
                nap.await;
                seen.add(context.cancellation().is_cancelled());
                Ok::<_, HandlerError>(())
            }
        }
    };
    let consumer = QueueConsumer::with_decoder(queue.source(), codec::bytes, handler);
    let handle = consumer.clock(clock.clone()).start().unwrap();
    publish(&queue, 1);
    clock.advance(SECOND).await;
    queue.cut();
    clock.advance(200 * SECOND).await;
    assert_eq!(seen.all(), [true, false], "the second delivery has a context of its own");
    let stats = prompt(handle.stop()).await.stats;
    assert_eq!((stats.leases_lost, stats.settle_errors, stats.acked), (1, 1, 1));
}

#[tokio::test]
async fn one_extend_that_fails_for_now_loses_nothing() {
    let bench = Bench::new(100 * SECOND, pass);
    publish(&bench.queue, 1);
    bench.clock.settle().await;
    let failed = Error::new(ErrorKind::Disconnected, "extend");
    bench.queue.fail_next(FaultPoint::Extend, failed);
    bench.clock.advance(100 * SECOND).await;
    let counts = bench.queue.counts();
    assert_eq!((counts.acked, counts.returned, bench.cancelled.len()), (1, 0, 0));
    assert_eq!(prompt(bench.handle.stop()).await.stats.leases_lost, 0);
}

/// "One failed extend costs nothing": one that never returns is a failed one as well.
#[tokio::test]
async fn one_extend_that_never_returns_loses_nothing() {
    let bench = Bench::new(100 * SECOND, |op, nth| match (op, nth) {
        (Op::Extend, 1) => Act::Hang,
        _ => Act::Pass,
    });
    publish(&bench.queue, 1);
    bench.clock.advance(100 * SECOND).await;
    let counts = bench.queue.counts();
    assert_eq!((counts.acked, counts.returned, bench.cancelled.len()), (1, 0, 0), "{counts:?}");
    assert_eq!(prompt(bench.handle.stop()).await.stats.leases_lost, 0);
}

#[tokio::test]
async fn extends_that_fail_until_the_lease_is_over_lose_it() {
    let bench = Bench::new(100 * SECOND, |op, nth| match (op, nth) {
        (Op::Extend, 1..=2) => Act::Fail(Error::new(ErrorKind::Disconnected, "extend")),
        _ => Act::Pass,
    });
    let start = bench.clock.now();
    publish(&bench.queue, 1);
    bench.clock.advance(LEASE).await;
    assert_eq!(bench.cancelled.all(), [start + LEASE]);
    assert_eq!(bench.settle_errors(), [Some(ErrorKind::Stale)]);
    assert_eq!(bench.handle.stats().leases_lost, 1);
}

#[tokio::test]
async fn a_source_that_panics_in_extend_neither_loses_the_message_nor_cuts_the_handler_short() {
    let bench = Bench::new(40 * SECOND, |op, nth| match (op, nth) {
        (Op::Extend, 1) => Act::Panic,
        _ => Act::Pass,
    });
    publish(&bench.queue, 1);
    bench.clock.advance(200 * SECOND).await;
    assert_eq!((bench.queue.counts().acked, bench.queue.counts().delivered), (1, 1));
    assert_eq!(prompt(bench.handle.stop()).await.stats.loop_panics, 0);
}

#[tokio::test]
async fn a_lost_lease_cancels_that_context_alone() {
    let (clock, queue) = queue_with(QueueOptions::new().with_lease(LEASE));
    let cancelled = Log::new();
    let handler = {
        let (clock, cancelled) = (clock.clone(), cancelled.clone());
        move |_: Bytes, context: Context| {
            let (nap, cancelled) = (clock.sleep(25 * SECOND), cancelled.clone());
            async move {
                nap.await;
                if context.cancellation().is_cancelled() {
                    cancelled.add(context.message().id().to_owned());
                }
                Ok::<_, HandlerError>(())
            }
        }
    };
    let stale = Error::new(ErrorKind::Stale, "extend");
    let source = Faulty::new(queue.source(), move |op, nth| match (op, nth) {
        (Op::Extend, 1) => Act::Fail(stale.clone()),
        _ => Act::Pass,
    });
    let consumer = QueueConsumer::with_decoder(source, codec::bytes, handler).max_concurrent(at_most(3));
    let handle = consumer.clock(clock.clone()).start().unwrap();
    publish(&queue, 3);
    clock.advance(25 * SECOND).await;
    assert_eq!(cancelled.len(), 1);
    assert_eq!(prompt(handle.stop()).await.stats.leases_lost, 1);
}

/// The context fires "when the result no longer matters": one handler's own token is no business of the next message.
#[tokio::test]
async fn a_handler_that_cancels_its_own_context_does_not_cancel_that_of_the_next_message() {
    for options in [QueueOptions::new(), QueueOptions::new().with_lease(LEASE)] {
        let (clock, queue) = queue_with(options);
        let seen = Log::new();
        let handler = {
            let seen = seen.clone();
            move |_: Bytes, context: Context| {
                seen.add(context.cancellation().is_cancelled());
                // As one does to end the tasks that one has started.
                context.cancellation().cancel();
                async { Ok::<_, HandlerError>(()) }
            }
        };
        let consumer = QueueConsumer::with_decoder(queue.source(), codec::bytes, handler);
        let handle = consumer.clock(clock.clone()).start().unwrap();
        publish(&queue, 3);
        clock.settle().await;
        assert_eq!(seen.all(), [false, false, false], "lease: {:?}", options.lease);
        drop(handle);
    }
}

/// "It does not fire when the handler has returned."
#[tokio::test]
async fn a_lost_lease_does_not_fire_the_context_of_a_handler_that_has_returned() {
    let (clock, queue) = queue_with(QueueOptions::new().with_lease(LEASE));
    let tokens: Log<CancellationToken> = Log::new();
    let handler = {
        let (clock, tokens) = (clock.clone(), tokens.clone());
        move |_: Bytes, context: Context| {
            tokens.add(context.cancellation().clone());
            let nap = clock.sleep(if context.message().id() == "m-1" { SECOND } else { 60 * SECOND });
            async move {
                nap.await;
                Ok::<_, HandlerError>(())
            }
        }
    };
    let consumer = QueueConsumer::with_decoder(queue.source(), codec::bytes, handler);
    let handle = consumer.clock(clock.clone()).start().unwrap();
    publish(&queue, 2);
    clock.advance(2 * SECOND).await;
    assert_eq!((ids(&queue.acked()), tokens.len()), (vec!["m-1"], 2));
    queue.cut();
    clock.advance(30 * SECOND).await;
    let fired: Vec<bool> = tokens.all().iter().take(2).map(CancellationToken::is_cancelled).collect();
    assert_eq!(fired, [false, true]);
    drop(handle);
}
