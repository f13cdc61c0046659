//! Whether a queue is there, and deleting one.

use lapin::options::QueueDeleteOptions;

use super::RabbitMq;
use super::declare::check_short;
use super::error;
use super::look_up::{Entity, look_up, standing};
use crate::error::{Error, ErrorKind, Result};
use crate::queue::DeleteQueue;

impl RabbitMq {
    /// Whether there is a queue of this name, be it one that belongs to another connection alone.
    ///
    /// It is asked for on a channel of its own, so that nothing else is disturbed.
    ///
    /// # Errors
    ///
    /// `Disconnected` and `Timeout` where the broker does not answer within 10 s; `Invalid` for a name that is empty or
    /// too long; `Closed` after [`disconnect`](Self::disconnect).
    ///
    /// # Cancel safety
    ///
    /// Safe: it only asks.
    pub async fn queue_exists(&self, queue: &str) -> Result<bool> {
        const OPERATION: &str = "look up queue";
        check(OPERATION, queue)?;
        let live = standing(self.consume(), self.clock(), OPERATION).await?;
        match look_up(&live, self.clock(), Entity::Queue(queue)).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) if error::is_locked(&error) => Ok(true),
            Err(error) => Err(error.with_context("queue", queue)),
        }
    }

    /// Deletes a queue, as far as `options` allow. Returns how many messages that were ready went with it; `None` where
    /// there was no such queue.
    ///
    /// Its dead-letter queue and its wait queues are others, and stay.
    ///
    /// The broker is asked what is in the queue, and then told to delete it: RabbitMQ does not do both in one step for a
    /// quorum queue, and closes the connection over the request to. What is sent in between is deleted with it, and
    /// counted. What is in hand of a consumer that was paused cannot be seen. So stop those who send and consume first.
    ///
    /// # Errors
    ///
    /// `Taken` where it is the queue of a slot that a source of this connection has; `Refused` where the options do not
    /// allow it, where it belongs to another connection alone, or this user may not delete it; `Disconnected` and `Timeout` where the broker does not answer within 10 s; `Invalid` for a name that is
    /// empty or too long; `Closed` after [`disconnect`](Self::disconnect).
    ///
    /// # Cancel safety
    ///
    /// The queue may be deleted all the same.
    pub async fn delete_queue(&self, queue: &str, options: DeleteQueue) -> Result<Option<u32>> {
        const OPERATION: &str = "delete queue";
        check(OPERATION, queue)?;
        let (clock, named) = (self.clock(), |error: Error| error.with_context("queue", queue));
        // The broker would let the connection that has it.
        if self.claims().has(queue) {
            let error = Error::new(ErrorKind::Taken, OPERATION);
            return Err(named(
                error.with_message("it is the queue of a slot, which a source of this connection has"),
            ));
        }
        let live = standing(self.consume(), clock, OPERATION).await?;
        let found = match look_up(&live, clock, Entity::Queue(queue)).await {
            Ok(found) => found,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(named(error)),
        };
        let refused = |text: String| {
            let error = Error::new(ErrorKind::Refused, OPERATION).with_message(text);
            Err(named(error.with_transient(false)))
        };
        if options.if_empty && found.messages > 0 {
            return refused(format!(
                "{} messages are in it: `if_empty(false)` deletes them with it",
                found.messages
            ));
        }
        if options.if_unused && found.consumers > 0 {
            return refused(format!(
                "it has {} consumers: `if_unused(false)` takes it from them",
                found.consumers
            ));
        }
        let channel = live.channel(clock).await?;
        let delete = channel.queue_delete(queue.into(), QueueDeleteOptions::default());
        let messages = live.answer(clock, OPERATION, delete).await.map_err(named)?;
        live.answer(clock, "close channel", channel.close(200, "deleted".into())).await?;
        Ok(Some(messages))
    }
}

/// Any name that a queue can have, those of wait queues among them.
fn check(operation: &'static str, queue: &str) -> Result<()> {
    if queue.is_empty() {
        return Err(
            Error::new(ErrorKind::Invalid, operation).with_message("`queue` is empty: name the queue")
        );
    }
    check_short(operation, "name of the queue", queue)
}
