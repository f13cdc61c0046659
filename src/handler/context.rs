//! What a handler is told beside its payload.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use tokio_util::sync::CancellationToken;

use crate::message::Message;

/// What a handler knows about the message beside its payload. Cheap to clone.
#[derive(Clone)]
pub struct Context {
    message: Message,
    cancellation: Arc<Cancellation>,
}

impl Context {
    /// A context for `message`; for handlers that are called without a consumer, as tests do.
    pub fn new(message: Message, cancellation: CancellationToken) -> Self {
        Self::shared(message, Arc::new(Cancellation::new(cancellation)))
    }

    /// Cloning a token takes a lock; a consumer shares one behind an `Arc` instead.
    pub(crate) fn shared(message: Message, cancellation: Arc<Cancellation>) -> Self {
        Self { message, cancellation }
    }

    /// The same with a token that can be cancelled without the token of this one; and that token.
    pub(super) fn child(self) -> (Self, Arc<Cancellation>) {
        let child = Arc::new(Cancellation::child(self.cancellation));
        (Self { message: self.message, cancellation: Arc::clone(&child) }, child)
    }

    /// The token for the policies around the handler, who do not count as asking.
    pub(super) fn own_token(&self) -> &CancellationToken {
        self.cancellation.token()
    }

    /// The message.
    pub fn message(&self) -> &Message {
        &self.message
    }

    /// Which try this is, 1 for the first. Tries of a [`Retry`](super::Retry) around the handler do not count: it is
    /// the attempt of the message.
    pub fn attempt(&self) -> u32 {
        self.message.attempt()
    }

    /// What ties this message to the work that caused it, see [`Message::correlation_id`].
    pub fn correlation_id(&self) -> &str {
        self.message.correlation_id()
    }

    /// For what the handler publishes because of this message: gives it the correlation id and the trace context of
    /// this one, each unless it has its own. [`Message::caused_by`] says where they go.
    ///
    /// ```
    /// use tokio_util::sync::CancellationToken;
    /// use windlass::{Context, Message};
    ///
    /// let order = Message::new("{}").with_id("order-7");
    /// let context = Context::new(order, CancellationToken::new());
    /// let invoice = context.carry(Message::new("{}").with_id("invoice-1"));
    /// assert_eq!(invoice.correlation_id(), "order-7");
    /// ```
    #[must_use]
    pub fn carry(&self, message: Message) -> Message {
        message.caused_by(&self.message)
    }

    /// Fires when the result no longer matters: the drain time of the consumer is over, the lease was lost and the
    /// broker delivers the message to somebody else, or the [time-out](super::Policies::timeout) of this try passed. It
    /// does not fire when the handler has returned.
    pub fn cancellation(&self) -> &CancellationToken {
        self.cancellation.ask()
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("message", &self.message)
            .field("cancelled", &self.cancellation.is_cancelled())
            .finish()
    }
}

/// A token that knows whether anybody asked for it, so that a consumer makes a new one for the next message only then.
pub(crate) struct Cancellation {
    asked: AtomicBool,
    kind: Kind,
}

enum Kind {
    Root(CancellationToken),
    /// Of one try. Its token is made when somebody asks for it: making one takes the lock of its parent.
    Child {
        parent: Arc<Cancellation>,
        token: OnceLock<CancellationToken>,
        cancelled: AtomicBool,
    },
}

impl Cancellation {
    pub(crate) fn new(token: CancellationToken) -> Self {
        Self { asked: AtomicBool::new(false), kind: Kind::Root(token) }
    }

    fn child(parent: Arc<Self>) -> Self {
        let kind = Kind::Child { parent, token: OnceLock::new(), cancelled: AtomicBool::new(false) };
        Self { asked: AtomicBool::new(false), kind }
    }

    /// For the owner, who does not count as asking.
    pub(crate) fn token(&self) -> &CancellationToken {
        match &self.kind {
            Kind::Root(token) => token,
            Kind::Child { .. } => self.ask(),
        }
    }

    pub(crate) fn was_asked_for(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    fn ask(&self) -> &CancellationToken {
        match &self.kind {
            Kind::Root(token) => {
                self.asked.store(true, Ordering::Relaxed);
                token
            }
            Kind::Child { parent, token, cancelled } => {
                // `asked` is written before `cancelled` is read, and `cancel` does it the other way round: whoever
                // comes second sees the first, and the token is cancelled.
                self.asked.store(true, Ordering::SeqCst);
                let token = token.get_or_init(|| parent.ask().child_token());
                if cancelled.load(Ordering::SeqCst) {
                    token.cancel();
                }
                token
            }
        }
    }

    /// Cancels this one and what was made from it; costs nothing to speak of where nobody asked.
    pub(super) fn cancel(&self) {
        match &self.kind {
            Kind::Root(token) => token.cancel(),
            Kind::Child { cancelled, .. } => {
                cancelled.store(true, Ordering::SeqCst);
                if self.asked.load(Ordering::SeqCst) {
                    self.ask();
                }
            }
        }
    }

    fn is_cancelled(&self) -> bool {
        match &self.kind {
            Kind::Root(token) => token.is_cancelled(),
            Kind::Child { parent, cancelled, .. } => {
                cancelled.load(Ordering::SeqCst) || parent.is_cancelled()
            }
        }
    }
}
