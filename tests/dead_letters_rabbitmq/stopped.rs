//! A redrive that is stopped in the middle, by whoever runs it.

use std::num::NonZeroU16;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio_util::sync::CancellationToken;
use windlass::ErrorKind;
use windlass::clock::{SystemClock, within};
use windlass::rabbitmq::dead_letters::{Ended, RedriveOptions};

use crate::bench::{Bench, KINDS, names};
use crate::rabbit::{BOUND, Node, RawMessage, until};

/// All ids, wherever they are. What is left is in its order.
async fn found(bench: &Bench, left: u64) -> Vec<String> {
    let (mut all, rest) = taken(bench, left).await;
    assert!(rest.is_sorted_by_key(|id| number(id)), "{rest:?}");
    all.extend(rest);
    all.sort_by_key(|id| number(id));
    all
}

fn number(id: &str) -> u32 {
    id[2..].parse().unwrap()
}

/// The ids in the queue, and among the dead letters, once so many are left there.
async fn taken(bench: &Bench, left: u64) -> (Vec<String>, Vec<String>) {
    until("the rest is handed back", || async {
        (bench.raw.count(&bench.dlq).await.unwrap() == (left as u32, 0)).then_some(())
    })
    .await;
    let ids = |found: Vec<RawMessage>| found.iter().map(|message| message.id().to_owned()).collect();
    (ids(bench.raw.take_all(&bench.queue).await), ids(bench.raw.take_all(&bench.dlq).await))
}

#[tokio::test]
async fn what_is_cancelled_in_the_middle_goes_on_where_it_was() {
    for kind in KINDS {
        let bench = Bench::high(Node::shared().await, "cancelled", kind).await;
        bench.put_many(1_000).await;
        let cancel = CancellationToken::new();
        let letters = bench.letters();
        let report = letters.redrive(RedriveOptions::new(), &cancel, |progress| {
            if progress.moved >= 300 {
                cancel.cancel();
            }
        });
        let report = report.await.unwrap();
        assert_eq!((report.ended, report.maybe_twice), (Ended::Cancelled, 0));
        assert!((300..1_000).contains(&report.moved), "{report:?}");
        assert_eq!(report.moved, report.matched);
        let arrived = bench.raw.count(&bench.queue).await.unwrap().0;
        assert_eq!(u64::from(arrived), report.moved);

        until("the rest is handed back", || async {
            (bench.letters().count().await.unwrap() == 1_000 - report.moved).then_some(())
        })
        .await;
        let rest = bench.redrive(RedriveOptions::new()).await.unwrap();
        assert_eq!((rest.moved, rest.maybe_twice, rest.ended), (1_000 - report.moved, 0, Ended::Done));
        assert_eq!(found(&bench, 0).await, names(1..=1_000));
    }
}

#[tokio::test]
async fn what_is_cancelled_before_it_begins_takes_nothing() {
    let bench = Bench::high(Node::shared().await, "before", KINDS[1]).await;
    bench.put_many(10).await;
    let cancel = CancellationToken::new();
    cancel.cancel();
    let report = bench.letters().redrive(RedriveOptions::new(), &cancel, |_| {}).await.unwrap();
    assert_eq!((report.moved, report.looked_at, report.ended), (0, 0, Ended::Cancelled));
    assert_eq!(found(&bench, 10).await, names(1..=10));
}

#[tokio::test]
async fn a_redrive_that_is_dropped_gives_back_what_it_had() {
    for kind in KINDS {
        let bench = Bench::high(Node::shared().await, "dropped", kind).await;
        bench.put_many(500).await;
        let (never, moved) = (CancellationToken::new(), AtomicU64::new(0));
        let letters = bench.letters();
        let options = RedriveOptions::new().in_flight(NonZeroU16::new(8).unwrap());
        let redrive =
            letters.redrive(options, &never, |progress| moved.store(progress.moved, Ordering::Relaxed));
        let some_moved =
            until("some are moved", || async { (moved.load(Ordering::Relaxed) >= 50).then_some(()) });
        // What is in flight is dropped with it.
        tokio::select! {
            biased;
            report = redrive => panic!("it ended: {report:?}"),
            () = some_moved => {}
        }
        let settled = until("nothing is unacked", || async {
            let (left, arrived) =
                (bench.raw.count(&bench.dlq).await?.0, bench.raw.count(&bench.queue).await?.0);
            (left + arrived >= 500).then_some((left, arrived))
        });
        let (left, _) = settled.await;
        // Nobody saw to their order.
        let (mut all, rest) = taken(&bench, left.into()).await;
        all.extend(rest);
        all.sort_by_key(|id| number(id));
        let count = all.len();
        all.dedup();
        assert_eq!(all, names(1..=500));
        assert!(count - 500 <= 8 + 8, "{count}");
    }
}

#[tokio::test]
async fn a_disconnect_ends_it_in_order() {
    for kind in KINDS {
        let bench = Bench::high(Node::shared().await, "disconnected", kind).await;
        bench.put_many(2_000).await;
        let rabbit = bench.rabbit.clone();
        let (never, reached) = (CancellationToken::new(), CancellationToken::new());
        let letters = bench.letters();
        let redrive = letters.redrive(RedriveOptions::new(), &never, |progress| {
            if progress.moved >= 200 {
                reached.cancel();
            }
        });
        let disconnect = async {
            reached.cancelled().await;
            rabbit.disconnect().await;
        };
        let both = futures::future::join(redrive, disconnect);
        let (ended, ()) = within(&SystemClock, BOUND, both).await.expect("it ends");
        let error = ended.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
        let report = error.report();
        assert!(report.moved >= 200 && report.maybe_twice == 0, "{report:?}");
        assert_eq!(found(&bench, 2_000 - report.moved).await, names(1..=2_000));
    }
}
