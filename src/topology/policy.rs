//! Policies: what the broker does with all queues or exchanges of certain names.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::Argument;

/// What the names of the policies begin with that belong to the stages; no other may.
pub const POLICY_PREFIX: &str = "windlass.";

/// The priority of the policies that belong to the stages. Of the policies that match a queue only the one with the
/// highest priority applies.
pub const POLICY_PRIORITY: i32 = 100;

/// A policy of one's own, for what the stages do not cover.
///
/// The broker applies one policy to a queue, that of the highest priority. The stages and their dead-letter queues have
/// theirs, so one that matches them too must have a priority below [`POLICY_PRIORITY`], and does nothing to them; what
/// is to apply to a stage goes into [`Stage::policy`](super::Stage::policy).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Policy {
    /// Its name.
    pub name: String,
    /// The names that it matches, as a regular expression.
    pub pattern: String,
    /// What it applies to. Default: queues.
    #[serde(default)]
    pub apply_to: ApplyTo,
    /// Of two that match, the one with the higher priority applies. Default: 0.
    #[serde(default)]
    pub priority: i32,
    /// What it sets, by the broker's own keys, such as `max-length`.
    pub definition: BTreeMap<String, Argument>,
}

/// What a policy applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ApplyTo {
    /// Queues.
    #[default]
    Queues,
    /// Exchanges.
    Exchanges,
    /// Both.
    All,
}

impl ApplyTo {
    /// By the broker's own word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Queues => "queues",
            Self::Exchanges => "exchanges",
            Self::All => "all",
        }
    }
}

impl fmt::Display for ApplyTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Policy {
    /// A policy for the queues that `pattern` matches, which sets nothing yet.
    pub fn new(name: impl Into<String>, pattern: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            pattern: pattern.into(),
            apply_to: ApplyTo::default(),
            priority: 0,
            definition: BTreeMap::new(),
        }
    }

    /// Sets one key of the [`definition`](Self::definition).
    #[must_use]
    pub fn with(mut self, key: impl Into<String>, value: impl Into<Argument>) -> Self {
        self.definition.insert(key.into(), value.into());
        self
    }

    /// Sets [`priority`](Self::priority).
    #[must_use]
    pub fn with_priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// Sets [`apply_to`](Self::apply_to).
    #[must_use]
    pub fn with_apply_to(mut self, apply_to: ApplyTo) -> Self {
        self.apply_to = apply_to;
        self
    }
}
