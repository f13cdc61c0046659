//! What a result means for its message, decided by the service: a webhook sender that reads HTTP status codes.
//!
//! ```text
//! cargo run --example custom_on_result
//! ```

#![allow(clippy::print_stdout)]

use std::time::Duration;

use serde::Deserialize;
use windlass::clock::ControlledClock;
use windlass::consumer::default_on_result;
use windlass::memory::MemorySource;
use windlass::{Context, HandlerError, Message, NackReason, QueueConsumer, Settlement};

#[derive(Deserialize)]
struct Webhook {
    url: String,
}

/// What the other side said. For the handler every reply is a success: it got one.
struct Reply {
    status: u16,
    retry_after: Option<Duration>,
}

/// Stands for an HTTP client.
async fn post(webhook: Webhook, context: Context) -> Result<Reply, std::io::Error> {
    let reply = |status| Ok(Reply { status, retry_after: None });
    match webhook.url.as_str() {
        "/busy" if context.attempt() < 3 => {
            Ok(Reply { status: 429, retry_after: Some(Duration::from_secs(30)) })
        }
        "/always-busy" => Ok(Reply { status: 429, retry_after: None }),
        "/gone" => reply(410),
        "/down" => Err(std::io::Error::other("connection refused")),
        _ => reply(204),
    }
}

/// Decides by what the handler returned; what it does not decide goes to the default.
fn settle(result: &Result<Reply, HandlerError>, message: &Message) -> Settlement {
    match result {
        Ok(Reply { status: 429, .. }) if message.attempt() >= 5 => {
            // A retry with a delay of its own is kept whatever the attempt: who names the delay also gives up.
            NackReason::dead_letter("still_busy").into()
        }
        Ok(Reply { status: 429, retry_after, .. }) => {
            NackReason::retry_after(retry_after.unwrap_or(Duration::from_secs(60)), "http:429").into()
        }
        Ok(Reply { status: 400.., .. }) => NackReason::dead_letter("rejected").into(),
        // `Ok` is acked, an error is tried again after 1 s, 2 s and 4 s, a payload that is no JSON is dead-lettered.
        other => default_on_result(other),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> windlass::Result<()> {
    // Minutes of waiting, in no time: the clock moves when it is told to.
    let clock = ControlledClock::new();
    let source = MemorySource::new(clock.clone());
    let queue = source.queue().clone();
    for url in ["/ok", "/busy", "/always-busy", "/gone", "/down"] {
        queue.publish(Message::new(format!(r#"{{"url": "{url}"}}"#)).with_id(url));
    }
    queue.publish(Message::new("no JSON").with_id("broken"));

    let consumer = QueueConsumer::new(source, post)
        .clock(clock.clone())
        .on_result(settle)
        .on_event(|event| println!("{:<13} {}", event.message.id(), event.settlement))
        .start()?;
    clock.advance(Duration::from_secs(600)).await;
    queue.until(|queue| queue.counts().acked + queue.counts().dead_lettered as u64 == 6).await?;

    let stats = consumer.stop().await.stats;
    println!("{} acked, {} retries, {} dead letters", stats.acked, stats.retried, stats.dead_lettered);
    let causes: Vec<_> = queue
        .dead_lettered()
        .iter()
        .map(|(message, letter)| (message.id().to_owned(), letter.cause.code().to_owned()))
        .collect();
    let expected = [
        ("/gone", "rejected"),
        ("broken", "validation:input"),
        ("/down", "retry_exhausted:4"),
        ("/always-busy", "still_busy"),
    ];
    assert_eq!(causes, expected.map(|(id, code)| (id.to_owned(), code.to_owned())));
    assert_eq!((stats.acked, stats.retried), (2, 2 + 4 + 3));
    Ok(())
}
