//! The wait queues of delayed retries: made on first use, and what if they cannot be, are other ones, or go.

use lapin::types::{AMQPValue, FieldTable};
use serde_json::json;
use windlass::ErrorKind;
use windlass::consumer::{ConsumerEvent, RetryPolicy};
use windlass::handler::HandlerError;
use windlass::message::Message;
use windlass::rabbitmq::RabbitMq;

use crate::broker_bench::{Bench, KINDS, config, ms};
use crate::rabbit::{Node, QueueType, until};

/// A consumer whose attempts fail up to this one, each tried again after 200 ms.
fn fails_until(
    bench: &Bench,
    source: windlass::rabbitmq::RabbitSource,
    attempt: u32,
) -> windlass::ConsumerHandle {
    let consumer = bench.consumer(source, move |context| async move {
        if context.attempt() < attempt { Err(HandlerError::failed("not yet")) } else { Ok(()) }
    });
    consumer.retry_policy(RetryPolicy::schedule([ms(200); 9])).start().unwrap()
}

/// Waits until so many answers were refused.
async fn refused_answers(bench: &Bench, count: usize) -> Vec<ConsumerEvent> {
    until("answers are refused", || async {
        let refused: Vec<_> =
            bench.done.all().into_iter().filter(|done| done.settle_error.is_some()).collect();
        (refused.len() >= count).then_some(refused)
    })
    .await
}

// BC-41 a
#[tokio::test]
async fn a_wait_queue_with_other_arguments_is_refused_by_name_and_the_message_is_kept() {
    let bench = Bench::new(Node::shared().await, "wait-other", QueueType::Quorum).await;
    let waits = format!("{}.wait.200", bench.queue);
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-length".into(), AMQPValue::LongInt(5));
    bench.raw.declare(&waits, QueueType::Quorum, arguments).await;
    bench.publish(1..=1).await;
    let handle = fails_until(&bench, bench.source().await, 2);
    for refused in refused_answers(&bench, 3).await {
        let error = refused.settle_error.unwrap();
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        assert!(error.to_string().contains(&waits), "{error}");
        assert_eq!(refused.message.attempt(), 1, "no attempt was made of it");
    }
    assert_eq!(bench.raw.count(&waits).await, Some((0, 0)), "it would lie there for ever");
    let error = bench.rabbit.publisher().publish_later(&bench.queue, Message::new("x"), ms(200)).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Refused);

    // Once it is out of the way, it is made as it must be.
    bench.raw.delete(&waits).await;
    bench.until_acked(1).await;
    let _ = handle.stop().await;
    let account = bench.account().await;
    assert_eq!((account.acked, account.queued), (1, 0), "{account}");
}

// BC-41 d
#[tokio::test]
async fn a_wait_queue_that_this_user_may_not_make_is_refused_by_name_and_the_message_is_kept() {
    let node = Node::shared().await;
    let bench = Bench::new(node, "wait-right", QueueType::Quorum).await;
    node.management().put_user("configures-nothing", "x").await;
    node.management().put_permissions("/", "configures-nothing", ["", ".*", ".*"]).await;
    let settings = config(&node.uri()).with_user("configures-nothing").with_password("x");
    let rabbit = RabbitMq::connect(settings).await.unwrap();
    let waits = format!("{}.wait.200", bench.queue);
    bench.publish(1..=1).await;
    let handle = fails_until(&bench, rabbit.source(&bench.queue).open().await.unwrap(), 3);
    for refused in refused_answers(&bench, 3).await {
        let error = refused.settle_error.unwrap();
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        assert!(error.to_string().contains(&waits) && error.to_string().contains("403"), "{error}");
        assert_eq!(refused.message.attempt(), 1, "no attempt was made of it");
    }

    // Where somebody with the right has made it, it is used.
    bench
        .rabbit
        .publisher()
        .publish_later(&bench.queue, Message::new("x").with_id("later"), ms(200))
        .await
        .unwrap();
    bench.ledger.published("later");
    bench.ledger.confirmed("later");
    bench.until_acked(2).await;
    let _ = handle.stop().await;
    rabbit.disconnect().await;
    let account = bench.account().await;
    assert_eq!((account.acked, account.queued), (2, 0), "{account}");
}

// BC-32 c, d
#[tokio::test]
async fn a_wait_queue_that_is_deleted_between_two_retries_is_made_again() {
    let node = Node::shared().await;
    for kind in KINDS {
        let bench = Bench::new(node, "wait-deleted", kind).await;
        let waits = format!("{}.wait.200", bench.queue);
        bench.publish(1..=3).await;
        let source = bench.options().open().await.unwrap();
        let (raw, deleted) = (&bench.raw, waits.clone());
        let handle = fails_until(&bench, source, 2);
        bench.until_acked(3).await;
        assert_eq!(raw.count(&waits).await, Some((0, 0)));

        let info = node.management().until_queue("/", &waits, |_| true).await;
        assert_eq!((info.kind.as_str(), info.durable), ("quorum", true));
        // No `x-expires`: it would take the messages along.
        assert_eq!(
            info.arguments,
            json!({
                "x-queue-type": "quorum",
                "x-message-ttl": 200,
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": bench.queue,
                "x-dead-letter-strategy": "at-least-once",
                "x-overflow": "reject-publish",
            })
        );
        for round in 2..=4 {
            raw.delete(&deleted).await;
            bench.publish(round * 3 - 2..=round * 3).await;
            bench.until_acked(round * 3).await;
        }
        let report = handle.stop().await;
        assert!(report.is_clean() && report.stats.settle_errors == 0, "{report:?}");
        assert!(bench.starts.all().iter().all(|start| start.attempt <= 2));
        let account = bench.account().await;
        assert_eq!((account.acked, account.queued), (12, 0), "{account}");
    }
}
