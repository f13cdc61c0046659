//! What a deployment has on its broker, as data: a virtual host, a user, queues with somewhere to dead-letter to, and an
//! exchange that everybody hears.
//!
//! A node assumes that its queues exist. A [`Topology`] says which those are; it is written in code, or read by serde
//! from JSON, TOML or whatever else. `windlass::bootstrap` makes it on RabbitMQ, and
//! `MemoryBroker::apply` in memory.
//!
//! ```
//! use std::time::Duration;
//! use windlass::topology::{Broadcast, Stage, Topology};
//!
//! let topology = Topology::default()
//!     .with_vhost("chat")
//!     .with_user("chat-node")
//!     .with_broadcast(Broadcast::new("chat.all"))
//!     .with_stage(Stage::new("writer").with_delivery_limit(50))
//!     .with_stage(Stage::new("transport-manager").with_wait_steps([Duration::from_secs(30)]))
//!     .with_stage(Stage::per_slot("websockets-transport"));
//! topology.validate()?;
//! # Ok::<(), windlass::Error>(())
//! ```
//!
//! The same as TOML:
//!
//! ```toml
//! vhost = "chat"
//! user = { name = "chat-node" }
//! broadcast = { exchange = "chat.all" }
//!
//! [[stages]]
//! name = "writer"
//! delivery_limit = 50
//!
//! [[stages]]
//! name = "transport-manager"
//! wait_steps_ms = [30000]
//!
//! [[stages]]
//! name = "websockets-transport"
//! per_slot = true
//! ```
//!
//! # Terms
//!
//! | here | on the broker |
//! |---|---|
//! | stage | a durable queue that workers pull from, and its dead-letter queue `<stage>.dlq` |
//! | per-slot stage | one queue for each node, `<stage>_<n>`, which the node makes and which goes with its connection |
//! | dead letters | a direct exchange, to which each `<stage>.dlq` is bound by the stage's name |
//! | retention | for how long, and how many, dead letters are kept |
//! | broadcast | a fanout exchange |
//! | wait step | a queue in which what is retried waits for one certain delay |
//!
//! In a document, durations are whole numbers whose name ends in their unit, and a field that does not exist is refused.
//!
//! # What is refused
//!
//! [`validate`](Topology::validate) asks no broker. It refuses, with the field: names that are empty, too long, twice
//! there or the broker's own; numbers out of their range; stages that dead-letter in a circle, which the broker cuts by
//! dropping what comes by; a time to live on a stage whose messages are retried after a delay, since the broker would
//! drop those that expire for the second time; a queue that expires before its longest delay is over; a delivery limit
//! without anywhere to dead-letter to, since the broker drops what is over it; a policy that would push aside the one
//! that leads to the dead letters.

mod argument;
mod policy;
mod stage;
mod units;
mod validate;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use argument::Argument;
pub use policy::{ApplyTo, POLICY_PREFIX, POLICY_PRIORITY, Policy};
pub use stage::{Overflow, Stage, StageType};
pub use validate::Problem;

use crate::error::{Error, ErrorKind, Result};

/// What a deployment has on its broker. The [module](self) has an example.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Topology {
    /// The virtual host that all of it is in. Default: "/".
    pub vhost: String,
    /// The user that nodes log in as. Default: none, the users are somebody else's.
    pub user: Option<RuntimeUser>,
    /// The queues, and what belongs to them.
    pub stages: Vec<Stage>,
    /// Where what is given up goes, and for how long it is kept.
    pub dead_letters: DeadLetters,
    /// What every node hears. Default: none.
    pub broadcast: Option<Broadcast>,
    /// The delays, in `wait_steps_ms`, whose wait queues are made beforehand for each stage that names none of its own;
    /// from 1 ms to ten years. Others are made at their first use. Default: 1 s, 2 s and 4 s, which are the delays of a
    /// consumer that was told no other.
    #[serde(rename = "wait_steps_ms", with = "units::list_of_millis")]
    pub wait_steps: Vec<Duration>,
    /// Further policies, for what else there is in the virtual host.
    pub policies: Vec<Policy>,
}

/// The user that nodes log in as. Its password is no part of a topology.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct RuntimeUser {
    /// Its name.
    pub name: String,
    /// What it may make and delete, as a regular expression. Default: everything in the virtual host, since nodes make
    /// wait queues and the queues of their slots.
    #[serde(default = "everything")]
    pub configure: String,
    /// What it may publish to, as a regular expression. Default: everything in the virtual host.
    #[serde(default = "everything")]
    pub write: String,
    /// What it may consume and bind to, as a regular expression. Default: everything in the virtual host.
    #[serde(default = "everything")]
    pub read: String,
    /// What it may do on the management API. Default: nothing.
    #[serde(default)]
    pub tags: Vec<String>,
}

fn everything() -> String {
    ".*".to_owned()
}

impl RuntimeUser {
    /// A user that may do everything within the virtual host, and nothing on the management API.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            configure: everything(),
            write: everything(),
            read: everything(),
            tags: Vec::new(),
        }
    }
}

/// Where what is given up goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct DeadLetters {
    /// The direct exchange. Default: `dead-letters`.
    pub exchange: String,
    /// For how long, and how many, are kept in each queue.
    pub retention: Retention,
}

impl Default for DeadLetters {
    fn default() -> Self {
        Self { exchange: "dead-letters".to_owned(), retention: Retention::default() }
    }
}

/// For how long, and how many, dead letters are kept in each queue; the oldest are dropped first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Retention {
    /// From 3 to 30 days. Default: 3.
    pub max_age_days: u32,
    /// From 10 to 500. Default: 100.
    pub max_messages: u32,
}

impl Retention {
    /// For so many days, and so many messages.
    pub fn new(max_age_days: u32, max_messages: u32) -> Self {
        Self { max_age_days, max_messages }
    }

    /// For how long, as a duration.
    pub fn max_age(&self) -> Duration {
        Duration::from_secs(u64::from(self.max_age_days) * 24 * 60 * 60)
    }
}

impl Default for Retention {
    fn default() -> Self {
        Self { max_age_days: 3, max_messages: 100 }
    }
}

/// The fanout exchange that carries what every node must hear.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Broadcast {
    /// Its name.
    pub exchange: String,
}

impl Broadcast {
    /// An exchange of this name.
    pub fn new(exchange: impl Into<String>) -> Self {
        Self { exchange: exchange.into() }
    }
}

/// The virtual host "/", without a user or a stage.
impl Default for Topology {
    fn default() -> Self {
        Self {
            vhost: "/".to_owned(),
            user: None,
            stages: Vec::new(),
            dead_letters: DeadLetters::default(),
            broadcast: None,
            wait_steps: [1, 2, 4].map(Duration::from_secs).to_vec(),
            policies: Vec::new(),
        }
    }
}

impl Topology {
    /// Sets [`vhost`](Self::vhost).
    #[must_use]
    pub fn with_vhost(mut self, vhost: impl Into<String>) -> Self {
        self.vhost = vhost.into();
        self
    }

    /// Sets [`user`](Self::user), one with all rights within the virtual host.
    #[must_use]
    pub fn with_user(mut self, name: impl Into<String>) -> Self {
        self.user = Some(RuntimeUser::new(name));
        self
    }

    /// Adds a stage.
    #[must_use]
    pub fn with_stage(mut self, stage: Stage) -> Self {
        self.stages.push(stage);
        self
    }

    /// Sets [`dead_letters.retention`](DeadLetters::retention).
    #[must_use]
    pub fn with_retention(mut self, retention: Retention) -> Self {
        self.dead_letters.retention = retention;
        self
    }

    /// Sets [`dead_letters.exchange`](DeadLetters::exchange).
    #[must_use]
    pub fn with_dead_letter_exchange(mut self, exchange: impl Into<String>) -> Self {
        self.dead_letters.exchange = exchange.into();
        self
    }

    /// Sets [`broadcast`](Self::broadcast).
    #[must_use]
    pub fn with_broadcast(mut self, broadcast: Broadcast) -> Self {
        self.broadcast = Some(broadcast);
        self
    }

    /// Sets [`wait_steps`](Self::wait_steps).
    #[must_use]
    pub fn with_wait_steps(mut self, steps: impl IntoIterator<Item = Duration>) -> Self {
        self.wait_steps = steps.into_iter().collect();
        self
    }

    /// Adds a policy.
    #[must_use]
    pub fn with_policy(mut self, policy: Policy) -> Self {
        self.policies.push(policy);
        self
    }

    /// The stages whose queue is there once for all nodes.
    pub fn static_stages(&self) -> impl Iterator<Item = &Stage> {
        self.stages.iter().filter(|stage| !stage.per_slot)
    }

    /// The stages that have a queue for each node.
    pub fn slot_stages(&self) -> impl Iterator<Item = &Stage> {
        self.stages.iter().filter(|stage| stage.per_slot)
    }

    /// The delays whose wait queues are made beforehand for `stage`: its own, or else those of the topology; none for
    /// a stage that is per slot.
    pub fn wait_steps<'a>(&'a self, stage: &'a Stage) -> &'a [Duration] {
        if stage.per_slot { &[] } else { stage.wait_steps.as_deref().unwrap_or(&self.wait_steps) }
    }

    /// All that cannot be right, each with its field.
    pub fn problems(&self) -> Vec<Problem> {
        validate::problems(self)
    }

    /// Whether this can be right. Asks no broker.
    ///
    /// # Errors
    ///
    /// `Invalid`, with all the [`problems`](Self::problems); the [module](self) has a list of what is refused.
    pub fn validate(&self) -> Result<()> {
        let problems = self.problems();
        if problems.is_empty() {
            return Ok(());
        }
        let text: Vec<String> = problems.iter().map(ToString::to_string).collect();
        Err(Error::new(ErrorKind::Invalid, "check topology").with_message(text.join("; ")))
    }
}
