//! Sources that spoil what they carry, or what they say about it.

use std::time::SystemTime;

use futures::FutureExt;
use tokio_util::sync::CancellationToken;
use windlass::message::{HeaderValue, Headers, Message};
use windlass::source::Capabilities;

use super::faults::{Alters, Broken};
use super::source::{Fault, Outcome, Received, Shape, UNIT, Whole};

pub(crate) const BROKEN: &[Broken] = &[
    Broken {
        what: "takes every body for text",
        shape: Shape::Usual,
        fault: || {
            Box::new(Alters(|_, message| {
                let text = String::from_utf8_lossy(message.body()).into_owned();
                message.with_body(text)
            }))
        },
        breaks: &["a_body_of_any_bytes_arrives_as_it_was_sent"],
    },
    Broken {
        what: "throws away messages without a body",
        shape: Shape::Usual,
        fault: || Box::new(SkipsEmpty),
        breaks: &["a_message_without_a_body_arrives_with_its_headers"],
    },
    Broken {
        what: "cuts bodies after 64 KiB",
        shape: Shape::Usual,
        fault: || {
            Box::new(Alters(|_, message| {
                let body = message.body().slice(..message.body().len().min(65_536));
                message.with_body(body)
            }))
        },
        breaks: &["a_body_of_one_mebibyte_arrives_whole"],
    },
    Broken {
        what: "widens all numbers to 64 bits",
        shape: Shape::Usual,
        fault: || {
            Box::new(Alters(|_, message| {
                headers(message, |value| Some(value.as_i64().map_or_else(|| value.clone(), HeaderValue::I64)))
            }))
        },
        breaks: &["every_type_of_header_arrives_as_it_was_sent"],
    },
    Broken {
        what: "loses what it takes for text and is not UTF-8",
        shape: Shape::Usual,
        fault: || {
            Box::new(Alters(|_, message| {
                headers(message, |value| {
                    let raw = matches!(value, HeaderValue::RawText(_));
                    (!raw).then(|| value.clone())
                })
            }))
        },
        breaks: &["every_type_of_header_arrives_as_it_was_sent"],
    },
    Broken {
        what: "keeps the first hundred headers",
        shape: Shape::Usual,
        fault: || {
            Box::new(Alters(|_, message| {
                let few: Headers =
                    message.headers().iter().take(100).map(|(name, value)| (name, value.clone())).collect();
                message.with_headers(few)
            }))
        },
        breaks: &["many_headers_arrive"],
    },
    Broken {
        what: "drops the properties",
        shape: Shape::Usual,
        fault: || Box::new(Alters(|_, message| without_properties(&message))),
        breaks: &["the_id_and_the_properties_arrive"],
    },
    Broken {
        what: "makes up a content type",
        shape: Shape::Usual,
        fault: || {
            Box::new(Alters(|_, message| match message.content_type() {
                Some(_) => message,
                None => message.with_content_type("application/octet-stream"),
            }))
        },
        breaks: &["properties_that_were_not_set_stay_unset"],
    },
    Broken {
        what: "loses the headers of what was retried",
        shape: Shape::Usual,
        fault: || {
            Box::new(Alters(|_, message| match message.attempt() {
                1 => message,
                _ => message.with_headers(Headers::new()),
            }))
        },
        breaks: &["a_retried_message_is_the_same_message"],
    },
    Broken {
        what: "loses the properties of what was requeued",
        shape: Shape::Usual,
        fault: || {
            Box::new(Alters(|_, message| match message.redelivered() {
                false => message,
                true => without_properties(&message),
            }))
        },
        breaks: &["a_requeued_message_comes_back_at_once"],
    },
    Broken {
        what: "counts attempts from 0, which is read as 1, and retries as one less",
        shape: Shape::Usual,
        fault: || {
            Box::new(Alters(|_, message| {
                let attempt = message.attempt() - 1;
                message.with_attempt(attempt)
            }))
        },
        breaks: &["a_counted_retry_adds_one_to_the_attempt", "a_delayed_retry_adds_one_to_the_attempt"],
    },
    Broken {
        what: "flags every delivery as redelivered",
        shape: Shape::Usual,
        fault: || Box::new(Alters(|_, message| message.with_redelivered(true))),
        breaks: &["a_first_delivery_is_the_first_attempt", "how_a_message_came_is_not_sent_on"],
    },
    Broken {
        what: "counts deliveries without saying so",
        shape: Shape::Plain,
        fault: || Box::new(Alters(|_, message| message.with_delivery_count(Some(1)))),
        breaks: &["a_first_delivery_is_the_first_attempt"],
    },
    Broken {
        what: "flags and counts no redelivery",
        shape: Shape::Usual,
        fault: || Box::new(Alters(|_, message| message.with_redelivered(false).with_delivery_count(Some(1)))),
        breaks: &["a_requeued_message_is_known_to_have_been_delivered_before"],
    },
    Broken {
        what: "adds the broker's delivery count to the attempt",
        shape: Shape::Buffering,
        fault: || {
            Box::new(Alters(|_, message| {
                let count = message.delivery_count().and_then(|count| u32::try_from(count).ok()).unwrap_or(1);
                let attempt = message.attempt() + count - 1;
                message.with_attempt(attempt)
            }))
        },
        breaks: &[
            "a_requeue_keeps_the_attempt",
            "closing_the_source_keeps_the_attempt",
            "dropping_the_source_keeps_the_attempt",
            "a_cut_keeps_the_attempt",
            "an_expired_lease_keeps_the_attempt",
            "a_release_keeps_the_attempt",
        ],
    },
    Broken {
        what: "does not say when a message came",
        shape: Shape::Usual,
        fault: || Box::new(Alters(|_, message| message.with_received_at(SystemTime::UNIX_EPOCH))),
        breaks: &["the_time_of_receipt_is_when_it_was_received"],
    },
    Broken {
        what: "claims a lease that is not there",
        shape: Shape::Usual,
        fault: || Box::new(Claims(|whole| whole.with_lease(Some(UNIT * 30)))),
        breaks: &["the_capabilities_are_those_declared"],
    },
    Broken {
        what: "claims less than it does",
        shape: Shape::Usual,
        fault: || Box::new(Claims(|whole| whole.with_dead_letter(false))),
        breaks: &["the_capabilities_are_those_declared"],
    },
    Broken {
        what: "has no name",
        shape: Shape::Usual,
        fault: || Box::new(Nameless),
        breaks: &["the_queue_has_a_name"],
    },
];

fn headers(message: Message, keep: fn(&HeaderValue) -> Option<HeaderValue>) -> Message {
    let kept: Headers =
        message.headers().iter().filter_map(|(name, value)| Some((name, keep(value)?))).collect();
    message.with_headers(kept)
}

fn without_properties(message: &Message) -> Message {
    Message::new(message.body().clone())
        .with_id(message.id())
        .with_headers(message.headers().clone())
        .with_attempt(message.attempt())
        .with_redelivered(message.redelivered())
        .with_delivery_count(message.delivery_count())
        .with_received_at(message.received_at())
}

struct SkipsEmpty;

impl Fault for SkipsEmpty {
    fn receive<'a>(&'a self, whole: &'a Whole, cancel: &'a CancellationToken) -> Outcome<'a, Received> {
        async move {
            loop {
                match whole.receive(cancel).await? {
                    Some(delivery) if delivery.message.body().is_empty() => {
                        whole.ack(delivery.receipt).await?
                    }
                    received => return Ok(received),
                }
            }
        }
        .boxed()
    }
}

struct Claims(fn(Capabilities) -> Capabilities);

impl Fault for Claims {
    fn capabilities(&self, whole: Capabilities) -> Capabilities {
        (self.0)(whole)
    }
}

struct Nameless;

impl Fault for Nameless {
    fn queue_name<'a>(&self, _: &'a Whole) -> &'a str {
        ""
    }
}
