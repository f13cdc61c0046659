//! Sending back: what arrives, what a second death says, and how fast it goes.

use std::collections::BTreeMap;
use std::time::Duration;

use lapin::options::{BasicGetOptions, BasicNackOptions};
use lapin::types::FieldTable;
use tokio_util::sync::CancellationToken;
use windlass::clock::{Clock, SystemClock};
use windlass::message::HeaderValue;
use windlass::rabbitmq::dead_letters::{Ended, RedriveOptions, ToldBy};
use windlass::source::{Cause, Delivery, MessageSource, NackReason};
use windlass::{Message, Publisher};

use crate::bench::{Bench, KINDS, ids, names, raw_ids, table, text};
use crate::rabbit::{Node, QueueType, bounded, until};

#[tokio::test]
async fn a_redriven_message_is_tried_from_the_beginning_and_dies_anew() {
    for kind in KINDS {
        let bench = Bench::new(Node::shared().await, "anew", kind).await;
        let message = Message::new(&b"\x00\xff"[..])
            .with_id("m-1")
            .with_content_type("text/plain")
            .with_header("shard", 3_i32);
        bench.rabbit.publisher().publish(&bench.queue, message.clone()).await.unwrap();
        let source = bench.rabbit.source(&bench.queue).open().await.unwrap();
        let never = CancellationToken::new();
        for reason in [
            NackReason::retry_after(Duration::from_millis(20), "timeout"),
            NackReason::dead_letter(Cause::new("terminal").with_detail("declined")),
        ] {
            let Delivery { receipt, .. } =
                bounded("a delivery", source.receive(&never)).await.unwrap().unwrap();
            source.nack(receipt, reason).await.unwrap();
        }

        let report = bench.redrive(RedriveOptions::new()).await.unwrap();
        assert_eq!((report.ready, report.looked_at, report.matched, report.moved), (1, 1, 1, 1));
        assert_eq!((report.maybe_twice, report.ended), (0, Ended::Done));
        let flows: Vec<_> = report.flows.iter().collect();
        let (flow, count) = flows[0];
        assert_eq!((flow.origin.as_deref(), flow.to.as_str()), (Some(&*bench.queue), &*bench.queue));
        assert_eq!((flow.cause.as_deref(), *count, flows.len()), (Some("terminal"), 1, 1));
        assert_eq!(bench.letters().count().await.unwrap(), 0);

        let Delivery { message: again, receipt } =
            bounded("it comes again", source.receive(&never)).await.unwrap().unwrap();
        assert_eq!((again.id(), again.body(), again.attempt()), ("m-1", message.body(), 1));
        assert_eq!((again.headers(), again.content_type()), (message.headers(), Some("text/plain")));
        source.nack(receipt, NackReason::dead_letter("validation:input")).await.unwrap();
        let dead = bench.peek(1).await.messages.remove(0).death;
        let cause = dead.cause.unwrap();
        assert_eq!((cause.code(), cause.detail(), dead.attempts), ("validation:input", None, Some(1)));
    }
}

#[tokio::test]
async fn what_the_broker_dead_lettered_goes_back_and_its_second_death_is_read_right() {
    for kind in KINDS {
        let dead_letters = table([
            ("x-dead-letter-exchange", text("")),
            ("x-dead-letter-routing-key", text(&format!("broker-{kind}.dlq"))),
        ]);
        let bench =
            Bench::with(Node::shared().await, "broker", kind, dead_letters, FieldTable::default()).await;
        bench.publish_raw(&bench.queue, "m-1", table([("shard", text("a"))])).await;
        let channel = bench.raw.channel().await;
        for death in 1..=2 {
            let got = until("a message", || async {
                let got = channel.basic_get(bench.queue.as_str().into(), BasicGetOptions::default());
                bounded("get", got).await.unwrap()
            });
            got.await.delivery.nack(BasicNackOptions { requeue: false, multiple: false }).await.unwrap();
            let died = until("the broker has moved it", || async { bench.peek(1).await.messages.pop() });
            let dead = died.await;
            assert_eq!((dead.death.told_by, dead.death.deaths), (ToldBy::Broker, Some(1)), "{death}");
            assert_eq!(dead.message.headers().get("shard"), Some(&HeaderValue::Text("a".into())));
            let report = bench.redrive(RedriveOptions::new().cause("rejected")).await.unwrap();
            assert_eq!((report.moved, report.maybe_twice), (1, 0));
        }
        let again = bench.raw.take_all(&bench.queue).await;
        assert_eq!(raw_ids(&again), ["m-1"]);
        let names: Vec<_> = again[0].properties.headers().as_ref().unwrap().inner().keys().collect();
        // A quorum queue of 3.10 adds its count of deliveries.
        assert!(names.iter().all(|name| ["shard", "x-delivery-count"].contains(&name.as_str())), "{names:?}");
    }
}

#[tokio::test]
async fn messages_go_back_in_their_order_each_to_its_own_queue() {
    for kind in KINDS {
        let bench = Bench::new(Node::shared().await, "origins", kind).await;
        let other = Bench::new(Node::shared().await, "origins-other", kind).await;
        let age = Duration::from_secs(60);
        let of = |number: usize| if number.is_multiple_of(3) { &other } else { &bench };
        let letters =
            (1..=500).map(|number| of(number).letter(&format!("m-{number}"), "terminal".into(), age));
        bench.put(letters).await;
        let report = bench.redrive(RedriveOptions::new()).await.unwrap();
        assert_eq!((report.moved, report.maybe_twice, report.flows.len()), (500, 0, 2));
        let left = names((1..=500).filter(|number: &usize| !number.is_multiple_of(3)));
        assert_eq!(raw_ids(&bench.raw.take_all(&bench.queue).await), left);
        assert_eq!(raw_ids(&bench.raw.take_all(&other.queue).await), names((3..=500).step_by(3)));
        assert_eq!(bench.letters().count().await.unwrap(), 0);
    }
}

/// A service that is still broken gives up each message at once. It must not be sent round in circles.
#[tokio::test]
async fn what_dies_again_at_once_is_sent_back_once() {
    for kind in KINDS {
        let bench = Bench::new(Node::shared().await, "circles", kind).await;
        bench.put_many(300).await;
        let source = bench.rabbit.source(&bench.queue).open().await.unwrap();
        let stop = CancellationToken::new();
        let broken = async {
            let mut died = BTreeMap::<String, u32>::new();
            while let Some(delivery) = source.receive(&stop).await.unwrap() {
                *died.entry(delivery.message.id().to_owned()).or_default() += 1;
                let _ = source.nack(delivery.receipt, NackReason::dead_letter("terminal")).await;
            }
            died
        };
        let redriven = async {
            let report = bench.redrive(RedriveOptions::new()).await.unwrap();
            until("all have died again", || async {
                (bench.letters().count().await.unwrap() == 300).then_some(())
            })
            .await;
            stop.cancel();
            report
        };
        let (died, report) = futures::future::join(broken, redriven).await;
        assert_eq!((report.ready, report.moved, report.looked_at), (300, 300, 300));
        assert_eq!(died.len(), 300);
        assert!(died.values().all(|times| *times == 1), "{died:?}");
    }
}

#[tokio::test]
async fn another_consumer_of_the_dead_letters_gets_some_and_nothing_is_there_twice() {
    for kind in KINDS {
        let bench = Bench::high(Node::shared().await, "shared", kind).await;
        bench.put_many(2_000).await;
        let source = bench.rabbit.source(&bench.dlq).open().await.unwrap();
        let stop = CancellationToken::new();
        let other = async {
            let mut taken = Vec::new();
            while let Some(delivery) = source.receive(&stop).await.unwrap() {
                taken.push(delivery.message.id().to_owned());
                source.ack(delivery.receipt).await.unwrap();
            }
            taken
        };
        let redriven = async {
            let report = bench.redrive(RedriveOptions::new()).await.unwrap();
            until("the other has the rest", || async {
                (bench.raw.count(&bench.dlq).await.unwrap().0 == 0).then_some(())
            })
            .await;
            stop.cancel();
            report
        };
        let (taken, report) = futures::future::join(other, redriven).await;
        source.close().await.unwrap();
        assert_eq!((report.maybe_twice, report.moved), (0, report.looked_at));
        let mut found = taken.clone();
        found.extend(bench.raw.take_all(&bench.queue).await.iter().map(|moved| moved.id().to_owned()));
        found.extend(bench.raw.take_all(&bench.dlq).await.iter().map(|left| left.id().to_owned()));
        found.sort_by_key(|id| id[2..].parse::<u32>().unwrap());
        assert_eq!(found, names(1..=2_000));
        assert!(!taken.is_empty() && report.moved > 0, "{} taken, {report:?}", taken.len());
    }
}

#[tokio::test]
async fn ten_thousand_are_sent_back_in_seconds() {
    let bench = Bench::high(Node::shared().await, "many", QueueType::Quorum).await;
    bench.put_many(10_000).await;
    let began = SystemClock.now();
    let report = bench.redrive(RedriveOptions::new()).await.unwrap();
    let took = SystemClock.now() - began;
    assert_eq!((report.moved, report.maybe_twice), (10_000, 0));
    assert_eq!(bench.letters().count().await.unwrap(), 0);
    assert_eq!(bench.raw.count(&bench.queue).await, Some((10_000, 0)));
    assert!(took < Duration::from_secs(30), "{took:?}");

    // Looked through, with every second one left where it is.
    let letters = |cause: &'static str, from: usize| {
        names((from..=10_000).step_by(2)).into_iter().map(move |id| (id, cause))
    };
    let mut mixed: Vec<_> = letters("odd", 1).chain(letters("even", 2)).collect();
    mixed.sort_by_key(|(id, _)| id[2..].parse::<u32>().unwrap());
    bench
        .put(mixed.iter().map(|(id, cause)| bench.letter(id, (*cause).into(), Duration::from_secs(9))))
        .await;
    let began = SystemClock.now();
    let report = bench.redrive(RedriveOptions::new().cause("even")).await.unwrap();
    let took = SystemClock.now() - began;
    assert_eq!((report.moved, report.not_matched, report.maybe_twice), (5_000, 5_000, 0));
    assert!(took < Duration::from_secs(30), "{took:?}");
    let peeked = bench.letters().delivery_limit(Some(crate::bench::HIGH));
    let peeked = peeked.peek(crate::bench::at_most(10_000)).await.unwrap();
    assert_eq!(ids(&peeked.messages), names((1..=10_000).step_by(2)));
}
