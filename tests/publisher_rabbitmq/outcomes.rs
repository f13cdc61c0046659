//! Each way in which a publish can end is told apart from the others.

use std::time::Duration;

use lapin::ExchangeKind;
use lapin::options::{ExchangeDeclareOptions, ExchangeDeleteOptions, QueueBindOptions};
use lapin::types::FieldTable;
use tokio_util::sync::CancellationToken;
use windlass::ErrorKind;
use windlass::message::Message;
use windlass::publisher::Publisher;
use windlass::rabbitmq::{RabbitMq, RabbitMqConfig, Role};
use windlass::source::MessageSource;

use super::desk::{Desk, kind, message, note};
use super::rabbit::{Direction, QueueType, bounded, until};

async fn exchange(desk: &Desk, name: &str) -> String {
    let exchange = desk.name(name);
    let channel = desk.raw.channel().await;
    let options = ExchangeDeclareOptions::default();
    let declare = channel.exchange_declare(
        exchange.as_str().into(),
        ExchangeKind::Direct,
        options,
        FieldTable::default(),
    );
    bounded("declare", declare).await.expect("it is declared");
    exchange
}

async fn bind(desk: &Desk, exchange: &str, key: &str, queue: &str) {
    let channel = desk.raw.channel().await;
    let bind = channel.queue_bind(
        queue.into(),
        exchange.into(),
        key.into(),
        QueueBindOptions::default(),
        FieldTable::default(),
    );
    bounded("bind", bind).await.expect("it is bound");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_is_confirmed_unroutable_or_refused_and_the_error_says_what_to_look_at() {
    let desk = Desk::new("outcomes").await;
    let [classic, quorum] =
        [desk.queue("classic", QueueType::Classic).await, desk.queue("quorum", QueueType::Quorum).await];
    let full = desk.full_at("full", 1).await;
    for queue in [&classic, &quorum, &full] {
        assert_eq!(kind(&desk.publish(queue, message(queue.as_str())).await), None, "{queue}");
    }
    let missing = desk.name("missing");
    let error = desk.publish(&missing, message("to nowhere")).await.expect_err("there is no such queue");
    assert_eq!((error.kind(), error.is_transient()), (ErrorKind::Unroutable, false));
    assert!(error.to_string().contains(&missing), "{error}");
    let error = desk.publish(&full, message("too many")).await.expect_err("the queue is full");
    assert_eq!((error.kind(), error.is_transient()), (ErrorKind::Refused, true));
    assert!(error.to_string().contains("full"), "{error}");
    assert_eq!(desk.account(&[&classic, &quorum, &full]).await, [1, 1, 1]);
    desk.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn to_an_exchange_a_message_goes_by_its_bindings_and_without_one_it_is_unroutable() {
    let desk = Desk::new("exchange").await;
    let queue = desk.queue("bound", QueueType::Quorum).await;
    let exchange = exchange(&desk, "direct").await;
    bind(&desk, &exchange, "key", &queue).await;
    for (id, key, wanted) in [("bound", "key", None), ("other", "lock", Some(ErrorKind::Unroutable))] {
        desk.ledger.published(id);
        let outcome = desk.publisher.publish_to(&exchange, key, message(id)).await;
        note(&desk.ledger, id, &outcome);
        assert_eq!(kind(&outcome), wanted);
        if let Err(error) = outcome {
            assert!(error.to_string().contains(&exchange) && error.to_string().contains(key), "{error}");
        }
    }
    assert_eq!(desk.account(&[&queue]).await, [1]);
    desk.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_exchange_is_not_found_and_publishes_to_queues_go_on_meanwhile() {
    let desk = Desk::new("no-exchange").await;
    let queue = desk.queue("queue", QueueType::Quorum).await;
    let missing = desk.name("missing");
    let lost = async {
        for number in 0..20 {
            let error = desk
                .publisher
                .publish_to(&missing, "key", message(format!("lost-{number}")))
                .await
                .expect_err("there is no such exchange");
            assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
            assert!(error.to_string().contains(&missing), "{error}");
        }
    };
    let others = async {
        for number in 0..300 {
            let outcome = desk.publish(&queue, message(format!("there-{number}"))).await;
            assert_eq!(kind(&outcome), None, "{outcome:?}");
        }
    };
    bounded("both", Box::pin(async { tokio::join!(lost, others) })).await;
    assert_eq!(desk.account(&[&queue]).await, [300]);
    desk.end().await;
}

// One whose exchange is deleted while publishes are on their way: none that was taken is told as not taken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_taken_before_an_exchange_was_deleted_is_not_told_as_refused() {
    let desk = Desk::new("deleted-exchange").await;
    let queue = desk.queue("queue", QueueType::Quorum).await;
    let channel = desk.raw.channel().await;
    for round in 0..10 {
        let exchange = exchange(&desk, &format!("short-lived-{round}")).await;
        bind(&desk, &exchange, "key", &queue).await;
        let publishes = (0..300).map(|number| {
            let (desk, exchange) = (&desk, exchange.as_str());
            async move {
                let id = format!("{round}-{number}");
                desk.ledger.published(&id);
                let outcome = desk.publisher.publish_to(exchange, "key", message(id.as_str())).await;
                note(&desk.ledger, &id, &outcome);
            }
        });
        let deleted = async {
            until("some are there", || async { (desk.ledger.confirmed_count() > round * 10).then_some(()) })
                .await;
            let delete = channel.exchange_delete(exchange.as_str().into(), ExchangeDeleteOptions::default());
            bounded("delete", delete).await.expect("it is deleted");
        };
        bounded("all", futures::future::join(futures::future::join_all(publishes), deleted)).await;
    }
    desk.account(&[&queue]).await;
    desk.end().await;
}

// A user who may not write is told so, not that the outcome is unknown; and the error does not name the user.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_who_may_not_write_is_refused() {
    let desk = Desk::new("no-rights").await;
    let queue = desk.queue("queue", QueueType::Classic).await;
    let exchange = exchange(&desk, "direct").await;
    let user = "reader-of-everything";
    let management = desk.node.management();
    management.put_user(user, "secret").await;
    management.put_permissions("/", user, ["^$", "^$", ".*"]).await;
    let uri = desk.node.uri().replace("guest:guest", &format!("{user}:secret"));
    let rabbit =
        bounded("connect", RabbitMq::connect(RabbitMqConfig::from_uri(&uri).unwrap())).await.unwrap();
    let publisher = rabbit.publisher();
    let to_queue = bounded("publish", publisher.publish(&queue, message("a"))).await;
    let to_exchange = bounded("publish", publisher.publish_to(&exchange, "key", message("b"))).await;
    for outcome in [to_queue, to_exchange] {
        let error = outcome.expect_err("this user may not");
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        assert!(!error.to_string().contains(user), "{error}");
    }
    bounded("disconnect", rabbit.disconnect()).await;
    management.delete_user(user).await;
    desk.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_there_is_no_connection_nothing_was_sent_and_what_waits_goes_out_after_it() {
    let desk = Desk::with_timeout("down", Duration::from_secs(1)).await;
    let queue = desk.queue("queue", QueueType::Quorum).await;
    desk.publish(&queue, message("before")).await.expect("it is taken");
    desk.proxy.refuse(true).await;
    desk.proxy.cut().await;
    until("the loss is noticed", || async { (!desk.rabbit.health().is_ready()).then_some(()) }).await;
    for number in 0..3 {
        let error = desk.publish(&queue, message(format!("down-{number}"))).await.expect_err("no connection");
        assert_eq!((error.kind(), error.is_transient()), (ErrorKind::Disconnected, true), "{error}");
    }
    let patient = Desk::with_timeout("patient", Duration::from_secs(20)).await;
    patient.proxy.refuse(true).await;
    patient.proxy.cut().await;
    until("the loss is noticed", || async { (!patient.rabbit.health().is_ready()).then_some(()) }).await;
    let waits = patient.publish(&queue, message("waits"));
    let back = async {
        assert!(!patient.rabbit.health().is_ready());
        patient.proxy.refuse(false).await;
    };
    let (outcome, ()) = tokio::join!(waits, back);
    outcome.expect("it is sent as soon as there is a connection");
    desk.proxy.refuse(false).await;
    until("it is back", || async { desk.rabbit.health().is_ready().then_some(()) }).await;
    desk.publish(&queue, message("after")).await.expect("it is taken");
    desk.ledger.published("waits");
    desk.ledger.confirmed("waits");
    assert_eq!(desk.account(&[&queue]).await, [3]);
    patient.end().await;
    desk.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_sent_and_not_confirmed_is_unknown_whether_the_connection_goes_or_the_time() {
    let desk = Desk::with_timeout("unknown", Duration::from_secs(1)).await;
    let queue = desk.queue("queue", QueueType::Quorum).await;
    desk.publish(&queue, message("before")).await.expect("it is taken");
    desk.proxy.swallow(Direction::ToClient, true);
    let error = desk.publish(&queue, message("timed out")).await.expect_err("no confirm comes");
    assert_eq!((error.kind(), error.is_transient()), (ErrorKind::Unconfirmed, false), "{error}");
    let cut = async {
        until("it is in the queue", || async {
            (desk.raw.count(&queue).await.is_some_and(|(ready, _)| ready == 3)).then_some(())
        })
        .await;
        desk.proxy.cut().await;
    };
    let (outcome, ()) = tokio::join!(desk.publish(&queue, message("cut")), cut);
    let error = outcome.expect_err("the connection went first");
    assert_eq!(error.kind(), ErrorKind::Unconfirmed, "{error}");
    desk.proxy.swallow(Direction::ToClient, false);
    until("it is back", || async { (desk.rabbit.health().is_ready()).then_some(()) }).await;
    desk.publish(&queue, message("after")).await.expect("it is taken");
    assert_eq!(desk.account(&[&queue]).await, [4], "unknown, and here it was there");
    desk.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_disconnect_everything_is_closed_and_nothing_was_sent() {
    let desk = Desk::new("closed").await;
    let queue = desk.queue("queue", QueueType::Classic).await;
    desk.publish(&queue, message("before")).await.expect("it is taken");
    bounded("disconnect", desk.rabbit.disconnect()).await;
    for outcome in [
        desk.publish(&queue, message("queue")).await,
        desk.publisher.publish_to("amq.direct", "key", message("exchange")).await,
        desk.publisher.publish_later(&queue, message("later"), Duration::from_secs(1)).await,
    ] {
        assert_eq!(kind(&outcome), Some(ErrorKind::Closed), "{outcome:?}");
    }
    assert!(matches!(desk.rabbit.state(Role::Publish), windlass::rabbitmq::ConnectionState::Disconnected));
    assert_eq!(desk.account(&[&queue]).await, [1]);
    desk.end().await;
}

// A header above the frame size would close the connection, and what else is on its way would be unknown.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_that_no_frame_holds_are_refused_before_they_are_sent() {
    let desk = Desk::new("large-headers").await;
    let queue = desk.queue("queue", QueueType::Classic).await;
    let with = |id: &str, bytes: usize| message(id).with_header("large", "x".repeat(bytes));
    let mut fits = 131_072;
    for outcome in [with("much", 140_000), with("far", 10_000_000)] {
        let error = desk.publish(&queue, outcome).await.expect_err("no frame holds it");
        assert_eq!((error.kind(), error.is_transient()), (ErrorKind::Invalid, false), "{error}");
        assert!(error.to_string().contains("headers"), "{error}");
    }
    // To the byte: the largest that is let through is taken by the broker.
    while desk.publish(&queue, with(&format!("edge-{fits}"), fits)).await.is_err() {
        fits -= 1;
    }
    assert!(fits > 130_000, "{fits}");
    desk.publish(&queue, message("after")).await.expect("the connection stands");
    let name = "n".repeat(256);
    for message in [
        message("long header").with_header(name.as_str(), 1_i32),
        message(name.as_str()),
        message("long type").with_content_type(name.as_str()),
        message("long correlation").with_correlation_id(name.as_str()),
    ] {
        let error = desk.publish(&queue, message).await.expect_err("AMQP cannot carry it");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    assert_eq!(desk.proxy.counts().accepted, 2, "no connection was lost");
    // And it can be received.
    let source = bounded("open", desk.rabbit.source(&queue).open()).await.expect("the queue is there");
    let cancel = CancellationToken::new();
    for _ in 0..2 {
        let delivery =
            bounded("receive", source.receive(&cancel)).await.expect("it comes").expect("it comes");
        desk.ledger.handled(delivery.message.id());
        bounded("ack", source.ack(delivery.receipt)).await.expect("it is sent");
    }
    bounded("close", source.close()).await.expect("it closes");
    assert_eq!(desk.account(&[&queue]).await, [0]);
    desk.end().await;
}

// Dropped at any time, a publish leaves nothing behind that another one would get.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publish_that_is_dropped_disturbs_no_other() {
    let desk = Desk::new("dropped").await;
    let queue = desk.queue("queue", QueueType::Quorum).await;
    let missing = desk.name("missing");
    for number in 0..200 {
        let id = format!("dropped-{number}");
        desk.ledger.published(&id);
        let target = if number % 2 == 0 { &queue } else { &missing };
        let mut dropped = Box::pin(desk.publisher.publish(target, message(id)));
        for _ in 0..number % 4 {
            // What was told stays untold.
            let _ = futures::poll!(dropped.as_mut());
            tokio::task::yield_now().await;
        }
        drop(dropped);
        let wanted = (number % 3 == 0).then_some(ErrorKind::Unroutable);
        let target = if wanted.is_some() { &missing } else { &queue };
        let outcome = desk.publish(target, Message::new("x").with_id(format!("kept-{number}"))).await;
        assert_eq!(kind(&outcome), wanted, "{number}");
    }
    desk.account(&[&queue]).await;
    desk.end().await;
}
