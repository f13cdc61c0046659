//! What is not taken where it is sent to stays where it is.

use std::time::Duration;

use lapin::types::{AMQPValue, FieldTable};
use windlass::ErrorKind;
use windlass::rabbitmq::dead_letters::{Ended, RedriveOptions};
use windlass::source::Cause;

use crate::bench::{Bench, KINDS, config, ids, names, raw_ids, table, text};
use crate::rabbit::{Node, Options, QueueType, until};

#[tokio::test]
async fn what_has_no_queue_to_go_back_to_stays_and_the_others_go() {
    for kind in KINDS {
        let bench = Bench::high(Node::shared().await, "nowhere", kind).await;
        bench.put_many(5).await;
        bench.raw.delete(&bench.queue).await;
        let report = bench.redrive(RedriveOptions::new()).await.unwrap();
        assert_eq!((report.matched, report.moved, report.not_taken), (5, 0, 5));
        assert_eq!((report.maybe_twice, report.ended), (0, Ended::Done));
        let (obstacle, count) = report.obstacles.iter().next().unwrap();
        assert_eq!((obstacle.to.as_str(), *count), (bench.queue.as_str(), 5));
        assert!(obstacle.reason.contains("no such queue"), "{obstacle:?}");
        assert_eq!(ids(&bench.peek(10).await.messages), names(1..=5));

        let other = Bench::new(Node::shared().await, "nowhere-other", kind).await;
        let report = bench.redrive(RedriveOptions::new().to(&other.queue)).await.unwrap();
        assert_eq!((report.moved, report.not_taken), (5, 0));
        assert_eq!(raw_ids(&other.raw.take_all(&other.queue).await), names(1..=5));
    }
}

#[tokio::test]
async fn what_a_full_queue_refuses_stays() {
    for kind in KINDS {
        let full = table([("x-max-length", AMQPValue::LongUInt(3)), ("x-overflow", text("reject-publish"))]);
        let bench = Bench::with(Node::shared().await, "full", kind, full, FieldTable::default()).await;
        bench.put_many(500).await;
        // A quorum queue refuses a little late.
        let in_flight = std::num::NonZeroU16::new(4).unwrap();
        let report = bench.redrive(RedriveOptions::new().in_flight(in_flight)).await.unwrap();
        assert!(report.not_taken > 0, "{report:?}");
        assert_eq!((report.moved + report.not_taken, report.maybe_twice), (500, 0), "{report:?}");
        let moved = bench.raw.take_all(&bench.queue).await;
        assert_eq!(moved.len() as u64, report.moved);
        until("the rest is handed back", || async {
            (bench.letters().count().await.unwrap() == report.not_taken).then_some(())
        })
        .await;
        let mut all: Vec<String> = moved.iter().map(|message| message.id().to_owned()).collect();
        all.extend(bench.raw.take_all(&bench.dlq).await.iter().map(|message| message.id().to_owned()));
        all.sort_by_key(|id| id[2..].parse::<u32>().unwrap());
        assert_eq!(all, names(1..=500));
    }
}

#[tokio::test]
async fn nothing_is_redriven_into_itself() {
    let bench = Bench::new(Node::shared().await, "itself", QueueType::Quorum).await;
    bench.put_many(3).await;
    let error = bench.redrive(RedriveOptions::new().to(&bench.dlq)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("`to`"), "{error}");
    // Its own dead letters, where it has come from there.
    let work = bench.rabbit.dead_letters(&bench.queue);
    let report = bench.redrive(RedriveOptions::new()).await.unwrap();
    assert_eq!(report.moved, 3);
    bench.raw.purge(&bench.queue).await;
    let letter = bench.letter("m-1", Cause::new("terminal"), Duration::from_secs(9));
    windlass::Publisher::publish(&bench.rabbit.publisher(), &bench.queue, letter).await.unwrap();
    let never = tokio_util::sync::CancellationToken::new();
    let report = work.redrive(RedriveOptions::new(), &never, |_| {}).await.unwrap();
    assert_eq!((report.moved, report.not_taken), (0, 1));
    assert!(report.obstacles.keys().next().unwrap().reason.contains("this queue itself"));
    assert_eq!(raw_ids(&bench.raw.take_all(&bench.queue).await), ["m-1"]);
}

/// The connection that publishes is blocked, the one that takes is not.
#[tokio::test]
async fn a_broker_that_is_short_of_memory_takes_nothing_and_all_stays() {
    let node = Node::start(Options::new()).await;
    let settings = config(&node.uri()).with_publish_timeout(Duration::from_secs(1));
    let rabbit = windlass::rabbitmq::RabbitMq::connect(settings).await.unwrap();
    let arguments = (FieldTable::default(), FieldTable::default());
    let bench = Bench::connected(&node, rabbit, "alarm", QueueType::Quorum, arguments).await;
    bench.put_many(200).await;
    node.memory_alarm(true).await;
    let error = bench.redrive(RedriveOptions::new()).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Disconnected | ErrorKind::Unconfirmed), "{error}");
    let report = error.report().clone();
    assert_eq!((report.moved, report.ended), (0, Ended::Failed), "{report:?}");
    node.memory_alarm(false).await;
    let (twice, left) = until("all are handed back", || async {
        let (moved, left) =
            (bench.raw.count(&bench.queue).await.unwrap().0, bench.raw.count(&bench.dlq).await.unwrap().0);
        (left == 200).then_some((u64::from(moved), left))
    })
    .await;
    assert!(twice <= report.maybe_twice, "{twice} twice, {report:?}");
    let report = bench.redrive(RedriveOptions::new()).await.unwrap();
    assert_eq!((report.moved, report.maybe_twice), (u64::from(left), 0));
}
