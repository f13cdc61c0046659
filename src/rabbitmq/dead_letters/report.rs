//! What came of it.

use std::collections::BTreeMap;
use std::fmt;

use super::death::DeadMessage;
use crate::error::{Chain, Error, ErrorKind};

/// The first messages of a queue, in its order; all of them are still there.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Peeked {
    /// The messages.
    pub messages: Vec<DeadMessage>,
    /// How many were ready when it began.
    pub ready: u64,
    /// What an operator should know.
    pub warnings: Vec<Warning>,
}

/// What an operator should know of a queue that was looked through.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// Each look counts as a delivery on this queue, and the count of a message comes close to the limit.
    NearDeliveryLimit {
        /// The highest count that was seen.
        count: u64,
        /// The delivery limit that was reckoned with.
        limit: u64,
    },
    /// So many messages stood at the delivery limit and could not be handed back: each was put at the end of the queue,
    /// as a copy, and counts from zero again.
    MovedToTheEnd {
        /// How many.
        messages: u64,
    },
    /// So many messages stood at the delivery limit and could not be put at the end either; the broker dead-letters
    /// them once more, or drops them.
    OverDeliveryLimit {
        /// How many.
        messages: u64,
        /// Why the copies were not taken.
        error: String,
    },
    /// There would have been more, but these are all the bytes that are held at once.
    TooManyBytes {
        /// How many bytes the bodies have that were looked at.
        bytes: usize,
    },
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NearDeliveryLimit { count, limit } => write!(
                f,
                "a message was handed back {count} times, each look adds one, and at {limit} it cannot be: set \
                 `delivery-limit` to a high number for this queue, by a policy"
            ),
            Self::MovedToTheEnd { messages } => write!(
                f,
                "{messages} at the delivery limit were put at the end of the queue: set `delivery-limit` to a high \
                 number for this queue, by a policy"
            ),
            Self::OverDeliveryLimit { messages, error } => write!(
                f,
                "{messages} at the delivery limit could not be put at the end of the queue ({error}): the broker \
                 dead-letters or drops them"
            ),
            Self::TooManyBytes { bytes } => {
                write!(f, "the bodies have {bytes} bytes, so no more were looked at")
            }
        }
    }
}

/// How a redrive stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Progress {
    /// How many were ready when it began; no more are looked at.
    pub ready: u64,
    /// How many were looked at.
    pub looked_at: u64,
    /// How many of those are to be sent back, or would be.
    pub matched: u64,
    /// How many were sent back: confirmed, and acked.
    pub moved: u64,
    /// How many were not taken where they were sent to.
    pub not_taken: u64,
}

/// Why a redrive ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Ended {
    /// All that was ready when it began was looked at, or the queue is empty.
    #[default]
    Done,
    /// The [`limit`](super::RedriveOptions::limit) was reached.
    Limit,
    /// It was cancelled.
    Cancelled,
    /// An error ended it; see [`RedriveError`].
    Failed,
}

/// Where messages came from, where they go, and why they died.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct Flow {
    /// The queue that they came from, where that is known.
    pub origin: Option<String>,
    /// The queue that they are sent to.
    pub to: String,
    /// The code of the cause, where there is one.
    pub cause: Option<String>,
}

/// Why messages were not taken.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct Obstacle {
    /// The queue that they were to be sent to.
    pub to: String,
    /// Why it did not take them.
    pub reason: String,
}

/// What a redrive did. Each message that was looked at is counted once: as moved, as maybe twice, or as one of those that
/// stay in the queue.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
#[must_use = "it says what was not moved"]
pub struct Redriven {
    /// How many were ready when it began.
    pub ready: u64,
    /// How many were looked at.
    pub looked_at: u64,
    /// How many of those were asked for and have somewhere to go. Where it was a dry run, these would be moved.
    pub matched: u64,
    /// How many are in the queue that they were sent to and surely no longer in this one.
    pub moved: u64,
    /// How many may be in both: published, confirmed or not, and not surely acked. Zero where nothing went wrong.
    pub maybe_twice: u64,
    /// How many stay since they were not asked for.
    pub not_matched: u64,
    /// How many stay since they died after it began.
    pub newer: u64,
    /// How many stay since it is not known where they came from.
    pub unknown_origin: u64,
    /// How many stay since they were not taken where they were sent to.
    pub not_taken: u64,
    /// How many messages were matched, by where they came from, where they go, and their cause.
    pub flows: BTreeMap<Flow, u64>,
    /// Why those that stay were not taken, and how many.
    pub obstacles: BTreeMap<Obstacle, u64>,
    /// Why it ended.
    pub ended: Ended,
    /// Whether it was a dry run.
    pub dry_run: bool,
    /// What an operator should know.
    pub warnings: Vec<Warning>,
}

/// A redrive that an error ended, with what it had done until then. Run it again: what was not moved is still there.
#[derive(Debug, Clone)]
pub struct RedriveError {
    error: Error,
    report: Box<Redriven>,
}

impl RedriveError {
    pub(super) fn new(error: Error, report: Redriven) -> Self {
        Self { error, report: Box::new(report) }
    }

    /// What happened.
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// What kind of thing happened.
    pub fn kind(&self) -> ErrorKind {
        self.error.kind()
    }

    /// What was done until then.
    pub fn report(&self) -> &Redriven {
        &self.report
    }
}

impl fmt::Display for RedriveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Redriven { moved, maybe_twice, .. } = &*self.report;
        write!(f, "{}; {moved} were moved before, {maybe_twice} may be there twice", self.error)
    }
}

impl std::error::Error for RedriveError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        // This layer prints the error itself.
        self.error.source()
    }
}

impl From<RedriveError> for Error {
    fn from(failed: RedriveError) -> Self {
        let text = Chain(&failed).to_string();
        Self::new(failed.kind(), "redrive").with_transient(failed.error.is_transient()).with_message(text)
    }
}
