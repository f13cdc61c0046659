//! What the broker refuses: a missing queue, a missing right, a queue that is locked. At the opening it is an error, at
//! run time it is tried again no faster than configured.

use std::fs;

use lapin::options::{BasicCancelOptions, BasicConsumeOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::FieldTable;
use windlass::ErrorKind;
use windlass::clock::{Clock, SystemClock};
use windlass::message::Message;
use windlass::publisher::Publisher;
use windlass::rabbitmq::RabbitMq;
use windlass::source::Health;

use crate::broker_bench::{Bench, KINDS, Told, config, consuming, ms, refused};
use crate::rabbit::{Node, QueueType, bounded};

/// The waits of the configuration of the bench: 50 ms, then twice as long each time up to 400 ms, a fifth at random.
const FIRST_WAITS: [u64; 5] = [40, 80, 160, 320, 320];

/// Makes a user with these rights, and connects as one.
async fn connect_as(node: &Node, user: &str, rights: [&str; 3]) -> RabbitMq {
    node.management().put_user(user, "pässword").await;
    node.management().put_permissions("/", user, rights).await;
    RabbitMq::connect(config(&node.uri()).with_user(user).with_password("pässword")).await.unwrap()
}

// BC-41
#[tokio::test]
async fn a_queue_that_is_missing_is_an_error_at_once_that_names_it() {
    let node = Node::shared().await;
    let rabbit = RabbitMq::connect(config(&node.uri())).await.unwrap();
    let began = SystemClock.now();
    let error = rabbit.source("refusals-missing").open().await.unwrap_err();
    assert!(SystemClock.now() - began < ms(2_000));
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(error.to_string().contains("refusals-missing"), "{error}");
    let error = rabbit.publisher().publish("refusals-missing", Message::new("x")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unroutable, "{error}");
    assert!(error.to_string().contains("refusals-missing"), "{error}");
    rabbit.disconnect().await;
}

// BC-41 d: no right to read. AMQP has nothing to ask for it but to consume.
#[tokio::test]
async fn a_right_that_is_missing_is_told_and_consuming_begins_once_it_is_given() {
    let node = Node::shared().await;
    let bench = Bench::new(node, "no-right", KINDS[1]).await;
    bench.publish(1..=5).await;
    let rabbit = connect_as(node, "reads-nothing", [".*", ".*", ""]).await;
    let told = Told::new(&rabbit);
    let source = rabbit.source(&bench.queue).open().await.unwrap();
    let handle = bench.consumer(source, |_| async { Ok(()) }).start().unwrap();
    let (error, _) = told.until("says that consuming is refused", 3, refused(&bench.queue)).await;
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    assert!(error.to_string().contains("403") && error.to_string().contains(&bench.queue), "{error}");
    let Health::NotReady { reason } = handle.health() else { panic!("{:?}", handle.health()) };
    assert!(reason.contains("403") && reason.contains(&bench.queue), "{reason}");
    assert_eq!(bench.starts.len(), 0);

    node.management().put_permissions("/", "reads-nothing", [".*"; 3]).await;
    bench.until_acked(5).await;
    assert!(handle.stop().await.is_clean());
    rabbit.disconnect().await;
    assert_eq!(bench.account().await.acked, 5);
}

// BC-44 c: the queue is of another connection, as a queue of this one would be while the broker still has its old
// connection.
#[tokio::test]
async fn a_queue_that_is_locked_is_tried_at_the_configured_pace_until_it_is_free() {
    let node = Node::shared().await;
    let bench = Bench::new(node, "locked", KINDS[0]).await;
    let source = bench.source().await;
    bench.raw.delete(&bench.queue).await;
    let owner = bench.raw.channel().await;
    let exclusive = QueueDeclareOptions { exclusive: true, ..QueueDeclareOptions::default() };
    let declared = owner.queue_declare(bench.queue.as_str().into(), exclusive, FieldTable::default());
    bounded("declare", declared).await.unwrap();

    // At the opening it is an error.
    let error = bench.options().open().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    assert!(error.to_string().contains("405") && error.to_string().contains(&bench.queue), "{error}");

    let handle = bench.consumer(source, |_| async { Ok(()) }).start().unwrap();
    assert_paced(node, &bench, "405").await;
    let Health::NotReady { reason } = handle.health() else { panic!("{:?}", handle.health()) };
    assert!(reason.contains("405") && reason.contains(&bench.queue), "{reason}");

    let deleted = owner.queue_delete(bench.queue.as_str().into(), QueueDeleteOptions::default());
    bounded("delete", deleted).await.unwrap();
    bench.raw.declare(&bench.queue, bench.kind, FieldTable::default()).await;
    bench.told.until("says that it consumes", 1, consuming(&bench.queue)).await;
    bench.publish(1..=3).await;
    bench.until_acked(3).await;
    assert!(handle.stop().await.is_clean());
    assert_eq!(bench.account().await.acked, 3);
}

// BC-44 e: another consumer has the queue for itself.
#[tokio::test]
async fn a_queue_in_exclusive_use_is_tried_at_the_configured_pace_until_it_is_free() {
    let node = Node::shared().await;
    {
        // Quorum queues know no exclusive use.
        let bench = Bench::new(node, "in-use", QueueType::Classic).await;
        let owner = bench.raw.channel().await;
        let exclusive = BasicConsumeOptions { exclusive: true, ..BasicConsumeOptions::default() };
        let tag = "the-owner";
        let consume =
            owner.basic_consume(bench.queue.as_str().into(), tag.into(), exclusive, FieldTable::default());
        let consumer = bounded("consume", consume).await.unwrap();

        let handle = bench.consumer(bench.source().await, |_| async { Ok(()) }).start().unwrap();
        assert_paced(node, &bench, "403").await;
        let Health::NotReady { reason } = handle.health() else { panic!("{:?}", handle.health()) };
        assert!(reason.contains("403") && reason.contains(&bench.queue), "{reason}");

        bounded("cancel", owner.basic_cancel(tag.into(), BasicCancelOptions::default())).await.unwrap();
        drop(consumer);
        bench.publish(1..=3).await;
        bench.until_acked(3).await;
        assert_eq!(bench.count().await, (0, 1));
        assert!(handle.stop().await.is_clean());
        assert_eq!(bench.account().await.acked, 3);
    }
}

/// Waits for some tries that fail, and sees from the broker's log that there were no more than were told, and from the
/// clock that they were as far apart as configured.
async fn assert_paced(node: &Node, bench: &Bench, code: &str) {
    let began = SystemClock.now();
    let tries = FIRST_WAITS.len();
    let (error, _) =
        bench.told.until("says that consuming is refused", tries + 1, refused(&bench.queue)).await;
    let took = SystemClock.now() - began;
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    assert!(error.to_string().contains(code) && error.to_string().contains(&bench.queue), "{error}");
    let told = bench.told.all(refused(&bench.queue));
    for ((_, delay), at_least) in told.iter().zip(FIRST_WAITS) {
        assert!(*delay >= ms(at_least), "{told:?}");
    }
    assert!(took >= ms(FIRST_WAITS.iter().sum()), "{took:?}");
    let log = fs::read_to_string(node.folder().join("log/node.log")).unwrap();
    let named = format!("queue '{}'", bench.queue);
    let seen = log.lines().filter(|line| line.contains("operation basic.consume") && line.contains(&named));
    let (seen, told) = (seen.count(), bench.told.all(refused(&bench.queue)).len());
    assert!((1..=told + 1).contains(&seen), "the broker saw {seen}, and {told} were told");
}
