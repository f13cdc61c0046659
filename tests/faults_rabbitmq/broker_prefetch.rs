//! How much a source takes from the broker ahead of its settlement.

use lapin::types::FieldTable;
use windlass::source::Health;

use crate::broker_bench::{Bench, Gate, KINDS, at_most, consuming, prefetch};
use crate::rabbit::{Node, QueueType};

const LARGE: usize = 20_000;

// BC-15
#[tokio::test]
async fn a_slow_consumer_holds_as_many_messages_as_it_handles_at_once_after_a_reconnect_too() {
    let node = Node::shared().await;
    for (kind, count) in KINDS.into_iter().zip([2_000, 500]) {
        let (bench, proxy) = Bench::proxied(node, "ahead", kind, FieldTable::default()).await;
        let ids: Vec<String> = (1..=count).map(|number| format!("m-{number}")).collect();
        bench.publish_ids(&ids.iter().map(String::as_str).collect::<Vec<_>>(), &[b'x'; LARGE]).await;
        let gate = Gate::closed();
        let handle =
            bench.held_consumer(bench.source().await, &gate, |_| true).max_concurrent(at_most(4)).start();
        let handle = handle.unwrap();
        bench.starts.until(4).await;
        // None is acked: what is not ready is unacked. These figures do not lag, as those of unacked messages do.
        bench.until_count((count - 4, 1)).await;

        proxy.cut().await;
        bench.told.until("says that it consumes again", 2, consuming(&bench.queue)).await;
        // The handlers run on with what was theirs; what comes now waits for them, and is bounded as before.
        bench.until_count((count - 4, 1)).await;
        assert_eq!((bench.starts.len(), handle.in_flight()), (4, 4));
        gate.open();
        bench.until_acked(50).await;
        let report = handle.stop().await;
        assert_eq!((report.stats.settle_errors, report.abandoned), (4, 0), "{report:?}");
        let account = bench.account().await;
        let count = count as usize;
        assert_eq!((account.confirmed, account.acked + account.queued), (count, count), "{account}");
    }
}

// BC-15: a given prefetch is kept, even where it leaves handlers idle: on a shared queue that is what it is for.
#[tokio::test]
async fn a_given_prefetch_bounds_what_is_handled_at_once() {
    let node = Node::shared().await;
    let bench = Bench::new(node, "given", QueueType::Classic).await;
    bench.publish(1..=20).await;
    let gate = Gate::closed();
    let source = bench.options().prefetch(prefetch(2)).open().await.unwrap();
    let handle = bench.held_consumer(source, &gate, |_| true).max_concurrent(at_most(8)).start().unwrap();
    bench.starts.until(2).await;
    bench.until_count((18, 1)).await;
    assert_eq!((handle.in_flight(), handle.health()), (2, Health::Ready));
    gate.open();
    bench.until_acked(20).await;
    assert!(handle.stop().await.is_clean());
    assert_eq!(bench.account().await.acked, 20);
}

// BC-15: nobody says how many are handled at once.
#[tokio::test]
async fn a_source_that_nobody_sized_takes_sixteen_ahead() {
    use tokio_util::sync::CancellationToken;
    use windlass::source::MessageSource;

    let node = Node::shared().await;
    let bench = Bench::new(node, "unsized", QueueType::Quorum).await;
    bench.publish(1..=40).await;
    let source = bench.source().await;
    let first = source.receive(&CancellationToken::new()).await.unwrap().expect("a message");
    bench.until_count((24, 1)).await;
    source.ack(first.receipt).await.unwrap();
    bench.ledger.acked(first.message.id());
    source.close().await.unwrap();
    bench.until_count((39, 0)).await;
    let account = bench.account().await;
    assert_eq!((account.acked, account.queued), (1, 39), "{account}");
}
