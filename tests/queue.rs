//! Queues that know their payloads: names, sending, consumers, codecs.

#![cfg(feature = "json")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use windlass::clock::ControlledClock;
use windlass::codec::{Codec, CodecError, ContentType, Encoded, Json, Raw, Received, StrictJson};
use windlass::error::Chain;
use windlass::memory::{MemoryBroker, MemoryQueue};
use windlass::queue::{LONGEST_NAME, check_name};
use windlass::{
    Context, Error, ErrorKind, HandlerError, Message, PublisherExt, Queue, QueueConsumer, QueueFamily,
};

use support::{Log, SECOND, prompt};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Order {
    id: u64,
    items: Vec<Item>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Item {
    name: String,
}

const WRITER: Queue<Order> = Queue::new("writer");
const TRANSPORT: QueueFamily<Order> = QueueFamily::new("websockets-transport");
const BLOBS: Queue<Bytes, Raw> = Queue::with_codec("blobs", Raw);
static SHARED: Queue<Order> = Queue::new("shared");

fn order() -> Order {
    Order { id: 7, items: vec![Item { name: "lamp".to_owned() }] }
}

fn broker() -> (ControlledClock, MemoryBroker) {
    let clock = ControlledClock::new();
    (clock.clone(), MemoryBroker::new(clock))
}

/// Handles all that is in the queue: the payloads, and the details of the dead letters.
async fn handle_all<T, C>(
    clock: &ControlledClock,
    queue: &MemoryQueue,
    typed: &Queue<T, C>,
) -> (Vec<T>, Vec<String>)
where
    T: Clone + Send + 'static,
    C: Codec<T> + Clone,
{
    let seen = Log::new();
    let handler = {
        let seen = seen.clone();
        move |payload: T, _: Context| {
            seen.add(payload);
            async { Ok::<_, HandlerError>(()) }
        }
    };
    let pending = queue.counts().pending as u64;
    let handle = QueueConsumer::of(typed, queue.source(), handler).clock(clock.clone()).start().unwrap();
    clock.advance(60 * SECOND).await;
    let stats = prompt(handle.stop()).await.stats;
    assert_eq!((stats.received, stats.panics), (pending, 0), "each came once");
    assert_eq!(stats.acked + stats.invalid, pending);
    let letters = queue.dead_lettered().into_iter().map(|(_, letter)| {
        assert_eq!(letter.cause.code(), "validation:input");
        letter.cause.detail().unwrap().to_owned()
    });
    (seen.all(), letters.collect())
}

#[tokio::test]
async fn what_is_sent_to_a_queue_is_handled_from_it_as_the_same_payload() {
    let (clock, broker) = broker();
    let queue = broker.queue(WRITER.name());
    broker.publisher().send(&WRITER, &order()).await.unwrap();
    let sent = queue.pending().remove(0);
    assert_eq!((sent.content_type(), sent.content_encoding()), (Some("application/json"), None));
    assert_eq!(sent.body().as_ref(), br#"{"id":7,"items":[{"name":"lamp"}]}"#);
    assert_eq!(WRITER.decode(&sent).unwrap(), order());
    assert_eq!(handle_all(&clock, &queue, &WRITER).await, (vec![order()], vec![]));
}

#[tokio::test]
async fn a_static_queue_and_a_publisher_behind_an_arc_work_as_well() {
    let (_, broker) = broker();
    let queue = broker.queue(SHARED.name());
    Arc::new(broker.publisher()).send(&SHARED, &order()).await.unwrap();
    assert_eq!(queue.counts().pending, 1);
}

#[tokio::test]
async fn the_rest_of_the_message_is_the_callers() {
    let (_, broker) = broker();
    let queue = broker.queue(WRITER.name());
    let edit =
        |message: Message| message.with_id("m-1").with_header("shard", 3_i32).with_correlation_id("c-1");
    broker.publisher().send_with(&WRITER, &order(), edit).await.unwrap();
    let sent = queue.pending().remove(0);
    assert_eq!((sent.id(), sent.correlation_id()), ("m-1", "c-1"));
    assert_eq!(sent.headers().get("shard").and_then(|shard| shard.as_i64()), Some(3));
    assert_eq!(WRITER.decode(&sent).unwrap(), order());
}

// BC-48: publish with an unknown encoding.
#[tokio::test]
async fn what_is_the_codecs_cannot_be_set_by_hand() {
    let (_, broker) = broker();
    let queue = broker.queue(WRITER.name());
    type Edit = fn(Message) -> Message;
    let edits: [(&str, Edit); 3] = [
        ("body", |message| message.with_body("{}")),
        ("content_type", |message| message.with_content_type("text/plain")),
        ("content_encoding", |message| message.with_content_encoding("gzip")),
    ];
    for (field, edit) in edits {
        let error = broker.publisher().send_with(&WRITER, &order(), edit).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(&format!("`{field}` is set by hand")), "{error}");
    }
    assert_eq!(queue.counts().pending, 0);
}

#[test]
fn a_family_has_a_queue_for_each_slot() {
    assert_eq!(TRANSPORT.slot(1).name(), "websockets-transport_1");
    assert_eq!(TRANSPORT.slot(u32::MAX).name(), "websockets-transport_4294967295");
    assert_eq!(TRANSPORT.pattern(), "websockets-transport");
    let small = QueueFamily::<Order>::new("small").max_body_bytes(10).slot(3);
    assert!(small.message(&order()).is_err(), "a slot has the options of its family");
}

fn refusal(result: Result<(), Error>) -> String {
    let error = result.expect_err("the name is none");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    error.to_string()
}

#[tokio::test]
async fn names_that_a_broker_cannot_take_are_refused_before_anything_is_sent() {
    // The publisher would say `Unroutable`: it is not asked.
    let (_, broker) = broker();
    let publisher = broker.publisher();
    let send = async |queue: &Queue<Order>| refusal(publisher.send(queue, &order()).await);
    let long = |bytes| WRITER.named("ä".repeat(bytes / 2) + &"x".repeat(bytes % 2));
    assert!(send(&long(256)).await.contains("`queue` is 256 bytes long: a broker takes at most 255"));
    let derived = send(&long(LONGEST_NAME + 1)).await;
    assert!(
        derived.contains("`queue` is 238 bytes long") && derived.contains("up to 242 and 256"),
        "{derived}"
    );
    assert!(send(&WRITER.named("")).await.contains("`queue` is empty (0 bytes)"));
    assert!(send(&QueueFamily::new("").slot(1)).await.contains("`queue` is empty (0 bytes)"));
    let family: &'static str = "f".repeat(LONGEST_NAME - 1).leak();
    assert!(send(&QueueFamily::new(family).slot(1)).await.contains("`queue` is 238 bytes long"));
    let error = publisher.send(&long(LONGEST_NAME), &order()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unroutable, "a name that fits goes to the broker");
    assert!(long(LONGEST_NAME).check().is_ok() && long(LONGEST_NAME + 1).check().is_err());
    assert!(
        check_name("declare", "exchange", &"x".repeat(300)).unwrap_err().to_string().contains("`exchange`")
    );
}

#[tokio::test]
async fn a_consumer_does_not_start_on_a_source_of_another_queue_or_under_no_name() {
    let (_, broker) = broker();
    let start = |queue: &Queue<Order>, source: &str| {
        let handler = async |_: Order, _: Context| Ok::<_, HandlerError>(());
        QueueConsumer::of(queue, broker.queue(source).source(), handler).start()
    };
    let text = refusal(start(&WRITER, "readers").map(drop));
    assert!(text.contains("source") && text.contains("`readers`") && text.contains("`writer`"), "{text}");
    assert!(refusal(start(&WRITER.named(""), "").map(drop)).contains("`queue` is empty"));
    let long = "x".repeat(300);
    assert!(refusal(start(&WRITER.named(long.clone()), &long).map(drop)).contains("300 bytes"));
    let handle = start(&WRITER, "writer").unwrap();
    assert!(prompt(handle.stop()).await.is_clean());
}

#[tokio::test]
async fn bad_json_is_a_dead_letter_that_names_the_field() {
    let deep = "[".repeat(200_000);
    let cases: Vec<(Vec<u8>, &[&str])> = vec![
        (b"".to_vec(), &["the body is empty"]),
        (
            br#"{"id": 18446744073709551616, "items": []}"#.to_vec(),
            &["at id", "1.8446744073709552e+19`, expected u64"],
        ),
        (br#"{"id": -1, "items": []}"#.to_vec(), &["at id", "-1"]),
        (br#"{"id": 1, "id": 2, "items": []}"#.to_vec(), &["duplicate field `id`"]),
        (
            br#"{"id": 1, "items": [{"name": "a", "name": "b"}]}"#.to_vec(),
            &["at items[0]", "duplicate field `name`"],
        ),
        (b"{\"id\": 1, \"items\": [{\"name\": \"\xff\"}]}".to_vec(), &["at items[0].name", "unicode"]),
        (format!(r#"{{"id": 1, "items": {deep}"#).into_bytes(), &["at items[0]"]),
        (format!(r#"{{"id": 1, "items": [], "more": {deep}"#).into_bytes(), &["at more", "EOF"]),
        (br#"{"id": 1, "items": []"#.to_vec(), &["EOF"]),
        (br#"{"id": 1, "items": []} {}"#.to_vec(), &["trailing characters"]),
        (b"\x00\x01\x02".to_vec(), &["at the top", "expected value"]),
    ];
    for (body, words) in cases {
        let (clock, broker) = broker();
        let queue = broker.queue(WRITER.name());
        queue.publish(Message::new(body));
        let (seen, letters) = handle_all(&clock, &queue, &WRITER).await;
        assert_eq!((seen.len(), letters.len()), (0, 1), "{words:?}");
        assert!(words.iter().all(|word| letters[0].contains(word)), "{words:?}: {letters:?}");
    }
    const ANY: Queue<serde_json::Value> = Queue::new("any");
    let nested = |depth: usize| Message::new("[".repeat(depth) + &"]".repeat(depth));
    let error = ANY.decode(&nested(200_000)).unwrap_err();
    assert!(Chain(&error).to_string().contains("recursion limit exceeded"), "{}", Chain(&error));
    assert!(ANY.decode(&nested(127)).is_ok());
}

#[tokio::test]
async fn strict_json_refuses_what_json_reads_one_way_or_the_other() {
    const ANY: Queue<serde_json::Value, StrictJson> = Queue::with_codec("any", StrictJson);
    let bad: [(&str, &[&str]); 7] = [
        (r#"{"a": 1, "a": 2}"#, &["the name `a` stands twice"]),
        (r#"{"a": {"b": [{"c": 1, "d": 2, "c": 1}]}}"#, &["at a.b[0]", "the name `c` stands twice"]),
        (r#"{"\u0061": 1, "a": 2}"#, &["the name `a` stands twice"]),
        (r#"[1, 18446744073709551616]"#, &["the whole number 18446744073709551616 at byte 4 does not fit"]),
        (r#"{"\\": "\"", "n": -9223372036854775809}"#, &["-9223372036854775809 at byte 18"]),
        (r#"{"a": "#, &["EOF"]),
        ("", &["the body is empty"]),
    ];
    for (body, words) in bad {
        let (clock, broker) = broker();
        let queue = broker.queue("any");
        queue.publish(Message::new(body));
        let (seen, letters) = handle_all(&clock, &queue, &ANY).await;
        assert!(seen.is_empty(), "{body}");
        assert!(words.iter().all(|word| letters[0].contains(word)), "{words:?}: {letters:?}");
    }
    for good in [
        r#"[18446744073709551615, -9223372036854775808, 1e300, -0, 0.5, 123456789012345678901234567890.0]"#,
        r#"{"a": {"a": "18446744073709551616"}, "b": "\"99999999999999999999"}"#,
        r#"[{"a": 1}, {"a": 1}]"#,
    ] {
        assert!(ANY.decode(&Message::new(good)).is_ok(), "{good}");
    }
    assert_eq!(ANY.message(&serde_json::json!({"a": 1})).unwrap().body().as_ref(), br#"{"a":1}"#);
}

#[tokio::test]
async fn a_payload_that_json_cannot_say_is_not_sent() {
    const MAPS: Queue<BTreeMap<String, f64>> = Queue::new("maps");
    const PAIRS: Queue<BTreeMap<(u8, u8), u8>> = Queue::new("maps");
    let (_, broker) = broker();
    let queue = broker.queue("maps");
    let error = broker.publisher().send(&PAIRS, &BTreeMap::from([((1, 2), 3)])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(Chain(&error).to_string().contains("key must be a string"), "{}", Chain(&error));
    broker.publisher().send(&MAPS, &BTreeMap::from([("a".to_owned(), 1.5)])).await.unwrap();
    assert_eq!(queue.counts().pending, 1);
}

// BC-48: labels that a queue without lz4 gets.
#[tokio::test]
async fn a_packed_body_is_refused_by_its_label_and_one_that_is_not_packed_is_handled() {
    let body = serde_json::to_vec(&order()).unwrap();
    for label in ["", " ", "identity", "Identity", "utf-8", "UTF-8", "us-ascii", "binary", "8bit"] {
        let (clock, broker) = broker();
        let queue = broker.queue(WRITER.name());
        queue.publish(Message::new(body.clone()).with_content_encoding(label));
        assert_eq!(handle_all(&clock, &queue, &WRITER).await, (vec![order()], vec![]), "{label:?}");
    }
    for label in ["gzip", "GZIP", "lz4,base64", "latin-1", "rot13\u{1b}[31m", "identity, gzip"] {
        let (clock, broker) = broker();
        let queue = broker.queue(WRITER.name());
        queue.publish(Message::new(body.clone()).with_content_encoding(label));
        let (seen, letters) = handle_all(&clock, &queue, &WRITER).await;
        assert!(seen.is_empty());
        let named = format!("the content encoding is `{}`", label.escape_debug());
        assert!(letters[0].contains(&named), "{letters:?}");
    }
    let long = CodecError::Encoding { found: String::new(), expected: "" }.to_string().len() + 64 + 60;
    let message = Message::new("{}").with_content_encoding("z".repeat(100_000));
    assert!(WRITER.decode(&message).unwrap_err().to_string().len() < long, "the label is not written out");
}

#[test]
fn the_plain_function_names_the_label_of_what_it_could_not_read() {
    let packed = Message::new(vec![3, 0, 0, 0]).with_content_encoding("lz4");
    let error = windlass::codec::json::<Order>(&packed).unwrap_err();
    assert_eq!(error.to_string(), "the body is packed as `lz4`, expected JSON");
}

#[tokio::test]
async fn the_content_type_is_checked_where_it_is_asked_for() {
    const LOOSE: Queue<u32, ContentType<Json>> =
        Queue::with_codec("numbers", ContentType::new("application/vnd.number+json", Json));
    const STRICT: Queue<u32, ContentType<Json>> =
        Queue::with_codec("numbers", ContentType::new("application/vnd.number+json", Json).checked());
    let (clock, broker) = broker();
    let queue = broker.queue("numbers");
    broker.publisher().send(&STRICT, &7).await.unwrap();
    assert_eq!(queue.pending()[0].content_type(), Some("application/vnd.number+json"));
    queue.publish(Message::new("7").with_content_type("Application/Vnd.Number+JSON; charset=utf-8"));
    assert_eq!(handle_all(&clock, &queue, &STRICT).await, (vec![7, 7], vec![]));
    queue.publish(Message::new("7").with_content_type("application/json"));
    queue.publish(Message::new("7"));
    let (seen, letters) = handle_all(&clock, &queue, &STRICT).await;
    assert!(seen.is_empty());
    assert!(
        letters[0].contains("the content type is `application/json`, expected `application/vnd.number+json`")
    );
    assert!(letters[1].contains("the content type is missing"), "{letters:?}");
    for message in [Message::new("7"), Message::new("7").with_content_type("text/plain")] {
        assert_eq!(LOOSE.decode(&message).unwrap(), 7);
    }
}

/// A codec of the user's own: a number in hexadecimal, refused in a message without a tenant.
#[derive(Debug, Clone)]
struct Hex;

impl Codec<u32> for Hex {
    fn encode(&self, payload: &u32) -> Result<Encoded, CodecError> {
        Ok(Encoded::new(format!("{payload:x}")).with_content_type("text/x-hex"))
    }

    fn decode(&self, received: Received<'_>) -> Result<u32, CodecError> {
        received.message().headers().get("tenant").ok_or_else(|| CodecError::payload("no tenant"))?;
        let text = std::str::from_utf8(received.body()).map_err(CodecError::payload)?;
        u32::from_str_radix(text, 16).map_err(CodecError::payload)
    }
}

#[tokio::test]
async fn two_queues_of_one_program_have_codecs_of_their_own() {
    const NUMBERS: Queue<u32, Hex> = Queue::with_codec("numbers", Hex);
    let (clock, broker) = broker();
    let (numbers, blobs) = (broker.queue(NUMBERS.name()), broker.queue(BLOBS.name()));
    let publisher = broker.publisher();
    publisher.send_with(&NUMBERS, &255, |message| message.with_header("tenant", "a")).await.unwrap();
    publisher.send(&NUMBERS, &1).await.unwrap();
    publisher.send(&BLOBS, &Bytes::from_static(b"\xff\0")).await.unwrap();
    assert_eq!(
        (numbers.pending()[0].body().as_ref(), numbers.pending()[0].content_type()),
        (&b"ff"[..], Some("text/x-hex"))
    );
    assert_eq!(blobs.pending()[0].content_type(), Some("application/octet-stream"));
    let expected = (vec![255], vec!["no tenant".to_owned()]);
    assert_eq!(handle_all(&clock, &numbers, &NUMBERS).await, expected);
    assert_eq!(handle_all(&clock, &blobs, &BLOBS).await, (vec![Bytes::from_static(b"\xff\0")], vec![]));
}

#[test]
fn a_codec_behind_an_arc_is_one_too() {
    let shared: Queue<u32, Arc<dyn Codec<u32>>> = Queue::with_codec("numbers", Arc::new(Hex));
    assert_eq!(shared.message(&16).unwrap().body().as_ref(), b"10");
    assert!(shared.clone().decode(&Message::new("10")).is_err());
}

#[tokio::test]
async fn the_plain_path_copies_no_body() {
    let (clock, broker) = broker();
    let queue = broker.queue(BLOBS.name());
    let sent = Bytes::from(vec![b'x'; 4096]);
    broker.publisher().send(&BLOBS, &sent).await.unwrap();
    let (seen, _) = handle_all(&clock, &queue, &BLOBS).await;
    assert_eq!(seen[0].as_ptr(), sent.as_ptr());
}

#[tokio::test]
async fn bodies_over_the_limit_are_not_sent_and_are_dead_lettered() {
    const SMALL: Queue<Bytes, Raw> = Queue::with_codec("blobs", Raw).max_body_bytes(10);
    let (clock, broker) = broker();
    let queue = broker.queue("blobs");
    let error = broker.publisher().send(&SMALL, &Bytes::from_static(b"elevenbytes")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(Chain(&error).to_string().contains("11 bytes long, at most 10"), "{}", Chain(&error));
    broker.publisher().send(&SMALL, &Bytes::from_static(b"tenbytes!!")).await.unwrap();
    queue.publish(Message::new("elevenbytes"));
    let (seen, letters) = handle_all(&clock, &queue, &SMALL).await;
    assert_eq!((seen.len(), letters.len()), (1, 1));
    assert!(letters[0].contains("the body is 11 bytes long, at most 10 are allowed (`max_body_bytes`)"));
    let most = windlass::queue::DEFAULT_MAX_BODY_BYTES;
    assert!(BLOBS.message(&Bytes::from(vec![0; most])).is_ok());
    assert!(BLOBS.message(&Bytes::from(vec![0; most + 1])).is_err());
}
