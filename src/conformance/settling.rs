//! What an answer does to a message, and to no other.

use super::content::{full, same_content};
use super::harness::Harness;
use super::trial::Trial;
use super::violation::Violation;
use crate::error::ErrorKind;
use crate::source::{MessageSource, NackReason, RequeueOrder};

/// An acked message is gone: nothing comes again, not even to a new source after the old one was closed.
pub async fn an_acked_message_never_comes_back<H: Harness>(trial: &Trial<H>) -> Result<(), Violation> {
    let source = trial.source(1).await?;
    trial.publish(&["a"]).await?;
    let delivery = trial.next(&source, "a", "after it was published").await?;
    trial.ack(&source, delivery).await?;
    trial.nothing(&source, "after the ack").await?;
    trial.close(&source).await?;
    let source = trial.source(1).await?;
    trial.nothing(&source, "from a new source after the ack").await
}

/// An ack that returned holds, even when the source is closed right after it.
pub async fn closing_right_after_an_ack_undoes_nothing<H: Harness>(
    trial: &Trial<H>,
) -> Result<(), Violation> {
    let source = trial.source(8).await?;
    let ids = ["a", "b", "c", "d", "e", "f", "g", "h"];
    trial.publish(&ids).await?;
    for delivery in trial.all(&source, &ids, "after they were published").await? {
        trial.ack(&source, delivery).await?;
    }
    trial.close(&source).await?;
    let source = trial.source(1).await?;
    trial.nothing(&source, "from a new source after all was acked").await
}

/// Answers may be given in any order, and each settles its own message and no other: not those before it, and not
/// those after it.
pub async fn settling_out_of_order_settles_that_one_alone<H: Harness>(
    trial: &Trial<H>,
) -> Result<(), Violation> {
    let source = trial.source(5).await?;
    let ids = ["a", "b", "c", "d", "e"];
    trial.publish(&ids).await?;
    let mut held = trial.all(&source, &ids, "after they were published").await?;
    for index in [4, 2] {
        trial.ack(&source, held.remove(index)).await?;
    }
    // Still unsettled: `a`, `b` and `d`.
    trial.nack(&source, held.remove(1), NackReason::requeue_now("out_of_order")).await?;
    let again = trial.next(&source, "b", "again: it alone was requeued").await?;
    trial.ack(&source, again).await?;
    trial.close(&source).await?;
    let source = trial.source(5).await?;
    trial.all(&source, &["a", "d"], "again: they were never settled").await?;
    trial.nothing(&source, "besides `a` and `d`, which alone were not settled").await
}

/// A receipt given to another source of the same queue settles none of that source's own deliveries.
pub async fn a_receipt_settles_nothing_of_another_source<H: Harness>(
    trial: &Trial<H>,
) -> Result<(), Violation> {
    let source = trial.source(1).await?;
    trial.publish(&["a"]).await?;
    let foreign = trial.next(&source, "a", "after it was published").await?;
    let other = trial.source(1).await?;
    trial.publish(&["b"]).await?;
    let own = trial.next(&other, "b", "after it was published").await?;
    // Refused, or taken for what it is: either way it is not `b`'s.
    let _ =
        trial.bounded("the ack of another source's receipt to return", other.ack(foreign.receipt)).await?;
    let requeue = other.nack(own.receipt, NackReason::requeue_now("still_ours"));
    let answered = trial.bounded("the nack of `b` to return", requeue).await?;
    let expected =
        "the receipt of `a`, acked on another source, to leave that source's delivery of `b` unsettled";
    trial.expect(answered.is_ok(), expected, || format!("that the nack of `b` failed: {answered:?}"))?;
    trial.close(&source).await?;
    loop {
        let when = "until `b` came back: the receipt of `a` does not settle it";
        let delivery = trial.any(&other, when).await?;
        let found = delivery.message.id() == "b";
        trial.ack(&other, delivery).await?;
        if found {
            return Ok(());
        }
    }
}

/// A requeued message comes again at once, and is the message that was sent.
pub async fn a_requeued_message_comes_back_at_once<H: Harness>(trial: &Trial<H>) -> Result<(), Violation> {
    let source = trial.source(1).await?;
    let sent = full("a");
    trial.send(sent.clone()).await?;
    let delivery = trial.next(&source, "a", "after it was published").await?;
    trial.nack(&source, delivery, NackReason::requeue_now("queue_full")).await?;
    let delivery = trial.next(&source, "a", "at once after it was requeued").await?;
    same_content(trial, &sent, &delivery.message, "the message that was requeued")?;
    trial.ack(&source, delivery).await?;
    trial.nothing(&source, "after a requeued message was acked").await
}

/// A requeued message is flagged as redelivered where the broker flags, and counted as delivered again where it
/// counts; elsewhere neither is made up.
pub async fn a_requeued_message_is_known_to_have_been_delivered_before<H: Harness>(
    trial: &Trial<H>,
) -> Result<(), Violation> {
    let source = trial.source(1).await?;
    trial.publish(&["a"]).await?;
    let mut delivery = trial.next(&source, "a", "after it was published").await?;
    for deliveries in 2..=3 {
        trial.nack(&source, delivery, NackReason::requeue_now("queue_full")).await?;
        delivery = trial.next(&source, "a", "after it was requeued").await?;
        let (flag, count) = (delivery.message.redelivered(), delivery.message.delivery_count());
        let flagged = trial.declared().flags_redelivery;
        trial.expect(flag == flagged, format!("redelivered {flagged} after a requeue"), || {
            format!("{flag}")
        })?;
        let counted = trial.declared().counts_deliveries.then_some(deliveries);
        trial.expect(count == counted, format!("the delivery count {counted:?}"), || format!("{count:?}"))?;
    }
    trial.ack(&source, delivery).await
}

/// A requeued message takes the place in the queue that the capabilities tell.
pub async fn a_requeued_message_takes_the_declared_place<H: Harness>(
    trial: &Trial<H>,
) -> Result<(), Violation> {
    let source = trial.source(1).await?;
    trial.publish(&["a", "b", "c"]).await?;
    let delivery = trial.next(&source, "a", "first").await?;
    trial.nack(&source, delivery, NackReason::requeue_now("queue_full")).await?;
    let mut order = Vec::new();
    for _ in 0..3 {
        let delivery = trial.any(&source, "after `a` was requeued before `b` and `c`").await?;
        order.push(delivery.message.id().to_owned());
        trial.ack(&source, delivery).await?;
    }
    let declared = trial.declared().requeue_order;
    let expected = match declared {
        RequeueOrder::Front => ["a", "b", "c"],
        RequeueOrder::Back => ["b", "c", "a"],
        // Any order will do, if it is of these.
        RequeueOrder::Unknown => {
            order.sort();
            ["a", "b", "c"]
        }
    };
    trial.expect(order == expected, format!("the order {expected:?} ({declared:?})"), || format!("{order:?}"))
}

/// A receipt of a source that was closed is refused, and settles nothing.
pub async fn a_receipt_of_a_closed_source_is_refused<H: Harness>(trial: &Trial<H>) -> Result<(), Violation> {
    let source = trial.source(3).await?;
    let ids = ["a", "b", "c"];
    trial.publish(&ids).await?;
    let mut held = trial.all(&source, &ids, "after they were published").await?;
    trial.close(&source).await?;
    let refusals = [ErrorKind::Stale, ErrorKind::Closed];
    trial.refused("an ack after close", &refusals, source.ack(held.remove(0).receipt)).await?;
    // Where dead letters are not declared, that refusal may come first.
    let dead_letter = trial.declared().dead_letter;
    let last = if dead_letter { NackReason::dead_letter("late") } else { NackReason::requeue_now("late") };
    for reason in [NackReason::retry("late"), last] {
        let what = format!("a nack ({reason}) after close");
        trial.refused(&what, &refusals, source.nack(held.remove(0).receipt, reason)).await?;
    }
    let source = trial.source(3).await?;
    for delivery in trial.all(&source, &ids, "again: they were not settled before close").await? {
        let attempt = delivery.message.attempt();
        trial.expect(attempt == 1, "attempt 1", || format!("{attempt}"))?;
    }
    Ok(())
}
