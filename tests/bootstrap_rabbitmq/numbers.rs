//! Numbers: in their range, and equal whether they are sent over HTTP or AMQP.

use lapin::options::QueueDeclareOptions;
use lapin::types::{AMQPValue, FieldTable};
use serde_json::json;
use windlass::topology::{Overflow, Stage, StageType, Topology};

use crate::desk::Desk;
use crate::rabbit::{Raw, bounded};

/// Declares it again over AMQP, with numbers of this width; the broker refuses what is not equal.
async fn equal(raw: &Raw, queue: &str, arguments: &[(&str, AMQPValue)]) -> bool {
    let mut table = FieldTable::default();
    for (name, value) in arguments {
        table.insert((*name).into(), value.clone());
    }
    let channel = raw.channel().await;
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    bounded("declare", channel.queue_declare(queue.into(), durable, table)).await.is_ok()
}

#[tokio::test]
async fn numbers_are_integers_and_equal_to_those_of_amqp_in_every_width() {
    let desk = Desk::new("numbers").await;
    let busy = Stage::new("busy")
        .with_queue_type(StageType::Classic)
        .with_wait_steps([])
        .with_message_ttl(std::time::Duration::from_millis(1 << 32))
        .with_expires(std::time::Duration::from_millis(315_360_000_000))
        .with_max_length(i64::MAX.unsigned_abs())
        .with_overflow(Overflow::RejectPublishDlx)
        .with_max_priority(255)
        .with_single_active_consumer(true)
        .with_argument("x-queue-version", 2_i64);
    let limited = Stage::new("limited").with_delivery_limit(2_147_483_647).with_max_length(1);
    let topology = Topology::default().with_vhost(&desk.vhost).with_stage(busy).with_stage(limited);
    desk.made(&topology).await;

    let raw = Raw::connect(&desk.uri()).await;
    let kind = ("x-queue-type", AMQPValue::LongString("quorum".into()));
    let overflow = ("x-overflow", AMQPValue::LongString("reject-publish".into()));
    for (limit, length) in [
        (AMQPValue::LongInt(2_147_483_647), AMQPValue::ShortShortInt(1)),
        (AMQPValue::LongLongInt(2_147_483_647), AMQPValue::LongLongInt(1)),
    ] {
        let arguments =
            [kind.clone(), overflow.clone(), ("x-delivery-limit", limit), ("x-max-length", length)];
        assert!(equal(&raw, "limited", &arguments).await, "{arguments:?}");
    }
    let other = [
        kind,
        overflow,
        ("x-delivery-limit", AMQPValue::LongInt(5)),
        ("x-max-length", AMQPValue::LongInt(1)),
    ];
    assert!(!equal(&raw, "limited", &other).await, "the test could not fail otherwise");
    let wait = windlass::rabbitmq::ladder::wait_queue("limited", std::time::Duration::from_secs(1));
    let found = desk.raw.queue(&desk.vhost, &wait).await.expect("it is there");
    assert_eq!(found.arguments["x-message-ttl"], json!(1000));
    raw.close().await;
}

#[tokio::test]
async fn what_is_out_of_its_range_is_refused_with_its_field_and_nothing_is_made() {
    let desk = Desk::new("ranges").await;
    let quorum = || Stage::new("s");
    let classic = || quorum().with_queue_type(StageType::Classic);
    for (stage, field) in [
        (classic().with_max_priority(0), "stages[0].max_priority"),
        (classic().with_max_priority(256), "stages[0].max_priority"),
        (quorum().with_delivery_limit(2_147_483_648), "stages[0].delivery_limit"),
        (quorum().with_max_length(1 << 63), "stages[0].max_length"),
        (
            classic().with_wait_steps([]).with_message_ttl(std::time::Duration::from_millis(315_360_000_001)),
            "stages[0].message_ttl_ms",
        ),
        (quorum().with_policy("max-length", -1_i64), "stages[0].policy.max-length"),
        (quorum().with_policy("max-length", "5"), "stages[0].policy.max-length"),
    ] {
        let topology = Topology::default().with_vhost(&desk.vhost).with_stage(stage);
        let error = desk.bootstrapper(&topology).apply().await.expect_err(field);
        assert_eq!(error.error.kind(), windlass::ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains(field), "{error}");
    }
    assert!(desk.management.vhost(&desk.vhost).await.unwrap().is_none(), "nothing was made");
}

/// An argument that only the broker knows, with a value that it does not take.
#[tokio::test]
async fn a_value_that_the_broker_refuses_is_told_with_its_argument() {
    let desk = Desk::new("refused").await;
    let odd = Stage::new("s").with_argument("x-queue-leader-locator", "nowhere");
    let topology = Topology::default().with_vhost(&desk.vhost).with_stage(odd);
    let error = desk.bootstrapper(&topology).apply().await.expect_err("no such place");
    assert_eq!(error.error.kind(), windlass::ErrorKind::Refused, "{error}");
    let text = error.to_string();
    assert!(text.contains("x-queue-leader-locator") && text.contains("queue \"s\""), "{text}");
}
