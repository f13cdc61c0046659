//! A network that says nothing: bytes that vanish, streams that end on one side, and delays.

use std::time::Duration;

use windlass::clock::{Clock, SystemClock};
use windlass::rabbitmq::{RabbitMqConfig, Role};

use crate::broker_bench::{Bench, ms};
use crate::flow::{ROLES, Sender, by_proxy, consume, finish, lost, until_done, until_ready};
use crate::rabbit::{Direction, Node, Proxy, QueueType, until};

const HEARTBEAT: Duration = ms(1_000);

fn impatient(config: RabbitMqConfig) -> RabbitMqConfig {
    config.with_heartbeat(HEARTBEAT).with_connect_timeout(ms(1_000)).with_publish_timeout(ms(1_000))
}

/// With time for what is slow.
fn patient(config: RabbitMqConfig) -> RabbitMqConfig {
    impatient(config).with_publish_timeout(ms(10_000))
}

/// Waits until both connections are lost; returns how long that took.
async fn until_lost(bench: &Bench) -> Duration {
    let began = SystemClock.now();
    for role in ROLES {
        bench.told.until("says that it is lost", 1, lost(role)).await;
    }
    SystemClock.now() - began
}

/// A consumer that has handled a message; then the fault; then a message that must be handled.
async fn through(
    name: &str,
    kind: QueueType,
    fault: impl AsyncFnOnce(&Proxy, &Bench),
    mend: impl FnOnce(&Proxy),
) {
    let (proxy, bench) = by_proxy(Node::shared().await, name, kind, impatient).await;
    let handle = consume(&bench).await;
    let sender = Sender::new(&bench);
    sender.deliver("before").await;
    until_done(&bench, "before").await;
    fault(&proxy, &bench).await;
    mend(&proxy);
    sender.deliver("after").await;
    until_done(&bench, "after").await;
    until_ready(&bench, &handle).await;
    bench.until_count((0, 1)).await;
    let account = finish(bench, handle).await;
    assert_eq!(account.queued, 0, "{account}");
}

// BC-10 c: the broker is not heard any more. Two heartbeats without a byte, half of one between two looks, and the rest
// for a busy machine.
#[tokio::test]
async fn a_broker_that_is_not_heard_any_more_is_noticed_by_the_heartbeat() {
    let swallow = async |proxy: &Proxy, bench: &Bench| {
        proxy.swallow(Direction::ToClient, true);
        let noticed = until_lost(bench).await;
        assert!(noticed < ms(4_000), "{noticed:?}");
    };
    through("unheard", QueueType::Classic, swallow, |proxy| proxy.swallow(Direction::ToClient, false)).await;
}

// BC-10 c, the other direction: what we settle is swallowed, and comes again. RabbitMQ hangs up after three heartbeats.
#[tokio::test]
async fn a_client_that_the_broker_does_not_hear_any_more_learns_of_it_and_goes_on() {
    let swallow = async |proxy: &Proxy, bench: &Bench| {
        proxy.swallow(Direction::ToBroker, true);
        let noticed = until_lost(bench).await;
        assert!(noticed < ms(8_000), "{noticed:?}");
    };
    through("mute", QueueType::Quorum, swallow, |proxy| proxy.swallow(Direction::ToBroker, false)).await;
}

#[tokio::test]
async fn a_stream_that_ends_on_one_side_is_noticed_at_once() {
    for direction in [Direction::ToClient, Direction::ToBroker] {
        let close = async |proxy: &Proxy, bench: &Bench| {
            proxy.half_close(direction);
            let noticed = until_lost(bench).await;
            assert!(noticed < ms(2_000), "{direction:?}: {noticed:?}");
        };
        through(&format!("half-{direction:?}"), QueueType::Classic, close, |_| {}).await;
    }
}

#[tokio::test]
async fn a_network_with_delays_within_the_heartbeat_loses_no_connection() {
    let (proxy, bench) = by_proxy(Node::shared().await, "slow", QueueType::Quorum, patient).await;
    let handle = consume(&bench).await;
    for direction in [Direction::ToClient, Direction::ToBroker] {
        proxy.delay(direction, ms(150));
    }
    let began = SystemClock.now();
    let sender = Sender::new(&bench);
    let ids: Vec<String> = (1..=10).map(|number| format!("m-{number}")).collect();
    for id in &ids {
        sender.deliver(id).await;
    }
    for id in &ids {
        until_done(&bench, id).await;
    }
    // Long enough for a heartbeat that is too late to have ended something.
    until("three heartbeats", || async { (SystemClock.now() - began >= 3 * HEARTBEAT).then_some(()) }).await;
    for role in [Role::Consume, Role::Publish] {
        assert_eq!(bench.told.all(lost(role)).len(), 0);
    }
    assert_eq!(bench.starts.len(), 10, "each is handled once");
    let account = finish(bench, handle).await;
    assert_eq!((account.confirmed, account.acked, account.queued), (10, 10, 0), "{account}");
}
