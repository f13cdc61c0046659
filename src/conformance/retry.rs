//! When a retried message comes again, and as what.

use std::time::Duration;

use super::content::{full, same_content};
use super::harness::Harness;
use super::trial::Trial;
use super::violation::Violation;
use crate::source::{Delivery, MessageSource, NackReason};

/// A retry without a delay, or with a delay of zero, comes again without any time passing.
pub async fn a_retry_without_a_delay_comes_back_at_once<H: Harness>(
    trial: &Trial<H>,
) -> Result<(), Violation> {
    let source = trial.source(1).await?;
    trial.publish(&["a"]).await?;
    let delivery = trial.next(&source, "a", "after it was published").await?;
    trial.nack(&source, delivery, NackReason::retry("handler_error")).await?;
    let delivery = trial.next(&source, "a", "at once after a retry without a delay").await?;
    trial.nack(&source, delivery, NackReason::retry_after(Duration::ZERO, "handler_error")).await?;
    let delivery = trial.next(&source, "a", "at once after a retry with a delay of zero").await?;
    trial.ack(&source, delivery).await?;
    trial.nothing(&source, "after the retried message was acked").await
}

/// A retry with a delay comes again when the delay is over: not before, and not much later. Where delays are not
/// declared, it comes again at once.
pub async fn a_retry_comes_back_when_its_delay_is_over<H: Harness>(
    trial: &Trial<H>,
) -> Result<(), Violation> {
    let source = trial.source(1).await?;
    trial.publish(&["a"]).await?;
    let delivery = trial.next(&source, "a", "after it was published").await?;
    let delivery = retried(trial, &source, delivery, trial.harness().delay_unit()).await?;
    trial.ack(&source, delivery).await?;
    trial.nothing(&source, "after the retried message was acked").await
}

/// Each retry of one message waits for its own delay, and so does one that does not count as an attempt.
pub async fn every_retry_of_a_message_waits_for_its_delay<H: Harness>(
    trial: &Trial<H>,
) -> Result<(), Violation> {
    let source = trial.source(1).await?;
    trial.publish(&["a"]).await?;
    let unit = trial.harness().delay_unit();
    let mut delivery = trial.next(&source, "a", "after it was published").await?;
    for _ in 0..2 {
        delivery = retried(trial, &source, delivery, unit).await?;
    }
    let start = trial.harness().clock().now();
    trial.nack(&source, delivery, NackReason::postpone(unit, "circuit_open")).await?;
    let delivery = if trial.declared().delayed_retry {
        trial.due(&source, "a", start, (unit, unit)).await?
    } else {
        trial.next(&source, "a", "at once: delays are not declared").await?
    };
    trial.ack(&source, delivery).await
}

/// A message with a long delay does not hold up one with a shorter delay that was put back after it.
pub async fn a_long_delay_does_not_hold_up_a_shorter_one<H: Harness>(
    trial: &Trial<H>,
) -> Result<(), Violation> {
    let source = trial.source(2).await?;
    let (short, long) = (trial.harness().delay_unit(), trial.harness().delay_unit() * 4);
    trial.publish(&["long", "short"]).await?;
    let mut held = trial.all(&source, &["long", "short"], "after they were published").await?.into_iter();
    let start = trial.harness().clock().now();
    for (delivery, delay) in held.by_ref().zip([long, short]) {
        trial.nack(&source, delivery, NackReason::retry_after(delay, "handler_error")).await?;
    }
    if !trial.declared().delayed_retry {
        trial.all(&source, &["long", "short"], "at once: delays are not declared").await?;
        return Ok(());
    }
    let delivery = trial.due(&source, "short", start, (short, short)).await?;
    trial.ack(&source, delivery).await?;
    let delivery = trial.due(&source, "long", start, (long, long)).await?;
    trial.ack(&source, delivery).await
}

/// A message that waits for its delay holds up none of those that wait for nothing.
pub async fn a_delayed_message_holds_up_nobody<H: Harness>(trial: &Trial<H>) -> Result<(), Violation> {
    let source = trial.source(1).await?;
    trial.publish(&["delayed"]).await?;
    let delivery = trial.next(&source, "delayed", "after it was published").await?;
    let delay = trial.harness().delay_unit();
    trial.nack(&source, delivery, NackReason::retry_after(delay, "handler_error")).await?;
    trial.publish(&["b", "c"]).await?;
    let expected: &[&str] = if trial.declared().delayed_retry { &["b", "c"] } else { &["b", "c", "delayed"] };
    let mut seen = Vec::new();
    for _ in expected {
        let delivery = trial.any(&source, "at once, while another message waits for its delay").await?;
        seen.push(delivery.message.id().to_owned());
        trial.ack(&source, delivery).await?;
    }
    seen.sort();
    trial.expect(seen == expected, format!("{expected:?} at once"), || format!("{seen:?}"))
}

/// A delay outlives the source that was told: a new source gets the message when it is over.
pub async fn a_delay_outlives_its_source<H: Harness>(trial: &Trial<H>) -> Result<(), Violation> {
    let source = trial.source(1).await?;
    trial.publish(&["a"]).await?;
    let delivery = trial.next(&source, "a", "after it was published").await?;
    let (unit, start) = (trial.harness().delay_unit(), trial.harness().clock().now());
    trial.nack(&source, delivery, NackReason::retry_after(unit, "handler_error")).await?;
    trial.close(&source).await?;
    let source = trial.source(1).await?;
    let delivery = if trial.declared().delayed_retry {
        trial.due(&source, "a", start, (unit, unit)).await?
    } else {
        trial.next(&source, "a", "from a new source, at once: delays are not declared").await?
    };
    trial.ack(&source, delivery).await
}

/// A retried message is the message that was sent: body, properties, and each header with its type.
pub async fn a_retried_message_is_the_same_message<H: Harness>(trial: &Trial<H>) -> Result<(), Violation> {
    let source = trial.source(1).await?;
    let sent = full("a");
    trial.send(sent.clone()).await?;
    let mut delivery = trial.next(&source, "a", "after it was published").await?;
    for delay in [Duration::ZERO, trial.harness().delay_unit()] {
        delivery = retried(trial, &source, delivery, delay).await?;
        same_content(trial, &sent, &delivery.message, "the message that was retried")?;
    }
    trial.ack(&source, delivery).await
}

/// Retries `delivery` after `delay` and receives it again in due time.
async fn retried<H: Harness, S: MessageSource>(
    trial: &Trial<H>,
    source: &S,
    delivery: Delivery<S::Receipt>,
    delay: Duration,
) -> Result<Delivery<S::Receipt>, Violation> {
    let id = delivery.message.id().to_owned();
    let start = trial.harness().clock().now();
    trial.nack(source, delivery, NackReason::retry_after(delay, "handler_error")).await?;
    if trial.declared().delayed_retry && !delay.is_zero() {
        trial.due(source, &id, start, (delay, trial.harness().delay_unit())).await
    } else {
        trial.next(source, &id, "at once after a retry that is not delayed").await
    }
}
