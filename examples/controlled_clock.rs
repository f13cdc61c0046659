//! A test of a schedule that takes more than a day, in milliseconds, and the same in every run.
//!
//! ```text
//! cargo run --example controlled_clock
//! cargo test --example controlled_clock      the same, as a test
//! ```

#![allow(clippy::print_stdout)]

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use windlass::clock::{Clock, ControlledClock};
use windlass::consumer::RetryPolicy;
use windlass::memory::MemorySource;
use windlass::{Context, Message, QueueConsumer, codec};

const HOUR: Duration = Duration::from_secs(3_600);

async fn an_invoice_is_tried_again_after_1_6_and_24_hours_and_then_given_up() -> windlass::Result<()> {
    // One clock for the broker and the consumer. It stands still until `advance`.
    let clock = ControlledClock::new();
    let source = MemorySource::new(clock.clone());
    let queue = source.queue().clone();

    // A handler that always fails, and notes when it was called.
    let calls = Arc::new(Mutex::new(Vec::new()));
    let handler = {
        let (calls, clock, start) = (Arc::clone(&calls), clock.clone(), clock.now());
        move |_: bytes::Bytes, context: Context| {
            let call = (context.attempt(), clock.now() - start);
            calls.lock().unwrap_or_else(PoisonError::into_inner).push(call);
            async { Err::<(), _>("the mail server is away") }
        }
    };
    let calls = || calls.lock().unwrap_or_else(PoisonError::into_inner).clone();

    let consumer = QueueConsumer::with_decoder(source, codec::bytes, handler)
        .clock(clock.clone())
        .retry_policy(RetryPolicy::schedule([HOUR, 6 * HOUR, 24 * HOUR]))
        .start()?;
    queue.publish(Message::new("invoice 17"));

    // The first attempt is made at once. `until` waits for a condition, within a bound; a test never sleeps.
    queue.until(|queue| queue.counts().delayed == 1).await?;
    assert_eq!(calls(), [(1, Duration::ZERO)]);

    // One second too early, nothing has happened; on the hour, the second attempt.
    clock.advance(HOUR - Duration::from_secs(1)).await;
    assert_eq!(calls().len(), 1);
    clock.advance(Duration::from_secs(1)).await;
    assert_eq!(calls(), [(1, Duration::ZERO), (2, HOUR)]);

    // `advance` goes from deadline to deadline: a week runs through all that is left, each at its own time.
    clock.advance(7 * 24 * HOUR).await;
    assert_eq!(calls()[2..], [(3, 7 * HOUR), (4, 31 * HOUR)]);

    // Given up, and kept for an operator with the cause.
    let dead = queue.dead_lettered();
    assert_eq!(dead.len(), 1);
    assert_eq!(dead[0].1.cause.to_string(), "retry_exhausted:4: handler_error: the mail server is away");
    assert!(consumer.stop().await.is_clean());
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> windlass::Result<()> {
    // The system's clock, since this asks how long a person would have waited.
    let clock = windlass::clock::SystemClock;
    let start = clock.now();
    an_invoice_is_tried_again_after_1_6_and_24_hours_and_then_given_up().await?;
    println!("a schedule of 31 hours, checked in {:?}", clock.now() - start);
    Ok(())
}

#[cfg(test)]
mod tests {
    /// On the current-thread runtime, which is the default here, each run takes the same steps.
    #[tokio::test]
    async fn an_invoice_is_tried_again_after_1_6_and_24_hours_and_then_given_up() -> windlass::Result<()> {
        super::an_invoice_is_tried_again_after_1_6_and_24_hours_and_then_given_up().await
    }
}
