//! A paused consumer stays paused, whatever the connection does.

use windlass::consumer::Status;
use windlass::rabbitmq::Role;

use crate::broker_bench::{Bench, KINDS, ms, prefetch};
use crate::flow::{ROLES, by_proxy, connected, finish, idle, until_done};
use crate::rabbit::{Node, bounded, until_at_most};

/// Looks for a while whether anything is consumed, and whether it is all still there.
async fn nothing_is_consumed(bench: &Bench, ready: u32) {
    let consumed = || async {
        let counts = bench.count().await;
        (counts != (ready, 0)).then_some(counts)
    };
    assert_eq!(until_at_most(ms(1_500), consumed).await, None, "a paused consumer must not pull");
}

// BC-59
#[tokio::test]
async fn a_paused_consumer_stays_paused_through_a_reconnect_and_then_handles_each_message_once() {
    for kind in KINDS {
        let (proxy, bench) = by_proxy(Node::shared().await, "paused", kind, |config| config).await;
        let source = bench.options().prefetch(prefetch(5)).open().await.unwrap();
        let handle = idle(&bench, source).start().unwrap();
        bench.publish(1..=1).await;
        until_done(&bench, "m-1").await;
        bounded("pause", handle.pause()).await;
        bench.until_count((0, 0)).await;
        proxy.cut().await;
        for role in ROLES {
            bench.told.until("says that it stands again", 1, connected(role)).await;
        }
        bench.publish(2..=11).await;
        nothing_is_consumed(&bench, 10).await;
        assert_eq!((handle.status(), bench.starts.len()), (Status::Paused, 1));
        assert!(bench.rabbit.health().is_ready());
        bounded("resume", handle.resume()).await;
        for number in 2..=11 {
            until_done(&bench, &format!("m-{number}")).await;
        }
        assert_eq!(bench.starts.len(), 11, "each is handled once");
        let account = finish(bench, handle).await;
        assert_eq!((account.acked, account.queued), (11, 0), "{account}");
    }
}

// BC-59: also where the connection comes back after the resume.
#[tokio::test]
async fn paused_twice_it_is_resumed_by_one_resume_also_while_the_connection_is_away() {
    for kind in KINDS {
        let (proxy, bench) = by_proxy(Node::shared().await, "paused-twice", kind, |config| config).await;
        let handle = idle(&bench, bench.source().await).start().unwrap();
        bench.until_count((0, 1)).await;
        bounded("pause", async { tokio::join!(handle.pause(), handle.pause()) }).await;
        bench.publish(1..=3).await;
        bench.until_count((3, 0)).await;
        proxy.refuse(true).await;
        proxy.cut().await;
        bounded("pause again", handle.pause()).await;
        bounded("resume", handle.resume()).await;
        proxy.refuse(false).await;
        bench.told.until("says that it stands again", 1, connected(Role::Consume)).await;
        for number in 1..=3 {
            until_done(&bench, &format!("m-{number}")).await;
        }
        assert_eq!(bench.starts.ids(), ["m-1", "m-2", "m-3"]);
        let account = finish(bench, handle).await;
        assert_eq!((account.acked, account.queued), (3, 0), "{account}");
    }
}

// BC-59
#[tokio::test]
async fn a_consumer_that_was_paused_before_its_start_pulls_nothing_until_it_is_resumed() {
    for kind in KINDS {
        let (proxy, bench) = by_proxy(Node::shared().await, "paused-before", kind, |config| config).await;
        bench.publish(1..=3).await;
        let consumer = idle(&bench, bench.source().await);
        bounded("pause", consumer.handle().pause()).await;
        let handle = consumer.start().unwrap();
        proxy.cut().await;
        bench.told.until("says that it stands again", 1, connected(Role::Consume)).await;
        nothing_is_consumed(&bench, 3).await;
        bounded("resume", handle.resume()).await;
        for number in 1..=3 {
            until_done(&bench, &format!("m-{number}")).await;
        }
        assert_eq!(bench.starts.ids(), ["m-1", "m-2", "m-3"]);
        let account = finish(bench, handle).await;
        assert_eq!((account.acked, account.queued), (3, 0), "{account}");
    }
}
