//! Deliveries that are lent for a time. Where no lease is declared, a delivery stays the receiver's, and `extend` is
//! refused as `Unsupported`.

use std::time::Instant;

use super::harness::Harness;
use super::trial::Trial;
use super::violation::Violation;
use crate::error::ErrorKind;
use crate::source::{Delivery, MessageSource, NackReason};

/// A delivery comes back when its lease ends: not before, and not much later. Where there is none, it does not come
/// back by itself.
pub async fn a_delivery_comes_back_when_its_lease_ends<H: Harness>(
    trial: &Trial<H>,
) -> Result<(), Violation> {
    let source = trial.source(2).await?;
    let (start, delivery) = lent(trial, &source).await?;
    let unit = trial.harness().delay_unit();
    let Some(lease) = trial.declared().lease else {
        trial.nothing_for(&source, unit * 4, "while a delivery without a lease is in hand").await?;
        return trial.ack(&source, delivery).await;
    };
    let delivery = trial.due(&source, "a", start, (lease, unit)).await?;
    trial.ack(&source, delivery).await
}

/// Extending begins the lease anew, so that a handler which takes longer than one lease keeps its message; it does
/// not last for ever either. Where there is none, extending is refused and changes nothing.
pub async fn extending_begins_the_lease_anew<H: Harness>(trial: &Trial<H>) -> Result<(), Violation> {
    let source = trial.source(2).await?;
    let (_, delivery) = lent(trial, &source).await?;
    let Some(lease) = trial.declared().lease else {
        return not_leased(trial, &source, delivery).await;
    };
    let mut last = trial.harness().clock().now();
    for _ in 0..3 {
        trial.nothing_for(&source, lease * 6 / 10, "within a lease that was extended").await?;
        last = trial.harness().clock().now();
        trial.done("extend within the lease", source.extend(&delivery.receipt)).await?;
    }
    let again = trial.due(&source, "a", last, (lease, trial.harness().delay_unit())).await?;
    trial.ack(&source, again).await
}

/// A delivery that was extended can be settled like any other, after more time than one lease.
pub async fn an_extended_delivery_can_be_settled<H: Harness>(trial: &Trial<H>) -> Result<(), Violation> {
    let source = trial.source(2).await?;
    let (_, delivery) = lent(trial, &source).await?;
    let Some(lease) = trial.declared().lease else {
        return not_leased(trial, &source, delivery).await;
    };
    for _ in 0..2 {
        trial.nothing_for(&source, lease * 6 / 10, "within a lease that was extended").await?;
        trial.done("extend within the lease", source.extend(&delivery.receipt)).await?;
    }
    trial.ack(&source, delivery).await?;
    trial.nothing_for(&source, lease + trial.harness().delay_unit(), "after the ack").await
}

/// Once the lease is over, ack, nack and extend are `Stale`, and do nothing to the delivery that was made instead.
pub async fn settling_after_the_lease_is_stale<H: Harness>(trial: &Trial<H>) -> Result<(), Violation> {
    let source = trial.source(2).await?;
    let unit = trial.harness().delay_unit();
    for settlement in [None, Some(NackReason::retry("late")), Some(NackReason::requeue_now("late"))] {
        let (start, old) = lent(trial, &source).await?;
        let Some(lease) = trial.declared().lease else {
            return not_leased(trial, &source, old).await;
        };
        let new = trial.due(&source, "a", start, (lease, unit)).await?;
        let stale = [ErrorKind::Stale];
        trial.refused("an extend after the lease", &stale, source.extend(&old.receipt)).await?;
        match settlement {
            None => trial.refused("an ack after the lease", &stale, source.ack(old.receipt)).await?,
            Some(reason) => {
                let what = format!("a nack ({reason}) after the lease");
                trial.refused(&what, &stale, source.nack(old.receipt, reason)).await?;
            }
        }
        trial.nothing(&source, "while the new delivery is in hand").await?;
        trial.ack(&source, new).await?;
    }
    Ok(())
}

/// Publishes `a` and receives it; with when, at the latest, the lease had not begun.
async fn lent<H: Harness, S: MessageSource>(
    trial: &Trial<H>,
    source: &S,
) -> Result<(Instant, Delivery<S::Receipt>), Violation> {
    let start = trial.harness().clock().now();
    trial.publish(&["a"]).await?;
    Ok((start, trial.next(source, "a", "after it was published").await?))
}

async fn not_leased<H: Harness, S: MessageSource>(
    trial: &Trial<H>,
    source: &S,
    delivery: Delivery<S::Receipt>,
) -> Result<(), Violation> {
    let kinds = [ErrorKind::Unsupported];
    trial.refused("an extend where nothing is leased", &kinds, source.extend(&delivery.receipt)).await?;
    trial.ack(source, delivery).await
}
