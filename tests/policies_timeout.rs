//! The time-out around a handler, and panics of a handler.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::future::{pending, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context as Wake, Poll};

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use windlass::clock::{Clock, ControlledClock};
use windlass::handler::{Context, Guarded, Handler, HandlerError, Policies, Retry};
use windlass::message::Message;

use support::{Log, SECOND, ms, prompt};

fn limited<H: Handler<u32>>(clock: &ControlledClock, handler: H) -> Guarded<H, u32> {
    Policies::around(handler).clock(clock.clone()).timeout(SECOND).build().unwrap()
}

/// Calls it on a task of its own.
fn call<H>(guarded: &Guarded<H, u32>) -> JoinHandle<Result<H::Output, HandlerError>>
where
    H: Handler<u32>,
    H::Output: 'static,
{
    let guarded = guarded.clone();
    tokio::spawn(async move { guarded.call(7).await })
}

fn is_timeout<T: std::fmt::Debug>(result: &Result<T, HandlerError>) -> bool {
    matches!(result, Err(HandlerError::Timeout { after }) if *after == SECOND)
}

/// Panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("dropped");
    }
}

/// A future that is done at once, or never, and panics when it is dropped.
struct Fused {
    done: bool,
    _bomb: Bomb,
}

impl Future for Fused {
    type Output = Result<u32, HandlerError>;

    fn poll(self: Pin<&mut Self>, _: &mut Wake<'_>) -> Poll<Self::Output> {
        if self.done { Poll::Ready(Ok(1)) } else { Poll::Pending }
    }
}

#[tokio::test]
async fn a_handler_that_never_returns_is_timed_out_to_the_millisecond() {
    let clock = ControlledClock::new();
    let guarded = limited(&clock, async |_: u32, _: Context| {
        pending::<()>().await;
        Ok::<_, HandlerError>(())
    });
    let call = call(&guarded);
    clock.advance(ms(999)).await;
    assert!(!call.is_finished());
    clock.advance(ms(1)).await;
    assert!(is_timeout(&prompt(call).await.unwrap()));
    assert_eq!(clock.sleepers(), 0);
}

#[tokio::test]
async fn a_handler_that_is_done_in_time_keeps_its_result_and_leaves_no_timer() {
    let clock = ControlledClock::new();
    let guarded = limited(&clock, {
        let clock = clock.clone();
        move |payload: u32, _: Context| {
            let nap = clock.sleep(ms(900));
            async move {
                nap.await;
                Ok::<_, HandlerError>(payload + 1)
            }
        }
    });
    let call = call(&guarded);
    clock.advance(ms(900)).await;
    assert_eq!(prompt(call).await.unwrap().unwrap(), 8);
    assert_eq!(clock.sleepers(), 0);
}

#[tokio::test]
async fn a_handler_that_is_done_at_the_time_out_is_not_timed_out() {
    let clock = ControlledClock::new();
    let guarded = limited(&clock, {
        let clock = clock.clone();
        move |payload: u32, _: Context| {
            let nap = clock.sleep(SECOND);
            async move {
                nap.await;
                Ok::<_, HandlerError>(payload)
            }
        }
    });
    let call = call(&guarded);
    clock.advance(SECOND).await;
    assert_eq!(prompt(call).await.unwrap().unwrap(), 7);
}

#[tokio::test]
async fn the_token_of_the_try_has_fired_when_the_future_is_dropped_and_those_of_others_have_not() {
    struct Watch(CancellationToken, Log<bool>);
    impl Drop for Watch {
        fn drop(&mut self) {
            self.1.add(self.0.is_cancelled());
        }
    }
    let (clock, at_drop, tokens) = (ControlledClock::new(), Log::new(), Log::new());
    let handler = {
        let (at_drop, tokens) = (at_drop.clone(), tokens.clone());
        move |_: u32, context: Context| {
            tokens.add(context.cancellation().clone());
            let watch = Watch(context.cancellation().clone(), at_drop.clone());
            async move {
                let _watch = watch;
                pending::<()>().await;
                Ok::<_, HandlerError>(())
            }
        }
    };
    let guarded = limited(&clock, handler);
    let outer = CancellationToken::new();
    let context = Context::new(Message::new("").with_id("m-1"), outer.clone());
    let first = tokio::spawn({
        let (guarded, context) = (guarded.clone(), context.clone());
        async move { guarded.handle(1, context).await }
    });
    clock.advance(ms(500)).await;
    let second = tokio::spawn(async move { guarded.handle(2, context).await });
    clock.advance(ms(500)).await;
    assert!(is_timeout(&prompt(first).await.unwrap()));
    assert_eq!(at_drop.all(), [true]);
    let fired: Vec<bool> = tokens.all().iter().map(CancellationToken::is_cancelled).collect();
    assert_eq!(fired, [true, false]);
    assert!(!outer.is_cancelled());
    // The context's own cancellation reaches the tries.
    outer.cancel();
    assert!(tokens.all()[1].is_cancelled());
    clock.advance(ms(500)).await;
    assert!(is_timeout(&prompt(second).await.unwrap()));
}

#[tokio::test]
async fn a_token_that_is_asked_for_after_the_time_out_has_fired() {
    let (clock, contexts) = (ControlledClock::new(), Log::new());
    let handler = {
        let contexts = contexts.clone();
        move |_: u32, context: Context| {
            contexts.add(context);
            pending::<Result<(), HandlerError>>()
        }
    };
    let guarded = limited(&clock, handler);
    let call = call(&guarded);
    clock.advance(SECOND).await;
    assert!(is_timeout(&prompt(call).await.unwrap()));
    let context = contexts.all().remove(0);
    assert!(format!("{context:?}").contains("cancelled: true"), "{context:?}");
    assert!(context.cancellation().is_cancelled());
}

#[tokio::test]
async fn a_handler_that_returned_has_no_token_that_fires() {
    let (clock, contexts) = (ControlledClock::new(), Log::new());
    let handler = {
        let contexts = contexts.clone();
        move |_: u32, context: Context| {
            contexts.add(context);
            ready(Ok::<_, HandlerError>(()))
        }
    };
    let guarded = limited(&clock, handler);
    guarded.call(1).await.unwrap();
    clock.advance(60 * SECOND).await;
    assert!(!contexts.all()[0].cancellation().is_cancelled());
}

#[tokio::test]
async fn each_try_has_all_of_the_time() {
    let (clock, begun) = (ControlledClock::new(), Log::new());
    let start = clock.now();
    let handler = {
        let (clock, begun) = (clock.clone(), begun.clone());
        move |_: u32, context: Context| {
            begun.add((clock.now() - start, context.cancellation().is_cancelled()));
            pending::<Result<(), HandlerError>>()
        }
    };
    let backoff = windlass::backoff::Backoff::new(ms(100)).with_jitter(0.0);
    let guarded = Policies::around(handler)
        .clock(clock.clone())
        .timeout(SECOND)
        .retry(Retry::new(2.try_into().unwrap()).with_backoff(backoff))
        .build()
        .unwrap();
    let call = call(&guarded);
    clock.advance(ms(2_100)).await;
    let error = prompt(call).await.unwrap().unwrap_err();
    assert!(matches!(error, HandlerError::RetryExhausted { attempts: 2, .. }), "{error:?}");
    assert_eq!(begun.all(), [(ms(0), false), (ms(1_100), false)]);
}

#[tokio::test]
async fn a_panic_in_the_drop_at_the_time_out_changes_nothing() {
    let clock = ControlledClock::new();
    let inside = limited(&clock, async |_: u32, _: Context| {
        let _bomb = Bomb;
        pending::<()>().await;
        Ok::<_, HandlerError>(1)
    });
    let outside = limited(&clock, |_: u32, _: Context| Fused { done: false, _bomb: Bomb });
    let calls = [call(&inside), call(&outside)];
    clock.advance(SECOND).await;
    for call in calls {
        assert!(is_timeout(&prompt(call).await.expect("the panic does not escape")));
    }
}

#[tokio::test]
async fn a_waker_that_panics_at_the_time_out_changes_nothing() {
    struct Panics;
    impl std::task::Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("woken");
        }
    }
    let clock = ControlledClock::new();
    let guarded = limited(&clock, |_: u32, context: Context| async move {
        let waker = Arc::new(Panics).into();
        let mut fired = Box::pin(context.cancellation().cancelled());
        assert!(fired.as_mut().poll(&mut Wake::from_waker(&waker)).is_pending());
        pending::<Result<(), HandlerError>>().await
    });
    let call = call(&guarded);
    clock.advance(SECOND).await;
    assert!(is_timeout(&prompt(call).await.expect("the panic does not escape")));
}

#[tokio::test]
async fn a_panic_is_an_error_wherever_the_handler_panics() {
    let clock = ControlledClock::new();
    let panicked = |result: Result<u32, HandlerError>| match result {
        Err(HandlerError::Panicked { message }) => message,
        other => panic!("{other:?}"),
    };
    let in_the_call =
        |_: u32, _: Context| -> std::future::Ready<Result<u32, HandlerError>> { panic!("call") };
    let before_a_wait =
        async |_: u32, _: Context| -> Result<u32, HandlerError> { panic!("before {}", "a wait") };
    let after_a_wait = async |_: u32, _: Context| -> Result<u32, HandlerError> {
        tokio::task::yield_now().await;
        panic!("after a wait")
    };
    let at_the_end = |_: u32, _: Context| Fused { done: true, _bomb: Bomb };
    // With a time-out and without: the net is another one.
    assert_eq!(panicked(limited(&clock, in_the_call).call(1).await), "call");
    assert_eq!(panicked(limited(&clock, before_a_wait).call(1).await), "before a wait");
    assert_eq!(panicked(limited(&clock, after_a_wait).call(1).await), "after a wait");
    assert_eq!(panicked(limited(&clock, at_the_end).call(1).await), "dropped");
    assert_eq!(panicked(Policies::around(in_the_call).build().unwrap().call(1).await), "call");
    assert_eq!(panicked(Policies::around(before_a_wait).build().unwrap().call(1).await), "before a wait");
    assert_eq!(panicked(Policies::around(after_a_wait).build().unwrap().call(1).await), "after a wait");
    assert_eq!(panicked(Policies::around(at_the_end).build().unwrap().call(1).await), "dropped");
}

#[tokio::test]
async fn a_handler_that_ignores_its_cancellation_ends_at_the_time_out_all_the_same() {
    let (clock, polls) = (ControlledClock::new(), Arc::new(AtomicU32::new(0)));
    let handler = {
        let (clock, polls) = (clock.clone(), Arc::clone(&polls));
        move |_: u32, _: Context| {
            let (clock, polls) = (clock.clone(), Arc::clone(&polls));
            async move {
                loop {
                    clock.sleep(ms(300)).await;
                    polls.fetch_add(1, Ordering::Relaxed);
                }
                #[allow(unreachable_code)]
                Ok::<(), HandlerError>(())
            }
        }
    };
    let guarded = limited(&clock, handler);
    let cancelled = CancellationToken::new();
    cancelled.cancel();
    let call =
        tokio::spawn(async move { guarded.handle(1, Context::new(Message::new(""), cancelled)).await });
    clock.advance(10 * SECOND).await;
    assert!(is_timeout(&prompt(call).await.unwrap()));
    assert_eq!(polls.load(Ordering::Relaxed), 3, "nothing of it runs any more");
}

#[tokio::test]
async fn a_time_out_that_no_clock_can_hold_is_as_good_as_none() {
    let clock = ControlledClock::new();
    let handler = {
        let clock = clock.clone();
        move |payload: u32, _: Context| {
            let nap = clock.sleep(86_400 * SECOND);
            async move {
                nap.await;
                Ok::<_, HandlerError>(payload)
            }
        }
    };
    let guarded =
        Policies::around(handler).clock(clock.clone()).timeout(std::time::Duration::MAX).build().unwrap();
    let call = call(&guarded);
    clock.advance(86_400 * SECOND).await;
    assert_eq!(prompt(call).await.unwrap().unwrap(), 7);
}

#[tokio::test]
async fn the_token_of_a_nested_time_out_fires_with_the_outer_one() {
    let (clock, tokens) = (ControlledClock::new(), Log::new());
    let handler = {
        let tokens = tokens.clone();
        move |_: u32, context: Context| {
            tokens.add(context.cancellation().clone());
            pending::<Result<(), HandlerError>>()
        }
    };
    let inner = Policies::around(handler).clock(clock.clone()).timeout(60 * SECOND).build().unwrap();
    let outer = limited(&clock, inner);
    let call = call(&outer);
    clock.advance(SECOND).await;
    assert!(is_timeout(&prompt(call).await.unwrap()));
    assert!(tokens.all()[0].is_cancelled());
}
