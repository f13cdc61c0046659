//! `bootstrap`, `plan` and `status`.

use serde_json::json;

use crate::desk::Desk;
use crate::rabbit::until;

const TOPOLOGY: &str = r#"
vhost = "VHOST"
broadcast = { exchange = "all" }
[[stages]]
name = "orders"
wait_steps_ms = [1000]
[[stages]]
name = "slots"
per_slot = true
"#;

fn topology(desk: &Desk) -> String {
    TOPOLOGY.replace("VHOST", &desk.vhost)
}

#[tokio::test]
async fn a_topology_is_planned_made_and_then_there_is_nothing_to_do() {
    let desk = Desk::without_vhost("bootstrap").await;
    desk.write("topology.toml", &topology(&desk));
    let args = ["-t", "topology.toml"];
    let run = async |command: &str| desk.run(&[&[command], &args[..]].concat()).await;
    let plan = run("plan").await.ends(3);
    assert!(plan.out.contains(&format!("+ create virtual host {:?}", desk.vhost)), "{plan:?}");
    assert!(plan.out.contains("- skip stage \"slots\""), "{plan:?}");
    // It changed nothing.
    assert_eq!(run("plan").await.ends(3).out, plan.out);
    let made = run("bootstrap").await.ends(0);
    assert!(made.out.contains("+ created queue \"orders\""), "{made:?}");
    let nothing = run("plan").await.ends(0);
    assert!(nothing.out.contains("nothing to do"), "{nothing:?}");
    assert!(run("bootstrap").await.ends(0).out.contains("nothing to do"));

    // As JSON, from JSON.
    let json =
        json!({ "vhost": desk.vhost, "stages": [{ "name": "orders", "wait_steps_ms": [1000, 2000] }] });
    desk.write("topology.json", &json.to_string());
    let plan = desk.run(&["--json", "plan", "--topology", "topology.json"]).await.ends(3).json();
    assert_eq!(plan["changes"][0]["entity"]["name"], "orders.wait.2000", "{plan}");
    assert_eq!(plan["changes"][0]["action"], "create");
    assert_eq!(plan["drift"], json!([]));
    let applied = desk.run(&["--json", "bootstrap", "--topology", "topology.json"]).await.ends(0).json();
    assert_eq!(applied["changes"].as_array().map(Vec::len), Some(1), "{applied}");
}

/// BC-41: what cannot be changed is named with both values, and left as it is.
#[tokio::test]
async fn what_has_drifted_is_named_with_both_values_and_left_as_it_is() {
    let desk = Desk::new("drift").await;
    let raw = desk.raw().await;
    raw.declare("orders", crate::rabbit::QueueType::Classic, Default::default()).await;
    desk.write("topology.toml", &topology(&desk));
    for command in ["plan", "bootstrap", "plan"] {
        let ran = desk.run(&[command, "-t", "topology.toml"]).await.ends(4);
        let drift = ran.out.lines().find(|line| line.starts_with("! ")).expect("it is told");
        for word in ["orders", "classic", "quorum"] {
            assert!(drift.contains(word), "{drift}");
        }
    }
    let management = desk.node.management();
    let queue = management.queue(&desk.vhost, "orders").await.expect("it is still there");
    assert_eq!(queue.kind, "classic");
    raw.close().await;
}

#[tokio::test]
async fn the_status_shows_the_queues_and_never_a_zero_for_what_is_not_told() {
    let desk = Desk::new("status").await;
    let empty = desk.run(&["status"]).await.ends(0);
    assert!(empty.out.ends_with(&format!("virtual host {}: no queues\n", desk.vhost)), "{empty:?}");
    let rabbit = desk.rabbit().await;
    rabbit.declare_queue("a/b c%ü", windlass::rabbitmq::QueueType::Quorum).await.unwrap();
    let raw = desk.raw().await;
    for id in ["1", "2", "3"] {
        assert_eq!(raw.publish("a/b c%ü", id, b"x").await, crate::rabbit::Sent::Confirmed);
    }
    // The broker's figures lag. Until they are there, they are null, and not 0.
    let status = until("the status knows of the messages", || async {
        let status = desk.run(&["status", "--json"]).await.ends(0).json();
        let queue = status["queues"][0].clone();
        assert_eq!((&queue["name"], &queue["kind"]), (&json!("a/b c%ü"), &json!("quorum")));
        queue["ready"].as_u64().filter(|ready| *ready > 0).map(|_| status)
    });
    let status = status.await;
    assert_eq!(status["vhost"], desk.vhost);
    assert!(status["version"].as_str().is_some());
    let people = desk.run(&["status"]).await.ends(0);
    let row: Vec<&str> = people.out.lines().nth(3).unwrap_or_default().split_whitespace().collect();
    assert_eq!(row, ["a/b", "c%ü", "quorum", "running", "3", "0", "0"], "{people:?}");
    raw.close().await;
    rabbit.disconnect().await;
}
