//! Message consumers that lose nothing: pull, handle, settle once, drain.
//!
//! windlass is for services that work off a message queue. It pulls messages from a broker, runs a handler for each,
//! and turns what the handler returned into one answer: done, again later, never again, or back to the queue. A crash,
//! a cut connection, a panic, a payload that cannot be read, a shutdown: none of them loses a message. The same
//! consumer runs on RabbitMQ and on queues in memory, on a clock that a test moves by hand.
//!
//! ```
//! # #[cfg(feature = "json")]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> windlass::Result<()> {
//! use windlass::clock::SystemClock;
//! use windlass::memory::MemoryBroker;
//! use windlass::{Context, HandlerError, Message, QueueConsumer};
//!
//! #[derive(serde::Deserialize)]
//! struct Order {
//!     item: String,
//!     count: u32,
//! }
//!
//! async fn ship(order: Order, context: Context) -> Result<(), HandlerError> {
//!     if order.count == 0 {
//!         return Err(HandlerError::terminal("nothing to ship"));
//!     }
//!     println!("attempt {}: {} x {}", context.attempt(), order.count, order.item);
//!     Ok(())
//! }
//!
//! let queue = MemoryBroker::new(SystemClock).queue("orders");
//! queue.publish(Message::new(r#"{"item": "lamp", "count": 2}"#));
//! queue.publish(Message::new(r#"{"item": "lamp", "count": 0}"#));
//!
//! let consumer = QueueConsumer::new(queue.source(), ship).start()?;
//! queue.until(|queue| queue.counts().acked == 1 && queue.counts().dead_lettered == 1).await?;
//! let report = consumer.stop().await;
//! assert!(report.is_clean());
//! assert_eq!(queue.dead_lettered()[0].1.cause.to_string(), "terminal: nothing to ship");
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "json"))]
//! # fn main() {}
//! ```
//!
//! # The path of a message
//!
//! 1. [`publisher`]: somebody sends it to a queue, and is told once the broker has it.
//! 2. [`source`]: the contract that an adapter for a broker implements. [`receive`](MessageSource::receive) gives a
//!    [`message`] with a receipt. [`memory`] is the adapter for queues in this process, `rabbitmq` the
//!    one for RabbitMQ.
//! 3. [`codec`]: its body is decoded as its [`queue`] says; JSON, unless the service says otherwise.
//! 4. [`handler`]: the service's own async function does the work. It returns a value or an error, and the error says
//!    what kind of failure it is ([`HandlerError`]). [`Policies`](handler::Policies) may stand around it.
//! 5. [`consumer`]: the loop around all this. What the handler returned becomes a [`Settlement`], by
//!    [a table](consumer::default_on_result) or by the service's own `on_result`; a retry policy fills in the delay.
//! 6. Back in [`source`]: the receipt is used up by [`ack`](MessageSource::ack) or [`nack`](MessageSource::nack), and
//!    the message is gone, comes back as the next attempt, or lies with the dead letters. One event says which.
//!
//! [`deliveries`] is the same contract as a `Stream`, for a loop without a handler. A worker that sends onward is a
//! [`handler::Onward`]. Which queues there are is a `topology`, which `bootstrap` makes on RabbitMQ; [`broker`] opens one
//! broker or the other by its URL. Beside the way: [`clock`], through which every wait and every "now" goes, [`backoff`]
//! and [`error`].
//!
//! # Features
//!
//! | feature | default | what |
//! |---|---|---|
//! | `json` | yes | JSON payloads by serde: `QueueConsumer::new`, `codec::json` |
//! | `rabbitmq` | no | RabbitMQ, on lapin with rustls: `windlass::rabbitmq` |
//! | `topology` | no | what a deployment has on its broker, as data: `windlass::topology` |
//! | `bootstrap` | no | makes a topology on RabbitMQ, over its management API: `windlass::bootstrap` |
//! | `cli` | no | the program `windlass`, for the people on call |
//! | `schema` | no | a JSON schema of the configuration of RabbitMQ |
//! | `lz4` | no | bodies packed with lz4, blocks and frames: `codec::Lz4` |
//! | `tower` | no | any `tower::Service` as a handler: `handler::ServiceHandler` |
//! | `metrics` | no | metrics of a consumer, for whatever recorder is installed: `windlass::metrics` |
//! | `otel` | no | trace contexts between OpenTelemetry's spans and the headers of messages |
//! | `conformance` | no | the suite that every adapter must pass, for authors of adapters: `windlass::conformance` |
//!
//! # Design
//!
//! Choices that may surprise, and why they were made:
//!
//! - **A source names its queue and its system** ([`queue_name`](MessageSource::queue_name),
//!   [`system`](MessageSource::system)). Events, spans and metrics need them, and only the source knows them.
//! - **A source is told how many deliveries will be in hand** ([`expect_in_hand`](MessageSource::expect_in_hand)). A
//!   prefetch below `max_concurrent` leaves loops idle, and one far above it keeps messages from other consumers; set in
//!   two places, the two drift apart.
//! - **[`NackReason::Retry`] has `counted: bool` and `delay: Option<Duration>`.** An open circuit postpones a message
//!   that is not to blame, which must not use up an attempt; and the retry policy has to tell a delay that was left
//!   open, which it fills in, from one that was chosen, which it keeps.
//! - **[`QueueConsumer::run`] and [`start`](QueueConsumer::start) return a `Result`.** Setters cannot fail; options
//!   that cannot be right are refused where the consumer starts, with the option's name. What happens after the start
//!   is not an error but stands in the report, which stays the value.
//! - **The third requeue in a row is a postponement**, and so is every one that follows, on a broker that can delay and
//!   whose queue requeues to the front or does not say: it is settled as a delayed retry that does not count as an
//!   attempt. A classic queue would deliver that one message for ever, and those behind it never.
//! - **[`Cause`](source::Cause) is a code and a detail.** Metrics need labels from a bounded set, operators need the
//!   error itself; one string cannot be both.
//! - **A retry with a delay of its own is kept whatever the attempt.** Where `on_result` names the delay, `on_result`
//!   decides when to give up; the policy counts only the retries that it is asked about. A delay of zero becomes 1 ms.
//! - **A source that says that trying again cannot help ends the consumer.** It drains, and the error stands in the
//!   report: pulling from a source that is closed, or that was refused for good, would never get a message.
//! - **Dropping the last handle, or the future of `run`, drains.** The consumer then ends by itself within its
//!   time-outs: nothing that runs is cut short, and no task is left behind.
//! - **Policies stand in one fixed order**, whatever the order of the setters ([`Policies`](handler::Policies)): each place
//!   has a reason, and a stack that a service puts together wrongly fails only in an outage.
//! - **An open circuit stops the pulls, and holds nothing; readiness holds.** A breaker knows only that calls failed: what
//!   is in hand is settled by the table. Who gives the consumer a [`Readiness`](handler::Readiness) says that a failure
//!   meanwhile is not the message's.
//! - **What a waiting consumer has prefetched goes back after 10 s**, not at once: a breaker that opens for a moment would
//!   otherwise have the broker deliver everything twice, and RabbitMQ 4.0 counts that against its delivery limit.
//! - **Observers run in the loop while they are quick**, and on a thread of their own once a call took longer than 10 ms:
//!   always on a thread would cost each event a hand-over, and make tests on a controlled clock wait for real time.
//! - **A label decides, not the bytes.** A body is unpacked because its content encoding says so, or because its queue
//!   always unpacks; guessing by the first bytes would hand garbage to a handler one day.
//! - **Names of typed queues end at 237 bytes**, so that the names of what belongs to them fit into RabbitMQ's 255.
//! - **A tower buffer that has ended is `NotRunning`**, unless a class is within its error: it gives the same error to
//!   every call from then on, and as failed attempts they would dead-letter a whole queue.
//! - **The kill switch counts every failure whose handler was called**, those for good too: a bad deployment that
//!   dead-letters everything is what it is for.
//! - **The queue of a slot is exclusive, but not auto-delete.** RabbitMQ would delete it with what is in it whenever its
//!   consumer goes, be it for a pause; the source deletes it at its own end, and the broker with the connection.
//! - **What a subscription gives up is dropped**, with an event, unless somewhere to go is named: everybody has a copy, and
//!   this one lives no longer than its connection.
//! - **A dead-letter queue is made before its stage, and each policy before its queue**, so that from the first message on
//!   there is somewhere to go. Each stage has a policy of its own, which names the routing key: a message that had come by
//!   another one would be dropped by the exchange of the dead letters, without a word.
//! - **Dead-letter queues have the highest delivery limit**: from RabbitMQ 4.0 on a quorum queue has one of 20, and whoever
//!   looks at a dead letter for the twenty-first time would delete it.
//! - **A per-slot stage has dead letters only where the topology says so** (`dead_letters = true`): one queue for all slots.
//! - **The management API is spoken without its Rust client**: that sets the global allocator of every program which it is
//!   linked into, and reads a depth that the broker leaves out as zero.
//! - **Values are made by `with_…`, things that run are set up by plain names**: `Message::with_id`,
//!   `QueueConsumer::max_concurrent`.
//! - **The memory broker counts as RabbitMQ does.** A retry is a new delivery (not redelivered, delivery count 1), as
//!   the copy that a RabbitMQ adapter publishes will be; whatever comes back without an answer is redelivered.

pub mod backoff;
#[cfg(feature = "bootstrap")]
pub mod bootstrap;
pub mod broker;
pub mod clock;
pub mod codec;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod consumer;
pub mod deliveries;
pub mod error;
pub mod handler;
#[cfg(feature = "bootstrap")]
pub mod management;
pub mod memory;
pub mod message;
#[cfg(feature = "metrics")]
pub mod metrics;
pub mod publisher;
pub mod queue;
#[cfg(feature = "rabbitmq")]
pub mod rabbitmq;
pub mod source;
#[cfg(feature = "topology")]
pub mod topology;

pub use consumer::{ConsumerHandle, QueueConsumer};
pub use error::{Error, ErrorKind, Result};
pub use handler::{Context, HandlerError};
pub use message::Message;
pub use publisher::Publisher;
pub use queue::{PublisherExt, Queue, QueueFamily};
pub use source::{MessageSource, NackReason, Settlement};

/// The code in the README, as tests. It shows all features, and so needs them all.
#[cfg(all(
    doctest,
    feature = "conformance",
    feature = "json",
    feature = "metrics",
    feature = "rabbitmq",
    feature = "topology"
))]
#[doc = include_str!("../README.md")]
#[derive(Debug)]
pub struct ReadmeDoctests;
