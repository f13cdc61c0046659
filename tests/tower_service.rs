//! Services of tower as handlers: readiness, tower's own errors by its real layers, panics; called directly, and by a
//! consumer. tower's timers are tokio's, whose clock stands still here and jumps when all wait.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "tower_service/consumed.rs"]
mod consumed;
#[path = "tower_service/services.rs"]
mod services;
mod support;

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tower::buffer::Buffer;
use tower::load_shed::LoadShed;
use tower::timeout::error::Elapsed;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, ServiceBuilder, service_fn};
use windlass::clock::{Clock, ControlledClock};
use windlass::error::Chain;
use windlass::handler::{Context, Direction, Handler, HandlerError, ServiceHandler};
use windlass::message::Message;

use services::{OnlyWhenReady, Unready, While, errors_logged};
use support::{Log, SECOND, ms, prompt};

fn context() -> Context {
    Context::new(Message::new("x").with_id("m-1").with_attempt(3), CancellationToken::new())
}

async fn handle<T, H: Handler<T>>(handler: &H, payload: T) -> Result<H::Output, HandlerError> {
    prompt(handler.handle(payload, context())).await
}

#[tokio::test]
async fn the_request_is_the_payload_and_the_response_is_the_output() {
    let service = service_fn(|order: String| async move { Ok::<_, Infallible>(order.len()) });
    assert_eq!(handle(&ServiceHandler::new(service), "lamp".to_owned()).await.unwrap(), 4);
}

#[tokio::test]
async fn the_request_may_be_made_of_the_payload_and_the_context() {
    let service = service_fn(|request: (String, u32)| async move { Ok::<_, Infallible>(request) });
    let handler =
        ServiceHandler::mapped(service, |order: String, context: Context| (order, context.attempt()));
    assert_eq!(handle(&handler, "lamp".to_owned()).await.unwrap(), ("lamp".to_owned(), 3));
}

#[tokio::test]
async fn a_service_behind_a_box_is_a_handler() {
    let service = service_fn(|number: u32| async move { Ok::<_, BoxError>(number + 1) });
    let handler = ServiceHandler::new(BoxCloneSyncService::new(service));
    assert_eq!(handle(&handler, 1).await.unwrap(), 2);
}

/// A service may take for granted that the clone that is called is the one that was ready; tower's limits panic else.
#[tokio::test]
async fn the_clone_that_was_ready_is_the_one_that_is_called() {
    let service = OnlyWhenReady::after(3);
    let handler = ServiceHandler::new(service.clone());
    for number in 1..=3 {
        assert_eq!(handle(&handler, number).await.unwrap(), number);
    }
    // Each call asked its own clone, until that was ready.
    assert_eq!((service.asked.len(), service.called.all()), (9, vec![1, 2, 3]));
}

#[tokio::test(start_paused = true)]
async fn waiting_for_readiness_is_part_of_the_call_and_can_be_dropped() {
    let gate = Arc::new(Semaphore::new(0));
    let called = Log::new();
    let service = service_fn({
        let (gate, called) = (Arc::clone(&gate), called.clone());
        move |number: u32| {
            let gate = Arc::clone(&gate);
            called.add(number);
            async move { gate.acquire().await.map(|permit| permit.forget()) }
        }
    });
    let handler = ServiceHandler::new(ServiceBuilder::new().concurrency_limit(1).service(service));
    let call = |number| Box::pin(handler.handle(number, context()));
    let (mut first, mut second, mut third) = (call(1), call(2), call(3));
    for waiting in [&mut first, &mut second, &mut third] {
        assert!(futures::poll!(waiting).is_pending());
    }
    assert_eq!(called.all(), [1]);
    // The second waits for its turn, and is dropped: its turn goes to the third.
    drop(second);
    gate.add_permits(2);
    prompt(first).await.unwrap();
    prompt(third).await.unwrap();
    assert_eq!(called.all(), [1, 3]);
}

#[tokio::test(start_paused = true)]
async fn a_timeout_of_tower_is_a_timeout_with_the_time_that_the_call_took() {
    let never = service_fn(|(): ()| async move { pending::<Result<(), Infallible>>().await });
    let handler = ServiceHandler::new(ServiceBuilder::new().timeout(ms(1_500)).service(never));
    let error = handle(&handler, ()).await.unwrap_err();
    assert!(matches!(error, HandlerError::Timeout { after } if after == ms(1_500)), "{error:?}");

    let error = handle(&handler.clone().time_limit(ms(1_499)), ()).await.unwrap_err();
    assert!(matches!(error, HandlerError::Timeout { after } if after == ms(1_499)), "{error:?}");
}

/// tower's `Timeout` starts at the call: the wait for readiness is no part of what it gave.
#[tokio::test(start_paused = true)]
async fn the_wait_for_readiness_is_no_part_of_the_timeout() {
    let never = service_fn(|(): ()| async move { pending::<Result<(), Infallible>>().await });
    let service = ServiceBuilder::new().concurrency_limit(1).timeout(SECOND).service(never);
    let handler = ServiceHandler::new(service);
    let (first, second) =
        prompt(async { tokio::join!(handler.handle((), context()), handler.handle((), context())) }).await;
    for error in [first.unwrap_err(), second.unwrap_err()] {
        assert!(matches!(error, HandlerError::Timeout { after } if after == SECOND), "{error:?}");
    }
}

#[tokio::test]
async fn the_time_is_measured_by_the_clock_that_was_given() {
    let clock = ControlledClock::new();
    let service = service_fn({
        let clock = clock.clone();
        move |(): ()| {
            let clock = clock.clone();
            async move {
                clock.advance(ms(250)).await;
                Err::<(), _>(Elapsed::new())
            }
        }
    });
    let error = handle(&ServiceHandler::new(service).clock(clock), ()).await.unwrap_err();
    assert!(matches!(error, HandlerError::Timeout { after } if after == ms(250)), "{error:?}");
}

#[tokio::test]
async fn a_call_that_a_full_service_sheds_is_rejected() {
    let limited = While::new();
    let service = ServiceBuilder::new().load_shed().concurrency_limit(1).service(limited.service());
    let handler = ServiceHandler::new(service);
    let mut first = Box::pin(handler.handle(1, context()));
    assert!(futures::poll!(&mut first).is_pending());
    let error = handle(&handler, 2).await.unwrap_err();
    assert!(matches!(error, HandlerError::BackpressureReject), "{error:?}");
    limited.open();
    prompt(first).await.unwrap();
    handle(&handler, 3).await.unwrap();
    assert_eq!(limited.called.all(), [1, 3]);
}

/// A rate limit is not `Clone`, and so is behind a buffer, with the shedding within.
#[tokio::test(start_paused = true)]
async fn a_call_above_the_rate_is_rejected_until_the_time_is_over() {
    let clock = windlass::clock::SystemClock;
    let service = service_fn(|number: u32| async move { Ok::<_, BoxError>(number) });
    let service = ServiceBuilder::new().buffer(4).load_shed().rate_limit(2, 60 * SECOND).service(service);
    let handler = ServiceHandler::new(service);
    assert_eq!(handle(&handler, 1).await.unwrap(), 1);
    assert_eq!(handle(&handler, 2).await.unwrap(), 2);
    let error = handle(&handler, 3).await.unwrap_err();
    assert!(matches!(error, HandlerError::BackpressureReject), "{error:?}");
    clock.sleep(60 * SECOND).await;
    assert_eq!(handle(&handler, 4).await.unwrap(), 4);
}

#[tokio::test]
async fn a_full_buffer_sheds_too() {
    let service = Buffer::<u32, _>::pair(While::new().service(), 1);
    // Nobody runs the worker, so that the one place stays taken.
    let (buffer, _worker) = service;
    let handler = ServiceHandler::new(LoadShed::new(buffer));
    let mut first = Box::pin(handler.handle(1, context()));
    assert!(futures::poll!(&mut first).is_pending());
    let error = handle(&handler, 2).await.unwrap_err();
    assert!(matches!(error, HandlerError::BackpressureReject), "{error:?}");
}

#[tokio::test]
async fn a_buffer_whose_worker_panicked_is_not_running() {
    let service = service_fn(|number: u32| async move { Ok::<_, BoxError>(number) });
    let service = ServiceBuilder::new().buffer(4).map_request(|number: u32| 10 / number).service(service);
    let handler = ServiceHandler::new(service);
    assert_eq!(handle(&handler, 5).await.unwrap(), 2);
    // The worker makes the call, and ends with it: first for the one whose call it was, then for all.
    for number in [0, 5] {
        let error = handle(&handler, number).await.unwrap_err();
        assert!(matches!(error, HandlerError::NotRunning), "{error:?}");
    }
}

#[tokio::test]
async fn a_buffer_whose_service_failed_for_good_blames_no_message_and_says_so_in_the_log() {
    let logged = Log::new();
    let _guard = errors_logged(&logged);
    let service = ServiceBuilder::new().buffer(4).service(Unready::because(|| "no route".into()));
    let handler = ServiceHandler::new(service);
    for number in [1, 2] {
        let error = handle(&handler, number).await.unwrap_err();
        assert!(matches!(error, HandlerError::NotRunning), "{error:?}");
    }
    let logged = logged.all();
    assert_eq!(logged.len(), 2, "{logged:?}");
    assert!(logged.iter().all(|line| line.contains("no route") && line.contains("buffer")), "{logged:?}");
}

#[tokio::test]
async fn what_is_within_the_error_of_a_buffer_is_honoured() {
    let service = Unready::because(|| HandlerError::CircuitOpen { closes_in: SECOND }.into());
    let handler = ServiceHandler::new(ServiceBuilder::new().buffer(4).service(service));
    for number in [1, 2] {
        let error = handle(&handler, number).await.unwrap_err();
        assert!(matches!(error, HandlerError::CircuitOpen { closes_in } if closes_in == SECOND), "{error:?}");
    }
}

#[tokio::test]
async fn errors_of_readiness_are_mapped_as_those_of_calls_are() {
    let handler = ServiceHandler::new(Unready::because(|| "no route".into()));
    let error = handle(&handler, 1).await.unwrap_err();
    assert!(matches!(error, HandlerError::Failed(_)), "{error:?}");
    assert!(Chain(&error).to_string().ends_with(": no route"), "{}", Chain(&error));

    let handler = ServiceHandler::new(Unready::because(|| HandlerError::terminal("sold").into()));
    let error = handle(&handler, 1).await.unwrap_err();
    assert!(matches!(error, HandlerError::Terminal(_)), "{error:?}");

    let clock = ControlledClock::new();
    let handler = ServiceHandler::new(Unready::because(|| Elapsed::new().into())).clock(clock);
    let error = handle(&handler, 1).await.unwrap_err();
    assert!(matches!(error, HandlerError::Timeout { after } if after.is_zero()), "{error:?}");
}

#[derive(Debug, thiserror::Error)]
#[error("while shipping")]
struct Wrapped(#[source] BoxError);

#[tokio::test]
async fn a_handler_error_is_honoured_through_layers_and_wrappers() {
    let service = service_fn(|(): ()| async move {
        Err::<(), BoxError>(Wrapped(HandlerError::invalid_output("no id").into()).into())
    });
    let service = ServiceBuilder::new().buffer(1).load_shed().timeout(SECOND).service(service);
    let error = handle(&ServiceHandler::new(service), ()).await.unwrap_err();
    assert!(matches!(error, HandlerError::Validation { direction: Direction::Output, .. }), "{error:?}");
    assert!(Chain(&error).to_string().contains("while shipping"), "{}", Chain(&error));
}

#[tokio::test]
async fn errors_of_tower_are_found_behind_wrappers_and_all_others_are_failed_attempts() {
    let failing = |error: fn() -> BoxError| {
        ServiceHandler::new(service_fn(move |(): ()| async move { Err::<(), _>(error()) }))
    };
    let error = handle(&failing(|| Wrapped(Elapsed::new().into()).into()), ()).await.unwrap_err();
    assert!(matches!(error, HandlerError::Timeout { .. }), "{error:?}");

    // Whoever says what it is has looked at it.
    let error = handle(&failing(|| HandlerError::failed(Elapsed::new()).into()), ()).await.unwrap_err();
    assert!(matches!(error, HandlerError::Failed(_)), "{error:?}");

    let error = handle(&failing(|| io::Error::other("reset").into()), ()).await.unwrap_err();
    let HandlerError::Failed(failure) = &error else { panic!("{error:?}") };
    assert!(failure.downcast_ref::<io::Error>().is_some(), "{error:?}");
}
