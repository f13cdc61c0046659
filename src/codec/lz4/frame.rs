//! One frame.
//!
//! Read here, block by block, and not by lz4_flex's reader: that one takes up to 8 MiB of buffers for a frame of a few
//! bytes, ends quietly at what stands behind the frame, and cannot be told how much may come out.

use std::io::Write;

use lz4_flex::block::{DecompressError, decompress_into_with_dict};
use lz4_flex::frame::{FrameEncoder, FrameInfo};
use twox_hash::XxHash32;

use super::block::{MOST_PER_BYTE, broken};
use super::error::{Lz4Error, Lz4Format};

pub(super) const MAGIC: [u8; 4] = 0x184d_2204_u32.to_le_bytes();
const LEGACY_MAGIC: [u8; 4] = 0x184c_2102_u32.to_le_bytes();

/// How far back a linked block reaches.
const WINDOW: usize = 64 * 1024;

/// Set in the size of a block that is stored as it is.
const STORED: u32 = 1 << 31;

/// Packs `body` as one frame: independent blocks, the length in front, no checksums.
///
/// # Errors
///
/// None that is known.
pub fn pack_frame(body: &[u8]) -> Result<Vec<u8>, Lz4Error> {
    let failed = || Lz4Error::Broken { format: Lz4Format::Frame, what: "it cannot be packed" };
    let info = FrameInfo::new().content_size(Some(body.len() as u64));
    let mut encoder = FrameEncoder::with_frame_info(info, Vec::new());
    encoder.write_all(body).map_err(|_| failed())?;
    encoder.finish().map_err(|_| failed())
}

/// Unpacks one frame with nothing behind it: blocks of all sizes, linked or independent, with or without a length and
/// checksums, all of which are checked. Dictionaries and the legacy format are not read.
///
/// A length in front is checked before anything is allocated, as [`unpack_block`](super::unpack_block) does. Where there
/// is none, memory grows with what is unpacked, and never beyond `max_unpacked_bytes`.
///
/// # Errors
///
/// What is wrong with it.
pub fn unpack_frame(packed: &[u8], max_unpacked_bytes: usize) -> Result<Vec<u8>, Lz4Error> {
    if packed.is_empty() {
        return Err(Lz4Error::Empty);
    }
    let Some(rest) = packed.strip_prefix(&MAGIC) else { return Err(no_frame(packed)) };
    let mut rest = Rest(rest);
    let header = Header::read(&mut rest)?;
    let mut body = Body { bytes: Vec::new(), limit: max_unpacked_bytes };
    if let Some(claimed) = header.content_size {
        body.reserve_claimed(claimed, packed.len())?;
    }
    loop {
        let size = rest.u32()?;
        if size == 0 {
            break;
        }
        let stored = size & STORED != 0;
        let length = usize::try_from(size & !STORED).unwrap_or(usize::MAX);
        if length > header.block_max {
            return Err(wrong("a block is larger than the header allows"));
        }
        let block = rest.take(length)?;
        if header.block_checksums && rest.u32()? != XxHash32::oneshot(0, block) {
            return Err(Lz4Error::Checksum { of: "block" });
        }
        if stored { body.append(block, &header)? } else { body.unpack(block, &header)? }
    }
    if header.content_checksum && rest.u32()? != XxHash32::oneshot(0, &body.bytes) {
        return Err(Lz4Error::Checksum { of: "content" });
    }
    if !rest.0.is_empty() {
        return Err(Lz4Error::Trailing { bytes: rest.0.len() });
    }
    match header.content_size {
        Some(claimed) if claimed != body.bytes.len() as u64 => {
            Err(Lz4Error::ClaimsTooMuch { claimed, actual: body.bytes.len() as u64 })
        }
        _ => Ok(body.bytes),
    }
}

fn wrong(what: &'static str) -> Lz4Error {
    Lz4Error::Broken { format: Lz4Format::Frame, what }
}

#[cold]
fn no_frame(packed: &[u8]) -> Lz4Error {
    let start = &packed[..packed.len().min(4)];
    if start == LEGACY_MAGIC {
        return Lz4Error::Unsupported { what: "the legacy format" };
    }
    if start.len() == 4 && start[1..] == [0x2a, 0x4d, 0x18] && (0x50..=0x5f).contains(&start[0]) {
        return Lz4Error::Unsupported { what: "a part to be skipped in front" };
    }
    if MAGIC.starts_with(start) {
        return Lz4Error::CutOff { format: Lz4Format::Frame };
    }
    Lz4Error::NoFrame { begins: start.to_vec() }
}

/// What is not read yet.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], Lz4Error> {
        let cut_off = Lz4Error::CutOff { format: Lz4Format::Frame };
        let (taken, rest) = self.0.split_at_checked(length).ok_or(cut_off)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Lz4Error> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn u32(&mut self) -> Result<u32, Lz4Error> {
        self.array().map(u32::from_le_bytes)
    }
}

struct Header {
    linked: bool,
    block_checksums: bool,
    content_checksum: bool,
    content_size: Option<u64>,
    block_max: usize,
}

impl Header {
    fn read(rest: &mut Rest<'_>) -> Result<Self, Lz4Error> {
        let start = rest.0;
        let [flags, sizes] = rest.array()?;
        let flag = |bit: u8| flags & (1 << bit) != 0;
        if flags >> 6 != 1 {
            return Err(Lz4Error::Unsupported { what: "another version" });
        }
        if flag(1) || sizes & 0b1000_1111 != 0 {
            return Err(Lz4Error::Unsupported { what: "a reserved bit set" });
        }
        let content_size = if flag(3) { Some(u64::from_le_bytes(rest.array()?)) } else { None };
        if flag(0) {
            return Err(Lz4Error::Unsupported { what: "a dictionary" });
        }
        let read = start.len() - rest.0.len();
        let [_, expected, ..] = XxHash32::oneshot(0, &start[..read]).to_le_bytes();
        if rest.array()? != [expected] {
            return Err(Lz4Error::Checksum { of: "header" });
        }
        let block_max = match sizes >> 4 {
            step @ 4..=7 => WINDOW << (2 * (step - 4)),
            _ => return Err(wrong("its header names no size of blocks")),
        };
        Ok(Self {
            linked: !flag(5),
            block_checksums: flag(4),
            content_checksum: flag(2),
            content_size,
            block_max,
        })
    }
}

/// What is unpacked so far.
struct Body {
    bytes: Vec<u8>,
    limit: usize,
}

impl Body {
    fn reserve_claimed(&mut self, claimed: u64, packed: usize) -> Result<(), Lz4Error> {
        let length = usize::try_from(claimed).ok().filter(|length| *length <= self.limit);
        let Some(length) = length else {
            return Err(Lz4Error::TooLarge { bytes: claimed, claimed: true, limit: self.limit });
        };
        if length > packed.saturating_mul(MOST_PER_BYTE) {
            return Err(Lz4Error::Implausible { claimed, packed });
        }
        self.bytes.reserve_exact(length);
        self.limit = length;
        Ok(())
    }

    /// Room for `more` bytes or as many as are allowed. Grows as a vector does, but not beyond the limit.
    fn grow(&mut self, more: usize) {
        let length = self.bytes.len();
        let wanted = length.saturating_add(more).min(self.limit);
        if wanted > self.bytes.capacity() {
            let capacity = wanted.max(self.bytes.capacity().saturating_mul(2)).min(self.limit);
            self.bytes.reserve_exact(capacity - length);
        }
        self.bytes.resize(wanted, 0);
    }

    fn append(&mut self, block: &[u8], header: &Header) -> Result<(), Lz4Error> {
        let start = self.bytes.len();
        if block.len() > self.limit - start {
            return Err(self.too_large(header));
        }
        self.grow(block.len());
        self.bytes[start..].copy_from_slice(block);
        Ok(())
    }

    fn unpack(&mut self, block: &[u8], header: &Header) -> Result<(), Lz4Error> {
        let start = self.bytes.len();
        let room = block.len().saturating_mul(MOST_PER_BYTE).min(header.block_max);
        self.grow(room);
        let (before, into) = self.bytes.split_at_mut(start);
        let room = into.len() == room;
        let before = if header.linked { &before[start.saturating_sub(WINDOW)..] } else { &[] };
        match decompress_into_with_dict(block, into, before) {
            Ok(length) => {
                self.bytes.truncate(start + length);
                Ok(())
            }
            Err(DecompressError::OutputTooSmall { .. }) if room => {
                Err(wrong("a block unpacks to more than the header allows"))
            }
            Err(DecompressError::OutputTooSmall { .. }) => Err(self.too_large(header)),
            Err(error) => Err(broken(error, Lz4Format::Frame)),
        }
    }

    /// There is more than the limit, which is what the frame claims where it claims something.
    fn too_large(&self, header: &Header) -> Lz4Error {
        match header.content_size {
            Some(claimed) => Lz4Error::ClaimsTooLittle { claimed },
            None => Lz4Error::TooLarge { bytes: self.limit as u64, claimed: false, limit: self.limit },
        }
    }
}
