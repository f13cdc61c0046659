//! How the work on one message ended, with what the handler returned.

use super::event::Outcome;
use super::stats::Ending;
use crate::error::Result;
use crate::handler::HandlerError;

/// How the work on one message ended.
pub(super) enum Ended<O> {
    Handled(Result<O, HandlerError>),
    HandedBack,
    CutShort,
}

impl<O> Ended<O> {
    /// For spans.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Handled(Ok(_)) => "done",
            Self::Handled(Err(error)) => error.class_name(),
            Self::HandedBack => "handed_back",
            Self::CutShort => "cut_short",
        }
    }

    /// For counting.
    pub(super) fn ending(&self) -> Ending {
        match self {
            Self::Handled(_) => Ending::Handled,
            Self::HandedBack => Ending::HandedBack,
            Self::CutShort => Ending::CutShort,
        }
    }
}

impl<O> From<Ended<O>> for Outcome {
    fn from(ended: Ended<O>) -> Self {
        match ended {
            Ended::Handled(Ok(_)) => Self::Done,
            Ended::Handled(Err(error)) => Self::Failed(error),
            Ended::HandedBack => Self::HandedBack,
            Ended::CutShort => Self::CutShort,
        }
    }
}
