//! The source: one queue of a RabbitMQ broker.

mod buffer;
mod keeper;
mod moves;
mod options;
mod probe;
mod receipt;
mod running;
mod session;
mod window;

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

pub use options::{DeadLetterTo, QueueType, SourceOptions};
pub use receipt::RabbitReceipt;

use self::buffer::Buffer;
use self::keeper::Keeper;
use self::window::Answer;
use super::RabbitMq;
use crate::error::{Error, ErrorKind, Result};
use crate::source::{Capabilities, Delivery, Health, MessageSource, NackReason};

/// A source on one queue. Clones share one consumer: closing one closes all, and dropping the last closes it too.
///
/// What it keeps through which fault is told in the [module](super).
#[derive(Clone)]
pub struct RabbitSource(Arc<Owner>);

/// Ends the consumer when the last source is dropped.
struct Owner(Arc<Shared>);

struct Shared {
    rabbit: RabbitMq,
    options: SourceOptions,
    buffer: Buffer,
    /// How many deliveries are in hand at once, where somebody said so.
    in_hand: AtomicUsize,
    releases: mpsc::Sender<Release>,
    /// Makes the keeper end.
    stop: CancellationToken,
    /// The keeper has ended.
    done: CancellationToken,
}

/// Asks the keeper to hand back what is buffered; answered once it has.
struct Release(oneshot::Sender<()>);

/// How many messages are taken ahead where nobody says how many are handled at once.
const PREFETCH: u16 = 16;

impl Shared {
    fn prefetch(&self) -> u16 {
        let derived = match self.in_hand.load(Ordering::Relaxed) {
            0 => PREFETCH,
            in_hand => u16::try_from(in_hand).unwrap_or(u16::MAX),
        };
        let given = self.options.prefetch.or_else(|| self.rabbit.prefetch());
        given.map_or(derived, Into::into)
    }

    fn counts_deliveries(&self) -> bool {
        self.options.queue_type == QueueType::Quorum
    }
}

impl RabbitSource {
    async fn open(options: SourceOptions) -> Result<Self> {
        probe::look_up(&options).await?;
        let rabbit = options.rabbit.clone();
        // One at a time: whoever asks waits for the answer.
        let (releases, asked) = mpsc::channel(1);
        let shared = Arc::new(Shared {
            buffer: Buffer::new(&options.queue),
            stop: rabbit.closing().child_token(),
            done: CancellationToken::new(),
            in_hand: AtomicUsize::new(0),
            rabbit,
            options,
            releases,
        });
        let keeper = Keeper::new(Arc::clone(&shared), asked);
        shared.rabbit.source_tasks().spawn(keeper.run());
        Ok(Self(Arc::new(Owner(shared))))
    }

    fn shared(&self) -> &Shared {
        &self.0.0
    }
}

impl MessageSource for RabbitSource {
    type Receipt = RabbitReceipt;

    fn queue_name(&self) -> &str {
        &self.shared().options.queue
    }

    fn system(&self) -> &'static str {
        "rabbitmq"
    }

    fn expect_in_hand(&self, most: NonZeroUsize) {
        self.shared().in_hand.store(most.get(), Ordering::Relaxed);
    }

    async fn receive(&self, cancel: &CancellationToken) -> Result<Option<Delivery<RabbitReceipt>>> {
        self.shared().buffer.receive(cancel).await
    }

    async fn ack(&self, receipt: RabbitReceipt) -> Result<()> {
        receipt.settle(Answer::Ack).await
    }

    async fn nack(&self, receipt: RabbitReceipt, reason: NackReason) -> Result<()> {
        moves::nack(self.shared(), receipt, reason).await
    }

    async fn extend(&self, receipt: &RabbitReceipt) -> Result<()> {
        let _ = receipt;
        Err(Error::new(ErrorKind::Unsupported, "extend").with_message(
            "RabbitMQ leases nothing: a delivery is ours until it is settled or its channel ends",
        ))
    }

    async fn release(&self) -> Result<()> {
        let shared = self.shared();
        let (answer, answered) = oneshot::channel();
        if shared.releases.send(Release(answer)).await.is_ok() {
            // Where the keeper has ended, everything went back.
            let _ = answered.await;
        }
        Ok(())
    }

    async fn close(&self) -> Result<()> {
        let shared = self.shared();
        shared.buffer.end(Error::new(ErrorKind::Closed, "receive"));
        shared.stop.cancel();
        shared.done.cancelled().await;
        Ok(())
    }

    fn health(&self) -> Health {
        self.shared().buffer.health()
    }

    fn capabilities(&self) -> Capabilities {
        let queue_type = self.shared().options.queue_type;
        Capabilities::new()
            .with_delayed_retry(true)
            .with_counts_attempts(true)
            .with_dead_letter(true)
            .with_counts_deliveries(self.shared().counts_deliveries())
            .with_flags_redelivery(true)
            .with_requeue_order(queue_type.requeue_order())
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.stop.cancel();
    }
}

impl fmt::Debug for RabbitSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitSource").field("queue", &self.queue_name()).finish_non_exhaustive()
    }
}
