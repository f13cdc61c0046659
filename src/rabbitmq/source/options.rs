//! How a source is opened.

use std::num::NonZeroU16;

use super::{RabbitSource, own};
use crate::error::Result;
use crate::queue::Slot;
use crate::rabbitmq::{RabbitMq, dead_letter_queue};
use crate::source::RequeueOrder;

/// What kind of queue a source consumes. AMQP does not tell; the two differ in what they promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum QueueType {
    /// Not known: only what all kinds do is claimed.
    #[default]
    Unknown,
    /// A classic queue: requeued messages go to the front, and deliveries are not counted.
    Classic,
    /// A quorum queue: deliveries are counted. Requeued messages go behind what waits on RabbitMQ 3.10, and to the front
    /// on 4.0 and 4.3, as measured with a prefetch of 1; so no order is claimed.
    Quorum,
}

impl QueueType {
    pub(super) fn requeue_order(self) -> RequeueOrder {
        match self {
            Self::Unknown | Self::Quorum => RequeueOrder::Unknown,
            Self::Classic => RequeueOrder::Front,
        }
    }
}

/// Where messages go that are given up.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum DeadLetterTo {
    /// To the queue `<queue>.dlq`, as a copy with its cause: the default. All slots of a family have one,
    /// `<family>.dlq`; for a subscription it is `<exchange>.dlq`.
    #[default]
    Queue,
    /// To an exchange, as a copy with its cause.
    Exchange {
        /// The exchange.
        exchange: String,
        /// The routing key.
        routing_key: String,
    },
    /// To the dead-letter exchange of the queue, by the broker. It carries no cause. Where the queue has none, or
    /// nothing is bound to it, RabbitMQ drops the message without a word, and neither can be seen over AMQP.
    Broker,
    /// Nowhere: the message is acked, which is told as an event and logged as an error. The default of subscriptions.
    Drop,
}

/// Which queue a source consumes.
#[derive(Debug, Clone)]
pub(super) enum Origin {
    /// One that is there.
    Queue,
    /// One of its own.
    Own(Wanted),
}

/// Which queue a source makes for itself.
#[derive(Debug, Clone)]
pub(super) enum Wanted {
    Slot {
        family: String,
        slot: Slot,
    },
    /// One that is bound to the exchange.
    Subscription {
        exchange: String,
    },
}

/// How a source is to be opened; made by [`RabbitMq::source`], [`claim`](RabbitMq::claim) and
/// [`subscribe`](RabbitMq::subscribe).
#[derive(Debug, Clone)]
#[must_use = "a source consumes nothing until it is opened"]
pub struct SourceOptions {
    pub(super) rabbit: RabbitMq,
    /// What the source calls its queue; that of a slot is known once it is open.
    pub(super) queue: String,
    pub(super) origin: Origin,
    pub(super) queue_type: QueueType,
    pub(super) prefetch: Option<NonZeroU16>,
    pub(super) dead_letter_to: DeadLetterTo,
    pub(super) single_active: bool,
}

impl SourceOptions {
    pub(in crate::rabbitmq) fn new(rabbit: RabbitMq, queue: String) -> Self {
        Self {
            rabbit,
            queue,
            origin: Origin::Queue,
            queue_type: QueueType::default(),
            prefetch: None,
            dead_letter_to: DeadLetterTo::default(),
            single_active: false,
        }
    }

    pub(in crate::rabbitmq) fn slot(rabbit: RabbitMq, family: String, slot: Slot) -> Self {
        let options = Self::new(rabbit, family.clone()).queue_type(QueueType::Classic);
        Self { origin: Origin::Own(Wanted::Slot { family, slot }), ..options }
    }

    pub(in crate::rabbitmq) fn subscription(rabbit: RabbitMq, exchange: String) -> Self {
        let options = Self::new(rabbit, own::label(&exchange)).queue_type(QueueType::Classic);
        let origin = Origin::Own(Wanted::Subscription { exchange });
        Self { origin, dead_letter_to: DeadLetterTo::Drop, ..options }
    }

    /// Where messages go by default that are given up.
    pub(super) fn dead_letter_queue(&self) -> String {
        dead_letter_queue(match &self.origin {
            Origin::Queue => &self.queue,
            Origin::Own(Wanted::Slot { family, .. }) => family,
            Origin::Own(Wanted::Subscription { exchange }) => exchange,
        })
    }

    /// What kind of queue it is; [`QueueType::Unknown`] by default. That of a slot or a subscription is classic.
    pub fn queue_type(mut self, queue_type: QueueType) -> Self {
        self.queue_type = queue_type;
        self
    }

    /// How many messages the broker sends ahead, unsettled ones included. By default that of the configuration, else
    /// as many as the consumer has loops, else 16.
    ///
    /// It is never unlimited. More than there are loops brings throughput where handlers are quick; on quorum queues
    /// each message that was sent ahead counts as delivered once it is handed back, also by an orderly stop, and a lost
    /// connection counts for all of them: with a delivery limit, messages can be dropped that no handler had. Fewer than
    /// there are loops leaves some of them idle.
    pub fn prefetch(mut self, prefetch: NonZeroU16) -> Self {
        self.prefetch = Some(prefetch);
        self
    }

    /// Where messages go that are given up; [`DeadLetterTo::Queue`] by default, [`DeadLetterTo::Drop`] for a
    /// subscription.
    pub fn dead_letter_to(mut self, target: DeadLetterTo) -> Self {
        self.dead_letter_to = target;
        self
    }

    /// For a queue with a single active consumer (`x-single-active-consumer`): a pause or a drain ends the messages in
    /// hand before the consumer goes, so that the next one starts where this one ended. Off by default: what is
    /// buffered goes back at once.
    pub fn single_active(mut self, yes: bool) -> Self {
        self.single_active = yes;
        self
    }

    /// Opens the source: sees that the queue is there, or makes the one of a slot or a subscription, and sees where dead
    /// letters go. Where there is nowhere, that is told
    /// as an event ([`RabbitEvent::NowhereToDeadLetter`](crate::rabbitmq::RabbitEvent::NowhereToDeadLetter)) and
    /// logged, and messages that are given up are kept.
    ///
    /// Nothing is consumed before the first `receive`.
    ///
    /// # Errors
    ///
    /// `NotFound` where there is no such queue, or no such exchange to subscribe to; `Taken` where the slot is, or all of
    /// them are; `Refused` where the queue belongs to another connection alone, a queue that is nobody's alone has the
    /// name of the slot, or this user may not make one; `Disconnected` and `Timeout` where the broker does not answer
    /// within 10 s; `Invalid` for a name that is empty or too long, and for a slot or a subscription that is to be a
    /// quorum queue;
    /// `Closed` after [`disconnect`](RabbitMq::disconnect). A right to read that is missing shows only once something
    /// is consumed, in the health and as an event, and is waited for: AMQP has no other question for it.
    ///
    /// # Cancel safety
    ///
    /// Safe: what was opened is closed.
    pub async fn open(self) -> Result<RabbitSource> {
        RabbitSource::open(self).await
    }
}
