//! What becomes of the messages in a slot's queue.

use lapin::types::{AMQPValue, FieldTable};
use windlass::ErrorKind;
use windlass::codec;
use windlass::consumer::{QueueConsumer, RetryPolicy};
use windlass::handler::{Context, HandlerError};
use windlass::message::Message;
use windlass::rabbitmq::{DeleteQueue, RabbitEvent, RabbitMq};
use windlass::source::{DeadLetter, MessageSource, NackReason};

use crate::broker_bench::{Told, config, consuming, ms};
use crate::desk::{claim, connect, names, next, queues, remade, send, until_names};
use crate::log::Log;
use crate::rabbit::{Node, Proxy, QueueType, Raw, bounded, until};

#[tokio::test]
async fn a_delayed_retry_comes_back_with_the_next_attempt_and_leaves_no_queue_behind() {
    let node = Node::shared().await;
    let proxy = Proxy::start(node.amqp_port());
    let rabbit = RabbitMq::connect(config(&node.uri_at(proxy.port()))).await.unwrap();
    let (told, other) = (Told::new(&rabbit), connect(node).await);
    let source = claim(&rabbit, "retried", 1).await;
    // On a second connection the wait queues are others.
    for generation in 1..=2 {
        send(&other, "retried_1", "m").await.unwrap();
        for attempt in 1..=3 {
            let delivery = next(&source).await;
            assert_eq!((delivery.message.id(), delivery.message.attempt()), ("m", attempt));
            let retry = NackReason::retry_after(ms(if attempt == 2 { 100 } else { 200 }), "later");
            let settled = if attempt < 3 {
                source.nack(delivery.receipt, retry).await
            } else {
                source.ack(delivery.receipt).await
            };
            settled.unwrap();
        }
        let all = ["retried_1", "retried_1.hold.100", "retried_1.hold.200"];
        assert_eq!(names(node, "retried_").await, all, "nothing else");
        for queue in queues(node, "retried_").await {
            assert_eq!((&queue["exclusive"], &queue["durable"]), (&true.into(), &false.into()), "{queue}");
            assert_eq!(queue["type"], "classic", "{queue}");
        }
        if generation == 1 {
            proxy.cut().await;
            told.until("says that the queue was made again", 1, remade("retried_1")).await;
            // They went with their connection.
            until_names(node, "retried_", &["retried_1"]).await;
        }
    }
    source.close().await.unwrap();
    assert_eq!(names(node, "retried_").await, [""; 0]);
}

#[tokio::test]
async fn a_wait_queue_that_somebody_deletes_is_made_again() {
    let node = Node::shared().await;
    let rabbit = connect(node).await;
    let source = claim(&rabbit, "unheld", 1).await;
    for round in 1..=3 {
        send(&rabbit, "unheld_1", &format!("m-{round}")).await.unwrap();
        let first = next(&source).await;
        source.nack(first.receipt, NackReason::retry_after(ms(100), "later")).await.unwrap();
        let second = next(&source).await;
        assert_eq!(second.message.attempt(), 2);
        source.ack(second.receipt).await.unwrap();
        // Nobody else can, not even over the management API.
        let deleted = rabbit.delete_queue("unheld_1.hold.100", DeleteQueue::new()).await.unwrap();
        assert_eq!(deleted, Some(0));
    }
}

// Whoever sends later knows nothing of slots: its wait queue is durable, and must not be in the way of those.
#[tokio::test]
async fn what_is_sent_later_to_a_slot_gets_there_and_is_not_in_the_way_of_retries() {
    let node = Node::shared().await;
    let (rabbit, raw) = (connect(node).await, Raw::connect(&node.uri()).await);
    let source = claim(&rabbit, "sent-later", 1).await;
    let message = Message::new("x").with_id("later");
    rabbit.publisher().publish_later("sent-later_1", message, ms(100)).await.unwrap();
    let delivery = next(&source).await;
    assert_eq!((delivery.message.id(), delivery.message.attempt()), ("later", 1));
    source.nack(delivery.receipt, NackReason::retry_after(ms(100), "again")).await.unwrap();
    let delivery = next(&source).await;
    assert_eq!((delivery.message.id(), delivery.message.attempt()), ("later", 2));
    source.ack(delivery.receipt).await.unwrap();
    source.close().await.unwrap();
    assert_eq!(
        names(node, "sent-later_").await,
        ["sent-later_1.wait.100"],
        "of the sender's, and left alone"
    );
    raw.delete("sent-later_1.wait.100").await;
}

#[tokio::test]
async fn dead_letters_of_all_slots_are_in_the_one_queue_of_the_family_with_their_cause() {
    let node = Node::shared().await;
    let (rabbit, raw) = (connect(node).await, Raw::connect(&node.uri()).await);
    raw.declare("letters.dlq", QueueType::Quorum, FieldTable::default()).await;
    let told = Told::new(&rabbit);
    for number in [1, 2] {
        let source = claim(&rabbit, "letters", number).await;
        let queue = source.queue_name().to_owned();
        send(&rabbit, &queue, &queue).await.unwrap();
        let delivery = next(&source).await;
        source.nack(delivery.receipt, NackReason::dead_letter("given_up")).await.unwrap();
        source.close().await.unwrap();
    }
    for queue in ["letters_1", "letters_2"] {
        let letter = raw.get("letters.dlq").await.expect("a dead letter");
        assert_eq!(letter.id(), queue);
        assert_eq!(letter.header("windlass-cause"), Some(&AMQPValue::LongString("given_up".into())));
        assert_eq!(letter.header("windlass-origin-queue"), Some(&AMQPValue::LongString(queue.into())));
    }
    let nowhere =
        |event: &RabbitEvent| matches!(event, RabbitEvent::NowhereToDeadLetter { .. }).then_some(());
    assert_eq!(told.all(nowhere).len(), 0);
    // The same is read back by the adapter.
    let dead = rabbit.source("letters.dlq").open().await.unwrap();
    assert_eq!(raw.publish("letters.dlq", "plain", b"x").await, crate::rabbit::Sent::Confirmed);
    assert_eq!(DeadLetter::of(&next(&dead).await.message), None);
}

#[tokio::test]
async fn where_the_family_has_no_dead_letter_queue_that_is_told_and_the_message_is_kept() {
    let node = Node::shared().await;
    let (rabbit, raw) = (connect(node).await, Raw::connect(&node.uri()).await);
    let told = Told::new(&rabbit);
    let source = claim(&rabbit, "no-letters", 4).await;
    let nowhere = |event: &RabbitEvent| match event {
        RabbitEvent::NowhereToDeadLetter { queue, error } => Some((queue.clone(), error.clone())),
        _ => None,
    };
    let (queue, error) = told.until("says that dead letters have nowhere to go", 1, nowhere).await;
    assert_eq!(queue, "no-letters_4");
    assert!(error.to_string().contains("no-letters.dlq"), "{error}");
    send(&rabbit, "no-letters_4", "m").await.unwrap();
    for _ in 0..2 {
        let delivery = next(&source).await;
        let error = source.nack(delivery.receipt, NackReason::dead_letter("given_up")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unroutable, "{error}");
        assert!(error.to_string().contains("make no-letters.dlq"), "{error}");
    }
    raw.declare("no-letters.dlq", QueueType::Classic, FieldTable::default()).await;
    let delivery = next(&source).await;
    source.nack(delivery.receipt, NackReason::dead_letter("given_up")).await.unwrap();
    assert_eq!(raw.get("no-letters.dlq").await.expect("a dead letter").id(), "m");
}

// RabbitMQ deletes an auto-delete queue with its last consumer, which a pause cancels.
#[tokio::test]
async fn a_pause_loses_nothing_of_what_is_in_the_queue() {
    let node = Node::shared().await;
    let rabbit = connect(node).await;
    let told = Told::new(&rabbit);
    let handled: Log<String> = Log::default();
    let log = handled.clone();
    let source = claim(&rabbit, "paused", 1).await;
    let handler = move |_: bytes::Bytes, context: Context| {
        let (log, id) = (log.clone(), context.message().id().to_owned());
        async move {
            if context.attempt() == 1 && id.ends_with('5') {
                return Err(HandlerError::failed("not yet"));
            }
            log.add(id);
            Ok(())
        }
    };
    let consumer = QueueConsumer::with_decoder(source, codec::bytes, handler)
        .retry_policy(RetryPolicy::schedule([ms(50); 3]))
        .start()
        .unwrap();
    told.until("says that it consumes", 1, consuming("paused_1")).await;
    for round in 0..5 {
        let numbers = round * 40..(round + 1) * 40;
        let sent = numbers.clone().map(|number| {
            let rabbit = rabbit.clone();
            async move { send(&rabbit, "paused_1", &format!("m-{number}")).await.unwrap() }
        });
        let pausing = async {
            bounded("pause", consumer.pause()).await;
            bounded("resume", consumer.resume()).await;
            bounded("pause", consumer.pause()).await;
        };
        futures::join!(futures::future::join_all(sent), pausing);
        assert!(rabbit.queue_exists("paused_1").await.unwrap());
        bounded("resume", consumer.resume()).await;
    }
    until("all are handled", || async { (handled.len() >= 200).then_some(()) }).await;
    let mut ids = handled.all();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 200);
    assert_eq!(told.all(remade("paused_1")).len(), 0);
    assert!(consumer.stop().await.is_clean());
}
