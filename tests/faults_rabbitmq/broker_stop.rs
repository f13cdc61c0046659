//! Stopping while much is buffered, much is in flight, and nobody waits for it.

use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use lapin::types::FieldTable;
use tokio_util::sync::CancellationToken;
use windlass::ErrorKind;
use windlass::clock::{Clock, SystemClock};
use windlass::consumer::{RetryPolicy, Status};
use windlass::handler::HandlerError;
use windlass::message::Message;
use windlass::publisher::Publisher;
use windlass::rabbitmq::RabbitMq;
use windlass::source::MessageSource;

use crate::broker_bench::{Bench, Gate, KINDS, config, ms, prefetch};
use crate::rabbit::{Measures, Node, QueueType, bounded, until};

/// What is called prompt here: a broker on the same machine answers in milliseconds, a busy machine takes longer.
const PROMPT: Duration = ms(2_000);

/// 1,000 messages, of which 100 are taken ahead, one handler: stop is asked for while the third runs.
async fn stop_at_the_third(kind: QueueType, name: &str, retries: bool) {
    let bench = Bench::new(Node::shared().await, name, kind).await;
    bench.publish(1..=1_000).await;
    let source = bench.options().prefetch(prefetch(100)).open().await.unwrap();
    let (third, stopping) = (Gate::closed(), Gate::closed());
    let consumer = bench.consumer(source, {
        let (third, stopping, starts) = (third.clone(), stopping.clone(), bench.starts.clone());
        move |_| {
            let (third, stopping, starts) = (third.clone(), stopping.clone(), starts.clone());
            async move {
                if starts.len() == 3 {
                    third.open();
                    stopping.passed().await;
                }
                if retries { Err(HandlerError::failed("again")) } else { Ok(()) }
            }
        }
    });
    let handle = consumer.retry_policy(RetryPolicy::schedule([ms(50)])).start().unwrap();
    bounded("the third has begun", third.passed()).await;
    let stop = tokio::spawn({
        let handle = handle.clone();
        async move { handle.stop().await }
    });
    until("it stops", || async { (handle.status() == Status::Stopping).then_some(()) }).await;
    let began = SystemClock.now();
    stopping.open();
    let report = bounded("stopped", stop).await.unwrap();
    let time = SystemClock.now() - began;
    assert!(time < PROMPT, "{time:?}");
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(bench.starts.ids(), ["m-1", "m-2", "m-3"], "no handler begins after the stop");
    let acked = if retries { 0 } else { 3 };
    bench.until_count((1_000 - acked, 0)).await;
    let (acked, account) = (acked as usize, bench.account().await);
    assert_eq!(account.acked, acked, "{account}");
    assert!((1_000 - acked..=1_000).contains(&account.queued), "{account}");
}

// BC-19
#[tokio::test]
async fn no_handler_begins_after_the_stop_and_what_was_buffered_is_ready_again() {
    for kind in KINDS {
        stop_at_the_third(kind, "stop", false).await;
    }
}

// BC-19, the variant: the way of a retry must not pull either.
#[tokio::test]
async fn no_handler_begins_after_the_stop_where_every_message_is_tried_again() {
    for kind in KINDS {
        stop_at_the_third(kind, "stop-retry", true).await;
    }
}

// BC-23 a
#[tokio::test]
async fn a_source_whose_messages_nobody_receives_closes_at_once() {
    for kind in KINDS {
        let bench = Bench::new(Node::shared().await, "unread", kind).await;
        bench.publish(1..=100).await;
        let source = bench.options().prefetch(prefetch(100)).open().await.unwrap();
        let first = bounded("a message", source.receive(&CancellationToken::new())).await.unwrap().unwrap();
        bench.until_count((0, 1)).await;
        let began = SystemClock.now();
        bounded("closed", source.close()).await.unwrap();
        assert!(SystemClock.now() - began < PROMPT, "{:?}", SystemClock.now() - began);
        bench.until_count((100, 0)).await;
        assert_eq!(source.ack(first.receipt).await.unwrap_err().kind(), ErrorKind::Stale);
        let account = bench.account().await;
        assert_eq!((account.acked, account.queued), (0, 100), "{account}");
    }
}

// BC-23 b
#[tokio::test]
async fn publishes_that_nobody_waits_for_keep_nothing_alive() {
    let node = Node::shared().await;
    let bench = Bench::new(node, "dropped", QueueType::Quorum).await;
    let mut tasks = Vec::new();
    for round in 0..3 {
        let rabbit = RabbitMq::connect(config(&node.uri())).await.unwrap();
        let publisher = rabbit.publisher();
        let mut publishes = FuturesUnordered::new();
        for number in 0..1_000 {
            let id = format!("dropped-{round}-{number}");
            bench.ledger.published(&id);
            publishes.push(publisher.publish(&bench.queue, Message::new("x").with_id(id)));
        }
        // All have been polled then, and are at every stage of their way.
        bounded("one is confirmed", publishes.next()).await.unwrap().unwrap();
        drop(publishes);
        let began = SystemClock.now();
        bounded("disconnected", rabbit.disconnect()).await;
        assert!(SystemClock.now() - began < PROMPT, "{:?}", SystemClock.now() - began);
        let error = publisher.publish(&bench.queue, Message::new("x")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
        drop((publisher, rabbit));
        tasks.push(Measures::now().tasks);
    }
    let ended = || async { (Measures::now().tasks <= tasks[0]).then_some(()) };
    until(&format!("no more tasks than after the first: {tasks:?}"), ended).await;
    // Whether the broker has them was left open. None is there twice.
    let found: Vec<String> =
        bench.raw.take_all(&bench.queue).await.iter().map(|message| message.id().to_owned()).collect();
    let mut once = found.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(once.len(), found.len());
    found.iter().for_each(|id| bench.ledger.queued(id));
    assert_eq!(bench.account().await.published, 3_000);
}

// BC-23 c
#[tokio::test]
async fn closing_a_source_and_disconnecting_at_the_same_time_always_ends() {
    let node = Node::shared().await;
    let bench = Bench::connected(
        node,
        config(&node.uri()),
        "both-at-once",
        QueueType::Classic,
        FieldTable::default(),
    )
    .await;
    bench.publish(1..=5).await;
    for _ in 0..100 {
        let rabbit = RabbitMq::connect(config(&node.uri())).await.unwrap();
        let source = rabbit.source(&bench.queue).open().await.unwrap();
        let held = bounded("a message", source.receive(&CancellationToken::new())).await.unwrap().unwrap();
        let began = SystemClock.now();
        let (closed, ()) = bounded("both", async { tokio::join!(source.close(), rabbit.disconnect()) }).await;
        closed.unwrap();
        assert!(SystemClock.now() - began < PROMPT, "{:?}", SystemClock.now() - began);
        assert_eq!(source.ack(held.receipt).await.unwrap_err().kind(), ErrorKind::Stale);
    }
    bench.until_count((5, 0)).await;
    assert_eq!(bench.account().await.queued, 5);
}
