//! What an adapter author fills in.

use std::future::Future;
use std::num::NonZeroUsize;
use std::time::Duration;

use crate::clock::Clock;
use crate::error::Result;
use crate::message::{HeaderValue, Message};
use crate::source::{Capabilities, MessageSource};

/// One case's queue, and what the suite has to be able to do to it from outside the source.
///
/// Each case gets a harness of its own from [`set_up`](Self::set_up), so that cases run side by side. An error of a
/// step fails the case and names the step; it is not taken for a fault of the source.
pub trait Harness: Sized + Send + Sync + 'static {
    /// The source under test.
    type Source: MessageSource;

    /// Makes the queue for one case. `case` is its name, a valid Rust identifier, for names on the broker.
    ///
    /// Afterwards the queue exists and is empty, its dead-letter queue (if any) is empty, and nobody else uses either:
    /// add something random to the name where a broker is shared or outlives the test.
    ///
    /// # Errors
    ///
    /// Whatever kept it from that; the case fails. A broker that is not there should be said here, with how to get one.
    fn set_up(case: &'static str) -> impl Future<Output = Result<Self>> + Send;

    /// What the source ought to claim, written down by the author rather than asked of the source.
    ///
    /// The suite compares the two, and then holds the source to it: what is declared must work, and what is not
    /// declared must be answered by the refusal that [`Capabilities`] documents.
    fn capabilities(&self) -> Capabilities;

    /// Opens a new source on the queue; earlier ones stay open.
    ///
    /// Afterwards `window` deliveries of this source can be unsettled at the same time. A source that takes messages
    /// ahead of `receive` is opened so that it takes up to `window` and no more: this is its prefetch. With a window of
    /// 1 it holds one message at a time, received or not.
    ///
    /// # Errors
    ///
    /// Whatever kept it from opening; the case fails.
    fn source(&self, window: NonZeroUsize) -> impl Future<Output = Result<Self::Source>> + Send;

    /// Sends `message` to the queue with its id, body, headers and properties.
    ///
    /// Afterwards the broker has it: a source that asks gets it.
    ///
    /// # Errors
    ///
    /// Whatever kept it from that; the case fails.
    fn publish(&self, message: Message) -> impl Future<Output = Result<()>> + Send;

    /// Lists the dead letters of the queue, oldest first, as a consumer of the dead-letter queue would see them.
    ///
    /// Afterwards they are still there. Never called where [`Capabilities::dead_letter`] is not declared;
    /// there the default will do.
    ///
    /// # Errors
    ///
    /// Whatever kept it from that; the case fails.
    fn dead_letters(&self) -> impl Future<Output = Result<Vec<Message>>> + Send {
        async { Ok(Vec::new()) }
    }

    /// Cuts the connection of every open source from outside, as a broken network would.
    ///
    /// Afterwards the broker has taken back what was delivered over it and not settled, or does so within the
    /// patience, and connecting again works. The sources need not have noticed yet. Answer [`Cut::NoConnection`] where
    /// the source has no connection that a delivery could be bound to.
    ///
    /// # Errors
    ///
    /// Whatever kept it from that; the case fails.
    fn cut(&self) -> impl Future<Output = Result<Cut>> + Send;

    /// Lets `time` pass: advances a controlled clock, or waits.
    ///
    /// Afterwards [`clock`](Self::clock) shows at least that much more, and so does the broker's own.
    fn pass(&self, time: Duration) -> impl Future<Output = ()> + Send;

    /// The clock that delays and leases are measured by.
    fn clock(&self) -> &dyn Clock;

    /// The longest real time that any one wait of a case may take; 10 s by default.
    ///
    /// What a case calls prompt is done within it, without any call of [`pass`](Self::pass).
    fn patience(&self) -> Duration {
        Duration::from_secs(10)
    }

    /// The delay of a retry in the cases on delays; 1 s by default.
    ///
    /// The broker must be able to keep this delay exactly: a retry may be late by one unit at most. Four times the unit
    /// may be rounded up to eight times. A case that shows that nothing comes lets one unit pass. A lease must be
    /// longer than four units.
    fn delay_unit(&self) -> Duration {
        Duration::from_secs(1)
    }

    /// Whether the broker carries a header of this type and value unchanged; every one by default.
    ///
    /// Where not, the header must still arrive, as whatever type the broker has.
    fn carries(&self, value: &HeaderValue) -> bool {
        let _ = value;
        true
    }

    /// Removes what [`set_up`](Self::set_up) made, once the case is over; does nothing by default. Not called when a
    /// case panicked.
    ///
    /// # Errors
    ///
    /// Whatever kept it from that; a case that passed fails.
    fn tear_down(self) -> impl Future<Output = Result<()>> + Send {
        async { Ok(()) }
    }
}

/// What [`Harness::cut`] found to cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cut {
    /// The connections are gone: receipts are stale from here on, and what they were of comes again.
    Done,
    /// There is nothing to cut. The suite then asserts the other side of it: a delivery stays the receiver's, and its
    /// receipt good, until it is settled, its lease ends or its source is closed.
    NoConnection,
}
