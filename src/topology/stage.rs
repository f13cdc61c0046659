//! A stage: the queue that one kind of worker pulls from.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Argument, units};

/// A queue that workers pull from, with its dead-letter queue and its wait queues.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Stage {
    /// The name of its queue; of a per-slot stage, what the names of its queues begin with.
    pub name: String,
    /// Each node claims a queue of its own, `<name>_<n>`, and makes it itself. Default: no, one queue for all nodes.
    #[serde(default, skip_serializing_if = "is_false")]
    pub per_slot: bool,
    /// Default: quorum.
    #[serde(default)]
    pub queue_type: StageType,
    /// Whether `<name>.dlq` is made. Default: yes, unless the stage is per slot or dead-letters to another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dead_letters: Option<bool>,
    /// Another stage that what is given up goes to, instead of to dead letters. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dead_letter_to: Option<String>,
    /// In `wait_steps_ms`: as [`Topology::wait_steps`](super::Topology::wait_steps), for this stage. An empty list says
    /// that it is never retried after a delay.
    #[serde(
        default,
        rename = "wait_steps_ms",
        with = "units::maybe_list_of_millis",
        skip_serializing_if = "Option::is_none"
    )]
    pub wait_steps: Option<Vec<Duration>>,
    /// How often a message may come back without an answer before the broker dead-letters it, from 1 to 2,147,483,647;
    /// only on quorum queues. Default: the broker's own, none on 3.10 and 20 from 4.0 on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery_limit: Option<u32>,
    /// In `message_ttl_ms`: for how long a message may lie in it, from 0 to ten years. Default: for ever.
    #[serde(
        default,
        rename = "message_ttl_ms",
        with = "units::millis",
        skip_serializing_if = "Option::is_none"
    )]
    pub message_ttl: Option<Duration>,
    /// In `expires_ms`: for how long nobody may use it before the broker deletes it with what is in it, from 1 ms to ten
    /// years; publishing is no use. Default: never.
    #[serde(default, rename = "expires_ms", with = "units::millis", skip_serializing_if = "Option::is_none")]
    pub expires: Option<Duration>,
    /// How many messages may wait in it, from 1. Default: any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_length: Option<u64>,
    /// How many bytes of bodies may wait in it, from 1. Default: any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_length_bytes: Option<u64>,
    /// What becomes of a message for which there is no room. Default: publishers are told that it is refused, so that
    /// nothing is lost without a word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overflow: Option<Overflow>,
    /// The highest priority, from 1 to 255, which the broker keeps a queue of its own for; only on classic queues.
    /// Higher ones count as it, and none as 0. Default: no priorities.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_priority: Option<u16>,
    /// One consumer at a time has all messages. Default: no.
    #[serde(default, skip_serializing_if = "is_false")]
    pub single_active_consumer: bool,
    /// On how many nodes of a cluster a quorum queue is, from 1. Default: the broker's own, three.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initial_group_size: Option<u32>,
    /// Further arguments of the queue, by the broker's own names, which begin with `x-`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub arguments: BTreeMap<String, Argument>,
    /// What its policy sets beside where dead letters go, by the broker's own keys, such as `max-length`. Unlike an
    /// argument, this can change while the queue is there.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub policy: BTreeMap<String, Argument>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
fn is_false(value: &bool) -> bool {
    !value
}

/// What kind of queue a stage has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StageType {
    /// Replicated over the nodes of a cluster, and durable by nature.
    #[default]
    Quorum,
    /// On one node.
    Classic,
}

impl StageType {
    /// By the broker's own word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Quorum => "quorum",
            Self::Classic => "classic",
        }
    }
}

/// What becomes of a message for which a queue has no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Overflow {
    /// The oldest message is dropped, or dead-lettered where there are dead letters.
    DropHead,
    /// The new one is refused.
    RejectPublish,
    /// The new one is refused and dead-lettered; only on classic queues.
    RejectPublishDlx,
}

impl Overflow {
    /// By the broker's own word.
    pub fn name(self) -> &'static str {
        match self {
            Self::DropHead => "drop-head",
            Self::RejectPublish => "reject-publish",
            Self::RejectPublishDlx => "reject-publish-dlx",
        }
    }
}

/// The arguments that have a field of their own, or that are nobody's to set.
pub(super) const OWN_ARGUMENTS: [(&str, &str); 13] = [
    ("x-queue-type", "queue_type"),
    ("x-dead-letter-exchange", "dead_letter_to"),
    ("x-dead-letter-routing-key", "dead_letter_to"),
    ("x-dead-letter-strategy", "dead_letter_to"),
    ("x-delivery-limit", "delivery_limit"),
    ("x-message-ttl", "message_ttl_ms"),
    ("x-expires", "expires_ms"),
    ("x-max-length", "max_length"),
    ("x-max-length-bytes", "max_length_bytes"),
    ("x-overflow", "overflow"),
    ("x-max-priority", "max_priority"),
    ("x-single-active-consumer", "single_active_consumer"),
    ("x-quorum-initial-group-size", "initial_group_size"),
];

impl Stage {
    /// A stage with one durable quorum queue for all nodes, and dead letters.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            per_slot: false,
            queue_type: StageType::default(),
            dead_letters: None,
            dead_letter_to: None,
            wait_steps: None,
            delivery_limit: None,
            message_ttl: None,
            expires: None,
            max_length: None,
            max_length_bytes: None,
            overflow: None,
            max_priority: None,
            single_active_consumer: false,
            initial_group_size: None,
            arguments: BTreeMap::new(),
            policy: BTreeMap::new(),
        }
    }

    /// A stage of which each node claims a queue of its own.
    pub fn per_slot(name: impl Into<String>) -> Self {
        Self { per_slot: true, ..Self::new(name) }
    }

    /// Sets [`queue_type`](Self::queue_type).
    #[must_use]
    pub fn with_queue_type(mut self, queue_type: StageType) -> Self {
        self.queue_type = queue_type;
        self
    }

    /// Sets [`dead_letters`](Self::dead_letters).
    #[must_use]
    pub fn with_dead_letters(mut self, yes: bool) -> Self {
        self.dead_letters = Some(yes);
        self
    }

    /// Sets [`dead_letter_to`](Self::dead_letter_to).
    #[must_use]
    pub fn with_dead_letter_to(mut self, stage: impl Into<String>) -> Self {
        self.dead_letter_to = Some(stage.into());
        self
    }

    /// Sets [`wait_steps`](Self::wait_steps).
    #[must_use]
    pub fn with_wait_steps(mut self, steps: impl IntoIterator<Item = Duration>) -> Self {
        self.wait_steps = Some(steps.into_iter().collect());
        self
    }

    /// Sets [`delivery_limit`](Self::delivery_limit).
    #[must_use]
    pub fn with_delivery_limit(mut self, limit: u32) -> Self {
        self.delivery_limit = Some(limit);
        self
    }

    /// Sets [`message_ttl`](Self::message_ttl).
    #[must_use]
    pub fn with_message_ttl(mut self, ttl: Duration) -> Self {
        self.message_ttl = Some(ttl);
        self
    }

    /// Sets [`expires`](Self::expires).
    #[must_use]
    pub fn with_expires(mut self, after: Duration) -> Self {
        self.expires = Some(after);
        self
    }

    /// Sets [`max_length`](Self::max_length).
    #[must_use]
    pub fn with_max_length(mut self, messages: u64) -> Self {
        self.max_length = Some(messages);
        self
    }

    /// Sets [`overflow`](Self::overflow).
    #[must_use]
    pub fn with_overflow(mut self, overflow: Overflow) -> Self {
        self.overflow = Some(overflow);
        self
    }

    /// Sets [`max_priority`](Self::max_priority).
    #[must_use]
    pub fn with_max_priority(mut self, priority: u16) -> Self {
        self.max_priority = Some(priority);
        self
    }

    /// Sets [`single_active_consumer`](Self::single_active_consumer).
    #[must_use]
    pub fn with_single_active_consumer(mut self, yes: bool) -> Self {
        self.single_active_consumer = yes;
        self
    }

    /// Adds one of the [`arguments`](Self::arguments).
    #[must_use]
    pub fn with_argument(mut self, name: impl Into<String>, value: impl Into<Argument>) -> Self {
        self.arguments.insert(name.into(), value.into());
        self
    }

    /// Adds a key to the [`policy`](Self::policy).
    #[must_use]
    pub fn with_policy(mut self, key: impl Into<String>, value: impl Into<Argument>) -> Self {
        self.policy.insert(key.into(), value.into());
        self
    }

    /// Whether `<name>.dlq` is made.
    pub fn has_dead_letters(&self) -> bool {
        self.dead_letters.unwrap_or(!self.per_slot && self.dead_letter_to.is_none())
    }

    /// The name of its dead-letter queue, `<name>.dlq`, where it has one; all slots of a per-slot stage share it.
    pub fn dead_letter_queue(&self) -> Option<String> {
        self.has_dead_letters().then(|| format!("{}.dlq", self.name))
    }

    /// What becomes of a message for which there is no room.
    pub fn overflow(&self) -> Overflow {
        self.overflow.unwrap_or(Overflow::RejectPublish)
    }

    /// The arguments that its queue is declared with, by the broker's own names, its type among them.
    ///
    /// Where dead letters go is not among them: that is the policy's to say, which can change while the queue is there.
    pub fn queue_arguments(&self) -> BTreeMap<String, Argument> {
        let ms = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        let count = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let limited = self.max_length.is_some() || self.max_length_bytes.is_some();
        let overflow = self.overflow.or(limited.then_some(Overflow::RejectPublish));
        let typed: [(&str, Option<Argument>); 10] = [
            ("x-queue-type", Some(self.queue_type.name().into())),
            ("x-delivery-limit", self.delivery_limit.map(Argument::from)),
            ("x-message-ttl", self.message_ttl.map(ms).map(Argument::from)),
            ("x-expires", self.expires.map(ms).map(Argument::from)),
            ("x-max-length", self.max_length.map(count).map(Argument::from)),
            ("x-max-length-bytes", self.max_length_bytes.map(count).map(Argument::from)),
            ("x-overflow", overflow.map(|overflow| overflow.name().into())),
            ("x-max-priority", self.max_priority.map(|priority| u32::from(priority).into())),
            ("x-single-active-consumer", self.single_active_consumer.then_some(Argument::Bool(true))),
            ("x-quorum-initial-group-size", self.initial_group_size.map(Argument::from)),
        ];
        let typed = typed.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        typed.chain(self.arguments.clone()).collect()
    }
}
