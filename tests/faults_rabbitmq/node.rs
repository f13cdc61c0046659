//! The node itself: killed and started again, and frozen.

use std::time::Duration;

use futures::future::join_all;
use tokio::sync::{Mutex, MutexGuard, OnceCell};
use windlass::clock::{Clock, SystemClock};
use windlass::rabbitmq::RabbitMqConfig;
use windlass::source::Health;

use crate::broker_bench::{KINDS, ms};
use crate::flow::{
    Flow, ROLES, Sender, by_proxy, connected, consume, finish, lost, retrying, until_done, until_ready,
};
use crate::rabbit::{Node, Options, Raw, until};

/// The node that tests may break, one at a time; each leaves it whole.
pub(crate) async fn breakable() -> MutexGuard<'static, Node> {
    static NODE: OnceCell<Mutex<Node>> = OnceCell::const_new();
    NODE.get_or_init(async || Mutex::new(Node::start(Options::new()).await)).await.lock().await
}

/// A quorum queue that is younger when its node is killed comes back as a new member of itself that answers nobody:
/// RabbitMQ writes the list of members down every half a second.
const ON_DISK: Duration = ms(2_000);

// BC-10 b and d
#[tokio::test]
async fn a_killed_node_that_is_started_again_has_lost_nothing_and_the_consumers_go_on() {
    let node = breakable().await;
    let declared = SystemClock.now();
    let mut running = Vec::new();
    for kind in KINDS {
        let (proxy, bench) = by_proxy(&node, "killed", kind, |config| config).await;
        let handle = consume(&bench).await;
        let flow = Flow::start(&bench);
        running.push((proxy, bench, handle, flow));
    }
    for (_, bench, handle, _) in &running {
        bench.until_acked(50).await;
        until_ready(bench, handle).await;
    }
    until("the node has its queues on disk", || async {
        (SystemClock.now() - declared >= ON_DISK).then_some(())
    })
    .await;
    node.kill().await;
    for (_, bench, handle, _) in &running {
        for role in ROLES {
            bench.told.until("says that the connection is lost", 1, lost(role)).await;
            // The second is that of a try: nothing listens there.
            bench.told.until("says that it is tried again", 2, retrying(role)).await;
        }
        let Health::NotReady { reason } = bench.rabbit.health() else {
            panic!("{:?} with a dead node", bench.rabbit.health());
        };
        assert!(reason.contains("consume: ") && reason.contains("publish: "), "{reason}");
        assert!(matches!(handle.health(), Health::NotReady { .. }), "{:?}", handle.health());
    }
    node.restart().await;
    for (_, bench, handle, _) in &mut running {
        bench.raw = Raw::connect(&node.uri()).await;
        for role in ROLES {
            bench.told.until("says that the connection stands again", 1, connected(role)).await;
        }
        until_ready(bench, handle).await;
        let before = bench.ledger.add_up().acked;
        bench.until_acked(before + 50).await;
    }
    for (_proxy, bench, handle, flow) in running {
        flow.end().await;
        let account = finish(bench, handle).await;
        assert_eq!(account.queued, 0, "{account}");
    }
}

/// How soon a frozen node must be noticed, with a heartbeat of one second: two heartbeats without a byte, half of one
/// between two looks, and the rest for a busy machine.
const NOTICED: Duration = ms(4_000);

// BC-10 c
#[tokio::test]
async fn a_frozen_node_is_noticed_by_the_heartbeat_and_the_consumers_go_on_after_it() {
    let node = breakable().await;
    let mut running = Vec::new();
    for kind in KINDS {
        let quick = |config: RabbitMqConfig| config.with_heartbeat(ms(1_000)).with_connect_timeout(ms(1_000));
        let (proxy, bench) = by_proxy(&node, "frozen", kind, quick).await;
        let handle = consume(&bench).await;
        let flow = Flow::start(&bench);
        running.push((proxy, bench, handle, flow));
    }
    for (_, bench, ..) in &running {
        bench.until_acked(50).await;
    }
    node.stop_the_world().await;
    let frozen = SystemClock.now();
    let noticed = join_all(running.iter().flat_map(|(_, bench, ..)| {
        ROLES.map(|role| async move {
            bench.told.until("says that the connection is lost", 1, lost(role)).await;
            SystemClock.now() - frozen
        })
    }));
    let noticed = noticed.await;
    for (_, bench, handle, _) in &running {
        assert!(!bench.rabbit.health().is_ready() && !handle.health().is_ready());
    }
    // Three heartbeats at least, as long as it takes otherwise: the tries in between fail.
    until("three heartbeats have passed", || async {
        (SystemClock.now() - frozen >= ms(3_000)).then_some(())
    })
    .await;
    node.cont();
    assert!(noticed.iter().all(|after| *after < NOTICED), "{noticed:?}");
    for (_proxy, bench, handle, flow) in running {
        until_ready(&bench, &handle).await;
        flow.end().await;
        Sender::new(&bench).deliver("after").await;
        until_done(&bench, "after").await;
        let account = finish(bench, handle).await;
        assert_eq!(account.queued, 0, "{account}");
    }
}
