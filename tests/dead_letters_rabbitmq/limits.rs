//! Queues that drop what was delivered too often in vain: looking must not be the end of a message.

use lapin::types::{AMQPValue, FieldTable};
use windlass::rabbitmq::dead_letters::{RedriveOptions, Warning};

use crate::bench::{Bench, at_most, ids, names, raw_ids, table};
use crate::rabbit::{Node, QueueType, Series, until};

/// Waits until all are back, and takes them.
async fn all(bench: &Bench, count: u32) -> Vec<String> {
    until("all are handed back", || async {
        (bench.raw.count(&bench.dlq).await == Some((count, 0))).then_some(())
    })
    .await;
    raw_ids(&bench.raw.take_all(&bench.dlq).await).into_iter().map(str::to_owned).collect()
}

#[tokio::test]
async fn looking_45_times_loses_nothing_where_no_limit_was_set() {
    let node = Node::shared().await;
    let bench = Bench::new(node, "limit-default", QueueType::Quorum).await;
    bench.put_many(10).await;
    let mut warned = Vec::new();
    for look in 1..=45 {
        let peeked = bench.peek(10).await;
        // All are put at the end together, and so they stay in their order.
        assert_eq!(ids(&peeked.messages), names(1..=10), "look {look}");
        warned.extend(peeked.warnings);
    }
    let moved = warned.iter().filter(|warning| **warning == Warning::MovedToTheEnd { messages: 10 }).count();
    let near = warned.iter().any(|warning| matches!(warning, Warning::NearDeliveryLimit { limit: 20, .. }));
    if node.series() >= Series(4, 3) {
        assert_eq!(warned, [], "looking counts once, and no more");
    } else {
        assert!((moved, near) == (2, true), "{warned:?}");
    }
    assert_eq!(all(&bench, 10).await, names(1..=10));
}

#[tokio::test]
async fn looking_at_some_and_leaving_some_loses_nothing_where_no_limit_was_set() {
    let bench = Bench::new(Node::shared().await, "limit-parts", QueueType::Quorum).await;
    bench.put_many(10).await;
    for look in 1..=30 {
        assert_eq!(bench.peek(4).await.messages.len(), 4, "look {look}");
        let report = bench.redrive(RedriveOptions::new().cause("other")).await.unwrap();
        assert_eq!((report.not_matched, report.moved, report.maybe_twice), (10, 0, 0), "look {look}");
        let report = bench.redrive(RedriveOptions::new().dry_run(true)).await.unwrap();
        assert_eq!((report.matched, report.moved), (10, 0), "look {look}");
    }
    let mut left = all(&bench, 10).await;
    left.sort_by_key(|id| id[2..].parse::<u32>().unwrap());
    assert_eq!(left, names(1..=10));
}

#[tokio::test]
async fn a_limit_that_is_told_is_reckoned_with() {
    let node = Node::shared().await;
    let low = table([("x-delivery-limit", AMQPValue::LongUInt(3))]);
    let bench = Bench::with(node, "limit-low", QueueType::Quorum, FieldTable::default(), low).await;
    bench.put_many(10).await;
    let letters = bench.letters().delivery_limit(Some(3));
    for look in 1..=12 {
        let peeked = letters.peek(at_most(100)).await.unwrap();
        assert_eq!(ids(&peeked.messages), names(1..=10), "look {look}");
    }
    assert_eq!(all(&bench, 10).await, names(1..=10));
}

/// The advice of the module's page.
#[tokio::test]
async fn a_policy_with_a_high_limit_keeps_the_order_and_counts_on() {
    let node = Node::shared().await;
    let bench = Bench::new(node, "limit-policy", QueueType::Quorum).await;
    bench.put_many(10).await;
    let limit = serde_json::json!({"delivery-limit": 1_000_000});
    node.management().put_policy("/", "limit-policy", "^limit-policy-", limit).await;
    // In force once looking at a part keeps being possible and keeps the order.
    for look in 1..=25 {
        let peeked = bench.letters().delivery_limit(Some(1_000_000)).peek(at_most(4)).await.unwrap();
        assert_eq!(
            (ids(&peeked.messages), peeked.warnings.len()),
            (names(1..=4).iter().map(String::as_str).collect(), 0),
            "look {look}"
        );
    }
    assert_eq!(all(&bench, 10).await, names(1..=10));
}
