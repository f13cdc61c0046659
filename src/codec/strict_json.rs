//! JSON that means the same to everybody who reads it.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{DeserializeOwned, Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::error::shown;
use super::json::parse;
use super::{Codec, CodecError, Encoded, Json, JsonError, Received};

/// As [`Json`], and refuses wherever they stand two things that [`Json`] refuses in the fields of structs only: a name
/// that stands twice in one object, and a whole number past `u64` or below `i64`.
///
/// For payloads with maps or a `serde_json::Value` in them, where serde_json takes the last of the two, and makes a float
/// of the number. The body is read a second time for it, which takes about as long as the first.
///
/// ```
/// use serde_json::Value;
/// use windlass::codec::StrictJson;
/// use windlass::message::Message;
/// use windlass::queue::Queue;
///
/// const ANYTHING: Queue<Value, StrictJson> = Queue::with_codec("anything", StrictJson);
/// assert!(ANYTHING.decode(&Message::new(r#"{"a": 1, "b": {"a": 2}}"#)).is_ok());
/// assert!(ANYTHING.decode(&Message::new(r#"{"a": 1, "a": 2}"#)).is_err());
/// assert!(ANYTHING.decode(&Message::new("18446744073709551616")).is_err());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StrictJson;

impl<T: Serialize + DeserializeOwned> Codec<T> for StrictJson {
    fn encode(&self, payload: &T) -> Result<Encoded, CodecError> {
        Json.encode(payload)
    }

    fn decode(&self, received: Received<'_>) -> Result<T, CodecError> {
        let payload = Json.decode(received)?;
        parse::<NamesOnce>(received.body())?;
        check_numbers(received.body())?;
        Ok(payload)
    }
}

/// Any JSON in which no name stands twice in one object. Nothing of it is kept.
struct NamesOnce;

impl<'de> Deserialize<'de> for NamesOnce {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for NamesOnce {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self, A::Error> {
        while list.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Self, A::Error> {
        let mut names = BTreeSet::new();
        while let Some(name) = object.next_key::<String>()? {
            object.next_value::<Self>()?;
            if let Some(twice) = names.replace(name) {
                return Err(A::Error::custom(format!("the name `{}` stands twice", shown(&twice))));
            }
        }
        Ok(self)
    }
}

/// Looks at the digits, since serde_json hands such a number on as a float. `body` is known to be JSON.
fn check_numbers(body: &[u8]) -> Result<(), JsonError> {
    let mut at = 0;
    while let Some(byte) = body.get(at) {
        let rest = &body[at..];
        let length = match byte {
            b'"' => text_length(rest),
            b'-' | b'0'..=b'9' => {
                let is_part = |byte: &u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
                let number = &rest[..rest.iter().take_while(|byte| is_part(byte)).count()];
                check_number(number, at)?;
                number.len()
            }
            _ => 1,
        };
        at += length;
    }
    Ok(())
}

/// From one quotation mark to behind the other.
fn text_length(rest: &[u8]) -> usize {
    let mut at = 1;
    while let Some(byte) = rest.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    rest.len()
}

fn check_number(number: &[u8], at: usize) -> Result<(), JsonError> {
    let text = String::from_utf8_lossy(number);
    let is_whole = !text.contains(['.', 'e', 'E']);
    if is_whole && text.parse::<u64>().is_err() && text.parse::<i64>().is_err() {
        return Err(JsonError::PastU64 { number: shown(&text), at });
    }
    Ok(())
}
