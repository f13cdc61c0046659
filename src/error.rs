//! The one error of sources and publishers: what happened, and whether trying again can help.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

/// A result whose error is [`Error`] unless another is named.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Any error of somebody else's, as it is handed to this crate.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// What happened, in words that are the same for every broker.
///
/// Each kind says whether trying again can help, see [`ErrorKind::is_transient`]; an adapter that knows better for
/// one error overrides it with [`Error::with_transient`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// There is no connection, and nothing was sent. Trying again can help.
    Disconnected,
    /// The broker said no: a full queue, a missing right, a limit. Trying again can help, once the cause is gone.
    Refused,
    /// The message was sent to a queue that does not exist. Trying again does not help until somebody makes it.
    Unroutable,
    /// It is unknown whether the broker took the message: no confirm came in time, or the connection went first.
    /// Trying again can make a duplicate, so it counts as no help, and nothing in this crate does it by itself.
    Unconfirmed,
    /// The receipt is of a delivery that is no longer ours: its channel or lease is gone. Nothing was sent, and the
    /// broker delivers the message again. Settling again cannot help.
    Stale,
    /// The source or publisher was closed on our side. Trying again cannot help.
    Closed,
    /// The queue, exchange or virtual host does not exist. Trying again can help, since somebody may make it.
    NotFound,
    /// The broker refused the credentials. Trying the same ones again cannot help.
    Unauthorized,
    /// The peer did not answer within the bound. Trying again can help.
    Timeout,
    /// An option or a message that cannot be right; the text names the field and the fix. Trying again cannot help.
    Invalid,
    /// The broker behind this source cannot do this; [`Capabilities`](crate::source::Capabilities) says so beforehand.
    /// Trying again cannot help.
    Unsupported,
    /// Somebody else has it: a slot that another consumer claimed. Trying again does not help until they let go of it;
    /// another slot may be free.
    Taken,
    /// Something else went wrong behind the adapter; the source of the error says what. Trying again can help.
    Other,
}

impl ErrorKind {
    /// Whether trying the same thing again can help, for errors of this kind that do not say otherwise.
    pub fn is_transient(self) -> bool {
        match self {
            Self::Disconnected | Self::Refused | Self::NotFound | Self::Timeout | Self::Other => true,
            Self::Unroutable
            | Self::Unconfirmed
            | Self::Stale
            | Self::Closed
            | Self::Unauthorized
            | Self::Invalid
            | Self::Unsupported
            | Self::Taken => false,
        }
    }

    /// A short name, for tables and labels; one of a fixed set.
    pub fn name(self) -> &'static str {
        match self {
            Self::Disconnected => "disconnected",
            Self::Refused => "refused",
            Self::Unroutable => "unroutable",
            Self::Unconfirmed => "unconfirmed",
            Self::Stale => "stale",
            Self::Closed => "closed",
            Self::NotFound => "not_found",
            Self::Unauthorized => "unauthorized",
            Self::Timeout => "timeout",
            Self::Invalid => "invalid",
            Self::Unsupported => "unsupported",
            Self::Taken => "taken",
            Self::Other => "other",
        }
    }

    fn phrase(self) -> &'static str {
        match self {
            Self::Disconnected => "no connection",
            Self::Refused => "refused by the broker",
            Self::Unroutable => "no such queue",
            Self::Unconfirmed => "not confirmed, the outcome is unknown",
            Self::Stale => "stale receipt, the message comes again",
            Self::Closed => "closed",
            Self::NotFound => "not found",
            Self::Unauthorized => "credentials refused",
            Self::Timeout => "timed out",
            Self::Invalid => "invalid",
            Self::Unsupported => "not supported by this broker",
            Self::Taken => "taken by somebody else",
            Self::Other => "failed",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.phrase())
    }
}

/// An error of a source or a publisher.
///
/// `Display` prints this layer only (operation, kind, text, context); [`source`](StdError::source) has the rest.
/// Cloning is cheap: one error can go to an event, a report and a log line.
#[derive(Debug, Clone)]
pub struct Error(Box<Repr>);

#[derive(Debug, Clone)]
struct Repr {
    kind: ErrorKind,
    transient: bool,
    operation: &'static str,
    message: Option<String>,
    context: Vec<(&'static str, String)>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of `kind` in `operation`, which is the verb that failed: `"receive"`, `"ack"`, `"publish"`.
    pub fn new(kind: ErrorKind, operation: &'static str) -> Self {
        Self(Box::new(Repr {
            kind,
            transient: kind.is_transient(),
            operation,
            message: None,
            context: Vec::new(),
            source: None,
        }))
    }

    /// Says in words what happened, where the kind alone does not.
    #[must_use]
    pub fn with_message(mut self, message: impl Into<String>) -> Self {
        self.0.message = Some(message.into());
        self
    }

    /// Adds one piece of context, such as the queue. Never put a password here.
    #[must_use]
    pub fn with_context(mut self, key: &'static str, value: impl Into<String>) -> Self {
        self.0.context.push((key, value.into()));
        self
    }

    /// Keeps the error behind this one as its [`source`](StdError::source).
    #[must_use]
    pub fn with_source(mut self, source: impl Into<BoxError>) -> Self {
        self.0.source = Some(Arc::from(source.into()));
        self
    }

    /// Overrides whether trying again can help.
    #[must_use]
    pub fn with_transient(mut self, transient: bool) -> Self {
        self.0.transient = transient;
        self
    }

    /// What happened.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether trying the same thing again can help.
    pub fn is_transient(&self) -> bool {
        self.0.transient
    }

    /// What happened in words, where the kind alone does not say.
    pub fn message(&self) -> Option<&str> {
        self.0.message.as_deref()
    }

    /// The verb that failed.
    pub fn operation(&self) -> &'static str {
        self.0.operation
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.operation, self.0.kind)?;
        if let Some(message) = &self.0.message {
            write!(f, ": {message}")?;
        }
        for (index, (key, value)) in self.0.context.iter().enumerate() {
            write!(f, "{}{key} {value}", if index == 0 { " (" } else { ", " })?;
        }
        if !self.0.context.is_empty() {
            f.write_str(")")?;
        }
        Ok(())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

/// An error and all that is behind it on one line, outermost first, each layer once.
#[derive(Debug, Clone, Copy)]
pub struct Chain<'a>(pub &'a (dyn StdError + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut next = self.0.source();
        while let Some(error) = next {
            write!(f, ": {error}")?;
            next = error.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Chain, Error, ErrorKind};

    #[test]
    fn display_is_one_layer_and_the_chain_has_each_layer_once() {
        let io = std::io::Error::other("connection reset");
        let error =
            Error::new(ErrorKind::Disconnected, "receive").with_context("queue", "orders").with_source(io);
        assert_eq!(error.to_string(), "receive: no connection (queue orders)");
        assert_eq!(Chain(&error).to_string(), "receive: no connection (queue orders): connection reset");
    }

    #[test]
    fn an_adapter_can_say_that_trying_again_cannot_help() {
        let error = Error::new(ErrorKind::Disconnected, "connect");
        assert!(error.is_transient());
        assert!(!error.with_transient(false).is_transient());
    }
}
