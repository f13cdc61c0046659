//! Order by key: one after the other within a key, at once across keys, and what failures do to the order.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use windlass::backoff::Backoff;
use windlass::clock::{Clock, ControlledClock};
use windlass::codec;
use windlass::consumer::{ConsumerHandle, QueueConsumer, RetryPolicy};
use windlass::handler::{Context, HandlerError, ReadinessFlag};
use windlass::memory::{MemoryQueue, QueueOptions};
use windlass::message::Message;

use support::rng::SplitMix64;
use support::{Log, SECOND, at_most, ids, ms, prompt, queue, queue_with, stop_on};

/// What handlers wrote: `+m-1` at the begin, `-m-1` at the end.
type Steps = Log<String>;

fn key(message: &Message) -> Option<String> {
    let key = message.headers().get("key")?.as_str()?;
    assert!(key != "panics", "asking for the key panics");
    Some(key.to_owned())
}

fn keyed(id: &str, key: &str) -> Message {
    Message::new("x").with_id(id).with_header("key", key)
}

/// Each takes a second. One whose body is `fail` fails at its first attempt.
fn start(clock: &ControlledClock, queue: &MemoryQueue, loops: usize) -> (ConsumerHandle, Steps) {
    let steps = Steps::new();
    let handler = {
        let (clock, steps) = (clock.clone(), steps.clone());
        move |body: Bytes, context: Context| {
            steps.add(format!("+{}", context.message().id()));
            let (nap, steps) = (clock.sleep(SECOND), steps.clone());
            async move {
                nap.await;
                steps.add(format!("-{}", context.message().id()));
                match body.as_ref() {
                    b"fail" if context.attempt() == 1 => Err(HandlerError::failed("not yet")),
                    b"busy" if !context.message().redelivered() => Err(HandlerError::BackpressureReject),
                    _ => Ok(()),
                }
            }
        }
    };
    let handle = QueueConsumer::with_decoder(queue.source(), codec::bytes, handler)
        .max_concurrent(at_most(loops))
        .clock(clock.clone())
        .ordered_by(key)
        .start()
        .unwrap();
    (handle, steps)
}

async fn seconds(clock: &ControlledClock, count: usize) {
    for _ in 0..count {
        clock.settle().await;
        clock.advance(SECOND).await;
    }
}

#[tokio::test]
async fn messages_with_one_key_run_one_after_the_other_and_other_keys_beside_them() {
    let (clock, queue) = queue();
    for (id, of) in [("a-1", "a"), ("a-2", "a"), ("b-1", "b"), ("a-3", "a"), ("b-2", "b")] {
        queue.publish(keyed(id, of));
    }
    queue.publish(Message::new("x").with_id("none-1"));
    queue.publish(Message::new("x").with_id("none-2"));
    let (_handle, steps) = start(&clock, &queue, 8);
    clock.settle().await;
    let mut begun = steps.all();
    begun.sort();
    assert_eq!(begun, ["+a-1", "+b-1", "+none-1", "+none-2"]);
    seconds(&clock, 3).await;
    prompt(queue.until(|queue| queue.counts().acked == 7)).await.unwrap();
    let of_a: Vec<_> = steps.all().into_iter().filter(|step| step.contains("a-")).collect();
    assert_eq!(of_a, ["+a-1", "-a-1", "+a-2", "-a-2", "+a-3", "-a-3"]);
}

#[tokio::test]
async fn those_that_wait_for_their_key_count_as_in_hand() {
    let (clock, queue) = queue();
    for number in 1..=5 {
        queue.publish(keyed(&format!("a-{number}"), "a"));
    }
    let (handle, steps) = start(&clock, &queue, 3);
    clock.settle().await;
    assert_eq!((steps.len(), handle.in_flight(), queue.counts().pending), (1, 3, 2));
}

#[tokio::test]
async fn a_retried_message_is_overtaken_and_comes_after_those_of_its_key_that_were_in_hand() {
    let (clock, queue) = queue();
    queue.publish(keyed("a-1", "a").with_body("fail"));
    queue.publish(keyed("a-2", "a"));
    queue.publish(keyed("a-3", "a"));
    let (_handle, steps) = start(&clock, &queue, 2);
    seconds(&clock, 6).await;
    prompt(queue.until(|queue| queue.counts().acked == 3)).await.unwrap();
    // Retried a second after it failed: in line behind what came meanwhile.
    assert_eq!(steps.all(), ["+a-1", "-a-1", "+a-2", "-a-2", "+a-3", "-a-3", "+a-1", "-a-1"]);
}

#[tokio::test]
async fn a_requeued_message_is_overtaken_by_those_of_its_key_that_were_in_hand_alone() {
    let (clock, queue) = queue();
    queue.publish(keyed("a-1", "a").with_body("busy"));
    queue.publish(keyed("a-2", "a"));
    queue.publish(keyed("a-3", "a"));
    let (_handle, steps) = start(&clock, &queue, 2);
    seconds(&clock, 6).await;
    prompt(queue.until(|queue| queue.counts().acked == 3)).await.unwrap();
    assert_eq!(steps.all(), ["+a-1", "-a-1", "+a-2", "-a-2", "+a-1", "-a-1", "+a-3", "-a-3"]);
}

#[tokio::test]
async fn a_pause_and_a_drain_hand_back_those_that_wait_and_let_the_first_finish() {
    for pause in [true, false] {
        let (clock, queue) = queue();
        for number in 1..=4 {
            queue.publish(keyed(&format!("a-{number}"), "a"));
        }
        let (handle, steps) = start(&clock, &queue, 3);
        clock.settle().await;
        if pause {
            prompt(handle.pause()).await;
        } else {
            let handle = handle.clone();
            tokio::spawn(async move { handle.stop().await });
            clock.settle().await;
        }
        assert_eq!((handle.in_flight(), queue.counts().pending), (1, 3));
        clock.advance(SECOND).await;
        prompt(queue.until(|queue| queue.counts().acked == 1)).await.unwrap();
        assert_eq!(ids(&queue.pending()), ["a-2", "a-3", "a-4"]);
        assert_eq!(steps.all(), ["+a-1", "-a-1"]);
        if pause {
            prompt(handle.resume()).await;
            seconds(&clock, 5).await;
            prompt(queue.until(|queue| queue.counts().acked == 4)).await.unwrap();
            assert_eq!(ids(&queue.acked()), ["a-1", "a-2", "a-3", "a-4"]);
        }
    }
}

#[tokio::test]
async fn a_panic_while_the_key_is_asked_for_is_a_failed_attempt() {
    let (clock, queue) = queue();
    queue.publish(keyed("m-1", "panics"));
    queue.publish(keyed("m-2", "a"));
    let (handle, _) = start(&clock, &queue, 1);
    seconds(&clock, 10).await;
    prompt(queue.until(|queue| queue.counts().dead_lettered == 1)).await.unwrap();
    assert_eq!((handle.stats().panics, queue.counts().acked), (4, 1));
    let cause = queue.dead_lettered()[0].1.cause.to_string();
    assert!(cause.contains("retry_exhausted:4") && cause.contains("asking for the key panics"), "{cause}");
}

#[tokio::test]
async fn a_lease_is_kept_while_its_message_waits_for_its_key() {
    let (clock, queue) = queue_with(QueueOptions::new().with_lease(ms(900)));
    for number in 1..=4 {
        queue.publish(keyed(&format!("a-{number}"), "a"));
    }
    let (_handle, _) = start(&clock, &queue, 4);
    seconds(&clock, 5).await;
    prompt(queue.until(|queue| queue.counts().acked == 4)).await.unwrap();
    assert!(queue.acked().iter().all(|message| !message.redelivered()));
}

#[tokio::test]
async fn one_that_lost_its_lease_in_line_neither_runs_nor_blocks_the_line() {
    let (clock, queue) = queue_with(QueueOptions::new().with_lease(ms(900)));
    for number in 1..=3 {
        queue.publish(keyed(&format!("a-{number}"), "a"));
    }
    let (handle, _) = start(&clock, &queue, 3);
    clock.settle().await;
    queue.cut();
    seconds(&clock, 8).await;
    prompt(queue.until(|queue| queue.counts().acked == 3)).await.unwrap();
    assert_eq!(ids(&queue.acked()), ["a-1", "a-2", "a-3"]);
    assert_eq!(handle.stats().leases_lost, 3);
}

#[tokio::test]
async fn a_message_held_for_readiness_keeps_its_place() {
    let (clock, queue) = queue();
    let (flag, steps) = (ReadinessFlag::new(true), Steps::new());
    let handler = {
        let (flag, steps) = (flag.clone(), steps.clone());
        move |_: Bytes, context: Context| {
            use windlass::handler::Readiness;
            let first = steps.len() == 0;
            steps.add(context.message().id().to_owned());
            if first {
                flag.set(false);
            }
            let up = flag.is_ready();
            async move { if up { Ok(()) } else { Err(HandlerError::failed("gone")) } }
        }
    };
    queue.publish(keyed("a-1", "a"));
    queue.publish(keyed("a-2", "a"));
    let _handle = QueueConsumer::with_decoder(queue.source(), codec::bytes, handler)
        .max_concurrent(at_most(2))
        .clock(clock.clone())
        .ordered_by(key)
        .readiness(flag.clone())
        .start()
        .unwrap();
    clock.advance(SECOND).await;
    assert_eq!(steps.all(), ["a-1"]);
    flag.set(true);
    prompt(queue.until(|queue| queue.counts().acked == 2)).await.unwrap();
    assert_eq!(steps.all(), ["a-1", "a-1", "a-2"]);
}

#[tokio::test]
async fn the_time_in_line_counts_as_held_where_the_consumer_is_not_ready() {
    let (clock, queue) = queue();
    let flag = ReadinessFlag::new(true);
    let handler = {
        let (clock, flag) = (clock.clone(), flag.clone());
        move |_: Bytes, _: Context| {
            let (nap, flag) = (clock.sleep(SECOND), flag.clone());
            async move {
                nap.await;
                flag.set(false);
                Err::<(), _>(HandlerError::failed("gone"))
            }
        }
    };
    queue.publish(keyed("a-1", "a"));
    queue.publish(keyed("a-2", "a"));
    let _handle = QueueConsumer::with_decoder(queue.source(), codec::bytes, handler)
        .max_concurrent(at_most(2))
        .clock(clock.clone())
        .ordered_by(key)
        .readiness(flag)
        .start()
        .unwrap();
    clock.settle().await;
    assert_eq!(queue.counts().in_flight, 2);
    clock.advance(SECOND * 599).await;
    assert_eq!(queue.nacked().len(), 0);
    clock.advance(SECOND).await;
    let causes: Vec<_> = queue.nacked().iter().map(|(_, reason)| reason.cause().to_string()).collect();
    assert_eq!(causes, ["not_ready", "not_ready"], "both came ten minutes ago");
}

/// Many messages, keys, loops and failures: within a key no two at once, and the first attempts in order.
#[tokio::test]
async fn in_a_storm_no_two_of_a_key_run_at_once_and_nothing_is_lost() {
    for seed in 0..20 {
        let mut rng = SplitMix64::new(seed);
        let (clock, queue) = queue();
        let running: Log<(String, bool)> = Log::new();
        let handler = {
            let (clock, running) = (clock.clone(), running.clone());
            move |body: Bytes, context: Context| {
                let of = context.message().headers().get("key").unwrap().as_str().unwrap().to_owned();
                running.add((of.clone(), true));
                let (nap, running) = (clock.sleep(ms(u64::from(body[0] % 7))), running.clone());
                async move {
                    nap.await;
                    running.add((of, false));
                    match body[0] % 5 {
                        0 if context.attempt() < 3 => Err(HandlerError::failed("again")),
                        1 => panic!("panics"),
                        2 if !context.message().redelivered() => Err(HandlerError::Dropped),
                        _ => Ok(()),
                    }
                }
            }
        };
        for number in 0..200 {
            let of = format!("k-{}", rng.below(6));
            queue.publish(keyed(&format!("m-{number}"), &of).with_body(vec![rng.below(256) as u8]));
        }
        let handle = QueueConsumer::with_decoder(queue.source(), codec::bytes, handler)
            .max_concurrent(at_most(1 + rng.below(12) as usize))
            .clock(clock.clone())
            .retry_policy(RetryPolicy::backoff(Backoff::new(ms(5)), 3))
            .ordered_by(key)
            .start()
            .unwrap();
        for _ in 0..10_000 {
            clock.settle().await;
            if queue.counts().acked + queue.counts().dead_lettered as u64 == 200 {
                break;
            }
            clock.advance(ms(20)).await;
        }
        assert_eq!(queue.counts().acked + queue.counts().dead_lettered as u64, 200, "seed {seed}");
        let mut in_hand = HashMap::<String, i32>::new();
        for (of, begins) in running.all() {
            let count = in_hand.entry(of).or_default();
            *count += if begins { 1 } else { -1 };
            assert!((0..=1).contains(count), "seed {seed}");
        }
        let (report, _) = stop_on(&clock, &handle).await;
        assert!(report.is_clean(), "{report:?}");
        let _ = Duration::ZERO;
    }
}
