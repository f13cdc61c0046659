//! Run again: what is missing is added, what changed is applied, and two at once do no harm.

use futures::future::try_join_all;
use serde_json::json;
use windlass::bootstrap::Action;
use windlass::topology::{Retention, Stage};

use crate::desk::{Desk, lines};
use crate::rabbit::bounded;

#[tokio::test]
async fn a_changed_retention_is_applied_and_nothing_else() {
    let desk = Desk::new("retention").await;
    desk.made(&desk.topology()).await;
    let topology = desk.topology().with_retention(Retention::new(30, 500));
    let plan = desk.plan(&topology).await;
    let update = |stage: &str| {
        format!(
            "~ update policy \"windlass.dlq.{stage}\": max-length 100 -> 500, message-ttl 259200000 -> 2592000000"
        )
    };
    let mut expected = ["orders", "bills", "sockets"].map(update).to_vec();
    expected.push(lines(&plan).last().unwrap().clone());
    assert_eq!(lines(&plan), expected);
    assert!(plan.changes.iter().all(|change| change.action == Action::Update));
    desk.made(&topology).await;
    let policy = desk.ask("GET", "/api/policies/{vhost}/windlass.dlq.orders", None).await;
    assert_eq!(policy["definition"]["message-ttl"], 2_592_000_000_u64);
}

#[tokio::test]
async fn what_is_missing_is_added() {
    let desk = Desk::new("missing").await;
    let topology = desk.topology();
    desk.made(&topology).await;
    desk.ask("DELETE", "/api/bindings/{vhost}/e/dead-letters/q/orders.dlq/orders", None).await;
    desk.ask("DELETE", "/api/queues/{vhost}/bills.wait.200", None).await;
    desk.ask("DELETE", "/api/policies/{vhost}/windlass.stage.bills", None).await;
    let topology = topology.with_stage(Stage::new("late"));
    let plan = desk.plan(&topology).await;
    let named: Vec<String> = plan.changes.iter().map(|change| change.entity.to_string()).collect();
    let expected = [
        "binding \"dead-letters -> orders.dlq (orders)\"",
        "policy \"windlass.dlq.late\"",
        "queue \"late.dlq\"",
        "binding \"dead-letters -> late.dlq (late)\"",
        "policy \"windlass.stage.bills\"",
        "queue \"bills.wait.200\"",
        "policy \"windlass.stage.late\"",
        "queue \"late\"",
        "queue \"late.wait.200\"",
    ];
    assert_eq!(named, expected);
    desk.made(&topology).await;
}

#[tokio::test]
async fn what_the_topology_does_not_name_is_left_alone_and_not_mentioned() {
    let desk = Desk::new("others").await;
    let topology = desk.topology();
    desk.made(&topology).await;
    let queue = json!({"durable": true, "auto_delete": false, "arguments": {}});
    desk.ask("PUT", "/api/queues/{vhost}/of-somebody", Some(&queue)).await;
    let exchange = json!({"type": "topic", "durable": false});
    desk.ask("PUT", "/api/exchanges/{vhost}/of-somebody", Some(&exchange)).await;
    // A wait queue that the adapter made at its first use.
    desk.ask("PUT", "/api/queues/{vhost}/orders.wait.5000", Some(&queue)).await;
    desk.ask(
        "POST",
        "/api/bindings/{vhost}/e/dead-letters/q/of-somebody",
        Some(&json!({"routing_key": "x"})),
    )
    .await;
    let plan = desk.plan(&topology).await;
    assert!(plan.is_clean() && plan.warnings.is_empty(), "{plan}");
    let smaller = windlass::topology::Topology::default().with_vhost(&desk.vhost);
    let plan = desk.plan(&smaller).await;
    assert!(plan.is_clean(), "{plan}");
    let applied = desk.apply(&smaller).await;
    assert!(applied.changes.is_empty());
    assert_eq!(desk.raw.queues(&desk.vhost).await.len(), 9, "nothing is ever deleted");
}

#[tokio::test]
async fn several_at_once_all_succeed() {
    for turn in 0..5 {
        let desk = Desk::new(&format!("race-{turn}")).await;
        let topology = desk.topology();
        let bootstrappers: Vec<_> = (0..4).map(|_| desk.bootstrapper(&topology)).collect();
        let all = bootstrappers.iter().map(|bootstrapper| async {
            bounded("apply", bootstrapper.apply()).await.map_err(|error| error.to_string())
        });
        let applied = try_join_all(all).await.expect("all succeed");
        assert!(applied.iter().all(|applied| applied.drift.is_empty()));
        let plan = desk.plan(&topology).await;
        assert!(plan.is_clean(), "{plan}");
    }
}
