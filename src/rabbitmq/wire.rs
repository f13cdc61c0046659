//! How a message looks on the wire: what is read of a delivery, and what is written of a message. No connection, no
//! clock, no policy: bytes and properties in, bytes and properties out.
//!
//! What comes in was written by anybody. Nothing of it panics, nothing of it overflows a stack, and nothing of it makes
//! a message come back for ever: what cannot be read is left out and said.

mod attempt;
mod broker;
mod copies;
mod draft;
mod guard;
mod headers;
mod properties;
mod received;
#[cfg(test)]
mod samples;
mod size;

use bytes::Bytes;
use lapin::BasicProperties;

pub use properties::{Delivered, Properties};

pub(in crate::rabbitmq) use self::{
    attempt::{HandedBack, handed_back},
    broker::breaks_the_broker,
    copies::{NoCopy, dead_letter_copy, outgoing, redriven_copy, retry_copy, same_copy},
    guard::{Guard, Guarded},
    received::{Received, received},
};

/// What is handed to the broker.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::rabbitmq) struct Outgoing {
    pub(in crate::rabbitmq) properties: BasicProperties,
    pub(in crate::rabbitmq) body: Bytes,
}
