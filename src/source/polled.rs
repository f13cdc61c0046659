//! A source made of three closures, for people whose queue is a table or a directory.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{self, BoxFuture};
use tokio_util::sync::CancellationToken;

use super::{Capabilities, Delivery, Health, MessageSource, NackReason};
use crate::clock::{Clock, SystemClock, within};
use crate::error::{BoxError, Error, ErrorKind, Result};
use crate::message::Message;

type Fetch<K> = BoxFuture<'static, Result<Option<(Message, K)>, BoxError>>;
type Done = BoxFuture<'static, Result<(), BoxError>>;
type Remove<K> = Box<dyn Fn(&K) -> Done + Send + Sync>;
type GiveBack<K> = Box<dyn Fn(&K, NackReason) -> Done + Send + Sync>;

/// A source made of three async closures: fetch the next message, remove it, give it back.
///
/// `fetch` claims one message and returns it with a key of the user's own, such as a row's id; `Ok(None)` means that
/// there is none now, and it is asked again after the idle time (1 s). `remove` is called to ack, `give_back` to nack,
/// with the reason: what a retry's delay, its attempt and a dead letter mean in the user's storage is decided there,
/// and said with [`with_capabilities`](Self::with_capabilities).
///
/// Where a `remove` or a `give_back` fails, is late, or is dropped half-way, the message is given back (reason:
/// requeue now) by the next `receive`, `release` or `close`, until that succeeds. So `give_back` can be called for a
/// message that was removed after all, and must then do nothing.
///
/// A `fetch` that is under way when its `receive` is cancelled or dropped is kept here and finished by the next
/// `receive`, or by `release` and `close`, which give its message back: a claimed message is never forgotten. One that
/// hangs holds up no other, up to 8 of them. A source
/// that is dropped without being closed drops the keys that it holds, and can call no closure: close it, or let the key
/// give its message back when it is dropped. An error
/// of a closure that is an [`Error`] is passed on as it is; any other becomes one of kind `Other`.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), windlass::Error> {
/// use std::collections::VecDeque;
/// use std::sync::{Arc, Mutex};
/// use tokio_util::sync::CancellationToken;
/// use windlass::message::Message;
/// use windlass::source::{MessageSource, PolledSource};
///
/// let table = Arc::new(Mutex::new(VecDeque::from(["first", "second"])));
/// let (fetch, back) = (table.clone(), table.clone());
/// let source = PolledSource::new(
///     "rows",
///     move || {
///         let row = fetch.lock().unwrap().pop_front();
///         async move { Ok::<_, std::io::Error>(row.map(|row| (Message::new(row), row))) }
///     },
///     |_row: &&str| async { Ok::<_, std::io::Error>(()) },
///     move |row: &&str, _reason| {
///         back.lock().unwrap().push_front(*row);
///         async { Ok::<_, std::io::Error>(()) }
///     },
/// );
/// let delivery = source.receive(&CancellationToken::new()).await?.expect("a row");
/// assert_eq!(delivery.message.body(), "first");
/// source.ack(delivery.receipt).await?;
/// assert_eq!(table.lock().unwrap().len(), 1);
/// # Ok(())
/// # }
/// ```
pub struct PolledSource<K> {
    queue: String,
    fetch: Box<dyn Fn() -> Fetch<K> + Send + Sync>,
    remove: Remove<K>,
    give_back: GiveBack<K>,
    capabilities: Capabilities,
    clock: Arc<dyn Clock>,
    idle: Duration,
    bound: Duration,
    state: Mutex<State<K>>,
    closed: CancellationToken,
}

/// The most fetches that wait at once for answers that are late: then no more are begun.
const MOST_PARKED: usize = 8;

struct State<K> {
    /// Fetches under way whose `receive` went away.
    parked: Vec<Fetch<K>>,
    /// The keys of deliveries that are not settled.
    held: BTreeMap<u64, K>,
    /// The keys of deliveries whose answer failed: to be given back, so that their messages come again.
    owed: Vec<K>,
    last_error: Option<String>,
}

/// The receipt of a [`PolledSource`].
#[derive(Debug)]
pub struct PolledReceipt(u64);

impl<K: Send + 'static> PolledSource<K> {
    /// A source for the queue called `queue`.
    pub fn new<F, FF, R, RF, G, GF, E>(queue: impl Into<String>, fetch: F, remove: R, give_back: G) -> Self
    where
        F: Fn() -> FF + Send + Sync + 'static,
        FF: Future<Output = Result<Option<(Message, K)>, E>> + Send + 'static,
        R: Fn(&K) -> RF + Send + Sync + 'static,
        RF: Future<Output = Result<(), E>> + Send + 'static,
        G: Fn(&K, NackReason) -> GF + Send + Sync + 'static,
        GF: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError> + 'static,
    {
        let state = State { parked: Vec::new(), held: BTreeMap::new(), owed: Vec::new(), last_error: None };
        Self {
            queue: queue.into(),
            fetch: Box::new(move || fetch().map(|fetched| fetched.map_err(Into::into)).boxed()),
            remove: Box::new(move |key| remove(key).map(|done| done.map_err(Into::into)).boxed()),
            give_back: Box::new(move |key, why| {
                give_back(key, why).map(|done| done.map_err(Into::into)).boxed()
            }),
            capabilities: Capabilities::new(),
            clock: Arc::new(SystemClock),
            idle: Duration::from_secs(1),
            bound: Duration::from_secs(30),
            state: Mutex::new(state),
            closed: CancellationToken::new(),
        }
    }

    /// Says what the closures do. Nothing is claimed by default: no attempt is counted then, so that retries never run
    /// out, and a dead letter is refused, so that a message which cannot be handled comes again for ever. Claim
    /// `counts_attempts` and `dead_letter` for anything but a trial.
    #[must_use]
    pub fn with_capabilities(mut self, capabilities: Capabilities) -> Self {
        self.capabilities = capabilities;
        self
    }

    /// The clock that the waits are on; the system's by default.
    #[must_use]
    pub fn with_clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// How long to wait after a fetch that found nothing; 1 s by default.
    #[must_use]
    pub fn with_idle(mut self, idle: Duration) -> Self {
        self.idle = idle;
        self
    }

    /// How long one call of a closure may take before it is an error of kind `Timeout`; 30 s by default. A fetch that
    /// is late is kept and finished later; after a late remove or give-back the message is given back.
    #[must_use]
    pub fn with_bound(mut self, bound: Duration) -> Self {
        self.bound = bound;
        self
    }

    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn error(&self, kind: ErrorKind, operation: &'static str) -> Error {
        Error::new(kind, operation).with_context("queue", &self.queue)
    }

    fn classify(&self, operation: &'static str, error: BoxError) -> Error {
        match error.downcast::<Error>() {
            Ok(ours) => *ours,
            Err(other) => self.error(ErrorKind::Other, operation).with_source(other),
        }
    }

    /// `None` when the source was closed meanwhile: then the message is owed.
    fn hold(&self, message: Message, key: K) -> Option<Delivery<PolledReceipt>> {
        // One count for all sources, so that a receipt fits no other source's delivery.
        static NEXT_TAG: AtomicU64 = AtomicU64::new(0);
        let tag = NEXT_TAG.fetch_add(1, Ordering::Relaxed);
        let mut state = self.lock();
        if self.closed.is_cancelled() {
            state.owed.push(key);
            return None;
        }
        state.held.insert(tag, key);
        state.last_error = None;
        Some(Delivery { message: message.with_received_at(self.clock.wall()), receipt: PolledReceipt(tag) })
    }

    fn take(&self, receipt: &PolledReceipt, operation: &'static str) -> Result<Owing<'_, K>> {
        let key =
            self.lock().held.remove(&receipt.0).ok_or_else(|| self.error(ErrorKind::Stale, operation))?;
        Ok(Owing { key: Some(key), source: self })
    }

    /// Gives a message back, or goes on owing it.
    async fn settle(
        &self,
        operation: &'static str,
        mut owing: Owing<'_, K>,
        reason: Option<NackReason>,
    ) -> Result<()> {
        let Some(key) = &owing.key else { return Ok(()) };
        let done = match reason {
            None => (self.remove)(key),
            Some(reason) => (self.give_back)(key, reason),
        };
        self.call(operation, done).await?;
        owing.key = None;
        Ok(())
    }

    /// Gives back what is owed; what cannot be given back now stays owed.
    async fn pay(&self, operation: &'static str) -> Result<()> {
        let owed = std::mem::take(&mut self.lock().owed);
        let mut owed: Vec<Owing<'_, K>> =
            owed.into_iter().map(|key| Owing { key: Some(key), source: self }).collect();
        let mut result = Ok(());
        while let Some(owing) = owed.pop() {
            let back = self.settle(operation, owing, Some(NackReason::requeue_now("settle_failed"))).await;
            result = result.and(back);
        }
        result
    }

    async fn call(&self, operation: &'static str, done: Done) -> Result<()> {
        match within(&*self.clock, self.bound, done).await {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => Err(self.classify(operation, error)),
            None => Err(self.error(ErrorKind::Timeout, operation)),
        }
    }

    /// Gives back all that no receiver has: what is owed, and what fetches have claimed that nobody waits for. A
    /// `receive` that is under way when the source is closed does so too, since its fetches are not yet among those
    /// then.
    async fn end(&self, operation: &'static str) -> Result<()> {
        let parked = self.give_back_parked(operation).await;
        parked.and(self.pay(operation).await)
    }

    /// Finishes the fetches that nobody waits for and gives back what they claimed.
    async fn give_back_parked(&self, operation: &'static str) -> Result<()> {
        let mut fetches = Underway::adopt(self);
        let mut result = Ok(());
        let finished = async {
            while let Some(fetched) = fetches.next().await {
                if let Ok(Some((_, key))) = fetched {
                    let owing = Owing { key: Some(key), source: self };
                    let back = self.settle(operation, owing, Some(NackReason::requeue_now("released"))).await;
                    result = std::mem::replace(&mut result, Ok(())).and(back);
                }
            }
        };
        let finished = within(&*self.clock, self.bound, finished).await;
        let late = "a fetch did not end in time; what it claims is given back once this is called again";
        finished
            .map_or_else(|| Err(self.error(ErrorKind::Timeout, operation).with_message(late)), |()| result)
    }
}

impl<K> fmt::Debug for PolledSource<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolledSource").field("queue", &self.queue).finish_non_exhaustive()
    }
}

/// A key whose message is to be settled; owed once it is dropped with the key still in it.
struct Owing<'a, K: Send + 'static> {
    key: Option<K>,
    source: &'a PolledSource<K>,
}

impl<K: Send + 'static> Drop for Owing<'_, K> {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.source.lock().owed.push(key);
        }
    }
}

/// Fetches that are being waited for; go back to the source when whoever waits goes away.
struct Underway<'a, K: Send + 'static> {
    fetches: Vec<Fetch<K>>,
    source: &'a PolledSource<K>,
}

impl<'a, K: Send + 'static> Underway<'a, K> {
    fn adopt(source: &'a PolledSource<K>) -> Self {
        Self { fetches: std::mem::take(&mut source.lock().parked), source }
    }

    /// Beside those that are late, a new one.
    fn adopt_and_begin(source: &'a PolledSource<K>) -> Self {
        let mut underway = Self::adopt(source);
        if underway.fetches.len() < MOST_PARKED {
            underway.fetches.push((source.fetch)());
        }
        underway
    }

    /// The first that ends with a message or an error; else `Ok(None)` once one has found nothing; `None` when there
    /// are none. The oldest are polled first, so that new ones which are done at once do not keep them from ending.
    async fn next(&mut self) -> Option<Result<Option<(Message, K)>, BoxError>> {
        future::poll_fn(|context| {
            let mut nothing = false;
            for _ in 0..self.fetches.len() {
                // Taken out while it is polled: one that panics is not kept, it cannot be polled again.
                let mut fetch = self.fetches.remove(0);
                match fetch.as_mut().poll(context) {
                    Poll::Ready(Ok(None)) => nothing = true,
                    Poll::Ready(fetched) => return Poll::Ready(Some(fetched)),
                    Poll::Pending => self.fetches.push(fetch),
                }
            }
            match (nothing, self.fetches.is_empty()) {
                (true, _) => Poll::Ready(Some(Ok(None))),
                (false, true) => Poll::Ready(None),
                (false, false) => Poll::Pending,
            }
        })
        .await
    }
}

impl<K: Send + 'static> Drop for Underway<'_, K> {
    fn drop(&mut self) {
        self.source.lock().parked.append(&mut self.fetches);
    }
}

impl<K: Send + 'static> MessageSource for PolledSource<K> {
    type Receipt = PolledReceipt;

    fn queue_name(&self) -> &str {
        &self.queue
    }

    fn system(&self) -> &'static str {
        "polled"
    }

    async fn receive(&self, cancel: &CancellationToken) -> Result<Option<Delivery<PolledReceipt>>> {
        let closed = || self.error(ErrorKind::Closed, "receive");
        if self.closed.is_cancelled() {
            return Err(closed());
        }
        if cancel.is_cancelled() {
            return Ok(None);
        }
        let fetch = async {
            // What fails or is late here is tried again by the next call; it must not hold up the fetch.
            let _ = within(&*self.clock, self.idle.max(Duration::from_secs(1)), self.pay("receive")).await;
            Underway::adopt_and_begin(self).next().await
        };
        // Losing a branch is harmless: what is owed stays so, and fetches under way are parked when they are dropped.
        let fetched = tokio::select! {
            biased;
            fetched = fetch => fetched.unwrap_or(Ok(None)),
            () = self.closed.cancelled() => return Err(self.end("receive").await.err().unwrap_or_else(closed)),
            () = cancel.cancelled() => return Ok(None),
            () = self.clock.sleep(self.bound) => {
                let error = self.error(ErrorKind::Timeout, "receive");
                self.lock().last_error = Some(error.to_string());
                return Err(error);
            }
        };
        match fetched {
            Ok(Some((message, key))) => match self.hold(message, key) {
                Some(delivery) => Ok(Some(delivery)),
                None => Err(self.end("receive").await.err().unwrap_or_else(closed)),
            },
            Ok(None) => {
                self.lock().last_error = None;
                // Only waits are lost here.
                tokio::select! {
                    biased;
                    () = self.closed.cancelled() => Err(closed()),
                    () = cancel.cancelled() => Ok(None),
                    () = self.clock.sleep(self.idle) => Ok(None),
                }
            }
            Err(error) => {
                let error = self.classify("receive", error);
                self.lock().last_error = Some(error.to_string());
                Err(error)
            }
        }
    }

    async fn ack(&self, receipt: PolledReceipt) -> Result<()> {
        self.settle("ack", self.take(&receipt, "ack")?, None).await
    }

    async fn nack(&self, receipt: PolledReceipt, reason: NackReason) -> Result<()> {
        let owing = self.take(&receipt, "nack")?;
        if matches!(reason, NackReason::DeadLetter { .. }) && !self.capabilities.dead_letter {
            self.settle("nack", owing, Some(NackReason::requeue_now(reason.cause().clone()))).await?;
            let error = self.error(ErrorKind::Unsupported, "nack");
            return Err(error.with_message("give_back keeps no dead letters; the message was given back"));
        }
        self.settle("nack", owing, Some(reason)).await
    }

    async fn extend(&self, _: &PolledReceipt) -> Result<()> {
        Err(self.error(ErrorKind::Unsupported, "extend"))
    }

    async fn release(&self) -> Result<()> {
        self.end("release").await
    }

    async fn close(&self) -> Result<()> {
        self.closed.cancel();
        let mut result = self.end("close").await;
        loop {
            let Some((_, key)) = self.lock().held.pop_first() else { return result };
            let owing = Owing { key: Some(key), source: self };
            let back = self.settle("close", owing, Some(NackReason::requeue_now("closed"))).await;
            result = result.and(back);
        }
    }

    fn health(&self) -> Health {
        if self.closed.is_cancelled() {
            return Health::Closed;
        }
        match &self.lock().last_error {
            Some(reason) => Health::NotReady { reason: reason.clone() },
            None => Health::Ready,
        }
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }
}
