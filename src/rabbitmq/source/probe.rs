//! What is looked at before a source begins: its options, its queue, and where its dead letters go.

use super::options::{DeadLetterTo, Origin, QueueType, SourceOptions, Wanted};
use super::own;
use crate::error::{Error, ErrorKind, Result};
use crate::queue::Slot;
use crate::rabbitmq::declare::{check_name, check_short};
use crate::rabbitmq::event::RabbitEvent;
use crate::rabbitmq::look_up::{Entity, look_up, standing};

/// What is wrong with the options, without asking the broker.
pub(super) fn check(options: &SourceOptions) -> Result<()> {
    let invalid = |text: &str| Err(Error::new(ErrorKind::Invalid, "open source").with_message(text));
    match &options.origin {
        Origin::Own(Wanted::Slot { family, .. }) if family.is_empty() => {
            return invalid("`family` is empty: name the family of queues");
        }
        Origin::Own(Wanted::Slot { family, slot }) => {
            // The longest of them.
            let longest = match slot {
                Slot::Number(number) => *number,
                Slot::FirstFree { most } => most.get(),
            };
            check_name("open source", &Slot::queue(family, longest))?;
        }
        Origin::Own(Wanted::Subscription { exchange }) => own::check_exchange(exchange)?,
        Origin::Queue => check_name("open source", &options.queue)?,
    }
    if !matches!(options.origin, Origin::Queue) && options.queue_type == QueueType::Quorum {
        return invalid("`queue_type` is quorum: a queue that belongs to one connection can only be classic");
    }
    if let DeadLetterTo::Exchange { exchange, routing_key } = &options.dead_letter_to {
        check_short("open source", "dead-letter exchange", exchange)?;
        check_short("open source", "dead-letter routing key", routing_key)?;
    }
    Ok(())
}

pub(super) async fn look_up_queue(options: &SourceOptions) -> Result<()> {
    let queue = &options.queue;
    // The broker would give the queue of a slot to every source of the connection that has it.
    if options.rabbit.claims().has(queue) {
        return Err(Error::new(ErrorKind::Taken, "open source")
            .with_message("it is the queue of a slot, which another source of this connection has")
            .with_context("queue", queue));
    }
    exists(options, Entity::Queue(queue)).await.map_err(|error| error.with_context("queue", queue))
}

/// Tells where there is nowhere to dead-letter to.
pub(super) async fn look_up_dead_letters(options: &SourceOptions) {
    let dead_letters = options.dead_letter_queue();
    let target = match &options.dead_letter_to {
        DeadLetterTo::Queue => Entity::Queue(&dead_letters),
        // The default exchange is always there; its routing key is the queue.
        DeadLetterTo::Exchange { exchange, routing_key } if exchange.is_empty() => Entity::Queue(routing_key),
        DeadLetterTo::Exchange { exchange, .. } => Entity::Exchange(exchange),
        DeadLetterTo::Broker | DeadLetterTo::Drop => return,
    };
    if let Err(error) = exists(options, target).await {
        let queue = options.queue.clone();
        options.rabbit.events().tell(RabbitEvent::NowhereToDeadLetter { queue, error });
    }
}

async fn exists(options: &SourceOptions, entity: Entity<'_>) -> Result<()> {
    let (link, clock) = (options.rabbit.consume(), options.rabbit.clock());
    let live = standing(link, clock, "open source").await?;
    look_up(&live, clock, entity).await.map(drop)
}
