//! What an argument of a queue, or a key of a policy, can be.

use std::fmt;

use serde::de::{Deserializer, Error, Visitor};
use serde::{Deserialize, Serialize};

/// The value of an argument of a queue, or of a key in a policy.
///
/// Numbers are whole and of 64 bits with a sign: the broker takes every such width for the same argument, and refuses
/// text and fractions, so these are refused where they are read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum Argument {
    /// Yes or no.
    Bool(bool),
    /// A whole number.
    Integer(i64),
    /// Text.
    Text(String),
}

impl Argument {
    /// The number, where it is one.
    pub fn as_integer(&self) -> Option<i64> {
        match self {
            Self::Integer(number) => Some(*number),
            Self::Bool(_) | Self::Text(_) => None,
        }
    }
}

impl From<bool> for Argument {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<i64> for Argument {
    fn from(value: i64) -> Self {
        Self::Integer(value)
    }
}

impl From<u32> for Argument {
    fn from(value: u32) -> Self {
        Self::Integer(i64::from(value))
    }
}

impl From<&str> for Argument {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

impl From<String> for Argument {
    fn from(value: String) -> Self {
        Self::Text(value)
    }
}

impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => value.fmt(f),
            Self::Integer(value) => value.fmt(f),
            Self::Text(value) => write!(f, "{value:?}"),
        }
    }
}

impl<'de> Deserialize<'de> for Argument {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Any)
    }
}

struct Any;

impl Visitor<'_> for Any {
    type Value = Argument;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("true or false, a whole number, or text")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Argument, E> {
        Ok(Argument::Bool(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Argument, E> {
        Ok(Argument::Integer(value))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Argument, E> {
        i64::try_from(value)
            .map(Argument::Integer)
            .map_err(|_| E::custom(format!("{value} is too large: at most {}", i64::MAX)))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Argument, E> {
        Err(E::custom(format!("{value:?} is no whole number: the broker takes no other")))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Argument, E> {
        Ok(Argument::Text(value.to_owned()))
    }
}
