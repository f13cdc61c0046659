//! The ladder of wait queues: which delays there are, and how the queues that wait them out are named and declared.
//!
//! A message that waits for its delay lies in a queue whose messages all live equally long; when its time is over the
//! broker moves it back to the work queue. One shared queue with a time to live per message would not do: a message
//! expires only at the head of a queue, so that a short delay waits behind a long one. So each delay has a queue of its
//! own, and to keep their number small a delay is rounded up to a step.
//!
//! # The steps
//!
//! A delay is rounded up by at most an eighth, and to a whole millisecond. From each of the bases 1 ms, 10 ms, 100 ms,
//! 1 s, 1 min, 1 h and 1 day on, the steps are the base times 1, 1⅛, 1¼, 1⅜, 1½, 1⅝, 1¾ and 1⅞, the double of these,
//! and so on up to the next base. The delays that people write are steps, and so not rounded at all: 100, 250 and
//! 500 ms; 1, 2, 5, 10 and 30 s; 1, 5, 10, 15 and 30 min; 1 and 12 h; 1, 2, 3, 7, 14 and 30 days.
//!
//! There are 287 steps from 1 ms to [`LONGEST_DELAY`], of which a work queue has those that were used.

use std::time::Duration;

use lapin::types::{AMQPValue, FieldTable, LongString};

/// The longest delay, ten years of 365 days: what the broker takes as a time to live. Longer ones are cut to it.
pub const LONGEST_DELAY: Duration = Duration::from_millis(LONGEST_MS);

/// The shortest delay. Shorter ones, zero among them, are rounded up to it.
pub const SHORTEST_DELAY: Duration = Duration::from_millis(1);

/// The longest name of a work queue, in bytes of UTF-8, that leaves room for the suffix of every wait queue within the
/// 255 bytes that AMQP 0-9-1 has for a name.
pub const LONGEST_QUEUE_NAME: usize = 255 - INFIX.len() - LONGEST_DIGITS;

const LONGEST_MS: u64 = 315_360_000_000;

/// The digits of [`LONGEST_MS`].
const LONGEST_DIGITS: usize = 12;

const INFIX: &str = ".wait.";

/// As long as [`INFIX`].
const EXCLUSIVE_INFIX: &str = ".hold.";

/// In milliseconds: 1, 10 and 100 ms, 1 s, 1 min, 1 h, 1 day.
const BASES: [u64; 7] = [1, 10, 100, 1_000, 60_000, 3_600_000, 86_400_000];

/// The step that `delay` is rounded up to: at least the delay, and at most an eighth and a millisecond more.
///
/// Delays below [`SHORTEST_DELAY`] become that, and those above [`LONGEST_DELAY`] are cut to it.
///
/// ```
/// use std::time::Duration;
/// use windlass::rabbitmq::ladder;
///
/// assert_eq!(ladder::step(Duration::from_secs(30)), Duration::from_secs(30));
/// assert_eq!(ladder::step(Duration::from_secs(29)), Duration::from_secs(30));
/// assert_eq!(ladder::step(Duration::from_secs(31)), Duration::from_secs(32));
/// ```
pub fn step(delay: Duration) -> Duration {
    Duration::from_millis(step_ms(delay))
}

/// The name of the queue in which a message of `queue` waits for `delay`: `<queue>.wait.<milliseconds>`, by the step
/// that the delay is rounded up to.
///
/// ```
/// use std::time::Duration;
/// use windlass::rabbitmq::ladder;
///
/// assert_eq!(ladder::wait_queue("orders", Duration::from_secs(5)), "orders.wait.5000");
/// ```
pub fn wait_queue(queue: &str, delay: Duration) -> String {
    format!("{queue}{INFIX}{}", step_ms(delay))
}

/// As [`wait_queue`], for a work queue that belongs to one connection. It has another name: somebody may send to that
/// queue later, which makes one of the others.
pub(in crate::rabbitmq) fn exclusive_wait_queue(queue: &str, delay: Duration) -> String {
    format!("{queue}{EXCLUSIVE_INFIX}{}", step_ms(delay))
}

/// The value of an argument of a wait queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WaitArgument<'a> {
    Text(&'a str),
    Integer(i64),
}

/// What the wait queue of `queue` for `delay` is declared with, by whoever declares it. It is durable, neither exclusive
/// nor deleted with its last consumer: it never has one.
///
/// There is no `x-expires`: it would delete the queue with the messages in it, since publishing is no use of a queue.
pub(crate) fn wait_arguments(queue: &str, delay: Duration) -> [(&'static str, WaitArgument<'_>); 6] {
    use WaitArgument::{Integer, Text};
    // The type that the management API makes of a number: a queue that was declared there must count as the same one.
    let ttl = i64::try_from(step_ms(delay)).unwrap_or(i64::MAX);
    [
        // Replicated: a message waits for days in it, and a node goes.
        ("x-queue-type", Text("quorum")),
        ("x-message-ttl", Integer(ttl)),
        // Through the default exchange back to the work queue, which needs no binding that could be missing.
        ("x-dead-letter-exchange", Text("")),
        ("x-dead-letter-routing-key", Text(queue)),
        // The broker's own default moves a message at most once, and loses it where the work queue does not take it.
        ("x-dead-letter-strategy", Text("at-least-once")),
        // Which at-least-once insists on. A full wait queue then refuses the copy, and the original stays.
        ("x-overflow", Text("reject-publish")),
    ]
}

/// As [`wait_arguments`], for a declaration over AMQP.
pub(in crate::rabbitmq) fn arguments(queue: &str, delay: Duration) -> FieldTable {
    table(wait_arguments(queue, delay))
}

/// As [`arguments`], for a work queue that belongs to one connection: so does the wait queue, and goes with it. Only a
/// classic queue can.
pub(in crate::rabbitmq) fn exclusive_arguments(queue: &str, delay: Duration) -> FieldTable {
    let [_, ttl, exchange, routing_key, ..] = wait_arguments(queue, delay);
    table([("x-queue-type", WaitArgument::Text("classic")), ttl, exchange, routing_key])
}

fn table<'a>(arguments: impl IntoIterator<Item = (&'static str, WaitArgument<'a>)>) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in arguments {
        let value = match value {
            WaitArgument::Text(text) => AMQPValue::LongString(LongString::from(text)),
            WaitArgument::Integer(number) => AMQPValue::LongLongInt(number),
        };
        table.insert(name.into(), value);
    }
    table
}

fn step_ms(delay: Duration) -> u64 {
    let whole = delay.as_nanos().div_ceil(1_000_000);
    let wanted = u64::try_from(whole).unwrap_or(u64::MAX).clamp(1, LONGEST_MS);
    let index = BASES.iter().rposition(|base| *base <= wanted).unwrap_or(0);
    let next = BASES.get(index + 1).copied().unwrap_or(LONGEST_MS);
    let mut octave = BASES[index];
    while octave * 2 <= wanted {
        octave *= 2;
    }
    // The ninth eighth is the next octave, which is always enough.
    let found = (8..=16).map(|eighths| (octave * eighths).div_ceil(8)).find(|step| *step >= wanted);
    found.unwrap_or(next).min(next)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use lapin::types::AMQPValue;
    use proptest::prelude::{
        Just, ProptestConfig, Strategy, prop_assert, prop_assert_eq, prop_oneof, proptest,
    };

    use super::{
        BASES, LONGEST_DELAY, LONGEST_DIGITS, LONGEST_MS, LONGEST_QUEUE_NAME, SHORTEST_DELAY, arguments,
        exclusive_wait_queue, step, step_ms, wait_queue,
    };

    /// Every step, by asking for one more millisecond each time.
    fn steps() -> Vec<u64> {
        let mut steps = vec![1];
        while let Some(last) = steps.last().copied().filter(|last| *last < LONGEST_MS) {
            steps.push(step_ms(Duration::from_millis(last + 1)));
        }
        steps
    }

    /// Delays of every size, not only large ones.
    fn delays() -> impl Strategy<Value = Duration> {
        let sized = (0_u32..90).prop_flat_map(|bits| 0..=(1_u128 << bits));
        prop_oneof![
            sized.prop_map(|nanos| {
                Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)).min(LONGEST_DELAY)
            }),
            (0..=LONGEST_MS).prop_map(Duration::from_millis),
            Just(LONGEST_DELAY),
            Just(Duration::ZERO),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 4_000, failure_persistence: None, ..ProptestConfig::default()
        })]

        #[test]
        fn a_delay_is_rounded_up_by_at_most_an_eighth(delay in delays()) {
            let step = step(delay);
            prop_assert!(step >= delay);
            prop_assert!(step <= delay + delay / 8 + Duration::from_millis(1), "{delay:?} became {step:?}");
        }

        #[test]
        fn a_step_is_its_own_step(delay in delays()) {
            let once = step(delay);
            prop_assert_eq!(step(once), once);
            prop_assert_eq!(wait_queue("q", once), wait_queue("q", delay));
        }

        #[test]
        fn a_longer_delay_never_has_a_shorter_step(one in delays(), other in delays()) {
            let (short, long) = (one.min(other), one.max(other));
            prop_assert!(step(short) <= step(long));
        }
    }

    #[test]
    fn the_delays_that_people_write_are_exact() {
        let ms = [1, 2, 5, 10, 20, 50, 100, 200, 250, 500];
        let s = [1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 30];
        let min = [1, 2, 3, 5, 10, 15, 20, 30, 40];
        let h = [1, 2, 3, 4, 6, 8, 12, 24, 48];
        let days = [1, 2, 3, 4, 5, 6, 7, 10, 14, 15, 30, 60];
        let exact = ms.map(Duration::from_millis).into_iter();
        let exact = exact.chain(s.map(Duration::from_secs));
        let exact = exact.chain(min.map(|min: u64| Duration::from_secs(min * 60)));
        let exact = exact.chain(h.map(|h: u64| Duration::from_secs(h * 3_600)));
        for delay in exact.chain(days.map(|days: u64| Duration::from_secs(days * 86_400))) {
            assert_eq!(step(delay), delay);
        }
    }

    #[test]
    fn the_steps_are_what_the_page_says() {
        let steps = steps();
        assert_eq!(steps.len(), 287);
        for pair in steps.windows(2) {
            let (low, high) = (pair[0], pair[1]);
            assert!(high > low && (high - 1) * 8 <= low * 9, "{low} ms to {high} ms is more than an eighth");
        }
        let all: BTreeSet<u64> = steps.into_iter().collect();
        assert!(BASES.iter().all(|base| all.contains(base)));
    }

    #[test]
    fn no_delay_is_too_short_or_too_long() {
        for delay in [Duration::ZERO, Duration::from_nanos(1), Duration::from_micros(400)] {
            assert_eq!(step(delay), SHORTEST_DELAY);
        }
        assert_eq!(step(Duration::from_micros(1_500)), Duration::from_millis(2));
        for delay in [LONGEST_DELAY, LONGEST_DELAY + Duration::from_nanos(1), Duration::MAX] {
            assert_eq!(step(delay), LONGEST_DELAY);
        }
        // 49.8 days, where 32 bits of milliseconds end.
        let delay = Duration::from_millis(u64::from(u32::MAX) + 1);
        assert_eq!(step(delay), Duration::from_secs(52 * 86_400));
    }

    #[test]
    fn the_longest_name_of_a_work_queue_leaves_room_for_the_longest_suffix() {
        assert_eq!(LONGEST_MS.to_string().len(), LONGEST_DIGITS);
        assert_eq!(LONGEST_QUEUE_NAME, 237);
        let longest = "q".repeat(LONGEST_QUEUE_NAME);
        assert_eq!(wait_queue(&longest, Duration::MAX).len(), 255);
        assert_eq!(exclusive_wait_queue(&longest, Duration::MAX).len(), 255);
    }

    #[test]
    fn a_wait_queue_leads_back_to_its_work_queue_and_never_expires_itself() {
        let arguments = arguments("orders", Duration::from_secs(5));
        let names: Vec<&str> = arguments.inner().keys().map(|name| name.as_str()).collect();
        let expected = [
            "x-dead-letter-exchange",
            "x-dead-letter-routing-key",
            "x-dead-letter-strategy",
            "x-message-ttl",
            "x-overflow",
            "x-queue-type",
        ];
        assert_eq!(names, expected);
        let get = |name: &str| arguments.inner().get(name).cloned();
        assert_eq!(get("x-message-ttl"), Some(AMQPValue::LongLongInt(5_000)));
        assert_eq!(get("x-dead-letter-routing-key"), Some(AMQPValue::LongString("orders".into())));
        assert_eq!(get("x-dead-letter-exchange"), Some(AMQPValue::LongString("".into())));
    }
}
