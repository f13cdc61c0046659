//! What the client of the management API reads of a real broker.

use serde_json::json;
use windlass::ErrorKind;

use crate::desk::Desk;
use crate::rabbit::{Raw, Series, bounded, until};

#[tokio::test]
async fn figures_are_unknown_first_and_right_later_and_never_zero_in_between() {
    let desk = Desk::new("figures").await;
    desk.made(&desk.topology()).await;
    let raw = Raw::connect(&desk.uri()).await;
    let (management, vhost) = (&desk.management, desk.vhost.as_str());
    raw.publish("orders", "m-1", b"x").await;
    raw.publish("orders", "m-2", b"x").await;
    let queue = json!({"durable": true, "auto_delete": false, "arguments": {"x-queue-type": "quorum"}});
    desk.ask("PUT", "/api/queues/{vhost}/new", Some(&queue)).await;
    let new = management.queue(vhost, "new").await.unwrap().expect("it is there");
    assert_eq!((new.name.as_str(), new.kind.as_deref(), new.messages), ("new", Some("quorum"), None));
    let orders = until("the figures", || async {
        let all = management.queues(vhost).await.unwrap();
        all.into_iter()
            .find(|queue| queue.name == "orders" && queue.ready == Some(2) && queue.consumers.is_some())
    })
    .await;
    assert_eq!((orders.messages, orders.unacked, orders.consumers), (Some(2), Some(0), Some(0)));
    assert_eq!((orders.durable, orders.kind.as_deref()), (Some(true), Some("quorum")));
    let effective =
        until("the policy", || async { management.effective_policy(vhost, "orders").await.unwrap() }).await;
    assert_eq!(effective.policy.as_deref(), Some("windlass.stage.orders"));
    assert_eq!(effective.definition["dead-letter-exchange"], "dead-letters");
    raw.close().await;
}

#[tokio::test]
async fn more_queues_than_fit_on_a_page_are_all_listed() {
    let desk = Desk::new("pages").await;
    desk.raw.put_vhost(&desk.vhost).await;
    let raw = Raw::connect(&desk.uri()).await;
    let channel = raw.channel().await;
    for number in 0..510 {
        let options = lapin::options::QueueDeclareOptions {
            exclusive: true,
            ..lapin::options::QueueDeclareOptions::default()
        };
        let name = format!("q-{number:04}");
        let declared = channel.queue_declare(name.as_str().into(), options, Default::default());
        bounded("declare", declared).await.unwrap();
    }
    let names = until("all of them", || async {
        let all = desk.management.queues(&desk.vhost).await.unwrap();
        (all.len() == 510).then(|| all.into_iter().map(|queue| queue.name).collect::<Vec<_>>())
    })
    .await;
    assert!(names.iter().enumerate().all(|(number, name)| *name == format!("q-{number:04}")));
    raw.close().await;
}

#[tokio::test]
async fn everything_can_be_listed() {
    let desk = Desk::new("lists").await;
    desk.made(&desk.topology()).await;
    let (management, vhost) = (&desk.management, desk.vhost.as_str());
    let overview = management.overview().await.unwrap();
    let series = overview
        .series()
        .map(|(major, minor)| Series(u16::try_from(major).unwrap(), u16::try_from(minor).unwrap()));
    assert_eq!(series, Some(desk.node.series()));
    assert!(overview.cluster.is_some());
    assert!(management.vhosts().await.unwrap().iter().any(|found| found.name == vhost));
    let users = management.users().await.unwrap();
    assert!(users.iter().any(|user| user.name == "guest" && user.tags == ["administrator"]));
    let permissions = management.permissions(vhost).await.unwrap();
    assert!(permissions.iter().any(|found| found.user == desk.user && found.configure == ".*"));
    let exchanges = management.exchanges(vhost).await.unwrap();
    assert!(exchanges.iter().any(|found| found.name == "all" && found.kind.as_deref() == Some("fanout")));
    let bindings = management.bindings(vhost, "dead-letters", "orders.dlq").await.unwrap();
    assert!(bindings.len() == 1 && bindings[0].routing_key == "orders", "{bindings:?}");
    let policies = management.policies(vhost).await.unwrap();
    assert!(policies.iter().any(|found| found.name == "windlass.dlq.orders" && found.priority == 100));
    let queues = management.queues(vhost).await.unwrap();
    assert_eq!(queues.len(), 7);
    assert!(management.operator_policies(vhost).await.unwrap().is_empty());
    assert!(management.queue(vhost, "nobody").await.unwrap().is_none());
    let error = management.queues("nobody").await.expect_err("no such virtual host");
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}
