//! One connection that comes back: who makes it, who waits for it, and how it ends. One task owns it all.

use std::num::NonZeroU16;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use futures::{Stream, StreamExt};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::config::RabbitMqConfig;
use super::connect::{ConfigProvider, Connected, Socket, connect};
use super::error;
use super::event::{ConnectionState, Events, RabbitEvent, Role};
use super::reconnects;
use crate::backoff::Backoff;
use crate::clock::{Clock, within};
use crate::error::{Error, ErrorKind, Result};

/// A connection that stands, or stood.
pub(super) struct Live {
    connection: lapin::Connection,
    /// Fires when it is gone.
    gone: CancellationToken,
    why: OnceLock<Error>,
    /// Told by whoever finds that it does not answer as it should.
    suspected: Notify,
    blocked: watch::Sender<bool>,
    socket: Socket,
}

/// How long a peer may take to answer on an open connection, be it to open a channel or to close one.
pub(super) const ANSWER_BOUND: Duration = Duration::from_secs(10);

/// How far a wait before a try is moved at random, as a share of it: services that lost the same broker do not all come
/// back at once.
const RECONNECT_JITTER: f64 = 0.2;

/// The largest frame in bytes until a connection stands: RabbitMQ's default.
const FRAME_MAX: u32 = 131_072;

/// How long a close may take; under an alarm the broker does not answer at all.
const CLOSE_BOUND: Duration = Duration::from_secs(1);

/// How long lapin may take to say why a connection is gone.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// How often a connection is looked at, should no event have told that it is gone.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Live {
    /// Opens a channel.
    pub(super) async fn channel(&self, clock: &dyn Clock) -> Result<lapin::Channel> {
        self.answer(clock, "open channel", self.connection.create_channel()).await
    }

    /// Waits for an answer of the broker's: bounded, and no longer than the connection stands.
    pub(super) async fn answer<T>(
        &self,
        clock: &dyn Clock,
        operation: &'static str,
        work: impl Future<Output = lapin::Result<T>>,
    ) -> Result<T> {
        // What is lost here is lost with the connection.
        let answer = tokio::select! {
            biased;
            answer = within(clock, ANSWER_BOUND, work) => answer,
            () = self.gone.cancelled() => return Err(self.lost(operation)),
        };
        match answer {
            Some(Ok(answer)) => Ok(answer),
            Some(Err(error)) => {
                self.suspected.notify_one();
                Err(error::classify(operation, &error))
            }
            None => Err(Error::new(ErrorKind::Timeout, operation)
                .with_message(format!("RabbitMQ did not answer within {ANSWER_BOUND:?}"))),
        }
    }

    pub(super) fn gone(&self) -> &CancellationToken {
        &self.gone
    }

    /// Why it is gone, for an operation that found out.
    pub(super) fn lost(&self, operation: &'static str) -> Error {
        let error = Error::new(ErrorKind::Disconnected, operation);
        match self.why.get() {
            Some(why) => error.with_message(why.message().unwrap_or("the connection is gone").to_owned()),
            None => error.with_message("the connection is gone"),
        }
    }

    /// The largest frame that may be sent, in bytes; zero is no limit.
    fn frame_max(&self) -> u32 {
        self.connection.configuration().frame_max()
    }

    /// Waits until the broker blocks publishers, or no longer does. Nothing at all is written to a connection that is
    /// blocked.
    pub(super) async fn blocked_is_not(&self, was: bool) {
        let mut blocked = self.blocked.subscribe();
        // The sender lives as long as `self`.
        let _ = blocked.wait_for(|blocked| *blocked != was).await;
    }

    pub(super) fn is_blocked(&self) -> bool {
        *self.blocked.borrow()
    }

    /// It is lost, or about to be closed.
    fn end(&self, why: Error) {
        // The first reason is the one.
        let _ = self.why.set(why);
        self.gone.cancel();
    }
}

/// What others see of a connection.
struct Shared {
    role: Role,
    clock: Arc<dyn Clock>,
    events: Events,
    state: watch::Sender<ConnectionState>,
    live: watch::Sender<Current>,
    settings: Mutex<Settings>,
    frame_max: AtomicU32,
    stop: CancellationToken,
}

/// What the last configuration says of what is done on an open connection.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) user: Arc<str>,
    pub(super) prefetch: Option<NonZeroU16>,
    pub(super) publish_timeout: Duration,
    pub(super) backoff: Backoff,
    refusal_patience: Duration,
    connect_timeout: Duration,
}

impl Settings {
    fn of(config: &RabbitMqConfig) -> Self {
        Self {
            user: config.user.as_str().into(),
            prefetch: config.prefetch,
            publish_timeout: config.publish_timeout,
            backoff: Backoff::new(config.reconnect_delay)
                .with_max(config.reconnect_max_delay)
                .with_jitter(RECONNECT_JITTER),
            refusal_patience: config.refusal_patience,
            connect_timeout: config.connect_timeout,
        }
    }
}

#[derive(Clone)]
enum Current {
    None,
    Live(Arc<Live>),
    /// There will be none any more.
    Over(Error),
}

impl Shared {
    fn settings(&self) -> Settings {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A handle on one connection.
#[derive(Clone)]
pub(super) struct Link(Arc<Shared>);

/// What [`Link::start`] needs.
pub(super) struct LinkOptions {
    pub(super) role: Role,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) events: Events,
    pub(super) provider: ConfigProvider,
    pub(super) stop: CancellationToken,
}

impl Link {
    /// Starts the task that keeps the connection.
    pub(super) fn start(options: LinkOptions, tasks: &TaskTracker) -> Self {
        let LinkOptions { role, clock, events, provider, stop } = options;
        let shared = Arc::new(Shared {
            role,
            clock,
            events,
            state: watch::Sender::new(ConnectionState::Connecting),
            live: watch::Sender::new(Current::None),
            settings: Mutex::new(Settings::of(&RabbitMqConfig::default())),
            frame_max: AtomicU32::new(FRAME_MAX),
            stop,
        });
        let keeper = Keeper {
            shared: Arc::clone(&shared),
            provider,
            tries: 0,
            stood_before: false,
            refused_since: None,
            seed: Uuid::new_v4().as_u64_pair().0,
        };
        tasks.spawn(keeper.run());
        Self(shared)
    }

    pub(super) fn settings(&self) -> Settings {
        self.0.settings()
    }

    pub(super) fn state(&self) -> ConnectionState {
        self.0.state.borrow().clone()
    }

    /// Why a try failed, as soon as one has.
    ///
    /// # Cancel safety
    ///
    /// Safe: it only waits.
    pub(super) async fn first_failure(&self) -> Error {
        let mut state = self.0.state.subscribe();
        loop {
            match &*state.borrow_and_update() {
                ConnectionState::Retrying { error, .. } | ConnectionState::Fatal(error) => {
                    return error.clone();
                }
                _ => {}
            }
            if state.changed().await.is_err() {
                return disconnected();
            }
        }
    }

    /// Why the broker takes nothing from publishers, while it does not.
    pub(super) fn blocked(&self) -> Option<String> {
        match &*self.0.state.borrow() {
            ConnectionState::Blocked { reason } => Some(reason.clone()),
            _ => None,
        }
    }

    /// The largest frame that may be sent on the connection that there is, or was last, in bytes; zero is no
    /// limit.
    pub(super) fn frame_max(&self) -> u32 {
        self.0.frame_max.load(Ordering::Relaxed)
    }

    /// The connection, as soon as there is one.
    ///
    /// # Errors
    ///
    /// Not transient: there will never be one again.
    ///
    /// # Cancel safety
    ///
    /// Safe: it only waits.
    pub(super) async fn live(&self) -> Result<Arc<Live>> {
        let mut current = self.0.live.subscribe();
        loop {
            match &*current.borrow_and_update() {
                Current::None => {}
                Current::Live(live) => return Ok(Arc::clone(live)),
                Current::Over(error) => return Err(error.clone()),
            }
            if current.changed().await.is_err() {
                return Err(disconnected());
            }
        }
    }
}

/// The error of whatever is asked of a connection that was disconnected.
fn disconnected() -> Error {
    Error::new(ErrorKind::Closed, "connect").with_message("the connection to RabbitMQ was disconnected")
}

async fn last_error(told: &mut (impl Stream<Item = lapin::Event> + Unpin)) -> Option<lapin::Error> {
    loop {
        if let lapin::Event::Error(error) = told.next().await? {
            return Some(error);
        }
    }
}

/// The task that keeps one connection.
struct Keeper {
    shared: Arc<Shared>,
    provider: ConfigProvider,
    /// How many tries failed in a row.
    tries: u32,
    stood_before: bool,
    /// Since when the broker says no to who we are or where we want to go.
    refused_since: Option<Instant>,
    /// Spreads the tries of many services that lost the same broker.
    seed: u64,
}

/// How long a connection must have stood for the next one to be made after the shortest wait again.
const STEADY: Duration = Duration::from_secs(30);

impl Keeper {
    async fn run(mut self) {
        let over = loop {
            self.set(ConnectionState::Connecting);
            let stop = self.shared.stop.clone();
            // A try that is dropped ends its socket.
            let tried = tokio::select! {
                biased;
                () = stop.cancelled() => break disconnected(),
                tried = self.attempt() => tried,
            };
            let error = match tried {
                Ok(connected) => {
                    let began = self.shared.clock.now();
                    match self.keep(connected).await {
                        Some(error) => {
                            if self.shared.clock.now().saturating_duration_since(began) >= STEADY {
                                self.tries = 0;
                            }
                            error
                        }
                        None => break disconnected(),
                    }
                }
                Err(error) if self.is_fatal(&error) => break error,
                Err(error) => error,
            };
            if !self.wait(error).await {
                break disconnected();
            }
        };
        self.end(over);
    }

    fn set(&self, state: ConnectionState) {
        self.shared.state.send_replace(state);
    }

    async fn attempt(&mut self) -> Result<Connected> {
        let clock = Arc::clone(&self.shared.clock);
        let bound = self.shared.settings().connect_timeout;
        let Some(config) = within(&*clock, bound, self.provider.ask()).await else {
            return Err(Error::new(ErrorKind::Timeout, "connect")
                .with_message(format!("the provider gave no configuration within {bound:?}")));
        };
        let config = config?;
        config.validate()?;
        *self.shared.settings.lock().unwrap_or_else(PoisonError::into_inner) = Settings::of(&config);
        let first = usize::try_from(self.tries).unwrap_or(0);
        connect(&config, self.shared.role, first, &*clock).await
    }

    /// What was right once is more likely to be wrong for a moment than for ever: a password that is just being
    /// rotated, a virtual host that is being restored. So it is tried for a while.
    fn is_fatal(&mut self, error: &Error) -> bool {
        if error.is_transient() {
            self.refused_since = None;
            return false;
        }
        let now = self.shared.clock.now();
        let since = *self.refused_since.get_or_insert(now);
        !self.stood_before || now.saturating_duration_since(since) >= self.shared.settings().refusal_patience
    }

    /// Waits before the next try. False when it is to stop.
    async fn wait(&mut self, error: Error) -> bool {
        let Shared { role, clock, events, stop, .. } = &*self.shared;
        self.tries = self.tries.saturating_add(1);
        let delay = self.shared.settings().backoff.delay(self.tries, self.seed);
        self.set(ConnectionState::Retrying { tries: self.tries, delay, error: error.clone() });
        events.tell(RabbitEvent::Retrying { role: *role, tries: self.tries, delay, error });
        // Only waits are lost here.
        tokio::select! {
            biased;
            () = stop.cancelled() => false,
            () = clock.sleep(delay) => true,
        }
    }

    /// Keeps a connection until it is lost, and says why; `None` when it was closed since this task is to stop.
    async fn keep(&mut self, connected: Connected) -> Option<Error> {
        let Connected { connection, socket, host } = connected;
        let Shared { role, clock, events, stop, .. } = &*self.shared;
        if self.stood_before {
            reconnects::count(*role);
        }
        self.stood_before = true;
        self.refused_since = None;
        let mut told = Box::pin(connection.events_listener());
        // From here on an alarm is told; one that came before is looked up.
        let blocked = connection.status().blocked();
        let live = Arc::new(Live {
            connection,
            gone: CancellationToken::new(),
            why: OnceLock::new(),
            suspected: Notify::new(),
            blocked: watch::Sender::new(blocked),
            socket,
        });
        self.shared.frame_max.store(live.frame_max(), Ordering::Relaxed);
        self.set(ConnectionState::Connected);
        events.tell(RabbitEvent::Connected { role: *role, host });
        self.shared.live.send_replace(Current::Live(Arc::clone(&live)));
        // Losing the watch loses nothing: what it has seen, it has told.
        let lost = tokio::select! {
            biased;
            error = self.watch(&live, &mut told) => Some(error),
            () = stop.cancelled() => None,
        };
        self.shared.live.send_replace(Current::None);
        live.end(lost.clone().unwrap_or_else(disconnected));
        match &lost {
            Some(error) => events.tell(RabbitEvent::Lost { role: *role, error: error.clone() }),
            None => {
                // A connection that does not answer is ended with its socket.
                let close = live.connection.close(200, "disconnect".into());
                let _ = within(&**clock, CLOSE_BOUND, close).await;
            }
        }
        // Receipts may keep this alive for long, and the broker would wait for its heartbeat: what was in hand comes
        // again only once it knows.
        live.socket.shut_down();
        lost
    }

    /// Until the connection is lost.
    async fn watch(&self, live: &Live, told: &mut (impl Stream<Item = lapin::Event> + Unpin)) -> Error {
        let Shared { role, clock, events, .. } = &*self.shared;
        let mut last = None;
        loop {
            // Each branch only wakes: what it is about is looked at below. An event that is taken is handled.
            tokio::select! {
                biased;
                event = told.next() => match event {
                    Some(lapin::Event::ConnectionBlocked(reason)) => {
                        live.blocked.send_replace(true);
                        self.set(ConnectionState::Blocked { reason: reason.clone() });
                        events.tell(RabbitEvent::Blocked { role: *role, reason });
                    }
                    Some(lapin::Event::ConnectionUnblocked) => {
                        live.blocked.send_replace(false);
                        self.set(ConnectionState::Connected);
                        events.tell(RabbitEvent::Unblocked { role: *role });
                    }
                    // Of a channel or of the connection; the state tells which.
                    Some(lapin::Event::Error(error)) => last = Some(error),
                    Some(_) => {}
                    None => return Error::new(ErrorKind::Disconnected, "connection").with_message("closed"),
                },
                () = live.suspected.notified() => {}
                () = clock.sleep(LOOK_EVERY) => {}
            }
            if !live.connection.status().connected() {
                // lapin says that it is lost a moment before it says why.
                let last = match last {
                    None => within(&**clock, LAST_WORDS, last_error(told)).await.flatten(),
                    last => last,
                };
                return match last {
                    Some(error) => error::classify("connection", &error),
                    None => Error::new(ErrorKind::Disconnected, "connection").with_message("closed"),
                };
            }
        }
    }

    fn end(&self, over: Error) {
        let Shared { role, events, state, live, .. } = &*self.shared;
        live.send_replace(Current::Over(over.clone()));
        if over.kind() == ErrorKind::Closed {
            state.send_replace(ConnectionState::Disconnected);
        } else {
            state.send_replace(ConnectionState::Fatal(over.clone()));
            events.tell(RabbitEvent::Fatal { role: *role, error: over });
        }
    }
}
