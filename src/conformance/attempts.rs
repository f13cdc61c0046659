//! Which of the ways in which a message comes back count as an attempt: a counted retry, and nothing else.

use super::harness::Harness;
use super::trial::Trial;
use super::violation::Violation;
use crate::source::{Delivery, MessageSource, NackReason};

/// Each counted retry adds one. Where attempts are not declared, every delivery is attempt 1.
pub async fn a_counted_retry_adds_one_to_the_attempt<H: Harness>(trial: &Trial<H>) -> Result<(), Violation> {
    let source = trial.source(1).await?;
    trial.publish(&["a"]).await?;
    let mut delivery = trial.next(&source, "a", "after it was published").await?;
    for attempt in 2..=5 {
        trial.nack(&source, delivery, NackReason::retry("handler_error")).await?;
        delivery = trial.next(&source, "a", "after a counted retry").await?;
        is_attempt(trial, &delivery, attempt, "after a counted retry")?;
    }
    trial.ack(&source, delivery).await
}

/// A counted retry with a delay adds one like any other.
pub async fn a_delayed_retry_adds_one_to_the_attempt<H: Harness>(trial: &Trial<H>) -> Result<(), Violation> {
    let source = trial.source(1).await?;
    let delivery = second_attempt(trial, &source).await?;
    let (unit, start) = (trial.harness().delay_unit(), trial.harness().clock().now());
    trial.nack(&source, delivery, NackReason::retry_after(unit, "handler_error")).await?;
    let delivery = if trial.declared().delayed_retry {
        trial.due(&source, "a", start, (unit, unit)).await?
    } else {
        trial.next(&source, "a", "at once: delays are not declared").await?
    };
    is_attempt(trial, &delivery, 3, "after two counted retries")
}

/// A retry that says that it does not count adds nothing.
pub async fn an_uncounted_retry_keeps_the_attempt<H: Harness>(trial: &Trial<H>) -> Result<(), Violation> {
    let source = trial.source(1).await?;
    let delivery = second_attempt(trial, &source).await?;
    let reason = NackReason::Retry { delay: None, counted: false, cause: "circuit_open".into() };
    trial.nack(&source, delivery, reason).await?;
    kept(trial, &source, "after a retry that does not count").await
}

/// A requeue adds nothing.
pub async fn a_requeue_keeps_the_attempt<H: Harness>(trial: &Trial<H>) -> Result<(), Violation> {
    let source = trial.source(1).await?;
    let delivery = second_attempt(trial, &source).await?;
    trial.nack(&source, delivery, NackReason::requeue_now("queue_full")).await?;
    kept(trial, &source, "after a requeue").await
}

/// A delivery that was dropped without an answer, and came back as its source was closed, is no attempt.
pub async fn closing_the_source_keeps_the_attempt<H: Harness>(trial: &Trial<H>) -> Result<(), Violation> {
    let source = trial.source(1).await?;
    drop(second_attempt(trial, &source).await?);
    trial.close(&source).await?;
    kept(trial, &trial.source(1).await?, "after its source was closed").await
}

/// A delivery that came back as its source was dropped is no attempt.
pub async fn dropping_the_source_keeps_the_attempt<H: Harness>(trial: &Trial<H>) -> Result<(), Violation> {
    let source = trial.source(1).await?;
    let delivery = second_attempt(trial, &source).await?;
    drop(source);
    let source = trial.source(1).await?;
    kept(trial, &source, "after its source was dropped").await?;
    // Only now: a receipt that keeps its source alive must not keep the message from coming back.
    drop(delivery);
    Ok(())
}

/// A delivery that came back as the connection was cut is no attempt.
pub async fn a_cut_keeps_the_attempt<H: Harness>(trial: &Trial<H>) -> Result<(), Violation> {
    let source = trial.source(1).await?;
    let delivery = second_attempt(trial, &source).await?;
    if !trial.cut().await? {
        trial.nothing(&source, "without a connection to cut").await?;
        return trial.ack(&source, delivery).await;
    }
    let delivery = trial.next_after_cut(&source, "a", "again after the cut").await?;
    is_attempt(trial, &delivery, 2, "after a cut")
}

/// A delivery that came back as its lease ended is no attempt.
pub async fn an_expired_lease_keeps_the_attempt<H: Harness>(trial: &Trial<H>) -> Result<(), Violation> {
    let source = trial.source(1).await?;
    let start = trial.harness().clock().now();
    let delivery = second_attempt(trial, &source).await?;
    let unit = trial.harness().delay_unit();
    let Some(lease) = trial.declared().lease else {
        trial.nothing_for(&source, unit * 4, "while a delivery without a lease is in hand").await?;
        return trial.ack(&source, delivery).await;
    };
    let delivery = trial.due(&source, "a", start, (lease, unit)).await?;
    is_attempt(trial, &delivery, 2, "after its lease ended")
}

/// What was buffered and handed back is no attempt.
pub async fn a_release_keeps_the_attempt<H: Harness>(trial: &Trial<H>) -> Result<(), Violation> {
    let source = trial.source(1).await?;
    let delivery = second_attempt(trial, &source).await?;
    trial.nack(&source, delivery, NackReason::requeue_now("queue_full")).await?;
    trial.close(&source).await?;
    let source = trial.source(4).await?;
    trial.publish(&["b"]).await?;
    // Two are there: the one that is not received is in the buffer, where there is one.
    let first = trial.any(&source, "after it was put back").await?;
    trial.done("release", source.release()).await?;
    let other = trial.source(1).await?;
    let second = trial.any(&other, "from another source after the release").await?;
    for delivery in [&first.message, &second.message] {
        let attempt = if delivery.id() == "a" { counted(trial, 2) } else { 1 };
        trial.expect(
            delivery.attempt() == attempt,
            format!("attempt {attempt} of `{}`", delivery.id()),
            || format!("{}", delivery.attempt()),
        )?;
    }
    Ok(())
}

/// Attempt `attempt`, or 1 where attempts are not counted.
pub(super) fn counted<H: Harness>(trial: &Trial<H>, attempt: u32) -> u32 {
    if trial.declared().counts_attempts { attempt } else { 1 }
}

/// Publishes `a` and receives it as its second attempt.
pub(super) async fn second_attempt<H: Harness, S: MessageSource>(
    trial: &Trial<H>,
    source: &S,
) -> Result<Delivery<S::Receipt>, Violation> {
    trial.publish(&["a"]).await?;
    let delivery = trial.next(source, "a", "after it was published").await?;
    trial.nack(source, delivery, NackReason::retry("handler_error")).await?;
    let delivery = trial.next(source, "a", "after a retry").await?;
    is_attempt(trial, &delivery, 2, "after a counted retry")?;
    Ok(delivery)
}

fn is_attempt<H: Harness, R>(
    trial: &Trial<H>,
    delivery: &Delivery<R>,
    attempt: u32,
    when: &str,
) -> Result<(), Violation> {
    let (expected, seen) = (counted(trial, attempt), delivery.message.attempt());
    trial.expect(seen == expected, format!("attempt {expected} {when}"), || format!("attempt {seen}"))
}

async fn kept<H: Harness, S: MessageSource>(
    trial: &Trial<H>,
    source: &S,
    when: &str,
) -> Result<(), Violation> {
    let delivery = trial.next(source, "a", when).await?;
    is_attempt(trial, &delivery, 2, when)?;
    trial.ack(source, delivery).await
}
