//! Typed headers and timestamps come as they were sent, and every copy carries the same types and bytes.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use windlass::message::{HeaderValue, Headers};
use windlass::rabbitmq::{DeadLetterTo, Delivered};

use super::desk::{BOTH, Desk, SOON};
use super::props::{Entry, Props, TIMESTAMP, table, value};
use super::rabbit::QueueType;

/// 64-bit numbers have two codes, and clients write the small letter.
fn plain(entry: &Entry) -> Entry {
    let code = if entry.code == b'L' { b'l' } else { entry.code };
    Entry { code, ..entry.clone() }
}

/// The header `h` of each of these types, and what it is read as.
fn samples() -> Vec<(u8, Vec<u8>, HeaderValue)> {
    let list = [value(b'I', 1_i32.to_be_bytes()), value(b'S', "a"), value(b'V', [])].concat();
    let inner = table(&[Entry::new("flag", b't', [1])]);
    let tables = table(&[Entry::new("inner", b'F', inner)]);
    let flag: Headers = [("flag", true)].into_iter().collect();
    let minus_one = (-1_i32).to_be_bytes();
    vec![
        (b't', vec![1], true.into()),
        (b't', vec![0], false.into()),
        (b'b', vec![0xff], HeaderValue::I8(-1)),
        (b'B', vec![0xff], HeaderValue::U8(255)),
        (b's', vec![0xff; 2], HeaderValue::I16(-1)),
        (b'u', vec![0xff; 2], HeaderValue::U16(65_535)),
        (b'I', minus_one.to_vec(), HeaderValue::I32(-1)),
        (b'i', vec![0xff; 4], HeaderValue::U32(u32::MAX)),
        (b'l', vec![0xff; 8], HeaderValue::I64(-1)),
        (b'L', vec![0xff; 8], HeaderValue::I64(-1)),
        (b'f', 1.5_f32.to_be_bytes().to_vec(), HeaderValue::F32(1.5)),
        (b'd', 1.5_f64.to_be_bytes().to_vec(), HeaderValue::F64(1.5)),
        (b'D', vec![2, 0, 0, 0x30, 0x39], HeaderValue::Decimal { scale: 2, value: 12_345 }),
        (b'D', vec![2, 0xff, 0xff, 0xff, 0xff], HeaderValue::Decimal { scale: 2, value: u32::MAX }),
        (b'S', b"text".to_vec(), "text".into()),
        (b'S', vec![], "".into()),
        (b'S', vec![0xff, 0xfe], HeaderValue::RawText(Bytes::from_static(b"\xff\xfe"))),
        (b'x', vec![0, 1, 0xff], HeaderValue::Bytes(Bytes::from_static(b"\x00\x01\xff"))),
        (b'A', list, HeaderValue::List(vec![1_i32.into(), "a".into(), HeaderValue::Null])),
        (b'A', vec![], HeaderValue::List(vec![])),
        (b'T', vec![0xff; 8], HeaderValue::Timestamp(u64::MAX)),
        (b'F', tables, [("inner", flag)].into_iter().collect::<Headers>().into()),
        (b'F', vec![], Headers::new().into()),
        (b'V', vec![], HeaderValue::Null),
    ]
}

// BC-49
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_field_type_is_read_right_and_every_copy_carries_the_same_bytes() {
    let samples = samples();
    let mut desk = Desk::new("field-types", QueueType::Classic).await;
    for (number, (code, bytes, _)) in samples.iter().enumerate() {
        let props = Props::of(&number.to_string()).headers(&[Entry::new("h", *code, bytes)]);
        desk.publish(&props, b"body").await;
    }
    let source = desk.source(64, DeadLetterTo::Queue).await;
    for attempt in 1..=2 {
        for _ in &samples {
            let message = if attempt == 1 {
                desk.retry_next(&source, SOON).await
            } else {
                desk.give_up_next(&source, "looked at").await
            };
            let (code, _, wanted) = &samples[message.id().parse::<usize>().unwrap()];
            assert_eq!(message.headers().get("h"), Some(wanted), "{} at {attempt}", char::from(*code));
            assert_eq!((message.attempt(), message.body().as_ref()), (attempt, &b"body"[..]));
        }
    }
    let letters = desk.finish(source).await;
    assert_eq!(letters.len(), samples.len());
    for letter in letters {
        let (code, bytes, _) = &samples[letter.props.id().parse::<usize>().unwrap()];
        let sent = plain(&Entry::new("h", *code, bytes));
        assert_eq!(letter.props.header("h").map(|entry| plain(&entry)), Some(sent));
        assert_eq!(letter.props.header_text("windlass-cause").as_deref(), Some("looked at"));
    }
}

// BC-53
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_timestamp_is_kept_as_it_came_and_is_a_date_only_where_it_can_be_one() {
    const SECONDS: [u64; 7] =
        [0, 1_700_000_000, 4_102_444_800, 1_700_000_000_000, (1 << 63) - 1, 1 << 63, u64::MAX];
    for kind in BOTH {
        let mut desk = Desk::new("timestamps", kind).await;
        for seconds in SECONDS {
            let header = Entry::new("at", b'T', seconds.to_be_bytes());
            let props = Props::of(&seconds.to_string()).timestamp(seconds).headers(&[header]);
            desk.publish(&props, b"").await;
        }
        let source = desk.source(16, DeadLetterTo::Queue).await;
        for attempt in 1..=2 {
            for _ in SECONDS {
                let message = if attempt == 1 {
                    desk.retry_next(&source, SOON).await
                } else {
                    desk.give_up_next(&source, "looked at").await
                };
                let seconds: u64 = message.id().parse().unwrap();
                let came = message.metadata::<Delivered>().expect("how it came");
                assert_eq!(came.properties.timestamp, Some(seconds));
                assert_eq!(message.headers().get("at"), Some(&HeaderValue::Timestamp(seconds)));
                let date = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds));
                assert_eq!(came.properties.timestamp(), date);
            }
        }
        let letters = desk.finish(source).await;
        assert_eq!(letters.len(), SECONDS.len());
        for letter in letters {
            let seconds = letter.props.id().parse::<u64>().unwrap().to_be_bytes();
            assert_eq!(letter.props.get(TIMESTAMP), Some(&seconds[..]));
            assert_eq!(letter.props.header("at"), Some(Entry::new("at", b'T', seconds)));
        }
    }
}
