//! How many calls are under way at once, and what becomes of those beyond.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::HandlerError;

/// How many calls of a handler are under way at once, over all clones, and how many wait their turn.
///
/// Turns are given in the order of the calls. A call that is dropped while it waits, or with its turn just given, costs
/// nobody theirs.
///
/// ```
/// use std::num::NonZeroUsize;
/// use windlass::handler::{Concurrency, WhenFull};
///
/// // Four at once, 16 in the queue; the newest matter most.
/// let limit = Concurrency::new(NonZeroUsize::new(4).unwrap(), 16).with_when_full(WhenFull::DropOldest);
/// # let _ = limit;
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "it does nothing until it is given to `Policies::concurrency`"]
pub struct Concurrency {
    max: NonZeroUsize,
    queue: usize,
    when_full: WhenFull,
}

/// What becomes of a call that finds the queue full.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum WhenFull {
    /// It fails with [`HandlerError::BackpressureReject`].
    #[default]
    Reject,
    /// It waits, and the call that has waited longest fails with [`HandlerError::Dropped`].
    DropOldest,
}

impl Concurrency {
    /// At most `max` calls at once and `queue` that wait; when that is full, calls are rejected. With a queue of 0 none
    /// waits. Neither number takes memory by itself, so that `usize::MAX` is no limit.
    pub const fn new(max: NonZeroUsize, queue: usize) -> Self {
        Self { max, queue, when_full: WhenFull::Reject }
    }

    /// What becomes of a call that finds the queue full; [`WhenFull::Reject`] by default.
    pub const fn with_when_full(mut self, when_full: WhenFull) -> Self {
        self.when_full = when_full;
        self
    }

    /// Whether it says that the oldest of none is to make room.
    pub(super) fn drops_oldest_of_none(&self) -> bool {
        self.queue == 0 && self.when_full == WhenFull::DropOldest
    }
}

/// What stands before the calls.
pub(super) struct Gate {
    options: Concurrency,
    state: Mutex<State>,
}

struct State {
    /// Not zero only where nobody waits: a turn that ends goes to the first who does.
    free: usize,
    /// By ticket, which is the order of the calls.
    waiting: BTreeMap<u64, oneshot::Sender<Result<Handover, HandlerError>>>,
    next_ticket: u64,
    closed: bool,
}

/// A call's turn.
pub(super) struct Turn<'a>(&'a Arc<Gate>);

/// A turn on its way to a call that waits. If that is dropped, the next one has it.
struct Handover(Option<Arc<Gate>>);

/// A place in the queue, which is free again when the call is dropped.
struct Place<'a> {
    gate: &'a Gate,
    ticket: u64,
}

impl Gate {
    pub(super) fn new(options: Concurrency) -> Self {
        let waiting = BTreeMap::new();
        let state = State { free: options.max.get(), waiting, next_ticket: 0, closed: false };
        Self { options, state: Mutex::new(state) }
    }

    /// Waits for a turn.
    pub(super) async fn enter(self: &Arc<Self>) -> Result<Turn<'_>, HandlerError> {
        let (place, turn) = {
            let mut state = self.lock();
            if state.closed {
                return Err(HandlerError::NotRunning);
            }
            if state.free > 0 {
                state.free -= 1;
                return Ok(Turn(self));
            }
            let evicted = if state.waiting.len() < self.options.queue {
                None
            } else {
                match self.options.when_full {
                    WhenFull::DropOldest if self.options.queue > 0 => state.waiting.pop_first(),
                    WhenFull::DropOldest | WhenFull::Reject => return Err(HandlerError::BackpressureReject),
                }
            };
            let (sender, turn) = oneshot::channel();
            let ticket = state.next_ticket;
            state.next_ticket += 1;
            state.waiting.insert(ticket, sender);
            drop(state);
            if let Some((_, evicted)) = evicted {
                // One that was dropped meanwhile need not be told.
                let _ = evicted.send(Err(HandlerError::Dropped));
            }
            (Place { gate: self, ticket }, turn)
        };
        let given = turn.await;
        drop(place);
        // Nobody drops a sender unsent, but if so the call was not made.
        given.unwrap_or(Err(HandlerError::NotRunning)).map(|handover| {
            handover.accept();
            Turn(self)
        })
    }

    /// Nobody enters from now on, and those who wait are told.
    pub(super) fn close(&self) {
        let waiting = {
            let mut state = self.lock();
            state.closed = true;
            std::mem::take(&mut state.waiting)
        };
        for waiter in waiting.into_values() {
            let _ = waiter.send(Err(HandlerError::NotRunning));
        }
    }

    /// A turn is over: the first who waits has it. Sent with the lock open, since a waker may run anything.
    fn leave(self: &Arc<Self>) {
        loop {
            let next = {
                let mut state = self.lock();
                match state.waiting.pop_first() {
                    Some((_, next)) => next,
                    None => {
                        state.free += 1;
                        return;
                    }
                }
            };
            match next.send(Ok(Handover(Some(Arc::clone(self))))) {
                Ok(()) => return,
                // It was dropped meanwhile. Its turn is taken back here, in a loop and not in a drop within a drop.
                Err(unsent) => {
                    if let Ok(handover) = unsent {
                        handover.accept();
                    }
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Handover {
    fn accept(mut self) {
        self.0 = None;
    }
}

impl Drop for Handover {
    fn drop(&mut self) {
        if let Some(gate) = self.0.take() {
            gate.leave();
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let sender = self.gate.lock().waiting.remove(&self.ticket);
        // With the lock open: it may own a waker.
        drop(sender);
    }
}
