//! The connections of the commands that read messages.

use windlass::management::{Management, QueueStatus};
use windlass::rabbitmq::dead_letters::DeadLetterQueue;
use windlass::rabbitmq::{QueueType, RabbitMq};

use crate::config::Config;
use crate::exit::Outcome;

/// The limit of a quorum queue from RabbitMQ 4.0 on, where none is set.
const DEFAULT_DELIVERY_LIMIT: u32 = 20;

/// The broker, over both of its doors.
pub(crate) struct Broker {
    pub(crate) rabbit: RabbitMq,
    pub(crate) management: Management,
    pub(crate) vhost: String,
}

impl Broker {
    pub(crate) async fn open(config: Config) -> Outcome<Self> {
        let management = Management::new(config.management)?;
        let vhost = config.amqp.vhost.clone();
        let amqp = config.amqp.with_connection_name("windlass");
        // A service tries until it is connected; somebody at a terminal wants to know why it is not.
        let rabbit = RabbitMq::connect_once(amqp).await?;
        Ok(Self { rabbit, management, vhost })
    }

    /// A queue to be looked through, with the kind and the delivery limit that it has as far as the management API tells: each look
    /// counts against it, and AMQP does not tell it. Where it cannot be asked, the broker's default is reckoned with.
    pub(crate) async fn letters(&self, queue: &str) -> DeadLetterQueue {
        let letters = self.rabbit.dead_letters(queue);
        match self.management.queue(&self.vhost, queue).await {
            Ok(Some(status)) => {
                letters.delivery_limit(delivery_limit(&status)).queue_type(queue_type(&status))
            }
            Ok(None) | Err(_) => letters,
        }
    }

    pub(crate) async fn close(self) {
        self.rabbit.disconnect().await;
    }
}

fn queue_type(status: &QueueStatus) -> QueueType {
    match status.kind.as_deref() {
        Some("classic") => QueueType::Classic,
        Some("quorum") => QueueType::Quorum,
        _ => QueueType::Unknown,
    }
}

/// The lowest that is set anywhere is the one.
pub(crate) fn delivery_limit(status: &QueueStatus) -> Option<u32> {
    if status.kind.as_deref() == Some("classic") {
        return None;
    }
    let policy = status.effective_policy.as_ref().and_then(|policy| policy.get("delivery-limit"));
    let limits = [status.arguments.get("x-delivery-limit"), policy];
    let limits = limits.into_iter().flatten().filter_map(serde_json::Value::as_u64);
    let set = limits.min().map(|limit| u32::try_from(limit).unwrap_or(u32::MAX));
    Some(set.unwrap_or(DEFAULT_DELIVERY_LIMIT))
}
