//! What a handler can return or throw, and the class that it becomes.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::panic::panic_any;

use anyhow::Context as _;
use bytes::Bytes;
use windlass::codec;
use windlass::consumer::{Outcome, QueueConsumer};
use windlass::error::BoxError;
use windlass::handler::{Context, Direction, Handler, HandlerError};
use windlass::message::Message;
use windlass::source::NackReason;

use support::{Events, ms, prompt, queue};

/// The error and the answer that the first try of `handler` leads to; a second message must then still be handled.
async fn first_try<H: Handler<Bytes>>(handler: H) -> (HandlerError, NackReason) {
    let (clock, queue) = queue();
    let events = Events::new();
    let consumer = QueueConsumer::with_decoder(queue.source(), codec::bytes, handler)
        .on_event(events.observer())
        .clock(clock.clone());
    let handle = consumer.start().unwrap();
    queue.publish(Message::new("x"));
    queue.until(|queue| queue.counts().nacked == 1).await.unwrap();
    queue.publish(Message::new("good"));
    // Past the waits of a requeue, and not yet at the first retry.
    clock.advance(ms(900)).await;
    assert_eq!(queue.counts().acked, 1);
    assert_eq!(prompt(handle.stop()).await.stats.loop_panics, 0);
    let first = events.all().remove(0);
    let Outcome::Failed(error) = first.outcome else { panic!("{:?}", first.outcome) };
    (error, queue.nacked()[0].1.clone())
}

/// A handler that does `work` for the first message and succeeds for the one called `good`.
fn failing<E: Into<BoxError> + Send + 'static>(
    work: impl Fn() -> Result<(), E> + Send + Sync + 'static,
) -> impl Handler<Bytes> {
    move |payload: Bytes, _: Context| {
        let result = if payload == "good" { Ok(()) } else { work() };
        async move { result }
    }
}

#[tokio::test]
async fn an_io_error_by_question_mark_is_a_failed_attempt() {
    let (error, reason) = first_try(failing(|| {
        std::fs::read("/nowhere/at/all")?;
        Ok::<_, std::io::Error>(())
    }))
    .await;
    let HandlerError::Failed(failure) = &error else { panic!("{error:?}") };
    assert_eq!(
        failure.downcast_ref::<std::io::Error>().map(std::io::Error::kind),
        Some(std::io::ErrorKind::NotFound)
    );
    assert_eq!(reason.cause().code(), "handler_error");
    assert!(reason.cause().detail().unwrap().contains("No such file"), "{reason}");
}

#[tokio::test]
async fn anyhow_without_context_keeps_a_terminal_error_terminal() {
    let (error, reason) = first_try(failing(|| -> anyhow::Result<()> {
        Err(HandlerError::terminal("declined"))?;
        Ok(())
    }))
    .await;
    assert!(matches!(error, HandlerError::Terminal(_)), "{error:?}");
    assert!(reason.cause().detail().unwrap().contains("declined"), "{reason}");
}

#[tokio::test]
async fn anyhow_with_context_keeps_a_terminal_error_terminal_and_tells_the_context() {
    let (error, reason) = first_try(failing(|| -> anyhow::Result<()> {
        Err(HandlerError::terminal("declined")).context("while paying").context("while ordering")
    }))
    .await;
    assert!(matches!(error, HandlerError::Terminal(_)), "{error:?}");
    let detail = reason.cause().detail().unwrap().to_owned();
    for part in ["while ordering", "while paying", "declined"] {
        assert_eq!(detail.matches(part).count(), 1, "{detail}");
    }
}

#[tokio::test]
async fn anyhow_with_context_keeps_the_classes_that_have_no_error_within() {
    let (error, reason) = first_try(failing(|| -> anyhow::Result<()> {
        Err(HandlerError::BackpressureReject).context("while asking")
    }))
    .await;
    assert!(matches!(error, HandlerError::BackpressureReject), "{error:?}");
    assert_eq!(reason, NackReason::requeue_now("queue_full"));
}

/// "Where a `HandlerError` is in its chain, that is honoured, `anyhow::Error` included."
#[tokio::test]
async fn anyhow_without_context_keeps_the_classes_that_have_no_error_within() {
    let (error, reason) = first_try(failing(|| -> anyhow::Result<()> {
        Err(HandlerError::BackpressureReject)?;
        Ok(())
    }))
    .await;
    assert!(matches!(error, HandlerError::BackpressureReject), "{error:?}");
    assert_eq!(reason, NackReason::requeue_now("queue_full"));
}

#[tokio::test]
async fn any_other_anyhow_error_is_a_failed_attempt() {
    let (error, reason) = first_try(failing(|| Err::<(), _>(anyhow::anyhow!("no luck")))).await;
    assert!(matches!(error, HandlerError::Failed(_)), "{error:?}");
    assert!(reason.cause().detail().unwrap().contains("no luck"), "{reason}");
}

#[tokio::test]
async fn of_two_handler_errors_the_outer_one_counts() {
    let (error, _) =
        first_try(failing(|| Err::<(), _>(HandlerError::failed(HandlerError::terminal("only today"))))).await;
    assert!(matches!(error, HandlerError::Failed(_)), "{error:?}");
    let (error, _) =
        first_try(failing(|| Err::<(), _>(HandlerError::terminal(HandlerError::invalid_output("no total")))))
            .await;
    assert!(matches!(error, HandlerError::Terminal(_)), "{error:?}");
}

#[tokio::test]
async fn text_is_an_error_too() {
    let (error, reason) = first_try(failing(|| Err::<(), _>("just text"))).await;
    assert!(matches!(error, HandlerError::Failed(_)), "{error:?}");
    assert_eq!(reason.cause().detail(), Some("just text"));
}

#[tokio::test]
async fn a_boxed_validation_error_keeps_its_direction() {
    let (error, reason) = first_try(failing(|| -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Err(HandlerError::invalid_output("no total"))?;
        Ok(())
    }))
    .await;
    assert!(matches!(error, HandlerError::Validation { direction: Direction::Output, .. }), "{error:?}");
    assert_eq!(reason.cause().code(), "validation:output");
}

struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("dropped");
        }
    }
}

#[tokio::test]
async fn a_panic_is_a_failed_attempt_whatever_it_throws() {
    let panics: [(fn(), &str); 4] = [
        (|| panic!("plain text"), "plain text"),
        (|| panic!("number {}", 7), "number 7"),
        (|| panic_any(7_u64), "a panic whose payload is not text"),
        (|| panic_any(PanicsWhenDropped), "a panic whose payload is not text"),
    ];
    for (panic, text) in panics {
        let (error, reason) = first_try(failing(move || {
            panic();
            Ok::<_, HandlerError>(())
        }))
        .await;
        assert!(matches!(&error, HandlerError::Panicked { message } if message == text), "{error:?}");
        assert_eq!((reason.cause().code(), reason.cause().detail()), ("panic", Some(text)));
    }
}

#[derive(Debug)]
struct PanicsWhenPrinted;

impl std::fmt::Display for PanicsWhenPrinted {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        panic!("printed")
    }
}

impl std::error::Error for PanicsWhenPrinted {}

#[tokio::test]
async fn an_error_that_panics_when_it_is_printed_is_a_failed_attempt() {
    let (_, reason) = first_try(failing(|| Err::<(), _>(PanicsWhenPrinted))).await;
    assert_eq!(reason.cause().code(), "on_result_panic");
}

#[tokio::test]
async fn a_very_long_error_text_is_cut_and_the_message_kept() {
    let (_, reason) = first_try(failing(|| Err::<(), _>(HandlerError::terminal("é".repeat(100_000))))).await;
    assert!(reason.cause().detail().unwrap().len() <= 1_024);
}
