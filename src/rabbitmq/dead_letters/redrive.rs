//! Sending dead letters back. Each is published, confirmed, and only then acked; whatever stays is handed back at the end.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures::future::{self, BoxFuture};
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use tokio::task::unconstrained;
use tokio_util::sync::CancellationToken;

use super::DeadLetterQueue;
use super::death::DeadMessage;
use super::limit::Limit;
use super::options::RedriveOptions;
use super::peek::to_the_end;
use super::report::{Ended, Flow, Obstacle, Progress, RedriveError, Redriven};
use super::taking::{Taken, Taking};
use crate::clock::{Clock, within};
use crate::error::{Error, ErrorKind, Result};
use crate::message::Message;
use crate::rabbitmq::lane::Address;
use crate::rabbitmq::link::ANSWER_BOUND;
use crate::rabbitmq::{QueueType, wire};

/// After how many acks the queue is asked whether it has them, and after how long where they are fewer.
const ASK_AFTER: u64 = 512;
const ASK_EVERY: Duration = Duration::from_secs(2);

/// How much of its time a run that has a rate may catch up on: timers are late by a millisecond or two.
const SLACK: Duration = Duration::from_millis(20);

/// A copy whose outcome is awaited.
struct Publishing {
    tag: u64,
    message: Message,
    /// Whether it may not be handed back.
    at_limit: bool,
    /// Where it was sent to; `None` for the end of the same queue.
    to: Option<String>,
    outcome: Result<()>,
}

/// How far it is known that acks have arrived.
#[derive(Default, Clone, Copy)]
struct Acked {
    sent: u64,
    /// Those before the queue was last asked.
    arrived: u64,
    /// Those before it was asked the time before that: a broker that is killed may forget the last ones that it has taken.
    safe: u64,
    /// The run has ended in order.
    all: bool,
}

impl Acked {
    fn asked(&mut self) {
        (self.safe, self.arrived) = (self.arrived, self.sent);
    }

    fn unproved(self) -> u64 {
        self.sent - self.arrived
    }

    fn all_arrived(&mut self) {
        (self.safe, self.arrived, self.all) = (self.sent, self.sent, true);
    }
}

struct Run<'a, P> {
    letters: &'a DeadLetterQueue,
    options: &'a RedriveOptions,
    clock: Arc<dyn Clock>,
    on_progress: P,
    began: SystemTime,
    limit: Limit,
    report: Redriven,
    publishing: FuturesUnordered<BoxFuture<'a, Publishing>>,
    /// When the next one may be published, where a rate was asked for.
    slot: Option<Instant>,
    /// Copies that were confirmed: those sent back, and those put at the end of the queue.
    confirmed: (u64, u64),
    /// The acks of these.
    acked: (Acked, Acked),
    /// When the queue was last asked whether it has them.
    asked: Instant,
    /// Copies of which it is not known whether they were taken.
    unknown: u64,
    /// Whether the queue is surely a quorum queue, which does not forget acks when the broker is killed.
    keeps_acks: bool,
    /// What ends the run, once nothing is in flight.
    failed: Option<Error>,
}

pub(super) async fn redrive(
    letters: &DeadLetterQueue,
    options: &RedriveOptions,
    cancel: &CancellationToken,
    on_progress: impl FnMut(Progress) + Send,
) -> Result<Redriven, RedriveError> {
    let rabbit = &letters.rabbit;
    // While it is held, a disconnect waits for the end of this.
    let _running = rabbit.source_tasks().token();
    let clock = rabbit.shared_clock();
    let mut run = Run {
        letters,
        options,
        began: clock.wall(),
        asked: clock.now(),
        clock,
        on_progress,
        limit: Limit::new(letters.delivery_limit),
        report: Redriven { dry_run: options.dry_run, ..Redriven::default() },
        publishing: FuturesUnordered::new(),
        slot: None,
        confirmed: (0, 0),
        acked: Default::default(),
        unknown: 0,
        keeps_acks: letters.queue_type == QueueType::Quorum,
        failed: None,
    };
    // Fires for either of both; its own end is nobody's.
    let stop = cancel.child_token();
    let both = async {
        let _end = stop.clone().drop_guard();
        let outcome = run.run(&stop).await;
        (outcome, run)
    };
    let closing = async {
        // Only waits are lost here.
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = rabbit.closing().cancelled() => stop.cancel(),
        }
    };
    let ((outcome, run), ()) = future::join(both, closing).await;
    run.end(outcome, rabbit.closing().is_cancelled())
}

impl<'a, P: FnMut(Progress) + Send> Run<'a, P> {
    async fn run(&mut self, stop: &CancellationToken) -> Result<()> {
        let window = self.window();
        let (mut taking, ready) = Taking::start(&self.letters.rabbit, &self.letters.queue, window).await?;
        self.report.ready = ready;
        self.report.ended = self.take_all(&mut taking, stop).await?;
        self.finish(&mut taking).await?;
        let late = taking.stop().await?;
        for Taken { tag, received, handed_back } in late {
            if self.limit.is_reached(handed_back) {
                self.publish_to_the_end(tag, received.message);
            }
        }
        self.finish(&mut taking).await?;
        taking.hand_back().await?;
        self.acked.0.all_arrived();
        self.acked.1.all_arrived();
        self.tell();
        self.failed.take().map_or(Ok(()), Err)
    }

    /// Room for what is in flight and as many more that stay, but no more than can be needed.
    fn window(&self) -> u16 {
        let most = self.options.limit.map_or(u64::MAX, std::num::NonZero::get);
        let in_flight = u64::from(self.options.in_flight.get()).min(most);
        u16::try_from(in_flight.saturating_mul(2)).unwrap_or(u16::MAX)
    }

    /// How many are still to be looked at.
    fn left(&self) -> usize {
        usize::try_from(self.report.ready.saturating_sub(self.report.looked_at)).unwrap_or(usize::MAX)
    }

    /// Until all was looked at, or something ends it.
    async fn take_all(&mut self, taking: &mut Taking, stop: &CancellationToken) -> Result<Ended> {
        let window = self.window();
        loop {
            self.tell();
            if stop.is_cancelled() {
                return Ok(Ended::Cancelled);
            }
            if self.failed.is_some() {
                return Ok(Ended::Failed);
            }
            if self.report.looked_at >= self.report.ready {
                return Ok(Ended::Done);
            }
            if self.options.limit.is_some_and(|limit| self.report.matched >= limit.get()) {
                return Ok(Ended::Limit);
            }
            if self.publishing.len() >= usize::from(self.options.in_flight.get()) {
                if let Some(done) = self.publishing.next().await {
                    self.take_outcomes(taking, done).await?;
                }
                continue;
            }
            if !self.wait_for_slot(taking, stop).await? {
                continue;
            }
            taking.make_room(window / 2, self.publishing.len(), self.left()).await?;
            if self.publishing.is_empty() {
                match taking.next_or_none(stop).await? {
                    Some(taken) => self.consider(taken),
                    None if stop.is_cancelled() => {}
                    None => return Ok(Ended::Done),
                }
                continue;
            }
            // What either branch takes is dealt with in the same step; the others only wait.
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                Some(done) = self.publishing.next() => self.take_outcomes(taking, done).await?,
                taken = taking.next() => self.consider(taken?),
            }
        }
    }

    /// Waits until the next one may be published; false where something else has to be looked at first.
    async fn wait_for_slot(&mut self, taking: &mut Taking, stop: &CancellationToken) -> Result<bool> {
        let Some(slot) = self.slot.filter(|slot| *slot > self.clock.now()) else { return Ok(true) };
        let due = self.clock.sleep_until(slot);
        // What is taken is dealt with in the same step; the others only wait.
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            Some(done) = self.publishing.next() => self.take_outcomes(taking, done).await?,
            () = due => return Ok(true),
        }
        Ok(false)
    }

    /// Sends a message back, or leaves it.
    fn consider(&mut self, taken: Taken) {
        let Taken { tag, received, handed_back } = taken;
        self.report.looked_at += 1;
        let at_limit = self.limit.is_reached(handed_back);
        let unreadable = received.unreadable.map(|unreadable| unreadable.cause());
        let dead = DeadMessage::new(received.message);
        let to = self.target(&dead);
        match (to, unreadable) {
            (Some(to), None) if !self.options.dry_run => {
                self.count(&dead, &to);
                self.publish(tag, dead.message, at_limit, to);
                return;
            }
            (Some(to), None) => self.count(&dead, &to),
            // It came without some of its headers, and its copy would be without them.
            (Some(to), Some(cause)) => self.obstacle(&to, &cause.to_string()),
            (None, _) => {}
        }
        if at_limit {
            self.publish_to_the_end(tag, dead.message);
        }
    }

    /// Where the message is to be sent to; `None` where it stays, which is counted.
    fn target(&mut self, dead: &DeadMessage) -> Option<String> {
        if dead.death.at.is_some_and(|at| at > self.began) {
            self.report.newer += 1;
            return None;
        }
        if !self.options.matches(dead, self.began) {
            self.report.not_matched += 1;
            return None;
        }
        let to = self.options.to.as_ref().or(dead.death.queue.as_ref()).cloned();
        match to {
            Some(to) if to == self.letters.queue => {
                self.obstacle(&to, "it came from this queue itself: say where to send it");
                None
            }
            Some(to) => Some(to),
            None => {
                self.report.unknown_origin += 1;
                None
            }
        }
    }

    fn count(&mut self, dead: &DeadMessage, to: &str) {
        self.report.matched += 1;
        let cause = dead.death.cause.as_ref().map(|cause| cause.code().to_owned());
        let flow = Flow { origin: dead.death.queue.clone(), to: to.to_owned(), cause };
        *self.report.flows.entry(flow).or_default() += 1;
    }

    fn obstacle(&mut self, to: &str, reason: &str) {
        self.report.not_taken += 1;
        let obstacle = Obstacle { to: to.to_owned(), reason: reason.to_owned() };
        *self.report.obstacles.entry(obstacle).or_default() += 1;
    }

    fn publish(&mut self, tag: u64, message: Message, at_limit: bool, to: String) {
        if let Some(rate) = self.options.rate {
            let now = self.clock.now();
            let earliest = now.checked_sub(SLACK).unwrap_or(now);
            let slot = self.slot.map_or(now, |slot| slot.max(earliest));
            self.slot = slot.checked_add(Duration::from_secs(1) / rate.get());
        }
        let rabbit = &self.letters.rabbit;
        let publishing = async move {
            let outcome = match wire::redriven_copy(&message, rabbit.frame_max()) {
                Ok(copy) => rabbit.lanes().publish(Address::queue(&to), copy).await,
                Err(error) => Err(error),
            };
            Publishing { tag, message, at_limit, to: Some(to), outcome }
        };
        self.push(publishing);
    }

    fn publish_to_the_end(&mut self, tag: u64, message: Message) {
        let letters = self.letters;
        let publishing = async move {
            let outcome = to_the_end(letters, &message).await;
            Publishing { tag, message, at_limit: true, to: None, outcome }
        };
        self.push(publishing);
    }

    /// Polled at once, and with no budget that it might find used up, so that what is published goes out in the order of
    /// the queue.
    fn push(&mut self, publishing: impl Future<Output = Publishing> + Send + 'a) {
        let mut publishing = unconstrained(publishing).boxed();
        self.publishing.push(match (&mut publishing).now_or_never() {
            Some(done) => future::ready(done).boxed(),
            None => publishing,
        });
    }

    /// Takes all outcomes that there are, and acks what was confirmed.
    async fn take_outcomes(&mut self, taking: &mut Taking, first: Publishing) -> Result<()> {
        let mut acks = Vec::new();
        let mut next = Some(first);
        while let Some(done) = next {
            acks.extend(self.take_outcome(done));
            next = self.publishing.next().now_or_never().flatten();
        }
        let (mut back, mut end) = (0, 0);
        for (_, is_back) in &acks {
            *(if *is_back { &mut back } else { &mut end }) += 1;
        }
        let tags: Vec<u64> = acks.into_iter().map(|(tag, _)| tag).collect();
        self.acked.0.sent += back;
        self.acked.1.sent += end;
        taking.ack(&tags).await?;
        let unproved = self.acked.0.unproved() + self.acked.1.unproved();
        let now = self.clock.now();
        self.keeps_acks |= taking.counts() && self.letters.queue_type == QueueType::Unknown;
        if unproved >= ASK_AFTER || now.saturating_duration_since(self.asked) >= ASK_EVERY {
            taking.settle().await?;
            self.asked = now;
            self.acked.0.asked();
            self.acked.1.asked();
        }
        Ok(())
    }

    /// The tag that is to be acked, and whether its message was sent back.
    fn take_outcome(&mut self, done: Publishing) -> Option<(u64, bool)> {
        let Publishing { tag, message, at_limit, to, outcome } = done;
        let error = match (outcome, &to) {
            (Ok(()), Some(_)) => {
                self.confirmed.0 += 1;
                return Some((tag, true));
            }
            (Ok(()), None) => {
                self.confirmed.1 += 1;
                self.limit.moved(Ok(()));
                return Some((tag, false));
            }
            (Err(error), _) => error,
        };
        match error.kind() {
            ErrorKind::Unconfirmed => {
                self.unknown += 1;
                self.failed.get_or_insert_with(|| error.clone());
            }
            // Nothing was sent, and nothing will be.
            ErrorKind::Disconnected | ErrorKind::Closed => {
                self.failed.get_or_insert_with(|| error.clone());
            }
            _ => {}
        }
        match to {
            Some(to) => {
                if error.kind() != ErrorKind::Unconfirmed {
                    self.obstacle(&to, &error.to_string());
                }
                if at_limit {
                    self.publish_to_the_end(tag, message);
                }
            }
            None => self.limit.moved(Err(error)),
        }
        None
    }

    /// Waits for what is in flight.
    async fn finish(&mut self, taking: &mut Taking) -> Result<()> {
        let clock = Arc::clone(&self.clock);
        // Each has its own time-out; what stands at the limit is published twice.
        let bound = self.letters.rabbit.publishing().settings().publish_timeout * 2 + ANSWER_BOUND;
        let finished = within(&*clock, bound, async {
            while let Some(done) = self.publishing.next().await {
                self.take_outcomes(taking, done).await?;
            }
            Ok(())
        });
        finished.await.unwrap_or_else(|| {
            Err(Error::new(ErrorKind::Timeout, "redrive")
                .with_message(format!("what was in flight was not finished within {bound:?}")))
        })
    }

    fn tell(&mut self) {
        let Redriven { ready, looked_at, matched, not_taken, .. } = self.report;
        let moved = self.acked.0.sent;
        (self.on_progress)(Progress { ready, looked_at, matched, moved, not_taken });
    }

    fn end(mut self, outcome: Result<()>, closed: bool) -> Result<Redriven, RedriveError> {
        let in_flight = u64::try_from(self.publishing.len()).unwrap_or(u64::MAX);
        let keeps_acks = self.keeps_acks;
        let safe = |acked: Acked| if keeps_acks || acked.all { acked.safe } else { 0 };
        self.report.moved = safe(self.acked.0);
        // What was published is in both, unless its ack has arrived.
        self.report.maybe_twice = (self.confirmed.0 - safe(self.acked.0))
            + (self.confirmed.1 - safe(self.acked.1))
            + self.unknown
            + in_flight;
        self.report.warnings = self.limit.warnings();
        let error = match outcome {
            Err(error) => error,
            Ok(()) if closed && self.report.ended == Ended::Cancelled => {
                Error::new(ErrorKind::Closed, "redrive").with_message("disconnected meanwhile")
            }
            Ok(()) => return Ok(self.report),
        };
        self.report.ended = Ended::Failed;
        Err(RedriveError::new(error.with_context("queue", &self.letters.queue), self.report))
    }
}
