//! Slots on the broker in memory: queues of a claimant's own, and what becomes of them; and queues that are deleted.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::num::NonZeroU32;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use windlass::clock::ControlledClock;
use windlass::consumer::RetryPolicy;
use windlass::memory::{MemoryBroker, MemoryReceipt, MemorySource, QueueOptions};
use windlass::message::Message;
use windlass::queue::{DeleteQueue, Slot};
use windlass::source::{DeadLetter, Delivery, Health, MessageSource, NackReason};
use windlass::{Context, ErrorKind, HandlerError, Publisher, QueueConsumer};

use support::{SECOND, ids, ms, prompt, publish, stop_on};

/// Whatever is in it, and whoever consumes it.
const ALL: DeleteQueue = DeleteQueue::new().if_empty(false).if_unused(false);

const FAMILY: &str = "websockets-transport";

fn broker() -> (ControlledClock, MemoryBroker) {
    let clock = ControlledClock::new();
    (clock.clone(), MemoryBroker::new(clock))
}

fn first_free(most: u32) -> Slot {
    Slot::FirstFree { most: NonZeroU32::new(most).unwrap() }
}

async fn receive(source: &MemorySource) -> windlass::Result<Delivery<MemoryReceipt>> {
    prompt(source.receive(&CancellationToken::new())).await.map(|delivery| delivery.expect("a message"))
}

async fn send(broker: &MemoryBroker, queue: &str, id: &str) -> windlass::Result<()> {
    broker.publisher().publish(queue, Message::new("x").with_id(id)).await
}

#[tokio::test]
async fn a_slot_is_its_claimants_alone() {
    let (_, broker) = broker();
    let source = broker.claim(FAMILY, Slot::Number(7)).unwrap();
    assert_eq!((source.slot(), source.queue_name()), (Some(7), "websockets-transport_7"));
    assert!(source.health().is_ready());
    assert!(broker.queue_exists("websockets-transport_7"));

    let taken = broker.claim(FAMILY, Slot::Number(7)).unwrap_err();
    assert_eq!(taken.kind(), ErrorKind::Taken);
    assert_eq!(taken.to_string(), "claim: taken by somebody else: slot 7 (family websockets-transport)");
    assert_eq!(broker.source("websockets-transport_7").unwrap_err().kind(), ErrorKind::Taken);
    assert_eq!(broker.delete_queue("websockets-transport_7", ALL).unwrap_err().kind(), ErrorKind::Taken);

    // A handle is for looking; a source by it gets nothing, and closing it frees nothing.
    send(&broker, "websockets-transport_7", "m-1").await.unwrap();
    let other = broker.queue("websockets-transport_7").source();
    assert!(matches!(other.health(), Health::NotReady { .. }));
    assert_eq!(receive(&other).await.unwrap_err().kind(), ErrorKind::Taken);
    assert_eq!(other.slot(), None);
    other.close().await.unwrap();
    drop(other);
    let delivery = receive(&source).await.unwrap();
    assert_eq!(delivery.message.id(), "m-1");
    source.ack(delivery.receipt).await.unwrap();
}

#[tokio::test]
async fn the_first_free_slot_is_the_lowest_that_nobody_has() {
    let (_, broker) = broker();
    let mut held: Vec<MemorySource> = (0..3).map(|_| broker.claim(FAMILY, first_free(3)).unwrap()).collect();
    let slots = |held: &[MemorySource]| held.iter().map(|source| source.slot().unwrap()).collect::<Vec<_>>();
    assert_eq!(slots(&held), [1, 2, 3]);
    let error = broker.claim(FAMILY, first_free(3)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Taken);
    assert!(error.to_string().contains("all slots from 1 to 3"), "{error}");
    drop(held.remove(1));
    held.push(broker.claim(FAMILY, first_free(3)).unwrap());
    assert_eq!(slots(&held), [1, 3, 2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_claimants_at_once_get_slots_of_their_own() {
    let (_, broker) = broker();
    let begin = Arc::new(tokio::sync::Barrier::new(50));
    let claims = (0..50).map(|_| {
        let (broker, begin) = (broker.clone(), Arc::clone(&begin));
        tokio::spawn(async move {
            begin.wait().await;
            broker.claim(FAMILY, first_free(40))
        })
    });
    let mut held = Vec::new();
    let mut taken = 0;
    for claim in claims.collect::<Vec<_>>() {
        match claim.await.unwrap() {
            Ok(source) => held.push(source),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Taken);
                taken += 1;
            }
        }
    }
    let mut slots: Vec<u32> = held.iter().map(|source| source.slot().unwrap()).collect();
    slots.sort_unstable();
    assert_eq!((slots, taken), ((1..=40).collect(), 10));
}

#[tokio::test]
async fn closing_or_dropping_frees_the_slot_and_its_messages_go() {
    for close in [true, false] {
        let (_, broker) = broker();
        let source = broker.claim(FAMILY, Slot::Number(1)).unwrap();
        let look = broker.queue("websockets-transport_1");
        publish(&look, 3);
        let held = receive(&source).await.unwrap();
        if close {
            source.close().await.unwrap();
            source.close().await.unwrap();
            assert_eq!(source.ack(held.receipt).await.unwrap_err().kind(), ErrorKind::Stale);
            assert_eq!(receive(&source).await.unwrap_err().kind(), ErrorKind::Closed);
            assert_eq!(source.health(), Health::Closed);
        } else {
            drop(source);
        }
        assert!(!broker.queue_exists("websockets-transport_1"));
        assert_eq!((look.counts().pending, look.counts().in_flight, look.counts().dropped), (0, 0, 3));
        assert_eq!(
            send(&broker, "websockets-transport_1", "m-4").await.unwrap_err().kind(),
            ErrorKind::Unroutable
        );
        let again = broker.claim(FAMILY, Slot::Number(1)).unwrap();
        assert_eq!(again.queue().counts().pending, 0, "the next one begins with nothing");
        send(&broker, "websockets-transport_1", "m-5").await.unwrap();
        assert_eq!(receive(&again).await.unwrap().message.id(), "m-5");
    }
}

#[tokio::test]
async fn the_slot_lives_as_long_as_the_last_source_made_of_it() {
    let (_, broker) = broker();
    let source = broker.claim(FAMILY, Slot::Number(1)).unwrap().with_prefetch(4).with_idle(SECOND);
    assert_eq!(source.slot(), Some(1));
    let clone = source.clone();
    drop(source);
    send(&broker, "websockets-transport_1", "m-1").await.unwrap();
    assert_eq!(receive(&clone).await.unwrap().message.id(), "m-1");
    drop(clone);
    assert!(!broker.queue_exists("websockets-transport_1"));
}

#[tokio::test]
async fn closing_one_of_several_sources_leaves_the_slot_to_the_others() {
    let (_, broker) = broker();
    let source = broker.claim(FAMILY, Slot::Number(1)).unwrap();
    let other = source.clone().with_idle(SECOND);
    other.close().await.unwrap();
    send(&broker, "websockets-transport_1", "m-1").await.unwrap();
    assert_eq!(receive(&source).await.unwrap().message.id(), "m-1");
    assert_eq!((source.slot(), other.slot()), (Some(1), Some(1)));
    source.close().await.unwrap();
    assert!(!broker.queue_exists("websockets-transport_1"));
}

#[tokio::test]
async fn a_cut_ends_what_is_in_the_slot_and_the_claimant_keeps_it() {
    let (clock, broker) = broker();
    let source = broker.claim(FAMILY, Slot::Number(1)).unwrap();
    publish(source.queue(), 3);
    let (first, second) = (receive(&source).await.unwrap(), receive(&source).await.unwrap());
    source.nack(second.receipt, NackReason::retry_after(SECOND, "later")).await.unwrap();
    source.queue().cut();
    assert_eq!(source.ack(first.receipt).await.unwrap_err().kind(), ErrorKind::Stale);
    assert_eq!((source.queue().counts().pending, source.queue().counts().dropped), (0, 3));
    assert_eq!(broker.claim(FAMILY, Slot::Number(1)).unwrap_err().kind(), ErrorKind::Taken);
    send(&broker, "websockets-transport_1", "m-4").await.unwrap();
    assert_eq!(receive(&source).await.unwrap().message.id(), "m-4");
    clock.advance(SECOND).await;
    assert_eq!(source.queue().counts().delivered, 3, "what waited for a delay is gone too");
}

#[tokio::test]
async fn dead_letters_of_all_slots_go_to_the_familys_queue_and_stay() {
    let (clock, broker) = broker();
    for n in [1, 2] {
        let source = broker.claim(FAMILY, Slot::Number(n)).unwrap();
        let queue = source.queue().clone();
        queue.publish(Message::new("[]").with_id(format!("m-{n}")));
        let consumer = QueueConsumer::with_decoder(
            source,
            |message: &Message| Ok::<_, HandlerError>(message.body().clone()),
            async |_: bytes::Bytes, _: Context| Err::<(), _>(HandlerError::terminal("broken")),
        )
        .clock(clock.clone())
        .retry_policy(RetryPolicy::never())
        .start()
        .unwrap();
        queue.until(|queue| queue.counts().nacked == 1).await.unwrap();
        let (report, _) = stop_on(&clock, &consumer).await;
        assert!(report.is_clean());
        assert!(!broker.queue_exists(&format!("websockets-transport_{n}")), "a drain gives the slot up");
    }
    let letters = broker.queue("websockets-transport.dlq").pending();
    assert_eq!(ids(&letters), ["m-1", "m-2"]);
    let from: Vec<String> = letters.iter().map(|each| DeadLetter::of(each).unwrap().queue).collect();
    assert_eq!(from, ["websockets-transport_1", "websockets-transport_2"]);
}

#[tokio::test]
async fn what_cannot_be_a_slot_is_refused() {
    let (_, broker) = broker();
    broker.queue("work_1");
    let error = broker.claim("work", Slot::Number(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.to_string().contains("work_1"), "{error}");
    for family in ["", &"x".repeat(236)] {
        let error = broker.claim(family, Slot::Number(10)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
}

#[tokio::test]
async fn a_source_on_a_queue_that_nobody_made_is_not_found() {
    let (_, broker) = broker();
    let error = broker.source("orders").unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string()),
        (ErrorKind::NotFound, "open: not found (queue orders)".into())
    );
    assert!(!broker.queue_exists("orders"), "asking makes none");
    broker.queue("orders");
    broker.source("orders").unwrap();
}

#[tokio::test]
async fn a_deleted_queue_is_told_to_those_who_wait_and_comes_back_when_it_is_made_again() {
    let (_, broker) = broker();
    let queue = broker.queue("orders");
    let source = queue.source();
    publish(&queue, 4);
    let held = receive(&source).await.unwrap();
    let retried = receive(&source).await.unwrap();
    source.nack(retried.receipt, NackReason::retry_after(SECOND, "later")).await.unwrap();
    assert_eq!(broker.delete_queue("orders", ALL).unwrap(), Some(4), "waiting, delayed and in hand");
    assert_eq!(broker.delete_queue("orders", ALL).unwrap(), None);
    assert_eq!((broker.queue_exists("orders"), queue.counts().dropped), (false, 4));
    assert_eq!(source.ack(held.receipt).await.unwrap_err().kind(), ErrorKind::Stale);
    assert_eq!(receive(&source).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert!(matches!(source.health(), Health::NotReady { .. }));
    assert_eq!(send(&broker, "orders", "m-5").await.unwrap_err().kind(), ErrorKind::Unroutable);

    broker.queue("orders");
    assert!(source.health().is_ready());
    send(&broker, "orders", "m-6").await.unwrap();
    let waits = tokio::spawn({
        let source = source.clone();
        async move {
            let first = receive(&source).await.unwrap();
            source.ack(first.receipt).await.unwrap();
            (first.message.id().to_owned(), receive(&source).await.map(|_| ()))
        }
    });
    queue.until(|queue| queue.counts().acked == 1).await.unwrap();
    assert_eq!(broker.delete_queue("orders", ALL).unwrap(), Some(0));
    let (id, told) = prompt(waits).await.unwrap();
    assert_eq!((id.as_str(), told.unwrap_err().kind()), ("m-6", ErrorKind::NotFound));
}

#[tokio::test]
async fn a_queue_in_use_or_with_messages_is_deleted_only_on_demand() {
    let (_, broker) = broker();
    let queue = broker.queue("orders");
    publish(&queue, 2);
    let source = queue.source();
    let delete = |options| broker.delete_queue("orders", options);
    for (options, text) in [
        (DeleteQueue::new(), "2 messages"),
        (DeleteQueue::new().if_empty(false), "1 consumers"),
        (DeleteQueue::new().if_unused(false), "2 messages"),
    ] {
        let error = delete(options).unwrap_err();
        assert_eq!((error.kind(), error.is_transient()), (ErrorKind::Refused, false));
        assert!(error.to_string().contains(text), "{error}");
    }
    for clone in [source.clone(), source] {
        clone.close().await.unwrap();
        drop(clone);
    }
    assert_eq!(delete(DeleteQueue::new().if_empty(false)).unwrap(), Some(2));
    broker.queue("orders");
    assert_eq!(delete(DeleteQueue::new()).unwrap(), Some(0));
}

#[tokio::test]
async fn a_queue_that_is_made_again_otherwise_is_another_one() {
    let (_, broker) = broker();
    let old = broker.queue("orders");
    broker.delete_queue("orders", ALL).unwrap();
    let new = broker.declare("orders", QueueOptions::new().with_lease(ms(100)));
    send(&broker, "orders", "m-1").await.unwrap();
    assert_eq!((old.counts().pending, new.counts().pending), (0, 1));
    assert_eq!(receive(&old.source()).await.unwrap_err().kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn a_consumer_goes_on_once_its_queue_is_there_again() {
    let (clock, broker) = broker();
    let queue = broker.queue("orders");
    let consumer = QueueConsumer::with_decoder(
        queue.source(),
        |message: &Message| Ok::<_, HandlerError>(message.body().clone()),
        async |_: bytes::Bytes, _: Context| Ok::<_, HandlerError>(()),
    )
    .clock(clock.clone())
    .start()
    .unwrap();
    send(&broker, "orders", "m-1").await.unwrap();
    queue.until(|queue| queue.counts().acked == 1).await.unwrap();
    broker.delete_queue("orders", ALL).unwrap();
    clock.advance(SECOND).await;
    broker.queue("orders");
    send(&broker, "orders", "m-2").await.unwrap();
    clock.advance(60 * SECOND).await;
    queue.until(|queue| queue.counts().acked == 2).await.unwrap();
    let (report, _) = stop_on(&clock, &consumer).await;
    assert!(report.is_clean());
}

#[tokio::test]
async fn a_dead_letter_never_goes_into_a_queue_that_was_deleted() {
    let (_, broker) = broker();
    let queue = broker.queue("orders");
    let source = queue.source();
    for id in ["m-1", "m-2"] {
        send(&broker, "orders", id).await.unwrap();
        let delivery = receive(&source).await.unwrap();
        source.nack(delivery.receipt, NackReason::dead_letter("x")).await.unwrap();
        assert_eq!(broker.delete_queue("orders.dlq", ALL).unwrap(), Some(1));
    }
    send(&broker, "orders", "m-3").await.unwrap();
    let delivery = receive(&source).await.unwrap();
    source.nack(delivery.receipt, NackReason::dead_letter("x")).await.unwrap();
    assert_eq!(ids(&broker.queue("orders.dlq").pending()), ["m-3"]);
}
