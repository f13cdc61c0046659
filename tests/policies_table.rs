//! Each row of the table of `default_on_result`, raised by a policy or a handler and settled by a consumer.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::num::NonZeroU32;

use bytes::Bytes;
use windlass::backoff::Backoff;
use windlass::clock::{Clock, ControlledClock};
use windlass::consumer::{ConsumerHandle, QueueConsumer};
use windlass::handler::{
    CircuitBreaker, Concurrency, Context, Guarded, Handler, HandlerError, Policies, Retry, WhenFull,
};
use windlass::memory::MemoryQueue;
use windlass::message::Message;
use windlass::source::{Cause, NackReason};

use support::{Events, SECOND, at_most, ids, ms, queue};

/// A message's body says what its handler does; from the second attempt on it succeeds.
fn handler(clock: &ControlledClock) -> impl Handler<Bytes, Output = Bytes> + use<> {
    let clock = clock.clone();
    move |body: Bytes, context: Context| {
        let clock = clock.clone();
        async move {
            let again = context.attempt() > 1;
            match &*body {
                b"hang" if !again => std::future::pending().await,
                b"panic" if !again => panic!("oops"),
                b"fail" if !again => Err(HandlerError::failed("reset")),
                b"fail always" => Err(HandlerError::failed("reset")),
                b"terminal" => Err(HandlerError::terminal("declined")),
                b"nap" => {
                    clock.sleep(SECOND).await;
                    Ok(body)
                }
                b"nap and fail" if !again => {
                    clock.sleep(SECOND).await;
                    Err(HandlerError::failed("reset"))
                }
                _ => Ok(body),
            }
        }
    }
}

/// A consumer at work.
struct Run {
    clock: ControlledClock,
    queue: MemoryQueue,
    events: Events,
    _handle: ConsumerHandle,
}

fn decode(message: &Message) -> Result<Bytes, &'static str> {
    if message.body() == "not a body" { Err("cannot be read") } else { Ok(message.body().clone()) }
}

/// Publishes a message for each body, `m-1` and so on, and works them off behind the policies: so many loops, and each
/// begins with one message.
async fn run<H: Handler<Bytes>>(
    bodies: &[&'static str],
    policies: impl FnOnce(&ControlledClock) -> Guarded<H, Bytes>,
) -> Run {
    let (clock, queue) = queue();
    let events = Events::new();
    let consumer = QueueConsumer::with_decoder(queue.source(), decode, policies(&clock))
        .clock(clock.clone())
        .max_concurrent(at_most(bodies.len()))
        .observer(events.observer());
    for (index, body) in bodies.iter().enumerate() {
        queue.publish(Message::new(*body).with_id(format!("m-{}", index + 1)));
    }
    let handle = consumer.start().unwrap();
    clock.settle().await;
    Run { clock, queue, events, _handle: handle }
}

fn plain(clock: &ControlledClock) -> Policies<impl Handler<Bytes, Output = Bytes> + use<>, Bytes> {
    Policies::around(handler(clock)).clock(clock.clone())
}

impl Run {
    /// The first nack of message number `number`, and the attempt that the message was at.
    fn first_nack(&self, number: usize) -> (NackReason, u32) {
        let id = format!("m-{number}");
        let nacked = self.queue.nacked();
        let found = nacked.iter().find(|(message, _)| message.id() == id);
        let (message, reason) = found.unwrap_or_else(|| panic!("{id} was not nacked: {nacked:?}"));
        (reason.clone(), message.attempt())
    }

    /// The outcome of the first event of message number `number`.
    fn first_outcome(&self, number: usize) -> &'static str {
        let id = format!("m-{number}");
        let events = self.events.all();
        events.iter().find(|event| event.message.id() == id).expect("it was told of").outcome.name()
    }

    /// Which attempt message number `number` was acked at, which must come within a minute.
    async fn acked_at(&self, number: usize) -> u32 {
        self.clock.advance(60 * SECOND).await;
        let id = format!("m-{number}");
        let acked = self.queue.acked();
        acked.iter().find(|message| message.id() == id).expect("it was acked").attempt()
    }

    /// Message 1 was dead-lettered at its first attempt, with this cause.
    fn is_dead(&self, cause: Cause) {
        assert_eq!(self.first_nack(1), (NackReason::dead_letter(cause.clone()), 1));
        let dead = self.queue.dead_lettered();
        assert_eq!((dead.len(), dead[0].1.attempts), (1, 1));
        assert_eq!(dead[0].1.cause, cause);
    }

    /// Message 1 is tried again in a second, with this cause, as a counted attempt.
    async fn is_retried(&self, cause: Cause) {
        assert_eq!(self.first_nack(1), (NackReason::retry_after(SECOND, cause), 1));
        assert_eq!(self.acked_at(1).await, 2);
    }

    /// Message number `number` was put back now, with this code, and that is no attempt.
    async fn is_put_back(&self, number: usize, code: &str) {
        assert_eq!(self.first_nack(number), (NackReason::requeue_now(code.to_owned()), 1));
        assert_eq!(self.acked_at(number).await, 1);
    }
}

#[tokio::test]
async fn ok_is_acked() {
    let run = run(&["fine"], |clock| plain(clock).timeout(SECOND).build().unwrap()).await;
    assert_eq!((ids(&run.queue.acked()), run.queue.nacked().len()), (vec!["m-1"], 0));
    assert_eq!(run.first_outcome(1), "done");
}

#[tokio::test]
async fn a_payload_that_is_not_valid_is_dead_lettered() {
    let run = run(&["wrong"], |clock| {
        let valid = |body: &Bytes| if body == "wrong" { Err("no id") } else { Ok(()) };
        plain(clock).validate_input(valid).build().unwrap()
    })
    .await;
    run.is_dead(Cause::new("validation:input").with_detail("no id"));
    assert_eq!(run.first_outcome(1), "invalid");
}

#[tokio::test]
async fn a_payload_that_cannot_be_decoded_is_dead_lettered() {
    let run = run(&["not a body"], |clock| plain(clock).build().unwrap()).await;
    run.is_dead(Cause::new("validation:input").with_detail("cannot be read"));
}

#[tokio::test]
async fn a_result_that_is_not_valid_is_dead_lettered() {
    let run = run(&["wrong"], |clock| {
        let valid = |body: &Bytes| if body == "wrong" { Err("no total") } else { Ok(()) };
        plain(clock).validate_output(valid).build().unwrap()
    })
    .await;
    run.is_dead(Cause::new("validation:output").with_detail("no total"));
}

#[tokio::test]
async fn terminal_is_dead_lettered_through_all_policies() {
    let run = run(&["terminal"], |clock| {
        plain(clock)
            .timeout(SECOND)
            .retry(Retry::new(NonZeroU32::new(3).unwrap()))
            .circuit_breaker(CircuitBreaker::new(NonZeroU32::MIN, SECOND))
            .concurrency(Concurrency::new(at_most(1), 0))
            .build()
            .unwrap()
    })
    .await;
    run.is_dead(Cause::new("terminal").with_detail("declined"));
}

#[tokio::test]
async fn a_time_out_is_a_counted_retry() {
    let run = run(&["hang"], |clock| plain(clock).timeout(ms(1_500)).build().unwrap()).await;
    run.clock.advance(ms(1_500)).await;
    run.is_retried(Cause::new("timeout:1500ms")).await;
    assert_eq!(run.first_outcome(1), "timeout");
}

#[tokio::test]
async fn a_failure_is_a_counted_retry() {
    let run = run(&["fail"], |clock| plain(clock).timeout(SECOND).build().unwrap()).await;
    run.is_retried(Cause::new("handler_error").with_detail("reset")).await;
}

#[tokio::test]
async fn a_panic_is_a_counted_retry() {
    let run = run(&["panic"], |clock| plain(clock).timeout(SECOND).build().unwrap()).await;
    run.is_retried(Cause::new("panic").with_detail("oops")).await;
}

#[tokio::test]
async fn tries_that_are_used_up_are_dead_lettered_at_the_first_attempt() {
    let run = run(&["fail always"], |clock| {
        let retry = Retry::new(NonZeroU32::new(3).unwrap()).with_backoff(Backoff::new(ms(10)));
        plain(clock).retry(retry).build().unwrap()
    })
    .await;
    run.clock.advance(SECOND).await;
    let detail = "the handler failed: worth another try: reset";
    run.is_dead(Cause::new("retry_exhausted:3").with_detail(detail));
}

#[tokio::test]
async fn a_message_that_meets_an_open_circuit_is_postponed_until_it_closes_and_that_is_no_attempt() {
    // Both are pulled. The second waits for its turn while the first opens the circuit.
    let run = run(&["nap and fail", "fine"], |clock| {
        plain(clock)
            .concurrency(Concurrency::new(at_most(1), 1))
            .circuit_breaker(CircuitBreaker::new(NonZeroU32::MIN, 10 * SECOND))
            .build()
            .unwrap()
    })
    .await;
    assert_eq!(run.queue.in_flight().len(), 2);
    run.clock.advance(SECOND).await;
    assert_eq!(run.first_nack(2), (NackReason::postpone(10 * SECOND, "circuit_open"), 1));
    assert_eq!(run.first_outcome(2), "circuit_open");
    assert_eq!(run.acked_at(2).await, 1);
}

#[tokio::test]
async fn a_message_that_finds_the_queue_full_is_put_back_and_that_is_no_attempt() {
    let run = run(&["nap", "fine"], |clock| {
        plain(clock).concurrency(Concurrency::new(at_most(1), 0)).build().unwrap()
    })
    .await;
    run.is_put_back(2, "queue_full").await;
    assert_eq!(run.first_outcome(2), "backpressure_reject");
}

#[tokio::test]
async fn a_message_that_makes_room_is_put_back_and_that_is_no_attempt() {
    let run = run(&["nap", "fine", "nap"], |clock| {
        let limit = Concurrency::new(at_most(1), 1).with_when_full(WhenFull::DropOldest);
        plain(clock).concurrency(limit).build().unwrap()
    })
    .await;
    run.is_put_back(2, "dropped").await;
    assert_eq!(run.first_outcome(2), "dropped");
}

#[tokio::test]
async fn a_message_for_a_handler_that_is_stopped_is_put_back_and_that_is_no_attempt() {
    let (clock, queue) = queue();
    let guarded = plain(&clock).build().unwrap();
    guarded.stop();
    queue.publish(Message::new("fine").with_id("m-1"));
    let consumer = QueueConsumer::with_decoder(queue.source(), decode, guarded).clock(clock.clone());
    let handle = consumer.start().unwrap();
    clock.advance(SECOND).await;
    let nacked = queue.nacked();
    assert_eq!(nacked[0].1, NackReason::requeue_now("shutting_down"));
    assert!(nacked.len() > 1 && nacked.iter().all(|(message, _)| message.attempt() == 1), "{nacked:?}");
    drop(handle);
}
