//! A source made of three closures over a table keeps every promise of the contract: once with a table that does all
//! that can be declared, on a controlled clock, and once with one that does nothing beyond keeping rows, in real time.
//!
//! There is no connection between a table and its source, so nothing can be cut; what the table knows is who has
//! claimed a row. A claim that goes away without an answer, as with a source that is dropped, puts its row back.

#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;
use std::convert::Infallible;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use windlass::Result;
use windlass::clock::{Clock, ControlledClock, SystemClock, after};
use windlass::conformance::{Cut, Harness};
use windlass::message::Message;
use windlass::source::{Capabilities, DeadLetter, NackReason, PolledSource, RequeueOrder};

const QUEUE: &str = "table";

/// The table: what waits, and what was given up.
struct Table {
    clock: Arc<dyn Clock>,
    /// Whether it keeps delays, attempts, deliveries and dead letters.
    complete: bool,
    rows: Mutex<VecDeque<Row>>,
    dead: Mutex<Vec<Message>>,
}

struct Row {
    message: Message,
    attempt: u32,
    /// How often it was claimed since it was published or last retried.
    deliveries: u64,
    due: Instant,
}

/// A row that somebody has; back in the table when it goes away unanswered.
struct Claim {
    table: Arc<Table>,
    row: Mutex<Option<Row>>,
}

impl Claim {
    fn new(table: Arc<Table>, row: Option<Row>) -> Self {
        Self { table, row: Mutex::new(row) }
    }

    fn take(&self) -> Option<Row> {
        self.row.lock().unwrap().take()
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some(row) = self.take() {
            self.table.rows.lock().unwrap().push_front(row);
        }
    }
}

impl Table {
    fn insert(&self, message: Message) {
        let row = Row { message: message.as_sent(), attempt: 1, deliveries: 0, due: self.clock.now() };
        self.rows.lock().unwrap().push_back(row);
    }

    fn claim(self: Arc<Self>) -> Option<(Message, Claim)> {
        let mut row = {
            let mut rows = self.rows.lock().unwrap();
            let now = self.clock.now();
            let first = rows.iter().position(|row| row.due <= now)?;
            rows.remove(first)?
        };
        row.deliveries += 1;
        let mut message = row.message.clone();
        if self.complete {
            message = message
                .with_attempt(row.attempt)
                .with_redelivered(row.deliveries > 1)
                .with_delivery_count(Some(row.deliveries));
        }
        Some((message, Claim::new(self, Some(row))))
    }

    fn give_back(&self, mut row: Row, reason: NackReason) {
        match reason {
            NackReason::Retry { delay, counted, .. } => {
                row.attempt += u32::from(counted);
                row.deliveries = 0;
                let delay = delay.filter(|_| self.complete).unwrap_or_default();
                row.due = after(self.clock.now(), delay);
                self.rows.lock().unwrap().push_back(row);
            }
            NackReason::DeadLetter { cause } => {
                let message = row.message.with_attempt(row.attempt);
                let letter = DeadLetter::new(cause, &message, QUEUE, self.clock.wall());
                let headers = letter.stamp(message.headers().clone());
                self.dead.lock().unwrap().push(message.with_headers(headers));
            }
            _ => self.rows.lock().unwrap().push_front(row),
        }
    }

    fn source(self: &Arc<Self>) -> PolledSource<Claim> {
        let table = Arc::clone(self);
        let fetch = move || {
            let table = Arc::clone(&table);
            async move {
                let claimed = table.claim();
                if claimed.is_some() {
                    // As with a real table, the answer is on its way for a while after the row was claimed.
                    tokio::task::yield_now().await;
                }
                Ok::<_, Infallible>(claimed)
            }
        };
        let remove = |claim: &Claim| {
            claim.take();
            async { Ok(()) }
        };
        let give_back = |claim: &Claim, reason| {
            // A claim of the answer's own: dropped half-way, the row is back in the table.
            let claim = Claim::new(Arc::clone(&claim.table), claim.take());
            async move {
                tokio::task::yield_now().await;
                if let Some(row) = claim.take() {
                    claim.table.give_back(row, reason);
                }
                Ok(())
            }
        };
        // Without an idle time: a controlled clock stands while a receive waits, and the suite asks again at once.
        PolledSource::new(QUEUE, fetch, remove, give_back)
            .with_idle(Duration::ZERO)
            .with_clock(Arc::clone(&self.clock))
            .with_capabilities(self.capabilities())
    }

    fn capabilities(&self) -> Capabilities {
        if !self.complete {
            return Capabilities::new();
        }
        Capabilities::new()
            .with_delayed_retry(true)
            .with_counts_attempts(true)
            .with_dead_letter(true)
            .with_counts_deliveries(true)
            .with_flags_redelivery(true)
            .with_requeue_order(RequeueOrder::Front)
    }
}

/// A clock, and how time passes on it.
trait Time: Clock + Clone + Default {
    /// Whether the table does all that can be declared.
    const COMPLETE: bool;
    const UNIT: Duration;

    fn pass(&self, time: Duration) -> impl Future<Output = ()> + Send;
}

impl Time for ControlledClock {
    const COMPLETE: bool = true;
    const UNIT: Duration = Duration::from_secs(1);

    async fn pass(&self, time: Duration) {
        self.advance(time).await;
    }
}

impl Time for SystemClock {
    const COMPLETE: bool = false;
    /// Only what never comes is waited for, since no delay is declared: a short wait finds out as much as a long one.
    const UNIT: Duration = Duration::from_millis(50);

    async fn pass(&self, time: Duration) {
        self.sleep(time).await;
    }
}

struct Polled<T> {
    clock: T,
    table: Arc<Table>,
}

impl<T: Time> Harness for Polled<T> {
    type Source = PolledSource<Claim>;

    async fn set_up(_: &'static str) -> Result<Self> {
        let clock = T::default();
        let table = Table {
            clock: Arc::new(clock.clone()),
            complete: T::COMPLETE,
            rows: Mutex::default(),
            dead: Mutex::default(),
        };
        Ok(Self { clock, table: Arc::new(table) })
    }

    fn capabilities(&self) -> Capabilities {
        self.table.capabilities()
    }

    async fn source(&self, _: NonZeroUsize) -> Result<PolledSource<Claim>> {
        Ok(self.table.source())
    }

    async fn publish(&self, message: Message) -> Result<()> {
        self.table.insert(message);
        Ok(())
    }

    async fn dead_letters(&self) -> Result<Vec<Message>> {
        Ok(self.table.dead.lock().unwrap().clone())
    }

    async fn cut(&self) -> Result<Cut> {
        Ok(Cut::NoConnection)
    }

    async fn pass(&self, time: Duration) {
        Time::pass(&self.clock, time).await;
    }

    fn clock(&self) -> &dyn Clock {
        &self.clock
    }

    fn delay_unit(&self) -> Duration {
        T::UNIT
    }
}

mod a_table_that_does_all {
    windlass::conformance_tests!(super::Polled<windlass::clock::ControlledClock>);
}

mod a_table_that_does_nothing_more {
    windlass::conformance_tests!(super::Polled<windlass::clock::SystemClock>);
}
