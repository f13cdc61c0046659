//! Declaring queues, each on a channel of its own: a refusal closes the channel.

use lapin::options::QueueDeclareOptions;
use lapin::types::{AMQPValue, FieldTable};

use super::ladder::LONGEST_QUEUE_NAME;
use super::link::{Link, Live};
use super::look_up::standing;
use super::{QueueType, RabbitMq, dead_letter_queue};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};

impl RabbitMq {
    /// Declares a durable queue and its dead-letter queue, `<queue>.dlq`, where they are not there yet; for services
    /// and tests whose queues nobody else makes. The type [`QueueType::Unknown`] leaves the choice to the broker.
    ///
    /// # Errors
    ///
    /// `Refused` where one is there with other arguments, or this user may not declare it; `Invalid` for a name that is
    /// empty or too long; `Disconnected` and `Timeout` where the broker does not answer within 10 s.
    ///
    /// # Cancel safety
    ///
    /// Safe: call it again.
    pub async fn declare_queue(&self, queue: &str, queue_type: QueueType) -> Result<()> {
        check_name("declare queue", queue)?;
        let mut arguments = FieldTable::default();
        let queue_type = match queue_type {
            QueueType::Unknown => None,
            QueueType::Classic => Some("classic"),
            QueueType::Quorum => Some("quorum"),
        };
        if let Some(queue_type) = queue_type {
            arguments.insert("x-queue-type".into(), AMQPValue::LongString(queue_type.into()));
        }
        // The dead letters first: they are there before anything can be given up.
        for name in [dead_letter_queue(queue), queue.to_owned()] {
            declare(self.consume(), self.clock(), &name, arguments.clone())
                .await
                .map_err(|error| error.with_context("queue", name))?;
        }
        Ok(())
    }
}

/// Declares a durable queue.
pub(super) async fn declare(
    link: &Link,
    clock: &dyn Clock,
    queue: &str,
    arguments: FieldTable,
) -> Result<()> {
    let live = standing(link, clock, "declare queue").await?;
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    declare_on(&live, clock, queue, durable, arguments).await
}

/// Declares a queue on this connection.
pub(super) async fn declare_on(
    live: &Live,
    clock: &dyn Clock,
    queue: &str,
    options: QueueDeclareOptions,
    arguments: FieldTable,
) -> Result<()> {
    let channel = live.channel(clock).await?;
    let declare = channel.queue_declare(queue.into(), options, arguments);
    live.answer(clock, "declare queue", declare).await?;
    live.answer(clock, "close channel", channel.close(200, "declared".into())).await
}

/// The name of a queue to consume: its wait queues have longer ones.
pub(super) fn check_name(operation: &'static str, queue: &str) -> Result<()> {
    let invalid = |text: String| Err(Error::new(ErrorKind::Invalid, operation).with_message(text));
    match queue.len() {
        0 => invalid("`queue` is empty: name the queue".to_owned()),
        bytes if bytes > LONGEST_QUEUE_NAME => invalid(format!(
            "`queue` is {bytes} bytes long: at most {LONGEST_QUEUE_NAME} leave room for the names of its wait queues"
        )),
        _ => Ok(()),
    }
}

/// AMQP 0-9-1 carries names in up to 255 bytes.
pub(super) fn check_short(operation: &'static str, field: &str, name: &str) -> Result<()> {
    match name.len() {
        0..=255 => Ok(()),
        bytes => Err(Error::new(ErrorKind::Invalid, operation)
            .with_message(format!("the {field} is {bytes} bytes long, AMQP carries at most 255"))),
    }
}
