//! Compares a broker with what is wanted of it. Asks only.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::plan::{Action, Change, Difference, Drift, Entity, EntityKind, Skipped, differences, in_words};
use super::policies::{Case, Policies};
use super::wanted::{
    QueueRole, Request, Wanted, WantedQueue, all_rights, arguments, dead_letter_policy_name,
    is_at_least_once, named, policy_fields, stage_policy, stage_policy_name, tags, wanted,
};
use crate::error::{Error, ErrorKind, Result};
use crate::management::{Exchange, Management, Permissions, PolicyStatus, QueueStatus, User};
use crate::rabbitmq::Secret;
use crate::topology::{Stage, StageType, Topology};

/// From this version on quorum queues have a delivery limit of their own.
const LIMITED_SINCE: (u32, u32) = (4, 0);

/// From this delivery limit on nobody need be warned of it.
const AS_GOOD_AS_NONE: i64 = 1_000_000;

/// What there is to do.
#[derive(Default)]
pub(super) struct Survey {
    pub(super) steps: Vec<Step>,
    pub(super) drift: Vec<Drift>,
    pub(super) warnings: Vec<String>,
    pub(super) skipped: Vec<Skipped>,
    /// Why nothing of it can be applied.
    pub(super) refusal: Option<Error>,
}

/// A change, and how it is asked for.
pub(super) struct Step {
    pub(super) change: Change,
    pub(super) wanted: Wanted,
    pub(super) request: Request,
}

/// What is asked while a survey is made.
pub(super) struct Surveyor<'a> {
    pub(super) management: &'a Management,
    pub(super) topology: &'a Topology,
    pub(super) password: Option<&'a Secret>,
}

/// What was found of a thing.
enum Found {
    Missing,
    /// With its fields.
    There(BTreeMap<String, Value>),
}

impl Surveyor<'_> {
    pub(super) async fn survey(&self) -> Result<Survey> {
        let vhost = &self.topology.vhost;
        let series = self.management.overview().await?.series();
        let is_there = self.management.vhost(vhost).await?.is_some();
        let mut survey = Survey::default();
        let (policies, operator) = if is_there {
            (self.management.policies(vhost).await?, self.management.operator_policies(vhost).await?)
        } else {
            (Vec::new(), Vec::new())
        };
        let own = self.management.own_user();
        if is_there && self.management.permissions_of(vhost, own).await?.is_none() {
            self.compare(all_rights(own), Found::Missing, &mut survey)?;
        }
        let wanted = wanted(self.topology);
        let mut queues = BTreeMap::new();
        for thing in &wanted {
            let found = match thing {
                Wanted::Vhost if is_there => Found::There(BTreeMap::new()),
                Wanted::User { name, .. } => {
                    self.user(name, thing, &mut survey).await?;
                    continue;
                }
                _ if !is_there => Found::Missing,
                Wanted::Policy(policy) => {
                    found(policies.iter().find(|other| other.name == policy.name).map(policy_fields))
                }
                Wanted::Queue(queue) => {
                    let status = self.management.queue(vhost, &queue.name).await?;
                    let fields = found(status.as_ref().map(|status| queue_fields(status, thing.fields())));
                    queues.extend(status.map(|status| (queue.name.clone(), status)));
                    fields
                }
                _ => self.look(thing).await?,
            };
            self.compare(thing.clone(), found, &mut survey)?;
        }
        let ours: Vec<&PolicyStatus> = wanted.iter().filter_map(as_policy).collect();
        let all = Policies::new(&policies, &operator, &ours);
        for queue in wanted.iter().filter_map(as_queue) {
            let case = self.case(queue, &ours, queues.get(&queue.name));
            let judgement = all.judge(&case);
            survey.drift.extend(judgement.drift);
            survey.warnings.extend(judgement.warnings);
        }
        for stage in self.topology.static_stages() {
            survey.drift.extend(forgotten(self.topology, stage, &policies));
            self.nowhere(stage, series, &all, &wanted, &mut survey);
        }
        survey.skipped.extend(self.topology.slot_stages().map(skipped));
        Ok(survey)
    }

    /// A thing whose fields are all that there is to know of it.
    async fn look(&self, thing: &Wanted) -> Result<Found> {
        let (management, vhost) = (self.management, &self.topology.vhost);
        Ok(match thing {
            Wanted::Permissions { user, .. } => {
                found(management.permissions_of(vhost, user).await?.as_ref().map(permission_fields))
            }
            Wanted::Exchange { name, .. } => {
                let exchange = management.exchange(vhost, name).await?;
                found(exchange.as_ref().map(|exchange| exchange_fields(exchange, thing.fields())))
            }
            Wanted::Queue(queue) => {
                let status = management.queue(vhost, &queue.name).await?;
                found(status.as_ref().map(|status| queue_fields(status, thing.fields())))
            }
            Wanted::Binding { exchange, queue, key } => {
                // Of an exchange or a queue that is not there, 3.10 lists none and others say that it is not there.
                let bindings = match management.bindings(vhost, exchange, queue).await {
                    Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
                    bindings => bindings?,
                };
                let ours = bindings
                    .iter()
                    .any(|binding| binding.routing_key == *key && binding.arguments.is_empty());
                if ours { Found::There(BTreeMap::new()) } else { Found::Missing }
            }
            Wanted::Vhost | Wanted::User { .. } | Wanted::Policy(_) => Found::Missing,
        })
    }

    fn compare(&self, thing: Wanted, found: Found, survey: &mut Survey) -> Result<()> {
        let vhost = &self.topology.vhost;
        let entity = thing.entity(vhost);
        let (action, differences) = match found {
            Found::Missing => (Action::Create, differences(&BTreeMap::new(), &thing.fields())),
            Found::There(fields) => {
                let differences = differences(&fields, &thing.fields());
                if differences.is_empty() {
                    return Ok(());
                }
                // Declared once, they stay as they are.
                if matches!(thing, Wanted::Exchange { .. } | Wanted::Queue(_)) {
                    let message = format!("{}; left as it is", in_words(&differences));
                    survey.drift.push(Drift { entity, message, differences });
                    return Ok(());
                }
                (Action::Update, differences)
            }
        };
        let request = thing.request(vhost)?;
        survey.steps.push(Step { change: Change { action, entity, differences }, wanted: thing, request });
        Ok(())
    }

    async fn user(&self, name: &str, thing: &Wanted, survey: &mut Survey) -> Result<()> {
        let Wanted::User { tags: wanted_tags, .. } = thing else { return Ok(()) };
        let wanted_tags = tags(wanted_tags);
        let by_password = |password: &Secret| json!({"password": password.expose(), "tags": wanted_tags});
        let Some(user) = self.management.user(name).await? else {
            let differences = differences(&BTreeMap::new(), &thing.fields());
            if self.password.is_none() {
                let text =
                    format!("the user {name:?} does not exist, and no password was given to make it with");
                survey.warnings.push(format!("{text}: applying is refused"));
                survey.refusal = Some(Error::new(ErrorKind::Invalid, "bootstrap").with_message(text));
            }
            let body = self.password.map_or(Value::Null, by_password);
            return self.user_step(thing, Action::Create, differences, body, survey);
        };
        let current = named([("tags", tags(&user.tags.iter().cloned().collect()))]);
        let mut differences = differences(&current, &thing.fields());
        let same = self.password.map(|password| user.has_password(password));
        match same {
            Some(Some(false)) => differences.push(Difference {
                field: "password".to_owned(),
                current: None,
                wanted: None,
            }),
            Some(None) => survey.warnings.push(format!(
                "whether the user {name:?} has the given password cannot be told, since the broker does not show how \
                 it keeps it: it is left as it is"
            )),
            Some(Some(true)) | None => {}
        }
        if differences.is_empty() {
            return Ok(());
        }
        let body = match (self.password.filter(|_| same == Some(Some(false))), hash(&user)) {
            (Some(password), _) => by_password(password),
            // A user that is put without a password has none afterwards.
            (None, Some((hash, algorithm))) => {
                json!({"password_hash": hash, "hashing_algorithm": algorithm, "tags": wanted_tags})
            }
            (None, None) => {
                let message = format!(
                    "{}; left as it is, since the broker does not show how it keeps the password, which would go",
                    in_words(&differences)
                );
                let entity = Entity::new(EntityKind::User, name);
                survey.drift.push(Drift { entity, message, differences });
                return Ok(());
            }
        };
        self.user_step(thing, Action::Update, differences, body, survey)
    }

    fn user_step(
        &self,
        thing: &Wanted,
        action: Action,
        differences: Vec<Difference>,
        body: Value,
        survey: &mut Survey,
    ) -> Result<()> {
        let vhost = &self.topology.vhost;
        let request = match thing.request(vhost)? {
            Request::Put(path, _) | Request::Post(path, _) => Request::Put(path, body),
        };
        let change = Change { action, entity: thing.entity(vhost), differences };
        survey.steps.push(Step { change, wanted: thing.clone(), request });
        Ok(())
    }

    fn case<'a>(
        &self,
        queue: &'a WantedQueue,
        ours: &[&'a PolicyStatus],
        found: Option<&'a QueueStatus>,
    ) -> Case<'a> {
        let of = |stage: &&Stage| match queue.role {
            QueueRole::Stage => stage.name == queue.name,
            QueueRole::DeadLetters => stage.dead_letter_queue().as_deref() == Some(&queue.name),
            QueueRole::Wait => false,
        };
        let stage = self.topology.stages.iter().find(of);
        let name = stage.map(|stage| match queue.role {
            QueueRole::DeadLetters => dead_letter_policy_name(stage),
            QueueRole::Stage | QueueRole::Wait => stage_policy_name(stage),
        });
        Case {
            queue,
            ours: ours.iter().find(|policy| Some(&policy.name) == name.as_ref()).copied(),
            found,
            delayed: stage.is_some_and(|stage| !self.topology.wait_steps(stage).is_empty()),
        }
    }

    /// What a stage does with messages that it gives up, where that is a loss.
    fn nowhere(
        &self,
        stage: &Stage,
        series: Option<(u32, u32)>,
        policies: &Policies,
        wanted: &[Wanted],
        survey: &mut Survey,
    ) {
        let leads_somewhere = stage.has_dead_letters() || stage.dead_letter_to.is_some();
        let name = &stage.name;
        if leads_somewhere && stage.queue_type == StageType::Quorum && !is_at_least_once(stage) {
            survey.warnings.push(format!(
                "the stage {name:?} drops its oldest messages when it is full, and so the broker moves its dead letters \
                 at most once: one can be lost when a node goes"
            ));
        }
        if leads_somewhere || stage.queue_type != StageType::Quorum {
            return;
        }
        let queue = wanted.iter().filter_map(as_queue).find(|queue| queue.name == *name);
        let ours: Vec<&PolicyStatus> = wanted.iter().filter_map(as_policy).collect();
        let limits =
            queue.map(|queue| policies.delivery_limits(&self.case(queue, &ours, None))).unwrap_or_default();
        let lowest = limits.iter().copied().filter(|limit| *limit >= 0).min();
        let unlimited = limits.iter().any(|limit| *limit < 0);
        let limit = match (lowest, series) {
            (Some(AS_GOOD_AS_NONE..), _) => return,
            (Some(limit), _) => format!("a delivery limit of {limit}"),
            // Below zero is none from 4.0 on; older ones refuse it.
            (None, _) if unlimited => return,
            (None, Some(series)) if series < LIMITED_SINCE => return,
            (None, Some(_)) => "the broker's own delivery limit of 20".to_owned(),
            (None, None) => "perhaps the broker's own delivery limit of 20, from version 4.0 on".to_owned(),
        };
        survey.warnings.push(format!(
            "the stage {name:?} has {limit}, and nowhere to dead-letter to: a message that comes back more often is gone, \
             and a lost connection counts for all that it had; give it dead letters, or put a high delivery-limit, such \
             as {AS_GOOD_AS_NONE}, on it by one of `policies`"
        ));
    }
}

/// Its dead letters, or its policy, are not in the topology any more, and the policy is still there.
fn forgotten(topology: &Topology, stage: &Stage, policies: &[PolicyStatus]) -> Option<Drift> {
    let name = stage_policy_name(stage);
    if stage_policy(topology, stage).is_some() || policies.iter().all(|policy| policy.name != name) {
        return None;
    }
    let message = format!(
        "the topology sets nothing for the stage {:?} any more, and this still does; left as it is: delete it, unless \
         somebody needs it",
        stage.name
    );
    Some(Drift { entity: Entity::new(EntityKind::Policy, name), message, differences: Vec::new() })
}

fn skipped(stage: &Stage) -> Skipped {
    let reason = match stage.dead_letter_queue() {
        Some(letters) => format!("per slot, nodes make its queues; their dead letters go to {letters:?}"),
        None => "per slot, nodes make its queues".to_owned(),
    };
    Skipped { stage: stage.name.clone(), reason }
}

fn as_policy(thing: &Wanted) -> Option<&PolicyStatus> {
    if let Wanted::Policy(policy) = thing { Some(policy) } else { None }
}

fn as_queue(thing: &Wanted) -> Option<&WantedQueue> {
    if let Wanted::Queue(queue) = thing { Some(queue) } else { None }
}

fn found(fields: Option<BTreeMap<String, Value>>) -> Found {
    fields.map_or(Found::Missing, Found::There)
}

fn hash(user: &User) -> Option<(&str, &str)> {
    Some((user.hash.as_deref()?, user.algorithm.as_deref()?))
}

fn permission_fields(permissions: &Permissions) -> BTreeMap<String, Value> {
    named([
        ("configure", permissions.configure.as_str().into()),
        ("write", permissions.write.as_str().into()),
        ("read", permissions.read.as_str().into()),
    ])
}

/// What the API does not tell counts as it is wanted: unknown is no difference.
fn told<const N: usize>(
    told: [(&str, Option<Value>); N],
    wanted: BTreeMap<String, Value>,
) -> BTreeMap<String, Value> {
    let value = |(name, value): (&str, Option<Value>)| {
        Some((name.to_owned(), value.or_else(|| wanted.get(name).cloned())?))
    };
    told.into_iter().filter_map(value).collect()
}

fn exchange_fields(exchange: &Exchange, wanted: BTreeMap<String, Value>) -> BTreeMap<String, Value> {
    let fields = [
        ("type", exchange.kind.as_deref().map(Value::from)),
        ("durable", exchange.durable.map(Value::from)),
        ("auto_delete", exchange.auto_delete.map(Value::from)),
        ("internal", exchange.internal.map(Value::from)),
    ];
    told(fields, wanted)
}

fn queue_fields(queue: &QueueStatus, wanted: BTreeMap<String, Value>) -> BTreeMap<String, Value> {
    let fields = [
        ("type", queue.kind.as_deref().map(Value::from)),
        ("durable", queue.durable.map(Value::from)),
        ("auto_delete", queue.auto_delete.map(Value::from)),
        ("exclusive", queue.exclusive.map(Value::from)),
    ];
    let mut fields = told(fields, wanted);
    fields.extend(arguments(&queue.arguments));
    fields
}

/// How a thing is that was refused.
pub(super) enum Now {
    Missing,
    Equal,
    /// What differs, of an exchange or a queue.
    Otherwise(String),
    /// It is there; what of it, is not asked.
    User,
}

impl Surveyor<'_> {
    pub(super) async fn now(&self, thing: &Wanted) -> Result<Now> {
        let fields = match thing {
            Wanted::User { name, .. } => {
                return Ok(self.management.user(name).await?.map_or(Now::Missing, |_| Now::User));
            }
            Wanted::Vhost => self.management.vhost(&self.topology.vhost).await?.map(|_| BTreeMap::new()),
            // Set, not declared: what is refused of them is never there already.
            Wanted::Policy(_) | Wanted::Permissions { .. } => None,
            Wanted::Exchange { .. } | Wanted::Queue(_) | Wanted::Binding { .. } => {
                match self.look(thing).await? {
                    Found::There(fields) => Some(fields),
                    Found::Missing => None,
                }
            }
        };
        let Some(fields) = fields else { return Ok(Now::Missing) };
        let differences = differences(&fields, &thing.fields());
        Ok(if differences.is_empty() { Now::Equal } else { Now::Otherwise(in_words(&differences)) })
    }
}
