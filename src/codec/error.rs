//! Why a codec did not do it, in words for an operator.

use crate::error::BoxError;

/// Why a payload has no body, or a body no payload.
///
/// `Display` prints this layer only; [`source`](std::error::Error::source) has the rest.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// The body is larger than the queue allows.
    #[error("the body is {bytes} bytes long, at most {limit} are allowed (`max_body_bytes`)")]
    BodyTooLarge {
        /// How long it is.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The body is larger than the codec allows, before it is packed or after it is unpacked.
    #[error("the unpacked body is {bytes} bytes long, at most {limit} are allowed (`max_unpacked_bytes`)")]
    UnpackedTooLarge {
        /// How long it is, or claims to be.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The content type is not the one that the queue insists on.
    #[error("the content type is {}, expected `{expected}`", quoted(found.as_deref()))]
    ContentType {
        /// What the publisher said.
        found: Option<String>,
        /// What it must be.
        expected: String,
    },
    /// The body is packed in a way that this queue does not unpack.
    #[error("the content encoding is `{found}`, and {expected}")]
    Encoding {
        /// What the publisher said.
        found: String,
        /// What this queue takes.
        expected: &'static str,
    },
    /// The codec within has packed the body already: it would be packed twice.
    #[error("the body is packed as `{encoding}` already, and would be packed twice")]
    PackedTwice {
        /// As what it is packed.
        encoding: String,
    },
    /// The body is said not to be packed, and is lz4.
    #[error(
        "the body is lz4 and does not say so: its publisher must set the content encoding, \
         or this queue must always unpack"
    )]
    Unmarked(#[source] Box<CodecError>),
    /// What the codec itself says, such as a `JsonError` or an `Lz4Error`.
    #[error(transparent)]
    Payload(BoxError),
}

impl CodecError {
    /// An error of a codec's own.
    pub fn payload(error: impl Into<BoxError>) -> Self {
        Self::Payload(error.into())
    }
}

fn quoted(found: Option<&str>) -> String {
    found.map_or_else(|| "missing".to_owned(), |found| format!("`{found}`"))
}

/// What a publisher wrote, short enough for an error.
pub(super) fn shown(text: &str) -> String {
    const LONGEST: usize = 60;
    let start: String = text.chars().take(LONGEST).collect();
    let more = if start.len() < text.len() { "…" } else { "" };
    format!("{}{more}", start.escape_debug())
}
