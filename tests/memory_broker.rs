//! The broker in memory, operation by operation.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use windlass::clock::{Clock, ControlledClock, SystemClock};
use windlass::memory::{FaultPoint, MemoryBroker, MemoryReceipt, MemorySource, QueueOptions};
use windlass::message::{HeaderValue, Message};
use windlass::publisher::Publisher;
use windlass::source::{Cause, DeadLetter, Delivery, MessageSource, NackReason, RequeueOrder};
use windlass::{Error, ErrorKind};

use support::{SECOND, ids, ms, prompt, publish, queue, queue_with};

async fn receive(source: &MemorySource) -> Delivery<MemoryReceipt> {
    prompt(source.receive(&CancellationToken::new())).await.unwrap().unwrap()
}

fn scripted(text: &str) -> Error {
    Error::new(ErrorKind::Other, "script").with_message(text)
}

#[tokio::test]
async fn messages_come_first_in_first_out_and_as_they_were_sent() {
    let (clock, queue) = queue();
    let source = queue.source();
    let sent =
        Message::new(vec![0, 255, 128]).with_id("m-1").with_header("shard", 3_i32).with_content_type("x/y");
    queue.publish(sent.clone());
    publish(&queue, 0);
    queue.publish(Message::new("").with_id("m-2"));
    clock.advance(SECOND).await;
    let first = receive(&source).await;
    assert_eq!((first.message.id(), first.message.body()), ("m-1", sent.body()));
    assert_eq!((first.message.headers(), first.message.content_type()), (sent.headers(), Some("x/y")));
    assert_eq!(first.message.received_at(), clock.wall());
    let second = receive(&source).await;
    assert_eq!((second.message.id(), second.message.body().len()), ("m-2", 0));
    source.ack(second.receipt).await.unwrap();
    source.ack(first.receipt).await.unwrap();
    assert_eq!(ids(&queue.acked()), ["m-2", "m-1"]);
}

#[tokio::test]
async fn only_a_counted_retry_adds_an_attempt_and_starts_the_count_of_deliveries_anew() {
    let (_, queue) = queue();
    publish(&queue, 1);
    let source = queue.source();
    let steps = [
        (NackReason::requeue_now("a"), (1, false, Some(1))),
        (NackReason::requeue_now("b"), (1, true, Some(2))),
        (NackReason::retry("c"), (1, true, Some(3))),
        (NackReason::Retry { delay: None, counted: false, cause: "d".into() }, (2, false, Some(1))),
        (NackReason::retry_after(Duration::ZERO, "e"), (2, false, Some(1))),
        (NackReason::dead_letter("f"), (3, false, Some(1))),
    ];
    for (reason, seen) in steps {
        let delivery = receive(&source).await;
        let message = &delivery.message;
        assert_eq!((message.attempt(), message.redelivered(), message.delivery_count()), seen, "{reason}");
        source.nack(delivery.receipt, reason).await.unwrap();
    }
    let (_, letter) = queue.dead_lettered().remove(0);
    assert_eq!((letter.attempts, letter.cause.code()), (3, "f"));
    assert_eq!((queue.counts().delivered, queue.counts().nacked), (6, 6));
}

#[tokio::test]
async fn a_cut_or_a_failed_answer_is_a_redelivery_and_no_attempt() {
    let (_, queue) = queue();
    publish(&queue, 1);
    let source = queue.source();
    let first = receive(&source).await;
    queue.cut();
    assert_eq!(source.ack(first.receipt).await.unwrap_err().kind(), ErrorKind::Stale);
    let second = receive(&source).await;
    assert_eq!((second.message.attempt(), second.message.redelivered()), (1, true));
    assert_eq!(second.message.delivery_count(), Some(2));
    queue.fail_next(FaultPoint::Nack, scripted("no"));
    assert!(
        source.nack(second.receipt, NackReason::retry("x")).await.unwrap_err().to_string().contains("no")
    );
    let third = receive(&source).await;
    assert_eq!((third.message.attempt(), third.message.delivery_count()), (1, Some(3)));
    assert_eq!((queue.counts().returned, queue.counts().nacked), (2, 0));
    source.ack(third.receipt).await.unwrap();
}

#[tokio::test]
async fn a_requeued_message_goes_where_the_options_say() {
    let expected = [
        (RequeueOrder::Front, ["m-1", "m-2", "m-3"]),
        (RequeueOrder::Unknown, ["m-1", "m-2", "m-3"]),
        (RequeueOrder::Back, ["m-2", "m-3", "m-1"]),
    ];
    for (order, after) in expected {
        let (_, queue) = queue_with(QueueOptions::new().with_requeue_order(order));
        publish(&queue, 3);
        let source = queue.source();
        assert_eq!(source.capabilities().requeue_order, order);
        let first = receive(&source).await;
        source.nack(first.receipt, NackReason::requeue_now("x")).await.unwrap();
        assert_eq!(ids(&queue.pending()), after, "{order:?}");
    }
}

#[tokio::test]
async fn what_comes_back_unanswered_comes_to_the_front_in_order() {
    let (_, queue) = queue_with(QueueOptions::new().with_requeue_order(RequeueOrder::Back));
    publish(&queue, 5);
    let source = queue.source();
    let _held = (receive(&source).await, receive(&source).await, receive(&source).await);
    queue.cut();
    assert_eq!(ids(&queue.pending()), ["m-1", "m-2", "m-3", "m-4", "m-5"]);
}

#[tokio::test]
async fn a_delayed_message_comes_when_its_time_is_over_behind_what_waits() {
    let (clock, queue) = queue();
    publish(&queue, 1);
    let source = queue.source();
    let delivery = receive(&source).await;
    source.nack(delivery.receipt, NackReason::retry_after(5 * SECOND, "later")).await.unwrap();
    queue.publish(Message::new("x").with_id("m-2"));
    assert_eq!((queue.counts().delayed, queue.counts().pending), (1, 1));
    clock.advance(ms(4_999)).await;
    assert_eq!(queue.counts().delayed, 1);
    clock.advance(ms(1)).await;
    assert_eq!((queue.counts().delayed, ids(&queue.pending())), (0, vec!["m-2", "m-1"]));
}

#[tokio::test]
async fn delayed_messages_come_in_the_order_of_their_deadlines() {
    let (clock, queue) = queue();
    publish(&queue, 4);
    let source = queue.source();
    for seconds in [3, 1, 2, 1] {
        let delivery = receive(&source).await;
        source.nack(delivery.receipt, NackReason::retry_after(seconds * SECOND, "x")).await.unwrap();
    }
    assert_eq!(ids(&queue.delayed()), ["m-2", "m-4", "m-3", "m-1"]);
    clock.advance(10 * SECOND).await;
    assert_eq!(ids(&queue.pending()), ["m-2", "m-4", "m-3", "m-1"]);
}

#[tokio::test]
async fn a_lease_brings_a_message_back_unless_it_is_extended() {
    let (clock, queue) = queue_with(QueueOptions::new().with_lease(30 * SECOND));
    publish(&queue, 2);
    let source = queue.source();
    assert_eq!(source.capabilities().lease, Some(30 * SECOND));
    let (one, two) = (receive(&source).await, receive(&source).await);
    clock.advance(20 * SECOND).await;
    source.extend(&two.receipt).await.unwrap();
    clock.advance(10 * SECOND).await;
    assert_eq!((ids(&queue.pending()), ids(&queue.in_flight())), (vec!["m-1"], vec!["m-2"]));
    assert_eq!(source.extend(&one.receipt).await.unwrap_err().kind(), ErrorKind::Stale);
    assert_eq!(source.ack(one.receipt).await.unwrap_err().kind(), ErrorKind::Stale);
    clock.advance(ms(19_999)).await;
    source.ack(two.receipt).await.unwrap();
    assert_eq!((queue.counts().acked, queue.counts().returned), (1, 1));
}

#[tokio::test]
async fn extending_without_a_lease_is_unsupported() {
    let (_, queue) = queue();
    publish(&queue, 1);
    let source = queue.source();
    let delivery = receive(&source).await;
    assert_eq!(source.extend(&delivery.receipt).await.unwrap_err().kind(), ErrorKind::Unsupported);
    source.ack(delivery.receipt).await.unwrap();
}

#[tokio::test]
async fn a_receipt_of_another_queue_is_stale_and_settles_nothing() {
    let broker = MemoryBroker::new(ControlledClock::new());
    let (one, two) = (broker.queue("one"), broker.queue("two"));
    publish(&one, 1);
    publish(&two, 1);
    let (from_one, from_two) = (one.source(), two.source());
    let (first, second) = (receive(&from_one).await, receive(&from_two).await);
    assert_eq!(from_two.ack(first.receipt).await.unwrap_err().kind(), ErrorKind::Stale);
    let nacked = from_one.nack(second.receipt, NackReason::dead_letter("x")).await;
    assert_eq!(nacked.unwrap_err().kind(), ErrorKind::Stale);
    assert_eq!((one.counts().in_flight, two.counts().in_flight), (1, 1));
    assert_eq!((one.counts().dead_lettered, two.counts().dead_lettered), (0, 0));
}

#[tokio::test]
async fn prefetched_messages_are_this_source_s_until_they_are_released() {
    let (_, queue) = queue();
    publish(&queue, 10);
    let (greedy, other) = (queue.source().with_prefetch(4), queue.source());
    let first = receive(&greedy).await;
    let counts = queue.counts();
    assert_eq!((counts.in_flight, counts.pending, counts.delivered), (4, 6, 1));
    assert_eq!(receive(&other).await.message.id(), "m-5");
    greedy.release().await.unwrap();
    assert_eq!(ids(&queue.pending())[..3], ["m-2", "m-3", "m-4"]);
    assert_eq!(receive(&other).await.message.id(), "m-2");
    greedy.ack(first.receipt).await.unwrap();
    assert_eq!(receive(&greedy).await.message.id(), "m-3", "it pulls again");
}

#[tokio::test]
async fn what_was_prefetched_is_not_delivered_once_it_is_no_longer_held() {
    let (clock, queue) = queue_with(QueueOptions::new().with_lease(10 * SECOND));
    publish(&queue, 3);
    let source = queue.source().with_prefetch(3);
    let first = receive(&source).await;
    clock.advance(10 * SECOND).await;
    let again = receive(&source).await;
    assert_eq!((again.message.id(), again.message.delivery_count()), ("m-1", Some(2)));
    assert!(source.ack(first.receipt).await.is_err());
    for _ in 0..2 {
        let delivery = receive(&source).await;
        source.ack(delivery.receipt).await.unwrap();
    }
    source.ack(again.receipt).await.unwrap();
    assert_eq!((queue.counts().acked, queue.counts().in_flight, queue.counts().pending), (3, 0, 0));
}

#[tokio::test]
async fn dead_letters_are_kept_with_their_cause_and_can_be_consumed() {
    let clock = ControlledClock::new();
    let broker = MemoryBroker::new(clock.clone());
    let queue = broker.queue("orders");
    queue.publish(Message::new("body").with_id("m-1").with_header("shard", 3_i32));
    let source = queue.source();
    let delivery = receive(&source).await;
    let cause = Cause::new("terminal").with_detail("declined");
    source.nack(delivery.receipt, NackReason::dead_letter(cause.clone())).await.unwrap();
    let (message, letter) = queue.dead_lettered().remove(0);
    assert_eq!((&letter.cause, letter.queue.as_str(), letter.at), (&cause, "orders", clock.wall()));
    assert_eq!(message.headers().get("shard"), Some(&HeaderValue::I32(3)));
    let dead = broker.queue("orders.dlq");
    assert_eq!((dead.name(), queue.dead_letter_queue().name()), ("orders.dlq", "orders.dlq"));
    assert_eq!((dead.counts().pending, queue.counts().dead_lettered), (1, 1));
    let again = receive(&dead.source()).await;
    assert_eq!((again.message.id(), again.message.body().as_ref()), ("m-1", &b"body"[..]));
    assert_eq!(DeadLetter::of(&again.message).unwrap().cause, cause);
}

#[tokio::test]
async fn the_dead_letters_of_a_source_of_its_own_are_seen() {
    let source = MemorySource::new(ControlledClock::new());
    publish(source.queue(), 1);
    let delivery = receive(&source).await;
    source.nack(delivery.receipt, NackReason::dead_letter("x")).await.unwrap();
    assert_eq!((source.queue().counts().dead_lettered, source.queue().dead_lettered().len()), (1, 1));
}

#[tokio::test]
async fn publishing_to_a_queue_that_nobody_made_is_unroutable() {
    let broker = MemoryBroker::new(ControlledClock::new());
    let publisher = broker.publisher();
    let error = publisher.publish("nowhere", Message::new("x")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unroutable);
    assert!(error.to_string().contains("nowhere"), "{error}");
    let queue = broker.queue("somewhere");
    publisher.publish("somewhere", Message::new("x").with_attempt(7)).await.unwrap();
    assert_eq!((queue.counts().published, queue.pending()[0].attempt()), (1, 1), "attempts start anew");
}

#[tokio::test]
async fn each_fault_point_fails_once_for_each_entry_of_the_script() {
    let clock = ControlledClock::new();
    let broker = MemoryBroker::new(clock);
    let queue = broker.declare("work", QueueOptions::new().with_lease(30 * SECOND));
    let (source, publisher, never) = (queue.source(), broker.publisher(), CancellationToken::new());
    for point in [
        FaultPoint::Receive,
        FaultPoint::Ack,
        FaultPoint::Nack,
        FaultPoint::Publish,
        FaultPoint::Extend,
        FaultPoint::Release,
        FaultPoint::Close,
    ] {
        queue.fail_next(point, scripted("first"));
        queue.fail_next(point, scripted("second"));
    }
    for text in ["first", "second"] {
        let failed = publisher.publish("work", Message::new("x")).await.unwrap_err();
        assert!(failed.to_string().contains(text));
        assert!(source.receive(&never).await.unwrap_err().to_string().contains(text));
        assert!(source.release().await.unwrap_err().to_string().contains(text));
    }
    assert_eq!(queue.counts().published, 0);
    publisher.publish("work", Message::new("x").with_id("m-1")).await.unwrap();
    for text in ["first", "second"] {
        let delivery = receive(&source).await;
        assert!(source.extend(&delivery.receipt).await.unwrap_err().to_string().contains(text));
        assert!(source.ack(delivery.receipt).await.unwrap_err().to_string().contains(text));
        let delivery = receive(&source).await;
        let nacked = source.nack(delivery.receipt, NackReason::dead_letter("x")).await;
        assert!(nacked.unwrap_err().to_string().contains(text));
    }
    assert_eq!(ids(&queue.pending()), ["m-1"]);
    let delivery = receive(&source).await;
    assert_eq!(delivery.message.attempt(), 1);
    source.ack(delivery.receipt).await.unwrap();
    assert!(source.close().await.is_err());
    assert!(!source.health().is_ready(), "closed all the same");
}

#[tokio::test]
async fn publishing_by_hand_is_not_for_the_script() {
    let (_, queue) = queue();
    queue.fail_next(FaultPoint::Publish, scripted("no"));
    publish(&queue, 1);
    assert_eq!(queue.counts().pending, 1);
}

#[tokio::test]
async fn the_history_is_bounded_and_the_counts_are_exact() {
    let (_, queue) = queue_with(QueueOptions::new().with_history(3));
    publish(&queue, 10);
    let source = queue.source();
    for number in 0..10 {
        let delivery = receive(&source).await;
        if number % 2 == 0 {
            source.ack(delivery.receipt).await.unwrap();
        } else {
            source.nack(delivery.receipt, NackReason::retry_after(SECOND, "x")).await.unwrap();
        }
    }
    assert_eq!(ids(&queue.acked()), ["m-5", "m-7", "m-9"]);
    assert_eq!(
        queue.nacked().iter().map(|(message, _)| message.id()).collect::<Vec<_>>(),
        ["m-6", "m-8", "m-10"]
    );
    assert_eq!((queue.counts().acked, queue.counts().nacked), (5, 5));
    let (_, none) = queue_with(QueueOptions::new().with_history(0));
    publish(&none, 1);
    let source = none.source();
    let delivery = receive(&source).await;
    source.ack(delivery.receipt).await.unwrap();
    assert_eq!((none.acked().len(), none.counts().acked), (0, 1));
}

#[tokio::test]
async fn a_queue_that_is_there_stays_as_it_is() {
    let broker = MemoryBroker::new(ControlledClock::new());
    let first = broker.declare("work", QueueOptions::new().with_lease(SECOND));
    publish(&first, 1);
    let second = broker.declare("work", QueueOptions::new());
    assert_eq!((second.counts().pending, second.source().capabilities().lease), (1, Some(SECOND)));
}

#[tokio::test]
async fn a_condition_that_never_holds_fails_and_says_how_the_queue_stands() {
    let (_, queue) = queue();
    publish(&queue, 2);
    let error = queue.until_within(ms(20), |queue| queue.counts().acked == 2).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    let text = error.to_string();
    assert!(text.contains("pending: 2") && text.contains("acked: 0") && text.contains("20ms"), "{text}");
}

#[tokio::test]
async fn a_condition_is_looked_at_again_when_time_brings_a_message_back() {
    let (clock, queue) = queue_with(QueueOptions::new().with_lease(SECOND));
    publish(&queue, 1);
    let source = queue.source();
    let _held = receive(&source).await;
    let waiting = tokio::spawn({
        let queue = queue.clone();
        async move { queue.until(|queue| queue.counts().pending == 1).await }
    });
    clock.advance(SECOND).await;
    prompt(waiting).await.unwrap().unwrap();
    assert_eq!(clock.sleepers(), 0);
}

/// "At each change of the queue": the number of dead letters is part of how it stands.
#[tokio::test]
async fn a_condition_on_dead_letters_is_looked_at_again_when_they_are_taken() {
    let (_, queue) = queue();
    publish(&queue, 1);
    let source = queue.source();
    let delivery = receive(&source).await;
    source.nack(delivery.receipt, NackReason::dead_letter("x")).await.unwrap();
    let waiting = tokio::spawn({
        let queue = queue.clone();
        async move { queue.until_within(SECOND, |queue| queue.counts().dead_lettered == 0).await }
    });
    tokio::task::yield_now().await;
    let dead = queue.dead_letter_queue().source();
    let letter = receive(&dead).await;
    dead.ack(letter.receipt).await.unwrap();
    waiting.await.unwrap().unwrap();
}

#[tokio::test]
async fn the_broker_works_on_the_system_clock_too() {
    let source = MemorySource::new(SystemClock).with_idle(ms(5));
    assert!(source.receive(&CancellationToken::new()).await.unwrap().is_none());
    publish(source.queue(), 1);
    let delivery = receive(&source).await;
    source.nack(delivery.receipt, NackReason::retry_after(ms(5), "x")).await.unwrap();
    source.queue().until(|queue| queue.counts().pending == 1).await.unwrap();
    assert!(SystemClock.wall() > std::time::SystemTime::UNIX_EPOCH);
}
