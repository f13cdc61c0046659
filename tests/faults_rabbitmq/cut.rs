//! Connections that are cut in the middle of something: at each of many bytes of a set-up, a delivery, an ack, a publish
//! and a confirm.

use std::time::Duration;

use windlass::clock::{Clock, SystemClock};
use windlass::error::ErrorKind;
use windlass::rabbitmq::{RabbitMq, RabbitMqConfig, Role};

use crate::broker_bench::{Bench, KINDS, config, ms};
use crate::flow::{ROLES, Sender, by_proxy, connected, consume, finish, lost, until_done, until_ready};
use crate::rabbit::{Direction, Node, Proxy, QueueType, bounded, until};

/// `basic.ack`, of either side: type, channel, size, class, method, tag, flags, end.
const ACK: u64 = 21;

/// Longer than anything here takes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Back at once, and no heartbeat that would count as one of the bytes.
fn quick(config: RabbitMqConfig) -> RabbitMqConfig {
    config
        .with_reconnect_delay(ms(5))
        .with_reconnect_max_delay(ms(20))
        .with_heartbeat(Duration::from_secs(60))
        .with_connect_timeout(CONNECT_TIMEOUT)
}

/// So many places from the first byte to the last, evenly.
fn places(count: u64, last: u64) -> impl Iterator<Item = u64> {
    (0..=count).map(move |place| place * last / count)
}

/// How many bytes went each way.
fn bytes(proxy: &Proxy) -> [(Direction, u64); 2] {
    let counts = proxy.counts();
    [(Direction::ToBroker, counts.to_broker), (Direction::ToClient, counts.to_client)]
}

/// How many bytes go each way while this is done.
async fn measure(proxy: &Proxy, work: impl Future<Output = ()>) -> [(Direction, u64); 2] {
    let before = bytes(proxy);
    work.await;
    let after = bytes(proxy);
    [0, 1].map(|index| (after[index].0, after[index].1 - before[index].1))
}

/// Cuts both connections; what is set `before` they come back holds for the way back.
async fn reconnect(proxy: &Proxy, before: impl FnOnce()) {
    proxy.refuse(true).await;
    proxy.cut().await;
    before();
    proxy.refuse(false).await;
}

// BC-10 a
#[tokio::test]
async fn a_reset_of_both_sides_is_noticed_and_the_next_message_is_handled() {
    let node = Node::shared().await;
    for kind in KINDS {
        let (proxy, bench) = by_proxy(node, "reset", kind, quick).await;
        let handle = consume(&bench).await;
        until_ready(&bench, &handle).await;
        proxy.cut().await;
        for role in ROLES {
            bench.told.until("says that it is lost", 1, lost(role)).await;
        }
        Sender::new(&bench).deliver("m").await;
        until_done(&bench, "m").await;
        let account = finish(bench, handle).await;
        assert_eq!((account.acked, account.queued), (1, 0), "{account}");
    }
}

// BC-05: also between the consume request and its confirmation.
#[tokio::test]
async fn a_cut_at_any_byte_of_the_set_up_leaves_one_consumer_that_works() {
    let node = Node::shared().await;
    let (proxy, bench) = by_proxy(node, "cut-set-up", QueueType::Classic, quick).await;
    let handle = consume(&bench).await;
    let sender = Sender::new(&bench);
    sender.deliver("first").await;
    until_done(&bench, "first").await;
    let whole = measure(&proxy, async {
        reconnect(&proxy, || {}).await;
        for role in ROLES {
            bench.told.until("says that it stands again", 1, connected(role)).await;
        }
        until_ready(&bench, &handle).await;
    });
    for (direction, whole) in whole.await {
        // The request to consume and its answer are the last that goes each way.
        let end = whole.saturating_sub(80);
        for place in places(20, end).chain((end..=whole).step_by(6)) {
            let began = SystemClock.now();
            reconnect(&proxy, || proxy.cut_after(place, direction)).await;
            let id = format!("{direction:?}-{place}");
            sender.deliver(&id).await;
            until_done(&bench, &id).await;
            bench.until_count((0, 1)).await;
            // Not as long as it takes to give up a peer that says nothing: a cut is told by the socket.
            let time = SystemClock.now() - began;
            assert!(time < CONNECT_TIMEOUT, "{direction:?}, cut at byte {place}: {time:?}");
        }
    }
    proxy.until(|counts| counts.open() == 2).await;
    let account = finish(bench, handle).await;
    assert_eq!(account.queued, 0, "{account}");
}

/// Waits until no ack is under way any more: the next byte is not one of an earlier message.
async fn until_quiet(proxy: &Proxy, bench: &Bench) {
    let mut before = None;
    until("all acks are written", || {
        let now = (bench.starts.len() == bench.done.len()).then(|| proxy.counts().to_broker);
        let quiet = now.is_some() && now == before;
        before = now;
        async move { quiet.then_some(()) }
    })
    .await;
}

/// A bench whose queue is published to over another connection, and one message that went through.
async fn published_to_directly(node: &Node, name: &str, kind: QueueType) -> (Proxy, Bench, RabbitMq) {
    let (proxy, bench) = by_proxy(node, name, kind, quick).await;
    let direct = bounded("connect", RabbitMq::connect(config(&node.uri()))).await.unwrap();
    (proxy, bench, direct)
}

#[tokio::test]
async fn a_cut_at_any_byte_of_a_delivery_loses_nothing() {
    let node = Node::shared().await;
    for kind in KINDS {
        let (proxy, bench, direct) = published_to_directly(node, "cut-delivery", kind).await;
        let handle = consume(&bench).await;
        let sender = Sender::over(&bench, &direct);
        sender.deliver("first").await;
        until_done(&bench, "first").await;
        let [_, (to_client, delivery)] = measure(&proxy, async {
            sender.deliver("second").await;
            until_done(&bench, "second").await;
        })
        .await;
        for place in places(25, delivery) {
            until_ready(&bench, &handle).await;
            let before = bench.told.all(lost(Role::Consume)).len();
            proxy.cut_after(place, to_client);
            let id = format!("at-{place}");
            sender.deliver(&id).await;
            let lost = lost(Role::Consume);
            bench.told.until("says that it is lost", before + 1, lost).await;
            until_done(&bench, &id).await;
        }
        direct.disconnect().await;
        let account = finish(bench, handle).await;
        assert_eq!(account.queued, 0, "{account}");
    }
}

#[tokio::test]
async fn a_cut_at_any_byte_of_an_ack_brings_the_message_back_to_be_handled_again() {
    let node = Node::shared().await;
    for kind in KINDS {
        let (proxy, bench, direct) = published_to_directly(node, "cut-ack", kind).await;
        let handle = consume(&bench).await;
        let sender = Sender::over(&bench, &direct);
        sender.deliver("first").await;
        until_done(&bench, "first").await;
        until_quiet(&proxy, &bench).await;
        for place in 0..=ACK {
            until_ready(&bench, &handle).await;
            proxy.cut_after(place, Direction::ToBroker);
            let id = format!("at-{place}");
            sender.deliver(&id).await;
            if place < ACK {
                // The broker has not got it, so the message comes again, whatever was said of the ack.
                let again = || async { (bench.starts.of(&id).len() >= 2).then_some(()) };
                until(&format!("{id} comes again"), again).await;
                assert!(bench.starts.of(&id)[1].redelivered);
            }
            until_done(&bench, &id).await;
            until_quiet(&proxy, &bench).await;
        }
        direct.disconnect().await;
        let queue = bench.queue.clone();
        let done = || async { node.queue_counts("/", &queue).await.filter(|at| at.ready + at.unacked == 0) };
        until("the queue is empty", done).await;
        let account = finish(bench, handle).await;
        assert_eq!(account.queued, 0, "{account}");
    }
}

/// Sends one message for each place, which the connection is cut at, and a whole one after it.
async fn cut_publishes(
    proxy: &Proxy,
    bench: &Bench,
    direction: Direction,
    places: impl Iterator<Item = u64>,
) -> Vec<(u64, Option<ErrorKind>)> {
    let sender = Sender::new(bench);
    let mut outcomes = Vec::new();
    for place in places {
        // With the channel open, the next byte is one of the message or its confirm.
        sender.deliver(&format!("before-{direction:?}-{place}")).await;
        proxy.cut_after(place, direction);
        let sent = sender.send(&format!("at-{direction:?}-{place}")).await;
        outcomes.push((place, sent.err().map(|error| error.kind())));
        let gone =
            || async { (proxy.counts().open() == 2 && bench.rabbit.health().is_ready()).then_some(()) };
        until("the connections are back", gone).await;
    }
    outcomes
}

#[tokio::test]
async fn a_cut_at_any_byte_of_a_publish_or_its_confirm_is_never_taken_for_a_success() {
    let node = Node::shared().await;
    for kind in KINDS {
        let (proxy, bench) = by_proxy(node, "cut-publish", kind, quick).await;
        let sender = Sender::new(&bench);
        sender.deliver("first").await;
        let [(to_broker, publish), (to_client, confirm)] =
            measure(&proxy, sender.deliver("at-ToBroker-second")).await;
        assert_eq!(confirm, ACK);
        // The ids are a little shorter than the second's, so that these places may lie behind the end.
        let whole = publish - 10;
        for (place, outcome) in cut_publishes(&proxy, &bench, to_broker, places(25, whole)).await {
            if place < whole {
                assert_eq!(outcome, Some(ErrorKind::Unconfirmed), "cut at byte {place} of {publish}");
            }
        }
        for (place, outcome) in cut_publishes(&proxy, &bench, to_client, 0..ACK).await {
            assert_eq!(outcome, Some(ErrorKind::Unconfirmed), "cut at byte {place} of the confirm");
        }
        let account = bench.account().await;
        // The broker had all whose confirm was cut: these were published whole.
        assert!(account.queued >= account.confirmed + 21, "{account}");
    }
}
