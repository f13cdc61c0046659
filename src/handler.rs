//! What a service writes: an async function from a payload and a context to a result.

mod error;
mod readiness;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio_util::sync::CancellationToken;

pub(crate) use error::panic_text;
pub use error::{Direction, Failure, HandlerError};
pub use readiness::{Readiness, ReadinessFlag};

use crate::error::BoxError;
use crate::message::Message;

/// Does the work for one message.
///
/// Every async function or closure from a payload and a [`Context`] to a `Result` is one. Its error may be anything
/// that turns into a boxed error, `anyhow::Error` included: where a [`HandlerError`] is in its chain, that is honoured,
/// else it is a failed attempt. To use `?` on errors of several kinds, return `anyhow::Result<_>` or
/// `Result<_, windlass::error::BoxError>`.
///
/// ```
/// use windlass::handler::{Context, Handler, HandlerError};
///
/// async fn ship(order: String, context: Context) -> Result<(), HandlerError> {
///     if order.is_empty() {
///         return Err(HandlerError::terminal("an order without items can never ship"));
///     }
///     println!("attempt {} at {order}", context.attempt());
///     Ok(())
/// }
/// fn is_handler<T>(_: impl Handler<T>) {}
/// is_handler(ship);
/// ```
pub trait Handler<T>: Send + Sync + 'static {
    /// What it returns when it succeeds; `on_result` sees it.
    type Output: Send;

    /// Does the work.
    ///
    /// # Errors
    ///
    /// What became of the message, see [`HandlerError`].
    ///
    /// # Cancel safety
    ///
    /// A consumer that drains drops this future once the drain time and a grace are over; the message is then put
    /// back. Work that must not be cut in the middle belongs on a task of its own.
    fn handle(
        &self,
        payload: T,
        context: Context,
    ) -> impl Future<Output = Result<Self::Output, HandlerError>> + Send;

    /// What says whether calling makes sense now, where the handler knows: a consumer pulls nothing while it says no.
    /// `None`, which is the default, calls it whenever there is a message.
    fn readiness(&self) -> Option<Arc<dyn Readiness>> {
        None
    }
}

impl<F, T, Fut, O, E> Handler<T> for F
where
    F: Fn(T, Context) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<O, E>> + Send,
    T: Send,
    O: Send,
    E: Into<BoxError>,
{
    type Output = O;

    async fn handle(&self, payload: T, context: Context) -> Result<O, HandlerError> {
        self(payload, context).await.map_err(HandlerError::from_error)
    }
}

/// What a handler knows about the message beside its payload. Cheap to clone.
#[derive(Clone)]
pub struct Context {
    message: Message,
    cancellation: Arc<Cancellation>,
}

/// A token that knows whether anybody asked for it, so that a consumer makes a new one for the next message only then.
pub(crate) struct Cancellation {
    token: CancellationToken,
    asked: AtomicBool,
}

impl Cancellation {
    pub(crate) fn new(token: CancellationToken) -> Self {
        Self { token, asked: AtomicBool::new(false) }
    }

    /// For the owner, who does not count as asking.
    pub(crate) fn token(&self) -> &CancellationToken {
        &self.token
    }

    pub(crate) fn was_asked_for(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }
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

    /// The message.
    pub fn message(&self) -> &Message {
        &self.message
    }

    /// Which try this is, 1 for the first.
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

    /// Fires when the result no longer matters: the drain time of the consumer is over, or the lease was lost and the
    /// broker delivers the message to somebody else. It does not fire when the handler has returned.
    pub fn cancellation(&self) -> &CancellationToken {
        self.cancellation.asked.store(true, Ordering::Relaxed);
        &self.cancellation.token
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("message", &self.message)
            .field("cancelled", &self.cancellation.token.is_cancelled())
            .finish()
    }
}
