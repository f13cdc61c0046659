//! Headers that a client could end over: nested thousands deep, thousands of them, twice the same, names of any length.

use windlass::rabbitmq::DeadLetterTo;
use windlass::source::{DeadLetter, MessageSource};

use super::desk::{BOTH, Desk, SOON, next};
use super::props::{Entry, Props, nested};
use super::rabbit::bounded;

const DEPTHS: [usize; 3] = [100, 1_000, 15_000];

// BC-33 (c)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_nested_thousands_deep_are_dead_lettered_once_and_what_is_behind_them_is_handled() {
    for (kind, to) in
        BOTH.into_iter().flat_map(|kind| [(kind, DeadLetterTo::Queue), (kind, DeadLetterTo::Broker)])
    {
        let mut desk = Desk::new("deep", kind).await;
        for depth in DEPTHS {
            let props = Props::of(&depth.to_string());
            desk.publish(&props.headers(&[Entry::text("tenant", "a"), nested(depth)]), b"deep").await;
        }
        desk.publish(&Props::of("64").headers(&[nested(64)]), b"good").await;
        let source = desk.source(1, to.clone()).await;
        let good = desk.retry_next(&source, SOON).await;
        assert_eq!((good.id(), good.redelivered()), ("64", false), "the others are none of a handler's");
        assert_eq!(desk.ack_next(&source).await.attempt(), 2);
        desk.until_letters(3).await;
        let by_copy = to == DeadLetterTo::Queue;
        let letters = desk.finish(source).await;
        assert_eq!(letters.len(), DEPTHS.len(), "each once");
        for letter in letters {
            assert_eq!(letter.body, b"deep");
            if by_copy {
                let cause = letter.props.header_text("windlass-cause");
                assert_eq!(cause.as_deref(), Some("headers_unreadable"), "{}", letter.props.id());
                let detail = letter.props.header_text("windlass-cause-detail").expect("a reason");
                assert!(detail.contains("64 deep"), "{detail}");
                let raw =
                    letter.props.header("windlass-unreadable-properties").expect("all that came, as bytes");
                let depth: usize = letter.props.id().parse().unwrap();
                assert_eq!(raw.code, b'x');
                assert_eq!(Props::decode(&raw.value).header("deep"), Some(nested(depth)));
            } else {
                let depth: usize = letter.props.id().parse().unwrap();
                assert_eq!(letter.props.header("deep"), Some(nested(depth)), "the broker moved it as it was");
            }
        }
    }
}

// BC-33 (c): an operator reads the dead letters with the same library.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_dead_letter_of_an_unreadable_message_can_be_received() {
    let mut desk = Desk::new("deep-letter", super::rabbit::QueueType::Quorum).await;
    desk.publish(&Props::of("deep").headers(&[nested(1_000)]), b"deep").await;
    desk.publish(&Props::of("good"), b"good").await;
    let source = desk.source(1, DeadLetterTo::Queue).await;
    assert_eq!(desk.ack_next(&source).await.id(), "good");
    desk.until_letters(1).await;
    let letters =
        bounded("open", desk.rabbit.source(desk.letters()).open()).await.expect("the queue is there");
    let delivery = next(&letters).await;
    let letter = DeadLetter::of(&delivery.message).expect("it bears a cause");
    assert_eq!(letter.cause.code(), "headers_unreadable");
    assert_eq!(
        (letter.queue.as_str(), delivery.message.body().as_ref()),
        (desk.queue.as_str(), &b"deep"[..])
    );
    bounded("close", letters.close()).await.expect("the source closes");
    assert_eq!(desk.finish(source).await.len(), 1);
}

// BC-33 (d)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_headers_and_odd_names_come_through_retry_and_dead_letter() {
    for kind in BOTH {
        let mut desk = Desk::new("odd-names", kind).await;
        let many: Vec<_> =
            (0..5_000_i32).map(|n| Entry::new(format!("h-{n:04}"), b'I', n.to_be_bytes())).collect();
        let long = "k".repeat(255);
        let number = |name: &str, n: i32| Entry::new(name, b'I', n.to_be_bytes());
        let odd = [number("twice", 1), number("", 2), number(&long, 3), number("twice", 4), number("é ☃", 5)];
        desk.publish(&Props::of("many").headers(&many), b"x").await;
        desk.publish(&Props::of("odd").headers(&odd), b"x").await;
        let source = desk.source(1, DeadLetterTo::Queue).await;
        for attempt in 1..=2 {
            for id in ["many", "odd"] {
                let message = if attempt == 1 {
                    desk.retry_next(&source, SOON).await
                } else {
                    desk.give_up_next(&source, "looked at").await
                };
                let value = |name: &str| message.headers().get(name).and_then(|value| value.as_i64());
                assert_eq!((message.id(), message.attempt()), (id, attempt));
                if id == "many" {
                    assert!((0..5_000).all(|n| value(&format!("h-{n:04}")) == Some(n)), "all are there");
                } else {
                    assert!([Some(1), Some(4)].contains(&value("twice")), "one of the two");
                    assert_eq!([value(""), value(&long), value("é ☃")], [Some(2), Some(3), Some(5)]);
                }
            }
        }
        let letters = desk.finish(source).await;
        let ids: Vec<String> = letters.iter().map(|letter| letter.props.id()).collect();
        assert_eq!(ids, ["many", "odd"]);
        assert!(many.iter().all(|entry| letters[0].props.entries().contains(entry)));
        assert!(odd[1..3].iter().all(|entry| letters[1].props.entries().contains(entry)));
    }
}
