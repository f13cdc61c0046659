//! Many publishes on their way at once: each resolves once, to its own outcome, and nothing is confirmed that the broker
//! has refused.

use std::collections::BTreeMap;

use futures::future::join_all;
use futures::stream::{FuturesUnordered, StreamExt};
use windlass::ErrorKind;
use windlass::clock::{Clock, SystemClock};
use windlass::message::Message;
use windlass::rabbitmq::Properties;

use super::desk::{Desk, kind, message, publish};
use super::rabbit::{QueueType, bounded, until};

/// How many ended in each way.
type Tally = BTreeMap<String, usize>;

fn tally<'a>(outcomes: impl IntoIterator<Item = &'a windlass::Result<()>>) -> Tally {
    let mut tally = Tally::new();
    for outcome in outcomes {
        let name = kind(outcome).map_or("Confirmed".to_owned(), |kind| format!("{kind:?}"));
        *tally.entry(name).or_default() += 1;
    }
    tally
}

fn transient(id: String) -> Message {
    message(id).with_metadata(Properties::default().with_persistent(false))
}

// BC-39
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_thousand_at_once_persistent_and_transient_to_queues_of_all_kinds_get_their_own_outcomes() {
    let desk = Desk::new("three-thousand").await;
    let [classic, quorum] =
        [desk.queue("classic", QueueType::Classic).await, desk.queue("quorum", QueueType::Quorum).await];
    let full = desk.full_at("full", 10).await;
    let missing = desk.name("missing");
    let publishes = (0..3_000).map(|number| {
        let id = number.to_string();
        match number % 10 {
            0..=3 => desk.publish(&quorum, message(id)),
            4..=7 => desk.publish(&classic, transient(id)),
            8 => desk.publish(&full, message(id)),
            _ => desk.publish(&missing, message(id)),
        }
    });
    let outcomes = bounded("all", join_all(publishes)).await;
    let of = |digits: &[usize]| {
        tally((0..).zip(&outcomes).filter(|(n, _)| digits.contains(&(n % 10))).map(|(_, o)| o))
    };
    assert_eq!(of(&[0, 1, 2, 3, 4, 5, 6, 7]), Tally::from([("Confirmed".to_owned(), 2_400)]));
    assert_eq!(of(&[9]), Tally::from([("Unroutable".to_owned(), 300)]));
    let in_full = of(&[8]);
    assert_eq!(in_full.values().sum::<usize>(), 300);
    let counts = desk.account(&[&classic, &quorum, &full]).await;
    assert_eq!(counts, [1_200, 1_200, in_full["Confirmed"]], "as many as were confirmed");
    assert_eq!(in_full["Refused"], 300 - counts[2]);
    desk.end().await;
}

// BC-39, and the confirm race: none that was refused is told as confirmed.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn as_many_are_in_a_full_queue_as_were_confirmed_whatever_many_tasks_publish_at_once() {
    let desk = Desk::new("confirm-race").await;
    let open = desk.queue("open", QueueType::Classic).await;
    let full = desk.full_at("full", 1_000).await;
    let tasks = (0..16).map(|task| {
        let (publisher, ledger) = (desk.publisher.clone(), desk.ledger.clone());
        let (open, full) = (open.clone(), full.clone());
        tokio::spawn(async move {
            let mut outcomes = Vec::new();
            for batch in 0..25 {
                let publishes = (0..50).map(|number| {
                    let id = format!("{task}-{batch}-{number}");
                    let target = if number % 2 == 0 { &full } else { &open };
                    publish(&publisher, &ledger, target, message(id))
                });
                outcomes.extend(join_all(publishes).await);
            }
            outcomes
        })
    });
    let outcomes = bounded("all", join_all(tasks)).await;
    let outcomes: Vec<_> =
        outcomes.into_iter().flat_map(|outcomes| outcomes.expect("it does not panic")).collect();
    let [in_open, in_full] = desk.account(&[&open, &full]).await[..] else { unreachable!() };
    let told = tally(&outcomes);
    assert_eq!(in_open, 10_000);
    assert_eq!((told["Confirmed"], told["Refused"]), (in_open + in_full, 10_000 - in_full), "{told:?}");
    assert!((1_000..1_300).contains(&in_full), "{in_full}: the broker counts late, but not never");
    desk.end().await;
}

// BC-39
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_rounds_of_one_publish_and_its_confirm_all_end() {
    let desk = Desk::new("rounds").await;
    let queue = desk.queue("queue", QueueType::Classic).await;
    for number in 0..2_000 {
        let outcome = bounded("a round", desk.publish(&queue, message(number.to_string()))).await;
        assert_eq!(kind(&outcome), None, "{outcome:?}");
    }
    assert_eq!(desk.account(&[&queue]).await, [2_000]);
    desk.end().await;
}

// BC-39
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_cut_in_the_middle_exactly_those_that_were_told_so_are_unknown() {
    let desk = Desk::new("cut-in-the-middle").await;
    let [classic, quorum] =
        [desk.queue("classic", QueueType::Classic).await, desk.queue("quorum", QueueType::Quorum).await];
    let publishes: FuturesUnordered<_> = (0..3_000)
        .map(|number| {
            let queue = if number % 2 == 0 { &classic } else { &quorum };
            desk.publish(queue, message(number.to_string()))
        })
        .collect();
    let cut = async {
        until("some are confirmed", || async { (desk.ledger.confirmed_count() > 0).then_some(()) }).await;
        desk.proxy.cut().await;
    };
    let (outcomes, ()) = bounded("all", async { tokio::join!(publishes.collect::<Vec<_>>(), cut) }).await;
    let told = tally(&outcomes);
    let count = |name: &str| told.get(name).copied().unwrap_or(0);
    assert_eq!(outcomes.len(), 3_000, "each resolves once");
    assert_eq!(count("Confirmed") + count("Unconfirmed") + count("Disconnected"), 3_000, "{told:?}");
    assert_eq!(kind(&desk.publish(&quorum, message("after")).await), None);
    let found: usize = desk.account(&[&classic, &quorum]).await.iter().sum();
    let account = desk.ledger.account();
    assert_eq!(account.confirmed, count("Confirmed") + 1);
    assert_eq!(account.refused, count("Disconnected"));
    assert!(
        found >= account.confirmed && found <= account.confirmed + count("Unconfirmed"),
        "{found}: {told:?}"
    );
    desk.end().await;
}

// However many are on their way, each costs the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn however_many_are_on_their_way_each_takes_about_as_long() {
    let desk = Desk::new("thirty-thousand").await;
    let queue = desk.queue("queue", QueueType::Classic).await;
    let mut took = Vec::new();
    for count in [3_000, 30_000] {
        let began = SystemClock.now();
        let publishes = (0..count).map(|number| {
            windlass::publisher::Publisher::publish(&desk.publisher, &queue, message(number.to_string()))
        });
        let outcomes = bounded("all", join_all(publishes)).await;
        took.push(SystemClock.now() - began);
        assert_eq!(tally(&outcomes), Tally::from([("Confirmed".to_owned(), count)]));
        assert_eq!(desk.raw.purge(&queue).await as usize, count);
    }
    assert_eq!(kind(&desk.publish(&queue, message("after")).await), None::<ErrorKind>);
    assert!(took[1] < took[0] * 40, "{took:?}");
    assert_eq!(desk.account(&[&queue]).await, [1]);
    desk.end().await;
}
