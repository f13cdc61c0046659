//! What becomes of a message that is not done with. A retry and a dead letter are moves: a copy is published and
//! confirmed, and only then the original acked. Where the copy is not taken, the original stays.

use std::sync::Arc;
use std::time::Duration;

use super::Shared;
use super::options::DeadLetterTo;
use super::receipt::RabbitReceipt;
use super::window::Answer;
use crate::error::{Error, ErrorKind, Result};
use crate::message::Message;
use crate::rabbitmq::event::RabbitEvent;
use crate::rabbitmq::lane::Address;
use crate::rabbitmq::wire::{self, NoCopy};
use crate::source::{Cause, DeadLetter, NackReason};

/// How long a message that no handler can be given stays in hand where it cannot be dead-lettered either.
const GIVE_UP_AGAIN: Duration = Duration::from_secs(5);

pub(super) async fn nack(shared: &Shared, mut receipt: RabbitReceipt, reason: NackReason) -> Result<()> {
    // Whoever waits for the copy to be taken may give up.
    receipt.go_back_unless_settled();
    // Its copy would go to this queue and not to its own.
    if receipt.session().label != shared.options.queue {
        return Err(Error::new(ErrorKind::Stale, "nack")
            .with_message("the receipt is of another queue")
            .with_context("queue", &shared.options.queue));
    }
    if receipt.session().is_over() {
        // Says `Stale`, and sends nothing: no copy either.
        return receipt.settle(Answer::Requeue).await;
    }
    let moved = match reason {
        NackReason::RequeueNow { .. } => Ok(Answer::Requeue),
        NackReason::Retry { delay, counted, .. } => retry(shared, &receipt, delay, counted).await,
        NackReason::DeadLetter { cause } => dead_letter(shared, receipt.message(), cause).await,
    };
    match moved {
        Ok(answer) => receipt.settle(answer).await,
        Err(error) => {
            // Where it cannot be given back its channel is gone, and with that it comes back too.
            let _ = receipt.settle(Answer::Requeue).await;
            Err(error)
        }
    }
}

/// Dead-letters a message that no handler can be given. Where that fails it stays in hand for a while, since nothing
/// else would keep it from coming again at once.
pub(super) async fn give_up(shared: Arc<Shared>, receipt: RabbitReceipt, cause: Cause) {
    let queue = &shared.options.queue;
    let id = receipt.message().id().to_owned();
    let answer = match dead_letter(&shared, receipt.message(), cause).await {
        Ok(answer) => answer,
        Err(error) => {
            tracing::warn!(queue, message = id, %error, "could not dead-letter a message that cannot be read");
            // Only waits are lost here.
            tokio::select! {
                biased;
                _ = receipt.session().ended() => {}
                () = shared.stop.cancelled() => {}
                () = shared.rabbit.clock().sleep(GIVE_UP_AGAIN) => {}
            }
            Answer::Requeue
        }
    };
    if let Err(error) = receipt.settle(answer).await {
        tracing::warn!(queue, message = id, %error, "a message that cannot be read comes again");
    }
}

/// Publishes the next attempt; returns what the broker is to be told of the original.
async fn retry(
    shared: &Shared,
    receipt: &RabbitReceipt,
    delay: Option<Duration>,
    counted: bool,
) -> Result<Answer> {
    let (message, session) = (receipt.message(), receipt.session());
    let attempt = if counted { message.attempt().saturating_add(1) } else { message.attempt() };
    let delay = delay.unwrap_or_default();
    match wire::retry_copy(message, &session.queue, attempt, shared.rabbit.frame_max()) {
        Ok(copy) => {
            match &shared.own {
                Some(own) => own.publish_delayed(&shared.rabbit, session, copy, delay).await?,
                None => shared.rabbit.lanes().publish_delayed(&session.queue, copy, delay).await?,
            }
            Ok(Answer::Ack)
        }
        // With the headers that the broker added it is too large to be sent again: it is kept for an operator.
        Err(NoCopy::TooLarge(too_large)) => dead_letter(shared, message, too_large.cause()).await,
        Err(NoCopy::Invalid(error)) => Err(error),
    }
}

/// Sees to it that the dead letters have the message; returns what the broker is to be told of the original.
async fn dead_letter(shared: &Shared, message: &Message, cause: Cause) -> Result<Answer> {
    let queue = &shared.options.queue;
    let dead_letters = || Address::queue(shared.options.dead_letter_queue());
    let address = match &shared.options.dead_letter_to {
        DeadLetterTo::Exchange { exchange, routing_key } => Address::exchange(exchange, routing_key),
        DeadLetterTo::Queue => dead_letters(),
        // Rejected, it would never get there.
        DeadLetterTo::Broker if wire::breaks_the_broker(message) => dead_letters(),
        DeadLetterTo::Broker => return Ok(Answer::Reject),
        DeadLetterTo::Drop => {
            let (queue, message) = (queue.clone(), message.id().to_owned());
            shared.rabbit.events().tell(RabbitEvent::Dropped { queue, message, cause: cause.to_string() });
            return Ok(Answer::Ack);
        }
    };
    let letter = DeadLetter::new(cause, message, queue.as_str(), shared.rabbit.clock().wall());
    let copy = wire::dead_letter_copy(message, &letter, shared.rabbit.frame_max())?;
    let to = address.to_string();
    match shared.rabbit.lanes().publish(address, copy).await {
        Ok(()) => Ok(Answer::Ack),
        Err(error) if matches!(error.kind(), ErrorKind::Unroutable | ErrorKind::NotFound) => {
            Err(error.with_message(format!("nowhere to dead-letter to, the message is kept: make {to}")))
        }
        Err(error) => Err(error.with_context("dead letters to", to)),
    }
}
