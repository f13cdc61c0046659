//! Trying again within the process.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::future::ready;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use tokio_util::sync::CancellationToken;
use windlass::backoff::Backoff;
use windlass::clock::{Clock, ControlledClock};
use windlass::handler::{Context, Handler, HandlerError, Policies, Retry};
use windlass::message::Message;

use support::{Log, SECOND, millis_after, ms, prompt};

fn times(attempts: u32) -> Retry {
    let backoff = Backoff::new(ms(100)).with_jitter(0.0);
    Retry::new(NonZeroU32::new(attempts).unwrap()).with_backoff(backoff)
}

/// Fails as the script says, call by call, and then returns its payload; writes down when it was called.
fn scripted(
    clock: &ControlledClock,
    script: Vec<HandlerError>,
) -> (impl Handler<u32, Output = u32>, Log<Instant>) {
    let (calls, clock) = (Log::new(), clock.clone());
    let written = calls.clone();
    let handler = move |payload: u32, _: Context| {
        let error = script.get(written.len()).cloned();
        written.add(clock.now());
        ready(error.map_or(Ok(payload), Err))
    };
    (handler, calls)
}

fn failed() -> HandlerError {
    HandlerError::failed("reset")
}

#[tokio::test]
async fn what_may_go_better_is_tried_again_after_growing_waits() {
    let clock = ControlledClock::new();
    let start = clock.now();
    let script = vec![
        failed(),
        HandlerError::Timeout { after: SECOND },
        HandlerError::Panicked { message: "x".into() },
    ];
    let (handler, calls) = scripted(&clock, script);
    let guarded = Policies::around(handler).clock(clock.clone()).retry(times(4)).build().unwrap();
    let call = tokio::spawn(async move { guarded.call(7).await });
    clock.advance(ms(700)).await;
    assert_eq!(prompt(call).await.unwrap().unwrap(), 7);
    assert_eq!(millis_after(start, &calls.all()), [0, 100, 300, 700]);
}

#[tokio::test]
async fn a_real_panic_is_tried_again() {
    let clock = ControlledClock::new();
    let calls = Arc::new(AtomicU32::new(0));
    let handler = {
        let calls = Arc::clone(&calls);
        move |_: u32, _: Context| {
            assert!(calls.fetch_add(1, Ordering::Relaxed) > 0, "the first call panics");
            ready(Ok::<_, HandlerError>(()))
        }
    };
    let guarded = Policies::around(handler).clock(clock.clone()).retry(times(2)).build().unwrap();
    let call = tokio::spawn(async move { guarded.call(7).await });
    clock.advance(ms(100)).await;
    prompt(call).await.unwrap().unwrap();
    assert_eq!(calls.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn what_cannot_go_better_goes_through_at_once() {
    let rows = [
        HandlerError::invalid_input("x"),
        HandlerError::invalid_output("x"),
        HandlerError::terminal("x"),
        HandlerError::CircuitOpen { closes_in: SECOND },
        HandlerError::BackpressureReject,
        HandlerError::Dropped,
        HandlerError::NotRunning,
        HandlerError::retry_exhausted(3, "x"),
    ];
    for error in rows {
        let clock = ControlledClock::new();
        let (handler, calls) = scripted(&clock, vec![error.clone()]);
        let guarded = Policies::around(handler).clock(clock).retry(times(5)).build().unwrap();
        let returned = prompt(guarded.call(7)).await.unwrap_err();
        assert_eq!(returned.class_name(), error.class_name());
        assert_eq!(calls.len(), 1, "{error:?}");
    }
}

#[tokio::test]
async fn the_last_failure_says_how_often_and_why() {
    let clock = ControlledClock::new();
    let (handler, calls) = scripted(&clock, vec![failed(), failed(), HandlerError::failed("still down")]);
    let guarded = Policies::around(handler).clock(clock.clone()).retry(times(3)).build().unwrap();
    let call = tokio::spawn(async move { guarded.call(7).await });
    clock.advance(ms(300)).await;
    let error = prompt(call).await.unwrap().unwrap_err();
    let HandlerError::RetryExhausted { attempts: 3, last } = &error else { panic!("{error:?}") };
    let last = last.downcast_ref::<HandlerError>().expect("the last error is one of ours");
    assert!(matches!(last, HandlerError::Failed(why) if why.error().to_string() == "still down"), "{last:?}");
    assert_eq!(calls.len(), 3);
    assert_eq!(clock.sleepers(), 0);
}

#[tokio::test]
async fn with_one_attempt_a_failure_is_the_last_at_once() {
    let clock = ControlledClock::new();
    let (handler, calls) = scripted(&clock, vec![failed()]);
    let guarded = Policies::around(handler).clock(clock).retry(times(1)).build().unwrap();
    let error = prompt(guarded.call(7)).await.unwrap_err();
    assert!(matches!(error, HandlerError::RetryExhausted { attempts: 1, .. }), "{error:?}");
    assert_eq!(calls.len(), 1);
}

#[tokio::test]
async fn the_jitter_is_the_messages_own_and_the_same_every_time() {
    let mut gaps = Vec::new();
    for id in ["m-1", "m-1", "m-2"] {
        let clock = ControlledClock::new();
        let start = clock.now();
        let (handler, calls) = scripted(&clock, vec![failed()]);
        let backoff = Backoff::new(SECOND).with_jitter(0.5);
        let guarded = Policies::around(handler)
            .clock(clock.clone())
            .retry(Retry::new(NonZeroU32::new(2).unwrap()).with_backoff(backoff))
            .build()
            .unwrap();
        let context = Context::new(Message::new("").with_id(id), CancellationToken::new());
        let call = tokio::spawn(async move { guarded.handle(7, context).await });
        clock.advance(2 * SECOND).await;
        prompt(call).await.unwrap().unwrap();
        gaps.push(calls.all()[1] - start);
    }
    assert_eq!(gaps[0], gaps[1]);
    assert_ne!(gaps[0], gaps[2]);
    assert!(gaps.iter().all(|gap| (ms(500)..=ms(1_500)).contains(gap)), "{gaps:?}");
}

#[tokio::test]
async fn a_wait_ends_with_the_context_and_gives_the_last_error() {
    let clock = ControlledClock::new();
    let (handler, calls) = scripted(&clock, vec![failed(), HandlerError::failed("second")]);
    let guarded = Policies::around(handler).clock(clock.clone()).retry(times(9)).build().unwrap();
    let cancel = CancellationToken::new();
    let context = Context::new(Message::new(""), cancel.clone());
    let call = tokio::spawn(async move { guarded.handle(7, context).await });
    clock.advance(ms(150)).await;
    cancel.cancel();
    let error = prompt(call).await.unwrap().unwrap_err();
    let HandlerError::Failed(failure) = &error else { panic!("{error:?}") };
    assert_eq!(failure.error().to_string(), "second");
    assert_eq!((calls.len(), clock.sleepers()), (2, 0));
}

#[tokio::test]
async fn a_wait_ends_with_a_stop_and_gives_the_last_error() {
    let clock = ControlledClock::new();
    let (handler, calls) = scripted(&clock, vec![failed(); 9]);
    let guarded = Policies::around(handler).clock(clock.clone()).retry(times(9)).build().unwrap();
    let call = tokio::spawn({
        let guarded = guarded.clone();
        async move { guarded.call(7).await }
    });
    clock.settle().await;
    guarded.stop();
    let error = prompt(call).await.unwrap().unwrap_err();
    assert!(matches!(error, HandlerError::Failed(_)), "{error:?}");
    assert_eq!((calls.len(), clock.sleepers()), (1, 0));
}

#[tokio::test]
async fn a_try_that_fails_after_a_stop_or_a_cancellation_is_the_last() {
    let clock = ControlledClock::new();
    for by_stop in [true, false] {
        let calls = Arc::new(AtomicU32::new(0));
        let handler = {
            let (calls, clock) = (Arc::clone(&calls), clock.clone());
            move |_: u32, _: Context| {
                calls.fetch_add(1, Ordering::Relaxed);
                let nap = clock.sleep(SECOND);
                async move {
                    nap.await;
                    Err::<(), _>(failed())
                }
            }
        };
        let guarded = Policies::around(handler).clock(clock.clone()).retry(times(9)).build().unwrap();
        let cancel = CancellationToken::new();
        let context = Context::new(Message::new(""), cancel.clone());
        let call = tokio::spawn({
            let guarded = guarded.clone();
            async move { guarded.handle(7, context).await }
        });
        clock.settle().await;
        if by_stop {
            guarded.stop();
        } else {
            cancel.cancel();
        }
        clock.advance(SECOND).await;
        let error = prompt(call).await.unwrap().unwrap_err();
        assert!(matches!(error, HandlerError::Failed(_)), "{error:?}");
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    }
}

/// A payload that counts its clones, and panics at the one that it is told to.
#[derive(Debug)]
struct Counted {
    clones: Arc<AtomicU32>,
    panic_at: u32,
}

impl Clone for Counted {
    fn clone(&self) -> Self {
        let number = self.clones.fetch_add(1, Ordering::Relaxed) + 1;
        assert!(number != self.panic_at, "clone {number}");
        Self { clones: Arc::clone(&self.clones), panic_at: self.panic_at }
    }
}

fn counted(panic_at: u32) -> (Counted, Arc<AtomicU32>) {
    let clones = Arc::new(AtomicU32::new(0));
    (Counted { clones: Arc::clone(&clones), panic_at }, clones)
}

#[tokio::test]
async fn the_last_try_has_the_payload_itself() {
    let clock = ControlledClock::new();
    let guarded = Policies::around(|_: Counted, _: Context| ready(Err::<(), _>(failed())))
        .clock(clock.clone())
        .retry(times(3))
        .build()
        .unwrap();
    let (payload, clones) = counted(0);
    let call = tokio::spawn(async move { guarded.call(payload).await });
    clock.advance(SECOND).await;
    prompt(call).await.unwrap().unwrap_err();
    assert_eq!(clones.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn a_clone_that_panics_ends_the_tries() {
    let clock = ControlledClock::new();
    let guarded = Policies::around(|_: Counted, _: Context| ready(Err::<(), _>(failed())))
        .clock(clock.clone())
        .retry(times(5))
        .build()
        .unwrap();
    let (payload, clones) = counted(2);
    let call = tokio::spawn(async move { guarded.call(payload).await });
    clock.advance(SECOND).await;
    let error = prompt(call).await.expect("the panic does not escape").unwrap_err();
    assert!(matches!(&error, HandlerError::Panicked { message } if message == "clone 2"), "{error:?}");
    assert_eq!(clones.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn a_kept_payload_or_an_earlier_error_that_panics_when_dropped_undoes_nothing() {
    #[derive(Debug, Clone)]
    struct Kept(Arc<AtomicU32>);
    impl Drop for Kept {
        fn drop(&mut self) {
            // The copies are dropped first; the payload itself is the last that there is.
            assert!(Arc::strong_count(&self.0) > 1, "the payload panics");
        }
    }
    #[derive(Debug, thiserror::Error)]
    #[error("an error that panics when it is dropped")]
    struct Nasty;
    impl Drop for Nasty {
        fn drop(&mut self) {
            panic!("the error panics");
        }
    }
    let clock = ControlledClock::new();
    let calls = Arc::new(AtomicU32::new(0));
    let handler = {
        let calls = Arc::clone(&calls);
        move |_: Kept, _: Context| {
            let first = calls.fetch_add(1, Ordering::Relaxed) == 0;
            ready(if first { Err(HandlerError::failed(Nasty)) } else { Ok(1) })
        }
    };
    let guarded = Policies::around(handler).clock(clock.clone()).retry(times(3)).build().unwrap();
    let call = tokio::spawn(async move { guarded.call(Kept(Arc::default())).await });
    clock.advance(ms(100)).await;
    assert_eq!(prompt(call).await.expect("the panics do not escape").unwrap(), 1);
}

#[tokio::test]
async fn a_payload_that_cannot_be_cloned_needs_no_retry() {
    struct Unique(u32);
    let guarded = Policies::around(|payload: Unique, _: Context| ready(Ok::<_, HandlerError>(payload.0)))
        .timeout(SECOND)
        .build()
        .unwrap();
    assert_eq!(guarded.call(Unique(3)).await.unwrap(), 3);
}

#[tokio::test]
async fn the_attempt_of_the_message_is_the_same_at_each_try() {
    let (clock, attempts) = (ControlledClock::new(), Log::new());
    let handler = {
        let attempts = attempts.clone();
        move |_: u32, context: Context| {
            attempts.add((context.attempt(), context.message().id().to_owned()));
            ready(Err::<(), _>(failed()))
        }
    };
    let guarded = Policies::around(handler).clock(clock.clone()).retry(times(2)).build().unwrap();
    let message = Message::new("").with_id("m-1").with_attempt(4);
    let context = Context::new(message, CancellationToken::new());
    let call = tokio::spawn(async move { guarded.handle(7, context).await });
    clock.advance(SECOND).await;
    prompt(call).await.unwrap().unwrap_err();
    assert_eq!(attempts.all(), [(4, "m-1".to_owned()), (4, "m-1".to_owned())]);
}
