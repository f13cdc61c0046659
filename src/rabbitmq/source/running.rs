//! A channel that consumes: from `basic.qos` and `basic.consume` to its orderly end.

use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use lapin::options::{BasicCancelOptions, BasicConsumeOptions, BasicQosOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use tokio::task::JoinHandle;
use uuid::Uuid;

use super::Shared;
use super::buffer::Waiting;
use super::session::Session;
use crate::clock::{Clock, within};
use crate::error::{Error, ErrorKind, Result};
use crate::rabbitmq::error;
use crate::rabbitmq::link::Live;
use crate::rabbitmq::wire::{self, Received};

/// How long an orderly end may take. What the broker does not answer by then ends with the channel.
const END_BOUND: Duration = Duration::from_secs(1);

/// How many answers a channel of the broker's has on their way to a quorum queue at once: the soft limit of
/// RabbitMQ's `rabbit_fifo_client`, on 3.10 and 4.3.
const ANSWERS_AT_ONCE: u16 = 32;

/// How many deliveries are passed on at once.
const BATCH: usize = 64;

/// A channel, its consumer while there is one, and the task that writes its answers.
pub(super) struct Running {
    session: Arc<Session>,
    consumer: Option<lapin::Consumer>,
    /// What ended the deliveries, until it is told.
    failed: Option<Error>,
    writer: Option<JoinHandle<()>>,
    prefetch: u16,
    clock: Arc<dyn Clock>,
}

impl Running {
    pub(super) async fn set_up(shared: &Shared, live: Arc<Live>) -> Result<Self> {
        let clock = shared.rabbit.shared_clock();
        let label = shared.options.queue.clone();
        let queue = match &shared.own {
            Some(own) => own.declare(&shared.rabbit, &live).await?,
            None => label.clone(),
        };
        let channel = live.channel(&*clock).await?;
        let session = Session::new(channel, live, queue, label, shared.counts_deliveries());
        let writer = shared.rabbit.source_tasks().spawn(Arc::clone(&session).write_answers());
        let mut running =
            Self { session, consumer: None, failed: None, writer: Some(writer), prefetch: 0, clock };
        running.consume(shared).await?;
        shared.buffer.consuming(&running.session);
        Ok(running)
    }

    pub(super) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    pub(super) fn consumes(&self) -> bool {
        self.consumer.is_some()
    }

    /// Begins to consume: the prefetch first, since it holds for consumers that come after it.
    pub(super) async fn consume(&mut self, shared: &Shared) -> Result<()> {
        let Session { channel, live, queue, .. } = &*self.session;
        let named = |error: Error| error.with_context("queue", queue);
        self.prefetch = shared.prefetch();
        let qos = channel.basic_qos(self.prefetch, BasicQosOptions { global: false });
        live.answer(&*self.clock, "limit prefetch", qos).await.map_err(named)?;
        // A tag that was never used before: the broker closes the connection over one that is.
        let tag = format!("windlass-{}", Uuid::new_v4());
        let options = BasicConsumeOptions::default();
        let consume =
            channel.basic_consume(queue.as_str().into(), tag.into(), options, FieldTable::default());
        self.consumer = Some(live.answer(&*self.clock, "consume", consume).await.map_err(named)?);
        Ok(())
    }

    /// Waits for deliveries.
    ///
    /// # Cancel safety
    ///
    /// Safe: what is taken is returned in the same step.
    pub(super) async fn next(&mut self) -> Result<Vec<Waiting>> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let Some(consumer) = &mut self.consumer else { return std::future::pending().await };
        let mut came = consumer.next().await;
        let at = self.clock.wall();
        let mut deliveries = Vec::new();
        loop {
            let error = match came {
                // What was on its way when the channel ended is stale: nobody shall see it.
                Some(Ok(_)) if self.session.is_over() => None,
                Some(Ok(delivery)) => {
                    deliveries.push(waiting(&self.session, delivery, at));
                    None
                }
                Some(Err(error)) => Some(error::classify("consume", &error)),
                // It does not say why. RabbitMQ 4.3 does so where a delivery of a quorum queue is unsettled for too long.
                None => Some(Error::new(ErrorKind::NotFound, "consume").with_message(
                    "the broker cancelled the consumer: was the queue deleted, or a delivery unsettled for longer \
                     than its consumer_timeout?",
                )),
            };
            if let Some(error) = error {
                self.failed = Some(error.clone());
                return if deliveries.is_empty() { Err(error) } else { Ok(deliveries) };
            }
            if deliveries.len() >= BATCH {
                return Ok(deliveries);
            }
            match consumer.next().now_or_never() {
                Some(more) => came = more,
                None => return Ok(deliveries),
            }
        }
    }

    /// Cancels the consumer; returns what had come and was not passed on.
    pub(super) async fn cancel(&mut self, shared: &Shared) -> Result<Vec<Waiting>> {
        let Some(mut consumer) = self.consumer.take() else { return Ok(Vec::new()) };
        let Session { channel, live, .. } = &*self.session;
        let cancel = channel.basic_cancel(consumer.tag(), BasicCancelOptions::default());
        live.answer(&*self.clock, "cancel consumer", cancel)
            .await
            .map_err(|error| error.with_context("queue", &shared.options.queue))?;
        // The broker confirms only after the last delivery.
        let at = self.clock.wall();
        let mut late = Vec::new();
        while let Some(Some(Ok(delivery))) = consumer.next().now_or_never() {
            late.push(waiting(&self.session, delivery, at));
        }
        Ok(late)
    }

    /// Ends it in order: what was settled is written and taken in, then the channel closed, which gives the rest back.
    pub(super) async fn end(mut self, why: Error) {
        let clock = Arc::clone(&self.clock);
        self.session.finish();
        let mut writer = self.writer.take();
        let in_order = async {
            if let Some(writing) = writer.as_mut() {
                // It panics only where this crate is wrong, and nothing is left to be done here then.
                let _ = writing.await;
                writer = None;
            }
            if !self.session.is_over() {
                // A queue that is gone has nothing to take in.
                let _ = self.settled_by_the_queue().await;
                let _ = self.session.channel.close(200, "done".into()).await;
            }
        };
        let ended = within(&*clock, END_BOUND, in_order).await;
        self.session.end(why);
        if ended.is_none() {
            // Sent once it can be. What the broker has not taken in by then goes back with the channel, and comes again.
            let _ = self.session.channel.close(200, "done".into()).now_or_never();
        }
        if let Some(writing) = writer {
            // What it waits for was given up with the session.
            let _ = writing.await;
        }
    }

    /// Sees to it that the queue has taken in what the channel was told. For a quorum queue the broker's channel keeps
    /// answers back while more than 32 are on their way, and forgets them when it is closed. Asking the queue a question
    /// waits for what is on its way, after which the next ones go.
    async fn settled_by_the_queue(&self) -> lapin::Result<()> {
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let rounds = self.prefetch.div_ceil(ANSWERS_AT_ONCE) + 1;
        for _ in 0..rounds {
            let queue = self.session.queue.as_str().into();
            self.session.channel.queue_declare(queue, passive, FieldTable::default()).await?;
        }
        Ok(())
    }
}

/// However it ends, dropped too: nothing of it can be settled any more.
impl Drop for Running {
    fn drop(&mut self) {
        self.session.end(Error::new(ErrorKind::Closed, "receive"));
    }
}

fn waiting(session: &Session, delivery: lapin::message::Delivery, at: std::time::SystemTime) -> Waiting {
    let tag = delivery.delivery_tag;
    session.delivered(tag);
    let Received { mut message, unreadable } = wire::received(delivery, at);
    if !session.counts_deliveries {
        message = message.with_delivery_count(None);
    }
    Waiting { tag, message, unreadable: unreadable.map(|unreadable| unreadable.cause()) }
}
