//! What a plan says, for people and for programs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;
use serde_json::Value;

use crate::error::Error;

/// What would be changed, and what is not as the topology has it.
///
/// `Display` is for people, a line for each thing: `+` is made, `~` is changed, `!` has drifted and is left as it is, `?`
/// is a warning, `-` is skipped. Serialized it is for programs.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[non_exhaustive]
pub struct Plan {
    /// What [`apply`](super::Bootstrapper::apply) would change, in this order.
    pub changes: Vec<Change>,
    /// What is there otherwise, and is left as it is.
    pub drift: Vec<Drift>,
    /// What may lose messages, or could not be found out.
    pub warnings: Vec<String>,
    /// The stages whose queues the nodes make.
    pub skipped: Vec<Skipped>,
}

/// What was changed, and what is not as the topology has it.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[non_exhaustive]
pub struct Applied {
    /// What was changed, in this order.
    pub changes: Vec<Change>,
    /// What is there otherwise, and was left as it is.
    pub drift: Vec<Drift>,
    /// What may lose messages, or could not be found out.
    pub warnings: Vec<String>,
    /// The stages whose queues the nodes make.
    pub skipped: Vec<Skipped>,
}

/// One thing to make or to change.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Change {
    /// Whether it is made or changed.
    pub action: Action,
    /// What it is.
    pub entity: Entity,
    /// Of a thing that is made, what it is made with; of one that is changed, what is changed.
    pub differences: Vec<Difference>,
}

/// Whether a thing is made or changed. Nothing is ever deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Action {
    /// It is not there.
    Create,
    /// It is there otherwise, and can be changed without a loss.
    Update,
}

/// A thing that is not as the topology has it, and that nothing is done about.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Drift {
    /// What it is.
    pub entity: Entity,
    /// What is wrong, and what can be done.
    pub message: String,
    /// What differs, with both values.
    pub differences: Vec<Difference>,
}

/// One thing on the broker.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[non_exhaustive]
pub struct Entity {
    /// What kind of thing.
    pub kind: EntityKind,
    /// Its name; of permissions that of the user, of a binding `exchange -> queue (routing key)`.
    pub name: String,
}

/// The kinds of things.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EntityKind {
    /// A virtual host.
    Vhost,
    /// A user.
    User,
    /// What a user may do in the virtual host.
    Permissions,
    /// An exchange.
    Exchange,
    /// A queue.
    Queue,
    /// A binding of a queue to an exchange.
    Binding,
    /// A policy.
    Policy,
}

/// One field or argument that differs.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Difference {
    /// Its name, by the broker's own word.
    pub field: String,
    /// What it is; nothing where it is not set. A password has no value here.
    pub current: Option<Value>,
    /// What the topology has.
    pub wanted: Option<Value>,
}

/// A stage whose queues the nodes make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Skipped {
    /// Its name.
    pub stage: String,
    /// Why nothing is made for it.
    pub reason: String,
}

/// Nothing to do, and nothing has drifted.
pub const EXIT_CLEAN: u8 = 0;

/// There is something to change, and nothing has drifted. 2 is left for a command line that cannot be right.
pub const EXIT_CHANGES: u8 = 3;

/// Something has drifted, whether or not there is something to change.
pub const EXIT_DRIFT: u8 = 4;

impl Plan {
    /// Whether there is nothing to change, and nothing has drifted. Warnings do not count.
    pub fn is_clean(&self) -> bool {
        self.changes.is_empty() && self.drift.is_empty()
    }

    /// For a program that ends with it: [`EXIT_CLEAN`], [`EXIT_CHANGES`] or [`EXIT_DRIFT`]. 1 is left for errors.
    pub fn exit_code(&self) -> u8 {
        match (self.changes.is_empty(), self.drift.is_empty()) {
            (_, false) => EXIT_DRIFT,
            (false, true) => EXIT_CHANGES,
            (true, true) => EXIT_CLEAN,
        }
    }
}

impl Applied {
    /// For a program that ends with it: [`EXIT_CLEAN`], or [`EXIT_DRIFT`] where something is left that differs.
    pub fn exit_code(&self) -> u8 {
        if self.drift.is_empty() { EXIT_CLEAN } else { EXIT_DRIFT }
    }
}

/// A change was refused, or its answer did not come. What was changed before it stays, and what was to follow was not
/// tried: applying again goes on from there.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ApplyError {
    /// What happened. For a change, its context names the thing.
    pub error: Error,
    /// What was changed.
    pub done: Vec<Change>,
    /// What was not, first the one that failed. Empty where nothing was tried. After a time-out or a lost connection that
    /// one may have been made.
    pub not_done: Vec<Change>,
}

impl fmt::Display for ApplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)?;
        if self.done.is_empty() && self.not_done.is_empty() {
            return f.write_str("; nothing was changed");
        }
        let names = |changes: &[Change]| {
            let names: Vec<String> = changes.iter().map(|change| change.entity.to_string()).collect();
            if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
        };
        write!(f, "; done: {}; not done: {}", names(&self.done), names(&self.not_done))
    }
}

impl std::error::Error for ApplyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.error)
    }
}

/// Without what was done and what was not.
impl From<ApplyError> for Error {
    fn from(error: ApplyError) -> Self {
        error.error
    }
}

/// Where the two differ; what only one of them has, too.
pub(super) fn differences(
    current: &BTreeMap<String, Value>,
    wanted: &BTreeMap<String, Value>,
) -> Vec<Difference> {
    let fields: BTreeSet<&String> = current.keys().chain(wanted.keys()).collect();
    let fields = fields.into_iter().filter(|field| current.get(*field) != wanted.get(*field));
    fields
        .map(|field| Difference {
            field: field.clone(),
            current: current.get(field).cloned(),
            wanted: wanted.get(field).cloned(),
        })
        .collect()
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(f, &self.changes, ["create", "update"], (&self.drift, &self.warnings, &self.skipped))
    }
}

impl fmt::Display for Applied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(f, &self.changes, ["created", "updated"], (&self.drift, &self.warnings, &self.skipped))
    }
}

fn write(
    f: &mut fmt::Formatter<'_>,
    changes: &[Change],
    [create, update]: [&str; 2],
    (drift, warnings, skipped): (&[Drift], &[String], &[Skipped]),
) -> fmt::Result {
    for Change { action, entity, differences } in changes {
        match action {
            Action::Create => write!(f, "+ {create} {entity}")?,
            Action::Update => write!(f, "~ {update} {entity}")?,
        }
        let told =
            differences.iter().filter(|difference| *action == Action::Update || difference.is_telling());
        for (index, Difference { field, current, wanted }) in told.enumerate() {
            write!(f, "{}{field}", if index == 0 { ": " } else { ", " })?;
            match (action, current, wanted) {
                (_, None, None) => {}
                (Action::Create, _, wanted) => write!(f, " {}", Shown(wanted.as_ref()))?,
                (Action::Update, current, wanted) => {
                    write!(f, " {} -> {}", Shown(current.as_ref()), Shown(wanted.as_ref()))?;
                }
            }
        }
        writeln!(f)?;
    }
    for drift in drift {
        writeln!(f, "! {drift}")?;
    }
    for warning in warnings {
        writeln!(f, "? {warning}")?;
    }
    for Skipped { stage, reason } in skipped {
        writeln!(f, "- skip stage {stage:?}: {reason}")?;
    }
    if changes.is_empty() && drift.is_empty() {
        writeln!(f, "nothing to do")?;
    }
    Ok(())
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.entity, self.message)
    }
}

impl Difference {
    /// Whether somebody who reads what is made wants to know it: all that is made is durable, and nothing else of the
    /// kind.
    fn is_telling(&self) -> bool {
        match &self.wanted {
            Some(Value::Bool(yes)) => *yes != (self.field == "durable"),
            Some(Value::Array(list)) => !list.is_empty(),
            _ => true,
        }
    }
}

/// What differs, in words.
pub(super) fn in_words(differences: &[Difference]) -> String {
    let each = differences.iter().map(|Difference { field, current, wanted }| {
        format!("{field} is {}, wanted {}", Shown(current.as_ref()), Shown(wanted.as_ref()))
    });
    each.collect::<Vec<_>>().join("; ")
}

struct Shown<'a>(Option<&'a Value>);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(value) => value.fmt(f),
            None => f.write_str("unset"),
        }
    }
}

impl Entity {
    pub(super) fn new(kind: EntityKind, name: impl Into<String>) -> Self {
        Self { kind, name: name.into() }
    }
}

impl fmt::Display for Entity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.kind, self.name)
    }
}

impl EntityKind {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vhost => "virtual host",
            Self::User => "user",
            Self::Permissions => "permissions of",
            Self::Exchange => "exchange",
            Self::Queue => "queue",
            Self::Binding => "binding",
            Self::Policy => "policy",
        }
    }
}

impl fmt::Display for EntityKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
