//! Text that is never printed.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, Visitor};

/// A password, or a key: `Debug` prints `[hidden]`, there is no `Display`, and it is not `Serialize`.
///
/// ```
/// use windlass::rabbitmq::config::Secret;
///
/// let password = Secret::from("s3cret");
/// assert_eq!(format!("{password:?}"), "[hidden]");
/// assert_eq!(password.expose(), "s3cret");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// The text itself. Never log it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[hidden]")
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        unquoted(deserializer).map(Self)
    }
}

/// Text whose errors do not quote it. Serde's own would: `invalid type: integer `1234`, expected a string`. By
/// `deserialize_any`, since a format that is asked for a string writes that error itself.
pub(super) fn unquoted<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    deserializer.deserialize_any(Unquoted)
}

struct Unquoted;

impl Visitor<'_> for Unquoted {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text; put a number in quotes")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }

    fn visit_string<E: Error>(self, text: String) -> Result<String, E> {
        Ok(text)
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<String, E> {
        Err(not_text())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<String, E> {
        Err(not_text())
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<String, E> {
        Err(not_text())
    }

    fn visit_i128<E: Error>(self, _: i128) -> Result<String, E> {
        Err(not_text())
    }

    fn visit_u128<E: Error>(self, _: u128) -> Result<String, E> {
        Err(not_text())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<String, E> {
        Err(not_text())
    }

    fn visit_bytes<E: Error>(self, _: &[u8]) -> Result<String, E> {
        Err(not_text())
    }
}

fn not_text<E: Error>() -> E {
    E::custom("expected text; put a number in quotes")
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Secret {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Secret".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "format": "password", "writeOnly": true })
    }
}
