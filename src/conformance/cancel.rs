//! `receive` ends when it is told to, and loses nothing by it.

use std::collections::BTreeMap;
use std::pin::pin;

use tokio_util::sync::CancellationToken;

use super::harness::Harness;
use super::trial::Trial;
use super::violation::Violation;
use super::waiting::{polled, received, woken};
use crate::error::{Chain, Result as SourceResult};
use crate::source::{Delivery, MessageSource};

/// A `receive` whose token has fired returns nothing, and takes nothing: the message goes to the next one.
pub async fn a_receive_that_is_cancelled_already_takes_nothing<H: Harness>(
    trial: &Trial<H>,
) -> Result<(), Violation> {
    let source = trial.source(1).await?;
    trial.publish(&["a"]).await?;
    let cancel = CancellationToken::new();
    cancel.cancel();
    for _ in 0..3 {
        let received = trial.done("a receive whose token has fired", source.receive(&cancel)).await?;
        trial.expect(received.is_none(), "Ok(None) from a receive whose token has fired", || {
            "`a`".to_owned()
        })?;
    }
    let delivery = trial.next(&source, "a", "by a receive whose token has not fired").await?;
    let attempt = delivery.message.attempt();
    trial.expect(attempt == 1, "attempt 1", || format!("attempt {attempt}"))?;
    trial.ack(&source, delivery).await?;
    trial.nothing(&source, "after the ack").await
}

/// A `receive` that waits returns `Ok(None)` promptly when its token fires.
pub async fn a_waiting_receive_returns_when_it_is_cancelled<H: Harness>(
    trial: &Trial<H>,
) -> Result<(), Violation> {
    let source = trial.source(1).await?;
    for polls in 0..10 {
        let cancel = CancellationToken::new();
        let mut waiting = pin!(source.receive(&cancel));
        if polled(waiting.as_mut(), polls).await.is_some() {
            // Its own idle time was over first.
            continue;
        }
        cancel.cancel();
        let received = trial.done("a receive that was cancelled", waiting).await?;
        trial.expect(received.is_none(), "Ok(None) from an empty queue", || "a message".to_owned())?;
    }
    Ok(())
}

/// Cancelling one `receive` while a message comes leaves the others: if the cancelled one does not return the message,
/// one that waits beside it does.
pub async fn cancelling_one_receive_leaves_the_others<H: Harness>(trial: &Trial<H>) -> Result<(), Violation> {
    let source = trial.source(2).await?;
    for round in 0..12 {
        let id = format!("m{round}");
        let (cancel, never) = (CancellationToken::new(), CancellationToken::new());
        let mut one = pin!(source.receive(&cancel));
        let mut other = pin!(received(&source, &never));
        if polled(one.as_mut(), 1 + round % 4).await.is_some() {
            // Its own idle time was over first.
            continue;
        }
        let early = polled(other.as_mut(), 1).await;
        trial
            .expect(early.is_none(), "receive to wait on an empty queue", || "that it did not".to_owned())?;
        if round % 2 == 0 {
            cancel.cancel();
            trial.publish(&[&id]).await?;
        } else {
            trial.publish(&[&id]).await?;
            cancel.cancel();
        }
        let delivery = match trial.done("a receive that was cancelled", one).await? {
            Some(delivery) => delivery,
            None => trial.done("a receive beside one that was cancelled", other).await?,
        };
        let seen = delivery.message.id() == id;
        trial.expect(seen, format!("`{id}` to be received"), || format!("`{}`", delivery.message.id()))?;
        trial.ack(&source, delivery).await?;
    }
    Ok(())
}

/// A `receive` that is dropped, at whichever await it stands, loses no message: each is received once in the end.
pub async fn a_dropped_receive_loses_no_message<H: Harness>(trial: &Trial<H>) -> Result<(), Violation> {
    interrupted(trial, Interrupt::Drop).await
}

/// A `receive` that is cancelled while a message comes either returns it or leaves it: each is received once in the
/// end.
pub async fn a_cancelled_receive_loses_no_message<H: Harness>(trial: &Trial<H>) -> Result<(), Violation> {
    interrupted(trial, Interrupt::Cancel).await
}

#[derive(Clone, Copy)]
enum Interrupt {
    Drop,
    Cancel,
}

/// How far the interrupted receives get, at most, before the message comes and after it.
const MOST_POLLS: (usize, usize) = (4, 6);

/// Interrupts a receive in as many states as polling it by hand can reach, while messages come, then counts them.
async fn interrupted<H: Harness>(trial: &Trial<H>, interrupt: Interrupt) -> Result<(), Violation> {
    let source = trial.source(2).await?;
    let mut seen = BTreeMap::new();
    for round in 0..MOST_POLLS.0 * MOST_POLLS.1 * 2 {
        let id = format!("m{round}");
        seen.insert(id.clone(), 0_u32);
        let polls = (round % MOST_POLLS.0, 1 + round / MOST_POLLS.0 % MOST_POLLS.1);
        let got = one_round(trial, &source, &id, polls, interrupt).await?;
        note(trial, &source, &mut seen, got).await?;
    }
    while seen.values().any(|times| *times == 0) {
        let lost: Vec<&String> = seen.iter().filter(|(_, times)| **times == 0).map(|(id, _)| id).collect();
        let when = format!("in the end; still to come are {lost:?}");
        let delivery = trial.any(&source, &when).await?;
        note(trial, &source, &mut seen, vec![Ok(Some(delivery))]).await?;
    }
    trial.nothing(&source, "once each message was received and acked").await
}

type Received<S> = SourceResult<Option<Delivery<<S as MessageSource>::Receipt>>>;

async fn one_round<H: Harness, S: MessageSource>(
    trial: &Trial<H>,
    source: &S,
    id: &str,
    (before, after): (usize, usize),
    interrupt: Interrupt,
) -> Result<Vec<Received<S>>, Violation> {
    let cancel = CancellationToken::new();
    let mut receive = pin!(source.receive(&cancel));
    if let Some(received) = polled(receive.as_mut(), before).await {
        trial.publish(&[id]).await?;
        return Ok(vec![received]);
    }
    trial.publish(&[id]).await?;
    let expected = format!("a receive that waits to be woken by `{id}`, which was published");
    let received = trial.bounded(&expected, woken(receive.as_mut(), after)).await?;
    match (received, interrupt) {
        (Some(received), _) => Ok(vec![received]),
        (None, Interrupt::Drop) => Ok(Vec::new()),
        (None, Interrupt::Cancel) => {
            cancel.cancel();
            Ok(vec![trial.bounded("a receive that was cancelled to return", receive).await?])
        }
    }
}

/// Counts what was received, which must not have come before, and acks it.
async fn note<H: Harness, S: MessageSource>(
    trial: &Trial<H>,
    source: &S,
    seen: &mut BTreeMap<String, u32>,
    received: Vec<Received<S>>,
) -> Result<(), Violation> {
    for received in received {
        let delivery = received.map_err(|error| {
            trial.violation("a message, or nothing", format!("an error of receive: `{}`", Chain(&error)))
        })?;
        let Some(delivery) = delivery else { continue };
        let id = delivery.message.id().to_owned();
        let times = seen.entry(id.clone()).or_default();
        *times += 1;
        trial
            .expect(*times == 1, format!("`{id}` to be received once"), || "that it came twice".to_owned())?;
        trial.ack(source, delivery).await?;
    }
    Ok(())
}
