//! Sources that hand messages out wrongly, or do not end a `receive` as they ought to.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::FutureExt;
use futures::future::{BoxFuture, pending};
use tokio_util::sync::CancellationToken;
use windlass::ErrorKind;
use windlass::source::Delivery;

use super::faults::Broken;
use super::source::{Fault, Outcome, Receipt, Received, Shape, Whole};

pub(crate) const BROKEN: &[Broken] = &[
    Broken {
        what: "takes an empty queue for an error",
        shape: Shape::Usual,
        fault: || Box::new(EmptyIsAnError),
        breaks: &["an_empty_queue_delivers_nothing"],
    },
    Broken {
        what: "does not hear of what is published while it waits",
        shape: Shape::Usual,
        fault: || Box::new(Deaf),
        breaks: &["a_waiting_receive_gets_what_is_published_later"],
    },
    Broken {
        what: "hands out the newest first",
        shape: Shape::Usual,
        fault: || Box::new(NewestFirst::default()),
        breaks: &["messages_come_in_the_order_of_publishing"],
    },
    Broken {
        what: "hands out every message twice",
        shape: Shape::Usual,
        fault: || Box::new(Twice::default()),
        breaks: &[
            "a_message_in_hand_is_given_to_nobody_else",
            "concurrent_receivers_get_each_message_once",
            "two_sources_get_each_message_once_between_them",
        ],
    },
    Broken {
        what: "forgets a message when two receive at the same time",
        shape: Shape::Usual,
        fault: || Box::new(OneAtATime::default()),
        breaks: &["concurrent_receivers_get_each_message_once"],
    },
    Broken {
        what: "has a message in the future alone while it awaits something else",
        shape: Shape::Usual,
        fault: || Box::new(LosesWhenDropped),
        breaks: &["a_dropped_receive_loses_no_message"],
    },
    Broken {
        what: "throws a message away that came together with the cancel",
        shape: Shape::Usual,
        fault: || Box::new(LosesWhenCancelled),
        breaks: &["a_cancelled_receive_loses_no_message", "cancelling_one_receive_leaves_the_others"],
    },
    Broken {
        what: "looks for a message before it looks at its token",
        shape: Shape::Usual,
        fault: || Box::new(LooksFirst),
        breaks: &["a_receive_that_is_cancelled_already_takes_nothing"],
    },
    Broken {
        what: "does not end when it is cancelled",
        shape: Shape::Usual,
        fault: || Box::new(IgnoresCancel),
        breaks: &["a_waiting_receive_returns_when_it_is_cancelled"],
    },
    Broken {
        what: "never receives again after a cut",
        shape: Shape::Usual,
        fault: || Box::new(DeadAfterCut::default()),
        breaks: &["a_source_goes_on_after_a_cut", "a_cut_brings_back_what_was_not_settled"],
    },
    Broken {
        what: "says after a cut that trying again cannot help",
        shape: Shape::Usual,
        fault: || Box::new(GivesUpAfterCut::default()),
        breaks: &["a_source_goes_on_after_a_cut"],
    },
];

struct EmptyIsAnError;

impl Fault for EmptyIsAnError {
    fn receive<'a>(&'a self, whole: &'a Whole, cancel: &'a CancellationToken) -> Outcome<'a, Received> {
        let found = whole.receive(cancel).now_or_never();
        async move { found.unwrap_or_else(|| Err(whole.error(ErrorKind::NotFound, "receive"))) }.boxed()
    }
}

struct Deaf;

impl Fault for Deaf {
    fn receive<'a>(&'a self, whole: &'a Whole, cancel: &'a CancellationToken) -> Outcome<'a, Received> {
        async move {
            match whole.receive(cancel).now_or_never() {
                Some(received) => received,
                None => {
                    cancel.cancelled().await;
                    Ok(None)
                }
            }
        }
        .boxed()
    }
}

#[derive(Default)]
struct NewestFirst(Mutex<Vec<Delivery<Receipt>>>);

impl Fault for NewestFirst {
    fn receive<'a>(&'a self, whole: &'a Whole, cancel: &'a CancellationToken) -> Outcome<'a, Received> {
        async move {
            while let Some(Ok(Some(delivery))) = whole.receive(cancel).now_or_never() {
                self.0.lock().unwrap().push(delivery);
            }
            let newest = self.0.lock().unwrap().pop();
            match newest {
                Some(delivery) => Ok(Some(delivery)),
                None => whole.receive(cancel).await,
            }
        }
        .boxed()
    }
}

#[derive(Default)]
struct Twice(Mutex<Vec<Delivery<Receipt>>>);

impl Fault for Twice {
    fn receive<'a>(&'a self, whole: &'a Whole, cancel: &'a CancellationToken) -> Outcome<'a, Received> {
        async move {
            let again = self.0.lock().unwrap().pop();
            if again.is_some() {
                return Ok(again);
            }
            let delivery = whole.receive(cancel).await?;
            if let Some(Delivery { message, receipt }) = &delivery {
                let copy = Receipt { real: None, message: message.clone(), tag: receipt.tag };
                self.0.lock().unwrap().push(Delivery { message: message.clone(), receipt: copy });
            }
            Ok(delivery)
        }
        .boxed()
    }
}

/// Keeps what it received in one place for a moment, where another receive overwrites it.
#[derive(Default)]
struct OneAtATime(Mutex<Received>);

impl Fault for OneAtATime {
    fn receive<'a>(&'a self, whole: &'a Whole, cancel: &'a CancellationToken) -> Outcome<'a, Received> {
        async move {
            let received = whole.receive(cancel).await?;
            *self.0.lock().unwrap() = received;
            tokio::task::yield_now().await;
            Ok(self.0.lock().unwrap().take())
        }
        .boxed()
    }
}

struct LosesWhenDropped;

impl Fault for LosesWhenDropped {
    fn receive<'a>(&'a self, whole: &'a Whole, cancel: &'a CancellationToken) -> Outcome<'a, Received> {
        async move {
            let received = whole.receive(cancel).await?;
            tokio::task::yield_now().await;
            Ok(received)
        }
        .boxed()
    }
}

struct LosesWhenCancelled;

impl Fault for LosesWhenCancelled {
    fn receive<'a>(&'a self, whole: &'a Whole, cancel: &'a CancellationToken) -> Outcome<'a, Received> {
        async move {
            let received = whole.receive(cancel).await?;
            tokio::task::yield_now().await;
            Ok(received.filter(|_| !cancel.is_cancelled()))
        }
        .boxed()
    }
}

struct LooksFirst;

impl Fault for LooksFirst {
    fn receive<'a>(&'a self, whole: &'a Whole, cancel: &'a CancellationToken) -> Outcome<'a, Received> {
        async move {
            match whole.receive(&CancellationToken::new()).now_or_never() {
                Some(received) => received,
                None => whole.receive(cancel).await,
            }
        }
        .boxed()
    }
}

struct IgnoresCancel;

impl Fault for IgnoresCancel {
    fn receive<'a>(&'a self, whole: &'a Whole, cancel: &'a CancellationToken) -> Outcome<'a, Received> {
        async move {
            if cancel.is_cancelled() {
                return Ok(None);
            }
            whole.receive(&CancellationToken::new()).await
        }
        .boxed()
    }
}

#[derive(Default)]
struct DeadAfterCut(AtomicBool);

impl Fault for DeadAfterCut {
    fn receive<'a>(&'a self, whole: &'a Whole, cancel: &'a CancellationToken) -> Outcome<'a, Received> {
        if self.0.load(Ordering::Relaxed) {
            return pending().boxed();
        }
        whole.receive(cancel).boxed()
    }

    fn cut<'a>(&'a self, _: &'a Whole) -> BoxFuture<'a, ()> {
        self.0.store(true, Ordering::Relaxed);
        async {}.boxed()
    }
}

#[derive(Default)]
struct GivesUpAfterCut(AtomicBool);

impl Fault for GivesUpAfterCut {
    fn receive<'a>(&'a self, whole: &'a Whole, cancel: &'a CancellationToken) -> Outcome<'a, Received> {
        async move {
            let received = whole.receive(cancel).await?;
            if self.0.load(Ordering::Relaxed) {
                return Err(whole.error(ErrorKind::Disconnected, "receive").with_transient(false));
            }
            Ok(received)
        }
        .boxed()
    }

    fn cut<'a>(&'a self, _: &'a Whole) -> BoxFuture<'a, ()> {
        self.0.store(true, Ordering::Relaxed);
        async {}.boxed()
    }
}
