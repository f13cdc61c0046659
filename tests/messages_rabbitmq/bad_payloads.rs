//! A message that fails before the handler runs is dead-lettered once, with the reason, and holds nothing up.

use std::num::NonZeroUsize;

use serde::Deserialize;
use windlass::codec;
use windlass::consumer::QueueConsumer;
use windlass::error::BoxError;
use windlass::handler::Context;
use windlass::message::{HeaderValue, Message};
use windlass::rabbitmq::DeadLetterTo;

use super::desk::{BOTH, Desk};
use super::props::{CONTENT_ENCODING, CONTENT_TYPE, Entry, Props};
use super::rabbit::{bounded, until};

#[derive(Debug, Deserialize)]
struct Order {
    id: u32,
}

/// As strict as a service can be.
fn decode(message: &Message) -> Result<Order, BoxError> {
    match message.content_type() {
        Some("application/json") => {}
        other => return Err(format!("the content type is {other:?}, expected JSON").into()),
    }
    if let Some(encoding) = message.content_encoding() {
        return Err(format!("nobody here can unpack {encoding}").into());
    }
    let tenant = message.headers().get("tenant").and_then(HeaderValue::as_str);
    tenant.ok_or("the header `tenant` is missing")?;
    Ok(codec::json(message)?)
}

/// The messages that are bad, and what the reason says.
fn bad() -> Vec<(Props, &'static [u8], &'static str)> {
    let good = |id| good(id).headers(&[Entry::text("tenant", "a")]);
    vec![
        (good("broken"), br#"{"id": "#, "not the expected JSON"),
        (good("of another shape"), br#"{"id": "seven"}"#, "at id"),
        (good("empty"), b"", "the body is empty"),
        (good("of another type").text(CONTENT_TYPE, "text/xml"), br#"{"id": 7}"#, "text/xml"),
        (self::good("without the header"), br#"{"id": 7}"#, "`tenant` is missing"),
        (good("packed").text(CONTENT_ENCODING, "rot13"), br#"{"id": 7}"#, "rot13"),
    ]
}

fn good(id: &str) -> Props {
    Props::of(id).text(CONTENT_TYPE, "application/json")
}

// BC-17
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_decoded_is_dead_lettered_once_with_a_reason_and_what_is_behind_it_is_handled() {
    for kind in BOTH {
        let mut desk = Desk::new("bad-payloads", kind).await;
        let bad = bad();
        for (props, body, _) in &bad {
            desk.publish(props, body).await;
        }
        desk.publish(&good("good").headers(&[Entry::text("tenant", "a")]), br#"{"id": 7}"#).await;
        let source = desk.source(1, DeadLetterTo::Queue).await;
        let ledger = desk.ledger.clone();
        let handler = move |order: Order, context: Context| {
            assert_eq!(order.id, 7);
            ledger.handled(context.message().id());
            async { Ok::<_, BoxError>(()) }
        };
        let consumer = QueueConsumer::with_decoder(source.clone(), decode, handler)
            .max_concurrent(NonZeroUsize::MIN)
            .start()
            .expect("it starts");
        until("the good message is handled", || async { (consumer.stats().acked == 1).then_some(()) }).await;
        let report = bounded("stop", consumer.stop()).await;
        assert_eq!((report.stats.acked, report.stats.dead_lettered), (1, bad.len() as u64), "{report:?}");
        assert_eq!(report.stats.received, 1 + bad.len() as u64, "none came twice");
        let letters = desk.finish(source).await;
        assert_eq!(letters.len(), bad.len());
        for (letter, (props, body, reason)) in letters.iter().zip(&bad) {
            assert_eq!((letter.props.id(), letter.body.as_slice()), (props.id(), *body));
            assert_eq!(letter.props.header_text("windlass-cause").as_deref(), Some("validation:input"));
            let detail = letter.props.header_text("windlass-cause-detail").expect("a reason");
            assert!(detail.contains(reason), "{detail}");
        }
    }
}
