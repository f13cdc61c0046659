//! How the work on one message ended, with what the handler returned.

use super::event::Outcome;
use super::stats::Ending;
use crate::error::Result;
use crate::handler::HandlerError;

/// How the work on one message ended.
pub(super) enum Ended<O> {
    Handled(Result<O, HandlerError>),
    /// The handler was not called, or what it returned does not count; and the cause.
    HandedBack(&'static str),
    CutShort,
}

impl<O> Ended<O> {
    /// Whether it may be due to an outage: another attempt might end otherwise once that is over.
    pub(super) fn may_be_an_outage(&self) -> bool {
        use HandlerError::{CircuitOpen, Failed, Panicked, RetryExhausted, Timeout};
        matches!(
            self,
            Self::Handled(Err(Failed(_)
                | Timeout { .. }
                | Panicked { .. }
                | RetryExhausted { .. }
                | CircuitOpen { .. }))
        )
    }

    /// For spans.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Handled(Ok(_)) => "done",
            Self::Handled(Err(error)) => error.class_name(),
            Self::HandedBack(_) => "handed_back",
            Self::CutShort => "cut_short",
        }
    }

    /// For counting.
    pub(super) fn ending(&self) -> Ending {
        match self {
            Self::Handled(_) => Ending::Handled,
            Self::HandedBack(_) => Ending::HandedBack,
            Self::CutShort => Ending::CutShort,
        }
    }
}

impl<O> From<Ended<O>> for Outcome {
    fn from(ended: Ended<O>) -> Self {
        match ended {
            Ended::Handled(Ok(_)) => Self::Done,
            Ended::Handled(Err(error)) => Self::Failed(error),
            Ended::HandedBack(_) => Self::HandedBack,
            Ended::CutShort => Self::CutShort,
        }
    }
}
