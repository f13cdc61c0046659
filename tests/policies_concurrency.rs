//! The limit of concurrency: turns, the queue, and what becomes of those beyond.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use windlass::clock::{Clock, ControlledClock};
use windlass::handler::{Concurrency, Context, Guarded, Handler, HandlerError, Policies, WhenFull};

use support::rng::SplitMix64;
use support::{Log, at_most, ms, prompt};

/// Calls that end when the test says so.
#[derive(Clone, Default)]
struct Desk {
    begun: Log<u32>,
    open: Arc<Mutex<HashMap<u32, oneshot::Sender<()>>>>,
}

impl Desk {
    fn handler(&self) -> impl Handler<u32, Output = u32> + use<> {
        let desk = self.clone();
        move |call: u32, _: Context| {
            let (sender, done) = oneshot::channel();
            desk.begun.add(call);
            desk.open.lock().unwrap().insert(call, sender);
            async move {
                let _ = done.await;
                Ok::<_, HandlerError>(call)
            }
        }
    }

    async fn end(&self, call: u32) {
        drop(self.open.lock().unwrap().remove(&call).expect("it is under way"));
        settle().await;
    }
}

async fn settle() {
    ControlledClock::new().settle().await;
}

fn limited<H: Handler<u32>>(handler: H, limit: Concurrency) -> Guarded<H, u32> {
    Policies::around(handler).concurrency(limit).build().unwrap()
}

async fn spawn<H: Handler<u32, Output = u32>>(
    guarded: &Guarded<H, u32>,
    call: u32,
) -> JoinHandle<Result<u32, HandlerError>> {
    let guarded = guarded.clone();
    let task = tokio::spawn(async move { guarded.call(call).await });
    settle().await;
    task
}

async fn class(task: JoinHandle<Result<u32, HandlerError>>) -> &'static str {
    match prompt(task).await.expect("it does not panic") {
        Ok(_) => "ok",
        Err(error) => error.class_name(),
    }
}

#[tokio::test]
async fn turns_are_given_in_the_order_of_the_calls() {
    let desk = Desk::default();
    let guarded = limited(desk.handler(), Concurrency::new(at_most(2), 8));
    let mut tasks = Vec::new();
    for call in 1..=5 {
        tasks.push(spawn(&guarded, call).await);
    }
    assert_eq!(desk.begun.all(), [1, 2]);
    for call in [2, 3, 1, 4, 5] {
        desk.end(call).await;
    }
    assert_eq!(desk.begun.all(), [1, 2, 3, 4, 5]);
    for task in tasks {
        assert_eq!(class(task).await, "ok");
    }
}

#[tokio::test]
async fn a_full_queue_rejects_the_newest() {
    let desk = Desk::default();
    let guarded = limited(desk.handler(), Concurrency::new(at_most(1), 1));
    let first = spawn(&guarded, 1).await;
    let second = spawn(&guarded, 2).await;
    assert_eq!(class(spawn(&guarded, 3).await).await, "backpressure_reject");
    desk.end(1).await;
    // The place in the queue is free again.
    let fourth = spawn(&guarded, 4).await;
    desk.end(2).await;
    desk.end(4).await;
    for task in [first, second, fourth] {
        assert_eq!(class(task).await, "ok");
    }
    assert_eq!(desk.begun.all(), [1, 2, 4]);
}

#[tokio::test]
async fn without_a_queue_what_finds_no_turn_is_rejected() {
    let desk = Desk::default();
    let guarded = limited(desk.handler(), Concurrency::new(at_most(1), 0));
    let first = spawn(&guarded, 1).await;
    assert_eq!(class(spawn(&guarded, 2).await).await, "backpressure_reject");
    desk.end(1).await;
    let third = spawn(&guarded, 3).await;
    desk.end(3).await;
    assert_eq!((class(first).await, class(third).await), ("ok", "ok"));
}

#[tokio::test]
async fn a_full_queue_drops_the_one_that_waited_longest_if_told_to() {
    let desk = Desk::default();
    let limit = Concurrency::new(at_most(1), 2).with_when_full(WhenFull::DropOldest);
    let guarded = limited(desk.handler(), limit);
    let first = spawn(&guarded, 1).await;
    let second = spawn(&guarded, 2).await;
    let third = spawn(&guarded, 3).await;
    let fourth = spawn(&guarded, 4).await;
    assert_eq!(class(second).await, "dropped");
    for call in [1, 3, 4] {
        desk.end(call).await;
    }
    for task in [first, third, fourth] {
        assert_eq!(class(task).await, "ok");
    }
    assert_eq!(desk.begun.all(), [1, 3, 4]);
}

#[tokio::test]
async fn a_call_that_is_dropped_while_it_waits_leaves_its_place() {
    let desk = Desk::default();
    let guarded = limited(desk.handler(), Concurrency::new(at_most(1), 1));
    let first = spawn(&guarded, 1).await;
    let second = spawn(&guarded, 2).await;
    second.abort();
    let _ = prompt(second).await;
    let third = spawn(&guarded, 3).await;
    desk.end(1).await;
    desk.end(3).await;
    assert_eq!((class(first).await, class(third).await), ("ok", "ok"));
}

#[tokio::test]
async fn a_call_that_is_dropped_with_its_turn_just_given_passes_it_on() {
    let desk = Desk::default();
    let guarded = limited(desk.handler(), Concurrency::new(at_most(1), 4));
    let first = spawn(&guarded, 1).await;
    let mut second = Box::pin(guarded.call(2));
    let mut third = Box::pin(guarded.call(3));
    assert!(futures::poll!(second.as_mut()).is_pending());
    assert!(futures::poll!(third.as_mut()).is_pending());
    let fourth = spawn(&guarded, 4).await;
    desk.end(1).await;
    // The turn lies with the second, which is not polled any more; and then with the third.
    assert_eq!(desk.begun.all(), [1]);
    drop(second);
    settle().await;
    assert_eq!(desk.begun.all(), [1]);
    drop(third);
    settle().await;
    assert_eq!(desk.begun.all(), [1, 4]);
    desk.end(4).await;
    assert_eq!((class(first).await, class(fourth).await), ("ok", "ok"));
}

#[tokio::test]
async fn a_call_that_is_dropped_or_panics_gives_its_turn_back() {
    let guarded = limited(
        async |call: u32, _: Context| {
            assert!(call != 2, "told to");
            if call == 1 {
                std::future::pending::<()>().await;
            }
            Ok::<_, HandlerError>(call)
        },
        Concurrency::new(at_most(1), 1),
    );
    let first = spawn(&guarded, 1).await;
    first.abort();
    let _ = prompt(first).await;
    assert_eq!(class(spawn(&guarded, 2).await).await, "panicked");
    assert_eq!(class(spawn(&guarded, 3).await).await, "ok");
}

#[tokio::test]
async fn a_stop_tells_those_who_wait_and_lets_those_who_run_end() {
    let desk = Desk::default();
    let guarded = limited(desk.handler(), Concurrency::new(at_most(1), 4));
    assert!(guarded.is_running());
    let first = spawn(&guarded, 1).await;
    let waiting = [spawn(&guarded, 2).await, spawn(&guarded, 3).await];
    guarded.clone().stop();
    guarded.stop();
    assert!(!guarded.is_running());
    for task in waiting {
        assert_eq!(class(task).await, "not_running");
    }
    assert_eq!(class(spawn(&guarded, 4).await).await, "not_running");
    desk.end(1).await;
    assert_eq!(class(first).await, "ok");
    assert_eq!(desk.begun.all(), [1]);
}

#[tokio::test]
async fn a_call_whose_turn_came_just_before_a_stop_is_not_begun_after_it() {
    let desk = Desk::default();
    let guarded = limited(desk.handler(), Concurrency::new(at_most(1), 4));
    let first = spawn(&guarded, 1).await;
    let mut second = Box::pin(guarded.call(2));
    assert!(futures::poll!(second.as_mut()).is_pending());
    desk.end(1).await;
    assert_eq!(class(first).await, "ok");
    guarded.stop();
    assert!(matches!(prompt(second).await, Err(HandlerError::NotRunning)));
    assert_eq!(desk.begun.all(), [1]);
}

#[tokio::test]
async fn numbers_without_bound_are_no_limit() {
    let desk = Desk::default();
    let limit = Concurrency::new(at_most(usize::MAX), usize::MAX).with_when_full(WhenFull::DropOldest);
    let guarded = limited(desk.handler(), limit);
    let mut tasks = Vec::new();
    for call in 0..100 {
        tasks.push(spawn(&guarded, call).await);
    }
    assert_eq!(desk.begun.len(), 100);
    for call in 0..100 {
        desk.end(call).await;
    }
    for task in tasks {
        assert_eq!(class(task).await, "ok");
    }
}

/// How many run, and how many did at most.
#[derive(Default)]
struct Tally {
    running: AtomicUsize,
    most: AtomicUsize,
}

/// One that runs; it has left when this is dropped.
struct Running(Arc<Tally>);

impl Tally {
    fn enter(self: &Arc<Self>) -> Running {
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(running, Ordering::SeqCst);
        Running(Arc::clone(self))
    }

    fn running(&self) -> usize {
        self.running.load(Ordering::SeqCst)
    }

    fn most(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}

const MOST: usize = 3;

/// All turns are there, and no more than that: so many calls run at once, and the next one does not.
async fn is_level<H: Handler<u32>>(guarded: &Guarded<H, u32>, tally: &Tally) {
    assert_eq!(tally.running(), 0);
    let mut calls: Vec<_> = (0..MOST).map(|_| Box::pin(guarded.call(1))).collect();
    for call in &mut calls {
        assert!(futures::poll!(call.as_mut()).is_pending());
    }
    assert_eq!(tally.running(), MOST, "a turn was lost");
    let mut beyond = Box::pin(guarded.call(1));
    let _ = futures::poll!(beyond.as_mut());
    assert_eq!(tally.running(), MOST, "a turn was made up");
}

/// Many tasks call, wait and are dropped at random, on a clock of the run's own. Returns the classes of the results.
async fn stress(seed: u64, when_full: WhenFull, queue: usize) -> Vec<&'static str> {
    let clock = ControlledClock::new();
    let tally = Arc::new(Tally::default());
    let handler = {
        let (clock, tally) = (clock.clone(), Arc::clone(&tally));
        move |nap: u32, _: Context| {
            let (clock, running) = (clock.clone(), tally.enter());
            async move {
                let _running = running;
                clock.sleep(ms(u64::from(nap % 7))).await;
                assert!(!nap.is_multiple_of(11), "one in eleven panics");
                Ok::<_, HandlerError>(nap)
            }
        }
    };
    let limit = Concurrency::new(at_most(MOST), queue).with_when_full(when_full);
    let guarded = Policies::around(handler).clock(clock.clone()).concurrency(limit).build().unwrap();
    let mut rng = SplitMix64::new(seed);
    let mut tasks: Vec<JoinHandle<_>> = Vec::new();
    for _ in 0..200 {
        let nap = u32::try_from(rng.below(1_000)).unwrap();
        let guarded = guarded.clone();
        tasks.push(tokio::spawn(async move { guarded.call(nap).await }));
        match rng.below(4) {
            0 => clock.advance(ms(rng.below(4))).await,
            1 => tasks[usize::try_from(rng.below(tasks.len() as u64)).unwrap()].abort(),
            2 => tokio::task::yield_now().await,
            _ => {}
        }
    }
    clock.advance(ms(200 * 7)).await;
    let mut classes = Vec::new();
    for task in tasks {
        classes.push(match prompt(task).await {
            Err(_aborted) => "aborted",
            Ok(Ok(_)) => "ok",
            Ok(Err(error)) => error.class_name(),
        });
    }
    assert_eq!(tally.most(), MOST, "seed {seed}");
    is_level(&guarded, &tally).await;
    classes
}

#[tokio::test]
async fn turns_are_level_after_any_mix_of_calls_drops_and_panics() {
    let mut seen = HashMap::new();
    for seed in 0..150 {
        let (when_full, queue) = match seed % 3 {
            0 => (WhenFull::Reject, usize::try_from(seed % 5).unwrap()),
            1 => (WhenFull::DropOldest, 1 + usize::try_from(seed % 5).unwrap()),
            _ => (WhenFull::Reject, usize::MAX),
        };
        for class in stress(seed, when_full, queue).await {
            assert!(queue < usize::MAX || matches!(class, "ok" | "aborted" | "panicked"), "{seed}: {class}");
            *seen.entry(class).or_insert(0_u32) += 1;
        }
    }
    for class in ["ok", "aborted", "panicked", "backpressure_reject", "dropped"] {
        assert!(seen.get(class).is_some_and(|count| *count > 50), "{class}: {seen:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nobody_starves_on_several_threads() {
    let tally = Arc::new(Tally::default());
    let handler = {
        let tally = Arc::clone(&tally);
        move |call: u32, _: Context| {
            let running = tally.enter();
            async move {
                let _running = running;
                tokio::task::yield_now().await;
                Ok::<_, HandlerError>(call)
            }
        }
    };
    let guarded = limited(handler, Concurrency::new(at_most(MOST), usize::MAX));
    let tasks: Vec<_> = (0..32_u32)
        .map(|task| {
            let guarded = guarded.clone();
            tokio::spawn(async move {
                for call in 0..200 {
                    // Some are given up: while they wait, with their turn just given, or in the middle.
                    if (task + call) % 3 == 0 {
                        let mut given_up = Box::pin(guarded.call(call));
                        let _ = futures::poll!(given_up.as_mut());
                        if call % 2 == 0 {
                            tokio::task::yield_now().await;
                        }
                    }
                    guarded.call(call).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        prompt(task).await.expect("each has all of its turns");
    }
    assert_eq!(tally.most(), MOST);
    is_level(&guarded, &tally).await;
}
