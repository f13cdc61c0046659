//! What a source has taken from the broker and nobody has received yet, and how the source stands.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::receipt::RabbitReceipt;
use super::session::Session;
use crate::error::{Error, ErrorKind, Result};
use crate::message::Message;
use crate::source::{Cause, Delivery, Health};

/// How a source stands.
#[derive(Debug, Clone)]
pub(super) enum Stage {
    /// Nothing was received yet, so nothing is consumed.
    Idle,
    /// A consumer is being set up, for the first time or again; with the last error, where there was one.
    SettingUp(Option<Error>),
    /// The broker has confirmed the consumer.
    Consuming,
    /// What was buffered is handed back, and the consumer cancelled, until the next receive.
    Released,
    /// A queue with a single active consumer: what is buffered stays until nothing is in hand, and then goes back.
    Held,
    /// As `Released`, and the queue of the source's own could not be declared.
    Unclaimed(Error),
    /// Nothing comes any more.
    Over(Error),
}

/// A delivery in the buffer.
pub(super) struct Waiting {
    pub(super) tag: u64,
    pub(super) message: Message,
    /// Why no handler may see it, where it could not be read.
    pub(super) unreadable: Option<Cause>,
}

/// What is buffered, of one channel at a time.
pub(super) struct Buffer {
    queue: String,
    inner: Mutex<Inner>,
    /// For receivers: a delivery is there, or the stage has changed.
    arrived: Notify,
    /// For the keeper: somebody wants to receive.
    wanted: Notify,
}

struct Inner {
    ready: VecDeque<Waiting>,
    session: Option<Arc<Session>>,
    stage: Stage,
    /// How many sessions were lost, and why the last one was: a receive that waits through it fails.
    losses: u64,
    last_loss: Option<Error>,
    /// The last loss is made good, which nobody who receives knows yet.
    recovered: bool,
    wanted: bool,
}

impl Buffer {
    pub(super) fn new(queue: &str) -> Self {
        let inner = Inner {
            ready: VecDeque::new(),
            session: None,
            stage: Stage::Idle,
            losses: 0,
            last_loss: None,
            recovered: false,
            wanted: false,
        };
        Self {
            queue: queue.to_owned(),
            inner: Mutex::new(inner),
            arrived: Notify::new(),
            wanted: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a delivery; see [`MessageSource::receive`](crate::source::MessageSource::receive).
    pub(super) async fn receive(
        &self,
        cancel: &CancellationToken,
    ) -> Result<Option<Delivery<RabbitReceipt>>> {
        let mut losses = None;
        if cancel.is_cancelled() {
            return Ok(None);
        }
        loop {
            let mut arrived = std::pin::pin!(self.arrived.notified());
            // Counted as waiting before it looks: what arrives from here on wakes it.
            arrived.as_mut().enable();
            if let Poll::Ready(delivery) = self.take(&mut losses)? {
                return Ok(delivery);
            }
            // Only waits are lost here: what is taken is taken by `take`, in one step. One that is cancelled passes on the
            // news that it was told and has not acted on, by dropping it; so `cancel` is looked at first, and only here.
            tokio::select! {
                biased;
                () = cancel.cancelled() => return Ok(None),
                () = arrived => {}
            }
        }
    }

    fn take(&self, losses: &mut Option<u64>) -> Result<Poll<Option<Delivery<RabbitReceipt>>>> {
        let mut inner = self.lock();
        if let Stage::Over(error) = &inner.stage {
            return Err(error.clone());
        }
        if *losses.get_or_insert(inner.losses) != inner.losses {
            let error = Error::new(ErrorKind::Disconnected, "receive").with_context("queue", &self.queue);
            let why = inner.last_loss.as_ref().map_or("lost the channel".to_owned(), ToString::to_string);
            return Err(error.with_message(why));
        }
        let rests = matches!(inner.stage, Stage::Idle | Stage::Released | Stage::Held | Stage::Unclaimed(_));
        if rests && !inner.wanted {
            inner.wanted = true;
            self.wanted.notify_one();
        }
        if matches!(inner.stage, Stage::Held) {
            // The buffer is in the keeper's hands until it has seen that somebody receives.
            return Ok(Poll::Pending);
        }
        let Some(session) = inner.session.clone().filter(|session| !session.is_over()) else {
            // What is buffered of a channel that is gone comes again: nobody shall see it twice.
            inner.ready.clear();
            return Ok(Poll::Pending);
        };
        let recovered = std::mem::take(&mut inner.recovered);
        match inner.ready.pop_front() {
            Some(Waiting { tag, message, .. }) => {
                let receipt = RabbitReceipt::new(session, tag, message.clone());
                Ok(Poll::Ready(Some(Delivery { message, receipt })))
            }
            // One receive comes back with nothing. Whoever waits longer after each receive that failed in a row learns
            // by it that the row has ended: on a quiet queue no message would tell, and the next loss would seem to
            // follow the last one, however long ago that was.
            None if recovered => Ok(Poll::Ready(None)),
            None => Ok(Poll::Pending),
        }
    }

    /// Waits until somebody wants to receive.
    pub(super) async fn wanted(&self) {
        loop {
            if std::mem::take(&mut self.lock().wanted) {
                return;
            }
            self.wanted.notified().await;
        }
    }

    /// Adds what came, all of the session that consumes now.
    pub(super) fn add(&self, deliveries: impl IntoIterator<Item = Waiting>) {
        let mut inner = self.lock();
        let before = inner.ready.len();
        inner.ready.extend(deliveries);
        let added = inner.ready.len() - before;
        drop(inner);
        for _ in 0..added {
            self.arrived.notify_one();
        }
    }

    /// Takes out what nobody has received yet, and hands nothing out from here on.
    pub(super) fn release(&self) -> Vec<Waiting> {
        let mut inner = self.lock();
        if !matches!(inner.stage, Stage::Over(_)) {
            inner.stage = Stage::Released;
        }
        let ready = inner.ready.drain(..).collect();
        drop(inner);
        // Whoever waits must say again that it wants to receive.
        self.arrived.notify_waiters();
        ready
    }

    /// The broker has confirmed a consumer on this session.
    pub(super) fn consuming(&self, session: &Arc<Session>) {
        let mut inner = self.lock();
        inner.session = Some(Arc::clone(session));
        inner.recovered |= matches!(inner.stage, Stage::SettingUp(Some(_)));
        inner.stage = Stage::Consuming;
        inner.wanted = false;
        drop(inner);
        // Also for what was held: it can be received again.
        self.arrived.notify_waiters();
    }

    /// The queue of the source's own is there.
    pub(super) fn claimed(&self) {
        let mut inner = self.lock();
        if matches!(inner.stage, Stage::Unclaimed(_)) {
            inner.stage = Stage::Released;
        }
    }

    pub(super) fn set_stage(&self, stage: Stage) {
        let mut inner = self.lock();
        if !matches!(inner.stage, Stage::Over(_)) {
            inner.stage = stage;
        }
        drop(inner);
        // Whoever waits must say again that it wants to receive.
        self.arrived.notify_waiters();
    }

    /// The session is lost, or ended by us: what is buffered comes again. Receivers that wait are told where `error`
    /// says why.
    pub(super) fn end_session(&self, stage: Stage, error: Option<Error>) {
        let mut inner = self.lock();
        inner.ready.clear();
        inner.session = None;
        if !matches!(inner.stage, Stage::Over(_)) {
            inner.stage = stage;
        }
        if error.is_some() {
            inner.losses += 1;
            inner.last_loss = error;
        }
        drop(inner);
        self.arrived.notify_waiters();
    }

    /// Nothing comes any more. The first reason is the one.
    pub(super) fn end(&self, error: Error) {
        let mut inner = self.lock();
        if !matches!(inner.stage, Stage::Over(_)) {
            inner.stage = Stage::Over(error.with_context("queue", &self.queue));
        }
        inner.ready.clear();
        inner.session = None;
        drop(inner);
        self.arrived.notify_waiters();
    }

    pub(super) fn health(&self) -> Health {
        let inner = self.lock();
        let over = inner.session.as_ref().is_some_and(|session| session.is_over());
        let reason = match &inner.stage {
            Stage::Consuming | Stage::Held if over => "the channel is gone".to_owned(),
            // A consumer that rests is asked for nothing; what it needs is there.
            Stage::Consuming | Stage::Held | Stage::Released => return Health::Ready,
            Stage::Over(error) if error.kind() == ErrorKind::Closed => return Health::Closed,
            Stage::Over(error) | Stage::SettingUp(Some(error)) | Stage::Unclaimed(error) => error.to_string(),
            Stage::SettingUp(None) => "setting up the consumer".to_owned(),
            Stage::Idle => "nothing was received yet, so nothing is consumed".to_owned(),
        };
        Health::NotReady { reason }
    }
}
