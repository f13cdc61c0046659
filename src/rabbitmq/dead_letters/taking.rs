//! Messages that are taken from a queue to be looked at: on a channel of their own, a window at a time, and all that is
//! not acked goes back in its order.
//!
//! How they go back matters, since it was measured to differ (3.10, 4.0 and 4.3):
//!
//! - A classic queue puts them where they were, whatever is done.
//! - A quorum queue of 4.3 puts them where they were and counts nothing where they are requeued; where their channel ends,
//!   it adds one to what it holds against its delivery limit.
//! - A quorum queue of 3.10 and 4.0 adds one in both cases. Where it has no delivery limit, it puts what is requeued at
//!   its end; what comes back since the channel ended it puts where it was, one consumer after the other by their tags.
//!   What `basic.get` took has a consumer for each message, with tags 1, 10, 11, 2: so they are consumed.
//!
//! So the channel is ended, except where the messages themselves say that requeueing them costs nothing.

use std::collections::{BTreeSet, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures::{FutureExt, StreamExt, poll};
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicCancelOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions,
    QueueDeclareOptions,
};
use lapin::types::FieldTable;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::on_a_channel;
use crate::clock::{Clock, within};
use crate::error::{Error, ErrorKind, Result};
use crate::rabbitmq::link::{ANSWER_BOUND, Live};
use crate::rabbitmq::wire::{self, HandedBack, Received};
use crate::rabbitmq::{RabbitMq, error};

/// How many answers a channel of the broker's has on their way to a quorum queue at once; the others wait in it, and are
/// forgotten when it ends.
const ANSWERS_AT_ONCE: usize = 32;

/// How many bytes of bodies are taken ahead, or kept to be looked at.
pub(super) const MOST_BYTES: usize = 64 * 1_024 * 1_024;

/// How long a queue that has messages may take to send one before it is asked again.
const COME_WITHIN: Duration = Duration::from_millis(250);

/// How long a queue that is empty may have messages on their way: a quorum queue answers while it still reads them.
const QUIET: Duration = Duration::from_secs(1);

/// For how long, and how often, a queue is asked until it has sent what it may send, or has back what was handed back.
const ASK_FOR: Duration = Duration::from_secs(2);
const ASK_OFTEN: u32 = 5_000;

/// A message that was taken, and is neither acked nor handed back yet.
pub(super) struct Taken {
    pub(super) tag: u64,
    pub(super) received: Received,
    pub(super) handed_back: HandedBack,
}

pub(super) struct Taking {
    clock: Arc<dyn Clock>,
    live: Arc<Live>,
    channel: lapin::Channel,
    queue: String,
    /// The prefetch of each consumer.
    window: u16,
    /// How many consumers there were, and what their tags begin with: those of later ones sort later.
    consumers: u32,
    name: String,
    consumer: Option<lapin::Consumer>,
    /// What the consumers before had been sent and nobody has looked at.
    late: VecDeque<Delivery>,
    /// The tags that are neither acked nor handed back.
    open: BTreeSet<u64>,
    /// How many came, and how many were ready when it began.
    came: u64,
    ready: u64,
    /// How many of the open ones the present consumer has.
    in_window: usize,
    /// The first tag that is the present consumer's.
    window_from: u64,
    /// The length of the longest body.
    largest: usize,
    /// How many frames with answers were sent since the queue was last asked.
    answers: usize,
    /// Whether a message says that it costs nothing to requeue it.
    requeue_is_free: bool,
    /// Whether a message has a count that only quorum queues keep.
    counts: bool,
}

impl Taking {
    /// A channel that consumes `queue`, `window` messages at a time; and how many are ready.
    pub(super) async fn start(rabbit: &RabbitMq, queue: &str, window: u16) -> Result<(Self, u64)> {
        let clock = rabbit.shared_clock();
        let (live, channel) = on_a_channel(rabbit, "consume").await?;
        let mut taking = Self {
            clock,
            live,
            channel,
            queue: queue.to_owned(),
            window,
            consumers: 0,
            name: Uuid::new_v4().to_string(),
            consumer: None,
            late: VecDeque::new(),
            open: BTreeSet::new(),
            came: 0,
            ready: 0,
            in_window: 0,
            window_from: 1,
            largest: 0,
            answers: 0,
            requeue_is_free: false,
            counts: false,
        };
        let ready = taking.ask().await?;
        taking.ready = ready;
        if ready > 0 {
            taking.consume().await?;
        }
        Ok((taking, ready))
    }

    /// Asks the queue how many messages are ready. That waits, too, for a part of the answers that were sent to it.
    async fn ask(&mut self) -> Result<u64> {
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let declare = self.channel.queue_declare(self.queue.as_str().into(), passive, FieldTable::default());
        let found = self.live.answer(&*self.clock, "look up queue", declare).await?;
        Ok(found.message_count().into())
    }

    async fn consume(&mut self) -> Result<()> {
        let qos = self.channel.basic_qos(self.window, BasicQosOptions { global: false });
        self.live.answer(&*self.clock, "limit prefetch", qos).await?;
        self.consumers += 1;
        let tag = format!("windlass-{}-{:010}", self.name, self.consumers);
        let (queue, options) = (self.queue.as_str().into(), BasicConsumeOptions::default());
        let consume = self.channel.basic_consume(queue, tag.into(), options, FieldTable::default());
        self.consumer = Some(self.live.answer(&*self.clock, "consume", consume).await?);
        Ok(())
    }

    /// Cancels the consumer; what it was sent is kept.
    ///
    /// What is on its way to a consumer of a quorum queue when that is cancelled, the broker hands back itself: before all
    /// that is kept here, and counted against the delivery limit. So it is cancelled only once nothing is on its way.
    async fn cancel(&mut self) -> Result<()> {
        if self.consumer.is_none() {
            return Ok(());
        }
        self.until_none_is_on_its_way().await?;
        let Some(consumer) = &self.consumer else { return Ok(()) };
        let cancel = self.channel.basic_cancel(consumer.tag(), BasicCancelOptions::default());
        self.live.answer(&*self.clock, "cancel consumer", cancel).await?;
        // The broker confirms only after the last delivery.
        self.take_late();
        self.consumer = None;
        Ok(())
    }

    /// Waits until the consumer has as many as it may have, or the queue no more for it.
    async fn until_none_is_on_its_way(&mut self) -> Result<()> {
        let began = self.clock.now();
        let mut empty = 0;
        for _ in 0..ASK_OFTEN {
            self.take_late();
            let late = self.late.iter().filter(|late| late.delivery_tag >= self.window_from).count();
            let is_full = self.in_window + late >= usize::from(self.window);
            if is_full || self.clock.now().saturating_duration_since(began) >= ASK_FOR {
                break;
            }
            empty = if self.ask().await? == 0 { empty + 1 } else { 0 };
            if empty < 2 {
                continue;
            }
            self.take_late();
            // All that was there when it began has come, unless another consumer has some of it.
            let late = match &mut self.consumer {
                Some(consumer) if self.came < self.ready => {
                    within(&*self.clock, QUIET, consumer.next()).await
                }
                _ => None,
            };
            let Some(Some(Ok(delivery))) = late else { break };
            self.came += 1;
            self.late.push_back(delivery);
            empty = 0;
        }
        Ok(())
    }

    /// Takes what has come, to be looked at later.
    fn take_late(&mut self) {
        let Some(consumer) = &mut self.consumer else { return };
        while let Some(Some(Ok(delivery))) = consumer.next().now_or_never() {
            self.came += 1;
            self.late.push_back(delivery);
        }
    }

    /// Consumes anew where what is kept leaves the present consumer no room for as many as `room`. Of what is open, so many
    /// are `in_flight` and will be acked. No more than `most` are taken ahead by the new consumer.
    pub(super) async fn make_room(&mut self, room: u16, in_flight: usize, most: usize) -> Result<()> {
        let kept = self.in_window.saturating_sub(in_flight);
        if self.consumer.is_none() || kept + usize::from(room) <= usize::from(self.window) {
            return Ok(());
        }
        self.cancel().await?;
        // The broker numbers the deliveries of a channel.
        self.window_from = self.came + 1;
        self.in_window = 0;
        self.window = self.next_window(room, most);
        self.consume().await
    }

    /// Each window is larger than the one before, so that a few consumers are enough for very many messages: with more than
    /// 32 a quorum queue does not keep their order. But no larger than memory allows.
    fn next_window(&self, room: u16, most: usize) -> u16 {
        let larger = usize::from(self.window).saturating_mul(3) / 2 + 1;
        let affordable = (MOST_BYTES / self.largest.max(1)).max(usize::from(room) * 2);
        u16::try_from(larger.min(affordable).min(most).max(1)).unwrap_or(u16::MAX)
    }

    /// Waits for a message.
    ///
    /// # Cancel safety
    ///
    /// Safe: what is taken is returned in the same step.
    pub(super) async fn next(&mut self) -> Result<Taken> {
        if let Some(delivery) = self.late.pop_front() {
            return Ok(self.took(delivery));
        }
        let Some(consumer) = &mut self.consumer else { return std::future::pending().await };
        // A delivery that is taken is returned; the other branch only waits.
        let came = tokio::select! {
            biased;
            came = consumer.next() => came,
            () = self.live.gone().cancelled() => return Err(self.live.lost("consume")),
        };
        match came {
            Some(Ok(delivery)) => {
                self.came += 1;
                Ok(self.took(delivery))
            }
            Some(Err(error)) => Err(error::classify("consume", &error)),
            None => Err(Error::new(ErrorKind::NotFound, "consume").with_message(
                "the broker cancelled the consumer: was the queue deleted, or a message kept for longer than its \
                 consumer_timeout?",
            )),
        }
    }

    /// The next message; `None` where the queue has none left, or `cancel` fired.
    pub(super) async fn next_or_none(&mut self, cancel: &CancellationToken) -> Result<Option<Taken>> {
        let Some(bound) = self.clock.now().checked_add(ANSWER_BOUND) else { return Ok(None) };
        let mut empty = 0;
        loop {
            if let Some(taken) = self.next().now_or_never() {
                return taken.map(Some);
            }
            if self.consumer.is_none() || cancel.is_cancelled() {
                return Ok(None);
            }
            let ready = self.ask().await?;
            empty = if ready == 0 { empty + 1 } else { 0 };
            if empty == 1 {
                continue;
            }
            let clock = Arc::clone(&self.clock);
            let patience = if empty == 0 { COME_WITHIN } else { QUIET };
            // `next` returns what it takes.
            let came = tokio::select! {
                biased;
                () = cancel.cancelled() => return Ok(None),
                came = within(&*clock, patience, self.next()) => came,
            };
            match came {
                Some(taken) => return taken.map(Some),
                None if empty > 0 => return Ok(None),
                None if clock.now() < bound => {}
                None => {
                    return Err(Error::new(ErrorKind::Timeout, "consume").with_message(format!(
                        "{ready} messages are ready and none came within {ANSWER_BOUND:?}: has the queue another \
                         consumer, and is it one with a single active consumer?"
                    )));
                }
            }
        }
    }

    fn took(&mut self, delivery: Delivery) -> Taken {
        let tag = delivery.delivery_tag;
        self.open.insert(tag);
        if tag >= self.window_from {
            self.in_window += 1;
        }
        self.largest = self.largest.max(delivery.data.len());
        let received = wire::received(delivery, self.clock.wall());
        let handed_back = wire::handed_back(&received.message);
        self.requeue_is_free |= handed_back == HandedBack::Free;
        self.counts |= handed_back != HandedBack::Unknown;
        Taken { tag, received, handed_back }
    }

    /// Acks these, with as few frames as can be: what lies below all that is open goes out as one.
    pub(super) async fn ack(&mut self, tags: &[u64]) -> Result<()> {
        for tag in tags {
            if self.open.remove(tag) && *tag >= self.window_from {
                self.in_window -= 1;
            }
        }
        let lowest = self.unlooked().chain(self.open.first().copied()).min().unwrap_or(u64::MAX);
        let (below, above): (Vec<u64>, Vec<u64>) = tags.iter().partition(|tag| **tag < lowest);
        let grouped = below.iter().max().map(|tag| (*tag, below.len() > 1));
        let frames: Vec<(u64, bool)> =
            grouped.into_iter().chain(above.into_iter().map(|tag| (tag, false))).collect();
        self.answers += frames.len();
        let write = write_acks(&self.channel, &frames);
        self.live.answer(&*self.clock, "ack", write).await
    }

    /// The lowest tag that was sent to a consumer before, and not looked at.
    fn unlooked(&self) -> impl Iterator<Item = u64> {
        self.late.front().map(|late| late.delivery_tag).into_iter()
    }

    /// Sees to it that the queue has all acks that were sent.
    pub(super) async fn settle(&mut self) -> Result<()> {
        for _ in 0..=self.answers.div_ceil(ANSWERS_AT_ONCE) {
            self.ask().await?;
        }
        self.answers = 0;
        Ok(())
    }

    /// Whether it is a quorum queue for sure.
    pub(super) fn counts(&self) -> bool {
        self.counts
    }

    /// Takes no more; returns what had come and was not looked at.
    pub(super) async fn stop(&mut self) -> Result<Vec<Taken>> {
        self.cancel().await?;
        let late = std::mem::take(&mut self.late);
        Ok(late.into_iter().map(|delivery| self.took(delivery)).collect())
    }

    /// Hands back what is open, once the queue has all acks. To be stopped first.
    pub(super) async fn hand_back(mut self) -> Result<()> {
        self.settle().await?;
        let back = self.ask().await?.saturating_add(u64::try_from(self.open.len()).unwrap_or(u64::MAX));
        // Up to one that is open: over another tag the broker closes the channel.
        if let Some(last) = self.open.last().filter(|_| self.requeue_is_free) {
            let options = BasicNackOptions { multiple: true, requeue: true };
            let nack = self.channel.basic_nack(*last, options);
            self.live.answer(&*self.clock, "nack", nack).await?;
        } else if !self.open.is_empty() {
            self.close().await?;
            self.channel = self.live.channel(&*self.clock).await?;
        }
        if !self.open.is_empty() {
            self.until_ready(back).await?;
        }
        self.close().await
    }

    async fn close(&self) -> Result<()> {
        let close = self.channel.close(200, "looked through".into());
        self.live.answer(&*self.clock, "close channel", close).await
    }

    /// Waits until so many are ready: a queue has what was handed back a moment after the channel. Whoever looks again at
    /// once would find it empty. Another consumer may be quicker, so it is no error if they are not.
    async fn until_ready(&mut self, back: u64) -> Result<()> {
        let began = self.clock.now();
        for _ in 0..ASK_OFTEN {
            let are_back = self.ask().await? >= back;
            if are_back || self.clock.now().saturating_duration_since(began) >= ASK_FOR {
                break;
            }
        }
        Ok(())
    }
}

/// Writes the frames in order: each is with lapin once it was polled.
async fn write_acks(channel: &lapin::Channel, frames: &[(u64, bool)]) -> lapin::Result<()> {
    let mut writing = Vec::new();
    for (tag, multiple) in frames {
        let mut one: Pin<Box<dyn Future<Output = lapin::Result<()>> + Send + '_>> =
            Box::pin(channel.basic_ack(*tag, BasicAckOptions { multiple: *multiple }));
        match poll!(one.as_mut()) {
            Poll::Ready(written) => written?,
            Poll::Pending => writing.push(one),
        }
    }
    for one in writing {
        one.await?;
    }
    Ok(())
}
