//! What belongs to one sending of a message is not carried by a copy: its user, its further routing keys.

use windlass::message::Message;
use windlass::publisher::Publisher;
use windlass::rabbitmq::{DeadLetterTo, Delivered, Properties};

use super::desk::{BOTH, Desk, SOON};
use super::props::{Entry, Props, USER_ID, value};
use super::rabbit::{Node, Raw, bounded};

const USER: &str = "producer";

/// Another user than the one that consumes.
async fn producer(node: &Node) -> Raw {
    let management = node.management();
    management.put_user(USER, "secret").await;
    management.put_permissions("/", USER, [".*"; 3]).await;
    Raw::connect(&node.uri().replace("guest:guest", &format!("{USER}:secret"))).await
}

// A copy with the producer's user would be refused, and the message retried for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_of_another_user_is_retried_dead_lettered_and_sent_on() {
    let node = Node::shared().await;
    let producer = producer(node).await;
    for kind in BOTH {
        let desk = Desk::on(node, "user-id", kind).await;
        let properties = lapin::BasicProperties::default()
            .with_message_id("m".into())
            .with_user_id(USER.into())
            .with_app_id("shop".into());
        desk.ledger.published("m");
        producer.publish_with("", &desk.queue, b"x", properties).await;
        desk.ledger.confirmed("m");
        let source = desk.source(1, DeadLetterTo::Queue).await;
        let first = desk.retry_next(&source, SOON).await;
        let came = first.metadata::<Delivered>().unwrap();
        assert_eq!(came.properties.user_id.as_deref(), Some(USER));
        let again = desk.retry_next(&source, SOON).await;
        let came = again.metadata::<Delivered>().unwrap();
        assert_eq!((again.attempt(), came.properties.user_id.as_deref()), (2, None));
        // As a handler that sends it on would.
        desk.ledger.published("onward");
        let onward = first.clone().with_id("onward");
        bounded("publish", desk.rabbit.publisher().publish(&desk.queue, onward)).await.expect("it is taken");
        desk.ledger.confirmed("onward");
        let mut ids: Vec<String> = Vec::new();
        for _ in 0..2 {
            ids.push(desk.give_up_next(&source, "looked at").await.id().to_owned());
        }
        ids.sort();
        assert_eq!(ids, ["m", "onward"]);
        let letters = desk.finish(source).await;
        assert_eq!(letters.len(), 2);
        assert!(letters.iter().all(|letter| letter.props.get(USER_ID).is_none()));
    }
    producer.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn further_routing_keys_of_the_original_get_no_copy_of_a_retry_or_a_dead_letter() {
    for kind in BOTH {
        let mut desk = Desk::new("carbon-copy", kind).await;
        let others = [format!("{}-cc", desk.queue), format!("{}-bcc", desk.queue)];
        for other in &others {
            desk.raw.declare(other, kind, lapin::types::FieldTable::default()).await;
        }
        let key = |name: &str, queue: &str| Entry::new(name, b'A', value(b'S', queue));
        let headers = [key("CC", &others[0]), key("BCC", &others[1])];
        desk.publish(&Props::of("m").headers(&headers), b"x").await;
        let source = desk.source(1, DeadLetterTo::Queue).await;
        let first = desk.retry_next(&source, SOON).await;
        assert!(first.headers().get("CC").is_some(), "as it came");
        let again = desk.give_up_next(&source, "looked at").await;
        assert_eq!((again.attempt(), again.headers().get("CC")), (2, None));
        for other in &others {
            let copies = desk.wire.take_all(other).await;
            assert_eq!(copies.len(), 1, "that of the publisher in {other}");
        }
        let letters = desk.finish(source).await;
        assert_eq!(letters.len(), 1);
        assert!(["CC", "BCC"].iter().all(|name| letters[0].props.header(name).is_none()));
    }
}

// A user of one's own is sent, and one of somebody else is refused by the broker: the outcome is an error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_publisher_can_name_its_own_user_and_no_other() {
    let desk = Desk::new("own-user", BOTH[0]).await;
    let publisher = desk.rabbit.publisher();
    let of = |id: &str, user: &str| {
        Message::new("x").with_id(id).with_metadata(Properties::default().with_user_id(user))
    };
    desk.ledger.published("theirs");
    let refused = bounded("publish", publisher.publish(&desk.queue, of("theirs", "nobody"))).await;
    let error = refused.expect_err("the broker closes the channel");
    assert!(error.to_string().contains("nobody") || error.to_string().contains("user_id"), "{error}");
    desk.ledger.published("own");
    bounded("publish", publisher.publish(&desk.queue, of("own", "guest"))).await.expect("it is taken");
    desk.ledger.confirmed("own");
    let source = desk.source(4, DeadLetterTo::Queue).await;
    let message = desk.ack_next(&source).await;
    assert_eq!(message.id(), "own", "the other was not taken");
    assert_eq!(message.metadata::<Delivered>().unwrap().properties.user_id.as_deref(), Some("guest"));
    assert!(desk.finish(source).await.is_empty());
}
