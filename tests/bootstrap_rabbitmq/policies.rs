//! Policies of somebody else that get in the way of a stage's, and what a stage risks by itself.

use serde_json::{Value, json};
use windlass::bootstrap::Plan;
use windlass::topology::{Policy, Stage, Topology};

use crate::desk::{Desk, segment};
use crate::rabbit::{Series, until};

async fn policy(desk: &Desk, kind: &str, name: &str, pattern: &str, priority: i64, definition: Value) {
    let body =
        json!({"pattern": pattern, "apply-to": "queues", "priority": priority, "definition": definition});
    desk.ask("PUT", &format!("/api/{kind}/{{vhost}}/{}", segment(name)), Some(&body)).await;
}

fn drift(plan: &Plan) -> Vec<String> {
    plan.drift.iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn a_policy_that_pushes_ours_aside_is_drift() {
    let desk = Desk::new("aside").await;
    let topology = desk.topology();
    desk.made(&topology).await;
    policy(&desk, "policies", "low", ".*", 99, json!({"message-ttl": 1000, "max-length": 1})).await;
    let plan = desk.plan(&topology).await;
    // It reaches the wait queues, which have no policy of their own.
    let waits = ["orders.wait.200", "bills.wait.200"];
    let named: Vec<&str> = plan.drift.iter().map(|drift| drift.entity.name.as_str()).collect();
    assert_eq!(named, waits, "{plan}");

    policy(&desk, "policies", "low", "^orders", 100, json!({"max-length": 1})).await;
    let plan = desk.plan(&topology).await;
    let named: Vec<&str> = plan.drift.iter().map(|drift| drift.entity.name.as_str()).collect();
    assert_eq!(named, ["orders.dlq", "orders"], "{plan}");
    let text = &drift(&plan)[1];
    assert!(
        text.contains("\"low\"")
            && text.contains("priority 100")
            && text.contains("\"windlass.stage.orders\""),
        "{text}"
    );
    assert!(plan.changes.is_empty(), "nothing can be done about it");

    // One that says what it is for is gone once its pattern leaves the queues out.
    policy(&desk, "policies", "low", "^orders_", 100, json!({"max-length": 1})).await;
    let plan = desk.plan(&topology).await;
    assert!(plan.is_clean(), "{plan}");
}

/// BC-32: the broker drops what expires for the second time, and a queue that expires goes with what is in it.
#[tokio::test]
async fn a_time_to_live_on_a_stage_with_delayed_retries_is_drift() {
    let desk = Desk::new("ttl").await;
    let topology = Topology::default()
        .with_vhost(&desk.vhost)
        .with_stage(Stage::new("plain").with_dead_letters(false))
        .with_stage(Stage::new("never").with_dead_letters(false).with_wait_steps([]));
    desk.made(&topology).await;
    policy(&desk, "policies", "ttl", "^(plain|never)$", 0, json!({"message-ttl": 60000})).await;
    let plan = desk.plan(&topology).await;
    assert_eq!(plan.drift.len(), 1, "{plan}");
    let text = &drift(&plan)[0];
    assert!(
        text.starts_with("queue \"plain\": the policy \"ttl\"") && text.contains("message-ttl 60000"),
        "{text}"
    );

    // An operator's applies beside ours, whatever its priority.
    desk.ask("DELETE", "/api/policies/{vhost}/ttl", None).await;
    let expires = json!({"expires": 60000});
    policy(&desk, "operator-policies", "cleaner", "wait", 0, expires).await;
    let plan = desk.plan(&topology).await;
    let named: Vec<&str> = plan.drift.iter().map(|drift| drift.entity.name.as_str()).collect();
    assert_eq!(named, ["plain.wait.1000", "plain.wait.2000", "plain.wait.4000"], "{plan}");
    assert!(drift(&plan)[0].contains("expires 60000"), "{plan}");
}

/// The lower number of the two is the one, whatever the priorities.
#[tokio::test]
async fn an_operators_policy_that_takes_dead_letters_away_sooner_is_drift() {
    let desk = Desk::new("operator").await;
    let topology = Topology::default().with_vhost(&desk.vhost).with_stage(Stage::new("orders"));
    desk.made(&topology).await;
    for (definition, told) in [
        (json!({"message-ttl": 60000}), Some("message-ttl 60000")),
        (json!({"max-length": 5}), Some("max-length 5")),
        (json!({"delivery-limit": 20}), Some("delivery-limit 20")),
        (json!({"expires": 60000}), Some("expires 60000")),
        (json!({"max-length": 1000}), None),
    ] {
        // 3.10 has no operator policy with a delivery limit on all kinds of queues; where it is refused, it is not there.
        let body = json!({"pattern": "dlq$", "apply-to": "queues", "priority": 0, "definition": definition});
        let path = format!("/api/operator-policies/{}/tight", segment(&desk.vhost));
        let (status, _) = desk.raw.request("PUT", &path, Some(&body)).await;
        if !(200..300).contains(&status) {
            continue;
        }
        let plan = desk.plan(&topology).await;
        match told {
            Some(told) => {
                assert_eq!(plan.drift.len(), 1, "{plan}");
                let text = &drift(&plan)[0];
                assert!(
                    text.starts_with("queue \"orders.dlq\": the policy \"tight\"") && text.contains(told),
                    "{text}"
                );
            }
            None => assert!(plan.is_clean(), "{plan}"),
        }
    }
}

/// A pattern that only the broker can read: it is asked which policy applies.
#[tokio::test]
async fn the_broker_is_asked_where_a_pattern_cannot_be_read_here() {
    let desk = Desk::new("lookahead").await;
    let topology = desk.topology();
    desk.made(&topology).await;
    policy(&desk, "policies", "clever", "^(?!bills)orders$", 200, json!({"max-length": 1})).await;
    let plan = until("the broker says which applies", || async {
        let plan = desk.plan(&topology).await;
        (!plan.drift.is_empty()).then_some(plan)
    })
    .await;
    let named: Vec<&str> = plan.drift.iter().map(|drift| drift.entity.name.as_str()).collect();
    assert_eq!(named, ["orders"], "{plan}");
    // And until then, that it cannot be told.
    let fresh = desk.topology().with_stage(Stage::new("new"));
    let plan = desk.plan(&fresh).await;
    assert!(
        plan.warnings.iter().any(|text| text.contains("\"clever\"") && text.contains("cannot be told")),
        "{plan}"
    );
}

#[tokio::test]
async fn a_policy_of_ours_that_the_topology_has_no_use_for_any_more_is_drift() {
    let desk = Desk::new("forgotten").await;
    desk.made(&desk.topology()).await;
    let mut topology = desk.topology();
    topology.stages[0].dead_letters = Some(false);
    let plan = desk.plan(&topology).await;
    let named: Vec<String> = plan.drift.iter().map(|drift| drift.entity.to_string()).collect();
    assert_eq!(named, ["policy \"windlass.stage.orders\""], "{plan}");
    desk.apply(&topology).await;
    desk.ask("GET", "/api/policies/{vhost}/windlass.stage.orders", None).await;
}

/// BC-29: what is over the limit is dropped without a word.
#[tokio::test]
async fn a_delivery_limit_without_dead_letters_is_a_warning() {
    let desk = Desk::new("limit").await;
    let bare = || Stage::new("bare").with_dead_letters(false);
    let topology = |stage: Stage| Topology::default().with_vhost(&desk.vhost).with_stage(stage);
    let warned = async |stage: Stage| {
        let plan = desk.plan(&topology(stage)).await;
        plan.warnings.iter().any(|text| text.contains("\"bare\"") && text.contains("delivery limit"))
    };
    let has_default = desk.node.series() >= Series(4, 0);
    assert_eq!(warned(bare()).await, has_default, "20 by default from 4.0 on");
    assert!(!warned(Stage::new("bare")).await, "it has dead letters");
    desk.made(&topology(bare())).await;
    policy(&desk, "policies", "limit", "^bare$", 0, json!({"delivery-limit": 3})).await;
    let plan = desk.plan(&topology(bare())).await;
    assert!(plan.warnings.iter().any(|text| text.contains("a delivery limit of 3")), "{plan}");
    if has_default {
        policy(&desk, "policies", "limit", "^bare$", 0, json!({"delivery-limit": -1})).await;
        assert!(!warned(bare()).await, "none at all");
    }
}

#[tokio::test]
async fn further_policies_are_made_and_changed() {
    let desk = Desk::new("further").await;
    let with = |length: u32| {
        let policy = Policy::new("others", "^other\\.").with("max-length", length).with_priority(7);
        desk.topology().with_policy(policy)
    };
    desk.made(&with(5)).await;
    let plan = desk.plan(&with(6)).await;
    assert!(plan.to_string().starts_with("~ update policy \"others\": max-length 5 -> 6\n"), "{plan}");
    desk.made(&with(6)).await;
    let found = desk.ask("GET", "/api/policies/{vhost}/others", None).await;
    assert_eq!((&found["priority"], &found["definition"]["max-length"]), (&json!(7), &json!(6)));
}
