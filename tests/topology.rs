//! A topology as data: read from documents, written back, and checked without a broker.

// Clippy takes the helpers of a test for code that is shipped.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::time::Duration;

use windlass::ErrorKind;
use windlass::topology::{
    ApplyTo, Argument, Broadcast, Overflow, POLICY_PRIORITY, Policy, Retention, RuntimeUser, Stage,
    StageType, Topology,
};

/// The one problem of a topology that has no other.
#[track_caller]
fn problem(topology: &Topology) -> (String, String) {
    let problems = topology.problems();
    assert_eq!(problems.len(), 1, "{problems:?}");
    let error = topology.validate().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains(&problems[0].to_string()), "{error}");
    (problems[0].field.clone(), problems[0].text.clone())
}

#[track_caller]
fn refused(topology: &Topology, field: &str, text: &str) {
    let (at, said) = problem(topology);
    assert_eq!(at, field);
    assert!(said.contains(text), "{said}");
}

fn one(stage: Stage) -> Topology {
    Topology::default().with_stage(stage)
}

fn writer() -> Stage {
    Stage::new("writer")
}

const DOCUMENT: &str = r#"
vhost = "chat"
wait_steps_ms = [500, 60000]

[user]
name = "chat-node"
configure = "^chat"

[dead_letters]
exchange = "chat.dead"
retention = { max_age_days = 7, max_messages = 500 }

[broadcast]
exchange = "chat.all"

[[stages]]
name = "writer"
delivery_limit = 50
max_length = 100000
policy = { "max-length-bytes" = 1000000 }

[[stages]]
name = "legacy"
queue_type = "classic"
max_priority = 5
wait_steps_ms = []
message_ttl_ms = 60000
overflow = "drop_head"
arguments = { "x-queue-mode" = "lazy" }

[[stages]]
name = "websockets-transport"
per_slot = true

[[policies]]
name = "slots"
pattern = "^websockets-transport_"
definition = { "max-length" = 1000 }
"#;

fn by_hand() -> Topology {
    let mut user = RuntimeUser::new("chat-node");
    user.configure = "^chat".to_owned();
    let mut topology = Topology::default()
        .with_vhost("chat")
        .with_wait_steps([500, 60_000].map(Duration::from_millis))
        .with_dead_letter_exchange("chat.dead")
        .with_retention(Retention::new(7, 500))
        .with_broadcast(Broadcast::new("chat.all"))
        .with_stage(
            writer()
                .with_delivery_limit(50)
                .with_max_length(100_000)
                .with_policy("max-length-bytes", 1_000_000_i64),
        )
        .with_stage(
            Stage::new("legacy")
                .with_queue_type(StageType::Classic)
                .with_max_priority(5)
                .with_wait_steps([])
                .with_message_ttl(Duration::from_secs(60))
                .with_overflow(Overflow::DropHead)
                .with_argument("x-queue-mode", "lazy"),
        )
        .with_stage(Stage::per_slot("websockets-transport"))
        .with_policy(Policy::new("slots", "^websockets-transport_").with("max-length", 1_000_u32));
    topology.user = Some(user);
    topology
}

#[test]
fn a_document_says_the_same_as_code() {
    let read: Topology = toml::from_str(DOCUMENT).unwrap();
    assert_eq!(read, by_hand());
    assert_eq!(read.problems(), []);
    let json = serde_json::to_string(&read).unwrap();
    assert_eq!(serde_json::from_str::<Topology>(&json).unwrap(), read, "{json}");
}

#[test]
fn what_is_left_out_is_the_default() {
    let read: Topology = serde_json::from_str(r#"{"stages": [{"name": "writer"}]}"#).unwrap();
    assert_eq!(read, one(writer()));
    assert_eq!(read.vhost, "/");
    assert_eq!(
        (read.dead_letters.retention.max_age_days, read.dead_letters.retention.max_messages),
        (3, 100)
    );
    assert_eq!(read.wait_steps(&read.stages[0]), [1, 2, 4].map(Duration::from_secs));
    assert_eq!(read.stages[0].dead_letter_queue().as_deref(), Some("writer.dlq"));
    assert_eq!(read.validate().ok(), Some(()));
}

#[test]
fn a_field_that_does_not_exist_is_refused_by_its_name() {
    for (document, name) in [
        (r#"{"stagse": []}"#, "stagse"),
        (r#"{"stages": [{"name": "a", "ttl": 5}]}"#, "ttl"),
        (r#"{"user": {"name": "a", "password": "s3cret"}}"#, "password"),
        (r#"{"dead_letters": {"retention": {"days": 5}}}"#, "days"),
        (r#"{"broadcast": {"name": "all"}}"#, "name"),
    ] {
        let error = serde_json::from_str::<Topology>(document).unwrap_err().to_string();
        assert!(error.contains(&format!("unknown field `{name}`")), "{error}");
        assert!(!error.contains("s3cret"));
    }
}

#[test]
fn arguments_are_whole_numbers_of_64_bits_text_or_yes_and_no() {
    let read = |value: &str| serde_json::from_str::<Argument>(value).map_err(|error| error.to_string());
    for (value, expected) in [
        ("0", Argument::Integer(0)),
        ("255", Argument::Integer(255)),
        ("-1", Argument::Integer(-1)),
        ("4294967296", Argument::Integer(1 << 32)),
        ("9223372036854775807", Argument::Integer(i64::MAX)),
        ("true", Argument::Bool(true)),
        (r#""lazy""#, Argument::Text("lazy".to_owned())),
    ] {
        assert_eq!(read(value), Ok(expected.clone()));
        assert_eq!(serde_json::to_string(&expected).unwrap(), value);
    }
    for (value, expected) in [
        ("60000.0", "no whole number"),
        ("1.5", "no whole number"),
        ("9223372036854775808", "too large"),
        ("[1]", "expected true or false, a whole number, or text"),
        ("null", "expected true or false, a whole number, or text"),
    ] {
        assert!(read(value).unwrap_err().contains(expected), "{value}: {:?}", read(value));
    }
}

#[test]
fn a_stages_arguments_bear_the_brokers_names() {
    let stage = Stage::new("legacy")
        .with_queue_type(StageType::Classic)
        .with_max_priority(9)
        .with_max_length(10)
        .with_message_ttl(Duration::from_millis(1_500))
        .with_single_active_consumer(true)
        .with_argument("x-queue-mode", "lazy");
    let expected: BTreeMap<String, Argument> = [
        ("x-queue-type", Argument::from("classic")),
        ("x-max-priority", 9_i64.into()),
        ("x-max-length", 10_i64.into()),
        ("x-message-ttl", 1_500_i64.into()),
        ("x-overflow", "reject-publish".into()),
        ("x-single-active-consumer", true.into()),
        ("x-queue-mode", "lazy".into()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    assert_eq!(stage.queue_arguments(), expected);
    let plain: BTreeMap<String, Argument> = [("x-queue-type".to_owned(), Argument::from("quorum"))].into();
    assert_eq!(writer().queue_arguments(), plain);
}

#[test]
fn names_that_the_broker_would_not_take_are_refused() {
    let long = "q".repeat(256);
    refused(&Topology::default().with_vhost(""), "vhost", "empty");
    refused(&Topology::default().with_vhost(long.clone()), "vhost", "256 bytes");
    refused(&Topology::default().with_vhost("a\nb"), "vhost", "control character");
    refused(&Topology::default().with_user(""), "user.name", "empty");
    refused(&Topology::default().with_dead_letter_exchange(""), "dead_letters.exchange", "empty");
    refused(&Topology::default().with_dead_letter_exchange("amq.direct"), "dead_letters.exchange", "`amq.`");
    refused(&Topology::default().with_broadcast(Broadcast::new("")), "broadcast.exchange", "empty");
    let both = Topology::default().with_broadcast(Broadcast::new("dead-letters"));
    refused(&both, "broadcast.exchange", "name another");
    refused(&one(Stage::new("")), "stages[0].name", "empty");
    refused(&one(Stage::new("q".repeat(238))), "stages[0].name", "238 bytes");
    assert_eq!(one(Stage::new("q".repeat(237))).problems(), []);
    refused(&one(Stage::new("amq.gen-1")), "stages[0].name", "`amq.`");
    refused(&one(Stage::new("a\tb")), "stages[0].name", "control character");
    // Whatever else AMQP carries is right.
    for name in ["a/b", "a b", "100%", "größe", "^a.*$", "日本", "a,b", "\"", "a_1"] {
        assert_eq!(one(Stage::new(name)).with_vhost(name).with_user(name).problems(), [], "{name}");
    }
}

#[test]
fn two_queues_of_one_name_are_refused() {
    let two = |first: Stage, second: &str| one(first).with_stage(Stage::new(second));
    refused(&two(writer(), "writer"), "stages[1].name", "is stages[0] already");
    refused(&two(writer(), "writer.dlq"), "stages[1].name", "dead-letter queue of the stage \"writer\"");
    refused(&two(writer(), "writer.wait.1000"), "stages[1].name", "wait queue of the stage");
    refused(&two(Stage::per_slot("ws"), "ws_7"), "stages[1].name", "slot of the stage");
    assert_eq!(two(writer(), "writer_7").problems(), []);
    assert_eq!(two(writer(), "writer.wait.soon").problems(), []);
    assert_eq!(two(Stage::per_slot("ws"), "ws_a").problems(), []);
}

#[test]
fn numbers_out_of_range_are_refused() {
    for (retention, field) in [
        (Retention::new(2, 100), "max_age_days"),
        (Retention::new(31, 100), "max_age_days"),
        (Retention::new(3, 9), "max_messages"),
        (Retention::new(3, 501), "max_messages"),
    ] {
        let topology = Topology::default().with_retention(retention);
        refused(&topology, &format!("dead_letters.retention.{field}"), "must be from");
    }
    for retention in [Retention::new(3, 10), Retention::new(30, 500)] {
        assert_eq!(Topology::default().with_retention(retention).problems(), []);
    }
    let classic = || writer().with_queue_type(StageType::Classic);
    for priority in [0, 256, u16::MAX] {
        refused(&one(classic().with_max_priority(priority)), "stages[0].max_priority", "from 1 to 255");
    }
    for priority in [1, 127, 128, 255] {
        assert_eq!(one(classic().with_max_priority(priority)).problems(), []);
    }
    refused(&one(writer().with_delivery_limit(0)), "stages[0].delivery_limit", "from 1 to 2147483647");
    refused(&one(writer().with_max_length(0)), "stages[0].max_length", "from 1");
    refused(&one(writer().with_max_length(u64::MAX)), "stages[0].max_length", "from 1");
    let ttl = |ttl| one(writer().with_wait_steps([]).with_message_ttl(ttl));
    refused(&ttl(Duration::from_micros(1_500)), "stages[0].message_ttl_ms", "whole milliseconds");
    refused(&ttl(Duration::MAX), "stages[0].message_ttl_ms", "whole milliseconds");
    refused(&ttl(Duration::from_millis(315_360_000_001)), "stages[0].message_ttl_ms", "to 315360000000 ms");
    assert_eq!(ttl(Duration::from_millis(1 << 32)).problems(), []);
    assert_eq!(ttl(Duration::ZERO).problems(), []);
    refused(&one(writer().with_wait_steps([Duration::ZERO])), "stages[0].wait_steps_ms[0]", "from 1");
    refused(&Topology::default().with_wait_steps([Duration::ZERO]), "wait_steps_ms[0]", "from 1");
    let days = Duration::from_secs(400 * 24 * 60 * 60);
    assert_eq!(one(writer().with_wait_steps([days])).problems(), []);
}

#[test]
fn what_one_type_of_queue_does_not_have_is_refused() {
    refused(&one(writer().with_max_priority(5)), "stages[0].max_priority", "only classic");
    refused(&one(writer().with_overflow(Overflow::RejectPublishDlx)), "stages[0].overflow", "only classic");
    let classic = writer().with_queue_type(StageType::Classic).with_delivery_limit(5);
    refused(&one(classic), "stages[0].delivery_limit", "only quorum");
    let mut slots = Stage::per_slot("ws");
    assert_eq!(one(slots.clone().with_dead_letters(true)).problems(), []);
    slots.max_length = Some(5);
    refused(&one(slots), "stages[0].per_slot", "made by the nodes");
}

/// BC-32: the broker cuts a loop that is made of expiries alone, at its second hop.
#[test]
fn a_time_to_live_on_a_stage_that_is_retried_after_a_delay_is_refused() {
    let ttl = writer().with_message_ttl(Duration::from_millis(200));
    refused(&one(ttl.clone()), "stages[0].message_ttl_ms", "retried after a delay");
    assert_eq!(one(ttl.clone().with_wait_steps([])).problems(), []);
    assert_eq!(one(ttl).with_wait_steps([]).problems(), []);
    for key in ["message-ttl", "expires"] {
        let policy = writer().with_policy(key, 200_u32);
        refused(&one(policy), &format!("stages[0].policy.{key}"), "retried after a delay");
    }
}

/// BC-32: a queue that expires takes along what is in it.
#[test]
fn a_queue_that_expires_before_its_longest_delay_is_over_is_refused() {
    let expires = |after| one(writer().with_wait_steps([Duration::from_secs(30)]).with_expires(after));
    refused(&expires(Duration::from_millis(500)), "stages[0].expires_ms", "before what waits for 30s");
    refused(&expires(Duration::from_secs(89)), "stages[0].expires_ms", "60s more");
    assert_eq!(expires(Duration::from_secs(90)).problems(), []);
    refused(
        &one(writer().with_wait_steps([]).with_expires(Duration::ZERO)),
        "stages[0].expires_ms",
        "from 1",
    );
}

#[test]
fn dead_letters_that_go_in_a_circle_are_refused() {
    let to = |from: &str, to: &str| Stage::new(from).with_dead_letter_to(to);
    refused(&one(to("a", "a")), "stages[0].dead_letter_to", "circle, a -> a");
    let circle = one(to("a", "b")).with_stage(to("b", "c")).with_stage(to("c", "a")).problems();
    let said: Vec<String> = circle.iter().map(ToString::to_string).collect();
    assert_eq!(circle.len(), 3, "{said:?}");
    assert!(said[0].starts_with("stages[0].dead_letter_to: leads in a circle, a -> b -> c -> a"), "{said:?}");
    // What only leads into one is right by itself: the circle is told where it is.
    let tail = one(to("x", "a")).with_stage(to("a", "b")).with_stage(to("b", "a")).problems();
    assert!(tail.iter().all(|problem| problem.field != "stages[0].dead_letter_to"), "{tail:?}");
    assert_eq!(tail.len(), 2);
    assert_eq!(one(to("a", "b")).with_stage(to("b", "c")).with_stage(Stage::new("c")).problems(), []);
    refused(&one(to("a", "gone")), "stages[0].dead_letter_to", "\"gone\" is no stage");
    let slots = one(to("a", "ws")).with_stage(Stage::per_slot("ws"));
    refused(&slots, "stages[0].dead_letter_to", "\"ws\" is no stage with one queue");
    let both = one(to("a", "b").with_dead_letters(true)).with_stage(Stage::new("b"));
    refused(&both, "stages[0].dead_letter_to", "one place");
}

/// BC-29: what comes back too often is dropped, and a lost connection counts for all that was delivered.
#[test]
fn a_delivery_limit_without_dead_letters_is_refused() {
    let without = writer().with_dead_letters(false);
    assert_eq!(one(without.clone()).problems(), []);
    refused(
        &one(without.clone().with_delivery_limit(2)),
        "stages[0].delivery_limit",
        "drops what comes back",
    );
    let policy = without.with_policy("delivery-limit", 2_u32);
    refused(&one(policy), "stages[0].delivery_limit", "drops what comes back");
    assert_eq!(one(writer().with_delivery_limit(2)).problems(), []);
    let to = one(Stage::new("a").with_delivery_limit(2).with_dead_letter_to("b")).with_stage(Stage::new("b"));
    assert_eq!(to.problems(), []);
}

#[test]
fn an_argument_that_has_a_field_of_its_own_is_refused() {
    for (name, own) in [
        ("x-max-priority", "max_priority"),
        ("x-message-ttl", "message_ttl_ms"),
        ("x-dead-letter-exchange", "dead_letter_to"),
        ("x-queue-type", "queue_type"),
    ] {
        let stage = writer().with_argument(name, 5_i64);
        refused(&one(stage), &format!("stages[0].arguments.{name}"), &format!("set `{own}`"));
    }
    refused(&one(writer().with_argument("max-length", 5_i64)), "stages[0].arguments.max-length", "`x-`");
    let key = writer().with_policy("dead-letter-exchange", "elsewhere");
    refused(&one(key), "stages[0].policy.dead-letter-exchange", "`dead_letter_to`");
}

#[test]
fn a_policy_that_would_push_aside_a_stages_own_is_refused() {
    let with = |policy| one(writer()).with_stage(Stage::per_slot("ws")).with_policy(policy);
    let policy = |pattern: &str, priority| {
        Policy::new("mine", pattern).with("max-length", 5_u32).with_priority(priority)
    };
    for pattern in ["", ".*", "^writer$", "^writer\\.dlq$", "wr.t"] {
        for priority in [POLICY_PRIORITY, i32::MAX] {
            refused(&with(policy(pattern, priority)), "policies[0].priority", "pushes aside");
        }
        assert_eq!(with(policy(pattern, POLICY_PRIORITY - 1)).problems(), []);
    }
    assert_eq!(with(policy("^ws_", i32::MAX)).problems(), []);
    let exchanges = policy(".*", i32::MAX).with_apply_to(ApplyTo::Exchanges);
    assert_eq!(with(exchanges).problems(), []);
    // The broker's expressions have more than what can be read here: that is for the plan to find.
    assert_eq!(with(policy("^(?!writer)", i32::MAX)).problems(), []);
}

#[test]
fn a_policy_that_cannot_be_right_is_refused() {
    let with = |policy| Topology::default().with_policy(policy);
    refused(&with(Policy::new("", "^a").with("max-length", 5_u32)), "policies[0].name", "empty");
    refused(
        &with(Policy::new("windlass.x", "^a").with("max-length", 5_u32)),
        "policies[0].name",
        "`windlass.`",
    );
    refused(&with(Policy::new("a", "^a")), "policies[0].definition", "empty");
    for (key, value, text) in [
        ("message-ttl", Argument::Integer(-1), "from 0 to 315360000000"),
        ("message-ttl", Argument::Text("60000".to_owned()), "a whole number, not \"60000\""),
        ("expires", Argument::Integer(0), "from 1"),
        ("max-length", Argument::Integer(-5), "from 0"),
        ("delivery-limit", Argument::Integer(-1), "a high number"),
        ("delivery-limit", Argument::Integer(-2), "from 0"),
    ] {
        let field = format!("policies[0].definition.{key}");
        refused(&with(Policy::new("a", "^a").with(key, value)), &field, text);
    }
    let twice = with(Policy::new("a", "^a").with("expires", 5_u32))
        .with_policy(Policy::new("a", "^b").with("expires", 5_u32));
    assert_eq!(twice.problems().len(), 2);
}

#[test]
fn all_problems_are_told_at_once() {
    let topology = Topology::default()
        .with_vhost("")
        .with_retention(Retention::new(1, 1))
        .with_stage(writer().with_max_length(0).with_delivery_limit(0));
    let fields: Vec<String> = topology.problems().into_iter().map(|problem| problem.field).collect();
    assert_eq!(
        fields,
        [
            "vhost",
            "dead_letters.retention.max_age_days",
            "dead_letters.retention.max_messages",
            "stages[0].delivery_limit",
            "stages[0].max_length",
        ]
    );
}

/// BC-32, by one of the topology's own policies: wait queues have no other.
#[test]
fn a_policy_that_puts_a_time_to_live_on_what_waits_for_a_delay_is_refused() {
    let with = |stage: Stage, pattern: &str, key: &str| {
        one(stage).with_policy(Policy::new("mine", pattern).with(key, 60_000_u32))
    };
    for (pattern, key) in [(".*", "expires"), ("wait", "message-ttl"), ("^writer\\.wait\\.2000$", "expires")]
    {
        refused(&with(writer(), pattern, key), "policies[0].pattern", "writer.wait.");
    }
    // The stage itself has a policy of its own, which goes before one of a lower priority; unless it has none.
    assert_eq!(with(writer(), "^writer$", "expires").problems(), []);
    let bare = writer().with_dead_letters(false);
    refused(&with(bare.clone(), "^writer$", "message-ttl"), "policies[0].pattern", "\"writer\"");
    assert_eq!(with(bare.with_wait_steps([]), ".*", "message-ttl").problems(), []);
    assert_eq!(with(writer(), ".*", "max-length").problems(), []);
    let exchanges = Policy::new("mine", ".*").with("expires", 5_u32).with_apply_to(ApplyTo::Exchanges);
    assert_eq!(one(writer()).with_policy(exchanges).problems(), []);
}
