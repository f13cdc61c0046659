//! What a topology must be, said in words that name the field and the fix.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use regex_lite::Regex;

use super::policy::{POLICY_PREFIX, POLICY_PRIORITY, Policy};
use super::stage::{OWN_ARGUMENTS, Overflow, Stage, StageType};
use super::{Argument, Topology};
use crate::queue::check_name;

/// One field that cannot be right.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// The field, as `stages[2].max_priority`.
    pub field: String,
    /// What is wrong with it, and the fix.
    pub text: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.text)
    }
}

/// Names that AMQP 0-9-1 carries.
const LONGEST_NAME: usize = 255;

/// What the broker takes as a time to live, in milliseconds: ten years of 365 days.
const LONGEST_MS: u64 = 315_360_000_000;

/// How much later than its longest delay a queue may expire at the earliest.
const EXPIRY_MARGIN: Duration = Duration::from_secs(60);

/// The keys of a policy that say where dead letters go.
const DEAD_LETTER_KEYS: [&str; 3] =
    ["dead-letter-exchange", "dead-letter-routing-key", "dead-letter-strategy"];

pub(super) fn problems(topology: &Topology) -> Vec<Problem> {
    let mut found = Found { topology, problems: Vec::new() };
    found.names();
    found.retention();
    found.steps("wait_steps_ms", &topology.wait_steps);
    for (index, stage) in topology.stages.iter().enumerate() {
        found.stage(&format!("stages[{index}]"), stage);
    }
    found.queues_of_one_name();
    found.circles();
    for (index, policy) in topology.policies.iter().enumerate() {
        found.policy(&format!("policies[{index}]"), policy);
    }
    found.problems
}

struct Found<'a> {
    topology: &'a Topology,
    problems: Vec<Problem>,
}

impl Found<'_> {
    fn add(&mut self, field: impl Into<String>, text: impl Into<String>) {
        self.problems.push(Problem { field: field.into(), text: text.into() });
    }

    fn names(&mut self) {
        let topology = self.topology;
        self.name("vhost", &topology.vhost);
        if let Some(user) = &topology.user {
            self.name("user.name", &user.name);
            for (field, pattern) in
                [("configure", &user.configure), ("write", &user.write), ("read", &user.read)]
            {
                // An empty one is right: it allows nothing.
                if !pattern.is_empty() {
                    self.plain(&format!("user.{field}"), pattern);
                }
            }
            for (index, tag) in user.tags.iter().enumerate() {
                if tag.is_empty() || tag.contains(',') {
                    let text = "is no tag: name one, such as `monitoring`, without a comma";
                    self.add(format!("user.tags[{index}]"), text);
                }
            }
        }
        let dead_letters = &topology.dead_letters.exchange;
        self.exchange("dead_letters.exchange", dead_letters);
        if let Some(broadcast) = &topology.broadcast {
            self.exchange("broadcast.exchange", &broadcast.exchange);
            if broadcast.exchange == *dead_letters {
                self.add("broadcast.exchange", "is the exchange of the dead letters too: name another");
            }
        }
    }

    fn name(&mut self, field: &str, name: &str) {
        match name.len() {
            0 => self.add(field, "is empty: name it"),
            bytes if bytes > LONGEST_NAME => {
                self.add(field, format!("is {bytes} bytes long: the broker takes at most {LONGEST_NAME}"));
            }
            _ => self.plain(field, name),
        }
    }

    /// Such a name would break lines in what the broker logs and lists.
    fn plain(&mut self, field: &str, text: &str) {
        if text.chars().any(char::is_control) {
            self.add(field, "holds a control character, such as a line end: leave it out");
        }
    }

    fn exchange(&mut self, field: &str, name: &str) {
        self.name(field, name);
        self.not_the_brokers(field, name);
    }

    fn not_the_brokers(&mut self, field: &str, name: &str) {
        if name.starts_with("amq.") {
            self.add(field, "begins with `amq.`: such names are the broker's own");
        }
    }

    fn retention(&mut self) {
        let retention = self.topology.dead_letters.retention;
        self.within(
            "dead_letters.retention.max_age_days",
            u64::from(retention.max_age_days),
            &(3..=30),
            " days",
        );
        self.within(
            "dead_letters.retention.max_messages",
            u64::from(retention.max_messages),
            &(10..=500),
            " messages",
        );
    }

    fn within(&mut self, field: &str, value: u64, range: &RangeInclusive<u64>, unit: &str) {
        if !range.contains(&value) {
            let (low, high) = (range.start(), range.end());
            self.add(field, format!("must be from {low} to {high}{unit}, not {value}"));
        }
    }

    fn time(&mut self, field: &str, time: Duration, low: u64) {
        let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        if !time.subsec_nanos().is_multiple_of(1_000_000) {
            self.add(field, format!("must be whole milliseconds, not {time:?}"));
        } else {
            self.within(field, ms, &(low..=LONGEST_MS), " ms");
        }
    }

    fn steps(&mut self, field: &str, steps: &[Duration]) {
        for (index, step) in steps.iter().enumerate() {
            self.time(&format!("{field}[{index}]"), *step, 1);
        }
    }

    fn stage(&mut self, field: &str, stage: &Stage) {
        let name = format!("{field}.name");
        if let Err(error) = check_name("check topology", "name", &stage.name) {
            self.add(&name, error.message().unwrap_or("is no name"));
        }
        self.plain(&name, &stage.name);
        self.not_the_brokers(&name, &stage.name);
        if stage.per_slot {
            self.per_slot(field, stage);
        }
        if let Some(steps) = &stage.wait_steps {
            self.steps(&format!("{field}.wait_steps_ms"), steps);
        }
        self.numbers(field, stage);
        self.time_to_live(field, stage);
        self.delivery_limit(field, stage);
        self.arguments(field, stage);
        self.own_policy(field, stage);
    }

    /// The node makes these queues, and knows nothing of what stands here.
    fn per_slot(&mut self, field: &str, stage: &Stage) {
        let slots = Stage { dead_letters: stage.dead_letters, ..Stage::per_slot(stage.name.clone()) };
        if *stage != slots {
            self.add(
                format!("{field}.per_slot"),
                "the queues of a per-slot stage are made by the nodes, exclusive and classic: it can have \
                 `dead_letters`, and nothing else of a queue",
            );
        }
    }

    fn numbers(&mut self, field: &str, stage: &Stage) {
        let most = i64::MAX.unsigned_abs();
        let numbers = [
            ("delivery_limit", stage.delivery_limit.map(u64::from), 1..=u64::from(i32::MAX.unsigned_abs())),
            ("max_length", stage.max_length, 1..=most),
            ("max_length_bytes", stage.max_length_bytes, 1..=most),
            ("max_priority", stage.max_priority.map(u64::from), 1..=255),
            ("initial_group_size", stage.initial_group_size.map(u64::from), 1..=255),
        ];
        for (name, value, range) in numbers {
            if let Some(value) = value {
                self.within(&format!("{field}.{name}"), value, &range, "");
            }
        }
        let quorum = stage.queue_type == StageType::Quorum;
        let only = |kind: &str| format!("only {kind} queues have it: leave it out, or change queue_type");
        if quorum && stage.max_priority.is_some() {
            self.add(format!("{field}.max_priority"), only("classic"));
        }
        if quorum && stage.overflow == Some(Overflow::RejectPublishDlx) {
            self.add(format!("{field}.overflow"), only("classic"));
        }
        if !quorum && stage.delivery_limit.is_some() {
            self.add(format!("{field}.delivery_limit"), only("quorum"));
        }
        if !quorum && stage.initial_group_size.is_some() {
            self.add(format!("{field}.initial_group_size"), only("quorum"));
        }
    }

    fn time_to_live(&mut self, field: &str, stage: &Stage) {
        let steps = self.topology.wait_steps(stage);
        if let Some(ttl) = stage.message_ttl {
            let field = format!("{field}.message_ttl_ms");
            self.time(&field, ttl, 0);
            if !steps.is_empty() {
                self.add(field, NO_TTL);
            }
        }
        if let Some(expires) = stage.expires {
            let field = format!("{field}.expires_ms");
            self.time(&field, expires, 1);
            let longest = steps.iter().max().copied().unwrap_or_default();
            if !steps.is_empty() && expires < longest.saturating_add(EXPIRY_MARGIN) {
                let text = format!(
                    "the queue would go, with what is in it, before what waits for {longest:?} comes back: give it \
                     {EXPIRY_MARGIN:?} more than that, or leave it out"
                );
                self.add(field, text);
            }
        }
    }

    fn delivery_limit(&mut self, field: &str, stage: &Stage) {
        let nowhere = !stage.has_dead_letters() && stage.dead_letter_to.is_none();
        let limited = stage.delivery_limit.is_some() || stage.policy.contains_key("delivery-limit");
        if limited && nowhere {
            let text = "the broker drops what comes back more often, and a lost connection counts for all that \
                        was delivered: set `dead_letters`, or `dead_letter_to`, or leave it out";
            self.add(format!("{field}.delivery_limit"), text);
        }
        if stage.dead_letters == Some(true) && stage.dead_letter_to.is_some() {
            let text = "what is given up goes to one place: leave out this or `dead_letters`";
            self.add(format!("{field}.dead_letter_to"), text);
        }
    }

    fn arguments(&mut self, field: &str, stage: &Stage) {
        for name in stage.arguments.keys() {
            let field = format!("{field}.arguments.{name}");
            if let Some((_, own)) = OWN_ARGUMENTS.iter().find(|(own, _)| own == name) {
                self.add(field, format!("has a field of its own: set `{own}`"));
            } else if !name.starts_with("x-") {
                self.add(field, "is no argument of a queue: they begin with `x-`");
            } else if name.len() > LONGEST_NAME {
                self.add(field, format!("is longer than {LONGEST_NAME} bytes"));
            }
        }
    }

    fn own_policy(&mut self, field: &str, stage: &Stage) {
        let field = format!("{field}.policy");
        let delayed = !self.topology.wait_steps(stage).is_empty();
        for (key, value) in &stage.policy {
            let field = format!("{field}.{key}");
            if DEAD_LETTER_KEYS.contains(&key.as_str()) {
                self.add(&field, "is set for every stage: see `dead_letter_to`");
            } else if delayed && (key == "message-ttl" || key == "expires") {
                self.add(&field, NO_TTL);
            }
            self.policy_value(&field, key, value);
        }
    }

    fn policy_value(&mut self, field: &str, key: &str, value: &Argument) {
        let range = match key {
            "message-ttl" => 0..=LONGEST_MS,
            "expires" => 1..=LONGEST_MS,
            "max-length" | "max-length-bytes" => 0..=i64::MAX.unsigned_abs(),
            "delivery-limit" if value.as_integer() == Some(-1) => {
                let text = "is no limit from RabbitMQ 4.0 on, and none at all on 3.10, which then drops what comes \
                            back once: give a high number, such as 1000000";
                return self.add(field, text);
            }
            "delivery-limit" => 0..=u64::from(i32::MAX.unsigned_abs()),
            _ => return,
        };
        match value.as_integer().map(u64::try_from) {
            Some(Ok(number)) => self.within(field, number, &range, ""),
            Some(Err(_)) => {
                let text = format!("must be from {} to {}, not {value}", range.start(), range.end());
                self.add(field, text);
            }
            None => self.add(field, format!("must be a whole number, not {value}")),
        }
    }

    /// Two queues with one name: a stage that is there twice, or that is named as another's dead letters, wait queue or
    /// slot.
    fn queues_of_one_name(&mut self) {
        let stages = &self.topology.stages;
        let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
        for (index, stage) in stages.iter().enumerate() {
            let field = format!("stages[{index}].name");
            if let Some(first) = seen.insert(&stage.name, index) {
                self.add(&field, format!("{:?} is stages[{first}] already", stage.name));
            }
            for other in stages {
                if let Some(what) = derived(&stage.name, other) {
                    let text =
                        format!("{:?} is the name of a {what} of the stage {:?}", stage.name, other.name);
                    self.add(&field, text);
                }
            }
        }
    }

    /// A message that is dead-lettered in a circle by expiry alone is dropped by the broker without a word; one that is
    /// rejected goes round for ever.
    fn circles(&mut self) {
        let stages = &self.topology.stages;
        let by_name: BTreeMap<&str, &Stage> =
            stages.iter().map(|stage| (stage.name.as_str(), stage)).collect();
        for (index, stage) in stages.iter().enumerate() {
            let field = format!("stages[{index}].dead_letter_to");
            let mut path = vec![stage.name.as_str()];
            let mut next = stage.dead_letter_to.as_deref();
            while let Some(name) = next {
                let known = by_name.get(name);
                if path.len() == 1 && known.is_none_or(|target| target.per_slot) {
                    let known = format!("{name:?} is no stage with one queue for all nodes in this topology");
                    self.add(&field, known);
                    break;
                }
                path.push(name);
                if path[..path.len() - 1].contains(&name) {
                    // A circle further on is told where it is.
                    if name == stage.name {
                        let circle = path.join(" -> ");
                        self.add(
                            &field,
                            format!("leads in a circle, {circle}: let one of them have dead letters"),
                        );
                    }
                    break;
                }
                next = known.and_then(|target| target.dead_letter_to.as_deref());
            }
        }
    }

    fn policy(&mut self, field: &str, policy: &Policy) {
        self.name(&format!("{field}.name"), &policy.name);
        if policy.name.starts_with(POLICY_PREFIX) {
            let text = format!("begins with `{POLICY_PREFIX}`: such names are those of the stages' policies");
            self.add(format!("{field}.name"), text);
        }
        if self.topology.policies.iter().filter(|other| other.name == policy.name).count() > 1 {
            self.add(format!("{field}.name"), format!("{:?} is there twice", policy.name));
        }
        if policy.definition.is_empty() {
            self.add(
                format!("{field}.definition"),
                "is empty: the broker refuses a policy that sets nothing",
            );
        }
        for (key, value) in &policy.definition {
            self.policy_value(&format!("{field}.definition.{key}"), key, value);
        }
        self.plain(&format!("{field}.pattern"), &policy.pattern);
        // The broker's expressions can do more than these; what cannot be read is left to the plan, which asks the broker.
        let Ok(pattern) = Regex::new(&policy.pattern) else { return };
        if policy.apply_to == super::ApplyTo::Exchanges {
            return;
        }
        self.time_to_live_by_policy(field, policy, &pattern);
        if policy.priority < POLICY_PRIORITY {
            return;
        }
        let names = self.topology.static_stages().map(|stage| stage.name.clone());
        let letters = self.topology.stages.iter().filter_map(Stage::dead_letter_queue);
        let names: Vec<String> = names.chain(letters).filter(|name| pattern.is_match(name)).collect();
        if let Some(name) = names.first() {
            let text = format!(
                "pushes aside the policy of {name:?}, which then dead-letters to nowhere: give it a priority below \
                 {POLICY_PRIORITY}, and put what the stage needs into its own `policy`"
            );
            self.add(format!("{field}.priority"), text);
        }
    }
}

impl Found<'_> {
    /// On what waits for a delay, and on stages that have no policy of their own.
    fn time_to_live_by_policy(&mut self, field: &str, policy: &Policy, pattern: &Regex) {
        let keys = ["expires", "message-ttl"];
        let Some(key) = keys.into_iter().find(|key| policy.definition.contains_key(*key)) else { return };
        let delayed = self.topology.static_stages().filter_map(|stage| {
            let steps = self.topology.wait_steps(stage);
            (!steps.is_empty()).then_some((stage, steps))
        });
        let mut names = delayed.flat_map(|(stage, steps)| {
            let has_policy =
                stage.has_dead_letters() || stage.dead_letter_to.is_some() || !stage.policy.is_empty();
            let itself = (!has_policy).then(|| stage.name.clone());
            let waits = steps.iter().map(|step| format!("{}.wait.{}", stage.name, step.as_millis()));
            itself.into_iter().chain(waits)
        });
        if let Some(name) = names.find(|name| pattern.is_match(name)) {
            let text = format!(
                "puts {key} on {name:?}, where messages wait to be retried: they come back too early, or are dropped; \
                 leave that queue out"
            );
            self.add(format!("{field}.pattern"), text);
        }
    }
}

const NO_TTL: &str = "messages of this stage are retried after a delay, and the broker drops one that expires again on \
                      the way round: leave it out, or set the stage's `wait_steps_ms` to an empty list";

/// What `name` would be of `stage`, where it is the name of a queue that is made of the stage's.
fn derived(name: &str, stage: &Stage) -> Option<&'static str> {
    let rest = name.strip_prefix(&stage.name)?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if rest == ".dlq" {
        return Some("dead-letter queue");
    }
    if rest.strip_prefix(".wait.").is_some_and(digits) {
        return Some("wait queue");
    }
    (stage.per_slot && rest.strip_prefix('_').is_some_and(digits)).then_some("slot")
}
