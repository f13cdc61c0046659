//! What becomes of a slot with its connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lapin::types::FieldTable;
use windlass::codec;
use windlass::consumer::{ConsumerHandle, QueueConsumer};
use windlass::handler::{Context, HandlerError};
use windlass::queue::Slot;
use windlass::rabbitmq::{ConfigProvider, RabbitMq, RabbitSource};
use windlass::source::{Health, MessageSource};
use windlass::{Error, ErrorKind};

use crate::broker_bench::{Told, config, consuming, lost, ms, refused};
use crate::desk::{claim, connect, names, remade, send};
use crate::log::Log;
use crate::rabbit::{Direction, Node, Options, Proxy, QueueType, Raw, Sent, bounded, until};

/// A consumer that writes down what it handled, and with which attempt.
fn consume(source: RabbitSource) -> (ConsumerHandle, Log<(String, u32)>) {
    let handled = Log::default();
    let log = handled.clone();
    let consumer =
        QueueConsumer::with_decoder(source, codec::bytes, move |_: bytes::Bytes, context: Context| {
            log.add((context.message().id().to_owned(), context.attempt()));
            async { Ok::<_, HandlerError>(()) }
        });
    (consumer.start().expect("it starts"), handled)
}

async fn until_handled(handled: &Log<(String, u32)>, id: &str) {
    let found = || handled.all().iter().any(|(of, _)| of == id);
    until(&format!("{id} is handled"), || async { found().then_some(()) }).await;
}

/// Sends until there is a queue for it.
async fn deliver(rabbit: &RabbitMq, queue: &str, id: &str) {
    until(&format!("{queue} takes {id}"), || async { send(rabbit, queue, id).await.ok() }).await;
}

async fn proxied(node: &Node) -> (Proxy, RabbitMq, Told) {
    let proxy = Proxy::start(node.amqp_port());
    let rabbit = RabbitMq::connect(config(&node.uri_at(proxy.port()))).await.expect("the node takes it");
    let told = Told::new(&rabbit);
    (proxy, rabbit, told)
}

fn not_ready(health: Health) -> String {
    match health {
        Health::NotReady { reason } => reason,
        health => panic!("{health:?}"),
    }
}

fn taken(queue: &str) -> impl Fn(&windlass::rabbitmq::RabbitEvent) -> Option<Error> + '_ {
    move |event| {
        refused(queue)(event).map(|(error, _)| error).filter(|error| error.kind() == ErrorKind::Taken)
    }
}

// BC-44 c
#[tokio::test]
async fn a_slot_is_made_again_after_a_cut_and_its_consumer_goes_on() {
    let node = Node::shared().await;
    let (proxy, rabbit, told) = proxied(node).await;
    let other = connect(node).await;
    let (handle, handled) = consume(claim(&rabbit, "cut", 3).await);
    told.until("says that it consumes", 1, consuming("cut_3")).await;
    for round in 1..=4 {
        let id = format!("m-{round}");
        deliver(&other, "cut_3", &id).await;
        until_handled(&handled, &id).await;
        proxy.cut().await;
        told.until("says that the consumer is lost", round, lost("cut_3")).await;
        told.until("says that the queue was made again", round, remade("cut_3")).await;
        told.until("says that it consumes again", round + 1, consuming("cut_3")).await;
        assert_eq!(handle.health(), Health::Ready);
        let error = bounded("claim", other.claim("cut", Slot::Number(3)).open()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Taken, "it is ours again: {error}");
    }
    deliver(&other, "cut_3", "last").await;
    until_handled(&handled, "last").await;
    assert_eq!(names(node, "cut_").await, ["cut_3"]);
    assert!(handle.stop().await.is_clean());
    assert_eq!(names(node, "cut_").await, [""; 0]);
}

// What is sent to it must find it, and nobody else may get it, also while nothing is consumed.
#[tokio::test]
async fn a_slot_of_which_nothing_is_received_is_made_again_too() {
    let node = Node::shared().await;
    let (proxy, rabbit, told) = proxied(node).await;
    let other = connect(node).await;
    let fresh = claim(&rabbit, "idle", 1).await;
    let (paused, handled) = consume(claim(&rabbit, "idle", 2).await);
    told.until("says that it consumes", 1, consuming("idle_2")).await;
    bounded("pause", paused.pause()).await;
    for round in 1..=2 {
        proxy.cut().await;
        for queue in ["idle_1", "idle_2"] {
            told.until("says that the queue was made again", round, remade(queue)).await;
            send(&other, queue, &format!("m-{round}")).await.unwrap();
            let number = Slot::Number(if queue == "idle_1" { 1 } else { 2 });
            let error = bounded("claim", other.claim("idle", number).open()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Taken, "{error}");
        }
    }
    assert_eq!(told.all(consuming("idle_1")).len(), 0, "nobody receives");
    assert_eq!(told.all(consuming("idle_2")).len(), 1, "it is paused");
    bounded("resume", paused.resume()).await;
    until_handled(&handled, "m-2").await;
    assert_eq!(crate::desk::next(&fresh).await.message.id(), "m-2");
    assert_eq!(handled.len(), 1, "m-1 went with its connection");
}

#[tokio::test]
async fn a_slot_that_somebody_took_meanwhile_is_taken_in_the_health_until_they_let_go() {
    let node = Node::shared().await;
    let (proxy, rabbit, told) = proxied(node).await;
    let other = connect(node).await;
    let (handle, handled) = consume(claim(&rabbit, "lost", 1).await);
    let idle = claim(&rabbit, "lost", 2).await;
    told.until("says that it consumes", 1, consuming("lost_1")).await;
    proxy.refuse(true).await;
    proxy.cut().await;
    let first = until("the broker lets go", || async {
        bounded("claim", other.claim("lost", Slot::Number(1)).open()).await.ok()
    });
    let second = until("the broker lets go", || async {
        bounded("claim", other.claim("lost", Slot::Number(2)).open()).await.ok()
    });
    let (first, second) = (first.await, second.await);
    proxy.refuse(false).await;
    for queue in ["lost_1", "lost_2"] {
        let error = told.until("says that it is taken", 4, taken(queue)).await;
        assert!(error.to_string().contains(queue), "{error}");
        // With the longest of the waits that a failed set-up has: 400 ms, or a fifth less.
        let waits: Vec<_> = told.all(refused(queue)).into_iter().map(|(_, delay)| delay).collect();
        assert!(waits[0] >= ms(40) && waits[3] >= ms(300), "{waits:?}");
    }
    for health in [handle.health(), idle.health()] {
        let reason = not_ready(health);
        assert!(reason.contains("taken") && reason.contains("lost_"), "{reason}");
    }
    // It is the other's, whoever tries meanwhile.
    send(&other, "lost_1", "theirs").await.unwrap();
    let theirs = crate::desk::next(&first).await;
    assert_eq!(theirs.message.id(), "theirs");
    first.ack(theirs.receipt).await.unwrap();
    // The first who receives does so while it is taken.
    let freed = async {
        told.until("says that it is taken", 6, taken("lost_2")).await;
        first.close().await.unwrap();
        second.close().await.unwrap();
        told.until("says that the queue was made again", 1, remade("lost_2")).await;
        deliver(&other, "lost_2", "waited for").await;
    };
    let (received, ()) = futures::join!(crate::desk::next(&idle), freed);
    assert_eq!(received.message.id(), "waited for");
    assert_eq!(idle.health(), Health::Ready);
    deliver(&other, "lost_1", "ours").await;
    until_handled(&handled, "ours").await;
    assert_eq!(handle.health(), Health::Ready);
    assert!(handle.stop().await.is_clean());
}

// A durable queue may have taken the name, with messages of somebody else's: ending the source must not delete it.
#[tokio::test]
async fn a_queue_of_somebody_elses_that_has_the_name_of_a_slot_outlives_the_source() {
    let node = Node::shared().await;
    let (proxy, rabbit, told) = proxied(node).await;
    let (other, raw) = (connect(node).await, Raw::connect(&node.uri()).await);
    let idle = claim(&rabbit, "usurped", 1).await;
    let (handle, _) = consume(claim(&rabbit, "usurped", 2).await);
    told.until("says that it consumes", 1, consuming("usurped_2")).await;
    proxy.refuse(true).await;
    proxy.cut().await;
    for queue in ["usurped_1", "usurped_2"] {
        until("the broker lets go", || async { (!other.queue_exists(queue).await.unwrap()).then_some(()) })
            .await;
        raw.declare(queue, QueueType::Quorum, FieldTable::default()).await;
        assert_eq!(raw.publish(queue, "keep", b"x").await, Sent::Confirmed);
    }
    proxy.refuse(false).await;
    for queue in ["usurped_1", "usurped_2"] {
        let (error, _) = told.until("says that it is refused", 2, refused(queue)).await;
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        assert!(error.to_string().contains(queue) && error.to_string().contains("delete it"), "{error}");
    }
    assert!(not_ready(idle.health()).contains("usurped_1"));
    assert!(not_ready(handle.health()).contains("usurped_2"));
    idle.close().await.unwrap();
    let _ = handle.stop().await;
    for queue in ["usurped_1", "usurped_2"] {
        assert_eq!(raw.count(queue).await, Some((1, 0)), "{queue}");
        raw.delete(queue).await;
    }
}

// BC-44 c: the broker has not noticed yet that the old connection is gone.
#[tokio::test]
async fn a_slot_that_the_old_connection_still_has_is_taken_until_that_one_goes() {
    let node = Node::shared().await;
    let proxy = Proxy::start(node.amqp_port());
    let through = Arc::new(AtomicBool::new(true));
    let provider = ConfigProvider::new({
        let (through, direct, by_proxy) = (Arc::clone(&through), node.uri(), node.uri_at(proxy.port()));
        move || {
            let uri = if through.load(Ordering::SeqCst) { &by_proxy } else { &direct };
            let config = config(uri).with_heartbeat(ms(2_000));
            async { Ok(config) }
        }
    });
    let rabbit = RabbitMq::connect(provider).await.unwrap();
    let (told, other) = (Told::new(&rabbit), connect(node).await);
    let (handle, handled) = consume(claim(&rabbit, "half-open", 1).await);
    told.until("says that it consumes", 1, consuming("half-open_1")).await;

    through.store(false, Ordering::SeqCst);
    // The broker hears nothing any more, not even of the end; the client is told that there is one.
    proxy.swallow(Direction::ToBroker, true);
    proxy.half_close(Direction::ToClient);
    let error = told.until("says that it is taken", 2, taken("half-open_1")).await;
    assert!(error.to_string().contains("405") && error.to_string().contains("slot 1"), "{error}");
    let reason = not_ready(handle.health());
    assert!(reason.contains("taken") && reason.contains("half-open_1"), "{reason}");
    assert!(rabbit.health().is_ready(), "the connections stand: {:?}", rabbit.health());

    // Two heartbeats later it has noticed.
    told.until("says that it consumes again", 2, consuming("half-open_1")).await;
    assert_eq!(told.all(remade("half-open_1")).len(), 1);
    deliver(&other, "half-open_1", "m").await;
    until_handled(&handled, "m").await;
    assert!(handle.stop().await.is_clean());
}

#[tokio::test]
async fn a_slot_is_made_again_after_the_broker_was_killed_and_started_again() {
    let node = Node::start(Options::new()).await;
    let rabbit = connect(&node).await;
    let told = Told::new(&rabbit);
    let (handle, handled) = consume(claim(&rabbit, "killed", 1).await);
    told.until("says that it consumes", 1, consuming("killed_1")).await;
    node.kill().await;
    told.until("says that the consumer is lost", 1, lost("killed_1")).await;
    assert!(!handle.health().is_ready());
    node.restart().await;
    told.until("says that it consumes again", 2, consuming("killed_1")).await;
    deliver(&rabbit, "killed_1", "m").await;
    until_handled(&handled, "m").await;
    let (first, second) = (connect(&node).await, claim(&rabbit, "killed", 2).await);
    let error = bounded("claim", first.claim("killed", Slot::Number(1)).open()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Taken, "{error}");
    second.close().await.unwrap();
    assert!(handle.stop().await.is_clean());
}
