//! What the tests of queues that belong to a source share.

use std::num::NonZeroU32;

use serde_json::Value;
use tokio_util::sync::CancellationToken;
use windlass::message::Message;
use windlass::publisher::Publisher;
use windlass::queue::Slot;
use windlass::rabbitmq::{RabbitEvent, RabbitMq, RabbitReceipt, RabbitSource};
use windlass::source::{Delivery, MessageSource};

use crate::broker_bench::config;
use crate::rabbit::{Node, bounded, until};

pub(crate) async fn connect(node: &Node) -> RabbitMq {
    bounded("connect", RabbitMq::connect(config(&node.uri()))).await.expect("the node takes it")
}

/// The first free one of so many.
pub(crate) fn first_of(most: u32) -> Slot {
    Slot::FirstFree { most: NonZeroU32::new(most).expect("not zero") }
}

pub(crate) async fn claim(rabbit: &RabbitMq, family: &str, number: u32) -> RabbitSource {
    bounded("claim", rabbit.claim(family, Slot::Number(number)).open()).await.expect("the slot is free")
}

/// The next message; a source that comes back tells of a loss first.
pub(crate) async fn next(source: &RabbitSource) -> Delivery<RabbitReceipt> {
    let cancel = CancellationToken::new();
    until("a message comes", || async { bounded("receive", source.receive(&cancel)).await.ok().flatten() })
        .await
}

/// Sends by the default exchange, with this id.
pub(crate) async fn send(rabbit: &RabbitMq, queue: &str, id: &str) -> windlass::Result<()> {
    bounded("publish", rabbit.publisher().publish(queue, Message::new("x").with_id(id))).await
}

/// What the broker says of the queues whose names begin with this, by their names.
pub(crate) async fn queues(node: &Node, prefix: &str) -> Vec<Value> {
    let all = node.management().try_get("/api/queues/%2f").await.expect("the broker lists its queues");
    let mut found: Vec<Value> = all.as_array().expect("a list").clone();
    found.retain(|queue| queue["name"].as_str().is_some_and(|name| name.starts_with(prefix)));
    found.sort_by_key(|queue| queue["name"].to_string());
    found
}

pub(crate) async fn names(node: &Node, prefix: &str) -> Vec<String> {
    let names = queues(node, prefix).await;
    names.iter().map(|queue| queue["name"].as_str().expect("it has a name").to_owned()).collect()
}

/// Waits until these are all the queues whose names begin with this.
pub(crate) async fn until_names(node: &Node, prefix: &str, wanted: &[&str]) {
    until(&format!("the queues {wanted:?}"), || async {
        (names(node, prefix).await == wanted).then_some(())
    })
    .await;
}

/// For [`Told`](crate::broker_bench::Told): the queue was made again.
pub(crate) fn remade(queue: &str) -> impl Fn(&RabbitEvent) -> Option<()> + '_ {
    move |event| match event {
        RabbitEvent::QueueRemade { queue: of } => (of == queue).then_some(()),
        _ => None,
    }
}
