//! From a message's body to a payload.
//!
//! A decoder is a function from [`Message`] to a payload, or to an error that tells an operator what is wrong with the
//! body. [`json`] is the default; any closure of the same shape can take its place.

use std::convert::Infallible;

use bytes::Bytes;

use crate::message::Message;

/// The body as it is.
///
/// # Errors
///
/// None.
pub fn bytes(message: &Message) -> Result<Bytes, Infallible> {
    Ok(message.body().clone())
}

#[cfg(feature = "json")]
pub use with_json::{JsonError, json};

#[cfg(feature = "json")]
mod with_json {
    use serde::de::DeserializeOwned;

    use crate::message::Message;

    /// Why a body is not the JSON that was wanted: where in it, and what is wrong.
    #[derive(Debug, thiserror::Error)]
    #[non_exhaustive]
    pub enum JsonError {
        /// There is no body.
        #[error("the body is empty, expected JSON")]
        Empty,
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
        let body = message.body();
        if body.is_empty() {
            return Err(JsonError::Empty);
        }
        serde_json::from_slice(body).map_err(|error| {
            let mut again = serde_json::Deserializer::from_slice(body);
            let path = match serde_path_to_error::deserialize::<_, T>(&mut again) {
                Err(found) => found.path().to_string(),
                // Only what stands behind the value is wrong.
                Ok(_) => String::new(),
            };
            // How the path is printed where the fault is in no field, or in one that has no name yet.
            let path = if matches!(path.as_str(), "" | "." | "?") { "the top".to_owned() } else { path };
            JsonError::Shape { path, source: error }
        })
    }
}
