//! Order by key: who may begin when messages with the same key are in hand.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::handler::{HandlerError, panic_text};
use crate::message::Message;
use crate::source::RequeueOrder;

pub(super) type KeyOf = Arc<dyn Fn(&Message) -> Option<String> + Send + Sync>;

/// The lines of messages in hand, one for each key. The first of a line is the one that runs.
pub(super) struct Ordering {
    key_of: KeyOf,
    /// Held from before a pull until the message has its place: two loops that pull at once could otherwise line up in
    /// the other order. Given on in the order of asking.
    pull: tokio::sync::Mutex<()>,
    lines: Mutex<HashMap<Arc<str>, VecDeque<Arc<Notify>>>>,
}

/// A place in a line. Leaves it when dropped, and the next one of the line begins.
pub(super) struct Place<'a> {
    ordering: &'a Ordering,
    key: Arc<str>,
    turn: Arc<Notify>,
}

impl Ordering {
    pub(super) fn new(key_of: KeyOf) -> Self {
        Self { key_of, pull: tokio::sync::Mutex::new(()), lines: Mutex::new(HashMap::new()) }
    }

    /// Waits until this loop may pull.
    pub(super) async fn pull(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.pull.lock().await
    }

    /// Gives a message its place; `None` where it has no key. Where asking for the key panics, that is the error.
    pub(super) fn line_up(&self, message: &Message) -> Result<Option<Place<'_>>, HandlerError> {
        let key = catch_unwind(AssertUnwindSafe(|| (self.key_of)(message)));
        let key = key.map_err(|panic| HandlerError::Panicked {
            message: format!("while the key was asked for: {}", panic_text(panic)),
        })?;
        let Some(key) = key else { return Ok(None) };
        let (key, turn) = (Arc::<str>::from(key), Arc::new(Notify::new()));
        self.lines().entry(Arc::clone(&key)).or_default().push_back(Arc::clone(&turn));
        Ok(Some(Place { ordering: self, key, turn }))
    }

    fn lines(&self) -> MutexGuard<'_, HashMap<Arc<str>, VecDeque<Arc<Notify>>>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place<'_> {
    pub(super) fn is_first(&self) -> bool {
        self.position().is_none_or(|(before, _)| before == 0)
    }

    /// How many are before it in its line, and how many behind it.
    fn position(&self) -> Option<(usize, usize)> {
        let lines = self.ordering.lines();
        let line = lines.get(&self.key)?;
        let before = line.iter().position(|turn| Arc::ptr_eq(turn, &self.turn))?;
        Some((before, line.len() - before - 1))
    }

    /// Waits until all that came before it, with the same key, have been settled.
    pub(super) async fn turn(&self) {
        while !self.is_first() {
            self.turn.notified().await;
        }
    }

    /// Waits until it may be handed back, when all that wait are: so that they keep their order, from the last to the
    /// first where what is requeued goes to the front, else from the first that waits to the last.
    pub(super) async fn turn_to_go_back(&self, order: RequeueOrder) {
        loop {
            let Some((before, behind)) = self.position() else { return };
            let may_go = if order == RequeueOrder::Front { behind == 0 } else { before <= 1 };
            if may_go {
                return;
            }
            self.turn.notified().await;
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut lines = self.ordering.lines();
        let Some(line) = lines.get_mut(&self.key) else { return };
        line.retain(|turn| !Arc::ptr_eq(turn, &self.turn));
        if line.is_empty() {
            lines.remove(&self.key);
            return;
        }
        // Those whose turn it may be now. Whoever is woken for nothing looks again.
        [line.front(), line.get(1), line.back()].into_iter().flatten().for_each(|turn| turn.notify_one());
    }
}
