//! Makes what a [`Topology`] says, on RabbitMQ, over the management API alone: before the virtual host is there, and
//! before any node connects.
//!
//! ```no_run
//! # async fn bootstrap(topology: windlass::topology::Topology, password: String) -> windlass::Result<()> {
//! use windlass::bootstrap::Bootstrapper;
//! use windlass::management::{Management, ManagementConfig};
//!
//! let management = Management::new(ManagementConfig::from_env("ORDERS_MANAGEMENT")?)?;
//! let bootstrapper = Bootstrapper::new(management, topology).user_password(password);
//! print!("{}", bootstrapper.plan().await?);
//! let applied = bootstrapper.apply().await?;
//! print!("{applied}");
//! # Ok(())
//! # }
//! ```
//!
//! # What is made
//!
//! In this order, each thing where it is missing:
//!
//! 1. the virtual host, the user that nodes log in as, and its permissions;
//! 2. the broadcast exchange (fanout), and the exchange of the dead letters (direct);
//! 3. for each stage with dead letters, the policy with their retention, the quorum queue `<stage>.dlq`, and its binding
//!    by the stage's name;
//! 4. for each stage with one queue for all nodes, the policy that leads to its dead letters, its queue, and its wait
//!    queues, as the adapter would make them itself;
//! 5. further policies.
//!
//! So a policy is there before its queue, and a dead-letter queue before the stage: no message is ever in a stage that has
//! nowhere to give it up to. Dead letters of quorum stages are moved at least once. Policies are named
//! `windlass.stage.<stage>` and `windlass.dlq.<stage>`; the broker applies one policy to a queue, so what else a stage
//! needs stands in [`Stage::policy`](crate::topology::Stage::policy).
//!
//! Run again, it changes nothing. It adds what is missing, and sets policies, permissions, tags and the password where they
//! differ. **Queues and exchanges that are there stay as they are**: where they differ, that is drift, named with both
//! values. Nothing is ever deleted, and what the topology does not name is neither changed nor mentioned.
//!
//! # What is drift, and what is a warning
//!
//! Drift is what the bootstrapper leaves alone and somebody has to look at: a queue or an exchange that was declared
//! otherwise; a policy of somebody else that pushes one of ours aside, or that puts a time to live or an expiry on a stage
//! whose messages are retried after a delay, or on a wait queue; a policy of ours that the topology has no use for any more.
//! A warning is what the topology itself risks: a stage with a delivery limit, its own or the broker's 20 from 4.0 on, and
//! nowhere to dead-letter to; dead letters that can be moved at most once. Patterns of other policies are matched here, since
//! the broker tells only late which applies; where one cannot be, the broker is asked, and it is a warning where neither knows.
//!
//! # Who may do this
//!
//! A user of the API with the tag `administrator`. Where it has no rights in the virtual host, as after somebody else made
//! that, it gives itself all of them, since the broker lets nobody declare a queue without; rights that it has are left as
//! they are.
//!
//! # Dead-letter queues and the delivery limit
//!
//! From RabbitMQ 4.0 on a quorum queue has a delivery limit of 20, and each look at a message that puts it back counts.
//! The retention policy therefore sets one that is as good as none (2,147,483,647; -1 is refused by 3.10).

mod plan;
mod policies;
mod survey;
mod wanted;

use std::fmt;

pub use plan::{
    Action, Applied, ApplyError, Change, Difference, Drift, EXIT_CHANGES, EXIT_CLEAN, EXIT_DRIFT, Entity,
    EntityKind, Plan, Skipped,
};

use self::survey::{Now, Step, Survey, Surveyor};
use self::wanted::{PUT, Request, Wanted, all_rights};
use crate::error::{Error, ErrorKind, Result};
use crate::management::Management;
use crate::rabbitmq::Secret;
use crate::topology::Topology;

/// Makes a topology on a broker. The [module](self) says what, and how.
#[derive(Clone)]
#[must_use = "nothing is made until it is applied"]
pub struct Bootstrapper {
    management: Management,
    topology: Topology,
    password: Option<Secret>,
}

impl Bootstrapper {
    /// For a topology on the broker behind this API.
    pub fn new(management: Management, topology: Topology) -> Self {
        Self { management, topology, password: None }
    }

    /// The password of the topology's user. Without one, a user that is there keeps its own, and one that is not cannot be
    /// made.
    pub fn user_password(mut self, password: impl Into<Secret>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// What [`apply`](Self::apply) would change, and what it would leave. Changes nothing.
    ///
    /// # Errors
    ///
    /// `Invalid` for a topology that does not [validate](Topology::validate), or whose user is the one that this logs in
    /// as; and those of the [management API](crate::management).
    ///
    /// # Cancel safety
    ///
    /// Safe: it only asks.
    pub async fn plan(&self) -> Result<Plan> {
        let Survey { steps, drift, warnings, skipped, .. } = self.survey().await?;
        let changes = steps.into_iter().map(|step| step.change).collect();
        Ok(Plan { changes, drift, warnings, skipped })
    }

    /// Makes what is missing, and changes what differs and can be changed. Drift does not stop it; it is in what is
    /// returned. Several at once do no harm, and all succeed.
    ///
    /// # Errors
    ///
    /// The first one ends it, and the error says what was done and what was not. Before the first change: those of
    /// [`plan`](Self::plan); `Invalid` where the user does not exist and no password was given. For a change, with the
    /// thing's name: `Refused` with what differs, where somebody else declared it otherwise meanwhile, or with the broker's
    /// reason; the others of the [management API](crate::management). Nothing is tried twice.
    ///
    /// # Cancel safety
    ///
    /// What was changed stays; apply again to go on.
    pub async fn apply(&self) -> Result<Applied, ApplyError> {
        let before = |error| ApplyError { error, done: Vec::new(), not_done: Vec::new() };
        let Survey { steps, drift, warnings, skipped, refusal } = self.survey().await.map_err(before)?;
        if let Some(error) = refusal {
            return Err(before(error));
        }
        let mut steps = steps.into_iter();
        let mut changes = Vec::new();
        while let Some(step) = steps.next() {
            if let Err(error) = self.make(&step).await {
                let not_done = std::iter::once(step).chain(steps).map(|step| step.change).collect();
                return Err(ApplyError { error, done: changes, not_done });
            }
            tracing::info!(entity = %step.change.entity, action = ?step.change.action, "bootstrapped");
            changes.push(step.change);
        }
        Ok(Applied { changes, drift, warnings, skipped })
    }

    async fn survey(&self) -> Result<Survey> {
        self.topology.validate()?;
        if self.topology.user.as_ref().is_some_and(|user| user.name == self.management.own_user()) {
            let text = "`user.name` is the user that this logs in to the management API as, and would lose its tags: \
                        give nodes a user of their own";
            return Err(Error::new(ErrorKind::Invalid, "bootstrap").with_message(text));
        }
        self.surveyor().survey().await
    }

    fn surveyor(&self) -> Surveyor<'_> {
        Surveyor { management: &self.management, topology: &self.topology, password: self.password.as_ref() }
    }

    async fn make(&self, step: &Step) -> Result<()> {
        let made = match self.send(&step.request).await {
            // Who makes a virtual host is given all rights in it, a moment later; where somebody else made it at the same
            // time, that is them.
            Ok(()) if matches!(step.wanted, Wanted::Vhost) => self.take_rights().await,
            Err(error) if matches!(error.kind(), ErrorKind::Refused | ErrorKind::Other) => {
                self.refused(step, error).await
            }
            sent => sent,
        };
        made.map_err(|error| error.with_context("for", step.change.entity.to_string()))
    }

    async fn send(&self, request: &Request) -> Result<()> {
        match request {
            Request::Put(path, body) => self.management.put(PUT, path, body).await,
            Request::Post(path, body) => self.management.post(PUT, path, body).await,
        }
    }

    /// Somebody else may have made it since it was looked for: one that is equal is as good as ours.
    ///
    /// Of one that is not, the broker mostly says what differs; 4.0 and 4.3 answer 500 and nothing else where a name in the
    /// reason is not ASCII. So the thing itself is looked at. That of a failed look says less than the first error.
    async fn refused(&self, step: &Step, error: Error) -> Result<()> {
        match self.surveyor().now(&step.wanted).await {
            Ok(Now::Equal) => Ok(()),
            // 3.10 refuses one of two that make the same user at once. Now that it is there, this sets its password.
            Ok(Now::User) if step.change.action == Action::Create => self.send(&step.request).await,
            Ok(Now::Otherwise(text)) => {
                let text = format!("it was declared otherwise meanwhile: {text}");
                Err(Error::new(ErrorKind::Refused, PUT)
                    .with_message(text)
                    .with_transient(false)
                    .with_source(error))
            }
            Ok(Now::Missing | Now::User) | Err(_) => Err(error),
        }
    }

    async fn take_rights(&self) -> Result<()> {
        let (vhost, user) = (&self.topology.vhost, self.management.own_user());
        if self.management.permissions_of(vhost, user).await?.is_some() {
            return Ok(());
        }
        self.send(&all_rights(user).request(vhost)?).await
    }
}

/// Without the password.
impl fmt::Debug for Bootstrapper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bootstrapper")
            .field("management", &self.management)
            .field("topology", &self.topology)
            .field("password", &self.password)
            .finish()
    }
}
