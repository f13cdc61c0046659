//! Stop: from everywhere, at any time, in time; what runs is finished, cancelled or put back, and told of.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::future::pending;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use tokio_util::sync::CancellationToken;
use windlass::backoff::Backoff;
use windlass::clock::{Clock, ControlledClock};
use windlass::codec;
use windlass::consumer::{QueueConsumer, Report, Status};
use windlass::handler::{Context, Handler, HandlerError};
use windlass::memory::{MemoryQueue, MemorySource, QueueOptions};
use windlass::message::Message;
use windlass::source::{Health, MessageSource, NackReason, RequeueOrder};

use support::{Events, Log, SECOND, at_most, ids, ms, prompt, publish, queue, queue_with, stop_on};

async fn done(_: Bytes, _: Context) -> Result<(), HandlerError> {
    Ok(())
}

async fn never(_: Bytes, _: Context) -> Result<(), HandlerError> {
    pending().await
}

fn sleeping(clock: &ControlledClock, time: Duration) -> impl Handler<Bytes, Output = ()> + use<> {
    let clock = clock.clone();
    move |_: Bytes, _: Context| {
        let nap = clock.sleep(time);
        async move {
            nap.await;
            Ok::<_, HandlerError>(())
        }
    }
}

fn consumer<H: Handler<Bytes>>(
    queue: &MemoryQueue,
    clock: &ControlledClock,
    handler: H,
) -> QueueConsumer<MemorySource, H, Bytes> {
    QueueConsumer::with_decoder(queue.source(), codec::bytes, handler).clock(clock.clone())
}

fn numbers(report: &Report) -> (u64, u64, u64) {
    (report.finished, report.requeued, report.abandoned)
}

/// BC-22, c (bbc/sqs-consumer#346): idle in a long receive.
#[tokio::test]
async fn stop_is_prompt_while_a_receive_waits() {
    let (clock, queue) = queue();
    let source = queue.source().with_idle(20 * SECOND);
    let handle =
        QueueConsumer::with_decoder(source, codec::bytes, done).clock(clock.clone()).start().unwrap();
    clock.advance(5 * SECOND).await;
    let report = prompt(handle.stop()).await;
    assert!(report.is_clean() && report.took.is_zero(), "{report:?}");
}

/// BC-22, b (bbc/sqs-consumer#346): never started.
#[tokio::test]
async fn stop_before_the_start_is_an_empty_report_and_ends_what_is_started_later() {
    let (clock, queue) = queue();
    let consumer = consumer(&queue, &clock, done);
    let handle = consumer.handle();
    assert_eq!(prompt(handle.stop()).await.stats.received, 0);
    assert_eq!(handle.status(), Status::Stopped);
    publish(&queue, 3);
    let started = consumer.start().unwrap();
    assert!(prompt(started.wait()).await.is_clean());
    assert_eq!((queue.counts().delivered, queue.counts().pending), (0, 3));
    assert_eq!((handle.status(), handle.health()), (Status::Stopped, Health::Closed));
}

#[tokio::test]
async fn a_consumer_that_is_dropped_without_a_start_leaves_nobody_waiting() {
    let (clock, queue) = queue();
    let consumer = consumer(&queue, &clock, done);
    let handle = consumer.handle();
    let waiting = tokio::spawn({
        let handle = handle.clone();
        async move { handle.wait().await }
    });
    drop(consumer);
    let _ = prompt(waiting).await.unwrap();
    assert_eq!(prompt(handle.stop()).await.stats.received, 0);
    prompt(handle.pause()).await;
}

#[tokio::test]
async fn stop_right_behind_start_handles_nothing_or_settles_what_it_took() {
    let (clock, queue) = queue();
    publish(&queue, 3);
    let handle = consumer(&queue, &clock, done).start().unwrap();
    let report = prompt(handle.stop()).await;
    assert!(report.is_clean(), "{report:?}");
    let counts = queue.counts();
    assert_eq!((counts.in_flight, counts.pending + counts.acked as usize), (0, 3), "{counts:?}");
}

/// BC-22, e (bbc/sqs-consumer#346): twice, and from many tasks.
#[tokio::test]
async fn stop_from_many_tasks_gives_all_the_same_report_and_closes_once() {
    let (clock, queue) = queue();
    let handle = consumer(&queue, &clock, sleeping(&clock, 3 * SECOND)).start().unwrap();
    publish(&queue, 2);
    clock.advance(SECOND).await;
    let stops: Vec<_> = (0..20)
        .map(|_| {
            let handle = handle.clone();
            tokio::spawn(async move { handle.stop().await })
        })
        .collect();
    clock.advance(2 * SECOND).await;
    for report in prompt(join_all(stops)).await {
        let report = report.unwrap();
        assert_eq!((numbers(&report), report.took, report.stats.acked), ((1, 0, 0), 2 * SECOND, 1));
    }
    assert_eq!(prompt(handle.stop()).await.finished, 1, "and again, later");
}

#[tokio::test]
async fn dropping_the_stop_future_does_not_take_the_request_back() {
    let (clock, queue) = queue();
    let handle = consumer(&queue, &clock, done).start().unwrap();
    clock.settle().await;
    let mut stop = Box::pin(handle.stop());
    assert!(futures::poll!(&mut stop).is_pending());
    drop(stop);
    assert!(prompt(handle.wait()).await.is_clean());
}

#[tokio::test]
async fn run_drains_when_its_token_fires_and_returns_the_report() {
    let (clock, queue) = queue();
    let token = CancellationToken::new();
    let running = tokio::spawn(consumer(&queue, &clock, sleeping(&clock, SECOND)).run(token.clone()));
    publish(&queue, 2);
    clock.advance(ms(500)).await;
    token.cancel();
    clock.advance(ms(500)).await;
    let report = prompt(running).await.unwrap().unwrap();
    assert_eq!((numbers(&report), queue.counts().pending), ((1, 0, 0), 1));
}

#[tokio::test]
async fn run_with_a_token_that_has_fired_already_returns() {
    let (clock, queue) = queue();
    let token = CancellationToken::new();
    token.cancel();
    assert!(prompt(consumer(&queue, &clock, done).run(token)).await.unwrap().is_clean());
}

#[tokio::test]
async fn dropping_the_run_future_drains_the_consumer_though_others_have_handles() {
    let (clock, queue) = queue();
    let consumer = consumer(&queue, &clock, sleeping(&clock, SECOND));
    let handle = consumer.handle();
    let mut running = Box::pin(consumer.run(CancellationToken::new()));
    assert!(futures::poll!(&mut running).is_pending());
    publish(&queue, 2);
    clock.settle().await;
    drop(running);
    clock.advance(SECOND).await;
    let report = prompt(handle.wait()).await;
    assert_eq!((numbers(&report), queue.counts().acked, queue.counts().pending), ((1, 0, 0), 1, 1));
}

#[tokio::test]
async fn dropping_the_last_handle_drains_the_consumer() {
    let (clock, queue) = queue();
    let source = queue.source();
    let handle = QueueConsumer::with_decoder(source.clone(), codec::bytes, sleeping(&clock, SECOND))
        .clock(clock.clone())
        .start()
        .unwrap();
    let other = handle.clone();
    publish(&queue, 2);
    clock.settle().await;
    drop(handle);
    clock.settle().await;
    assert_eq!(other.status(), Status::Running);
    drop(other);
    clock.advance(SECOND).await;
    queue.until(|queue| queue.counts().acked == 1 && queue.counts().in_flight == 0).await.unwrap();
    clock.settle().await;
    assert_eq!((source.health(), queue.counts().pending), (Health::Closed, 1));
}

#[tokio::test]
async fn stop_does_not_wait_for_retries_that_are_pending() {
    let (clock, queue) = queue();
    let consumer = consumer(&queue, &clock, async |_: Bytes, _: Context| Err::<(), _>("no"));
    let handle = consumer.start().unwrap();
    publish(&queue, 5);
    clock.settle().await;
    assert_eq!(queue.counts().delayed, 5);
    assert!(prompt(handle.stop()).await.is_clean());
    assert_eq!(queue.counts().delayed, 5);
}

fn long_damping() -> Backoff {
    Backoff::new(60 * SECOND).with_max(60 * SECOND)
}

#[tokio::test]
async fn stop_is_prompt_during_requeue_damping() {
    let (clock, queue) = queue_with(QueueOptions::new().with_requeue_order(RequeueOrder::Back));
    let consumer =
        consumer(&queue, &clock, async |_: Bytes, _: Context| Err::<(), _>(HandlerError::BackpressureReject));
    let handle = consumer.requeue_backoff(long_damping()).start().unwrap();
    publish(&queue, 1);
    clock.settle().await;
    assert_eq!(queue.counts().delivered, 1);
    assert!(prompt(handle.stop()).await.took.is_zero());
}

/// The handler that was waited for answers with a requeue: the loop must end, not wait before a pull that never comes.
#[tokio::test]
async fn a_requeue_that_ends_a_drain_is_not_followed_by_a_wait() {
    let (clock, queue) = queue_with(QueueOptions::new().with_requeue_order(RequeueOrder::Back));
    let handler = {
        let clock = clock.clone();
        move |_: Bytes, _: Context| {
            let nap = clock.sleep(SECOND);
            async move {
                nap.await;
                Err::<(), _>(HandlerError::BackpressureReject)
            }
        }
    };
    let handle = consumer(&queue, &clock, handler).requeue_backoff(long_damping()).start().unwrap();
    publish(&queue, 1);
    clock.settle().await;
    let (report, took) = stop_on(&clock, &handle).await;
    assert_eq!((numbers(&report), queue.counts().pending), ((1, 0, 0), 1));
    assert!(took <= ms(1_100), "{took:?}");
}

#[tokio::test]
async fn a_drain_waits_for_handlers_up_to_its_timeout() {
    let (clock, queue) = queue();
    let handle = consumer(&queue, &clock, sleeping(&clock, 9 * SECOND)).start().unwrap();
    publish(&queue, 2);
    clock.settle().await;
    let (report, took) = stop_on(&clock, &handle).await;
    assert_eq!((numbers(&report), report.took, took), ((1, 0, 0), 9 * SECOND, 9 * SECOND));
    assert_eq!((ids(&queue.acked()), ids(&queue.pending())), (vec!["m-1"], vec!["m-2"]));
}

#[tokio::test]
async fn a_handler_that_honours_its_cancelled_context_is_settled_by_its_own_answer() {
    let (clock, queue) = queue();
    let cancelled = Log::new();
    let handler = {
        let (clock, cancelled) = (clock.clone(), cancelled.clone());
        move |_: Bytes, context: Context| {
            let (clock, cancelled) = (clock.clone(), cancelled.clone());
            async move {
                context.cancellation().cancelled().await;
                cancelled.add(clock.now());
                Err::<(), _>(HandlerError::failed("had to stop"))
            }
        }
    };
    let consumer = consumer(&queue, &clock, handler).drain_timeout(4 * SECOND).max_concurrent(at_most(2));
    let handle = consumer.start().unwrap();
    publish(&queue, 2);
    clock.settle().await;
    let began = clock.now();
    let (report, took) = stop_on(&clock, &handle).await;
    assert_eq!((numbers(&report), took), ((2, 0, 0), 4 * SECOND));
    assert_eq!(cancelled.all(), [began + 4 * SECOND; 2]);
    assert_eq!((queue.counts().delayed, queue.delayed()[0].attempt()), (2, 2), "its own answer: a retry");
}

#[tokio::test]
async fn a_handler_that_does_not_end_is_dropped_after_the_grace_and_put_back_unchanged() {
    let (clock, queue) = queue();
    let events = Events::new();
    let consumer = consumer(&queue, &clock, never)
        .drain_timeout(4 * SECOND)
        .drain_grace(2 * SECOND)
        .max_concurrent(at_most(3))
        .on_event(events.observer());
    let handle = consumer.start().unwrap();
    publish(&queue, 4);
    clock.settle().await;
    let (report, took) = stop_on(&clock, &handle).await;
    assert_eq!((numbers(&report), took, report.stats.cut_short), ((0, 3, 0), 6 * SECOND, 3));
    assert!(report.is_clean(), "nothing is without an answer");
    assert_eq!(events.outcomes(), ["cut_short"; 3]);
    assert!(queue.nacked().iter().all(|(_, reason)| *reason == NackReason::requeue_now("shutting_down")));
    assert_eq!(queue.pending().iter().map(Message::attempt).collect::<Vec<_>>(), [1; 4]);
}

#[tokio::test]
async fn with_a_drain_timeout_of_zero_contexts_are_cancelled_at_once() {
    let (clock, queue) = queue();
    let handler = async |_: Bytes, context: Context| {
        context.cancellation().cancelled().await;
        Ok::<_, HandlerError>(())
    };
    let handle = consumer(&queue, &clock, handler).drain_timeout(Duration::ZERO).start().unwrap();
    publish(&queue, 1);
    clock.settle().await;
    let (report, took) = stop_on(&clock, &handle).await;
    assert_eq!((numbers(&report), took <= ms(100)), ((1, 0, 0), true), "{took:?}");
}

#[tokio::test]
async fn with_no_drain_time_and_no_grace_handlers_are_dropped_at_once() {
    let (clock, queue) = queue();
    let consumer = consumer(&queue, &clock, never).drain_timeout(Duration::ZERO).drain_grace(Duration::ZERO);
    let handle = consumer.max_concurrent(at_most(2)).start().unwrap();
    publish(&queue, 2);
    clock.settle().await;
    let (report, took) = stop_on(&clock, &handle).await;
    assert_eq!((numbers(&report), took <= ms(100)), ((0, 2, 0), true), "{took:?} {report:?}");
}

#[tokio::test]
async fn finished_requeued_and_failed_answers_are_told_apart() {
    let (clock, queue) = queue();
    let handler = {
        let clock = clock.clone();
        move |body: Bytes, _: Context| {
            let nap = clock.sleep(SECOND);
            async move {
                nap.await;
                if body == "never" {
                    pending::<()>().await;
                }
                Ok::<_, HandlerError>(())
            }
        }
    };
    let handle = consumer(&queue, &clock, handler).max_concurrent(at_most(4)).start().unwrap();
    for body in ["good", "good", "never", "unacked"] {
        queue.publish(Message::new(body));
    }
    clock.settle().await;
    let lost = windlass::Error::new(windlass::ErrorKind::Disconnected, "ack");
    queue.fail_next(windlass::memory::FaultPoint::Ack, lost);
    let (report, _) = stop_on(&clock, &handle).await;
    assert_eq!(numbers(&report), (2, 1, 1), "{report:?}");
    assert!(!report.is_clean());
    assert_eq!((queue.counts().pending, queue.counts().acked), (2, 2));
}

/// BC-19 (spring-projects/spring-amqp#1899): a long backlog, a large prefetch, and stop after the third.
#[tokio::test]
async fn no_handler_starts_after_stop_and_the_backlog_is_ready_again() {
    let (clock, queue) = queue();
    let started = Log::new();
    let handler = {
        let (clock, started) = (clock.clone(), started.clone());
        move |_: Bytes, context: Context| {
            started.add(context.message().id().to_owned());
            let nap = clock.sleep(ms(200));
            async move {
                nap.await;
                Ok::<_, HandlerError>(())
            }
        }
    };
    let source = queue.source().with_prefetch(100);
    publish(&queue, 1_000);
    let handle =
        QueueConsumer::with_decoder(source, codec::bytes, handler).clock(clock.clone()).start().unwrap();
    clock.advance(ms(500)).await;
    assert_eq!(started.all(), ["m-1", "m-2", "m-3"]);
    let (report, took) = stop_on(&clock, &handle).await;
    assert_eq!((started.len(), numbers(&report), report.stats.acked), (3, (1, 0, 0), 3));
    assert!(took <= ms(100), "{took:?}");
    let counts = queue.counts();
    assert_eq!((counts.pending, counts.in_flight, counts.acked), (997, 0, 3));
    assert_eq!(ids(&queue.pending())[..2], ["m-4", "m-5"], "in order");
    clock.advance(60 * SECOND).await;
    assert_eq!(started.len(), 3);
}

/// BC-19 (spring-projects/spring-amqp#1899), variant: each handler answers retry with a tiny delay while the consumer
/// stops.
#[tokio::test]
async fn retries_without_a_wait_do_not_keep_a_drain_busy() {
    for delay in [Duration::ZERO, Duration::from_nanos(1), ms(1)] {
        let (clock, queue) = queue();
        let started = Log::new();
        let handler = {
            let (clock, started) = (clock.clone(), started.clone());
            move |_: Bytes, _: Context| {
                started.add(());
                let nap = clock.sleep(ms(200));
                async move {
                    nap.await;
                    Ok::<_, HandlerError>(())
                }
            }
        };
        let consumer = consumer(&queue, &clock, handler)
            .max_concurrent(at_most(4))
            .on_result(move |_, _| NackReason::retry_after(delay, "again").into());
        publish(&queue, 100);
        let handle = consumer.start().unwrap();
        clock.advance(ms(500)).await;
        let before = started.len();
        let (report, took) = stop_on(&clock, &handle).await;
        assert_eq!((started.len(), numbers(&report)), (before, (4, 0, 0)), "{delay:?}");
        assert!(took <= ms(200), "{took:?}");
        clock.advance(SECOND).await;
        let counts = queue.counts();
        assert_eq!((counts.pending + counts.delayed, counts.in_flight, started.len()), (100, 0, before));
    }
}

/// A grace so long that it cannot be doubled is still a grace.
#[tokio::test]
async fn the_longest_durations_are_no_reason_to_panic() {
    let (clock, queue) = queue();
    let consumer = consumer(&queue, &clock, done)
        .drain_timeout(Duration::MAX)
        .drain_grace(Duration::MAX)
        .settle_timeout(Duration::MAX)
        .close_timeout(Duration::MAX);
    let handle = consumer.start().unwrap();
    publish(&queue, 1);
    queue.until(|queue| queue.counts().acked == 1).await.unwrap();
    prompt(handle.pause()).await;
    assert_eq!(handle.status(), Status::Paused);
    let report = prompt(handle.stop()).await;
    assert_eq!((report.stats.acked, handle.status()), (1, Status::Stopped));
}

/// A door that a thread waits at, for at most 20 s of real time so that a failed test ends.
#[derive(Default)]
struct Door(Mutex<bool>, Condvar);

impl Door {
    fn open(&self) {
        *self.0.lock().unwrap() = true;
        self.1.notify_all();
    }

    fn pass(&self) {
        let shut = |open: &mut bool| !*open;
        let _ = self.1.wait_timeout_while(self.0.lock().unwrap(), Duration::from_secs(20), shut).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_handler_that_keeps_its_thread_is_reported_abandoned_and_stop_returns() {
    let (clock, queue) = queue();
    let door = Arc::new(Door::default());
    let handler = {
        let door = Arc::clone(&door);
        move |body: Bytes, _: Context| {
            let door = Arc::clone(&door);
            async move {
                if body == "stuck" {
                    door.pass();
                }
                Ok::<_, HandlerError>(())
            }
        }
    };
    let handle = consumer(&queue, &clock, handler).max_concurrent(at_most(2)).start().unwrap();
    queue.publish(Message::new("stuck").with_id("stuck"));
    queue.publish(Message::new("good").with_id("good"));
    queue.until(|queue| queue.counts().acked == 1 && queue.counts().in_flight == 1).await.unwrap();
    let stopping = tokio::spawn({
        let handle = handle.clone();
        async move { handle.stop().await }
    });
    let report = prompt(async {
        while !stopping.is_finished() {
            clock.advance(ms(500)).await;
        }
        stopping.await.unwrap()
    })
    .await;
    assert_eq!((numbers(&report), report.stats.acked), ((0, 0, 1), 1), "{report:?}");
    assert_eq!(ids(&queue.pending()), ["stuck"], "closing the source brought it back");
    door.open();
    prompt(async {
        while handle.in_flight() != 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!((queue.counts().acked, ids(&queue.pending())), (1, vec!["stuck"]), "the late answer is stale");
}
