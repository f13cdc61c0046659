//! Headers that do not fit into a frame: those that came, and those of a copy with ours among them.

use windlass::rabbitmq::DeadLetterTo;
use windlass::source::{MessageSource, NackReason};

use super::desk::{BOTH, Desk, SOON, connect};
use super::props::{Entry, Props};
use super::rabbit::{Node, Options, bounded};

/// The least that RabbitMQ 4 takes.
const FRAME_MAX: usize = 8_192;

/// The header of an attempt: the length of its name, its name, its type and its value.
const ATTEMPT: usize = 1 + "windlass-attempt".len() + 1 + 4;

/// Properties whose header frame has so many bytes.
fn sized(id: &str, bytes: usize) -> Props {
    let with = |len: usize| Props::of(id).headers(&[Entry::text("large", &"x".repeat(len))]);
    // The frame has 8 bytes around its payload, which begins with 12 of its own.
    let empty = 8 + 12 + with(0).encode().len();
    with(bytes - empty)
}

/// From here on the broker agrees on smaller frames with whoever connects.
async fn shrink_frames(node: &Node, bytes: usize) {
    node.ctl(&["eval", &format!("application:set_env(rabbit, frame_max, {bytes}).")]).await;
}

// BC-33 (a): no client can send it on such a connection, but the broker delivers what it was sent on another one.
async fn too_large_to_be_read(node: &Node) {
    for kind in BOTH {
        let mut desk = Desk::on(node, "too-large", kind).await;
        desk.publish(&sized("large", 20_000), b"large").await;
        desk.publish(&sized("exact", FRAME_MAX), b"exact").await;
        desk.publish(&Props::of("good"), b"good").await;
        shrink_frames(node, FRAME_MAX).await;
        let small = connect(&node.uri()).await;
        bounded("disconnect", std::mem::replace(&mut desk.rabbit, small).disconnect()).await;
        let source = desk.source(1, DeadLetterTo::Queue).await;
        for (id, body) in [("exact", &b"exact"[..]), ("good", b"good")] {
            let message = desk.ack_next(&source).await;
            assert_eq!((message.id(), message.redelivered()), (id, false), "the connection stands");
            assert_eq!(message.body().as_ref(), body);
        }
        desk.until_letters(1).await;
        let letters = desk.finish(source).await;
        assert_eq!(letters.len(), 1, "once");
        assert_eq!((letters[0].props.id(), letters[0].body.as_slice()), ("large".to_owned(), &b"large"[..]));
        assert_eq!(letters[0].props.header_text("windlass-cause").as_deref(), Some("headers_unreadable"));
        let detail = letters[0].props.header_text("windlass-cause-detail").expect("a reason");
        assert!(detail.contains("20000 bytes") && detail.contains("8192"), "{detail}");
        shrink_frames(node, 131_072).await;
    }
}

// BC-33 (e)
async fn too_large_with_our_headers(node: &Node) {
    for kind in BOTH {
        let mut desk = Desk::on(node, "grown", kind).await;
        desk.publish(&sized("fits", FRAME_MAX - ATTEMPT), b"x").await;
        desk.publish(&sized("one more", FRAME_MAX - ATTEMPT + 1), b"x").await;
        desk.publish(&sized("full", FRAME_MAX), b"x").await;
        desk.publish(&sized("waits", FRAME_MAX - ATTEMPT), b"x").await;
        shrink_frames(node, FRAME_MAX).await;
        let small = connect(&node.uri()).await;
        bounded("disconnect", std::mem::replace(&mut desk.rabbit, small).disconnect()).await;
        let source = desk.source(1, DeadLetterTo::Queue).await;
        for id in ["fits", "one more", "full"] {
            let delivery = desk.next(&source).await;
            assert_eq!(delivery.message.id(), id);
            // Without a delay the broker adds nothing on the way.
            let nack = source.nack(delivery.receipt, NackReason::retry("again"));
            bounded("nack", nack).await.expect("it goes somewhere");
        }
        assert_eq!(desk.retry_next(&source, SOON).await.id(), "waits");
        let again = desk.ack_next(&source).await;
        assert_eq!((again.id(), again.attempt()), ("fits", 2));
        // What the broker notes while it waits is too much for the last one.
        desk.until_letters(3).await;
        // With a prefetch of 1 it comes once the last of those is acked.
        desk.publish(&Props::of("behind"), b"x").await;
        assert_eq!(desk.ack_next(&source).await.id(), "behind");
        let letters = desk.finish(source).await;
        let mut causes: Vec<_> = letters
            .iter()
            .map(|letter| (letter.props.id(), letter.props.header_text("windlass-cause").unwrap()))
            .collect();
        causes.sort();
        let wanted = [
            ("full", "headers_too_large"),
            ("one more", "headers_too_large"),
            ("waits", "headers_unreadable"),
        ];
        assert_eq!(causes, wanted.map(|(id, cause)| (id.to_owned(), cause.to_owned())));
        assert!(letters.iter().all(|letter| letter.body == b"x"));
        shrink_frames(node, 131_072).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_that_do_not_fit_into_a_frame_are_dead_lettered_with_a_reason() {
    let node = Node::start(Options::new()).await;
    Box::pin(too_large_to_be_read(&node)).await;
    Box::pin(too_large_with_our_headers(&node)).await;
}
