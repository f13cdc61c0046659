//! What cannot be routed is returned, and confirmed all the same: each publish gets its own outcome, every time.

use futures::future::join_all;
use windlass::ErrorKind;
use windlass::message::Message;

use super::desk::{Desk, kind, message};
use super::rabbit::{QueueType, bounded};

const UNROUTABLE: Option<ErrorKind> = Some(ErrorKind::Unroutable);

// BC-37
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_is_routed_and_one_that_is_not_in_turns_get_their_own_outcomes() {
    let desk = Desk::new("in-turns").await;
    for queue_type in [QueueType::Classic, QueueType::Quorum] {
        let queue = desk.queue(&queue_type.to_string(), queue_type).await;
        let missing = desk.name("missing");
        for number in 0..100 {
            let id = |name: &str| format!("{name}-{queue_type}-{number}");
            let there = desk.publish(&queue, message(id("there"))).await;
            let gone = desk.publish(&missing, message(id("gone"))).await;
            assert_eq!((kind(&there), kind(&gone)), (None, UNROUTABLE), "{number}");
            let pair = [
                desk.publish(&missing, message(id("pair-gone"))),
                desk.publish(&queue, message(id("pair-there"))),
            ];
            let outcomes = bounded("a pair", join_all(pair)).await;
            assert_eq!(outcomes.iter().map(kind).collect::<Vec<_>>(), [UNROUTABLE, None], "{number}");
        }
        assert_eq!(desk.account(&[&queue]).await, [200]);
    }
    desk.end().await;
}

// BC-37
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_at_once_of_which_half_cannot_be_routed_get_their_own_outcomes() {
    let desk = Desk::new("at-once").await;
    let [classic, quorum] =
        [desk.queue("classic", QueueType::Classic).await, desk.queue("quorum", QueueType::Quorum).await];
    let missing = [desk.name("missing"), desk.name("missing-too")];
    let large = vec![b'x'; 300_000];
    for round in 0..3 {
        let publishes = (0..2_000_usize).map(|number| {
            let target = match number % 4 {
                0 => &classic,
                2 => &quorum,
                _ => &missing[number / 4 % 2],
            };
            let message = message(format!("{round}-{number}"));
            // A few of those that come back are of 300 KB, and take many frames.
            let message = if number % 250 == 1 { message.with_body(large.clone()) } else { message };
            desk.publish(target, message)
        });
        let outcomes = bounded("all", join_all(publishes)).await;
        for (number, outcome) in outcomes.iter().enumerate() {
            let wanted = if number % 2 == 0 { None } else { UNROUTABLE };
            assert_eq!(kind(outcome), wanted, "{number} of round {round}");
        }
    }
    assert_eq!(desk.account(&[&classic, &quorum]).await, [1_500, 1_500]);
    desk.end().await;
}

// Nothing but their order tells such messages apart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equal_messages_to_a_queue_that_is_missing_are_all_unroutable() {
    let desk = Desk::new("equal").await;
    let queue = desk.queue("queue", QueueType::Quorum).await;
    let missing = desk.name("missing");
    let equal = || Message::new("same").with_id("same");
    let publishes = (0..600).map(|number| {
        let target = if number % 3 == 0 { &queue } else { &missing };
        let publish = windlass::publisher::Publisher::publish(&desk.publisher, target, equal());
        async move { (number, publish.await) }
    });
    for (number, outcome) in bounded("all", join_all(publishes)).await {
        assert_eq!(kind(&outcome), if number % 3 == 0 { None } else { UNROUTABLE }, "{number}");
    }
    assert_eq!(desk.raw.purge(&queue).await, 200);
    desk.end().await;
}
