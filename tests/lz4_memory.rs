//! What a body claims is not allocated. In a process of its own, whose memory it measures: the peak of what it has asked
//! for, used or not.

#![cfg(all(feature = "lz4", target_os = "linux"))]
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::io::Write;

use windlass::codec::lz4::{pack_block, unpack_block, unpack_frame};

const MIB: usize = 1024 * 1024;

fn peak() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPeak:")).expect("it has that line");
    line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") * 1024
}

fn frame_claiming(length: u64) -> Vec<u8> {
    let descriptor = [&[0b0110_1000, 0x70], &length.to_le_bytes()[..]].concat();
    let checksum = twox_hash::XxHash32::oneshot(0, &descriptor).to_le_bytes()[1];
    [&[0x04, 0x22, 0x4d, 0x18], descriptor.as_slice(), &[checksum], &[0; 5]].concat()
}

#[test]
fn a_few_bytes_that_claim_gigabytes_take_no_memory() {
    let block = [&u32::MAX.to_le_bytes()[..], &[0; 16]].concat();
    // 256 MiB of zeros in one, by a frame that claims nothing.
    let bomb = {
        let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
        let zeros = vec![0; MIB];
        (0..256).for_each(|_| encoder.write_all(&zeros).unwrap());
        encoder.finish().unwrap()
    };
    let block_bomb = pack_block(&vec![0; 64 * MIB]).unwrap();
    let before = peak();
    for limit in [MIB, usize::MAX] {
        assert!(unpack_block(&block, limit).is_err());
        for claimed in [1 << 32, 1 << 40, u64::MAX] {
            assert!(unpack_frame(&frame_claiming(claimed), limit).is_err());
        }
    }
    assert!(peak() - before < MIB, "{} bytes for lengths that cannot be", peak() - before);
    assert!(unpack_block(&block_bomb, MIB).is_err());
    assert!(peak() - before < MIB, "{} bytes for one over the limit", peak() - before);
    assert!(unpack_frame(&bomb, 4 * MIB).is_err());
    // The old and the new one, while it grows.
    assert!(peak() - before < 9 * MIB, "{} bytes where 4 MiB are allowed", peak() - before);
}
