//! What is looked up before a source begins: its queue, and where its dead letters go.

use lapin::options::{ExchangeDeclareOptions, QueueDeclareOptions};
use lapin::types::FieldTable;

use super::options::{DeadLetterTo, SourceOptions};
use crate::clock::within;
use crate::error::{Error, ErrorKind, Result};
use crate::rabbitmq::declare::{check_name, check_short};
use crate::rabbitmq::event::RabbitEvent;
use crate::rabbitmq::link::ANSWER_BOUND;
use crate::rabbitmq::{RabbitMq, dead_letter_queue};

pub(super) async fn look_up(options: &SourceOptions) -> Result<()> {
    let SourceOptions { rabbit, queue, .. } = options;
    check_name("open source", queue)?;
    exists(rabbit, Entity::Queue(queue)).await.map_err(|error| error.with_context("queue", queue))?;
    let dead_letters = dead_letter_queue(queue);
    let target = match &options.dead_letter_to {
        DeadLetterTo::Queue => Entity::Queue(&dead_letters),
        // The default exchange is always there; its routing key is the queue.
        DeadLetterTo::Exchange { exchange, routing_key } if exchange.is_empty() => Entity::Queue(routing_key),
        DeadLetterTo::Exchange { exchange, .. } => Entity::Exchange(exchange),
        DeadLetterTo::Broker | DeadLetterTo::Drop => return Ok(()),
    };
    if let DeadLetterTo::Exchange { exchange, routing_key } = &options.dead_letter_to {
        check_short("open source", "dead-letter exchange", exchange)?;
        check_short("open source", "dead-letter routing key", routing_key)?;
    }
    if let Err(error) = exists(rabbit, target).await {
        rabbit.events().tell(RabbitEvent::NowhereToDeadLetter { queue: queue.clone(), error });
    }
    Ok(())
}

#[derive(Clone, Copy)]
enum Entity<'a> {
    Queue(&'a str),
    Exchange(&'a str),
}

/// Asks on a channel of its own: a refusal closes the channel, with everything else that runs on it.
async fn exists(rabbit: &RabbitMq, entity: Entity<'_>) -> Result<()> {
    let clock = rabbit.clock();
    let Some(live) = within(clock, ANSWER_BOUND, rabbit.consume().live()).await else {
        return Err(Error::new(ErrorKind::Disconnected, "open source")
            .with_message(format!("no connection within {ANSWER_BOUND:?}")));
    };
    let live = live?;
    let channel = live.channel(clock).await?;
    match entity {
        Entity::Queue(queue) => {
            let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
            let declare = channel.queue_declare(queue.into(), passive, FieldTable::default());
            live.answer(clock, "look up queue", declare).await?;
        }
        Entity::Exchange(exchange) => {
            let passive = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
            let kind = lapin::ExchangeKind::default();
            let declare = channel.exchange_declare(exchange.into(), kind, passive, FieldTable::default());
            live.answer(clock, "look up exchange", declare).await?;
        }
    }
    live.answer(clock, "close channel", channel.close(200, "looked up".into())).await
}
