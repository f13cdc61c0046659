//! How the program ends: codes that a script can rely on, and errors on standard error.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use windlass::error::{Chain, Error, ErrorKind};

use crate::output;

/// The exit codes; `windlass --help` lists them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    Done,
    Failed,
    Invalid,
    Changes,
    Drift,
    Unreachable,
    Refused,
    NotFound,
    Incomplete,
    NotConfirmed,
    Stayed,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Done => 0,
            Exit::Failed => 1,
            // Clap ends with the same one.
            Exit::Invalid => 2,
            Exit::Changes => 3,
            Exit::Drift => 4,
            Exit::Unreachable => 5,
            Exit::Refused => 6,
            Exit::NotFound => 7,
            Exit::Incomplete => 8,
            Exit::NotConfirmed => 9,
            Exit::Stayed => 10,
        })
    }
}

/// Why nothing, or not all, was done.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    /// A word from a fixed set.
    pub(crate) kind: &'static str,
    pub(crate) text: String,
}

pub(crate) type Outcome<T = Exit> = Result<T, Failure>;

impl Failure {
    pub(crate) fn invalid(text: impl Into<String>) -> Self {
        Self { exit: Exit::Invalid, kind: "invalid", text: text.into() }
    }

    /// On standard error. Where that is gone, the exit code still says it.
    pub(crate) fn tell(&self, json: bool) {
        let mut err = io::stderr().lock();
        let _ = if json {
            let error = serde_json::json!({ "error": { "kind": self.kind, "message": self.text } });
            writeln!(err, "{error}")
        } else {
            writeln!(err, "windlass: {}", output::plain(&self.text))
        };
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let exit = match error.kind() {
            ErrorKind::Invalid => Exit::Invalid,
            ErrorKind::Disconnected | ErrorKind::Timeout => Exit::Unreachable,
            ErrorKind::Unauthorized | ErrorKind::Refused => Exit::Refused,
            ErrorKind::NotFound | ErrorKind::Unroutable => Exit::NotFound,
            _ => Exit::Failed,
        };
        Self { exit, kind: error.kind().name(), text: Chain(&error).to_string() }
    }
}

/// Standard output is gone, as when it was piped into `head`.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self { exit: Exit::Failed, kind: "output", text: format!("cannot write the output: {error}") }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
