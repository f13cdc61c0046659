//! What a source's broker can do, and the state of the source.

use std::time::Duration;

/// What the broker behind a source can do. Callers adapt; nothing is emulated silently.
///
/// The default claims nothing; an adapter turns on what its broker does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Capabilities {
    /// `Retry { delay }` is honoured. Where not, a retry comes back at once.
    pub delayed_retry: bool,
    /// A counted `Retry` adds one to the attempt. Where not, every delivery is attempt 1.
    pub counts_attempts: bool,
    /// `DeadLetter` keeps the message for an operator. Where not, it is refused with `Unsupported`, and the message
    /// comes again, at the latest when the source is closed.
    pub dead_letter: bool,
    /// [`delivery_count`](crate::message::Message::delivery_count) is given.
    pub counts_deliveries: bool,
    /// [`redelivered`](crate::message::Message::redelivered) is given.
    pub flags_redelivery: bool,
    /// Where a message goes that was requeued.
    pub requeue_order: RequeueOrder,
    /// For how long a delivery is ours before the broker takes it back, where deliveries are leased.
    pub lease: Option<Duration>,
}

impl Capabilities {
    /// Nothing claimed.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets [`delayed_retry`](Self::delayed_retry).
    #[must_use]
    pub fn with_delayed_retry(mut self, yes: bool) -> Self {
        self.delayed_retry = yes;
        self
    }

    /// Sets [`counts_attempts`](Self::counts_attempts).
    #[must_use]
    pub fn with_counts_attempts(mut self, yes: bool) -> Self {
        self.counts_attempts = yes;
        self
    }

    /// Sets [`dead_letter`](Self::dead_letter).
    #[must_use]
    pub fn with_dead_letter(mut self, yes: bool) -> Self {
        self.dead_letter = yes;
        self
    }

    /// Sets [`counts_deliveries`](Self::counts_deliveries).
    #[must_use]
    pub fn with_counts_deliveries(mut self, yes: bool) -> Self {
        self.counts_deliveries = yes;
        self
    }

    /// Sets [`flags_redelivery`](Self::flags_redelivery).
    #[must_use]
    pub fn with_flags_redelivery(mut self, yes: bool) -> Self {
        self.flags_redelivery = yes;
        self
    }

    /// Sets [`requeue_order`](Self::requeue_order).
    #[must_use]
    pub fn with_requeue_order(mut self, order: RequeueOrder) -> Self {
        self.requeue_order = order;
        self
    }

    /// Sets [`lease`](Self::lease).
    #[must_use]
    pub fn with_lease(mut self, lease: Option<Duration>) -> Self {
        self.lease = lease;
        self
    }
}

/// Where a requeued message goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum RequeueOrder {
    /// The broker promises nothing.
    #[default]
    Unknown,
    /// To the front, so that it is the next one delivered: RabbitMQ's classic queues.
    Front,
    /// Behind what waits: RabbitMQ's quorum queues.
    Back,
}

/// The state of a source, for a service's health check.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Health {
    /// Messages can come.
    Ready,
    /// Messages cannot come now; the source works on it.
    NotReady {
        /// What is wrong, for people.
        reason: String,
    },
    /// The source was closed.
    Closed,
}

impl Health {
    /// Whether messages can come.
    pub fn is_ready(&self) -> bool {
        matches!(self, Self::Ready)
    }
}
