//! A source behind `DynSource` or `Arc` is the same source: each operation arrives at the source within.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::attempts::counted;
use super::harness::Harness;
use super::trial::Trial;
use super::violation::Violation;
use crate::error::ErrorKind;
use crate::source::{DynSource, Health, MessageSource, NackReason};

/// Every operation through a [`DynSource`] does what it does without.
pub async fn an_erased_source_behaves_the_same<H: Harness>(trial: &Trial<H>) -> Result<(), Violation> {
    same(trial, DynSource::new(trial.source(4).await?), DynSource::new(trial.source(1).await?)).await
}

/// Every operation through an `Arc` does what it does without.
pub async fn a_shared_source_behaves_the_same<H: Harness>(trial: &Trial<H>) -> Result<(), Violation> {
    same(trial, Arc::new(trial.source(4).await?), Arc::new(trial.source(1).await?)).await
}

async fn same<H: Harness, S: MessageSource>(trial: &Trial<H>, source: S, other: S) -> Result<(), Violation> {
    let bare = trial.source(1).await?;
    let (names, claims) =
        ((bare.queue_name(), source.queue_name()), (bare.capabilities(), source.capabilities()));
    trial.expect(names.0 == names.1, format!("the name `{}`", names.0), || format!("`{}`", names.1))?;
    trial.expect(claims.0 == claims.1, format!("{:?}", claims.0), || format!("{:?}", claims.1))?;
    trial.close(&bare).await?;

    trial.publish(&["a"]).await?;
    let delivery = trial.next(&source, "a", "after it was published").await?;
    if trial.declared().lease.is_some() {
        trial.done("extend", source.extend(&delivery.receipt)).await?;
    } else {
        let kinds = [ErrorKind::Unsupported];
        trial.refused("an extend where nothing is leased", &kinds, source.extend(&delivery.receipt)).await?;
    }
    trial.nack(&source, delivery, NackReason::retry("handler_error")).await?;
    let delivery = trial.next(&source, "a", "after a retry").await?;
    let (attempt, expected) = (delivery.message.attempt(), counted(trial, 2));
    trial.expect(attempt == expected, format!("attempt {expected}"), || format!("attempt {attempt}"))?;
    trial.ack(&source, delivery).await?;

    trial.publish(&["b", "c"]).await?;
    let held = trial.any(&source, "after two were published").await?;
    trial.done("release", source.release()).await?;
    let rest = trial.any(&other, "from the other source after a release").await?;
    trial.ack(&other, rest).await?;
    let id = held.message.id().to_owned();
    trial.close(&source).await?;
    trial.expect(source.health() == Health::Closed, "the health Closed", || {
        format!("{:?}", source.health())
    })?;
    let cancel = CancellationToken::new();
    trial.refused("a receive after close", &[ErrorKind::Closed], source.receive(&cancel)).await?;
    let again = trial.next(&other, &id, "from the other source after close").await?;
    trial.ack(&other, again).await?;
    trial.nothing(&other, "after all was acked").await
}
