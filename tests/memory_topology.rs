//! A topology on the broker in memory; and the limits of queues.

#![cfg(feature = "topology")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::num::NonZeroUsize;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use windlass::clock::ControlledClock;
use windlass::memory::{MemoryBroker, MemoryReceipt, MemorySource, Overflow, QueueOptions};
use windlass::message::Message;
use windlass::queue::Slot;
use windlass::source::{Delivery, MessageSource, NackReason, RequeueOrder};
use windlass::topology::{self, Broadcast, Retention, Stage, StageType, Topology};
use windlass::{ErrorKind, Publisher};

use support::{SECOND, ids, prompt, publish};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn broker() -> (ControlledClock, MemoryBroker) {
    let clock = ControlledClock::new();
    (clock.clone(), MemoryBroker::new(clock))
}

async fn receive(source: &MemorySource) -> Delivery<MemoryReceipt> {
    prompt(source.receive(&CancellationToken::new())).await.unwrap().expect("a message")
}

async fn dead_letter(broker: &MemoryBroker, queue: &str, id: &str) {
    broker.publisher().publish(queue, Message::new("x").with_id(id)).await.unwrap();
    let source = broker.source(queue).unwrap();
    let delivery = receive(&source).await;
    source.nack(delivery.receipt, NackReason::dead_letter("x")).await.unwrap();
}

fn chat() -> Topology {
    Topology::default()
        .with_user("node")
        .with_broadcast(Broadcast::new("chat.all"))
        .with_stage(Stage::new("writer").with_delivery_limit(50))
        .with_stage(Stage::new("manager").with_queue_type(StageType::Classic))
        .with_stage(Stage::per_slot("transport").with_dead_letters(true))
}

#[tokio::test]
async fn stages_dead_letters_and_the_exchange_are_made_and_slots_are_not() {
    let (_, broker) = broker();
    broker.apply(&chat()).unwrap();
    for queue in ["writer", "writer.dlq", "manager", "manager.dlq", "transport.dlq"] {
        assert!(broker.queue_exists(queue), "{queue}");
    }
    for queue in ["transport", "transport_1", "chat.all"] {
        assert!(!broker.queue_exists(queue), "{queue}");
    }
    broker.claim("transport", Slot::Number(1)).unwrap();
    broker.subscribe("chat.all").unwrap();
    let order = |queue: &str| broker.source(queue).unwrap().capabilities().requeue_order;
    assert_eq!((order("writer"), order("manager")), (RequeueOrder::Unknown, RequeueOrder::Front));
}

#[tokio::test]
async fn applied_again_it_leaves_what_is_there_and_applies_the_retention() {
    let (clock, broker) = broker();
    broker.apply(&chat().with_retention(Retention::new(3, 20))).unwrap();
    publish(&broker.queue("writer"), 2);
    for number in 1..=25 {
        dead_letter(&broker, "manager", &format!("m-{number}")).await;
    }
    let letters = broker.queue("manager.dlq");
    assert_eq!((letters.counts().pending, letters.counts().dropped), (20, 5));
    assert_eq!(letters.pending()[0].id(), "m-6", "the oldest go first");

    broker.apply(&chat().with_retention(Retention::new(4, 10)).with_stage(Stage::new("new"))).unwrap();
    assert_eq!((broker.queue("writer").counts().pending, letters.counts().pending), (2, 10));
    assert!(broker.queue_exists("new") && broker.queue_exists("new.dlq"));
    clock.advance(3 * DAY + SECOND).await;
    assert_eq!(letters.counts().pending, 10, "it is four days now");
    clock.advance(DAY).await;
    assert_eq!((letters.counts().pending, letters.counts().dropped), (0, 25));
}

#[tokio::test]
async fn dead_letters_go_when_they_are_too_old_each_in_its_time() {
    let (clock, broker) = broker();
    broker.apply(&chat()).unwrap();
    let letters = broker.queue("writer.dlq");
    dead_letter(&broker, "writer", "m-1").await;
    clock.advance(DAY).await;
    dead_letter(&broker, "writer", "m-2").await;
    dead_letter(&broker, "writer", "m-3").await;
    let source = broker.source("writer.dlq").unwrap();
    let held = receive(&source).await;
    clock.advance(2 * DAY - SECOND).await;
    assert_eq!((letters.counts().pending, letters.counts().in_flight), (2, 1));
    // One in hand is no prey; once it is back it is.
    clock.advance(2 * SECOND).await;
    assert_eq!((letters.counts().pending, letters.counts().in_flight), (2, 1));
    source.nack(held.receipt, NackReason::requeue_now("looked at")).await.unwrap();
    assert_eq!(ids(&letters.pending()), ["m-2", "m-3"]);
    // One that was taken out for good is forgotten, one that waits for a delay is not.
    let (second, third) = (receive(&source).await, receive(&source).await);
    source.ack(second.receipt).await.unwrap();
    source.nack(third.receipt, NackReason::retry_after(9 * DAY, "later")).await.unwrap();
    let waits = tokio::spawn({
        let letters = letters.clone();
        async move { letters.until(|letters| letters.counts().delayed == 0).await }
    });
    clock.settle().await;
    clock.advance(DAY).await;
    prompt(waits).await.unwrap().unwrap();
    assert_eq!((letters.counts().acked, letters.counts().dropped), (1, 2));
}

#[tokio::test]
async fn what_is_too_old_leaves_room_in_a_queue_that_refuses() {
    let (clock, broker) = broker();
    let one = NonZeroUsize::new(1).unwrap();
    let queue = broker.declare("small", QueueOptions::new().with_max_messages(one).with_max_age(SECOND));
    let publisher = broker.publisher();
    publisher.publish("small", Message::new("x").with_id("m-1")).await.unwrap();
    let full = publisher.publish("small", Message::new("x")).await.unwrap_err();
    assert_eq!(full.kind(), ErrorKind::Refused);
    clock.advance(2 * SECOND).await;
    publisher.publish("small", Message::new("x").with_id("m-2")).await.unwrap();
    assert_eq!(ids(&queue.pending()), ["m-2"]);
}

/// As the one above, where it is a dead letter that comes.
#[tokio::test]
async fn what_is_too_old_leaves_room_for_a_dead_letter() {
    let (clock, broker) = broker();
    let one = NonZeroUsize::new(1).unwrap();
    let letters = broker.declare("work.dlq", QueueOptions::new().with_max_messages(one).with_max_age(SECOND));
    broker.queue("work");
    letters.publish(Message::new("x").with_id("old"));
    clock.advance(2 * SECOND).await;
    dead_letter(&broker, "work", "m-1").await;
    assert_eq!(ids(&letters.pending()), ["m-1"]);
}

#[tokio::test]
async fn messages_that_are_the_same_are_each_as_old_as_they_are() {
    let (clock, broker) = broker();
    let queue = broker.declare("short", QueueOptions::new().with_max_age(10 * SECOND));
    let message = Message::new("x").with_id("m-1");
    queue.publish(message.clone());
    clock.advance(5 * SECOND).await;
    queue.publish(message);
    let source = queue.source();
    let first = receive(&source).await;
    source.ack(first.receipt).await.unwrap();
    clock.advance(6 * SECOND).await;
    assert_eq!(queue.counts().pending, 1, "it was the older one that was acked");
    clock.advance(5 * SECOND).await;
    assert_eq!((queue.counts().pending, queue.counts().dropped), (0, 1));
}

#[tokio::test]
async fn a_full_stage_refuses_and_has_room_again() {
    let (_, broker) = broker();
    broker.apply(&Topology::default().with_stage(Stage::new("writer").with_max_length(2))).unwrap();
    let publisher = broker.publisher();
    for _ in 0..2 {
        publisher.publish("writer", Message::new("x")).await.unwrap();
    }
    let error = publisher.publish("writer", Message::new("x")).await.unwrap_err();
    assert_eq!((error.kind(), error.is_transient()), (ErrorKind::Refused, true));
    assert!(error.to_string().contains("full") && error.to_string().contains("writer"), "{error}");
    let source = broker.source("writer").unwrap();
    let held = receive(&source).await;
    publisher.publish("writer", Message::new("x")).await.unwrap();
    // What comes back has a place whatever the limit: it was confirmed.
    source.nack(held.receipt, NackReason::requeue_now("back")).await.unwrap();
    assert_eq!(broker.queue("writer").counts().pending, 3);
}

#[tokio::test]
async fn a_dead_letter_for_which_there_is_no_room_stays_where_it_is() {
    let (_, broker) = broker();
    broker.declare("work.dlq", QueueOptions::new().with_max_messages(NonZeroUsize::MIN));
    let queue = broker.queue("work");
    publish(&queue, 2);
    let source = queue.source();
    let (first, second) = (receive(&source).await, receive(&source).await);
    source.nack(first.receipt, NackReason::dead_letter("x")).await.unwrap();
    let error = source.nack(second.receipt, NackReason::dead_letter("x")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert_eq!((ids(&queue.pending()), queue.counts().dead_lettered), (vec!["m-2"], 1));
}

#[tokio::test]
async fn the_oldest_is_dropped_where_the_options_say_so() {
    let (_, broker) = broker();
    let options = QueueOptions::new()
        .with_max_messages(NonZeroUsize::new(3).unwrap())
        .with_overflow(Overflow::DropOldest);
    let queue = broker.declare("last", options);
    publish(&queue, 5);
    assert_eq!((ids(&queue.pending()), queue.counts().dropped), (vec!["m-3", "m-4", "m-5"], 2));
}

#[tokio::test]
async fn what_cannot_be_honoured_is_refused_by_its_field_and_nothing_is_made() {
    let (_, broker) = broker();
    let stages = [
        ("dead_letters", Stage::new("s").with_dead_letters(false)),
        ("dead_letter_to", Stage::new("s").with_dead_letter_to("writer")),
        ("message_ttl_ms", Stage::new("s").with_message_ttl(SECOND).with_wait_steps([])),
        ("expires_ms", Stage::new("s").with_expires(DAY)),
        ("overflow", Stage::new("s").with_max_length(1).with_overflow(topology::Overflow::DropHead)),
        ("max_priority", Stage::new("s").with_queue_type(StageType::Classic).with_max_priority(5)),
        ("single_active_consumer", Stage::new("s").with_single_active_consumer(true)),
        ("arguments", Stage::new("s").with_argument("x-queue-leader-locator", "balanced")),
        ("policy", Stage::new("s").with_policy("max-length", 5_i64)),
    ];
    for (field, stage) in stages {
        let error = broker.apply(&chat().with_stage(stage)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{field}: {error}");
        assert!(error.to_string().contains(&format!("stages[3].{field} (s)")), "{error}");
    }
    let error = broker.apply(&chat().with_stage(Stage::new(""))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(!broker.queue_exists("writer"));
}
