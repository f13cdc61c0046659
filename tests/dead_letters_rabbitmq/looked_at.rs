//! Looking: what is said of a dead letter, and that nothing is taken away by it.

use std::time::Duration;

use lapin::options::{BasicGetOptions, BasicNackOptions};
use lapin::types::{AMQPValue, FieldArray, FieldTable};
use tokio_util::sync::CancellationToken;
use windlass::clock::{Clock, SystemClock};
use windlass::message::HeaderValue;
use windlass::rabbitmq::Delivered;
use windlass::rabbitmq::dead_letters::{RedriveOptions, ToldBy};
use windlass::source::{Cause, Delivery, MessageSource, NackReason};
use windlass::{ErrorKind, Message, Publisher};

use crate::bench::{Bench, KINDS, apart, at_most, ids, names, table, text};
use crate::rabbit::{Node, QueueType, bounded, until};

/// As a person reads it off the dead letter.
const RECENT: Duration = Duration::from_secs(60);

#[tokio::test]
async fn what_this_crate_dead_lettered_is_shown_with_all_that_is_known() {
    for kind in KINDS {
        let bench = Bench::new(Node::shared().await, "shown", kind).await;
        let message = Message::new(&b"\x00\xff\x80"[..])
            .with_id("m-1")
            .with_content_type("application/octet-stream")
            .with_header("shard", 3_i32);
        bench.rabbit.publisher().publish(&bench.queue, message).await.unwrap();
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

        let peeked = bench.peek(10).await;
        assert_eq!((peeked.ready, peeked.messages.len()), (1, 1));
        let dead = &peeked.messages[0];
        assert_eq!((dead.message.id(), dead.message.body().as_ref()), ("m-1", &b"\x00\xff\x80"[..]));
        assert_eq!(dead.message.content_type(), Some("application/octet-stream"));
        assert_eq!(dead.message.headers().get("shard"), Some(&HeaderValue::I32(3)));
        assert!(dead.message.metadata::<Delivered>().unwrap().properties.persistent);
        let death = &dead.death;
        assert_eq!(death.told_by, ToldBy::Windlass);
        assert_eq!(death.cause.as_ref().unwrap().to_string(), "terminal: declined");
        assert_eq!((death.attempts, death.queue.as_deref()), (Some(2), Some(bench.queue.as_str())));
        assert!(apart(death.at.unwrap(), SystemClock.wall()) < RECENT);
        assert_eq!(bench.letters().count().await.unwrap(), 1);
    }
}

/// A queue whose dead letters the broker moves to `<queue>.dlq`, with these arguments.
async fn left_to_the_broker(node: &Node, name: &str, kind: QueueType, more: FieldTable) -> Bench {
    let mut arguments = table([
        ("x-dead-letter-exchange", text("")),
        ("x-dead-letter-routing-key", text(&format!("{name}-{kind}.dlq"))),
    ]);
    for (name, value) in more.inner() {
        arguments.insert(name.clone(), value.clone());
    }
    Bench::with(node, name, kind, arguments, FieldTable::default()).await
}

async fn assert_death(bench: &Bench, reason: &str) {
    let died = until("the broker has moved it", || async {
        Some(bench.peek(10).await.messages).filter(|messages| !messages.is_empty())
    });
    let dead = died.await.remove(0);
    assert_eq!(dead.message.id(), "m-1", "{reason}");
    let death = dead.death;
    assert_eq!(death.told_by, ToldBy::Broker);
    assert_eq!(death.cause.as_ref().map(Cause::code), Some(reason));
    assert_eq!((death.queue.as_deref(), death.deaths), (Some(bench.queue.as_str()), Some(1)));
    assert_eq!((death.attempts, death.exchange.as_deref()), (None, Some("")));
    assert_eq!(death.routing_keys, [bench.queue.as_str()]);
    assert!(apart(death.at.unwrap(), SystemClock.wall()) < RECENT, "{death:?}");
}

#[tokio::test]
async fn what_the_broker_dead_lettered_is_shown_with_its_reason() {
    for kind in KINDS {
        let node = Node::shared().await;
        let bench = left_to_the_broker(node, "rejected", kind, FieldTable::default()).await;
        bench.publish_raw(&bench.queue, "m-1", table([("shard", text("a"))])).await;
        let channel = bench.raw.channel().await;
        let got = channel.basic_get(bench.queue.as_str().into(), BasicGetOptions::default());
        let got = bounded("get", got).await.unwrap().unwrap();
        got.delivery.nack(BasicNackOptions { requeue: false, multiple: false }).await.unwrap();
        assert_death(&bench, "rejected").await;

        let expires = table([("x-message-ttl", AMQPValue::LongUInt(20))]);
        let bench = left_to_the_broker(node, "expired", kind, expires).await;
        bench.publish_raw(&bench.queue, "m-1", FieldTable::default()).await;
        assert_death(&bench, "expired").await;

        let full = table([("x-max-length", AMQPValue::LongUInt(1))]);
        let bench = left_to_the_broker(node, "overflows", kind, full).await;
        for id in ["m-1", "m-2"] {
            bench.publish_raw(&bench.queue, id, FieldTable::default()).await;
        }
        assert_death(&bench, "maxlen").await;
    }
}

#[tokio::test]
async fn what_nobody_wrote_down_is_not_known_and_garbage_is_nothing() {
    let list = |values: Vec<AMQPValue>| AMQPValue::FieldArray(FieldArray::from(values));
    let garbage = [
        text("garbage"),
        AMQPValue::LongInt(7),
        list(vec![text("garbage"), AMQPValue::Void]),
        list(vec![AMQPValue::FieldTable(table([("queue", AMQPValue::LongInt(1)), ("count", text("x"))]))]),
    ];
    for kind in KINDS {
        let bench = Bench::new(Node::shared().await, "garbage", kind).await;
        bench.publish_raw(&bench.dlq, "m-0", FieldTable::default()).await;
        for (number, value) in garbage.iter().enumerate() {
            let headers = table([("x-death", value.clone())]);
            bench.publish_raw(&bench.dlq, &format!("m-{}", number + 1), headers).await;
        }
        let peeked = bench.peek(10).await;
        assert_eq!(ids(&peeked.messages), names(0..=4));
        for dead in &peeked.messages {
            let death = &dead.death;
            assert_eq!((death.told_by, &death.cause, &death.queue), (ToldBy::Nobody, &None, &None));
            assert_eq!((death.attempts, death.deaths, death.at), (None, None, None));
        }
        let report = bench.redrive(RedriveOptions::new()).await.unwrap();
        assert_eq!((report.looked_at, report.unknown_origin, report.moved), (5, 5, 0));
        assert_eq!(ids(&bench.peek(10).await.messages), names(0..=4));
        // They can be sent somewhere all the same, and a broker does not stumble over them there.
        let report = bench.redrive(RedriveOptions::new().to(&bench.queue)).await.unwrap();
        assert_eq!((report.moved, report.maybe_twice), (5, 0));
        let moved = bench.raw.take_all(&bench.queue).await;
        assert_eq!(crate::bench::raw_ids(&moved), names(0..=4));
        assert!(moved.iter().all(|message| message.header("x-death").is_none()));
    }
}

#[tokio::test]
async fn looking_25_times_leaves_all_in_its_order() {
    for kind in KINDS {
        let bench = Bench::high(Node::shared().await, "looks", kind).await;
        bench.put_many(50).await;
        let letters = bench.letters().delivery_limit(Some(crate::bench::HIGH));
        // Less than a window, more than one, and all.
        for most in [7, 40, 100] {
            for look in 1..=25 {
                let peeked = letters.peek(at_most(most)).await.unwrap();
                assert_eq!(ids(&peeked.messages), names(1..=most.min(50)), "{kind}, look {look} at {most}");
                assert_eq!((peeked.ready, peeked.warnings.len()), (50, 0));
            }
        }
        let left = until("all are handed back", || async {
            (bench.raw.count(&bench.dlq).await == Some((50, 0))).then_some(())
        });
        left.await;
        assert_eq!(crate::bench::raw_ids(&bench.raw.take_all(&bench.dlq).await), names(1..=50));
    }
}

#[tokio::test]
async fn an_empty_queue_is_looked_at_and_one_that_is_missing_is_said() {
    let bench = Bench::new(Node::shared().await, "empty", QueueType::Quorum).await;
    assert_eq!(bench.letters().count().await.unwrap(), 0);
    assert!(bench.peek(10).await.messages.is_empty());
    let report = bench.redrive(RedriveOptions::new()).await.unwrap();
    assert_eq!((report.ready, report.looked_at, report.moved), (0, 0, 0));

    let missing = bench.rabbit.dead_letters("empty-missing.dlq");
    let count = missing.count().await.unwrap_err();
    assert!(count.to_string().contains("empty-missing.dlq"), "{count}");
    let peek = missing.peek(at_most(1)).await.unwrap_err();
    let purge = missing.purge().await.unwrap_err();
    let redrive =
        missing.redrive(RedriveOptions::new(), &CancellationToken::new(), |_| {}).await.unwrap_err();
    for kind in [count.kind(), peek.kind(), purge.kind(), redrive.kind()] {
        assert_eq!(kind, ErrorKind::NotFound);
    }
    assert!(redrive.to_string().contains("empty-missing.dlq"), "{redrive}");

    for name in [String::new(), "q".repeat(256)] {
        let kind = bench.rabbit.dead_letters(name).peek(at_most(1)).await.unwrap_err().kind();
        assert_eq!(kind, ErrorKind::Invalid);
    }
}

#[tokio::test]
async fn a_purge_deletes_what_is_ready_and_says_how_many_that_was() {
    for kind in KINDS {
        let bench = Bench::new(Node::shared().await, "purged", kind).await;
        bench.put_many(12).await;
        assert_eq!(bench.letters().count().await.unwrap(), 12);
        assert_eq!(bench.letters().purge().await.unwrap(), 12);
        assert_eq!(bench.letters().count().await.unwrap(), 0);
        assert_eq!(bench.letters().purge().await.unwrap(), 0);
    }
}
