//! Ending while the broker is away, silent, or about to come back.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use windlass::clock::{Clock, SystemClock};
use windlass::error::ErrorKind;
use windlass::rabbitmq::{ConnectionState, RabbitMqConfig};
use windlass::source::{Health, MessageSource};

use crate::broker_bench::{Bench, KINDS, ms};
use crate::flow::{ROLES, Sender, by_proxy, consume, idle, retrying, until_done};
use crate::rabbit::{Direction, Node, Proxy, QueueType, bounded, until_at_most};

/// What is called prompt: a broker on the same machine answers in milliseconds.
const PROMPT: Duration = ms(1_000);

/// Where the broker does not answer: it is asked, and given up.
const PROMPT_WITHOUT_ANSWER: Duration = ms(3_000);

/// How long nothing must happen for "never".
const NEVER: Duration = ms(3_000);

async fn timed<T>(what: &str, work: impl Future<Output = T>) -> (T, Duration) {
    let began = SystemClock.now();
    let done = bounded(what, work).await;
    (done, SystemClock.now() - began)
}

fn patient(config: RabbitMqConfig) -> RabbitMqConfig {
    config.with_reconnect_delay(Duration::from_secs(30)).with_reconnect_max_delay(Duration::from_secs(30))
}

/// A bench whose broker is gone, in the wait of 30 s before the next try.
async fn away(name: &str, kind: QueueType) -> (Proxy, Bench) {
    let (proxy, bench) = by_proxy(Node::shared().await, name, kind, patient).await;
    bench.publish(1..=1).await;
    proxy.refuse(true).await;
    proxy.cut().await;
    for role in ROLES {
        let (_, delay) = bench.told.until("says that it is tried again", 1, retrying(role)).await;
        assert!(delay > Duration::from_secs(20), "{delay:?}");
    }
    (proxy, bench)
}

// BC-22 a and d
#[tokio::test]
async fn disconnecting_in_the_wait_for_the_next_try_is_prompt_and_nothing_connects_when_the_broker_is_back() {
    let (proxy, bench) = away("away", QueueType::Classic).await;
    let ((), time) = timed("disconnect", bench.rabbit.disconnect()).await;
    assert!(time < PROMPT, "{time:?}");
    let accepted = proxy.counts().accepted;
    proxy.refuse(false).await;
    let again = until_at_most(NEVER, || async { (proxy.counts().accepted > accepted).then_some(()) }).await;
    assert_eq!(again, None, "it connected after it was disconnected");
    for role in ROLES {
        assert!(matches!(bench.rabbit.state(role), ConnectionState::Disconnected));
    }
    assert_eq!(bench.rabbit.health(), Health::Closed);
    let account = bench.account().await;
    assert_eq!((account.confirmed, account.queued), (1, 1), "{account}");
}

// BC-22 a, of the consumer, and e
#[tokio::test]
async fn a_consumer_whose_broker_is_away_stops_promptly_however_often_it_is_told() {
    for kind in KINDS {
        let (proxy, bench) = by_proxy(Node::shared().await, "away-consumer", kind, patient).await;
        let handle = consume(&bench).await;
        Sender::new(&bench).deliver("before").await;
        until_done(&bench, "before").await;
        proxy.refuse(true).await;
        proxy.cut().await;
        for role in ROLES {
            bench.told.until("says that it is tried again", 1, retrying(role)).await;
        }
        let other = handle.clone();
        let stop = async { tokio::join!(handle.stop(), other.stop()) };
        let ((one, two), time) = timed("stop", stop).await;
        assert!(time < PROMPT, "{time:?}");
        assert!(one.is_clean() && two.is_clean(), "{one:?}");
        let third = timed("stop again", handle.stop()).await;
        assert!(third.1 < PROMPT, "{third:?}");
        let account = bench.account().await;
        // The ack was written; whether the broker had read it when the connection went is not known.
        assert_eq!(account.acked, 1, "{account}");
    }
}

// BC-22 b
#[tokio::test]
async fn a_source_that_was_never_received_from_closes_at_once_and_so_does_a_consumer_that_never_ran() {
    for kind in KINDS {
        let bench = Bench::new(Node::shared().await, "unused", kind).await;
        bench.publish(1..=3).await;
        let source = bench.source().await;
        let (closed, time) = timed("close", source.close()).await;
        closed.unwrap();
        assert!(time < PROMPT, "{time:?}");
        let handle = idle(&bench, bench.source().await).handle();
        let (_, time) = timed("stop", handle.stop()).await;
        assert!(time < PROMPT, "{time:?}");
        bench.until_count((3, 0)).await;
        let account = bench.account().await;
        assert_eq!(account.queued, 3, "{account}");
    }
}

// BC-22 c and e
#[tokio::test]
async fn closing_during_a_receive_ends_the_receive_and_closing_again_does_nothing() {
    for kind in KINDS {
        let bench = Bench::new(Node::shared().await, "waiting", kind).await;
        let source = bench.source().await;
        let receiving = tokio::spawn({
            let source = source.clone();
            async move { source.receive(&CancellationToken::new()).await.map(drop) }
        });
        bench.until_count((0, 1)).await;
        let other = source.clone();
        let (closed, time) = timed("close", async { tokio::join!(source.close(), other.close()) }).await;
        assert!(closed.0.is_ok() && closed.1.is_ok() && time < PROMPT, "{closed:?} in {time:?}");
        let received = bounded("the receive ends", receiving).await.unwrap();
        assert_eq!(received.map_err(|error| error.kind()), Err(ErrorKind::Closed));
        assert!(timed("close again", source.close()).await.1 < PROMPT);
        bench.until_count((0, 0)).await;
        bench.account().await;
    }
}

// BC-22 e
#[tokio::test]
async fn disconnecting_from_two_tasks_and_again_is_prompt_and_gives_back_what_was_in_hand() {
    for kind in KINDS {
        let bench = Bench::new(Node::shared().await, "disconnect-twice", kind).await;
        bench.publish(1..=3).await;
        let source = bench.source().await;
        let received = bounded("receive", source.receive(&CancellationToken::new())).await.unwrap();
        let tasks = [(); 2].map(|()| {
            let rabbit = bench.rabbit.clone();
            tokio::spawn(async move { rabbit.disconnect().await })
        });
        let ((), time) = timed("disconnect", async {
            for task in tasks {
                task.await.unwrap();
            }
            bench.rabbit.disconnect().await;
        })
        .await;
        assert!(time < PROMPT, "{time:?}");
        bench.until_count((3, 0)).await;
        let settled = source.ack(received.expect("a message").receipt).await;
        assert_eq!(settled.map_err(|error| error.kind()), Err(ErrorKind::Stale));
        let account = bench.account().await;
        assert_eq!(account.queued, 3, "{account}");
    }
}

// BC-22, with a broker that hangs: the connections stand, and nothing is answered.
#[tokio::test]
async fn disconnecting_from_a_broker_that_does_not_answer_is_prompt_all_the_same() {
    let (proxy, bench) = by_proxy(Node::shared().await, "hung", QueueType::Classic, |config| config).await;
    bench.publish(1..=3).await;
    let source = bench.source().await;
    let received = bounded("receive", source.receive(&CancellationToken::new())).await.unwrap();
    proxy.stall(Direction::ToClient, true);
    let ((), time) = timed("disconnect", bench.rabbit.disconnect()).await;
    assert!(time < PROMPT_WITHOUT_ANSWER, "{time:?}");
    drop(received);
    proxy.stall(Direction::ToClient, false);
    bench.until_count((3, 0)).await;
    let account = bench.account().await;
    assert_eq!(account.queued, 3, "{account}");
}
