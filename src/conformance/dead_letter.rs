//! Messages that are given up: kept, with their cause, and never tried again.
//!
//! Where dead letters are not declared, each case shows the documented refusal instead: `Unsupported`, and the message
//! stays.

use std::time::Duration;

use super::attempts::{counted, second_attempt};
use super::content::{full, same_content};
use super::harness::Harness;
use super::trial::Trial;
use super::violation::Violation;
use crate::error::ErrorKind;
use crate::message::Message;
use crate::source::{Cause, DeadLetter, Delivery, MessageSource, NackReason};

/// A dead-lettered message is not delivered again, by the same source or by a new one.
pub async fn a_dead_lettered_message_never_comes_back<H: Harness>(trial: &Trial<H>) -> Result<(), Violation> {
    let source = trial.source(1).await?;
    trial.publish(&["a"]).await?;
    let delivery = trial.next(&source, "a", "after it was published").await?;
    if !given_up(trial, &source, delivery, Cause::new("terminal")).await? {
        return Ok(());
    }
    trial.nothing(&source, "after the only message was dead-lettered").await?;
    trial.close(&source).await?;
    let source = trial.source(1).await?;
    trial.nothing(&source, "from a new source after the only message was dead-lettered").await?;
    trial.dead_letters(1).await.map(drop)
}

/// A dead letter is the message that was sent: its id, its body, its properties, and each of its headers.
pub async fn a_dead_letter_keeps_the_message<H: Harness>(trial: &Trial<H>) -> Result<(), Violation> {
    let source = trial.source(1).await?;
    let sent = full("a");
    trial.send(sent.clone()).await?;
    let delivery = trial.next(&source, "a", "after it was published").await?;
    if !given_up(trial, &source, delivery, Cause::new("terminal")).await? {
        return Ok(());
    }
    for letter in trial.dead_letters(1).await? {
        same_content(trial, &sent, &letter, "the message that was dead-lettered")?;
    }
    Ok(())
}

/// A dead letter bears why it was given up, after how many attempts, when, and from which queue.
pub async fn a_dead_letter_bears_its_cause<H: Harness>(trial: &Trial<H>) -> Result<(), Violation> {
    let source = trial.source(1).await?;
    let delivery = second_attempt(trial, &source).await?;
    let cause = Cause::new("terminal").with_detail("the card was declined");
    let before = trial.harness().clock().wall();
    if !given_up(trial, &source, delivery, cause.clone()).await? {
        return Ok(());
    }
    let after = trial.harness().clock().wall();
    for letter in trial.dead_letters(1).await? {
        let written = read(trial, &letter)?;
        let seen = || format!("{written:?}");
        trial.expect(written.cause == cause, format!("the cause {cause:?}"), seen)?;
        let attempts = counted(trial, 2);
        trial.expect(written.attempts == attempts, format!("{attempts} attempts"), seen)?;
        let queue = source.queue_name();
        trial.expect(written.queue == queue, format!("the origin queue `{queue}`"), seen)?;
        let second = Duration::from_secs(1);
        trial.expect(
            before - second <= written.at && written.at <= after + second,
            format!("a time from {before:?} to {after:?}, to the second"),
            seen,
        )?;
    }
    Ok(())
}

/// A message that was a dead letter before bears the new cause, and nothing of the old one.
pub async fn a_message_given_up_twice_bears_the_second_cause<H: Harness>(
    trial: &Trial<H>,
) -> Result<(), Violation> {
    let source = trial.source(1).await?;
    let first = Cause::new("terminal").with_detail("the card was declined");
    let earlier = DeadLetter::new(first, &Message::new(""), "elsewhere", trial.harness().clock().wall());
    let sent = Message::new("{}").with_id("a");
    let headers = earlier.stamp(sent.headers().clone());
    trial.send(sent.with_headers(headers)).await?;
    let delivery = trial.next(&source, "a", "after a dead letter was sent back").await?;
    let second = Cause::new("validation:input");
    if !given_up(trial, &source, delivery, second.clone()).await? {
        return Ok(());
    }
    for letter in trial.dead_letters(1).await? {
        let written = read(trial, &letter)?;
        let kept = written.cause == second && written.queue == source.queue_name();
        trial.expect(kept, format!("the cause {second:?} alone"), || format!("{written:?}"))?;
    }
    Ok(())
}

/// Giving one message up touches none of the others, in hand or waiting.
pub async fn dead_lettering_one_message_leaves_the_others<H: Harness>(
    trial: &Trial<H>,
) -> Result<(), Violation> {
    let source = trial.source(3).await?;
    let ids = ["a", "b", "c"];
    trial.publish(&ids).await?;
    let mut held = trial.all(&source, &ids, "after they were published").await?;
    let (a, b) = (held.remove(0), held.remove(0));
    if !given_up(trial, &source, b, Cause::new("terminal")).await? {
        return Ok(());
    }
    trial.ack(&source, a).await?;
    trial.close(&source).await?;
    let source = trial.source(3).await?;
    trial.all(&source, &["c"], "again: it alone was neither acked nor dead-lettered").await?;
    trial.nothing(&source, "besides `c`, which alone was not settled").await?;
    for letter in trial.dead_letters(1).await? {
        trial.expect(letter.id() == "b", "`b` in the dead-letter queue", || format!("`{}`", letter.id()))?;
    }
    Ok(())
}

/// Dead-letters `delivery`. False where dead letters are not declared, and then it was refused and the message stayed.
pub(super) async fn given_up<H: Harness>(
    trial: &Trial<H>,
    source: &H::Source,
    delivery: Delivery<<H::Source as MessageSource>::Receipt>,
    cause: Cause,
) -> Result<bool, Violation> {
    let reason = NackReason::dead_letter(cause);
    if trial.declared().dead_letter {
        trial.nack(source, delivery, reason).await?;
        return Ok(true);
    }
    let id = delivery.message.id().to_owned();
    let what = "dead-lettering, which is not declared,";
    trial.refused(what, &[ErrorKind::Unsupported], source.nack(delivery.receipt, reason)).await?;
    // Whether it came back at the refusal or is still in hand: at the latest it comes once the source is closed.
    trial.close(source).await?;
    let source = trial.source(3).await?;
    loop {
        let delivery =
            trial.any(&source, &format!("until `{id}` came back: giving it up was refused")).await?;
        if delivery.message.id() == id {
            return Ok(false);
        }
    }
}

fn read<H: Harness>(trial: &Trial<H>, letter: &Message) -> Result<DeadLetter, Violation> {
    DeadLetter::of(letter).ok_or_else(|| {
        let names: Vec<&str> = letter.headers().names().collect();
        trial.violation("a dead letter with a cause in its headers", format!("only the headers {names:?}"))
    })
}
