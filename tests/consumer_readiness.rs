//! Readiness: nothing is pulled and nothing spent while the service, or the circuit around its handler, says no.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use windlass::clock::{Clock, ControlledClock};
use windlass::codec;
use windlass::consumer::{
    ChangeKind, ConsumerChange, ConsumerEvent, ConsumerHandle, Observer, Obstacle, QueueConsumer, Status,
};
use windlass::handler::{Context, Handler, HandlerError, Readiness, ReadinessFlag};
use windlass::memory::{MemoryQueue, MemorySource, QueueOptions};
use windlass::source::MessageSource;

use support::faulty::{Act, Faulty, Op};
use support::{Events, Log, SECOND, at_most, ids, ms, prompt, publish, queue, queue_with, stop_on};

/// Succeeds while the flag says yes.
fn depends_on(flag: &ReadinessFlag, calls: &Arc<AtomicUsize>) -> impl Handler<Bytes, Output = ()> + use<> {
    let (flag, calls) = (flag.clone(), Arc::clone(calls));
    move |_: Bytes, _: Context| {
        calls.fetch_add(1, Ordering::Relaxed);
        let up = flag.is_ready();
        async move { if up { Ok(()) } else { Err(HandlerError::failed("the database is gone")) } }
    }
}

fn consumer<S: MessageSource, H: Handler<Bytes>>(
    source: S,
    clock: &ControlledClock,
    handler: H,
) -> QueueConsumer<S, H, Bytes> {
    QueueConsumer::with_decoder(source, codec::bytes, handler).clock(clock.clone())
}

/// The names of all changes.
#[derive(Clone, Default)]
struct Changes(Arc<std::sync::Mutex<Vec<String>>>);

impl Observer for Changes {
    fn on_message(&self, _: &ConsumerEvent) {}

    fn on_change(&self, change: &ConsumerChange) {
        let text = match &change.kind {
            ChangeKind::Waiting { obstacle } => format!("waiting: {}", obstacle.name()),
            other => other.name().to_owned(),
        };
        self.0.lock().unwrap().push(text);
    }
}

impl Changes {
    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

/// A consumer whose handler and readiness follow one flag, and that has one message in its hands.
struct Outage {
    clock: ControlledClock,
    queue: MemoryQueue,
    flag: ReadinessFlag,
    calls: Arc<AtomicUsize>,
    changes: Changes,
    events: Events,
    handle: ConsumerHandle,
}

impl Outage {
    /// With `pulled` messages whose handlers run when the flag falls.
    async fn with(pulled: usize, options: QueueOptions) -> Self {
        let (clock, queue) = queue_with(options);
        let (flag, calls, changes, events) =
            (ReadinessFlag::new(true), Arc::default(), Changes::default(), Events::new());
        let inner = depends_on(&flag, &calls);
        let inner = Arc::new(inner);
        let slow = {
            let clock = clock.clone();
            move |body: Bytes, context: Context| {
                let (nap, inner) = (clock.sleep(SECOND), Arc::clone(&inner));
                async move {
                    nap.await;
                    inner.handle(body, context).await
                }
            }
        };
        let handle = consumer(queue.source(), &clock, slow)
            .max_concurrent(at_most(pulled))
            .readiness(flag.clone())
            .observer(changes.clone())
            .on_event(events.observer())
            .start()
            .unwrap();
        publish(&queue, pulled + 2);
        clock.settle().await;
        assert_eq!(handle.in_flight(), pulled);
        flag.set(false);
        clock.advance(SECOND).await;
        Self { clock, queue, flag, calls, changes, events, handle }
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }
}

#[tokio::test]
async fn nothing_is_pulled_while_it_is_not_ready_and_all_is_once_it_is() {
    let (clock, queue) = queue();
    let (flag, calls) = (ReadinessFlag::new(false), Arc::default());
    publish(&queue, 3);
    let handle =
        consumer(queue.source(), &clock, depends_on(&flag, &calls)).readiness(flag.clone()).start().unwrap();
    clock.advance(Duration::from_secs(3_600)).await;
    assert_eq!((queue.counts().pending, queue.counts().in_flight), (3, 0));
    assert_eq!((handle.status(), handle.waiting_for()), (Status::Waiting, Some(Obstacle::Readiness)));
    flag.set(true);
    prompt(queue.until(|queue| queue.counts().acked == 3)).await.unwrap();
    assert_eq!((handle.status(), handle.waiting_for()), (Status::Running, None));
    assert_eq!(ids(&queue.acked()), ["m-1", "m-2", "m-3"]);
}

#[tokio::test]
async fn a_failure_in_an_outage_is_held_and_run_again_as_the_same_attempt() {
    let outage = Outage::with(2, QueueOptions::new()).await;
    assert_eq!((outage.calls(), outage.handle.in_flight()), (2, 2));
    outage.clock.advance(Duration::from_secs(300)).await;
    assert_eq!((outage.calls(), outage.queue.counts().pending), (2, 2), "held, and nothing pulled");
    outage.flag.set(true);
    outage.clock.settle().await;
    outage.clock.advance(SECOND).await;
    outage.clock.advance(SECOND).await;
    prompt(outage.queue.until(|queue| queue.counts().acked == 4)).await.unwrap();
    assert!(outage.queue.acked().iter().all(|message| message.attempt() == 1));
    assert!(outage.queue.nacked().is_empty());
    assert_eq!(outage.events.outcomes(), ["done"; 4], "one event per message");
    let stats = outage.handle.stats();
    assert_eq!((stats.held, stats.retried, stats.received), (2, 0, 4));
    assert_eq!(outage.changes.all(), ["waiting: readiness", "ready"]);
}

#[tokio::test]
async fn a_hold_that_lasts_too_long_ends_in_a_requeue_which_is_no_attempt() {
    let outage = Outage::with(1, QueueOptions::new()).await;
    outage.clock.advance(Duration::from_secs(598)).await;
    assert_eq!(outage.queue.counts().in_flight, 1);
    outage.clock.advance(SECOND).await;
    let nacked = outage.queue.nacked();
    assert_eq!(nacked.len(), 1, "ten minutes after it was pulled");
    assert_eq!(nacked[0].1.cause().to_string(), "not_ready");
    assert_eq!((outage.queue.counts().pending, outage.calls()), (3, 1));
    outage.flag.set(true);
    for _ in 0..3 {
        outage.clock.settle().await;
        outage.clock.advance(SECOND).await;
    }
    prompt(outage.queue.until(|queue| queue.counts().acked == 3)).await.unwrap();
    assert!(outage.queue.acked().iter().all(|message| message.attempt() == 1));
}

#[tokio::test]
async fn what_is_held_is_handed_back_at_once_by_a_drain_and_by_a_pause() {
    for pause in [false, true] {
        let outage = Outage::with(2, QueueOptions::new()).await;
        let cause = if pause {
            prompt(outage.handle.pause()).await;
            "paused"
        } else {
            let report = prompt(outage.handle.stop()).await;
            assert_eq!((report.requeued, report.abandoned, report.finished), (2, 0, 0));
            "shutting_down"
        };
        prompt(outage.queue.until(|queue| queue.counts().pending == 4)).await.unwrap();
        let causes: Vec<_> =
            outage.queue.nacked().iter().map(|(_, reason)| reason.cause().to_string()).collect();
        assert_eq!(causes, [cause, cause]);
        assert!(outage.queue.pending().iter().all(|message| message.attempt() == 1));
    }
}

#[tokio::test]
async fn a_lease_is_kept_while_its_message_is_held() {
    let outage = Outage::with(1, QueueOptions::new().with_lease(Duration::from_secs(30))).await;
    outage.clock.advance(Duration::from_secs(300)).await;
    assert_eq!((outage.queue.counts().in_flight, outage.queue.counts().pending), (1, 2));
    outage.flag.set(true);
    outage.clock.settle().await;
    outage.clock.advance(SECOND).await;
    assert!(!outage.queue.acked()[0].redelivered());
}

#[tokio::test]
async fn a_hold_ends_with_the_lease_of_its_message() {
    let outage = Outage::with(1, QueueOptions::new().with_lease(Duration::from_secs(30))).await;
    outage.queue.cut();
    outage.clock.advance(Duration::from_secs(30)).await;
    assert_eq!(outage.handle.in_flight(), 0);
    assert_eq!((outage.handle.stats().leases_lost, outage.handle.stats().settle_errors), (1, 1));
    assert_eq!(outage.queue.counts().pending, 3, "the broker has it");
}

#[tokio::test]
async fn what_no_outage_explains_is_settled_though_it_is_not_ready() {
    let (clock, queue) = queue();
    let flag = ReadinessFlag::new(true);
    let falls = flag.clone();
    let handler = move |_: Bytes, _: Context| {
        falls.set(false);
        async { Err::<(), _>(HandlerError::terminal("no such customer")) }
    };
    let _handle = consumer(queue.source(), &clock, handler).readiness(flag.clone()).start().unwrap();
    publish(&queue, 1);
    prompt(queue.until(|queue| queue.counts().dead_lettered == 1)).await.unwrap();
}

#[tokio::test]
async fn prefetched_messages_go_back_once_it_was_not_ready_for_ten_seconds() {
    let (clock, queue) = queue();
    let flag = ReadinessFlag::new(true);
    let source = Faulty::new(queue.source().with_prefetch(10), |_, _| Act::Pass);
    let calls = source.calls();
    let inner = depends_on(&flag, &Arc::default());
    let _handle = consumer(source, &clock, inner).readiness(flag.clone()).start().unwrap();
    clock.settle().await;
    flag.set(false);
    publish(&queue, 3);
    clock.settle().await;
    let released = || calls.of(Op::Release);
    clock.advance(ms(9_900)).await;
    assert_eq!(released(), 0);
    clock.advance(ms(200)).await;
    assert_eq!((released(), queue.counts().in_flight), (1, 1), "one is held, the others are the broker's");
}

#[tokio::test]
async fn a_pause_goes_before_readiness_and_resume_does_not_override_it() {
    let (clock, queue) = queue();
    let (flag, calls) = (ReadinessFlag::new(false), Arc::default());
    let handle =
        consumer(queue.source(), &clock, depends_on(&flag, &calls)).readiness(flag.clone()).start().unwrap();
    clock.settle().await;
    prompt(handle.pause()).await;
    assert_eq!((handle.status(), handle.waiting_for()), (Status::Paused, None));
    flag.set(true);
    publish(&queue, 1);
    clock.advance(SECOND).await;
    assert_eq!(queue.counts().pending, 1, "paused is paused");
    flag.set(false);
    prompt(handle.resume()).await;
    clock.advance(SECOND).await;
    assert_eq!((handle.status(), queue.counts().pending), (Status::Waiting, 1));
    prompt(handle.resume()).await;
    clock.advance(SECOND).await;
    assert_eq!((handle.status(), queue.counts().pending), (Status::Waiting, 1));
    let (report, took) = stop_on(&clock, &handle).await;
    assert!(report.is_clean() && took < SECOND, "{report:?} {took:?}");
}

/// A readiness that goes wrong in a way of its own.
struct Bad {
    panics: bool,
    ready: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
    returns_at_once: bool,
}

impl Readiness for Bad {
    fn is_ready(&self) -> bool {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let ready = self.ready.load(Ordering::Relaxed);
        assert!(!self.panics || ready, "is_ready panics");
        ready
    }

    fn ready(&self) -> BoxFuture<'_, ()> {
        assert!(!self.panics, "ready panics");
        if self.returns_at_once { Box::pin(async {}) } else { Box::pin(std::future::pending()) }
    }
}

#[tokio::test]
async fn a_readiness_that_panics_never_answers_or_answers_too_early_neither_spins_nor_blocks_the_stop() {
    for (panics, returns_at_once) in [(true, false), (false, false), (false, true)] {
        let (clock, queue) = queue();
        let (ready, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let bad = Bad { panics, ready: Arc::clone(&ready), asked: Arc::clone(&asked), returns_at_once };
        let handler = |_: Bytes, _: Context| async { Ok::<_, HandlerError>(()) };
        let handle = consumer(queue.source(), &clock, handler)
            .max_concurrent(at_most(4))
            .readiness(bad)
            .start()
            .unwrap();
        publish(&queue, 1);
        clock.advance(Duration::from_secs(60)).await;
        let asked = asked.load(Ordering::Relaxed);
        assert!(asked < 5_000, "asked {asked} times in a minute");
        assert_eq!(queue.counts().pending, 1);
        ready.store(true, Ordering::Relaxed);
        clock.advance(SECOND).await;
        assert_eq!(queue.counts().acked, 1, "panics: {panics}, at once: {returns_at_once}");
        ready.store(false, Ordering::Relaxed);
        publish(&queue, 1);
        clock.settle().await;
        let (report, took) = stop_on(&clock, &handle).await;
        assert!(report.is_clean() && took < SECOND, "{report:?} {took:?}");
    }
}

/// A readiness that says yes and no in turn.
struct Flickers(Arc<AtomicUsize>);

impl Readiness for Flickers {
    fn is_ready(&self) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed) % 2 == 1
    }

    fn ready(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

#[tokio::test]
async fn a_readiness_that_says_yes_and_no_in_turn_does_not_spin() {
    let (clock, queue) = queue();
    let asked = Arc::new(AtomicUsize::new(0));
    let handler = |_: Bytes, _: Context| async { Ok::<_, HandlerError>(()) };
    let flickers = Flickers(Arc::clone(&asked));
    let handle = consumer(queue.source(), &clock, handler).readiness(flickers).start().unwrap();
    for _ in 0..10 {
        clock.settle().await;
    }
    let asked = asked.load(Ordering::Relaxed);
    assert!(asked < 10, "asked {asked} times without any time to wait");
    let (report, _) = prompt(stop_on(&clock, &handle)).await;
    assert!(report.is_clean(), "{report:?}");
}

/// A handler with a circuit of its own, open or on trial as the test says.
#[derive(Clone, Default)]
struct Circuit {
    open: Arc<AtomicBool>,
    trial: Arc<AtomicBool>,
    closed: Arc<tokio::sync::Notify>,
    running: Log<String>,
    clock: ControlledClock,
}

impl Circuit {
    fn set(&self, open: bool, trial: bool) {
        self.open.store(open, Ordering::Relaxed);
        self.trial.store(trial, Ordering::Relaxed);
        self.closed.notify_waiters();
    }
}

impl Readiness for Circuit {
    fn is_ready(&self) -> bool {
        !self.open.load(Ordering::Relaxed)
    }

    fn ready(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.closed.notified())
    }

    fn is_trial(&self) -> bool {
        self.trial.load(Ordering::Relaxed)
    }
}

impl Handler<Bytes> for Circuit {
    type Output = ();

    async fn handle(&self, _: Bytes, context: Context) -> Result<(), HandlerError> {
        if self.open.load(Ordering::Relaxed) {
            return Err(HandlerError::CircuitOpen { closes_in: SECOND });
        }
        self.running.add(context.message().id().to_owned());
        self.clock.sleep(SECOND).await;
        Ok(())
    }

    fn readiness(&self) -> Option<Arc<dyn Readiness>> {
        Some(Arc::new(self.clone()))
    }
}

fn with_circuit() -> (ControlledClock, MemoryQueue, Circuit, ConsumerHandle) {
    let (clock, queue) = queue();
    let circuit = Circuit { clock: clock.clone(), ..Circuit::default() };
    let handle =
        consumer(queue.source(), &clock, circuit.clone()).max_concurrent(at_most(4)).start().unwrap();
    (clock, queue, circuit, handle)
}

#[tokio::test]
async fn an_open_circuit_stops_the_pulls_and_what_is_pulled_is_settled_by_the_table() {
    let (clock, queue, circuit, handle) = with_circuit();
    clock.settle().await;
    circuit.set(true, false);
    publish(&queue, 10);
    clock.advance(Duration::from_secs(60)).await;
    // At most those that were waiting in `receive` when it opened.
    let counts = queue.counts();
    assert!(counts.pending + counts.delayed == 10 && counts.in_flight == 0, "{counts:?}");
    assert!(queue.nacked().len() <= 4, "{:?}", queue.nacked());
    assert!(queue.nacked().iter().all(|(_, reason)| reason.cause().to_string() == "circuit_open"));
    assert_eq!(handle.waiting_for(), Some(Obstacle::Circuit));
    circuit.set(false, false);
    for _ in 0..3 {
        clock.settle().await;
        clock.advance(SECOND).await;
    }
    prompt(queue.until(|queue| queue.counts().acked == 10)).await.unwrap();
    assert!(queue.acked().iter().all(|message| message.attempt() == 1));
}

#[tokio::test]
async fn a_circuit_on_trial_gets_one_message_until_it_is_known_how_it_went() {
    let (clock, queue, circuit, _handle) = with_circuit();
    circuit.set(false, true);
    publish(&queue, 10);
    for done in 0..3 {
        clock.settle().await;
        assert_eq!(circuit.running.all().len(), done + 1, "one at a time");
        clock.advance(SECOND).await;
    }
    circuit.set(false, false);
    clock.advance(SECOND).await;
    clock.advance(SECOND).await;
    assert!(circuit.running.all().len() > 6, "{:?}", circuit.running.all());
}

#[tokio::test]
async fn hold_timeouts_and_switches_that_make_no_sense_are_refused_by_name() {
    let (clock, queue) = queue();
    let new = |source: MemorySource| {
        consumer(source, &clock, |_: Bytes, _: Context| async { Ok::<_, HandlerError>(()) })
    };
    let hold = new(queue.source()).hold_timeout(Duration::ZERO).start().unwrap_err();
    assert!(hold.to_string().contains("hold_timeout"), "{hold}");
    let idle = new(queue.source()).idle_after(Duration::ZERO).start().unwrap_err();
    assert!(idle.to_string().contains("idle_after"), "{idle}");
}
