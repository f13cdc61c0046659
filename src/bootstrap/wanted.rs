//! What a topology asks of the broker, thing by thing, in the order in which it is made.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};

use super::plan::{Entity, EntityKind};
use crate::error::Result;
use crate::management::{Path, PolicyStatus};
use crate::rabbitmq::ladder::{WaitArgument, wait_arguments, wait_queue};
use crate::topology::{
    Argument, Overflow, POLICY_PREFIX, POLICY_PRIORITY, Policy, Stage, StageType, Topology,
};

/// As good as no limit, on every series. A limit of -1, which says so, is refused by 3.10; no limit at all is 20 from
/// 4.0 on, which a look at the dead letters uses up: with the twentieth they would be gone.
const NO_DELIVERY_LIMIT: i64 = 2_147_483_647;

/// A thing as it is to be.
#[derive(Debug, Clone)]
pub(super) enum Wanted {
    Vhost,
    User { name: String, tags: BTreeSet<String> },
    Permissions { user: String, patterns: [String; 3] },
    Exchange { name: String, kind: &'static str },
    Queue(WantedQueue),
    Binding { exchange: String, queue: String, key: String },
    Policy(PolicyStatus),
}

#[derive(Debug, Clone)]
pub(super) struct WantedQueue {
    pub(super) name: String,
    pub(super) kind: StageType,
    pub(super) role: QueueRole,
    pub(super) arguments: BTreeMap<String, Value>,
}

/// What a queue is for, of which stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum QueueRole {
    Stage,
    DeadLetters,
    Wait,
}

/// Everything that a topology asks for. Each thing comes after those that it needs; a queue comes after its policy, and
/// after where its dead letters go, so that no message is ever in one without the other.
pub(super) fn wanted(topology: &Topology) -> Vec<Wanted> {
    let mut all = vec![Wanted::Vhost];
    if let Some(user) = &topology.user {
        all.push(Wanted::User { name: user.name.clone(), tags: user.tags.iter().cloned().collect() });
        let patterns = [user.configure.clone(), user.write.clone(), user.read.clone()];
        all.push(Wanted::Permissions { user: user.name.clone(), patterns });
    }
    if let Some(broadcast) = &topology.broadcast {
        all.push(Wanted::Exchange { name: broadcast.exchange.clone(), kind: "fanout" });
    }
    if topology.stages.iter().any(Stage::has_dead_letters) {
        all.push(Wanted::Exchange { name: topology.dead_letters.exchange.clone(), kind: "direct" });
    }
    for stage in &topology.stages {
        dead_letters(topology, stage, &mut all);
    }
    for stage in topology.static_stages() {
        all.extend(stage_policy(topology, stage).map(Wanted::Policy));
        all.push(Wanted::Queue(WantedQueue {
            name: stage.name.clone(),
            kind: stage.queue_type,
            role: QueueRole::Stage,
            arguments: stage
                .queue_arguments()
                .iter()
                .map(|(name, value)| (name.clone(), json(value)))
                .collect(),
        }));
        all.extend(wait_queues(stage, topology.wait_steps(stage)).into_iter().map(Wanted::Queue));
    }
    all.extend(topology.policies.iter().map(further_policy).map(Wanted::Policy));
    all
}

/// Everything in the virtual host.
pub(super) fn all_rights(user: &str) -> Wanted {
    Wanted::Permissions { user: user.to_owned(), patterns: [".*"; 3].map(str::to_owned) }
}

fn dead_letters(topology: &Topology, stage: &Stage, all: &mut Vec<Wanted>) {
    let Some(name) = stage.dead_letter_queue() else { return };
    let retention = topology.dead_letters.retention;
    let max_age = i64::try_from(retention.max_age().as_millis()).unwrap_or(i64::MAX);
    all.push(Wanted::Policy(policy(
        dead_letter_policy_name(stage),
        &name,
        [
            ("message-ttl", Value::from(max_age)),
            ("max-length", Value::from(retention.max_messages)),
            ("overflow", Value::from(Overflow::DropHead.name())),
            ("delivery-limit", Value::from(NO_DELIVERY_LIMIT)),
        ],
    )));
    all.push(Wanted::Queue(WantedQueue {
        name: name.clone(),
        kind: StageType::Quorum,
        role: QueueRole::DeadLetters,
        arguments: BTreeMap::from([("x-queue-type".to_owned(), Value::from(StageType::Quorum.name()))]),
    }));
    let exchange = topology.dead_letters.exchange.clone();
    all.push(Wanted::Binding { exchange, queue: name, key: stage.name.clone() });
}

pub(super) fn dead_letter_policy_name(stage: &Stage) -> String {
    format!("{POLICY_PREFIX}dlq.{}", stage.name)
}

pub(super) fn stage_policy_name(stage: &Stage) -> String {
    format!("{POLICY_PREFIX}stage.{}", stage.name)
}

/// `None` for a stage that needs none.
///
/// The routing key is always set: a message keeps its own else, by which the exchange may find nothing, and a dead letter
/// that finds nothing is gone without a word.
pub(super) fn stage_policy(topology: &Topology, stage: &Stage) -> Option<PolicyStatus> {
    let mut keys: Vec<(&str, Value)> = Vec::new();
    let target = match &stage.dead_letter_to {
        // By the default exchange, which needs no binding.
        Some(target) => Some(("", target.as_str())),
        None if stage.has_dead_letters() => {
            Some((topology.dead_letters.exchange.as_str(), stage.name.as_str()))
        }
        None => None,
    };
    if let Some((exchange, key)) = target {
        keys.push(("dead-letter-exchange", exchange.into()));
        keys.push(("dead-letter-routing-key", key.into()));
        if is_at_least_once(stage) {
            keys.push(("dead-letter-strategy", "at-least-once".into()));
            keys.push(("overflow", Overflow::RejectPublish.name().into()));
        }
    }
    keys.extend(stage.policy.iter().map(|(key, value)| (key.as_str(), json(value))));
    (!keys.is_empty()).then(|| policy(stage_policy_name(stage), &stage.name, keys))
}

/// Whether the broker can move dead letters without losing one. It does so only for quorum queues, and only where a full
/// one refuses what comes.
pub(super) fn is_at_least_once(stage: &Stage) -> bool {
    let refuses = Overflow::RejectPublish;
    let by_policy = stage.policy.get("overflow").is_none_or(|value| *value == Argument::from(refuses.name()));
    stage.queue_type == StageType::Quorum && stage.overflow() == refuses && by_policy
}

fn policy<'a>(name: String, queue: &str, keys: impl IntoIterator<Item = (&'a str, Value)>) -> PolicyStatus {
    PolicyStatus {
        name,
        pattern: exactly(queue),
        apply_to: "queues".to_owned(),
        priority: i64::from(POLICY_PRIORITY),
        definition: keys.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
    }
}

fn further_policy(policy: &Policy) -> PolicyStatus {
    PolicyStatus {
        name: policy.name.clone(),
        pattern: policy.pattern.clone(),
        apply_to: policy.apply_to.name().to_owned(),
        priority: i64::from(policy.priority),
        definition: policy.definition.iter().map(|(key, value)| (key.clone(), json(value))).collect(),
    }
}

/// A pattern that matches this name alone. In PCRE a backslash takes its meaning from every sign, and has none itself
/// before a letter or digit only.
fn exactly(name: &str) -> String {
    let mut pattern = String::from("^");
    for letter in name.chars() {
        // `_`, `-` and `.` aside, names have few of these. Letters beyond ASCII stand for themselves.
        if letter.is_ascii() && !letter.is_ascii_alphanumeric() && !matches!(letter, '_' | '-') {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern.push('$');
    pattern
}

/// As the adapter declares them at their first use, so that it finds them equal.
fn wait_queues(stage: &Stage, steps: &[Duration]) -> Vec<WantedQueue> {
    // Delays that are rounded up to the same step share a queue.
    let queues: BTreeMap<String, Duration> =
        steps.iter().map(|step| (wait_queue(&stage.name, *step), *step)).collect();
    let queues = queues.into_iter().map(|(name, step)| {
        let arguments = wait_arguments(&stage.name, step).map(|(argument, value)| {
            let value = match value {
                WaitArgument::Text(text) => Value::from(text),
                WaitArgument::Integer(number) => Value::from(number),
            };
            (argument.to_owned(), value)
        });
        WantedQueue { name, kind: StageType::Quorum, role: QueueRole::Wait, arguments: arguments.into() }
    });
    queues.collect()
}

fn json(value: &Argument) -> Value {
    match value {
        Argument::Bool(value) => Value::from(*value),
        Argument::Integer(value) => Value::from(*value),
        Argument::Text(value) => Value::from(value.as_str()),
    }
}

/// How a thing is asked for.
pub(super) enum Request {
    Put(Path, Value),
    Post(Path, Value),
}

impl Wanted {
    pub(super) fn entity(&self, vhost: &str) -> Entity {
        match self {
            Self::Vhost => Entity::new(EntityKind::Vhost, vhost),
            Self::User { name, .. } => Entity::new(EntityKind::User, name),
            Self::Permissions { user, .. } => Entity::new(EntityKind::Permissions, user),
            Self::Exchange { name, .. } => Entity::new(EntityKind::Exchange, name),
            Self::Queue(queue) => Entity::new(EntityKind::Queue, &queue.name),
            Self::Binding { exchange, queue, key } => {
                Entity::new(EntityKind::Binding, format!("{exchange} -> {queue} ({key})"))
            }
            Self::Policy(policy) => Entity::new(EntityKind::Policy, &policy.name),
        }
    }

    /// What of it can differ, by the broker's own words.
    pub(super) fn fields(&self) -> BTreeMap<String, Value> {
        match self {
            Self::Vhost | Self::Binding { .. } => BTreeMap::new(),
            Self::User { tags, .. } => BTreeMap::from([("tags".to_owned(), self::tags(tags))]),
            Self::Permissions { patterns: [configure, write, read], .. } => named([
                ("configure", configure.as_str().into()),
                ("write", write.as_str().into()),
                ("read", read.as_str().into()),
            ]),
            Self::Exchange { kind, .. } => named([
                ("type", (*kind).into()),
                ("durable", true.into()),
                ("auto_delete", false.into()),
                ("internal", false.into()),
            ]),
            Self::Queue(queue) => {
                let mut fields = named([
                    ("type", queue.kind.name().into()),
                    ("durable", true.into()),
                    ("auto_delete", false.into()),
                    ("exclusive", false.into()),
                ]);
                fields.extend(arguments(&queue.arguments));
                fields
            }
            Self::Policy(policy) => policy_fields(policy),
        }
    }

    /// How it is asked for, whether it is there or not. A user is asked for otherwise.
    pub(super) fn request(&self, vhost: &str) -> Result<Request> {
        let path = |operation, parts: &[&str]| Path::new(operation, parts);
        Ok(match self {
            Self::Vhost => Request::Put(path(PUT, &["vhosts", vhost])?, json!({})),
            Self::User { name, .. } => Request::Put(path(PUT, &["users", name])?, Value::Null),
            Self::Permissions { user, .. } => {
                Request::Put(path(PUT, &["permissions", vhost, user])?, json!(self.fields()))
            }
            Self::Exchange { name, kind } => {
                let body = json!({
                    "type": kind, "durable": true, "auto_delete": false, "internal": false, "arguments": {},
                });
                Request::Put(path(PUT, &["exchanges", vhost, name])?, body)
            }
            Self::Queue(queue) => {
                // Left out, `durable` is no.
                let body = json!({"durable": true, "auto_delete": false, "arguments": queue.arguments});
                Request::Put(path(PUT, &["queues", vhost, &queue.name])?, body)
            }
            Self::Binding { exchange, queue, key } => {
                let parts = ["bindings", vhost, "e", exchange, "q", queue];
                Request::Post(path(PUT, &parts)?, json!({"routing_key": key, "arguments": {}}))
            }
            Self::Policy(policy) => {
                let body = json!({
                    "pattern": policy.pattern,
                    "apply-to": policy.apply_to,
                    "priority": policy.priority,
                    "definition": policy.definition,
                });
                Request::Put(path(PUT, &["policies", vhost, &policy.name])?, body)
            }
        })
    }
}

/// What fails, in errors.
pub(super) const PUT: &str = "bootstrap";

pub(super) fn tags(tags: &BTreeSet<String>) -> Value {
    Value::from(tags.iter().map(String::as_str).collect::<Vec<_>>())
}

pub(super) fn named<const N: usize>(fields: [(&str, Value); N]) -> BTreeMap<String, Value> {
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Without the type, which the broker tells even where it was not named.
pub(super) fn arguments(all: &BTreeMap<String, Value>) -> impl Iterator<Item = (String, Value)> {
    all.iter().filter(|(name, _)| *name != "x-queue-type").map(|(name, value)| (name.clone(), value.clone()))
}

pub(super) fn policy_fields(policy: &PolicyStatus) -> BTreeMap<String, Value> {
    let mut fields = policy.definition.clone();
    fields.extend(named([
        ("pattern", policy.pattern.as_str().into()),
        ("apply-to", policy.apply_to.as_str().into()),
        ("priority", policy.priority.into()),
    ]));
    fields
}

#[cfg(test)]
mod tests {
    use regex_lite::Regex;

    use super::exactly;

    #[test]
    fn a_pattern_matches_its_name_alone() {
        let name = "a.b+c (x)|[é]{2}^$\\d#-_ %/";
        let pattern = Regex::new(&exactly(name)).expect("a pattern");
        assert!(pattern.is_match(name));
        for other in ["a.b+c", "aXb+c (x)|[é]{2}^$\\d#-_ %/", "x a.b+c (x)|[é]{2}^$\\d#-_ %/"] {
            assert!(!pattern.is_match(other), "{other}");
        }
        assert_eq!(exactly("orders_1-a.dlq"), "^orders_1-a\\.dlq$");
    }
}
