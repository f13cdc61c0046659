//! Typed headers, between AMQP's field types and this crate's. Each type has exactly one of the other side, so that a
//! copy carries what the original did.

use std::collections::BTreeMap;

use bytes::Bytes;
use lapin::types::{
    AMQPValue, ByteArray, DecimalValue, FieldArray, FieldTable, LongString, MAX_SHORT_STRING_LENGTH,
    ShortString,
};

use crate::message::{HeaderValue, Headers};

/// How deep lists and tables may stand within each other; a header that is a list or a table of plain values is 1 deep.
///
/// The client encodes and decodes them by recursion, with up to 8 KB of stack for each level in a debug build, on a
/// thread that has 2 MiB: a few hundred levels end the process. Nobody writes more than a handful.
pub(super) const DEEPEST: usize = 64;

/// A table as it is sent.
pub(super) type Table = BTreeMap<ShortString, AMQPValue>;

/// What was read of a table.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Read {
    pub(super) headers: Headers,
    /// The names of those that are left out, because they are nested deeper than [`DEEPEST`].
    pub(super) too_deep: Vec<String>,
}

pub(super) fn read(table: &FieldTable) -> Read {
    let mut read = Read::default();
    for (name, value) in table {
        match from_wire(value, DEEPEST) {
            Some(value) => {
                read.headers.insert(name.as_str(), value);
            }
            None => read.too_deep.push(name.as_str().to_owned()),
        }
    }
    read
}

/// `None` where more than `levels` lists and tables stand within each other.
fn from_wire(value: &AMQPValue, levels: usize) -> Option<HeaderValue> {
    Some(match value {
        AMQPValue::Boolean(value) => HeaderValue::Bool(*value),
        AMQPValue::ShortShortInt(value) => HeaderValue::I8(*value),
        AMQPValue::ShortShortUInt(value) => HeaderValue::U8(*value),
        AMQPValue::ShortInt(value) => HeaderValue::I16(*value),
        AMQPValue::ShortUInt(value) => HeaderValue::U16(*value),
        AMQPValue::LongInt(value) => HeaderValue::I32(*value),
        AMQPValue::LongUInt(value) => HeaderValue::U32(*value),
        AMQPValue::LongLongInt(value) => HeaderValue::I64(*value),
        AMQPValue::Float(value) => HeaderValue::F32(*value),
        AMQPValue::Double(value) => HeaderValue::F64(*value),
        AMQPValue::DecimalValue(DecimalValue { scale, value }) => {
            HeaderValue::Decimal { scale: *scale, value: *value }
        }
        // Has no code of its own, and so never comes over the wire.
        AMQPValue::ShortString(text) => HeaderValue::Text(text.as_str().to_owned()),
        AMQPValue::LongString(text) => match std::str::from_utf8(text.as_bytes()) {
            Ok(text) => HeaderValue::Text(text.to_owned()),
            Err(_) => HeaderValue::RawText(Bytes::copy_from_slice(text.as_bytes())),
        },
        AMQPValue::Timestamp(seconds) => HeaderValue::Timestamp(*seconds),
        AMQPValue::ByteArray(bytes) => HeaderValue::Bytes(Bytes::copy_from_slice(bytes.as_slice())),
        AMQPValue::Void => HeaderValue::Null,
        AMQPValue::FieldArray(list) => {
            let levels = levels.checked_sub(1)?;
            let values = list.as_slice().iter().map(|value| from_wire(value, levels));
            HeaderValue::List(values.collect::<Option<_>>()?)
        }
        AMQPValue::FieldTable(table) => {
            let levels = levels.checked_sub(1)?;
            let mut headers = Headers::new();
            for (name, value) in table {
                headers.insert(name.as_str(), from_wire(value, levels)?);
            }
            HeaderValue::Table(headers)
        }
    })
}

/// Why a header cannot be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unsendable {
    /// A name, its own or of one within it, has this many bytes.
    Name(usize),
    /// It is nested deeper than [`DEEPEST`].
    Deep,
}

impl Unsendable {
    /// What is wrong, and what to do about it.
    pub(super) fn fix(self) -> String {
        match self {
            Self::Name(len) => {
                format!("a name has {len} bytes; AMQP 0-9-1 takes {MAX_SHORT_STRING_LENGTH} at most")
            }
            Self::Deep => {
                format!("lists and tables are nested more than {DEEPEST} deep; put such data into the body")
            }
        }
    }
}

pub(super) fn name(name: &str) -> Result<ShortString, Unsendable> {
    // `ShortString::from` panics on a long one.
    ShortString::try_new(name).map_err(|_| Unsendable::Name(name.len()))
}

pub(super) fn to_wire(value: &HeaderValue) -> Result<AMQPValue, Unsendable> {
    to_wire_within(value, DEEPEST)
}

fn to_wire_within(value: &HeaderValue, levels: usize) -> Result<AMQPValue, Unsendable> {
    Ok(match value {
        HeaderValue::Null => AMQPValue::Void,
        HeaderValue::Bool(value) => AMQPValue::Boolean(*value),
        HeaderValue::I8(value) => AMQPValue::ShortShortInt(*value),
        HeaderValue::U8(value) => AMQPValue::ShortShortUInt(*value),
        HeaderValue::I16(value) => AMQPValue::ShortInt(*value),
        HeaderValue::U16(value) => AMQPValue::ShortUInt(*value),
        HeaderValue::I32(value) => AMQPValue::LongInt(*value),
        HeaderValue::U32(value) => AMQPValue::LongUInt(*value),
        HeaderValue::I64(value) => AMQPValue::LongLongInt(*value),
        HeaderValue::F32(value) => AMQPValue::Float(*value),
        HeaderValue::F64(value) => AMQPValue::Double(*value),
        HeaderValue::Decimal { scale, value } => {
            AMQPValue::DecimalValue(DecimalValue { scale: *scale, value: *value })
        }
        HeaderValue::Timestamp(seconds) => AMQPValue::Timestamp(*seconds),
        HeaderValue::Text(text) => AMQPValue::LongString(LongString::from(text.as_bytes())),
        HeaderValue::RawText(text) => AMQPValue::LongString(LongString::from(text.as_ref())),
        HeaderValue::Bytes(bytes) => AMQPValue::ByteArray(ByteArray::from(bytes.as_ref())),
        HeaderValue::List(list) => {
            let levels = levels.checked_sub(1).ok_or(Unsendable::Deep)?;
            let values = list.iter().map(|value| to_wire_within(value, levels));
            AMQPValue::FieldArray(FieldArray::from(values.collect::<Result<Vec<_>, _>>()?))
        }
        HeaderValue::Table(headers) => {
            let levels = levels.checked_sub(1).ok_or(Unsendable::Deep)?;
            let entries = headers.iter().map(|(key, value)| Ok((name(key)?, to_wire_within(value, levels)?)));
            AMQPValue::FieldTable(FieldTable::from(entries.collect::<Result<Table, _>>()?))
        }
    })
}

/// What a value is, for log lines that must not show it.
pub(super) fn kind(value: &HeaderValue) -> &'static str {
    match value {
        HeaderValue::Null => "null",
        HeaderValue::Bool(_) => "bool",
        HeaderValue::I8(_) => "i8",
        HeaderValue::U8(_) => "u8",
        HeaderValue::I16(_) => "i16",
        HeaderValue::U16(_) => "u16",
        HeaderValue::I32(_) => "i32",
        HeaderValue::U32(_) => "u32",
        HeaderValue::I64(_) => "i64",
        HeaderValue::F32(_) => "f32",
        HeaderValue::F64(_) => "f64",
        HeaderValue::Decimal { .. } => "decimal",
        HeaderValue::Timestamp(_) => "timestamp",
        HeaderValue::Text(_) => "text",
        HeaderValue::RawText(_) => "text that is not UTF-8",
        HeaderValue::Bytes(_) => "bytes",
        HeaderValue::List(_) => "list",
        HeaderValue::Table(_) => "table",
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use lapin::types::{AMQPValue, FieldArray, FieldTable};
    use proptest::prelude::{ProptestConfig, prop_assert_eq, proptest};

    use super::super::samples::{encoded_table, headers, nested, parsed, short};
    use super::{DEEPEST, Read, Table, Unsendable, name, read, to_wire};
    use crate::message::{HeaderValue, Headers};

    fn written(headers: &Headers) -> FieldTable {
        let entries = headers.iter().map(|(key, value)| Ok((name(key)?, to_wire(value)?)));
        FieldTable::from(entries.collect::<Result<Table, Unsendable>>().expect("headers that can be sent"))
    }

    fn only(value: &AMQPValue) -> Read {
        let mut table = FieldTable::default();
        table.insert(short("h"), value.clone());
        read(&table)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn what_is_written_is_read_as_it_was(headers in headers()) {
            let read = read(&written(&headers));
            prop_assert_eq!(read.headers, headers);
            prop_assert_eq!(read.too_deep, Vec::<String>::new());
        }
    }

    #[test]
    fn every_code_is_read_as_its_type_and_written_as_it_came() {
        let decimal = |value| HeaderValue::Decimal { scale: 2, value };
        let list = [&[0, 0, 0, 12, b'I', 0, 0, 0, 1, b'S', 0, 0, 0, 1, b'a', b'V'][..]].concat();
        let table = [0, 0, 0, 11, 1, b'o', b'F', 0, 0, 0, 4, 1, b'i', b't', 1];
        let inner: Headers = [("i", true)].into_iter().collect();
        let outer: Headers = [("o", inner)].into_iter().collect();
        let values = HeaderValue::List(vec![1_i32.into(), "a".into(), HeaderValue::Null]);
        let codes: [(u8, &[u8], HeaderValue); 20] = [
            (b't', &[1], true.into()),
            (b'b', &[0xff], (-1_i8).into()),
            (b'B', &[0xff], 255_u8.into()),
            (b's', &[0xff; 2], (-1_i16).into()),
            (b'u', &[0xff; 2], u16::MAX.into()),
            (b'I', &[0xff; 4], (-1_i32).into()),
            (b'i', &[0xff; 4], u32::MAX.into()),
            (b'l', &[0xff; 8], (-1_i64).into()),
            (b'L', &[0xff; 8], (-1_i64).into()),
            (b'l', &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfc, 0x18], (-1_000_i64).into()),
            (b'f', &[0x3f, 0xc0, 0, 0], 1.5_f32.into()),
            (b'd', &[0x3f, 0xf8, 0, 0, 0, 0, 0, 0], 1.5_f64.into()),
            (b'D', &[2, 0, 0, 0x30, 0x39], decimal(12_345)),
            (b'D', &[2, 0xff, 0xff, 0xff, 0xff], decimal(u32::MAX)),
            (b'S', &[0, 0, 0, 2, 0xff, 0xfe], HeaderValue::RawText(Bytes::from_static(b"\xff\xfe"))),
            (b'x', &[0, 0, 0, 2, 0, 1], HeaderValue::Bytes(Bytes::from_static(b"\0\x01"))),
            (b'A', &list, values),
            (b'T', &[0xff; 8], HeaderValue::Timestamp(u64::MAX)),
            (b'F', &table, outer.into()),
            (b'V', &[], HeaderValue::Null),
        ];
        for (code, bytes, value) in codes {
            let came = parsed(&[("h", code, bytes)]);
            let read = read(&came);
            assert_eq!(read.headers.get("h"), Some(&value), "code {}", char::from(code));
            // RabbitMQ reads `L` as `l`, and so does everybody behind it.
            let sent_as = if code == b'L' { b'l' } else { code };
            let copy = encoded_table(&written(&read.headers));
            assert_eq!(copy[6], sent_as);
            assert_eq!(&copy[7..], bytes, "code {}", char::from(code));
        }
    }

    #[test]
    fn headers_are_read_whatever_their_number_and_names() {
        let longest = "k".repeat(255);
        let table =
            parsed(&[("", b't', &[1]), (&longest, b't', &[1]), ("twice", b't', &[0]), ("twice", b't', &[1])]);
        let read = read(&table);
        assert_eq!(read.headers.len(), 3);
        assert_eq!(read.headers.get(""), Some(&true.into()));
        assert_eq!(read.headers.get("twice"), Some(&true.into()));
        let many: Headers = (0..5_000_i32).map(|number| (format!("header-{number}"), number)).collect();
        assert_eq!(super::read(&written(&many)).headers, many);
    }

    #[test]
    fn values_nested_too_deep_are_left_out_by_name() {
        // As deep as a test thread can drop; deeper ones do not get past the guard.
        for depth in [DEEPEST + 1, 100, 1_000] {
            let value = (0..depth)
                .fold(AMQPValue::Void, |value, _| AMQPValue::FieldArray(FieldArray::from(vec![value])));
            assert_eq!(only(&value).too_deep, ["h"]);
            let value = (0..depth).fold(AMQPValue::Void, |value, _| {
                let mut table = FieldTable::default();
                table.insert(short("k"), value);
                AMQPValue::FieldTable(table)
            });
            assert_eq!(only(&value).too_deep, ["h"]);
            assert_eq!(to_wire(&nested(depth)), Err(Unsendable::Deep));
        }
        let deepest = to_wire(&nested(DEEPEST)).expect("deep enough");
        assert_eq!(only(&deepest).headers.get("h"), Some(&nested(DEEPEST)));
    }

    #[test]
    fn a_long_name_is_refused_and_never_panics() {
        let long = "k".repeat(256);
        assert_eq!(name(&long), Err(Unsendable::Name(256)));
        let within: Headers = [(long, 1_i32)].into_iter().collect();
        assert_eq!(to_wire(&within.into()), Err(Unsendable::Name(256)));
    }
}
