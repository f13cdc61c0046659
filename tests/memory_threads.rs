//! The broker in memory, used by several threads: whichever of them receives and acks, the queue looks the same.
//!
//! Each thread works by a part of the queue of its own, so each step here is done by a new one.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use futures::FutureExt;
use tokio_util::sync::CancellationToken;
use windlass::memory::{FaultPoint, MemoryQueue, MemoryReceipt, MemorySource, QueueCounts, QueueOptions};
use windlass::source::{Delivery, MessageSource, NackReason};
use windlass::{Error, ErrorKind, Result};

use support::{SECOND, ids, publish, queue, queue_with};

/// Does `step` on a thread of its own, and waits for it.
fn apart<R: Send>(step: impl FnOnce() -> R + Send) -> R {
    thread::scope(|scope| scope.spawn(step).join().unwrap())
}

/// Receives what is there already.
fn receive(source: &MemorySource) -> Delivery<MemoryReceipt> {
    let received = source.receive(&CancellationToken::new()).now_or_never();
    received.expect("a message is there").unwrap().unwrap()
}

fn receive_apart(source: &MemorySource, count: usize) -> Vec<Delivery<MemoryReceipt>> {
    (0..count).map(|_| apart(|| receive(source))).collect()
}

fn ack_apart(source: &MemorySource, receipt: MemoryReceipt) -> Result<()> {
    apart(|| source.ack(receipt).now_or_never()).expect("an ack does not wait")
}

fn nack(source: &MemorySource, receipt: MemoryReceipt, reason: NackReason) {
    source.nack(receipt, reason).now_or_never().expect("a nack does not wait").unwrap();
}

fn received(deliveries: &[Delivery<MemoryReceipt>]) -> Vec<&str> {
    deliveries.iter().map(|delivery| delivery.message.id()).collect()
}

#[test]
fn messages_come_in_order_to_whichever_thread_asks() {
    let (_, queue) = queue();
    publish(&queue, 20);
    let source = queue.source();
    let deliveries = receive_apart(&source, 20);
    let expected: Vec<String> = (1..=20).map(|number| format!("m-{number}")).collect();
    assert_eq!(received(&deliveries), expected);
    assert_eq!(ids(&queue.in_flight()), expected);
    assert_eq!(queue.counts().in_flight, 20);
}

#[test]
fn the_history_is_in_the_order_of_the_acks_and_not_of_the_threads() {
    let (_, queue) = queue();
    publish(&queue, 20);
    let source = queue.source();
    let mut deliveries = receive_apart(&source, 20);
    deliveries.reverse();
    let expected: Vec<String> = (1..=20).rev().map(|number| format!("m-{number}")).collect();
    for delivery in deliveries {
        ack_apart(&source, delivery.receipt).unwrap();
    }
    assert_eq!(ids(&queue.acked()), expected);
    assert_eq!(queue.counts().in_flight, 0);
}

#[test]
fn the_history_keeps_the_last_acks_of_all_threads_together() {
    let (_, queue) = queue_with(QueueOptions::new().with_history(3));
    publish(&queue, 30);
    let source = queue.source();
    let mut deliveries = receive_apart(&source, 20);
    deliveries.extend((0..10).map(|_| receive(&source)));
    for (index, delivery) in deliveries.into_iter().enumerate() {
        ack_apart(&source, delivery.receipt).unwrap();
        let first = (index + 1).saturating_sub(2).max(1);
        let expected: Vec<String> = (first..=index + 1).map(|number| format!("m-{number}")).collect();
        assert_eq!(ids(&queue.acked()), expected);
    }
    assert_eq!((queue.counts().acked, queue.counts().delivered), (30, 30));
}

#[test]
fn what_many_threads_hold_comes_back_in_the_order_of_delivery() {
    let (_, queue) = queue();
    publish(&queue, 20);
    let source = queue.source();
    let deliveries = receive_apart(&source, 20);
    queue.cut();
    let expected: Vec<String> = (1..=20).map(|number| format!("m-{number}")).collect();
    assert_eq!(ids(&queue.pending()), expected);
    for delivery in deliveries {
        let error = ack_apart(&source, delivery.receipt).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Stale);
    }
    let QueueCounts { in_flight, returned, acked, .. } = queue.counts();
    assert_eq!((in_flight, returned, acked), (0, 20, 0));
}

#[test]
fn closing_a_source_takes_back_what_any_thread_has_from_it_and_no_more() {
    let (_, queue) = queue();
    publish(&queue, 20);
    let (one, other) = (queue.source(), queue.source());
    let mut held = Vec::new();
    for _ in 0..10 {
        drop(receive_apart(&one, 1));
        held.extend(receive_apart(&other, 1));
    }
    one.close().now_or_never().expect("it does not wait").unwrap();
    let odd: Vec<String> = (1..=20).step_by(2).map(|number| format!("m-{number}")).collect();
    assert_eq!(ids(&queue.pending()), odd);
    let closed = apart(|| one.receive(&CancellationToken::new()).now_or_never());
    assert_eq!(closed.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    held.into_iter().for_each(|delivery| ack_apart(&other, delivery.receipt).unwrap());
    assert_eq!(queue.counts().acked, 10);
}

#[tokio::test]
async fn a_lease_ends_for_whichever_thread_received() {
    let (clock, queue) = queue_with(QueueOptions::new().with_lease(SECOND));
    publish(&queue, 10);
    let source = queue.source();
    let deliveries = receive_apart(&source, 10);
    clock.advance(SECOND).await;
    for delivery in deliveries {
        assert_eq!(ack_apart(&source, delivery.receipt).unwrap_err().kind(), ErrorKind::Stale);
    }
    let expected: Vec<String> = (1..=10).map(|number| format!("m-{number}")).collect();
    assert_eq!(ids(&queue.pending()), expected);
}

#[test]
fn a_scripted_fault_meets_the_next_of_its_kind_on_any_thread_and_only_that() {
    let (_, queue) = queue();
    publish(&queue, 12);
    let source = queue.source();
    let mut deliveries = receive_apart(&source, 10).into_iter();
    queue.fail_next(FaultPoint::Ack, Error::new(ErrorKind::Other, "script"));
    queue.fail_next(FaultPoint::Receive, Error::new(ErrorKind::Disconnected, "script"));
    let mut ack_next =
        || ack_apart(&source, deliveries.next().unwrap().receipt).map_err(|error| error.kind());
    assert_eq!(ack_next(), Err(ErrorKind::Other));
    assert_eq!(ack_next(), Ok(()));
    let refused = apart(|| source.receive(&CancellationToken::new()).now_or_never());
    assert_eq!(refused.unwrap().unwrap_err().kind(), ErrorKind::Disconnected);
    assert_eq!(received(&receive_apart(&source, 2)), ["m-1", "m-11"]);
    assert_eq!((ack_next(), ack_next()), (Ok(()), Ok(())));
}

#[tokio::test]
async fn an_ack_by_any_thread_brings_back_what_is_due_before_what_is_published_later() {
    let (clock, queue) = queue();
    publish(&queue, 2);
    let source = queue.source();
    let second = {
        let first = receive(&source);
        let second = apart(|| receive(&source));
        nack(&source, first.receipt, NackReason::retry_after(SECOND, "not yet"));
        second
    };
    clock.advance(SECOND).await;
    ack_apart(&source, second.receipt).unwrap();
    queue.publish(windlass::message::Message::new("x").with_id("m-3"));
    assert_eq!(ids(&queue.pending()), ["m-1", "m-3"]);
}

/// While four threads receive and ack, nothing is ever nowhere or in two places.
#[tokio::test]
async fn an_observer_never_sees_a_message_missing() {
    const EACH: usize = 2_000;
    const THREADS: usize = 4;
    let (_, queue) = queue();
    publish(&queue, THREADS * EACH);
    let source = queue.source();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let watch = scope.spawn(|| watch(&queue, &done));
        let workers: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        let delivery = receive(&source);
                        source.ack(delivery.receipt).now_or_never().unwrap().unwrap();
                    }
                })
            })
            .collect();
        let joined: Vec<_> = workers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        done.store(true, Ordering::Relaxed);
        joined.into_iter().for_each(|worker| worker.unwrap());
        assert!(watch.join().unwrap() > 0);
    });
    queue.until(|queue| queue.counts().acked == (THREADS * EACH) as u64).await.unwrap();
    let acked = queue.acked();
    let mut once = ids(&acked);
    once.sort_unstable();
    once.dedup();
    assert_eq!(once.len(), THREADS * EACH);
}

/// Looks until `done`; returns how often.
fn watch(queue: &MemoryQueue, done: &AtomicBool) -> usize {
    let mut looks = 0;
    while !done.load(Ordering::Relaxed) {
        let QueueCounts { pending, in_flight, published, delivered, acked, .. } = queue.counts();
        assert_eq!(pending + in_flight + acked as usize, published as usize);
        assert_eq!(in_flight + acked as usize, delivered as usize);
        looks += 1;
    }
    looks
}
