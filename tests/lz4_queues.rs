//! lz4 on the wire: when bodies are packed and unpacked, what is refused, and what becomes of them in retries.

#![cfg(all(feature = "lz4", feature = "json"))]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use bytes::Bytes;
use windlass::clock::ControlledClock;
use windlass::codec::lz4::{Lz4Format, pack_block, pack_frame};
use windlass::codec::{Codec, CodecError, Encoded, Json, Lz4, Raw, Received};
use windlass::consumer::RetryPolicy;
use windlass::error::Chain;
use windlass::memory::{MemoryBroker, MemoryQueue};
use windlass::{Context, ErrorKind, HandlerError, Message, PublisherExt, Queue, QueueConsumer};

use support::{Log, SECOND, prompt};

const PLAIN: Queue<String> = Queue::new("work");
const BY_LABEL: Queue<String, Lz4<Json>> = Queue::with_codec("work", Lz4::new(Json));
const FRAMES: Queue<String, Lz4<Json>> = Queue::with_codec("work", Lz4::new(Json).format(Lz4Format::Frame));
const READS: Queue<String, Lz4<Json>> = Queue::with_codec("work", Lz4::new(Json).compress_above(usize::MAX));
const ALWAYS: Queue<String, Lz4<Json>> = Queue::with_codec("work", Lz4::new(Json).always());
const ALWAYS_FRAMES: Queue<String, Lz4<Json>> =
    Queue::with_codec("work", Lz4::new(Json).format(Lz4Format::Frame).always());
const OFF: Queue<String, Lz4<Json>> = Queue::with_codec("work", Lz4::new(Json).off());

fn long() -> String {
    "the same again, ".repeat(200)
}

fn short() -> String {
    "short".to_owned()
}

fn json(text: &str) -> Vec<u8> {
    serde_json::to_vec(text).unwrap()
}

/// What became of one message: the payload, or the detail of its dead letter.
async fn outcome<C: Codec<String> + Clone>(
    message: Message,
    typed: &Queue<String, C>,
) -> Result<String, String> {
    let clock = ControlledClock::new();
    let queue = MemoryBroker::new(clock.clone()).queue("work");
    let body = message.body().clone();
    queue.publish(message);
    let seen = Log::new();
    let handler = {
        let seen = seen.clone();
        move |payload: String, _: Context| {
            seen.add(payload);
            async { Ok::<_, HandlerError>(()) }
        }
    };
    let handle = QueueConsumer::of(typed, queue.source(), handler).clock(clock.clone()).start().unwrap();
    clock.advance(60 * SECOND).await;
    let stats = prompt(handle.stop()).await.stats;
    assert_eq!((stats.received, stats.panics), (1, 0));
    match queue.dead_lettered().pop() {
        None => Ok(seen.all().remove(0)),
        Some((copy, letter)) => {
            assert_eq!((seen.len(), letter.cause.code()), (0, "validation:input"));
            assert_eq!(copy.body(), &body, "the letter has the body as it came");
            Err(letter.cause.detail().unwrap().to_owned())
        }
    }
}

#[test]
fn what_is_published_says_what_it_is() {
    let said = |message: Message| {
        assert_eq!(message.content_type(), Some("application/json"));
        (message.body().to_vec(), message.content_encoding().map(str::to_owned))
    };
    let (plain, none) = (json(&long()), None);
    let block = (pack_block(&plain).unwrap(), Some("lz4".to_owned()));
    let frame = (pack_frame(&plain).unwrap(), Some("lz4-frame".to_owned()));
    assert_eq!(said(BY_LABEL.message(&long()).unwrap()), block);
    assert_eq!(said(FRAMES.message(&long()).unwrap()), frame);
    assert_eq!(said(ALWAYS.message(&long()).unwrap()), block);
    assert_eq!(said(ALWAYS_FRAMES.message(&long()).unwrap()), frame);
    assert_eq!(said(READS.message(&long()).unwrap()), (plain.clone(), none.clone()));
    assert_eq!(said(OFF.message(&long()).unwrap()), (plain, none.clone()));
    let short_block = (pack_block(&json("short")).unwrap(), Some("lz4".to_owned()));
    assert_eq!(said(BY_LABEL.message(&short()).unwrap()), (json("short"), none));
    assert_eq!(said(ALWAYS.message(&short()).unwrap()), short_block);
}

#[test]
fn only_what_is_above_the_size_and_gets_smaller_is_packed() {
    let packs = |above: usize, text: &str| {
        let queue: Queue<String, _> = Queue::with_codec("work", Lz4::new(Json).compress_above(above));
        queue.message(&text.to_owned()).unwrap().content_encoding().is_some()
    };
    let text = "a".repeat(98);
    assert!(!packs(100, &text) && packs(99, &text), "100 bytes of JSON");
    let default = windlass::codec::lz4::DEFAULT_COMPRESS_ABOVE;
    let at = |bytes: usize| BY_LABEL.message(&"a".repeat(bytes - 2)).unwrap().content_encoding().is_some();
    assert!(!at(default) && at(default + 1));
    assert!(!packs(0, "abcdefghijklmnopqrstuvwxyz"), "it would be larger packed");
}

#[tokio::test]
async fn compressed_and_plain_deployments_talk_to_each_other() {
    // As long as a fleet is switched over: plain ones that unpack, and those that pack.
    for text in [long(), short(), String::new()] {
        for from in [&BY_LABEL, &FRAMES, &READS] {
            for to in [&BY_LABEL, &FRAMES, &READS] {
                // A frame names itself; a block is read by a queue of frames only as `lz4-block`.
                let message = from.message(&text).unwrap();
                let message = if message.content_encoding() == Some("lz4") {
                    message.with_content_encoding("lz4-block")
                } else {
                    message
                };
                assert_eq!(outcome(message, to).await, Ok(text.clone()), "{from:?} to {to:?}");
            }
        }
        assert_eq!(outcome(BY_LABEL.message(&text).unwrap(), &READS).await, Ok(text.clone()));
        // To and from services that have never heard of it.
        assert_eq!(outcome(PLAIN.message(&text).unwrap(), &BY_LABEL).await, Ok(text.clone()));
        assert_eq!(outcome(READS.message(&text).unwrap(), &PLAIN).await, Ok(text.clone()));
        assert_eq!(outcome(OFF.message(&text).unwrap(), &PLAIN).await, Ok(text.clone()));
        assert_eq!(outcome(PLAIN.message(&text).unwrap(), &OFF).await, Ok(text.clone()));
        // Those that always pack: without a label, and what they send to those that go by it.
        let unlabelled = Message::new(pack_block(&json(&text)).unwrap());
        assert_eq!(outcome(unlabelled.clone(), &ALWAYS).await, Ok(text.clone()));
        assert_eq!(outcome(unlabelled.with_content_encoding("utf-8"), &ALWAYS).await, Ok(text.clone()));
        let unlabelled = Message::new(pack_frame(&json(&text)).unwrap());
        assert_eq!(outcome(unlabelled, &ALWAYS_FRAMES).await, Ok(text.clone()));
        assert_eq!(outcome(ALWAYS.message(&text).unwrap(), &BY_LABEL).await, Ok(text.clone()));
        assert_eq!(outcome(ALWAYS.message(&text).unwrap(), &ALWAYS).await, Ok(text.clone()));
    }
}

// BC-48.
#[tokio::test]
async fn labels_are_compared_without_case_and_blanks() {
    let block = Message::new(pack_block(&json("hello")).unwrap());
    for label in ["lz4", "LZ4", "lz4 ", " Lz4\t", "lz4-block"] {
        let message = block.clone().with_content_encoding(label);
        assert_eq!(outcome(message.clone(), &BY_LABEL).await, Ok("hello".to_owned()), "{label:?}");
        assert_eq!(outcome(message, &ALWAYS).await, Ok("hello".to_owned()), "{label:?}");
    }
    let plain = Message::new(json("hello"));
    for label in ["identity", "", "utf-8"] {
        let message = plain.clone().with_content_encoding(label);
        assert_eq!(outcome(message, &BY_LABEL).await, Ok("hello".to_owned()), "{label:?}");
    }
    for label in ["gzip", "lz4,base64", "lz4x", "lz 4"] {
        for message in [&plain, &block] {
            let message = message.clone().with_content_encoding(label);
            for refused in
                [outcome(message.clone(), &BY_LABEL).await, outcome(message.clone(), &ALWAYS).await]
            {
                let text = refused.unwrap_err();
                assert!(
                    text.contains(&format!(
                        "the content encoding is `{label}`, and this queue unpacks `lz4`"
                    )),
                    "{text}"
                );
            }
        }
    }
    for label in ["lz4", "gzip"] {
        let text = outcome(block.clone().with_content_encoding(label), &OFF).await.unwrap_err();
        assert!(text.contains(&format!("`{label}`, and this queue is set to unpack nothing")), "{text}");
        let text = outcome(block.clone().with_content_encoding(label), &PLAIN).await.unwrap_err();
        assert!(text.contains(&format!("`{label}`, and this queue unpacks nothing")), "{text}");
    }
}

// BC-47, BC-48.
#[tokio::test]
async fn a_label_that_does_not_fit_the_bytes_is_a_dead_letter_that_says_so() {
    let block = pack_block(&json(&long())).unwrap();
    let frame = pack_frame(&json(&long())).unwrap();
    let lz4 = |body: &[u8]| Message::new(body.to_vec()).with_content_encoding("lz4");
    let none = |body: &[u8]| Message::new(body.to_vec());
    let cases = [
        (outcome(lz4(b""), &BY_LABEL).await, "the body is empty, expected lz4"),
        (outcome(lz4(&block[..3]), &BY_LABEL).await, "the lz4 block is cut off"),
        (outcome(lz4(&json("plain text")), &BY_LABEL).await, "begins with the text"),
        (outcome(lz4(&frame), &BY_LABEL).await, "is an lz4 frame, and this queue expects an lz4 block"),
        (outcome(lz4(&block), &FRAMES).await, "and this queue expects an lz4 frame"),
        (
            outcome(lz4(&[&frame[..], &frame].concat()), &FRAMES).await,
            "stand behind the end of the lz4 frame",
        ),
        (outcome(lz4(&frame[..40]), &FRAMES).await, "the lz4 frame is cut off"),
        (outcome(lz4(&pack_block(b"{").unwrap()), &BY_LABEL).await, "not the expected JSON"),
        (outcome(lz4(&pack_block(b"").unwrap()), &BY_LABEL).await, "the body is empty, expected JSON"),
        (outcome(lz4(&pack_block(&block).unwrap()), &BY_LABEL).await, "not the expected JSON"),
        (outcome(none(&block), &BY_LABEL).await, "the body is lz4 and does not say so"),
        (outcome(none(&frame), &BY_LABEL).await, "the body is lz4 and does not say so"),
        (outcome(none(b"neither"), &BY_LABEL).await, "not the expected JSON at the top"),
        (outcome(none(&json("plain text")), &ALWAYS).await, "is most likely not packed at all"),
        (outcome(none(b""), &ALWAYS).await, "the body is empty, expected lz4"),
    ];
    for (outcome, words) in cases {
        let text = outcome.unwrap_err();
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[tokio::test]
async fn the_limits_hold_both_ways() {
    const SMALL: Queue<String, Lz4<Json>> =
        Queue::with_codec("work", Lz4::new(Json).max_unpacked_bytes(1000).compress_above(0))
            .max_body_bytes(500);
    let broker = MemoryBroker::new(ControlledClock::new());
    let queue = broker.queue("work");
    let packed =
        |bytes: usize| BY_LABEL.message(&"a".repeat(bytes - 2)).unwrap().with_content_encoding("lz4");
    let packed = |bytes| packed(bytes).with_body(pack_block(&json(&"a".repeat(bytes - 2))).unwrap());
    assert!(outcome(packed(1000), &SMALL).await.is_ok());
    let text = outcome(packed(1001), &SMALL).await.unwrap_err();
    assert!(
        text.contains("unpacks to 1001 bytes, at most 1000 are allowed (`max_unpacked_bytes`)"),
        "{text}"
    );
    let text = outcome(Message::new(vec![b' '; 501]), &SMALL).await.unwrap_err();
    assert!(text.contains("the body is 501 bytes long, at most 500"), "{text}");
    let wide = SMALL.max_body_bytes(5000);
    let text = outcome(Message::new(vec![b' '; 1001]), &wide).await.unwrap_err();
    assert!(text.contains("the unpacked body is 1001 bytes long, at most 1000"), "not packed: {text}");
    let error = broker.publisher().send(&SMALL, &"a".repeat(999)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(Chain(&error).to_string().contains("the unpacked body is 1001 bytes long"), "{}", Chain(&error));
    assert_eq!(queue.counts().pending, 0);
    broker.publisher().send(&SMALL, &"a".repeat(998)).await.unwrap();
}

/// Fails each attempt; what came is kept.
async fn give_up(clock: &ControlledClock, queue: &MemoryQueue) -> Vec<(Bytes, Option<String>, u32)> {
    let came = Log::new();
    let handler = {
        let came = came.clone();
        move |text: String, context: Context| {
            assert_eq!(text, long());
            let message = context.message();
            came.add((
                message.body().clone(),
                message.content_encoding().map(str::to_owned),
                context.attempt(),
            ));
            async { Err::<(), _>("not this time") }
        }
    };
    let policy = RetryPolicy::default();
    let consumer = QueueConsumer::of(&BY_LABEL, queue.source(), handler).retry_policy(policy);
    let handle = consumer.clock(clock.clone()).start().unwrap();
    clock.advance(60 * SECOND).await;
    let stats = prompt(handle.stop()).await.stats;
    assert_eq!((stats.retried, stats.dead_lettered), (3, 1));
    came.all()
}

// BC-48: retry a compressed message three times.
#[tokio::test]
async fn retries_and_dead_letters_carry_the_body_and_the_label_as_they_came() {
    let clock = ControlledClock::new();
    let broker = MemoryBroker::new(clock.clone());
    let queue = broker.queue(BY_LABEL.name());
    broker.publisher().send(&BY_LABEL, &long()).await.unwrap();
    let sent = queue.pending().remove(0);
    let came = give_up(&clock, &queue).await;
    assert_eq!(came.iter().map(|(_, _, attempt)| *attempt).collect::<Vec<_>>(), [1, 2, 3, 4]);
    for (body, label, _) in &came {
        assert_eq!((body, label.as_deref()), (sent.body(), Some("lz4")));
    }
    let (letter, cause) = queue.dead_lettered().remove(0);
    assert_eq!((letter.body(), letter.content_encoding()), (sent.body(), Some("lz4")));
    assert_eq!((letter.content_type(), cause.attempts), (Some("application/json"), 4));
    assert_eq!(BY_LABEL.decode(&letter).unwrap(), long(), "an operator can read it");
}

#[test]
fn nothing_is_packed_twice() {
    const TWICE: Queue<String, Lz4<Lz4<Json>>> =
        Queue::with_codec("work", Lz4::new(Lz4::new(Json).compress_above(0)).compress_above(0));
    let error = TWICE.message(&long()).unwrap_err();
    assert!(Chain(&error).to_string().contains("packed as `lz4` already"), "{}", Chain(&error));
}

/// Says of text that it is UTF-8, as some clients do.
struct Utf8;

impl Codec<String> for Utf8 {
    fn encode(&self, payload: &String) -> Result<Encoded, CodecError> {
        Ok(Encoded::new(payload.clone()).with_content_encoding("utf-8"))
    }

    fn decode(&self, received: Received<'_>) -> Result<String, CodecError> {
        assert_eq!(received.content_encoding(), None, "it is unpacked");
        String::from_utf8(received.body().to_vec()).map_err(CodecError::payload)
    }
}

#[test]
fn a_label_that_packs_nothing_is_not_in_the_way() {
    let queue: Queue<String, _> = Queue::with_codec("work", Lz4::new(Utf8));
    let message = queue.message(&long()).unwrap();
    assert_eq!(message.content_encoding(), Some("lz4"));
    assert_eq!(queue.decode(&message).unwrap(), long());
    assert_eq!(queue.message(&short()).unwrap().content_encoding(), Some("utf-8"));
}

#[test]
fn what_is_not_packed_is_not_copied() {
    let queue: Queue<Bytes, _> = Queue::with_codec("work", Lz4::new(Raw).compress_above(10_000));
    let body = Bytes::from(vec![b'x'; 4096]);
    let message = queue.message(&body).unwrap();
    assert_eq!(message.body().as_ptr(), body.as_ptr());
    assert_eq!(queue.decode(&message).unwrap().as_ptr(), body.as_ptr());
}
