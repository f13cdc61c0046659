//! What may be deleted.

/// What deleting a queue may take along. By default only a queue that is empty and that nobody consumes is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[must_use]
pub struct DeleteQueue {
    /// Only while no messages are ready in it.
    pub if_empty: bool,
    /// Only while nobody consumes it.
    pub if_unused: bool,
}

impl DeleteQueue {
    /// Only a queue that is empty and that nobody consumes.
    pub const fn new() -> Self {
        Self { if_empty: true, if_unused: true }
    }

    /// Only while no messages are ready in it; on by default. Off, the messages are deleted with it.
    pub const fn if_empty(mut self, yes: bool) -> Self {
        self.if_empty = yes;
        self
    }

    /// Only while nobody consumes it; on by default. Off, its consumers are cancelled, and what they have in hand is
    /// deleted with it.
    pub const fn if_unused(mut self, yes: bool) -> Self {
        self.if_unused = yes;
        self
    }
}

impl Default for DeleteQueue {
    fn default() -> Self {
        Self::new()
    }
}
