//! The headers that the broker writes: which they are, and which of them a copy may carry.

use super::attempt::{ACQUIRED_COUNT, DELIVERY_COUNT};
use super::headers::kind;
use crate::message::{HeaderValue, Headers, Message};

/// What the broker notes when it dead-letters a message itself: each queue, reason and count.
pub(super) const DEATHS: &str = "x-death";

/// Further routing keys. The broker sends the message to those too, and takes the second out before it delivers.
pub(super) const SENDER_SELECTED: [&str; 2] = ["CC", "BCC"];

/// Whether `name` is one of the headers that tell how a message died: `x-death`, `x-first-death-…`, `x-last-death-…`.
pub(super) fn tells_of_death(name: &str) -> bool {
    name == DEATHS || tells_of_one_death(name)
}

fn tells_of_one_death(name: &str) -> bool {
    name.starts_with("x-first-death-") || name.starts_with("x-last-death-")
}

/// Whether `name` is a header by which the broker tells how a message came, so that it is not to be sent on.
pub(super) fn tells_how_it_came(name: &str) -> bool {
    tells_of_death(name) || matches!(name, DELIVERY_COUNT | ACQUIRED_COUNT)
}

/// Takes out what a copy must not carry: counts of another queue's deliveries, further routing keys, and those of the
/// death headers that the broker would stumble over. `back_to` is the queue that the broker will move the copy to by
/// expiry, where it will.
pub(super) fn clean(headers: &mut Headers, message: &Message, back_to: Option<&str>) {
    for name in SENDER_SELECTED.into_iter().chain([DELIVERY_COUNT, ACQUIRED_COUNT]) {
        headers.remove(name);
    }
    let left_out: Vec<(String, &'static str)> = headers
        .iter()
        .filter_map(|(name, value)| Some((name.to_owned(), unfit(name, value, back_to)?)))
        .collect();
    for (name, why) in left_out {
        let value = headers.remove(&name);
        tracing::warn!(
            header = name,
            kind = value.as_ref().map(kind),
            message_id = message.id(),
            why,
            "a header of the broker's is left out of the copy"
        );
    }
}

/// Why a copy must not carry this header, where it must not.
fn unfit(name: &str, value: &HeaderValue, back_to: Option<&str>) -> Option<&'static str> {
    if tells_of_one_death(name) && value.as_str().is_none() {
        return Some("not text");
    }
    if name != DEATHS {
        return None;
    }
    match deaths(value) {
        // The broker's queue process crashes over some of these when it dead-letters the message, each time again.
        None => Some("not of the types that the broker writes"),
        Some(deaths) if back_to.is_some_and(|queue| may_be_cycle(&deaths, queue)) => {
            Some("the broker would take the way out of the wait queue for a loop and drop the message")
        }
        Some(_) => None,
    }
}

struct Death<'a> {
    queue: &'a str,
    reason: &'a str,
}

/// The entries of `x-death`; `None` where one is not as the broker writes it.
/// Whether the broker's queue process would break over what this message says of its deaths, were it to dead-letter it.
pub(in crate::rabbitmq) fn breaks_the_broker(message: &Message) -> bool {
    message.headers().get(DEATHS).is_some_and(|value| deaths(value).is_none())
}

fn deaths(value: &HeaderValue) -> Option<Vec<Death<'_>>> {
    let HeaderValue::List(entries) = value else { return None };
    entries.iter().map(death).collect()
}

fn death(value: &HeaderValue) -> Option<Death<'_>> {
    let HeaderValue::Table(entry) = value else { return None };
    let text = |name| entry.get(name).and_then(HeaderValue::as_str);
    let HeaderValue::List(keys) = entry.get("routing-keys")? else { return None };
    let well_formed = keys.iter().all(|key| key.as_str().is_some())
        && entry.get("count").is_some_and(|count| count.as_i64().is_some())
        && matches!(entry.get("time"), Some(HeaderValue::Timestamp(_)))
        && entry.get("original-expiration").is_none_or(|text| text.as_str().is_some())
        && text("exchange").is_some();
    well_formed.then_some(Death { queue: text("queue")?, reason: text("reason")? })
}

/// Whether the broker may take it for a loop when it moves a message with these deaths to `queue`: it was there before,
/// and nobody has rejected it since. What goes round by itself it does not move: the message would stay in the wait
/// queue for good. Which death came last is told by their order, and RabbitMQ 3.10 turns that round when it adds one; so
/// any death there counts that was no rejection. Brokers from 4.0 on do not read an `x-death` that a client wrote.
fn may_be_cycle(deaths: &[Death<'_>], queue: &str) -> bool {
    deaths.iter().any(|death| death.queue == queue && death.reason != "rejected")
}

#[cfg(test)]
mod tests {
    use super::{clean, tells_how_it_came};
    use crate::message::{HeaderValue, Headers, Message};

    fn entry(queue: &str, reason: &str) -> Headers {
        [
            ("queue", HeaderValue::from(queue)),
            ("reason", reason.into()),
            ("count", 1_i64.into()),
            ("exchange", "".into()),
            ("routing-keys", HeaderValue::List(vec![queue.into()])),
            ("time", HeaderValue::Timestamp(1_700_000_000)),
        ]
        .into_iter()
        .collect()
    }

    fn list(entries: impl IntoIterator<Item = Headers>) -> HeaderValue {
        HeaderValue::List(entries.into_iter().map(HeaderValue::Table).collect())
    }

    fn is_kept(name: &str, value: impl Into<HeaderValue>, back_to: Option<&str>) -> bool {
        let mut headers: Headers = [(name, value.into())].into_iter().collect();
        clean(&mut headers, &Message::new(""), back_to);
        !headers.is_empty()
    }

    #[test]
    fn deaths_as_the_broker_writes_them_are_kept() {
        let mut expired = entry("q", "expired");
        expired.insert("original-expiration", "1000");
        assert!(is_kept("x-death", list([entry("q", "rejected"), expired]), None));
        assert!(is_kept("x-death", list((0..400).map(|n| entry(&format!("q{n}"), "expired"))), None));
        // What the broker itself carries on.
        let mut odd = entry("q", "rejected");
        odd.insert("count", -4_i64);
        assert!(is_kept("x-death", list([odd]), None));
        assert!(is_kept("x-first-death-queue", "q", None));
    }

    #[test]
    fn deaths_that_an_application_wrote_wrongly_are_left_out() {
        let wrong: [(&str, HeaderValue); 8] = [
            // The case that crashed the queue's process.
            ("count", "5".into()),
            ("count", 1.5_f64.into()),
            ("queue", 1_i32.into()),
            ("reason", HeaderValue::Null),
            ("exchange", true.into()),
            ("routing-keys", "q".into()),
            ("routing-keys", HeaderValue::List(vec![1_i32.into()])),
            ("time", "yesterday".into()),
        ];
        for (name, value) in wrong {
            let mut entry = entry("q", "rejected");
            entry.insert(name, value.clone());
            assert!(!is_kept("x-death", list([entry]), None), "{name} {value:?}");
        }
        for name in ["count", "queue", "reason", "exchange", "routing-keys", "time"] {
            let mut entry = entry("q", "rejected");
            entry.remove(name);
            assert!(!is_kept("x-death", list([entry]), None), "without {name}");
        }
        assert!(!is_kept("x-death", "text", None));
        assert!(!is_kept("x-death", 7_i32, None));
        assert!(!is_kept("x-death", HeaderValue::List(vec!["text".into()]), None));
        assert!(!is_kept("x-last-death-reason", 1_i32, None));
    }

    #[test]
    fn deaths_that_would_make_the_way_back_a_loop_are_left_out() {
        let expired = list([entry("q.wait.1000", "expired"), entry("q", "expired")]);
        assert!(!is_kept("x-death", expired.clone(), Some("q")));
        assert!(is_kept("x-death", expired, None));
        // In whatever order: the broker changes it.
        let both = [entry("q", "rejected"), entry("q", "expired")];
        assert!(!is_kept("x-death", list(both.clone()), Some("q")));
        assert!(!is_kept("x-death", list(both.into_iter().rev()), Some("q")));
        let rejected = list([entry("dlq", "rejected"), entry("q", "expired")]);
        assert!(!is_kept("x-death", rejected, Some("q")));
        assert!(is_kept("x-death", list([entry("q", "rejected")]), Some("q")));
        assert!(is_kept("x-death", list([entry("q.wait.1000", "expired")]), Some("q")));
    }

    #[test]
    fn counts_and_further_routing_keys_are_left_out() {
        for name in ["CC", "BCC", "x-delivery-count", "x-acquired-count"] {
            assert!(!is_kept(name, HeaderValue::List(vec!["q".into()]), None), "{name}");
        }
        for name in ["cc", "x-deaths", "x-correlation-id", "x-stream-offset"] {
            assert!(is_kept(name, 1_i32, None), "{name}");
            assert!(!tells_how_it_came(name), "{name}");
        }
    }
}
