//! What the policies of a virtual host make of a queue.
//!
//! The broker tells which policy applies to a queue only once it has figures of it, up to some seconds late, and never for
//! one that is not there yet. So the patterns are matched here, and what the broker says is heard where they cannot be.

use regex_lite::Regex;

use super::plan::{Drift, Entity, EntityKind};
use super::wanted::{QueueRole, WantedQueue};
use crate::management::{PolicyStatus, QueueStatus};

/// The policies as they will be, once what is wanted is there.
pub(super) struct Policies {
    all: Vec<Compiled>,
    operator: Vec<Compiled>,
}

struct Compiled {
    policy: PolicyStatus,
    /// `None` where the broker's expressions can do more than ours.
    pattern: Option<Regex>,
}

impl Compiled {
    fn new(policy: PolicyStatus) -> Self {
        let pattern = Regex::new(&policy.pattern).ok();
        Self { policy, pattern }
    }

    /// `None` where that cannot be told.
    fn applies(&self, queue: &WantedQueue) -> Option<bool> {
        let kind = queue.kind.name();
        let to = self.policy.apply_to.as_str();
        if !matches!(to, "queues" | "all") && to.strip_suffix("_queues") != Some(kind) {
            return Some(false);
        }
        self.pattern.as_ref().map(|pattern| pattern.is_match(&queue.name))
    }
}

/// What is wrong with the policies of one queue.
#[derive(Default)]
pub(super) struct Judgement {
    pub(super) drift: Vec<Drift>,
    pub(super) warnings: Vec<String>,
}

/// What is known about a queue whose policies are judged.
pub(super) struct Case<'a> {
    pub(super) queue: &'a WantedQueue,
    /// The policy that is to apply to it.
    pub(super) ours: Option<&'a PolicyStatus>,
    /// The queue, where it is there.
    pub(super) found: Option<&'a QueueStatus>,
    /// Whether messages of it are retried after a delay.
    pub(super) delayed: bool,
}

impl Policies {
    /// `wanted` stands in for those of the same name.
    pub(super) fn new(found: &[PolicyStatus], operator: &[PolicyStatus], wanted: &[&PolicyStatus]) -> Self {
        let stays = |policy: &&PolicyStatus| wanted.iter().all(|other| other.name != policy.name);
        let others = found.iter().filter(stays).cloned();
        let all = others.chain(wanted.iter().map(|policy| (*policy).clone())).map(Compiled::new);
        Self { all: all.collect(), operator: operator.iter().cloned().map(Compiled::new).collect() }
    }

    pub(super) fn judge(&self, case: &Case<'_>) -> Judgement {
        let mut judgement = Judgement::default();
        self.displaced(case, &mut judgement);
        for policy in self.effective(case) {
            judgement.drift.extend(expiring(case, policy));
        }
        if let Some(policy) = self.operators(case) {
            judgement.drift.extend(curtailing(case, policy));
        }
        judgement
    }

    /// The limits of deliveries that policies set.
    pub(super) fn delivery_limits(&self, case: &Case<'_>) -> Vec<i64> {
        let effective = self.effective(case).into_iter();
        effective.filter_map(|policy| number(policy, "delivery-limit")).collect()
    }

    /// The one that applies, and the operator's beside it.
    fn effective(&self, case: &Case<'_>) -> Vec<&PolicyStatus> {
        top(&self.all, case, case.ours).into_iter().chain(self.operators(case)).collect()
    }

    fn operators(&self, case: &Case<'_>) -> Option<&PolicyStatus> {
        top(&self.operator, case, None)
    }

    /// Of two policies with one priority it is not said which applies.
    fn displaced(&self, case: &Case<'_>, judgement: &mut Judgement) {
        let Some(ours) = case.ours else { return };
        let told = case.found.and_then(|queue| queue.policy.as_deref());
        for compiled in &self.all {
            let other = &compiled.policy;
            if other.name == ours.name || other.priority < ours.priority {
                continue;
            }
            let applies = compiled.applies(case.queue);
            if applies == Some(true) || (applies != Some(false) && told == Some(&other.name)) {
                let message = format!(
                    "the policy {:?} (pattern {:?}, priority {}) pushes {:?} (priority {}) aside{}: give it a lower \
                     priority, or a pattern that leaves this queue out",
                    other.name,
                    other.pattern,
                    other.priority,
                    ours.name,
                    ours.priority,
                    lost(case.queue.role.clone()),
                );
                judgement.drift.push(drift(case, message));
            } else if applies.is_none() && told.is_none() {
                judgement.warnings.push(format!(
                    "whether the policy {:?} (priority {}) pushes {:?} aside cannot be told: its pattern {:?} is not \
                     read here, and the broker does not say yet which policy applies to the queue {:?}",
                    other.name, other.priority, ours.name, other.pattern, case.queue.name
                ));
            }
        }
    }
}

/// The one with the highest priority that applies; `ours` does, whether or not its pattern can be read.
fn top<'a>(all: &'a [Compiled], case: &Case<'_>, ours: Option<&PolicyStatus>) -> Option<&'a PolicyStatus> {
    let is_ours = |policy: &PolicyStatus| ours.is_some_and(|ours| ours.name == policy.name);
    let mut best: Option<&PolicyStatus> = None;
    for compiled in all {
        let policy = &compiled.policy;
        let applies = is_ours(policy) || compiled.applies(case.queue) == Some(true);
        if applies && best.is_none_or(|best| best.priority < policy.priority) {
            best = Some(policy);
        }
    }
    best
}

fn lost(role: QueueRole) -> &'static str {
    match role {
        QueueRole::Stage => ", and with it where dead letters go",
        QueueRole::DeadLetters => ", and with it for how long dead letters are kept",
        QueueRole::Wait => "",
    }
}

/// A time to live cuts a message's way: the broker drops one that expires for the second time, and one that lies in a wait
/// queue comes back too early. A queue that expires goes with what is in it.
fn expiring(case: &Case<'_>, policy: &PolicyStatus) -> Option<Drift> {
    if case.ours.is_some_and(|ours| ours.name == policy.name) {
        return None;
    }
    let waits = case.queue.role == QueueRole::Wait;
    let delays = waits || (case.queue.role == QueueRole::Stage && case.delayed);
    let keys = ["expires", "message-ttl"].into_iter().filter(|key| *key == "expires" || delays);
    let key = keys.into_iter().find(|key| policy.definition.contains_key(*key))?;
    let value = policy.definition.get(key)?;
    let why = match (key, waits) {
        ("expires", _) => {
            "the broker deletes the queue with what is in it, once nobody has used it for so long"
        }
        (_, true) => "what waits comes back as soon as the shorter of the two times is over",
        (_, false) => {
            "messages of this stage are retried after a delay, and the broker drops those that expire again"
        }
    };
    let message = format!(
        "the policy {:?} (pattern {:?}) puts {key} {value} on it: {why}; give it a pattern that leaves this queue out",
        policy.name, policy.pattern
    );
    Some(drift(case, message))
}

/// An operator's policy applies beside ours, and the lower number of the two is the one.
fn curtailing(case: &Case<'_>, policy: &PolicyStatus) -> Option<Drift> {
    let ours =
        case.ours.filter(|ours| ours.name != policy.name && case.queue.role == QueueRole::DeadLetters)?;
    let lower = |key: &&str| match (number(policy, key), number(ours, key)) {
        (Some(theirs), Some(ours)) => theirs < ours,
        _ => false,
    };
    let key = ["message-ttl", "max-length", "delivery-limit"].into_iter().find(lower)?;
    let value = policy.definition.get(key)?;
    let message = format!(
        "the policy {:?} (pattern {:?}) puts {key} {value} on it, which is less than the topology says: dead letters go \
         sooner; give it a pattern that leaves this queue out",
        policy.name, policy.pattern
    );
    Some(drift(case, message))
}

fn number(policy: &PolicyStatus, key: &str) -> Option<i64> {
    policy.definition.get(key).and_then(serde_json::Value::as_i64)
}

fn drift(case: &Case<'_>, message: String) -> Drift {
    Drift { entity: Entity::new(EntityKind::Queue, &case.queue.name), message, differences: Vec::new() }
}
