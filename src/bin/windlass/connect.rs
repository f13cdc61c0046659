//! The connections of the commands that read messages.

use std::num::NonZeroU32;

use tokio::sync::OnceCell;
use windlass::management::{Management, QueueStatus};
use windlass::rabbitmq::dead_letters::DeadLetterQueue;
use windlass::rabbitmq::{QueueType, RabbitMq};

use crate::args::DeliveryLimit;
use crate::config::Config;
use crate::exit::{Exit, Failure, Outcome};
use crate::output;

/// Since when a quorum queue has a limit where none is set.
const LIMITED_SINCE: (u32, u32) = (4, 0);

/// What that limit is.
const DEFAULT_DELIVERY_LIMIT: u32 = 20;

/// The broker, over both of its doors.
pub(crate) struct Broker {
    pub(crate) rabbit: RabbitMq,
    pub(crate) management: Management,
    pub(crate) vhost: String,
    /// The version of the broker, once it was asked for.
    series: OnceCell<Option<(u32, u32)>>,
}

impl Broker {
    pub(crate) async fn open(config: Config) -> Outcome<Self> {
        let management = Management::new(config.management)?;
        let vhost = config.amqp.vhost.clone();
        let amqp = config.amqp.with_connection_name("windlass");
        // A service tries until it is connected; somebody at a terminal wants to know why it is not.
        let rabbit = RabbitMq::connect_once(amqp).await?;
        Ok(Self { rabbit, management, vhost, series: OnceCell::new() })
    }

    /// A queue to be looked through, with its kind and its delivery limit: each look counts against it, and what is over
    /// it is gone. AMQP does not tell it, so the management API is asked, unless it was `given`.
    pub(crate) async fn letters(&self, queue: &str, given: &DeliveryLimit) -> Outcome<DeadLetterQueue> {
        let letters = self.rabbit.dead_letters(queue);
        if let Some(limit) = given.delivery_limit {
            return Ok(letters.delivery_limit(NonZeroU32::new(limit).map(NonZeroU32::get)));
        }
        match self.management.queue(&self.vhost, queue).await {
            Ok(Some(status)) => {
                let limit = match queue_type(&status) {
                    QueueType::Classic => None,
                    _ => delivery_limit(queue, &limits(&status), self.series().await?)?,
                };
                Ok(letters.delivery_limit(limit).queue_type(queue_type(&status)))
            }
            // AMQP says so as well, in its own words.
            Ok(None) => Ok(letters),
            Err(error) => {
                let mut failure = Failure::from(error);
                failure.text += "; without the delivery limit of the queue, looking at it may delete messages: say \
                                 what it is with --delivery-limit";
                Err(failure)
            }
        }
    }

    async fn series(&self) -> Outcome<Option<(u32, u32)>> {
        let ask = async || self.management.overview().await.map(|overview| overview.series());
        Ok(*self.series.get_or_try_init(ask).await?)
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

/// Those that the queue was declared with, and that its policies set.
fn limits(status: &QueueStatus) -> Vec<i64> {
    let policy = status.effective_policy.as_ref().and_then(|policy| policy.get("delivery-limit"));
    let limits = [status.arguments.get("x-delivery-limit"), policy];
    limits.into_iter().flatten().filter_map(serde_json::Value::as_i64).collect()
}

/// Of the limits that are set, the lowest is the one. One below zero is none from RabbitMQ 4.0 on.
fn delivery_limit(queue: &str, limits: &[i64], series: Option<(u32, u32)>) -> Outcome<Option<u32>> {
    let limited_by_default = series.is_none_or(|series| series >= LIMITED_SINCE);
    let unlimited = limits.iter().any(|limit| *limit < 0);
    if limits.contains(&0) || (unlimited && !limited_by_default) {
        let text = format!(
            "{} has a delivery limit of {limits:?}, by which this broker deletes each message that is looked at: give \
             it a high one first, by a policy, such as 1000000",
            output::plain(queue)
        );
        return Err(Failure { exit: Exit::Refused, kind: "refused", text });
    }
    let set = limits.iter().copied().filter(|limit| *limit > 0).min();
    Ok(match set {
        Some(limit) => Some(u32::try_from(limit).unwrap_or(u32::MAX)),
        None if unlimited || !limited_by_default => None,
        None => Some(DEFAULT_DELIVERY_LIMIT),
    })
}

#[cfg(test)]
mod tests {
    use super::{DEFAULT_DELIVERY_LIMIT, delivery_limit};
    use crate::exit::Exit;

    #[test]
    fn the_lowest_limit_is_reckoned_with_or_else_the_brokers_own() {
        let (old, new) = (Some((3, 10)), Some((4, 0)));
        for (limits, series, expected) in [
            (&[5, 50][..], old, Some(5)),
            (&[i64::from(i32::MAX)], new, Some(i32::MAX.unsigned_abs())),
            (&[], old, None),
            (&[], new, Some(DEFAULT_DELIVERY_LIMIT)),
            (&[], None, Some(DEFAULT_DELIVERY_LIMIT)),
            (&[-1], new, None),
            (&[-1, 30], new, Some(30)),
        ] {
            let found = delivery_limit("orders.dlq", limits, series).unwrap();
            assert_eq!(found, expected, "{limits:?} {series:?}");
        }
    }

    #[test]
    fn a_queue_that_loses_what_is_looked_at_is_not_looked_at() {
        for (limit, series) in [(-1, Some((3, 10))), (0, Some((3, 10))), (0, Some((4, 3)))] {
            let refused = delivery_limit("orders.dlq", &[limit], series).unwrap_err();
            assert_eq!(refused.exit, Exit::Refused, "{refused}");
            assert!(refused.text.contains("orders.dlq"), "{refused}");
        }
    }
}
