//! A broken promise, in words.

use std::error::Error as StdError;
use std::fmt;

/// A promise that a source did not keep: which case, what was expected, what was seen instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    case: &'static str,
    expected: String,
    seen: String,
}

impl Violation {
    pub(super) fn new(case: &'static str, expected: impl Into<String>, seen: impl Into<String>) -> Self {
        Self { case, expected: expected.into(), seen: seen.into() }
    }

    /// The case, which is the promise as a sentence.
    pub fn case(&self) -> &'static str {
        self.case
    }

    /// What had to be.
    pub fn expected(&self) -> &str {
        &self.expected
    }

    /// What was instead.
    pub fn seen(&self) -> &str {
        &self.seen
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: expected {}; saw {}", self.case, self.expected, self.seen)
    }
}

impl StdError for Violation {}
