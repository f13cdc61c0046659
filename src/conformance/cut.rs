//! Connections that are cut. Where there is none to cut, a delivery stays the receiver's, and its receipt good.

use std::pin::pin;

use tokio_util::sync::CancellationToken;

use super::harness::Harness;
use super::trial::Trial;
use super::violation::Violation;
use super::waiting::{polled, received};
use crate::error::ErrorKind;
use crate::source::{Delivery, MessageSource, NackReason};

/// What was delivered over a connection and not settled comes again, all of it, once the connection is cut.
pub async fn a_cut_brings_back_what_was_not_settled<H: Harness>(trial: &Trial<H>) -> Result<(), Violation> {
    let source = trial.source(4).await?;
    let ids = ["a", "b", "c", "d"];
    trial.publish(&ids).await?;
    // `c` and `d` are in the buffer, where there is one.
    let (a, b) = (trial.any(&source, "first").await?, trial.any(&source, "second").await?);
    let settled = a.message.id().to_owned();
    trial.ack(&source, a).await?;
    if !trial.cut().await? {
        trial.ack(&source, b).await?;
        return trial.any(&source, "after nothing was cut").await.map(drop);
    }
    // Those that are to come, in whatever order; what was acked before the cut may not be among them.
    let mut left: Vec<&str> = ids.into_iter().filter(|id| *id != settled).collect();
    while !left.is_empty() {
        let delivery = trial.after_cut(&source, "again after the cut").await?;
        let seen = delivery.message.id().to_owned();
        trial.expect(left.contains(&seen.as_str()), format!("one of {left:?}"), || format!("`{seen}`"))?;
        left.retain(|id| *id != seen);
        trial.ack(&source, delivery).await?;
    }
    trial.nothing(&source, "after all was acked").await
}

/// An ack with a receipt from before a cut is `Stale`, and acks nothing: neither the delivery that was made instead,
/// even if the broker numbers it alike, nor another one.
pub async fn an_ack_after_a_cut_is_stale_and_acks_nothing<H: Harness>(
    trial: &Trial<H>,
) -> Result<(), Violation> {
    let source = trial.source(2).await?;
    let Some((old, new)) = delivered_twice(trial, &source, "a").await? else { return Ok(()) };
    let kinds = [ErrorKind::Stale];
    trial.refused("an ack with a receipt from before the cut", &kinds, source.ack(old.receipt)).await?;
    drop(new);
    trial.close(&source).await?;
    let source = trial.source(1).await?;
    trial.next(&source, "a", "again from a new source: the stale ack acked nothing").await.map(drop)
}

/// A nack with a receipt from before a cut is `Stale`, whatever the reason, and does nothing: the message is neither
/// put back nor given up once more.
pub async fn a_nack_after_a_cut_is_stale_and_does_nothing<H: Harness>(
    trial: &Trial<H>,
) -> Result<(), Violation> {
    let source = trial.source(2).await?;
    let mut reasons = vec![NackReason::retry("late"), NackReason::requeue_now("late")];
    if trial.declared().dead_letter {
        reasons.push(NackReason::dead_letter("late"));
    }
    for reason in reasons {
        let Some((old, new)) = delivered_twice(trial, &source, "a").await? else { return Ok(()) };
        let what = format!("a nack ({reason}) with a receipt from before the cut");
        trial.refused(&what, &[ErrorKind::Stale], source.nack(old.receipt, reason)).await?;
        trial.nothing(&source, "after a stale nack").await?;
        trial.ack(&source, new).await?;
    }
    if trial.declared().dead_letter {
        trial.dead_letters(0).await?;
    }
    Ok(())
}

/// An extend with a receipt from before a cut is `Stale`; `Unsupported` where nothing is leased.
pub async fn an_extend_after_a_cut_is_stale<H: Harness>(trial: &Trial<H>) -> Result<(), Violation> {
    let source = trial.source(2).await?;
    let Some((old, new)) = delivered_twice(trial, &source, "a").await? else { return Ok(()) };
    let kind = if trial.declared().lease.is_some() { ErrorKind::Stale } else { ErrorKind::Unsupported };
    trial
        .refused("an extend with a receipt from before the cut", &[kind], source.extend(&old.receipt))
        .await?;
    trial.ack(&source, new).await
}

/// A source whose connection was cut, while it waited or not, goes on: what is published afterwards is received.
pub async fn a_source_goes_on_after_a_cut<H: Harness>(trial: &Trial<H>) -> Result<(), Violation> {
    let source = trial.source(1).await?;
    let cancel = CancellationToken::new();
    {
        let mut waiting = pin!(received(&source, &cancel));
        let early = polled(waiting.as_mut(), 10).await;
        trial
            .expect(early.is_none(), "receive to wait on an empty queue", || "that it did not".to_owned())?;
        trial.cut().await?;
        trial.publish(&["a"]).await?;
        // It may fail, but only so that calling it again helps.
        match trial.bounded("a receive that waits to notice the cut, or to go on", waiting).await? {
            Ok(delivery) => trial.ack(&source, delivery).await?,
            Err(error) if error.is_transient() => {
                let delivery = trial.next_after_cut(&source, "a", "after the cut").await?;
                trial.ack(&source, delivery).await?;
            }
            Err(error) => {
                return Err(
                    trial.violation("an error that says that trying again can help", error.to_string())
                );
            }
        }
    }
    for id in ["b", "c"] {
        trial.cut().await?;
        trial.publish(&[id]).await?;
        let delivery = trial.next_after_cut(&source, id, "after another cut").await?;
        trial.ack(&source, delivery).await?;
    }
    trial.expect(source.health().is_ready(), "the health Ready", || format!("{:?}", source.health()))
}

/// Receives `id`, cuts, and receives it again: the source has noticed the cut by then. `None` where there is nothing
/// to cut, and then the receipt was still good.
async fn delivered_twice<H: Harness, S: MessageSource>(
    trial: &Trial<H>,
    source: &S,
    id: &str,
) -> Result<Option<(Delivery<S::Receipt>, Delivery<S::Receipt>)>, Violation> {
    trial.publish(&[id]).await?;
    let old = trial.next(source, id, "after it was published").await?;
    if trial.cut().await? {
        let new = trial.next_after_cut(source, id, "again after the cut").await?;
        return Ok(Some((old, new)));
    }
    trial.nothing(source, "while the delivery is in hand, and there is no connection to cut").await?;
    trial.ack(source, old).await?;
    Ok(None)
}
