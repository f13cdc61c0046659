//! What must hold of each decoder for any bytes whatever. The fuzz targets of `tests/fuzz` run these functions on what
//! they make up, and `tests/codec_corpus.rs` on what is in `tests/corpus`.

// Each user of this uses its part.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use windlass::codec::lz4::{Lz4Format, pack_block, pack_frame, unpack_block, unpack_frame};
use windlass::codec::{Codec, Json, Lz4, Received, StrictJson};
use windlass::message::Message;

/// Small, so that it is reached.
const LIMIT: usize = 64 * 1024;

type Decoder = fn(&[u8]);

/// What runs each decoder, by the name of its fuzz target and its folder in the corpus.
pub(crate) const DECODERS: [(&str, Decoder); 4] =
    [("lz4_block", lz4_block), ("lz4_frame", lz4_frame), ("json", json), ("lz4_json", lz4_json)];

pub(crate) fn lz4_block(bytes: &[u8]) {
    match unpack_block(bytes, LIMIT) {
        Ok(body) => {
            assert!(body.len() <= LIMIT);
            assert_eq!(bytes[..4], (body.len() as u32).to_le_bytes(), "what it claims");
            assert_eq!(unpack_block(&pack_block(&body).unwrap(), LIMIT).unwrap(), body);
            assert_eq!(lz4_flex::decompress_size_prepended(bytes).unwrap(), body);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

pub(crate) fn lz4_frame(bytes: &[u8]) {
    match unpack_frame(bytes, LIMIT) {
        Ok(body) => {
            assert!(body.len() <= LIMIT);
            assert_eq!(unpack_frame(&pack_frame(&body).unwrap(), LIMIT).unwrap(), body);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Order {
    id: u64,
    #[serde(default)]
    names: Vec<String>,
    #[serde(default)]
    more: BTreeMap<String, Option<i32>>,
    inner: Option<Box<Order>>,
}

pub(crate) fn json(bytes: &[u8]) {
    through::<Order, _>(&Json, &Message::new(bytes.to_vec()));
    let message = Message::new(bytes.to_vec());
    // Not the same once more: serde_json may read a float one step beside.
    let strict: Result<serde_json::Value, _> = StrictJson.decode(Received::new(&message));
    let loose: Result<serde_json::Value, _> = Json.decode(Received::new(&message));
    assert!(loose.is_ok() || strict.is_err(), "what is strict is JSON");
}

/// The first byte says how the codec is set and how the message is labelled.
pub(crate) fn lz4_json(bytes: &[u8]) {
    let Some((how, body)) = bytes.split_first() else { return };
    let format = if how & 1 == 0 { Lz4Format::Block } else { Lz4Format::Frame };
    let codec = Lz4::new(Json).format(format).compress_above(0).max_unpacked_bytes(LIMIT);
    let codec = [codec, codec.always(), codec.off(), codec][usize::from(how >> 1 & 3)];
    let labels = [
        None,
        Some("lz4"),
        Some("LZ4-block"),
        Some("lz4-frame"),
        Some("gzip"),
        Some("utf-8"),
        Some(""),
        None,
    ];
    let mut message = Message::new(body.to_vec());
    if let Some(label) = labels[usize::from(how >> 3 & 7)] {
        message = message.with_content_encoding(label);
    }
    through::<Order, _>(&codec, &message);
}

/// What is decoded is the same once it was encoded and decoded again.
fn through<T, C>(codec: &C, message: &Message)
where
    T: PartialEq + std::fmt::Debug,
    C: Codec<T>,
{
    match codec.decode(Received::new(message)) {
        Ok(payload) => {
            // What unpacks to just less than the limit may be longer as it is written here.
            let Ok(encoded) = codec.encode(&payload) else { return };
            let mut again = Message::new(encoded.body);
            if let Some(label) = encoded.content_encoding {
                again = again.with_content_encoding(label);
            }
            assert_eq!(codec.decode(Received::new(&again)).unwrap(), payload);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
