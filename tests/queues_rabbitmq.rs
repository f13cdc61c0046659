//! Whether a queue is there, and deleting one. The broker is a node of the tests' own; which series it runs is chosen by
//! `RABBITMQ_BIN`.

#![cfg(feature = "rabbitmq")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

// Each test file uses its part of this.
#[allow(dead_code)]
#[path = "faults_rabbitmq/broker_bench.rs"]
mod broker_bench;
#[path = "support/log.rs"]
mod log;
#[path = "support/rabbit/mod.rs"]
mod rabbit;

use futures::future::join_all;
use lapin::options::{BasicConsumeOptions, BasicGetOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use windlass::ErrorKind;
use windlass::queue::Slot;
use windlass::rabbitmq::{DeleteQueue, RabbitEvent, RabbitMq, RabbitMqConfig};

use broker_bench::{Bench, KINDS, Told, config, lost};
use rabbit::{Node, Raw, bounded, until};

async fn connect(node: &Node) -> (RabbitMq, Told, Raw) {
    let rabbit = RabbitMq::connect(config(&node.uri())).await.expect("the node takes it");
    (rabbit.clone(), Told::new(&rabbit), Raw::connect(&node.uri()).await)
}

fn lost_connection(event: &RabbitEvent) -> Option<()> {
    matches!(event, RabbitEvent::Lost { .. }).then_some(())
}

// BC-44 a
#[tokio::test]
async fn asking_for_queues_tells_which_are_there_and_leaves_a_running_consumer_alone() {
    let node = Node::shared().await;
    let (rabbit, other) = (connect(node).await.0, connect(node).await.0);
    let slot = other.claim("asked-for", Slot::Number(1)).open().await.unwrap();
    for kind in KINDS {
        let bench = Bench::new(node, "asked-for", kind).await;
        let handle = bench.consumer(bench.source().await, |_| async { Ok(()) }).start().unwrap();
        bench.publish(1..=1).await;
        bench.until_acked(1).await;
        for round in 0..20 {
            let asked = [bench.queue.as_str(), "asked-for-not", "asked-for_1", "asked-for for? ü/%2f"];
            let found = join_all(asked.map(|queue| bounded("ask", bench.rabbit.queue_exists(queue)))).await;
            let found: Vec<_> = found.into_iter().map(|found| found.unwrap()).collect();
            assert_eq!(found, [true, false, true, false]);
            bench.publish(round + 2..=round + 2).await;
        }
        bench.until_acked(21).await;
        assert_eq!(bench.told.all(lost(&bench.queue)).len(), 0);
        assert_eq!(bench.count().await, (0, 1));
        assert!(handle.stop().await.is_clean());
        assert_eq!(bench.account().await.acked, 21);
    }
    assert!(other.queue_exists("asked-for_1").await.unwrap(), "also for the one that has it");
    drop(slot);
    until("it is gone", || async { (!rabbit.queue_exists("asked-for_1").await.unwrap()).then_some(()) })
        .await;
}

#[tokio::test]
async fn only_a_queue_that_is_empty_and_unused_is_deleted_unless_more_is_asked_for() {
    let node = Node::shared().await;
    let (rabbit, told, raw) = connect(node).await;
    for kind in KINDS {
        let queue = format!("deleted-{kind}");
        let queue = queue.as_str();
        assert_eq!(rabbit.delete_queue(queue, DeleteQueue::new()).await.unwrap(), None);
        raw.declare(queue, kind, FieldTable::default()).await;
        for id in ["a", "b"] {
            raw.publish(queue, id, b"x").await;
        }
        let unused = DeleteQueue::new().if_unused(false);
        for options in [DeleteQueue::default(), unused] {
            let error = rabbit.delete_queue(queue, options).await.unwrap_err();
            assert_eq!((error.kind(), error.is_transient()), (ErrorKind::Refused, false), "{error}");
            let text = error.to_string();
            assert!(
                text.contains("2 messages") && text.contains("if_empty") && text.contains(queue),
                "{text}"
            );
        }
        assert_eq!(raw.count(queue).await, Some((2, 0)));

        let consuming = raw.channel().await;
        let consume = consuming.basic_consume(
            queue.into(),
            "deleted".into(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        );
        let consumer = bounded("consume", consume).await.unwrap();
        let error = rabbit.delete_queue(queue, DeleteQueue::new().if_empty(false)).await.unwrap_err();
        assert_eq!((error.kind(), error.is_transient()), (ErrorKind::Refused, false), "{error}");
        let text = error.to_string();
        assert!(text.contains("1 consumers") && text.contains("if_unused"), "{text}");
        assert_eq!(raw.count(queue).await.map(|(_, consumers)| consumers), Some(1));
        bounded("close", consuming.close(200, "done".into())).await.unwrap();
        drop(consumer);
        until("both are back", || async { (raw.count(queue).await == Some((2, 0))).then_some(()) }).await;

        let deleted = rabbit.delete_queue(queue, DeleteQueue::new().if_empty(false)).await;
        assert_eq!(deleted.unwrap(), Some(2), "as many went with it");
        assert_eq!(raw.count(queue).await, None);
        raw.declare(queue, kind, FieldTable::default()).await;
        assert_eq!(rabbit.delete_queue(queue, DeleteQueue::new()).await.unwrap(), Some(0));
        assert!(!rabbit.queue_exists(queue).await.unwrap());
    }
    // The broker's own flags would have cost the connection with a quorum queue.
    assert_eq!(told.all(lost_connection).len(), 0);
}

#[tokio::test]
async fn a_queue_that_is_taken_from_its_consumer_is_told_to_it() {
    let node = Node::shared().await;
    for kind in KINDS {
        let bench = Bench::new(node, "taken-away", kind).await;
        let handle = bench.consumer(bench.source().await, |_| async { Ok(()) }).start().unwrap();
        bench.publish(1..=1).await;
        bench.until_acked(1).await;
        let everything = DeleteQueue::new().if_empty(false).if_unused(false);
        assert!(bench.rabbit.delete_queue(&bench.queue, everything).await.unwrap().is_some());
        let error = bench.told.until("says that the consumer is lost", 1, lost(&bench.queue)).await;
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        // Its dead-letter queue is another.
        let letters = format!("{}.dlq", bench.queue);
        assert!(bench.rabbit.queue_exists(&letters).await.unwrap());
        let _ = handle.stop().await;
        assert_eq!(bench.rabbit.delete_queue(&letters, DeleteQueue::new()).await.unwrap(), Some(0));
    }
}

#[tokio::test]
async fn a_queue_of_another_connection_is_not_deleted() {
    let node = Node::shared().await;
    let (rabbit, told, raw) = connect(node).await;
    let owner = raw.channel().await;
    let exclusive = QueueDeclareOptions { exclusive: true, ..QueueDeclareOptions::default() };
    let declared = owner.queue_declare("of-another".into(), exclusive, FieldTable::default());
    bounded("declare", declared).await.unwrap();
    let everything = DeleteQueue::new().if_empty(false).if_unused(false);
    let error = rabbit.delete_queue("of-another", everything).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    assert!(error.to_string().contains("405") && error.to_string().contains("of-another"), "{error}");
    assert!(rabbit.queue_exists("of-another").await.unwrap());
    let got = owner.basic_get("of-another".into(), BasicGetOptions::default());
    assert!(bounded("get", got).await.unwrap().is_none(), "it is there for its owner");
    assert_eq!(told.all(lost_connection).len(), 0);
}

// BC-41 d
#[tokio::test]
async fn a_user_that_may_not_delete_is_told_so_and_the_queue_stays() {
    let node = Node::shared().await;
    let (_, _, raw) = connect(node).await;
    raw.declare("no-right", KINDS[0], FieldTable::default()).await;
    node.management().put_user("deletes-nothing", "x").await;
    node.management().put_permissions("/", "deletes-nothing", ["", ".*", ".*"]).await;
    let settings: RabbitMqConfig = config(&node.uri()).with_user("deletes-nothing").with_password("x");
    let rabbit = RabbitMq::connect(settings).await.unwrap();
    assert!(rabbit.queue_exists("no-right").await.unwrap());
    let error = rabbit.delete_queue("no-right", DeleteQueue::new()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    assert!(error.to_string().contains("403") && error.to_string().contains("no-right"), "{error}");
    assert_eq!(raw.count("no-right").await, Some((0, 0)));
}

#[tokio::test]
async fn names_that_no_queue_has_are_refused_and_the_longest_is_not() {
    let node = Node::shared().await;
    let (rabbit, told, raw) = connect(node).await;
    let (long, longest) = ("q".repeat(256), "q".repeat(255));
    for (name, text) in [("", "`queue` is empty"), (long.as_str(), "256 bytes")] {
        let errors = [
            rabbit.queue_exists(name).await.unwrap_err(),
            rabbit.delete_queue(name, DeleteQueue::new()).await.unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
            assert!(error.to_string().contains(text), "{error}");
        }
    }
    raw.declare(&longest, KINDS[0], FieldTable::default()).await;
    assert!(rabbit.queue_exists(&longest).await.unwrap());
    assert_eq!(rabbit.delete_queue(&longest, DeleteQueue::new()).await.unwrap(), Some(0));
    assert_eq!(told.all(lost_connection).len(), 0);
    rabbit.disconnect().await;
    assert_eq!(rabbit.queue_exists("late").await.unwrap_err().kind(), ErrorKind::Closed);
    let error = rabbit.delete_queue("late", DeleteQueue::new()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
}
