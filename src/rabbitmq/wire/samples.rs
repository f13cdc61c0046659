//! For the tests of this module: random headers, and bytes as they are on the wire.

use bytes::Bytes;
use lapin::BasicProperties;
use lapin::message::Delivery;
use lapin::protocol::basic::gen_properties;
use lapin::types::{FieldTable, ShortString, generation, parsing};
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::{char, collection};

use super::headers::Table;
use crate::message::{HeaderValue, Headers};

pub(super) fn text(longest: usize) -> impl Strategy<Value = String> {
    collection::vec(char::any(), 0..=longest / 4).prop_map(|chars| chars.into_iter().collect())
}

/// Any value, lists and tables within each other included. `NaN` is left out: it is not equal to itself.
pub(super) fn values() -> impl Strategy<Value = HeaderValue> {
    let leaf = prop_oneof![
        Just(HeaderValue::Null),
        any::<bool>().prop_map(HeaderValue::from),
        any::<i8>().prop_map(HeaderValue::from),
        any::<u8>().prop_map(HeaderValue::from),
        any::<i16>().prop_map(HeaderValue::from),
        any::<u16>().prop_map(HeaderValue::from),
        any::<i32>().prop_map(HeaderValue::from),
        any::<u32>().prop_map(HeaderValue::from),
        any::<i64>().prop_map(HeaderValue::from),
        proptest::num::f32::NORMAL.prop_map(HeaderValue::from),
        proptest::num::f64::NORMAL.prop_map(HeaderValue::from),
        (any::<u8>(), any::<u32>()).prop_map(|(scale, value)| HeaderValue::Decimal { scale, value }),
        any::<u64>().prop_map(HeaderValue::Timestamp),
        text(80).prop_map(HeaderValue::from),
        collection::vec(any::<u8>(), 0..20).prop_map(|mut bytes| {
            bytes.push(0xff);
            HeaderValue::RawText(Bytes::from(bytes))
        }),
        collection::vec(any::<u8>(), 0..40).prop_map(|bytes| HeaderValue::Bytes(Bytes::from(bytes))),
    ];
    leaf.prop_recursive(5, 40, 6, |inner| {
        prop_oneof![
            collection::vec(inner.clone(), 0..6).prop_map(HeaderValue::List),
            collection::btree_map(text(40), inner, 0..6)
                .prop_map(|map| HeaderValue::Table(map.into_iter().collect())),
        ]
    })
}

pub(super) fn headers() -> impl Strategy<Value = Headers> {
    collection::btree_map(text(255), values(), 0..8).prop_map(|map| map.into_iter().collect())
}

/// A value in `depth` lists.
pub(super) fn nested(depth: usize) -> HeaderValue {
    (0..depth).fold(HeaderValue::Null, |value, _| HeaderValue::List(vec![value]))
}

/// A table as it comes: `entries` are names, codes of types, and bytes.
pub(super) fn parsed(entries: &[(&str, u8, &[u8])]) -> FieldTable {
    let mut bytes = Vec::new();
    for (name, code, value) in entries {
        bytes.push(u8::try_from(name.len()).expect("a short name"));
        bytes.extend_from_slice(name.as_bytes());
        bytes.push(*code);
        bytes.extend_from_slice(value);
    }
    let len = u32::try_from(bytes.len()).expect("a small table");
    let framed = [&len.to_be_bytes(), bytes.as_slice()].concat();
    let (rest, table) = parsing::parse_field_table(framed.as_slice()).expect("a table that parses");
    assert!(rest.is_empty());
    table
}

pub(super) fn encoded_table(table: &FieldTable) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 20];
    let cursor = std::io::Cursor::new(bytes.as_mut_slice());
    let (_, len) = generation::gen_field_table(table)(cursor.into()).expect("it fits").into_inner();
    bytes.truncate(usize::try_from(len).expect("a small table"));
    bytes
}

pub(super) fn encoded(properties: &BasicProperties) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 20];
    let cursor = std::io::Cursor::new(bytes.as_mut_slice());
    let (_, len) = gen_properties(properties)(cursor.into()).expect("it fits").into_inner();
    bytes.truncate(usize::try_from(len).expect("small properties"));
    bytes
}

/// The length of the header frame, by the client's own writing.
pub(super) fn frame_len(properties: &BasicProperties) -> usize {
    // Type, channel, length and end of the frame; class, weight, size of the body.
    8 + 12 + encoded(properties).len()
}

pub(super) fn heartbeat() -> Vec<u8> {
    vec![8, 0, 0, 0, 0, 0, 0, 0xce]
}

pub(super) fn short(text: &str) -> ShortString {
    ShortString::try_new(text).expect("a short text")
}

pub(super) fn delivery(properties: BasicProperties, body: &[u8]) -> Delivery {
    let mut delivery = Delivery::mock(7, short("events"), short("orders.new"), false, body.to_vec());
    delivery.properties = properties;
    delivery
}

pub(super) fn table_of(properties: &BasicProperties) -> Table {
    properties.headers().as_ref().map(|table| table.inner().clone()).unwrap_or_default()
}
