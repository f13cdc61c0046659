//! The order of the policies, by what can be seen of it; validation; what is refused when they are built.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::error::Error as _;
use std::future::{pending, ready};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use windlass::ErrorKind;
use windlass::backoff::Backoff;
use windlass::clock::{Clock, ControlledClock};
use windlass::handler::{
    CircuitBreaker, CircuitState, Concurrency, Context, Direction, Guarded, Handler, HandlerError, Policies,
    Retry, WhenFull,
};

use support::{Log, SECOND, at_most, ms, prompt};

fn times(attempts: u32) -> Retry {
    let backoff = Backoff::new(ms(100)).with_jitter(0.0);
    Retry::new(NonZeroU32::new(attempts).unwrap()).with_backoff(backoff)
}

fn breaker(threshold: u32) -> CircuitBreaker {
    CircuitBreaker::new(NonZeroU32::new(threshold).unwrap(), 10 * SECOND)
}

/// Returns its payload; counts its calls.
fn echo() -> (impl Handler<u32, Output = u32>, Arc<AtomicU32>) {
    let calls = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&calls);
    let handler = move |payload: u32, _: Context| {
        counter.fetch_add(1, Ordering::Relaxed);
        ready(Ok::<_, HandlerError>(payload))
    };
    (handler, calls)
}

/// Fails always; counts its calls.
fn failing() -> (impl Handler<u32, Output = u32>, Arc<AtomicU32>) {
    let calls = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&calls);
    let handler = move |_: u32, _: Context| {
        counter.fetch_add(1, Ordering::Relaxed);
        ready(Err::<u32, _>(HandlerError::failed("reset")))
    };
    (handler, calls)
}

fn hangs(_: u32, _: Context) -> std::future::Pending<Result<u32, HandlerError>> {
    pending()
}

fn even(number: &u32) -> Result<(), String> {
    if number.is_multiple_of(2) { Ok(()) } else { Err(format!("{number} is odd")) }
}

fn count(calls: &AtomicU32) -> u32 {
    calls.load(Ordering::Relaxed)
}

#[tokio::test]
async fn what_is_wrong_with_the_input_keeps_the_handler_from_being_called() {
    let (handler, calls) = echo();
    let guarded = Policies::around(handler).validate_input(even).build().unwrap();
    assert_eq!(guarded.call(2).await.unwrap(), 2);
    let error = guarded.call(3).await.unwrap_err();
    let HandlerError::Validation { direction: Direction::Input, failure } = &error else {
        panic!("{error:?}")
    };
    assert_eq!(failure.error().to_string(), "3 is odd");
    assert_eq!(count(&calls), 1);
}

#[tokio::test]
async fn what_is_wrong_with_the_output_is_a_validation_of_the_output() {
    let (handler, calls) = echo();
    let guarded = Policies::around(handler).validate_output(even).build().unwrap();
    assert_eq!(guarded.call(2).await.unwrap(), 2);
    let error = guarded.call(3).await.unwrap_err();
    assert!(matches!(error, HandlerError::Validation { direction: Direction::Output, .. }), "{error:?}");
    assert_eq!(count(&calls), 2);
}

#[tokio::test]
async fn a_validator_that_panics_is_a_panic_of_the_call() {
    fn panics(_: &u32) -> Result<(), String> {
        panic!("validator")
    }
    for input in [true, false] {
        let (handler, calls) = echo();
        let policies = Policies::around(handler).retry(times(3)).circuit_breaker(breaker(1));
        let policies = if input { policies.validate_input(panics) } else { policies.validate_output(panics) };
        let guarded = policies.build().unwrap();
        let error = prompt(guarded.call(2)).await.unwrap_err();
        assert!(matches!(&error, HandlerError::Panicked { message } if message == "validator"), "{error:?}");
        assert_eq!(count(&calls), u32::from(!input), "it stands outside the retry");
    }
}

#[tokio::test]
async fn a_stop_comes_before_the_validation() {
    let (handler, calls) = echo();
    let looked = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&looked);
    let valid = move |_: &u32| {
        counter.fetch_add(1, Ordering::Relaxed);
        Err("never")
    };
    let guarded = Policies::around(handler).validate_input(valid).build().unwrap();
    guarded.stop();
    assert!(matches!(guarded.call(3).await, Err(HandlerError::NotRunning)));
    assert_eq!((count(&looked), count(&calls)), (0, 0));
}

#[tokio::test]
async fn the_validation_comes_before_the_limit_of_concurrency() {
    let limit = Concurrency::new(at_most(1), 1).with_when_full(WhenFull::DropOldest);
    let guarded = Policies::around(hangs).validate_input(even).concurrency(limit).build().unwrap();
    let mut running = Box::pin(guarded.call(2));
    let mut waiting = Box::pin(guarded.call(4));
    assert!(futures::poll!(running.as_mut()).is_pending());
    assert!(futures::poll!(waiting.as_mut()).is_pending());
    assert!(matches!(guarded.call(3).now_or_never(), Some(Err(HandlerError::Validation { .. }))));
    assert!(futures::poll!(waiting.as_mut()).is_pending(), "nobody left the queue for it");
}

#[tokio::test]
async fn a_call_keeps_its_turn_between_its_tries() {
    let clock = ControlledClock::new();
    let (handler, calls) = failing();
    let guarded = Policies::around(handler)
        .clock(clock.clone())
        .concurrency(Concurrency::new(at_most(1), 0))
        .retry(times(2))
        .build()
        .unwrap();
    let call = tokio::spawn({
        let guarded = guarded.clone();
        async move { guarded.call(1).await }
    });
    clock.advance(ms(50)).await;
    assert!(matches!(guarded.call(2).now_or_never(), Some(Err(HandlerError::BackpressureReject))));
    clock.advance(ms(50)).await;
    assert!(matches!(prompt(call).await.unwrap(), Err(HandlerError::RetryExhausted { attempts: 2, .. })));
    assert_eq!(count(&calls), 2);
}

#[tokio::test]
async fn the_output_is_looked_at_within_the_turn() {
    type Call = Box<dyn Fn() -> BoxFuture<'static, Result<u32, HandlerError>> + Send + Sync>;
    let again: Arc<OnceLock<Call>> = Arc::default();
    let seen = Log::new();
    let valid = {
        let (again, seen) = (Arc::clone(&again), seen.clone());
        move |_: &u32| {
            let meanwhile = again.get().expect("it is set")().now_or_never();
            seen.add(meanwhile.map(|result| result.unwrap_err().class_name()));
            Ok::<_, HandlerError>(())
        }
    };
    let guarded = Policies::around(echo().0)
        .validate_output(valid)
        .concurrency(Concurrency::new(at_most(1), 0))
        .build()
        .unwrap();
    let other = guarded.clone();
    let call = move || -> BoxFuture<'static, _> {
        let other = other.clone();
        Box::pin(async move { other.call(2).await })
    };
    assert!(again.set(Box::new(call)).is_ok());
    guarded.call(1).await.unwrap();
    assert_eq!(seen.all(), [Some("backpressure_reject")]);
}

#[tokio::test]
async fn an_output_that_is_wrong_is_no_failure_for_the_breaker() {
    let breaker = breaker(2);
    let fails_on_zero = |payload: u32, _: Context| {
        ready(if payload == 0 { Err(HandlerError::failed("reset")) } else { Ok(payload) })
    };
    let guarded = Policies::around(fails_on_zero)
        .validate_output(even)
        .circuit_breaker(breaker.clone())
        .build()
        .unwrap();
    guarded.call(0).await.unwrap_err();
    assert_eq!(breaker.state(), CircuitState::Closed { failures: 1 });
    assert!(matches!(guarded.call(3).await, Err(HandlerError::Validation { .. })));
    assert_eq!(breaker.state(), CircuitState::Closed { failures: 0 });
}

#[tokio::test]
async fn each_try_is_a_call_for_the_breaker_and_where_it_opens_the_tries_end() {
    let (clock, breaker) = (ControlledClock::new(), breaker(2));
    let (handler, calls) = failing();
    let guarded = Policies::around(handler)
        .clock(clock.clone())
        .retry(times(5))
        .circuit_breaker(breaker.clone())
        .build()
        .unwrap();
    let call = tokio::spawn(async move { guarded.call(1).await });
    clock.advance(ms(300)).await;
    let error = prompt(call).await.unwrap().unwrap_err();
    // Opened 100 ms after the call, refused at 300 ms.
    assert!(matches!(error, HandlerError::CircuitOpen { closes_in } if closes_in == ms(9_800)), "{error:?}");
    assert_eq!(count(&calls), 2);
}

#[tokio::test]
async fn the_wait_for_a_turn_uses_up_no_time_out() {
    let clock = ControlledClock::new();
    let handler = {
        let clock = clock.clone();
        move |payload: u32, _: Context| {
            let nap = clock.sleep(ms(900));
            async move {
                nap.await;
                Ok::<_, HandlerError>(payload)
            }
        }
    };
    let guarded = Policies::around(handler)
        .clock(clock.clone())
        .concurrency(Concurrency::new(at_most(1), 4))
        .timeout(SECOND)
        .build()
        .unwrap();
    let calls: Vec<_> = (1..=3)
        .map(|call| {
            let guarded = guarded.clone();
            tokio::spawn(async move { guarded.call(call).await })
        })
        .collect();
    clock.advance(ms(2_700)).await;
    for call in calls {
        prompt(call).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_call_that_is_refused_by_the_circuit_leaves_its_turn_at_once() {
    let guarded = Policies::around(failing().0)
        .concurrency(Concurrency::new(at_most(1), 0))
        .circuit_breaker(breaker(1))
        .build()
        .unwrap();
    guarded.call(1).await.unwrap_err();
    for _ in 0..3 {
        assert!(matches!(guarded.call(1).await, Err(HandlerError::CircuitOpen { .. })));
    }
}

#[tokio::test]
async fn a_call_whose_drop_panics_gives_turn_and_trial_back_all_the_same() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("dropped");
        }
    }
    let (clock, breaker) = (ControlledClock::new(), breaker(1));
    let handler = |payload: u32, _: Context| async move {
        match payload {
            0 => Err(HandlerError::failed("reset")),
            1 => {
                let _bomb = Bomb;
                pending().await
            }
            _ => Ok(()),
        }
    };
    let guarded = Policies::around(handler)
        .clock(clock.clone())
        .concurrency(Concurrency::new(at_most(1), 0))
        .circuit_breaker(breaker.clone())
        .timeout(SECOND)
        .build()
        .unwrap();
    guarded.call(0).await.unwrap_err();
    clock.advance(10 * SECOND).await;
    let mut trial = Box::pin(guarded.call(1));
    assert!(futures::poll!(trial.as_mut()).is_pending());
    assert_eq!(breaker.state(), CircuitState::HalfOpen { trial: true });
    let dropped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(trial)));
    assert!(dropped.is_err(), "it is the dropper's own panic");
    assert_eq!(breaker.state(), CircuitState::HalfOpen { trial: false });
    guarded.call(2).await.unwrap();
}

#[tokio::test]
async fn all_of_them_together_let_a_good_call_through() {
    let (clock, breaker) = (ControlledClock::new(), breaker(1));
    let guarded: Guarded<_, u32> = Policies::around(echo().0)
        .clock(clock.clone())
        .timeout(SECOND)
        .retry(times(3))
        .circuit_breaker(breaker.clone())
        .concurrency(Concurrency::new(at_most(2), 2))
        .validate_input(even)
        .validate_output(even)
        .build()
        .unwrap();
    for call in 0..100 {
        assert_eq!(prompt(guarded.call(2 * call)).await.unwrap(), 2 * call);
    }
    assert_eq!(clock.sleepers(), 0);
    assert!(format!("{guarded:?}").contains("timeout: Some(1s)"), "{guarded:?}");
}

#[test]
fn settings_that_make_no_sense_are_refused_by_name() {
    let none = CircuitBreaker::new(NonZeroU32::MIN, Duration::ZERO);
    let nobody = Concurrency::new(at_most(1), 0).with_when_full(WhenFull::DropOldest);
    let rows = [
        (Policies::around(hangs).timeout(Duration::ZERO), "timeout: zero leaves no time"),
        (Policies::around(hangs).circuit_breaker(none), "circuit_breaker: a reset of zero"),
        (Policies::around(hangs).concurrency(nobody), "concurrency: WhenFull::DropOldest with a queue of 0"),
    ];
    for (policies, said) in rows {
        let error = policies.build().expect_err(said);
        assert_eq!((error.kind(), error.is_transient()), (ErrorKind::Invalid, false));
        assert!(error.to_string().contains(said), "{error}");
        assert!(error.source().is_none());
    }
}

#[test]
fn the_least_and_the_most_of_each_setting_is_taken() {
    for (time, count, queue) in
        [(Duration::from_nanos(1), NonZeroU32::MIN, 0), (Duration::MAX, NonZeroU32::MAX, usize::MAX)]
    {
        let policies = Policies::around(hangs)
            .timeout(time)
            .retry(Retry::new(count).with_backoff(Backoff::new(time)))
            .circuit_breaker(CircuitBreaker::new(count, time))
            .concurrency(Concurrency::new(at_most(1), queue));
        policies.build().unwrap();
    }
}
