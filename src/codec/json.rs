//! JSON, with errors that name the field.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::shown;
use super::{Codec, CodecError, Encoded, Json, Received};
use crate::message::Message;

/// Why a body is not the JSON that was wanted: where in it, and what is wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JsonError {
    /// There is no body.
    #[error("the body is empty, expected JSON")]
    Empty,
    /// The body is not JSON, and says that it is packed.
    #[error("the body is packed as `{encoding}`, expected JSON")]
    Packed {
        /// What the publisher said.
        encoding: String,
    },
    /// A whole number has more than 64 bits; for [`StrictJson`](super::StrictJson).
    #[error("the whole number {number} at byte {at} does not fit into 64 bits")]
    PastU64 {
        /// The number, or its first digits.
        number: String,
        /// Where it begins.
        at: usize,
    },
    /// The body is not JSON, or not of the wanted shape.
    #[error("not the expected JSON at {path}")]
    Shape {
        /// The field, such as `items[3].price`, or `the top`.
        path: String,
        /// What is wrong, with line and column.
        source: serde_json::Error,
    },
}

/// Decodes the body as JSON.
///
/// # Errors
///
/// [`JsonError`] names the field. The field is looked for only once decoding has failed, so that it costs nothing
/// for good bodies.
pub fn json<T: DeserializeOwned>(message: &Message) -> Result<T, JsonError> {
    parse(message.body()).map_err(|error| match Received::new(message).content_encoding() {
        // The label tells more than the first byte that is no JSON.
        Some(encoding) => JsonError::Packed { encoding: shown(encoding) },
        None => error,
    })
}

pub(super) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, JsonError> {
    if body.is_empty() {
        return Err(JsonError::Empty);
    }
    serde_json::from_slice(body).map_err(|error| explain::<T>(body, error))
}

#[cold]
fn explain<T: DeserializeOwned>(body: &[u8], error: serde_json::Error) -> JsonError {
    let mut again = serde_json::Deserializer::from_slice(body);
    let path = match serde_path_to_error::deserialize::<_, T>(&mut again) {
        Err(found) => found.path().to_string(),
        // Only what stands behind the value is wrong.
        Ok(_) => String::new(),
    };
    // How the path is printed where the fault is in no field, or in one that has no name yet.
    let path = if matches!(path.as_str(), "" | "." | "?") { "the top".to_owned() } else { path };
    JsonError::Shape { path, source: error }
}

impl From<JsonError> for CodecError {
    fn from(error: JsonError) -> Self {
        Self::payload(error)
    }
}

impl<T: Serialize + DeserializeOwned> Codec<T> for Json {
    fn encode(&self, payload: &T) -> Result<Encoded, CodecError> {
        let body = serde_json::to_vec(payload).map_err(CodecError::payload)?;
        Ok(Encoded::new(body).with_content_type("application/json"))
    }

    fn decode(&self, received: Received<'_>) -> Result<T, CodecError> {
        received.check_not_packed()?;
        Ok(parse(received.body())?)
    }
}
