//! From bytes to payloads: what cannot be decoded is dead-lettered once, and never reaches the handler.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use windlass::codec;
use windlass::consumer::{Outcome, QueueConsumer};
use windlass::handler::{Context, Direction, HandlerError};
use windlass::message::Message;

use support::{Events, Log, SECOND, ids, prompt, queue};

#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Order {
    id: u8,
    items: Vec<Item>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
struct Item {
    price: i32,
}

const GOOD: &str = r#"{"id": 7, "items": [{"price": 3}]}"#;

/// The detail of the dead letter that `body` becomes when a `T` is wanted, or `None` when it was handled.
async fn refusal<T: DeserializeOwned + Send + 'static>(body: impl Into<Bytes>) -> Option<String> {
    let (clock, queue) = queue();
    let handled = Log::new();
    let handler = {
        let handled = handled.clone();
        move |_: T, _: Context| {
            handled.add(());
            async { Ok::<_, HandlerError>(()) }
        }
    };
    let events = Events::new();
    let consumer = QueueConsumer::new(queue.source(), handler).on_event(events.observer());
    queue.publish(Message::new(body));
    let handle = consumer.clock(clock.clone()).start().unwrap();
    clock.advance(60 * SECOND).await;
    assert_eq!(queue.counts().delivered, 1, "once, whatever it is");
    let stats = prompt(handle.stop()).await.stats;
    let Some((_, letter)) = queue.dead_lettered().pop() else {
        assert_eq!((handled.len(), stats.acked), (1, 1));
        return None;
    };
    assert_eq!((handled.len(), stats.invalid), (0, 1));
    assert_eq!(letter.cause.code(), "validation:input");
    let Outcome::Failed(HandlerError::Validation { direction: Direction::Input, .. }) =
        &events.all()[0].outcome
    else {
        panic!("{events:?}")
    };
    letter.cause.detail().map(str::to_owned)
}

#[tokio::test]
async fn a_good_body_is_handled() {
    assert_eq!(refusal::<Order>(GOOD).await, None);
    assert_eq!(refusal::<Order>(format!("\n\t {GOOD} \r\n")).await, None);
}

#[tokio::test]
async fn the_detail_names_the_field() {
    let wrong = r#"{"id": 7, "items": [{"price": 3}, {"price": "three"}]}"#;
    let detail = refusal::<Order>(wrong).await.unwrap();
    assert!(detail.contains("items[1].price") && detail.contains("three"), "{detail}");
    let detail = refusal::<Order>(r#"{"id": 7, "items": [{}]}"#).await.unwrap();
    assert!(detail.contains("items[0]") && detail.contains("price"), "{detail}");
    let detail = refusal::<Order>(r#"{"items": []}"#).await.unwrap();
    assert!(detail.contains("id"), "{detail}");
}

#[tokio::test]
async fn a_number_out_of_range_is_refused_by_its_field() {
    for number in ["256", "-1", "1.5", "1e400", "99999999999999999999"] {
        let detail = refusal::<Order>(format!(r#"{{"id": {number}, "items": []}}"#)).await.unwrap();
        assert!(detail.contains("id") || number == "1e400", "{number}: {detail}");
    }
}

#[tokio::test]
async fn an_empty_body_says_so() {
    assert!(refusal::<Order>("").await.unwrap().contains("empty"));
    assert!(refusal::<Option<u8>>("").await.unwrap().contains("empty"));
    assert!(refusal::<()>("").await.unwrap().contains("empty"));
}

#[tokio::test]
async fn blanks_alone_are_not_a_payload() {
    assert!(refusal::<Option<Order>>(" \n").await.is_some());
}

#[tokio::test]
async fn what_stands_behind_the_value_is_refused() {
    for garbage in ["x", GOOD, "\0", ","] {
        let detail = refusal::<Order>(format!("{GOOD}{garbage}")).await.unwrap();
        assert!(detail.contains("trailing"), "{detail}");
    }
}

#[tokio::test]
async fn a_body_cut_in_the_middle_is_refused_at_every_byte() {
    for end in 0..GOOD.len() {
        assert!(refusal::<Order>(&GOOD[..end]).await.is_some(), "{}", &GOOD[..end]);
    }
}

#[tokio::test]
async fn deep_nesting_is_refused_and_aborts_nothing() {
    let deep = "[".repeat(200_000);
    assert!(refusal::<serde_json::Value>(deep.clone()).await.unwrap().contains("recursion"));
    let object = r#"{"a":"#.repeat(100_000);
    assert!(refusal::<serde_json::Value>(object).await.is_some());
    let ignored = format!(r#"{{"id": 1, "items": [], "extra": {deep}}}"#);
    assert!(refusal::<Order>(ignored).await.is_some());
}

#[tokio::test]
async fn bytes_that_are_not_utf_8_are_refused() {
    assert!(refusal::<String>(vec![b'"', 0xff, 0xfe, b'"']).await.is_some());
    assert!(refusal::<Order>(vec![0xff; 64]).await.is_some());
    assert!(refusal::<String>(&b"\"\\ud800\""[..]).await.is_some(), "half a surrogate pair");
}

#[tokio::test]
async fn a_byte_order_mark_is_refused_and_not_skipped() {
    assert!(refusal::<Order>(format!("\u{feff}{GOOD}")).await.is_some());
}

#[tokio::test]
async fn closures_and_functions_decode_too() {
    let (clock, queue) = queue();
    let shard = 3_usize;
    let decoder = move |message: &Message| match std::str::from_utf8(message.body()) {
        Ok(text) => Ok((shard, text.to_owned())),
        Err(error) => Err(error),
    };
    let seen = Log::new();
    let handler = {
        let seen = seen.clone();
        move |payload: (usize, String), _: Context| {
            seen.add(payload);
            async { Ok::<_, HandlerError>(()) }
        }
    };
    queue.publish(Message::new("text").with_id("good"));
    queue.publish(Message::new(vec![0xff]).with_id("bad"));
    let consumer = QueueConsumer::with_decoder(queue.source(), decoder, handler).clock(clock);
    let handle = consumer.start().unwrap();
    queue.until(|queue| queue.counts().acked + queue.counts().nacked == 2).await.unwrap();
    assert_eq!(seen.all(), [(3, "text".to_owned())]);
    let (message, letter) = queue.dead_lettered().remove(0);
    assert_eq!((message.id(), letter.cause.code()), ("bad", "validation:input"));
    assert!(letter.cause.detail().unwrap().contains("utf-8"), "{letter:?}");
    drop(handle);
}

#[tokio::test]
async fn a_decoder_that_says_terminal_is_still_a_validation_of_the_input() {
    let (clock, queue) = queue();
    let decoder = |_: &Message| Err::<(), _>(HandlerError::terminal("not ours"));
    let handler = async |(): (), _: Context| Ok::<_, HandlerError>(());
    queue.publish(Message::new("x"));
    let consumer = QueueConsumer::with_decoder(queue.source(), decoder, handler).clock(clock);
    let handle = consumer.start().unwrap();
    queue.until(|queue| queue.counts().dead_lettered == 1).await.unwrap();
    assert_eq!(queue.dead_lettered()[0].1.cause.code(), "validation:input");
    drop(handle);
}

/// BC-17 (hapifhir/hapi-fhir#4533): broken JSON, an empty body, a wrong content type, a missing header, an unknown
/// encoding, then a good one.
#[tokio::test]
async fn bad_messages_take_the_poison_path_once_and_the_good_one_behind_them_is_handled() {
    let (clock, queue) = queue();
    let decoder = |message: &Message| {
        if message.content_type().is_some_and(|kind| kind != "application/json") {
            return Err("content type is not JSON".to_owned());
        }
        if let Some(encoding) = message.content_encoding() {
            return Err(format!("unknown content encoding {encoding}"));
        }
        if message.headers().get("tenant").is_none() {
            return Err("header tenant is missing".to_owned());
        }
        codec::json::<Order>(message).map_err(|error| error.to_string())
    };
    let base = |id: &str, body: &str| Message::new(body.to_owned()).with_id(id).with_header("tenant", "a");
    queue.publish(base("broken", "{"));
    queue.publish(base("empty", ""));
    queue.publish(base("type", GOOD).with_content_type("text/xml"));
    queue.publish(Message::new(GOOD).with_id("header"));
    queue.publish(base("encoding", GOOD).with_content_encoding("snappy"));
    queue.publish(base("good", GOOD));
    let handler = async |_: Order, _: Context| Ok::<_, HandlerError>(());
    let consumer = QueueConsumer::with_decoder(queue.source(), decoder, handler).clock(clock.clone());
    let handle = consumer.start().unwrap();
    clock.advance(60 * SECOND).await;
    assert_eq!(ids(&queue.acked()), ["good"]);
    let dead = queue.dead_lettered();
    let dead: Vec<_> = dead.iter().map(|(message, letter)| (message.id(), letter.cause.code())).collect();
    let expected = ["broken", "empty", "type", "header", "encoding"].map(|id| (id, "validation:input"));
    assert_eq!(dead, expected);
    assert_eq!(queue.counts().delivered, 6);
    drop(handle);
}

/// BC-17 (hapifhir/hapi-fhir#4533): the answer to a bad message fails; it comes again, and the loop goes on.
#[tokio::test]
async fn a_bad_message_whose_dead_letter_fails_comes_again_and_the_loop_goes_on() {
    let (clock, queue) = queue();
    let error = windlass::Error::new(windlass::ErrorKind::Disconnected, "nack");
    queue.fail_next(windlass::memory::FaultPoint::Nack, error);
    queue.publish(Message::new("{").with_id("bad"));
    queue.publish(Message::new(GOOD).with_id("good"));
    let handler = async |_: Order, _: Context| Ok::<_, HandlerError>(());
    let handle = QueueConsumer::new(queue.source(), handler).clock(clock.clone()).start().unwrap();
    clock.advance(SECOND).await;
    assert_eq!(ids(&queue.acked()), ["good"]);
    assert_eq!((queue.counts().dead_lettered, queue.counts().delivered), (1, 3));
    assert_eq!(prompt(handle.stop()).await.stats.settle_errors, 1);
}
