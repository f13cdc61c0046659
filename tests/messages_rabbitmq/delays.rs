//! Delays and expirations of any length: what the broker would close the channel over is rounded or cut, or refused
//! before it is sent.

use std::time::Duration;

use windlass::clock::{Clock, SystemClock};
use windlass::message::Message;
use windlass::publisher::Publisher;
use windlass::rabbitmq::ladder::{self, LONGEST_DELAY};
use windlass::rabbitmq::{DeadLetterTo, Delivered, Properties};
use windlass::{ErrorKind, Result};

use super::desk::{BOTH, Desk, SOON};
use super::props::{EXPIRATION, Props};
use super::rabbit::{QueueType, bounded};

const DAY: Duration = Duration::from_secs(86_400);

fn short() -> [Duration; 3] {
    [Duration::ZERO, Duration::from_micros(400), Duration::from_micros(1_500)]
}

fn long() -> [Duration; 5] {
    // 49.8 days are more milliseconds than 32 bits hold.
    let days = DAY.mul_f64(49.8);
    [DAY, days, LONGEST_DELAY, LONGEST_DELAY + Duration::from_millis(1), Duration::MAX]
}

async fn later(desk: &Desk, id: &str, delay: Duration) -> Result<()> {
    desk.ledger.published(id);
    let message = Message::new("x").with_id(id);
    bounded("publish", desk.rabbit.publisher().publish_later(&desk.queue, message, delay)).await?;
    desk.ledger.confirmed(id);
    Ok(())
}

// BC-55
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delay_of_any_length_is_accepted_rounded_up_and_cut_to_what_the_broker_takes() {
    let mut desk = Desk::new("delays", QueueType::Quorum).await;
    for delay in short().into_iter().chain(long()) {
        later(&desk, &format!("published-{delay:?}"), delay).await.expect("it is accepted");
    }
    for delay in long() {
        desk.publish(&Props::of(&format!("retried-{delay:?}")), b"x").await;
    }
    let source = desk.source(1, DeadLetterTo::Queue).await;
    for _ in 0..short().len() + long().len() {
        let delivery = desk.next(&source).await;
        let id = delivery.message.id().to_owned();
        match long().into_iter().find(|delay| id == format!("retried-{delay:?}")) {
            Some(delay) => {
                let retry = windlass::source::NackReason::retry_after(delay, "much later");
                let nack = windlass::source::MessageSource::nack(&source, delivery.receipt, retry);
                bounded("nack", nack).await.expect("the copy is taken");
            }
            None => {
                assert!(short().iter().any(|delay| id == format!("published-{delay:?}")), "{id}");
                let ack = windlass::source::MessageSource::ack(&source, delivery.receipt);
                bounded("ack", ack).await.expect("it is sent");
            }
        }
    }
    // Three of the delays are cut to the longest, and share its queue.
    let mut waiting = 0;
    let mut queues: Vec<String> = long().map(|delay| ladder::wait_queue(&desk.queue, delay)).into();
    queues.dedup();
    assert_eq!(queues.len(), 3);
    for queue in queues {
        for got in desk.wire.take_all(&queue).await {
            assert_eq!(got.props.get(EXPIRATION), None, "the queue has the time to live");
            desk.ledger.queued(&got.props.id());
            waiting += 1;
        }
    }
    assert_eq!(waiting, 2 * long().len(), "each waits in its queue");
    assert!(desk.finish(source).await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_published_with_several_delays_comes_in_the_order_of_the_delays_and_not_before() {
    for kind in BOTH {
        let desk = Desk::new("parallel-delays", kind).await;
        let source = desk.source(16, DeadLetterTo::Queue).await;
        let began = SystemClock.wall();
        let delays = [3_000, 200, 1_500, 700, 200].map(Duration::from_millis);
        let publishes = delays.iter().enumerate().map(|(number, delay)| {
            let id = format!("{number}-{}", delay.as_millis());
            let desk = &desk;
            async move { later(desk, &id, *delay).await.expect("it is accepted") }
        });
        futures::future::join_all(publishes).await;
        let mut came = Vec::new();
        for _ in delays {
            let message = desk.ack_next(&source).await;
            let (_, delay) = message.id().split_once('-').unwrap();
            let delay = delay.parse::<u64>().unwrap();
            let took = message.received_at().duration_since(began).unwrap();
            assert!(took >= Duration::from_millis(delay), "{delay} ms came after {took:?}");
            came.push(delay);
        }
        assert_eq!(came, [200, 200, 700, 1_500, 3_000], "none waits behind a longer one");
        assert!(desk.finish(source).await.is_empty());
    }
}

// BC-55
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expiration_is_read_where_it_is_a_number_and_no_copy_carries_it() {
    for kind in BOTH {
        let mut desk = Desk::new("expirations", kind).await;
        let cases = [("0060000", 60_000), ("4294967296", 4_294_967_296), ("315360000000", 315_360_000_000)];
        for (text, _) in cases {
            desk.publish(&Props::of(text).text(EXPIRATION, text), b"x").await;
        }
        let source = desk.source(1, DeadLetterTo::Queue).await;
        for (text, milliseconds) in cases {
            let message = desk.retry_next(&source, SOON).await;
            let came = message.metadata::<Delivered>().unwrap().properties.expiration;
            assert_eq!((message.id(), came), (text, Some(Duration::from_millis(milliseconds))));
        }
        for _ in cases {
            let message = desk.give_up_next(&source, "looked at").await;
            assert_eq!(message.metadata::<Delivered>().unwrap().properties.expiration, None);
        }
        let letters = desk.finish(source).await;
        assert_eq!(letters.len(), cases.len());
        assert!(letters.iter().all(|letter| letter.props.get(EXPIRATION).is_none()));
    }
}

// BC-55
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expiration_is_sent_in_whole_milliseconds_and_one_that_is_too_long_is_refused_before() {
    let mut desk = Desk::new("set-expirations", QueueType::Quorum).await;
    let publisher = desk.rabbit.publisher();
    let of = |id: &str, expiration| {
        Message::new("x").with_id(id).with_metadata(Properties::default().with_expiration(expiration))
    };
    for too_long in [LONGEST_DELAY + Duration::from_millis(1), Duration::MAX] {
        let refused = bounded("publish", publisher.publish(&desk.queue, of("too long", too_long))).await;
        let error = refused.expect_err("it is refused");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains("expiration"), "{error}");
    }
    for (id, expiration, text) in [
        ("rounded", Duration::from_nanos(59_999_000_001), "60000"),
        ("longest", LONGEST_DELAY, "315360000000"),
    ] {
        desk.ledger.published(id);
        bounded("publish", publisher.publish(&desk.queue, of(id, expiration))).await.expect("it is taken");
        desk.ledger.confirmed(id);
        let got = desk.wire.get(&desk.queue).await.expect("it is there");
        assert_eq!(got.props.get(EXPIRATION), Some(text.as_bytes()));
        desk.ledger.queued(&got.props.id());
    }
    // What ends at once, where nobody waits for it.
    desk.ledger.published("at once");
    bounded("publish", publisher.publish(&desk.queue, of("at once", Duration::ZERO)))
        .await
        .expect("it is taken");
    desk.until_letters(1).await;
    let source = desk.source(1, DeadLetterTo::Queue).await;
    assert_eq!(desk.finish(source).await.len(), 1);
}
