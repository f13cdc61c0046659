//! The loop: pull, decode, handle, settle once, tell what happened; pause, resume and drain.
//!
//! # Spans
//!
//! Made with `tracing`, by OpenTelemetry's [conventions for messaging] (1.39). Where nobody records them, each costs a
//! look at a flag.
//!
//! | span | level | kind | around |
//! |---|---|---|---|
//! | `process <queue>` | info | consumer | decoding and the handler, of one message |
//! | `ack <queue>`, `nack <queue>` | debug | client | the answer to the broker, until the broker has it |
//!
//! - The sender of the message is the parent of the process span where the feature `otel` is on and the message has a
//!   `traceparent`, which the conventions leave open where messages come one by one: a trace that shows what a message
//!   has caused is worth more here than one that shows a loop. The ids that came are fields as well
//!   (`windlass.trace_id`, `windlass.parent_id`), with the feature and without, so that log lines can be joined.
//! - How it ended is in `windlass.outcome`, and what was decided in `windlass.settlement` (`ack`, `retry`, `postpone`,
//!   `dead_letter`, `requeue`; `held` where it was run again instead) and `windlass.cause`, the code of the cause. The span of a handler that failed has the
//!   status `ERROR` and, as `error.type`, the [name of its class](crate::HandlerError::class_name); that of an answer
//!   that the broker did not take has the [name of the kind](crate::ErrorKind::name).
//! - The answer is a span of its own, as the conventions ask, and a child of the process span with the feature `otel`.
//!   The process span does not wait for it. It is at the level of debug since most want to know only that it failed,
//!   which is a warning anyway.
//! - There is no span for `receive`. The conventions have one for each poll, for programs that ask for messages
//!   themselves; a service that gets its messages as calls of a handler has the process span, and a loop that waits all
//!   night would make nothing but spans without a message.
//! - A message that is handed back because the consumer was paused or stopped has no process span.
//! - What is not known here is not given: `messaging.client.id`, `server.address`, and
//!   `messaging.rabbitmq.message.delivery_tag`. Later versions of the conventions call `messaging.system`
//!   `messaging.system.name`; the name will be changed once with the rest, when they are stable.
//!
//! [conventions for messaging]: https://github.com/open-telemetry/semantic-conventions/tree/v1.39.0/docs/messaging

mod admission;
mod control;
mod decide;
mod ended;
mod event;
mod handle;
mod held;
mod journal;
mod kill_switch;
mod observer;
mod observers;
mod on_result;
mod options;
mod ordering;
mod process;
mod pulse;
mod retry_policy;
mod signal;
mod stats;
mod supervisor;
mod trace;
mod work;
mod worker;

use std::fmt;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

pub use event::{ConsumerEvent, Outcome, Timings};
pub use handle::{ConsumerHandle, Status};
pub use journal::{Journal, JournalEntry};
pub use kill_switch::KillSwitch;
pub use observer::{CalledFrom, ChangeKind, ConsumerChange, ConsumerSample, Observer, Obstacle};
pub use on_result::default_on_result;
pub use retry_policy::RetryPolicy;
pub use stats::Stats;
pub use supervisor::Report;

use control::Control;
use observers::Observers;
use options::{Options, invalid};

use crate::backoff::Backoff;
use crate::clock::{Clock, SystemClock};
use crate::codec::Codec;
use crate::error::{BoxError, Result};
use crate::handler::{Handler, HandlerError, Readiness};
use crate::message::Message;
use crate::queue::Queue;
use crate::source::{MessageSource, Settlement};

type Decode<T> = Arc<dyn Fn(&Message) -> Result<T, BoxError> + Send + Sync>;
type OnResult<O> = Arc<dyn Fn(&Result<O, HandlerError>, &Message) -> Settlement + Send + Sync>;

/// Runs a handler for each message of a source.
///
/// For each message: decode, handler, `on_result`, settle, one event. It holds at most `max_concurrent` messages at a
/// time and pulls only when it has room. A panic, an undecodable payload, an error of the source: none of them ends
/// it, and each message gets one answer or stays with the broker.
///
/// ```
/// # #[cfg(feature = "json")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> windlass::Result<()> {
/// use tokio_util::sync::CancellationToken;
/// use windlass::clock::SystemClock;
/// use windlass::consumer::QueueConsumer;
/// use windlass::handler::{Context, HandlerError};
/// use windlass::memory::MemorySource;
/// use windlass::message::Message;
///
/// let source = MemorySource::new(SystemClock);
/// let queue = source.queue().clone();
/// queue.publish(Message::new("[1, 2, 3]"));
///
/// let consumer = QueueConsumer::new(source, async |numbers: Vec<u32>, context: Context| {
///     println!("attempt {}: {}", context.attempt(), numbers.iter().sum::<u32>());
///     Ok::<_, HandlerError>(())
/// });
/// let handle = consumer.start()?;
/// queue.until(|queue| queue.counts().acked == 1).await?;
/// assert_eq!(handle.stop().await.stats.acked, 1);
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "json"))]
/// # fn main() {}
/// ```
#[must_use = "a consumer does nothing until it is started or run"]
pub struct QueueConsumer<S: MessageSource, H: Handler<T>, T> {
    source: S,
    handler: H,
    decode: Decode<T>,
    on_result: OnResult<H::Output>,
    observers: Observers,
    clock: Arc<dyn Clock>,
    options: Options,
    control: Control,
}

/// The highest `max_concurrent`: a million loops, each of them a task with about a kilobyte of its own.
pub const MOST_CONCURRENT: usize = 1_000_000;

impl<S: MessageSource, H: Handler<T>, T: Send + 'static> QueueConsumer<S, H, T> {
    /// A consumer of JSON payloads.
    #[cfg(feature = "json")]
    pub fn new(source: S, handler: H) -> Self
    where
        T: serde::de::DeserializeOwned,
    {
        Self::with_decoder(source, crate::codec::json::<T>, handler)
    }

    /// A consumer of a queue that knows its payloads: `handler` takes what the queue has, and it is decoded by the
    /// queue's codec, as by [`with_decoder`](Self::with_decoder). A `source` of another queue is refused at the start.
    pub fn of<C>(queue: &Queue<T, C>, source: S, handler: H) -> Self
    where
        C: Codec<T> + Clone,
    {
        let decoder = queue.clone();
        let mut consumer =
            Self::with_decoder(source, move |message: &Message| decoder.decode(message), handler);
        consumer.options.queue = Some(queue.name().to_owned());
        consumer
    }

    /// A consumer whose payloads are decoded by a function or closure. What it cannot decode is dead-lettered as
    /// `validation:input` with the decoder's error, and the handler is not called; so is what makes it panic, after
    /// the retries of a panic.
    pub fn with_decoder<D, E>(source: S, decoder: D, handler: H) -> Self
    where
        D: Fn(&Message) -> Result<T, E> + Send + Sync + 'static,
        E: Into<BoxError>,
    {
        Self {
            source,
            handler,
            decode: Arc::new(move |message| decoder(message).map_err(Into::into)),
            on_result: Arc::new(|result, _| default_on_result(result)),
            observers: Observers::default(),
            clock: Arc::new(SystemClock),
            options: Options::default(),
            control: Control::new(),
        }
    }

    /// How many messages are handled at once; 1 by default. More than [`MOST_CONCURRENT`] is refused at the start.
    pub fn max_concurrent(mut self, max: NonZeroUsize) -> Self {
        self.options.max_concurrent = max;
        self
    }

    /// Sets the function that decides what a result means for the message, in place of [`default_on_result`], which it
    /// can call for the results that it does not decide. A panic in it is a failed attempt (`on_result_panic`).
    pub fn on_result<F>(mut self, decide: F) -> Self
    where
        F: Fn(&Result<H::Output, HandlerError>, &Message) -> Settlement + Send + Sync + 'static,
    {
        self.on_result = Arc::new(decide);
        self
    }

    /// Sets the policy that fills in what a `Retry` leaves open; 1 s, 2 s, 4 s, then dead-letter, by default.
    pub fn retry_policy(mut self, policy: RetryPolicy) -> Self {
        self.options.retry = policy;
        self
    }

    /// Adds an observer, which is called once for each message after it is settled. Any number of them; one that panics
    /// is counted and called again for the next message. It is called in the loop, which waits for it: it must not block,
    /// and one call that takes longer than 10 ms is its last there. From then on it is called from a thread of its own,
    /// in the same order, behind a queue of 1,024; what does not fit is dropped and counted (`observer_drops`). What may
    /// block at its first call already says so as an [`Observer`] ([`CalledFrom::Thread`]). They are dropped when the
    /// consumer has ended and its last handle is gone.
    pub fn on_event(self, observer: impl Fn(&ConsumerEvent) + Send + Sync + 'static) -> Self {
        self.observer(observer)
    }

    /// As [`on_event`](Self::on_event), for an [`Observer`] that wants to be told of more than the messages, or to be
    /// called from a thread from the start. It is asked once, here, from where it is to be called and how often it wants
    /// a sample.
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observers.push(observer);
        self
    }

    /// The clock that all waits are on; the system's by default. Give it the clock of the source: on two clocks, waits
    /// and delays drift apart.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// How long to wait after a failed `receive` before the next; from 100 ms, doubling, to 30 s by default.
    pub fn receive_backoff(mut self, backoff: Backoff) -> Self {
        self.options.receive_backoff = backoff;
        self
    }

    /// How long a loop waits after it put a message back before it pulls again, by how many were put back in a row;
    /// from 10 ms, doubling, to 1 s by default.
    pub fn requeue_backoff(mut self, backoff: Backoff) -> Self {
        self.options.requeue_backoff = backoff;
        self
    }

    /// How long a drain waits for handlers before it cancels their contexts; 10 s by default. Zero cancels at once.
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.options.drain_timeout = timeout;
        self
    }

    /// How long a drain waits after it cancelled the contexts before it drops the handlers; 1 s by default. The same
    /// time is given to a `receive` that does not return when it is cancelled.
    pub fn drain_grace(mut self, grace: Duration) -> Self {
        self.options.grace = grace;
        self
    }

    /// How long one ack, nack or extend may take; 30 s by default. One that takes longer is a settle error.
    pub fn settle_timeout(mut self, timeout: Duration) -> Self {
        self.options.settle_timeout = timeout;
        self
    }

    /// How long releasing, and closing, the source may take; 5 s by default.
    pub fn close_timeout(mut self, timeout: Duration) -> Self {
        self.options.close_timeout = timeout;
        self
    }

    /// Pulls nothing while `readiness` says no; always ready by default. Nothing is spent on an outage: a handler that
    /// fails (failed, timed out, panicked, gave up retrying, circuit open) while it says no is held with its message,
    /// and run again once it says yes, as the same attempt. So is a message that came just then. A hold lasts until
    /// [`hold_timeout`](Self::hold_timeout); then the message is requeued (`not_ready`), which is no attempt either. A
    /// pause or a drain hands held messages back at once.
    ///
    /// What is prefetched goes back to the broker once it has said no for 10 s. The answer is asked for before each
    /// pull and once a second while it is waited for: one that panics is read as no, one that never changes keeps
    /// the consumer waiting, which [`Status::Waiting`], an event and [`ConsumerHandle::waiting_for`] show.
    ///
    /// A handler may have a readiness of its own, as one with a circuit breaker around it has
    /// ([`Handler::readiness`]): while that says no, nothing is pulled either, but nothing is held. Messages in hand
    /// are settled by what the handler returns.
    pub fn readiness(mut self, readiness: impl Readiness) -> Self {
        self.options.readiness = Some(Arc::new(readiness));
        self
    }

    /// How long a message is held for [`readiness`](Self::readiness), from when it was pulled; 10 min by default, a
    /// third of the 30 min that RabbitMQ waits for an answer before it closes the channel.
    pub fn hold_timeout(mut self, timeout: Duration) -> Self {
        self.options.hold_timeout = timeout;
        self
    }

    /// Pauses by itself for a while when too many messages fail; off by default.
    pub fn kill_switch(mut self, switch: KillSwitch) -> Self {
        self.options.kill_switch = Some(switch);
        self
    }

    /// Tells observers ([`ChangeKind::Idle`]) when no message came for this long and none is in hand: once, and again
    /// only after another message. Off by default.
    pub fn idle_after(mut self, time: Duration) -> Self {
        self.options.idle_after = Some(time);
        self
    }

    /// Messages with the same key are handled one after the other, in the order in which they came, and the next begins
    /// once the one before is settled; those with different keys, or without one, at once. Off by default.
    ///
    /// - It is an order within this consumer. Across several, let one queue have one consumer (RabbitMQ: single active
    ///   consumer), or split by key into queues.
    /// - A message that waits for its key takes one of the `max_concurrent` places: one hot key can take them all.
    /// - **A message that is retried or put back is overtaken**: it goes back to the broker, and the next one with its
    ///   key begins. Where the order has to hold across failures, retry in place, with
    ///   [`handler::Retry`](crate::handler) around the handler: the key then waits. A message held for
    ///   [`readiness`](Self::readiness) keeps its place.
    /// - A pause or a drain hands back those that wait, and lets those that run finish.
    ///
    /// A panic in `key_of` is a failed attempt.
    pub fn ordered_by<K: Into<String>>(
        mut self,
        key_of: impl Fn(&Message) -> Option<K> + Send + Sync + 'static,
    ) -> Self {
        self.options.key_of = Some(Arc::new(move |message| key_of(message).map(Into::into)));
        self
    }

    /// A handle to this consumer, also before it is started: stopped by then, it starts to end at once; paused by
    /// then, it starts paused.
    pub fn handle(&self) -> ConsumerHandle {
        self.control.handle()
    }

    /// Starts on the current tokio runtime. The consumer stops when told to through the handle, when the last handle
    /// is dropped, or when its source says that trying again cannot help.
    ///
    /// # Errors
    ///
    /// `Invalid`, naming the option, when
    /// - there is no tokio runtime, or the clock needs its timer and it has none,
    /// - a retry schedule is empty ([`RetryPolicy::never`] says that) or has a zero delay,
    /// - `settle_timeout`, `close_timeout`, `hold_timeout` or `idle_after` is zero,
    /// - the share of a kill switch is not above 0 and at most 1, or its window or pause is zero,
    /// - `max_concurrent` is above [`MOST_CONCURRENT`],
    /// - the name of the queue it is [`of`](Self::of) is none ([`check_name`](crate::queue::check_name)), or its source
    ///   is of another queue.
    pub fn start(self) -> Result<ConsumerHandle> {
        self.options.validate(self.source.queue_name())?;
        let runtime = tokio::runtime::Handle::try_current()
            .map_err(|error| invalid("runtime", "call it within a tokio runtime").with_source(error))?;
        // Tokio panics where a runtime has no timer: better here than in the middle of a drain.
        catch_unwind(AssertUnwindSafe(|| drop(self.clock.sleep(Duration::ZERO))))
            .map_err(|_| invalid("runtime", "it has no timer; build it with enable_time or enable_all"))?;
        let handle = self.control.handle();
        let supervisor = supervisor::Supervisor::new(self);
        runtime.spawn(supervisor.run());
        Ok(handle)
    }

    /// Starts, and drains when `token` fires. Returns when all is settled and the source is closed.
    ///
    /// # Errors
    ///
    /// As for [`start`](Self::start). What went wrong later stands in the report.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future stops the consumer: it drains by itself, within its time-outs, and nobody gets the report.
    pub async fn run(self, token: CancellationToken) -> Result<Report> {
        let handle = self.start()?;
        let _stop = handle.stop_on_drop();
        // Only waits are lost here.
        tokio::select! {
            biased;
            report = handle.wait() => Ok(report),
            () = token.cancelled() => Ok(handle.stop().await),
        }
    }
}

impl<S: MessageSource, H: Handler<T>, T> fmt::Debug for QueueConsumer<S, H, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueConsumer")
            .field("queue", &self.source.queue_name())
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}
