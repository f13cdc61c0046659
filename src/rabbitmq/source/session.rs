//! One channel of a source, from its opening to its end: a generation. What was delivered on it can be settled on it
//! and nowhere else.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Poll;

use futures::poll;
use lapin::options::{BasicAckOptions, BasicNackOptions};
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

use super::window::{Answer, Frame, Window};
use crate::error::{Error, ErrorKind, Result};
use crate::rabbitmq::error;
use crate::rabbitmq::link::Live;

type Waiter = oneshot::Sender<Result<()>>;

/// One channel, and what was delivered on it.
pub(super) struct Session {
    pub(super) channel: lapin::Channel,
    pub(super) live: Arc<Live>,
    /// The queue that it consumes.
    pub(super) queue: String,
    /// What the source calls its queue: the same for all of its channels.
    pub(super) label: String,
    /// Whether the queue is of a kind that says how often it delivered a message.
    pub(super) counts_deliveries: bool,
    answers: Mutex<Answers>,
    /// Told when there is an answer to send.
    answered: Notify,
    /// Makes the writer end once all is sent.
    finish: CancellationToken,
    /// The channel is gone, or will be at once.
    ended: CancellationToken,
    why: OnceLock<Error>,
    /// How many deliveries are with receivers, and unsettled.
    in_hand: AtomicUsize,
    /// Told when there is one less.
    settled: Notify,
}

#[derive(Default)]
struct Answers {
    window: Window<Waiter>,
    /// Nothing is sent any more.
    over: bool,
}

impl Session {
    pub(super) fn new(
        channel: lapin::Channel,
        live: Arc<Live>,
        queue: String,
        label: String,
        counts_deliveries: bool,
    ) -> Arc<Self> {
        Arc::new(Self {
            channel,
            live,
            queue,
            label,
            counts_deliveries,
            answers: Mutex::default(),
            answered: Notify::new(),
            finish: CancellationToken::new(),
            ended: CancellationToken::new(),
            why: OnceLock::new(),
            in_hand: AtomicUsize::new(0),
            settled: Notify::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Answers> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A delivery came over the channel.
    pub(super) fn delivered(&self, tag: u64) {
        self.lock().window.delivered(tag);
    }

    /// A delivery goes to a receiver.
    pub(super) fn handed_out(&self) {
        self.in_hand.fetch_add(1, Ordering::Relaxed);
    }

    /// A delivery that a receiver had is settled, or its receipt was dropped.
    pub(super) fn given_back(&self) {
        self.in_hand.fetch_sub(1, Ordering::Relaxed);
        self.settled.notify_one();
    }

    /// Waits until no receiver has a delivery of this channel.
    pub(super) async fn none_in_hand(&self) {
        while self.in_hand.load(Ordering::Relaxed) > 0 {
            self.settled.notified().await;
        }
    }

    /// Whether the channel is gone: nothing of it can be settled.
    pub(super) fn is_over(&self) -> bool {
        self.ended.is_cancelled() || self.live.gone().is_cancelled() || !self.channel.status().connected()
    }

    /// Tells the broker the answer to one delivery; resolves when that is written to the socket.
    ///
    /// # Errors
    ///
    /// `Stale` where the channel is gone, and nothing was sent; `Disconnected` where it went just then.
    ///
    /// # Cancel safety
    ///
    /// The answer is sent all the same.
    pub(super) async fn settle(&self, tag: u64, answer: Answer) -> Result<()> {
        let (waiter, written) = oneshot::channel();
        if self.is_over() {
            return Err(self.stale(answer));
        }
        {
            let mut answers = self.lock();
            if answers.over || answers.window.settle(tag, answer, waiter).is_err() {
                return Err(self.stale(answer));
            }
        }
        self.answered.notify_one();
        written.await.unwrap_or_else(|_| Err(self.stale(answer)))
    }

    /// Requeues a delivery, unless it was settled. Nobody waits for that.
    pub(super) fn requeue_unless_settled(&self, tag: u64) {
        let settled = {
            let mut answers = self.lock();
            answers.over || answers.window.settle(tag, Answer::Requeue, oneshot::channel().0).is_err()
        };
        if !settled {
            self.answered.notify_one();
        }
    }

    fn stale(&self, answer: Answer) -> Error {
        let operation = if answer == Answer::Ack { "ack" } else { "nack" };
        let error = Error::new(ErrorKind::Stale, operation);
        match self.why.get().and_then(Error::message) {
            Some(why) => error.with_message(format!("its channel is gone: {why}")),
            None => error.with_message("its channel is gone"),
        }
    }

    /// The channel is gone. The first reason is the one.
    pub(super) fn end(&self, why: Error) {
        let _ = self.why.set(why);
        self.ended.cancel();
    }

    /// Waits until the channel is found to be gone, by the writer or with its connection.
    pub(super) async fn ended(&self) -> Error {
        // Only waits are lost here.
        tokio::select! {
            biased;
            () = self.ended.cancelled() => {}
            () = self.live.gone().cancelled() => {}
        }
        self.why.get().cloned().unwrap_or_else(|| self.live.lost("consume"))
    }

    /// Makes the writer send what there is and end.
    pub(super) fn finish(&self) {
        self.finish.cancel();
    }

    /// Sends the answers until the channel is gone or all is sent at the end. What is settled while a frame is being
    /// written goes out together after it.
    pub(super) async fn write_answers(self: Arc<Self>) {
        self.write_all().await;
        // What is not with lapin by now was not sent. Whoever waits for it is told so by the end of its waiter.
        let mut answers = self.lock();
        answers.over = true;
        answers.window = Window::default();
    }

    async fn write_all(&self) {
        loop {
            let plan = self.lock().window.plan();
            if plan.frames.is_empty() {
                // Only waits are lost here: an answer that is given meanwhile is found by the next plan.
                tokio::select! {
                    biased;
                    _ = self.ended() => return,
                    () = self.answered.notified() => continue,
                    () = self.finish.cancelled() => return,
                }
            }
            // The frames are with lapin then, and may be written or not: that is not known.
            let written = tokio::select! {
                biased;
                written = self.write(&plan.frames) => written.map_err(|error| error::classify("settle", &error)),
                why = self.ended() => {
                    let why = why.message().unwrap_or("the channel is gone").to_owned();
                    Err(Error::new(ErrorKind::Disconnected, "settle").with_message(why))
                }
            };
            for waiter in plan.waiting {
                // Nobody waits for it any more: it is told all the same.
                let _ = waiter.send(written.clone());
            }
            if let Err(error) = written {
                return self.end(error);
            }
        }
    }

    /// Writes the frames in order. Each is with lapin once it was polled.
    async fn write(&self, frames: &[Frame]) -> lapin::Result<()> {
        let mut writing = Vec::new();
        for frame in frames {
            let mut one: Pin<Box<dyn Future<Output = lapin::Result<()>> + Send + '_>> = match frame.answer {
                Answer::Ack => {
                    let options = BasicAckOptions { multiple: frame.multiple };
                    Box::pin(self.channel.basic_ack(frame.tag, options))
                }
                Answer::Requeue | Answer::Reject => {
                    let requeue = frame.answer == Answer::Requeue;
                    let options = BasicNackOptions { multiple: false, requeue };
                    Box::pin(self.channel.basic_nack(frame.tag, options))
                }
            };
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
}
