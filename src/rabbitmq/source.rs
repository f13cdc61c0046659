//! The source: one queue of a RabbitMQ broker.

mod buffer;
mod claims;
mod keeper;
mod moves;
mod options;
mod own;
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

pub(super) use claims::Claims;
pub use options::{DeadLetterTo, QueueType, SourceOptions};
pub use receipt::RabbitReceipt;

use self::buffer::Buffer;
use self::keeper::Keeper;
use self::options::{Origin, Wanted};
use self::own::OwnQueue;
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
    /// The queue, where it is the source's own.
    own: Option<OwnQueue>,
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
        probe::check(&options)?;
        let wanted = match &options.origin {
            Origin::Own(wanted) => wanted.clone(),
            Origin::Queue => {
                probe::look_up_queue(&options).await?;
                probe::look_up_dead_letters(&options).await;
                return Ok(Self::begin(options, None));
            }
        };
        // Whoever opens may give up meanwhile. A task of its own goes on, and gives back what it made.
        let (tell, told) = oneshot::channel();
        let tasks = options.rabbit.source_tasks().clone();
        tasks.spawn(async move {
            let opened = Self::open_own(options, wanted, || tell.is_closed()).await;
            // Where nobody waits for it any more, the source is dropped.
            let _ = tell.send(opened);
        });
        // It ends without an answer only where it panics.
        told.await.unwrap_or_else(|_| Err(Error::new(ErrorKind::Other, "open source")))
    }

    /// Opens a source on a queue of its own.
    async fn open_own(
        mut options: SourceOptions,
        wanted: Wanted,
        nobody_waits: impl Fn() -> bool + Send,
    ) -> Result<Self> {
        let closing = options.rabbit.closing().clone();
        // What is lost here belongs to the connection, which is about to be closed.
        let own = tokio::select! {
            biased;
            () = closing.cancelled() => return Err(Error::new(ErrorKind::Closed, "open source")),
            own = OwnQueue::make(&options.rabbit, wanted, nobody_waits) => own?,
        };
        options.queue = own.label();
        let source = Self::begin(options, Some(own));
        probe::look_up_dead_letters(&source.shared().options).await;
        Ok(source)
    }

    fn begin(options: SourceOptions, own: Option<OwnQueue>) -> Self {
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
            own,
            releases,
        });
        let keeper = Keeper::new(Arc::clone(&shared), asked);
        shared.rabbit.source_tasks().spawn(keeper.run());
        Self(Arc::new(Owner(shared)))
    }

    /// The number of its slot, for a source that was [claimed](RabbitMq::claim).
    pub fn slot(&self) -> Option<u32> {
        self.shared().own.as_ref().and_then(OwnQueue::slot)
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
