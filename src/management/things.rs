//! What there is on a broker, as far as the API tells.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use serde_json::Value;

use super::answer::Fields;
use super::password;
use crate::rabbitmq::Secret;

/// The broker itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Overview {
    /// Its version, such as `4.0.5`.
    pub version: Option<String>,
    /// The name of the cluster.
    pub cluster: Option<String>,
    /// The node that answered.
    pub node: Option<String>,
}

impl Overview {
    pub(super) fn read(fields: Fields<'_>) -> Self {
        Self {
            version: fields.text("rabbitmq_version"),
            cluster: fields.text("cluster_name"),
            node: fields.text("node"),
        }
    }

    /// The major and the minor version; `None` where they are not told.
    pub fn series(&self) -> Option<(u32, u32)> {
        let mut parts = self.version.as_deref()?.split('.').map(str::parse);
        Some((parts.next()?.ok()?, parts.next()?.ok()?))
    }
}

/// A virtual host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Vhost {
    /// Its name.
    pub name: String,
    /// What somebody wrote about it.
    pub description: Option<String>,
    /// The type of queues that are declared without one.
    pub default_queue_type: Option<String>,
}

impl Vhost {
    pub(super) fn read(fields: Fields<'_>) -> Option<Self> {
        Some(Self {
            name: fields.text("name")?,
            description: fields.text("description").filter(|text| !text.is_empty()),
            default_queue_type: fields.text("default_queue_type"),
        })
    }
}

/// A user. `Debug` does not show the hash of the password, which is not serialized either.
#[derive(Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct User {
    /// Its name.
    pub name: String,
    /// What it may do on the management API.
    pub tags: Vec<String>,
    #[serde(skip)]
    pub(crate) hash: Option<String>,
    #[serde(skip)]
    pub(crate) algorithm: Option<String>,
}

impl User {
    pub(super) fn read(fields: Fields<'_>) -> Option<Self> {
        Some(Self {
            name: fields.text("name")?,
            tags: fields.words("tags"),
            hash: fields.text("password_hash"),
            algorithm: fields.text("hashing_algorithm"),
        })
    }

    /// Whether this is the user's password; `None` where the API does not show the hash, or one that is not known here.
    pub fn has_password(&self, password: &Secret) -> Option<bool> {
        password::matches(self.hash.as_deref()?, self.algorithm.as_deref(), password)
    }
}

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("User").field("name", &self.name).field("tags", &self.tags).finish_non_exhaustive()
    }
}

/// What a user may do in a virtual host: three regular expressions of names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Permissions {
    /// The user.
    pub user: String,
    /// The virtual host.
    pub vhost: String,
    /// What it may make and delete.
    pub configure: String,
    /// What it may publish to.
    pub write: String,
    /// What it may consume and bind to.
    pub read: String,
}

impl Permissions {
    pub(super) fn read(fields: Fields<'_>) -> Option<Self> {
        Some(Self {
            user: fields.text("user")?,
            vhost: fields.text("vhost")?,
            configure: fields.text("configure")?,
            write: fields.text("write")?,
            read: fields.text("read")?,
        })
    }
}

/// An exchange.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Exchange {
    /// Its name; that of the default exchange is empty.
    pub name: String,
    /// `direct`, `fanout`, ...
    pub kind: Option<String>,
    /// Whether it is there after a restart.
    pub durable: Option<bool>,
    /// Whether it goes with the last that is bound to it.
    pub auto_delete: Option<bool>,
    /// Whether clients cannot publish to it.
    pub internal: Option<bool>,
    /// What it was declared with.
    pub arguments: BTreeMap<String, Value>,
}

impl Exchange {
    pub(super) fn read(fields: Fields<'_>) -> Option<Self> {
        Some(Self {
            name: fields.text("name")?,
            kind: fields.text("type"),
            durable: fields.flag("durable"),
            auto_delete: fields.flag("auto_delete"),
            internal: fields.flag("internal"),
            arguments: fields.map("arguments").unwrap_or_default(),
        })
    }
}

/// A queue. Figures are some seconds old, and unknown for a queue that is new: that is not zero.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct QueueStatus {
    /// Its name.
    pub name: String,
    /// `classic`, `quorum` or `stream`.
    pub kind: Option<String>,
    /// `running`, `idle`, `down`, `minority`, ...
    pub state: Option<String>,
    /// Whether it is there after a restart.
    pub durable: Option<bool>,
    /// Whether it goes with its last consumer.
    pub auto_delete: Option<bool>,
    /// Whether it belongs to one connection.
    pub exclusive: Option<bool>,
    /// How many messages wait in it.
    pub ready: Option<u64>,
    /// How many are with consumers that have not answered yet.
    pub unacked: Option<u64>,
    /// How many there are altogether.
    pub messages: Option<u64>,
    /// The bytes of their bodies.
    pub message_bytes: Option<u64>,
    /// How many consume it.
    pub consumers: Option<u64>,
    /// What it was declared with.
    pub arguments: BTreeMap<String, Value>,
    /// The policy that applies to it.
    pub policy: Option<String>,
    /// The operator policy that applies to it as well.
    pub operator_policy: Option<String>,
    /// What both of them set.
    pub effective_policy: Option<BTreeMap<String, Value>>,
}

impl QueueStatus {
    /// What [`read`](Self::read) asks for.
    pub(super) const COLUMNS: &str = "name,type,state,durable,auto_delete,exclusive,messages_ready,\
        messages_unacknowledged,messages,message_bytes,consumers,arguments,policy,operator_policy,\
        effective_policy_definition";

    pub(super) fn read(fields: Fields<'_>) -> Option<Self> {
        Some(Self::named(fields.text("name")?, fields))
    }

    /// One of this name was asked for: it is there, even where the answer has no fields.
    pub(super) fn named(name: String, fields: Fields<'_>) -> Self {
        let arguments = fields.map("arguments").unwrap_or_default();
        let declared = || arguments.get("x-queue-type").and_then(Value::as_str).map(str::to_owned);
        Self {
            name,
            kind: fields.text("type").or_else(declared),
            state: fields.text("state"),
            durable: fields.flag("durable"),
            auto_delete: fields.flag("auto_delete"),
            exclusive: fields.flag("exclusive"),
            ready: fields.number("messages_ready"),
            unacked: fields.number("messages_unacknowledged"),
            messages: fields.number("messages"),
            message_bytes: fields.number("message_bytes"),
            consumers: fields.number("consumers"),
            policy: fields.text("policy"),
            operator_policy: fields.text("operator_policy"),
            effective_policy: fields.map("effective_policy_definition"),
            arguments,
        }
    }
}

/// A binding.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Binding {
    /// The exchange.
    pub source: String,
    /// The queue or exchange that it leads to.
    pub destination: String,
    /// `queue` or `exchange`.
    pub destination_kind: Option<String>,
    /// The routing key.
    pub routing_key: String,
    /// What it was made with.
    pub arguments: BTreeMap<String, Value>,
}

impl Binding {
    pub(super) fn read(fields: Fields<'_>) -> Option<Self> {
        Some(Self {
            source: fields.text("source")?,
            destination: fields.text("destination")?,
            destination_kind: fields.text("destination_type"),
            routing_key: fields.text("routing_key")?,
            arguments: fields.map("arguments").unwrap_or_default(),
        })
    }
}

/// A policy, or an operator policy.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct PolicyStatus {
    /// Its name.
    pub name: String,
    /// The names that it matches, as a regular expression.
    pub pattern: String,
    /// `queues`, `exchanges` or `all`; from 4.0 on also one kind of queues.
    pub apply_to: String,
    /// Of two that match, the one with the higher priority applies.
    pub priority: i64,
    /// What it sets.
    pub definition: BTreeMap<String, Value>,
}

impl PolicyStatus {
    pub(super) fn read(fields: Fields<'_>) -> Option<Self> {
        Some(Self {
            name: fields.text("name")?,
            pattern: fields.text("pattern")?,
            apply_to: fields.text("apply-to").unwrap_or_else(|| "all".to_owned()),
            priority: fields.integer("priority").unwrap_or_default(),
            definition: fields.map("definition").unwrap_or_default(),
        })
    }
}

/// What policies make of one queue.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct EffectivePolicy {
    /// The policy, where one applies.
    pub policy: Option<String>,
    /// The operator policy, where one applies.
    pub operator_policy: Option<String>,
    /// What both of them set.
    pub definition: BTreeMap<String, Value>,
}
