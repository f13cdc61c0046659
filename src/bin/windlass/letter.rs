//! One dead letter, as it is shown.

use std::fmt;
use std::time::SystemTime;

use bytes::Bytes;
use serde::Serialize;
use serde_json::{Map, Value, json};
use windlass::message::{HeaderValue, Headers};
use windlass::rabbitmq::dead_letters::{DeadMessage, ToldBy};

use crate::output;

/// What is not known of it is null.
#[derive(Serialize)]
pub(crate) struct Letter {
    id: String,
    cause: Option<String>,
    detail: Option<String>,
    attempts: Option<u32>,
    /// The queue that it came from.
    origin: Option<String>,
    dead_lettered_at: Option<String>,
    age_seconds: Option<u64>,
    /// `windlass`, `broker` or null: who wrote down how it died.
    told_by: Option<&'static str>,
    content_type: Option<String>,
    content_encoding: Option<String>,
    correlation_id: String,
    headers: Map<String, Value>,
    body: Body,
    #[serde(skip)]
    age: Option<String>,
}

/// As text where it is UTF-8, or else in hexadecimal.
#[derive(Serialize)]
struct Body {
    bytes: usize,
    text: Option<String>,
    hex: Option<String>,
    /// Whether only its beginning is shown.
    cut: bool,
}

impl Letter {
    /// With the first `most` bytes of the body; all of it for 0.
    pub(crate) fn of(dead: &DeadMessage, now: SystemTime, most: usize) -> Self {
        let (message, death) = (&dead.message, &dead.death);
        Self {
            id: message.id().to_owned(),
            cause: death.cause.as_ref().map(|cause| cause.code().to_owned()),
            detail: death.cause.as_ref().and_then(|cause| cause.detail()).map(str::to_owned),
            attempts: death.attempts,
            origin: death.queue.clone(),
            dead_lettered_at: death.at.map(output::time),
            age_seconds: death.at.map(|at| now.duration_since(at).unwrap_or_default().as_secs()),
            told_by: match death.told_by {
                ToldBy::Windlass => Some("windlass"),
                ToldBy::Broker => Some("broker"),
                _ => None,
            },
            content_type: message.content_type().map(str::to_owned),
            content_encoding: message.content_encoding().map(str::to_owned),
            correlation_id: message.correlation_id().to_owned(),
            headers: table(message.headers()),
            body: Body::of(message.body(), most),
            age: death.at.map(|at| output::age(at, now)),
        }
    }
}

impl Body {
    fn of(body: &Bytes, most: usize) -> Self {
        let shown = if most == 0 { body.len() } else { most.min(body.len()) };
        let text = match std::str::from_utf8(&body[..shown]) {
            Ok(text) => Some(text),
            // The last letter may be cut in two: that makes it no less a text.
            Err(error) if error.error_len().is_none() && shown < body.len() => {
                std::str::from_utf8(&body[..error.valid_up_to()]).ok()
            }
            Err(_) => None,
        };
        Self {
            bytes: body.len(),
            text: text.map(str::to_owned),
            hex: if text.is_none() { Some(hex(&body[..shown])) } else { None },
            cut: shown < body.len(),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn table(headers: &Headers) -> Map<String, Value> {
    headers.iter().map(|(name, header)| (name.to_owned(), value(header))).collect()
}

/// Bytes, and text that is none, are an object with their hexadecimal digits: a text could not be told from them.
fn value(header: &HeaderValue) -> Value {
    match header {
        HeaderValue::Bool(value) => json!(value),
        HeaderValue::I8(value) => json!(value),
        HeaderValue::U8(value) => json!(value),
        HeaderValue::I16(value) => json!(value),
        HeaderValue::U16(value) => json!(value),
        HeaderValue::I32(value) => json!(value),
        HeaderValue::U32(value) => json!(value),
        HeaderValue::I64(value) => json!(value),
        HeaderValue::F32(value) => json!(value),
        HeaderValue::F64(value) => json!(value),
        HeaderValue::Decimal { scale, value } => json!({ "decimal": value, "scale": scale }),
        HeaderValue::Timestamp(seconds) => json!({ "timestamp": seconds }),
        HeaderValue::Text(text) => json!(text),
        HeaderValue::RawText(bytes) | HeaderValue::Bytes(bytes) => json!({ "hex": hex(bytes) }),
        HeaderValue::List(list) => list.iter().map(value).collect(),
        HeaderValue::Table(headers) => Value::Object(table(headers)),
        _ => Value::Null,
    }
}

/// Headers that say what stands in the other lines, or how often somebody looked at the message.
fn is_shown_already(name: &str) -> bool {
    name.starts_with("windlass-") || name == "x-delivery-count" || name == "x-acquired-count"
}

impl fmt::Display for Letter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unknown = || "?".to_owned();
        writeln!(f, "{}", output::plain(&self.id))?;
        let cause = match (&self.cause, &self.detail) {
            (Some(cause), Some(detail)) => format!("{cause}: {detail}"),
            (Some(cause), None) => cause.clone(),
            (None, _) => unknown(),
        };
        writeln!(f, "  cause     {}", output::plain(&cause))?;
        writeln!(f, "  attempts  {}", output::known(self.attempts))?;
        writeln!(f, "  from      {}", output::plain(&self.origin.clone().unwrap_or_else(unknown)))?;
        match (&self.age, &self.dead_lettered_at) {
            (Some(age), Some(at)) => writeln!(f, "  died      {age} ago, {at}")?,
            _ => writeln!(f, "  died      ?")?,
        }
        if let Some(content_type) = &self.content_type {
            writeln!(f, "  type      {}", output::plain(content_type))?;
        }
        let headers = self.headers.iter().filter(|(name, _)| !is_shown_already(name));
        for (index, (name, value)) in headers.enumerate() {
            let label = if index == 0 { "headers" } else { "" };
            writeln!(f, "  {label:<9} {} = {}", output::plain(name), output::plain(&value.to_string()))?;
        }
        let Body { bytes, text, hex, cut } = &self.body;
        let more = if *cut { ", its beginning" } else { "" };
        match (text, hex) {
            (Some(text), _) => {
                writeln!(f, "  body      {bytes} bytes{more}")?;
                for line in text.lines() {
                    writeln!(f, "            {}", output::plain(line))?;
                }
            }
            (None, Some(hex)) => {
                writeln!(f, "  body      {bytes} bytes{more}, hexadecimal\n            {hex}")?
            }
            (None, None) => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::Body;

    #[test]
    fn a_body_is_text_even_where_its_last_letter_is_cut_in_two() {
        let body = Bytes::from("größe");
        let shown = Body::of(&body, 3);
        assert_eq!((shown.bytes, shown.text.as_deref(), shown.cut), (7, Some("gr"), true));
        assert_eq!(Body::of(&body, 4).text.as_deref(), Some("grö"));
        let whole = Body::of(&body, 0);
        assert_eq!((whole.text.as_deref(), whole.cut), (Some("größe"), false));
    }

    #[test]
    fn a_body_that_is_no_text_is_shown_in_hexadecimal() {
        let shown = Body::of(&Bytes::from_static(&[0x00, 0xff, 0x10]), 1024);
        assert_eq!((shown.text, shown.hex.as_deref()), (None, Some("00ff10")));
        // The last byte of the whole body is no letter that was cut.
        assert_eq!(Body::of(&Bytes::from_static(b"a\xc3"), 1024).hex.as_deref(), Some("61c3"));
    }
}
