//! Any `tower::Service` as a handler, and tower's own errors in the classes that `on_result` tells apart.

use std::error::Error as StdError;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use futures::poll;
use tower::Service;
use tower::buffer::error::{Closed, ServiceError};
use tower::load_shed::error::Overloaded;
use tower::timeout::error::Elapsed;

use super::{Context, Handler, HandlerError};
use crate::clock::{Clock, SystemClock};
use crate::error::{BoxError, Chain};

/// A `tower::Service` as a [`Handler`], with all the layers around it.
///
/// Each call has a clone of its own: it waits until that clone is ready, and calls the same one. The wait is part of
/// the handling: the message is held meanwhile. It ends as [`NotRunning`](HandlerError::NotRunning) when the context is
/// cancelled, by a drain whose time is over or by a lost lease; a service that was called sees to that itself, see
/// [`mapped`](Self::mapped). A service that panics, in `poll_ready` too, is a handler that panics.
///
/// # What errors mean
///
/// Those of `poll_ready` and of the call are treated alike. The first of these in the chain of the error decides:
///
/// | in the chain | is |
/// |---|---|
/// | [`HandlerError`] | itself, as [`HandlerError::from_error`] finds it |
/// | `tower::timeout::error::Elapsed` | [`Timeout`](HandlerError::Timeout), see below |
/// | `tower::load_shed::error::Overloaded`, whatever limit was below | [`BackpressureReject`](HandlerError::BackpressureReject) |
/// | `tower::buffer::error::Closed` | [`NotRunning`](HandlerError::NotRunning) |
/// | `tower::buffer::error::ServiceError` | what is within it; where that has no class, `NotRunning` |
/// | none of these | [`Failed`](HandlerError::Failed) |
///
/// A buffer whose service failed in `poll_ready` gives that one error to every call from then on. No message is to
/// blame for it, and so it must not use up their attempts and dead-letter a whole queue; it is logged as an error each
/// time, since `NotRunning` says nothing of it. A buffer never comes back: whoever watches the log has to start the
/// service anew. `anyhow::Error` hides tower's errors where it has no context.
///
/// The limits of `tower::limit` make no errors; without a `LoadShed` around them, calls wait. tower's `Timeout` does
/// not bound the wait for readiness, since it starts at the call.
///
/// # Services that are not `Clone`, or not `Sync`
///
/// `tower::limit::RateLimit` and others with a state of their own are not `Clone`: put a `tower::buffer::Buffer`
/// around them, which is. A `LoadShed` belongs within the buffer then: one that is outside sees only whether the
/// buffer is full. In place of `BoxCloneService`, which is not `Sync`, there is `BoxCloneSyncService`.
///
/// ```
/// use std::convert::Infallible;
/// use std::time::Duration;
///
/// use tower::load_shed::LoadShed;
/// use tower::timeout::Timeout;
/// use windlass::handler::{Handler, ServiceHandler};
///
/// fn is_handler<T>(_: &impl Handler<T>) {}
///
/// # #[derive(Clone)]
/// # struct Shipping;
/// # impl tower::Service<String> for Shipping {
/// #     type Response = usize;
/// #     type Error = Infallible;
/// #     type Future = std::future::Ready<Result<usize, Infallible>>;
/// #     fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Infallible>> {
/// #         std::task::Poll::Ready(Ok(()))
/// #     }
/// #     fn call(&mut self, order: String) -> Self::Future {
/// #         std::future::ready(Ok(order.len()))
/// #     }
/// # }
/// // `Shipping` is a `tower::Service<String>`.
/// let service = Timeout::new(LoadShed::new(Shipping), Duration::from_secs(5));
/// is_handler::<String>(&ServiceHandler::new(service.clone()));
///
/// // The request may be made of the payload and what the message says beside it.
/// let traced = ServiceHandler::mapped(service, |order: String, context| {
///     format!("{order}, attempt {}", context.attempt())
/// });
/// is_handler::<String>(&traced);
/// ```
#[derive(Clone)]
pub struct ServiceHandler<S, M = PayloadAlone> {
    service: S,
    request: M,
    clock: Arc<dyn Clock>,
    time_limit: Option<Duration>,
}

/// The request of a [`ServiceHandler`] is the payload and nothing else.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct PayloadAlone;

/// The request of a [`ServiceHandler`] is made of the payload and the context by `F`.
#[derive(Clone, Copy)]
pub struct Mapped<F>(F);

impl<S> ServiceHandler<S> {
    /// Calls `service` with the payload.
    pub fn new(service: S) -> Self {
        Self { service, request: PayloadAlone, clock: Arc::new(SystemClock), time_limit: None }
    }
}

impl<S, F> ServiceHandler<S, Mapped<F>> {
    /// Calls `service` with what `request` makes of the payload and the context. A service that wants to hear of
    /// [`Context::cancellation`] while it works is given the context in the request.
    pub fn mapped<T, R>(service: S, request: F) -> Self
    where
        F: Fn(T, Context) -> R,
    {
        Self { service, request: Mapped(request), clock: Arc::new(SystemClock), time_limit: None }
    }
}

impl<S, M> ServiceHandler<S, M> {
    /// The clock that the time of a call is measured by; the system's by default. It moves nothing: tower's timers are
    /// tokio's.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// What [`Timeout`](HandlerError::Timeout) says for a call that tower timed out: the duration that its layer was
    /// given, which tower's error does not tell. By default it is the time from the call to its end, which differs by
    /// milliseconds each time, and so does the code of the cause.
    #[must_use]
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = Some(limit);
        self
    }

    async fn call<R>(&self, request: R, context: &Context) -> Result<S::Response, HandlerError>
    where
        S: Service<R> + Clone,
        S::Error: Into<BoxError>,
    {
        let began = self.clock.now();
        let mut called = began;
        let response = {
            // Readiness belongs to the clone that was asked: another one might hold no permit, and panic when called.
            let mut service = self.service.clone();
            let mut ready = poll_fn(|cx| service.poll_ready(cx).map_err(|error| self.class_of(error, began)));
            match poll!(&mut ready) {
                Poll::Ready(ready) => ready?,
                // Asked for only now: a token that is asked for costs the consumer a new one. What is lost when it
                // fires is a wait, and nothing has been called.
                Poll::Pending => {
                    tokio::select! {
                        biased;
                        () = context.cancellation().cancelled() => return Err(HandlerError::NotRunning),
                        ready = ready => ready?,
                    }
                    called = self.clock.now();
                }
            }
            service.call(request)
        };
        response.await.map_err(|error| self.class_of(error, called))
    }

    fn class_of(&self, error: impl Into<BoxError>, since: Instant) -> HandlerError {
        let mut buffer_ended = false;
        let classed = HandlerError::classed(error.into(), |link| {
            buffer_ended |= link.is::<ServiceError>();
            self.class_in_tower(link, since)
        });
        classed.unwrap_or_else(|error| {
            if !buffer_ended {
                return HandlerError::failed(error);
            }
            tracing::error!(error = %Chain(&*error), "the worker of a tower buffer has ended, and calls nothing more");
            HandlerError::NotRunning
        })
    }

    fn class_in_tower(&self, link: &(dyn StdError + 'static), since: Instant) -> Option<HandlerError> {
        if link.is::<Elapsed>() {
            let measured = || self.clock.now().saturating_duration_since(since);
            return Some(HandlerError::Timeout { after: self.time_limit.unwrap_or_else(measured) });
        }
        if link.is::<Overloaded>() {
            return Some(HandlerError::BackpressureReject);
        }
        link.is::<Closed>().then_some(HandlerError::NotRunning)
    }
}

impl<S, T> Handler<T> for ServiceHandler<S>
where
    S: Service<T> + Clone + Send + Sync + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
    S::Response: Send,
    T: Send,
{
    type Output = S::Response;

    async fn handle(&self, payload: T, context: Context) -> Result<S::Response, HandlerError> {
        self.call(payload, &context).await
    }
}

impl<S, F, T, R> Handler<T> for ServiceHandler<S, Mapped<F>>
where
    F: Fn(T, Context) -> R + Send + Sync + 'static,
    S: Service<R> + Clone + Send + Sync + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send,
    S::Response: Send,
    T: Send,
    R: Send,
{
    type Output = S::Response;

    async fn handle(&self, payload: T, context: Context) -> Result<S::Response, HandlerError> {
        let request = (self.request.0)(payload, context.clone());
        self.call(request, &context).await
    }
}

impl<S: fmt::Debug, M> fmt::Debug for ServiceHandler<S, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceHandler")
            .field("service", &self.service)
            .field("time_limit", &self.time_limit)
            .finish_non_exhaustive()
    }
}

impl<F> fmt::Debug for Mapped<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapped").finish_non_exhaustive()
    }
}
