//! A channel that publishes. One task owns it: it hands publishes to lapin one after the other, since lapin numbers and
//! queues a publish under two locks, and two at once can swap their confirms. And it owns all confirms, since a time-out
//! that drops one would leave it with lapin as long as the channel lives.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt, poll};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{BasicProperties, Confirmation};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::error;
use super::link::{Link, Live};
use super::returns::{Confirmed, Identity, Publishes};
use super::unwritten::{Unwritten, Writing};
use super::wire::Outgoing;
use crate::clock::{Clock, within};
use crate::error::{Error, ErrorKind, Result};

/// Where a message is sent to.
#[derive(Debug, Clone)]
pub(super) struct Address {
    pub(super) exchange: String,
    pub(super) routing_key: String,
    /// Whether somebody must get it: else a message that no queue takes is confirmed all the same.
    pub(super) mandatory: bool,
}

impl Address {
    /// To a queue, by the default exchange.
    pub(super) fn queue(name: impl Into<String>) -> Self {
        Self { exchange: String::new(), routing_key: name.into(), mandatory: true }
    }

    pub(super) fn exchange(exchange: impl Into<String>, routing_key: impl Into<String>) -> Self {
        Self { exchange: exchange.into(), routing_key: routing_key.into(), mandatory: true }
    }

    /// To everybody who is bound to an exchange, be it nobody.
    pub(super) fn everybody(exchange: impl Into<String>) -> Self {
        Self { exchange: exchange.into(), routing_key: String::new(), mandatory: false }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.exchange.is_empty() {
            return f.write_str(&self.routing_key);
        }
        write!(f, "exchange {} with key {}", self.exchange, self.routing_key)
    }
}

/// How many publishes may wait to be handed over. More wait in their callers.
const WAITING: usize = 256;

/// How many are handed over before the confirms are looked at.
const BATCH: usize = 64;

/// A handle on the task of one channel.
pub(super) struct Lane {
    requests: mpsc::Sender<Request>,
    link: Link,
    clock: Arc<dyn Clock>,
    trouble: Trouble,
}

/// Why the channel could not be opened, for those whose publish waits for it.
type Trouble = Arc<Mutex<Option<Error>>>;

struct Request {
    address: Address,
    outgoing: Outgoing,
    stage: Arc<Stage>,
    answer: oneshot::Sender<Result<()>>,
}

/// Whether a publish went to lapin. Its caller and the lane may want to decide that at the same time.
struct Stage(AtomicU8);

impl Stage {
    const WAITING: u8 = 0;
    const HANDED_OVER: u8 = 1;
    const GIVEN_UP: u8 = 2;

    /// True for the first who says what becomes of it.
    fn decide(&self, stage: u8) -> bool {
        self.0.compare_exchange(Self::WAITING, stage, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

impl Lane {
    /// A lane, and its task.
    pub(super) fn new(
        link: Link,
        clock: Arc<dyn Clock>,
        stop: CancellationToken,
    ) -> (Self, impl Future<Output = ()>) {
        let (requests, received) = mpsc::channel(WAITING);
        let trouble = Trouble::default();
        let driver = Driver {
            link: link.clone(),
            clock: Arc::clone(&clock),
            requests: received,
            trouble: Arc::clone(&trouble),
            failures: 0,
            stop,
            held: None,
        };
        (Self { requests, link, clock, trouble }, driver.run())
    }

    /// Publishes, and waits for the confirm for as long as `timeout`.
    pub(super) async fn publish(
        &self,
        address: Address,
        outgoing: Outgoing,
        timeout: Duration,
    ) -> Result<()> {
        let stage = Arc::new(Stage(AtomicU8::new(Stage::WAITING)));
        let (answer, answered) = oneshot::channel();
        let request = Request { address, outgoing, stage: Arc::clone(&stage), answer };
        let confirmed = async {
            if self.requests.send(request).await.is_err() {
                return None;
            }
            answered.await.ok()
        };
        match within(&*self.clock, timeout, confirmed).await {
            Some(Some(outcome)) => outcome,
            // The lane has ended.
            Some(None) if stage.decide(Stage::GIVEN_UP) => Err(Error::new(ErrorKind::Closed, "publish")),
            Some(None) => {
                Err(Error::new(ErrorKind::Unconfirmed, "publish").with_message("disconnected meanwhile"))
            }
            None if stage.decide(Stage::GIVEN_UP) => Err(self.not_sent(timeout)),
            None => Err(self.unconfirmed(timeout)),
        }
    }

    fn not_sent(&self, timeout: Duration) -> Error {
        let why = if let Some(reason) = self.link.blocked() {
            format!("RabbitMQ blocks publishers ({reason}), nothing was sent within {timeout:?}")
        } else if let Some(error) = &*self.trouble.lock().unwrap_or_else(PoisonError::into_inner) {
            format!("nothing was sent within {timeout:?}: {error}")
        } else {
            format!("nothing was sent within {timeout:?}")
        };
        Error::new(ErrorKind::Disconnected, "publish").with_message(why)
    }

    fn unconfirmed(&self, timeout: Duration) -> Error {
        let why = match self.link.blocked() {
            Some(reason) => format!("no confirm within {timeout:?}, RabbitMQ blocks publishers ({reason})"),
            None => format!("no confirm within {timeout:?}"),
        };
        Error::new(ErrorKind::Unconfirmed, "publish").with_message(why)
    }
}

/// What came of one publish.
struct Told {
    sequence: u64,
    confirmation: lapin::Result<Confirmation>,
}

/// A channel in confirm mode, and what was published on it.
struct Open {
    live: Arc<Live>,
    /// Shared, since a clone of lapin's counts a dozen references.
    channel: Arc<lapin::Channel>,
    unwritten: Unwritten,
    sequence: u64,
    publishes: Publishes<oneshot::Sender<Result<()>>>,
    confirms: FuturesUnordered<BoxFuture<'static, Told>>,
    /// Which publish the broker closed the channel over, as far as is known, once it has.
    culprit: Option<Option<u64>>,
}

/// The task.
struct Driver {
    link: Link,
    clock: Arc<dyn Clock>,
    requests: mpsc::Receiver<Request>,
    trouble: Trouble,
    /// How often in a row the channel could not be opened.
    failures: u32,
    stop: CancellationToken,
    /// Taken, when the channel was gone: the next one sends it.
    held: Option<Request>,
}

impl Driver {
    async fn run(mut self) {
        let stop = self.stop.clone();
        // Whoever waits for an answer is told by the end of its sender: the outcome is unknown.
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = self.drive() => {}
        }
    }

    async fn drive(&mut self) {
        loop {
            let opened = match self.link.live().await {
                Ok(live) => Open::new(live, &*self.clock).await,
                // There will never be a connection again.
                Err(error) => return self.refuse_all(error).await,
            };
            match opened {
                Ok(open) => {
                    self.failures = 0;
                    self.set_trouble(None);
                    if !self.serve(open).await {
                        return;
                    }
                }
                Err(error) => {
                    self.failures = self.failures.saturating_add(1);
                    self.set_trouble(Some(error));
                    self.clock.sleep(self.link.settings().backoff.delay(self.failures, 0)).await;
                }
            }
        }
    }

    fn set_trouble(&self, trouble: Option<Error>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    async fn refuse_all(&mut self, error: Error) {
        while let Some(request) = self.next().await {
            if request.stage.decide(Stage::HANDED_OVER) {
                // Nobody waits for it any more.
                let _ = request.answer.send(Err(error.clone()));
            }
        }
    }

    async fn next(&mut self) -> Option<Request> {
        match self.held.take() {
            Some(request) => Some(request),
            None => self.requests.recv().await,
        }
    }

    /// Publishes on one channel until it is gone. False when nobody publishes any more.
    async fn serve(&mut self, mut open: Open) -> bool {
        while open.is_usable() {
            let (blocked, has_room) = (open.live.is_blocked(), open.unwritten.has_room());
            // A request or a confirm that is taken is dealt with in the same step; the others only wait.
            tokio::select! {
                biased;
                Some(told) = open.confirms.next() => open.round(told),
                () = open.live.blocked_is_not(blocked) => {}
                () = open.unwritten.fewer(), if !has_room => {}
                // Nothing is written to a connection that is blocked: what waits here was not sent.
                request = self.next(), if !blocked && has_room => {
                    let Some(request) = request else { return false };
                    if !open.is_usable() {
                        self.held = Some(request);
                        break;
                    }
                    open.publish(request).await;
                    for _ in 0..BATCH {
                        if !open.unwritten.has_room() || !open.is_usable() {
                            break;
                        }
                        let Ok(request) = self.requests.try_recv() else { break };
                        open.publish(request).await;
                    }
                }
                () = open.live.gone().cancelled() => break,
            }
        }
        open.end().await;
        true
    }
}

impl Open {
    async fn new(live: Arc<Live>, clock: &dyn Clock) -> Result<Self> {
        let channel = live.channel(clock).await?;
        let select = channel.confirm_select(ConfirmSelectOptions::default());
        live.answer(clock, "ask for confirms", select).await?;
        Ok(Self {
            live,
            channel: Arc::new(channel),
            unwritten: Unwritten::default(),
            sequence: 0,
            publishes: Publishes::default(),
            confirms: FuturesUnordered::new(),
            culprit: None,
        })
    }

    fn is_usable(&self) -> bool {
        self.channel.status().connected() && !self.live.gone().is_cancelled()
    }

    /// Hands one publish to lapin, which takes it at the first poll.
    async fn publish(&mut self, request: Request) {
        let Request { address, outgoing, stage, answer } = request;
        if answer.is_closed() || !stage.decide(Stage::HANDED_OVER) {
            return;
        }
        self.sequence += 1;
        let sequence = self.sequence;
        let Address { exchange, routing_key, mandatory } = address;
        let Outgoing { properties, body } = outgoing;
        let message_id = properties.message_id().as_ref().map(ToString::to_string);
        let identity = Identity { exchange, routing_key, mandatory, message_id, len: body.len() };
        let content = (properties, body, self.unwritten.add(identity.len));
        let mut confirm = confirmed(Arc::clone(&self.channel), sequence, &identity, content).boxed();
        match poll!(confirm.as_mut()) {
            Poll::Pending => {
                self.publishes.sent(sequence, identity, answer);
                self.confirms.push(confirm);
            }
            Poll::Ready(told) if was_not_sent(&told) => {
                let not_sent =
                    Error::new(ErrorKind::Disconnected, "publish").with_message("the channel was gone");
                // Nobody waits for it any more.
                let _ = answer.send(Err(not_sent));
            }
            // It was confirmed as quickly as that.
            Poll::Ready(told) => {
                self.publishes.sent(sequence, identity, answer);
                self.round(told);
            }
        }
    }

    /// Takes all that was confirmed up to now. lapin tells in the order in which the broker does.
    fn round(&mut self, first: Told) {
        let mut told = vec![first];
        while let Some(Some(more)) = self.confirms.next().now_or_never() {
            told.push(more);
        }
        let mut confirms = Vec::with_capacity(told.len());
        for Told { sequence, confirmation } in told {
            match confirmation {
                Ok(confirmation) => {
                    let nacked = !confirmation.is_ack();
                    let returned = confirmation.take_message().map(|message| identity_of(&message.delivery));
                    confirms.push(Confirmed { sequence, nacked, returned });
                }
                Err(error) => self.fail(sequence, &error),
            }
        }
        for (answer, outcome) in self.publishes.confirm(confirms) {
            // Nobody waits for it any more: it gave up at the time-out.
            let _ = answer.send(outcome);
        }
    }

    /// The channel went before the confirm came.
    fn fail(&mut self, sequence: u64, error: &lapin::Error) {
        let failed = error::classify("publish", error);
        // Looked for once, while all that went with the channel are still there.
        let culprit = *self
            .culprit
            .get_or_insert_with(|| self.publishes.last(|identity| is_over(&failed, &identity.exchange)));
        let Some((identity, answer)) = self.publishes.remove(sequence) else { return };
        let failed = if culprit == Some(sequence) {
            failed.with_context("exchange", identity.exchange)
        } else {
            Error::new(ErrorKind::Unconfirmed, "publish").with_message(error::text(error))
        };
        let _ = answer.send(Err(failed));
    }

    /// The channel is gone: each confirm that is left ends with an error, at once.
    async fn end(mut self) {
        while let Some(told) = self.confirms.next().await {
            self.round(told);
        }
    }
}

/// Whether the broker closed the channel over a message to this exchange, which is missing, or this user has no right to.
/// It names the exchange and not the message. The last one that was sent there was surely not taken; those before it may
/// have been, while the exchange was there.
fn is_over(failed: &Error, exchange: &str) -> bool {
    let name = if exchange.is_empty() { "amq.default" } else { exchange };
    let names = |text: &str| text.contains(&format!("exchange '{name}'"));
    matches!(failed.kind(), ErrorKind::NotFound | ErrorKind::Refused) && failed.message().is_some_and(names)
}

/// lapin looks at the state of the channel before it takes a message.
fn was_not_sent(told: &Told) -> bool {
    let refused = |error: &lapin::Error| matches!(error.kind(), lapin::ErrorKind::InvalidChannelState(..));
    told.confirmation.as_ref().err().is_some_and(refused)
}

/// Publishes and waits for the confirm, which is never dropped before it is there.
fn confirmed(
    channel: Arc<lapin::Channel>,
    sequence: u64,
    identity: &Identity,
    (properties, body, writing): (BasicProperties, Bytes, Writing),
) -> impl Future<Output = Told> + Send + use<> {
    let exchange = identity.exchange.as_str().into();
    let routing_key = identity.routing_key.as_str().into();
    // Without the mandatory flag, RabbitMQ confirms a message to a queue that does not exist.
    let options = BasicPublishOptions { mandatory: identity.mandatory, ..BasicPublishOptions::default() };
    async move {
        let written = channel.basic_publish(exchange, routing_key, options, &body, properties).await;
        // The confirm may be a long time coming, or never come.
        drop((body, writing));
        let confirmation = match written {
            Ok(confirm) => confirm.await,
            Err(error) => Err(error),
        };
        Told { sequence, confirmation }
    }
}

fn identity_of(returned: &lapin::message::Delivery) -> Identity {
    Identity {
        exchange: returned.exchange.to_string(),
        routing_key: returned.routing_key.to_string(),
        // No other is returned.
        mandatory: true,
        message_id: returned.properties.message_id().as_ref().map(ToString::to_string),
        len: returned.data.len(),
    }
}
