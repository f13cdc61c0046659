//! A broker by its URL, on RabbitMQ: the same as in memory (`tests/broker_by_url.rs`).

#![cfg(all(unix, feature = "rabbitmq"))]
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "support/rabbit/mod.rs"]
mod rabbit;
#[path = "broker_by_url/scenarios.rs"]
mod scenarios;

use windlass::broker::Broker;
use windlass::rabbitmq::{QueueType, RabbitMq, RabbitMqConfig};

use rabbit::{Node, bounded};

async fn prepare(node: &Node) {
    let fanout = serde_json::json!({ "type": "fanout", "durable": true, "auto_delete": false });
    let (status, said) = node.management().request("PUT", "/api/exchanges/%2F/all", Some(&fanout)).await;
    assert!(status == 201 || status == 204, "{status} {said}");
    let rabbit = bounded("connecting", RabbitMq::connect(RabbitMqConfig::from_uri(&node.uri()).unwrap()));
    let rabbit = rabbit.await.unwrap();
    for queue in ["orders", "orders.dlq", "spare"] {
        rabbit.declare_queue(queue, QueueType::Quorum).await.unwrap();
    }
    rabbit.disconnect().await;
}

#[tokio::test]
async fn on_rabbitmq_it_means_what_it_means_in_memory() {
    let node = Node::shared().await;
    prepare(node).await;
    let broker = bounded("opening", Broker::open(&node.uri())).await.unwrap();
    assert!(broker.as_memory().is_none() && broker.as_rabbitmq().is_some());
    scenarios::a_message_goes_through_and_dead_letters_are_kept(&broker, "rabbitmq").await;
    scenarios::a_queue_that_nobody_declared_is_not_found(&broker).await;
    scenarios::slots_are_claimed_once_and_free_again(&broker).await;
    scenarios::a_broadcast_reaches_everybody_and_nobody(&broker).await;
    scenarios::a_queue_with_messages_is_deleted_only_on_demand(&broker, "spare").await;
    scenarios::a_consumer_runs_on_it_and_stops(&broker).await;
    scenarios::after_the_close_all_is_closed(&broker).await;
}
