//! How messages are handed out: once each, in order, and with what the broker knows of them.

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::{Either, select};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::harness::Harness;
use super::trial::Trial;
use super::violation::Violation;
use super::waiting::{polled, received};
use crate::error::{Chain, Result as SourceResult};
use crate::message::Message;
use crate::source::MessageSource;

/// A source claims what its author declared: no more, no less.
pub async fn the_capabilities_are_those_declared<H: Harness>(trial: &Trial<H>) -> Result<(), Violation> {
    let (declared, claimed) = (trial.declared(), trial.source(1).await?.capabilities());
    trial.expect(claimed == declared, format!("{declared:?}"), || format!("{claimed:?}"))
}

/// The queue has a name, for events and metrics, and every source of it says the same.
pub async fn the_queue_has_a_name<H: Harness>(trial: &Trial<H>) -> Result<(), Violation> {
    let (one, two) = (trial.source(1).await?, trial.source(1).await?);
    trial.expect(!one.queue_name().is_empty(), "the name of the queue", || "an empty one".to_owned())?;
    trial.expect(one.queue_name() == two.queue_name(), format!("the name `{}`", one.queue_name()), || {
        format!("`{}` from another source of the same queue", two.queue_name())
    })
}

/// Nothing comes from an empty queue: neither a message nor an error.
pub async fn an_empty_queue_delivers_nothing<H: Harness>(trial: &Trial<H>) -> Result<(), Violation> {
    let source = trial.source(1).await?;
    trial.nothing(&source, "from an empty queue").await
}

/// A first delivery is attempt 1, is not flagged as delivered before, and is counted as the first where the broker
/// counts.
pub async fn a_first_delivery_is_the_first_attempt<H: Harness>(trial: &Trial<H>) -> Result<(), Violation> {
    let source = trial.source(1).await?;
    trial.publish(&["a"]).await?;
    let message = trial.next(&source, "a", "after it was published").await?.message;
    let seen = (message.attempt(), message.redelivered(), message.delivery_count());
    let count = trial.declared().counts_deliveries.then_some(1);
    trial.expect(
        seen == (1, false, count),
        format!("attempt 1, redelivered false, delivery count {count:?}"),
        || format!("attempt {}, redelivered {}, delivery count {:?}", seen.0, seen.1, seen.2),
    )
}

/// What is published is what was sent: a message that was received, and is sent onward, begins anew.
pub async fn how_a_message_came_is_not_sent_on<H: Harness>(trial: &Trial<H>) -> Result<(), Violation> {
    let source = trial.source(1).await?;
    let came =
        Message::new("a").with_id("a").with_attempt(5).with_redelivered(true).with_delivery_count(Some(9));
    trial.send(came).await?;
    let message = trial.next(&source, "a", "after it was published").await?.message;
    let seen = (message.attempt(), message.redelivered(), message.delivery_count().unwrap_or(1));
    trial.expect(
        seen == (1, false, 1),
        "attempt 1, redelivered false, delivery count 1 or none, of a message published with others",
        || format!("attempt {}, redelivered {}, delivery count {}", seen.0, seen.1, seen.2),
    )
}

/// `received_at` lies between the publishing and the return of `receive`, by the wall clock.
pub async fn the_time_of_receipt_is_when_it_was_received<H: Harness>(
    trial: &Trial<H>,
) -> Result<(), Violation> {
    let second = Duration::from_secs(1);
    let source = trial.source(1).await?;
    // Away from the time at which the harness began: a source that keeps that is found out.
    trial.harness().pass(second * 2).await;
    let before = trial.harness().clock().wall();
    trial.publish(&["a"]).await?;
    let delivery = trial.next(&source, "a", "after it was published").await?;
    let (at, after) = (delivery.message.received_at(), trial.harness().clock().wall());
    trial.expect(
        before - second <= at && at <= after + second,
        format!("a time of receipt from {before:?} to {after:?}, to the second"),
        || format!("{at:?}"),
    )
}

/// A `receive` that waits is woken by what is published then.
pub async fn a_waiting_receive_gets_what_is_published_later<H: Harness>(
    trial: &Trial<H>,
) -> Result<(), Violation> {
    let source = trial.source(1).await?;
    let cancel = CancellationToken::new();
    let mut waiting = pin!(received(&source, &cancel));
    let early = polled(waiting.as_mut(), 10).await;
    trial.expect(early.is_none(), "receive to wait on an empty queue", || "that it did not".to_owned())?;
    trial.publish(&["a"]).await?;
    let delivery = trial.done("a receive that waits", waiting).await?;
    let id = delivery.message.id();
    trial.expect(id == "a", "`a` to be received", || format!("`{id}`"))
}

/// To one receiver that settles each message before it asks for the next, messages come in the order in which they
/// were published.
pub async fn messages_come_in_the_order_of_publishing<H: Harness>(trial: &Trial<H>) -> Result<(), Violation> {
    let source = trial.source(4).await?;
    let ids: Vec<String> = (0..20).map(|index| format!("m{index}")).collect();
    trial.publish(&ids.iter().map(String::as_str).collect::<Vec<_>>()).await?;
    for id in &ids {
        let delivery = trial.next(&source, id, "in the order of publishing").await?;
        trial.ack(&source, delivery).await?;
    }
    Ok(())
}

/// What one receiver has in hand is given to nobody else, through the same source or another.
pub async fn a_message_in_hand_is_given_to_nobody_else<H: Harness>(
    trial: &Trial<H>,
) -> Result<(), Violation> {
    let (source, other) = (trial.source(2).await?, trial.source(1).await?);
    trial.publish(&["a"]).await?;
    // Whichever source took it: a push-based broker may have given it to the other one.
    let cancel = CancellationToken::new();
    let (holder, delivery) = {
        let (here, there) = (pin!(received(&source, &cancel)), pin!(received(&other, &cancel)));
        match trial.bounded("`a` to be received", select(here, there)).await? {
            Either::Left((delivery, _)) => (&source, delivery),
            Either::Right((delivery, _)) => (&other, delivery),
        }
    };
    let delivery = trial.done("receive", async { delivery }).await?;
    trial.nothing(&source, "while `a` is in hand").await?;
    trial.nothing(&other, "from another source while `a` is in hand").await?;
    trial.ack(holder, delivery).await
}

/// Eight tasks that receive from one source get each of 200 messages once between them.
pub async fn concurrent_receivers_get_each_message_once<H: Harness>(
    trial: &Trial<H>,
) -> Result<(), Violation> {
    share(trial, 1, 8, 200).await
}

/// Two sources on one queue get each message once between them.
pub async fn two_sources_get_each_message_once_between_them<H: Harness>(
    trial: &Trial<H>,
) -> Result<(), Violation> {
    share(trial, 2, 2, 40).await
}

async fn share<H: Harness>(
    trial: &Trial<H>,
    sources: usize,
    receivers: usize,
    count: usize,
) -> Result<(), Violation> {
    let ids: Vec<String> = (0..count).map(|index| format!("m{index:03}")).collect();
    trial.publish(&ids.iter().map(String::as_str).collect::<Vec<_>>()).await?;
    let ledger = Arc::new(Ledger { seen: Mutex::default(), count, all: CancellationToken::new() });
    let mut tasks = JoinSet::new();
    let mut opened = Vec::new();
    for _ in 0..sources {
        let source = Arc::new(trial.source(receivers).await?);
        for _ in 0..receivers {
            tasks.spawn(work(Arc::clone(&source), Arc::clone(&ledger)));
        }
        opened.push(source);
    }
    let expected = format!("{count} messages to be received by {} receivers, each once", sources * receivers);
    let worked = trial.bounded(&expected, tasks.join_all()).await;
    let mut seen = ledger.seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let Ok(worked) = worked else {
        return Err(trial.violation(expected, format!("{} of them", seen.len())));
    };
    for done in worked {
        done.map_err(|error| trial.violation(expected.clone(), format!("the error `{}`", Chain(&error))))?;
    }
    seen.sort();
    let times = |id: &String| seen.iter().filter(|seen| *seen == id).count();
    if let Some(id) = ids.iter().find(|id| times(id) != 1) {
        return Err(trial.violation(expected, format!("`{id}` {} times", times(id))));
    }
    for source in &opened {
        trial.nothing(&**source, "once each message was received and acked").await?;
    }
    Ok(())
}

/// What several receivers got.
struct Ledger {
    seen: Mutex<Vec<String>>,
    count: usize,
    /// Fires when as many were received as there are.
    all: CancellationToken,
}

async fn work<S: MessageSource>(source: Arc<S>, ledger: Arc<Ledger>) -> SourceResult<()> {
    while !ledger.all.is_cancelled() {
        if let Some(delivery) = source.receive(&ledger.all).await? {
            let enough = {
                let mut seen = ledger.seen.lock().unwrap_or_else(PoisonError::into_inner);
                seen.push(delivery.message.id().to_owned());
                seen.len() >= ledger.count
            };
            source.ack(delivery.receipt).await?;
            if enough {
                ledger.all.cancel();
            }
        }
        tokio::task::yield_now().await;
    }
    Ok(())
}
