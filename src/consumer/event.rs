//! What is told of each message once it is settled.

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
    /// Why the broker did not take the answer, if so; the message then comes again.
    pub settle_error: Option<Error>,
    /// How long it took.
    pub timings: Timings,
}

impl ConsumerEvent {
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
    /// The handler was not called, because the consumer was paused or stopped when the message came.
    HandedBack,
    /// The handler was dropped before it ended: the drain time was over, or the loop that ran it panicked.
    Abandoned,
}

impl Outcome {
    /// A short name, for tables and labels; one of a fixed set.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::HandedBack => "handed_back",
            Self::Abandoned => "abandoned",
            Self::Failed(error) => match error {
                HandlerError::Validation { .. } => "invalid",
                HandlerError::Terminal(_) => "terminal",
                HandlerError::Timeout { .. } => "timeout",
                HandlerError::Failed(_) => "failed",
                HandlerError::Panicked { .. } => "panicked",
                HandlerError::RetryExhausted { .. } => "retry_exhausted",
                HandlerError::CircuitOpen { .. } => "circuit_open",
                HandlerError::BackpressureReject => "backpressure_reject",
                HandlerError::Dropped => "dropped",
                HandlerError::NotRunning => "not_running",
            },
        }
    }
}

/// How long the steps of one message took, by monotonic time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timings {
    /// When the source took it from the broker, by the wall clock.
    pub received_at: SystemTime,
    /// From the moment when a loop had the message until the handler had ended, decoding included.
    pub handling: Duration,
    /// From there until the broker had the answer.
    pub settling: Duration,
}
