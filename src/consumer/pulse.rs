//! What happens by time alone: the idle event, and the samples that observers want.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::control::{Phase, Shared};
use super::observer::ChangeKind;
use super::stats::{in_flight, last_active};
use super::work::Work;
use crate::clock::after;
use crate::handler::Handler;
use crate::source::MessageSource;

/// Runs until it is dropped.
pub(super) async fn run<S: MessageSource, H: Handler<T>, T>(work: Arc<Work<S, H, T>>, control: Arc<Shared>) {
    let sample_every = work.observers.sample_every();
    let idle = async {
        match work.options.idle_after {
            Some(idle_after) => tell_of_idleness(&work, &control, idle_after).await,
            None => std::future::pending().await,
        }
    };
    let samples = async {
        match sample_every {
            Some(every) => loop {
                work.sample(work.pulse_slot(), control.status());
                work.clock.sleep(every).await;
            },
            None => std::future::pending().await,
        }
    };
    // Neither ends.
    futures::join!(idle, samples);
}

/// Once for each time without messages: nothing came, and nothing was in hand.
async fn tell_of_idleness<S: MessageSource, H: Handler<T>, T>(
    work: &Work<S, H, T>,
    control: &Shared,
    idle_after: Duration,
) {
    let mut since = work.clock.now();
    let mut told_at_count = None;
    loop {
        work.clock.sleep_until(after(since, idle_after)).await;
        let now = work.clock.now();
        let received =
            work.slots.iter().map(|slot| slot.counters.received.load(Ordering::Relaxed)).sum::<u64>();
        if in_flight(&work.slots) > 0 || control.phase() != Phase::Open || told_at_count == Some(received) {
            since = now;
            continue;
        }
        since = since.max(last_active(&work.slots, work.started));
        if now.saturating_duration_since(since) >= idle_after {
            work.tell_change(work.pulse_slot(), ChangeKind::Idle { after: idle_after });
            told_at_count = Some(received);
            since = now;
        }
    }
}
