//! A queue that is deleted under its consumer, and refusals beside one that runs.

use std::time::Duration;

use lapin::types::FieldTable;
use tokio_util::sync::CancellationToken;
use windlass::clock::{Clock, SystemClock};
use windlass::source::{Health, MessageSource, NackReason, Settlement};
use windlass::{Error, ErrorKind, Message};

use crate::broker_bench::{Bench, Gate, KINDS, at_most, consuming, lost, ms, prefetch, refused};
use crate::rabbit::{Node, bounded, until};

/// What is local and waits for nobody takes much less.
const PROMPT: Duration = ms(1_000);

// BC-05, BC-44: a queue that is deleted ends the deliveries without a reason; the channel stays open.
#[tokio::test]
async fn a_queue_that_is_deleted_is_noticed_and_consumed_again_once_it_is_there() {
    for kind in KINDS {
        let bench = Bench::new(Node::shared().await, "deleted", kind).await;
        let queue = bench.queue.as_str();
        let handle = bench.consumer(bench.source().await, |_| async { Ok(()) }).start().unwrap();
        bench.publish(1..=1).await;
        bench.until_acked(1).await;

        bench.raw.delete(queue).await;
        let error = bench.told.until("says that the consumer is lost", 1, lost(queue)).await;
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        assert!(error.to_string().contains("deleted"), "{error}");
        let (error, delay) = bench.told.until("says that the queue is missing", 3, refused(queue)).await;
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        assert!(error.to_string().contains(queue) && error.to_string().contains("404"), "{error}");
        assert!(delay >= ms(100), "the third wait is longer than the first: {delay:?}");
        let Health::NotReady { reason } = handle.health() else { panic!("{:?}", handle.health()) };
        assert!(reason.contains(queue) && reason.contains("404"), "{reason}");

        bench.raw.declare(queue, kind, FieldTable::default()).await;
        bench.told.until("says that it consumes again", 2, consuming(queue)).await;
        assert_eq!(handle.health(), Health::Ready);
        bench.publish(2..=3).await;
        bench.until_acked(3).await;
        assert_eq!(bench.count().await, (0, 1), "one consumer");
        assert!(handle.stop().await.is_clean());
        assert_eq!(bench.account().await.acked, 3);
    }
}

// BC-13 a: the channel is gone under the handlers.
#[tokio::test]
async fn what_was_delivered_before_the_queue_was_deleted_is_stale_and_settled_at_once() {
    let node = Node::shared().await;
    for kind in KINDS {
        let bench = Bench::new(node, "stale", kind).await;
        let source = bench.options().prefetch(prefetch(5)).open().await.unwrap();
        bench.publish(1..=5).await;
        let cancel = CancellationToken::new();
        let mut held = Vec::new();
        for _ in 0..4 {
            held.push(bounded("a message", source.receive(&cancel)).await.unwrap().unwrap().receipt);
        }
        bench.raw.delete(&bench.queue).await;
        bench.told.until("says that the consumer is lost", 1, lost(&bench.queue)).await;

        let began = SystemClock.now();
        let mut held = held.into_iter();
        let mut next = || held.next().unwrap();
        let retry = NackReason::retry_after(ms(100), "late");
        let outcomes = [
            source.ack(next()).await,
            source.nack(next(), NackReason::requeue_now("late")).await,
            source.nack(next(), retry).await,
            source.nack(next(), NackReason::dead_letter("late")).await,
        ];
        assert!(SystemClock.now() - began < PROMPT, "{:?}", SystemClock.now() - began);
        for outcome in outcomes {
            let error: Error = outcome.expect_err("its channel is gone");
            assert_eq!(error.kind(), ErrorKind::Stale, "{error}");
            assert!(error.to_string().contains("deleted"), "{error}");
        }
        assert_eq!(bench.raw.count(&format!("{}.wait.100", bench.queue)).await, None, "no copy was sent");

        // The fifth was buffered: nobody gets it any more, and what comes is of the new queue.
        bench.raw.declare(&bench.queue, kind, FieldTable::default()).await;
        bench.publish(6..=6).await;
        let sixth = until("the source has come back", || async {
            bounded("a message", source.receive(&cancel)).await.ok().flatten()
        });
        let sixth = sixth.await;
        assert_eq!(sixth.message.id(), "m-6");
        source.ack(sixth.receipt).await.unwrap();
        bench.ledger.acked("m-6");
        source.close().await.unwrap();
        // Whoever deletes a queue means the messages in it, too.
        let deleted = ["m-1", "m-2", "m-3", "m-4", "m-5"].map(str::to_owned);
        assert_eq!(bench.account_but(&deleted).await.acked, 1);
    }
}

// BC-13 a, by a consumer: its handler runs while the queue goes.
#[tokio::test]
async fn a_handler_under_which_the_queue_goes_ends_with_one_stale_settlement() {
    let bench = Bench::new(Node::shared().await, "late", KINDS[0]).await;
    let gate = Gate::closed();
    let handle = bench.held_consumer(bench.source().await, &gate, |_| true).start().unwrap();
    bench.publish(1..=1).await;
    bench.starts.until(1).await;
    bench.raw.delete(&bench.queue).await;
    bench.told.until("says that the consumer is lost", 1, lost(&bench.queue)).await;
    gate.open();
    until("the handler has ended", || async { (bench.done.len() == 1).then_some(()) }).await;
    let done = bench.done.all().remove(0);
    assert_eq!(done.settlement, Settlement::Ack);
    assert_eq!(done.settle_error.map(|error| error.kind()), Some(ErrorKind::Stale));
    assert!(done.timings.settling < PROMPT, "{:?}", done.timings);

    bench.raw.declare(&bench.queue, bench.kind, FieldTable::default()).await;
    bench.publish(2..=2).await;
    bench.until_acked(1).await;
    assert_eq!(handle.stop().await.stats.settle_errors, 1);
    // The first went with its queue.
    assert_eq!(bench.account_but(&["m-1".to_owned()]).await.acked, 1);
}

// BC-44 a: what is refused closes a channel; it must not be one that consumes.
#[tokio::test]
async fn looking_for_what_is_not_there_leaves_a_running_consumer_alone() {
    let bench = Bench::new(Node::shared().await, "beside", KINDS[1]).await;
    let gate = Gate::closed();
    let consumer = bench.held_consumer(bench.source().await, &gate, |id| id == "m-1");
    let handle = consumer.max_concurrent(at_most(2)).start().unwrap();
    bench.publish(1..=1).await;
    bench.starts.until(1).await;
    for _ in 0..10 {
        let error = bench.rabbit.source("beside-no-such-queue").open().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        assert!(error.to_string().contains("beside-no-such-queue"), "{error}");
        let publisher = bench.rabbit.publisher();
        let error = publisher.publish_to("no-such-exchange", "key", Message::new("x")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    }
    bench.publish(2..=11).await;
    bench.until_acked(10).await;
    gate.open();
    bench.until_acked(11).await;
    let report = handle.stop().await;
    assert!(report.is_clean() && report.stats.settle_errors == 0, "{report:?}");
    assert_eq!(bench.told.all(lost(&bench.queue)).len(), 0);
    let starts = bench.starts.ids();
    let account = bench.account().await;
    assert_eq!((account.acked, starts.len()), (11, 11), "{account}");
}
