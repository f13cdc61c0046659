//! Connections that the broker or the network closes, again and again.

use windlass::error::ErrorKind;
use windlass::rabbitmq::{RabbitMqConfig, Role};

use crate::broker_bench::{Bench, KINDS, ms};
use crate::flow::{
    Flow, ROLES, Sender, by_proxy, connected, consume, finish, lost, retrying, until_done, until_ready,
};
use crate::rabbit::{Management, Node, until};

/// Has the broker close a connection; returns once it says so. The list of connections lags.
pub(crate) async fn close(management: &Management, bench: &Bench, role: Role) {
    let name = format!("{} ({role})", bench.queue);
    let before = bench.told.all(lost(role)).len();
    until(&format!("the connection {name} is closed"), || async {
        for found in management.connections().await {
            if found.connection_name.as_deref() == Some(&name) {
                // One that is gone already is not found.
                let path = format!("/api/connections/{}", found.name.replace(' ', "%20").replace('>', "%3E"));
                let _ = management.request("DELETE", &path, None).await;
            }
        }
        (bench.told.all(lost(role)).len() > before).then_some(())
    })
    .await;
}

#[tokio::test]
async fn connections_that_an_operator_closes_come_back_each_time_and_lose_nothing() {
    let node = Node::shared().await;
    let management = node.management();
    for kind in KINDS {
        let (_proxy, bench) = by_proxy(node, "closed", kind, |config| config).await;
        let handle = consume(&bench).await;
        let flow = Flow::start(&bench);
        for round in 1..=3 {
            for role in ROLES {
                bench.until_acked(bench.ledger.add_up().acked + 10).await;
                close(&management, &bench, role).await;
                let error = bench.told.until("says that it is lost", round, lost(role)).await;
                // The broker's reason does not always get through: it closes the socket while the client still writes.
                assert_eq!(error.kind(), ErrorKind::Disconnected, "{error}");
                bench.told.until("says that it is tried again", round, retrying(role)).await;
                bench.told.until("says that it stands again", round, connected(role)).await;
            }
            until_ready(&bench, &handle).await;
        }
        flow.end().await;
        assert_eq!(bench.count().await.1, 1);
        let account = finish(bench, handle).await;
        assert_eq!(account.queued, 0, "{account}");
    }
}

// BC-05: the connection goes again in the middle of the way back, and again the moment it is there.
#[tokio::test]
async fn a_connection_that_is_lost_twice_within_one_step_of_the_backoff_comes_back_once() {
    let node = Node::shared().await;
    for kind in KINDS {
        let slow =
            |config: RabbitMqConfig| config.with_reconnect_delay(ms(150)).with_reconnect_max_delay(ms(150));
        let (proxy, bench) = by_proxy(node, "twice", kind, slow).await;
        let handle = consume(&bench).await;
        let sender = Sender::new(&bench);
        sender.deliver("before").await;
        until_done(&bench, "before").await;
        let accepted = proxy.counts().accepted;
        proxy.cut().await;
        // The first of the two that comes back is cut in its handshake.
        proxy.until(|counts| counts.accepted > accepted).await;
        proxy.cut().await;
        // And whatever stands next is cut at once, while the source sets up its consumer.
        bench.told.until("says that it stands again", 1, connected(Role::Consume)).await;
        proxy.cut().await;
        sender.deliver("after").await;
        until_done(&bench, "after").await;
        until_ready(&bench, &handle).await;
        assert_eq!(proxy.counts().open(), 2, "one connection for each role");
        bench.until_count((0, 1)).await;
        let account = finish(bench, handle).await;
        assert_eq!((account.acked, account.queued), (2, 0), "{account}");
    }
}
