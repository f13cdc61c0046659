//! A source made of three closures whose storage fails: no message is forgotten.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeSet, VecDeque};
use std::future::pending;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use tokio_util::sync::CancellationToken;
use windlass::clock::ControlledClock;
use windlass::message::Message;
use windlass::source::{Delivery, MessageSource, NackReason, PolledReceipt, PolledSource};
use windlass::{ErrorKind, Result};

/// How a call of the storage goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Works,
    Fails,
    Hangs,
}

/// A table of two rows, whose claims stand until they are removed or given back.
#[derive(Debug, Default)]
struct Table {
    waiting: VecDeque<u32>,
    claimed: BTreeSet<u32>,
    removed: Vec<u32>,
    /// How the next calls of `remove` and `give_back` go; they work once this is empty.
    script: VecDeque<Call>,
}

type Shared = Arc<Mutex<Table>>;

fn source(clock: &ControlledClock, script: &[Call]) -> (Shared, PolledSource<u32>) {
    let table =
        Table { waiting: [1, 2].into(), script: script.iter().copied().collect(), ..Table::default() };
    let table: Shared = Arc::new(Mutex::new(table));
    let (fetching, removing, giving) = (Arc::clone(&table), Arc::clone(&table), Arc::clone(&table));
    let fetch = move || {
        let mut table = fetching.lock().unwrap();
        let row = table.waiting.pop_front();
        table.claimed.extend(row);
        async move { Ok::<_, io::Error>(row.map(|row| (Message::new("").with_id(row.to_string()), row))) }
    };
    let remove = move |row: &u32| call(Arc::clone(&removing), *row, |table, row| table.removed.push(row));
    let give_back = move |row: &u32, _: NackReason| {
        call(Arc::clone(&giving), *row, |table, row| table.waiting.push_front(row))
    };
    let source = PolledSource::new("table", fetch, remove, give_back)
        .with_clock(clock.clone())
        .with_bound(Duration::from_secs(5))
        .with_idle(Duration::from_secs(1));
    (table, source)
}

async fn call(table: Shared, row: u32, answer: fn(&mut Table, u32)) -> io::Result<()> {
    let how = table.lock().unwrap().script.pop_front().unwrap_or(Call::Works);
    match how {
        Call::Fails => return Err(io::Error::other("the storage is down")),
        Call::Hangs => pending::<()>().await,
        Call::Works => {}
    }
    let mut table = table.lock().unwrap();
    // Given back twice, or after it was removed: nothing to do.
    if table.claimed.remove(&row) {
        answer(&mut table, row);
    }
    Ok(())
}

async fn next(source: &PolledSource<u32>) -> Delivery<PolledReceipt> {
    source.receive(&CancellationToken::new()).await.unwrap().unwrap()
}

#[tokio::test]
async fn a_message_whose_remove_failed_comes_again() {
    let (table, source) = source(&ControlledClock::new(), &[Call::Fails]);
    let first = next(&source).await;
    assert_eq!(source.ack(first.receipt).await.unwrap_err().kind(), ErrorKind::Other);
    let again = next(&source).await;
    assert_eq!(again.message.id(), "1");
    source.ack(again.receipt).await.unwrap();
    assert_eq!(table.lock().unwrap().removed, [1]);
}

#[tokio::test]
async fn a_message_that_could_not_be_given_back_is_given_back_later() {
    let (_, source) = source(&ControlledClock::new(), &[Call::Fails, Call::Fails]);
    let first = next(&source).await;
    source.nack(first.receipt, NackReason::retry("x")).await.unwrap_err();
    assert_eq!(next(&source).await.message.id(), "2", "giving back failed again");
    assert_eq!(next(&source).await.message.id(), "1");
}

#[tokio::test]
async fn a_settle_that_is_late_or_dropped_half_way_gives_the_message_back() {
    let clock = ControlledClock::new();
    let (_, source) = source(&clock, &[Call::Hangs, Call::Hangs]);
    let (one, two) = (next(&source).await, next(&source).await);
    assert!(source.ack(one.receipt).now_or_never().is_none(), "dropped while the storage hangs");
    let late: Result<()> = {
        let (late, ()) = tokio::join!(source.ack(two.receipt), clock.advance(Duration::from_secs(5)));
        late
    };
    assert_eq!(late.unwrap_err().kind(), ErrorKind::Timeout);
    let ids = [next(&source).await.message.id().to_owned(), next(&source).await.message.id().to_owned()];
    assert_eq!(BTreeSet::from(ids), BTreeSet::from(["1".to_owned(), "2".to_owned()]));
}

#[tokio::test]
async fn close_gives_back_what_is_held_and_what_is_owed() {
    let (table, source) = source(&ControlledClock::new(), &[Call::Fails]);
    let (one, two) = (next(&source).await, next(&source).await);
    source.ack(one.receipt).await.unwrap_err();
    source.close().await.unwrap();
    assert_eq!(source.ack(two.receipt).await.unwrap_err().kind(), ErrorKind::Stale);
    let table = table.lock().unwrap();
    assert!(table.claimed.is_empty() && table.removed.is_empty(), "{table:?}");
    assert_eq!(table.waiting.len(), 2);
}

#[tokio::test]
async fn a_close_that_failed_goes_on_when_it_is_called_again() {
    let (table, source) = source(&ControlledClock::new(), &[Call::Fails]);
    let _one = next(&source).await;
    source.close().await.unwrap_err();
    source.close().await.unwrap();
    assert_eq!(table.lock().unwrap().waiting, [1, 2]);
}
