//! What means the same on every broker; each is run on memory and on RabbitMQ. There are the queues `orders` and
//! `orders.dlq` and the fanout exchange `all`, and nothing is in them.

use std::num::NonZeroU32;

use tokio_util::sync::CancellationToken;
use windlass::broker::{Broker, BrokerReceipt, BrokerSource};
use windlass::clock::{SystemClock, within};
use windlass::queue::{DeleteQueue, Slot};
use windlass::source::{DeadLetter, Delivery, Health, NackReason};
use windlass::{Context, ErrorKind, HandlerError, Message, MessageSource, Publisher, QueueConsumer};

/// In real time; what must come, comes sooner.
const BOUND: std::time::Duration = std::time::Duration::from_secs(20);

async fn receive(source: &BrokerSource) -> windlass::Result<Delivery<BrokerReceipt>> {
    let cancel = CancellationToken::new();
    loop {
        let received = within(&SystemClock, BOUND, source.receive(&cancel)).await.expect("it answers");
        match received {
            // Nothing came within the source's own time.
            Ok(None) => {}
            Ok(Some(delivery)) => return Ok(delivery),
            Err(error) => return Err(error),
        }
    }
}

fn message(id: &str) -> Message {
    Message::new("x").with_id(id).with_header("shard", 3_i32)
}

fn kind<T>(result: windlass::Result<T>) -> ErrorKind {
    match result {
        Ok(_) => panic!("it must fail"),
        Err(error) => error.kind(),
    }
}

pub(crate) async fn a_message_goes_through_and_dead_letters_are_kept(broker: &Broker, system: &str) {
    assert!(broker.health().is_ready());
    assert_eq!(broker.system(), system);
    let publisher = broker.publisher();
    publisher.publish("orders", message("m-1")).await.unwrap();
    let source = broker.source("orders").await.unwrap();
    assert_eq!((source.queue_name(), source.system(), source.slot()), ("orders", system, None));
    let first = receive(&source).await.unwrap();
    assert_eq!((first.message.id(), first.message.attempt()), ("m-1", 1));
    assert_eq!(first.message.headers(), message("m-1").headers());
    source.nack(first.receipt, NackReason::retry("again")).await.unwrap();
    let second = receive(&source).await.unwrap();
    assert_eq!((second.message.id(), second.message.attempt()), ("m-1", 2));
    source.nack(second.receipt, NackReason::dead_letter("never")).await.unwrap();
    source.close().await.unwrap();
    assert_eq!(kind(receive(&source).await), ErrorKind::Closed);
    let letters = broker.source("orders.dlq").await.unwrap();
    let letter = receive(&letters).await.unwrap();
    assert_eq!(DeadLetter::of(&letter.message).unwrap().cause.code(), "never");
    letters.ack(letter.receipt).await.unwrap();
    letters.close().await.unwrap();
}

pub(crate) async fn a_queue_that_nobody_declared_is_not_found(broker: &Broker) {
    assert_eq!(kind(broker.source("nobody").await), ErrorKind::NotFound);
    assert_eq!(kind(broker.publisher().publish("nobody", message("m")).await), ErrorKind::Unroutable);
    assert_eq!(kind(broker.subscribe("nobody").await), ErrorKind::NotFound);
    assert_eq!(kind(broker.publisher().broadcast("nobody", message("m")).await), ErrorKind::NotFound);
    assert!(!broker.queue_exists("nobody").await.unwrap());
    assert!(broker.queue_exists("orders").await.unwrap());
    assert_eq!(broker.delete_queue("nobody", DeleteQueue::new()).await.unwrap(), None);
    assert!(broker.health().is_ready(), "asking harms nothing");
}

pub(crate) async fn slots_are_claimed_once_and_free_again(broker: &Broker) {
    let most = NonZeroU32::new(2).unwrap();
    let one = broker.claim("transport", Slot::FirstFree { most }).await.unwrap();
    let two = broker.claim("transport", Slot::FirstFree { most }).await.unwrap();
    assert_eq!((one.slot(), two.slot()), (Some(1), Some(2)));
    assert_eq!((one.queue_name(), two.queue_name()), ("transport_1", "transport_2"));
    assert_eq!(kind(broker.claim("transport", Slot::FirstFree { most }).await), ErrorKind::Taken);
    assert_eq!(kind(broker.claim("transport", Slot::Number(2)).await), ErrorKind::Taken);
    // Nor is it had, or deleted, by its name: not even by whoever has it.
    assert_eq!(kind(broker.source("transport_1").await), ErrorKind::Taken);
    let delete = DeleteQueue::new().if_empty(false).if_unused(false);
    assert_eq!(kind(broker.delete_queue("transport_1", delete).await), ErrorKind::Taken);
    broker.publisher().publish("transport_1", message("m-1")).await.unwrap();
    let delivery = receive(&one).await.unwrap();
    one.ack(delivery.receipt).await.unwrap();
    one.close().await.unwrap();
    assert_eq!(kind(broker.publisher().publish("transport_1", message("m-2")).await), ErrorKind::Unroutable);
    let again = broker.claim("transport", Slot::Number(1)).await.unwrap();
    assert_eq!(again.slot(), Some(1));
    again.close().await.unwrap();
    two.close().await.unwrap();
}

pub(crate) async fn a_broadcast_reaches_everybody_and_nobody(broker: &Broker) {
    let publisher = broker.publisher();
    publisher.broadcast("all", message("m-0")).await.unwrap();
    let (one, two) = (broker.subscribe("all").await.unwrap(), broker.subscribe("all").await.unwrap());
    assert_eq!((one.queue_name(), one.slot()), ("all.subscriber", None));
    publisher.broadcast("all", message("m-1")).await.unwrap();
    for source in [&one, &two] {
        let delivery = receive(source).await.unwrap();
        assert_eq!(delivery.message.id(), "m-1");
        source.ack(delivery.receipt).await.unwrap();
    }
    one.close().await.unwrap();
    publisher.broadcast("all", message("m-2")).await.unwrap();
    assert_eq!(receive(&two).await.unwrap().message.id(), "m-2");
    two.close().await.unwrap();
}

pub(crate) async fn a_queue_with_messages_is_deleted_only_on_demand(broker: &Broker, queue: &str) {
    for id in ["m-1", "m-2"] {
        broker.publisher().publish(queue, message(id)).await.unwrap();
    }
    let delete = |options| broker.delete_queue(queue, options);
    assert_eq!(kind(delete(DeleteQueue::new()).await), ErrorKind::Refused);
    assert_eq!(delete(DeleteQueue::new().if_empty(false)).await.unwrap(), Some(2));
    assert!(!broker.queue_exists(queue).await.unwrap());
    assert_eq!(kind(broker.publisher().publish(queue, message("m-3")).await), ErrorKind::Unroutable);
}

pub(crate) async fn a_consumer_runs_on_it_and_stops(broker: &Broker) {
    let source = broker.source("orders").await.unwrap();
    let (tell, mut told) = tokio::sync::mpsc::channel(16);
    let consumer = QueueConsumer::with_decoder(
        source,
        |message: &Message| Ok::<_, HandlerError>(message.body().clone()),
        move |_: bytes::Bytes, context: Context| {
            let tell = tell.clone();
            async move { tell.send(context.message().id().to_owned()).await.map_err(HandlerError::failed) }
        },
    )
    .start()
    .unwrap();
    for number in 0..10 {
        broker.publisher().publish("orders", message(&format!("m-{number}"))).await.unwrap();
    }
    for number in 0..10 {
        let id = within(&SystemClock, BOUND, told.recv()).await.expect("it is handled");
        assert_eq!(id.unwrap(), format!("m-{number}"));
    }
    let report = consumer.stop().await;
    assert!(report.is_clean() && report.stats.acked == 10, "{report:?}");
}

/// Ends it, and so comes last.
pub(crate) async fn after_the_close_all_is_closed(broker: &Broker) {
    broker.publisher().publish("orders", message("m-1")).await.unwrap();
    let (source, slot) =
        (broker.source("orders").await.unwrap(), broker.claim("transport", Slot::Number(5)).await.unwrap());
    let held = receive(&source).await.unwrap();
    let waits = tokio::spawn({
        let slot = slot.clone();
        async move { kind(receive(&slot).await) }
    });
    broker.close().await;
    broker.close().await;
    assert_eq!(within(&SystemClock, BOUND, waits).await.expect("it is told").unwrap(), ErrorKind::Closed);
    assert_eq!((broker.health(), source.health()), (Health::Closed, Health::Closed));
    assert!(matches!(kind(source.ack(held.receipt).await), ErrorKind::Stale | ErrorKind::Closed));
    assert_eq!(kind(receive(&source).await), ErrorKind::Closed);
    assert_eq!(kind(broker.source("orders").await), ErrorKind::Closed);
    assert_eq!(kind(broker.claim("transport", Slot::Number(6)).await), ErrorKind::Closed);
    assert_eq!(kind(broker.subscribe("all").await), ErrorKind::Closed);
    assert_eq!(kind(broker.publisher().publish("orders", message("m-2")).await), ErrorKind::Closed);
    assert_eq!(kind(broker.publisher().broadcast("all", message("m-2")).await), ErrorKind::Closed);
    assert_eq!(kind(broker.queue_exists("orders").await), ErrorKind::Closed);
    assert_eq!(kind(broker.delete_queue("orders", DeleteQueue::new()).await), ErrorKind::Closed);
}
