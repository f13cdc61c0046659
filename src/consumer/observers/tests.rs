//! What the tests of a consumer cannot see: when a sample is due, and that a thread keeps the order of all three kinds.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{LEAST_BETWEEN_SAMPLES, Observers};
use crate::clock::ControlledClock;
use crate::consumer::event::{ConsumerEvent, Outcome};
use crate::consumer::handle::Status;
use crate::consumer::observer::{CalledFrom, ChangeKind, ConsumerChange, ConsumerSample, Observer};
use crate::consumer::stats::{Slot, sum};
use crate::message::Message;
use crate::source::Settlement;

const SECOND: Duration = Duration::from_secs(1);

type Seen = Arc<Mutex<Vec<String>>>;

struct Writes {
    seen: Seen,
    from: CalledFrom,
    every: Option<Duration>,
}

impl Writes {
    fn add(&self, entry: String) {
        self.seen.lock().unwrap().push(entry);
    }
}

impl Observer for Writes {
    fn on_message(&self, event: &ConsumerEvent) {
        self.add(event.message.id().to_owned());
    }

    fn on_change(&self, change: &ConsumerChange) {
        self.add(change.kind.name().to_owned());
    }

    fn called_from(&self) -> CalledFrom {
        self.from
    }

    fn sample_every(&self) -> Option<Duration> {
        self.every
    }

    fn on_sample(&self, sample: &ConsumerSample) {
        self.add(format!("sample {}", sample.in_flight));
    }
}

fn observers(wanted: &[(CalledFrom, Option<Duration>)]) -> (Observers, Vec<Seen>) {
    let mut observers = Observers::default();
    let mut all_seen = Vec::new();
    for (from, every) in wanted {
        let seen = Seen::default();
        observers.push(Writes { seen: Arc::clone(&seen), from: *from, every: *every });
        all_seen.push(seen);
    }
    (observers, all_seen)
}

fn message(id: &str) -> ConsumerEvent {
    ConsumerEvent::new("orders", Message::new("").with_id(id), Outcome::Done, Settlement::Ack)
}

#[tokio::test]
async fn each_observer_is_sampled_at_its_own_interval() {
    let (clock, slot) = (ControlledClock::new(), Slot::default());
    let (observers, seen) = observers(&[
        (CalledFrom::LoopWhileQuick, Some(5 * SECOND)),
        (CalledFrom::LoopWhileQuick, None),
        (CalledFrom::LoopWhileQuick, Some(2 * SECOND)),
    ]);
    assert_eq!(observers.sample_every(), Some(2 * SECOND));
    for tick in 0..=5 {
        observers.tell_sample(&slot, &clock, &ConsumerSample::new("orders", Status::Running, tick));
        clock.advance(2 * SECOND).await;
    }
    let seen: Vec<Vec<String>> = seen.iter().map(|seen| seen.lock().unwrap().clone()).collect();
    assert_eq!(seen[0], ["sample 0", "sample 3"], "at 0 s and at 6 s, the first tick that is 5 s later");
    assert!(seen[1].is_empty());
    assert_eq!(seen[2].len(), 6);
}

#[test]
fn an_interval_of_nothing_is_not_taken_at_its_word() {
    assert_eq!(observers(&[(CalledFrom::Loop, None)]).0.sample_every(), None);
    let (observers, _) = observers(&[(CalledFrom::Loop, Some(Duration::ZERO))]);
    assert_eq!(observers.sample_every(), Some(LEAST_BETWEEN_SAMPLES));
}

#[tokio::test]
async fn a_thread_is_told_everything_in_order_and_nothing_after_the_end() {
    let (clock, slot) = (ControlledClock::new(), Slot::default());
    let (observers, seen) = observers(&[(CalledFrom::Thread, Some(SECOND))]);
    for number in 0..100 {
        observers.tell_message(&slot, &clock, &message(&format!("m-{number}")));
        observers.tell_change(&slot, &clock, &ConsumerChange::new("orders", ChangeKind::Paused));
        observers.tell_sample(&slot, &clock, &ConsumerSample::new("orders", Status::Paused, number));
        clock.advance(SECOND).await;
    }
    observers.end(&slot, &clock, SECOND).await;
    observers.tell_message(&slot, &clock, &message("late"));
    let expected: Vec<String> =
        (0..100).flat_map(|n| [format!("m-{n}"), "paused".to_owned(), format!("sample {n}")]).collect();
    assert_eq!(*seen[0].lock().unwrap(), expected);
    assert_eq!(sum(&[slot]).observer_drops, 1, "the late one");
}

/// Whoever ends it twice, or without a thread, waits for nothing.
#[tokio::test]
async fn the_end_is_at_once_where_nothing_is_left() {
    let (clock, slot) = (ControlledClock::new(), Slot::default());
    let (observers, _) = observers(&[(CalledFrom::Loop, None), (CalledFrom::Thread, None)]);
    observers.end(&slot, &clock, SECOND).await;
    observers.tell_message(&slot, &clock, &message("m-1"));
    observers.end(&slot, &clock, SECOND).await;
    observers.end(&slot, &clock, SECOND).await;
    assert_eq!(sum(&[slot]).observer_drops, 0);
}
