//! Counting: which attempt a delivery is, by a header of our own, and how often the broker says it delivered it.

use super::headers::kind;
use crate::message::{HeaderValue, Headers, Message};

/// Our own header with the number of the attempt. No `x-` before it: that namespace is the broker's.
pub(super) const ATTEMPT: &str = "windlass-attempt";

/// The highest attempt that is counted, and so the highest that is read: a higher one is garbage. A million retries
/// are eleven days of one each second; a policy that allows more never ends, and does not mean to.
pub(super) const LARGEST_ATTEMPT: u32 = 1_000_000;

/// Written by quorum queues; the second from 4.3 on, where the first no longer counts requeues.
pub(super) const DELIVERY_COUNT: &str = "x-delivery-count";
pub(super) const ACQUIRED_COUNT: &str = "x-acquired-count";

/// Which attempt this is, by the value of [`ATTEMPT`]; `id` names the message in the warning about one that is none.
///
/// Whoever published the message may have written anything there. What is no attempt is read as the first one: the
/// message is tried as often as any other, no more and no less. `x-death` is not asked: the broker counts there what it
/// did, for this queue and others, and clients carry it on as they like.
pub(super) fn attempt(value: Option<&HeaderValue>, id: &str) -> u32 {
    let Some(value) = value else { return 1 };
    let number = value.as_i64().and_then(|number| u32::try_from(number).ok());
    match number.filter(|number| (1..=LARGEST_ATTEMPT).contains(number)) {
        Some(number) => number,
        None => {
            tracing::warn!(
                header = ATTEMPT,
                kind = kind(value),
                message_id = id,
                "a header that counts attempts holds no attempt: counting from 1"
            );
            1
        }
    }
}

/// What is written for an attempt; does not grow past what would be read.
pub(super) fn attempt_value(attempt: u32) -> HeaderValue {
    HeaderValue::U32(attempt.clamp(1, LARGEST_ATTEMPT))
}

/// How often the broker says it delivered the message, this time included; `None` where it does not say.
///
/// On a first delivery the headers are not asked: a quorum queue writes none then, and what is there is a publisher's.
/// Classic queues say that a message is redelivered, and not how often.
pub(super) fn delivery_count(headers: &Headers, redelivered: bool) -> Option<u64> {
    if !redelivered {
        return Some(1);
    }
    let before = headers.get(ACQUIRED_COUNT).or_else(|| headers.get(DELIVERY_COUNT))?;
    // Ours is one more: the broker counts those that came to nothing.
    before.as_i64().and_then(|before| u64::try_from(before).ok())?.checked_add(1)
}

/// What a queue does when a message is given back to it once more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::rabbitmq) enum HandedBack {
    /// Not known: it never came back, or the queue is a classic one.
    Unknown,
    /// It adds one to the count that it holds against its delivery limit, which stands at this.
    Counted(u64),
    /// Nothing, where the message is requeued; a channel that ends counts. RabbitMQ from 4.3 on.
    Free,
}

/// How its queue counts what is handed back, by what it wrote on `message`. On a first delivery the headers are a
/// publisher's.
pub(in crate::rabbitmq) fn handed_back(message: &Message) -> HandedBack {
    let number = |name| {
        let count = message.headers().get(name).and_then(HeaderValue::as_i64);
        count.and_then(|count| u64::try_from(count).ok())
    };
    match (message.redelivered(), number(ACQUIRED_COUNT), number(DELIVERY_COUNT)) {
        (true, Some(_), _) => HandedBack::Free,
        (true, None, Some(count)) => HandedBack::Counted(count),
        _ => HandedBack::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::{LARGEST_ATTEMPT, attempt, attempt_value, delivery_count};
    use crate::message::{HeaderValue, Headers};

    fn table(name: &str, value: HeaderValue) -> Headers {
        [(name, value)].into_iter().collect()
    }

    #[test]
    fn a_whole_number_of_any_width_is_an_attempt() {
        let values =
            [2_i8.into(), 2_u8.into(), 2_i16.into(), 2_u16.into(), 2_i32.into(), 2_u32.into(), 2_i64.into()];
        for value in values {
            assert_eq!(attempt(Some(&value), "m"), 2, "{value:?}");
        }
        assert_eq!(attempt(None, "m"), 1);
    }

    #[test]
    fn garbage_is_the_first_attempt() {
        let garbage = [
            "2".into(),
            "".into(),
            (-1_i32).into(),
            0_i64.into(),
            // The largest unsigned number of 64 bits, as it is read.
            (-1_i64).into(),
            i64::MAX.into(),
            i64::from(LARGEST_ATTEMPT + 1).into(),
            u32::MAX.into(),
            2.0_f64.into(),
            2.0_f32.into(),
            true.into(),
            HeaderValue::Null,
            HeaderValue::Timestamp(2),
            HeaderValue::Decimal { scale: 0, value: 2 },
            HeaderValue::List(vec![2_i32.into()]),
            table("count", 2_i32.into()).into(),
            HeaderValue::RawText(bytes::Bytes::from_static(b"\xff")),
        ];
        for value in garbage {
            assert_eq!(attempt(Some(&value), "m"), 1, "{value:?}");
        }
    }

    #[test]
    fn what_is_written_is_read_and_adding_one_never_overflows() {
        for number in [1, 2, LARGEST_ATTEMPT] {
            assert_eq!(attempt(Some(&attempt_value(number)), "m"), number);
        }
        assert_eq!(attempt(Some(&attempt_value(LARGEST_ATTEMPT + 1)), "m"), LARGEST_ATTEMPT);
        assert_eq!(attempt(Some(&attempt_value(0)), "m"), 1);
    }

    #[test]
    fn a_first_delivery_is_the_first_whatever_the_headers_say() {
        for name in ["x-delivery-count", "x-acquired-count"] {
            assert_eq!(delivery_count(&table(name, 7_i64.into()), false), Some(1));
        }
        assert_eq!(delivery_count(&Headers::new(), false), Some(1));
    }

    #[test]
    fn a_redelivery_is_counted_by_what_the_broker_acquired_and_else_by_what_it_delivered() {
        assert_eq!(delivery_count(&table("x-delivery-count", 1_i64.into()), true), Some(2));
        let mut both = table("x-delivery-count", 1_i64.into());
        both.insert("x-acquired-count", 4_i64);
        assert_eq!(delivery_count(&both, true), Some(5));
        assert_eq!(delivery_count(&table("x-delivery-count", i64::MAX.into()), true), Some(1 << 63));
        // A classic queue.
        assert_eq!(delivery_count(&Headers::new(), true), None);
    }

    #[test]
    fn a_count_that_is_garbage_is_no_count() {
        let garbage =
            ["5".into(), (-5_i64).into(), 1.5_f64.into(), HeaderValue::Null, HeaderValue::List(Vec::new())];
        for value in garbage {
            assert_eq!(delivery_count(&table("x-delivery-count", value.clone()), true), None, "{value:?}");
            assert_eq!(delivery_count(&table("x-acquired-count", value.clone()), true), None, "{value:?}");
        }
    }
}
