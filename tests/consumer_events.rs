//! Events, correlation ids, and how many messages are held at once.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use windlass::clock::Clock;
use windlass::codec;
use windlass::consumer::{Outcome, QueueConsumer};
use windlass::handler::{Context, HandlerError};
use windlass::message::Message;
use windlass::source::{NackReason, Settlement};

use support::faulty::{Act, Faulty, Op};
use support::{Events, Log, SECOND, at_most, ms, prompt, publish, queue, stop_on};

#[tokio::test]
async fn each_delivery_is_told_of_once_with_its_fields_and_timings() {
    let (clock, queue) = queue();
    let wall = clock.wall();
    let events = Events::new();
    let handler = {
        let clock = clock.clone();
        move |_: Bytes, context: Context| {
            let nap = clock.sleep(ms(250));
            async move {
                nap.await;
                if context.attempt() == 1 { Err("first") } else { Ok(()) }
            }
        }
    };
    let consumer =
        QueueConsumer::with_decoder(queue.source(), codec::bytes, handler).on_event(events.observer());
    let handle = consumer.clock(clock.clone()).start().unwrap();
    clock.advance(SECOND).await;
    queue.publish(Message::new("x").with_id("m-1").with_correlation_id("c-1"));
    clock.advance(10 * SECOND).await;
    let events = events.all();
    assert_eq!(events.len(), 2);
    let received: Vec<Duration> =
        events.iter().map(|event| event.timings.received_at.duration_since(wall).unwrap()).collect();
    assert_eq!(received, [SECOND, SECOND + ms(1_250)]);
    for (event, attempt) in events.iter().zip(1..) {
        assert_eq!(
            (event.queue.as_str(), event.message.id(), event.message.attempt()),
            ("work", "m-1", attempt)
        );
        assert_eq!(event.message.correlation_id(), "c-1");
        assert_eq!((event.timings.handling, event.timings.settling), (ms(250), Duration::ZERO));
        assert!(event.settle_error.is_none());
    }
    assert!(matches!(&events[0].outcome, Outcome::Failed(HandlerError::Failed(_))));
    assert!(matches!(
        events[0].settlement.nack_reason(),
        Some(NackReason::Retry { delay: Some(SECOND), .. })
    ));
    assert!(matches!(events[1].outcome, Outcome::Done));
    assert_eq!(events[1].settlement, Settlement::Ack);
    drop(handle);
}

async fn by_id(id: &str) -> Result<(), HandlerError> {
    match id {
        "m-2" => Err(HandlerError::terminal("no")),
        "m-3" => panic!("oops"),
        "m-5" => Err(HandlerError::Timeout { after: SECOND }),
        "m-6" => std::future::pending().await,
        _ => Ok(()),
    }
}

#[tokio::test]
async fn there_are_as_many_events_as_deliveries_whatever_happens() {
    let (clock, queue) = queue();
    let events = Events::new();
    let dropped = AtomicUsize::new(0);
    let handler = move |_: Bytes, context: Context| {
        let drops = context.message().id() == "m-4" && dropped.fetch_add(1, Ordering::SeqCst) < 4;
        async move { if drops { Err(HandlerError::Dropped) } else { by_id(context.message().id()).await } }
    };
    let consumer = QueueConsumer::with_decoder(queue.source(), codec::bytes, handler)
        .max_concurrent(at_most(3))
        .on_event(events.observer());
    publish(&queue, 8);
    let handle = consumer.clock(clock.clone()).start().unwrap();
    clock.advance(20 * SECOND).await;
    let (report, _) = stop_on(&clock, &handle).await;
    let stats = report.stats;
    assert_eq!(events.len() as u64, queue.counts().delivered);
    assert_eq!(events.len() as u64, stats.received);
    let answers = stats.acked + stats.retried + stats.dead_lettered + stats.requeued + stats.settle_errors;
    assert_eq!(answers, stats.received, "{stats:?}");
    assert_eq!((stats.acked, stats.dead_lettered, stats.cut_short), (4, 3, 1), "{stats:?}");
}

#[tokio::test]
async fn correlation_ids_are_found_in_the_documented_order() {
    let (clock, queue) = queue();
    let seen = Log::new();
    let handler = {
        let seen = seen.clone();
        move |_: Bytes, context: Context| {
            seen.add(context.correlation_id().to_owned());
            async { Ok::<_, HandlerError>(()) }
        }
    };
    let base = Message::new("x").with_id("id");
    queue.publish(base.clone());
    let base = base.with_correlation_id("property");
    queue.publish(base.clone());
    let base = base.with_header("correlation-id", "plain");
    queue.publish(base.clone());
    let base = base.with_header("x-correlation-id", "x");
    queue.publish(base.clone());
    queue.publish(base.clone().with_header("x-correlation-id", ""));
    queue.publish(base.with_header("x-correlation-id", true).with_header("correlation-id", 7_i64));
    let consumer = QueueConsumer::with_decoder(queue.source(), codec::bytes, handler);
    let handle = consumer.clock(clock).start().unwrap();
    queue.until(|queue| queue.counts().acked == 6).await.unwrap();
    assert_eq!(seen.all(), ["id", "property", "plain", "x", "plain", "property"]);
    drop(handle);
}

#[tokio::test]
async fn the_number_of_handlers_at_once_is_reached_and_never_exceeded() {
    for (most, prefetch) in [(1, 0), (2, 0), (7, 0), (7, 3), (64, 0)] {
        let (clock, queue) = queue();
        let (running, highest) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let handler = {
            let (clock, running, highest) = (clock.clone(), Arc::clone(&running), Arc::clone(&highest));
            move |_: Bytes, context: Context| {
                let now = running.fetch_add(1, Ordering::SeqCst) + 1;
                highest.fetch_max(now, Ordering::SeqCst);
                let nap = clock.sleep(ms(1 + context.message().id().len() as u64 % 3));
                let running = Arc::clone(&running);
                async move {
                    nap.await;
                    running.fetch_sub(1, Ordering::SeqCst);
                    Ok::<_, HandlerError>(())
                }
            }
        };
        let source = queue.source().with_prefetch(prefetch);
        let consumer =
            QueueConsumer::with_decoder(source, codec::bytes, handler).max_concurrent(at_most(most));
        let handle = consumer.clock(clock.clone()).start().unwrap();
        publish(&queue, 300);
        while queue.counts().acked < 300 {
            clock.advance(ms(1)).await;
            let held = queue.in_flight().len();
            assert!(held <= most + prefetch, "{held} held of {most} and {prefetch}");
            assert!(handle.in_flight() <= most);
        }
        assert_eq!((highest.load(Ordering::SeqCst), queue.counts().delivered), (most, 300));
        drop(handle);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn on_many_threads_each_message_is_handled_once_and_the_limit_holds() {
    let (_, queue) = queue();
    let (running, highest) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let handler = {
        let (running, highest) = (Arc::clone(&running), Arc::clone(&highest));
        move |_: Bytes, _: Context| {
            let (running, highest) = (Arc::clone(&running), Arc::clone(&highest));
            async move {
                highest.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                running.fetch_sub(1, Ordering::SeqCst);
                Ok::<_, HandlerError>(())
            }
        }
    };
    let consumer =
        QueueConsumer::with_decoder(queue.source(), codec::bytes, handler).max_concurrent(at_most(5));
    let handle = consumer.start().unwrap();
    publish(&queue, 5_000);
    queue.until(|queue| queue.counts().acked == 5_000).await.unwrap();
    assert!(highest.load(Ordering::SeqCst) <= 5);
    let report = prompt(handle.stop()).await;
    assert_eq!((report.stats.received, report.stats.acked, queue.counts().delivered), (5_000, 5_000, 5_000));
}

#[tokio::test]
async fn an_event_says_how_long_its_message_was_buffered_before_a_loop_had_it() {
    let (clock, queue) = queue();
    let events = Events::new();
    let source = Faulty::new(queue.source(), |op, nth| match (op, nth) {
        (Op::Receive, 2) => Act::Buffered(ms(1_500)),
        (Op::Receive, 3) => Act::Undated,
        _ => Act::Pass,
    });
    publish(&queue, 3);
    let consumer = QueueConsumer::with_decoder(source, codec::bytes, async |_: Bytes, _: Context| {
        Ok::<_, HandlerError>(())
    });
    let handle = consumer.on_event(events.observer()).clock(clock.clone()).start().unwrap();
    clock.advance(SECOND).await;
    let waited: Vec<Duration> = events.all().iter().map(|event| event.timings.waited).collect();
    assert_eq!(waited, [Duration::ZERO, ms(1_500), Duration::ZERO]);
    drop(handle);
}
