//! The suite that every adapter must pass: what [`MessageSource`](crate::source::MessageSource) promises, as tests.
//!
//! An adapter author writes a [`Harness`], which makes a queue, publishes to it and cuts its connections, and calls
//! [`conformance_tests!`](crate::conformance_tests) with it once:
//!
//! ```text
//! # Cargo.toml
//! [dev-dependencies]
//! windlass = { version = "0.1", features = ["conformance"] }
//! tokio = { version = "1", features = ["macros", "rt"] }
//! ```
//!
//! A whole harness, here for the memory broker, with its tests:
//!
//! ```
//! use std::num::NonZeroUsize;
//! use std::time::Duration;
//! use windlass::clock::{Clock, ControlledClock};
//! use windlass::conformance::{Cut, Harness};
//! use windlass::memory::{MemoryBroker, MemorySource};
//! use windlass::message::Message;
//! use windlass::source::{Capabilities, RequeueOrder};
//!
//! struct InMemory {
//!     clock: ControlledClock,
//!     broker: MemoryBroker,
//! }
//!
//! impl Harness for InMemory {
//!     type Source = MemorySource;
//!
//!     async fn set_up(_case: &'static str) -> windlass::Result<Self> {
//!         let clock = ControlledClock::new();
//!         Ok(Self { broker: MemoryBroker::new(clock.clone()), clock })
//!     }
//!
//!     fn capabilities(&self) -> Capabilities {
//!         Capabilities::new()
//!             .with_delayed_retry(true)
//!             .with_counts_attempts(true)
//!             .with_dead_letter(true)
//!             .with_counts_deliveries(true)
//!             .with_flags_redelivery(true)
//!             .with_requeue_order(RequeueOrder::Front)
//!     }
//!
//!     async fn source(&self, window: NonZeroUsize) -> windlass::Result<MemorySource> {
//!         Ok(self.broker.queue("orders").source().with_prefetch(window.get()))
//!     }
//!
//!     async fn publish(&self, message: Message) -> windlass::Result<()> {
//!         self.broker.queue("orders").publish(message);
//!         Ok(())
//!     }
//!
//!     async fn dead_letters(&self) -> windlass::Result<Vec<Message>> {
//!         Ok(self.broker.queue("orders").dead_letter_queue().pending())
//!     }
//!
//!     async fn cut(&self) -> windlass::Result<Cut> {
//!         self.broker.queue("orders").cut();
//!         Ok(Cut::Done)
//!     }
//!
//!     async fn pass(&self, time: Duration) {
//!         self.clock.advance(time).await;
//!     }
//!
//!     fn clock(&self) -> &dyn Clock {
//!         &self.clock
//!     }
//! }
//!
//! windlass::conformance_tests!(InMemory);
//! #
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! #     for case in windlass::conformance::cases::<InMemory>() {
//! #         if let Err(violation) = case.run().await {
//! #             panic!("{violation}");
//! #         }
//! #     }
//! # }
//! ```
//!
//! Each case becomes a test of its own, named after the promise: `a_dead_lettered_message_never_comes_back`. All of
//! them are made from one list, so that none is left out. A capability that the broker lacks is not skipped: the author
//! declares what there is ([`Harness::capabilities`]), and for the rest the suite asserts the documented refusal.
//! A case that fails says what was expected and what was seen instead, as a [`Violation`].
//!
//! Every wait is bounded in real time by [`Harness::patience`], and time that a case lets pass goes through
//! [`Harness::pass`], so that a broker on a controlled clock is tested without waiting. The cases are in the modules
//! below, with what each of them promises; [`cases`] lists them for those who run them by other means.

// Each case is documented by what it promises; its one error is the violation of that.
#![allow(clippy::missing_errors_doc)]

pub mod attempts;
pub mod cancel;
pub mod close;
pub mod content;
pub mod cut;
pub mod dead_letter;
pub mod delivery;
pub mod erased;
mod harness;
pub mod lease;
mod list;
pub mod release;
pub mod retry;
pub mod settling;
mod trial;
mod violation;
mod waiting;

pub use harness::{Cut, Harness};
pub use list::{Case, cases};
pub use trial::Trial;
pub use violation::Violation;

#[doc(hidden)]
pub use trial::run;
