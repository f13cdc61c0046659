//! A broker by its URL: which one it is, and that it means the same in memory as on RabbitMQ
//! (`tests/broker_by_url_rabbitmq.rs` runs the same there).

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "broker_by_url/scenarios.rs"]
mod scenarios;

use tokio_util::sync::CancellationToken;
use windlass::broker::Broker;
use windlass::clock::ControlledClock;
use windlass::memory::MemoryBroker;
use windlass::{ErrorKind, Message, MessageSource, Publisher};

async fn open() -> Broker {
    let broker = Broker::open("memory:").await.unwrap();
    let memory = broker.as_memory().unwrap();
    for queue in ["orders", "orders.dlq", "spare"] {
        memory.queue(queue);
    }
    memory.declare_exchange("all");
    broker
}

#[tokio::test]
async fn in_memory_it_means_what_it_means_on_rabbitmq() {
    let broker = open().await;
    scenarios::a_message_goes_through_and_dead_letters_are_kept(&broker, "memory").await;
    scenarios::a_queue_that_nobody_declared_is_not_found(&broker).await;
    scenarios::slots_are_claimed_once_and_free_again(&broker).await;
    scenarios::a_broadcast_reaches_everybody_and_nobody(&broker).await;
    scenarios::a_queue_with_messages_is_deleted_only_on_demand(&broker, "spare").await;
    scenarios::a_consumer_runs_on_it_and_stops(&broker).await;
    scenarios::after_the_close_all_is_closed(&broker).await;
}

#[tokio::test]
async fn a_name_is_one_broker_for_all_who_have_it_and_no_name_is_ones_own() {
    let (one, other) = (open().await, open().await);
    one.as_memory().unwrap().queue("mine");
    assert!(!other.queue_exists("mine").await.unwrap());

    let first = Broker::open("memory:by-name").await.unwrap();
    let second = Broker::open("MEMORY:by-name").await.unwrap();
    let stranger = Broker::open("memory:by-other-name").await.unwrap();
    let queue = first.as_memory().unwrap().queue("shared");
    second.publisher().publish("shared", Message::new("x").with_id("m-1")).await.unwrap();
    assert_eq!(queue.pending()[0].id(), "m-1");
    assert!(!stranger.queue_exists("shared").await.unwrap());

    // Each is a connection of its own: one that closes takes nothing from the other.
    let (kept, ended) = (first.source("shared").await.unwrap(), second.source("shared").await.unwrap());
    second.close().await;
    assert!(kept.health().is_ready() && !ended.health().is_ready());
    let publisher = first.publisher();
    drop((first, second));
    assert!(Broker::open("memory:by-name").await.unwrap().queue_exists("shared").await.unwrap());
    drop((publisher, kept, ended));
    assert!(!Broker::open("memory:by-name").await.unwrap().queue_exists("shared").await.unwrap());
}

#[tokio::test]
async fn a_memory_broker_of_the_tests_own_is_one_too() {
    let memory = MemoryBroker::new(ControlledClock::new());
    memory.queue("orders");
    let broker = Broker::from(memory.clone());
    assert!(broker.queue_exists("orders").await.unwrap());
    assert_eq!(format!("{broker:?}"), r#"Broker { system: "memory", health: Ready }"#);
    broker.close().await;
    assert!(memory.queue_exists("orders"), "it is the connection that is closed");
}

#[tokio::test]
async fn a_source_keeps_the_broker_that_it_came_from() {
    let broker = Broker::open("memory:kept-by-a-source").await.unwrap();
    broker.as_memory().unwrap().queue("writer");
    let source = broker.source("writer").await.unwrap();
    drop(broker);
    let again = Broker::open("memory:kept-by-a-source").await.unwrap();
    again.publisher().publish("writer", Message::new("x")).await.unwrap();
    assert!(source.receive(&CancellationToken::new()).await.unwrap().is_some());
    source.close().await.unwrap();
}

#[tokio::test]
async fn a_url_of_nobody_is_refused_and_never_repeated() {
    for (url, said) in [
        ("", "`url` is empty"),
        ("kafka://user:hunter2@host", "`url` has the scheme `kafka`, which is none of ours"),
        ("user:hunter2@host", "`url` names no broker"),
        ("hunter2:hunter2", "`url` names no broker"),
        ("hunter2", "`url` names no broker"),
        ("us er:hunter2://x", "`url` names no broker"),
        ("://hunter2", "`url` names no broker"),
        ("memory", "`url` names no broker"),
        ("memory://hunter2", "its name has a slash: write `memory:<name>`"),
    ] {
        let error = Broker::open(url).await.unwrap_err();
        let text = format!("{error} {error:?}");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
        assert!(text.contains(said) && !text.contains("hunter2"), "{url}: {text}");
        if !said.contains("slash") {
            assert!(text.contains("`memory:`, `memory:<name>`, `amqp://…` and `amqps://…`"), "{text}");
        }
    }
}

#[tokio::test]
#[cfg(not(feature = "rabbitmq"))]
async fn without_the_feature_it_is_named() {
    let error = Broker::open("amqp://user:hunter2@host").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("the feature `rabbitmq`"), "{error}");
    assert!(!format!("{error:?}").contains("hunter2"));
}

#[tokio::test]
#[cfg(feature = "rabbitmq")]
async fn a_url_of_rabbitmq_that_cannot_be_right_names_the_field_and_no_password() {
    for url in ["amqp://user:hunter2@host:port", "AMQPS://user:hunter2@host?heartbeat=soon", "amqp:hunter2"] {
        let error = Broker::open(url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{url}: {error}");
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{url}: {error}");
    }
}
