//! What is wrong with a body that should be lz4, in words for an operator.

use std::fmt;

use crate::codec::CodecError;

/// Why a body is not the lz4 that it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Lz4Error {
    /// There is no body. Packed, even an empty one has bytes.
    #[error("the body is empty, expected lz4")]
    Empty,
    /// It begins with text.
    #[error("the body is not lz4: it begins with the text {begins:?}, and is most likely not packed at all")]
    Text {
        /// The first bytes.
        begins: String,
    },
    /// It claims, or turns out, to be larger than is allowed.
    #[error("the lz4 body unpacks to {}{bytes} bytes, at most {limit} are allowed (`max_unpacked_bytes`)",
        if *claimed { "" } else { "more than " })]
    TooLarge {
        /// How long it is; as far as it was unpacked, where it claims nothing.
        bytes: u64,
        /// Whether that is what it claims.
        claimed: bool,
        /// The limit.
        limit: usize,
    },
    /// It claims more than so few bytes can hold.
    #[error(
        "the lz4 body claims to unpack to {claimed} bytes, which {packed} packed ones cannot hold: \
         it is cut off, its length is wrong, or it is no lz4"
    )]
    Implausible {
        /// What it claims.
        claimed: u64,
        /// How long it is packed.
        packed: usize,
    },
    /// It claims more than it holds.
    #[error(
        "the lz4 body claims to unpack to {claimed} bytes, and holds {actual}: it is cut off, or its length is wrong"
    )]
    ClaimsTooMuch {
        /// What it claims.
        claimed: u64,
        /// What it holds.
        actual: u64,
    },
    /// It holds more than it claims.
    #[error(
        "the lz4 body holds more than the {claimed} bytes that it claims: \
         something stands behind its end, or its length is wrong"
    )]
    ClaimsTooLittle {
        /// What it claims.
        claimed: u64,
    },
    /// It ends too early.
    #[error("the lz4 {format} is cut off")]
    CutOff {
        /// In which format it was read.
        format: Lz4Format,
    },
    /// Something stands behind its end.
    #[error("{bytes} bytes stand behind the end of the lz4 frame: one frame is one body")]
    Trailing {
        /// How many.
        bytes: usize,
    },
    /// It is lz4, but in the other format.
    #[error("the body is an lz4 frame, and this queue expects an lz4 block behind its length")]
    IsFrame,
    /// It is no frame.
    #[error("the body begins with {begins:02x?}, and this queue expects an lz4 frame, 04 22 4d 18")]
    NoFrame {
        /// The first bytes, as far as there are any.
        begins: Vec<u8>,
    },
    /// It is a frame of a kind that is not read here.
    #[error("the lz4 frame has {what}, which is not supported")]
    Unsupported {
        /// What it has.
        what: &'static str,
    },
    /// A checksum does not fit.
    #[error("the checksum of the lz4 frame's {of} is wrong: it was changed on its way")]
    Checksum {
        /// What it is of.
        of: &'static str,
    },
    /// It is broken inside.
    #[error("the lz4 {format} is broken: {what}")]
    Broken {
        /// In which format it was read.
        format: Lz4Format,
        /// What is wrong.
        what: &'static str,
    },
    /// For packing: the length in front of a block has four bytes.
    #[error("{bytes} bytes are too many for an lz4 block, whose length has 32 bits; use frames")]
    TooLongToPack {
        /// How long it is.
        bytes: usize,
    },
}

impl From<Lz4Error> for CodecError {
    fn from(error: Lz4Error) -> Self {
        Self::payload(error)
    }
}

/// How lz4 lies in a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Lz4Format {
    /// One block behind its unpacked length, four bytes, little-endian: what lz4-napi's `compress` makes, python-lz4's
    /// `lz4.block` and lz4_flex's `compress_prepend_size`. It has no checksum. The default.
    #[default]
    Block,
    /// One frame, as the `lz4` program makes it.
    Frame,
}

impl fmt::Display for Lz4Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Block => "block",
            Self::Frame => "frame",
        })
    }
}
