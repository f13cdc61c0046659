//! Dead letters, for the people on call: how many there are, what they are, and how they are sent back.
//!
//! ```no_run
//! # async fn on_call() -> Result<(), Box<dyn std::error::Error>> {
//! use std::num::NonZeroUsize;
//!
//! use tokio_util::sync::CancellationToken;
//! use windlass::rabbitmq::dead_letters::RedriveOptions;
//! use windlass::rabbitmq::{RabbitMq, RabbitMqConfig, dead_letter_queue};
//!
//! let rabbit = RabbitMq::connect(RabbitMqConfig::from_env("ORDERS_AMQP")?).await?;
//! let letters = rabbit.dead_letters(dead_letter_queue("orders")).delivery_limit(Some(1_000_000));
//! for dead in letters.peek(NonZeroUsize::new(20).unwrap()).await?.messages {
//!     println!("{} {:?} {:?}", dead.message.id(), dead.death.cause, dead.death.at);
//! }
//! let (options, cancel) = (RedriveOptions::new().cause("retry_exhausted"), CancellationToken::new());
//! let report = letters.redrive(options, &cancel, |progress| {
//!     println!("{} of {}", progress.looked_at, progress.ready);
//! });
//! println!("{} were sent back", report.await?.moved);
//! # Ok(())
//! # }
//! ```
//!
//! # What it promises
//!
//! Nothing is lost, whatever happens in the middle. A redriven message is a copy that is published (mandatory, persistent)
//! and confirmed before the dead letter is acked. One that is not taken stays where it is. AMQP confirms no acks: where the
//! connection goes, the last ones may not have arrived, and then a message is both where it was sent to and among the dead
//! letters. How many these can be is said, and never too few: [`Redriven::maybe_twice`].
//!
//! One thing is beyond it: a message that stands at the [delivery limit](#the-delivery-limit) of its queue is gone when the
//! connection goes, or the future of a look is dropped, while it is in hand: the broker counts that as one delivery too
//! many. So give dead-letter queues a high limit, as the bootstrapper does.
//!
//! A broker that is killed may also forget acks that it had taken. A quorum queue writes them down as it writes its
//! messages; a classic queue writes them late (on 3.10 thousands were forgotten). So where the connection goes, only acks to
//! a queue that is surely a quorum queue ([`queue_type`](DeadLetterQueue::queue_type)) are taken for safe.
//!
//! # The copy
//!
//! It has the same id, bytes, typed headers and properties. It goes by the default exchange to the queue that the message
//! came from, and its attempts begin at 1. What was written down of its death is left out, by this crate and by the broker,
//! so that a second death is read right; and what no [move](super#what-it-promises) of this crate carries on: the user id,
//! `CC`, `BCC`, the expiration.
//!
//! # What is looked at
//!
//! As many messages as were ready when it began, and none that died after that: what fails again at once is not sent
//! round in circles. That goes by the clocks of those who wrote the time of death; where one is ahead of this one, its
//! messages stay, and are counted as [newer](Redriven::newer). Whatever stays is kept unacked as its tag alone until the
//! end, and handed back in its order. While that lasts no other consumer gets it; RabbitMQ ends a redrive that keeps a
//! message for longer than its `consumer_timeout` (30 min by default). Run it again then.
//!
//! # The delivery limit
//!
//! Looking is not free on a quorum queue: RabbitMQ counts how often it delivered a message in vain, and dead-letters or
//! drops it at the queue's delivery limit, which from 4.0 on is 20 where none is set. Measured, for a look and for a
//! message that a redrive leaves:
//!
//! | | classic | quorum 3.10 | quorum 4.0 | quorum 4.3 |
//! |---|---|---|---|---|
//! | counts against the limit | no | yes | yes | only the first time |
//! | the default limit | | none | 20 | 20 |
//! | the order | stays | stays | stays | stays |
//!
//! A loss of the connection counts on all of them. The order is not promised where the connection goes, or where a future
//! is dropped, or where somebody else consumes the queue.
//!
//! So give dead-letter queues a high limit, with a policy that sets `delivery-limit` to 1000000 or more; it takes effect at
//! once, on all series. Do not set the argument `x-delivery-limit` to -1: RabbitMQ 3.10 takes it, and drops each message
//! that is handed back once.
//!
//! A message that stands at the limit is not handed back: a copy of it is put at the end of the queue, and counts from
//! zero. That is told as a [`Warning`]. AMQP does not tell what the limit of a queue is: 20 is reckoned with, unless
//! [`delivery_limit`](DeadLetterQueue::delivery_limit) says otherwise.
//!
//! # Errors
//!
//! | kind | when |
//! |---|---|
//! | `NotFound` | no such queue; it was deleted meanwhile |
//! | `Invalid` | a name or an option that cannot be right; the text names it |
//! | `Disconnected` | no connection within 10 s, or it went |
//! | `Unconfirmed` | redrive: a copy was sent, and no confirm came |
//! | `Refused` | this user may not read the queue, or somebody else has it for himself |
//! | `Timeout` | the broker does not answer within 10 s, or sends nothing though messages are ready |
//! | `Closed` | after [`disconnect`](RabbitMq::disconnect) |

mod death;
mod limit;
mod options;
mod peek;
mod redrive;
mod report;
mod taking;

use std::num::NonZeroUsize;
use std::sync::Arc;

use lapin::options::{QueueDeclareOptions, QueuePurgeOptions};
use lapin::types::FieldTable;
use tokio_util::sync::CancellationToken;

pub use death::{DeadMessage, Death, ToldBy};
pub use options::RedriveOptions;
pub use report::{Ended, Flow, Obstacle, Peeked, Progress, RedriveError, Redriven, Warning};

use super::declare::check_short;
use super::link::{ANSWER_BOUND, Live};
use super::{QueueType, RabbitMq};
use crate::clock::within;
use crate::error::{Error, ErrorKind, Result};

/// The limit of a quorum queue from RabbitMQ 4.0 on, where none is set.
const DEFAULT_DELIVERY_LIMIT: u32 = 20;

/// A queue with dead letters; see [`RabbitMq::dead_letters`]. Cheap to clone.
#[derive(Debug, Clone)]
pub struct DeadLetterQueue {
    rabbit: RabbitMq,
    queue: String,
    delivery_limit: Option<u32>,
    queue_type: QueueType,
}

impl RabbitMq {
    /// The dead letters in `queue`: mostly `<queue>.dlq`, by [`dead_letter_queue`](super::dead_letter_queue). Any queue may
    /// be looked at. Nothing is asked of the broker yet.
    pub fn dead_letters(&self, queue: impl Into<String>) -> DeadLetterQueue {
        DeadLetterQueue {
            rabbit: self.clone(),
            queue: queue.into(),
            delivery_limit: Some(DEFAULT_DELIVERY_LIMIT),
            queue_type: QueueType::Unknown,
        }
    }
}

impl DeadLetterQueue {
    /// Says what the delivery limit of the queue is, where it is a quorum queue; `None` for none. 20 by default, which is
    /// what RabbitMQ has from 4.0 on. See [above](self#the-delivery-limit).
    #[must_use]
    pub fn delivery_limit(mut self, limit: Option<u32>) -> Self {
        self.delivery_limit = limit;
        self
    }

    /// Says what type the queue is of. Not known by default, which AMQP does not tell. A redrive whose connection goes knows
    /// then how many acks a quorum queue surely has; else all that were sent count as [maybe twice](Redriven::maybe_twice),
    /// since a classic queue of a killed broker may forget them.
    #[must_use]
    pub fn queue_type(mut self, queue_type: QueueType) -> Self {
        self.queue_type = queue_type;
        self
    }

    /// The name of the queue.
    pub fn name(&self) -> &str {
        &self.queue
    }

    /// How many messages are ready, now. What somebody else is looking at is not.
    ///
    /// # Errors
    ///
    /// See [the table](self#errors).
    ///
    /// # Cancel safety
    ///
    /// Safe: it only asks.
    pub async fn count(&self) -> Result<u64> {
        self.named(self.ask_count().await)
    }

    async fn ask_count(&self) -> Result<u64> {
        self.check("count")?;
        let clock = self.rabbit.clock();
        let (live, channel) = on_a_channel(&self.rabbit, "count").await?;
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let declare = channel.queue_declare(self.queue.as_str().into(), passive, FieldTable::default());
        let found = live.answer(clock, "count", declare).await?;
        live.answer(clock, "close channel", channel.close(200, "counted".into())).await?;
        Ok(found.message_count().into())
    }

    /// The first messages, `most` at most, in their order. All stay in the queue; while it lasts no other consumer gets
    /// them. No more are looked at once their bodies have 64 MiB.
    ///
    /// On a quorum queue it may count as a delivery: see [the delivery limit](self#the-delivery-limit).
    ///
    /// # Errors
    ///
    /// See [the table](self#errors). Nothing was taken away.
    ///
    /// # Cancel safety
    ///
    /// What was taken goes back. What stood at the delivery limit is gone then: see [the delivery
    /// limit](self#the-delivery-limit).
    pub async fn peek(&self, most: NonZeroUsize) -> Result<Peeked> {
        self.named(self.check("peek"))?;
        self.named(peek::peek(self, most).await)
    }

    /// Sends messages back to where they came from, or [to another queue](RedriveOptions::to), and tells `on_progress` how
    /// it goes. Each is published and confirmed and only then acked; one that is not taken stays.
    ///
    /// Once `cancel` fires, nothing more is taken, what is in flight is finished (for as long as the time-out of
    /// publishing), and the rest handed back. Run again, it goes on where it was.
    ///
    /// # Errors
    ///
    /// See [the table](self#errors). The error carries what was done until then.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no message. What is in flight may be there twice, and nobody is told how many; fire
    /// `cancel` instead.
    pub async fn redrive(
        &self,
        options: RedriveOptions,
        cancel: &CancellationToken,
        on_progress: impl FnMut(Progress) + Send,
    ) -> Result<Redriven, RedriveError> {
        let dry_run = options.dry_run;
        let checked = self.check("redrive").and_then(|()| options.validate(&self.queue));
        if let Err(error) = self.named(checked) {
            return Err(RedriveError::new(
                error,
                Redriven { dry_run, ended: Ended::Failed, ..Redriven::default() },
            ));
        }
        redrive::redrive(self, &options, cancel, on_progress).await
    }

    /// Deletes all messages that are ready, for good, and says how many they were.
    ///
    /// # Errors
    ///
    /// See [the table](self#errors). After `Timeout` or `Disconnected` they may be gone.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves it open whether they are gone.
    pub async fn purge(&self) -> Result<u64> {
        self.named(self.ask_purge().await)
    }

    async fn ask_purge(&self) -> Result<u64> {
        self.check("purge")?;
        let clock = self.rabbit.clock();
        let (live, channel) = on_a_channel(&self.rabbit, "purge").await?;
        let purge = channel.queue_purge(self.queue.as_str().into(), QueuePurgeOptions::default());
        let purged = live.answer(clock, "purge", purge).await?;
        live.answer(clock, "close channel", channel.close(200, "purged".into())).await?;
        Ok(purged.into())
    }

    fn check(&self, operation: &'static str) -> Result<()> {
        if self.queue.is_empty() {
            return Err(Error::new(ErrorKind::Invalid, operation)
                .with_message("`queue` is empty: name the queue with the dead letters"));
        }
        check_short(operation, "name of the queue", &self.queue)
    }

    fn named<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| error.with_context("queue", &self.queue))
    }
}

/// Opens a channel of its own on the connection that consumes: a refusal closes it, and no alarm blocks it.
async fn on_a_channel(rabbit: &RabbitMq, operation: &'static str) -> Result<(Arc<Live>, lapin::Channel)> {
    let Some(live) = within(rabbit.clock(), ANSWER_BOUND, rabbit.consume().live()).await else {
        return Err(Error::new(ErrorKind::Disconnected, operation)
            .with_message(format!("no connection within {ANSWER_BOUND:?}")));
    };
    let live = live?;
    let channel = live.channel(rabbit.clock()).await?;
    Ok((live, channel))
}
