//! What settles one delivery.

use std::fmt;
use std::sync::Arc;

use super::session::Session;
use super::window::Answer;
use crate::error::Result;
use crate::message::Message;

/// The receipt of a [`RabbitSource`](super::RabbitSource): bound to the channel that delivered the message, whatever
/// source it is handed to.
pub struct RabbitReceipt {
    session: Arc<Session>,
    tag: u64,
    /// For the copies of a retry and a dead letter.
    message: Message,
    /// Whether the message is to go back when nothing else becomes of it.
    goes_back: bool,
}

impl RabbitReceipt {
    pub(super) fn new(session: Arc<Session>, tag: u64, message: Message) -> Self {
        session.handed_out();
        Self { session, tag, message, goes_back: false }
    }

    /// From here on, a message that is dropped unsettled goes back to its queue: it would take up the prefetch for as
    /// long as the channel lives.
    pub(super) fn go_back_unless_settled(&mut self) {
        self.goes_back = true;
    }

    pub(super) fn message(&self) -> &Message {
        &self.message
    }

    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    /// Tells the broker the answer; see [`Session::settle`].
    pub(super) async fn settle(self, answer: Answer) -> Result<()> {
        self.session.settle(self.tag, answer).await
    }
}

impl Drop for RabbitReceipt {
    fn drop(&mut self) {
        if self.goes_back {
            self.session.requeue_unless_settled(self.tag);
        }
        self.session.given_back();
    }
}

impl fmt::Debug for RabbitReceipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitReceipt").field("tag", &self.tag).finish_non_exhaustive()
    }
}
