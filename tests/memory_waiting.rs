//! Who waits at the broker in memory, and what wakes them.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use windlass::clock::{Clock, ControlledClock, SystemClock};
use windlass::memory::{FaultPoint, MemoryBroker, MemoryReceipt, MemorySource, QueueOptions};
use windlass::message::Message;
use windlass::publisher::Publisher;
use windlass::source::{Delivery, Health, MessageSource, NackReason, RequeueOrder};
use windlass::{Error, ErrorKind, Result};

use support::rng::SplitMix64;
use support::{SECOND, ids, ms, prompt, publish, queue, queue_with};

type Received = Result<Option<Delivery<MemoryReceipt>>>;

fn waiting(source: &MemorySource, cancel: &CancellationToken) -> JoinHandle<Received> {
    let (source, cancel) = (source.clone(), cancel.clone());
    tokio::spawn(async move { source.receive(&cancel).await })
}

async fn receive(source: &MemorySource) -> Delivery<MemoryReceipt> {
    prompt(source.receive(&CancellationToken::new())).await.unwrap().unwrap()
}

#[tokio::test]
async fn a_receive_returns_nothing_when_it_is_cancelled_or_idle() {
    let (clock, queue) = queue();
    let cancel = CancellationToken::new();
    let cancelled = waiting(&queue.source(), &cancel);
    let idle = waiting(&queue.source().with_idle(5 * SECOND), &CancellationToken::new());
    clock.advance(ms(4_999)).await;
    assert!(!idle.is_finished());
    clock.advance(ms(1)).await;
    assert!(prompt(idle).await.unwrap().unwrap().is_none());
    assert!(!cancelled.is_finished());
    cancel.cancel();
    assert!(prompt(cancelled).await.unwrap().unwrap().is_none());
    publish(&queue, 1);
    assert!(
        queue.source().receive(&cancel).await.unwrap().is_none(),
        "cancelled before, though one is there"
    );
    assert_eq!(queue.counts().pending, 1);
}

#[tokio::test]
async fn closing_a_source_wakes_those_who_wait_and_returns_what_it_holds() {
    let (clock, queue) = queue();
    publish(&queue, 3);
    let source = queue.source();
    let clone = source.clone();
    let held = [receive(&source).await, receive(&clone).await, receive(&source).await];
    let waits = waiting(&source, &CancellationToken::new());
    clock.settle().await;
    clone.close().await.unwrap();
    assert_eq!(prompt(waits).await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!((source.health(), ids(&queue.pending())), (Health::Closed, vec!["m-1", "m-2", "m-3"]));
    for delivery in held {
        assert_eq!(source.ack(delivery.receipt).await.unwrap_err().kind(), ErrorKind::Stale);
    }
    source.close().await.unwrap();
    let again = source.receive(&CancellationToken::new()).await;
    assert_eq!(again.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(queue.counts().returned, 3, "once");
}

#[tokio::test]
async fn dropping_the_last_clone_of_a_source_returns_what_it_holds() {
    let (clock, queue) = queue();
    publish(&queue, 5);
    let source = queue.source().with_prefetch(3);
    let clone = source.clone();
    let other = waiting(&queue.source(), &CancellationToken::new());
    let held = receive(&source).await;
    clock.settle().await;
    drop(source);
    assert_eq!(queue.counts().pending + queue.counts().in_flight, 5);
    let before = queue.counts().pending;
    drop(clone);
    assert_eq!(queue.counts().pending, before + 3);
    drop((held, other));
}

#[tokio::test]
async fn returned_deliveries_wake_receivers_that_wait() {
    for how in ["cut", "close", "drop", "nack", "failed ack"] {
        let (clock, queue) = queue();
        publish(&queue, 1);
        let holder = queue.source();
        let held = receive(&holder).await;
        let source = queue.source();
        let waits = waiting(&source, &CancellationToken::new());
        clock.settle().await;
        match how {
            "cut" => queue.cut(),
            "close" => holder.close().await.unwrap(),
            "drop" => drop(holder),
            "nack" => holder.nack(held.receipt, NackReason::requeue_now("x")).await.unwrap(),
            _ => {
                queue.fail_next(FaultPoint::Ack, Error::new(ErrorKind::Other, "ack"));
                holder.ack(held.receipt).await.unwrap_err();
            }
        }
        let delivery = prompt(waits).await.unwrap().unwrap().unwrap();
        assert_eq!(delivery.message.id(), "m-1", "{how}");
    }
}

#[tokio::test]
async fn released_messages_wake_receivers_that_wait() {
    let (clock, queue) = queue();
    publish(&queue, 3);
    let greedy = queue.source().with_prefetch(3);
    let _held = receive(&greedy).await;
    let source = queue.source();
    let waits = [waiting(&source, &CancellationToken::new()), waiting(&source, &CancellationToken::new())];
    clock.settle().await;
    greedy.release().await.unwrap();
    for waits in waits {
        assert!(prompt(waits).await.unwrap().unwrap().is_some());
    }
}

/// A message is put off while two wait; the one that would wake first is busy with another by then.
#[tokio::test]
async fn a_delayed_message_wakes_whoever_is_free_when_its_time_comes() {
    let (clock, queue) = queue();
    publish(&queue, 1);
    let source = queue.source();
    let held = receive(&source).await;
    let (first, second) =
        (waiting(&source, &CancellationToken::new()), waiting(&source, &CancellationToken::new()));
    clock.settle().await;
    source.nack(held.receipt, NackReason::retry_after(5 * SECOND, "later")).await.unwrap();
    clock.settle().await;
    queue.publish(Message::new("x").with_id("m-2"));
    clock.settle().await;
    assert_eq!(u8::from(first.is_finished()) + u8::from(second.is_finished()), 1);
    clock.advance(5 * SECOND).await;
    let got = [prompt(first).await, prompt(second).await].map(|received| received.unwrap().unwrap().unwrap());
    let mut got: Vec<&str> = got.iter().map(|delivery| delivery.message.id()).collect();
    got.sort_unstable();
    assert_eq!(got, ["m-1", "m-2"]);
}

/// Both learn of the time, so that either may go away before it comes.
#[tokio::test]
async fn a_delayed_message_wakes_the_receiver_that_is_left() {
    for leaves in [0, 1] {
        let (clock, queue) = queue();
        publish(&queue, 1);
        let source = queue.source();
        let held = receive(&source).await;
        let tokens = [CancellationToken::new(), CancellationToken::new()];
        let [first, second] = tokens.each_ref().map(|token| waiting(&source, token));
        clock.settle().await;
        source.nack(held.receipt, NackReason::retry_after(5 * SECOND, "later")).await.unwrap();
        clock.settle().await;
        tokens[leaves].cancel();
        clock.advance(5 * SECOND).await;
        let stays = if leaves == 0 { second } else { first };
        assert!(prompt(stays).await.unwrap().unwrap().is_some(), "{leaves} left");
    }
}

/// The message that is due first is taken; who waits must learn of the second time.
#[tokio::test]
async fn of_two_delayed_messages_each_wakes_somebody_in_its_time() {
    for delays in [[3, 5], [5, 3], [4, 4]] {
        let (clock, queue) = queue();
        publish(&queue, 2);
        let source = queue.source();
        let held = [receive(&source).await, receive(&source).await];
        let waits =
            [waiting(&source, &CancellationToken::new()), waiting(&source, &CancellationToken::new())];
        clock.settle().await;
        for (delivery, seconds) in held.into_iter().zip(delays) {
            source.nack(delivery.receipt, NackReason::retry_after(seconds * SECOND, "x")).await.unwrap();
            clock.settle().await;
        }
        clock.advance(5 * SECOND).await;
        for waits in waits {
            assert!(prompt(waits).await.unwrap().unwrap().is_some(), "{delays:?}");
        }
    }
}

#[tokio::test]
async fn a_wake_up_given_to_a_receiver_that_goes_away_is_passed_on() {
    let (clock, queue) = queue();
    let source = queue.source();
    for round in 0..50 {
        let first = waiting(&source, &CancellationToken::new());
        clock.settle().await;
        let cancel = CancellationToken::new();
        let second = waiting(&source, &cancel);
        clock.settle().await;
        publish(&queue, 1);
        if round % 2 == 0 {
            first.abort()
        } else {
            cancel.cancel()
        }
        clock.settle().await;
        let (kept, gone) = if round % 2 == 0 { (second, first) } else { (first, second) };
        let taken_by_gone = matches!(prompt(gone).await, Ok(Ok(Some(_))));
        if taken_by_gone {
            kept.abort();
            assert_eq!(queue.counts().in_flight, 1);
        } else {
            assert!(prompt(kept).await.unwrap().unwrap().is_some(), "round {round}");
        }
        queue.cut();
        let left = receive(&source).await;
        source.ack(left.receipt).await.unwrap();
    }
    assert_eq!((queue.counts().acked, queue.counts().pending), (50, 0));
}

#[tokio::test]
async fn a_fault_reaches_a_receive_that_waits() {
    let (clock, queue) = queue();
    let waits = waiting(&queue.source(), &CancellationToken::new());
    clock.settle().await;
    queue.fail_next(FaultPoint::Receive, Error::new(ErrorKind::Disconnected, "receive"));
    assert_eq!(prompt(waits).await.unwrap().unwrap_err().kind(), ErrorKind::Disconnected);
}

#[tokio::test]
async fn leases_of_a_receiver_that_died_wake_one_that_waits() {
    let (clock, queue) = queue_with(QueueOptions::new().with_lease(10 * SECOND));
    let (dead, alive) = (queue.source(), queue.source());
    let waits = waiting(&alive, &CancellationToken::new());
    clock.settle().await;
    // Taken by the one that does not wait, on the short way.
    publish(&queue, 1);
    let _held = receive(&dead).await;
    clock.settle().await;
    clock.advance(10 * SECOND).await;
    assert_eq!(prompt(waits).await.unwrap().unwrap().unwrap().message.id(), "m-1");
}

/// A lease that ends wakes whoever waits, also who began to wait before the delivery was made.
#[tokio::test]
async fn a_delivery_whose_lease_is_over_goes_to_a_receiver_that_waited_all_along() {
    let (clock, queue) = queue_with(QueueOptions::new().with_lease(10 * SECOND));
    let sources = [queue.source(), queue.source()];
    let waits = sources.each_ref().map(|source| waiting(source, &CancellationToken::new()));
    clock.settle().await;
    publish(&queue, 1);
    clock.settle().await;
    let ended = |waits: &[JoinHandle<Received>]| waits.iter().filter(|waits| waits.is_finished()).count();
    assert_eq!(ended(&waits), 1);
    // Whoever has it never answers: the other one must have it once the lease is over.
    clock.advance(11 * SECOND).await;
    assert_eq!(ended(&waits), 2);
}

/// What one receiver of the stress does with what it gets: acks most, and puts back the rest in all the ways there are.
async fn work(source: MemorySource, seed: u64, stop: CancellationToken, acked: Arc<Mutex<BTreeSet<String>>>) {
    let mut random = SplitMix64::new(seed);
    while let Ok(Some(delivery)) = source.receive(&stop).await {
        let id = delivery.message.id().to_owned();
        let settled = match random.below(20) {
            0 => source.nack(delivery.receipt, NackReason::requeue_now("x")).await,
            1 => source.nack(delivery.receipt, NackReason::retry("x")).await,
            2 => source.nack(delivery.receipt, NackReason::retry_after(ms(1), "x")).await,
            3 => source.release().await.and(source.ack(delivery.receipt).await),
            _ => source.ack(delivery.receipt).await,
        };
        settled.unwrap();
        acked.lock().unwrap().insert(id);
        if random.chance(2) {
            tokio::task::yield_now().await;
        }
    }
}

async fn stress(options: QueueOptions, prefetch: usize) {
    const MESSAGES: usize = 20_000;
    let broker = MemoryBroker::new(SystemClock);
    let queue = broker.declare("work", options.with_history(MESSAGES));
    let stop = CancellationToken::new();
    let seen = Arc::new(Mutex::new(BTreeSet::new()));
    let shared = queue.source().with_prefetch(prefetch);
    let receivers: Vec<_> = (0..8)
        .map(|number| {
            let source =
                if number % 2 == 0 { shared.clone() } else { queue.source().with_prefetch(prefetch) };
            tokio::spawn(work(source, number, stop.clone(), Arc::clone(&seen)))
        })
        .collect();
    let publishers: Vec<_> = (0..4)
        .map(|publisher| {
            let broker = broker.publisher();
            tokio::spawn(async move {
                for number in 0..MESSAGES / 4 {
                    let message = Message::new("x").with_id(format!("{publisher}-{number}"));
                    broker.publish("work", message).await.unwrap();
                    if number % 7 == 0 {
                        tokio::task::yield_now().await;
                    }
                }
            })
        })
        .collect();
    for publisher in publishers {
        publisher.await.unwrap();
    }
    let bound = 60 * SECOND;
    queue.until_within(bound, |queue| queue.counts().acked == MESSAGES as u64).await.unwrap();
    stop.cancel();
    for receiver in receivers {
        prompt(receiver).await.unwrap();
    }
    let mut acked: Vec<String> = queue.acked().iter().map(|message| message.id().to_owned()).collect();
    acked.sort();
    acked.dedup();
    assert_eq!((acked.len(), seen.lock().unwrap().len()), (MESSAGES, MESSAGES));
    let counts = queue.counts();
    assert_eq!((counts.pending, counts.delayed, counts.in_flight), (0, 0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn on_many_threads_no_wake_up_is_lost() {
    stress(QueueOptions::new(), 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn on_many_threads_no_wake_up_is_lost_with_prefetch_and_leases() {
    let options = QueueOptions::new().with_requeue_order(RequeueOrder::Back).with_lease(60 * SECOND);
    stress(options, 5).await;
}

#[tokio::test]
async fn a_broker_on_a_clock_that_stands_keeps_what_is_delayed() {
    let clock = ControlledClock::new();
    let queue = MemoryBroker::new(clock.clone()).queue("work");
    publish(&queue, 1);
    let source = queue.source();
    let held = receive(&source).await;
    source.nack(held.receipt, NackReason::postpone(SECOND, "x")).await.unwrap();
    clock.jump_wall(clock.wall() + 3_600 * SECOND);
    clock.settle().await;
    assert_eq!((queue.counts().delayed, queue.delayed()[0].attempt()), (1, 1));
}
