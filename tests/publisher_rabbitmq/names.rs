//! Names that AMQP cannot carry are refused, and lapin, which panics over them, never sees them.

use std::time::Duration;

use windlass::ErrorKind;
use windlass::rabbitmq::ladder::{LONGEST_QUEUE_NAME, wait_queue};
use windlass::rabbitmq::{DeadLetterTo, dead_letter_queue};
use windlass::source::MessageSource;

use super::desk::{Desk, message};
use super::rabbit::{QueueType, bounded, until};

const SECOND: Duration = Duration::from_secs(1);

/// Of so many bytes, beginning with the name.
fn long(name: &str, bytes: usize) -> String {
    format!("{name}{}", "q".repeat(bytes - name.len()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_of_more_than_255_bytes_is_refused_wherever_it_is_given() {
    let desk = Desk::new("long-names").await;
    let queue = desk.queue("queue", QueueType::Classic).await;
    for name in [long("", 256), long("", 300), "é".repeat(128), long("", 100_000)] {
        let to = |exchange: &str, key: &str| DeadLetterTo::Exchange {
            exchange: exchange.to_owned(),
            routing_key: key.to_owned(),
        };
        let opened = [
            desk.rabbit.source(&name).open().await,
            desk.rabbit.source(&queue).dead_letter_to(to(&name, "key")).open().await,
            desk.rabbit.source(&queue).dead_letter_to(to("amq.direct", &name)).open().await,
            desk.rabbit.source(&queue).dead_letter_to(to("", &name)).open().await,
        ];
        let published = [
            desk.publish(&name, message("a")).await,
            desk.publisher.publish_to(&name, "key", message("b")).await,
            desk.publisher.publish_to("amq.direct", &name, message("c")).await,
            desk.publisher.publish_later(&name, message("d"), SECOND).await,
            desk.publisher.publish_later(&name, message("e"), Duration::ZERO).await,
        ];
        let outcomes = opened.into_iter().map(|outcome| outcome.map(drop)).chain(published);
        for (number, outcome) in outcomes.enumerate() {
            let error = outcome.expect_err("it is too long");
            assert_eq!(
                (error.kind(), error.is_transient()),
                (ErrorKind::Invalid, false),
                "{number}: {error}"
            );
            assert!(error.to_string().contains("bytes"), "{number}: {error}");
        }
    }
    assert_eq!(desk.account(&[&queue]).await, [0]);
    desk.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_longest_names_work_as_any_other() {
    let desk = Desk::new("longest-names").await;
    let longest = long(&desk.name("255"), 255);
    desk.raw.declare(&longest, QueueType::Quorum, Default::default()).await;
    desk.publish(&longest, message("a")).await.expect("it is taken");
    // It has no room for a wait queue, and so for no source.
    let error = desk.publisher.publish_later(&longest, message("b"), SECOND).await.expect_err("no room");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let error = desk.rabbit.source(&longest).open().await.expect_err("no room");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert_eq!(desk.account(&[&longest]).await, [1]);

    let waits = long(&desk.name("waits"), LONGEST_QUEUE_NAME);
    for queue in [&waits, &dead_letter_queue(&waits)] {
        desk.raw.declare(queue, QueueType::Quorum, Default::default()).await;
    }
    for delay in [Duration::ZERO, Duration::from_millis(20), Duration::MAX] {
        let id = format!("{delay:?}");
        desk.ledger.published(&id);
        desk.publisher.publish_later(&waits, message(&id), delay).await.expect("it is taken");
        desk.ledger.confirmed(&id);
    }
    until("two are there", || async { (desk.raw.count(&waits).await == Some((2, 0))).then_some(()) }).await;
    let source = bounded("open", desk.rabbit.source(&waits).open()).await.expect("there is room");
    bounded("close", source.close()).await.expect("it closes");
    let wait = wait_queue(&waits, Duration::MAX);
    assert_eq!(desk.account(&[&waits, &wait]).await, [2, 1]);
    desk.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_name_is_no_queue() {
    let desk = Desk::new("empty-names").await;
    let error = desk.rabbit.source("").open().await.expect_err("no queue has it");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let error = desk.publish("", message("a")).await.expect_err("no queue has it");
    assert!(matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Unroutable), "{error}");
    // It would wait for a queue that can never be.
    let error = desk.publisher.publish_later("", message("b"), SECOND).await.expect_err("no queue has it");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    desk.account(&[]).await;
    desk.end().await;
}
