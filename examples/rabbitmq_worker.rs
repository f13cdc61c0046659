//! A worker on RabbitMQ: takes orders, sends a shipment onward for each, stops on SIGTERM or Ctrl-C with a report.
//!
//! ```text
//! WORKER_AMQP_URI=amqp://guest:guest@localhost/%2f cargo run --features rabbitmq --example rabbitmq_worker
//! ```
//!
//! The variables that it reads are those of `RabbitMqConfig::from_env` with the prefix `WORKER_AMQP`. Its queues are
//! `orders` and `shipments`; it declares them where they are missing. An order is JSON: `{"item": "lamp", "count": 2}`.

// It tells people what it does.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::num::NonZeroUsize;

use futures::StreamExt;
use serde::Deserialize;
use windlass::rabbitmq::{QueueType, RabbitMq, RabbitMqConfig, RabbitPublisher};
use windlass::{Context, HandlerError, Message, Publisher, QueueConsumer};

#[derive(Deserialize)]
struct Order {
    item: String,
    count: u32,
}

/// Published before the order is acked: a crash in between sends a shipment twice, and none is lost. Whoever receives it
/// can tell by its id.
async fn ship(order: Order, context: Context, shipments: RabbitPublisher) -> Result<(), HandlerError> {
    if order.count == 0 {
        return Err(HandlerError::terminal("nothing to ship"));
    }
    let shipment = Message::new(format!("{} x {}", order.count, order.item))
        .with_id(format!("shipment-of-{}", context.message().id()))
        .with_correlation_id(context.correlation_id());
    shipments.publish("shipments", shipment).await.map_err(HandlerError::failed)
}

#[tokio::main]
async fn main() -> windlass::Result<()> {
    let rabbit = RabbitMq::connect(RabbitMqConfig::from_env("WORKER_AMQP")?).await?;
    let mut events = rabbit.watch();
    let log = tokio::spawn(async move {
        while let Some(event) = events.next().await {
            eprintln!("rabbitmq: {event:?}");
        }
    });
    for queue in ["orders", "shipments"] {
        rabbit.declare_queue(queue, QueueType::Quorum).await?;
    }
    let source = rabbit.source("orders").queue_type(QueueType::Quorum).open().await?;
    let shipments = rabbit.publisher();
    let consumer = QueueConsumer::new(source, move |order, context| ship(order, context, shipments.clone()))
        .max_concurrent(NonZeroUsize::new(16).unwrap_or(NonZeroUsize::MIN))
        .on_event(|event| println!("{} {}: {}", event.message.id(), event.outcome.name(), event.settlement))
        .start()?;
    println!("working");

    stop_signal().await;
    let report = consumer.stop().await;
    println!("{report:?}");
    rabbit.disconnect().await;
    log.abort();
    Ok(())
}

#[cfg(unix)]
async fn stop_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    // Only waits are lost here.
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => tokio::select! {
            biased;
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        },
        Err(error) => eprintln!("cannot listen for SIGTERM: {error}"),
    }
}

#[cfg(not(unix))]
async fn stop_signal() {
    let _ = tokio::signal::ctrl_c().await;
}
