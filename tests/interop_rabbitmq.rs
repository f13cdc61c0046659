//! Payloads on RabbitMQ, to and from services in other languages, which the tests start: `tests/interop/clients`.
//!
//! They need Python with the packages pika and lz4, or Node.js with amqplib and lz4-napi, and are skipped, with the reason
//! on standard error, where those are not there:
//!
//! ```text
//! python3 -m venv /tmp/interop && /tmp/interop/bin/pip install pika lz4
//! npm install --prefix /tmp/interop amqplib lz4-napi
//! WINDLASS_PYTHON=/tmp/interop/bin/python NODE_PATH=/tmp/interop/node_modules \
//!     cargo test --features rabbitmq,lz4 --test interop_rabbitmq
//! ```

#![cfg(all(feature = "rabbitmq", feature = "lz4", feature = "json"))]
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "support/log.rs"]
mod log;
#[path = "support/rabbit/mod.rs"]
mod rabbit;

use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio_util::sync::CancellationToken;
use windlass::codec::lz4::{Lz4Format, pack_block};
use windlass::codec::{Codec, Json, Lz4};
use windlass::consumer::RetryPolicy;
use windlass::rabbitmq::{QueueType, RabbitMq, RabbitMqConfig, dead_letter_queue, ladder};
use windlass::source::DeadLetter;
use windlass::{Context, HandlerError, Message, MessageSource, PublisherExt, Queue, QueueConsumer};

use log::Log;
use rabbit::{Node, bounded, until};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Order {
    id: u64,
    text: String,
}

type Packed = Queue<Order, Lz4<Json>>;

const ALWAYS: Packed = Queue::with_codec("", Lz4::new(Json).always());
const BY_LABEL: Packed = Queue::with_codec("", Lz4::new(Json));
const FRAMES: Packed = Queue::with_codec("", Lz4::new(Json).format(Lz4Format::Frame));

/// Short, long, not of one byte per character, empty.
fn orders() -> Vec<Order> {
    let texts =
        ["short".to_owned(), "the same again, ".repeat(500), "Grüße 🐢 \0".repeat(300), String::new()];
    (1..).zip(texts).map(|(id, text)| Order { id, text }).collect()
}

/// A program that speaks for a service in another language.
struct Client {
    runtime: String,
    script: &'static str,
}

impl Client {
    /// The first of these programs that has the packages; else why there is none.
    async fn find(
        programs: &[Option<String>],
        probe: [&str; 2],
        script: &'static str,
    ) -> Result<Self, String> {
        let mut reasons = Vec::new();
        for runtime in programs.iter().flatten() {
            let run = Command::new(runtime).args(probe).stdin(Stdio::null()).output();
            match bounded("the probe", run).await {
                Ok(output) if output.status.success() => {
                    return Ok(Self { runtime: runtime.clone(), script });
                }
                Ok(output) => {
                    let text = String::from_utf8_lossy(&output.stderr).into_owned();
                    let line = text
                        .lines()
                        .rev()
                        .find(|line| line.contains("rror"))
                        .unwrap_or("no reason")
                        .to_owned();
                    reasons.push(format!("{runtime}: {line}"));
                }
                Err(error) => reasons.push(format!("{runtime}: {error}")),
            }
        }
        Err(reasons.join("; "))
    }

    async fn python() -> Result<Self, String> {
        let programs = [std::env::var("WINDLASS_PYTHON").ok(), Some("python3".to_owned())];
        Self::find(&programs, ["-c", "import pika, lz4.block, lz4.frame"], "client.py").await
    }

    async fn node() -> Result<Self, String> {
        let programs = [std::env::var("WINDLASS_NODE").ok(), Some("node".to_owned())];
        Self::find(&programs, ["-e", "require('amqplib'); require('lz4-napi')"], "client.js").await
    }

    /// Runs it to its end; what it wrote to standard output.
    async fn run(&self, arguments: &[&str], input: &str) -> String {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop/clients").join(self.script);
        let mut command = Command::new(&self.runtime);
        command.arg(script).args(arguments).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let mut stdin = child.stdin.take().expect("it is piped");
        stdin.write_all(input.as_bytes()).await.expect("it reads");
        drop(stdin);
        let output = bounded("the client ends", child.wait_with_output()).await.expect("it ends");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    }
}

/// What a test that did not run says; the harness hides what `eprintln` writes of one that passes.
fn skipped(test: &str, reason: &str) {
    writeln!(std::io::stderr(), "skipped: {test}: {reason}").expect("standard error is there");
}

async fn connect(node: &Node) -> RabbitMq {
    let config = RabbitMqConfig::from_uri(&node.uri()).expect("a URI");
    bounded("connect", RabbitMq::connect(config)).await.expect("the broker accepts the connection")
}

async fn declare(rabbit: &RabbitMq, queue: &str) {
    bounded("declare", rabbit.declare_queue(queue, QueueType::Classic)).await.expect("it is declared");
}

/// Handles so many messages, and gives up the others; the payloads, and the details of the dead letters.
async fn handle<C>(
    rabbit: &RabbitMq,
    typed: &Queue<Order, C>,
    good: usize,
    bad: u64,
) -> (Vec<Order>, Vec<String>)
where
    C: Codec<Order> + Clone,
{
    let seen = Log::new();
    let handler = {
        let seen = seen.clone();
        move |order: Order, _: Context| {
            seen.add(order);
            async { Ok::<_, HandlerError>(()) }
        }
    };
    let details = Log::new();
    let observer = {
        let details = details.clone();
        move |event: &windlass::consumer::ConsumerEvent| {
            details.add(format!("{:?}", event.outcome));
        }
    };
    let source = bounded("open", rabbit.source(typed.name()).open()).await.expect("the queue is there");
    let consumer = QueueConsumer::of(typed, source, handler).on_event(observer).start().expect("it starts");
    until("all is settled", || async {
        let stats = consumer.stats();
        (stats.acked + stats.dead_lettered == good as u64 + bad).then_some(())
    })
    .await;
    let report = bounded("stop", consumer.stop()).await;
    assert_eq!((report.stats.acked, report.stats.dead_lettered), (good as u64, bad), "{:?}", details.all());
    let mut letters = Vec::new();
    let source = rabbit.source(dead_letter_queue(typed.name())).open();
    let source = bounded("open", source).await.expect("the queue is there");
    for _ in 0..bad {
        let delivery = receive(&source).await;
        let letter = DeadLetter::of(&delivery.0).expect("it has a cause");
        letters.push(letter.cause.detail().unwrap_or_default().to_owned());
    }
    bounded("close", source.close()).await.expect("it closes");
    (seen.all(), letters)
}

/// The next message, acked.
async fn receive<S: MessageSource>(source: &S) -> (Message, String) {
    let delivery = bounded("a delivery", async {
        loop {
            if let Some(delivery) = source.receive(&CancellationToken::new()).await.expect("it receives") {
                return delivery;
            }
        }
    })
    .await;
    bounded("ack", source.ack(delivery.receipt)).await.expect("it is acked");
    let label = delivery.message.content_encoding().unwrap_or_default().to_owned();
    (delivery.message, label)
}

/// From the client to a consumer, and from a publisher to the client, in each way to pack.
async fn both_ways(client: &Client, name: &str) {
    let node = Node::shared().await;
    let (rabbit, uri) = (connect(node).await, node.uri());
    let lines: String =
        orders().iter().map(|order| serde_json::to_string(order).expect("JSON") + "\n").collect();
    for (how, typed) in [("always", ALWAYS), ("label", BY_LABEL), ("frame", FRAMES), ("plain", BY_LABEL)] {
        let typed = typed.named(format!("{name}-{how}"));
        declare(&rabbit, typed.name()).await;
        client.run(&["publish", &uri, typed.name(), how], &lines).await;
        let (seen, _) = handle(&rabbit, &typed, orders().len(), 0).await;
        assert_eq!(seen, orders(), "from {name}, {how}");

        let publisher = rabbit.publisher();
        for order in orders() {
            bounded("send", publisher.send(&typed, &order)).await.expect("the broker takes it");
        }
        // A client that goes by labels reads all of them; one that always unpacks must know of nothing else.
        let reads = if how == "always" { "always" } else { "label" };
        let count = orders().len().to_string();
        let output = client.run(&["consume", &uri, typed.name(), reads, &count], "").await;
        let got: Vec<Value> = output.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let label = |packs| match how {
            "always" => json!("lz4"),
            "frame" if packs => json!("lz4-frame"),
            _ if packs => json!("lz4"),
            _ => Value::Null,
        };
        let sent = |order: &Order| {
            let long = serde_json::to_vec(order).expect("JSON").len() > 1024;
            json!({ "payload": order, "label": label(long) })
        };
        assert_eq!(got, orders().iter().map(sent).collect::<Vec<_>>(), "to {name}, {how}");
    }
    // What the two do not agree on is a dead letter that says so.
    let typed = ALWAYS.named(format!("{name}-disagreeing"));
    declare(&rabbit, typed.name()).await;
    client.run(&["publish", &uri, typed.name(), "plain"], &lines).await;
    let (_, letters) = handle(&rabbit, &typed, 0, orders().len() as u64).await;
    assert!(letters.iter().all(|letter| letter.contains("is most likely not packed at all")), "{letters:?}");
    bounded("disconnect", rabbit.disconnect()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payloads_go_to_and_from_a_service_in_python() {
    match Client::python().await {
        Ok(client) => both_ways(&client, "python").await,
        Err(reason) => skipped("payloads_go_to_and_from_a_service_in_python", &reason),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payloads_go_to_and_from_a_service_in_node_js() {
    match Client::node().await {
        Ok(client) => both_ways(&client, "node").await,
        Err(reason) => skipped("payloads_go_to_and_from_a_service_in_node_js", &reason),
    }
}

// BC-48: retry a compressed message three times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retries_and_dead_letters_carry_the_packed_body_and_its_label_as_they_came() {
    let rabbit = connect(Node::shared().await).await;
    let order = orders().remove(1);
    let body = pack_block(&serde_json::to_vec(&order).expect("JSON")).expect("it is packed");
    let typed = BY_LABEL.named("retried");
    declare(&rabbit, typed.name()).await;
    bounded("send", rabbit.publisher().send(&typed, &order)).await.expect("the broker takes it");
    let came = Log::new();
    let handler = {
        let came = came.clone();
        move |got: Order, context: Context| {
            let message = context.message();
            let label = message.content_encoding().map(str::to_owned);
            came.add((got, message.body().clone(), label, context.attempt()));
            async { Err::<(), _>("not this time") }
        }
    };
    let source = bounded("open", rabbit.source(typed.name()).open()).await.expect("the queue is there");
    let policy = RetryPolicy::schedule([Duration::from_millis(1); 3]);
    let consumer =
        QueueConsumer::of(&typed, source, handler).retry_policy(policy).start().expect("it starts");
    until("it is given up", || async { (consumer.stats().dead_lettered == 1).then_some(()) }).await;
    let report = bounded("stop", consumer.stop()).await;
    assert_eq!((report.stats.retried, report.stats.dead_lettered), (3, 1));
    let expected = |attempt| (order.clone(), body.clone().into(), Some("lz4".to_owned()), attempt);
    assert_eq!(came.all(), (1..=4).map(expected).collect::<Vec<_>>());
    let source = rabbit.source(dead_letter_queue(typed.name())).open();
    let source = bounded("open", source).await.expect("the queue is there");
    let (letter, label) = receive(&source).await;
    assert_eq!((letter.body().as_ref(), label.as_str()), (body.as_slice(), "lz4"));
    assert_eq!(typed.decode(&letter).expect("an operator can read it"), order);
    bounded("close", source.close()).await.expect("it closes");
    bounded("disconnect", rabbit.disconnect()).await;
}

#[test]
fn a_queue_that_knows_its_payloads_leaves_room_for_what_the_adapter_makes_of_its_name() {
    assert_eq!(windlass::queue::LONGEST_NAME, ladder::LONGEST_QUEUE_NAME);
    let name = "x".repeat(windlass::queue::LONGEST_NAME);
    assert!(ladder::wait_queue(&name, Duration::MAX).len() <= 255);
    assert!(dead_letter_queue(&name).len() <= 255);
}
