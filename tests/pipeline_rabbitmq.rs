//! The example pipeline on RabbitMQ: by one command on a broker that has nothing yet, and through a kill of the broker.

#![cfg(all(unix, feature = "bootstrap", feature = "json"))]
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "support/example.rs"]
mod example;
#[path = "../examples/pipeline/mod.rs"]
mod pipeline;
#[path = "support/rabbit/mod.rs"]
mod rabbit;

use std::sync::Arc;
use std::time::Duration;

use tokio::process::Command;
use windlass::ErrorKind;
use windlass::clock::{Clock, SystemClock, within};

use example::cargo_run;
use pipeline::{Pipeline, Post, Settings};
use rabbit::{Ledger, Node, Options, bounded};

/// Building it first, and a broker that comes back, included.
const LONG: Duration = Duration::from_secs(180);

fn management_of(node: &Node) -> String {
    format!("http://guest:guest@127.0.0.1:{}", node.management().port())
}

fn example(node: &Node) -> Command {
    let mut command = Command::from(cargo_run("pipeline", "bootstrap"));
    command.arg(node.uri()).env("PIPELINE_MANAGEMENT", management_of(node)).kill_on_drop(true);
    command
}

#[tokio::test]
async fn one_command_makes_the_topology_and_every_line_arrives() {
    let node = Node::shared().await;
    for (stages, legible) in [("writer,transport-manager", 12), ("writer,redaction,transport-manager", 0)] {
        let output = example(node).args(["--stages", stages]).output();
        let output = within(&SystemClock, LONG, output).await.expect("it ends by itself").unwrap();
        let (text, problems) = (
            String::from_utf8_lossy(&output.stdout).into_owned(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        );
        assert_eq!(output.status.code(), Some(0), "{text}\n{problems}");
        let figure = |what: &str| -> Option<u64> {
            text.lines().find_map(|line| line.strip_prefix(what)?.split_whitespace().next()?.parse().ok())
        };
        for (what, count) in [
            ("lines written ", 60),
            ("delivered to clients ", 60),
            ("delivered with the word ", legible),
            ("in the sink ", 60),
            ("heard by the metrics ", 60),
            ("missing ", 0),
        ] {
            assert_eq!(figure(what), Some(count), "{what} in\n{text}\n{problems}");
        }
    }
    for queue in ["writer", "writer.dlq", "redaction", "transport-manager", "sink"] {
        let counts = node.queue_counts("/", queue).await.unwrap_or_else(|| panic!("there is no {queue}"));
        assert_eq!((counts.ready, counts.unacked), (0, 0), "{queue}");
    }
    assert!(node.queue_counts("/", "websockets-transport_1").await.is_none(), "it went with its node");
}

/// Written before the kill, during it and after: what was confirmed reaches the sink, whose way is durable. A slot's queue
/// goes with its connection, and what was in it: the clients of that node are gone too.
#[tokio::test]
async fn a_killed_broker_costs_no_line_that_was_confirmed() {
    let node = Node::start(Options::new()).await;
    let management = Some(management_of(&node));
    let settings = Settings { broker: node.uri(), management, ..Settings::default() };
    let broker = bounded("preparing", pipeline::prepare(&settings)).await.unwrap();
    node.flush().await;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let pipeline = Arc::new(Pipeline::start(broker, &settings, clock).await.unwrap());
    let ledger = Ledger::new();
    let writing = tokio::spawn({
        let (pipeline, ledger) = (Arc::clone(&pipeline), ledger.clone());
        async move {
            for number in 1..=300 {
                let line = format!("line-{number}");
                let post = Post { client: number % 7, text: format!("line {number}") };
                ledger.published(&line);
                // Sent until it is confirmed; where that took more than once, it may be there more than once.
                loop {
                    match pipeline.write(&line, &post).await {
                        Ok(()) => break ledger.confirmed(&line),
                        Err(error) => assert_ne!(error.kind(), ErrorKind::Invalid, "{error}"),
                    }
                }
            }
        }
    });
    rabbit::until("some lines have arrived", || async {
        (pipeline.board().tally().sunk.len() > 50).then_some(())
    })
    .await;
    node.kill().await;
    node.restart().await;
    within(&SystemClock, LONG, writing).await.expect("it can write again").unwrap();
    let all = pipeline
        .board()
        .until(|tally| (1..=300).all(|number| tally.sunk.contains(&format!("line-{number}"))));
    let arrived = within(&SystemClock, LONG, all).await;
    let tally = pipeline.board().tally();
    for line in &tally.sunk {
        ledger.handled(line);
    }
    let account = ledger.account();
    assert_eq!((account.confirmed, account.handled), (300, 300), "{account}");
    assert!(arrived.is_some());
    let pipeline = Arc::into_inner(pipeline).expect("nobody else has it");
    bounded("the end", pipeline.stop()).await;
}
