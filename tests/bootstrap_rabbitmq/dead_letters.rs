//! What is given up lands where the topology says.

use std::num::NonZeroU16;
use std::time::Duration;

use lapin::options::{BasicGetOptions, BasicNackOptions, BasicPublishOptions, BasicRejectOptions};
use lapin::types::AMQPValue;
use lapin::{BasicProperties, Channel};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use windlass::MessageSource;
use windlass::rabbitmq::{DeadLetterTo, QueueType};
use windlass::source::{Cause, NackReason};
use windlass::topology::{Overflow, Retention, Stage, StageType, Topology};

use crate::desk::Desk;
use crate::rabbit::{Raw, RawMessage, bounded, until};

async fn letter(raw: &Raw, queue: &str) -> RawMessage {
    until(&format!("a message in {queue}"), || raw.get(queue)).await
}

/// The reason and the queue of the latest death.
fn death(message: &RawMessage) -> (String, String) {
    let Some(AMQPValue::FieldArray(deaths)) = message.header("x-death") else {
        panic!("no x-death: {message:?}");
    };
    let Some(AMQPValue::FieldTable(death)) = deaths.as_slice().first() else { panic!("{deaths:?}") };
    let text = |name: &str| match death.inner().get(name) {
        Some(AMQPValue::LongString(text)) => text.to_string(),
        other => panic!("{name}: {other:?}"),
    };
    (text("reason"), text("queue"))
}

async fn reject_one(channel: &Channel, queue: &str) {
    let got = channel.basic_get(queue.into(), BasicGetOptions::default());
    let delivery = bounded("get", got).await.unwrap().expect("there is one").delivery;
    assert!(bounded("reject", delivery.acker.reject(BasicRejectOptions::default())).await.unwrap());
}

#[tokio::test]
async fn a_message_that_is_rejected_lands_in_the_dead_letter_queue_of_its_stage() {
    let desk = Desk::new("rejected").await;
    desk.made(&desk.topology()).await;
    let raw = Raw::connect(&desk.uri()).await;
    raw.publish("orders", "m-1", b"one").await;
    raw.publish("bills", "m-2", b"two").await;
    let channel = raw.channel().await;
    reject_one(&channel, "orders").await;
    reject_one(&channel, "bills").await;
    for (stage, id) in [("orders", "m-1"), ("bills", "m-2")] {
        let message = letter(&raw, &format!("{stage}.dlq")).await;
        assert_eq!(message.id(), id);
        assert_eq!(death(&message), ("rejected".to_owned(), stage.to_owned()));
    }
    raw.close().await;
}

/// By another key than the stage's name, as from an exchange with a binding of its own.
#[tokio::test]
async fn a_message_that_came_by_another_key_is_not_lost() {
    let desk = Desk::new("by-key").await;
    desk.made(&desk.topology()).await;
    desk.ask("POST", "/api/bindings/{vhost}/e/amq.topic/q/orders", Some(&json!({"routing_key": "any.*"})))
        .await;
    let raw = Raw::connect(&desk.uri()).await;
    let channel = raw.channel().await;
    let properties = BasicProperties::default().with_message_id("m-1".into()).with_delivery_mode(2);
    let publish = channel.basic_publish(
        "amq.topic".into(),
        "any.key".into(),
        BasicPublishOptions::default(),
        b"x",
        properties,
    );
    bounded("publish", publish).await.unwrap();
    until("the message", || async { (raw.count("orders").await?.0 == 1).then_some(()) }).await;
    reject_one(&channel, "orders").await;
    assert_eq!(letter(&raw, "orders.dlq").await.id(), "m-1");
    raw.close().await;
}

#[tokio::test]
async fn a_dead_letter_of_the_adapter_goes_by_the_broker_where_it_is_told_to() {
    let desk = Desk::new("adapter").await;
    desk.made(&desk.topology()).await;
    let raw = Raw::connect(&desk.uri()).await;
    let rabbit = desk.connect().await;
    raw.publish("orders", "m-1", b"one").await;
    let source = rabbit
        .source("orders")
        .queue_type(QueueType::Quorum)
        .prefetch(NonZeroU16::MIN)
        .dead_letter_to(DeadLetterTo::Broker);
    let source = bounded("open", source.open()).await.unwrap();
    let cancel = CancellationToken::new();
    let delivery = until("a delivery", || async { source.receive(&cancel).await.unwrap() }).await;
    let reason = NackReason::DeadLetter { cause: Cause::new("terminal") };
    bounded("nack", source.nack(delivery.receipt, reason)).await.unwrap();
    let message = letter(&raw, "orders.dlq").await;
    assert_eq!((message.id(), death(&message).0.as_str()), ("m-1", "rejected"));
    bounded("disconnect", rabbit.disconnect()).await;
    raw.close().await;
}

#[tokio::test]
async fn what_comes_back_too_often_or_finds_no_room_is_dead_lettered() {
    let desk = Desk::new("limits").await;
    let full = Stage::new("full").with_max_length(1).with_overflow(Overflow::DropHead);
    let topology = Topology::default()
        .with_vhost(&desk.vhost)
        .with_stage(Stage::new("limited").with_delivery_limit(1))
        .with_stage(full)
        .with_stage(Stage::new("old").with_queue_type(StageType::Classic));
    let applied = desk.apply(&topology).await;
    assert!(applied.warnings.iter().any(|warning| warning.contains("\"full\"")), "{applied}");
    let raw = Raw::connect(&desk.uri()).await;
    let channel = raw.channel().await;

    raw.publish("limited", "m-1", b"x").await;
    // From 4.3 on only a loss counts, and no longer a requeue.
    let lost = async || {
        let channel = raw.channel().await;
        bounded("get", channel.basic_get("limited".into(), BasicGetOptions::default())).await.unwrap();
        bounded("close", channel.close(200, "lost".into())).await.unwrap();
    };
    let message = until("the dead letter", || async {
        lost().await;
        raw.get("limited.dlq").await
    })
    .await;
    assert_eq!((message.id(), death(&message).0.as_str()), ("m-1", "delivery_limit"));

    raw.publish("full", "m-2", b"x").await;
    raw.publish("full", "m-3", b"x").await;
    let message = letter(&raw, "full.dlq").await;
    assert_eq!((message.id(), death(&message).0.as_str()), ("m-2", "maxlen"));

    raw.publish("old", "m-4", b"x").await;
    reject_one(&channel, "old").await;
    assert_eq!(letter(&raw, "old.dlq").await.id(), "m-4");
    raw.close().await;
}

/// Moved at most once, as the broker does it by default, it would be gone without a word.
#[tokio::test]
async fn a_dead_letter_that_finds_no_queue_is_kept_by_its_stage() {
    let desk = Desk::new("kept").await;
    desk.made(&desk.topology()).await;
    desk.ask("DELETE", "/api/bindings/{vhost}/e/dead-letters/q/orders.dlq/orders", None).await;
    let raw = Raw::connect(&desk.uri()).await;
    raw.publish("orders", "m-1", b"x").await;
    reject_one(&raw.channel().await, "orders").await;
    until("the stage says that it keeps one dead letter", || async {
        let queue = desk.ask("GET", "/api/queues/{vhost}/orders", None).await;
        let figure = |name: &str| queue[name].as_u64();
        (figure("messages_dlx") == Some(1)
            && figure("messages") == Some(1)
            && figure("messages_ready") == Some(0))
        .then_some(())
    })
    .await;
    raw.close().await;
}

#[tokio::test]
async fn a_stage_can_dead_letter_to_another() {
    let desk = Desk::new("onward").await;
    let topology = Topology::default()
        .with_vhost(&desk.vhost)
        .with_stage(Stage::new("first").with_dead_letter_to("second"))
        .with_stage(Stage::new("second"));
    desk.made(&topology).await;
    let raw = Raw::connect(&desk.uri()).await;
    raw.publish("first", "m-1", b"x").await;
    let channel = raw.channel().await;
    reject_one(&channel, "first").await;
    until("it is in the second", || async { (raw.count("second").await?.0 == 1).then_some(()) }).await;
    reject_one(&channel, "second").await;
    assert_eq!(letter(&raw, "second.dlq").await.id(), "m-1");
    assert_eq!(raw.count("first.dlq").await, None);
    raw.close().await;
}

/// Without the policy, 4.0 and 4.3 drop a message with the twentieth look.
#[tokio::test]
async fn dead_letters_can_be_looked_at_any_number_of_times_and_only_so_many_are_kept() {
    let desk = Desk::new("looked-at").await;
    desk.made(&desk.topology().with_retention(Retention::new(3, 10))).await;
    let raw = Raw::connect(&desk.uri()).await;
    for number in 1..=12 {
        raw.publish("orders.dlq", &format!("m-{number}"), b"x").await;
    }
    until("two are dropped", || async { (raw.count("orders.dlq").await?.0 == 10).then_some(()) }).await;
    for turn in 0..50 {
        let channel = raw.channel().await;
        let mut last = None;
        while let Some(got) =
            bounded("get", channel.basic_get("orders.dlq".into(), BasicGetOptions::default())).await.unwrap()
        {
            last = Some(got.delivery.acker);
        }
        let last = last.expect("they are there");
        // From 4.3 on a requeue does not count any more, and a loss does.
        if turn % 2 == 0 {
            let all = BasicNackOptions { multiple: true, requeue: true };
            bounded("nack", last.nack(all)).await.unwrap();
        }
        bounded("close", channel.close(200, "looked".into())).await.unwrap();
        until("they are back", || async { (raw.count("orders.dlq").await?.0 == 10).then_some(()) }).await;
    }
    let mut ids: Vec<String> =
        raw.take_all("orders.dlq").await.iter().map(|message| message.id().to_owned()).collect();
    ids.sort_by_key(|id| id[2..].parse::<u32>().unwrap());
    let expected: Vec<String> = (3..=12).map(|number| format!("m-{number}")).collect();
    assert_eq!(ids, expected, "the oldest are dropped first");
    raw.close().await;
}

/// The wait queue is there beforehand, so that it shows whether the adapter declares it equally.
#[tokio::test]
async fn a_retry_goes_by_the_wait_queue_that_was_made_beforehand() {
    let desk = Desk::new("waits").await;
    desk.made(&desk.topology()).await;
    let raw = Raw::connect(&desk.uri()).await;
    raw.publish("orders", "m-1", b"one").await;
    let rabbit = desk.connect().await;
    let source = rabbit.source("orders").queue_type(QueueType::Quorum);
    let source = bounded("open", source.open()).await.unwrap();
    let cancel = CancellationToken::new();
    let delivery = until("a delivery", || async { source.receive(&cancel).await.unwrap() }).await;
    let reason = NackReason::Retry {
        delay: Some(Duration::from_millis(200)),
        counted: true,
        cause: Cause::new("handler_error"),
    };
    bounded("nack", source.nack(delivery.receipt, reason)).await.expect("declared equally");
    let again = until("it comes again", || async { source.receive(&cancel).await.unwrap() }).await;
    assert_eq!(again.message.attempt(), 2);
    bounded("ack", source.ack(again.receipt)).await.unwrap();
    bounded("disconnect", rabbit.disconnect()).await;
    let queues = desk.raw.queues(&desk.vhost).await.len();
    assert_eq!(queues, 7, "the adapter made no queue of its own");
    raw.close().await;
}
