//! The example worker, run as a service manager would: it works on a real broker, and stops on SIGTERM with its report.

#![cfg(all(unix, feature = "json", feature = "rabbitmq"))]
// Clippy takes the helpers of a test for code that is shipped.
#![allow(clippy::expect_used)]

#[path = "support/example.rs"]
mod example;
#[path = "support/rabbit/mod.rs"]
mod rabbit;

use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use example::cargo_run;
use rabbit::{Node, Raw, Sent, bounded};

fn start(uri: &str) -> (Child, Lines<BufReader<ChildStdout>>) {
    let mut command = Command::from(cargo_run("rabbitmq_worker", "json,rabbitmq"));
    command.env("WORKER_AMQP_URI", uri).stderr(Stdio::inherit()).kill_on_drop(true);
    let mut child = command.spawn().expect("cargo can be run");
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    (child, lines)
}

#[tokio::test]
async fn the_worker_ships_orders_and_drains_on_sigterm() {
    let node = Node::shared().await;
    let (mut child, mut lines) = start(&node.uri());
    // It may have to be built first.
    while let Some(line) = lines.next_line().await.expect("it prints text") {
        if line == "working" {
            break;
        }
    }
    let raw = Raw::connect(&node.uri()).await;
    for (id, order) in [
        ("o-1", r#"{"item": "lamp", "count": 2}"#),
        ("o-2", r#"{"item": "lamp", "count": 0}"#),
        ("o-3", "no order"),
    ] {
        assert_eq!(raw.publish("orders", id, order.as_bytes()).await, Sent::Confirmed);
    }
    let mut outcomes = Vec::new();
    for _ in 0..3 {
        let line = bounded("an event of the worker", lines.next_line()).await.expect("it prints text");
        outcomes.push(line.expect("an event").split_whitespace().take(3).collect::<Vec<_>>().join(" "));
    }
    outcomes.sort();
    assert_eq!(outcomes, ["o-1 done: ack", "o-2 terminal: dead-letter:", "o-3 invalid: dead-letter:"]);
    let shipment = raw.get("shipments").await.expect("one shipment");
    assert_eq!((shipment.id(), shipment.body.as_slice()), ("shipment-of-o-1", &b"2 x lamp"[..]));

    // cargo has become the worker: it runs a program by replacing itself.
    let worker = child.id().expect("it runs").to_string();
    let stopped =
        std::process::Command::new("kill").args(["-TERM", &worker]).status().expect("kill can be run");
    assert!(stopped.success());
    let report = bounded("the report", lines.next_line()).await.expect("it prints text").expect("a report");
    assert!(report.starts_with("Report") && report.contains("acked: 1"), "{report}");
    assert!(bounded("the end of the worker", child.wait()).await.expect("it ends").success());
    assert_eq!(raw.count("orders").await, Some((0, 0)), "nothing is left, and nobody consumes");
    assert_eq!(raw.count("orders.dlq").await, Some((2, 0)));
    raw.close().await;
}
