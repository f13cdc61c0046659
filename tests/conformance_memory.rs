//! The memory source keeps every promise of the contract: with a requeue to the front and to the back, with a lease,
//! and with a buffer, each on a clock that moves only when a case says so.

use std::marker::PhantomData;
use std::num::NonZeroUsize;
use std::time::Duration;

use windlass::Result;
use windlass::clock::{Clock, ControlledClock};
use windlass::conformance::{Cut, Harness};
use windlass::memory::{MemoryBroker, MemoryQueue, MemorySource, QueueOptions};
use windlass::message::Message;
use windlass::publisher::Publisher;
use windlass::source::{Capabilities, RequeueOrder};

/// How the queue and its sources are made.
trait Shape: Send + Sync + 'static {
    const ORDER: RequeueOrder = RequeueOrder::Front;
    const LEASE: Option<Duration> = None;
    /// Whether sources take as many messages ahead as their window allows.
    const BUFFERS: bool = false;
}

/// A requeued message is the next one delivered.
struct Front;

impl Shape for Front {}

/// A requeued message goes behind those that wait.
struct Back;

impl Shape for Back {
    const ORDER: RequeueOrder = RequeueOrder::Back;
}

/// A delivery is lent for thirty seconds.
struct Leased;

impl Shape for Leased {
    const LEASE: Option<Duration> = Some(Duration::from_secs(30));
}

/// Sources take messages ahead.
struct Buffering;

impl Shape for Buffering {
    const BUFFERS: bool = true;
}

/// A broker with one queue.
struct InMemory<S> {
    clock: ControlledClock,
    broker: MemoryBroker,
    queue: MemoryQueue,
    shape: PhantomData<S>,
}

impl<S: Shape> Harness for InMemory<S> {
    type Source = MemorySource;

    async fn set_up(case: &'static str) -> Result<Self> {
        let clock = ControlledClock::new();
        let broker = MemoryBroker::new(clock.clone());
        let options = QueueOptions::new().with_requeue_order(S::ORDER);
        let queue = broker.declare(case, S::LEASE.map_or(options, |lease| options.with_lease(lease)));
        Ok(Self { clock, broker, queue, shape: PhantomData })
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new()
            .with_delayed_retry(true)
            .with_counts_attempts(true)
            .with_dead_letter(true)
            .with_counts_deliveries(true)
            .with_flags_redelivery(true)
            .with_requeue_order(S::ORDER)
            .with_lease(S::LEASE)
    }

    async fn source(&self, window: NonZeroUsize) -> Result<MemorySource> {
        let source = self.queue.source();
        Ok(if S::BUFFERS { source.with_prefetch(window.get()) } else { source })
    }

    async fn publish(&self, message: Message) -> Result<()> {
        self.broker.publisher().publish(self.queue.name(), message).await
    }

    async fn dead_letters(&self) -> Result<Vec<Message>> {
        Ok(self.queue.dead_letter_queue().pending())
    }

    async fn cut(&self) -> Result<Cut> {
        self.queue.cut();
        Ok(Cut::Done)
    }

    async fn pass(&self, time: Duration) {
        self.clock.advance(time).await;
    }

    fn clock(&self) -> &dyn Clock {
        &self.clock
    }
}

mod requeue_to_the_front {
    windlass::conformance_tests!(super::InMemory<super::Front>);
}

mod requeue_to_the_back {
    windlass::conformance_tests!(super::InMemory<super::Back>);
}

mod with_a_lease {
    windlass::conformance_tests!(super::InMemory<super::Leased>);
}

mod with_a_buffer {
    windlass::conformance_tests!(super::InMemory<super::Buffering>);
}

mod on_many_threads {
    windlass::conformance_tests!(
        super::InMemory<super::Buffering>,
        flavor = "multi_thread",
        worker_threads = 4
    );
}
