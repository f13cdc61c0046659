//! Attempts and deliveries are counted by what counts them, whatever publishers have written into the headers.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::time::Duration;

use windlass::codec;
use windlass::consumer::{QueueConsumer, RetryPolicy};
use windlass::handler::{Context, HandlerError};
use windlass::rabbitmq::{DeadLetterTo, RabbitEvent, Role};
use windlass::source::{Delivery, MessageSource, NackReason};

use super::desk::{BOTH, Desk, SOON};
use super::props::{Entry, Props, table, value};
use super::rabbit::{Node, Proxy, QueueType, Series, bounded};

const ATTEMPT: &str = "windlass-attempt";

/// An entry of `x-death` as the broker writes them, with another count.
pub(crate) fn death(queue: &str, reason: &str, count: Option<Entry>) -> Vec<u8> {
    let mut entries = vec![
        Entry::text("queue", queue),
        Entry::text("reason", reason),
        Entry::text("exchange", ""),
        Entry::new("routing-keys", b'A', value(b'S', queue)),
        Entry::new("time", b'T', 1_700_000_000_u64.to_be_bytes()),
    ];
    entries.extend(count);
    value(b'F', table(&entries))
}

fn deaths(entries: &[Vec<u8>]) -> Entry {
    Entry::new("x-death", b'A', entries.concat())
}

fn count(code: u8, bytes: impl AsRef<[u8]>) -> Option<Entry> {
    Some(Entry::new("count", code, bytes))
}

/// Headers by the name of the case, and which attempt the message is at first.
fn garbage(queue: &str) -> Vec<(&'static str, Vec<Entry>, u32)> {
    let attempt = |code, bytes: &[u8]| vec![Entry::new(ATTEMPT, code, bytes)];
    let own = |counted| vec![deaths(&[death(queue, "rejected", counted)])];
    vec![
        ("attempt-2", attempt(b'I', &2_i32.to_be_bytes()), 2),
        ("attempt-3-long", attempt(b'l', &3_i64.to_be_bytes()), 3),
        ("attempt-text", attempt(b'S', b"2"), 1),
        ("attempt-0", attempt(b'I', &0_i32.to_be_bytes()), 1),
        ("attempt-minus-1", attempt(b'I', &(-1_i32).to_be_bytes()), 1),
        ("attempt-u64-max", attempt(b'l', &[0xff; 8]), 1),
        ("attempt-i64-max", attempt(b'l', &i64::MAX.to_be_bytes()), 1),
        ("attempt-u32-max", attempt(b'i', &[0xff; 4]), 1),
        ("attempt-true", attempt(b't', &[1]), 1),
        ("attempt-float", attempt(b'd', &2_f64.to_be_bytes()), 1),
        ("attempt-void", attempt(b'V', &[]), 1),
        ("attempt-list", attempt(b'A', &value(b'I', 2_i32.to_be_bytes())), 1),
        ("empty-table", vec![], 1),
        ("death-text", vec![Entry::text("x-death", "5")], 1),
        ("death-number", vec![Entry::new("x-death", b'I', 5_i32.to_be_bytes())], 1),
        ("death-texts", vec![Entry::new("x-death", b'A', value(b'S', queue))], 1),
        ("death-table", vec![Entry::new("x-death", b'F', table(&[Entry::text("queue", queue)]))], 1),
        ("death-elsewhere", vec![deaths(&[death("other", "rejected", count(b'l', 9_i64.to_be_bytes()))])], 1),
        (
            "death-two",
            vec![deaths(&[
                death(queue, "rejected", count(b'l', 2_i64.to_be_bytes())),
                death(queue, "expired", count(b'l', 2_i64.to_be_bytes())),
            ])],
            1,
        ),
        ("death-expired", vec![deaths(&[death(queue, "expired", count(b'l', 2_i64.to_be_bytes()))])], 1),
        ("count-missing", own(None), 1),
        ("count-int32", own(count(b'I', 5_i32.to_be_bytes())), 1),
        ("count-text", own(count(b'S', "5")), 1),
        ("count-minus-5", own(count(b'l', (-5_i64).to_be_bytes())), 1),
        ("count-huge", own(count(b'l', (1_i64 << 62).to_be_bytes())), 1),
        ("deliveries-1", vec![Entry::new("x-delivery-count", b'l', 1_i64.to_be_bytes())], 1),
        ("deliveries-2", vec![Entry::new("x-delivery-count", b'l', 2_i64.to_be_bytes())], 1),
        ("deliveries-text", vec![Entry::text("x-delivery-count", "2")], 1),
        ("acquired-9", vec![Entry::new("x-acquired-count", b'l', 9_i64.to_be_bytes())], 1),
    ]
}

// BC-27: whatever the headers hold, the message gets the tries that the policy gives, and then goes to the dead letters.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_of_any_content_make_neither_an_endless_retry_nor_an_early_end() {
    for kind in BOTH {
        let mut desk = Desk::new("garbage", kind).await;
        let mut first: BTreeMap<&str, u32> = BTreeMap::new();
        for (name, entries, attempt) in garbage(&desk.queue) {
            desk.publish(&Props::of(name).headers(&entries), b"x").await;
            first.insert(name, attempt);
        }
        desk.publish(&Props::of("no-headers"), b"x").await;
        first.insert("no-headers", 1);
        let source = desk.source(8, DeadLetterTo::Queue).await;
        let (ledger, seen) = (desk.ledger.clone(), std::sync::Arc::new(std::sync::Mutex::new(Vec::new())));
        let attempts = std::sync::Arc::clone(&seen);
        let handler = move |_, context: Context| {
            ledger.handled(context.message().id());
            attempts.lock().unwrap().push((context.message().id().to_owned(), context.attempt()));
            async { Err::<(), _>(HandlerError::from_error("not this time")) }
        };
        let consumer = QueueConsumer::with_decoder(source.clone(), codec::bytes, handler)
            .max_concurrent(NonZeroUsize::new(8).unwrap())
            .retry_policy(RetryPolicy::schedule([SOON; 3]))
            .start()
            .expect("it starts");
        desk.until_letters(u32::try_from(first.len()).unwrap()).await;
        let report = bounded("stop", consumer.stop()).await;
        assert_eq!(report.stats.settle_errors, 0, "{report:?}");
        let seen = seen.lock().unwrap().clone();
        for (name, attempt) in &first {
            let attempts: Vec<u32> = seen.iter().filter(|(id, _)| id == name).map(|(_, n)| *n).collect();
            assert_eq!(attempts, (*attempt..=4).collect::<Vec<_>>(), "{name} on {kind}");
        }
        let letters = desk.finish(source).await;
        assert_eq!(letters.len(), first.len(), "each is a dead letter once");
        for letter in letters {
            let cause = letter.props.header_text("windlass-cause");
            assert_eq!(cause.as_deref(), Some("retry_exhausted:4"), "{}", letter.props.id());
            let attempts = letter.props.header("windlass-attempts").expect("it is counted");
            assert_eq!((attempts.code, attempts.value), (b'i', 4_u32.to_be_bytes().to_vec()));
            assert_eq!(letter.props.header(ATTEMPT), None, "one that is sent back begins anew");
        }
    }
}

// BC-27: the table of FACTS, "Counting".
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deliveries_are_counted_by_the_broker_and_never_by_a_publisher() {
    for kind in BOTH {
        let mut desk = Desk::new("delivery-count", kind).await;
        let theirs = Entry::new("x-delivery-count", b'l', 6_i64.to_be_bytes());
        desk.publish(&Props::of("theirs").headers(&[theirs]), b"").await;
        desk.publish(&Props::of("none"), b"").await;
        let source = desk.source(1, DeadLetterTo::Queue).await;
        let mut counts: BTreeMap<String, Vec<Option<u64>>> = BTreeMap::new();
        for _ in 0..6 {
            let Delivery { message, receipt } = desk.next(&source).await;
            assert_eq!(message.attempt(), 1, "a requeue is no attempt");
            let counts = counts.entry(message.id().to_owned()).or_default();
            counts.push(message.delivery_count());
            if counts.len() < 3 {
                let requeue = source.nack(receipt, NackReason::requeue_now("not now"));
                bounded("requeue", requeue).await.expect("it is sent");
            } else {
                bounded("ack", source.ack(receipt)).await.expect("it is sent");
                desk.ledger.acked(message.id());
            }
        }
        let wanted = match kind {
            QueueType::Classic => vec![None; 3],
            QueueType::Quorum => vec![Some(1), Some(2), Some(3)],
        };
        for (id, counts) in counts {
            assert_eq!(counts, wanted, "{id} on {kind}");
        }
        assert!(desk.finish(source).await.is_empty());
    }
}

// BC-27
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_retry_counts_as_an_attempt_and_the_count_outlives_requeues_and_cuts() {
    let node = Node::shared().await;
    for kind in BOTH {
        let mut desk = Desk::on(node, "attempts", kind).await;
        desk.publish(&Props::of("m"), b"x").await;
        let proxy = Proxy::start(node.amqp_port());
        let rabbit =
            std::mem::replace(&mut desk.rabbit, super::desk::connect(&node.uri_at(proxy.port())).await);
        bounded("disconnect", rabbit.disconnect()).await;
        let source = desk.source(1, DeadLetterTo::Queue).await;
        let mut events = desk.rabbit.watch();
        let mut deliveries = Vec::new();
        for step in ["retry", "requeue", "cut", "retry", "cut", "ack"] {
            let Delivery { message, receipt } = desk.next(&source).await;
            deliveries.push((message.attempt(), message.redelivered(), message.delivery_count()));
            match step {
                "retry" => {
                    let retry = NackReason::retry_after(Duration::from_millis(5), "again");
                    bounded("retry", source.nack(receipt, retry)).await.expect("the copy is taken");
                }
                "requeue" => {
                    let requeue = NackReason::requeue_now("not now");
                    bounded("requeue", source.nack(receipt, requeue)).await.expect("it is sent");
                }
                "cut" => {
                    proxy.cut().await;
                    bounded("the loss is noticed", async {
                        use futures::StreamExt;
                        while !matches!(
                            events.next().await,
                            Some(RabbitEvent::Lost { role: Role::Consume, .. })
                        ) {}
                    })
                    .await;
                    drop(receipt);
                }
                _ => {
                    bounded("ack", source.ack(receipt)).await.expect("it is sent");
                    desk.ledger.acked("m");
                }
            }
        }
        let counted = |count: u64| (kind == QueueType::Quorum).then_some(count);
        let wanted = [
            (1, false, counted(1)),
            (2, false, counted(1)),
            (2, true, counted(2)),
            (2, true, counted(3)),
            (3, false, counted(1)),
            (3, true, counted(2)),
        ];
        assert_eq!(deliveries, wanted, "on {kind}, {:?}", node.series());
        assert!(desk.finish(source).await.is_empty());
    }
    assert!(node.series() >= Series(3, 10), "a series whose counts were measured");
}
