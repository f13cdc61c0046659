//! Sources that do not hand back what they ought to, when they are released, closed or dropped.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use futures::FutureExt;
use futures::future::pending;
use tokio_util::sync::CancellationToken;
use windlass::ErrorKind;
use windlass::source::{Health, MessageSource, NackReason};

use super::faults::{Broken, ByNumber, Numbered, Tags};
use super::source::{Fault, Outcome, Received, Shape, Whole};

pub(crate) const BROKEN: &[Broken] = &[
    Broken {
        what: "releases nothing",
        shape: Shape::Buffering,
        fault: || Box::new(Releases(|_| Ok(()))),
        breaks: &["release_hands_back_what_was_buffered", "a_release_keeps_the_attempt"],
    },
    Broken {
        what: "releases what was received as well",
        shape: Shape::Usual,
        fault: || Box::new(ByNumber(ReleasesAll::default())),
        breaks: &["release_leaves_received_deliveries_alone"],
    },
    Broken {
        what: "receives nothing any more once it released",
        shape: Shape::Usual,
        fault: || Box::new(ReleasedForGood::default()),
        breaks: &["a_receive_after_release_pulls_again"],
    },
    Broken {
        what: "fails to release nothing",
        shape: Shape::Usual,
        fault: || Box::new(Releases(|whole| Err(whole.error(ErrorKind::Refused, "release")))),
        breaks: &["a_release_with_nothing_buffered_is_harmless"],
    },
    Broken {
        what: "keeps what it has when it is closed",
        shape: Shape::Usual,
        fault: || Box::new(ClosesItselfAlone::default()),
        breaks: &["a_closed_source_gives_back_what_was_not_settled"],
    },
    Broken {
        what: "counts a close as an attempt",
        shape: Shape::Usual,
        fault: || Box::new(ByNumber(CloseRetries::default())),
        breaks: &["closing_the_source_keeps_the_attempt"],
    },
    Broken {
        what: "keeps what it has when it is dropped",
        shape: Shape::Usual,
        fault: || Box::new(Leaks),
        breaks: &[
            "a_dropped_source_gives_back_what_was_not_settled",
            "dropping_the_source_keeps_the_attempt",
        ],
    },
    Broken {
        what: "can be closed once",
        shape: Shape::Usual,
        fault: || Box::new(ClosesOnce::default()),
        breaks: &["closing_twice_is_harmless", "several_tasks_may_close_at_once"],
    },
    Broken {
        what: "cuts everybody's connection when it is closed once more",
        shape: Shape::Usual,
        fault: || Box::new(CloseCuts::default()),
        breaks: &["closing_twice_is_harmless"],
    },
    Broken {
        what: "hangs when two close it at the same time",
        shape: Shape::Usual,
        fault: || Box::new(ClosesAlone::default()),
        breaks: &["several_tasks_may_close_at_once"],
    },
    Broken {
        what: "waits for its first message before it closes",
        shape: Shape::Usual,
        fault: || Box::new(ClosesAfterUse::default()),
        breaks: &["an_unused_source_can_be_closed"],
    },
    Broken {
        what: "waits on when it is closed",
        shape: Shape::Usual,
        fault: || Box::new(WaitsOn),
        breaks: &["a_waiting_receive_ends_when_the_source_is_closed"],
    },
    Broken {
        what: "finds nothing, instead of being closed, after close",
        shape: Shape::Usual,
        fault: || Box::new(ClosedIsEmpty),
        breaks: &["a_receive_after_close_is_refused", "a_waiting_receive_ends_when_the_source_is_closed"],
    },
    Broken {
        what: "says that receiving again after close can help",
        shape: Shape::Usual,
        fault: || Box::new(ClosedIsTransient),
        breaks: &["a_receive_after_close_is_refused"],
    },
    Broken {
        what: "is ready for ever",
        shape: Shape::Usual,
        fault: || Box::new(AlwaysReady),
        breaks: &[
            "the_health_tells_open_from_closed",
            "an_erased_source_behaves_the_same",
            "a_shared_source_behaves_the_same",
        ],
    },
];

struct Releases(fn(&Whole) -> windlass::Result<()>);

impl Fault for Releases {
    fn release<'a>(&'a self, whole: &'a Whole) -> Outcome<'a> {
        async move { (self.0)(whole) }.boxed()
    }
}

#[derive(Default)]
struct ReleasesAll(Tags);

impl Numbered for ReleasesAll {
    fn tags(&self) -> &Tags {
        &self.0
    }

    fn release<'a>(&'a self, whole: &'a Whole) -> Outcome<'a> {
        async move {
            self.0.settle_all(whole, Some(&NackReason::requeue_now("released"))).await;
            Ok(())
        }
        .boxed()
    }
}

#[derive(Default)]
struct ReleasedForGood(AtomicBool);

impl Fault for ReleasedForGood {
    fn receive<'a>(&'a self, whole: &'a Whole, cancel: &'a CancellationToken) -> Outcome<'a, Received> {
        async move {
            if self.0.load(Ordering::Relaxed) {
                cancel.cancelled().await;
            }
            whole.receive(cancel).await
        }
        .boxed()
    }

    fn release<'a>(&'a self, whole: &'a Whole) -> Outcome<'a> {
        self.0.store(true, Ordering::Relaxed);
        whole.source.release().boxed()
    }
}

/// Is closed towards its user, and not towards the broker.
#[derive(Default)]
struct ClosesItselfAlone(CancellationToken);

impl Fault for ClosesItselfAlone {
    fn receive<'a>(&'a self, whole: &'a Whole, cancel: &'a CancellationToken) -> Outcome<'a, Received> {
        async move {
            // Losing the other branch is harmless: a receive that is dropped loses nothing.
            tokio::select! {
                biased;
                () = self.0.cancelled() => Err(whole.error(ErrorKind::Closed, "receive")),
                received = whole.receive(cancel) => received,
            }
        }
        .boxed()
    }

    fn close<'a>(&'a self, _: &'a Whole) -> Outcome<'a> {
        self.0.cancel();
        async { Ok(()) }.boxed()
    }

    fn health(&self, _: &Whole) -> Health {
        if self.0.is_cancelled() { Health::Closed } else { Health::Ready }
    }
}

#[derive(Default)]
struct CloseRetries(Tags);

impl Numbered for CloseRetries {
    fn tags(&self) -> &Tags {
        &self.0
    }

    fn close<'a>(&'a self, whole: &'a Whole) -> Outcome<'a> {
        async move {
            self.0.settle_all(whole, Some(&NackReason::retry("closed"))).await;
            whole.source.close().await
        }
        .boxed()
    }
}

struct Leaks;

impl Fault for Leaks {
    fn dropped(&self, whole: &Whole) {
        std::mem::forget(whole.source.clone());
    }
}

#[derive(Default)]
struct ClosesOnce(AtomicBool);

impl Fault for ClosesOnce {
    fn close<'a>(&'a self, whole: &'a Whole) -> Outcome<'a> {
        async move {
            if self.0.swap(true, Ordering::Relaxed) {
                return Err(whole.error(ErrorKind::Closed, "close"));
            }
            whole.source.close().await
        }
        .boxed()
    }
}

#[derive(Default)]
struct CloseCuts(AtomicBool);

impl Fault for CloseCuts {
    fn close<'a>(&'a self, whole: &'a Whole) -> Outcome<'a> {
        if self.0.swap(true, Ordering::Relaxed) {
            whole.queue().cut();
        }
        whole.source.close().boxed()
    }
}

#[derive(Default)]
struct ClosesAlone(AtomicU32);

impl Fault for ClosesAlone {
    fn close<'a>(&'a self, whole: &'a Whole) -> Outcome<'a> {
        async move {
            if self.0.fetch_add(1, Ordering::Relaxed) > 0 {
                return pending().await;
            }
            tokio::task::yield_now().await;
            let closed = whole.source.close().await;
            self.0.store(0, Ordering::Relaxed);
            closed
        }
        .boxed()
    }
}

#[derive(Default)]
struct ClosesAfterUse(AtomicBool);

impl Fault for ClosesAfterUse {
    fn receive<'a>(&'a self, whole: &'a Whole, cancel: &'a CancellationToken) -> Outcome<'a, Received> {
        self.0.store(true, Ordering::Relaxed);
        whole.receive(cancel).boxed()
    }

    fn close<'a>(&'a self, whole: &'a Whole) -> Outcome<'a> {
        async move {
            if !self.0.load(Ordering::Relaxed) {
                return pending().await;
            }
            whole.source.close().await
        }
        .boxed()
    }
}

struct WaitsOn;

impl Fault for WaitsOn {
    fn receive<'a>(&'a self, whole: &'a Whole, cancel: &'a CancellationToken) -> Outcome<'a, Received> {
        async move {
            let closed = whole.source.health() == Health::Closed;
            match whole.receive(cancel).await {
                Err(error) if error.kind() == ErrorKind::Closed && !closed => pending().await,
                received => received,
            }
        }
        .boxed()
    }
}

struct ClosedIsEmpty;

impl Fault for ClosedIsEmpty {
    fn receive<'a>(&'a self, whole: &'a Whole, cancel: &'a CancellationToken) -> Outcome<'a, Received> {
        async move {
            match whole.receive(cancel).await {
                Err(error) if error.kind() == ErrorKind::Closed => Ok(None),
                received => received,
            }
        }
        .boxed()
    }
}

struct ClosedIsTransient;

impl Fault for ClosedIsTransient {
    fn receive<'a>(&'a self, whole: &'a Whole, cancel: &'a CancellationToken) -> Outcome<'a, Received> {
        async move { whole.receive(cancel).await.map_err(|error| error.with_transient(true)) }.boxed()
    }
}

pub(crate) struct AlwaysReady;

impl Fault for AlwaysReady {
    fn health(&self, _: &Whole) -> Health {
        Health::Ready
    }
}
