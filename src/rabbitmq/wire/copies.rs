//! What is sent: a message as its publisher wants it, a copy for another try, a copy for the dead letters.

use std::borrow::Cow;

use super::Outgoing;
use super::attempt::{ATTEMPT, attempt_value};
use super::broker::{SENDER_SELECTED, clean, tells_how_it_came, tells_of_death};
use super::draft::{DROPPED, Draft, TooLarge};
use super::guard::UNREADABLE;
use super::properties::{Delivered, Properties, invalid};
use crate::error::{Error, Result};
use crate::message::{Headers, Message};
use crate::source::DeadLetter;

/// Why there is no copy for another try.
#[derive(Debug)]
pub(in crate::rabbitmq) enum NoCopy {
    /// It does not fit: the message belongs to the dead letters, with [`TooLarge::cause`].
    TooLarge(TooLarge),
    /// AMQP cannot carry it, which does not happen to what came over AMQP.
    Invalid(Error),
}

/// The copy of a received message that its queue gets for another try, as number `attempt`: the same bytes, typed
/// headers and properties, with our own count. Not its user, CC, BCC, expiration, and nothing that the broker would
/// stumble over. It is persistent even where the original was not.
///
/// `queue` is the queue that it will be tried in again. `frame_max` is what was agreed with the broker; zero is no
/// limit.
pub(in crate::rabbitmq) fn retry_copy(
    message: &Message,
    queue: &str,
    attempt: u32,
    frame_max: u32,
) -> Result<Outgoing, NoCopy> {
    let mut headers = message.headers().clone();
    clean(&mut headers, message, Some(queue));
    headers.insert(ATTEMPT, attempt_value(attempt));
    let mut draft = Draft::of_received(message, &carried(message), &headers).map_err(NoCopy::Invalid)?;
    draft.trim(frame_max);
    draft.finish(frame_max).map_err(NoCopy::TooLarge)
}

/// The copy of a received message that the dead letters get: the same as for another try, with what is known of its end
/// and without the count. Where that does not fit, the largest headers are left out, and their number noted in
/// `windlass-headers-dropped`.
pub(in crate::rabbitmq) fn dead_letter_copy(
    message: &Message,
    letter: &DeadLetter,
    frame_max: u32,
) -> Result<Outgoing> {
    let mut headers = message.headers().clone();
    clean(&mut headers, message, None);
    // Of an earlier end; this one may fit.
    headers.remove(DROPPED);
    headers.remove(ATTEMPT);
    // The cause says it. Whoever reads the dead letters is not to take one for a message that came so.
    headers.remove(UNREADABLE);
    let headers = letter.stamp(headers);
    let mut draft = Draft::of_received(message, &carried(message), &headers)?;
    draft.trim(frame_max);
    draft.shed(frame_max, &letter.stamp(Headers::new()));
    draft.finish(frame_max).map_err(invalid_size)
}

/// The copy of a dead letter that is sent back to be tried again: the same bytes, typed headers and properties, and
/// nothing of how it died or how often it was tried, so that it is counted from 1 and a second death is read right.
///
/// # Errors
///
/// `Invalid` where it does not fit into a frame any more.
pub(in crate::rabbitmq) fn redriven_copy(message: &Message, frame_max: u32) -> Result<Outgoing> {
    let mut headers = message.headers().clone();
    clean(&mut headers, message, None);
    let deaths: Vec<String> =
        headers.names().filter(|name| tells_of_death(name)).map(str::to_owned).collect();
    for name in deaths {
        headers.remove(&name);
    }
    headers.remove(ATTEMPT);
    let headers = DeadLetter::unstamp(headers);
    Draft::of_received(message, &carried(message), &headers)?.finish(frame_max).map_err(invalid_size)
}

/// The copy of a message that takes its place in the same queue: with all that was noted of its death, and its count.
///
/// # Errors
///
/// `Invalid` where it does not fit into a frame any more.
pub(in crate::rabbitmq) fn same_copy(message: &Message, frame_max: u32) -> Result<Outgoing> {
    let mut headers = message.headers().clone();
    clean(&mut headers, message, None);
    if message.attempt() > 1 {
        headers.insert(ATTEMPT, attempt_value(message.attempt()));
    }
    Draft::of_received(message, &carried(message), &headers)?.finish(frame_max).map_err(invalid_size)
}

/// What a publisher sends: what was sent, and nothing of how it came. Persistent, unless its [`Properties`] say
/// otherwise. A received message goes on with the properties that it had, except its user, expiration, CC and BCC.
///
/// # Errors
///
/// `Invalid`, by name, for a property or a header that AMQP cannot carry, or that does not fit into a frame.
pub(in crate::rabbitmq) fn outgoing(message: &Message, frame_max: u32) -> Result<Outgoing> {
    let received = message.metadata::<Delivered>().is_some();
    let properties = match message.metadata::<Properties>() {
        Some(properties) => Cow::Borrowed(properties),
        None => Cow::Owned(carried(message)),
    };
    let is_sent = |name: &str| {
        name != ATTEMPT && !tells_how_it_came(name) && !(received && SENDER_SELECTED.contains(&name))
    };
    let headers = message.headers().iter().filter(|(name, _)| is_sent(name));
    Draft::new(message, &properties, headers)?.finish(frame_max).map_err(invalid_size)
}

fn carried(message: &Message) -> Properties {
    message.metadata::<Delivered>().map(Delivered::carried).unwrap_or_default()
}

fn invalid_size(TooLarge { len, frame_max }: TooLarge) -> Error {
    let fix =
        format!("{len} bytes with the properties, and a frame has {frame_max}; put large data into the body");
    invalid("headers", &fix)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use lapin::BasicProperties;
    use lapin::types::{AMQPValue, FieldTable};
    use proptest::prelude::{ProptestConfig, prop_assert, prop_assert_eq, proptest};

    use super::super::samples::{delivery, frame_len, headers, nested, parsed, short, table_of};
    use super::super::{Outgoing, received};
    use super::{NoCopy, dead_letter_copy, outgoing, redriven_copy, retry_copy, same_copy};
    use crate::error::ErrorKind;
    use crate::message::{HeaderValue, Headers, Message};
    use crate::rabbitmq::Properties;
    use crate::source::{Cause, DeadLetter};

    const AT: SystemTime = SystemTime::UNIX_EPOCH;

    fn came(properties: BasicProperties, headers: &Headers) -> Message {
        let sent =
            outgoing(&Message::new(&b"\x00\xff\x80"[..]).with_headers(headers.clone()), 0).expect("sendable");
        let properties = properties.with_headers(FieldTable::from(table_of(&sent.properties)));
        received(delivery(properties, b"\x00\xff\x80"), AT).message
    }

    fn letter(message: &Message) -> DeadLetter {
        DeadLetter::new(Cause::new("terminal").with_detail("d".repeat(1_024)), message, "orders", AT)
    }

    /// The copy, as it comes again.
    fn again(copy: Outgoing) -> Message {
        received(delivery(copy.properties, &copy.body), AT).message
    }

    fn retried(message: &Message, attempt: u32) -> Outgoing {
        retry_copy(message, "orders", attempt, 0).expect("no limit")
    }

    fn full() -> BasicProperties {
        BasicProperties::default()
            .with_message_id(short("m-1"))
            .with_content_type(short("application/json"))
            .with_content_encoding(short("lz4"))
            .with_correlation_id(short("c-1"))
            .with_reply_to(short("answers"))
            .with_priority(5)
            .with_timestamp(u64::MAX)
            .with_type(short("order.made"))
            .with_app_id(short("shop"))
            .with_user_id(short("guest"))
            .with_cluster_id(short("one"))
            .with_expiration(short("1000"))
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_retried_message_is_the_same_message(headers in headers()) {
            let message = came(full(), &headers);
            let copy = again(retried(&message, 2));
            prop_assert_eq!(copy.headers(), message.headers());
            prop_assert_eq!(copy.body(), message.body());
            prop_assert_eq!(copy.attempt(), 2);
        }

        #[test]
        fn a_dead_letter_keeps_what_fits(headers in headers(), frame_max in 4_096_u32..9_000) {
            let message = came(full(), &headers);
            let copy = dead_letter_copy(&message, &letter(&message), frame_max).expect("it always goes somewhere");
            prop_assert!(frame_len(&copy.properties) <= frame_max as usize);
            let copy = again(copy);
            prop_assert_eq!(DeadLetter::of(&copy).map(|letter| letter.queue), Some("orders".to_owned()));
            let kept = message.headers().iter().filter(|(name, value)| copy.headers().get(name) == Some(value)).count();
            let dropped = copy.headers().get("windlass-headers-dropped").and_then(HeaderValue::as_i64).unwrap_or(0);
            prop_assert_eq!(kept + usize::try_from(dropped).unwrap_or(usize::MAX), message.headers().len());
        }
    }

    #[test]
    fn a_retried_message_keeps_its_properties_but_those_that_are_not_its_own() {
        let message = came(full(), &Headers::new());
        let kept = full().with_delivery_mode(2);
        let copy = retried(&message, 3).properties;
        assert_eq!(copy.delivery_mode(), &Some(2));
        assert_eq!(copy.message_id(), kept.message_id());
        assert_eq!(copy.content_type(), kept.content_type());
        assert_eq!(copy.content_encoding(), kept.content_encoding());
        assert_eq!(copy.correlation_id(), kept.correlation_id());
        assert_eq!(copy.reply_to(), kept.reply_to());
        assert_eq!((copy.priority(), copy.timestamp()), (kept.priority(), kept.timestamp()));
        assert_eq!((copy.kind(), copy.app_id()), (kept.kind(), kept.app_id()));
        assert_eq!((copy.user_id(), copy.cluster_id(), copy.expiration()), (&None, &None, &None));
        assert_eq!(table_of(&copy).get("windlass-attempt"), Some(&AMQPValue::LongUInt(3)));
    }

    #[test]
    fn a_message_without_an_id_keeps_the_one_that_it_was_given() {
        let message = came(BasicProperties::default(), &Headers::new());
        assert_eq!(again(retried(&message, 2)).id(), message.id());
    }

    #[test]
    fn an_empty_body_goes_through_every_copy_with_its_headers() {
        let properties = BasicProperties::default().with_headers(parsed(&[("h", b't', &[1])]));
        let message = received(delivery(properties, b""), AT).message;
        let copies = [
            retried(&message, 2),
            dead_letter_copy(&message, &letter(&message), 0).expect("no limit"),
            outgoing(&message, 0).expect("no limit"),
        ];
        for copy in copies {
            assert!(copy.body.is_empty());
            assert_eq!(again(copy).headers().get("h"), Some(&true.into()));
        }
    }

    #[test]
    fn further_routing_keys_and_a_broken_x_death_do_not_get_into_a_copy() {
        let death: Headers = [("queue", "orders"), ("reason", "rejected"), ("count", "5"), ("exchange", "")]
            .into_iter()
            .collect();
        let mut headers: Headers = [("x-death", HeaderValue::List(vec![death.into()]))].into_iter().collect();
        headers.insert("CC", HeaderValue::List(vec!["elsewhere".into()]));
        headers.insert("BCC", HeaderValue::List(vec!["elsewhere".into()]));
        headers.insert("x-delivery-count", 3_i64);
        headers.insert("shard", 3_i32);
        // As an application writes it; `outgoing` would leave it out.
        let message = came(full(), &Headers::new()).with_headers(headers);
        let dead = dead_letter_copy(&message, &letter(&message), 0).expect("no limit");
        assert_eq!(again(retried(&message, 2)).headers().names().collect::<Vec<_>>(), ["shard"]);
        let names: Vec<String> = again(dead).headers().names().map(str::to_owned).collect();
        let own =
            ["windlass-attempts", "windlass-cause", "windlass-cause-detail", "windlass-dead-lettered-at"];
        assert_eq!(names, [&["shard"], &own[..], &["windlass-origin-queue"]].concat());
    }

    #[test]
    fn a_redriven_message_is_as_it_was_before_it_died() {
        let alive = came(full(), &[("shard", 3_i32)].into_iter().collect());
        let dead = again(dead_letter_copy(&alive, &letter(&alive), 0).expect("no limit"));
        let dead = dead.with_header("x-death", deaths(2)).with_header("x-last-death-queue", "orders");
        let copy = redriven_copy(&dead.with_attempt(3), 0).expect("no limit");
        assert_eq!((copy.properties.user_id(), copy.properties.delivery_mode()), (&None, &Some(2)));
        let copy = again(copy);
        assert_eq!((copy.id(), copy.body(), copy.headers()), ("m-1", alive.body(), alive.headers()));
        assert_eq!((copy.attempt(), DeadLetter::of(&copy)), (1, None));
    }

    #[test]
    fn a_message_that_takes_its_own_place_keeps_its_death_and_its_count() {
        let alive = came(full(), &Headers::new());
        let dead = again(dead_letter_copy(&alive, &letter(&alive), 0).expect("no limit"));
        let dead = dead.with_header("x-death", deaths(2)).with_attempt(3);
        let counted = dead.clone().with_header("x-delivery-count", 20_i64);
        let copy = again(same_copy(&counted, 0).expect("no limit"));
        assert_eq!((copy.headers(), copy.attempt(), copy.id()), (dead.headers(), 3, "m-1"));
    }

    #[test]
    fn how_a_message_came_is_not_sent_on() {
        let mut headers: Headers =
            [("windlass-attempt", 5_i32), ("x-delivery-count", 5)].into_iter().collect();
        headers.insert("x-death", HeaderValue::List(Vec::new()));
        headers.insert("x-first-death-queue", "orders");
        headers.insert("CC", HeaderValue::List(vec!["elsewhere".into()]));
        headers.insert("shard", 3_i32);
        let received = came(full(), &Headers::new()).with_headers(headers.clone()).with_attempt(5);
        let sent = outgoing(&received, 0).expect("no limit");
        assert_eq!(table_of(&sent.properties).len(), 1);
        assert_eq!((sent.properties.expiration(), sent.properties.user_id()), (&None, &None));
        assert_eq!(sent.properties.priority(), &Some(5));
        assert_eq!(again(sent).attempt(), 1);
        // A user's own message goes where the user says.
        let properties = Properties::default().with_user_id("me").with_expiration(Duration::from_secs(1));
        let own = Message::new("").with_headers(headers).with_metadata(properties.with_persistent(false));
        let sent = outgoing(&own, 0).expect("no limit");
        let table = table_of(&sent.properties);
        let names: Vec<&str> = table.keys().map(|name| name.as_str()).collect();
        assert_eq!(names, ["CC", "shard"]);
        assert_eq!(sent.properties.user_id(), &Some(short("me")));
        assert_eq!(sent.properties.expiration(), &Some(short("1000")));
        assert_eq!(sent.properties.delivery_mode(), &Some(1));
    }

    #[test]
    fn a_publisher_is_told_what_does_not_fit() {
        let message = |len: usize| Message::new("").with_id("m").with_header("large", "x".repeat(len));
        let fitting = (0..4_096).rev().find(|len| outgoing(&message(*len), 4_096).is_ok()).expect("some fit");
        let sent = outgoing(&message(fitting), 4_096).expect("it fits");
        assert_eq!(frame_len(&sent.properties), 4_096);
        let error = outgoing(&message(fitting + 1), 4_096).expect_err("one byte too many");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(
            error.to_string().contains("headers: 4097 bytes") && error.to_string().contains("4096"),
            "{error}"
        );
        assert!(outgoing(&message(1 << 20), 0).is_ok());
    }

    #[test]
    fn a_publisher_is_told_which_header_cannot_be_sent() {
        let long =
            outgoing(&Message::new("").with_header("k".repeat(300), 1_i32), 0).expect_err("a long name");
        assert!(long.to_string().contains("300 bytes"), "{long}");
        let deep = outgoing(&Message::new("").with_header("tree", nested(65)), 0).expect_err("too deep");
        assert!(deep.to_string().contains("header `tree`") && deep.kind() == ErrorKind::Invalid, "{deep}");
    }

    fn deaths(count: usize) -> HeaderValue {
        let entry = |index: usize| -> HeaderValue {
            let queue = format!("queue-{index}");
            let mut entry: Headers =
                [("queue", queue.as_str()), ("reason", "rejected"), ("exchange", "")].into_iter().collect();
            entry.insert("count", 1_i64);
            entry.insert("routing-keys", HeaderValue::List(vec![queue.as_str().into()]));
            entry.insert("time", HeaderValue::Timestamp(1));
            entry.into()
        };
        HeaderValue::List((0..count).map(entry).collect())
    }

    #[test]
    fn a_copy_gives_up_the_deaths_first_and_then_the_end_of_a_detail() {
        let message =
            came(full(), &Headers::new()).with_header("x-death", deaths(400)).with_header("shard", 3_i32);
        let copy = again(retry_copy(&message, "orders", 2, 4_096).expect("it fits without"));
        assert_eq!(copy.headers().names().collect::<Vec<_>>(), ["shard"]);
        let copy = again(retry_copy(&message, "orders", 2, 0).expect("no limit"));
        assert!(copy.headers().get("x-death").is_some());

        let message = came(full(), &[("text", "x".repeat(3_000))].into_iter().collect());
        let copy = dead_letter_copy(&message, &letter(&message), 4_096).expect("it fits with less");
        assert_eq!(frame_len(&copy.properties), 4_096);
        let copy = again(copy);
        let detail = copy.headers().get("windlass-cause-detail").and_then(HeaderValue::as_str).map(str::len);
        assert!(detail.is_some_and(|len| (64..1_024).contains(&len)), "{detail:?}");
        assert!(copy.headers().get("text").is_some());
        assert_eq!(copy.headers().get("windlass-headers-dropped"), None);
    }

    #[test]
    fn a_message_that_no_longer_fits_is_a_dead_letter_without_its_largest_headers() {
        let headers: Headers =
            [("a", "x".repeat(20_000)), ("b", "x".repeat(3_000)), ("c", "small".to_owned())]
                .into_iter()
                .collect();
        let message = came(full(), &headers);
        let Err(NoCopy::TooLarge(too_large)) = retry_copy(&message, "orders", 2, 4_096) else {
            panic!("a copy that does not fit");
        };
        assert_eq!(too_large.cause().code(), "headers_too_large");
        assert!(too_large.len > 23_000 && too_large.frame_max == 4_096);
        let letter = DeadLetter::new(too_large.cause(), &message, "orders", AT);
        let copy = again(dead_letter_copy(&message, &letter, 4_096).expect("it always goes somewhere"));
        assert_eq!(copy.headers().get("a"), None);
        assert!(copy.headers().get("b").is_some() && copy.headers().get("c").is_some());
        assert_eq!(copy.headers().get("windlass-headers-dropped"), Some(&1_u32.into()));
        assert_eq!(DeadLetter::of(&copy).map(|letter| letter.cause), Some(too_large.cause()));
        // Given up again with room for all: nothing of the first time is left.
        let copy = again(dead_letter_copy(&copy, &letter, 0).expect("no limit"));
        assert_eq!(copy.headers().get("windlass-headers-dropped"), None);
    }
}
