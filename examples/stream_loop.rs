//! The loop without a handler: deliveries as a stream, each settled by value. Two loops share one source.
//!
//! ```text
//! cargo run --example stream_loop
//! ```

#![allow(clippy::print_stdout)]

use std::time::Duration;

use futures::StreamExt;
use tokio_util::sync::CancellationToken;
use windlass::clock::SystemClock;
use windlass::deliveries::{Deliveries, SourceExt};
use windlass::memory::{MemoryBroker, MemorySource};
use windlass::{Message, NackReason};

/// One loop: takes a delivery, works, answers. Returns how many it dropped without an answer.
async fn work(name: &str, mut deliveries: Deliveries<MemorySource>) -> windlass::Result<u64> {
    while let Some(delivery) = deliveries.next().await {
        // A failed receive is an item, too. Going on with the loop instead of `?` would wait a little and try again.
        let delivery = delivery?;
        let message = delivery.message().clone();
        // Stands for the work, which waits for something, and lets the other loop have its turn.
        tokio::task::yield_now().await;
        let (job, attempt) = (String::from_utf8_lossy(message.body()).into_owned(), message.attempt());
        match job.as_str() {
            "upload" if attempt == 1 => {
                println!("{name}: {job}, attempt {attempt}: not now, again in 10 ms");
                delivery.nack(NackReason::retry_after(Duration::from_millis(10), "disk_full")).await?;
            }
            "format c:" => {
                println!("{name}: {job}, attempt {attempt}: never");
                delivery.nack(NackReason::dead_letter("forbidden")).await?;
            }
            "resize" if !message.redelivered() => {
                println!("{name}: {job}, attempt {attempt}: forgotten");
                // An early `continue`, a `?`, a panic: an answer is easily forgotten. The delivery is dropped here,
                // and that puts the message back; it is no attempt, so that it comes as attempt 1 again.
            }
            _ => {
                println!("{name}: {job}, attempt {attempt}: done");
                delivery.ack().await?;
            }
        }
    }
    // Those that were dropped go back in the background: wait for that, so that none is left when the loop has ended.
    deliveries.all_put_back().await;
    Ok(deliveries.dropped())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> windlass::Result<()> {
    let queue = MemoryBroker::new(SystemClock).queue("jobs");
    for job in ["thumbnail", "upload", "format c:", "resize", "index", "notify"] {
        queue.publish(Message::new(job));
    }

    // Each loop has a clone of the source; a message goes to one of them. Sources that are not `Clone` go into an `Arc`.
    let source = queue.source();
    let stop = CancellationToken::new();
    let left = work("left ", source.clone().deliveries().stop_on(stop.clone()));
    let right = work("right", source.deliveries().stop_on(stop.clone()));
    let stop_when_done = async {
        queue.until(|queue| queue.counts().acked == 5 && queue.counts().dead_lettered == 1).await?;
        stop.cancel();
        Ok(())
    };
    let (left, right, ()) = tokio::try_join!(left, right, stop_when_done)?;

    let counts = queue.counts();
    println!(
        "{} acked, {} dead-lettered, {} dropped and back",
        counts.acked,
        counts.dead_lettered,
        left + right
    );
    assert_eq!((counts.pending, counts.delayed, counts.in_flight), (0, 0, 0), "nothing is left behind");
    assert_eq!(left + right, 1);
    Ok(())
}
