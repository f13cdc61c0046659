//! What the tests on a real broker stand on: private nodes, the client of the management API, lapin by hand, the
//! ledger. What they say of a broker must hold before it says anything about the adapter.

#![cfg(feature = "rabbitmq")]
// Clippy takes the helpers of a test for code that is shipped.
#![allow(clippy::unwrap_used)]

#[path = "support/rabbit/mod.rs"]
mod rabbit;

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use futures::StreamExt;
use lapin::BasicProperties;
use lapin::options::{BasicCancelOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions};
use lapin::tcp::{OwnedIdentity, OwnedTLSConfig};
use lapin::types::FieldTable;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::Command;
use windlass::clock::{SystemClock, within};

use rabbit::{
    Authority, Direction, Ledger, Management, Measures, Node, Options, Proxy, QueueCounts, QueueType, Raw,
    Sent, Series, Tls, basic, bounded, processes_that_name, until,
};

const KINDS: [QueueType; 2] = [QueueType::Classic, QueueType::Quorum];

/// The name of a queue for one test.
fn named(test: &str, kind: QueueType) -> String {
    format!("{test}-{kind}")
}

/// Waits until nothing is left of a node that lived in this folder.
async fn until_gone(folder: &Path) {
    let name = folder.to_str().unwrap();
    let gone = || processes_that_name(name).is_empty() && !folder.exists();
    until("all processes and the folder of the node are gone", || async { gone().then_some(()) }).await;
}

#[tokio::test]
async fn a_node_serves_and_is_told_apart_by_its_series() {
    let node = Node::shared().await;
    println!("{:?}, up after {:?}", node.series(), node.started_in());
    assert!(node.series() >= Series(3, 8), "{:?}", node.series());
    let raw = Raw::connect(&node.uri()).await;
    for kind in KINDS {
        let queue = named("serves", kind);
        assert_eq!(raw.count(&queue).await, None);
        assert_eq!(node.queue_counts("/", &queue).await, None);
        assert_eq!(node.management().queue("/", &queue).await, None);
        raw.declare(&queue, kind, FieldTable::default()).await;
        assert_eq!(raw.publish(&queue, "m-1", b"one").await, Sent::Confirmed);
        assert_eq!(raw.publish(&queue, "m-2", b"two").await, Sent::Confirmed);
        until("both are ready", || async { (raw.count(&queue).await == Some((2, 0))).then_some(()) }).await;
        let counts = QueueCounts { ready: 2, unacked: 0, consumers: 0 };
        assert_eq!(node.queue_counts("/", &queue).await, Some(counts));
        let info = node.management().until_queue("/", &queue, |queue| queue.ready == 2).await;
        assert_eq!((info.kind, info.durable), (kind.to_string(), true));

        let channel = raw.channel().await;
        channel.basic_qos(1, BasicQosOptions::default()).await.unwrap();
        let options = BasicConsumeOptions::default();
        let consumer =
            channel.basic_consume(queue.as_str().into(), "one".into(), options, FieldTable::default());
        let mut consumer = consumer.await.unwrap();
        let taken = bounded("a delivery", consumer.next()).await.unwrap().unwrap();
        let counts = QueueCounts { ready: 1, unacked: 1, consumers: 1 };
        assert_eq!(node.queue_counts("/", &queue).await, Some(counts));
        channel.basic_cancel("one".into(), BasicCancelOptions::default()).await.unwrap();
        taken.nack(BasicNackOptions { requeue: true, ..BasicNackOptions::default() }).await.unwrap();
        channel.close(200, "done".into()).await.unwrap();
        let counts = QueueCounts { ready: 2, unacked: 0, consumers: 0 };
        until("it is back", || async {
            (node.queue_counts("/", &queue).await == Some(counts)).then_some(())
        })
        .await;

        // A quorum queue of 3.10 puts it behind the other one.
        let mut messages = raw.take_all(&queue).await;
        messages.sort_by_key(|message| message.id().to_owned());
        let read: Vec<_> =
            messages.iter().map(|one| (one.id(), one.body.as_slice(), one.redelivered)).collect();
        assert_eq!(read, [("m-1", &b"one"[..], true), ("m-2", &b"two"[..], false)]);
        assert_eq!(raw.get(&queue).await, None);
        raw.publish(&queue, "m-3", b"three").await;
        assert_eq!(raw.purge(&queue).await, 1);
        raw.delete(&queue).await;
        assert_eq!(raw.count(&queue).await, None);
    }
    let lost = raw.publish_with("", "no-such-queue", b"x", BasicProperties::default()).await;
    assert_eq!(lost, Sent::Returned(312, "NO_ROUTE".to_owned()));
    raw.close().await;
}

#[tokio::test]
async fn the_commands_of_the_node_are_bounded_and_say_what_is_wrong() {
    let node = Node::shared().await;
    assert_eq!(node.ctl(&["eval", "1 + 1."]).await.trim(), "2");
    let refused = node.try_ctl(&["delete_vhost", "no-such-vhost"]).await.unwrap_err();
    assert!(refused.contains("rabbitmqctl delete_vhost no-such-vhost"), "{refused}");
    let set = "application:get_env(rabbit, collect_statistics_interval).";
    assert_eq!(node.ctl(&["eval", set]).await.trim(), "{ok,1000}");
}

#[tokio::test]
async fn a_node_is_stopped_continued_killed_and_restarted_and_keeps_its_messages() {
    let node = Node::start(Options::new().config("heartbeat = 7")).await;
    assert_eq!(node.ctl(&["eval", "application:get_env(rabbit, heartbeat)."]).await.trim(), "{ok,7}");
    let (port, folder) = (node.amqp_port(), node.folder().to_owned());
    let raw = Raw::connect(&node.uri()).await;
    for kind in KINDS {
        let queue = named("durable", kind);
        raw.declare(&queue, kind, FieldTable::default()).await;
        assert_eq!(raw.publish(&queue, "m-1", b"one").await, Sent::Confirmed);
    }
    node.flush().await;

    node.stop_the_world().await;
    let count = raw.count("durable-classic");
    assert!(within(&SystemClock, Duration::from_millis(500), count).await.is_none(), "it is stopped");
    node.cont();
    assert_eq!(raw.count("durable-classic").await, Some((1, 0)));

    // Killed while it is stopped: what hangs must die, too.
    node.stop_the_world().await;
    node.kill().await;
    assert_eq!(node.process_group(), None);
    assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.is_err());
    for _ in 0..2 {
        node.restart().await;
    }
    assert_eq!(node.amqp_port(), port);
    let raw = Raw::connect(&node.uri()).await;
    for kind in KINDS {
        let queue = named("durable", kind);
        until("the message is back", || async { (raw.count(&queue).await?.0 == 1).then_some(()) }).await;
        assert_eq!(raw.get(&queue).await.unwrap().id(), "m-1");
    }

    assert!(!processes_that_name(folder.to_str().unwrap()).is_empty());
    drop(node);
    until_gone(&folder).await;
}

/// Set for the process that shall be killed.
const VICTIM: &str = "WINDLASS_RABBIT_VICTIM";

#[tokio::test]
async fn a_node_ends_with_the_process_of_the_tests_even_if_that_is_killed() {
    if let Some(state) = std::env::var_os(VICTIM) {
        let node = Node::start(Options::new()).await;
        match state.to_str().unwrap() {
            "stopped" => node.stop_the_world().await,
            "killed" => node.kill().await,
            _ => {}
        }
        println!("\nfolder={}", node.folder().display());
        std::future::pending().await
    }
    for state in ["running", "stopped", "killed"] {
        let mut victim = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "a_node_ends_with_the_process_of_the_tests_even_if_that_is_killed",
                "--nocapture",
            ])
            .env(VICTIM, state)
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines();
        let folder = loop {
            // A failure to start stands in what it printed to standard error.
            let line = lines.next_line().await.unwrap().expect("the other process starts a node");
            if let Some(folder) = line.strip_prefix("folder=") {
                break folder.to_owned();
            }
        };
        assert!(!processes_that_name(&folder).is_empty());
        // SIGKILL: nothing of it runs any more.
        victim.kill().await.unwrap();
        until_gone(Path::new(&folder)).await;
    }
}

#[tokio::test]
async fn several_nodes_start_at_once_where_no_epmd_runs() {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    let options = Options::new().epmd_port(port);
    let (first, second) = tokio::join!(Node::start(options.clone()), Node::start(options));
    assert_ne!(first.amqp_port(), second.amqp_port());
    for node in [&first, &second] {
        assert_eq!(node.ctl(&["eval", "1 + 1."]).await.trim(), "2");
    }
    drop((first, second));
    // It outlives the nodes, as it must where others use it. Here nobody does: its own request for an end.
    until("epmd knows of no node any more and ends", || async {
        let mut epmd = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
        epmd.write_all(b"\x00\x01k").await.unwrap();
        let mut answer = Vec::new();
        epmd.read_to_end(&mut answer).await.unwrap();
        (answer == b"OK").then_some(())
    })
    .await;
}

#[tokio::test]
async fn missing_commands_are_named_with_the_way_to_get_them() {
    let ran = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_node_serves_and_is_told_apart_by_its_series"])
        .env("RABBITMQ_BIN", "/no/such/folder")
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(!ran.status.success());
    let text = "RABBITMQ_BIN is /no/such/folder, and there is no rabbitmq-server in it: name the folder that";
    assert!(said.contains(text), "{said}");
}

#[tokio::test]
async fn a_node_speaks_tls_and_may_demand_a_certificate() {
    let authority = Authority::new("of the test");
    let tls = Tls {
        authority: authority.certificate(),
        server: authority.server(&["localhost", "127.0.0.1"]),
        demand_certificate: true,
    };
    let node = Node::start(Options::new().tls(tls)).await;
    let uri = format!("amqps://guest:guest@localhost:{}/%2f", node.amqps_port());
    let client = authority.client("worker");
    let identity = || OwnedIdentity::PKCS8 {
        pem: client.certificate.clone().into_bytes(),
        key: client.key.clone().into_bytes(),
    };
    let connect = async |authority: &Authority, identity| {
        let config = OwnedTLSConfig { identity, cert_chain: Some(authority.certificate()) };
        Raw::try_connect(&uri, config).await
    };
    let raw = connect(&authority, Some(identity())).await.unwrap();
    raw.declare("tls", QueueType::Classic, FieldTable::default()).await;
    assert_eq!(raw.publish("tls", "m-1", b"one").await, Sent::Confirmed);
    connect(&authority, None).await.map(|_| ()).expect_err("no certificate");
    let other = Authority::new("of somebody else");
    connect(&other, Some(identity())).await.map(|_| ()).expect_err("a node that nobody vouches for");
}

#[tokio::test]
async fn the_management_api_shows_and_closes_connections() {
    let node = Node::shared().await;
    let management = node.management();
    management.put_vhost("of/its own").await;
    let proxy = Proxy::start(node.amqp_port());
    let uri = format!("amqp://guest:guest@127.0.0.1:{}/of%2fits%20own", proxy.port());
    let raw = Raw::connect(&uri).await;
    raw.declare("watched", QueueType::Quorum, FieldTable::default()).await;
    let channel = raw.channel().await;
    channel.basic_qos(7, BasicQosOptions::default()).await.unwrap();
    let options = BasicConsumeOptions::default();
    let _consumer =
        channel.basic_consume("watched".into(), "tag".into(), options, FieldTable::default()).await.unwrap();

    let mine = |found: &rabbit::ConnInfo| found.vhost == "of/its own";
    let found =
        management.until_connections(|all| all.iter().any(|one| mine(one) && one.channels == 2)).await;
    let mine = found.into_iter().find(mine).unwrap();
    assert_eq!((mine.connection_name.as_deref(), mine.user.as_str()), (Some("raw"), "guest"));
    assert!(mine.name.starts_with(&format!("127.0.0.1:{} -> ", mine.peer_port)), "{mine:?}");
    until("the consumer is shown", || async {
        let shown = management.consumers("of/its own").await.pop()?;
        let seen = (shown.queue.as_str(), shown.tag.as_str(), shown.prefetch, shown.acks);
        (seen == ("watched", "tag", 7, true) && shown.connection == mine.name).then_some(())
    })
    .await;
    until("the channel is shown", || async {
        let mut channels = management.channels().await.into_iter();
        channels.find(|one| one.connection == mine.name && one.consumers == 1 && one.prefetch == 7)
    })
    .await;

    management.close_connection(&mine.name, "by the test").await;
    let error = until("the client hears of it", || async {
        bounded("open a channel", raw.connection().create_channel()).await.err()
    });
    println!("{}", error.await);
    proxy.until(|counts| counts.open() == 0).await;
    management.delete_queue("of/its own", "watched").await;
    assert_eq!(management.queues("of/its own").await, []);
    management.delete_vhost("of/its own").await;
}

#[tokio::test]
async fn the_management_api_makes_users_and_policies() {
    let node = Node::shared().await;
    let management = node.management();
    management.put_user("reader", "se:cret").await;
    management.put_permissions("/", "reader", ["", "", ".*"]).await;
    let uri = |password: &str| format!("amqp://reader:{password}@127.0.0.1:{}/%2f", node.amqp_port());
    let none = OwnedTLSConfig::default;
    Raw::try_connect(&uri("se%3Acret"), none()).await.unwrap().close().await;
    Raw::try_connect(&uri("wrong"), none()).await.map(|_| ()).expect_err("the wrong password");
    // Without a tag, a user may not use the API.
    let port = management.port();
    assert_eq!(Management::new(port, "reader", "se:cret").request("GET", "/api/overview", None).await.0, 401);
    management.delete_user("reader").await;
    Raw::try_connect(&uri("se%3Acret"), none()).await.map(|_| ()).expect_err("no such user");

    let raw = Raw::connect(&node.uri()).await;
    management
        .put_policy("/", "short", "^limited$", json!({"max-length": 1, "overflow": "reject-publish"}))
        .await;
    raw.declare("limited", QueueType::Classic, FieldTable::default()).await;
    until("the policy holds", || async {
        (raw.publish("limited", "m", b"x").await == Sent::Refused).then_some(())
    })
    .await;
}

#[test]
fn the_management_api_is_told_who_asks() {
    let encoded = [("a", "b"), ("ab", "c"), ("ab", "cd")].map(|(user, password)| basic(user, password));
    assert_eq!(encoded, ["Basic YTpi", "Basic YWI6Yw==", "Basic YWI6Y2Q="]);
}

#[tokio::test]
async fn a_memory_alarm_blocks_who_publishes_until_it_ends() {
    let node = Node::start(Options::new()).await;
    let raw = Raw::connect(&node.uri()).await;
    raw.declare("alarmed", QueueType::Classic, FieldTable::default()).await;
    node.memory_alarm(true).await;
    let publishing = tokio::spawn(async move { raw.publish("alarmed", "m-1", b"one").await });
    node.management().until_connections(|all| all.iter().any(|one| one.state == "blocked")).await;
    assert!(!publishing.is_finished());
    node.memory_alarm(false).await;
    assert_eq!(publishing.await.unwrap(), Sent::Confirmed);
}

#[tokio::test]
async fn lapin_works_through_the_proxy_and_leaves_nothing_behind() {
    let node = Node::shared().await;
    let proxy = Proxy::start(node.amqp_port());
    // lapin's heartbeat task lives on for up to half of this after its connection is gone.
    let uri = node.uri_at(proxy.port()) + "?heartbeat=1";
    let before = Measures::now().tasks;
    for round in 0..3 {
        let raw = Raw::connect(&uri).await;
        raw.declare("proxied", QueueType::Classic, FieldTable::default()).await;
        assert_eq!(raw.publish("proxied", "m-1", b"one").await, Sent::Confirmed);
        proxy.delay(Direction::ToClient, Duration::from_millis(20));
        assert_eq!(raw.purge("proxied").await, 1);
        proxy.delay(Direction::ToClient, Duration::ZERO);
        proxy.cut().await;
        until("the client hears of it", || async { (!raw.connection().status().connected()).then_some(()) })
            .await;
        drop(raw);
        assert_eq!(proxy.counts().accepted, round + 1);
        until("its tasks end", || async { (Measures::now().tasks <= before).then_some(()) }).await;
    }
    let measures = Measures::now();
    assert!(measures.fds > 3 && measures.threads > 1, "{measures:?}");
}

#[test]
fn a_ledger_that_adds_up() {
    let ledger = Ledger::new();
    for id in ["handled", "twice", "dead", "queued", "unknown", "refused", "again"] {
        ledger.published(id);
    }
    for id in ["handled", "twice", "dead", "queued"] {
        ledger.confirmed(id);
    }
    ledger.refused("refused");
    ledger.refused("again");
    ledger.published("again");
    assert_eq!(["handled", "twice", "twice", "again"].map(|id| ledger.handled(id)), [1, 1, 2, 1]);
    ledger.acked("handled");
    ledger.dead_lettered("dead");
    ledger.queued("queued");
    let account = ledger.account();
    assert_eq!((account.published, account.confirmed, account.refused), (7, 4, 1));
    assert_eq!((account.handled, account.duplicates, account.acked), (3, 1, 1));
    assert_eq!((account.dead_lettered, account.queued), (1, 1));
    assert_eq!((ledger.handled_count(), ledger.confirmed_count()), (3, 4));
}

#[test]
fn a_ledger_names_what_is_missing_and_what_should_not_be_there() {
    let ledger = Ledger::new();
    ledger.published("lost");
    ledger.confirmed("lost");
    ledger.published("refused");
    ledger.refused("refused");
    ledger.queued("refused");
    ledger.handled("from nowhere");
    let account = ledger.add_up();
    assert_eq!(account.missing, ["lost"]);
    assert_eq!(account.refused_yet_found, ["refused"]);
    assert_eq!(account.unknown, ["from nowhere"]);
    let panic = std::panic::catch_unwind(|| ledger.account()).unwrap_err();
    let text = panic.downcast_ref::<String>().unwrap();
    assert!(text.contains("confirmed and missing (1): lost"), "{text}");
}
