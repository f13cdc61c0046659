//! `release` hands back what is buffered, so that others get it while this source rests.

use super::harness::Harness;
use super::trial::Trial;
use super::violation::Violation;
use crate::source::MessageSource;

/// What was buffered and not received goes to another source at once. What was received stays, and can be settled.
pub async fn release_hands_back_what_was_buffered<H: Harness>(trial: &Trial<H>) -> Result<(), Violation> {
    let source = trial.source(4).await?;
    trial.publish(&["a", "b", "c", "d"]).await?;
    let held = trial.any(&source, "after they were published").await?;
    trial.done("release", source.release()).await?;
    let other = trial.source(4).await?;
    let rest: Vec<&str> = ["a", "b", "c", "d"].into_iter().filter(|id| *id != held.message.id()).collect();
    trial.all(&other, &rest, "from another source after the first one released them").await?;
    trial.nothing(&other, "besides what was released").await?;
    trial.ack(&source, held).await
}

/// A delivery that was received before a release is settled as if there had been none.
pub async fn release_leaves_received_deliveries_alone<H: Harness>(trial: &Trial<H>) -> Result<(), Violation> {
    let source = trial.source(4).await?;
    trial.publish(&["a"]).await?;
    let held = trial.next(&source, "a", "after it was published").await?;
    trial.done("release", source.release()).await?;
    trial.nothing(&source, "after a release, while `a` is in hand").await?;
    let other = trial.source(1).await?;
    trial.nothing(&other, "from another source after a release, while `a` is in hand").await?;
    trial.ack(&source, held).await?;
    trial.close(&source).await?;
    trial.nothing(&other, "after the ack").await
}

/// After a release the next `receive` pulls again: what was handed back, and what is published later.
pub async fn a_receive_after_release_pulls_again<H: Harness>(trial: &Trial<H>) -> Result<(), Violation> {
    let source = trial.source(4).await?;
    trial.publish(&["a", "b", "c"]).await?;
    let first = trial.any(&source, "after they were published").await?;
    let rest: Vec<&str> = ["a", "b", "c"].into_iter().filter(|id| *id != first.message.id()).collect();
    trial.done("release", source.release()).await?;
    for delivery in trial.all(&source, &rest, "again from the source that released them").await? {
        trial.ack(&source, delivery).await?;
    }
    trial.ack(&source, first).await?;
    trial.done("release", source.release()).await?;
    trial.publish(&["d"]).await?;
    let delivery = trial.next(&source, "d", "from a source that released").await?;
    trial.ack(&source, delivery).await
}

/// Releasing with nothing buffered does nothing, at first use or later, any number of times.
pub async fn a_release_with_nothing_buffered_is_harmless<H: Harness>(
    trial: &Trial<H>,
) -> Result<(), Violation> {
    let source = trial.source(4).await?;
    for id in ["a", "b"] {
        for _ in 0..2 {
            trial.done("release with nothing buffered", source.release()).await?;
        }
        trial.publish(&[id]).await?;
        let delivery = trial.next(&source, id, "after a release").await?;
        trial.ack(&source, delivery).await?;
    }
    trial.nothing(&source, "after all was acked").await
}
