//! Durations in documents: whole milliseconds.

/// One that may be missing.
pub(super) mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(in super::super) fn serialize<S: Serializer>(
        value: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        value.as_ref().map(super::whole_ms).serialize(to)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(from)?.map(Duration::from_millis))
    }
}

/// A list of them.
pub(super) mod list_of_millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(in super::super) fn serialize<S: Serializer>(value: &[Duration], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(value.iter().map(super::whole_ms))
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<Duration>, D::Error> {
        Ok(Vec::<u64>::deserialize(from)?.into_iter().map(Duration::from_millis).collect())
    }
}

/// A list that may be missing.
pub(super) mod maybe_list_of_millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(in super::super) fn serialize<S: Serializer>(
        value: &Option<Vec<Duration>>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            None => to.serialize_none(),
            Some(value) => super::list_of_millis::serialize(value, to),
        }
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Vec<Duration>>, D::Error> {
        let steps = Option::<Vec<u64>>::deserialize(from)?;
        Ok(steps.map(|steps| steps.into_iter().map(Duration::from_millis).collect()))
    }
}

fn whole_ms(duration: &std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
