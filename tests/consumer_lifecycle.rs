//! Pause and resume, handles, and the states between: idle, running, paused, stopping, stopped.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::join_all;
use tokio_util::sync::CancellationToken;
use windlass::clock::{Clock, ControlledClock, SystemClock};
use windlass::codec;
use windlass::consumer::{ConsumerHandle, QueueConsumer, Status};
use windlass::handler::{Context, Handler, HandlerError};
use windlass::memory::{MemoryQueue, MemorySource};
use windlass::source::{Health, MessageSource, NackReason};

use support::faulty::{Act, Faulty, Op};
use support::{Events, SECOND, at_most, ids, ms, prompt, publish, queue, stop_on};

async fn done(_: Bytes, _: Context) -> Result<(), HandlerError> {
    Ok(())
}

/// A handler that sleeps for a second, or until its context is cancelled, which it answers with an error.
fn one_second(clock: &ControlledClock) -> impl Handler<Bytes, Output = ()> + use<> {
    let clock = clock.clone();
    move |_: Bytes, context: Context| {
        let nap = clock.sleep(SECOND);
        async move {
            tokio::select! {
                () = nap => Ok(()),
                () = context.cancellation().cancelled() => Err(HandlerError::failed("cancelled")),
            }
        }
    }
}

fn consumer<H: Handler<Bytes>>(
    source: MemorySource,
    clock: &ControlledClock,
    handler: H,
) -> QueueConsumer<MemorySource, H, Bytes> {
    QueueConsumer::with_decoder(source, codec::bytes, handler).clock(clock.clone())
}

fn running(clock: &ControlledClock, queue: &MemoryQueue) -> ConsumerHandle {
    consumer(queue.source(), clock, done).start().unwrap()
}

#[tokio::test]
async fn a_consumer_goes_from_idle_to_stopped() {
    let (clock, queue) = queue();
    let consumer = consumer(queue.source(), &clock, one_second(&clock));
    let handle = consumer.handle();
    assert_eq!(handle.status(), Status::Idle);
    assert!(matches!(handle.health(), Health::NotReady { .. }));
    assert_eq!((handle.in_flight(), handle.stats().received), (0, 0));
    let other = consumer.start().unwrap();
    clock.settle().await;
    assert_eq!((handle.status(), other.status()), (Status::Running, Status::Running));
    assert_eq!(handle.health(), Health::Ready);
    publish(&queue, 1);
    clock.settle().await;
    assert_eq!((handle.in_flight(), handle.stats().received, handle.stats().acked), (1, 1, 0));
    prompt(handle.pause()).await;
    assert_eq!((handle.status(), handle.in_flight()), (Status::Paused, 1));
    prompt(handle.resume()).await;
    assert_eq!(handle.status(), Status::Running);
    let stopping = tokio::spawn({
        let handle = handle.clone();
        async move { handle.stop().await }
    });
    clock.settle().await;
    assert_eq!((handle.status(), handle.in_flight()), (Status::Stopping, 1));
    clock.advance(SECOND).await;
    assert_eq!(stopping.await.unwrap().finished, 1);
    assert_eq!((handle.status(), handle.in_flight(), handle.stats().acked), (Status::Stopped, 0, 1));
    assert_eq!(handle.health(), Health::Closed);
}

#[tokio::test]
async fn nothing_is_handled_while_paused_and_everything_once_after_that() {
    let (clock, queue) = queue();
    let handle = running(&clock, &queue);
    for round in 1..=3_u64 {
        prompt(handle.pause()).await;
        prompt(handle.pause()).await;
        publish(&queue, 10);
        clock.advance(60 * SECOND).await;
        assert_eq!(queue.counts().acked, 10 * (round - 1));
        prompt(handle.resume()).await;
        prompt(handle.resume()).await;
        clock.settle().await;
        assert_eq!((queue.counts().acked, queue.counts().delivered), (10 * round, 10 * round));
    }
    drop(handle);
}

/// BC-59 (jpwilliams/remit#72), as far as memory goes.
#[tokio::test]
async fn a_cut_connection_does_not_end_a_pause() {
    let (clock, queue) = queue();
    let handle = running(&clock, &queue);
    prompt(handle.pause()).await;
    queue.cut();
    publish(&queue, 10);
    queue.cut();
    clock.advance(5 * SECOND).await;
    assert_eq!((queue.counts().delivered, queue.counts().pending), (0, 10));
    prompt(handle.resume()).await;
    clock.settle().await;
    assert_eq!((queue.counts().delivered, queue.counts().acked), (10, 10));
    drop(handle);
}

#[tokio::test]
async fn a_consumer_paused_before_the_start_starts_paused() {
    let (clock, queue) = queue();
    let consumer = consumer(queue.source(), &clock, done);
    let handle = consumer.handle();
    prompt(handle.pause()).await;
    publish(&queue, 3);
    let started = consumer.start().unwrap();
    clock.advance(SECOND).await;
    assert_eq!((handle.status(), queue.counts().delivered), (Status::Paused, 0));
    prompt(started.resume()).await;
    clock.settle().await;
    assert_eq!(queue.counts().acked, 3);
}

#[tokio::test]
async fn a_pause_taken_back_before_the_start_leaves_a_running_consumer() {
    let (clock, queue) = queue();
    let consumer = consumer(queue.source(), &clock, done);
    let handle = consumer.handle();
    prompt(handle.pause()).await;
    prompt(handle.resume()).await;
    publish(&queue, 1);
    let _started = consumer.start().unwrap();
    clock.settle().await;
    assert_eq!((handle.status(), queue.counts().acked), (Status::Running, 1));
}

#[tokio::test]
async fn what_is_buffered_goes_back_at_a_pause_and_others_get_it() {
    let (clock, queue) = queue();
    let consumer = consumer(queue.source().with_prefetch(10), &clock, one_second(&clock));
    publish(&queue, 10);
    let handle = consumer.start().unwrap();
    clock.settle().await;
    assert_eq!((queue.counts().in_flight, queue.counts().pending), (10, 0));
    prompt(handle.pause()).await;
    assert_eq!((queue.counts().in_flight, queue.counts().pending), (1, 9), "one is being handled");
    let other = queue.source();
    for number in 2..=10 {
        let delivery = prompt(other.receive(&CancellationToken::new())).await.unwrap().unwrap();
        assert_eq!(delivery.message.id(), format!("m-{number}"));
        other.ack(delivery.receipt).await.unwrap();
    }
    clock.advance(SECOND).await;
    assert_eq!(queue.counts().acked, 10);
    drop(handle);
}

#[tokio::test]
async fn a_pause_cancels_no_handler_and_its_answer_is_given() {
    let (clock, queue) = queue();
    let handle =
        consumer(queue.source(), &clock, one_second(&clock)).max_concurrent(at_most(3)).start().unwrap();
    publish(&queue, 5);
    clock.settle().await;
    prompt(handle.pause()).await;
    assert_eq!(handle.in_flight(), 3);
    clock.advance(10 * SECOND).await;
    assert_eq!((queue.counts().acked, queue.counts().pending, handle.in_flight()), (3, 2, 0));
    assert_eq!(handle.status(), Status::Paused);
    drop(handle);
}

#[tokio::test]
async fn a_paused_consumer_stops_at_once() {
    let (clock, queue) = queue();
    let handle = running(&clock, &queue);
    prompt(handle.pause()).await;
    publish(&queue, 3);
    let report = prompt(handle.stop()).await;
    assert!(report.is_clean() && report.took.is_zero(), "{report:?}");
    assert_eq!((queue.counts().pending, queue.counts().delivered), (3, 0));
    prompt(handle.pause()).await;
    prompt(handle.resume()).await;
    assert_eq!(handle.status(), Status::Stopped);
}

#[tokio::test]
async fn pause_and_resume_while_it_stops_change_nothing_and_return() {
    let (clock, queue) = queue();
    let handle = consumer(queue.source(), &clock, one_second(&clock)).start().unwrap();
    publish(&queue, 2);
    clock.settle().await;
    let stopping = tokio::spawn({
        let handle = handle.clone();
        async move { handle.stop().await }
    });
    clock.settle().await;
    prompt(handle.pause()).await;
    prompt(handle.resume()).await;
    assert_eq!(handle.status(), Status::Stopping);
    clock.advance(SECOND).await;
    let report = stopping.await.unwrap();
    assert_eq!((report.finished, queue.counts().pending), (1, 1));
}

#[tokio::test]
async fn pauses_and_resumes_at_the_same_time_all_return_and_the_last_one_holds() {
    let (clock, queue) = queue();
    let handle = running(&clock, &queue);
    for last_pauses in [true, false] {
        let asked = (0..50).map(|number| {
            let handle = handle.clone();
            tokio::spawn(
                async move { if number % 2 == 0 { handle.pause().await } else { handle.resume().await } },
            )
        });
        prompt(join_all(asked.collect::<Vec<_>>())).await;
        if last_pauses {
            prompt(handle.pause()).await;
        } else {
            prompt(handle.resume()).await;
        }
        publish(&queue, 5);
        clock.settle().await;
        assert_eq!(queue.counts().acked, if last_pauses { 0 } else { 10 });
    }
    drop(handle);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_many_threads_nothing_is_pulled_after_a_pause_has_resolved() {
    let (_, queue) = queue();
    let consumer = QueueConsumer::with_decoder(queue.source().with_prefetch(4), codec::bytes, done);
    let handle = consumer.max_concurrent(at_most(4)).start().unwrap();
    for _ in 0..500 {
        let resumed = tokio::spawn({
            let handle = handle.clone();
            async move { handle.resume().await }
        });
        publish(&queue, 8);
        resumed.await.unwrap();
        prompt(handle.pause()).await;
        queue.until(|queue| queue.counts().in_flight == 0).await.unwrap();
        let delivered = queue.counts().delivered;
        publish(&queue, 4);
        tokio::task::yield_now().await;
        let counts = queue.counts();
        assert_eq!((counts.delivered, counts.in_flight), (delivered, 0));
    }
    prompt(handle.resume()).await;
    queue.until(|queue| queue.counts().acked == 6_000).await.unwrap();
    assert!(prompt(handle.stop()).await.is_clean());
}

/// A pause right behind a resume that nobody waited for must not be told of the pause before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_many_threads_a_pause_behind_an_unawaited_resume_holds_once_it_returns() {
    let (_, queue) = queue();
    let consumer = QueueConsumer::with_decoder(queue.source(), codec::bytes, done);
    let handle = consumer.max_concurrent(at_most(2)).start().unwrap();
    for _ in 0..2_000 {
        prompt(handle.pause()).await;
        let resumed = tokio::spawn({
            let handle = handle.clone();
            async move { handle.resume().await }
        });
        tokio::task::yield_now().await;
        prompt(handle.pause()).await;
        // Whichever of the two asked last, a pause that holds delivers nothing.
        if handle.status() == Status::Paused && resumed.is_finished() {
            let delivered = queue.counts().delivered;
            publish(&queue, 1);
            tokio::task::yield_now().await;
            assert!(queue.counts().delivered == delivered || handle.status() == Status::Running);
        }
        prompt(resumed).await.unwrap();
    }
    drop(handle);
}

/// The message comes in the very moment of the pause, or of the stop: it is handed back, and no handler begins.
#[tokio::test]
async fn what_comes_although_the_pull_was_cancelled_is_handed_back() {
    for pauses in [true, false] {
        let (clock, queue) = queue();
        let events = Events::new();
        let source =
            Faulty::new(queue.source(), |op, _| if op == Op::Receive { Act::Late } else { Act::Pass });
        let handle = QueueConsumer::with_decoder(source, codec::bytes, done)
            .on_event(events.observer())
            .clock(clock.clone())
            .start()
            .unwrap();
        publish(&queue, 2);
        clock.settle().await;
        if pauses {
            prompt(handle.pause()).await;
        }
        let cause = if pauses { "paused" } else { "shutting_down" };
        let report = prompt(handle.stop()).await;
        assert_eq!(events.outcomes(), ["handed_back"]);
        assert_eq!(queue.nacked()[0].1, NackReason::requeue_now(cause));
        assert_eq!((ids(&queue.pending()), queue.pending()[0].attempt()), (vec!["m-1", "m-2"], 1));
        let stats = report.stats;
        assert_eq!((stats.received, stats.handed_back, stats.requeued, stats.acked), (1, 1, 1, 0));
        assert_eq!((report.requeued, report.is_clean()), (u64::from(!pauses), true));
    }
}

#[tokio::test]
async fn a_handler_can_pause_its_own_consumer() {
    let (clock, queue) = queue();
    let slot: Arc<std::sync::OnceLock<ConsumerHandle>> = Arc::default();
    let handler = {
        let slot = Arc::clone(&slot);
        move |_: Bytes, _: Context| {
            let handle = slot.get().unwrap().clone();
            async move {
                handle.pause().await;
                Ok::<_, HandlerError>(())
            }
        }
    };
    let consumer = consumer(queue.source(), &clock, handler);
    slot.set(consumer.handle()).unwrap();
    let handle = consumer.start().unwrap();
    publish(&queue, 3);
    clock.settle().await;
    assert_eq!((handle.status(), queue.counts().acked), (Status::Paused, 1));
    let _ = prompt(handle.stop()).await;
}

/// It waits for itself: bounded by the drain time-out, its message put back.
#[tokio::test]
async fn a_handler_that_stops_its_own_consumer_and_waits_for_it_ends_with_the_drain() {
    let (clock, queue) = queue();
    let slot: Arc<std::sync::OnceLock<ConsumerHandle>> = Arc::default();
    let handler = {
        let slot = Arc::clone(&slot);
        move |_: Bytes, _: Context| {
            let handle = slot.get().unwrap().clone();
            async move {
                let _ = handle.stop().await;
                Ok::<_, HandlerError>(())
            }
        }
    };
    let consumer = consumer(queue.source(), &clock, handler);
    slot.set(consumer.handle()).unwrap();
    let handle = consumer.start().unwrap();
    publish(&queue, 2);
    clock.settle().await;
    let (report, took) = stop_on(&clock, &handle).await;
    assert!(took <= 12 * SECOND, "{took:?}");
    assert_eq!((report.finished, report.requeued, queue.counts().pending), (0, 1, 2));
}

#[tokio::test]
async fn handles_print_how_the_consumer_stands() {
    let (clock, queue) = queue();
    let handle = running(&clock, &queue);
    clock.advance(ms(1)).await;
    let text = format!("{handle:?}");
    assert!(text.contains("Running") && text.contains("in_flight: 0"), "{text}");
    assert_eq!(ids(&queue.pending()).len(), 0);
}

/// Several that pause and resume at once, on threads of their own: a pause that comes after them all must return.
#[test]
fn a_pause_returns_whatever_raced_before_it() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let consumer = QueueConsumer::with_decoder(MemorySource::new(SystemClock), codec::bytes, done);
    let handle = runtime.block_on(async { consumer.start().unwrap() });
    for _ in 0..1_000 {
        runtime.block_on(prompt(handle.pause()));
        std::thread::scope(|threads| {
            for number in 0..4 {
                let handle = handle.clone();
                threads.spawn(move || match number % 2 {
                    0 => drop(handle.resume().now_or_never()),
                    _ => drop(handle.pause().now_or_never()),
                });
            }
        });
        runtime.block_on(prompt(handle.pause()));
        assert_eq!(handle.status(), Status::Paused);
        runtime.block_on(prompt(handle.resume()));
    }
}

/// However short the grace: what a pull takes while it is cancelled is handed back.
#[tokio::test]
async fn a_pause_without_a_grace_hands_back_what_comes_at_the_same_time() {
    let (clock, queue) = queue();
    let consumer = QueueConsumer::with_decoder(queue.source().with_prefetch(10), codec::bytes, done);
    let handle = consumer.clock(clock.clone()).drain_grace(Duration::ZERO).start().unwrap();
    clock.settle().await;
    let mut pausing = Box::pin(handle.pause());
    assert!((&mut pausing).now_or_never().is_none());
    publish(&queue, 10);
    prompt(pausing).await;
    assert_eq!((handle.status(), queue.counts().in_flight), (Status::Paused, 0));
}
