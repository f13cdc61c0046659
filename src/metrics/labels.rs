//! The values of labels: each of a fixed list, or a queue's name that is not made up.

use crate::consumer::{ChangeKind, Obstacle, Stats, Status};
use crate::error::ErrorKind;
use crate::source::{Cause, NackReason, Settlement};

/// The label of all queues whose names are made up.
const GENERATED: &str = "generated";

/// An empty label is none.
const UNNAMED: &str = "unnamed";

/// The classes of the codes that the default `on_result` and the consumer itself give.
const CAUSES: &[&str] = &[
    "validation",
    "terminal",
    "timeout",
    "handler_error",
    "panic",
    "on_result_panic",
    "retry_exhausted",
    "circuit_open",
    "queue_full",
    "dropped",
    "shutting_down",
    "paused",
];

type Count = fn(&Stats) -> u64;

/// What else is counted, by kind.
pub(super) const FAULTS: &[(&str, Count)] = &[
    ("receive_error", |stats| stats.receive_errors),
    ("handler_panic", |stats| stats.panics),
    ("on_result_panic", |stats| stats.on_result_panics),
    ("observer_panic", |stats| stats.observer_panics),
    ("observer_drop", |stats| stats.observer_drops),
    ("loop_panic", |stats| stats.loop_panics),
    ("lease_lost", |stats| stats.leases_lost),
];

pub(super) fn queue(name: &str) -> &str {
    match name {
        "" => UNNAMED,
        made_up if is_made_up(made_up) => GENERATED,
        name => name,
    }
}

pub(super) fn named(label: String) -> String {
    if label.is_empty() { UNNAMED.to_owned() } else { label }
}

pub(super) fn settlement(settlement: &Settlement, taken: bool) -> &'static str {
    match settlement {
        _ if !taken => "not_taken",
        Settlement::Ack => "ack",
        Settlement::Nack(NackReason::Retry { counted: true, .. }) => "retry",
        Settlement::Nack(NackReason::Retry { counted: false, .. }) => "postpone",
        Settlement::Nack(NackReason::DeadLetter { .. }) => "dead_letter",
        Settlement::Nack(NackReason::RequeueNow { .. }) => "requeue",
    }
}

pub(super) fn cause(cause: &Cause) -> &'static str {
    let class = cause.code().split(':').next().unwrap_or_default();
    CAUSES.iter().find(|known| **known == class).unwrap_or(&"other")
}

pub(super) fn attempt(attempt: u32) -> &'static str {
    match attempt {
        0 | 1 => "1",
        2 => "2",
        3 => "3",
        4 => "4",
        5..=9 => "5-9",
        10.. => "10+",
    }
}

pub(super) fn change(kind: &ChangeKind) -> &'static str {
    match kind {
        ChangeKind::Waiting { obstacle: Obstacle::Readiness } => "waiting_readiness",
        ChangeKind::Waiting { obstacle: Obstacle::Circuit } => "waiting_circuit",
        ChangeKind::Waiting { obstacle: Obstacle::KillSwitch } => "waiting_kill_switch",
        other => other.name(),
    }
}

pub(super) fn status(status: Status) -> &'static str {
    match status {
        Status::Idle => "idle",
        Status::Running => "running",
        Status::Waiting => "waiting",
        Status::Paused => "paused",
        Status::Stopping => "stopping",
        Status::Stopped => "stopped",
    }
}

pub(super) fn error_kind(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Disconnected => "disconnected",
        ErrorKind::Refused => "refused",
        ErrorKind::Unroutable => "unroutable",
        ErrorKind::Unconfirmed => "unconfirmed",
        ErrorKind::Stale => "stale",
        ErrorKind::Closed => "closed",
        ErrorKind::NotFound => "not_found",
        ErrorKind::Unauthorized => "unauthorized",
        ErrorKind::Timeout => "timeout",
        ErrorKind::Invalid => "invalid",
        ErrorKind::Unsupported => "unsupported",
        ErrorKind::Taken => "taken",
        ErrorKind::Other => "other",
    }
}

/// Whether a queue's name was made for one connection or one process: named by the broker (`amq.…`), with a part that
/// says so (`gen-…`, `spring.gen-…`), or with one that looks random: twelve or more hexadecimal digits in a row with
/// a decimal one among them, as a UUID, an object id or a container has, or twenty or more letters and digits of
/// all three sorts.
fn is_made_up(name: &str) -> bool {
    let random = |part: &str| {
        let has = |sort: fn(&u8) -> bool| part.bytes().any(|byte| sort(&byte));
        let hex = part.len() >= 12 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
        (hex && has(u8::is_ascii_digit))
            || (part.len() >= 20
                && has(u8::is_ascii_digit)
                && has(u8::is_ascii_lowercase)
                && has(u8::is_ascii_uppercase))
    };
    name.starts_with("amq.")
        || name.starts_with("gen-")
        || name.contains(".gen-")
        || name.split(|char: char| !char.is_ascii_alphanumeric()).any(random)
        || has_uuid(name)
}

/// Also one whose last part happens to have no decimal digit.
fn has_uuid(name: &str) -> bool {
    const LENGTHS: [usize; 5] = [8, 4, 4, 4, 12];
    let parts: Vec<&str> = name.split(|char: char| !char.is_ascii_alphanumeric()).collect();
    parts.windows(LENGTHS.len()).any(|window| {
        let hex = |part: &str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
        window.iter().zip(LENGTHS).all(|(part, length)| part.len() == length && hex(part))
    })
}

#[cfg(test)]
mod tests {
    use super::{attempt, cause, queue};
    use crate::source::Cause;

    #[test]
    fn names_that_are_made_up_share_a_label_and_others_keep_theirs() {
        for made_up in [
            "amq.gen-JzTY20BRgKO-HjmUJj0wLg",
            "amq.ctag.1",
            "spring.gen-JzTY20BRgKO-HjmUJj0wLg",
            "gen-7",
            "reply.6fa459ea-ee8a-3ca4-894e-db77e160355e",
            "reply-6fa459ea-ee8a-3ca4-894e-dbaaeaabcdef",
            "reply_6FA459EAEE8A3CA4894EDB77E160355E",
            "work-4c01db0b339c",
            "bus.ef4yyyfnk8gbBpIubdm7H1Lk2a",
        ] {
            assert_eq!(queue(made_up), "generated", "{made_up}");
        }
        for name in [
            "orders",
            "slot-17",
            "orders.dlq",
            "eu-west-1.orders.v2",
            "orders-2026",
            "deadbeefcafe",
            "a-rather-long-name-of-a-queue-for-orders",
            "TheOrdersOfTheWholeCompany",
            "amqp",
            "regen-orders",
        ] {
            assert_eq!(queue(name), name);
        }
        assert_eq!(queue(""), "unnamed");
    }

    #[test]
    fn causes_and_attempts_are_of_a_fixed_list() {
        for (code, class) in [
            ("validation:input", "validation"),
            ("retry_exhausted:4", "retry_exhausted"),
            ("timeout:250ms", "timeout"),
            ("terminal", "terminal"),
            ("http:429", "other"),
            ("terminal_7", "other"),
            ("", "other"),
        ] {
            assert_eq!(cause(&Cause::new(code)), class, "{code}");
        }
        let buckets: Vec<_> = [0, 1, 4, 5, 9, 10, u32::MAX].map(attempt).into();
        assert_eq!(buckets, ["1", "1", "4", "5-9", "5-9", "10+", "10+"]);
    }
}
