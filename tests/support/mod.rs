//! What the integration tests share.

// Each test file uses its part of this.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used)]

pub(crate) mod faulty;
mod log;
pub(crate) mod rng;
pub(crate) mod spans;

use std::future::Future;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use windlass::clock::{Clock, ControlledClock, SystemClock, within};
use windlass::consumer::{ConsumerEvent, ConsumerHandle, Report};
use windlass::memory::{MemoryBroker, MemoryQueue, QueueOptions};
use windlass::message::Message;

pub(crate) use log::Log;

pub(crate) const SECOND: Duration = Duration::from_secs(1);

pub(crate) const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// A queue with the default options, and its clock.
pub(crate) fn queue() -> (ControlledClock, MemoryQueue) {
    queue_with(QueueOptions::new())
}

pub(crate) fn queue_with(options: QueueOptions) -> (ControlledClock, MemoryQueue) {
    let clock = ControlledClock::new();
    let queue = MemoryBroker::new(clock.clone()).declare("work", options);
    (clock, queue)
}

pub(crate) fn at_most(count: usize) -> NonZeroUsize {
    NonZeroUsize::new(count).expect("not zero")
}

/// Publishes `m-1` to `m-<count>`.
pub(crate) fn publish(queue: &MemoryQueue, count: usize) {
    for number in 1..=count {
        queue.publish(Message::new("x").with_id(format!("m-{number}")));
    }
}

/// The ids of messages, in order.
pub(crate) fn ids(messages: &[Message]) -> Vec<&str> {
    messages.iter().map(Message::id).collect()
}

/// What must come while the controlled clock stands still: the bound is real time, for a test that would hang.
pub(crate) async fn prompt<F: Future>(work: F) -> F::Output {
    within(&SystemClock, Duration::from_secs(5), work)
        .await
        .expect("it must end without the clock being moved")
}

/// Stops the consumer and moves the clock until it has stopped; also how long that took on the clock.
pub(crate) async fn stop_on(clock: &ControlledClock, handle: &ConsumerHandle) -> (Report, Duration) {
    let began = clock.now();
    let stopping = tokio::spawn({
        let handle = handle.clone();
        async move { handle.stop().await }
    });
    for _ in 0..10_000 {
        clock.settle().await;
        if stopping.is_finished() {
            return (stopping.await.expect("stop does not panic"), clock.now() - began);
        }
        clock.advance(ms(100)).await;
    }
    panic!("not stopped after {:?} on the clock", clock.now() - began);
}

/// All events of a consumer.
pub(crate) type Events = Log<ConsumerEvent>;

impl Events {
    pub(crate) fn observer(&self) -> impl Fn(&ConsumerEvent) + Send + Sync + 'static {
        let events = self.clone();
        move |event| events.add(event.clone())
    }

    pub(crate) fn outcomes(&self) -> Vec<&'static str> {
        self.all().iter().map(|event| event.outcome.name()).collect()
    }
}

/// How long after `start` each of these was, in milliseconds.
pub(crate) fn millis_after(start: Instant, times: &[Instant]) -> Vec<u128> {
    times.iter().map(|time| (*time - start).as_millis()).collect()
}
