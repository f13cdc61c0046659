//! The journal: what is kept, in which order, and the text of a run.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use bytes::Bytes;
use windlass::clock::ControlledClock;
use windlass::codec;
use windlass::consumer::{
    ChangeKind, ConsumerChange, ConsumerEvent, Journal, JournalEntry, Observer, Obstacle, Outcome,
    QueueConsumer, Report,
};
use windlass::error::{Error, ErrorKind};
use windlass::handler::{Context, HandlerError};
use windlass::memory::{FaultPoint, MemoryBroker};
use windlass::message::Message;
use windlass::source::{NackReason, Settlement};

use support::{SECOND, at_most, ms, prompt};

fn event(id: &str, settlement: impl Into<Settlement>) -> ConsumerEvent {
    ConsumerEvent::new("orders", Message::new("").with_id(id), Outcome::Done, settlement.into())
}

fn change(kind: ChangeKind) -> ConsumerChange {
    ConsumerChange::new("orders", kind)
}

async fn by_id(_: Bytes, context: Context) -> Result<(), HandlerError> {
    match (context.message().id(), context.attempt()) {
        ("m-1", 1) => Err(HandlerError::failed("reset")),
        ("m-2", _) => Err(HandlerError::terminal("no such\naddress")),
        ("m-3", _) => Err(HandlerError::Timeout { after: ms(250) }),
        ("m-4", 1) => panic!("divided by zero"),
        ("m-5", _) => Err(HandlerError::CircuitOpen { closes_in: 30 * SECOND }),
        ("m-6", _) => Err(HandlerError::invalid_output("no id")),
        _ => Ok(()),
    }
}

const RUN: &str = r"
orders m-1 attempt 1: failed -> retry in 1s (handler_error: reset)
orders m-2 attempt 1: terminal -> dead-letter (terminal: no such\naddress)
orders m-3 attempt 1: timeout -> retry in 1s (timeout:250ms)
orders m-4 attempt 1: panicked -> retry in 1s (panic: divided by zero)
orders m-5 attempt 1: circuit_open -> retry in 30s, not counted (circuit_open)
orders m-6 attempt 1: invalid -> dead-letter (validation:output: no id)
orders m-7 attempt 1: done -> ack, not taken: timed out
orders m-7 attempt 1: done -> ack
orders m-1 attempt 2: done -> ack
orders m-3 attempt 2: timeout -> retry in 2s (timeout:250ms)
orders m-4 attempt 2: done -> ack
orders m-3 attempt 3: timeout -> retry in 4s (timeout:250ms)
orders m-3 attempt 4: timeout -> dead-letter (retry_exhausted:4: timeout:250ms)
";

#[tokio::test]
async fn the_text_of_a_run_is_the_same_every_time() {
    for _ in 0..3 {
        let clock = ControlledClock::new();
        let queue = MemoryBroker::new(clock.clone()).queue("orders");
        for number in 1..=7 {
            queue.publish(Message::new("").with_id(format!("m-{number}")));
        }
        queue.fail_next(FaultPoint::Ack, Error::new(ErrorKind::Timeout, "ack"));
        let journal = Journal::new();
        let consumer = QueueConsumer::with_decoder(queue.source(), codec::bytes, by_id);
        let handle = consumer.observer(journal.clone()).clock(clock.clone()).start().unwrap();
        clock.advance(20 * SECOND).await;
        assert_eq!(format!("\n{journal}"), RUN);
        assert_eq!(journal.forgotten(), 0);
        drop(handle);
    }
}

#[test]
fn every_change_has_its_line() {
    let journal = Journal::new();
    let mut report = Report::default();
    (report.finished, report.requeued, report.abandoned) = (3, 2, 1);
    let clean = report.clone();
    report.took = 5 * SECOND;
    report.error = Some(Error::new(ErrorKind::Closed, "receive").with_context("id", "7"));
    report.close_error = Some(Error::new(ErrorKind::Disconnected, "close"));
    for kind in [
        ChangeKind::Idle { after: 5 * SECOND },
        ChangeKind::Waiting { obstacle: Obstacle::Readiness },
        ChangeKind::Waiting { obstacle: Obstacle::KillSwitch },
        ChangeKind::Ready,
        ChangeKind::Tripped { failed: 9, of: 10, pause: 30 * SECOND },
        ChangeKind::Paused,
        ChangeKind::Resumed,
        ChangeKind::Stopped { report: clean },
        ChangeKind::Stopped { report },
    ] {
        journal.on_change(&change(kind));
    }
    let expected = "
orders: idle for 5s
orders: waiting for readiness
orders: waiting for kill_switch
orders: ready
orders: tripped for 30s, 9 of 10 failed
orders: paused
orders: resumed
orders: stopped, 3 finished, 2 requeued, 1 abandoned
orders: stopped, 3 finished, 2 requeued, 1 abandoned, error: closed, close error: no connection
";
    assert_eq!(format!("\n{journal}"), expected);
    assert_eq!((journal.changes().len(), journal.events().len()), (9, 0));
}

#[test]
fn the_last_are_kept_in_order_and_the_others_counted() {
    let journal = Journal::last(at_most(3));
    let other = journal.clone();
    journal.on_message(&event("m-1", Settlement::Ack));
    journal.on_change(&change(ChangeKind::Paused));
    journal.on_message(&event("m-2", NackReason::requeue_now("paused")));
    assert_eq!((other.len(), other.forgotten()), (3, 0));
    other.on_change(&change(ChangeKind::Resumed));
    other.on_message(&event("m-3", NackReason::retry("again")));
    assert_eq!((journal.len(), journal.forgotten()), (3, 2));
    let text = "(2 forgotten)
orders m-2 attempt 1: done -> requeue (paused)
orders: resumed
orders m-3 attempt 1: done -> retry (again)
";
    assert_eq!(journal.to_string(), text);
    let kinds: Vec<bool> =
        journal.entries().iter().map(|entry| matches!(entry, JournalEntry::Message(_))).collect();
    assert_eq!(kinds, [true, false, true]);
    let ids: Vec<_> = journal.events().iter().map(|event| event.message.id().to_owned()).collect();
    assert_eq!(ids, ["m-2", "m-3"]);
    assert!(matches!(journal.changes()[..], [ConsumerChange { kind: ChangeKind::Resumed, .. }]));
    journal.clear();
    assert_eq!((other.len(), other.is_empty(), other.forgotten()), (0, true, 0));
    assert_eq!(other.to_string(), "");
}

#[tokio::test]
async fn whoever_waits_for_an_entry_is_told_and_not_for_ever() {
    let journal = Journal::new();
    let waiting = tokio::spawn({
        let journal = journal.clone();
        async move { journal.until(|journal| journal.len() == 2).await }
    });
    tokio::task::yield_now().await;
    journal.on_message(&event("m-1", Settlement::Ack));
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    journal.on_message(&event("m-2", Settlement::Ack));
    prompt(waiting).await.unwrap().unwrap();

    let error = journal.until_within(ms(20), |journal| journal.len() == 3).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    let text = error.to_string();
    assert!(text.contains("2 entries and has forgotten 0"), "{text}");
    assert!(text.ends_with("\norders m-2 attempt 1: done -> ack"), "{text}");
}
