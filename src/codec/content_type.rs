//! A content type of the user's choice, and the check of what comes.

use std::borrow::Cow;

use super::error::shown;
use super::{Codec, CodecError, Encoded, Received};

/// A codec with another content type, which is checked where asked for.
///
/// ```
/// use windlass::codec::{ContentType, Json};
/// use windlass::queue::Queue;
///
/// const STRICT: Queue<u32, ContentType<Json>> =
///     Queue::with_codec("numbers", ContentType::new("application/json", Json).checked());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContentType<C> {
    content_type: Cow<'static, str>,
    checked: bool,
    codec: C,
}

impl<C> ContentType<C> {
    /// Says on publishing that the bodies of `codec` are of this type. What comes is not checked.
    pub const fn new(content_type: &'static str, codec: C) -> Self {
        Self { content_type: Cow::Borrowed(content_type), checked: false, codec }
    }

    /// Refuses what is of another type, or does not say of which. Compared are type and subtype, without case; what
    /// stands behind a `;` is not looked at.
    #[must_use]
    pub const fn checked(mut self) -> Self {
        self.checked = true;
        self
    }
}

fn essence(content_type: &str) -> &str {
    content_type.split(';').next().unwrap_or_default().trim()
}

impl<T, C: Codec<T>> Codec<T> for ContentType<C> {
    fn encode(&self, payload: &T) -> Result<Encoded, CodecError> {
        Ok(self.codec.encode(payload)?.with_content_type(self.content_type.clone()))
    }

    fn decode(&self, received: Received<'_>) -> Result<T, CodecError> {
        let found = received.content_type();
        let fits = |found| essence(found).eq_ignore_ascii_case(essence(&self.content_type));
        if self.checked && !found.is_some_and(fits) {
            let expected = self.content_type.clone().into_owned();
            return Err(CodecError::ContentType { found: found.map(shown), expected });
        }
        self.codec.decode(received)
    }
}
