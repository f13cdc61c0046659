//! Sources that answer for a message wrongly: by ack, by nack, or by extending.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;
use windlass::ErrorKind;
use windlass::message::Message;
use windlass::source::{MessageSource, NackReason};

use super::faults::{Broken, Buries, ByNumber, Numbered, Rewrites, Tags};
use super::source::{Fault, Outcome, Receipt, Received, Shape, UNIT, Whole};

pub(crate) const BROKEN: &[Broken] = &[
    Broken {
        what: "acks nothing",
        shape: Shape::Usual,
        fault: || Box::new(AcksNothing),
        breaks: &["an_acked_message_never_comes_back", "a_cut_brings_back_what_was_not_settled"],
    },
    Broken {
        what: "keeps its last ack back and forgets it when it is closed",
        shape: Shape::Usual,
        fault: || Box::new(AcksLater::default()),
        breaks: &["closing_right_after_an_ack_undoes_nothing"],
    },
    Broken {
        what: "acks everything up to the delivery that is acked",
        shape: Shape::Usual,
        fault: || Box::new(ByNumber(AcksAllBefore::default())),
        breaks: &["settling_out_of_order_settles_that_one_alone"],
    },
    Broken {
        what: "knows its deliveries by number, and takes the numbers of another source",
        shape: Shape::Usual,
        fault: || Box::new(ByNumber(NumbersAlone::default())),
        breaks: &["a_receipt_settles_nothing_of_another_source"],
    },
    Broken {
        what: "numbers its deliveries anew after a cut, and takes the old numbers",
        shape: Shape::Leased,
        fault: || Box::new(ByNumber(NumbersAnew::default())),
        breaks: &[
            "an_ack_after_a_cut_is_stale_and_acks_nothing",
            "a_nack_after_a_cut_is_stale_and_does_nothing",
            "an_extend_after_a_cut_is_stale",
        ],
    },
    Broken {
        what: "numbers its deliveries anew after a cut, and acks by the old numbers although it refuses them",
        shape: Shape::Usual,
        fault: || Box::new(ByNumber(RefusesTooLate::default())),
        breaks: &["an_ack_after_a_cut_is_stale_and_acks_nothing"],
    },
    Broken {
        what: "takes what is in hand when the connection is cut for acked",
        shape: Shape::Usual,
        fault: || Box::new(ByNumber(LosesWhenCut::default())),
        breaks: &["a_cut_brings_back_what_was_not_settled"],
    },
    Broken {
        what: "takes late answers without a word",
        shape: Shape::Leased,
        fault: || Box::new(HidesStale),
        breaks: &[
            "settling_after_the_lease_is_stale",
            "a_receipt_of_a_closed_source_is_refused",
            "an_ack_after_a_cut_is_stale_and_acks_nothing",
        ],
    },
    Broken {
        what: "answers late with an error that says that trying again can help",
        shape: Shape::Leased,
        fault: || Box::new(StaleIsTransient),
        breaks: &["settling_after_the_lease_is_stale", "a_receipt_of_a_closed_source_is_refused"],
    },
    Broken {
        what: "lets go of what is in hand although there is no connection to lose",
        shape: Shape::Plain,
        fault: || Box::new(ByNumber(DropsWhenCut::default())),
        breaks: &["a_cut_keeps_the_attempt", "an_ack_after_a_cut_is_stale_and_acks_nothing"],
    },
    Broken {
        what: "claims a lease that never ends",
        shape: Shape::Leased,
        fault: || Box::new(ExtendsAlways::default()),
        breaks: &["a_delivery_comes_back_when_its_lease_ends", "an_expired_lease_keeps_the_attempt"],
    },
    Broken {
        what: "extends nothing",
        shape: Shape::Leased,
        fault: || Box::new(ExtendsNothing),
        breaks: &["extending_begins_the_lease_anew", "an_extended_delivery_can_be_settled"],
    },
    Broken {
        what: "pretends to extend where nothing is leased",
        shape: Shape::Usual,
        fault: || Box::new(ExtendsNothing),
        breaks: &["extending_begins_the_lease_anew", "an_extend_after_a_cut_is_stale"],
    },
    Broken {
        what: "requeues after a while",
        shape: Shape::Usual,
        fault: || {
            Box::new(Rewrites(|_, reason| match reason {
                NackReason::RequeueNow { cause } => NackReason::postpone(UNIT, cause),
                other => other,
            }))
        },
        breaks: &["a_requeued_message_comes_back_at_once"],
    },
    Broken {
        what: "requeues to the back and claims the front",
        shape: Shape::Usual,
        fault: || {
            Box::new(Rewrites(|_, reason| match reason {
                NackReason::RequeueNow { cause } => NackReason::Retry { delay: None, counted: false, cause },
                other => other,
            }))
        },
        breaks: &["a_requeued_message_takes_the_declared_place"],
    },
    Broken {
        what: "counts a requeue as an attempt",
        shape: Shape::Usual,
        fault: || {
            Box::new(Rewrites(|_, reason| match reason {
                NackReason::RequeueNow { cause } => NackReason::retry(cause),
                other => other,
            }))
        },
        breaks: &["a_requeue_keeps_the_attempt"],
    },
    Broken {
        what: "dead-letters, and delivers again",
        shape: Shape::Usual,
        fault: || Box::new(DeadLettersComeBack),
        breaks: &["a_dead_lettered_message_never_comes_back"],
    },
    Broken {
        what: "drops the headers of dead letters",
        shape: Shape::Usual,
        fault: || {
            Box::new(Buries(|message, stamped| {
                let ours = stamped.iter().filter(|(name, _)| name.starts_with("windlass-"));
                message.with_headers(ours.map(|(name, value)| (name, value.clone())).collect())
            }))
        },
        breaks: &["a_dead_letter_keeps_the_message"],
    },
    Broken {
        what: "writes no cause on dead letters",
        shape: Shape::Usual,
        fault: || Box::new(Buries(|message, _| message)),
        breaks: &["a_dead_letter_bears_its_cause"],
    },
    Broken {
        what: "writes every dead letter down as given up at the first attempt",
        shape: Shape::Usual,
        fault: || {
            Box::new(Buries(|message, mut stamped| {
                stamped.insert("windlass-attempts", 1_i32);
                message.with_headers(stamped)
            }))
        },
        breaks: &["a_dead_letter_bears_its_cause"],
    },
    Broken {
        what: "leaves the cause of an earlier death on a dead letter",
        shape: Shape::Usual,
        fault: || {
            Box::new(Buries(|message, mut stamped| {
                for (name, value) in
                    message.headers().iter().filter(|(name, _)| name.starts_with("windlass-"))
                {
                    stamped.insert(name, value.clone());
                }
                message.with_headers(stamped)
            }))
        },
        breaks: &["a_message_given_up_twice_bears_the_second_cause"],
    },
    Broken {
        what: "dead-letters everything up to the one that is given up",
        shape: Shape::Usual,
        fault: || Box::new(ByNumber(BuriesAllBefore::default())),
        breaks: &["dead_lettering_one_message_leaves_the_others"],
    },
    Broken {
        what: "drops what it cannot dead-letter, and says that it did",
        shape: Shape::Plain,
        fault: || Box::new(DropsDeadLetters { says_so: false }),
        breaks: &["a_dead_lettered_message_never_comes_back"],
    },
    Broken {
        what: "refuses to dead-letter, and drops the message all the same",
        shape: Shape::Plain,
        fault: || Box::new(DropsDeadLetters { says_so: true }),
        breaks: &["a_dead_lettered_message_never_comes_back", "a_dead_letter_keeps_the_message"],
    },
];

struct AcksNothing;

impl Fault for AcksNothing {
    fn ack<'a>(&'a self, _: &'a Whole, _: Receipt) -> Outcome<'a> {
        async { Ok(()) }.boxed()
    }
}

#[derive(Default)]
struct AcksLater(Mutex<Option<Receipt>>);

impl Fault for AcksLater {
    fn ack<'a>(&'a self, whole: &'a Whole, receipt: Receipt) -> Outcome<'a> {
        async move {
            let earlier = self.0.lock().unwrap().replace(receipt);
            match earlier {
                Some(earlier) => whole.ack(earlier).await,
                None => Ok(()),
            }
        }
        .boxed()
    }
}

#[derive(Default)]
struct AcksAllBefore(Tags);

impl Numbered for AcksAllBefore {
    fn tags(&self) -> &Tags {
        &self.0
    }

    fn ack<'a>(&'a self, whole: &'a Whole, receipt: Receipt) -> Outcome<'a> {
        async move {
            for real in self.0.up_to(receipt.tag) {
                whole.source.ack(real).await?;
            }
            Ok(())
        }
        .boxed()
    }
}

#[derive(Default)]
struct NumbersAlone(Tags);

impl Numbered for NumbersAlone {
    fn tags(&self) -> &Tags {
        &self.0
    }
}

#[derive(Default)]
struct NumbersAnew(Tags);

impl Numbered for NumbersAnew {
    fn tags(&self) -> &Tags {
        &self.0
    }

    fn cut<'a>(&'a self, whole: &'a Whole) -> BoxFuture<'a, ()> {
        self.0.begin_anew(whole.delivered());
        async {}.boxed()
    }
}

#[derive(Default)]
struct RefusesTooLate {
    tags: Tags,
    cut: AtomicBool,
}

impl Numbered for RefusesTooLate {
    fn tags(&self) -> &Tags {
        &self.tags
    }

    fn ack<'a>(&'a self, whole: &'a Whole, receipt: Receipt) -> Outcome<'a> {
        async move {
            whole.ack(self.tags.take(whole, receipt)?).await?;
            if self.cut.load(Ordering::Relaxed) { Err(whole.error(ErrorKind::Stale, "ack")) } else { Ok(()) }
        }
        .boxed()
    }

    fn cut<'a>(&'a self, whole: &'a Whole) -> BoxFuture<'a, ()> {
        self.tags.begin_anew(whole.delivered());
        self.cut.store(true, Ordering::Relaxed);
        async {}.boxed()
    }
}

#[derive(Default)]
struct LosesWhenCut(Tags);

impl Numbered for LosesWhenCut {
    fn tags(&self) -> &Tags {
        &self.0
    }

    fn cut<'a>(&'a self, whole: &'a Whole) -> BoxFuture<'a, ()> {
        self.0.settle_all(whole, None).boxed()
    }
}

#[derive(Default)]
struct DropsWhenCut(Tags);

impl Numbered for DropsWhenCut {
    fn tags(&self) -> &Tags {
        &self.0
    }

    fn cut<'a>(&'a self, whole: &'a Whole) -> BoxFuture<'a, ()> {
        async move { self.0.settle_all(whole, Some(&NackReason::requeue_now("cut"))).await }.boxed()
    }
}

fn hidden(settled: windlass::Result<()>) -> windlass::Result<()> {
    match settled {
        Err(error) if error.kind() == ErrorKind::Stale => Ok(()),
        other => other,
    }
}

struct HidesStale;

impl Fault for HidesStale {
    fn ack<'a>(&'a self, whole: &'a Whole, receipt: Receipt) -> Outcome<'a> {
        whole.ack(receipt).map(hidden).boxed()
    }

    fn nack<'a>(&'a self, whole: &'a Whole, receipt: Receipt, reason: NackReason) -> Outcome<'a> {
        whole.nack(receipt, reason).map(hidden).boxed()
    }
}

struct StaleIsTransient;

impl Fault for StaleIsTransient {
    fn ack<'a>(&'a self, whole: &'a Whole, receipt: Receipt) -> Outcome<'a> {
        whole.ack(receipt).map(|acked| acked.map_err(|error| error.with_transient(true))).boxed()
    }
}

/// Keeps every lease alive behind the receiver's back: whenever time passes, each lease in hand begins anew.
#[derive(Default)]
struct ExtendsAlways(Tags);

impl Fault for ExtendsAlways {
    fn receive<'a>(&'a self, whole: &'a Whole, cancel: &'a CancellationToken) -> Outcome<'a, Received> {
        async move {
            let mut receiving = self.0.receive(whole, cancel).boxed();
            loop {
                // Losing the branch of the sleep is harmless, and `receiving` lives on from turn to turn.
                tokio::select! {
                    biased;
                    received = &mut receiving => return received,
                    () = windlass::clock::Clock::sleep(&whole.clock, UNIT) => self.0.extend_all(whole).await,
                }
            }
        }
        .boxed()
    }

    fn ack<'a>(&'a self, whole: &'a Whole, receipt: Receipt) -> Outcome<'a> {
        async move { whole.ack(self.0.take(whole, receipt)?).await }.boxed()
    }

    fn nack<'a>(&'a self, whole: &'a Whole, receipt: Receipt, reason: NackReason) -> Outcome<'a> {
        async move { whole.nack(self.0.take(whole, receipt)?, reason).await }.boxed()
    }
}

struct ExtendsNothing;

impl Fault for ExtendsNothing {
    fn extend<'a>(&'a self, _: &'a Whole, _: &'a Receipt) -> Outcome<'a> {
        async { Ok(()) }.boxed()
    }
}

struct DeadLettersComeBack;

impl Fault for DeadLettersComeBack {
    fn nack<'a>(&'a self, whole: &'a Whole, receipt: Receipt, reason: NackReason) -> Outcome<'a> {
        async move {
            let dead = matches!(reason, NackReason::DeadLetter { .. });
            let copy: Message = receipt.message.clone();
            whole.nack(receipt, reason).await?;
            if dead {
                whole.queue().publish(copy);
            }
            Ok(())
        }
        .boxed()
    }
}

#[derive(Default)]
struct BuriesAllBefore(Tags);

impl Numbered for BuriesAllBefore {
    fn tags(&self) -> &Tags {
        &self.0
    }

    fn nack<'a>(&'a self, whole: &'a Whole, receipt: Receipt, reason: NackReason) -> Outcome<'a> {
        async move {
            if !matches!(reason, NackReason::DeadLetter { .. }) {
                return whole.nack(self.0.take(whole, receipt)?, reason).await;
            }
            for real in self.0.up_to(receipt.tag) {
                whole.source.nack(real, reason.clone()).await?;
            }
            Ok(())
        }
        .boxed()
    }
}

struct DropsDeadLetters {
    says_so: bool,
}

impl Fault for DropsDeadLetters {
    fn nack<'a>(&'a self, whole: &'a Whole, receipt: Receipt, reason: NackReason) -> Outcome<'a> {
        async move {
            if !matches!(reason, NackReason::DeadLetter { .. }) {
                return whole.nack(receipt, reason).await;
            }
            whole.ack(receipt).await?;
            if self.says_so { Err(whole.error(ErrorKind::Unsupported, "nack")) } else { Ok(()) }
        }
        .boxed()
    }
}
