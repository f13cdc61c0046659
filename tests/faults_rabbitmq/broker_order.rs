//! Queues that count or order: a delivery limit, a single active consumer.

use std::collections::BTreeMap;

use lapin::types::{AMQPValue, FieldTable};
use windlass::rabbitmq::RabbitMq;
use windlass::source::Health;

use crate::broker_bench::{Bench, Gate, KINDS, Log, Told, config, consuming, lost, prefetch};
use crate::rabbit::{Node, QueueType, until};

fn arguments(name: &str, value: AMQPValue) -> FieldTable {
    let mut arguments = FieldTable::default();
    arguments.insert(name.into(), value);
    arguments
}

// BC-29: a graceful stop burns no delivery of a message that was not begun.
#[tokio::test]
async fn orderly_stops_drop_nothing_from_a_queue_with_a_delivery_limit() {
    let limit = arguments("x-delivery-limit", AMQPValue::LongInt(2));
    let bench = Bench::with(Node::shared().await, "limit-stop", QueueType::Quorum, limit).await;
    bench.publish(1..=10).await;
    for round in 1..=4 {
        let gate = Gate::closed();
        let handle = bench.held_consumer(bench.source().await, &gate, |_| true).start().unwrap();
        bench.starts.until(round).await;
        let stop = tokio::spawn(async move { handle.stop().await });
        // The consumer goes first, so that what is acked then brings no other message. Which is not seen in a count: a
        // quorum queue counts a consumer until all that it had is settled.
        bench.until_ready(10 - round as u32).await;
        gate.open();
        assert!(stop.await.unwrap().is_clean());
        assert_eq!(bench.starts.len(), round);
    }
    let starts = bench.starts.all();
    assert!(starts.iter().all(|start| !start.redelivered), "{starts:?}");
    let account = bench.account().await;
    assert_eq!((account.acked, account.queued), (4, 6), "{account}");
}

// BC-29: a lost connection counts for what was ahead, which by default is what is handled: the broker drops a message
// after three losses, but none that no handler had.
#[tokio::test]
async fn lost_connections_drop_no_message_that_was_not_begun() {
    let node = Node::shared().await;
    let limit = arguments("x-delivery-limit", AMQPValue::LongInt(2));
    let (bench, proxy) = Bench::proxied(node, "limit-loss", QueueType::Quorum, limit).await;
    bench.publish(1..=5).await;
    let gates: Log<Gate> = Log::default();
    let consumer = bench.consumer(bench.source().await, {
        let gates = gates.clone();
        move |_| {
            let gate = Gate::closed();
            gates.add(gate.clone());
            async move {
                gate.passed().await;
                Ok(())
            }
        }
    });
    let handle = consumer.start().unwrap();
    for round in 1..=3 {
        bench.starts.until(round).await;
        proxy.cut().await;
        bench.told.until("says that the consumer is lost", round, lost(&bench.queue)).await;
        // Stale by now.
        gates.all()[round - 1].open();
    }
    bench.told.until("says that it consumes again", 4, consuming(&bench.queue)).await;
    let mut losses = BTreeMap::<String, usize>::new();
    bench.starts.ids().into_iter().take(3).for_each(|id| *losses.entry(id).or_default() += 1);
    // From here on all are let through. One that was lost each time is dropped.
    let left = if losses.len() == 1 { 4 } else { 5 };
    until("all that is left is acked", || async {
        gates.all().iter().for_each(Gate::open);
        (handle.stats().acked >= left).then_some(())
    })
    .await;
    let report = handle.stop().await;
    assert_eq!((report.stats.settle_errors, report.abandoned), (3, 0), "{report:?}");
    // The broker's own policy, without a dead-letter exchange: gone without a word.
    let missing = bench.ledger.add_up().missing;
    assert!(missing.iter().all(|id| losses.get(id) == Some(&3)), "{missing:?} of {losses:?}");
    let account = bench.account_but(&missing).await;
    assert_eq!(account.acked + missing.len(), 5, "{account}");
}

/// Two consumers on one queue with a single active consumer, each on connections of its own; what each has begun.
async fn hand_over(kind: QueueType, pause: bool) {
    let node = Node::shared().await;
    let single = arguments("x-single-active-consumer", AMQPValue::Boolean(true));
    let name = if pause { "single-pause" } else { "single-stop" };
    let bench = Bench::with(node, name, kind, single).await;
    let standby = RabbitMq::connect(config(&node.uri())).await.unwrap();
    let told = Told::new(&standby);
    let gate = Gate::closed();
    let source = bench.options().prefetch(prefetch(5)).single_active(true).open().await.unwrap();
    let first = bench.held_consumer(source, &gate, |id| id == "m-3").start().unwrap();
    until("the first is active", || async { (first.health() == Health::Ready).then_some(()) }).await;
    let source = standby.source(&bench.queue).prefetch(prefetch(5)).single_active(true).open().await;
    let second = bench.consumer(source.unwrap(), |_| async { Ok(()) }).start().unwrap();
    told.until("says that the second stands by", 1, consuming(&bench.queue)).await;
    bench.publish(1..=20).await;
    bench.starts.until(3).await;

    let ended = tokio::spawn({
        let first = first.clone();
        async move {
            if pause {
                first.pause().await;
            } else {
                assert!(first.stop().await.is_clean());
            }
        }
    });
    // The third runs still: nobody begins the fourth, though it is the first's no more.
    for _ in 0..5 {
        let _ = bench.count().await;
        assert_eq!(bench.starts.len(), 3);
    }
    gate.open();
    bench.until_acked(20).await;
    ended.await.unwrap();
    let ids: Vec<String> = (1..=20).map(|number| format!("m-{number}")).collect();
    assert_eq!(bench.starts.ids(), ids, "{kind}: in order, each once");
    let _ = first.stop().await;
    assert!(second.stop().await.is_clean());
    standby.disconnect().await;
    assert_eq!(bench.account().await.acked, 20);
}

// BC-35
#[tokio::test]
async fn the_next_single_active_consumer_begins_where_a_stopped_one_ended() {
    for kind in KINDS {
        hand_over(kind, false).await;
    }
}

// BC-35
#[tokio::test]
async fn the_next_single_active_consumer_begins_where_a_paused_one_ended() {
    for kind in KINDS {
        hand_over(kind, true).await;
    }
}
