//! A seeded simulation: consumers on the broker in memory, with faults, and a ledger of every message.
//!
//! `WINDLASS_SIM_RUNS` sets how many runs there are, `WINDLASS_SIM_SEED` repeats one and prints its trace.

// Printing is for whoever repeats a run.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinHandle;
use windlass::backoff::Backoff;
use windlass::clock::{Clock, ControlledClock};
use windlass::codec;
use windlass::consumer::{
    ConsumerEvent, ConsumerHandle, KillSwitch, QueueConsumer, Report, RetryPolicy, Status,
};
use windlass::handler::{Context, Handler, HandlerError, ReadinessFlag};
use windlass::memory::{FaultPoint, MemoryBroker, MemoryQueue, QueueOptions};
use windlass::message::Message;
use windlass::publisher::Publisher;
use windlass::source::{NackReason, RequeueOrder, Settlement};
use windlass::{Error, ErrorKind};

use support::rng::SplitMix64;
use support::{Log, SECOND, at_most, ms};

const RUNS: u64 = 2_000;

/// What is true of each message so far, by what the events said; and the events as text.
#[derive(Default)]
struct Ledger {
    /// The attempt that the next delivery must be.
    attempts: BTreeMap<String, u32>,
    deliveries: u64,
    trace: Vec<String>,
    wrong: Vec<String>,
}

impl Ledger {
    fn enter(&mut self, at: Duration, event: &ConsumerEvent) {
        let (id, attempt) = (event.message.id().to_owned(), event.message.attempt());
        let error = event.settle_error.as_ref().map(Error::kind);
        self.trace.push(format!(
            "{:>9} ms {id} attempt {attempt}: {} -> {} {error:?} ({:?})",
            at.as_millis(),
            event.outcome.name(),
            event.settlement,
            event.timings.handling,
        ));
        self.deliveries += 1;
        let expected = self.attempts.entry(id.clone()).or_insert(1);
        // A stale delivery was made before others of the same message that have ended already.
        let fits = if error == Some(ErrorKind::Stale) { attempt <= *expected } else { attempt == *expected };
        if !fits {
            self.wrong.push(format!("{id} came as attempt {attempt}, expected {expected}"));
        }
        if event.settlement == Settlement::Ack && event.outcome.name() != "done" {
            self.wrong.push(format!("{id} was acked though {}", event.outcome.name()));
        }
        if let (None, Settlement::Nack(NackReason::Retry { counted: true, .. })) = (error, &event.settlement)
        {
            *expected += 1;
        }
    }
}

/// One consumer and what it was told.
struct Running {
    handle: ConsumerHandle,
    loops: usize,
    /// How many handlers have begun.
    begun: Arc<AtomicUsize>,
    paused: bool,
}

struct World {
    stage: Stage,
    random: SplitMix64,
    broker: MemoryBroker,
    published: BTreeSet<String>,
    consumer: Running,
    /// Consumers that drain beside the one that runs.
    draining: Vec<JoinHandle<Report>>,
    steps: Log<String>,
}

/// What some of the consumers order by: a few messages share each key.
fn key_of(message: &Message) -> Option<String> {
    let number: u64 = message.id().strip_prefix("m-")?.parse().ok()?;
    (!number.is_multiple_of(5)).then(|| format!("k-{}", number % 3))
}

/// Which keys are being handled by one consumer that keeps an order.
#[derive(Clone)]
struct Keys {
    taken: Arc<Mutex<BTreeSet<String>>>,
    ledger: Arc<Mutex<Ledger>>,
}

/// Gives its key back when the handler ends, or is dropped.
struct KeyTaken(Keys, String);

impl Keys {
    fn take(&self, message: &Message) -> Option<KeyTaken> {
        let key = key_of(message)?;
        if !self.taken.lock().unwrap().insert(key.clone()) {
            // Not a panic, which would be a failed attempt.
            self.ledger.lock().unwrap().wrong.push(format!("two with the key {key} at once"));
        }
        Some(KeyTaken(self.clone(), key))
    }
}

impl Drop for KeyTaken {
    fn drop(&mut self) {
        self.0.taken.lock().unwrap().remove(&self.1);
    }
}

/// What a handler does with one delivery, drawn from the seed, the message and the try.
async fn fate(mut random: SplitMix64, clock: ControlledClock, context: Context) -> Result<(), HandlerError> {
    if random.chance(40) {
        clock.sleep(ms(random.below(4_000))).await;
    }
    match random.below(100) {
        0..50 => Ok(()),
        50..62 => Err(HandlerError::failed("failed")),
        62..67 => panic!("a simulated panic"),
        67..71 => Err(HandlerError::terminal("hopeless")),
        71..74 => Err(HandlerError::invalid_output("wrong")),
        74..80 => Err(HandlerError::BackpressureReject),
        80..84 => Err(HandlerError::CircuitOpen { closes_in: ms(1 + random.below(3_000)) }),
        84..88 => Err(HandlerError::Timeout { after: ms(5) }),
        88..97 => {
            context.cancellation().cancelled().await;
            if random.chance(50) { Ok(()) } else { Err(HandlerError::NotRunning) }
        }
        _ => pending().await,
    }
}

/// What all consumers of a run share.
struct Stage {
    seed: u64,
    clock: ControlledClock,
    queue: MemoryQueue,
    ledger: Arc<Mutex<Ledger>>,
    /// How often each message was handled, so that each try has fortunes of its own.
    tries: Arc<Mutex<BTreeMap<String, u32>>>,
    /// What some of the consumers wait for.
    ready: ReadinessFlag,
}

impl Stage {
    fn start(&self, random: &mut SplitMix64) -> Running {
        let keys =
            random.chance(30).then(|| Keys { taken: Arc::default(), ledger: Arc::clone(&self.ledger) });
        let seed = self.seed;
        let begun = Arc::new(AtomicUsize::new(0));
        let handler = {
            let (clock, begun, tries, keys) =
                (self.clock.clone(), Arc::clone(&begun), Arc::clone(&self.tries), keys.clone());
            move |_: Bytes, context: Context| {
                begun.fetch_add(1, Ordering::SeqCst);
                let id = context.message().id().to_owned();
                let mut tries = tries.lock().unwrap();
                let count = tries.entry(id.clone()).or_default();
                *count += 1;
                let key = keys.as_ref().map(|keys| keys.take(context.message()));
                let fate = fate(SplitMix64::for_text(seed, &format!("{id}/{count}")), clock.clone(), context);
                async move {
                    let _key = key;
                    fate.await
                }
            }
        };
        let loops = 1 + random.below(8) as usize;
        let handle = self.consume(random, keys.is_some(), handler, loops);
        Running { handle, loops, begun, paused: false }
    }

    fn consume(
        &self,
        random: &mut SplitMix64,
        ordered: bool,
        handler: impl Handler<Bytes>,
        loops: usize,
    ) -> ConsumerHandle {
        let mut source = self.queue.source();
        if random.chance(40) {
            source = source.with_prefetch(1 + random.below(10) as usize);
        }
        if random.chance(30) {
            source = source.with_idle(ms(50 + random.below(2_000)));
        }
        let observer = {
            let (clock, ledger, start) = (self.clock.clone(), Arc::clone(&self.ledger), self.clock.now());
            let offset = self.clock.wall().duration_since(ControlledClock::new().wall()).unwrap();
            move |event: &ConsumerEvent| {
                ledger.lock().unwrap().enter(offset + (clock.now() - start), event);
            }
        };
        let mut consumer = QueueConsumer::with_decoder(source, codec::bytes, handler)
            .max_concurrent(at_most(loops))
            .on_event(observer)
            .clock(self.clock.clone());
        if random.chance(30) {
            let jittered = Backoff::new(ms(300)).with_jitter(0.5);
            consumer = consumer.retry_policy(RetryPolicy::backoff(jittered, random.below(6) as u32));
        }
        if random.chance(20) {
            consumer = consumer.drain_timeout(ms(random.below(2_000))).drain_grace(ms(random.below(500)));
        }
        if random.chance(30) {
            consumer = consumer.readiness(self.ready.clone()).hold_timeout(ms(1 + random.below(20_000)));
        }
        if random.chance(20) {
            let switch = KillSwitch::default().min_messages(1 + random.below(8)).window(ms(5_000));
            consumer = consumer.kill_switch(switch.pause(ms(1 + random.below(5_000))));
        }
        if random.chance(20) {
            consumer = consumer.idle_after(ms(1 + random.below(3_000)));
        }
        if ordered {
            consumer = consumer.ordered_by(key_of);
        }
        consumer.start().expect("the options are fine")
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = SplitMix64::new(seed);
        let mut options = QueueOptions::new();
        if random.chance(50) {
            options = options.with_requeue_order(RequeueOrder::Back);
        }
        if random.chance(40) {
            options = options.with_lease(ms(500 + random.below(30_000)));
        }
        let clock = ControlledClock::new();
        let broker = MemoryBroker::new(clock.clone());
        let queue = broker.declare("work", options);
        let ready = ReadinessFlag::new(true);
        let stage = Stage { seed, clock, queue, ledger: Arc::default(), tries: Arc::default(), ready };
        let consumer = stage.start(&mut random);
        Self {
            stage,
            random,
            broker,
            published: BTreeSet::new(),
            consumer,
            draining: Vec::new(),
            steps: Log::new(),
        }
    }

    async fn publish(&mut self, count: u64) {
        for _ in 0..count {
            let id = format!("m-{}", self.published.len() + 1);
            let message = Message::new("x").with_id(id.clone());
            // A scripted fault of the publisher: not sent, and said so.
            if self.broker.publisher().publish("work", message).await.is_ok() {
                self.published.insert(id);
            }
        }
    }

    fn fail_something(&mut self) {
        let points = [
            FaultPoint::Receive,
            FaultPoint::Ack,
            FaultPoint::Nack,
            FaultPoint::Publish,
            FaultPoint::Extend,
            FaultPoint::Release,
            FaultPoint::Close,
        ];
        let kinds = [ErrorKind::Disconnected, ErrorKind::Refused, ErrorKind::Timeout, ErrorKind::Other];
        let point = points[self.random.below(7) as usize];
        for _ in 0..=self.random.below(3) {
            let kind = kinds[self.random.below(4) as usize];
            self.stage.queue.fail_next(point, Error::new(kind, "simulated"));
        }
    }

    /// Stops the consumer, at once or beside its successor, which is started.
    async fn replace_consumer(&mut self) {
        let next = self.stage.start(&mut self.random);
        let old = std::mem::replace(&mut self.consumer, next);
        let overlaps = self.random.chance(50);
        if !overlaps {
            self.consumer.handle.pause().await;
        }
        let stopping = tokio::spawn(async move { old.handle.stop().await });
        if overlaps {
            self.draining.push(stopping);
            return;
        }
        self.stage.clock.settle().await;
        let began = old.begun.load(Ordering::SeqCst);
        self.until_finished(&stopping).await;
        let _ = stopping.await.expect("stop does not panic");
        assert_eq!(old.begun.load(Ordering::SeqCst), began, "a handler began after stop");
        self.consumer.handle.resume().await;
    }

    async fn until_finished(&self, stopping: &JoinHandle<Report>) {
        let began = self.stage.clock.now();
        self.stage.clock.settle().await;
        while !stopping.is_finished() {
            self.stage.clock.advance(ms(250)).await;
            assert!(self.stage.clock.now() - began < 60 * SECOND, "stop takes more than a minute");
        }
    }

    /// One thing that happens, and what must hold after it.
    async fn step(&mut self) {
        let what = self.random.below(100);
        self.steps.add(format!("{what}"));
        match what {
            0..40 => self.stage.clock.advance(ms(self.random.below(3_000))).await,
            40..60 => {
                let count = 1 + self.random.below(6);
                self.publish(count).await;
            }
            60..75 => self.fail_something(),
            75..80 => self.stage.queue.cut(),
            80..86 => {
                self.consumer.handle.pause().await;
                self.consumer.paused = true;
            }
            86..94 => {
                self.consumer.handle.resume().await;
                self.consumer.paused = false;
            }
            94..96 => self.replace_consumer().await,
            96..99 => self.stage.ready.set(self.random.chance(50)),
            _ => self.stage.clock.settle().await,
        }
        let running = &self.consumer;
        assert!(running.handle.in_flight() <= running.loops, "more than max_concurrent at once");
        if running.paused {
            assert_eq!(running.handle.status(), Status::Paused);
            let begun = running.begun.load(Ordering::SeqCst);
            self.stage.clock.advance(ms(self.random.below(500))).await;
            assert_eq!(self.consumer.begun.load(Ordering::SeqCst), begun, "a handler began while paused");
        }
    }

    /// Stops everything, and finds each message in exactly one place.
    async fn check(&mut self) {
        let handle = self.consumer.handle.clone();
        self.draining.push(tokio::spawn(async move { handle.stop().await }));
        for stopping in std::mem::take(&mut self.draining) {
            self.until_finished(&stopping).await;
            let report = stopping.await.expect("stop does not panic");
            assert!(report.error.is_none(), "it ended by itself: {report:?}");
        }
        assert_eq!(self.consumer.handle.in_flight(), 0);
        let counts = self.stage.queue.counts();
        assert_eq!(counts.in_flight, 0, "stuck: {:?}", self.stage.queue.in_flight());
        let ledger = self.stage.ledger.lock().unwrap();
        assert!(ledger.wrong.is_empty(), "{:?}\n{}", ledger.wrong, ledger.trace.join("\n"));
        assert_eq!(ledger.deliveries, counts.delivered, "one event for each delivery");
        let waiting: Vec<Message> = [self.stage.queue.pending(), self.stage.queue.delayed()].concat();
        for message in &waiting {
            let expected = ledger.attempts.get(message.id()).copied().unwrap_or(1);
            assert_eq!(message.attempt(), expected, "{}", message.id());
        }
        let dead = self.stage.queue.dead_lettered();
        assert_eq!(dead.len(), counts.dead_lettered, "a dead letter without a cause");
        let mut found: Vec<String> = waiting.iter().map(|message| message.id().to_owned()).collect();
        found.extend(dead.iter().map(|(message, _)| message.id().to_owned()));
        found.extend(self.stage.queue.acked().iter().map(|message| message.id().to_owned()));
        found.sort();
        let all: Vec<String> = BTreeSet::clone(&self.published).into_iter().collect();
        let mut once = found.clone();
        once.dedup();
        assert_eq!(once, all, "gone, or out of nowhere");
        assert_eq!(found.len(), once.len(), "in two places: {found:?}");
    }

    /// A consumer without troubles must be able to finish what is left.
    async fn finish(&mut self) {
        let handler = async |_: Bytes, _: Context| Ok::<_, HandlerError>(());
        self.stage.ready.set(true);
        let handle = self.stage.consume(&mut self.random, false, handler, 4);
        let ended = |queue: &MemoryQueue| queue.counts().acked as usize + queue.counts().dead_lettered;
        for _ in 0..12 {
            if ended(&self.stage.queue) == self.published.len() {
                break;
            }
            self.stage.clock.advance(10 * SECOND).await;
        }
        let counts = self.stage.queue.counts();
        assert_eq!((counts.pending, counts.delayed, counts.in_flight), (0, 0, 0), "stuck: {counts:?}");
        assert_eq!(ended(&self.stage.queue), self.published.len());
        let _ = handle.stop().await;
    }
}

async fn simulate(seed: u64) -> Vec<String> {
    let mut world = World::new(seed);
    for _ in 0..20 + world.random.below(40) {
        world.step().await;
    }
    world.check().await;
    world.finish().await;
    std::mem::take(&mut world.stage.ledger.lock().unwrap().trace)
}

/// Runs one seed on a runtime of its own; a failure says which it was.
fn run(seed: u64) -> Vec<String> {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if panic.payload().downcast_ref::<&str>() != Some(&"a simulated panic") {
                print(panic);
            }
        }));
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let ended = catch_unwind(AssertUnwindSafe(|| runtime.block_on(simulate(seed))));
    ended.unwrap_or_else(|panic| {
        println!("the simulation failed; repeat it with WINDLASS_SIM_SEED={seed}");
        resume_unwind(panic)
    })
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}

#[test]
fn no_message_is_lost_or_stuck_in_any_run() {
    if let Some(seed) = number("WINDLASS_SIM_SEED") {
        run(seed).iter().for_each(|line| println!("{line}"));
        return;
    }
    let mut events = 0;
    for seed in 0..number("WINDLASS_SIM_RUNS").unwrap_or(RUNS) {
        events += run(seed).len();
    }
    assert!(events > 10_000 || number("WINDLASS_SIM_RUNS").is_some(), "too little happened: {events} events");
}

#[test]
fn a_run_is_the_same_each_time() {
    for seed in (0..RUNS).step_by(20) {
        let (first, second) = (run(seed), run(seed));
        let differs = first.iter().zip(&second).position(|(one, two)| one != two);
        if let Some(at) = differs {
            panic!("seed {seed}, event {at}:\n{}\n{}", first[at], second[at]);
        }
        assert_eq!(first.len(), second.len(), "seed {seed}");
    }
}
