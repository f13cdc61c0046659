//! A message without a body has no body frame: it is a message all the same.

use windlass::rabbitmq::DeadLetterTo;

use super::desk::{BOTH, Desk, SOON};
use super::props::{Entry, Props};

// BC-51
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_body_is_handled_retried_and_dead_lettered_as_any_other() {
    for kind in BOTH {
        let mut desk = Desk::new("empty", kind).await;
        let header = Entry::new("n", b'I', 7_i32.to_be_bytes());
        for (id, body) in [("empty", &b""[..]), ("space", b" "), ("full", b"full")] {
            desk.publish(&Props::of(id).headers(std::slice::from_ref(&header)), body).await;
        }
        let source = desk.source(1, DeadLetterTo::Queue).await;
        for (id, body) in [("empty", &b""[..]), ("space", b" ")] {
            let message = desk.retry_next(&source, SOON).await;
            assert_eq!((message.id(), message.body().as_ref()), (id, body));
            assert_eq!(message.headers().get("n"), Some(&7_i32.into()));
        }
        let full = desk.ack_next(&source).await;
        assert_eq!((full.id(), full.body().as_ref()), ("full", &b"full"[..]));
        for _ in 0..2 {
            let again = desk.give_up_next(&source, "looked at").await;
            assert_eq!((again.attempt(), again.body().len()), (2, usize::from(again.id() == "space")));
            assert_eq!(again.headers().get("n"), Some(&7_i32.into()));
        }
        let letters = desk.finish(source).await;
        let mut bodies: Vec<_> =
            letters.iter().map(|letter| (letter.props.id(), letter.body.as_slice())).collect();
        bodies.sort();
        assert_eq!(bodies, [("empty".to_owned(), &b""[..]), ("space".to_owned(), b" ")]);
        assert!(letters.iter().all(|letter| letter.props.header("n").as_ref() == Some(&header)));
    }
}
