//! Typed headers: every field type that AMQP 0-9-1 brokers carry, each kept as it came.

use std::collections::BTreeMap;

use bytes::Bytes;

/// The headers of a message, ordered by name. A name stands once; setting it again replaces the value.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Headers(BTreeMap<String, HeaderValue>);

/// One header's value. Integer widths are kept apart so that a copy carries the same types as the original.
///
/// The variants are the field types of AMQP 0-9-1 as RabbitMQ reads them, which have no unsigned 64-bit number; brokers
/// with fewer types use those they have.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum HeaderValue {
    /// A name without a value.
    Null,
    /// True or false.
    Bool(bool),
    /// A signed 8-bit number.
    I8(i8),
    /// An unsigned 8-bit number.
    U8(u8),
    /// A signed 16-bit number.
    I16(i16),
    /// An unsigned 16-bit number.
    U16(u16),
    /// A signed 32-bit number.
    I32(i32),
    /// An unsigned 32-bit number.
    U32(u32),
    /// A signed 64-bit number.
    I64(i64),
    /// A 32-bit float.
    F32(f32),
    /// A 64-bit float.
    F64(f64),
    /// A decimal: `value` divided by ten to the power of `scale`.
    Decimal {
        /// How many digits of `value` stand behind the point.
        scale: u8,
        /// All digits.
        value: u32,
    },
    /// Seconds since the Unix epoch, as the publisher wrote them; may be any 64-bit number.
    Timestamp(u64),
    /// Text.
    Text(String),
    /// What the publisher sent as text, where it is not UTF-8.
    RawText(Bytes),
    /// Bytes.
    Bytes(Bytes),
    /// A list.
    List(Vec<HeaderValue>),
    /// A table within the table.
    Table(Headers),
}

impl Headers {
    /// No headers.
    pub fn new() -> Self {
        Self::default()
    }

    /// The value of the header `name`.
    pub fn get(&self, name: &str) -> Option<&HeaderValue> {
        self.0.get(name)
    }

    /// Sets a header and returns the value that it had.
    pub fn insert(&mut self, name: impl Into<String>, value: impl Into<HeaderValue>) -> Option<HeaderValue> {
        self.0.insert(name.into(), value.into())
    }

    /// Takes a header out.
    pub fn remove(&mut self, name: &str) -> Option<HeaderValue> {
        self.0.remove(name)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Names and values, ordered by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &HeaderValue)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }
}

impl<'a> IntoIterator for &'a Headers {
    type Item = (&'a String, &'a HeaderValue);
    type IntoIter = std::collections::btree_map::Iter<'a, String, HeaderValue>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl<N: Into<String>, V: Into<HeaderValue>> FromIterator<(N, V)> for Headers {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(headers: I) -> Self {
        Self(headers.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

impl HeaderValue {
    /// The text, where this is text.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The number, where this is a whole number of any width.
    pub fn as_i64(&self) -> Option<i64> {
        match *self {
            Self::I8(number) => Some(number.into()),
            Self::U8(number) => Some(number.into()),
            Self::I16(number) => Some(number.into()),
            Self::U16(number) => Some(number.into()),
            Self::I32(number) => Some(number.into()),
            Self::U32(number) => Some(number.into()),
            Self::I64(number) => Some(number),
            _ => None,
        }
    }
}

macro_rules! from {
    ($($from:ty => $variant:ident),+ $(,)?) => {
        $(impl From<$from> for HeaderValue {
            fn from(value: $from) -> Self {
                Self::$variant(value.into())
            }
        })+
    };
}

from! {
    bool => Bool, i8 => I8, u8 => U8, i16 => I16, u16 => U16, i32 => I32, u32 => U32, i64 => I64, f32 => F32,
    f64 => F64, &str => Text, String => Text, Bytes => Bytes, Vec<HeaderValue> => List, Headers => Table,
}
