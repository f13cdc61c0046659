//! One message that is to be sent onward.

use std::iter::Once;

use crate::codec::Codec;
use crate::error::Result;
use crate::handler::Context;
use crate::message::Message;
use crate::queue::{Queue, check_name};

/// A message that a worker sends because of the one that it handles, and where to; see [`Onward`](super::Onward).
///
/// Making one cannot fail. A payload that its codec refuses, or a name that is none, shows when it is to be sent, and is
/// an invalid output of the handler then.
#[derive(Debug, Clone)]
#[must_use = "it is sent only where a handler within `Onward` returns it"]
pub struct Outgoing {
    destination: Destination,
    message: Result<Message>,
    id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Destination {
    Queue(String),
    Exchange(String),
}

/// With its id and all else that it carries.
pub(super) struct Ready {
    pub(super) destination: Destination,
    pub(super) message: Message,
}

impl Destination {
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Queue(_) => "queue",
            Self::Exchange(_) => "exchange",
        }
    }

    pub(super) fn name(&self) -> &str {
        match self {
            Self::Queue(name) | Self::Exchange(name) => name,
        }
    }
}

impl Outgoing {
    /// This payload, to this queue. It is encoded here.
    pub fn to<T, C: Codec<T>>(queue: &Queue<T, C>, payload: &T) -> Self {
        Self::new(Destination::Queue(queue.name().to_owned()), queue.message(payload))
    }

    /// This payload, to all who listen to the exchange that has the name of `queue`; as the codec of `queue` encodes it.
    pub fn broadcast<T, C: Codec<T>>(queue: &Queue<T, C>, payload: &T) -> Self {
        Self::new(Destination::Exchange(queue.name().to_owned()), queue.message(payload))
    }

    /// This message, to this queue. Its id is replaced, see [`with_id`](Self::with_id).
    pub fn message_to(queue: impl Into<String>, message: Message) -> Self {
        Self::new(Destination::Queue(queue.into()), Ok(message))
    }

    /// This message, to all who listen to this exchange. Its id is replaced, see [`with_id`](Self::with_id).
    pub fn broadcast_message(exchange: impl Into<String>, message: Message) -> Self {
        Self::new(Destination::Exchange(exchange.into()), Ok(message))
    }

    fn new(destination: Destination, message: Result<Message>) -> Self {
        Self { destination, message, id: None }
    }

    /// What else the message is to carry: headers, a correlation id, properties of the adapter's. An id that is set here
    /// is replaced.
    pub fn with(mut self, edit: impl FnOnce(Message) -> Message) -> Self {
        self.message = self.message.map(edit);
        self
    }

    /// An id of its own, in place of the one that is derived from the message that is handled. It should be the same
    /// whenever that message is handled, or nobody can tell a duplicate.
    pub fn with_id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    pub(super) fn destination(&self) -> &Destination {
        &self.destination
    }

    pub(super) fn into_ready(self, derived: String, context: &Context) -> Result<Ready> {
        let Self { destination, message, id } = self;
        check_name("send onward", destination.kind(), destination.name())?;
        let message = context.carry(message?.with_id(id.unwrap_or(derived)));
        Ok(Ready { destination, message })
    }
}

/// Itself alone: so a handler can return one as it is.
impl IntoIterator for Outgoing {
    type Item = Self;
    type IntoIter = Once<Self>;

    fn into_iter(self) -> Once<Self> {
        std::iter::once(self)
    }
}
