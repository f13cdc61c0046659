//! Queues in this process: the broker for tests, and for services that need none.
//!
//! | ours | here |
//! |---|---|
//! | queue | [`MemoryQueue`], made by [`MemoryBroker::queue`] |
//! | source | [`MemorySource`], one consumer of one queue; [`MemorySource::new`] brings a queue of its own |
//! | publisher | [`MemoryPublisher`] |
//! | retry | the message comes back, behind what waits, once its delay is over; it is a new delivery (not redelivered) |
//! | dead letter | a copy in the queue `<queue>.dlq`, with a [`DeadLetter`](crate::source::DeadLetter) in its headers |
//! | slot | [`MemoryBroker::claim`]: a queue of the claimant's own, which ends with its source |
//! | broadcast | [`broadcast`](crate::Publisher::broadcast) to an exchange, [`MemoryBroker::subscribe`] to hear it |
//! | requeue | to the front or the back, as [`QueueOptions::requeue_order`] says |
//!
//! **Guarantees.** At least once, first in first out among what was not put back. Nothing is kept when the process
//! ends. A delivery that is not settled comes back when its lease is over, when the connection is
//! [cut](MemoryQueue::cut), or when its source is closed or dropped. What is in a queue of somebody's own, a slot or a
//! subscription, ends with its source or its connection, as on RabbitMQ.
//!
//! **Capabilities.** All of them; a lease where the queue has one.
//!
//! | error | when |
//! |---|---|
//! | `Stale` | the delivery came back, or the receipt is of another queue |
//! | `Closed` | the source was closed |
//! | `Unroutable` | published to a queue that nobody made, or that was deleted |
//! | `NotFound` | a source on a queue that nobody made, or that was deleted meanwhile; an exchange that nobody made |
//! | `Taken` | a slot, or a queue, that is somebody else's |
//! | `Refused` | published to a queue that is full; a slot whose queue was made for everybody |
//! | `Unsupported` | `extend` on a queue without a lease |
//! | any | from the fault script, [`MemoryQueue::fail_next`] |
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> windlass::Result<()> {
//! use tokio_util::sync::CancellationToken;
//! use windlass::clock::ControlledClock;
//! use windlass::memory::MemorySource;
//! use windlass::message::Message;
//! use windlass::source::MessageSource;
//!
//! let source = MemorySource::new(ControlledClock::new());
//! source.queue().publish(Message::new("hello"));
//! let delivery = source.receive(&CancellationToken::new()).await?.expect("a message is there");
//! source.ack(delivery.receipt).await?;
//! assert_eq!(source.queue().counts().acked, 1);
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "topology")]
mod apply;
mod broker;
mod exclusive;
mod handle;
mod limits;
mod locked;
mod parts;
mod queue;
mod registry;
mod shard;
mod shared;
mod source;
mod state;
mod whole;

pub use broker::{MemoryBroker, MemoryPublisher, Overflow, QueueOptions};
pub use handle::MemoryQueue;
pub use source::MemorySource;
pub(crate) use source::WeakSource;
pub use state::{FaultPoint, MemoryReceipt, QueueCounts};
