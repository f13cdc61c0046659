//! A handler with its policies around it.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::concurrency::Gate;
use super::retry::is_worth_another;
use super::timeout::{call, call_within, quietly};
use super::{CircuitBreaker, Context, Handler, HandlerError, Readiness, Retry};
use crate::clock::Clock;
use crate::error::BoxError;
use crate::message::Message;

pub(super) type Check<T> = Box<dyn Fn(&T) -> Result<(), BoxError> + Send + Sync>;

/// How payloads are cloned: known where a retry is set, so that only that needs `Clone`.
pub(super) type CloneBy<T> = fn(&T) -> T;

/// A handler with policies around it, made by [`Policies`](super::Policies), where their order stands as well.
///
/// It is a handler itself: a consumer takes it, and so does another `Policies`. Without a queue it is called by
/// [`call`](Self::call). Cheap to clone; all clones are one, with one limit, one circuit and one stop.
pub struct Guarded<H: Handler<T>, T>(Arc<Inner<H, T>>);

pub(super) struct Inner<H: Handler<T>, T> {
    pub(super) handler: H,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) input: Option<Check<T>>,
    pub(super) output: Option<Check<H::Output>>,
    pub(super) gate: Option<Arc<Gate>>,
    pub(super) retry: Option<(Retry, CloneBy<T>)>,
    pub(super) breaker: Option<CircuitBreaker>,
    pub(super) timeout: Option<Duration>,
    pub(super) stopped: AtomicBool,
    pub(super) stopping: Notify,
}

impl<H: Handler<T>, T: Send + 'static> Guarded<H, T> {
    pub(super) fn new(inner: Inner<H, T>) -> Self {
        Self(Arc::new(inner))
    }

    /// Calls the handler without a queue: with the context of a message that is nobody's, with a random id, and whose
    /// cancellation only the time-out fires.
    ///
    /// # Errors
    ///
    /// What became of the call, see [`HandlerError`].
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops the handler's future where that runs, with the same consequences. Turns and trials are given
    /// back.
    pub async fn call(&self, payload: T) -> Result<H::Output, HandlerError> {
        self.handle(payload, Context::new(Message::new(""), CancellationToken::new())).await
    }

    /// From now on calls give [`HandlerError::NotRunning`], those that wait for their turn included. What has been let
    /// through goes on, but is not tried again. There is no way back. Calling it again does nothing.
    pub fn stop(&self) {
        self.0.stopped.store(true, Ordering::SeqCst);
        if let Some(gate) = &self.0.gate {
            gate.close();
        }
        self.0.stopping.notify_waiters();
    }

    /// Whether it has not been stopped.
    pub fn is_running(&self) -> bool {
        !self.0.stopped.load(Ordering::SeqCst)
    }
}

impl<H: Handler<T>, T: Send + 'static> Handler<T> for Guarded<H, T> {
    type Output = H::Output;

    async fn handle(&self, payload: T, context: Context) -> Result<H::Output, HandlerError> {
        let inner = &*self.0;
        inner.running()?;
        if let Some(input) = &inner.input {
            check(input, &payload, HandlerError::invalid_input)?;
        }
        let _turn = match &inner.gate {
            None => None,
            Some(gate) => {
                let turn = gate.enter().await?;
                // It may have been stopped between the turn and now.
                inner.running()?;
                Some(turn)
            }
        };
        let output = match &inner.retry {
            None => inner.attempt(payload, context).await?,
            Some((retry, clone)) => inner.tries(retry, *clone, payload, context).await?,
        };
        if let Some(valid) = &inner.output {
            check(valid, &output, HandlerError::invalid_output)?;
        }
        Ok(output)
    }

    /// Its circuit breaker, where it has one, and what the handler within says.
    fn readiness(&self) -> Option<Arc<dyn Readiness>> {
        let own = self.0.breaker.clone().map(|breaker| Arc::new(breaker) as Arc<dyn Readiness>);
        match (own, self.0.handler.readiness()) {
            (Some(own), Some(within)) => Some(Arc::new(Both(own, within))),
            (own, within) => own.or(within),
        }
    }
}

impl<H: Handler<T>, T: Send> Inner<H, T> {
    fn running(&self) -> Result<(), HandlerError> {
        if self.stopped.load(Ordering::Acquire) { Err(HandlerError::NotRunning) } else { Ok(()) }
    }

    async fn tries(
        &self,
        retry: &Retry,
        clone: CloneBy<T>,
        payload: T,
        context: Context,
    ) -> Result<H::Output, HandlerError> {
        let most = retry.max_attempts().get();
        for attempt in 1..most {
            // A clone is somebody's code. Where it panics, it would do so at the next try too.
            let copy =
                catch_unwind(AssertUnwindSafe(|| clone(&payload))).map_err(HandlerError::from_panic)?;
            let result = self.attempt(copy, context.clone()).await;
            if let Err(error) = &result
                && is_worth_another(error)
                && self.wait(retry.delay(attempt, context.message().id()), &context).await
            {
                quietly(|| drop(result));
                continue;
            }
            quietly(|| drop(payload));
            return result;
        }
        match self.attempt(payload, context).await {
            Err(error) if is_worth_another(&error) => Err(HandlerError::retry_exhausted(most, error)),
            other => other,
        }
    }

    /// Waits before the next try; false when there is to be none.
    async fn wait(&self, delay: Duration, context: &Context) -> bool {
        let stopping = self.stopping.notified();
        if self.running().is_err() {
            return false;
        }
        // Only waits are lost here.
        tokio::select! {
            biased;
            () = context.own_token().cancelled() => false,
            () = stopping => false,
            () = self.clock.sleep(delay) => true,
        }
    }

    async fn attempt(&self, payload: T, context: Context) -> Result<H::Output, HandlerError> {
        let Some(breaker) = &self.breaker else { return self.bounded(payload, context).await };
        let admitted = breaker.admit()?;
        let result = self.bounded(payload, context).await;
        admitted.end(&result);
        result
    }

    async fn bounded(&self, payload: T, context: Context) -> Result<H::Output, HandlerError> {
        match self.timeout {
            None => call(&self.handler, payload, context).await,
            Some(limit) => call_within(&self.handler, payload, context, &*self.clock, limit).await,
        }
    }
}

fn check<T>(check: &Check<T>, value: &T, wrong: fn(BoxError) -> HandlerError) -> Result<(), HandlerError> {
    match catch_unwind(AssertUnwindSafe(|| check(value))) {
        Ok(checked) => checked.map_err(wrong),
        Err(panic) => Err(HandlerError::from_panic(panic)),
    }
}

/// Ready when both are.
struct Both(Arc<dyn Readiness>, Arc<dyn Readiness>);

impl Readiness for Both {
    fn is_ready(&self) -> bool {
        self.0.is_ready() && self.1.is_ready()
    }

    fn ready(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.0.ready().await;
            self.1.ready().await;
        })
    }

    fn is_trial(&self) -> bool {
        self.0.is_trial() || self.1.is_trial()
    }
}

impl<H: Handler<T>, T> Clone for Guarded<H, T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<H: Handler<T>, T> fmt::Debug for Guarded<H, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guarded")
            .field("timeout", &self.0.timeout)
            .field("retry", &self.0.retry.as_ref().map(|(retry, _)| retry))
            .field("circuit_breaker", &self.0.breaker)
            .field("stopped", &self.0.stopped.load(Ordering::SeqCst))
            .finish_non_exhaustive()
    }
}
