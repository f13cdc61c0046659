//! How the cases wait: for a message, for nothing, and over time.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::{Duration, Instant};

use futures::future::{self, Either};
use tokio_util::sync::CancellationToken;

use super::harness::Harness;
use super::trial::Trial;
use super::violation::Violation;
use crate::clock::{Clock, SystemClock, after, within};
use crate::error::{Chain, Error, Result};
use crate::message::Message;
use crate::source::{Delivery, MessageSource};

/// Between two looks at something that tells nobody when it changes.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// The next message, over as many calls of `receive` as that takes.
pub(super) async fn received<S: MessageSource>(
    source: &S,
    cancel: &CancellationToken,
) -> Result<Delivery<S::Receipt>> {
    loop {
        if let Some(delivery) = source.receive(cancel).await? {
            return Ok(delivery);
        }
        // A source that answers at once would otherwise keep the bound of the wait from being looked at.
        tokio::task::yield_now().await;
    }
}

/// As [`received`], passing over errors that say that trying again can help.
async fn received_in_the_end<S: MessageSource>(source: &S) -> Result<Delivery<S::Receipt>> {
    let cancel = CancellationToken::new();
    loop {
        match received(source, &cancel).await {
            Err(error) if error.is_transient() => SystemClock.sleep(LOOK_AGAIN).await,
            done => return done,
        }
    }
}

/// Polls up to `times`, and lets other tasks run after each; the output, if it came.
pub(super) async fn polled<F: Future>(mut work: Pin<&mut F>, times: usize) -> Option<F::Output> {
    for _ in 0..times {
        if let Poll::Ready(output) = futures::poll!(work.as_mut()) {
            return Some(output);
        }
        tokio::task::yield_now().await;
    }
    None
}

/// Polls `work` only when it was woken, until it is ready or was found pending `times` over.
pub(super) async fn woken<F: Future>(mut work: Pin<&mut F>, times: usize) -> Option<F::Output> {
    let mut left = times;
    poll_fn(|context| match work.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending if left <= 1 => Poll::Ready(None),
        Poll::Pending => {
            left -= 1;
            Poll::Pending
        }
    })
    .await
}

impl<H: Harness> Trial<H> {
    /// The next message, which must come at once and have this id. `when` completes the sentence of a violation.
    pub(super) async fn next<S: MessageSource>(
        &self,
        source: &S,
        id: &str,
        when: &str,
    ) -> Result<Delivery<S::Receipt>, Violation> {
        let expected = format!("`{id}` to be received {when}");
        let cancel = CancellationToken::new();
        let delivery = self.bounded(&expected, received(source, &cancel)).await?;
        self.named(delivery, id, expected)
    }

    /// The next message, whichever it is, which must come at once.
    pub(super) async fn any<S: MessageSource>(
        &self,
        source: &S,
        when: &str,
    ) -> Result<Delivery<S::Receipt>, Violation> {
        let expected = format!("a message to be received {when}");
        let cancel = CancellationToken::new();
        let delivery = self.bounded(&expected, received(source, &cancel)).await?;
        delivery.map_err(|error| self.receive_failed(expected, &error))
    }

    /// As [`any`](Self::any), through the errors that a source may answer with while it connects again.
    pub(super) async fn after_cut<S: MessageSource>(
        &self,
        source: &S,
        when: &str,
    ) -> Result<Delivery<S::Receipt>, Violation> {
        let expected = format!("a message to be received {when}");
        let delivery = self.bounded(&expected, received_in_the_end(source)).await?;
        delivery.map_err(|error| self.receive_failed(expected, &error))
    }

    /// As [`next`](Self::next), through the same errors.
    pub(super) async fn next_after_cut<S: MessageSource>(
        &self,
        source: &S,
        id: &str,
        when: &str,
    ) -> Result<Delivery<S::Receipt>, Violation> {
        let delivery = self.after_cut(source, when).await?;
        self.named(Ok(delivery), id, format!("`{id}` to be received {when}"))
    }

    fn named<R>(
        &self,
        delivery: Result<Delivery<R>>,
        id: &str,
        expected: String,
    ) -> Result<Delivery<R>, Violation> {
        match delivery {
            Ok(delivery) if delivery.message.id() == id => Ok(delivery),
            Ok(delivery) => Err(self.violation(expected, format!("`{}`", delivery.message.id()))),
            Err(error) => Err(self.receive_failed(expected, &error)),
        }
    }

    fn receive_failed(&self, expected: String, error: &Error) -> Violation {
        self.violation(expected, format!("an error of receive: `{}`", Chain(error)))
    }

    /// The next messages, which must come at once and have these ids in whatever order; sorted as `ids` is.
    pub(super) async fn all<S: MessageSource>(
        &self,
        source: &S,
        ids: &[&str],
        when: &str,
    ) -> Result<Vec<Delivery<S::Receipt>>, Violation> {
        let expected = format!("`{}` to be received {when}, in any order", ids.join("`, `"));
        let cancel = CancellationToken::new();
        let mut found: Vec<Option<Delivery<S::Receipt>>> = ids.iter().map(|_| None).collect();
        for _ in ids {
            let delivery = self.bounded(&expected, received(source, &cancel)).await?;
            let delivery = delivery.map_err(|error| self.receive_failed(expected.clone(), &error))?;
            let place = ids.iter().position(|id| *id == delivery.message.id());
            match place.and_then(|place| found.get_mut(place)).filter(|place| place.is_none()) {
                Some(place) => *place = Some(delivery),
                None => return Err(self.violation(expected, format!("`{}`", delivery.message.id()))),
            }
        }
        Ok(found.into_iter().flatten().collect())
    }

    /// The next message, while time passes in small steps until `end`; `None` when nothing came by then.
    async fn next_until<S: MessageSource>(
        &self,
        source: &S,
        end: Instant,
        expected: &str,
    ) -> Result<Option<Delivery<S::Receipt>>, Violation> {
        let step = self.harness().delay_unit() / 10;
        let passing = async {
            while self.harness().clock().now() < end {
                let left = end.saturating_duration_since(self.harness().clock().now());
                self.harness().pass(step.min(left)).await;
            }
        };
        let cancel = CancellationToken::new();
        // Dropping a receive loses nothing, and the passing of time is given up once a message is there.
        let (receiving, passing) = (pin!(received(source, &cancel)), pin!(passing));
        let bound = self.patience() + end.saturating_duration_since(self.harness().clock().now());
        match within(&SystemClock, bound, future::select(receiving, passing)).await {
            Some(Either::Left((Ok(delivery), _))) => Ok(Some(delivery)),
            Some(Either::Left((Err(error), _))) => Err(self.receive_failed(expected.to_owned(), &error)),
            Some(Either::Right(((), _))) => Ok(None),
            None => {
                Err(self.violation("the harness to let time pass", format!("that {bound:?} was not enough")))
            }
        }
    }

    /// Lets one unit of time pass, in which nothing may come.
    pub(super) async fn nothing<S: MessageSource>(&self, source: &S, when: &str) -> Result<(), Violation> {
        self.nothing_for(source, self.harness().delay_unit(), when).await
    }

    pub(super) async fn nothing_for<S: MessageSource>(
        &self,
        source: &S,
        time: Duration,
        when: &str,
    ) -> Result<(), Violation> {
        let expected = format!("nothing to be received {when}");
        let end = after(self.harness().clock().now(), time);
        match self.next_until(source, end, &expected).await? {
            None => Ok(()),
            Some(delivery) => {
                let seen = format!("`{}`, attempt {}", delivery.message.id(), delivery.message.attempt());
                Err(self.violation(expected, seen))
            }
        }
    }

    /// The message `id`, which must come when `delay` has passed since `start`, and no later than `late` after that.
    pub(super) async fn due<S: MessageSource>(
        &self,
        source: &S,
        id: &str,
        start: Instant,
        (delay, late): (Duration, Duration),
    ) -> Result<Delivery<S::Receipt>, Violation> {
        let expected = format!("`{id}` to be received after {delay:?}, and after {:?} at most", delay + late);
        let Some(delivery) = self.next_until(source, after(start, delay + late), &expected).await? else {
            return Err(self.violation(expected, "that nothing came in that time"));
        };
        let passed = self.harness().clock().now().saturating_duration_since(start);
        let delivery = self.named(Ok(delivery), id, expected.clone())?;
        self.expect(passed >= delay, expected, || format!("that it came after {passed:?}"))?;
        Ok(delivery)
    }

    /// Waits until there are `count` dead letters; brokers may show them a little late.
    pub(super) async fn dead_letters(&self, count: usize) -> Result<Vec<Message>, Violation> {
        let expected = format!("{count} in the dead-letter queue");
        let start = SystemClock.now();
        loop {
            let letters = self.list_dead_letters().await?;
            if letters.len() == count {
                return Ok(letters);
            }
            if letters.len() > count || SystemClock.now() - start > self.patience() {
                return Err(self.violation(expected, format!("{}", letters.len())));
            }
            SystemClock.sleep(LOOK_AGAIN).await;
        }
    }
}
