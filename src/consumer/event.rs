//! The event for each message, sent once it is settled.

use std::time::{Duration, SystemTime};

use crate::error::Error;
use crate::handler::HandlerError;
use crate::message::Message;
use crate::source::{NackReason, Settlement};

/// What became of one delivery: told once for each, after it was settled.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ConsumerEvent {
    /// The queue that it came from.
    pub queue: String,
    /// The message: id, correlation id, attempt and how it came.
    pub message: Message,
    /// How the work on it ended.
    pub outcome: Outcome,
    /// The answer that was given to the broker.
    pub settlement: Settlement,
    /// Why the broker did not take the answer, if so; the message then comes again, unless the broker was told after
    /// all (`Timeout`, `Disconnected`).
    pub settle_error: Option<Error>,
    /// How long it took.
    pub timings: Timings,
}

impl ConsumerEvent {
    /// An event as an observer would get it, without an error and with timings of zero: for tests of observers.
    pub fn new(queue: impl Into<String>, message: Message, outcome: Outcome, settlement: Settlement) -> Self {
        let received_at = message.received_at();
        let timings = Timings {
            received_at,
            waited: Duration::ZERO,
            handling: Duration::ZERO,
            settling: Duration::ZERO,
        };
        Self { queue: queue.into(), message, outcome, settlement, settle_error: None, timings }
    }

    /// Whether this was the last of the message: the broker took an ack or a dead letter. Otherwise it comes again.
    pub fn is_final(&self) -> bool {
        let last =
            matches!(self.settlement, Settlement::Ack | Settlement::Nack(NackReason::DeadLetter { .. }));
        last && self.settle_error.is_none()
    }
}

/// How the work on a message ended.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Outcome {
    /// The handler succeeded.
    Done,
    /// The handler, or what is around it, did not succeed.
    Failed(HandlerError),
    /// The handler was not called, because the consumer was paused or stopped when the message came, or while it waited
    /// for its turn; or the message was held for readiness, and that did not come in time.
    HandedBack,
    /// The handler was dropped before it ended: the drain time was over, or the loop that ran it panicked. The message
    /// was put back.
    CutShort,
}

impl Outcome {
    /// A short name, for tables and labels; one of a fixed set.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::HandedBack => "handed_back",
            Self::CutShort => "cut_short",
            Self::Failed(error) => error.class_name(),
        }
    }
}

/// How long the steps of one message took, by monotonic time unless it says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timings {
    /// When the source took it from the broker, by the wall clock.
    pub received_at: SystemTime,
    /// From there until a loop had it: how long it was buffered in the source. By the wall clock, which alone knows when
    /// it was taken; zero where that clock was put back meanwhile, or the source does not say when.
    pub waited: Duration,
    /// From the moment when a loop had the message until the handler had ended, decoding included.
    pub handling: Duration,
    /// From there until the broker had the answer.
    pub settling: Duration,
}
