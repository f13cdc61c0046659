//! What is read of a delivery.

use std::time::SystemTime;

use bytes::Bytes;
use lapin::message::Delivery;
use lapin::types::ShortString;

use super::attempt::{ATTEMPT, attempt, delivery_count};
use super::guard::UNREADABLE;
use super::headers::{DEEPEST, Read, read};
use super::properties::Delivered;
use crate::message::{Headers, Message};
use crate::source::Cause;

/// A delivery, read.
#[derive(Debug)]
pub(in crate::rabbitmq) struct Received {
    pub(in crate::rabbitmq) message: Message,
    /// What of it could not be read, and is missing in the message. No handler should see such a message: it may lack
    /// what the handler goes by. It belongs to the dead letters.
    pub(in crate::rabbitmq) unreadable: Option<Unreadable>,
}

/// Why a message cannot be handled as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::rabbitmq) struct Unreadable(String);

impl Unreadable {
    /// `headers_unreadable`, and which.
    pub(in crate::rabbitmq) fn cause(&self) -> Cause {
        Cause::new("headers_unreadable").with_detail(self.0.clone())
    }
}

/// The message of a delivery that came at `at`. The body is not copied.
pub(in crate::rabbitmq) fn received(delivery: Delivery, at: SystemTime) -> Received {
    let Delivery { exchange, routing_key, redelivered, properties, data, .. } = delivery;
    let Read { mut headers, too_deep } = properties.headers().as_ref().map(read).unwrap_or_default();
    let count = delivery_count(&headers, redelivered);
    // Not one of the sender's: whoever copies the headers into a message of its own must not copy this.
    let counted = headers.remove(ATTEMPT);

    let body = Bytes::from(data);
    let mut message = match text(properties.message_id()) {
        Some(id) => Message::with_known_id(id, body),
        None => Message::new(body),
    };
    if let Some(text) = properties.content_type() {
        message = message.with_content_type(text.as_str());
    }
    if let Some(text) = properties.content_encoding() {
        message = message.with_content_encoding(text.as_str());
    }
    if let Some(text) = properties.correlation_id() {
        message = message.with_correlation_id(text.as_str());
    }
    let attempt = attempt(counted.as_ref(), message.id());
    let unreadable = unreadable(&headers, &too_deep);
    if let Some(Unreadable(why)) = &unreadable {
        tracing::warn!(message_id = message.id(), why, "a message cannot be read");
    }
    let message = message
        .with_headers(headers)
        .with_attempt(attempt)
        .with_redelivered(redelivered)
        .with_delivery_count(count)
        .with_received_at(at)
        .with_metadata(Delivered::new(exchange, routing_key, &properties));
    Received { message, unreadable }
}

fn unreadable(headers: &Headers, too_deep: &[String]) -> Option<Unreadable> {
    // The guard's word first. Whoever sends that header instead of the guard has a dead letter of its own making.
    let said = headers.get(UNREADABLE).map(|why| why.as_str().unwrap_or_default().to_owned());
    let found = || {
        let names = too_deep.join("`, `");
        (!too_deep.is_empty()).then(|| format!("headers are nested more than {DEEPEST} deep: `{names}`"))
    };
    said.or_else(found).map(Unreadable)
}

/// An empty id tells no message from another, and counts as none.
fn text(text: &Option<ShortString>) -> Option<&str> {
    text.as_ref().map(ShortString::as_str).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use lapin::BasicProperties;
    use lapin::types::{AMQPValue, FieldArray, FieldTable};

    use super::super::samples::{delivery, parsed, short};
    use super::received;
    use crate::rabbitmq::Delivered;

    const AT: SystemTime = SystemTime::UNIX_EPOCH;

    #[test]
    fn a_delivery_is_read_with_all_that_it_says() {
        let table = parsed(&[("shard", b'I', &[0, 0, 0, 3]), ("windlass-attempt", b'i', &[0, 0, 0, 4])]);
        let properties = BasicProperties::default()
            .with_message_id(short("m-1"))
            .with_content_type(short("application/json"))
            .with_content_encoding(short("lz4"))
            .with_correlation_id(short("c-1"))
            .with_priority(5)
            .with_delivery_mode(2)
            .with_headers(table);
        let message = received(delivery(properties, b"{}"), AT).message;
        assert_eq!((message.id(), message.body().as_ref()), ("m-1", &b"{}"[..]));
        assert_eq!(message.content_type(), Some("application/json"));
        assert_eq!(message.content_encoding(), Some("lz4"));
        assert_eq!(message.correlation_property(), Some("c-1"));
        assert_eq!(message.headers().names().collect::<Vec<_>>(), ["shard"]);
        assert_eq!((message.attempt(), message.redelivered(), message.delivery_count()), (4, false, Some(1)));
        let came = message.metadata::<Delivered>().expect("how it came");
        assert_eq!((came.exchange.as_str(), came.routing_key.as_str()), ("events", "orders.new"));
        assert_eq!((came.properties.priority, came.properties.persistent), (Some(5), true));
    }

    #[test]
    fn a_message_without_anything_is_a_first_attempt_with_an_id() {
        for properties in [
            BasicProperties::default(),
            BasicProperties::default().with_headers(FieldTable::default()),
            BasicProperties::default().with_message_id(short("")),
        ] {
            let received = received(delivery(properties, b""), AT);
            let message = received.message;
            assert_eq!(message.id().len(), 36);
            assert!(message.body().is_empty() && message.headers().is_empty());
            assert_eq!((message.attempt(), message.delivery_count()), (1, Some(1)));
            assert_eq!(received.unreadable, None);
        }
    }

    #[test]
    fn an_empty_body_keeps_its_headers_and_the_body_is_not_copied() {
        let properties = BasicProperties::default().with_headers(parsed(&[("h", b't', &[1])]));
        let message = received(delivery(properties.clone(), b""), AT).message;
        assert_eq!((message.body().len(), message.headers().len()), (0, 1));
        let delivery = delivery(properties, b" ");
        let place = delivery.data.as_ptr();
        assert_eq!(received(delivery, AT).message.body().as_ptr(), place);
    }

    #[test]
    fn how_often_it_was_delivered_is_asked_of_a_redelivery_alone() {
        let properties = BasicProperties::default().with_headers(parsed(&[(
            "x-delivery-count",
            b'l',
            &[0, 0, 0, 0, 0, 0, 0, 6],
        )]));
        let mut again = delivery(properties.clone(), b"");
        again.redelivered = true;
        let first = received(delivery(properties, b""), AT).message;
        let again = received(again, AT).message;
        assert_eq!((first.redelivered(), first.delivery_count()), (false, Some(1)));
        assert_eq!((again.redelivered(), again.delivery_count()), (true, Some(7)));
        // Neither is an attempt.
        assert_eq!((first.attempt(), again.attempt()), (1, 1));
    }

    #[test]
    fn x_death_in_any_shape_counts_for_nothing() {
        let shapes: [(u8, &[u8]); 4] = [
            (b'S', &[0, 0, 0, 1, b'5']),
            (b'I', &[0, 0, 0, 5]),
            (b'A', &[0, 0, 0, 6, b'S', 0, 0, 0, 1, b'q']),
            (b'V', &[]),
        ];
        for (code, bytes) in shapes {
            let properties = BasicProperties::default().with_headers(parsed(&[("x-death", code, bytes)]));
            assert_eq!(received(delivery(properties, b""), AT).message.attempt(), 1);
        }
    }

    #[test]
    fn headers_nested_too_deep_make_the_message_unreadable_but_not_lost() {
        let deep =
            (0..500).fold(AMQPValue::Void, |value, _| AMQPValue::FieldArray(FieldArray::from(vec![value])));
        let mut table = parsed(&[("shard", b'I', &[0, 0, 0, 3])]);
        table.insert(short("deep"), deep);
        let received = received(delivery(BasicProperties::default().with_headers(table), b"body"), AT);
        assert_eq!(received.message.headers().names().collect::<Vec<_>>(), ["shard"]);
        assert_eq!(received.message.body().as_ref(), b"body");
        let cause = received.unreadable.expect("said").cause();
        assert_eq!(cause.code(), "headers_unreadable");
        assert!(cause.detail().is_some_and(|detail| detail.contains("`deep`")), "{cause}");
    }
}
