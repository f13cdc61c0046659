//! RabbitMQ, by AMQP 0-9-1: a source and a publisher that lose nothing, whatever happens to the connection.
//!
//! ```no_run
//! # #[cfg(feature = "json")]
//! # async fn worker() -> windlass::Result<()> {
//! use windlass::rabbitmq::{QueueType, RabbitMq, RabbitMqConfig};
//! use windlass::{Context, HandlerError, Message, Publisher, QueueConsumer};
//!
//! let rabbit = RabbitMq::connect(RabbitMqConfig::from_env("ORDERS_AMQP")?).await?;
//! let source = rabbit.source("orders").queue_type(QueueType::Quorum).open().await?;
//! let shipments = rabbit.publisher();
//! let ship = move |order: String, _: Context| {
//!     let shipments = shipments.clone();
//!     async move {
//!         let shipment = Message::new(format!("ship {order}"));
//!         shipments.publish("shipments", shipment).await.map_err(HandlerError::failed)
//!     }
//! };
//! let consumer = QueueConsumer::new(source, ship).start()?;
//! // ... until the service is told to stop:
//! let report = consumer.stop().await;
//! rabbit.disconnect().await;
//! # Ok(())
//! # }
//! ```
//!
//! # Terms
//!
//! | here | RabbitMQ |
//! |---|---|
//! | source | a channel with one consumer on one queue |
//! | delivery, receipt | `basic.deliver` and its delivery tag, with the channel that it came on |
//! | ack | `basic.ack`, many in one frame where they come together |
//! | requeue now | `basic.nack` with the requeue flag |
//! | retry | a copy to the queue itself, or to a [wait queue](ladder) that sends it back after the delay; then the ack |
//! | dead-letter | a copy to `<queue>.dlq`, or [where the service says](DeadLetterTo); then the ack |
//! | publish | `basic.publish`, mandatory and persistent, on a channel in confirm mode |
//! | attempt | the header `windlass-attempt` of the copy |
//! | [slot](RabbitMq::claim) | an exclusive classic queue, `<family>_<n>` |
//! | [broadcast](RabbitPublisher::broadcast) | `basic.publish` to a fanout exchange, persistent and confirmed, not mandatory |
//! | [subscription](RabbitMq::subscribe) | an exclusive classic queue, `<exchange>.subscriber.<unique>`, that is bound to it |
//!
//! # What it promises
//!
//! At least once: a message that was confirmed to a publisher is handled and acked, or dead-lettered with its cause, or
//! still on the broker. What was delivered and not settled comes again when its channel ends, for whatever reason; its
//! old receipt is `Stale` then, and settles nothing. AMQP confirms no acks: an ack that was written when the connection
//! went may not have arrived, and then that message comes again too.
//!
//! A retry and a dead letter are moves: the copy is published and confirmed before the original is acked. Where the copy
//! is not taken, the original goes back to its queue, and the error says why. Where it is not known (`Unconfirmed`) both
//! may be there. A copy has the same bytes, the same typed headers and properties; not the user id, `CC`, `BCC`, the
//! expiration, or a death header that the broker would stumble over. It is persistent.
//!
//! # Capabilities
//!
//! Delayed retry (up to ten years, rounded up by at most [an eighth](ladder)), attempts, dead letters, the redelivered
//! flag. Deliveries are counted on quorum queues. A classic queue requeues to the front; for a quorum queue that differs
//! from series to series, so nothing is claimed. Nothing is leased: RabbitMQ closes the channel of a delivery that is not
//! settled within its `consumer_timeout` (30 min by default), and the message comes again.
//!
//! # Connections, and how they come back
//!
//! [`RabbitMq`] owns two connections, one that consumes and one that publishes: an alarm for memory or disk space blocks
//! whoever publishes, and acks must still flow. A connection that is lost is made again, over all hosts, after a wait that
//! grows ([`reconnect_delay`](RabbitMqConfig::reconnect_delay)), with a configuration that is asked for anew each time.
//! One that is silent for two heartbeats is lost. Each source then opens a channel anew, with its prefetch set before it
//! consumes. The same goes for a channel that the broker closes and for a queue that is deleted. Sources fail for good
//! only where the connection does: credentials that are refused, or a virtual host that is missing, for longer than
//! [`refusal_patience`](RabbitMqConfig::refusal_patience).
//!
//! # Queues of a source's own
//!
//! A [slot](RabbitMq::claim) and a [subscription](RabbitMq::subscribe) have a queue that the connection which consumes
//! declares for itself alone. Two connections that claim one slot at the same time never both get it; nor do two sources of
//! one `RabbitMq`, which the broker would not keep apart. When the source is closed or dropped the queue is deleted, with what
//! is in it.
//!
//! **Such a queue goes with its connection, and what is in it goes with it**, what waits for a retry too: a message that
//! was confirmed, and not yet handled, is lost then. It is for what is worth nothing once its consumer is gone. On the next
//! connection the source makes it again before it consumes, or while it is paused, and tells so
//! ([`RabbitEvent::QueueRemade`]). In between, what is sent to a slot is `Unroutable`, and what is broadcast is missed.
//!
//! A connection that was cut may live on for the broker, until it has missed its heartbeats. Its slot is `Taken` until then, as
//! it is where somebody else claimed it meanwhile: the health says so, and each try is told ([`RabbitEvent::SetUpRefused`]), no
//! faster than [`reconnect_delay`](RabbitMqConfig::reconnect_delay). A subscription does not wait for that: its queue has
//! another name on each connection.
//!
//! Delayed retries wait in queues that go with the connection, too, `<queue>.hold.<milliseconds>`.
//! [`publish_later`](RabbitPublisher::publish_later) knows nothing of that: its wait queues are durable, also where the
//! queue at their end is not. RabbitMQ tells nobody that an exchange was deleted: a subscription hears nothing from then
//! on, and finds out on its next connection.
//!
//! What happens is told by [`RabbitMq::watch`], and how things stand by [`RabbitMq::health`] and the source's own.
//!
//! No password stands in an error, an event, a log line or a `Debug` of this crate, and no user. lapin logs for itself: at
//! the level TRACE (`lapin::io_loop`) it writes whole frames, the login among them, and at ERROR it repeats what the broker
//! said, which names the user where a virtual host is refused. Filter the target `lapin` accordingly.
//!
//! # Errors
//!
//! | kind | of | when |
//! |---|---|---|
//! | `Unauthorized`, `NotFound` | connecting | credentials refused; no such virtual host, or no right to it. Not transient |
//! | `Disconnected` | receive | the channel went; the next call waits for the next one |
//! | | ack, nack | the channel went while the answer was written: unknown, the message may come again |
//! | | publish | not sent: no connection, or publishers are blocked, for as long as the time-out |
//! | `Stale` | ack, nack | the channel of the delivery is gone; nothing was sent, the message comes again |
//! | `Unconfirmed` | publish, nack | sent, and no confirm came |
//! | `Unroutable` | publish, nack | no such queue; a dead letter has nowhere to go, and the message is kept |
//! | `Taken` | open | somebody has the slot, or all that were asked for |
//! | `Refused` | publish, nack, open | a full queue, a missing right, a queue that is declared otherwise |
//! | `NotFound` | open, publish to an exchange, broadcast | no such queue; no such exchange |
//! | `Invalid` | connecting, publish | a field of the configuration; headers that do not fit into a frame, a name that is too long |
//! | `Closed` | everything | after `close` and [`disconnect`](RabbitMq::disconnect) |
//!
//! # Choices that may surprise
//!
//! - **A header that the client would not survive is replaced on its way in.** A table nested some hundred deep overflows
//!   the stack of lapin's thread and ends the process; text that is not UTF-8, or a header frame above the agreed size,
//!   ends the connection, and the message comes again on the next one. Any publisher can send these. Such a message is
//!   dead-lettered with the cause `headers_unreadable`, with its properties as bytes where they fit; no handler sees it.
//! - **Every publish is handed to lapin by one task, which owns all confirms.** lapin numbers a publish and queues it under
//!   two locks, so that two at once can swap their outcomes; a confirm that is dropped stays with it; and it attaches a
//!   returned message to whichever confirm comes next.
//! - **Attempts above 1,000,000, and whatever else is no attempt, count as the first.** A header that somebody else wrote
//!   must neither dead-letter a message at once nor have it tried for ever.
//! - **A wait queue is declared at its first use even where it is there already.** One with other arguments might take the
//!   copy and never give it back. It is declared over the connection that no alarm blocks.
//! - **After a loss, one `receive` comes back with nothing** as soon as messages can come again: on a quiet queue a
//!   consumer would learn by nothing else that the row of failed receives has ended.
//! - **A refused login is tried again once the connection had been up**, for
//!   [`refusal_patience`](RabbitMqConfig::refusal_patience): what was right once is more likely to be wrong for a moment.
//! - **The queue of a slot is not declared as auto-delete**, but deleted with its source. RabbitMQ deletes such a queue, with
//!   all that is in it, whenever its consumer goes: for a pause, and with a channel that it closes over a late ack.
//! - **A queue is looked up before it is [deleted](RabbitMq::delete_queue)**, in two steps: the flags `if-empty` and
//!   `if-unused` close the whole connection where it is a quorum queue (540, on 3.10, 4.0 and 4.3).
//! - **Before a channel is closed in order, its queue is asked whether it is there**, once for each 32 of its prefetch. The
//!   broker's channel holds answers to a quorum queue back while 32 are on their way, and forgets them when it is closed: an
//!   ack that was written would be undone.
//! - **On a single node, a quorum queue that was declared seconds before a crash can be lost with what is in it**, wait
//!   queues too: RabbitMQ writes its register of them late (seen on 3.10, 4.0 and 4.3). Declare them beforehand, or use a
//!   cluster.

pub mod config;
mod connect;
pub mod dead_letters;
mod declare;
mod error;
mod event;
pub mod ladder;
mod lane;
mod link;
mod look_up;
mod publisher;
mod queues;
#[cfg(feature = "metrics")]
mod reconnects;
/// Without a recorder there is nothing to count for.
#[cfg(not(feature = "metrics"))]
mod reconnects {
    pub(super) fn count(_: super::event::Role) {}
}
mod returns;
mod runtime;
mod source;
mod unwritten;
mod wire;

use std::fmt;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use futures::future::try_join;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use crate::queue::DeleteQueue;
pub use config::{RabbitMqConfig, Secret};
pub use connect::ConfigProvider;
pub use event::{ConnectionState, RabbitEvent, Role};
pub use publisher::RabbitPublisher;
pub use source::{DeadLetterTo, QueueType, RabbitReceipt, RabbitSource, SourceOptions};
pub use wire::{Delivered, Properties};

use self::event::Events;
use self::link::{Link, LinkOptions};
use self::publisher::Lanes;
use self::source::Claims;
use crate::clock::{Clock, SystemClock, within};
use crate::error::Result;
use crate::queue::Slot;
use crate::source::Health;

/// Two connections to RabbitMQ that come back by themselves: one consumes, one publishes. Cheap to clone.
///
/// Sources and publishers keep it alive. Once nothing does, the connections are closed; [`disconnect`](Self::disconnect)
/// does that at once, and waits for it.
#[derive(Clone)]
pub struct RabbitMq(Arc<Handle>);

struct Handle {
    clock: Arc<dyn Clock>,
    events: Events,
    consume: Link,
    publish: Link,
    lanes: Lanes,
    /// The slots that its sources have.
    claims: Claims,
    /// Ends the sources, which need the connections for that.
    closing: CancellationToken,
    /// Ends what publishes, and the connections.
    stop: CancellationToken,
    sources: TaskTracker,
    tasks: TaskTracker,
}

/// How long the sources may take to end, and the connections after them.
const END_BOUND: Duration = Duration::from_secs(3);

impl RabbitMq {
    /// Connects. Hosts are tried in their order, and again after a wait that grows, until both connections stand.
    ///
    /// `config` is a [`RabbitMqConfig`], or a [`ConfigProvider`] that is asked anew at each try.
    ///
    /// # Errors
    ///
    /// Only where trying again cannot help: `Unauthorized` for credentials that the broker refuses, `NotFound` for a
    /// virtual host that does not exist or that this user has no right to, `Refused` for a certificate that is not
    /// trusted, `Invalid` for a configuration that cannot be right; the text names the field.
    ///
    /// # Cancel safety
    ///
    /// Safe: dropping the future ends the tries.
    pub async fn connect(config: impl Into<ConfigProvider>) -> Result<Self> {
        Self::connect_on(config, SystemClock).await
    }

    /// As [`connect`](Self::connect), with waits on another clock. What lapin waits for (heartbeats) is real time.
    ///
    /// # Errors
    ///
    /// As for [`connect`](Self::connect).
    ///
    /// # Cancel safety
    ///
    /// Safe: dropping the future ends the tries.
    pub async fn connect_on(config: impl Into<ConfigProvider>, clock: impl Clock) -> Result<Self> {
        let rabbit = Self::start(config.into(), Arc::new(clock));
        match rabbit.stands().await {
            Ok(()) => Ok(rabbit),
            Err(error) => {
                rabbit.disconnect().await;
                Err(error)
            }
        }
    }

    /// As [`connect`](Self::connect), for a program that somebody waits for: each host is tried once, and where none can be
    /// reached that is the error. A connection that is lost later comes back all the same.
    ///
    /// # Errors
    ///
    /// As for [`connect`](Self::connect), and what the last host failed with: `Disconnected`, `Timeout`, ...
    ///
    /// # Cancel safety
    ///
    /// Safe: dropping the future ends the tries.
    pub async fn connect_once(config: impl Into<ConfigProvider>) -> Result<Self> {
        let rabbit = Self::start(config.into(), Arc::new(SystemClock));
        let Handle { consume, publish, .. } = &*rabbit.0;
        // Only waits are lost here.
        let failed = tokio::select! {
            biased;
            stands = rabbit.stands() => stands.err(),
            error = consume.first_failure() => Some(error),
            error = publish.first_failure() => Some(error),
        };
        let Some(error) = failed else { return Ok(rabbit) };
        rabbit.disconnect().await;
        Err(error)
    }

    /// A source on `queue`; [`open`](SourceOptions::open) opens it.
    pub fn source(&self, queue: impl Into<String>) -> SourceOptions {
        SourceOptions::new(self.clone(), queue.into())
    }

    /// A source on a queue of its own, `<family>_<n>`, that nobody else can have; [`open`](SourceOptions::open) claims
    /// it, and says `Taken` where somebody has it. [`RabbitSource::slot`] tells which it is.
    ///
    /// The queue is there from then on until the source is closed or dropped, whether it consumes or not. It goes with
    /// the connection, and what is in it with the queue: [see above](self#queues-of-a-sources-own).
    ///
    /// Messages that are given up go to `<family>.dlq`, one for all slots.
    ///
    /// ```no_run
    /// # async fn claim(rabbit: windlass::rabbitmq::RabbitMq) -> windlass::Result<()> {
    /// use std::num::NonZeroU32;
    /// use windlass::queue::Slot;
    ///
    /// let most = NonZeroU32::MIN.saturating_add(7);
    /// let source = rabbit.claim("transport", Slot::FirstFree { most }).open().await?;
    /// println!("this is transport {:?}", source.slot());
    /// # Ok(())
    /// # }
    /// ```
    pub fn claim(&self, family: impl Into<String>, slot: Slot) -> SourceOptions {
        SourceOptions::slot(self.clone(), family.into(), slot)
    }

    /// A source of what is [broadcast](RabbitPublisher::broadcast) to a fanout exchange, by a queue of its own that
    /// [`open`](SourceOptions::open) makes and binds. The exchange is not made: where it is missing, that is `NotFound`.
    ///
    /// Each subscription gets its own copy of each message, from when it is open until it is closed or dropped. It misses
    /// what is sent while it has no connection: [see above](self#queues-of-a-sources-own). Its queue has another name on
    /// each connection; the source calls it `<exchange>.subscriber` on all of them.
    ///
    /// Messages that are given up are dropped by default, [`DeadLetterTo::Drop`]: others have copies of them.
    pub fn subscribe(&self, exchange: impl Into<String>) -> SourceOptions {
        SourceOptions::subscription(self.clone(), exchange.into())
    }

    /// A publisher.
    pub fn publisher(&self) -> RabbitPublisher {
        RabbitPublisher::new(self.clone())
    }

    /// How a connection stands.
    pub fn state(&self, role: Role) -> ConnectionState {
        match role {
            Role::Consume => self.0.consume.state(),
            Role::Publish => self.0.publish.state(),
        }
    }

    /// What happens from here on to the connections and the sources. One that is not polled falls behind, and is told how
    /// much it [missed](RabbitEvent::Missed).
    pub fn watch(&self) -> impl Stream<Item = RabbitEvent> + Send + Unpin + 'static {
        self.0.events.listen()
    }

    /// Ready while both connections stand and the broker takes messages; else what is wrong.
    pub fn health(&self) -> Health {
        let mut reasons = Vec::new();
        for role in [Role::Consume, Role::Publish] {
            match self.state(role) {
                ConnectionState::Connected => {}
                ConnectionState::Disconnected => return Health::Closed,
                ConnectionState::Connecting => reasons.push(format!("{role}: connecting")),
                ConnectionState::Blocked { reason } => reasons.push(format!("{role}: blocked: {reason}")),
                ConnectionState::Retrying { error, .. } | ConnectionState::Fatal(error) => {
                    reasons.push(format!("{role}: {error}"));
                }
            }
        }
        if reasons.is_empty() { Health::Ready } else { Health::NotReady { reason: reasons.join("; ") } }
    }

    /// Closes the sources, then the connections: what was settled is told to the broker, what was not goes back to it.
    /// Final: nothing connects again, and what is asked of sources and publishers fails with `Closed`. Takes a few
    /// seconds at most, whatever the broker does; any number of tasks may call it, any number of times.
    ///
    /// # Cancel safety
    ///
    /// Everything ends all the same.
    pub async fn disconnect(&self) {
        let Handle { clock, closing, stop, sources, tasks, .. } = &*self.0;
        closing.cancel();
        sources.close();
        // A source that takes longer is ended with its connection.
        let _ = within(&**clock, END_BOUND, sources.wait()).await;
        stop.cancel();
        tasks.close();
        // A connection that does not close by then has no socket any more.
        let _ = within(&**clock, END_BOUND, tasks.wait()).await;
    }

    /// Starts the tasks that keep the connections.
    fn start(provider: ConfigProvider, clock: Arc<dyn Clock>) -> Self {
        let events = Events::new();
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let link = |role| {
            let (provider, events) = (provider.clone(), events.clone());
            let options =
                LinkOptions { role, clock: Arc::clone(&clock), events, provider, stop: stop.clone() };
            Link::start(options, &tasks)
        };
        let (consume, publish) = (link(Role::Consume), link(Role::Publish));
        let lanes =
            Lanes::new(publish.clone(), consume.clone(), Arc::clone(&clock), tasks.clone(), stop.clone());
        let (closing, sources) = (CancellationToken::new(), TaskTracker::new());
        let claims = Claims::default();
        Self(Arc::new(Handle {
            clock,
            events,
            consume,
            publish,
            lanes,
            claims,
            closing,
            stop,
            sources,
            tasks,
        }))
    }

    /// Waits until both connections stand.
    async fn stands(&self) -> Result<()> {
        try_join(self.0.consume.live(), self.0.publish.live()).await.map(drop)
    }

    fn clock(&self) -> &dyn Clock {
        &*self.0.clock
    }

    fn shared_clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.0.clock)
    }

    fn events(&self) -> &Events {
        &self.0.events
    }

    /// The connection that consumes.
    fn consume(&self) -> &Link {
        &self.0.consume
    }

    /// The connection that publishes.
    fn publishing(&self) -> &Link {
        &self.0.publish
    }

    fn lanes(&self) -> &Lanes {
        &self.0.lanes
    }

    fn claims(&self) -> &Claims {
        &self.0.claims
    }

    fn frame_max(&self) -> u32 {
        self.publishing().frame_max()
    }

    fn prefetch(&self) -> Option<NonZeroU16> {
        self.0.consume.settings().prefetch
    }

    /// Cancelled when sources are to end.
    fn closing(&self) -> &CancellationToken {
        &self.0.closing
    }

    /// The tasks of sources.
    fn source_tasks(&self) -> &TaskTracker {
        &self.0.sources
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.closing.cancel();
        self.stop.cancel();
    }
}

impl fmt::Debug for RabbitMq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitMq").field("health", &self.health()).finish_non_exhaustive()
    }
}

/// Where the dead letters of `queue` go by default: `<queue>.dlq`.
pub fn dead_letter_queue(queue: &str) -> String {
    format!("{queue}.dlq")
}
