//! Publishing with a delay: the wait queue is made at its first use, by however many at once.

use std::time::Duration;

use futures::future::join_all;
use windlass::ErrorKind;
use windlass::rabbitmq::ladder::wait_queue;

use super::desk::{Desk, kind, message, note};
use super::rabbit::{QueueType, bounded, until};

const DELAY: Duration = Duration::from_millis(50);

async fn later(desk: &Desk, queue: &str, id: String, delay: Duration) -> windlass::Result<()> {
    desk.ledger.published(&id);
    let outcome = desk.publisher.publish_later(queue, message(id.as_str()), delay).await;
    note(&desk.ledger, &id, &outcome);
    outcome
}

async fn until_there(desk: &Desk, queue: &str, count: u32) {
    until(&format!("{count} messages"), || async {
        (desk.raw.count(queue).await.is_some_and(|(ready, _)| ready == count)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_that_need_a_new_wait_queue_at_once_are_all_taken() {
    let desk = Desk::new("first-use").await;
    for kind_of_queue in [QueueType::Classic, QueueType::Quorum] {
        let queue = desk.queue(&kind_of_queue.to_string(), kind_of_queue).await;
        // Each of three delays has a queue of its own.
        let publishes = (0..300_u32).map(|number| {
            later(&desk, &queue, format!("{kind_of_queue}-{number}"), DELAY * (1 + number % 3))
        });
        for outcome in bounded("all", join_all(publishes)).await {
            assert_eq!(kind(&outcome), None, "{outcome:?}");
        }
        until_there(&desk, &queue, 300).await;
        assert_eq!(desk.account(&[&queue]).await, [300]);
    }
    desk.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_queue_that_was_deleted_is_made_again() {
    let desk = Desk::new("deleted").await;
    let queue = desk.queue("queue", QueueType::Quorum).await;
    for number in 0..3 {
        later(&desk, &queue, number.to_string(), DELAY).await.expect("it is taken");
        until_there(&desk, &queue, number + 1).await;
        desk.raw.delete(&wait_queue(&queue, DELAY)).await;
    }
    assert_eq!(desk.account(&[&queue]).await, [3]);
    desk.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_queue_that_somebody_made_otherwise_is_refused_where_it_has_to_be_made() {
    let desk = Desk::new("otherwise").await;
    let queue = desk.queue("queue", QueueType::Quorum).await;
    let user = "declares-nothing";
    let management = desk.node.management();
    management.put_user(user, "secret").await;
    management.put_permissions("/", user, ["^$", ".*", ".*"]).await;
    let uri = desk.node.uri().replace("guest:guest", &format!("{user}:secret"));
    let config = windlass::rabbitmq::RabbitMqConfig::from_uri(&uri).unwrap();
    let rabbit = bounded("connect", windlass::rabbitmq::RabbitMq::connect(config)).await.unwrap();
    let publish = rabbit.publisher();
    let refused = bounded("publish", publish.publish_later(&queue, message("a"), DELAY)).await;
    let error = refused.expect_err("this user may declare nothing");
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    assert!(error.to_string().contains(&wait_queue(&queue, DELAY)), "{error}");
    assert!(!error.to_string().contains(user), "{error}");
    // Once somebody has made it, it is used.
    later(&desk, &queue, "b".to_owned(), DELAY).await.expect("it is taken");
    desk.ledger.published("c");
    bounded("publish", publish.publish_later(&queue, message("c"), DELAY)).await.expect("it is taken");
    desk.ledger.confirmed("c");
    until_there(&desk, &queue, 2).await;
    assert_eq!(desk.account(&[&queue]).await, [2]);
    bounded("disconnect", rabbit.disconnect()).await;
    management.delete_user(user).await;
    desk.end().await;
}
