//! How many bytes a message's header frame has. It must fit into one frame: the broker closes the connection over a
//! longer one, and everybody's messages with it.

use lapin::BasicProperties;
use lapin::types::{AMQPValue, ShortString};

use super::headers::Table;

/// Type, channel, length and end of a frame; class, weight and size of the body; flags of the properties.
const FIXED: usize = (1 + 2 + 4 + 1) + (2 + 2 + 8) + 2;

/// The exact length of the header frame with these properties and headers; `properties` has no headers of its own. No
/// headers are not sent as an empty table.
pub(super) fn header_frame_len(properties: &BasicProperties, headers: &Table) -> usize {
    let texts = [
        properties.content_type(),
        properties.content_encoding(),
        properties.correlation_id(),
        properties.reply_to(),
        properties.expiration(),
        properties.message_id(),
        properties.kind(),
        properties.user_id(),
        properties.app_id(),
        properties.cluster_id(),
    ];
    let texts: usize = texts.into_iter().flatten().map(short_len).sum();
    let numbers = usize::from(properties.delivery_mode().is_some())
        + usize::from(properties.priority().is_some())
        + 8 * usize::from(properties.timestamp().is_some());
    let table: usize = headers.iter().map(|(name, value)| entry_len(name, value)).sum();
    FIXED + texts + numbers + if headers.is_empty() { 0 } else { 4 + table }
}

/// The length of one entry of a table.
pub(super) fn entry_len(name: &ShortString, value: &AMQPValue) -> usize {
    short_len(name) + value_len(value)
}

fn short_len(text: &ShortString) -> usize {
    1 + text.as_str().len()
}

/// By a list of what is still to be measured, not by recursion: the length of a value is a sum.
fn value_len(value: &AMQPValue) -> usize {
    let mut len = 0;
    let mut left = Vec::new();
    let mut next = Some(value);
    while let Some(value) = next {
        len += 1 + match value {
            AMQPValue::Void => 0,
            AMQPValue::Boolean(_) | AMQPValue::ShortShortInt(_) | AMQPValue::ShortShortUInt(_) => 1,
            AMQPValue::ShortInt(_) | AMQPValue::ShortUInt(_) => 2,
            AMQPValue::LongInt(_) | AMQPValue::LongUInt(_) | AMQPValue::Float(_) => 4,
            AMQPValue::DecimalValue(_) => 5,
            AMQPValue::LongLongInt(_) | AMQPValue::Double(_) | AMQPValue::Timestamp(_) => 8,
            AMQPValue::ShortString(text) => short_len(text),
            AMQPValue::LongString(text) => 4 + text.len(),
            AMQPValue::ByteArray(bytes) => 4 + bytes.len(),
            AMQPValue::FieldArray(list) => {
                left.extend(list.as_slice());
                4
            }
            AMQPValue::FieldTable(table) => {
                left.extend(table.inner().values());
                4 + table.inner().keys().map(short_len).sum::<usize>()
            }
        };
        next = left.pop();
    }
    len
}

#[cfg(test)]
mod tests {
    use lapin::BasicProperties;
    use lapin::types::{AMQPValue, FieldArray, FieldTable};
    use proptest::option;
    use proptest::prelude::{ProptestConfig, any, prop_assert_eq, proptest};

    use super::super::headers::{Table, name, to_wire};
    use super::super::samples::{frame_len, headers, short, text};
    use super::{header_frame_len, value_len};

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_length_is_what_the_client_writes(
            headers in headers(),
            texts in proptest::collection::vec(option::of(text(255)), 10),
            numbers in (option::of(any::<u8>()), option::of(any::<u8>()), option::of(any::<u64>())),
        ) {
            let mut properties = BasicProperties::default();
            let set: [fn(BasicProperties, lapin::types::ShortString) -> BasicProperties; 10] = [
                BasicProperties::with_content_type,
                BasicProperties::with_content_encoding,
                BasicProperties::with_correlation_id,
                BasicProperties::with_reply_to,
                BasicProperties::with_expiration,
                BasicProperties::with_message_id,
                BasicProperties::with_type,
                BasicProperties::with_user_id,
                BasicProperties::with_app_id,
                BasicProperties::with_cluster_id,
            ];
            for (set, text) in set.into_iter().zip(&texts) {
                if let Some(text) = text {
                    properties = set(properties, short(text));
                }
            }
            if let Some(number) = numbers.0 {
                properties = properties.with_delivery_mode(number);
            }
            if let Some(number) = numbers.1 {
                properties = properties.with_priority(number);
            }
            if let Some(number) = numbers.2 {
                properties = properties.with_timestamp(number);
            }
            let entries = headers.iter().map(|(key, value)| (name(key).expect("short"), to_wire(value).expect("flat")));
            let table: Table = entries.collect();
            let measured = header_frame_len(&properties, &table);
            if !table.is_empty() {
                properties = properties.with_headers(FieldTable::from(table));
            }
            prop_assert_eq!(measured, frame_len(&properties));
        }
    }

    #[test]
    fn a_deep_value_is_measured_without_recursion() {
        let depth = 2_000;
        let value =
            (0..depth).fold(AMQPValue::Void, |value, _| AMQPValue::FieldArray(FieldArray::from(vec![value])));
        assert_eq!(value_len(&value), depth * 5 + 1);
    }
}
