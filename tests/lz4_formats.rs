//! lz4 blocks and frames: what other programs made, what they can read, and what is refused.

#![cfg(feature = "lz4")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use lz4_flex::frame::{BlockMode, BlockSize, FrameDecoder, FrameEncoder, FrameInfo};
use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, any, prop_assert, prop_assert_eq, proptest};
use windlass::codec::lz4::{Lz4Error, Lz4Format, pack_block, pack_frame, unpack_block, unpack_frame};

const LIMIT: usize = 8 * 1024 * 1024;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop").join(name)
}

/// The plain bodies: names and bytes.
fn bodies() -> Vec<(String, Vec<u8>)> {
    let mut bodies = Vec::new();
    for entry in fs::read_dir(folder("lz4")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "raw") {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            bodies.push((name, fs::read(&path).unwrap()));
        }
    }
    assert_eq!(bodies.len(), 4, "the files are there");
    bodies
}

fn file(name: &str) -> Vec<u8> {
    fs::read(folder(name)).unwrap()
}

/// Bytes that no program packs well.
fn noise(count: usize) -> Vec<u8> {
    let mut seed = 7_u64;
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 56) as u8
    };
    (0..count).map(|_| next()).collect()
}

#[test]
fn what_lz4_napi_packed_is_unpacked() {
    for (name, body) in bodies() {
        assert_eq!(unpack_block(&file(&format!("lz4/{name}.block.lz4")), LIMIT).unwrap(), body, "{name}");
        assert_eq!(unpack_frame(&file(&format!("lz4/{name}.frame.lz4")), LIMIT).unwrap(), body, "{name}");
    }
}

#[test]
fn blocks_are_packed_to_the_bytes_that_lz4_napi_makes() {
    for (name, body) in bodies() {
        assert_eq!(pack_block(&body).unwrap(), file(&format!("lz4/{name}.block.lz4")), "{name}");
    }
}

#[test]
fn what_python_lz4_packed_is_unpacked_whatever_its_options() {
    let mut frames = 0;
    for (name, body) in bodies() {
        assert_eq!(unpack_block(&file(&format!("python/{name}.block.lz4")), LIMIT).unwrap(), body, "{name}");
        for entry in fs::read_dir(folder("python")).unwrap() {
            let path = entry.unwrap().path();
            let file_name = path.file_name().unwrap().to_str().unwrap();
            if file_name.starts_with(&format!("{name}.frame-")) {
                assert_eq!(unpack_frame(&fs::read(&path).unwrap(), LIMIT).unwrap(), body, "{file_name}");
                frames += 1;
            }
        }
    }
    assert_eq!(frames, 4 * 16);
}

// BC-47: each option of the encoder, sizes around those of its blocks, empty, random.
#[test]
fn frames_of_all_options_of_lz4_flex_are_unpacked() {
    let sizes = [0, 1, 13, 65_535, 65_536, 65_537, 262_145, 1_048_577, 4 * 1024 * 1024 + 1];
    let text = b"the same again, ".repeat(sizes[8] / 16 + 1);
    let random = noise(1_048_577);
    for (kind, all) in [("text", &text), ("noise", &random)] {
        for size in sizes.into_iter().filter(|size| *size <= all.len()) {
            let body = &all[..size];
            for block_size in [
                BlockSize::Auto,
                BlockSize::Max64KB,
                BlockSize::Max256KB,
                BlockSize::Max1MB,
                BlockSize::Max4MB,
            ] {
                // Each block size of it, where it has more than one block.
                if size > 1024 * 1024 && matches!(block_size, BlockSize::Max64KB | BlockSize::Max256KB) {
                    continue;
                }
                for (mode, extras) in [(BlockMode::Independent, false), (BlockMode::Linked, true)] {
                    let info = FrameInfo::new().block_size(block_size).block_mode(mode);
                    let info = info.block_checksums(extras).content_checksum(extras);
                    let info = info.content_size((!extras).then_some(size as u64));
                    let mut encoder = FrameEncoder::with_frame_info(info, Vec::new());
                    encoder.write_all(body).unwrap();
                    let packed = encoder.finish().unwrap();
                    let unpacked = unpack_frame(&packed, LIMIT);
                    assert!(unpacked.as_deref() == Ok(body), "{kind} {size} {block_size:?} {mode:?}");
                }
            }
        }
    }
}

// BC-47: every round trip is exact; and lz4_flex's own readers read what is packed here.
#[test]
fn round_trips_are_exact() {
    let noise = noise(1024 * 1024);
    let zeros = vec![0; 4 * 1024 * 1024 + 1];
    for body in [&b""[..], b"x", b"thirteen byte", &noise[..4096], &noise, &zeros] {
        let packed = pack_block(body).unwrap();
        assert!(unpack_block(&packed, LIMIT).as_deref() == Ok(body), "a block of {}", body.len());
        assert!(lz4_flex::decompress_size_prepended(&packed).unwrap() == body);
        let packed = pack_frame(body).unwrap();
        assert!(unpack_frame(&packed, LIMIT).as_deref() == Ok(body), "a frame of {}", body.len());
        let mut read = Vec::new();
        std::io::copy(&mut FrameDecoder::new(packed.as_slice()), &mut read).unwrap();
        assert!(read == body);
    }
}

fn claiming(length: u32, packed: &[u8]) -> Vec<u8> {
    [&length.to_le_bytes(), &packed[4..]].concat()
}

// BC-47, BC-48.
#[test]
fn a_block_that_is_not_exactly_what_it_claims_is_refused_with_the_reason() {
    let good = pack_block(b"thirteen byte").unwrap();
    let frame = pack_frame(b"thirteen byte").unwrap();
    let cut_off = Lz4Error::CutOff { format: Lz4Format::Block };
    let cases: Vec<(Vec<u8>, Lz4Error)> = vec![
        (vec![], Lz4Error::Empty),
        (good[..3].to_vec(), cut_off.clone()),
        (good[..4].to_vec(), cut_off.clone()),
        (vec![0; 4], cut_off.clone()),
        (good[..good.len() - 1].to_vec(), cut_off),
        (claiming(4096, &good), Lz4Error::Implausible { claimed: 4096, packed: 14 }),
        (claiming(14, &good), Lz4Error::ClaimsTooMuch { claimed: 14, actual: 13 }),
        (claiming(12, &good), Lz4Error::ClaimsTooLittle { claimed: 12 }),
        (claiming(0, &good), Lz4Error::ClaimsTooLittle { claimed: 0 }),
        (
            claiming(u32::MAX, &good),
            Lz4Error::TooLarge { bytes: u32::MAX.into(), claimed: true, limit: LIMIT },
        ),
        (frame, Lz4Error::IsFrame),
        (br#"{"id": 7, "x": 1}"#.to_vec(), Lz4Error::Text { begins: r#"{"id": 7, "x"#.to_owned() }),
        (
            // One literal, then a repetition from 0 bytes back.
            [&8_u32.to_le_bytes()[..], &[0x10, b'a', 0, 0]].concat(),
            Lz4Error::Broken { format: Lz4Format::Block, what: "a repetition of nothing" },
        ),
        (
            [&8_u32.to_le_bytes()[..], &[0x10, b'a', 9, 0]].concat(),
            Lz4Error::Broken {
                format: Lz4Format::Block,
                what: "a repetition of what stands before its start",
            },
        ),
    ];
    for (body, expected) in cases {
        assert_eq!(unpack_block(&body, LIMIT), Err(expected), "{body:02x?}");
    }
    for (behind, what) in
        [(&b"\0"[..], "one byte"), (b"\0\0", "two"), (&good, "another block"), (&good[4..], "its data")]
    {
        let error = unpack_block(&[&good, behind].concat(), LIMIT).unwrap_err();
        let text = error.to_string();
        assert!(
            ["holds more than", "cut off", "broken"].iter().any(|word| text.contains(word)),
            "{what}: {text}"
        );
    }
}

/// A frame by hand: its header with a right checksum, and what stands behind it.
fn frame(flags: u8, sizes: u8, extra: &[u8], rest: &[u8]) -> Vec<u8> {
    let descriptor = [&[flags, sizes], extra].concat();
    let checksum = twox_hash::XxHash32::oneshot(0, &descriptor).to_le_bytes()[1];
    [&[0x04, 0x22, 0x4d, 0x18], descriptor.as_slice(), &[checksum], rest].concat()
}

const PLAIN: u8 = 0b0110_0000;
const END: [u8; 4] = [0; 4];

fn stored(block: &[u8]) -> Vec<u8> {
    [&(block.len() as u32 | 1 << 31).to_le_bytes(), block].concat()
}

fn packed(body: &[u8]) -> Vec<u8> {
    let block = lz4_flex::block::compress(body);
    [&(block.len() as u32).to_le_bytes(), block.as_slice()].concat()
}

// BC-47, BC-48.
#[test]
fn a_frame_that_is_not_exactly_one_frame_is_refused_with_the_reason() {
    let abc = [stored(b"abc"), END.to_vec()].concat();
    let good = frame(PLAIN, 0x40, &[], &abc);
    assert_eq!(unpack_frame(&good, 3).unwrap(), b"abc");
    let two = file("python/two-frames.lz4");
    let mut flipped = pack_frame(b"abc").unwrap();
    flipped[7] ^= 1;
    let size = |size: u64| frame(PLAIN | 0b1000, 0x40, &size.to_le_bytes(), &abc);
    let broken = |what| Lz4Error::Broken { format: Lz4Format::Frame, what };
    let cut_off = Lz4Error::CutOff { format: Lz4Format::Frame };
    let cases: Vec<(Vec<u8>, Lz4Error)> = vec![
        (vec![], Lz4Error::Empty),
        (vec![0x04, 0x22, 0x4d], cut_off.clone()),
        (pack_block(b"abc").unwrap(), Lz4Error::NoFrame { begins: vec![3, 0, 0, 0] }),
        (b"{}".to_vec(), Lz4Error::NoFrame { begins: b"{}".to_vec() }),
        ([&good[..], b"\0"].concat(), Lz4Error::Trailing { bytes: 1 }),
        ([&good[..], &good].concat(), Lz4Error::Trailing { bytes: good.len() }),
        (two.clone(), Lz4Error::Trailing { bytes: two.len() / 2 }),
        (size(2), Lz4Error::ClaimsTooLittle { claimed: 2 }),
        (size(4), Lz4Error::ClaimsTooMuch { claimed: 4, actual: 3 }),
        (size(1 << 20), Lz4Error::Implausible { claimed: 1 << 20, packed: good.len() + 8 }),
        (size(u64::MAX), Lz4Error::TooLarge { bytes: u64::MAX, claimed: true, limit: LIMIT }),
        (flipped, Lz4Error::Checksum { of: "header" }),
        (frame(PLAIN | 1, 0x40, &[0; 4], &abc), Lz4Error::Unsupported { what: "a dictionary" }),
        (frame(PLAIN | 2, 0x40, &[], &abc), Lz4Error::Unsupported { what: "a reserved bit set" }),
        (frame(PLAIN, 0x41, &[], &abc), Lz4Error::Unsupported { what: "a reserved bit set" }),
        (frame(0b1010_0000, 0x40, &[], &abc), Lz4Error::Unsupported { what: "another version" }),
        (frame(PLAIN, 0x30, &[], &abc), broken("its header names no size of blocks")),
        (
            frame(PLAIN, 0x40, &[], &(65_537_u32).to_le_bytes()),
            broken("a block is larger than the header allows"),
        ),
        (
            frame(PLAIN, 0x40, &[], &[packed(&[0; 65_537]), END.to_vec()].concat()),
            broken("a block unpacks to more than the header allows"),
        ),
        (vec![0x02, 0x21, 0x4c, 0x18, 0], Lz4Error::Unsupported { what: "the legacy format" }),
        (
            vec![0x5f, 0x2a, 0x4d, 0x18, 0, 0, 0, 0],
            Lz4Error::Unsupported { what: "a part to be skipped in front" },
        ),
        (
            frame(PLAIN | 0b1_0000, 0x40, &[], &[stored(b"abc"), vec![1; 4], END.to_vec()].concat()),
            Lz4Error::Checksum { of: "block" },
        ),
        (
            frame(PLAIN | 0b100, 0x40, &[], &[abc.clone(), vec![1; 4]].concat()),
            Lz4Error::Checksum { of: "content" },
        ),
    ];
    for (body, expected) in cases {
        assert_eq!(unpack_frame(&body, LIMIT), Err(expected), "{body:02x?}");
    }
    for end in 1..good.len() {
        assert_eq!(unpack_frame(&good[..end], LIMIT), Err(cut_off.clone()), "{end} bytes");
    }
}

#[test]
fn a_linked_block_reaches_back_64_kib_and_no_further_than_the_start() {
    // Four bytes that repeat what stands `back` bytes before, and five of its own at the end, as the format wants it.
    let block = |back: u16| {
        let [low, high] = back.to_le_bytes();
        let data = [0x00, low, high, 0x50, b'-', b'-', b'-', b'-', b'-'];
        [&(data.len() as u32).to_le_bytes()[..], &data].concat()
    };
    let reach = |flags, back| {
        let rest = [stored(b"abcd"), block(back), END.to_vec()].concat();
        unpack_frame(&frame(flags, 0x40, &[], &rest), LIMIT)
    };
    let linked = 0b0100_0000;
    assert_eq!(reach(linked, 4).unwrap(), b"abcdabcd-----");
    let before_the_start =
        Lz4Error::Broken { format: Lz4Format::Frame, what: "a repetition of what stands before its start" };
    assert_eq!(reach(linked, 5), Err(before_the_start.clone()));
    assert_eq!(reach(PLAIN, 4), Err(before_the_start), "an independent block stands alone");
}

#[test]
fn the_limit_holds_to_the_byte() {
    let body = vec![b'x'; 70_000];
    let with_length = pack_frame(&body).unwrap();
    let without = {
        let mut encoder = FrameEncoder::new(Vec::new());
        encoder.write_all(&body).unwrap();
        encoder.finish().unwrap()
    };
    let block = pack_block(&body).unwrap();
    let limit = 69_999;
    let claims = Lz4Error::TooLarge { bytes: 70_000, claimed: true, limit };
    assert_eq!(unpack_block(&block, limit), Err(claims.clone()));
    assert_eq!(unpack_frame(&with_length, limit), Err(claims));
    assert_eq!(
        unpack_frame(&without, limit),
        Err(Lz4Error::TooLarge { bytes: 69_999, claimed: false, limit })
    );
    let stored = frame(PLAIN, 0x40, &[], &[stored(b"abc"), END.to_vec()].concat());
    assert_eq!(unpack_frame(&stored, 2), Err(Lz4Error::TooLarge { bytes: 2, claimed: false, limit: 2 }));
    for (packed, unpack) in [
        (&block, unpack_block as fn(&[u8], usize) -> Result<Vec<u8>, Lz4Error>),
        (&with_length, unpack_frame),
        (&without, unpack_frame),
    ] {
        assert!(unpack(packed, 70_000).as_deref() == Ok(&body));
    }
}

#[test]
fn each_error_says_what_is_wrong_in_words() {
    for (error, words) in [
        (unpack_block(b"", LIMIT), "the body is empty, expected lz4"),
        (unpack_block(b"{\"id\": 7}", LIMIT), "is most likely not packed at all"),
        (
            unpack_block(&pack_frame(b"x").unwrap(), LIMIT),
            "is an lz4 frame, and this queue expects an lz4 block",
        ),
        (
            unpack_frame(&pack_block(b"x").unwrap(), LIMIT),
            "begins with [01, 00, 00, 00], and this queue expects",
        ),
        (unpack_block(&[0xff; 20], LIMIT), "unpacks to 4294967295 bytes, at most 8388608 are allowed"),
        (unpack_frame(&file("python/two-frames.lz4"), LIMIT), "stand behind the end of the lz4 frame"),
    ] {
        let text = error.unwrap_err().to_string();
        assert!(text.contains(words), "{text}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_bytes_are_unpacked_within_the_limit_or_refused(bytes in vec(any::<u8>(), 0..600), limit in 0_usize..5000) {
        for unpacked in [unpack_block(&bytes, limit), unpack_frame(&bytes, limit)] {
            prop_assert!(unpacked.is_err() || unpacked.is_ok_and(|body| body.len() <= limit));
        }
    }

    #[test]
    fn any_blocks_in_a_frame_are_unpacked_within_the_limit_or_refused(
        flags in any::<u8>(), blocks in vec(vec(any::<u8>(), 0..80), 0..5), limit in 0_usize..5000,
    ) {
        // Past the header, which arbitrary bytes hardly ever are.
        let flags = flags & 0b0011_0000 | 0b0100_0000;
        let mut rest = Vec::new();
        for block in &blocks {
            rest.extend((block.len() as u32).to_le_bytes());
            rest.extend(block);
            if flags & 0b1_0000 != 0 {
                rest.extend(twox_hash::XxHash32::oneshot(0, block).to_le_bytes());
            }
        }
        rest.extend(END);
        let unpacked = unpack_frame(&frame(flags, 0x40, &[], &rest), limit);
        prop_assert!(unpacked.is_err() || unpacked.is_ok_and(|body| body.len() <= limit));
    }

    #[test]
    fn a_round_trip_is_exact_and_what_is_cut_or_added_is_refused(
        body in vec(0_u8..4, 0..3000), cut in any::<proptest::sample::Index>(), added in vec(any::<u8>(), 1..40),
    ) {
        for (packed, unpack) in [
            (pack_block(&body).unwrap(), unpack_block as fn(&[u8], usize) -> Result<Vec<u8>, Lz4Error>),
            (pack_frame(&body).unwrap(), unpack_frame),
        ] {
            prop_assert_eq!(unpack(&packed, LIMIT).unwrap(), body.clone());
            prop_assert!(unpack(&packed[..cut.index(packed.len())], LIMIT).is_err());
            prop_assert!(unpack(&[packed, added.clone()].concat(), LIMIT).is_err());
        }
    }

    #[test]
    fn a_block_is_of_the_length_that_it_claims(body in vec(0_u8..4, 0..300), claimed in 0_u32..400) {
        let packed = claiming(claimed, &pack_block(&body).unwrap());
        prop_assert_eq!(unpack_block(&packed, LIMIT).is_ok(), claimed as usize == body.len());
    }
}
