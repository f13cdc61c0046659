//! One block behind its length.

use lz4_flex::block::{DecompressError, compress_prepend_size, decompress_into};

use super::error::{Lz4Error, Lz4Format};
use super::frame;

/// The length in front.
const PREFIX: usize = 4;

/// No packed byte can stand for more.
pub(super) const MOST_PER_BYTE: usize = 255;

/// Packs `body` as one block behind its length.
///
/// # Errors
///
/// [`Lz4Error::TooLongToPack`] from 4 GiB on.
pub fn pack_block(body: &[u8]) -> Result<Vec<u8>, Lz4Error> {
    match u32::try_from(body.len()) {
        Ok(_) => Ok(compress_prepend_size(body)),
        Err(_) => Err(Lz4Error::TooLongToPack { bytes: body.len() }),
    }
}

/// Unpacks one block behind its length, of exactly that length and with nothing behind it.
///
/// The length is checked before anything is allocated, against `max_unpacked_bytes` and against what so few bytes can
/// hold, and no more than that is allocated.
///
/// # Errors
///
/// What is wrong with it. Bytes that were changed on the way may unpack all the same: the format has no checksum.
#[inline]
pub fn unpack_block(packed: &[u8], max_unpacked_bytes: usize) -> Result<Vec<u8>, Lz4Error> {
    let Some((prefix, block)) = packed.split_first_chunk::<PREFIX>() else {
        return Err(if packed.is_empty() { Lz4Error::Empty } else { cut_off() });
    };
    let claimed = u32::from_le_bytes(*prefix);
    // No broker carries a number of bytes that does not fit.
    let length = usize::try_from(claimed).unwrap_or(usize::MAX);
    let most = block.len().saturating_mul(MOST_PER_BYTE).min(max_unpacked_bytes);
    if length > most {
        return Err(refusal(packed, claimed, max_unpacked_bytes));
    }
    let mut body = vec![0; length];
    let actual = match decompress_into(block, &mut body) {
        Ok(actual) => actual,
        Err(error) => return Err(explain(error, packed, claimed)),
    };
    if actual != length {
        return Err(Lz4Error::ClaimsTooMuch { claimed: claimed.into(), actual: actual as u64 });
    }
    Ok(body)
}

/// What a length that cannot be right is due to.
#[cold]
fn refusal(packed: &[u8], claimed: u32, limit: usize) -> Lz4Error {
    if packed.len() == PREFIX {
        return cut_off();
    }
    if packed.starts_with(&frame::MAGIC) {
        return Lz4Error::IsFrame;
    }
    let start = &packed[..packed.len().min(12)];
    if start.iter().all(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace()) {
        return Lz4Error::Text { begins: String::from_utf8_lossy(start).into_owned() };
    }
    let (bytes, packed) = (u64::from(claimed), packed.len() - PREFIX);
    if bytes > limit as u64 {
        Lz4Error::TooLarge { bytes, claimed: true, limit }
    } else {
        Lz4Error::Implausible { claimed: bytes, packed }
    }
}

#[cold]
fn explain(error: DecompressError, packed: &[u8], claimed: u32) -> Lz4Error {
    // Where the limit is so high that the magic number may be a length.
    if packed.starts_with(&frame::MAGIC) {
        return Lz4Error::IsFrame;
    }
    match error {
        DecompressError::OutputTooSmall { .. } => Lz4Error::ClaimsTooLittle { claimed: claimed.into() },
        error => broken(error, Lz4Format::Block),
    }
}

/// What lz4_flex says of a block, where its length is not to blame.
pub(super) fn broken(error: DecompressError, format: Lz4Format) -> Lz4Error {
    let what = match error {
        DecompressError::LiteralOutOfBounds | DecompressError::ExpectedAnotherByte => {
            return Lz4Error::CutOff { format };
        }
        DecompressError::OffsetZero => "a repetition of nothing",
        DecompressError::OffsetOutOfBounds => "a repetition of what stands before its start",
        _ => "it cannot be unpacked",
    };
    Lz4Error::Broken { format, what }
}

fn cut_off() -> Lz4Error {
    Lz4Error::CutOff { format: Lz4Format::Block }
}
