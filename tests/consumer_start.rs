//! What a start refuses, and what it takes.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;
use windlass::backoff::Backoff;
use windlass::clock::ControlledClock;
use windlass::codec;
use windlass::consumer::{QueueConsumer, RetryPolicy};
use windlass::error::Chain;
use windlass::handler::{Context, Handler, HandlerError};
use windlass::memory::MemorySource;
use windlass::source::{DynSource, MessageSource};
use windlass::{Error, ErrorKind};

use support::{SECOND, prompt, publish, queue};

async fn done(_: Bytes, _: Context) -> Result<(), HandlerError> {
    Ok(())
}

fn plain() -> QueueConsumer<MemorySource, impl Handler<Bytes, Output = ()>, Bytes> {
    QueueConsumer::with_decoder(MemorySource::new(ControlledClock::new()), codec::bytes, done)
}

fn refusal<S: MessageSource>(consumer: QueueConsumer<S, impl Handler<Bytes>, Bytes>) -> Error {
    let error = consumer.start().unwrap_err();
    assert_eq!((error.kind(), error.is_transient()), (ErrorKind::Invalid, false));
    error
}

#[tokio::test]
async fn an_option_that_cannot_be_right_is_refused_by_its_name() {
    let none: [Duration; 0] = [];
    let rows = [
        (refusal(plain().retry_policy(RetryPolicy::schedule(none))), "retry_policy"),
        (refusal(plain().retry_policy(RetryPolicy::schedule([SECOND, Duration::ZERO]))), "retry_policy"),
        (refusal(plain().settle_timeout(Duration::ZERO)), "settle_timeout"),
        (refusal(plain().close_timeout(Duration::ZERO)), "close_timeout"),
    ];
    for (error, name) in rows {
        assert!(error.to_string().contains(name), "{error}");
    }
    let zero_delay = refusal(plain().retry_policy(RetryPolicy::schedule([SECOND, Duration::ZERO])));
    assert!(zero_delay.to_string().contains("delay 2"), "{zero_delay}");
}

#[tokio::test]
async fn run_refuses_what_start_refuses() {
    let error = plain().settle_timeout(Duration::ZERO).run(CancellationToken::new()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

#[test]
fn a_start_without_a_runtime_is_an_error_and_no_panic() {
    let error = refusal(plain());
    assert!(error.to_string().contains("runtime"), "{error}");
    assert!(Chain(&error).to_string().len() > error.to_string().len(), "tokio's reason is behind it");
}

#[tokio::test]
async fn handles_of_a_refused_consumer_do_not_wait_for_ever() {
    let consumer = plain().close_timeout(Duration::ZERO);
    let handle = consumer.handle();
    let _ = refusal(consumer);
    let _ = prompt(handle.wait()).await;
    let _ = prompt(handle.stop()).await;
    prompt(handle.pause()).await;
    prompt(handle.resume()).await;
}

#[tokio::test]
async fn zero_is_fine_where_it_makes_sense() {
    let consumer = plain()
        .drain_timeout(Duration::ZERO)
        .drain_grace(Duration::ZERO)
        .receive_backoff(Backoff::new(Duration::ZERO))
        .requeue_backoff(Backoff::new(Duration::ZERO).with_max(Duration::ZERO))
        .retry_policy(RetryPolicy::never());
    let handle = consumer.start().unwrap();
    assert!(prompt(handle.stop()).await.is_clean());
}

/// Setters cannot fail, and the start validates: a number that no machine can hold is an error or works, not a panic.
#[tokio::test]
async fn as_many_handlers_as_can_be_written_are_no_reason_to_panic() {
    let started =
        catch_unwind(AssertUnwindSafe(|| plain().max_concurrent(NonZeroUsize::MAX).start().is_ok()));
    assert!(started.is_ok());
}

#[tokio::test]
async fn an_erased_source_and_a_shared_one_are_sources() {
    let (clock, queue) = queue();
    publish(&queue, 1);
    let erased = DynSource::new(queue.source());
    let handle =
        QueueConsumer::with_decoder(erased, codec::bytes, done).clock(clock.clone()).start().unwrap();
    queue.until(|queue| queue.counts().acked == 1).await.unwrap();
    assert!(prompt(handle.stop()).await.is_clean());
    publish(&queue, 1);
    let shared = Arc::new(queue.source());
    let handle =
        QueueConsumer::with_decoder(Arc::clone(&shared), codec::bytes, done).clock(clock).start().unwrap();
    queue.until(|queue| queue.counts().acked == 2).await.unwrap();
    assert!(prompt(handle.stop()).await.is_clean());
    assert!(!shared.health().is_ready());
}

#[tokio::test]
async fn a_consumer_prints_its_options_and_not_its_handler() {
    let text = format!("{:?}", plain().drain_timeout(7 * SECOND));
    assert!(text.contains("drain_timeout: 7s") && text.contains("memory"), "{text}");
}

#[test]
fn a_runtime_without_a_timer_is_refused() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let error = runtime.block_on(async { plain().start().map(drop) }).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("enable_time"), "{error}");
}
