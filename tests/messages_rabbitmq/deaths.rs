//! What the broker notes of a message's deaths, where somebody else has written it.

use windlass::message::Message;
use windlass::rabbitmq::DeadLetterTo;

use super::counting::death;
use super::desk::{BOTH, Desk, SOON};
use super::props::{DELIVERY_MODE, Entry, Props, table, value};
use super::rabbit::{Node, QueueType};

const DEATHS: &str = "x-death";

fn deaths(entries: &[Vec<u8>]) -> Entry {
    Entry::new(DEATHS, b'A', entries.concat())
}

fn count(value: i64) -> Option<Entry> {
    Some(Entry::new("count", b'l', value.to_be_bytes()))
}

/// `x-death` as no broker writes it, each of another shape.
fn malformed(queue: &str) -> Vec<(&'static str, Entry)> {
    let texts = [value(b'S', queue), value(b'S', "rejected")];
    let other_time = table(&[
        Entry::text("queue", queue),
        Entry::text("reason", "rejected"),
        Entry::new("count", b'l', 1_i64.to_be_bytes()),
        Entry::text("exchange", ""),
        Entry::new("routing-keys", b'A', value(b'S', queue)),
        Entry::text("time", "yesterday"),
    ]);
    vec![
        // The case of BC-30.
        ("count-text", deaths(&[death(queue, "rejected", Some(Entry::text("count", "5")))])),
        ("count-missing", deaths(&[death(queue, "rejected", None)])),
        ("texts", deaths(&texts)),
        ("text", Entry::text(DEATHS, "5")),
        ("number", Entry::new(DEATHS, b'l', 5_i64.to_be_bytes())),
        ("table", Entry::new(DEATHS, b'F', table(&[Entry::text("queue", queue)]))),
        // BC-53
        ("time-text", deaths(&[value(b'F', other_time)])),
        ("nothing", Entry::new(DEATHS, b'V', [])),
    ]
}

/// The process of a queue: another one after a crash.
async fn process(node: &Node, queue: &str) -> String {
    let queues = node.ctl_list(&["list_queues", "name", "pid"]).await;
    let found = queues.iter().find(|found| found["name"] == queue).expect("the queue is there");
    found["pid"].to_string()
}

// BC-30, BC-53
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deaths_that_somebody_else_wrote_wrongly_crash_no_queue_and_lose_no_message() {
    let node = Node::shared().await;
    for (kind, to) in
        BOTH.into_iter().flat_map(|kind| [(kind, DeadLetterTo::Queue), (kind, DeadLetterTo::Broker)])
    {
        let mut desk = Desk::on(node, "malformed-deaths", kind).await;
        let malformed = malformed(&desk.queue);
        for (name, entry) in &malformed {
            desk.publish(&Props::of(name).headers(std::slice::from_ref(entry)), b"x").await;
        }
        desk.publish(&Props::of("good"), b"x").await;
        desk.publish(&Props::of("good-transient").byte(DELIVERY_MODE, 1), b"x").await;
        let before = process(node, &desk.queue).await;
        let source = desk.source(16, to.clone()).await;
        for _ in &malformed {
            let message = desk.retry_next(&source, SOON).await;
            assert!(!message.redelivered(), "{} came again on {kind}", message.id());
        }
        for id in ["good", "good-transient"] {
            let message = desk.ack_next(&source).await;
            assert_eq!((message.id(), message.redelivered()), (id, false));
        }
        for _ in &malformed {
            let message = desk.give_up_next(&source, "looked at").await;
            assert_eq!((message.attempt(), message.redelivered()), (2, false), "{}", message.id());
        }
        desk.until_letters(u32::try_from(malformed.len()).unwrap()).await;
        assert_eq!(process(node, &desk.queue).await, before, "the queue has not crashed");
        assert_eq!(desk.finish(source).await.len(), malformed.len(), "each is a dead letter once, to {to:?}");
    }
}

// BC-30: given up at the first attempt, as it came.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_with_malformed_deaths_that_is_given_up_at_once_goes_by_copy_whatever_was_asked_for() {
    let node = Node::shared().await;
    let mut desk = Desk::on(node, "malformed-at-once", QueueType::Classic).await;
    let malformed = malformed(&desk.queue);
    for (name, entry) in &malformed {
        desk.publish(&Props::of(name).headers(std::slice::from_ref(entry)), b"x").await;
    }
    desk.publish(&Props::of("well-formed").headers(&[deaths(&[death("other", "rejected", count(3))])]), b"x")
        .await;
    desk.publish(&Props::of("good-transient").byte(DELIVERY_MODE, 1), b"x").await;
    let before = process(node, &desk.queue).await;
    let source = desk.source(1, DeadLetterTo::Broker).await;
    for _ in 0..=malformed.len() {
        let message: Message = desk.give_up_next(&source, "looked at").await;
        assert!(!message.redelivered(), "{} came again", message.id());
    }
    assert!(!desk.ack_next(&source).await.redelivered());
    desk.until_letters(u32::try_from(malformed.len()).unwrap() + 1).await;
    assert_eq!(process(node, &desk.queue).await, before, "the queue has not crashed");
    let letters = desk.finish(source).await;
    assert_eq!(letters.len(), malformed.len() + 1);
    for letter in letters {
        let cause = letter.props.header_text("windlass-cause");
        if letter.props.id() == "well-formed" {
            assert_eq!(cause, None, "the broker moved it");
            assert_eq!(letter.props.header(DEATHS).map(|deaths| deaths.code), Some(b'A'));
        } else {
            assert_eq!(cause.as_deref(), Some("looked at"), "{}", letter.props.id());
            assert_eq!(letter.props.header(DEATHS), None, "what was wrong is left out");
        }
    }
}

// BC-33 (b)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_with_hundreds_of_deaths_is_retried_and_dead_lettered_as_any_other() {
    for (kind, to) in
        BOTH.into_iter().flat_map(|kind| [(kind, DeadLetterTo::Queue), (kind, DeadLetterTo::Broker)])
    {
        let mut desk = Desk::new("many-deaths", kind).await;
        let entries: Vec<_> = (1..=400).map(|n| death(&format!("q-{n}"), "rejected", count(n))).collect();
        desk.publish(&Props::of("many").headers(&[deaths(&entries)]), b"x").await;
        desk.publish(&Props::of("good"), b"x").await;
        let source = desk.source(1, to.clone()).await;
        let first = desk.retry_next(&source, SOON).await;
        assert_eq!((first.id(), first.attempt()), ("many", 1));
        assert_eq!(desk.ack_next(&source).await.id(), "good");
        let again = desk.give_up_next(&source, "looked at").await;
        assert_eq!((again.id(), again.attempt(), again.body().as_ref()), ("many", 2, &b"x"[..]));
        desk.until_letters(1).await;
        let letters = desk.finish(source).await;
        assert_eq!(letters.len(), 1, "once, on {kind} to {to:?}");
        assert_eq!(letters[0].body, b"x");
    }
}
