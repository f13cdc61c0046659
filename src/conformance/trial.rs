//! One run of one case: the harness, and the steps that the cases are written in.

use std::fmt;
use std::future::Future;
use std::num::NonZeroUsize;
use std::time::Duration;

use futures::future::BoxFuture;

use super::harness::{Cut, Harness};
use super::violation::Violation;
use crate::clock::{SystemClock, within};
use crate::error::{Chain, Error, ErrorKind, Result};
use crate::message::Message;
use crate::source::{Capabilities, Delivery, MessageSource, NackReason};

/// How long a harness may take to set up: it may have to wait for a broker that starts.
const SET_UP_BOUND: Duration = Duration::from_secs(60);

/// One run of one case on a harness of its own; what the cases take.
pub struct Trial<H> {
    harness: H,
    case: &'static str,
}

/// Sets a harness up, runs `promise` on it, and tears it down; `case` is the name in a violation.
///
/// # Errors
///
/// The promise that was broken, or the step of the harness that failed.
///
/// # Cancel safety
///
/// Dropped in the middle, the harness is not torn down.
pub async fn run<H, P>(case: &'static str, promise: P) -> Result<(), Violation>
where
    H: Harness,
    P: for<'a> FnOnce(&'a Trial<H>) -> BoxFuture<'a, Result<(), Violation>> + Send,
{
    let harness = match within(&SystemClock, SET_UP_BOUND, H::set_up(case)).await {
        Some(Ok(harness)) => harness,
        Some(Err(error)) => return Err(step_failed(case, "set up", &error)),
        None => return Err(Violation::new(case, "the harness to set up", took(SET_UP_BOUND))),
    };
    let trial = Trial { harness, case };
    let kept = promise(&trial).await;
    let patience = trial.patience();
    let torn_down = match within(&SystemClock, patience, trial.harness.tear_down()).await {
        Some(done) => done.map_err(|error| step_failed(case, "tear down", &error)),
        None => Err(Violation::new(case, "the harness to tear down", took(patience))),
    };
    kept.and(torn_down)
}

fn step_failed(case: &'static str, step: &str, error: &Error) -> Violation {
    Violation::new(case, format!("the harness to {step}"), format!("the error `{}`", Chain(error)))
}

fn took(bound: Duration) -> String {
    format!("that it was not done within {bound:?}")
}

impl<H: Harness> Trial<H> {
    pub(super) fn harness(&self) -> &H {
        &self.harness
    }

    /// What the author declared.
    pub(super) fn declared(&self) -> Capabilities {
        self.harness.capabilities()
    }

    pub(super) fn patience(&self) -> Duration {
        self.harness.patience()
    }

    pub(super) fn violation(&self, expected: impl Into<String>, seen: impl Into<String>) -> Violation {
        Violation::new(self.case, expected, seen)
    }

    /// A violation unless `kept`.
    pub(super) fn expect(
        &self,
        kept: bool,
        expected: impl Into<String>,
        seen: impl FnOnce() -> String,
    ) -> Result<(), Violation> {
        if kept { Ok(()) } else { Err(self.violation(expected, seen())) }
    }

    /// Waits for `work` for as long as the harness is patient.
    pub(super) async fn bounded<F: Future>(&self, expected: &str, work: F) -> Result<F::Output, Violation> {
        let bound = self.patience();
        within(&SystemClock, bound, work).await.ok_or_else(|| self.violation(expected, took(bound)))
    }

    async fn step<T>(&self, step: &str, work: impl Future<Output = Result<T>>) -> Result<T, Violation> {
        let done = self.bounded(&format!("the harness to {step}"), work).await?;
        done.map_err(|error| step_failed(self.case, step, &error))
    }

    pub(super) async fn source(&self, window: usize) -> Result<H::Source, Violation> {
        let window = NonZeroUsize::new(window).unwrap_or(NonZeroUsize::MIN);
        self.step("open a source", self.harness.source(window)).await
    }

    pub(super) async fn send(&self, message: Message) -> Result<(), Violation> {
        self.step("publish", self.harness.publish(message)).await
    }

    /// Publishes one message for each id, in order; the body is the id.
    pub(super) async fn publish(&self, ids: &[&str]) -> Result<(), Violation> {
        for id in ids {
            self.send(Message::new((*id).to_owned()).with_id(*id)).await?;
        }
        Ok(())
    }

    /// Cuts the connections; false where there are none.
    pub(super) async fn cut(&self) -> Result<bool, Violation> {
        let cut = self.step("cut the connections", self.harness.cut()).await?;
        Ok(cut == Cut::Done)
    }

    pub(super) async fn list_dead_letters(&self) -> Result<Vec<Message>, Violation> {
        self.step("list the dead letters", self.harness.dead_letters()).await
    }

    /// Waits for the operation `what` of the source and expects that it succeeds.
    pub(super) async fn done<T>(
        &self,
        what: &str,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T, Violation> {
        let expected = format!("{what} to succeed");
        let done = self.bounded(&expected, work).await?;
        done.map_err(|error| self.violation(expected, format!("the error `{}`", Chain(&error))))
    }

    /// Waits for the operation `what` and expects that it is refused with an error of one of `kinds`, which says that
    /// trying again cannot help.
    pub(super) async fn refused<T>(
        &self,
        what: &str,
        kinds: &[ErrorKind],
        work: impl Future<Output = Result<T>>,
    ) -> Result<(), Violation> {
        let names: Vec<String> = kinds.iter().map(|kind| format!("{kind:?}")).collect();
        let expected = format!("{what} to be refused as {}", names.join(" or "));
        match self.bounded(&expected, work).await? {
            Ok(_) => Err(self.violation(expected, "that it succeeded")),
            Err(error) if !kinds.contains(&error.kind()) => {
                Err(self.violation(expected, format!("the kind {:?}: `{}`", error.kind(), Chain(&error))))
            }
            Err(error) if error.is_transient() => {
                Err(self.violation(expected, "an error that says that trying again can help"))
            }
            Err(_) => Ok(()),
        }
    }

    pub(super) async fn ack<S: MessageSource>(
        &self,
        source: &S,
        delivery: Delivery<S::Receipt>,
    ) -> Result<(), Violation> {
        let what = format!("the ack of `{}`", delivery.message.id());
        self.done(&what, source.ack(delivery.receipt)).await
    }

    pub(super) async fn nack<S: MessageSource>(
        &self,
        source: &S,
        delivery: Delivery<S::Receipt>,
        reason: NackReason,
    ) -> Result<(), Violation> {
        let what = format!("the nack of `{}` ({reason})", delivery.message.id());
        self.done(&what, source.nack(delivery.receipt, reason)).await
    }

    pub(super) async fn close<S: MessageSource>(&self, source: &S) -> Result<(), Violation> {
        self.done("close", source.close()).await
    }
}

impl<H> fmt::Debug for Trial<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trial").field("case", &self.case).finish_non_exhaustive()
    }
}
