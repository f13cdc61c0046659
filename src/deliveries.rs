//! The for-await loop: deliveries as a `Stream`, each settled by value.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::backoff::Backoff;
use crate::clock::{Clock, SystemClock, within};
use crate::error::{Chain, Error, ErrorKind, Result};
use crate::message::Message;
use crate::source::{Delivery, MessageSource, NackReason};

/// Makes [`deliveries`](Self::deliveries) a method of every source.
pub trait SourceExt: MessageSource + Sized {
    /// The messages of this source as a stream, for a loop without a handler. Several loops can run at once on one
    /// source: give each a clone of it, or of an `Arc` around it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> windlass::Result<()> {
    /// use futures::StreamExt;
    /// use windlass::clock::SystemClock;
    /// use windlass::deliveries::SourceExt;
    /// use windlass::memory::MemorySource;
    /// use windlass::message::Message;
    ///
    /// let source = MemorySource::new(SystemClock);
    /// source.queue().publish(Message::new("hello"));
    ///
    /// let mut deliveries = source.deliveries();
    /// while let Some(delivery) = deliveries.next().await {
    ///     let delivery = delivery?;
    ///     println!("{:?}", delivery.message().body());
    ///     delivery.ack().await?;
    ///     # break;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    fn deliveries(self) -> Deliveries<Self> {
        Deliveries::new(self)
    }
}

impl<S: MessageSource> SourceExt for S {}

/// The messages of a source as a stream of [`StreamDelivery`].
///
/// A failed receive is an item; after one that trying again can help, the next item is waited for after a backoff
/// (100 ms, doubling, to 30 s), so that a loop which passes over errors does not spin. After one where it cannot, and
/// once [`stop_on`](Self::stop_on) fired, the stream ends. Nothing is pulled ahead of the loop: a delivery is taken
/// when the next item is asked for.
///
/// Dropping the stream loses no message and leaves the source as it is; deliveries that are still out can be settled.
#[must_use = "streams do nothing unless polled"]
pub struct Deliveries<S: MessageSource> {
    shared: Arc<Shared<S>>,
    clock: Arc<dyn Clock>,
    cancel: CancellationToken,
    backoff: Backoff,
    /// Made when first polled, with what was set by then.
    items: Option<BoxStream<'static, Result<StreamDelivery<S>>>>,
}

struct Shared<S> {
    source: S,
    /// What deliveries that were dropped without an answer are put back on.
    runtime: Option<Handle>,
    returns: TaskTracker,
    dropped: AtomicU64,
    settle_timeout: Duration,
}

impl<S: MessageSource> Deliveries<S> {
    fn new(source: S) -> Self {
        let returns = TaskTracker::new();
        // Closed from the start, which only means that `wait` ends whenever nothing is under way.
        returns.close();
        let shared = Shared {
            source,
            runtime: Handle::try_current().ok(),
            returns,
            dropped: AtomicU64::new(0),
            settle_timeout: Duration::from_secs(30),
        };
        Self {
            shared: Arc::new(shared),
            clock: Arc::new(SystemClock),
            cancel: CancellationToken::new(),
            backoff: Backoff::new(Duration::from_millis(100)),
            items: None,
        }
    }

    /// Ends the stream once `token` fires; what was not pulled by then stays with the broker. Has no effect once the
    /// stream was polled.
    pub fn stop_on(mut self, token: CancellationToken) -> Self {
        self.cancel = token;
        self
    }

    /// The clock for the backoff after a failed receive, and for the bound of putting back; the system's by default.
    /// Has no effect once the stream was polled.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// How long to wait after a failed receive before the next; from 100 ms, doubling, to 30 s by default. Has no
    /// effect once the stream was polled.
    pub fn receive_backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// How long one answer may take; 30 s by default. One that takes longer is an error of kind `Timeout`. Has no
    /// effect once the stream was polled.
    pub fn settle_timeout(mut self, timeout: Duration) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.settle_timeout = timeout;
        }
        self
    }

    /// How many deliveries were dropped without an answer so far. Each is put back, unless the source refuses that (see
    /// [`StreamDelivery`]).
    pub fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }

    /// Waits until every delivery that was dropped so far is back with the broker: within the settle time-out for each.
    ///
    /// # Cancel safety
    ///
    /// Safe: the deliveries are put back all the same.
    pub fn all_put_back(&self) -> impl Future<Output = ()> + Send + use<S> {
        // The future has the tracker alone, so that it can be awaited on any thread.
        let returns = self.shared.returns.clone();
        async move { returns.wait().await }
    }
}

impl<S: MessageSource> Stream for Deliveries<S> {
    type Item = Result<StreamDelivery<S>>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        let items = this.items.get_or_insert_with(|| {
            let puller = Puller {
                shared: Arc::clone(&this.shared),
                clock: Arc::clone(&this.clock),
                cancel: this.cancel.clone(),
                backoff: this.backoff,
                failures: 0,
                ended: false,
            };
            Box::pin(stream::unfold(puller, Puller::next).fuse())
        });
        items.as_mut().poll_next(context)
    }
}

impl<S: MessageSource> fmt::Debug for Deliveries<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deliveries")
            .field("queue", &self.shared.source.queue_name())
            .field("dropped", &self.dropped())
            .finish_non_exhaustive()
    }
}

struct Puller<S: MessageSource> {
    shared: Arc<Shared<S>>,
    clock: Arc<dyn Clock>,
    cancel: CancellationToken,
    backoff: Backoff,
    /// Failed receives, or receives that returned nothing at once, in a row.
    failures: u32,
    ended: bool,
}

impl<S: MessageSource> Puller<S> {
    async fn next(mut self) -> Option<(Result<StreamDelivery<S>>, Self)> {
        loop {
            if self.ended || self.cancel.is_cancelled() || !self.wait().await {
                return None;
            }
            let asked = self.clock.now();
            match self.receive().await {
                Ok(Some(delivery)) => {
                    self.failures = 0;
                    let shared = Arc::clone(&self.shared);
                    let clock = Arc::clone(&self.clock);
                    return Some((Ok(StreamDelivery { delivery: Some(delivery), shared, clock }), self));
                }
                Ok(None) => {
                    let at_once =
                        self.clock.now().saturating_duration_since(asked) < Duration::from_millis(1);
                    self.failures = if at_once { self.failures.saturating_add(1) } else { 0 };
                }
                Err(error) => {
                    self.failures = self.failures.saturating_add(1);
                    self.ended = !error.is_transient();
                    return Some((Err(error), self));
                }
            }
        }
    }

    /// A source that does not return once it is cancelled is dropped after a grace, which loses no message.
    async fn receive(&self) -> Result<Option<Delivery<S::Receipt>>> {
        let overdue = async {
            self.cancel.cancelled().await;
            self.clock.sleep(Duration::from_secs(1)).await;
        };
        tokio::select! {
            biased;
            received = self.shared.source.receive(&self.cancel) => received,
            () = overdue => Ok(None),
        }
    }

    /// Waits after a failure. False when the stream is to end meanwhile.
    async fn wait(&self) -> bool {
        if self.failures == 0 {
            return true;
        }
        let delay = self.backoff.delay(self.failures, 0);
        // Only waits are lost here.
        tokio::select! {
            biased;
            () = self.clock.sleep(delay) => true,
            () = self.cancel.cancelled() => false,
        }
    }
}

/// A delivery of a [`Deliveries`] stream: a message that waits for one answer.
///
/// Dropped without one, it goes back to the queue ([`NackReason::RequeueNow`], cause `dropped`), on the runtime that
/// the stream was made on, and is counted. Made without a runtime, it stays with the broker until the source closes.
#[must_use = "a delivery that is dropped goes back to the queue"]
pub struct StreamDelivery<S: MessageSource> {
    /// Taken by the answer.
    delivery: Option<Delivery<S::Receipt>>,
    shared: Arc<Shared<S>>,
    clock: Arc<dyn Clock>,
}

impl<S: MessageSource> StreamDelivery<S> {
    /// The message.
    pub fn message(&self) -> &Message {
        match &self.delivery {
            Some(delivery) => &delivery.message,
            None => unreachable!("only an answer takes it, and that takes self"),
        }
    }

    /// Tells the broker that the message is done with.
    ///
    /// # Errors
    ///
    /// As for [`MessageSource::ack`]; `Timeout` once the settle time-out is over.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves it open whether the broker was told.
    pub async fn ack(mut self) -> Result<()> {
        match self.delivery.take() {
            Some(delivery) => self.bounded("ack", self.shared.source.ack(delivery.receipt)).await,
            None => Ok(()),
        }
    }

    /// Tells the broker that the message is not done with, and what should become of it. A retry whose delay is left
    /// open does not wait: there is no policy here that fills it in.
    ///
    /// # Errors
    ///
    /// As for [`MessageSource::nack`]; `Timeout` once the settle time-out is over.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves it open whether the broker was told.
    pub async fn nack(mut self, reason: NackReason) -> Result<()> {
        match self.delivery.take() {
            Some(delivery) => self.bounded("nack", self.shared.source.nack(delivery.receipt, reason)).await,
            None => Ok(()),
        }
    }

    /// Keeps the lease alive, where deliveries are leased.
    ///
    /// # Errors
    ///
    /// As for [`MessageSource::extend`].
    ///
    /// # Cancel safety
    ///
    /// Safe: at worst the lease is not extended.
    pub async fn extend(&self) -> Result<()> {
        match &self.delivery {
            Some(delivery) => self.bounded("extend", self.shared.source.extend(&delivery.receipt)).await,
            None => Ok(()),
        }
    }

    async fn bounded(&self, operation: &'static str, done: impl Future<Output = Result<()>>) -> Result<()> {
        let done = within(&*self.clock, self.shared.settle_timeout, done).await;
        done.unwrap_or_else(|| Err(Error::new(ErrorKind::Timeout, operation)))
    }
}

impl<S: MessageSource> Drop for StreamDelivery<S> {
    fn drop(&mut self) {
        let Some(Delivery { message, receipt }) = self.delivery.take() else { return };
        let shared = Arc::clone(&self.shared);
        shared.dropped.fetch_add(1, Ordering::Relaxed);
        let Some(runtime) = shared.runtime.clone() else { return };
        let clock = Arc::clone(&self.clock);
        let tracker = shared.returns.clone();
        let put_back = async move {
            let nack = shared.source.nack(receipt, NackReason::requeue_now("dropped"));
            let error = match within(&*clock, shared.settle_timeout, nack).await {
                Some(Ok(())) => return,
                Some(Err(error)) => error,
                None => Error::new(ErrorKind::Timeout, "nack"),
            };
            let queue = shared.source.queue_name();
            tracing::warn!(queue, id = message.id(), error = %Chain(&error), "a dropped delivery was not put back");
        };
        tracker.spawn_on(put_back, &runtime);
    }
}

impl<S: MessageSource> fmt::Debug for StreamDelivery<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamDelivery").field("message", self.message()).finish_non_exhaustive()
    }
}
