//! Retries after a delay: when they come, and that a dead node does not lose them.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use windlass::ConsumerHandle;
use windlass::clock::{Clock, SystemClock};
use windlass::consumer::ConsumerEvent;
use windlass::handler::HandlerError;
use windlass::rabbitmq::RabbitSource;
use windlass::source::{NackReason, Settlement};

use crate::broker_bench::{Bench, KINDS, Log, at_most, ms};
use crate::rabbit::{Node, Options, QueueType, Raw, until};

/// How much later than its step nine messages in ten must have come, and all of them: a busy machine stalls now and then.
const LATE: Duration = ms(500);
const LATEST: Duration = ms(5_000);

/// 10 ms to 2 s: m-1 the shortest, m-100 the longest.
fn delay_of(id: &str) -> Duration {
    let number: u64 = id.strip_prefix("m-").unwrap().parse().unwrap();
    ms(10 + (number - 1) * 1_990 / 99)
}

/// A consumer whose first attempts are retried after the delay of their message; when each retry began to be settled.
fn retries_once(
    bench: &Bench,
    source: RabbitSource,
    delay_of: fn(&str) -> Duration,
) -> (ConsumerHandle, Log<(String, Instant)>) {
    let asked = Log::default();
    let consumer = bench.consumer(source, |context| async move {
        if context.attempt() == 1 { Err(HandlerError::failed("once")) } else { Ok(()) }
    });
    let consumer = consumer.max_concurrent(at_most(100)).on_result({
        let asked = asked.clone();
        move |result, message| {
            if result.is_ok() {
                return Settlement::Ack;
            }
            asked.add((message.id().to_owned(), SystemClock.now()));
            NackReason::retry_after(delay_of(message.id()), "once").into()
        }
    });
    (consumer.start().unwrap(), asked)
}

#[tokio::test]
async fn each_retry_comes_after_its_delay_and_soon() {
    for kind in KINDS {
        let bench = Bench::new(Node::shared().await, "delays", kind).await;
        // The wait queues are made by their first use; the time that takes is not measured.
        bench.publish(1..=100).await;
        let (handle, _) = retries_once(&bench, bench.source().await, delay_of);
        bench.until_acked(100).await;
        assert!(handle.stop().await.is_clean());
        bench.account().await;

        let bench = Bench::new(Node::shared().await, "delays", kind).await;
        let taken = Arc::new(Mutex::new(BTreeMap::<String, Instant>::new()));
        bench.publish(1..=100).await;
        let (handle, asked) = retries_once(&bench, bench.source().await, delay_of);
        bench.until_acked(100).await;
        assert!(handle.stop().await.is_clean());
        for done in bench.done.all() {
            if let Some(reason) = done.settlement.nack_reason() {
                assert!(done.settle_error.is_none(), "{reason}: {:?}", done.settle_error);
                let (_, at) = asked.all().into_iter().find(|(id, _)| id == done.message.id()).unwrap();
                // When the broker had the copy, and the ack was written.
                taken.lock().unwrap().insert(done.message.id().to_owned(), at + done.timings.settling);
            }
        }
        let (mut lates, taken) = (Vec::new(), taken.lock().unwrap().clone());
        for (id, asked) in asked.all() {
            let starts = bench.starts.of(&id);
            assert_eq!((starts.len(), starts[1].attempt), (2, 2), "{id}: {starts:?}");
            let delay = delay_of(&id);
            let waited = starts[1].at - asked;
            assert!(waited >= delay, "{id} came {waited:?} after it was asked for {delay:?}");
            let late = starts[1].at.saturating_duration_since(taken[&id] + delay + delay / 8);
            assert!(late <= LATEST, "{id} came {late:?} late");
            lates.push(late);
        }
        let late = lates.iter().filter(|late| **late > LATE).count();
        assert!(late <= 10, "{late} of 100 came more than {LATE:?} late: {lates:?}");
        let account = bench.account().await;
        assert_eq!((account.acked, account.queued, account.dead_lettered), (100, 0, 0), "{account}");
    }
}

/// Three delays that are long enough for the node to be killed meanwhile.
fn long_delay_of(id: &str) -> Duration {
    let number: u64 = id.strip_prefix("m-").unwrap().parse().unwrap();
    ms(4_000 + number % 3 * 500)
}

#[tokio::test]
async fn what_waits_survives_the_death_of_the_node() {
    let node = Node::start(Options::new()).await;
    let bench = Bench::new(&node, "delays-killed", QueueType::Quorum).await;
    // RabbitMQ forgets a quorum queue, with what was confirmed to it, where its node is killed within a moment of its
    // making; so the wait queues are used once before.
    bench.publish_ids(&["m-1000", "m-1001", "m-1002"], b"x").await;
    let (handle, _) = retries_once(&bench, bench.source().await, long_delay_of);
    bench.until_acked(3).await;
    bench.publish(1..=100).await;
    let taken = || async {
        let done = bench.done.all();
        let taken = |done: &&ConsumerEvent| done.settlement != Settlement::Ack && done.settle_error.is_none();
        (done.iter().filter(taken).count() == 103).then_some(())
    };
    until("all wait to be tried again", taken).await;
    assert_eq!(bench.ledger.add_up().acked, 3, "the node is killed while they wait");
    node.kill().await;
    // What expires while a node starts finds no exchange yet, not even the default one, and is sent on only after this
    // time, which is 180 s by default.
    let sooner = "[{rabbit, [{dead_letter_worker_publisher_confirm_timeout, 2000}]}].";
    fs::write(node.folder().join("advanced.config"), sooner).unwrap();
    node.restart().await;
    let bench = Bench { raw: Raw::connect(&node.uri()).await, ..bench };
    bench.until_acked(103).await;
    // The acks of the first attempts may have been lost with the node: those came again, and were put off again.
    assert_eq!(handle.stop().await.abandoned, 0);
    let account = bench.account().await;
    assert_eq!((account.confirmed, account.acked, account.dead_lettered), (103, 103, 0), "{account}");
}
