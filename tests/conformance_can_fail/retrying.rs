//! Sources that bring retried messages back at the wrong time, or count them wrongly.

use std::sync::Mutex;
use std::time::Instant;

use futures::FutureExt;
use tokio_util::sync::CancellationToken;
use windlass::clock::Clock;
use windlass::source::NackReason;

use super::faults::{Broken, Rewrites};
use super::source::{Fault, Outcome, Receipt, Received, Shape, UNIT, Whole};

pub(crate) const BROKEN: &[Broken] = &[
    Broken {
        what: "makes a retry without a delay wait",
        shape: Shape::Usual,
        fault: || {
            Box::new(Rewrites(|_, reason| match reason {
                NackReason::Retry { delay, counted, cause } => {
                    let delay = delay.filter(|delay| !delay.is_zero()).or(Some(UNIT));
                    NackReason::Retry { delay, counted, cause }
                }
                other => other,
            }))
        },
        breaks: &["a_retry_without_a_delay_comes_back_at_once"],
    },
    Broken {
        what: "forgets delays",
        shape: Shape::Usual,
        fault: || {
            Box::new(Rewrites(|_, reason| match reason {
                NackReason::Retry { counted, cause, .. } => NackReason::Retry { delay: None, counted, cause },
                other => other,
            }))
        },
        breaks: &[
            "a_retry_comes_back_when_its_delay_is_over",
            "a_delay_outlives_its_source",
            "a_delayed_message_holds_up_nobody",
        ],
    },
    Broken {
        what: "doubles delays, and a little more",
        shape: Shape::Usual,
        fault: || {
            Box::new(Rewrites(|_, reason| match reason {
                NackReason::Retry { delay: Some(delay), counted, cause } => {
                    NackReason::Retry { delay: Some(delay * 21 / 10), counted, cause }
                }
                other => other,
            }))
        },
        breaks: &["a_retry_comes_back_when_its_delay_is_over"],
    },
    Broken {
        what: "delays without having said so",
        shape: Shape::Usual,
        fault: || Box::new(ClaimsNoDelay),
        breaks: &["the_capabilities_are_those_declared"],
    },
    Broken {
        what: "delays the first retry of a message alone",
        shape: Shape::Usual,
        fault: || {
            Box::new(Rewrites(|message, reason| match reason {
                NackReason::Retry { counted, cause, .. } if message.attempt() > 1 => {
                    NackReason::Retry { delay: None, counted, cause }
                }
                other => other,
            }))
        },
        breaks: &["every_retry_of_a_message_waits_for_its_delay"],
    },
    Broken {
        what: "lets no delay end before those that began earlier",
        shape: Shape::Usual,
        fault: || Box::new(DelaysQueueUp::default()),
        breaks: &["a_long_delay_does_not_hold_up_a_shorter_one"],
    },
    Broken {
        what: "waits for delays itself, before it receives anything else",
        shape: Shape::Usual,
        fault: || Box::new(DelayHoldsUp::default()),
        breaks: &["a_delayed_message_holds_up_nobody"],
    },
    Broken {
        what: "keeps delayed messages in hand, so that closing ends their delays",
        shape: Shape::Usual,
        fault: || Box::new(DelaysInHand::default()),
        breaks: &["a_delay_outlives_its_source"],
    },
    Broken {
        what: "counts no retry",
        shape: Shape::Usual,
        fault: || {
            Box::new(Rewrites(|_, reason| match reason {
                NackReason::Retry { delay, cause, .. } => NackReason::Retry { delay, counted: false, cause },
                other => other,
            }))
        },
        breaks: &[
            "a_counted_retry_adds_one_to_the_attempt",
            "an_erased_source_behaves_the_same",
            "a_shared_source_behaves_the_same",
        ],
    },
    Broken {
        what: "counts no retry that is delayed",
        shape: Shape::Usual,
        fault: || {
            Box::new(Rewrites(|_, reason| match reason {
                NackReason::Retry { delay: Some(delay), cause, .. } => NackReason::postpone(delay, cause),
                other => other,
            }))
        },
        breaks: &["a_delayed_retry_adds_one_to_the_attempt"],
    },
    Broken {
        what: "counts every retry",
        shape: Shape::Usual,
        fault: || {
            Box::new(Rewrites(|_, reason| match reason {
                NackReason::Retry { delay, cause, .. } => NackReason::Retry { delay, counted: true, cause },
                other => other,
            }))
        },
        breaks: &["an_uncounted_retry_keeps_the_attempt"],
    },
];

struct ClaimsNoDelay;

impl Fault for ClaimsNoDelay {
    fn capabilities(&self, whole: windlass::source::Capabilities) -> windlass::source::Capabilities {
        whole.with_delayed_retry(false)
    }
}

#[derive(Default)]
struct DelaysQueueUp(Mutex<Option<Instant>>);

impl Fault for DelaysQueueUp {
    fn nack<'a>(&'a self, whole: &'a Whole, receipt: Receipt, reason: NackReason) -> Outcome<'a> {
        let reason = match reason {
            NackReason::Retry { delay: Some(delay), counted, cause } => {
                let now = whole.clock.now();
                let mut last = self.0.lock().unwrap();
                let due = last.map_or(now + delay, |last| last.max(now + delay));
                *last = Some(due);
                NackReason::Retry { delay: Some(due - now), counted, cause }
            }
            other => other,
        };
        whole.nack(receipt, reason).boxed()
    }
}

#[derive(Default)]
struct DelayHoldsUp(Mutex<Option<Instant>>);

impl Fault for DelayHoldsUp {
    fn receive<'a>(&'a self, whole: &'a Whole, cancel: &'a CancellationToken) -> Outcome<'a, Received> {
        async move {
            let due = *self.0.lock().unwrap();
            if let Some(due) = due {
                whole.clock.sleep_until(due).await;
            }
            whole.receive(cancel).await
        }
        .boxed()
    }

    fn nack<'a>(&'a self, whole: &'a Whole, receipt: Receipt, reason: NackReason) -> Outcome<'a> {
        if let NackReason::Retry { delay: Some(delay), .. } = reason {
            *self.0.lock().unwrap() = Some(whole.clock.now() + delay);
        }
        whole.nack(receipt, reason).boxed()
    }
}

#[derive(Default)]
struct DelaysInHand(Mutex<Vec<(Instant, Receipt)>>);

impl Fault for DelaysInHand {
    fn receive<'a>(&'a self, whole: &'a Whole, cancel: &'a CancellationToken) -> Outcome<'a, Received> {
        async move {
            loop {
                let next = self.0.lock().unwrap().iter().map(|(due, _)| *due).min();
                let Some(next) = next else { return whole.receive(cancel).await };
                // Only waits are lost here.
                tokio::select! {
                    biased;
                    received = whole.receive(cancel) => return received,
                    () = whole.clock.sleep_until(next) => {}
                }
                let over = {
                    let mut held = self.0.lock().unwrap();
                    let index = held.iter().position(|(due, _)| *due == next);
                    index.map(|index| held.remove(index))
                };
                if let Some((_, receipt)) = over {
                    whole.nack(receipt, NackReason::retry("over")).await?;
                }
            }
        }
        .boxed()
    }

    fn nack<'a>(&'a self, whole: &'a Whole, receipt: Receipt, reason: NackReason) -> Outcome<'a> {
        match reason {
            NackReason::Retry { delay: Some(delay), .. } if !delay.is_zero() => {
                self.0.lock().unwrap().push((whole.clock.now() + delay, receipt));
                async { Ok(()) }.boxed()
            }
            reason => whole.nack(receipt, reason).boxed(),
        }
    }
}
