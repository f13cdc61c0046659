//! What is there otherwise: named with both values, and left as it is.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::FutureExt;
use serde_json::{Value, json};
use windlass::ErrorKind;
use windlass::bootstrap::{Bootstrapper, EXIT_DRIFT, Plan};
use windlass::management::Management;
use windlass::topology::{Stage, StageType};

use crate::desk::{Desk, PASSWORD, config};
use crate::meddler::{Meddler, Meddling};
use crate::rabbit::bounded;

fn about<'a>(plan: &'a Plan, entity: &str) -> &'a windlass::bootstrap::Drift {
    let found = plan.drift.iter().find(|drift| drift.entity.to_string() == entity);
    found.unwrap_or_else(|| panic!("no drift of {entity}:\n{plan}"))
}

async fn queue(desk: &Desk, name: &str, arguments: Value) {
    let body = json!({"durable": true, "auto_delete": false, "arguments": arguments});
    desk.ask("PUT", &format!("/api/queues/{{vhost}}/{name}"), Some(&body)).await;
}

#[tokio::test]
async fn queues_and_exchanges_that_differ_are_named_with_both_values_and_left() {
    let desk = Desk::new("differs").await;
    desk.raw.put_vhost(&desk.vhost).await;
    queue(&desk, "orders", json!({"x-queue-type": "quorum", "x-max-length": 7})).await;
    queue(&desk, "bills", json!({})).await;
    queue(&desk, "orders.dlq", json!({"x-queue-type": "classic"})).await;
    queue(&desk, "orders.wait.200", json!({"x-queue-type": "quorum", "x-message-ttl": 100})).await;
    for (name, kind) in [("all", "topic"), ("dead-letters", "fanout")] {
        let body = json!({"type": kind, "durable": true, "auto_delete": false});
        desk.ask("PUT", &format!("/api/exchanges/{{vhost}}/{name}"), Some(&body)).await;
    }
    let before = desk.raw.queue(&desk.vhost, "orders").await.unwrap().arguments;

    let topology = desk.topology();
    let plan = desk.plan(&topology).await;
    assert_eq!(plan.exit_code(), EXIT_DRIFT);
    let text = |entity: &str| about(&plan, entity).message.clone();
    assert_eq!(text("queue \"orders\""), "x-max-length is 7, wanted unset; left as it is");
    let bills = text("queue \"bills\"");
    assert!(bills.contains("type is \"classic\", wanted \"quorum\""), "{bills}");
    assert!(bills.contains("x-delivery-limit is unset, wanted 5"), "{bills}");
    assert!(text("queue \"orders.dlq\"").contains("type is \"classic\""));
    let wait = text("queue \"orders.wait.200\"");
    assert!(wait.contains("x-message-ttl is 100, wanted 200"), "{wait}");
    assert!(text("exchange \"all\"").starts_with("type is \"topic\", wanted \"fanout\""));
    assert!(text("exchange \"dead-letters\"").starts_with("type is \"fanout\", wanted \"direct\""));
    let json = serde_json::to_value(about(&plan, "queue \"orders\"")).unwrap();
    assert_eq!(json["differences"], json!([{"field": "x-max-length", "current": 7, "wanted": null}]));

    // It does not stop the rest.
    let applied = desk.apply(&topology).await;
    assert_eq!(applied.exit_code(), EXIT_DRIFT);
    assert_eq!(applied.drift.len(), 6, "{applied}");
    assert!(desk.raw.queue(&desk.vhost, "bills.dlq").await.is_some());
    assert_eq!(desk.raw.queue(&desk.vhost, "orders").await.unwrap().arguments, before, "left as it is");
    let plan = desk.plan(&topology).await;
    assert!(plan.changes.is_empty() && plan.drift.len() == 6, "{plan}");
}

#[tokio::test]
async fn an_argument_of_a_stage_that_changed_is_drift_and_the_stage_stays() {
    let desk = Desk::new("changed").await;
    desk.made(&desk.topology()).await;
    let mut topology = desk.topology();
    topology.stages[1].delivery_limit = Some(9);
    topology.stages[0].queue_type = StageType::Classic;
    let applied = desk.apply(&topology).await;
    let orders = applied.drift.iter().find(|drift| drift.entity.name == "orders").expect("drift");
    assert_eq!(orders.message, "type is \"quorum\", wanted \"classic\"; left as it is");
    let bills = applied.drift.iter().find(|drift| drift.entity.name == "bills").expect("drift");
    assert_eq!(bills.message, "x-delivery-limit is 5, wanted 9; left as it is");
    let found = desk.raw.queue(&desk.vhost, "bills").await.unwrap();
    assert_eq!(found.arguments["x-delivery-limit"], 5);
}

/// 4.0 and 4.3 answer 500 without a reason where the name of the virtual host is not ASCII.
#[tokio::test]
async fn a_queue_that_is_declared_otherwise_meanwhile_is_named_with_what_differs_and_not_tried_again() {
    for name in ["meanwhile", "während"] {
        let desk = Desk::new(name).await;
        desk.made(&desk.topology()).await;
        let vhost: String = utf8_percent(&desk.vhost);
        let path = format!("/api/queues/{vhost}/late");
        let raw = desk.raw.clone();
        let meddling: Meddling = Arc::new({
            let path = path.clone();
            move || {
                let (raw, path) = (raw.clone(), path.clone());
                async move {
                    let arguments = json!({"x-queue-type": "quorum", "x-max-length": 3});
                    let body = json!({"durable": true, "auto_delete": false, "arguments": arguments});
                    assert_eq!(raw.request("PUT", &path, Some(&body)).await.0, 201);
                }
                .boxed()
            }
        });
        let request = format!("PUT {path} ");
        let meddler = Meddler::start(desk.raw.port(), request, meddling).await;
        let config = config(desk.node).with_url(format!("http://127.0.0.1:{}", meddler.port));
        let topology = desk.topology().with_stage(Stage::new("late"));
        let management = Management::new(config).unwrap();
        let bootstrapper = Bootstrapper::new(management, topology).user_password(PASSWORD);
        let error = bounded("apply", bootstrapper.apply()).await.expect_err("it is there otherwise");
        assert_eq!(error.error.kind(), ErrorKind::Refused, "{error}");
        assert!(!error.error.is_transient());
        let text = error.to_string();
        assert!(
            text.contains("queue \"late\"") && text.contains("x-max-length is 3, wanted unset"),
            "{text}"
        );
        assert_eq!(error.not_done[0].entity.name, "late");
        assert_eq!(meddler.times.load(Ordering::SeqCst), 1, "a refusal is final");
    }
}

/// As the client writes it.
fn utf8_percent(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}
