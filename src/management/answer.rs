//! Reading answers: the API leaves out what it does not know yet, and writes an empty object as `[]`.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// The fields of an object. What is missing, `null` or of another kind is unknown.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a>(Option<&'a Map<String, Value>>);

impl<'a> Fields<'a> {
    pub(super) fn of(value: &'a Value) -> Self {
        Self(value.as_object())
    }

    pub(super) fn get(self, name: &str) -> Option<&'a Value> {
        self.0?.get(name)
    }

    /// `undefined` is the broker's word for nothing.
    pub(super) fn text(self, name: &str) -> Option<String> {
        self.get(name)?.as_str().filter(|text| *text != "undefined").map(str::to_owned)
    }

    pub(super) fn number(self, name: &str) -> Option<u64> {
        self.get(name)?.as_u64()
    }

    pub(super) fn integer(self, name: &str) -> Option<i64> {
        self.get(name)?.as_i64()
    }

    pub(super) fn flag(self, name: &str) -> Option<bool> {
        self.get(name)?.as_bool()
    }

    /// Also where it is written as `[]`.
    pub(super) fn map(self, name: &str) -> Option<BTreeMap<String, Value>> {
        match self.get(name)? {
            Value::Object(map) => {
                Some(map.iter().map(|(name, value)| (name.clone(), value.clone())).collect())
            }
            Value::Array(list) if list.is_empty() => Some(BTreeMap::new()),
            _ => None,
        }
    }

    /// A list, or text with commas between, as up to 3.8.
    pub(super) fn words(self, name: &str) -> Vec<String> {
        match self.get(name) {
            Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            Some(Value::String(text)) => {
                text.split(',').map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// The things in a list, by pages or whole; one that is just going may have no name any more, and is left out.
pub(super) fn list<T>(value: &Value, read: impl Fn(Fields<'_>) -> Option<T>) -> Option<Vec<T>> {
    let items = value.as_array().or_else(|| value.get("items")?.as_array())?;
    Some(items.iter().filter_map(|item| read(Fields::of(item))).collect())
}
