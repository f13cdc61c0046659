//! What was sent arrives, byte for byte and type for type.

use bytes::Bytes;

use super::harness::Harness;
use super::trial::Trial;
use super::violation::Violation;
use crate::message::{HeaderValue, Headers, Message};

/// Every byte value is carried in a body, UTF-8 or not.
pub async fn a_body_of_any_bytes_arrives_as_it_was_sent<H: Harness>(
    trial: &Trial<H>,
) -> Result<(), Violation> {
    let body: Vec<u8> = (0..=u8::MAX).chain([0xff, 0xfe, 0x00, 0xc3]).collect();
    round_trip(trial, Message::new(body).with_id("bytes")).await
}

/// A message needs no body, and one without keeps its headers.
pub async fn a_message_without_a_body_arrives_with_its_headers<H: Harness>(
    trial: &Trial<H>,
) -> Result<(), Violation> {
    round_trip(trial, Message::new("").with_id("empty").with_header("shard", 3_i32)).await
}

/// A body of 1 MiB comes in one piece.
pub async fn a_body_of_one_mebibyte_arrives_whole<H: Harness>(trial: &Trial<H>) -> Result<(), Violation> {
    let body: Vec<u8> =
        (0_u32..1 << 20).map(|index| index.to_le_bytes()[usize::from(index % 2 == 0)]).collect();
    round_trip(trial, Message::new(body).with_id("large")).await
}

/// Each type of header arrives as the same type with the same value, nested ones too.
pub async fn every_type_of_header_arrives_as_it_was_sent<H: Harness>(
    trial: &Trial<H>,
) -> Result<(), Violation> {
    round_trip(trial, Message::new("{}").with_id("typed").with_headers(typed_headers())).await
}

/// Five hundred headers are not too many.
pub async fn many_headers_arrive<H: Harness>(trial: &Trial<H>) -> Result<(), Violation> {
    let headers = (0_i32..500).map(|index| (format!("header-{index}"), index)).collect();
    round_trip(trial, Message::new("{}").with_id("many").with_headers(headers)).await
}

/// The id, the content type and encoding, and the correlation property arrive.
pub async fn the_id_and_the_properties_arrive<H: Harness>(trial: &Trial<H>) -> Result<(), Violation> {
    let message = Message::new("{}")
        .with_id("Bestellung-äöü-7")
        .with_content_type("application/json")
        .with_content_encoding("lz4")
        .with_correlation_id("request-41");
    round_trip(trial, message).await
}

/// Properties that the publisher did not set are not made up.
pub async fn properties_that_were_not_set_stay_unset<H: Harness>(trial: &Trial<H>) -> Result<(), Violation> {
    round_trip(trial, Message::new("{}").with_id("bare")).await
}

async fn round_trip<H: Harness>(trial: &Trial<H>, sent: Message) -> Result<(), Violation> {
    let source = trial.source(1).await?;
    trial.send(sent.clone()).await?;
    let delivery = trial.next(&source, sent.id(), "after it was published").await?;
    same_content(trial, &sent, &delivery.message, "the message that was published")?;
    trial.ack(&source, delivery).await
}

/// A message with something in every place, for the cases that look at copies.
pub(super) fn full(id: &str) -> Message {
    Message::new(&b"\x00\xff\x80 body"[..])
        .with_id(id)
        .with_headers(typed_headers())
        .with_content_type("application/octet-stream")
        .with_content_encoding("lz4")
        .with_correlation_id("request-41")
}

/// Holds `got` against `sent`, which `whose` names. Headers may be added, but none may change or be lost.
pub(super) fn same_content<H: Harness>(
    trial: &Trial<H>,
    sent: &Message,
    got: &Message,
    whose: &str,
) -> Result<(), Violation> {
    trial.expect(
        sent.body() == got.body(),
        format!("the body of {whose} ({} bytes)", sent.body().len()),
        || format!("another one ({} bytes)", got.body().len()),
    )?;
    let texts = [
        ("id", Some(sent.id()), Some(got.id())),
        ("content type", sent.content_type(), got.content_type()),
        ("content encoding", sent.content_encoding(), got.content_encoding()),
        ("correlation property", sent.correlation_property(), got.correlation_property()),
    ];
    for (what, sent, got) in texts {
        trial.expect(sent == got, format!("the {what} of {whose}, {sent:?}"), || format!("{got:?}"))?;
    }
    for (name, value) in sent.headers().iter() {
        let found = got.headers().get(name);
        let same = if trial.harness().carries(value) { found == Some(value) } else { found.is_some() };
        trial.expect(same, format!("the header `{name}` of {whose}, {value:?}"), || format!("{found:?}"))?;
    }
    Ok(())
}

fn typed_headers() -> Headers {
    let raw = HeaderValue::RawText(Bytes::from_static(b"caf\xe9"));
    let inner: Headers = [("deep", HeaderValue::from(-1_i64)), ("raw", raw.clone())].into_iter().collect();
    let nested: Headers = [("text", HeaderValue::from("in a table")), ("table", inner.clone().into())]
        .into_iter()
        .chain([("list", HeaderValue::List(vec![1_i8.into(), HeaderValue::Null, "two".into()]))])
        .collect();
    [
        ("null", HeaderValue::Null),
        ("true", true.into()),
        ("false", false.into()),
        ("i8", i8::MIN.into()),
        ("u8", u8::MAX.into()),
        ("i16", i16::MIN.into()),
        ("u16", u16::MAX.into()),
        ("i32", i32::MIN.into()),
        ("u32", u32::MAX.into()),
        ("i64", i64::MIN.into()),
        ("f32", (-1.5_f32).into()),
        ("f64", 1e300_f64.into()),
        ("decimal", HeaderValue::Decimal { scale: 2, value: 12_345 }),
        ("timestamp", HeaderValue::Timestamp(1_767_225_600)),
        ("timestamp-max", HeaderValue::Timestamp(u64::MAX)),
        ("text", "grüß Gott 🙂".into()),
        ("empty-text", "".into()),
        ("raw-text", raw),
        ("bytes", Bytes::from_static(&[0, 255, 128]).into()),
        ("list", HeaderValue::List(vec![(-7_i32).into(), inner.into(), HeaderValue::List(Vec::new())])),
        ("table", nested.into()),
    ]
    .into_iter()
    .collect()
}
