//! Several hosts, and hosts that take a connection and then say nothing, or hang up.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};

use lapin::types::FieldTable;
use windlass::clock::{Clock, SystemClock, within};
use windlass::rabbitmq::config::Host;
use windlass::rabbitmq::{RabbitMq, RabbitMqConfig};

use crate::alone::alone;
use crate::broker_bench::{Bench, config, ms};
use crate::flow::{ROLES, Sender, connected, consume, finish, until_done};
use crate::rabbit::{BOUND, Measures, Node, Proxy, QueueType, bounded, until, until_at_most};

fn at(port: u16) -> Host {
    Host::new("127.0.0.1").with_port(port)
}

async fn with_hosts(node: &Node, name: &str, ports: [u16; 2]) -> Bench {
    let config = config(&node.uri()).with_hosts(ports.map(at)).with_connect_timeout(ms(500));
    Bench::connected(node, config, name, QueueType::Quorum, FieldTable::default()).await
}

/// A message over both connections: published, and handled.
async fn works(bench: &Bench, id: &str) {
    Sender::new(bench).deliver(id).await;
    until_done(bench, id).await;
}

#[tokio::test]
async fn where_the_first_host_refuses_the_second_is_taken_and_the_first_again_when_that_dies() {
    let node = Node::shared().await;
    let (first, second) = (Proxy::start(node.amqp_port()), Proxy::start(node.amqp_port()));
    first.refuse(true).await;
    let bench = with_hosts(node, "hosts", [first.port(), second.port()]).await;
    assert_eq!((first.counts().accepted, second.counts().open()), (0, 2));
    let handle = consume(&bench).await;
    works(&bench, "second").await;
    for (round, (dies, lives)) in [(&second, &first), (&first, &second)].into_iter().enumerate() {
        lives.refuse(false).await;
        dies.refuse(true).await;
        dies.cut().await;
        for role in ROLES {
            let host = bench.told.until("says where it stands", round + 1, connected(role)).await;
            assert_eq!(host, at(lives.port()).to_string());
        }
        works(&bench, &format!("round-{round}")).await;
        assert_eq!((dies.counts().open(), lives.counts().open()), (0, 2));
    }
    let account = finish(bench, handle).await;
    assert_eq!(account.queued, 0, "{account}");
}

#[tokio::test]
async fn a_host_that_hangs_up_on_every_connection_costs_no_time() {
    let node = Node::shared().await;
    let (first, second) = (Proxy::start(node.amqp_port()), Proxy::start(node.amqp_port()));
    first.hang_up(true);
    let config = config(&node.uri()).with_hosts([first.port(), second.port()].map(at));
    let began = SystemClock.now();
    let rabbit = bounded("connect", RabbitMq::connect(config)).await.unwrap();
    let time = SystemClock.now() - began;
    assert!(time < ms(2_000), "{time:?}");
    assert_eq!(second.counts().open(), 2);
    rabbit.disconnect().await;
}

#[tokio::test]
async fn a_host_that_takes_the_connection_and_says_nothing_is_given_up_after_the_connect_timeout() {
    let node = Node::shared().await;
    let second = Proxy::start(node.amqp_port());
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = silent.local_addr().unwrap().port();
    let began = SystemClock.now();
    let bench = with_hosts(node, "silent-host", [port, second.port()]).await;
    let time = SystemClock.now() - began;
    assert!(time >= ms(500) && time < ms(5_000), "{time:?}");
    let handle = consume(&bench).await;
    works(&bench, "m").await;
    let account = finish(bench, handle).await;
    assert_eq!((account.acked, account.queued), (1, 0), "{account}");
}

/// One that hears nothing for two seconds, and is given up.
async fn tries_in_vain(config: RabbitMqConfig) {
    let tried = within(&SystemClock, ms(2_000), RabbitMq::connect(config)).await;
    assert!(tried.is_none(), "{tried:?}");
}

fn lapin_threads() -> usize {
    let names = fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = names.filter_map(|thread| fs::read_to_string(thread.path().join("comm")).ok());
    names.filter(|name| name.starts_with("lapin")).count()
}

// Alone, since the files and threads of the process are counted.
#[tokio::test]
async fn tries_that_are_given_up_leave_no_file_no_thread_and_no_task_behind() {
    let test = "hosts::tries_that_are_given_up_leave_no_file_no_thread_and_no_task_behind";
    let Some(place) = alone(test).await else { return };
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let hangs_up = Proxy::start(place.amqp);
    hangs_up.hang_up(true);
    let tasks = Measures::now().tasks;
    // What is made once and kept is made now.
    let whole = config(&place.uri_at(place.amqp)).with_heartbeat(ms(2_000));
    let rabbit = RabbitMq::connect(whole).await.unwrap();
    rabbit.disconnect().await;
    // What a connection had ends a moment after it.
    let ended = || async { (lapin_threads() == 0 && Measures::now().tasks == tasks).then(Measures::now) };
    let before = until("the first connections are gone", ended).await;
    for port in [silent.local_addr().unwrap().port(), hangs_up.port()] {
        let hosts = config(&place.uri_at(place.amqp)).with_hosts([at(port)]);
        tries_in_vain(hosts.with_connect_timeout(ms(200))).await;
        let same = || async { (Measures::now() == before).then_some(()) };
        if until_at_most(BOUND, same).await.is_none() {
            panic!("{:?}, and not {before:?}", Measures::now());
        }
    }
}

/// For a program that somebody waits for: one round, and then the reason.
#[tokio::test]
async fn who_connects_once_is_told_why_no_host_was_reached_and_else_has_a_connection_that_comes_back() {
    let node = Node::shared().await;
    let (gone, there) = (Proxy::start(node.amqp_port()), Proxy::start(node.amqp_port()));
    gone.refuse(true).await;
    // A second try would take longer than this test may.
    let nowhere = config(&node.uri())
        .with_hosts([at(gone.port())])
        .with_reconnect_delay(ms(60_000))
        .with_reconnect_max_delay(ms(60_000));
    let error = bounded("one try", RabbitMq::connect_once(nowhere)).await.expect_err("nobody listens");
    assert_eq!(error.kind(), windlass::ErrorKind::Disconnected, "{error}");
    let refused = config(&node.uri()).with_password("wrong");
    let error = bounded("one try", RabbitMq::connect_once(refused)).await.expect_err("a wrong password");
    assert_eq!(error.kind(), windlass::ErrorKind::Unauthorized, "{error}");

    let hosts = config(&node.uri()).with_hosts([gone.port(), there.port()].map(at));
    let rabbit = bounded("one try", RabbitMq::connect_once(hosts)).await.expect("the second host answers");
    assert_eq!(there.counts().open(), 2);
    there.cut().await;
    until("both connections are back", || async {
        (there.counts().open() == 2 && rabbit.health().is_ready()).then_some(())
    })
    .await;
    rabbit.disconnect().await;
}
