//! Looking at the first messages of a queue.

use std::num::NonZeroUsize;

use futures::future::join_all;
use tokio::task::unconstrained;
use tokio_util::sync::CancellationToken;

use super::DeadLetterQueue;
use super::death::DeadMessage;
use super::limit::Limit;
use super::report::{Peeked, Warning};
use super::taking::{MOST_BYTES, Taken, Taking};
use crate::error::Result;
use crate::message::Message;
use crate::rabbitmq::lane::Address;
use crate::rabbitmq::wire;

/// The first prefetch while looking. No more are taken than were asked for: on some queues each look counts.
const WINDOW: usize = 32;

pub(super) async fn peek(letters: &DeadLetterQueue, most: NonZeroUsize) -> Result<Peeked> {
    let window = u16::try_from(most.get().min(WINDOW)).unwrap_or(1);
    let (mut taking, ready) = Taking::start(&letters.rabbit, &letters.queue, window).await?;
    let most = usize::try_from(ready).unwrap_or(usize::MAX).min(most.get());
    let mut peeked = Peeked { ready, ..Peeked::default() };
    let mut limit = Limit::new(letters.delivery_limit);
    let (mut at_limit, mut bytes) = (Vec::new(), 0);
    let never = CancellationToken::new();
    while peeked.messages.len() < most {
        if bytes >= MOST_BYTES {
            peeked.warnings.push(Warning::TooManyBytes { bytes });
            break;
        }
        taking.make_room(1, 0, most - peeked.messages.len()).await?;
        let Some(Taken { tag, received, handed_back }) = taking.next_or_none(&never).await? else { break };
        bytes += received.message.body().len();
        if limit.is_reached(handed_back) {
            at_limit.push((tag, received.message.clone()));
        }
        peeked.messages.push(DeadMessage::new(received.message));
    }
    for Taken { tag, received, handed_back } in taking.stop().await? {
        if limit.is_reached(handed_back) {
            at_limit.push((tag, received.message));
        }
    }
    // With no budget that they might find used up, so that they go out in the order of the queue.
    let copies = join_all(at_limit.iter().map(|(_, message)| to_the_end(letters, message)));
    let outcomes = unconstrained(copies).await;
    let mut moved = Vec::new();
    for ((tag, _), outcome) in at_limit.iter().zip(outcomes) {
        if outcome.is_ok() {
            moved.push(*tag);
        }
        limit.moved(outcome);
    }
    taking.ack(&moved).await?;
    taking.hand_back().await?;
    peeked.warnings.extend(limit.warnings());
    Ok(peeked)
}

/// Puts a copy at the end of the queue.
pub(super) async fn to_the_end(letters: &DeadLetterQueue, message: &Message) -> Result<()> {
    let copy = wire::same_copy(message, letters.rabbit.frame_max())?;
    letters.rabbit.lanes().publish(Address::queue(&letters.queue), copy).await
}
