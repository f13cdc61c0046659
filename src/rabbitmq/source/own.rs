//! A queue of a source's own: that of a slot, or of a subscription. The connection that consumes declares it as exclusive:
//! nobody else can have it meanwhile, and it goes with the connection.
//!
//! It is not declared as auto-delete. RabbitMQ would delete it, with all that is in it, whenever its consumer goes, be it
//! for a pause or with a channel that is lost. The source deletes it at its own end instead.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use lapin::options::{QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::{AMQPValue, FieldTable};
use uuid::Uuid;

use super::claims::Claim;
use super::options::Wanted;
use super::session::Session;
use crate::clock::{Clock, within};
use crate::error::{Error, ErrorKind, Result};
use crate::queue::Slot;
use crate::rabbitmq::declare::declare_on;
use crate::rabbitmq::event::RabbitEvent;
use crate::rabbitmq::ladder::LONGEST_QUEUE_NAME;
use crate::rabbitmq::lane::Address;
use crate::rabbitmq::link::Live;
use crate::rabbitmq::look_up::{Entity, look_up, standing};
use crate::rabbitmq::wire::Outgoing;
use crate::rabbitmq::{RabbitMq, error, ladder};

/// How long deleting may take. What is left by then goes with the connection.
const LET_GO_BOUND: Duration = Duration::from_secs(1);

const CLAIM: &str = "claim slot";
const SUBSCRIBE: &str = "subscribe";

pub(super) struct OwnQueue {
    kind: Kind,
    state: Mutex<State>,
}

enum Kind {
    Slot { number: u32, queue: String },
    Subscription { exchange: String },
}

#[derive(Default)]
struct State {
    /// Where the queue was declared last.
    live: Weak<Live>,
    /// What it is called there.
    name: String,
    /// It is declared and deleted on one channel, so that a declare that nobody waits for any more comes before the
    /// delete.
    channel: Option<lapin::Channel>,
    /// Whether the broker may have made it.
    asked_for: bool,
    /// Whether the broker said that it has.
    there: bool,
    /// Whether it was ever there.
    was_there: bool,
    /// The wait queues that are there. One that nobody waited for may be, too: it goes with the connection.
    waits: HashSet<String>,
    /// Of a slot, until it is let go.
    claim: Option<Claim>,
}

/// What a subscription to an exchange calls its queue.
pub(super) fn label(exchange: &str) -> String {
    format!("{exchange}.subscriber")
}

/// What the queue of a subscription is called on one connection. A name that was used on a connection before may belong
/// to that one still.
pub(super) fn unique(exchange: &str) -> String {
    format!("{}.{}", label(exchange), Uuid::new_v4().simple())
}

/// Whether a name of ours can be made of that of an exchange.
pub(super) fn check_exchange(exchange: &str) -> Result<()> {
    let most = LONGEST_QUEUE_NAME - (unique(exchange).len() - exchange.len());
    match exchange.len() {
        0 => Err(Error::new(ErrorKind::Invalid, SUBSCRIBE)
            .with_message("`exchange` is empty: name the fanout exchange")),
        bytes if bytes > most => Err(Error::new(ErrorKind::Invalid, SUBSCRIBE).with_message(format!(
            "`exchange` is {bytes} bytes long: at most {most} leave room for the names of the queues that are made of it"
        ))),
        _ => Ok(()),
    }
}

fn exclusive() -> QueueDeclareOptions {
    QueueDeclareOptions { exclusive: true, ..QueueDeclareOptions::default() }
}

impl OwnQueue {
    /// Makes the queue that is wanted.
    ///
    /// Once `nobody_waits`, no further slot is tried.
    pub(super) async fn make(
        rabbit: &RabbitMq,
        wanted: Wanted,
        nobody_waits: impl Fn() -> bool + Send,
    ) -> Result<Self> {
        let live = standing(rabbit.consume(), rabbit.clock(), "open source").await?;
        match wanted {
            Wanted::Slot { family, slot } => Self::claim(rabbit, &live, &family, slot, nobody_waits).await,
            Wanted::Subscription { exchange } => {
                Self::begin(rabbit, &live, Kind::Subscription { exchange }, None).await
            }
        }
    }

    async fn claim(
        rabbit: &RabbitMq,
        live: &Arc<Live>,
        family: &str,
        slot: Slot,
        nobody_waits: impl Fn() -> bool + Send,
    ) -> Result<Self> {
        let mut last = None;
        for number in slot.candidates() {
            if nobody_waits() {
                return Err(Error::new(ErrorKind::Closed, CLAIM).with_message("nobody waits for it any more"));
            }
            let queue = Slot::queue(family, number);
            let claimed = match rabbit.claims().claim(&queue) {
                Some(claim) => Self::begin(rabbit, live, Kind::Slot { number, queue }, Some(claim)).await,
                None => Err(taken(number, &queue, "another source of this connection has it")),
            };
            match claimed {
                Err(error) if error.kind() == ErrorKind::Taken => last = Some(error),
                done => return done,
            }
        }
        Err(match (slot, last) {
            (Slot::Number(_), Some(taken)) => taken,
            _ => Error::new(ErrorKind::Taken, CLAIM)
                .with_message(format!("none is free: {slot} was asked for"))
                .with_context("family", family),
        })
    }

    async fn begin(rabbit: &RabbitMq, live: &Arc<Live>, kind: Kind, claim: Option<Claim>) -> Result<Self> {
        let own = Self { kind, state: Mutex::new(State { claim, ..State::default() }) };
        match own.declare(rabbit, live).await {
            Ok(_) => Ok(own),
            Err(error) => {
                // It may be there in part, or in spite of the error.
                own.let_go(rabbit).await;
                Err(error)
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn slot(&self) -> Option<u32> {
        match &self.kind {
            Kind::Slot { number, .. } => Some(*number),
            Kind::Subscription { .. } => None,
        }
    }

    /// What the source calls it, on whichever connection.
    pub(super) fn label(&self) -> String {
        match &self.kind {
            Kind::Slot { queue, .. } => queue.clone(),
            Kind::Subscription { exchange } => label(exchange),
        }
    }

    /// Declares it on this connection, where it may be there already; returns its name there.
    ///
    /// # Cancel safety
    ///
    /// It may be there then, and is deleted by [`let_go`](Self::let_go).
    pub(super) async fn declare(&self, rabbit: &RabbitMq, live: &Arc<Live>) -> Result<String> {
        let (name, channel) = self.on(live);
        let channel = match channel {
            Some(channel) if channel.status().connected() => channel,
            _ => {
                let channel = live.channel(rabbit.clock()).await?;
                self.lock().channel = Some(channel.clone());
                channel
            }
        };
        self.lock().asked_for = true;
        match &self.kind {
            Kind::Slot { number, .. } => self.declare_slot(rabbit, live, &channel, *number, &name).await?,
            Kind::Subscription { exchange } => {
                subscribe(rabbit, live, &channel, exchange, &name)
                    .await
                    .map_err(|error| error.with_context("exchange", exchange))?;
            }
        }
        let remade = {
            let mut state = self.lock();
            let first = !std::mem::replace(&mut state.there, true);
            std::mem::replace(&mut state.was_there, true) && first
        };
        if remade {
            rabbit.events().tell(RabbitEvent::QueueRemade { queue: self.label() });
        }
        Ok(name)
    }

    /// The name and the channel for this connection. On another one than before all begins anew.
    fn on(&self, live: &Arc<Live>) -> (String, Option<lapin::Channel>) {
        let mut state = self.lock();
        if !std::ptr::eq(state.live.as_ptr(), Arc::as_ptr(live)) {
            let name = match &self.kind {
                Kind::Slot { queue, .. } => queue.clone(),
                Kind::Subscription { exchange } => unique(exchange),
            };
            let (claim, was_there) = (state.claim.take(), state.was_there);
            *state = State { live: Arc::downgrade(live), name, claim, was_there, ..State::default() };
        }
        (state.name.clone(), state.channel.clone())
    }

    async fn declare_slot(
        &self,
        rabbit: &RabbitMq,
        live: &Live,
        channel: &lapin::Channel,
        number: u32,
        queue: &str,
    ) -> Result<()> {
        let clock = rabbit.clock();
        let declare = channel.queue_declare(queue.into(), exclusive(), classic());
        let error = match live.answer(clock, CLAIM, declare).await {
            Ok(_) => return Ok(()),
            Err(error) if error::is_locked(&error) => error,
            Err(error) => return Err(error.with_context("queue", queue)),
        };
        {
            let mut state = self.lock();
            (state.asked_for, state.there) = (false, false);
        }
        // The broker says the same of a queue that is nobody's alone: that one no claimant will ever let go of.
        if look_up(live, clock, Entity::Queue(queue)).await.is_ok() {
            let text = "a queue of this name is there that belongs to no connection alone: delete it, or name another \
                        family";
            return Err(Error::new(ErrorKind::Refused, CLAIM)
                .with_message(text)
                .with_context("queue", queue)
                .with_context("slot", number.to_string()));
        }
        let why = error.message().unwrap_or("another connection has it");
        Err(taken(number, queue, why))
    }

    /// Publishes to a wait queue that goes with the connection, too. It is declared at its first use.
    pub(super) async fn publish_delayed(
        &self,
        rabbit: &RabbitMq,
        session: &Session,
        copy: Outgoing,
        delay: Duration,
    ) -> Result<()> {
        let (lanes, queue) = (rabbit.lanes(), &session.queue);
        if delay.is_zero() {
            return lanes.publish(Address::queue(queue), copy).await;
        }
        let waits = ladder::exclusive_wait_queue(queue, delay);
        let known = self.lock().waits.contains(&waits);
        if known {
            match lanes.publish(Address::queue(&waits), copy.clone()).await {
                // Somebody deleted it.
                Err(error) if error.kind() == ErrorKind::Unroutable => {}
                done => return done,
            }
        }
        let arguments = ladder::exclusive_arguments(queue, delay);
        self.declare_waits(rabbit, &session.live, &waits, arguments)
            .await
            .map_err(|error| error.with_context("wait queue", &waits))?;
        self.lock().waits.insert(waits.clone());
        lanes.publish(Address::queue(&waits), copy).await
    }

    /// On the channel of the queue itself, where that is open: a burst of retries would else open one for each.
    async fn declare_waits(
        &self,
        rabbit: &RabbitMq,
        live: &Arc<Live>,
        waits: &str,
        arguments: FieldTable,
    ) -> Result<()> {
        let channel = {
            let state = self.lock();
            let same = std::ptr::eq(state.live.as_ptr(), Arc::as_ptr(live));
            state.channel.clone().filter(|channel| same && channel.status().connected())
        };
        let Some(channel) = channel else {
            return declare_on(live, rabbit.clock(), waits, exclusive(), arguments).await;
        };
        let declare = channel.queue_declare(waits.into(), exclusive(), arguments);
        live.answer(rabbit.clock(), "declare queue", declare).await.map(drop)
    }

    /// Deletes it with its wait queues, and gives the slot up.
    pub(super) async fn let_go(&self, rabbit: &RabbitMq) {
        let State { live, name, channel, asked_for, waits, claim, .. } = std::mem::take(&mut *self.lock());
        // Else it has gone with its connection.
        let live = live.upgrade().filter(|live| asked_for && !live.gone().is_cancelled());
        if let Some(live) = live {
            let deleted = delete(rabbit.clock(), &live, channel, &name, &waits);
            let failed = match within(rabbit.clock(), LET_GO_BOUND, deleted).await {
                Some(Ok(())) => None,
                Some(Err(error)) => Some(error.to_string()),
                None => Some(format!("no answer within {LET_GO_BOUND:?}")),
            };
            if let Some(error) = failed {
                // It may be deleted yet: nobody must have the slot over this connection by then.
                let closing = rabbit.closing().clone();
                rabbit.source_tasks().spawn(async move {
                    // Only waits are lost here.
                    tokio::select! {
                        biased;
                        () = live.gone().cancelled() => {}
                        () = closing.cancelled() => {}
                    }
                    drop(claim);
                });
                tracing::warn!(
                    queue = name,
                    error,
                    "could not delete the queue: it goes with the connection"
                );
                return;
            }
        }
        // Only now: whoever claims it over this connection finds none of it.
        drop(claim);
    }
}

/// Declares the queue and binds it. An exchange that is missing is found before there is a queue.
async fn subscribe(
    rabbit: &RabbitMq,
    live: &Live,
    channel: &lapin::Channel,
    exchange: &str,
    queue: &str,
) -> Result<()> {
    let clock = rabbit.clock();
    look_up(live, clock, Entity::Exchange(exchange)).await?;
    live.answer(clock, SUBSCRIBE, channel.queue_declare(queue.into(), exclusive(), classic())).await?;
    let (key, options) = ("".into(), QueueBindOptions::default());
    let bind = channel.queue_bind(queue.into(), exchange.into(), key, options, FieldTable::default());
    live.answer(clock, SUBSCRIBE, bind).await
}

/// Deletes the queue and its wait queues, on the channel on which it was declared where that is open still.
async fn delete(
    clock: &dyn Clock,
    live: &Live,
    channel: Option<lapin::Channel>,
    queue: &str,
    waits: &HashSet<String>,
) -> Result<()> {
    let channel = match channel {
        Some(channel) if channel.status().connected() => channel,
        _ => live.channel(clock).await?,
    };
    // Where the name has come to be that of a queue which is not ours, this is refused, and closes the channel. Else a
    // queue that anybody may delete would be.
    let declare = channel.queue_declare(queue.into(), exclusive(), classic());
    live.answer(clock, "delete queue", declare).await?;
    for queue in std::iter::once(queue).chain(waits.iter().map(String::as_str)) {
        let delete = channel.queue_delete(queue.into(), QueueDeleteOptions::default());
        live.answer(clock, "delete queue", delete).await?;
    }
    live.answer(clock, "close channel", channel.close(200, "done".into())).await
}

/// Only a classic queue can belong to one connection, whatever a virtual host makes by default.
fn classic() -> FieldTable {
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("classic".into()));
    arguments
}

fn taken(number: u32, queue: &str, why: &str) -> Error {
    Error::new(ErrorKind::Taken, CLAIM)
        .with_message(why)
        .with_context("queue", queue)
        .with_context("slot", number.to_string())
}
