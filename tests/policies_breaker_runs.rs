//! The circuit breaker in thousands of random runs, each repeatable from its seed, beside what its page says.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use windlass::clock::{Clock, ControlledClock};
use windlass::handler::{CircuitBreaker, CircuitState, Context, Guarded, Handler, HandlerError, Policies};

use support::rng::SplitMix64;
use support::{ms, prompt};

const RESET: Duration = Duration::from_millis(20);
const THRESHOLD: u32 = 3;

#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    Succeed,
    Fail,
    Neutral,
}

#[derive(Debug, Clone, Copy)]
struct Call {
    number: u32,
    takes: Duration,
    end: End,
}

/// What is known about a call that has begun.
#[derive(Debug, Clone, Copy)]
struct Begun {
    at: Instant,
    /// How often the circuit had opened by then.
    era: u32,
    on_trial: bool,
}

/// What was seen so far, for saying what must come.
#[derive(Debug, Default)]
struct Seen {
    begun: HashMap<u32, Begun>,
    /// The call that was let through on trial last, until it decided.
    trial: Option<u32>,
    /// The state when the last handler returned.
    before: Option<CircuitState>,
    opened: u32,
    kinds: HashMap<&'static str, u32>,
}

#[derive(Clone)]
struct World {
    clock: ControlledClock,
    breaker: CircuitBreaker,
    seen: Arc<Mutex<Seen>>,
}

impl World {
    fn new() -> Self {
        let breaker = CircuitBreaker::new(NonZeroU32::new(THRESHOLD).unwrap(), RESET);
        Self { clock: ControlledClock::new(), breaker, seen: Arc::default() }
    }

    fn guarded(&self) -> Guarded<impl Handler<Call, Output = ()> + use<>, Call> {
        let world = self.clone();
        let handler = move |call: Call, _: Context| {
            world.begins(call);
            let world = world.clone();
            async move {
                world.clock.sleep(call.takes).await;
                world.seen.lock().unwrap().before = Some(world.breaker.state());
                match call.end {
                    End::Succeed => Ok(()),
                    End::Fail => Err(HandlerError::failed("told to")),
                    End::Neutral => Err(HandlerError::terminal("told to")),
                }
            }
        };
        let policies = Policies::around(handler).clock(self.clock.clone());
        policies.circuit_breaker(self.breaker.clone()).build().unwrap()
    }

    fn begins(&self, call: Call) {
        let (state, now) = (self.breaker.state(), self.clock.now());
        let on_trial = match state {
            CircuitState::Closed { .. } => false,
            CircuitState::HalfOpen { trial: true } => true,
            other => panic!("{call:?} was let through while the circuit was {other:?}"),
        };
        let mut seen = self.seen.lock().unwrap();
        if on_trial {
            if let Some(other) = seen.trial {
                let since = now - seen.begun[&other].at;
                assert!(since >= RESET, "{call:?} is on trial beside {other}, which began {since:?} before");
                *seen.kinds.entry("overdue").or_default() += 1;
            }
            seen.trial = Some(call.number);
        }
        let era = seen.opened;
        seen.begun.insert(call.number, Begun { at: now, era, on_trial });
    }

    /// The handler has just returned: nothing ran between that and now.
    fn ended(&self, call: Call) {
        let after = self.breaker.state();
        let mut seen = self.seen.lock().unwrap();
        let before = seen.before.take().expect("the handler said so");
        let begun = seen.begun[&call.number];
        let decides = seen.trial == Some(call.number);
        let expected = match (before, call.end) {
            (CircuitState::Closed { .. }, End::Succeed) if begun.era == seen.opened && !begun.on_trial => {
                CircuitState::Closed { failures: 0 }
            }
            (CircuitState::Closed { failures }, End::Fail) if begun.era == seen.opened && !begun.on_trial => {
                match failures + 1 {
                    THRESHOLD => CircuitState::Open { closes_in: RESET },
                    failures => CircuitState::Closed { failures },
                }
            }
            (_, End::Succeed) if decides => CircuitState::Closed { failures: 0 },
            (_, End::Fail) if decides => CircuitState::Open { closes_in: RESET },
            (_, End::Neutral) if decides => CircuitState::HalfOpen { trial: false },
            (before, _) => before,
        };
        assert_eq!(after, expected, "{call:?}, {begun:?}, before: {before:?}");
        if decides {
            seen.trial = None;
            *seen.kinds.entry("decided").or_default() += 1;
        }
        let kind = if after == before { "kept" } else { "changed" };
        *seen.kinds.entry(kind).or_default() += 1;
        if matches!(after, CircuitState::Open { .. }) && before != after {
            seen.opened += 1;
        }
    }

    fn refused(&self, error: &HandlerError) {
        let HandlerError::CircuitOpen { closes_in } = error else { panic!("{error:?}") };
        assert!(*closes_in > Duration::ZERO && *closes_in <= RESET, "{closes_in:?}");
        assert_ne!(self.breaker.state(), CircuitState::HalfOpen { trial: false });
        *self.seen.lock().unwrap().kinds.entry("refused").or_default() += 1;
    }

    fn spawn<H: Handler<Call, Output = ()>>(&self, guarded: &Guarded<H, Call>, call: Call) -> JoinHandle<()> {
        let (world, guarded) = (self.clone(), guarded.clone());
        tokio::spawn(async move {
            let result = guarded.call(call).await;
            let called = world.seen.lock().unwrap().begun.contains_key(&call.number);
            match result {
                Err(error) if !called => world.refused(&error),
                _ => world.ended(call),
            }
        })
    }

    /// A call was dropped: if it was to decide, another one may.
    fn dropped(&self, number: u32) {
        let mut seen = self.seen.lock().unwrap();
        if seen.trial == Some(number) {
            seen.trial = None;
            *seen.kinds.entry("trial dropped").or_default() += 1;
            assert_eq!(self.breaker.state(), CircuitState::HalfOpen { trial: false });
        }
    }
}

async fn run(seed: u64) -> HashMap<&'static str, u32> {
    let world = World::new();
    let guarded = world.guarded();
    let mut rng = SplitMix64::new(seed);
    let mut tasks: Vec<(u32, JoinHandle<()>)> = Vec::new();
    // Runs of luck, so that the circuit both opens and closes.
    let mut luck = 50;
    for number in 0..150 {
        if rng.chance(5) {
            luck = [5, 50, 95][usize::try_from(rng.below(3)).unwrap()];
        }
        let end = if rng.chance(10) {
            End::Neutral
        } else if rng.chance(luck) {
            End::Succeed
        } else {
            End::Fail
        };
        let longest = if rng.chance(20) { 60 } else { 6 };
        let takes = ms(rng.below(longest));
        tasks.push((number, world.spawn(&guarded, Call { number, takes, end })));
        if rng.chance(60) {
            world.clock.advance(ms(rng.below(8))).await;
        }
        if rng.chance(40) {
            let (number, task) = tasks.swap_remove(usize::try_from(rng.below(tasks.len() as u64)).unwrap());
            task.abort();
            match prompt(task).await {
                Err(error) if error.is_cancelled() => world.dropped(number),
                ended => ended.expect("no check failed"),
            }
        }
    }
    world.clock.advance(ms(200)).await;
    for (_, task) in tasks {
        prompt(task).await.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
    // Whatever came before: once it is left alone for as long as the reset, one success closes it.
    let last = Call { number: u32::MAX, takes: Duration::ZERO, end: End::Succeed };
    prompt(guarded.call(last)).await.unwrap();
    assert_eq!(world.breaker.state(), CircuitState::Closed { failures: 0 }, "seed {seed}");
    world.seen.lock().unwrap().kinds.clone()
}

#[tokio::test]
async fn the_circuit_does_what_its_page_says_in_every_run() {
    let mut kinds: HashMap<&str, u32> = HashMap::new();
    for seed in 0..400 {
        for (kind, count) in run(seed).await {
            *kinds.entry(kind).or_default() += count;
        }
    }
    for kind in ["decided", "kept", "changed", "refused", "overdue", "trial dropped"] {
        assert!(kinds.get(kind).is_some_and(|count| *count >= 50), "{kind}: {kinds:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn on_several_threads_there_is_one_trial_at_a_time_and_in_the_end_a_success_closes_it() {
    let clock = ControlledClock::new();
    let breaker = CircuitBreaker::new(NonZeroU32::new(2).unwrap(), RESET);
    let on_trial = Arc::new(AtomicU32::new(0));
    let handler = {
        let on_trial = Arc::clone(&on_trial);
        move |fails: bool, _: Context| {
            let on_trial = Arc::clone(&on_trial);
            async move {
                // The clock stands still: no trial is overdue.
                assert_eq!(on_trial.fetch_add(1, Ordering::SeqCst), 0, "two on trial");
                tokio::task::yield_now().await;
                on_trial.fetch_sub(1, Ordering::SeqCst);
                if fails { Err(HandlerError::terminal("says nothing")) } else { Ok(()) }
            }
        }
    };
    let failing = async |_: bool, _: Context| Err::<(), _>(HandlerError::failed("told to"));
    let opens =
        Policies::around(failing).clock(clock.clone()).circuit_breaker(breaker.clone()).build().unwrap();
    let tried = Policies::around(handler).circuit_breaker(breaker.clone()).build().unwrap();
    for _ in 0..50 {
        while !matches!(breaker.state(), CircuitState::Open { .. }) {
            let _ = opens.call(true).await;
        }
        clock.advance(RESET).await;
        let tasks: Vec<_> = (0..8)
            .map(|_| {
                let tried = tried.clone();
                tokio::spawn(async move {
                    for _ in 0..20 {
                        match tried.call(true).await {
                            Err(HandlerError::Terminal(_) | HandlerError::CircuitOpen { .. }) => {}
                            other => panic!("{other:?}"),
                        }
                        tokio::task::yield_now().await;
                    }
                })
            })
            .collect();
        for task in tasks {
            prompt(task).await.unwrap();
        }
        assert_eq!(breaker.state(), CircuitState::HalfOpen { trial: false });
        tried.call(false).await.unwrap();
        assert_eq!(breaker.state(), CircuitState::Closed { failures: 0 });
    }
}
