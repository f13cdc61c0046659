//! What goes through a codec: a body with what is said about it.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;

use super::error::{CodecError, shown};
use crate::message::Message;

/// A body, and what the message is to say about it.
#[derive(Clone)]
#[non_exhaustive]
pub struct Encoded {
    /// The body.
    pub body: Bytes,
    /// What it is, such as `application/json`.
    pub content_type: Option<Cow<'static, str>>,
    /// How it is packed, such as `lz4`; none where it is not.
    pub content_encoding: Option<Cow<'static, str>>,
}

impl Encoded {
    /// A body that nothing is said about.
    pub fn new(body: impl Into<Bytes>) -> Self {
        Self { body: body.into(), content_type: None, content_encoding: None }
    }

    /// Says what it is.
    #[must_use]
    pub fn with_content_type(mut self, content_type: impl Into<Cow<'static, str>>) -> Self {
        self.content_type = Some(content_type.into());
        self
    }

    /// Says how it is packed.
    #[must_use]
    pub fn with_content_encoding(mut self, encoding: impl Into<Cow<'static, str>>) -> Self {
        self.content_encoding = Some(encoding.into());
        self
    }
}

/// Prints no body.
impl fmt::Debug for Encoded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encoded")
            .field("bytes", &self.body.len())
            .field("content_type", &self.content_type)
            .field("content_encoding", &self.content_encoding)
            .finish()
    }
}

/// A message on its way through codecs: one that unpacks hands it on with another body. Copying it copies no body.
#[derive(Clone, Copy)]
pub struct Received<'a> {
    message: &'a Message,
    body: &'a Bytes,
    unpacked: bool,
}

impl<'a> Received<'a> {
    /// A message as it came.
    pub fn new(message: &'a Message) -> Self {
        Self { message, body: message.body(), unpacked: false }
    }

    /// For codecs around another: the same message with this body, which is not packed any more.
    #[must_use]
    pub fn unpacked(self, body: &'a Bytes) -> Self {
        Self { body, unpacked: true, ..self }
    }

    /// The message as it came, for its headers and properties. Its body may be packed still; see [`body`](Self::body).
    pub fn message(&self) -> &'a Message {
        self.message
    }

    /// The body to decode.
    pub fn body(&self) -> &'a Bytes {
        self.body
    }

    /// What the body is, where the publisher said.
    pub fn content_type(&self) -> Option<&'a str> {
        self.message.content_type()
    }

    /// How the body is packed, as the publisher wrote it but for blanks around it; `None` where it is not. Some clients
    /// say there in which characters a text is: `identity`, `utf-8`, `us-ascii`, `binary` and 7 or 8 `bit` pack nothing.
    #[inline]
    pub fn content_encoding(&self) -> Option<&'a str> {
        let label = self.label()?;
        // As it is written mostly.
        if label == "lz4" {
            return Some(label);
        }
        let label = label.trim_ascii();
        (!packs_nothing(label)).then_some(label)
    }

    fn label(&self) -> Option<&'a str> {
        if self.unpacked { None } else { self.message.content_encoding() }
    }

    /// For codecs that unpack nothing.
    ///
    /// # Errors
    ///
    /// [`CodecError::Encoding`] where the body is packed.
    #[inline]
    pub fn check_not_packed(&self) -> Result<(), CodecError> {
        match self.content_encoding() {
            None => Ok(()),
            Some(found) => {
                Err(CodecError::Encoding { found: shown(found), expected: "this queue unpacks nothing" })
            }
        }
    }
}

/// Names are compared without case.
pub(super) fn packs_nothing(label: &str) -> bool {
    ["", "identity", "utf-8", "utf8", "us-ascii", "ascii", "binary", "8bit", "7bit"]
        .iter()
        .any(|plain| label.eq_ignore_ascii_case(plain))
}

impl<'a> From<&'a Message> for Received<'a> {
    fn from(message: &'a Message) -> Self {
        Self::new(message)
    }
}

/// Prints no body.
impl fmt::Debug for Received<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Received")
            .field("message", self.message)
            .field("bytes", &self.body.len())
            .field("unpacked", &self.unpacked)
            .finish()
    }
}
