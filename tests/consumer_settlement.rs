//! What a result means for the message: the default table, a user's own, and the retry policy that completes it.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::time::Duration;

use bytes::Bytes;
use windlass::backoff::Backoff;
use windlass::clock::Clock;
use windlass::codec;
use windlass::consumer::{QueueConsumer, RetryPolicy, default_on_result};
use windlass::handler::{Context, HandlerError};
use windlass::memory::{MemoryQueue, QueueOptions};
use windlass::message::Message;
use windlass::source::{Cause, NackReason, RequeueOrder, Settlement};

use support::{Log, SECOND, millis_after, ms, prompt, publish, queue, queue_with};

/// The nack that `error`, returned by a handler, leads to.
async fn nack_for(error: HandlerError) -> (NackReason, MemoryQueue) {
    let (clock, queue) = queue();
    let failing = move |_: Bytes, _: Context| {
        let error = error.clone();
        async move { Err::<(), _>(error) }
    };
    let consumer = QueueConsumer::with_decoder(queue.source(), codec::bytes, failing).clock(clock);
    queue.publish(Message::new("x").with_id("m-1"));
    let handle = consumer.start().unwrap();
    queue.until(|queue| queue.counts().nacked == 1).await.unwrap();
    let reason = queue.nacked()[0].1.clone();
    drop(handle);
    (reason, queue)
}

#[tokio::test]
async fn success_is_acked() {
    let (clock, queue) = queue();
    let consumer = QueueConsumer::with_decoder(queue.source(), codec::bytes, async |_: Bytes, _: Context| {
        Ok::<_, HandlerError>(())
    });
    let handle = consumer.clock(clock).start().unwrap();
    queue.publish(Message::new("x").with_id("m-1"));
    queue.until(|queue| queue.counts().acked == 1).await.unwrap();
    let report = prompt(handle.stop()).await;
    assert_eq!((report.stats.acked, report.stats.received), (1, 1));
    assert!(queue.nacked().is_empty() && queue.dead_lettered().is_empty());
}

#[tokio::test]
async fn what_cannot_be_helped_is_dead_lettered_with_its_cause() {
    let rows = [
        (HandlerError::invalid_input("no id"), "validation:input", "no id"),
        (HandlerError::invalid_output("no total"), "validation:output", "no total"),
        (HandlerError::terminal("declined"), "terminal", "declined"),
        (HandlerError::retry_exhausted(7, "still down"), "retry_exhausted:7", "still down"),
    ];
    for (error, code, detail) in rows {
        let (reason, queue) = nack_for(error).await;
        let cause = Cause::new(code).with_detail(detail);
        assert_eq!(reason, NackReason::dead_letter(cause.clone()));
        let dead = queue.dead_lettered();
        assert_eq!(dead.len(), 1, "{code}");
        assert_eq!((dead[0].0.id(), &dead[0].1.cause, dead[0].1.attempts), ("m-1", &cause, 1));
        assert_eq!(queue.counts().pending + queue.counts().delayed, 0, "{code}");
    }
}

#[tokio::test]
async fn what_may_be_helped_is_a_counted_retry_with_its_cause() {
    let rows = [
        (HandlerError::Timeout { after: ms(1_500) }, Cause::new("timeout:1500ms")),
        (HandlerError::failed("reset"), Cause::new("handler_error").with_detail("reset")),
        (HandlerError::Panicked { message: "oops".into() }, Cause::new("panic").with_detail("oops")),
    ];
    for (error, cause) in rows {
        let (reason, queue) = nack_for(error).await;
        assert_eq!(reason, NackReason::retry_after(SECOND, cause));
        assert_eq!(queue.delayed()[0].attempt(), 2);
    }
}

#[tokio::test]
async fn an_open_circuit_postpones_until_it_closes_and_counts_no_attempt() {
    let (reason, queue) = nack_for(HandlerError::CircuitOpen { closes_in: ms(750) }).await;
    assert_eq!(reason, NackReason::postpone(ms(750), "circuit_open"));
    assert_eq!(queue.delayed()[0].attempt(), 1);
}

#[tokio::test]
async fn what_was_not_called_is_requeued_now_and_counts_no_attempt() {
    let rows = [
        (HandlerError::BackpressureReject, "queue_full"),
        (HandlerError::Dropped, "dropped"),
        (HandlerError::NotRunning, "shutting_down"),
    ];
    for (error, code) in rows {
        let (reason, queue) = nack_for(error).await;
        assert_eq!(reason, NackReason::requeue_now(code));
        assert_eq!(queue.pending()[0].attempt(), 1, "{code}");
    }
}

#[tokio::test]
async fn a_failing_message_is_tried_after_1_2_and_4_seconds_and_then_dead_lettered() {
    let (clock, queue) = queue();
    let start = clock.now();
    let (calls, tries) = (Log::new(), Log::new());
    let handler = {
        let (clock, calls, tries) = (clock.clone(), calls.clone(), tries.clone());
        move |_: Bytes, context: Context| {
            calls.add(clock.now());
            tries.add(context.attempt());
            async { Err::<(), _>(std::io::Error::other("reset")) }
        }
    };
    let consumer = QueueConsumer::with_decoder(queue.source(), codec::bytes, handler).clock(clock.clone());
    queue.publish(Message::new("x").with_id("m-1"));
    let handle = consumer.start().unwrap();
    clock.advance(ms(6_999)).await;
    assert_eq!(queue.counts().dead_lettered, 0);
    clock.advance(ms(1)).await;
    assert_eq!(millis_after(start, &calls.all()), [0, 1_000, 3_000, 7_000]);
    assert_eq!(tries.all(), [1, 2, 3, 4]);
    let (message, letter) = queue.dead_lettered().remove(0);
    assert_eq!((message.id(), message.body().as_ref()), ("m-1", &b"x"[..]));
    assert_eq!(letter.cause, Cause::new("retry_exhausted:4").with_detail("handler_error: reset"));
    assert_eq!((letter.attempts, letter.queue.as_str()), (4, "work"));
    clock.advance(60 * SECOND).await;
    assert_eq!(calls.len(), 4);
    let stats = prompt(handle.stop()).await.stats;
    assert_eq!((stats.received, stats.retried, stats.dead_lettered, stats.acked), (4, 3, 1, 0));
}

/// When a handler that always fails is called, in milliseconds, within 200 s under `policy`.
async fn tries_under(policy: RetryPolicy, id: &str) -> (Vec<u128>, Option<Cause>) {
    let (clock, queue) = queue();
    let start = clock.now();
    let calls = Log::new();
    let handler = {
        let (clock, calls) = (clock.clone(), calls.clone());
        move |_: Bytes, _: Context| {
            calls.add(clock.now());
            async { Err::<(), _>("no") }
        }
    };
    let consumer = QueueConsumer::with_decoder(queue.source(), codec::bytes, handler)
        .retry_policy(policy)
        .clock(clock.clone());
    queue.publish(Message::new("x").with_id(id));
    let handle = consumer.start().unwrap();
    clock.advance(200 * SECOND).await;
    drop(handle);
    (millis_after(start, &calls.all()), queue.dead_lettered().pop().map(|(_, letter)| letter.cause))
}

#[tokio::test]
async fn a_schedule_is_followed_to_its_end() {
    let schedule = RetryPolicy::schedule([5 * SECOND, 60 * SECOND]);
    let (calls, cause) = tries_under(schedule, "m-1").await;
    assert_eq!(calls, [0, 5_000, 65_000]);
    assert_eq!(cause.unwrap().code(), "retry_exhausted:3");
}

#[tokio::test]
async fn no_retry_at_all_makes_the_first_failure_the_last() {
    let (calls, cause) = tries_under(RetryPolicy::never(), "m-1").await;
    assert_eq!(calls, [0]);
    assert_eq!(cause.unwrap().code(), "retry_exhausted:1");
}

#[tokio::test]
async fn jitter_moves_retries_apart_by_message_and_equally_in_every_run() {
    let policy = RetryPolicy::backoff(Backoff::new(4 * SECOND).with_jitter(0.5), 2);
    let (first, cause) = tries_under(policy.clone(), "m-1").await;
    assert_eq!(cause.unwrap().code(), "retry_exhausted:3");
    assert!((2_000..=6_000).contains(&first[1]), "{first:?}");
    assert!((4_000..=12_000).contains(&(first[2] - first[1])), "{first:?}");
    assert_eq!(tries_under(policy.clone(), "m-1").await.0, first);
    assert_ne!(tries_under(policy, "m-2").await.0, first);
}

#[tokio::test]
async fn a_scheduled_delay_below_a_millisecond_waits_for_a_millisecond() {
    let (calls, _) = tries_under(RetryPolicy::schedule([Duration::from_nanos(1)]), "m-1").await;
    assert_eq!(calls, [0, 1]);
}

#[tokio::test]
async fn an_own_on_result_sees_the_output_and_leaves_the_rest_to_the_default() {
    let (clock, queue) = queue();
    let handler = async |payload: Bytes, _: Context| match payload.as_ref() {
        b"bad" => Err(HandlerError::terminal("bad")),
        body => Ok(body.len()),
    };
    let consumer = QueueConsumer::with_decoder(queue.source(), codec::bytes, handler)
        .on_result(|result, message| match result {
            Ok(length) if length % 2 == 1 => {
                NackReason::dead_letter(format!("odd:{length}:{}:{}", message.id(), message.attempt())).into()
            }
            other => default_on_result(other),
        })
        .clock(clock);
    for body in ["even", "odd", "bad"] {
        queue.publish(Message::new(body).with_id(body));
    }
    let handle = consumer.start().unwrap();
    queue.until(|queue| queue.counts().acked + queue.counts().nacked == 3).await.unwrap();
    let dead = queue.dead_lettered();
    let codes: Vec<&str> = dead.iter().map(|(_, letter)| letter.cause.code()).collect();
    assert_eq!(codes, ["odd:3:odd:1", "terminal"]);
    assert_eq!(queue.acked()[0].id(), "even");
    drop(handle);
}

#[tokio::test]
async fn a_delay_that_on_result_chose_is_kept_whatever_the_attempt() {
    let (clock, queue) = queue();
    let start = clock.now();
    let seen = Log::new();
    let decide = {
        let (clock, seen) = (clock.clone(), seen.clone());
        move |result: &Result<(), HandlerError>, message: &Message| {
            assert!(result.is_err());
            seen.add((message.attempt(), (clock.now() - start).as_secs()));
            Settlement::from(NackReason::retry_after(7 * SECOND, "later"))
        }
    };
    let consumer = QueueConsumer::with_decoder(queue.source(), codec::bytes, async |_: Bytes, _: Context| {
        Err::<(), _>(HandlerError::terminal("no"))
    });
    queue.publish(Message::new("x"));
    let handle = consumer.on_result(decide).clock(clock.clone()).start().unwrap();
    clock.advance(45 * SECOND).await;
    let expected: Vec<(u32, u64)> = (1..=7).map(|attempt| (attempt, 7 * u64::from(attempt - 1))).collect();
    assert_eq!(seen.all(), expected);
    assert!(queue.dead_lettered().is_empty());
    drop(handle);
}

#[tokio::test]
async fn an_uncounted_retry_without_a_delay_gets_one_and_never_uses_up_the_attempts() {
    let (clock, queue) = queue();
    let consumer = QueueConsumer::with_decoder(queue.source(), codec::bytes, async |_: Bytes, _: Context| {
        Ok::<_, HandlerError>(())
    });
    let consumer = consumer
        .on_result(|_, _| NackReason::Retry { delay: None, counted: false, cause: "later".into() }.into())
        .clock(clock.clone());
    queue.publish(Message::new("x"));
    let handle = consumer.start().unwrap();
    clock.advance(ms(10_500)).await;
    assert_eq!(queue.counts().delivered, 11, "one now and one each second");
    assert_eq!(queue.delayed()[0].attempt(), 1);
    drop(handle);
}

/// How often one message is delivered while the clock stands still, when each delivery is answered by `answer`.
async fn deliveries_at_once(order: RequeueOrder, answer: NackReason) -> u64 {
    let (clock, queue) = queue_with(QueueOptions::new().with_requeue_order(order));
    let consumer = QueueConsumer::with_decoder(queue.source(), codec::bytes, async |_: Bytes, _: Context| {
        Ok::<_, HandlerError>(())
    });
    let consumer = consumer.on_result(move |_, _| answer.clone().into()).clock(clock.clone());
    queue.publish(Message::new("x"));
    let handle = consumer.start().unwrap();
    clock.settle().await;
    let delivered = queue.counts().delivered;
    drop(handle);
    delivered
}

/// "Delays are never zero": whoever gives none must not get a hot loop.
#[tokio::test]
async fn a_retry_after_no_time_at_all_does_not_spin() {
    let answer = NackReason::retry_after(Duration::ZERO, "again");
    assert!(deliveries_at_once(RequeueOrder::Front, answer).await <= 3);
}

/// A circuit that is about to close says zero: the message must not come again at full speed, uncounted.
#[tokio::test]
async fn a_circuit_that_closes_in_no_time_at_all_does_not_spin() {
    let open = HandlerError::CircuitOpen { closes_in: Duration::ZERO };
    let Settlement::Nack(answer) = default_on_result::<()>(&Err(open)) else { panic!("not a nack") };
    assert!(deliveries_at_once(RequeueOrder::Back, answer).await <= 3);
}

#[tokio::test]
async fn the_longest_delays_do_not_overflow() {
    let longest = NackReason::retry_after(Duration::MAX, "later");
    assert_eq!(deliveries_at_once(RequeueOrder::Front, longest).await, 1);
    let postponed = NackReason::postpone(Duration::MAX, "later");
    assert_eq!(deliveries_at_once(RequeueOrder::Front, postponed).await, 1);
}

#[tokio::test]
async fn a_retry_that_does_not_count_is_never_the_last() {
    let (clock, queue) = queue();
    publish(&queue, 1);
    let consumer = QueueConsumer::with_decoder(queue.source(), codec::bytes, async |_: Bytes, _: Context| {
        Err::<(), _>(HandlerError::failed("no"))
    });
    let handle = consumer
        .on_result(|_, message| {
            let counted = message.attempt() < 4;
            NackReason::Retry { delay: None, counted, cause: "not to blame".into() }.into()
        })
        .clock(clock.clone())
        .start()
        .unwrap();
    clock.advance(60 * SECOND).await;
    assert_eq!((queue.counts().dead_lettered, queue.delayed().len()), (0, 1));
    assert!(handle.stats().retried > 10);
}
