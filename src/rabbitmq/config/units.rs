//! Durations in documents: whole numbers, whose unit stands in the field's name.

/// Whole seconds.
pub(super) mod seconds {
    use std::time::Duration;

    use serde::de::{Deserialize, Deserializer};

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_secs)
    }

    /// Writes the default into the schema.
    #[cfg(feature = "schema")]
    pub(in super::super) fn serialize<S: serde::Serializer>(
        value: &Duration,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.serialize_u64(value.as_secs())
    }
}

/// Whole milliseconds.
pub(super) mod millis {
    use std::time::Duration;

    use serde::de::{Deserialize, Deserializer};

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_millis)
    }

    /// Writes the default into the schema.
    #[cfg(feature = "schema")]
    pub(in super::super) fn serialize<S: serde::Serializer>(
        value: &Duration,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.serialize_u64(u64::try_from(value.as_millis()).unwrap_or(u64::MAX))
    }
}
