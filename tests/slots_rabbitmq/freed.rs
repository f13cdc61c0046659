//! When a slot is free again.

use tokio_util::sync::CancellationToken;
use windlass::ErrorKind;
use windlass::clock::{SystemClock, within};
use windlass::queue::Slot;
use windlass::source::MessageSource;

use crate::broker_bench::ms;
use crate::desk::{claim, connect, names, next, send, until_names};
use crate::rabbit::{Node, bounded, until};

#[tokio::test]
async fn a_slot_is_free_once_its_source_is_closed_whether_it_consumed_or_not() {
    let node = Node::shared().await;
    let (one, other) = (connect(node).await, connect(node).await);
    for consumed in [false, true] {
        let source = claim(&one, "closed", 1).await;
        if consumed {
            send(&other, "closed_1", "m").await.unwrap();
            source.ack(next(&source).await.receipt).await.unwrap();
        }
        bounded("close", source.close()).await.unwrap();
        assert_eq!(names(node, "closed_").await, [""; 0]);
        // For the other connection, and for the same.
        claim(&other, "closed", 1).await.close().await.unwrap();
        claim(&one, "closed", 1).await.close().await.unwrap();
        // A source that is closed does not keep it.
        assert_eq!(source.receive(&CancellationToken::new()).await.unwrap_err().kind(), ErrorKind::Closed);
    }
    assert_eq!(send(&other, "closed_1", "m").await.unwrap_err().kind(), ErrorKind::Unroutable);
}

#[tokio::test]
async fn a_slot_is_free_soon_after_its_source_is_dropped_whether_it_consumed_or_not() {
    let node = Node::shared().await;
    let (one, other) = (connect(node).await, connect(node).await);
    for consumed in [false, true] {
        let source = claim(&one, "dropped", 1).await;
        if consumed {
            send(&other, "dropped_1", "m").await.unwrap();
            // Not settled, with the next one buffered.
            send(&other, "dropped_1", "n").await.unwrap();
            let _ = next(&source).await;
        }
        drop(source);
        until_names(node, "dropped_", &[]).await;
        claim(&other, "dropped", 1).await.close().await.unwrap();
    }
}

#[tokio::test]
async fn a_slot_is_free_once_its_connection_is_closed() {
    let node = Node::shared().await;
    let (one, other) = (connect(node).await, connect(node).await);
    let source = claim(&one, "disconnected", 1).await;
    bounded("disconnect", one.disconnect()).await;
    assert_eq!(source.health(), windlass::source::Health::Closed);
    assert_eq!(names(node, "disconnected_").await, [""; 0]);
    claim(&other, "disconnected", 1).await.close().await.unwrap();
}

// Whoever claims may go away at any time; the broker must not keep the queue for a source that nobody has.
#[tokio::test]
async fn a_claim_that_is_given_up_half_way_keeps_nothing() {
    let node = Node::shared().await;
    let (one, other) = (connect(node).await, connect(node).await);
    let mut given_up = 0;
    for step in 0..30 {
        let claim = one.claim("half-way", Slot::Number(1)).open();
        let claimed = within(&SystemClock, ms(step) / 5, claim).await;
        given_up += usize::from(claimed.is_none());
        drop(claimed);
        let again = until("another connection gets the slot", || async {
            bounded("claim", other.claim("half-way", Slot::Number(1)).open()).await.ok()
        });
        again.await.close().await.unwrap();
        let again = until("the same connection gets the slot", || async {
            bounded("claim", one.claim("half-way", Slot::Number(1)).open()).await.ok()
        });
        again.await.close().await.unwrap();
    }
    assert!(given_up > 0, "none was given up");
    until_names(node, "half-way_", &[]).await;
}
