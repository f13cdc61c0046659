//! Where dead letters go, and what is written on them.

use std::time::{Duration, SystemTime};

use lapin::ExchangeKind;
use lapin::options::{ExchangeDeclareOptions, QueueBindOptions};
use lapin::types::{AMQPValue, FieldTable};
use windlass::ErrorKind;
use windlass::clock::{Clock, SystemClock};
use windlass::handler::HandlerError;
use windlass::rabbitmq::{DeadLetterTo, RabbitEvent, dead_letter_queue};

use crate::broker_bench::{Bench, KINDS, ms};
use crate::rabbit::{Node, QueueType, Raw, RawMessage, bounded, until};

/// Declares a direct exchange with one queue that is bound to it.
async fn exchange(raw: &Raw, exchange: &str, key: &str, queue: &str) {
    raw.declare(queue, QueueType::Classic, FieldTable::default()).await;
    let channel = raw.channel().await;
    let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    let declared =
        channel.exchange_declare(exchange.into(), ExchangeKind::Direct, options, FieldTable::default());
    bounded("declare", declared).await.unwrap();
    let bound = channel.queue_bind(
        queue.into(),
        exchange.into(),
        key.into(),
        QueueBindOptions::default(),
        FieldTable::default(),
    );
    bounded("bind", bound).await.unwrap();
}

/// Takes the one message out of the queue.
async fn the_letter(bench: &Bench, queue: &str) -> RawMessage {
    let letter = until("a dead letter", || bench.raw.get(queue)).await;
    bench.ledger.dead_lettered(letter.id());
    assert_eq!(bench.raw.get(queue).await, None, "one copy");
    letter
}

fn text(letter: &RawMessage, header: &str) -> String {
    match letter.header(header) {
        Some(AMQPValue::LongString(text)) => text.to_string(),
        other => panic!("{header}: {other:?}"),
    }
}

/// What a person must find on a dead letter.
fn assert_stamped(letter: &RawMessage, bench: &Bench, attempts: u32) {
    assert_eq!(letter.body, b"x");
    assert_eq!(letter.properties.delivery_mode(), &Some(2), "persistent");
    assert_eq!(text(letter, "windlass-cause"), "terminal");
    assert!(text(letter, "windlass-cause-detail").contains("declined"));
    assert_eq!(text(letter, "windlass-origin-queue"), bench.queue);
    let Some(AMQPValue::LongUInt(made)) = letter.header("windlass-attempts") else {
        panic!("{:?}", letter.header("windlass-attempts"));
    };
    assert_eq!(*made, attempts);
    let Some(AMQPValue::Timestamp(seconds)) = letter.header("windlass-dead-lettered-at") else {
        panic!("{:?}", letter.header("windlass-dead-lettered-at"));
    };
    let at = SystemTime::UNIX_EPOCH + Duration::from_secs(*seconds);
    let age = SystemClock.wall().duration_since(at).unwrap();
    assert!(age < ms(30_000), "{age:?}");
}

/// Gives up each message at its second attempt.
fn gives_up(bench: &Bench, source: windlass::rabbitmq::RabbitSource) -> windlass::ConsumerHandle {
    let consumer = bench.consumer(source, |context| async move {
        Err(if context.attempt() == 1 {
            HandlerError::failed("once")
        } else {
            HandlerError::terminal("declined")
        })
    });
    let policy = windlass::consumer::RetryPolicy::schedule([ms(20)]);
    consumer.retry_policy(policy).start().unwrap()
}

#[tokio::test]
async fn a_dead_letter_lies_in_the_dead_letter_queue_with_its_cause() {
    for kind in KINDS {
        let bench = Bench::new(Node::shared().await, "letters", kind).await;
        bench.publish(1..=1).await;
        let handle = gives_up(&bench, bench.source().await);
        let letter = the_letter(&bench, &dead_letter_queue(&bench.queue)).await;
        assert_stamped(&letter, &bench, 2);
        assert!(handle.stop().await.is_clean());
        let account = bench.account().await;
        assert_eq!((account.acked, account.dead_lettered, account.queued), (0, 1, 0), "{account}");
    }
}

#[tokio::test]
async fn a_dead_letter_goes_to_the_exchange_and_the_key_that_are_named() {
    let bench = Bench::new(Node::shared().await, "letters-exchange", QueueType::Quorum).await;
    exchange(&bench.raw, "letters-x", "poison", "letters-x-poison").await;
    exchange(&bench.raw, "letters-x", "other", "letters-x-other").await;
    bench.publish(1..=1).await;
    let target =
        DeadLetterTo::Exchange { exchange: "letters-x".to_owned(), routing_key: "poison".to_owned() };
    let handle = gives_up(&bench, bench.options().dead_letter_to(target).open().await.unwrap());
    let letter = the_letter(&bench, "letters-x-poison").await;
    assert_stamped(&letter, &bench, 2);
    assert_eq!((letter.exchange.as_str(), letter.routing_key.as_str()), ("letters-x", "poison"));
    assert_eq!(bench.raw.get("letters-x-other").await, None);
    assert!(handle.stop().await.is_clean());
    assert_eq!(bench.account().await.dead_lettered, 1);
}

#[tokio::test]
async fn a_dead_letter_is_left_to_the_brokers_own_exchange_where_that_is_asked_for() {
    for kind in KINDS {
        let name = format!("letters-broker-{kind}");
        let mut arguments = FieldTable::default();
        let text = |text: &str| AMQPValue::LongString(text.into());
        arguments.insert("x-dead-letter-exchange".into(), text("letters-broker-x"));
        arguments.insert("x-dead-letter-routing-key".into(), text(&name));
        let bench = Bench::with(Node::shared().await, "letters-broker", kind, arguments).await;
        let to = format!("{name}-dead");
        exchange(&bench.raw, "letters-broker-x", &name, &to).await;
        bench.publish(1..=1).await;
        let handle =
            gives_up(&bench, bench.options().dead_letter_to(DeadLetterTo::Broker).open().await.unwrap());
        let letter = the_letter(&bench, &to).await;
        assert_eq!(letter.body, b"x");
        assert!(letter.header("x-death").is_some(), "the broker's own mark");
        assert_eq!(letter.header("windlass-cause"), None, "it carries no cause of ours");
        assert!(handle.stop().await.is_clean());
        assert_eq!(bench.account().await.dead_lettered, 1);
    }
}

#[tokio::test]
async fn a_dead_letter_is_dropped_with_an_event_where_that_is_asked_for() {
    let bench = Bench::new(Node::shared().await, "letters-drop", QueueType::Classic).await;
    bench.publish(1..=1).await;
    let handle = gives_up(&bench, bench.options().dead_letter_to(DeadLetterTo::Drop).open().await.unwrap());
    let dropped = |event: &RabbitEvent| match event {
        RabbitEvent::Dropped { queue, message, cause } => {
            Some((queue.clone(), message.clone(), cause.clone()))
        }
        _ => None,
    };
    let (queue, message, cause) = bench.told.until("says what was dropped", 1, dropped).await;
    assert_eq!((queue, message.as_str()), (bench.queue.clone(), "m-1"));
    assert!(cause.contains("terminal") && cause.contains("declined"), "{cause}");
    bench.until_count((0, 1)).await;
    assert_eq!(handle.stop().await.stats.dead_lettered, 1);
    let account = bench.account_but(&["m-1".to_owned()]).await;
    assert_eq!((account.acked, account.dead_lettered, account.queued), (0, 0, 0), "{account}");
}

#[tokio::test]
async fn a_dead_letter_that_has_nowhere_to_go_is_kept_and_goes_once_it_has() {
    for kind in KINDS {
        let bench = Bench::new(Node::shared().await, "letters-nowhere", kind).await;
        let dead_letters = dead_letter_queue(&bench.queue);
        bench.raw.delete(&dead_letters).await;
        bench.publish(1..=1).await;
        let source = bench.source().await;
        let nowhere = |event: &RabbitEvent| match event {
            RabbitEvent::NowhereToDeadLetter { queue, error } => Some((queue.clone(), error.clone())),
            _ => None,
        };
        let (queue, error) = bench.told.until("says that there is no place for them", 1, nowhere).await;
        assert_eq!((queue, error.kind()), (bench.queue.clone(), ErrorKind::NotFound));
        assert!(error.to_string().contains(&dead_letters), "{error}");

        let handle = gives_up(&bench, source);
        // From the fifth on the waits are long: 160 ms and more.
        let kept = || async { (bench.starts.len() >= 7).then(|| bench.starts.all()) };
        let starts = until("it came seven times", kept).await;
        assert!(starts[6].at - starts[2].at >= ms(100), "kept, and not at full speed");
        assert!(starts[1..].iter().all(|start| start.attempt == 2), "{starts:?}");
        let refusal = bench.done.all().pop().and_then(|done| done.settle_error).expect("it was not taken");
        assert!(refusal.to_string().contains(&dead_letters), "{refusal}");

        bench.raw.declare(&dead_letters, kind, FieldTable::default()).await;
        let letter = the_letter(&bench, &dead_letters).await;
        assert_stamped(&letter, &bench, 2);
        let _ = handle.stop().await;
        let account = bench.account().await;
        assert_eq!((account.dead_lettered, account.queued), (1, 0), "{account}");
    }
}
