//! Which messages are sent back, how many, and how fast.

use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

use lapin::types::FieldTable;
use tokio_util::sync::CancellationToken;
use windlass::clock::{Clock, ControlledClock, SystemClock};
use windlass::rabbitmq::RabbitMq;
use windlass::rabbitmq::dead_letters::{Ended, RedriveOptions};
use windlass::source::Cause;

use crate::bench::{Bench, KINDS, config, ids, names, raw_ids};
use crate::rabbit::{Node, QueueType, until};

const HOUR: Duration = Duration::from_secs(3_600);

fn count(messages: u64) -> NonZeroU64 {
    NonZeroU64::new(messages).unwrap()
}

#[tokio::test]
async fn only_what_was_asked_for_is_sent_back_and_the_rest_stays_in_its_order() {
    for kind in KINDS {
        let bench = Bench::high(Node::shared().await, "chosen", kind).await;
        let exhausted = Cause::new("retry_exhausted:3").with_detail("timeout:50ms");
        let declined = Cause::new("terminal").with_detail("card declined");
        bench
            .put([
                bench.letter("m-1", exhausted.clone(), 5 * HOUR),
                bench.letter("m-2", declined.clone(), 5 * HOUR),
                bench.letter("m-3", exhausted.clone(), 2 * HOUR),
                bench.letter("m-4", declined, HOUR / 2),
                bench.letter("m-5", exhausted, HOUR / 2),
                bench.letter("m-6", "panic".into(), HOUR / 2),
            ])
            .await;
        bench.publish_raw(&bench.dlq, "m-7", FieldTable::default()).await;
        for (options, chosen) in [
            (RedriveOptions::new().cause("retry_exhausted"), vec![1, 3, 5]),
            (RedriveOptions::new().cause("terminal: card"), vec![2, 4]),
            (RedriveOptions::new().cause("panic").cause("terminal"), vec![2, 4, 6]),
            (RedriveOptions::new().cause("unheard of"), vec![]),
            (RedriveOptions::new().id("m-6").id("m-2").id("m-9"), vec![2, 6]),
            (RedriveOptions::new().older_than(HOUR), vec![1, 2, 3]),
            (RedriveOptions::new().younger_than(3 * HOUR), vec![3, 4, 5, 6]),
            (RedriveOptions::new().older_than(HOUR).younger_than(3 * HOUR), vec![3]),
            (RedriveOptions::new().cause("terminal").older_than(HOUR).id("m-2").id("m-1"), vec![2]),
        ] {
            let what = format!("{kind} {options:?}");
            let dry = bench.redrive(options.clone().dry_run(true)).await.unwrap();
            assert_eq!((dry.matched, dry.moved, dry.dry_run), (chosen.len() as u64, 0, true), "{what}");
            assert_eq!(dry.flows.values().sum::<u64>(), dry.matched, "{what}");
            assert_eq!(ids(&bench.peek(10).await.messages), names(1..=7), "{what}");

            let report = bench.redrive(options).await.unwrap();
            assert_eq!((report.looked_at, report.moved, report.maybe_twice), (7, dry.matched, 0), "{what}");
            let stays = (1..=7).filter(|number| !chosen.contains(number));
            assert_eq!(ids(&bench.peek(10).await.messages), names(stays), "{what}");
            let moved = bench.raw.take_all(&bench.queue).await;
            assert_eq!(raw_ids(&moved), names(chosen.clone()), "{what}");

            // For the next one.
            bench.letters().purge().await.unwrap();
            let again = |number: usize| {
                let ages = [5 * HOUR, 5 * HOUR, 2 * HOUR, HOUR / 2, HOUR / 2, HOUR / 2];
                let cause = match number {
                    2 | 4 => Cause::new("terminal").with_detail("card declined"),
                    6 => "panic".into(),
                    _ => Cause::new("retry_exhausted:3").with_detail("timeout:50ms"),
                };
                bench.letter(&format!("m-{number}"), cause, ages[number - 1])
            };
            bench.put((1..=6).map(again)).await;
            bench.publish_raw(&bench.dlq, "m-7", FieldTable::default()).await;
        }
    }
}

#[tokio::test]
async fn what_died_after_the_start_stays() {
    let node = Node::shared().await;
    for kind in KINDS {
        // This clock is behind those of whoever wrote the letters.
        let clock = ControlledClock::starting_at(SystemClock.wall() - 2 * HOUR);
        let rabbit = RabbitMq::connect_on(config(&node.uri()), clock).await.unwrap();
        let arguments = (FieldTable::default(), FieldTable::default());
        let bench = Bench::connected(node, rabbit, "newer", kind, arguments).await;
        bench.put([bench.letter("m-1", "x".into(), 3 * HOUR), bench.letter("m-2", "x".into(), HOUR)]).await;
        let report = bench.redrive(RedriveOptions::new()).await.unwrap();
        assert_eq!((report.moved, report.newer, report.not_matched), (1, 1, 0));
        assert_eq!(ids(&bench.peek(10).await.messages), ["m-2"]);
    }
}

#[tokio::test]
async fn no_more_are_sent_back_than_asked_for_and_they_are_the_first() {
    for kind in KINDS {
        let bench = Bench::high(Node::shared().await, "limited", kind).await;
        bench.put_many(300).await;
        let mut left = 300;
        for limit in [1, 2, 100, 150] {
            let report = bench.redrive(RedriveOptions::new().limit(count(limit))).await.unwrap();
            assert_eq!((report.matched, report.moved, report.ended), (limit, limit, Ended::Limit));
            left -= limit;
            until("the rest is handed back", || async {
                (bench.letters().count().await.unwrap() == left).then_some(())
            })
            .await;
        }
        assert_eq!(raw_ids(&bench.raw.take_all(&bench.queue).await), names(1..=253));
        let report = bench.redrive(RedriveOptions::new().limit(count(1_000))).await.unwrap();
        assert_eq!((report.moved, report.ended), (47, Ended::Done));
        assert_eq!(raw_ids(&bench.raw.take_all(&bench.queue).await), names(254..=300));
    }
}

#[tokio::test]
async fn a_rate_is_kept_evenly() {
    let node = Node::shared().await;
    let clock = ControlledClock::starting_at(SystemClock.wall());
    let rabbit = RabbitMq::connect_on(config(&node.uri()), clock.clone()).await.unwrap();
    let arguments = (FieldTable::default(), FieldTable::default());
    let bench = Bench::connected(node, rabbit, "rate", QueueType::Quorum, arguments).await;
    bench.put_many(6).await;
    let letters = bench.letters();
    let redrive = tokio::spawn(async move {
        let options = RedriveOptions::new().rate(NonZeroU32::new(4).unwrap());
        letters.redrive(options, &CancellationToken::new(), |_| {}).await
    });
    let arrived = |count: u32| {
        let raw = &bench.raw;
        let queue = bench.queue.clone();
        async move {
            let ask = || async { (raw.count(&queue).await.unwrap().0 >= count).then_some(()) };
            until(&format!("{count} have arrived"), ask).await;
            assert_eq!(raw.count(&queue).await.unwrap().0, count);
        }
    };
    arrived(1).await;
    for count in 2..=6 {
        let due = clock.next_deadline().expect("it waits");
        assert!(due > clock.now());
        clock.advance(Duration::from_millis(240)).await;
        arrived(count - 1).await;
        clock.advance(Duration::from_millis(10)).await;
        arrived(count).await;
    }
    let ended = until("it ends", || clock.advance(Duration::from_millis(10)).map_into(redrive.is_finished()));
    ended.await;
    let report = redrive.await.unwrap().unwrap();
    assert_eq!((report.moved, report.maybe_twice), (6, 0));
}

/// Whether something is done, once a future has gone by.
trait MapInto: Future + Sized {
    fn map_into(self, done: bool) -> impl Future<Output = Option<()>>
    where
        Self: Future<Output = ()>,
    {
        async move {
            self.await;
            done.then_some(())
        }
    }
}

impl<F: Future<Output = ()>> MapInto for F {}
