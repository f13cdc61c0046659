//! Why a handler did not succeed, in the classes that `on_result` tells apart.

use std::any::Any;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::BoxError;

/// Why a handler did not succeed.
///
/// A handler makes the first four; the policies around it and the consumer make the others. `Display` prints this
/// layer only; the chain of [`source`](StdError::source) has the rest.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum HandlerError {
    /// What came in, or what would go out, is not what it must be. Trying again cannot help.
    Validation {
        /// Which of the two.
        direction: Direction,
        /// What is wrong with it.
        failure: Failure,
    },
    /// Trying again cannot help.
    Terminal(Failure),
    /// It took too long.
    Timeout {
        /// How long it was given.
        after: Duration,
    },
    /// This attempt failed; another may not.
    Failed(Failure),
    /// It panicked.
    Panicked {
        /// What the panic said.
        message: String,
    },
    /// It was tried as often as the retry policy around it allows.
    RetryExhausted {
        /// How often.
        attempts: u32,
        /// How the last one failed.
        last: Failure,
    },
    /// It was not called: the circuit breaker is open.
    CircuitOpen {
        /// How long until the breaker lets a call through.
        closes_in: Duration,
    },
    /// It was not called: too many calls are under way, and the queue in front of it is full.
    BackpressureReject,
    /// It was not called: it waited in a full queue and made room for a newer call.
    Dropped,
    /// It was not called: it has been stopped.
    NotRunning,
}

/// Which side of a handler failed its validation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// What it was given, an undecodable payload included.
    Input,
    /// What it returned.
    Output,
}

/// Somebody's error with the class it was put into. Cheap to clone.
///
/// It stands in the chain between a [`HandlerError`] and the error itself, so that the class is found again in any
/// wrapper that keeps the chain; some keep the chain and hide its first link, `anyhow` among them.
#[derive(Debug, Clone)]
pub struct Failure(Arc<Classified>);

#[derive(Debug)]
struct Classified {
    class: Class,
    error: BoxError,
}

#[derive(Debug, Clone, Copy)]
enum Class {
    Validation(Direction),
    Terminal,
    Failed,
    RetryExhausted(u32),
}

impl HandlerError {
    /// Trying again cannot help: the message is dead-lettered at once.
    pub fn terminal(error: impl Into<BoxError>) -> Self {
        Class::Terminal.of(error.into())
    }

    /// The payload is not what it must be.
    pub fn invalid_input(error: impl Into<BoxError>) -> Self {
        Class::Validation(Direction::Input).of(error.into())
    }

    /// The result is not what it must be.
    pub fn invalid_output(error: impl Into<BoxError>) -> Self {
        Class::Validation(Direction::Output).of(error.into())
    }

    /// This attempt failed.
    pub fn failed(error: impl Into<BoxError>) -> Self {
        Class::Failed.of(error.into())
    }

    /// It was tried `attempts` times, and `last` is how the last one failed.
    pub fn retry_exhausted(attempts: u32, last: impl Into<BoxError>) -> Self {
        Class::RetryExhausted(attempts).of(last.into())
    }

    /// The class of any error: that of the first [`HandlerError`] in its chain, with all of the error kept behind it;
    /// [`Failed`](Self::Failed) where there is none.
    ///
    /// `anyhow::Error` hides the first link of a chain that has no context, and the class is then read from the second.
    /// `Timeout`, `Panicked` and `CircuitOpen` have no second: passed through `anyhow` without a context, they count as
    /// `Failed`.
    pub fn from_error(error: impl Into<BoxError>) -> Self {
        Self::classed(error.into(), |_| None).unwrap_or_else(Self::failed)
    }

    /// As [`from_error`](Self::from_error), for callers who know errors of others by their class: `known` is asked about
    /// each link that is none of ours. Gives the error back where nothing in its chain has a class.
    pub(crate) fn classed(
        error: BoxError,
        mut known: impl FnMut(&(dyn StdError + 'static)) -> Option<Self>,
    ) -> Result<Self, BoxError> {
        let error = match error.downcast::<Self>() {
            Ok(ours) => return Ok(*ours),
            Err(other) => other,
        };
        let mut link: Option<&(dyn StdError + 'static)> = Some(&*error);
        while let Some(current) = link {
            if let Some(ours) = current.downcast_ref::<Self>() {
                return Ok(match ours.failure() {
                    Some(failure) => failure.0.class.of(error),
                    None => ours.clone(),
                });
            }
            if let Some(failure) = current.downcast_ref::<Failure>() {
                return Ok(failure.0.class.of(error));
            }
            if let Some(why) = current.downcast_ref::<NotCalled>() {
                return Ok(why.into_error());
            }
            if let Some(class) = known(current) {
                return Ok(class);
            }
            link = current.source();
        }
        Err(error)
    }

    pub(crate) fn from_panic(payload: Box<dyn Any + Send>) -> Self {
        Self::Panicked { message: panic_text(payload) }
    }

    /// A short name of the class, for tables and labels; one of a fixed set.
    pub fn class_name(&self) -> &'static str {
        match self {
            Self::Validation { .. } => "invalid",
            Self::Terminal(_) => "terminal",
            Self::Timeout { .. } => "timeout",
            Self::Failed(_) => "failed",
            Self::Panicked { .. } => "panicked",
            Self::RetryExhausted { .. } => "retry_exhausted",
            Self::CircuitOpen { .. } => "circuit_open",
            Self::BackpressureReject => "backpressure_reject",
            Self::Dropped => "dropped",
            Self::NotRunning => "not_running",
        }
    }

    /// The status of an HTTP answer, for a handler that also serves a route.
    ///
    /// | class | status | since |
    /// |---|---|---|
    /// | `Validation` of the input | 400 | the caller sent what cannot be read |
    /// | `Validation` of the output | 500 | the caller did nothing wrong, the service did |
    /// | `Terminal` | 422 | it was read, and the same request will never succeed |
    /// | `Timeout` | 504 | what it waited for did not answer in time |
    /// | `Failed`, `Panicked` | 500 | something broke on this side |
    /// | `RetryExhausted` | that of the last failure, where it is a `HandlerError`; else 500 | why it was given up says more to the caller than that it was |
    /// | `CircuitOpen` | 503, with [`retry_after`](Self::retry_after) | it was not called, and will be once the breaker closes |
    /// | `BackpressureReject`, `Dropped` | 503 | it was not called; sent again later it may be |
    /// | `NotRunning` | 503 | it was not called; another instance may answer |
    pub fn http_status(&self) -> u16 {
        match self {
            Self::Validation { direction: Direction::Input, .. } => 400,
            Self::Validation { direction: Direction::Output, .. }
            | Self::Failed(_)
            | Self::Panicked { .. } => 500,
            Self::Terminal(_) => 422,
            Self::Timeout { .. } => 504,
            Self::RetryExhausted { last, .. } => last.within().map_or(500, Self::http_status),
            Self::CircuitOpen { .. } | Self::BackpressureReject | Self::Dropped | Self::NotRunning => 503,
        }
    }

    /// How long to wait before asking again makes sense, where that is known: until the circuit breaker closes. The
    /// header `Retry-After` takes whole seconds; round up, or the caller comes too early.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::CircuitOpen { closes_in } => Some(*closes_in),
            Self::RetryExhausted { last, .. } => last.within().and_then(Self::retry_after),
            Self::Validation { .. }
            | Self::Terminal(_)
            | Self::Timeout { .. }
            | Self::Failed(_)
            | Self::Panicked { .. }
            | Self::BackpressureReject
            | Self::Dropped
            | Self::NotRunning => None,
        }
    }

    /// The error within, where there is one.
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Validation { failure, .. } | Self::Terminal(failure) | Self::Failed(failure) => {
                Some(failure)
            }
            Self::RetryExhausted { last, .. } => Some(last),
            Self::Timeout { .. }
            | Self::Panicked { .. }
            | Self::CircuitOpen { .. }
            | Self::BackpressureReject
            | Self::Dropped
            | Self::NotRunning => None,
        }
    }
}

impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Validation { .. } | Self::Terminal(_) | Self::RetryExhausted { .. } | Self::Failed(_) => {
                f.write_str("the handler failed")
            }
            Self::Timeout { after } => write!(f, "the handler took longer than {after:?}"),
            Self::Panicked { message } => write!(f, "the handler panicked: {message}"),
            Self::CircuitOpen { closes_in } => write!(f, "the circuit is open for another {closes_in:?}"),
            Self::BackpressureReject | Self::Dropped | Self::NotRunning => {
                f.write_str("the handler was not called")
            }
        }
    }
}

impl StdError for HandlerError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::BackpressureReject => Some(&NotCalled::Rejected),
            Self::Dropped => Some(&NotCalled::Dropped),
            Self::NotRunning => Some(&NotCalled::Stopped),
            other => other.failure().map(|failure| failure as &(dyn StdError + 'static)),
        }
    }
}

/// Stands in the chain behind the errors that have none within, as a [`Failure`] does behind the others.
#[derive(Debug, Clone, Copy, thiserror::Error)]
enum NotCalled {
    #[error("too many calls are under way")]
    Rejected,
    #[error("it made room for a newer call")]
    Dropped,
    #[error("it is stopped")]
    Stopped,
}

impl NotCalled {
    fn into_error(self) -> HandlerError {
        match self {
            Self::Rejected => HandlerError::BackpressureReject,
            Self::Dropped => HandlerError::Dropped,
            Self::Stopped => HandlerError::NotRunning,
        }
    }
}

/// What a panic said.
pub(crate) fn panic_text(payload: Box<dyn Any + Send>) -> String {
    let other = match payload.downcast::<&'static str>() {
        Ok(text) => return (*text).to_owned(),
        Err(other) => other,
    };
    match other.downcast::<String>() {
        Ok(text) => *text,
        Err(other) => {
            // A payload may panic when it is dropped, and that would end the loop.
            std::mem::forget(other);
            "a panic whose payload is not text".to_owned()
        }
    }
}

impl Failure {
    /// The error itself.
    pub fn error(&self) -> &(dyn StdError + Send + Sync + 'static) {
        &*self.0.error
    }

    /// The error itself, where it is an `E`.
    pub fn downcast_ref<E: StdError + 'static>(&self) -> Option<&E> {
        self.0.error.downcast_ref()
    }

    /// The first [`HandlerError`] in the chain of the error itself.
    fn within(&self) -> Option<&HandlerError> {
        let mut link: Option<&(dyn StdError + 'static)> = Some(&*self.0.error);
        while let Some(current) = link {
            if let Some(ours) = current.downcast_ref() {
                return Some(ours);
            }
            link = current.source();
        }
        None
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.class {
            Class::Validation(Direction::Input) => f.write_str("invalid input"),
            Class::Validation(Direction::Output) => f.write_str("invalid output"),
            Class::Terminal => f.write_str("not worth another try"),
            Class::Failed => f.write_str("worth another try"),
            Class::RetryExhausted(attempts) => write!(f, "given up after {attempts} attempts"),
        }
    }
}

impl StdError for Failure {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.0.error as &(dyn StdError + 'static))
    }
}

impl Class {
    fn of(self, error: BoxError) -> HandlerError {
        let failure = Failure(Arc::new(Classified { class: self, error }));
        match self {
            Self::Validation(direction) => HandlerError::Validation { direction, failure },
            Self::Terminal => HandlerError::Terminal(failure),
            Self::Failed => HandlerError::Failed(failure),
            Self::RetryExhausted(attempts) => HandlerError::RetryExhausted { attempts, last: failure },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Direction, HandlerError};
    use crate::error::Chain;

    #[derive(Debug, thiserror::Error)]
    #[error("while shipping")]
    struct Wrapper(#[source] HandlerError);

    #[test]
    fn a_handler_error_is_honoured_anywhere_in_the_chain() {
        let wrapped = HandlerError::from_error(Wrapper(HandlerError::terminal("declined")));
        assert!(matches!(wrapped, HandlerError::Terminal(_)), "{wrapped:?}");
        assert!(Chain(&wrapped).to_string().contains("while shipping"), "{}", Chain(&wrapped));
    }

    #[test]
    fn anyhow_keeps_the_class_with_and_without_context() {
        let plain = anyhow::Error::from(HandlerError::terminal("declined"));
        assert!(matches!(HandlerError::from_error(plain), HandlerError::Terminal(_)));
        let context = anyhow::Error::from(HandlerError::invalid_output("no id")).context("while shipping");
        let error = HandlerError::from_error(context);
        assert!(matches!(error, HandlerError::Validation { direction: Direction::Output, .. }), "{error:?}");
    }

    #[test]
    fn any_other_error_is_a_failed_attempt_and_can_be_looked_at() {
        let error = HandlerError::from_error(std::io::Error::other("reset"));
        let HandlerError::Failed(failure) = &error else { panic!("{error:?}") };
        assert_eq!(
            failure.downcast_ref::<std::io::Error>().map(ToString::to_string),
            Some("reset".to_owned())
        );
    }
}
