//! The user that nodes log in as, with the permissions that a topology gives by default.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lapin::options::{BasicPublishOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{BasicProperties, ExchangeKind};
use windlass::rabbitmq::QueueType;
use windlass::{Context, HandlerError, Message, Publisher, QueueConsumer};

use crate::desk::{Desk, PASSWORD, segment};
use crate::rabbit::{Raw, bounded, until};

/// What a node does: consumes, retries by a step that was made and by one that was not, dead-letters, publishes.
#[tokio::test]
async fn a_node_can_do_all_that_a_node_does() {
    let desk = Desk::new("runtime").await;
    desk.made(&desk.topology()).await;
    let rabbit = desk.connect().await;
    let publisher = rabbit.publisher();
    let source = rabbit.source("orders").queue_type(QueueType::Quorum);
    let source = bounded("open", source.open()).await.unwrap();
    let bills = publisher.clone();
    let failed = Arc::new(AtomicU32::new(0));
    let failures = Arc::clone(&failed);
    let handler = move |order: String, context: Context| {
        let (bills, failures) = (bills.clone(), Arc::clone(&failures));
        async move {
            if order == "bad" {
                return Err(HandlerError::terminal("nothing to be done"));
            }
            if context.attempt() < 3 {
                failures.fetch_add(1, Ordering::SeqCst);
                return Err(HandlerError::failed("not yet"));
            }
            bills.publish("bills", Message::new(order)).await.map_err(HandlerError::failed)
        }
    };
    let delays = [Duration::from_millis(200), Duration::from_millis(50)];
    let policy = windlass::consumer::RetryPolicy::schedule(delays);
    let consumer = QueueConsumer::new(source, handler).retry_policy(policy).start().unwrap();
    for body in ["\"good\"", "\"bad\""] {
        bounded("publish", publisher.publish("orders", Message::new(body))).await.expect("it may publish");
    }
    let raw = Raw::connect(&desk.uri()).await;
    for queue in ["bills", "orders.dlq"] {
        until(queue, || async { (raw.count(queue).await?.0 == 1).then_some(()) }).await;
    }
    assert_eq!(failed.load(Ordering::SeqCst), 2);
    let report = bounded("stop", consumer.stop()).await;
    assert!(report.is_clean(), "{report:?}");
    bounded("disconnect", rabbit.disconnect()).await;
    raw.close().await;
}

#[tokio::test]
async fn the_user_of_the_nodes_may_have_a_queue_of_its_own_on_the_broadcast_and_publish_to_it() {
    let desk = Desk::new("broadcast").await;
    desk.made(&desk.topology()).await;
    let (_, address) = desk.node.uri().rsplit_once('@').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    let address = address.replace("%2f", &segment(&desk.vhost));
    let uri = format!("amqp://{}:{}@{address}", segment(&desk.user), segment(PASSWORD));
    let raw = Raw::connect(&uri).await;
    let channel = raw.channel().await;
    let passive = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
    let there = channel.exchange_declare("all".into(), ExchangeKind::Fanout, passive, FieldTable::default());
    bounded("look", there).await.expect("it is there");
    let own = QueueDeclareOptions { exclusive: true, auto_delete: true, ..QueueDeclareOptions::default() };
    let declared = channel.queue_declare("".into(), own, FieldTable::default());
    let name = bounded("declare", declared).await.expect("it may").name().to_string();
    let bind = QueueBindOptions::default();
    let bound =
        channel.queue_bind(name.as_str().into(), "all".into(), "".into(), bind, FieldTable::default());
    bounded("bind", bound).await.expect("it may");
    let properties = BasicProperties::default().with_message_id("m-1".into());
    let publish =
        channel.basic_publish("all".into(), "".into(), BasicPublishOptions::default(), b"x", properties);
    bounded("publish", publish).await.expect("it may");
    let heard = until("the message", || raw.get(&name)).await;
    assert_eq!(heard.id(), "m-1");
    raw.close().await;
}
