//! Broadcasts on the broker in memory: everybody who listens gets a copy, on a queue of his own.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use tokio_util::sync::CancellationToken;
use windlass::clock::ControlledClock;
use windlass::memory::{FaultPoint, MemoryBroker, MemoryReceipt, MemorySource};
use windlass::message::Message;
use windlass::publisher::Traced;
use windlass::source::{Delivery, MessageSource, NackReason};
use windlass::{Context, Error, ErrorKind, HandlerError, Publisher, QueueConsumer};

use support::{SECOND, ids, prompt, stop_on};

fn broker() -> (ControlledClock, MemoryBroker) {
    let clock = ControlledClock::new();
    let broker = MemoryBroker::new(clock.clone());
    broker.declare_exchange("all");
    (clock, broker)
}

async fn receive(source: &MemorySource) -> windlass::Result<Delivery<MemoryReceipt>> {
    prompt(source.receive(&CancellationToken::new())).await.map(|delivery| delivery.expect("a message"))
}

fn message(id: &str) -> Message {
    Message::new("x").with_id(id).with_header("shard", 3_i32)
}

#[tokio::test]
async fn everybody_gets_a_copy_from_his_subscription_on() {
    let (_, broker) = broker();
    let publisher = broker.publisher();
    publisher.broadcast("all", message("m-0")).await.expect("nobody need listen");
    let first = broker.subscribe("all").unwrap();
    publisher.broadcast("all", message("m-1")).await.unwrap();
    let second = broker.subscribe("all").unwrap();
    publisher.broadcast("all", message("m-2")).await.unwrap();
    assert_eq!((first.queue_name(), first.slot()), ("all.subscriber", None));
    assert_eq!(ids(&first.queue().pending()), ["m-1", "m-2"]);
    assert_eq!(ids(&second.queue().pending()), ["m-2"]);
    let (one, two) = (receive(&first).await.unwrap(), receive(&second).await.unwrap());
    assert_eq!(one.message.headers(), message("m-1").headers());
    // Each settles its own.
    first.ack(one.receipt).await.unwrap();
    assert_eq!(first.ack(two.receipt).await.unwrap_err().kind(), ErrorKind::Stale);
    assert_eq!((first.queue().counts().acked, second.queue().counts().acked), (1, 0));
}

#[tokio::test]
async fn an_exchange_that_nobody_made_is_not_found() {
    let (_, broker) = broker();
    let error = broker.publisher().broadcast("none", message("m-1")).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string()),
        (ErrorKind::NotFound, "broadcast: not found (exchange none)".into())
    );
    let error = broker.subscribe("none").unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string()),
        (ErrorKind::NotFound, "subscribe: not found (exchange none)".into())
    );
    assert!(!broker.queue_exists("all"), "a subscription is no queue that others find");
}

#[tokio::test]
async fn a_subscription_ends_with_its_source_and_the_others_go_on() {
    let (_, broker) = broker();
    let publisher = broker.publisher();
    let sources: Vec<MemorySource> = (0..3).map(|_| broker.subscribe("all").unwrap()).collect();
    let queues: Vec<_> = sources.iter().map(|source| source.queue().clone()).collect();
    publisher.broadcast("all", message("m-1")).await.unwrap();
    let mut sources = sources.into_iter();
    let (closed, dropped, stays) =
        (sources.next().unwrap(), sources.next().unwrap(), sources.next().unwrap());
    closed.close().await.unwrap();
    drop(dropped);
    publisher.broadcast("all", message("m-2")).await.unwrap();
    let counts: Vec<_> =
        queues.iter().map(|queue| (queue.counts().published, queue.counts().pending)).collect();
    assert_eq!(counts, [(1, 0), (1, 0), (2, 2)]);
    assert_eq!(receive(&closed).await.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(receive(&stays).await.unwrap().message.id(), "m-1");
}

#[tokio::test]
async fn a_cut_loses_what_waits_and_the_subscription_goes_on() {
    let (_, broker) = broker();
    let source = broker.subscribe("all").unwrap();
    broker.publisher().broadcast("all", message("m-1")).await.unwrap();
    source.queue().cut();
    broker.publisher().broadcast("all", message("m-2")).await.unwrap();
    assert_eq!(receive(&source).await.unwrap().message.id(), "m-2");
    assert_eq!(source.queue().counts().dropped, 1);
}

#[tokio::test]
async fn retries_come_back_and_what_is_given_up_is_gone() {
    let (clock, broker) = broker();
    let source = broker.subscribe("all").unwrap();
    broker.publisher().broadcast("all", message("m-1")).await.unwrap();
    let first = receive(&source).await.unwrap();
    source.nack(first.receipt, NackReason::retry_after(SECOND, "later")).await.unwrap();
    clock.advance(SECOND).await;
    let second = receive(&source).await.unwrap();
    assert_eq!((second.message.id(), second.message.attempt()), ("m-1", 2));
    source.nack(second.receipt, NackReason::dead_letter("never")).await.unwrap();
    let counts = source.queue().counts();
    assert_eq!((counts.in_flight, counts.dropped, counts.dead_lettered), (0, 1, 0));
    assert_eq!(source.queue().nacked().len(), 2, "a test can see what it was");
    assert!(!broker.queue_exists("all.dlq"));
}

#[tokio::test]
async fn one_who_cannot_take_it_is_told_to_the_sender_and_the_others_have_it() {
    let (_, broker) = broker();
    let sources: Vec<MemorySource> = (0..3).map(|_| broker.subscribe("all").unwrap()).collect();
    sources[1].queue().fail_next(FaultPoint::Publish, Error::new(ErrorKind::Refused, "publish"));
    let error = broker.publisher().broadcast("all", message("m-1")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused);
    let pending: Vec<usize> = sources.iter().map(|source| source.queue().counts().pending).collect();
    assert_eq!(pending, [1, 0, 1]);
}

#[tokio::test]
async fn a_consumer_works_off_a_subscription_and_a_followed_publisher_broadcasts_too() {
    let (clock, broker) = broker();
    let source = broker.subscribe("all").unwrap();
    let queue = source.queue().clone();
    let consumer = QueueConsumer::with_decoder(
        source,
        |message: &Message| Ok::<_, HandlerError>(message.body().clone()),
        async |_: bytes::Bytes, _: Context| Ok::<_, HandlerError>(()),
    )
    .clock(clock.clone())
    .start()
    .unwrap();
    let publisher = std::sync::Arc::new(Traced::new("memory", broker.publisher()));
    publisher.broadcast("all", message("m-1")).await.unwrap();
    queue.until(|queue| queue.counts().acked == 1).await.unwrap();
    let (report, _) = stop_on(&clock, &consumer).await;
    assert!(report.is_clean());
}

#[tokio::test]
async fn a_publisher_that_has_no_such_thing_says_so() {
    struct Plain;
    impl Publisher for Plain {
        async fn publish(&self, _: &str, _: Message) -> windlass::Result<()> {
            Ok(())
        }
    }
    let error = Plain.broadcast("all", message("m-1")).await.unwrap_err();
    assert_eq!((error.kind(), error.is_transient()), (ErrorKind::Unsupported, false));
}
