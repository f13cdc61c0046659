//! What is sent to everybody, and who subscribes to it. The broker is a node of the tests' own; which series it runs is
//! chosen by `RABBITMQ_BIN`.

#![cfg(feature = "rabbitmq")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

// Each test file uses its part of this.
#[allow(dead_code)]
#[path = "faults_rabbitmq/broker_bench.rs"]
mod broker_bench;
#[allow(dead_code)]
#[path = "slots_rabbitmq/desk.rs"]
mod desk;
#[path = "support/log.rs"]
mod log;
#[path = "support/rabbit/mod.rs"]
mod rabbit;

use std::collections::BTreeSet;

use futures::future::join_all;
use lapin::ExchangeKind;
use lapin::options::{ExchangeDeclareOptions, ExchangeDeleteOptions};
use lapin::types::{AMQPValue, FieldTable};
use windlass::codec;
use windlass::consumer::{ConsumerHandle, QueueConsumer, RetryPolicy};
use windlass::handler::{Context, HandlerError};
use windlass::message::Message;
use windlass::rabbitmq::{DeadLetterTo, RabbitEvent, RabbitMq, RabbitSource};
use windlass::source::{Health, MessageSource, NackReason};
use windlass::{Error, ErrorKind};

use broker_bench::{Told, config, consuming, lost, ms, refused};
use desk::{connect, names, next, queues, remade, until_names};
use log::Log;
use rabbit::{Node, Options, Proxy, QueueType, Raw, bounded, until};

/// Declares a durable fanout exchange, as whoever sets up a broker does.
async fn fanout(raw: &Raw, exchange: &str) {
    let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    let channel = raw.channel().await;
    let declare =
        channel.exchange_declare(exchange.into(), ExchangeKind::Fanout, options, FieldTable::default());
    bounded("declare", declare).await.unwrap();
    bounded("close", channel.close(200, "done".into())).await.unwrap();
}

async fn delete_exchange(raw: &Raw, exchange: &str) {
    let delete = raw.channel().await;
    let delete = delete.exchange_delete(exchange.into(), ExchangeDeleteOptions::default());
    bounded("delete", delete).await.unwrap();
}

async fn broadcast(rabbit: &RabbitMq, exchange: &str, id: &str) -> Result<(), Error> {
    bounded("broadcast", rabbit.publisher().broadcast(exchange, Message::new("x").with_id(id))).await
}

async fn subscribe(rabbit: &RabbitMq, exchange: &str) -> RabbitSource {
    bounded("subscribe", rabbit.subscribe(exchange).open()).await.expect("the exchange is there")
}

/// Takes the next message, acks it, and tells its id.
async fn take(source: &RabbitSource) -> String {
    let delivery = next(source).await;
    source.ack(delivery.receipt).await.unwrap();
    delivery.message.id().to_owned()
}

/// A consumer that writes down what it handled.
fn consume(source: RabbitSource) -> (ConsumerHandle, Log<String>) {
    let handled = Log::default();
    let log = handled.clone();
    let consumer =
        QueueConsumer::with_decoder(source, codec::bytes, move |_: bytes::Bytes, context: Context| {
            log.add(context.message().id().to_owned());
            async { Ok::<_, HandlerError>(()) }
        });
    (consumer.start().expect("it starts"), handled)
}

/// Broadcasts until the subscriber has one of them: between two connections it misses what is sent.
async fn until_heard(rabbit: &RabbitMq, exchange: &str, handled: &Log<String>) {
    let before = handled.len();
    until("something is heard", || async {
        broadcast(rabbit, exchange, "again").await.unwrap();
        (handled.len() > before).then_some(())
    })
    .await;
}

#[tokio::test]
async fn everybody_who_subscribes_gets_a_copy_and_nobody_is_no_error() {
    let node = Node::shared().await;
    let (rabbit, other, raw) = (connect(node).await, connect(node).await, Raw::connect(&node.uri()).await);
    fanout(&raw, "news").await;
    broadcast(&rabbit, "news", "to-nobody").await.unwrap();

    // Two over one connection, one over another.
    let mut sources = vec![
        subscribe(&rabbit, "news").await,
        subscribe(&rabbit, "news").await,
        subscribe(&other, "news").await,
    ];
    let made = queues(node, "news.").await;
    assert_eq!(made.len(), 3);
    for queue in &made {
        assert_eq!((&queue["exclusive"], &queue["durable"]), (&true.into(), &false.into()), "{queue}");
        assert_eq!(queue["type"], "classic", "{queue}");
    }
    assert!(sources.iter().all(|source| source.queue_name() == "news.subscriber" && source.slot().is_none()));
    let ids: Vec<String> = (0..50).map(|number| format!("m-{number}")).collect();
    let sent = ids.iter().map(|id| broadcast(&rabbit, "news", id));
    assert!(join_all(sent).await.into_iter().all(|sent| sent.is_ok()));
    for source in &sources {
        let mut got = BTreeSet::new();
        for _ in &ids {
            got.insert(take(source).await);
        }
        assert_eq!(got, ids.iter().cloned().collect());
    }

    // One that ends does not end the others.
    sources.remove(0).close().await.unwrap();
    drop(sources.remove(0));
    until("their queues are gone", || async { (names(node, "news.").await.len() == 1).then_some(()) }).await;
    broadcast(&rabbit, "news", "one-left").await.unwrap();
    assert_eq!(take(&sources[0]).await, "one-left");
    bounded("disconnect", other.disconnect()).await;
    until_names(node, "news.", &[]).await;
    broadcast(&rabbit, "news", "nobody-again").await.unwrap();
}

#[tokio::test]
async fn a_broadcast_is_persistent_and_confirmed_and_gets_to_durable_queues() {
    let node = Node::shared().await;
    let (rabbit, raw) = (connect(node).await, Raw::connect(&node.uri()).await);
    fanout(&raw, "durable").await;
    raw.declare("durable-copy", QueueType::Quorum, FieldTable::default()).await;
    let channel = raw.channel().await;
    let bind = channel.queue_bind(
        "durable-copy".into(),
        "durable".into(),
        "".into(),
        lapin::options::QueueBindOptions::default(),
        FieldTable::default(),
    );
    bounded("bind", bind).await.unwrap();
    broadcast(&rabbit, "durable", "m").await.unwrap();
    let copy = raw.get("durable-copy").await.expect("it is there once it is confirmed");
    assert_eq!((copy.id(), copy.properties.delivery_mode()), ("m", &Some(2)));
    assert_eq!((copy.exchange.as_str(), copy.routing_key.as_str()), ("durable", ""));

    // One that is full refuses it, which is told.
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-length".into(), AMQPValue::LongInt(1));
    arguments.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
    raw.declare("full-copy", QueueType::Classic, arguments).await;
    let bind = channel.queue_bind(
        "full-copy".into(),
        "durable".into(),
        "".into(),
        lapin::options::QueueBindOptions::default(),
        FieldTable::default(),
    );
    bounded("bind", bind).await.unwrap();
    broadcast(&rabbit, "durable", "fits").await.unwrap();
    let error = until("it is full", || async { broadcast(&rabbit, "durable", "full").await.err() }).await;
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
}

// What is mandatory and comes back must not be taken for a broadcast that looks the same.
#[tokio::test]
async fn a_broadcast_to_nobody_is_confirmed_beside_publishes_that_come_back() {
    let node = Node::shared().await;
    let (rabbit, raw) = (connect(node).await, Raw::connect(&node.uri()).await);
    fanout(&raw, "beside").await;
    let publisher = rabbit.publisher();
    let both = (0..200).map(|_| async {
        let (sent, published) = futures::join!(
            publisher.broadcast("beside", Message::new("x")),
            publisher.publish_to("beside", "", Message::new("x")),
        );
        (sent, published.unwrap_err().kind())
    });
    for (sent, published) in bounded("publish", join_all(both)).await {
        assert!(sent.is_ok(), "{sent:?}");
        assert_eq!(published, ErrorKind::Unroutable);
    }
}

#[tokio::test]
async fn an_exchange_that_is_missing_is_told_by_name_and_leaves_no_queue() {
    let node = Node::shared().await;
    let rabbit = connect(node).await;
    let told = Told::new(&rabbit);
    for _ in 0..2 {
        let errors = [
            broadcast(&rabbit, "nowhere", "m").await.unwrap_err(),
            bounded("subscribe", rabbit.subscribe("nowhere").open()).await.unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
            assert!(error.to_string().contains("nowhere"), "{error}");
        }
    }
    assert_eq!(names(node, "nowhere").await, [""; 0]);
    let lost = |event: &RabbitEvent| matches!(event, RabbitEvent::Lost { .. }).then_some(());
    assert_eq!(told.all(lost).len(), 0);

    let long = "e".repeat(194);
    let invalid = [
        (broadcast(&rabbit, "", "m").await.unwrap_err(), "`exchange` is empty"),
        (broadcast(&rabbit, &"e".repeat(256), "m").await.unwrap_err(), "256 bytes"),
        (rabbit.subscribe("").open().await.unwrap_err(), "`exchange` is empty"),
        (rabbit.subscribe(&long).open().await.unwrap_err(), "at most 193"),
        (
            rabbit
                .subscribe("nowhere")
                .queue_type(windlass::rabbitmq::QueueType::Quorum)
                .open()
                .await
                .unwrap_err(),
            "`queue_type`",
        ),
    ];
    for (error, text) in invalid {
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains(text), "{error}");
    }
    let raw = Raw::connect(&node.uri()).await;
    fanout(&raw, &long[..193]).await;
    let source = subscribe(&rabbit, &long[..193]).await;
    broadcast(&rabbit, &long[..193], "m").await.unwrap();
    let delivery = next(&source).await;
    source.nack(delivery.receipt, NackReason::retry_after(ms(10), "the longest names")).await.unwrap();
    assert_eq!(take(&source).await, "m");
}

/// The broker closes the channel over an exchange that is missing, with what else is in flight on it.
#[tokio::test]
async fn broadcasts_to_an_exchange_that_is_missing_do_not_disturb_the_others() {
    let node = Node::shared().await;
    let rabbit = connect(node).await;
    let raw = Raw::connect(&node.uri()).await;
    fanout(&raw, "healthy").await;
    let sent = join_all((0..200).map(|number| {
        let rabbit = &rabbit;
        let exchange = if number % 2 == 0 { "healthy" } else { "missing" };
        async move { (exchange, broadcast(rabbit, exchange, "m").await) }
    }));
    for (exchange, sent) in sent.await {
        match exchange {
            "healthy" => sent.expect("nothing is in its way"),
            _ => assert_eq!(sent.unwrap_err().kind(), ErrorKind::NotFound),
        }
    }
    raw.close().await;
}

// BC-44 b, c
#[tokio::test]
async fn a_subscription_is_made_anew_under_another_name_after_a_cut() {
    let node = Node::shared().await;
    let raw = Raw::connect(&node.uri()).await;
    fanout(&raw, "cuts").await;
    let proxy = Proxy::start(node.amqp_port());
    let rabbit = RabbitMq::connect(config(&node.uri_at(proxy.port()))).await.unwrap();
    let (told, other) = (Told::new(&rabbit), connect(node).await);
    let label = "cuts.subscriber";
    let source = subscribe(&rabbit, "cuts").await;
    let (handle, handled) = consume(source.clone());
    // One that nobody receives from is kept, too.
    let idle = subscribe(&rabbit, "cuts").await;
    told.until("says that it consumes", 1, consuming(label)).await;
    let mut seen = BTreeSet::new();
    for round in 1..=3 {
        let there: BTreeSet<String> = names(node, "cuts.").await.into_iter().collect();
        assert_eq!(there.len(), 2);
        assert!(there.is_disjoint(&seen), "a name is used twice: {there:?}");
        seen.extend(there);
        broadcast(&other, "cuts", &format!("m-{round}")).await.unwrap();
        until("it is handled", || async { handled.all().contains(&format!("m-{round}")).then_some(()) })
            .await;
        proxy.cut().await;
        told.until("says that the consumer is lost", round, lost(label)).await;
        told.until("says that both queues were made anew", 2 * round, remade(label)).await;
        told.until("says that it consumes again", round + 1, consuming(label)).await;
        assert_eq!((source.queue_name(), handle.health()), (label, Health::Ready));
        until("the old queues are gone", || async {
            (names(node, "cuts.").await.iter().all(|name| !seen.contains(name))).then_some(())
        })
        .await;
    }
    broadcast(&other, "cuts", "last").await.unwrap();
    assert_eq!(take(&idle).await, "last", "the others went with their connections");
    until("it is handled", || async { handled.all().contains(&"last".to_owned()).then_some(()) }).await;
    idle.close().await.unwrap();
    assert!(handle.stop().await.is_clean());
    assert_eq!(names(node, "cuts.").await, [""; 0]);
}

// BC-41: no faster than configured, and in the health.
#[tokio::test]
async fn an_exchange_that_goes_meanwhile_is_missed_in_the_health_until_it_is_there_again() {
    let node = Node::shared().await;
    let raw = Raw::connect(&node.uri()).await;
    fanout(&raw, "going").await;
    let proxy = Proxy::start(node.amqp_port());
    let rabbit = RabbitMq::connect(config(&node.uri_at(proxy.port()))).await.unwrap();
    let told = Told::new(&rabbit);
    let (handle, handled) = consume(subscribe(&rabbit, "going").await);
    told.until("says that it consumes", 1, consuming("going.subscriber")).await;
    delete_exchange(&raw, "going").await;
    proxy.cut().await;
    let (error, _) = told.until("says that it is missing", 4, refused("going.subscriber")).await;
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(error.to_string().contains("exchange going"), "{error}");
    let waits: Vec<_> = told.all(refused("going.subscriber")).into_iter().map(|(_, delay)| delay).collect();
    assert!(waits[0] >= ms(40) && waits[3] >= ms(300), "{waits:?}");
    let Health::NotReady { reason } = handle.health() else { panic!("{:?}", handle.health()) };
    assert!(reason.contains("exchange going"), "{reason}");
    assert_eq!(names(node, "going.").await, [""; 0], "no queue is made for nothing");

    fanout(&raw, "going").await;
    told.until("says that it consumes again", 2, consuming("going.subscriber")).await;
    until_heard(&rabbit, "going", &handled).await;
    assert!(handle.stop().await.is_clean());
}

#[tokio::test]
async fn a_retry_comes_back_to_the_one_who_asked_for_it_and_what_is_given_up_is_dropped() {
    let node = Node::shared().await;
    let (rabbit, raw) = (connect(node).await, Raw::connect(&node.uri()).await);
    let told = Told::new(&rabbit);
    fanout(&raw, "retries").await;
    let failing = QueueConsumer::with_decoder(
        subscribe(&rabbit, "retries").await,
        codec::bytes,
        async |_: bytes::Bytes, context: Context| {
            Err::<(), _>(HandlerError::failed(format!("attempt {}", context.attempt())))
        },
    );
    let failing = failing.retry_policy(RetryPolicy::schedule([ms(50), ms(100)])).start().unwrap();
    let (quiet, handled) = consume(subscribe(&rabbit, "retries").await);
    until("both consume", || async { (told.all(consuming("retries.subscriber")).len() == 2).then_some(()) })
        .await;
    broadcast(&rabbit, "retries", "m").await.unwrap();
    let dropped = |event: &RabbitEvent| match event {
        RabbitEvent::Dropped { queue, message, cause } => {
            Some((queue.clone(), message.clone(), cause.clone()))
        }
        _ => None,
    };
    let (queue, message, cause) = told.until("says that it was dropped", 1, dropped).await;
    assert_eq!((queue.as_str(), message.as_str()), ("retries.subscriber", "m"));
    assert!(cause.contains("retry_exhausted"), "{cause}");
    assert_eq!(failing.stop().await.stats.retried, 2);
    assert_eq!(handled.all(), ["m"], "the other got it once");
    assert!(quiet.stop().await.is_clean());
    assert_eq!(names(node, "retries").await, [""; 0], "no wait queue stays");
}

#[tokio::test]
async fn the_dead_letters_of_a_subscription_can_be_kept() {
    let node = Node::shared().await;
    let (rabbit, raw) = (connect(node).await, Raw::connect(&node.uri()).await);
    fanout(&raw, "kept").await;
    raw.declare("kept.dlq", QueueType::Quorum, FieldTable::default()).await;
    let options = rabbit.subscribe("kept").dead_letter_to(DeadLetterTo::Queue);
    let source = bounded("subscribe", options.open()).await.unwrap();
    broadcast(&rabbit, "kept", "m").await.unwrap();
    let delivery = next(&source).await;
    source.nack(delivery.receipt, NackReason::dead_letter("given_up")).await.unwrap();
    let letter = raw.get("kept.dlq").await.expect("a dead letter");
    assert_eq!(letter.id(), "m");
    let origin = AMQPValue::LongString("kept.subscriber".into());
    assert_eq!(letter.header("windlass-origin-queue"), Some(&origin));
}

#[tokio::test]
async fn a_subscription_is_made_anew_after_the_broker_was_killed_and_started_again() {
    let node = Node::start(Options::new()).await;
    let (rabbit, raw) = (connect(&node).await, Raw::connect(&node.uri()).await);
    let told = Told::new(&rabbit);
    fanout(&raw, "restarts").await;
    node.flush().await;
    let (handle, handled) = consume(subscribe(&rabbit, "restarts").await);
    told.until("says that it consumes", 1, consuming("restarts.subscriber")).await;
    node.restart().await;
    told.until("says that it consumes again", 2, consuming("restarts.subscriber")).await;
    until("the publisher is connected", || async { rabbit.health().is_ready().then_some(()) }).await;
    until_heard(&rabbit, "restarts", &handled).await;
    assert_eq!(names(&node, "restarts.").await.len(), 1, "none is stale");
    assert!(handle.stop().await.is_clean());
}
