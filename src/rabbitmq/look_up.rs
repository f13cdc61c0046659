//! Looking whether something is there, on a channel of its own: a refusal closes the channel, with everything else that
//! runs on it.

use std::sync::Arc;

use lapin::options::{ExchangeDeclareOptions, QueueDeclareOptions};
use lapin::types::FieldTable;

use super::link::{ANSWER_BOUND, Link, Live};
use crate::clock::{Clock, within};
use crate::error::{Error, ErrorKind, Result};

#[derive(Clone, Copy)]
pub(super) enum Entity<'a> {
    Queue(&'a str),
    Exchange(&'a str),
}

/// What a queue has, as the broker tells it; an exchange has none of it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Found {
    /// Messages that are ready. Those that are with a consumer are not told.
    pub(super) messages: u32,
    pub(super) consumers: u32,
}

/// The connection, where it stands or soon does.
pub(super) async fn standing(link: &Link, clock: &dyn Clock, operation: &'static str) -> Result<Arc<Live>> {
    match within(clock, ANSWER_BOUND, link.live()).await {
        Some(live) => live,
        None => Err(Error::new(ErrorKind::Disconnected, operation)
            .with_message(format!("no connection within {ANSWER_BOUND:?}"))),
    }
}

/// Asks for it without making it.
///
/// # Errors
///
/// `NotFound` where it is not there; `Refused` for a queue that another connection has alone.
pub(super) async fn look_up(live: &Live, clock: &dyn Clock, entity: Entity<'_>) -> Result<Found> {
    let channel = live.channel(clock).await?;
    let found = match entity {
        Entity::Queue(queue) => {
            let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
            let declare = channel.queue_declare(queue.into(), passive, FieldTable::default());
            let queue = live.answer(clock, "look up queue", declare).await?;
            Found { messages: queue.message_count(), consumers: queue.consumer_count() }
        }
        Entity::Exchange(exchange) => {
            let passive = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
            let kind = lapin::ExchangeKind::default();
            let declare = channel.exchange_declare(exchange.into(), kind, passive, FieldTable::default());
            live.answer(clock, "look up exchange", declare).await?;
            Found::default()
        }
    };
    live.answer(clock, "close channel", channel.close(200, "looked up".into())).await?;
    Ok(found)
}
