//! lz4 around another codec, on [lz4_flex] without unsafe code.
//!
//! # When it packs and unpacks
//!
//! | [`Lz4`] is set to | publishes | of a body without a label | labelled lz4 | with another label |
//! |---|---|---|---|---|
//! | by label, the default | packed and labelled above [`compress_above`](Lz4::compress_above), where that makes it smaller; else as it is, without a label | passes it on | unpacks it | refuses it |
//! | [`always`](Lz4::always) | packed and labelled, whatever its size | unpacks it | unpacks it | refuses it |
//! | [`off`](Lz4::off) | as it is | passes it on | refuses it | refuses it |
//!
//! The label is the message's `content-encoding`, compared without case. `lz4` means the format that the queue is set
//! to, `lz4-block` and `lz4-frame` mean those whatever it is set to; blocks are published as `lz4`, frames as
//! `lz4-frame`. Those that pack nothing (`identity`, `utf-8`; see
//! [`Received::content_encoding`](super::Received::content_encoding)) count as none. The content type is that of the
//! codec within.
//!
//! `always` is a choice for a whole deployment: services that know no label pack all that they send, and unpack all that
//! they get. A body that is not packed is then an error.
//!
//! # Switching a fleet over while it runs
//!
//! 1. Roll out `Lz4::new(codec).compress_above(usize::MAX)`: it unpacks what is labelled, and publishes plain.
//! 2. Once no service without it is left, set `compress_above` to what pays.
//!
//! # Limits
//!
//! [`max_unpacked_bytes`](Lz4::max_unpacked_bytes) bounds what a body unpacks to, 64 MiB by default. The length that a
//! body claims is checked before anything is allocated, and 20 bytes that claim a gigabyte are refused whatever the
//! limit: a packed byte stands for at most 255. How long a body may be on the wire is the queue's to say,
//! [`Queue::max_body_bytes`](crate::queue::Queue::max_body_bytes).

mod block;
mod error;
mod frame;

use bytes::Bytes;

pub use block::{pack_block, unpack_block};
pub use error::{Lz4Error, Lz4Format};
pub use frame::{pack_frame, unpack_frame};

use super::error::shown;
use super::{Codec, CodecError, Encoded, Received};

/// What [`Lz4::compress_above`] is where nothing else is said: 1 KiB.
pub const DEFAULT_COMPRESS_ABOVE: usize = 1024;

/// What [`Lz4::max_unpacked_bytes`] is where nothing else is said: 64 MiB.
pub const DEFAULT_MAX_UNPACKED_BYTES: usize = 64 * 1024 * 1024;

/// A codec whose bodies are packed with lz4; see [the module](self) for when they are.
///
/// ```
/// use windlass::codec::lz4::Lz4Format;
/// use windlass::codec::{Json, Lz4};
/// use windlass::queue::Queue;
///
/// pub const WRITER: Queue<Vec<u32>, Lz4<Json>> = Queue::with_codec("writer", Lz4::new(Json).compress_above(4096));
/// pub const LEGACY: Queue<Vec<u32>, Lz4<Json>> = Queue::with_codec("legacy", Lz4::new(Json).always());
///
/// let long = WRITER.message(&vec![7; 10_000]).unwrap();
/// assert_eq!((long.content_type(), long.content_encoding()), (Some("application/json"), Some("lz4")));
/// assert_eq!(WRITER.message(&vec![7]).unwrap().content_encoding(), None);
/// assert_eq!(LEGACY.message(&vec![7]).unwrap().content_encoding(), Some("lz4"));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lz4<C> {
    codec: C,
    mode: Mode,
    format: Lz4Format,
    compress_above: usize,
    max_unpacked_bytes: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    ByLabel,
    Always,
    Off,
}

impl<C> Lz4<C> {
    /// lz4 around `codec`: by label, as blocks.
    pub const fn new(codec: C) -> Self {
        Self {
            codec,
            mode: Mode::ByLabel,
            format: Lz4Format::Block,
            compress_above: DEFAULT_COMPRESS_ABOVE,
            max_unpacked_bytes: DEFAULT_MAX_UNPACKED_BYTES,
        }
    }

    /// Packs all that is published, and unpacks all that comes, labelled or not.
    #[must_use]
    pub const fn always(mut self) -> Self {
        self.mode = Mode::Always;
        self
    }

    /// Packs and unpacks nothing.
    #[must_use]
    pub const fn off(mut self) -> Self {
        self.mode = Mode::Off;
        self
    }

    /// The format that is published, and that `lz4` and no label stand for; blocks by default.
    #[must_use]
    pub const fn format(mut self, format: Lz4Format) -> Self {
        self.format = format;
        self
    }

    /// Up to so many bytes a body is published as it is; 1 KiB by default. [`always`](Self::always) packs all the same:
    /// without a label nobody could tell.
    #[must_use]
    pub const fn compress_above(mut self, bytes: usize) -> Self {
        self.compress_above = bytes;
        self
    }

    /// The largest body before packing and after unpacking, packed on the way or not; 64 MiB by default. What is larger
    /// is not published, and is refused when it comes.
    #[must_use]
    pub const fn max_unpacked_bytes(mut self, bytes: usize) -> Self {
        self.max_unpacked_bytes = bytes;
        self
    }

    fn pack(&self, body: &[u8]) -> Result<(Vec<u8>, &'static str), CodecError> {
        Ok(match self.format {
            Lz4Format::Block => (pack_block(body)?, "lz4"),
            Lz4Format::Frame => (pack_frame(body)?, "lz4-frame"),
        })
    }

    fn unpack(&self, body: &[u8], format: Lz4Format) -> Result<Bytes, CodecError> {
        let unpacked = match format {
            Lz4Format::Block => unpack_block(body, self.max_unpacked_bytes)?,
            Lz4Format::Frame => unpack_frame(body, self.max_unpacked_bytes)?,
        };
        Ok(unpacked.into())
    }

    /// The format of what is labelled.
    fn labelled(&self, label: &str) -> Result<Lz4Format, CodecError> {
        // As it is written mostly.
        if label == "lz4" && self.mode != Mode::Off {
            return Ok(self.format);
        }
        let named = |name: &str| label.eq_ignore_ascii_case(name);
        let expected = match self.mode {
            Mode::Off => "this queue is set to unpack nothing",
            Mode::ByLabel | Mode::Always if named("lz4") => return Ok(self.format),
            Mode::ByLabel | Mode::Always if named("lz4-block") => return Ok(Lz4Format::Block),
            Mode::ByLabel | Mode::Always if named("lz4-frame") => return Ok(Lz4Format::Frame),
            Mode::ByLabel | Mode::Always => "this queue unpacks `lz4`, `lz4-block` and `lz4-frame`",
        };
        Err(CodecError::Encoding { found: shown(label), expected })
    }

    fn check_size(&self, body: &Bytes) -> Result<(), CodecError> {
        let (bytes, limit) = (body.len(), self.max_unpacked_bytes);
        if bytes > limit { Err(CodecError::UnpackedTooLarge { bytes, limit }) } else { Ok(()) }
    }

    /// Whether a body that the codec within could not read is lz4 that does not say so.
    #[cold]
    fn is_packed(&self, body: &[u8]) -> bool {
        body.starts_with(&frame::MAGIC) || unpack_block(body, self.max_unpacked_bytes).is_ok()
    }
}

impl<T, C: Codec<T>> Codec<T> for Lz4<C> {
    fn encode(&self, payload: &T) -> Result<Encoded, CodecError> {
        let plain = self.codec.encode(payload)?;
        if let Some(encoding) =
            plain.content_encoding.as_deref().filter(|label| !super::wire::packs_nothing(label))
        {
            return Err(CodecError::PackedTwice { encoding: shown(encoding) });
        }
        self.check_size(&plain.body)?;
        let packs = match self.mode {
            Mode::Off => false,
            Mode::ByLabel => plain.body.len() > self.compress_above,
            Mode::Always => true,
        };
        if !packs {
            return Ok(plain);
        }
        let (packed, label) = self.pack(&plain.body)?;
        if self.mode == Mode::ByLabel && packed.len() >= plain.body.len() {
            return Ok(plain);
        }
        Ok(Encoded { body: packed.into(), ..plain }.with_content_encoding(label))
    }

    fn decode(&self, received: Received<'_>) -> Result<T, CodecError> {
        let format = match received.content_encoding() {
            Some(label) => self.labelled(label)?,
            None if self.mode == Mode::Always => self.format,
            None => {
                self.check_size(received.body())?;
                return self.codec.decode(received).map_err(|error| {
                    let packed = self.mode == Mode::ByLabel && self.is_packed(received.body());
                    if packed { CodecError::Unmarked(Box::new(error)) } else { error }
                });
            }
        };
        let body = self.unpack(received.body(), format)?;
        self.codec.decode(received.unpacked(&body))
    }
}
