//! What happens to the connections, as a service watches it: a state for health checks, events for logs and metrics.

use std::fmt;
use std::time::Duration;

use futures::Stream;
use futures::stream;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

use crate::error::Error;

/// Which of the two connections. A memory or disk alarm blocks the one that publishes; acks go over the other, and must
/// still flow then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Role {
    /// Messages come over it, and are settled over it.
    Consume,
    /// Everything is published over it: copies for retries and dead letters too.
    Publish,
}

impl Role {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Consume => "consume",
            Self::Publish => "publish",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How a connection stands.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum ConnectionState {
    /// It is being made.
    Connecting,
    /// It stands.
    Connected,
    /// It stands, but the broker takes nothing from publishers: an alarm for memory or disk space.
    Blocked {
        /// What the broker said.
        reason: String,
    },
    /// It was lost, or could not be made, and is tried again after a wait.
    Retrying {
        /// How many tries have failed in a row.
        tries: u32,
        /// How long the wait is.
        delay: Duration,
        /// Why.
        error: Error,
    },
    /// Trying again cannot help.
    Fatal(Error),
    /// [`disconnect`](super::RabbitMq::disconnect) was called.
    Disconnected,
}

/// Something that happened to a connection or a consumer.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum RabbitEvent {
    /// A connection was made.
    Connected {
        /// Which.
        role: Role,
        /// To which host, as `host:port`.
        host: String,
    },
    /// A connection was lost. Another is made by itself.
    Lost {
        /// Which.
        role: Role,
        /// Why.
        error: Error,
    },
    /// Connecting failed, or the connection was just lost; the next try comes after `delay`.
    Retrying {
        /// Which.
        role: Role,
        /// How many tries have failed in a row.
        tries: u32,
        /// How long the wait is.
        delay: Duration,
        /// Why.
        error: Error,
    },
    /// The broker takes nothing from publishers any more.
    Blocked {
        /// Which connection.
        role: Role,
        /// What the broker said.
        reason: String,
    },
    /// The broker takes messages again.
    Unblocked {
        /// Which connection.
        role: Role,
    },
    /// Trying again cannot help: sources and publishers fail from here on.
    Fatal {
        /// Which connection.
        role: Role,
        /// Why.
        error: Error,
    },
    /// A source consumes: the broker has confirmed it.
    Consuming {
        /// Its queue.
        queue: String,
    },
    /// A source lost its channel or its consumer: the connection was cut, the queue deleted, a delivery acked too late.
    /// It sets up another by itself; what was unsettled comes again.
    ConsumerLost {
        /// Its queue.
        queue: String,
        /// Why.
        error: Error,
    },
    /// A source could not set up its consumer, and tries again after `delay`.
    SetUpRefused {
        /// Its queue.
        queue: String,
        /// Why.
        error: Error,
        /// How long the wait is.
        delay: Duration,
    },
    /// A queue that lives no longer than its connection was made again on another one, for a [slot](super::RabbitMq::claim)
    /// or a [subscription](super::RabbitMq::subscribe). What was in the old one is gone, and what was sent meanwhile was
    /// missed.
    QueueRemade {
        /// The queue of the source.
        queue: String,
    },
    /// There is nowhere to dead-letter to: messages that are given up are kept, and come again.
    NowhereToDeadLetter {
        /// The queue of the source.
        queue: String,
        /// What is missing.
        error: Error,
    },
    /// A message that was given up was dropped, as
    /// [`DeadLetterTo::Drop`](super::DeadLetterTo::Drop) asks for.
    Dropped {
        /// The queue of the source.
        queue: String,
        /// The id of the message.
        message: String,
        /// Why it was given up.
        cause: String,
    },
    /// This stream fell behind, and this many events were passed over.
    Missed(u64),
}

/// How many events a slow listener may be behind.
const BACKLOG: usize = 256;

/// Where events come together.
#[derive(Debug, Clone)]
pub(super) struct Events(broadcast::Sender<RabbitEvent>);

impl Events {
    pub(super) fn new() -> Self {
        Self(broadcast::Sender::new(BACKLOG))
    }

    pub(super) fn tell(&self, event: RabbitEvent) {
        event.log();
        // Nobody listens: that is no error.
        let _ = self.0.send(event);
    }

    pub(super) fn listen(&self) -> impl Stream<Item = RabbitEvent> + Send + Unpin + 'static {
        Box::pin(stream::unfold(self.0.subscribe(), |mut events| async {
            let event = match events.recv().await {
                Ok(event) => event,
                Err(RecvError::Lagged(missed)) => RabbitEvent::Missed(missed),
                Err(RecvError::Closed) => return None,
            };
            Some((event, events))
        }))
    }
}

impl RabbitEvent {
    fn log(&self) {
        let role = |role: &Role| role.as_str();
        match self {
            Self::Connected { role: which, host } => {
                tracing::info!(role = role(which), host, "connected to RabbitMQ");
            }
            Self::Lost { role: which, error } => {
                tracing::warn!(role = role(which), %error, "lost the connection to RabbitMQ");
            }
            Self::Retrying { role: which, tries, delay, error } => {
                tracing::warn!(role = role(which), tries, ?delay, %error, "not connected to RabbitMQ, trying again");
            }
            Self::Blocked { role: which, reason } => {
                tracing::warn!(role = role(which), reason, "RabbitMQ blocks publishers");
            }
            Self::Unblocked { role: which } => {
                tracing::info!(role = role(which), "RabbitMQ takes messages again");
            }
            Self::Fatal { role: which, error } => {
                tracing::error!(role = role(which), %error, "connecting to RabbitMQ cannot succeed");
            }
            Self::Consuming { queue } => tracing::debug!(queue, "consuming"),
            Self::ConsumerLost { queue, error } => tracing::warn!(queue, %error, "lost the consumer"),
            Self::SetUpRefused { queue, error, delay } => {
                tracing::warn!(queue, ?delay, %error, "could not set up the consumer, trying again");
            }
            Self::QueueRemade { queue } => {
                tracing::warn!(queue, "made the queue again on another connection: what was in it is gone");
            }
            Self::NowhereToDeadLetter { queue, error } => {
                tracing::warn!(queue, %error, "nowhere to dead-letter to: messages that are given up are kept");
            }
            Self::Dropped { queue, message, cause } => {
                tracing::error!(queue, message, cause, "dropped a message that was given up");
            }
            Self::Missed(_) => {}
        }
    }
}
