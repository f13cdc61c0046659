//! Who gets a slot.

use std::collections::BTreeSet;

use futures::future::join_all;
use lapin::types::FieldTable;
use windlass::ErrorKind;
use windlass::queue::Slot;
use windlass::rabbitmq::{QueueType, RabbitMq};
use windlass::source::MessageSource;

use crate::broker_bench::config;
use crate::desk::{claim, connect, first_of, names, queues};
use crate::rabbit::{self, Node, Raw, Sent, bounded};

#[tokio::test]
async fn a_slot_is_had_once_by_two_connections_and_by_two_sources_of_one() {
    let node = Node::shared().await;
    let (one, other) = (connect(node).await, connect(node).await);
    let source = claim(&one, "had-once", 7).await;
    assert_eq!((source.slot(), source.queue_name()), (Some(7), "had-once_7"));

    let made = queues(node, "had-once_").await;
    let [queue] = &made[..] else { panic!("{made:?}") };
    assert_eq!(queue["name"], "had-once_7");
    assert_eq!(queue["exclusive"], true, "{queue}");
    assert_eq!(queue["durable"], false, "{queue}");
    assert_eq!(queue["type"], "classic", "{queue}");

    for rabbit in [&one, &one.clone(), &other] {
        let taken = bounded("claim", rabbit.claim("had-once", Slot::Number(7)).open()).await.unwrap_err();
        assert_eq!(taken.kind(), ErrorKind::Taken, "{taken}");
        assert!(!taken.is_transient(), "{taken}");
        assert!(taken.to_string().contains("queue had-once_7, slot 7"), "{taken}");
    }
    // The others of the family are free, and the number may be any.
    assert_eq!(claim(&other, "had-once", 0).await.slot(), Some(0));
    assert_eq!(claim(&other, "had-once", u32::MAX).await.queue_name(), "had-once_4294967295");
    // Nobody else can consume it either.
    let refused = bounded("open", other.source("had-once_7").open()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Refused, "{refused}");
    assert!(refused.to_string().contains("405") && refused.to_string().contains("had-once_7"), "{refused}");
    assert!(source.health() != windlass::source::Health::Closed, "the refusals did not end it");
    assert_eq!(one.source("had-once.none").open().await.unwrap_err().kind(), ErrorKind::NotFound);
}

// Both between connections, where the broker decides, and between the sources of one.
#[tokio::test]
async fn many_that_claim_the_first_free_slot_at_once_get_one_each() {
    let node = Node::shared().await;
    let connections = join_all((0..4).map(|_| connect(node))).await;
    for round in 0..5 {
        let family = format!("at-once-{round}");
        let claims = connections
            .iter()
            .flat_map(|rabbit| (0..3).map(|_| bounded("claim", rabbit.claim(&family, first_of(12)).open())));
        let mut sources: Vec<_> =
            join_all(claims).await.into_iter().map(|source| source.expect("there are twelve")).collect();
        let slots: BTreeSet<u32> = sources.iter().filter_map(|source| source.slot()).collect();
        assert_eq!(slots, (1..=12).collect());

        for rabbit in &connections {
            let taken = bounded("claim", rabbit.claim(&family, first_of(12)).open()).await.unwrap_err();
            assert_eq!(taken.kind(), ErrorKind::Taken, "{taken}");
            let text = taken.to_string();
            assert!(text.contains("none is free") && text.contains("12") && text.contains(&family), "{text}");
        }
        let fifth = sources.iter().position(|source| source.slot() == Some(5)).unwrap();
        sources.swap_remove(fifth).close().await.unwrap();
        let again = bounded("claim", connections[0].claim(&family, first_of(12)).open()).await.unwrap();
        assert_eq!(again.slot(), Some(5), "the one that is free");
    }
    for rabbit in connections {
        rabbit.disconnect().await;
    }
}

#[tokio::test]
async fn of_many_that_claim_one_slot_at_once_one_gets_it() {
    let node = Node::shared().await;
    let connections = join_all((0..6).map(|_| connect(node))).await;
    for _ in 0..10 {
        let claims = connections
            .iter()
            .chain(&connections)
            .map(|rabbit| bounded("claim", rabbit.claim("one-of-many", Slot::Number(1)).open()));
        let claims = join_all(claims).await;
        let errors: Vec<_> = claims.iter().filter_map(|claim| claim.as_ref().err()).collect();
        assert_eq!(errors.len(), claims.len() - 1, "{claims:?}");
        assert!(errors.iter().all(|error| error.kind() == ErrorKind::Taken), "{errors:?}");
        for source in claims.into_iter().flatten() {
            source.close().await.unwrap();
        }
        assert_eq!(names(node, "one-of-many").await, [""; 0], "the refused ones left nothing, too");
    }
}

#[tokio::test]
async fn a_queue_that_is_nobodys_alone_is_no_slot_and_is_left_as_it_is() {
    let node = Node::shared().await;
    let (rabbit, raw) = (connect(node).await, Raw::connect(&node.uri()).await);
    for kind in [rabbit::QueueType::Classic, rabbit::QueueType::Quorum] {
        let family = format!("nobodys-{kind}");
        let queue = Slot::queue(&family, 1);
        raw.declare(&queue, kind, FieldTable::default()).await;
        assert_eq!(raw.publish(&queue, "m", b"x").await, Sent::Confirmed);
        for slot in [Slot::Number(1), first_of(3)] {
            let error = bounded("claim", rabbit.claim(&family, slot).open()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Refused, "no claimant will ever let go of it: {error}");
            assert!(error.to_string().contains(&queue) && error.to_string().contains("delete it"), "{error}");
        }
        assert_eq!(raw.count(&queue).await, Some((1, 0)));
        raw.delete(&queue).await;
        claim(&rabbit, &family, 1).await.close().await.unwrap();
    }
}

// BC-41 d
#[tokio::test]
async fn a_user_that_may_not_make_the_queue_is_told_so() {
    let node = Node::shared().await;
    node.management().put_user("claims-nothing", "x").await;
    node.management().put_permissions("/", "claims-nothing", ["", ".*", ".*"]).await;
    let settings = config(&node.uri()).with_user("claims-nothing").with_password("x");
    let rabbit = RabbitMq::connect(settings).await.unwrap();
    let error = bounded("claim", rabbit.claim("no-right", first_of(3)).open()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    assert!(error.to_string().contains("403") && error.to_string().contains("no-right_1"), "{error}");
    assert!(!error.to_string().contains("claims-nothing"), "{error}");
}

#[tokio::test]
async fn what_cannot_be_a_slot_is_refused_by_its_field() {
    let rabbit = connect(Node::shared().await).await;
    let long = "f".repeat(235);
    let options = [
        (rabbit.claim("", Slot::Number(1)), "`family` is empty"),
        (rabbit.claim(&long, Slot::Number(10)), "238 bytes"),
        (rabbit.claim(&long, first_of(10)), "238 bytes"),
        (rabbit.claim("kind", Slot::Number(1)).queue_type(QueueType::Quorum), "`queue_type`"),
    ];
    for (options, text) in options {
        let error = options.open().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains(text), "{error}");
    }
    let longest = claim(&rabbit, &long, 9).await;
    assert_eq!(longest.queue_name().len(), 237);
    rabbit.disconnect().await;
    let error = rabbit.claim("late", Slot::Number(1)).open().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
}
