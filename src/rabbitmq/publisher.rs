//! The publisher: confirmed, mandatory, persistent.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared, WeakShared};
use lapin::types::FieldTable;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::declare::{check_name, check_short, declare};
use super::lane::{Address, Lane};
use super::link::Link;
use super::look_up::{Entity, look_up, standing};
use super::wire::{self, Outgoing};
use super::{RabbitMq, error, ladder};
use crate::clock::{Clock, within};
use crate::error::{Error, ErrorKind, Result};
use crate::message::Message;
use crate::publisher::Publisher;

/// Publishes to RabbitMQ. Cheap to clone; all clones, and the copies that sources make, go over one connection.
///
/// Each message is published as mandatory and persistent, and `publish` resolves once the broker has confirmed it. Many
/// may be in flight at once. What a message carries beyond the common fields is set with
/// [`Properties`](super::Properties):
///
/// ```
/// use windlass::message::Message;
/// use windlass::rabbitmq::Properties;
///
/// let urgent = Message::new("{}").with_metadata(Properties::default().with_priority(9));
/// ```
#[derive(Clone)]
pub struct RabbitPublisher(RabbitMq);

impl RabbitPublisher {
    pub(super) fn new(rabbit: RabbitMq) -> Self {
        Self(rabbit)
    }

    /// Sends `message` to an exchange, as [`publish`](Publisher::publish) does to a queue.
    ///
    /// # Errors
    ///
    /// As for [`publish`](Publisher::publish): `Unroutable` where nothing is bound to the exchange for this routing key;
    /// `NotFound` where there is no such exchange.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves it open whether the broker took the message.
    pub async fn publish_to(&self, exchange: &str, routing_key: &str, message: Message) -> Result<()> {
        let outgoing = self.outgoing(&message)?;
        self.0.lanes().publish(Address::exchange(exchange, routing_key), outgoing).await
    }

    /// Sends `message` to everybody who [subscribes](RabbitMq::subscribe) to a fanout exchange. It is confirmed and
    /// persistent as any other, but nobody needs to be there: to none it is a success, too.
    ///
    /// The exchange is not declared: whoever sets up the broker does that.
    ///
    /// # Errors
    ///
    /// As for [`publish`](Publisher::publish), without `Unroutable`; `NotFound` where there is no such exchange;
    /// `Invalid` where none is named.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves it open whether the broker took the message.
    pub async fn broadcast(&self, exchange: &str, message: Message) -> Result<()> {
        if exchange.is_empty() {
            // The default exchange would take it for the queue without a name, and drop it.
            return Err(Error::new(ErrorKind::Invalid, "broadcast")
                .with_message("`exchange` is empty: name the fanout exchange"));
        }
        check_short("broadcast", "exchange", exchange)?;
        let outgoing = self.outgoing(&message)?;
        let lanes = self.0.lanes();
        if !lanes.exchanges().contains(exchange) {
            // On the heap: it is done once, and a handler would carry it around with each broadcast.
            Box::pin(self.look_up_exchange(exchange)).await?;
            lanes.exchanges().insert(exchange.to_owned());
        }
        let sent = lanes.publish(Address::everybody(exchange), outgoing).await;
        // It may have been deleted: the next one looks again.
        if sent
            .as_ref()
            .is_err_and(|error| matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Unconfirmed))
        {
            lanes.exchanges().remove(exchange);
        }
        sent
    }

    /// The broker closes a channel over an exchange that is missing, and what else is in flight there is unknown then: so
    /// it is looked up first, over the other connection. Where it cannot be, the broker says so of what is sent.
    async fn look_up_exchange(&self, exchange: &str) -> Result<()> {
        let (rabbit, clock) = (&self.0, self.0.clock());
        let bound = rabbit.publishing().settings().publish_timeout;
        let look = async {
            let live = standing(rabbit.consume(), clock, "broadcast").await?;
            look_up(&live, clock, Entity::Exchange(exchange)).await
        };
        match within(clock, bound, look).await {
            Some(Err(error)) if error.kind() == ErrorKind::NotFound => {
                Err(error.with_context("exchange", exchange))
            }
            _ => Ok(()),
        }
    }

    /// Sends `message` to `queue` so that it gets there after `delay`, rounded up to a [step of the ladder](ladder).
    /// It waits in a queue on the broker, which is declared at its first use.
    ///
    /// # Errors
    ///
    /// As for [`publish`](Publisher::publish), but the queue is not looked for: where there is none when the delay
    /// ends, RabbitMQ keeps the message in the wait queue. `Refused` where this user may not declare the wait queue, or
    /// it is there with other arguments.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves it open whether the broker took the message.
    pub async fn publish_later(&self, queue: &str, message: Message, delay: Duration) -> Result<()> {
        let outgoing = self.outgoing(&message)?;
        self.0.lanes().publish_delayed(queue, outgoing, delay).await
    }

    fn outgoing(&self, message: &Message) -> Result<Outgoing> {
        let outgoing = wire::outgoing(message, self.0.frame_max())?;
        // The broker would close the channel over it, with all that is in flight there.
        let user_id = outgoing.properties.user_id().as_ref();
        if user_id.is_some_and(|user_id| user_id.as_str() != &*self.0.publishing().settings().user) {
            return Err(Error::new(ErrorKind::Invalid, "publish")
                .with_message("`user_id` is not the user that this connection logs in as: leave it out"));
        }
        Ok(outgoing)
    }
}

impl Publisher for RabbitPublisher {
    async fn publish(&self, queue: &str, message: Message) -> Result<()> {
        let outgoing = self.outgoing(&message)?;
        self.0.lanes().publish(Address::queue(queue), outgoing).await
    }

    async fn broadcast(&self, exchange: &str, message: Message) -> Result<()> {
        // The method of its own, which comes first.
        self.broadcast(exchange, message).await
    }
}

impl fmt::Debug for RabbitPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitPublisher").finish_non_exhaustive()
    }
}

/// The channels that publish. Queues and exchanges have one each: the broker closes a channel over an exchange that does
/// not exist, and all that is in flight there is unknown then.
pub(super) struct Lanes {
    link: Link,
    /// Over it wait queues are declared: an alarm does not block it.
    consume: Link,
    clock: Arc<dyn Clock>,
    tasks: TaskTracker,
    stop: CancellationToken,
    queues: OnceLock<Lane>,
    exchanges: OnceLock<Lane>,
    /// The exchanges that are there, unless somebody deleted them since.
    found: Mutex<HashSet<String>>,
    /// The wait queues that are as they must be, unless somebody deleted them since: a few for each work queue.
    known: Mutex<HashSet<String>>,
    /// The wait queues that are being made.
    making: Mutex<HashMap<String, WeakShared<BoxFuture<'static, Result<()>>>>>,
}

/// A declare that any number may wait for.
type Making = Shared<BoxFuture<'static, Result<()>>>;

impl Lanes {
    pub(super) fn new(
        link: Link,
        consume: Link,
        clock: Arc<dyn Clock>,
        tasks: TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        let (queues, exchanges) = (OnceLock::new(), OnceLock::new());
        let (found, known, making) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { link, consume, clock, tasks, stop, queues, exchanges, found, known, making }
    }

    pub(super) async fn publish(&self, address: Address, outgoing: Outgoing) -> Result<()> {
        check_short("publish", "exchange", &address.exchange)?;
        check_short("publish", "routing key", &address.routing_key)?;
        let lane = if address.exchange.is_empty() { &self.queues } else { &self.exchanges };
        let lane = lane.get_or_init(|| {
            let (lane, driver) = Lane::new(self.link.clone(), Arc::clone(&self.clock), self.stop.clone());
            self.tasks.spawn(driver);
            lane
        });
        // On the heap, so that whoever publishes, a handler mostly, does not carry the message around in its future.
        Box::pin(lane.publish(address, outgoing, self.link.settings().publish_timeout)).await
    }

    /// Publishes to a wait queue, which is declared at its first use: out of one that is there with other arguments the
    /// message might never come back. It may be deleted later, so the broker is asked at each publish, by the mandatory
    /// flag.
    pub(super) async fn publish_delayed(
        &self,
        queue: &str,
        outgoing: Outgoing,
        delay: Duration,
    ) -> Result<()> {
        if delay.is_zero() {
            return self.publish(Address::queue(queue), outgoing).await;
        }
        check_name("publish", queue)?;
        let waits = ladder::wait_queue(queue, delay);
        if self.known().contains(&waits) {
            match self.publish(Address::queue(&waits), outgoing.clone()).await {
                // A quorum queue that is just being made is found already, and refuses what comes.
                Err(error) if matches!(error.kind(), ErrorKind::Unroutable | ErrorKind::Refused) => {}
                done => return done,
            }
        }
        let made = self.make(&waits, ladder::arguments(queue, delay)).await;
        let forbidden = match made.map_err(|error| error.with_context("wait queue", &waits)) {
            Ok(()) => None,
            // Then somebody who may has made it, or the broker returns what is sent there.
            Err(error) if error::is_forbidden(&error) => Some(error),
            Err(error) => return Err(error),
        };
        match (self.publish(Address::queue(&waits), outgoing).await, forbidden) {
            (Err(error), Some(forbidden)) if error.kind() == ErrorKind::Unroutable => Err(forbidden),
            (Err(error), _) => Err(error),
            (Ok(()), _) => {
                self.known().insert(waits);
                Ok(())
            }
        }
    }

    fn known(&self) -> MutexGuard<'_, HashSet<String>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn exchanges(&self) -> MutexGuard<'_, HashSet<String>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a wait queue. Those that need the same one at the same time wait for the same declare: the broker answers
    /// another one before the queue is ready.
    fn make(&self, queue: &str, arguments: FieldTable) -> Making {
        let mut making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that are done, or that nobody waits for any more, go.
        making.retain(|_, made| made.upgrade().is_some_and(|made| made.peek().is_none()));
        if let Some(made) = making.get(queue).and_then(WeakShared::upgrade) {
            return made;
        }
        let (link, clock, name) = (self.consume.clone(), Arc::clone(&self.clock), queue.to_owned());
        let made = async move { declare(&link, &*clock, &name, arguments).await }.boxed().shared();
        making.extend(made.downgrade().map(|made| (queue.to_owned(), made)));
        made
    }
}
