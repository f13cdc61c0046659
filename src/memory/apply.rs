//! A topology on the broker in memory.

use std::num::NonZeroUsize;

use super::broker::{MemoryBroker, Overflow, QueueOptions};
use crate::error::{Error, ErrorKind, Result};
use crate::source::RequeueOrder;
use crate::topology::{self, Retention, Stage, StageType, Topology};

impl MemoryBroker {
    /// Makes what a topology says: the queues of its static stages with their dead-letter queues, and the exchange for
    /// broadcasts. Applied again, it adds what is missing and applies a retention that has changed; stage queues that are
    /// there stay as they are.
    ///
    /// | field | here |
    /// |---|---|
    /// | a static stage | a queue; a classic one requeues to the front, for a quorum one no order is claimed, as on RabbitMQ |
    /// | a per-slot stage | its shared dead-letter queue, where it has one; the queues are made by [`claim`](Self::claim) |
    /// | `dead_letters.retention` | the age is that on the broker's clock; the oldest are dropped first |
    /// | `max_length` | further messages are refused |
    /// | `broadcast` | an exchange |
    /// | `wait_steps_ms` | of no effect: every delay is kept exactly, without queues |
    /// | `vhost`, `user`, `policies`, `dead_letters.exchange`, `initial_group_size`, `delivery_limit` | of no effect: there is nothing of the kind here |
    /// | `dead_letters: false` of a static stage, `dead_letter_to` | refused: what a source gives up goes to `<stage>.dlq` here |
    /// | `message_ttl_ms`, `expires_ms`, `max_length_bytes`, `max_priority`, `single_active_consumer`, another `overflow` than to refuse, `arguments` and `policy` of a stage | refused: a test would pass here and not there |
    ///
    /// # Errors
    ///
    /// `Invalid` for a topology that is not [valid](Topology::validate). `Unsupported`, with all the fields that cannot be
    /// honoured. Nothing is made then.
    pub fn apply(&self, topology: &Topology) -> Result<()> {
        topology.validate()?;
        let unsupported: Vec<String> = topology
            .stages
            .iter()
            .enumerate()
            .flat_map(|(index, stage)| {
                unsupported(stage).map(move |field| format!("stages[{index}].{field} ({})", stage.name))
            })
            .collect();
        if !unsupported.is_empty() {
            let text = format!("not honoured in memory, leave it out: {}", unsupported.join(", "));
            return Err(Error::new(ErrorKind::Unsupported, "apply topology").with_message(text));
        }
        if let Some(broadcast) = &topology.broadcast {
            self.declare_exchange(&broadcast.exchange);
        }
        let letters = options_of_letters(topology.dead_letters.retention);
        for stage in &topology.stages {
            if let Some(name) = stage.dead_letter_queue() {
                let queue = self.queue(&name).0;
                let mut whole = queue.lock_all();
                whole.set_limits(&letters, queue.clock.now());
                whole.locked.everything_moved();
            }
            if !stage.per_slot {
                self.declare(&stage.name, options_of(stage));
            }
        }
        Ok(())
    }
}

fn unsupported(stage: &Stage) -> impl Iterator<Item = &'static str> + use<> {
    let other_overflow = stage.overflow() != topology::Overflow::RejectPublish;
    [
        ("dead_letters", !stage.per_slot && stage.dead_letters == Some(false)),
        ("dead_letter_to", stage.dead_letter_to.is_some()),
        ("message_ttl_ms", stage.message_ttl.is_some()),
        ("expires_ms", stage.expires.is_some()),
        ("max_length_bytes", stage.max_length_bytes.is_some()),
        ("overflow", other_overflow),
        ("max_priority", stage.max_priority.is_some()),
        ("single_active_consumer", stage.single_active_consumer),
        ("arguments", !stage.arguments.is_empty()),
        ("policy", !stage.policy.is_empty()),
    ]
    .into_iter()
    .filter_map(|(field, set)| set.then_some(field))
}

fn options_of(stage: &Stage) -> QueueOptions {
    let order = match stage.queue_type {
        StageType::Classic => RequeueOrder::Front,
        StageType::Quorum => RequeueOrder::Unknown,
    };
    let most = stage.max_length.and_then(whole_number);
    QueueOptions { max_messages: most, ..QueueOptions::new() }.with_requeue_order(order)
}

fn options_of_letters(retention: Retention) -> QueueOptions {
    let options = QueueOptions::new().with_max_age(retention.max_age()).with_overflow(Overflow::DropOldest);
    QueueOptions { max_messages: whole_number(retention.max_messages.into()), ..options }
}

/// More than memory can hold is as good as the most that can be counted.
fn whole_number(count: u64) -> Option<NonZeroUsize> {
    NonZeroUsize::new(usize::try_from(count).unwrap_or(usize::MAX))
}
