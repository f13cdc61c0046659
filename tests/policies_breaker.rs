//! The circuit breaker: what opens it, what a trial decides, and what does not matter to it.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::future::pending;
use std::num::NonZeroU32;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use windlass::clock::ControlledClock;
use windlass::handler::{
    CircuitBreaker, CircuitState, Context, Guarded, Handler, HandlerError, Policies, Readiness,
};

use support::{SECOND, ms, prompt};

const RESET: Duration = Duration::from_secs(10);

fn breaker(threshold: u32) -> CircuitBreaker {
    CircuitBreaker::new(NonZeroU32::new(threshold).unwrap(), RESET)
}

/// What a call is to do: the handler is told by its payload.
#[derive(Debug, Clone)]
enum Do {
    Succeed,
    Fail(HandlerError),
    Panic,
    /// It never returns.
    Hang,
    /// It fails or succeeds after a time.
    Late(Duration, bool),
}

fn failed() -> HandlerError {
    HandlerError::failed("reset")
}

fn fail() -> Do {
    Do::Fail(failed())
}

fn guarded(
    clock: &ControlledClock,
    breaker: &CircuitBreaker,
) -> Guarded<impl Handler<Do, Output = ()> + use<>, Do> {
    let inner = clock.clone();
    let handler = move |what: Do, _: Context| {
        let clock = inner.clone();
        async move {
            match what {
                Do::Succeed => Ok(()),
                Do::Fail(error) => Err(error),
                Do::Panic => panic!("told to"),
                Do::Hang => pending().await,
                Do::Late(time, ok) => {
                    windlass::clock::Clock::sleep(&clock, time).await;
                    if ok { Ok(()) } else { Err(failed()) }
                }
            }
        }
    };
    Policies::around(handler).clock(clock.clone()).circuit_breaker(breaker.clone()).build().unwrap()
}

fn spawn<H: Handler<Do, Output = ()>>(
    guarded: &Guarded<H, Do>,
    what: Do,
) -> JoinHandle<Result<(), HandlerError>> {
    let guarded = guarded.clone();
    tokio::spawn(async move { guarded.call(what).await })
}

async fn refused<H: Handler<Do, Output = ()>>(guarded: &Guarded<H, Do>) -> Duration {
    match prompt(guarded.call(Do::Succeed)).await {
        Err(HandlerError::CircuitOpen { closes_in }) => closes_in,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn failures_in_a_row_open_it_and_a_success_begins_the_count_anew() {
    let (clock, breaker) = (ControlledClock::new(), breaker(3));
    let guarded = guarded(&clock, &breaker);
    for what in [fail(), Do::Panic, Do::Succeed, Do::Fail(HandlerError::Timeout { after: SECOND }), Do::Panic]
    {
        let _ = guarded.call(what).await;
    }
    assert_eq!(breaker.state(), CircuitState::Closed { failures: 2 });
    let _ = guarded.call(fail()).await;
    assert_eq!(breaker.state(), CircuitState::Open { closes_in: RESET });
    assert_eq!(refused(&guarded).await, RESET);
    clock.advance(ms(9_999)).await;
    assert_eq!(refused(&guarded).await, ms(1));
}

#[tokio::test]
async fn what_says_nothing_of_the_handler_neither_counts_nor_begins_the_count_anew() {
    let (clock, breaker) = (ControlledClock::new(), breaker(2));
    let guarded = guarded(&clock, &breaker);
    let _ = guarded.call(fail()).await;
    for neutral in neutrals() {
        let _ = guarded.call(Do::Fail(neutral)).await;
        assert_eq!(breaker.state(), CircuitState::Closed { failures: 1 });
    }
}

fn neutrals() -> [HandlerError; 8] {
    [
        HandlerError::invalid_input("x"),
        HandlerError::invalid_output("x"),
        HandlerError::terminal("x"),
        HandlerError::retry_exhausted(3, "x"),
        HandlerError::CircuitOpen { closes_in: SECOND },
        HandlerError::BackpressureReject,
        HandlerError::Dropped,
        HandlerError::NotRunning,
    ]
}

#[tokio::test]
async fn a_time_out_counts_as_a_failure() {
    let (clock, breaker) = (ControlledClock::new(), breaker(1));
    let guarded = Policies::around(async |_: u32, _: Context| pending::<Result<(), HandlerError>>().await)
        .clock(clock.clone())
        .circuit_breaker(breaker.clone())
        .timeout(SECOND)
        .build()
        .unwrap();
    let call = tokio::spawn(async move { guarded.call(1).await });
    clock.advance(SECOND).await;
    assert!(matches!(prompt(call).await.unwrap(), Err(HandlerError::Timeout { .. })));
    assert_eq!(breaker.state(), CircuitState::Open { closes_in: RESET });
}

/// A circuit that is half open with nothing on trial.
async fn half_open() -> (ControlledClock, CircuitBreaker, Guarded<impl Handler<Do, Output = ()>, Do>) {
    let (clock, breaker) = (ControlledClock::new(), breaker(1));
    let guarded = guarded(&clock, &breaker);
    let _ = guarded.call(fail()).await;
    clock.advance(RESET).await;
    assert_eq!(breaker.state(), CircuitState::HalfOpen { trial: false });
    (clock, breaker, guarded)
}

#[tokio::test]
async fn one_call_at_a_time_goes_through_on_trial_and_its_success_closes_the_circuit() {
    let (clock, breaker, guarded) = half_open().await;
    let trial = spawn(&guarded, Do::Late(4 * SECOND, true));
    clock.advance(SECOND).await;
    assert_eq!(breaker.state(), CircuitState::HalfOpen { trial: true });
    assert_eq!(refused(&guarded).await, 9 * SECOND);
    clock.advance(3 * SECOND).await;
    prompt(trial).await.unwrap().unwrap();
    assert_eq!(breaker.state(), CircuitState::Closed { failures: 0 });
    guarded.call(Do::Succeed).await.unwrap();
}

#[tokio::test]
async fn a_trial_that_fails_opens_it_for_as_long_again() {
    for what in [fail(), Do::Panic] {
        let (clock, breaker, guarded) = half_open().await;
        let _ = guarded.call(what).await;
        assert_eq!(breaker.state(), CircuitState::Open { closes_in: RESET });
        clock.advance(RESET).await;
        guarded.call(Do::Succeed).await.unwrap();
        assert_eq!(breaker.state(), CircuitState::Closed { failures: 0 });
    }
}

#[tokio::test]
async fn a_trial_that_says_nothing_gives_the_trial_to_the_next() {
    let (_clock, breaker, guarded) = half_open().await;
    for neutral in neutrals() {
        let _ = guarded.call(Do::Fail(neutral)).await;
        assert_eq!(breaker.state(), CircuitState::HalfOpen { trial: false });
    }
    guarded.call(Do::Succeed).await.unwrap();
    assert_eq!(breaker.state(), CircuitState::Closed { failures: 0 });
}

#[tokio::test]
async fn a_trial_whose_future_is_dropped_gives_the_trial_to_the_next() {
    let (clock, breaker, guarded) = half_open().await;
    let trial = spawn(&guarded, Do::Hang);
    clock.settle().await;
    assert_eq!(breaker.state(), CircuitState::HalfOpen { trial: true });
    trial.abort();
    let _ = prompt(trial).await;
    assert_eq!(breaker.state(), CircuitState::HalfOpen { trial: false });
    guarded.call(Do::Succeed).await.unwrap();
    assert_eq!(breaker.state(), CircuitState::Closed { failures: 0 });
}

#[tokio::test]
async fn a_trial_that_takes_longer_than_the_reset_lets_another_try_and_then_says_nothing() {
    for (late, state) in [
        (Do::Late(15 * SECOND, true), CircuitState::HalfOpen { trial: true }),
        (Do::Late(15 * SECOND, false), CircuitState::HalfOpen { trial: true }),
    ] {
        let (clock, breaker, guarded) = half_open().await;
        let first = spawn(&guarded, late);
        clock.advance(ms(9_999)).await;
        assert_eq!(refused(&guarded).await, ms(1));
        clock.advance(ms(1)).await;
        assert_eq!(breaker.state(), CircuitState::HalfOpen { trial: false });
        let second = spawn(&guarded, Do::Late(9 * SECOND, true));
        clock.advance(5 * SECOND).await;
        let _ = prompt(first).await.unwrap();
        assert_eq!(breaker.state(), state, "the first has no say any more");
        clock.advance(4 * SECOND).await;
        prompt(second).await.unwrap().unwrap();
        assert_eq!(breaker.state(), CircuitState::Closed { failures: 0 });
    }
}

#[tokio::test]
async fn a_trial_that_is_overdue_and_dropped_does_not_take_the_trial_from_the_next() {
    let (clock, breaker, guarded) = half_open().await;
    let first = spawn(&guarded, Do::Hang);
    clock.advance(RESET).await;
    let second = spawn(&guarded, Do::Hang);
    clock.settle().await;
    first.abort();
    let _ = prompt(first).await;
    assert_eq!(breaker.state(), CircuitState::HalfOpen { trial: true });
    second.abort();
}

#[tokio::test]
async fn late_results_of_calls_from_before_it_opened_neither_close_it_nor_disturb_a_trial() {
    let (clock, breaker) = (ControlledClock::new(), breaker(1));
    let guarded = guarded(&clock, &breaker);
    // They begin while it is closed, and end while it is open, while a trial runs, and when it is closed again.
    let while_open = spawn(&guarded, Do::Late(5 * SECOND, true));
    let in_trial =
        [spawn(&guarded, Do::Late(12 * SECOND, true)), spawn(&guarded, Do::Late(12 * SECOND, false))];
    let closed_again = spawn(&guarded, Do::Late(20 * SECOND, false));
    clock.settle().await;
    let _ = guarded.call(fail()).await;
    clock.advance(5 * SECOND).await;
    prompt(while_open).await.unwrap().unwrap();
    assert_eq!(breaker.state(), CircuitState::Open { closes_in: 5 * SECOND });
    clock.advance(5 * SECOND).await;
    let trial = spawn(&guarded, Do::Late(5 * SECOND, true));
    clock.advance(2 * SECOND).await;
    for call in in_trial {
        let _ = prompt(call).await.unwrap();
        assert_eq!(breaker.state(), CircuitState::HalfOpen { trial: true });
    }
    clock.advance(3 * SECOND).await;
    prompt(trial).await.unwrap().unwrap();
    clock.advance(5 * SECOND).await;
    prompt(closed_again).await.unwrap().unwrap_err();
    assert_eq!(breaker.state(), CircuitState::Closed { failures: 0 });
}

#[tokio::test]
async fn calls_that_fail_together_open_it_once_and_for_as_long_as_the_first() {
    let (clock, breaker) = (ControlledClock::new(), breaker(2));
    let guarded = guarded(&clock, &breaker);
    let calls: Vec<_> =
        [1, 1, 5, 9].map(|at| spawn(&guarded, Do::Late(at * SECOND, false))).into_iter().collect();
    clock.advance(9 * SECOND).await;
    for call in calls {
        assert!(matches!(prompt(call).await.unwrap(), Err(HandlerError::Failed(_))));
    }
    assert_eq!(breaker.state(), CircuitState::Open { closes_in: 2 * SECOND });
}

#[tokio::test]
async fn one_circuit_around_several_handlers_opens_for_all() {
    let (clock, breaker) = (ControlledClock::new(), breaker(2));
    let (one, other) = (guarded(&clock, &breaker), guarded(&clock, &breaker));
    let _ = one.call(fail()).await;
    let _ = other.call(fail()).await;
    assert_eq!((refused(&one).await, refused(&other).await), (RESET, RESET));
}

#[tokio::test]
async fn it_keeps_the_clock_of_the_handler_that_was_built_first() {
    let (first, second, breaker) = (ControlledClock::new(), ControlledClock::new(), breaker(1));
    let (one, other) = (guarded(&first, &breaker), guarded(&second, &breaker));
    let _ = other.call(fail()).await;
    second.advance(RESET).await;
    assert_eq!(refused(&one).await, RESET);
    first.advance(RESET).await;
    other.call(Do::Succeed).await.unwrap();
}

#[tokio::test]
async fn a_reset_that_no_clock_can_hold_keeps_it_open() {
    let clock = ControlledClock::new();
    let breaker = CircuitBreaker::new(NonZeroU32::MIN, Duration::MAX);
    let guarded = guarded(&clock, &breaker);
    let _ = guarded.call(fail()).await;
    clock.advance(86_400 * SECOND).await;
    assert!(refused(&guarded).await > 86_400 * 364 * SECOND);
    let debug = format!("{breaker:?}");
    assert!(debug.contains("Open"), "{debug}");
}

#[tokio::test]
async fn its_readiness_is_that_of_the_handler_and_says_when_a_call_would_go_through() {
    let (clock, breaker) = (ControlledClock::new(), breaker(1));
    let guarded = guarded(&clock, &breaker);
    let readiness = guarded.readiness().expect("it has a circuit breaker");
    let says = || (readiness.is_ready(), readiness.is_trial());
    assert_eq!(says(), (true, false));
    prompt(readiness.ready()).await;
    let _ = guarded.call(fail()).await;
    assert_eq!(says(), (false, false));
    clock.advance(RESET).await;
    assert_eq!(says(), (true, true));
    let trial = spawn(&guarded, Do::Late(SECOND, true));
    clock.settle().await;
    assert_eq!(says(), (false, false));
    clock.advance(SECOND).await;
    prompt(trial).await.unwrap().unwrap();
    assert_eq!(says(), (true, false));
}

/// Tells of each time that waiting for readiness ends.
fn waits(breaker: &CircuitBreaker) -> (JoinHandle<()>, mpsc::UnboundedReceiver<bool>) {
    let (told, heard) = mpsc::unbounded_channel();
    let breaker = breaker.clone();
    let task = tokio::spawn(async move {
        breaker.ready().await;
        let _ = told.send(breaker.is_trial());
    });
    (task, heard)
}

#[tokio::test]
async fn who_waits_for_readiness_wakes_when_the_reset_has_passed() {
    let (clock, breaker) = (ControlledClock::new(), breaker(1));
    let guarded = guarded(&clock, &breaker);
    let _ = guarded.call(fail()).await;
    let (_task, mut heard) = waits(&breaker);
    clock.advance(ms(9_999)).await;
    assert!(heard.try_recv().is_err());
    clock.advance(ms(1)).await;
    assert_eq!(heard.try_recv(), Ok(true));
}

#[tokio::test]
async fn who_waits_while_a_trial_runs_wakes_with_its_result() {
    // Succeeds; says nothing; is dropped.
    for how in 0..3 {
        let (clock, breaker, guarded) = half_open().await;
        let what = if how == 0 { Do::Late(SECOND, true) } else { Do::Hang };
        let trial = spawn(&guarded, what);
        clock.settle().await;
        let (_task, mut heard) = waits(&breaker);
        clock.advance(ms(999)).await;
        assert!(heard.try_recv().is_err());
        if how == 0 {
            clock.advance(ms(1)).await;
        } else {
            trial.abort();
        }
        assert_eq!(prompt(heard.recv()).await, Some(how != 0));
    }
}

#[tokio::test]
async fn who_waits_while_a_trial_fails_waits_for_the_new_reset() {
    let (clock, breaker, guarded) = half_open().await;
    let _trial = spawn(&guarded, Do::Late(SECOND, false));
    clock.settle().await;
    let (_task, mut heard) = waits(&breaker);
    clock.advance(ms(10_999)).await;
    assert!(heard.try_recv().is_err());
    clock.advance(ms(1)).await;
    assert_eq!(heard.try_recv(), Ok(true));
    assert_eq!(clock.sleepers(), 0);
}

#[tokio::test]
async fn without_a_breaker_a_handler_has_no_readiness_and_one_around_another_asks_both() {
    let clock = ControlledClock::new();
    let plain = Policies::around(async |_: u32, _: Context| Ok::<_, HandlerError>(())).build().unwrap();
    assert!(plain.readiness().is_none());
    let (inner, outer) = (breaker(1), breaker(1));
    let within = guarded(&clock, &inner);
    let around = Policies::around(within.clone()).clock(clock.clone()).circuit_breaker(outer.clone());
    let around = around.build().unwrap();
    let readiness = around.readiness().expect("it has two");
    let _ = within.call(fail()).await;
    assert!(!readiness.is_ready() && outer.is_ready());
    let waiting = tokio::spawn({
        let readiness = readiness.clone();
        async move { readiness.ready().await }
    });
    clock.advance(RESET).await;
    prompt(waiting).await.unwrap();
    assert!(readiness.is_ready() && readiness.is_trial() && !outer.is_trial());
    // One that only passes its readiness on.
    let passing = Policies::around(within).build().unwrap();
    assert!(passing.readiness().expect("it is the inner one's").is_trial());
}
