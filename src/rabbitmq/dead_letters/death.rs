//! What is known of a dead letter: by our own headers, else by those of the broker, else nothing.

use std::time::{Duration, SystemTime};

use crate::message::{HeaderValue, Headers, Message};
use crate::source::{Cause, DeadLetter};

/// A message in a dead-letter queue.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DeadMessage {
    /// The message as it lies there, with all headers. Its properties are in
    /// [`Delivered`](crate::rabbitmq::Delivered), by [`Message::metadata`].
    pub message: Message,
    /// Why it lies there.
    pub death: Death,
}

impl DeadMessage {
    pub(super) fn new(message: Message) -> Self {
        Self { death: Death::of(&message), message }
    }
}

/// Who wrote down how a message died.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ToldBy {
    /// This crate, in the headers of [`DeadLetter`].
    Windlass,
    /// The broker, in the header `x-death`.
    Broker,
    /// Nobody, or so that it cannot be read.
    Nobody,
}

/// How a message died. What is not known is `None`, and not zero.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Death {
    /// Who says so.
    pub told_by: ToldBy,
    /// Why. The broker has the codes `rejected`, `expired`, `maxlen` and `delivery_limit`, without a detail.
    pub cause: Option<Cause>,
    /// How many attempts had been made. The broker does not know.
    pub attempts: Option<u32>,
    /// How often the broker dead-lettered it from this queue for this reason.
    pub deaths: Option<u64>,
    /// The queue that it was in, where it is redriven to.
    pub queue: Option<String>,
    /// When, to the second, by the clock of whoever wrote it.
    pub at: Option<SystemTime>,
    /// The exchange that it had been published to, where the broker says so; empty for the default exchange.
    pub exchange: Option<String>,
    /// The routing keys that it had been published with, where the broker says so.
    pub routing_keys: Vec<String>,
}

impl Death {
    /// What is written on `message`. Nothing that a publisher can write there panics; what cannot be read is not known.
    pub fn of(message: &Message) -> Self {
        match DeadLetter::of(message) {
            Some(letter) => Self::by_windlass(letter),
            None => Self::by_broker(message).unwrap_or_else(|| Self::unknown(ToldBy::Nobody)),
        }
    }

    fn unknown(told_by: ToldBy) -> Self {
        Self {
            told_by,
            cause: None,
            attempts: None,
            deaths: None,
            queue: None,
            at: None,
            exchange: None,
            routing_keys: Vec::new(),
        }
    }

    fn by_windlass(letter: DeadLetter) -> Self {
        Self {
            cause: Some(letter.cause),
            attempts: Some(letter.attempts),
            // What is missing there reads as a queue without a name and the Unix epoch.
            queue: Some(letter.queue).filter(|queue| !queue.is_empty()),
            at: Some(letter.at).filter(|at| *at != SystemTime::UNIX_EPOCH),
            ..Self::unknown(ToldBy::Windlass)
        }
    }

    fn by_broker(message: &Message) -> Option<Self> {
        let headers = message.headers();
        let entry = newest(headers)?;
        let routing_keys = match entry.get("routing-keys") {
            Some(HeaderValue::List(keys)) => {
                keys.iter().filter_map(HeaderValue::as_str).map(str::to_owned).collect()
            }
            _ => Vec::new(),
        };
        let count = entry.get("count").and_then(HeaderValue::as_i64);
        Some(Self {
            cause: text(entry, "reason").map(|reason| Cause::new(reason.to_owned())),
            // A message that this crate had retried bears its count, which the broker leaves there.
            attempts: Some(message.attempt()).filter(|attempt| *attempt > 1),
            deaths: count.and_then(|count| u64::try_from(count).ok()).filter(|count| *count > 0),
            queue: text(entry, "queue").filter(|queue| !queue.is_empty()).map(str::to_owned),
            at: seconds(entry).and_then(|at| SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(at))),
            exchange: text(entry, "exchange").map(str::to_owned),
            routing_keys,
            ..Self::unknown(ToldBy::Broker)
        })
    }
}

fn text<'a>(entry: &'a Headers, name: &str) -> Option<&'a str> {
    entry.get(name).and_then(HeaderValue::as_str)
}

fn seconds(entry: &Headers) -> Option<u64> {
    match entry.get("time") {
        Some(HeaderValue::Timestamp(seconds)) => Some(*seconds),
        _ => None,
    }
}

/// The death that came last. RabbitMQ puts it first; from 3.13 on it also says which it is, and where an application has
/// carried an old list on, the first is not always the last. So the date counts before the place.
fn newest(headers: &Headers) -> Option<&Headers> {
    let Some(HeaderValue::List(entries)) = headers.get("x-death") else { return None };
    let entries = entries.iter().filter_map(|entry| match entry {
        HeaderValue::Table(entry) => Some(entry),
        _ => None,
    });
    let readable: Vec<&Headers> =
        entries.filter(|entry| text(entry, "queue").is_some() || text(entry, "reason").is_some()).collect();
    let is_last = |entry: &&&Headers| {
        let says = |header, field| text(headers, header).is_some_and(|last| text(entry, field) == Some(last));
        says("x-last-death-queue", "queue") && says("x-last-death-reason", "reason")
    };
    if let Some(last) = readable.iter().find(is_last) {
        return Some(last);
    }
    // Of several with the same date, the first.
    readable.into_iter().rev().max_by_key(|entry| seconds(entry).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::{Death, ToldBy};
    use crate::message::{HeaderValue, Headers, Message};
    use crate::source::{Cause, DeadLetter};

    fn entry(queue: &str, reason: &str, at: u64) -> Headers {
        [
            ("queue", HeaderValue::from(queue)),
            ("reason", reason.into()),
            ("count", 3_i64.into()),
            ("exchange", "events".into()),
            ("routing-keys", HeaderValue::List(vec!["orders.new".into(), 7_i32.into()])),
            ("time", HeaderValue::Timestamp(at)),
        ]
        .into_iter()
        .collect()
    }

    fn dead(entries: impl IntoIterator<Item = Headers>) -> Message {
        let entries = entries.into_iter().map(HeaderValue::Table).collect();
        Message::new("").with_header("x-death", HeaderValue::List(entries))
    }

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn our_own_headers_count_before_those_of_the_broker() {
        let message = dead([entry("orders", "expired", 90)]).with_attempt(4);
        let letter = DeadLetter::new(Cause::new("terminal").with_detail("d"), &message, "orders", at(50));
        let headers = letter.stamp(message.headers().clone());
        let death = Death::of(&message.with_headers(headers));
        assert_eq!((death.told_by, death.attempts, death.deaths), (ToldBy::Windlass, Some(4), None));
        assert_eq!(death.cause.map(|cause| cause.to_string()).as_deref(), Some("terminal: d"));
        assert_eq!((death.queue.as_deref(), death.at), (Some("orders"), Some(at(50))));
    }

    #[test]
    fn what_is_missing_in_our_own_headers_is_not_known() {
        let death = Death::of(&Message::new("").with_header("windlass-cause", "terminal"));
        assert_eq!((death.queue, death.at), (None, None));
        assert_eq!(death.told_by, ToldBy::Windlass);
    }

    #[test]
    fn the_brokers_newest_death_is_the_one() {
        let death = Death::of(&dead([entry("b", "rejected", 60), entry("a", "expired", 50)]));
        assert_eq!((death.told_by, death.queue.as_deref()), (ToldBy::Broker, Some("b")));
        assert_eq!(death.cause.as_ref().map(Cause::code), Some("rejected"));
        assert_eq!((death.attempts, death.deaths, death.at), (None, Some(3), Some(at(60))));
        assert_eq!(
            (death.exchange.as_deref(), death.routing_keys),
            (Some("events"), vec!["orders.new".to_owned()])
        );
        // In the wrong order, by date; in the same second, the first.
        let wrong = Death::of(&dead([entry("a", "expired", 50), entry("b", "rejected", 60)]));
        assert_eq!(wrong.queue.as_deref(), Some("b"));
        let same = dead([entry("b", "rejected", 60), entry("a", "expired", 60)]);
        assert_eq!(Death::of(&same).queue.as_deref(), Some("b"));
        // Where the broker says which.
        let said = same.with_header("x-last-death-queue", "a").with_header("x-last-death-reason", "expired");
        assert_eq!(Death::of(&said).queue.as_deref(), Some("a"));
        assert_eq!(Death::of(&said.with_attempt(3)).attempts, Some(3));
    }

    #[test]
    fn garbage_in_x_death_is_not_known_and_does_not_panic() {
        let unknown = [
            "text".into(),
            HeaderValue::Null,
            7_i32.into(),
            HeaderValue::List(Vec::new()),
            HeaderValue::List(vec!["text".into(), HeaderValue::Null]),
            HeaderValue::List(vec![HeaderValue::Table(Headers::new())]),
            HeaderValue::Table(entry("a", "expired", 5)),
        ];
        for value in unknown {
            let death = Death::of(&Message::new("").with_header("x-death", value.clone()));
            assert_eq!(death, Death::unknown(ToldBy::Nobody), "{value:?}");
        }
        let wrong: [(&str, HeaderValue); 6] = [
            ("count", (-4_i64).into()),
            ("count", "5".into()),
            ("time", "yesterday".into()),
            ("time", HeaderValue::Timestamp(u64::MAX)),
            ("routing-keys", "q".into()),
            ("exchange", HeaderValue::Null),
        ];
        for (name, value) in wrong {
            let mut entry = entry("a", "expired", 50);
            entry.insert(name, value.clone());
            let death = Death::of(&dead([entry]));
            assert_eq!(death.queue.as_deref(), Some("a"), "{name} {value:?}");
            let known = match name {
                "count" => death.deaths.is_some(),
                "time" => death.at.is_some(),
                "exchange" => death.exchange.is_some(),
                _ => !death.routing_keys.is_empty(),
            };
            assert!(!known, "{name} {value:?}");
        }
        let mut nameless = entry("", "expired", 50);
        nameless.remove("count");
        assert_eq!(Death::of(&dead([nameless])).queue, None);
    }
}
