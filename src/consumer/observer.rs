//! Who is told of what a consumer does.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::event::ConsumerEvent;
use super::handle::Status;
use super::stats::Stats;
use super::supervisor::Report;

/// Is told what a consumer does: of each message once, of what else changes, and, where it wants to, at intervals.
///
/// Every closure from a [`ConsumerEvent`] is one. It is called in the consumer's own loops, which wait for it, so it has
/// to be quick: a queue to somewhere else is, a request over the network is not. On a consumer of several loops it is
/// called from several threads at once.
///
/// One that panics is called again for the next thing; `observer_panics` counts it. One whose call took longer than
/// 10 ms, by the consumer's clock, is from then on called from a thread of its own, so that it keeps up nothing but
/// itself: behind a queue of 1,024 entries, in the order in which things happened. What does not fit is dropped; the
/// counter `observer_drops` says how much, and one warning that it is so. On a clock that a test holds no call takes
/// any time, and so nothing moves.
///
/// That first call is waited for, however long it takes: an observer that may block for long says so beforehand
/// ([`called_from`](Self::called_from)), and then no loop ever waits for it.
///
/// When the consumer ends, what still waits for a thread is told first, for as long as `close_timeout`; the rest is
/// dropped and counted, and a thread that hangs in a call is left behind with a warning: nothing can end it.
pub trait Observer: Send + Sync + 'static {
    /// Called once for each message, after it is settled.
    fn on_message(&self, event: &ConsumerEvent);

    /// Called when something else happens than a message.
    fn on_change(&self, change: &ConsumerChange) {
        let _ = change;
    }

    /// Where it is called; asked once, when it is added.
    fn called_from(&self) -> CalledFrom {
        CalledFrom::LoopWhileQuick
    }

    /// How often [`on_sample`](Self::on_sample) is to be called; never by default. Asked once, when it is added. Two
    /// samples are at least this long apart, and 10 ms where it is shorter; where several observers want samples, those
    /// of the slower ones wait for one of the quickest one's.
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

/// Where an observer is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum CalledFrom {
    /// In the consumer's loops, until one call takes longer than 10 ms; from then on from a thread of its own.
    #[default]
    LoopWhileQuick,
    /// In the consumer's loops always, and then nothing is ever dropped: for what cannot block, and must not miss
    /// anything because the machine was busy for a moment.
    Loop,
    /// From a thread of its own from the start: for what may block.
    Thread,
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

impl ConsumerChange {
    /// A change as an observer would be told of it, at the Unix epoch: for tests of observers.
    pub fn new(queue: impl Into<Arc<str>>, kind: ChangeKind) -> Self {
        Self { queue: queue.into(), at: SystemTime::UNIX_EPOCH, kind }
    }
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

impl ConsumerSample {
    /// A sample as an observer would get it, at the Unix epoch and with nothing counted: for tests of observers.
    pub fn new(queue: impl Into<Arc<str>>, status: Status, in_flight: usize) -> Self {
        let (at, stats) = (SystemTime::UNIX_EPOCH, Stats::default());
        Self { queue: queue.into(), at, status, in_flight, stats }
    }
}
