//! The bodies that are kept for the fuzz targets, as ordinary tests: no decoder panics on them, and what must hold holds.

#![cfg(all(feature = "lz4", feature = "json"))]
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "support/decoders.rs"]
mod decoders;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use decoders::DECODERS;
use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, any, proptest};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}

fn names(folder: &Path) -> BTreeSet<String> {
    let stem = |path: PathBuf| path.file_stem().unwrap().to_str().unwrap().to_owned();
    fs::read_dir(folder).unwrap().map(|entry| stem(entry.unwrap().path())).collect()
}

#[test]
fn each_decoder_stands_the_bodies_of_its_corpus() {
    for (name, decoder) in DECODERS {
        let mut count = 0;
        for entry in fs::read_dir(folder("corpus").join(name)).unwrap() {
            let path = entry.unwrap().path();
            let body = fs::read(&path).unwrap();
            let stood = std::panic::catch_unwind(|| decoder(&body));
            assert!(stood.is_ok(), "{}", path.display());
            count += 1;
        }
        assert!(count >= 10, "{count} bodies for {name}");
    }
}

#[test]
fn each_decoder_stands_each_body_cut_off_anywhere_and_with_each_byte_changed() {
    for (name, decoder) in DECODERS {
        for entry in fs::read_dir(folder("corpus").join(name)).unwrap() {
            let mut body = fs::read(entry.unwrap().path()).unwrap();
            if body.len() > 300 {
                continue;
            }
            (0..body.len()).for_each(|end| decoder(&body[..end]));
            for index in 0..body.len() {
                let byte = body[index];
                for changed in [byte ^ 1, byte ^ 0x80, 0, 0xff] {
                    body[index] = changed;
                    decoder(&body);
                }
                body[index] = byte;
            }
        }
    }
}

#[test]
fn each_decoder_has_a_corpus_and_a_fuzz_target() {
    let expected: BTreeSet<_> = DECODERS.iter().map(|(name, _)| (*name).to_owned()).collect();
    // It is a package of its own, which is not in the crate as it is published.
    if folder("fuzz").exists() {
        assert_eq!(names(&folder("fuzz/fuzz_targets")), expected);
    }
    assert_eq!(names(&folder("corpus")), expected);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn each_decoder_stands_any_bytes(bytes in vec(any::<u8>(), 0..300)) {
        for (_, decoder) in DECODERS {
            decoder(&bytes);
        }
    }

    #[test]
    fn each_decoder_stands_what_looks_like_json(text in "[\\[\\]{}:,\"a-c0-9.eE+\\\\-]{0,60}", how in any::<u8>()) {
        decoders::json(text.as_bytes());
        decoders::lz4_json(&[&[how], text.as_bytes()].concat());
    }
}
