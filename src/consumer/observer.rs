//! Who is told of what a consumer does.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::event::ConsumerEvent;
use super::handle::Status;
use super::stats::Stats;
use super::supervisor::Report;

/// Is told what a consumer does: of each message once, of what else changes, and, where it wants to, at intervals.
///
/// Every closure from a [`ConsumerEvent`] is one. It is called in the consumer's own loop, and so has to be quick.
pub trait Observer: Send + Sync + 'static {
    /// Called once for each message, after it is settled.
    fn on_message(&self, event: &ConsumerEvent);

    /// Called when something else happens than a message.
    fn on_change(&self, change: &ConsumerChange) {
        let _ = change;
    }

    /// How often [`on_sample`](Self::on_sample) is to be called; never by default.
    fn sample_every(&self) -> Option<Duration> {
        None
    }

    /// Called at intervals, also while nothing happens, from the start to the end.
    fn on_sample(&self, sample: &ConsumerSample) {
        let _ = sample;
    }
}

impl<F: Fn(&ConsumerEvent) + Send + Sync + 'static> Observer for F {
    fn on_message(&self, event: &ConsumerEvent) {
        self(event);
    }
}

/// What a consumer tells beside the messages.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ConsumerChange {
    /// The queue of the consumer.
    pub queue: Arc<str>,
    /// When, by the wall clock.
    pub at: SystemTime,
    /// What.
    pub kind: ChangeKind,
}

/// What has changed.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum ChangeKind {
    /// No message came for this long. Told once, and again only after another message.
    Idle {
        /// The time that was set.
        after: Duration,
    },
    /// It pulls nothing until this is over.
    Waiting {
        /// What for.
        obstacle: Obstacle,
    },
    /// It pulls again after it waited.
    Ready,
    /// The kill switch has tripped: too many of the last messages failed.
    Tripped {
        /// How many of them failed.
        failed: u64,
        /// How many there were.
        of: u64,
        /// How long nothing will be pulled.
        pause: Duration,
    },
    /// It was paused, and all that was buffered is handed back.
    Paused,
    /// It was resumed.
    Resumed,
    /// It has ended.
    Stopped {
        /// How.
        report: Report,
    },
}

impl ChangeKind {
    /// A short name, for tables and labels; one of a fixed set.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Idle { .. } => "idle",
            Self::Waiting { .. } => "waiting",
            Self::Ready => "ready",
            Self::Tripped { .. } => "tripped",
            Self::Paused => "paused",
            Self::Resumed => "resumed",
            Self::Stopped { .. } => "stopped",
        }
    }
}

/// What keeps a consumer from pulling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Obstacle {
    /// The readiness that the user gave says no.
    Readiness,
    /// The circuit breaker around the handler is open.
    Circuit,
    /// The kill switch has tripped.
    KillSwitch,
}

impl Obstacle {
    /// A short name, for tables and labels; one of a fixed set.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Readiness => "readiness",
            Self::Circuit => "circuit",
            Self::KillSwitch => "kill_switch",
        }
    }
}

/// How a consumer stands at one moment.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ConsumerSample {
    /// The queue of the consumer.
    pub queue: Arc<str>,
    /// When, by the wall clock.
    pub at: SystemTime,
    /// Where it is in its life.
    pub status: Status,
    /// How many messages are being handled or settled.
    pub in_flight: usize,
    /// What has been counted since the start.
    pub stats: Stats,
}
