//! Trace contexts and correlation ids: read from headers, carried from message to message, kept by the broker.

#![allow(clippy::unwrap_used)]

mod support;

use std::num::{NonZeroU64, NonZeroU128};

use bytes::Bytes;
use proptest::prelude::{Just, Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest};
use tokio_util::sync::CancellationToken;
use windlass::clock::ControlledClock;
use windlass::memory::MemoryBroker;
use windlass::message::{HeaderValue, Headers, TraceParent};
use windlass::publisher::{Publisher, Traced};
use windlass::{Context, ErrorKind, HandlerError, Message, QueueConsumer, codec};

use support::{Log, SECOND, prompt, queue, stop_on};

const TRACE_PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const OTHER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
const STATE: &str = "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE";

fn read(header: impl Into<HeaderValue>) -> Option<TraceParent> {
    Message::new("").with_header("traceparent", header).trace_parent()
}

fn carried(from: Message, to: Message) -> Message {
    Context::new(from, CancellationToken::new()).carry(to)
}

#[test]
fn a_header_is_read_as_the_recommendation_has_it() {
    let parent = read(TRACE_PARENT).unwrap();
    assert_eq!(parent.trace_id().get(), 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
    assert_eq!(parent.parent_id().get(), 0x00f0_67aa_0ba9_02b7);
    assert!(parent.sampled());
    assert_eq!(parent.to_string(), TRACE_PARENT);
    assert_eq!(read(Bytes::from(TRACE_PARENT)), Some(parent));
    assert!(!read(OTHER).unwrap().sampled());
}

#[test]
fn flags_are_looked_at_by_the_bit_and_only_the_known_one_is_written() {
    let read = |flags: &str| TRACE_PARENT.replace("-01", flags).parse::<TraceParent>().unwrap();
    assert!(read("-09").sampled() && read("-ff").sampled());
    assert!(!read("-02").sampled() && !read("-fe").sampled());
    assert_eq!(read("-ff").to_string(), TRACE_PARENT);
}

#[test]
fn a_higher_version_is_read_as_far_as_version_00_goes() {
    let parent = read(TRACE_PARENT);
    for more in ["", "-", "-what-the-future-brings", "-é"] {
        assert_eq!(read(format!("cc{}{more}", &TRACE_PARENT[2..])), parent, "{more}");
    }
    for more in [".what", "0", " "] {
        assert_eq!(read(format!("cc{}{more}", &TRACE_PARENT[2..])), None, "{more}");
    }
    assert_eq!(read(format!("01{}", &TRACE_PARENT[2..54])), None, "shorter than 55");
}

#[test]
fn what_is_not_a_trace_parent_is_none_and_never_a_panic() {
    let id = &TRACE_PARENT[3..35];
    let texts = [
        String::new(),
        "é".repeat(55),
        "-".repeat(55),
        "0".repeat(55),
        TRACE_PARENT[..54].to_owned(),
        format!("{TRACE_PARENT}-"),
        format!("{TRACE_PARENT} "),
        format!(" {TRACE_PARENT}"),
        format!("ff{}", &TRACE_PARENT[2..]),
        format!("CC{}", &TRACE_PARENT[2..]),
        TRACE_PARENT.to_uppercase(),
        TRACE_PARENT.replace(id, &"0".repeat(32)),
        TRACE_PARENT.replace("00f067aa0ba902b7", &"0".repeat(16)),
        TRACE_PARENT.replace("4736-", "4736."),
        TRACE_PARENT.replace("02b7-01", "02b7-0g"),
        TRACE_PARENT.replace("-01", "--1"),
    ];
    for text in texts {
        assert_eq!(read(text.as_str()), None, "{text}");
        assert_eq!(text.parse::<TraceParent>().unwrap_err().kind(), ErrorKind::Invalid);
    }
    let values = [
        HeaderValue::Null,
        true.into(),
        7_i64.into(),
        1.5_f64.into(),
        HeaderValue::Decimal { scale: 2, value: 7 },
        HeaderValue::Timestamp(u64::MAX),
        HeaderValue::RawText(Bytes::from_static(b"\xff\xfe")),
        Bytes::from_static(b"\xff\xfe").into(),
        vec![HeaderValue::from(TRACE_PARENT)].into(),
        Headers::from_iter([("traceparent", TRACE_PARENT)]).into(),
    ];
    for value in values {
        let message =
            Message::new("").with_header("traceparent", value.clone()).with_header("tracestate", STATE);
        assert_eq!((message.trace_parent(), message.trace_state()), (None, None), "{value:?}");
        let message =
            Message::new("").with_header("traceparent", TRACE_PARENT).with_header("tracestate", value);
        assert!(message.trace_parent().is_some());
        assert!(message.trace_state().is_none_or(|state| !state.is_empty()));
    }
}

#[test]
fn the_state_means_nothing_without_the_parent() {
    let message = Message::new("").with_header("tracestate", STATE);
    assert_eq!(message.trace_state(), None);
    let parent: TraceParent = TRACE_PARENT.parse().unwrap();
    let message = message.with_trace_parent(parent);
    assert_eq!(message.trace_state(), Some(STATE), "set before, and of no other trace");
    assert_eq!(message.clone().with_header("tracestate", " ").trace_state(), None);
    let moved = TraceParent::new(parent.trace_id(), NonZeroU64::MIN, false);
    assert_eq!(message.clone().with_trace_parent(moved).trace_state(), Some(STATE), "the same trace");
    let other = message.with_trace_parent(OTHER.parse().unwrap());
    assert_eq!((other.trace_state(), other.headers().len()), (None, 1), "another trace");
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(trace in 1..=u128::MAX, parent in 1..=u64::MAX, sampled: bool) {
        let parent = TraceParent::new(NonZeroU128::new(trace).unwrap(), NonZeroU64::new(parent).unwrap(), sampled);
        let text = parent.to_string();
        prop_assert_eq!(text.len(), 55);
        prop_assert_eq!(&text, &text.to_lowercase());
        prop_assert_eq!(text.parse::<TraceParent>().unwrap(), parent);
        prop_assert_eq!(Message::new("").with_trace_parent(parent).trace_parent(), Some(parent));
    }

    /// Bytes put into a good header, or anything at all: what is read of it reads the same when it is written.
    #[test]
    fn no_header_makes_it_panic(header in mangled()) {
        let message = Message::new("").with_header("traceparent", Bytes::from(header.clone()));
        if let Some(parent) = message.trace_parent() {
            prop_assert!(header.len() >= 55);
            let written = parent.to_string();
            prop_assert_eq!(&written.as_bytes()[3..53], &header[3..53]);
        }
        prop_assert_eq!(message.trace_state(), None);
        if let Ok(text) = String::from_utf8(header) {
            prop_assert_eq!(text.parse::<TraceParent>().ok(), message.trace_parent());
        }
    }
}

fn mangled() -> impl Strategy<Value = Vec<u8>> {
    let places = proptest::collection::vec((0..60_usize, any::<u8>()), 0..4);
    let good = prop_oneof![
        Just(TRACE_PARENT.to_owned()),
        "[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-.{0,9})?"
    ];
    let edited = (good, places).prop_map(|(header, places)| {
        let mut header = header.into_bytes();
        for (place, byte) in places {
            match header.get_mut(place) {
                Some(old) => *old = byte,
                None => header.push(byte),
            }
        }
        header
    });
    prop_oneof![edited, proptest::collection::vec(any::<u8>(), 0..120)]
}

#[test]
fn what_is_carried_is_the_correlation_id_and_the_context_as_they_came() {
    let future = format!("cc{}-more", &TRACE_PARENT[2..]);
    let from = Message::new("")
        .with_id("m-1")
        .with_header("correlation-id", "c-7")
        .with_header("traceparent", future.as_str())
        .with_header("tracestate", STATE);
    let to = carried(from, Message::new("").with_header("tracestate", "stray=1").with_header("mine", 1_i32));
    assert_eq!((to.correlation_id(), to.correlation_property()), ("c-7", Some("c-7")));
    let expected =
        [("traceparent", future.as_str().into()), ("tracestate", STATE.into()), ("mine", 1_i32.into())];
    assert_eq!(to.headers(), &Headers::from_iter::<[(&str, HeaderValue); 3]>(expected));
}

#[test]
fn a_message_without_a_correlation_id_is_the_first_of_its_line() {
    let to = carried(Message::new("").with_id("m-1"), Message::new("").with_id("m-2"));
    assert_eq!((to.correlation_id(), to.trace_parent()), ("m-1", None));
    assert!(to.headers().is_empty());
    let third = carried(to, Message::new("").with_id("m-3"));
    assert_eq!(third.correlation_id(), "m-1");
    let none = carried(Message::new("").with_id(""), Message::new("").with_id("m-2"));
    assert_eq!(none.correlation_property(), None);
}

#[test]
fn what_is_set_is_kept_and_what_means_nothing_is_not() {
    let from = Message::new("")
        .with_correlation_id("c-7")
        .with_header("traceparent", TRACE_PARENT)
        .with_header("tracestate", STATE);
    let own = Message::new("").with_header("x-correlation-id", "own").with_header("traceparent", OTHER);
    let to = carried(from.clone(), own.clone());
    assert_eq!((to.correlation_id(), to.headers()), ("own", own.headers()));
    assert_eq!(carried(from.clone(), Message::new("").with_correlation_id("own")).correlation_id(), "own");
    let empty = Message::new("")
        .with_header("x-correlation-id", "")
        .with_header("correlation-id", 7_i32)
        .with_correlation_id("")
        .with_header("traceparent", "garbage");
    let to = carried(from, empty);
    assert_eq!(to.correlation_id(), "c-7");
    assert_eq!((to.trace_parent(), to.trace_state()), (TRACE_PARENT.parse().ok(), Some(STATE)));
}

#[test]
fn a_correlation_id_that_no_property_carries_goes_into_a_header() {
    for length in [255, 256] {
        let id = "x".repeat(length);
        let from = Message::new("").with_header("x-correlation-id", id.as_str());
        let to = carried(from, Message::new(""));
        assert_eq!(to.correlation_id(), id);
        assert_eq!(to.correlation_property().is_some(), length == 255);
    }
}

#[test]
fn a_context_that_cannot_be_read_is_not_carried() {
    let from = Message::new("").with_header("traceparent", "garbage").with_header("tracestate", STATE);
    assert!(carried(from, Message::new("")).headers().is_empty());
}

/// What a consumer got: the trace context and the correlation id.
type Got = (Option<TraceParent>, Option<String>, String);

fn got(context: &Context) -> Got {
    let message = context.message();
    (message.trace_parent(), message.trace_state().map(str::to_owned), message.correlation_id().to_owned())
}

#[tokio::test]
async fn one_trace_and_one_correlation_id_go_from_the_publisher_to_the_last_consumer() {
    let clock = ControlledClock::new();
    let broker = MemoryBroker::new(clock.clone());
    let (orders, invoices) = (broker.queue("orders"), broker.queue("invoices"));
    let publisher = Traced::new("memory", broker.publisher());
    let seen = Log::<Got>::new();

    let onward = {
        let (publisher, seen) = (publisher.clone(), seen.clone());
        move |_: Bytes, context: Context| {
            let (publisher, seen) = (publisher.clone(), seen.clone());
            async move {
                seen.add(got(&context));
                publisher
                    .publish("invoices", context.carry(Message::new("{}")))
                    .await
                    .map_err(HandlerError::from_error)
            }
        }
    };
    let last = {
        let seen = seen.clone();
        move |_: Bytes, context: Context| {
            seen.add(got(&context));
            async { Ok::<_, HandlerError>(()) }
        }
    };
    let consumers = [
        QueueConsumer::with_decoder(orders.source(), codec::bytes, onward)
            .clock(clock.clone())
            .start()
            .unwrap(),
        QueueConsumer::with_decoder(invoices.source(), codec::bytes, last)
            .clock(clock.clone())
            .start()
            .unwrap(),
    ];
    let order = Message::new("{}")
        .with_correlation_id("c-7")
        .with_trace_parent(TRACE_PARENT.parse().unwrap())
        .with_header("tracestate", STATE);
    publisher.publish("orders", order).await.unwrap();
    invoices.until(|queue| queue.counts().acked == 1).await.unwrap();
    for consumer in consumers {
        let _ = prompt(consumer.stop()).await;
    }
    let expected = (TRACE_PARENT.parse().ok(), Some(STATE.to_owned()), "c-7".to_owned());
    assert_eq!(seen.all(), [expected.clone(), expected]);
}

#[tokio::test]
async fn retries_and_dead_letters_keep_the_context() {
    let (clock, queue) = queue();
    let seen = Log::new();
    let consumer = QueueConsumer::with_decoder(queue.source(), codec::bytes, {
        let seen = seen.clone();
        move |_: Bytes, context: Context| {
            seen.add((context.attempt(), got(&context)));
            async move {
                match context.attempt() {
                    1 => Err::<(), _>(HandlerError::failed("again")),
                    _ => Err(HandlerError::terminal("never")),
                }
            }
        }
    });
    let message = Message::new("{}")
        .with_header("x-correlation-id", "c-7")
        .with_header("traceparent", TRACE_PARENT)
        .with_header("tracestate", STATE);
    queue.publish(message.clone());
    let handle = consumer.clock(clock.clone()).start().unwrap();
    clock.advance(2 * SECOND).await;
    queue.until(|queue| queue.counts().dead_lettered == 1).await.unwrap();
    let _ = stop_on(&clock, &handle).await;
    let expected = (TRACE_PARENT.parse().ok(), Some(STATE.to_owned()), "c-7".to_owned());
    assert_eq!(seen.all(), [(1, expected.clone()), (2, expected)]);
    let (listed, _) = queue.dead_lettered().remove(0);
    let moved = queue.dead_letter_queue().pending().remove(0);
    for dead in [listed, moved] {
        assert_eq!(dead.correlation_id(), "c-7");
        for (name, value) in message.headers() {
            assert_eq!(dead.headers().get(name), Some(value), "{name}");
        }
    }
}
