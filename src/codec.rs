//! From a message's body to a payload, and back.
//!
//! A [`Codec`] does both for one type of payload. A [`Queue`](crate::queue::Queue) names the one that its messages go
//! through, so that two queues of a program may have different ones:
//!
//! | codec | body | content type |
//! |---|---|---|
//! | [`Json`], the default | JSON by serde | `application/json` |
//! | `StrictJson` | JSON that also has no name twice and no whole number past 64 bits, whatever the payload | `application/json` |
//! | [`Raw`] | the bytes as they are, not copied | `application/octet-stream` |
//! | `Lz4` around another (feature `lz4`) | that one's, packed | that one's |
//! | [`ContentType`] around another | that one's | the one that it is given; refuses others where asked to |
//! | one of your own | whatever [`Encoded`] says | whatever [`Encoded`] says |
//!
//! What a codec cannot decode is dead-lettered as `validation:input`, with its [`CodecError`] as the detail.
//!
//! Beside them stand two plain functions, [`json()`] and [`bytes()`], for
//! [`QueueConsumer::with_decoder`](crate::consumer::QueueConsumer::with_decoder); any closure of the same shape can take
//! their place.
//!
//! ```
//! use windlass::codec::{Codec, CodecError, Encoded, Received};
//! use windlass::queue::Queue;
//!
//! /// A number as four bytes.
//! #[derive(Debug, Clone, Copy)]
//! struct BigEndian;
//!
//! impl Codec<u32> for BigEndian {
//!     fn encode(&self, payload: &u32) -> Result<Encoded, CodecError> {
//!         Ok(Encoded::new(payload.to_be_bytes().to_vec()).with_content_type("application/x-u32"))
//!     }
//!
//!     fn decode(&self, received: Received<'_>) -> Result<u32, CodecError> {
//!         received.check_not_packed()?;
//!         let bytes = received.body().as_ref().try_into().map_err(CodecError::payload)?;
//!         Ok(u32::from_be_bytes(bytes))
//!     }
//! }
//!
//! pub const SHARDS: Queue<u32, BigEndian> = Queue::with_codec("shards", BigEndian);
//! assert_eq!(SHARDS.message(&7).unwrap().body().as_ref(), [0, 0, 0, 7]);
//! ```

mod content_type;
mod error;
#[cfg(feature = "json")]
mod json;
#[cfg(feature = "lz4")]
pub mod lz4;
mod raw;
#[cfg(feature = "json")]
mod strict_json;
mod wire;

use std::sync::Arc;

pub use content_type::ContentType;
pub use error::CodecError;
#[cfg(feature = "json")]
pub use json::{JsonError, json};
#[cfg(feature = "lz4")]
pub use lz4::Lz4;
pub use raw::{Raw, bytes};
#[cfg(feature = "json")]
pub use strict_json::StrictJson;
pub use wire::{Encoded, Received};

/// Makes bodies of payloads of type `T`, and payloads of bodies.
///
/// It must take whatever it is given: bodies come from anybody. A panic in it is a failed attempt, which is tried again,
/// where an error is final.
pub trait Codec<T>: Send + Sync + 'static {
    /// The body of a payload, and what it is.
    ///
    /// # Errors
    ///
    /// What keeps this payload from becoming a body. Nothing is sent then.
    fn encode(&self, payload: &T) -> Result<Encoded, CodecError>;

    /// The payload of a body.
    ///
    /// # Errors
    ///
    /// What is wrong with the body, in words for an operator who finds them on the dead letter. No other attempt is
    /// made.
    fn decode(&self, received: Received<'_>) -> Result<T, CodecError>;
}

/// JSON by serde, which is what a queue has where nothing else is said. Without the feature `json` it is a name only.
///
/// Refused, with the field: what is not of the wanted shape, numbers out of the range of theirs (past `u64` too, for a
/// whole number), a field of a struct that stands twice, text that is not UTF-8, nesting deeper than 128. In a map, and
/// in a `serde_json::Value`, the last of two entries with the same name stands, and a number past `u64` becomes a float:
/// that is how serde_json reads them, and `StrictJson` refuses both. A body that says that it is packed is refused as well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Json;

#[deny(clippy::missing_trait_methods)]
impl<T, C: Codec<T> + ?Sized> Codec<T> for Arc<C> {
    fn encode(&self, payload: &T) -> Result<Encoded, CodecError> {
        (**self).encode(payload)
    }

    fn decode(&self, received: Received<'_>) -> Result<T, CodecError> {
        (**self).decode(received)
    }
}
