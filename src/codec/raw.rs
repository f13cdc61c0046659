//! Bytes as they are.

use std::convert::Infallible;

use bytes::Bytes;

use super::{Codec, CodecError, Encoded, Received};
use crate::message::Message;

/// The body as it is. Neither way copies it.
///
/// A body that says that it is packed is handed on packed: the label stands in
/// [`Message::content_encoding`](crate::message::Message::content_encoding).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Raw;

impl Codec<Bytes> for Raw {
    fn encode(&self, payload: &Bytes) -> Result<Encoded, CodecError> {
        Ok(Encoded::new(payload.clone()).with_content_type("application/octet-stream"))
    }

    fn decode(&self, received: Received<'_>) -> Result<Bytes, CodecError> {
        Ok(received.body().clone())
    }
}

/// The body as it is.
///
/// # Errors
///
/// None.
pub fn bytes(message: &Message) -> Result<Bytes, Infallible> {
    Ok(message.body().clone())
}
