//! Policies around a handler: which there are, and in what order they stand.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::sync::Notify;

use super::concurrency::Gate;
use super::guarded::{Check, CloneBy, Inner};
use super::{CircuitBreaker, Concurrency, Guarded, Handler, Retry};
use crate::clock::{Clock, SystemClock};
use crate::error::{BoxError, Error, ErrorKind, Result};

/// Puts policies around a handler: time-out, retry, circuit breaker, limit of concurrency, validation. Each is optional,
/// and only those that are set cost anything.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::num::{NonZeroU32, NonZeroUsize};
/// use std::time::Duration;
/// use windlass::handler::{CircuitBreaker, Concurrency, Context, HandlerError, Policies, Retry};
///
/// async fn charge(cents: u64, _: Context) -> Result<u64, HandlerError> {
///     Ok(cents)
/// }
///
/// let payments = CircuitBreaker::new(NonZeroU32::new(5).unwrap(), Duration::from_secs(30));
/// let charge = Policies::around(charge)
///     .validate_input(|cents: &u64| if *cents > 0 { Ok(()) } else { Err("nothing to charge") })
///     .concurrency(Concurrency::new(NonZeroUsize::new(8).unwrap(), 64))
///     .retry(Retry::new(NonZeroU32::new(3).unwrap()))
///     .circuit_breaker(payments.clone())
///     .timeout(Duration::from_secs(5))
///     .build()?;
///
/// assert_eq!(charge.call(250).await?, 250);
/// assert!(matches!(charge.call(0).await, Err(HandlerError::Validation { .. })));
/// # Ok(())
/// # }
/// ```
///
/// # Order
///
/// From the outside in, whatever the order of the setters:
///
/// | policy | why it stands there |
/// |---|---|
/// | [stop](Guarded::stop) | what is stopped looks at nothing more |
/// | [input validation](Self::validate_input) | a payload that cannot be right takes nobody's turn, and makes no other call leave the queue |
/// | [concurrency](Self::concurrency) | a call keeps its turn while it waits for its next try: it is in hand, and if it gave its turn up it might be dropped from the queue with some of its work done |
/// | [output validation](Self::validate_output) | one that is wrong is no failure of what the handler depends on, so no breaker hears of it, and trying again would give it again. It is looked at within the turn: checking is part of the work |
/// | [retry](Self::retry) | each try is one call for the breaker, and where the circuit opens, the tries end at once |
/// | [circuit breaker](Self::circuit_breaker) | a time-out is a failure, and must reach it |
/// | [time-out](Self::timeout) | it is for one try: neither the waits between the tries nor the wait for a turn use it up |
/// | the handler | its panics are [`Panicked`](super::HandlerError::Panicked) from here on outwards |
///
/// # What cannot be helped
///
/// Policies act where the handler waits. One that never does, that loops or blocks its thread, is not cut short by any
/// time-out, and its time is counted from when it first waits. Blocking work belongs on
/// [`spawn_blocking`](tokio::task::spawn_blocking); a time-out then ends the wait for it, and the work itself only where
/// it looks at [`Context::cancellation`](super::Context::cancellation), as do tasks that the handler spawned.
///
/// A panic within a `Drop` that itself runs because of a panic ends the process, as everywhere in Rust.
#[must_use = "policies do nothing until they are built"]
pub struct Policies<H: Handler<T>, T> {
    handler: H,
    clock: Arc<dyn Clock>,
    input: Option<Check<T>>,
    output: Option<Check<H::Output>>,
    concurrency: Option<Concurrency>,
    retry: Option<(Retry, CloneBy<T>)>,
    breaker: Option<CircuitBreaker>,
    timeout: Option<Duration>,
}

impl<H: Handler<T>, T: Send + 'static> Policies<H, T> {
    /// None yet, around `handler`: panics are caught, and that is all.
    pub fn around(handler: H) -> Self {
        Self {
            handler,
            clock: Arc::new(SystemClock),
            input: None,
            output: None,
            concurrency: None,
            retry: None,
            breaker: None,
            timeout: None,
        }
    }

    /// Where all policies take their time from; [`SystemClock`] by default.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// How long one try may take; no limit by default. What has not ended by then is
    /// [`Timeout`](super::HandlerError::Timeout): the cancellation token of that try fires, and then the handler's
    /// future is dropped. The next try has a token of its own.
    ///
    /// It counts from when the handler first waits, and one that is done at the time-out is not timed out. Longer than
    /// [`LONGEST_WAIT`](crate::clock::LONGEST_WAIT) is read as that.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Tries again what failed; one try by default. Each try but the last has a clone of the payload.
    ///
    /// A wait between two tries ends when the context is cancelled or the handler is stopped; the result is then the
    /// last error as it was, and not `RetryExhausted`.
    pub fn retry(mut self, retry: Retry) -> Self
    where
        T: Clone,
    {
        self.retry = Some((retry, T::clone));
        self
    }

    /// Stops calling a handler that fails again and again; none by default. One circuit may stand around several
    /// handlers, but not twice around the same: the outer would wait for a trial that the inner does not let through.
    pub fn circuit_breaker(mut self, breaker: CircuitBreaker) -> Self {
        self.breaker = Some(breaker);
        self
    }

    /// How many calls are under way at once, and how many wait; no limit by default.
    pub fn concurrency(mut self, concurrency: Concurrency) -> Self {
        self.concurrency = Some(concurrency);
        self
    }

    /// Looks at each payload before the handler is called; what it says is wrong is a
    /// [`Validation`](super::HandlerError::Validation) of the input. Where it panics, the call is `Panicked`.
    pub fn validate_input<F, E>(mut self, valid: F) -> Self
    where
        F: Fn(&T) -> Result<(), E> + Send + Sync + 'static,
        E: Into<BoxError>,
    {
        self.input = Some(Box::new(move |payload| valid(payload).map_err(Into::into)));
        self
    }

    /// Looks at what the handler returned, once per call; what it says is wrong is a
    /// [`Validation`](super::HandlerError::Validation) of the output. Where it panics, the call is `Panicked`.
    pub fn validate_output<F, E>(mut self, valid: F) -> Self
    where
        F: Fn(&H::Output) -> Result<(), E> + Send + Sync + 'static,
        E: Into<BoxError>,
    {
        self.output = Some(Box::new(move |output| valid(output).map_err(Into::into)));
        self
    }

    /// The handler with its policies.
    ///
    /// # Errors
    ///
    /// `Invalid`, with the option's name, for
    ///
    /// - a `timeout` of zero, which no handler that waits could meet;
    /// - a `circuit_breaker` whose reset is zero: it would never be open;
    /// - a `concurrency` that drops the oldest of a queue of 0.
    pub fn build(self) -> Result<Guarded<H, T>> {
        let refuse = |why| Err(Error::new(ErrorKind::Invalid, "build").with_message(why));
        if self.timeout.is_some_and(|timeout| timeout.is_zero()) {
            return refuse("timeout: zero leaves no time to any handler; give it some, or leave it out");
        }
        if self.breaker.as_ref().is_some_and(|breaker| breaker.reset().is_zero()) {
            return refuse("circuit_breaker: a reset of zero never keeps it open; make it 1 ms or more");
        }
        if self.concurrency.is_some_and(|concurrency| concurrency.drops_oldest_of_none()) {
            return refuse(
                "concurrency: WhenFull::DropOldest with a queue of 0 has nobody to drop; \
                 make the queue 1 or more, or use WhenFull::Reject",
            );
        }
        if let Some(breaker) = &self.breaker {
            breaker.adopt(&self.clock);
        }
        Ok(Guarded::new(Inner {
            handler: self.handler,
            clock: self.clock,
            input: self.input,
            output: self.output,
            gate: self.concurrency.map(|concurrency| Arc::new(Gate::new(concurrency))),
            retry: self.retry,
            breaker: self.breaker,
            timeout: self.timeout,
            stopped: AtomicBool::new(false),
            stopping: Notify::new(),
        }))
    }
}

impl<H: Handler<T>, T> fmt::Debug for Policies<H, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policies")
            .field("timeout", &self.timeout)
            .field("retry", &self.retry.as_ref().map(|(retry, _)| retry))
            .field("circuit_breaker", &self.breaker)
            .field("concurrency", &self.concurrency)
            .finish_non_exhaustive()
    }
}
