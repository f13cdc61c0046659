//! What a service writes: an async function from a payload and a context to a result; and policies around it.
//!
//! [`Policies`] puts a time-out, tries within the process, a circuit breaker, a limit of concurrency, validation and a
//! stop around any handler, in one order from the outside in, which its page gives the reasons for:
//!
//! running? → input validation → concurrency → output validation → retry → circuit breaker → time-out → handler
//!
//! What comes of it is a [`Guarded`] handler, which a consumer takes as it takes any other; its circuit breaker is its
//! [`readiness`](Handler::readiness).
//!
//! [`Onward`] is for workers that send messages because of those that they get: what the handler returns is published and
//! confirmed first, and only then is its message acked.

mod breaker;
mod concurrency;
mod context;
mod error;
mod guarded;
mod onward;
mod policies;
mod readiness;
mod retry;
#[cfg(feature = "tower")]
mod service;
mod timeout;

use std::future::Future;
use std::sync::Arc;

pub use breaker::{CircuitBreaker, CircuitState};
pub use concurrency::{Concurrency, WhenFull};
pub(crate) use context::Cancellation;
pub use context::Context;
pub(crate) use error::panic_text;
pub use error::{Direction, Failure, HandlerError};
pub use guarded::Guarded;
pub use onward::{Onward, Outgoing};
pub use policies::Policies;
pub use readiness::{Readiness, ReadinessFlag};
pub use retry::Retry;
#[cfg(feature = "tower")]
pub use service::{Mapped, PayloadAlone, ServiceHandler};

use crate::error::BoxError;

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
