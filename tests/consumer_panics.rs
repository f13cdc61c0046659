//! Panics everywhere: in handlers, decoders, `on_result`, observers, sources, and in what is dropped. None may end the
//! loop, keep a slot, or lose a message.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::future::pending;
use std::panic::panic_any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use windlass::clock::ControlledClock;
use windlass::codec;
use windlass::consumer::{Outcome, QueueConsumer, Stats};
use windlass::handler::{Context, HandlerError};
use windlass::memory::MemoryQueue;
use windlass::message::Message;
use windlass::source::{NackReason, Settlement};

use support::faulty::{Act, Faulty, Op};
use support::{Events, SECOND, at_most, ids, ms, prompt, publish, queue, stop_on};

#[tokio::test]
async fn handlers_that_panic_give_their_slots_back() {
    let (clock, queue) = queue();
    let handler = async |payload: Bytes, context: Context| {
        if context.attempt() == 1 {
            panic!("first try of {payload:?}");
        }
        Ok::<_, HandlerError>(())
    };
    let consumer = QueueConsumer::with_decoder(queue.source(), codec::bytes, handler);
    let handle = consumer.max_concurrent(at_most(4)).clock(clock.clone()).start().unwrap();
    publish(&queue, 100);
    clock.advance(2 * SECOND).await;
    let counts = queue.counts();
    assert_eq!((counts.acked, counts.nacked, handle.in_flight()), (100, 100, 0));
    let stats = prompt(handle.stop()).await.stats;
    assert_eq!((stats.panics, stats.retried, stats.acked, stats.loop_panics), (100, 100, 100, 0));
}

#[tokio::test]
async fn an_on_result_that_panics_is_a_failed_attempt_and_given_up_in_the_end() {
    let (clock, queue) = queue();
    let consumer = QueueConsumer::with_decoder(queue.source(), codec::bytes, async |_: Bytes, _: Context| {
        Ok::<_, HandlerError>(())
    });
    let consumer = consumer
        .on_result(|_, message| match message.id() {
            "m-1" => panic!("cannot decide on {}", message.id()),
            _ => Settlement::Ack,
        })
        .clock(clock.clone());
    publish(&queue, 2);
    let handle = consumer.start().unwrap();
    clock.advance(10 * SECOND).await;
    assert_eq!(ids(&queue.acked()), ["m-2"]);
    let (_, letter) = queue.dead_lettered().remove(0);
    assert_eq!(letter.cause.code(), "retry_exhausted:4");
    let detail = letter.cause.detail().unwrap();
    assert!(detail.contains("on_result_panic") && detail.contains("cannot decide on m-1"), "{detail}");
    assert_eq!(prompt(handle.stop()).await.stats.on_result_panics, 4);
}

#[tokio::test]
async fn an_observer_that_panics_keeps_nothing_from_the_others() {
    let (clock, queue) = queue();
    let (before, after) = (Events::new(), Events::new());
    let consumer = QueueConsumer::with_decoder(queue.source(), codec::bytes, async |_: Bytes, _: Context| {
        Ok::<_, HandlerError>(())
    });
    let consumer = consumer
        .on_event(before.observer())
        .on_event(|_| panic_any(3_u8))
        .on_event(after.observer())
        .clock(clock);
    publish(&queue, 3);
    let handle = consumer.start().unwrap();
    queue.until(|queue| queue.counts().acked == 3).await.unwrap();
    let stats = prompt(handle.stop()).await.stats;
    assert_eq!((before.len(), after.len(), stats.observer_panics, stats.loop_panics), (3, 3, 3, 0));
}

/// Panics when it is dropped, unless its message was let go.
struct Bomb(Arc<AtomicBool>);

impl Drop for Bomb {
    fn drop(&mut self) {
        if self.0.load(Ordering::SeqCst) && !std::thread::panicking() {
            panic!("a handler panics while it is dropped");
        }
    }
}

#[tokio::test]
async fn a_handler_that_panics_when_a_drain_drops_it_is_put_back() {
    let (clock, queue) = queue();
    let events = Events::new();
    let armed = Arc::new(AtomicBool::new(true));
    let handler = move |_: Bytes, _: Context| {
        let bomb = Bomb(Arc::clone(&armed));
        async move {
            let _bomb = bomb;
            pending::<()>().await;
            Ok::<_, HandlerError>(())
        }
    };
    let consumer = QueueConsumer::with_decoder(queue.source(), codec::bytes, handler)
        .max_concurrent(at_most(3))
        .on_event(events.observer())
        .clock(clock.clone());
    publish(&queue, 3);
    let handle = consumer.start().unwrap();
    queue.until(|queue| queue.counts().in_flight == 3).await.unwrap();
    let (report, took) = stop_on(&clock, &handle).await;
    assert_eq!((report.finished, report.requeued, report.abandoned), (0, 3, 0), "{report:?}");
    assert!(took <= 12 * SECOND, "{took:?}");
    assert_eq!((report.stats.loop_panics, handle.in_flight()), (3, 0));
    assert_eq!(events.outcomes(), ["cut_short"; 3]);
    assert!(queue.nacked().iter().all(|(_, reason)| *reason == NackReason::requeue_now("shutting_down")));
    assert!(queue.pending().iter().all(|message| message.attempt() == 1));
    assert_eq!(queue.counts().pending, 3);
}

/// Runs three messages through a source whose first call of `op` panics, for 5 s, and stops.
async fn with_a_panic_in(op: Op, answer: Settlement) -> (ControlledClock, MemoryQueue, Stats, Events) {
    let (clock, queue) = queue();
    let events = Events::new();
    let source = Faulty::new(
        queue.source(),
        move |called, nth| {
            if called == op && nth == 1 { Act::Panic } else { Act::Pass }
        },
    );
    let consumer = QueueConsumer::with_decoder(source, codec::bytes, async |_: Bytes, _: Context| {
        Ok::<_, HandlerError>(())
    });
    let consumer =
        consumer.on_result(move |_, _| answer.clone()).on_event(events.observer()).clock(clock.clone());
    publish(&queue, 3);
    let handle = consumer.start().unwrap();
    clock.advance(5 * SECOND).await;
    let (report, _) = stop_on(&clock, &handle).await;
    assert_eq!(handle.in_flight(), 0, "the slot is given back");
    (clock, queue, report.stats, events)
}

#[tokio::test]
async fn a_source_that_panics_in_receive_is_asked_again() {
    let (_, queue, stats, _) = with_a_panic_in(Op::Receive, Settlement::Ack).await;
    assert_eq!(ids(&queue.acked()), ["m-1", "m-2", "m-3"]);
    assert_eq!((stats.loop_panics, stats.acked), (1, 3));
}

#[tokio::test]
async fn a_source_that_panics_in_ack_loses_no_message() {
    let (_, queue, stats, _) = with_a_panic_in(Op::Ack, Settlement::Ack).await;
    let counts = queue.counts();
    assert_eq!((counts.acked, counts.pending, counts.in_flight), (2, 1, 0), "{counts:?}");
    assert_eq!((stats.settle_errors + stats.loop_panics, stats.acked), (1, 2));
}

#[tokio::test]
async fn a_source_that_panics_in_nack_loses_no_message() {
    let dead = Settlement::Nack(NackReason::dead_letter("no"));
    let (_, queue, stats, _) = with_a_panic_in(Op::Nack, dead).await;
    let counts = queue.counts();
    assert_eq!((counts.dead_lettered, counts.pending, counts.in_flight), (2, 1, 0), "{counts:?}");
    assert_eq!((stats.settle_errors + stats.loop_panics, stats.dead_lettered), (1, 2));
}

/// "What became of one delivery: told once for each." "Messages whose answer the broker did not take" are counted.
#[tokio::test]
async fn a_delivery_whose_ack_panicked_is_told_of_and_counted_as_a_settle_error() {
    let (_, _, stats, events) = with_a_panic_in(Op::Ack, Settlement::Ack).await;
    assert_eq!(stats.received, 3);
    assert_eq!(events.len(), 3, "one event for each delivery");
    assert_eq!(stats.settle_errors, 1);
}

#[tokio::test]
async fn a_source_that_always_panics_in_receive_does_not_spin_and_can_be_stopped() {
    let (clock, queue) = queue();
    let source = Faulty::new(queue.source(), |op, _| if op == Op::Receive { Act::Panic } else { Act::Pass });
    let calls = source.calls();
    let consumer = QueueConsumer::with_decoder(source, codec::bytes, async |_: Bytes, _: Context| {
        Ok::<_, HandlerError>(())
    });
    let handle = consumer.clock(clock.clone()).start().unwrap();
    clock.advance(10 * SECOND).await;
    assert!((5..=110).contains(&calls.of(Op::Receive)), "{} calls", calls.of(Op::Receive));
    let report = prompt(handle.stop()).await;
    assert_eq!(report.stats.loop_panics, calls.of(Op::Receive));
}

#[tokio::test]
async fn a_source_that_panics_in_release_stays_paused_and_resumes() {
    let (clock, queue) = queue();
    let source =
        Faulty::new(
            queue.source(),
            |op, nth| {
                if op == Op::Release && nth == 1 { Act::Panic } else { Act::Pass }
            },
        );
    let consumer = QueueConsumer::with_decoder(source, codec::bytes, async |_: Bytes, _: Context| {
        Ok::<_, HandlerError>(())
    });
    let handle = consumer.clock(clock.clone()).start().unwrap();
    clock.settle().await;
    prompt(handle.pause()).await;
    publish(&queue, 1);
    clock.advance(SECOND).await;
    assert_eq!(queue.counts().pending, 1);
    prompt(handle.resume()).await;
    clock.advance(SECOND).await;
    assert_eq!(queue.counts().acked, 1, "the consumer must have survived");
    drop(handle);
}

/// A report that is clean although closing went wrong is a lie.
#[tokio::test]
async fn a_source_that_panics_in_close_is_in_the_report() {
    let (clock, queue) = queue();
    let source = Faulty::new(queue.source(), |op, _| if op == Op::Close { Act::Panic } else { Act::Pass });
    let consumer = QueueConsumer::with_decoder(source, codec::bytes, async |_: Bytes, _: Context| {
        Ok::<_, HandlerError>(())
    });
    let handle = consumer.clock(clock.clone()).start().unwrap();
    publish(&queue, 1);
    queue.until(|queue| queue.counts().acked == 1).await.unwrap();
    let report = prompt(handle.stop()).await;
    assert_eq!(report.stats.acked, 1, "the report must not be an empty one");
    assert!(report.close_error.is_some() && !report.is_clean(), "{report:?}");
}

/// What a handler returns can panic when it is dropped.
#[tokio::test]
async fn an_output_that_panics_when_it_is_dropped_ends_neither_loop_nor_message() {
    let (clock, queue) = queue();
    let armed = Arc::new(AtomicBool::new(true));
    let handler = {
        let armed = Arc::clone(&armed);
        move |_: Bytes, _: Context| {
            let bomb = Bomb(Arc::clone(&armed));
            async move { Ok::<_, HandlerError>(bomb) }
        }
    };
    let consumer = QueueConsumer::with_decoder(queue.source(), codec::bytes, handler);
    let handle = consumer.clock(clock.clone()).start().unwrap();
    publish(&queue, 3);
    clock.advance(SECOND).await;
    assert!(queue.counts().delivered <= 20, "{:?}", queue.counts());
    armed.store(false, Ordering::SeqCst);
    clock.advance(10 * SECOND).await;
    assert_eq!(queue.counts().acked, 3, "{:?}", queue.counts());
    drop(handle);
}

#[tokio::test]
async fn a_decoder_that_panics_is_retried_and_given_up() {
    let (clock, queue) = queue();
    let decoder = |message: &Message| match message.id() {
        "m-1" => panic!("cannot read {}", message.id()),
        _ => Ok::<_, HandlerError>(()),
    };
    let consumer = QueueConsumer::with_decoder(queue.source(), decoder, async |(): (), _: Context| {
        Ok::<_, HandlerError>(())
    });
    let events = Events::new();
    let handle = consumer.on_event(events.observer()).clock(clock.clone()).start().unwrap();
    publish(&queue, 2);
    clock.advance(ms(7_000)).await;
    assert_eq!(ids(&queue.acked()), ["m-2"]);
    let (_, letter) = queue.dead_lettered().remove(0);
    assert_eq!(letter.cause.code(), "retry_exhausted:4");
    assert!(matches!(&events.all()[0].outcome, Outcome::Failed(HandlerError::Panicked { .. })));
    drop(handle);
}
