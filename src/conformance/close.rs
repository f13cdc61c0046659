//! Closing: prompt, from anywhere, any number of times, and nothing is lost by it.

use std::pin::pin;
use std::sync::Arc;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::harness::Harness;
use super::trial::Trial;
use super::violation::Violation;
use super::waiting::{polled, received};
use crate::error::{ErrorKind, Result as SourceResult};
use crate::source::{Delivery, Health, MessageSource};

/// What was received and not settled, and what was buffered, goes back when the source is closed.
pub async fn a_closed_source_gives_back_what_was_not_settled<H: Harness>(
    trial: &Trial<H>,
) -> Result<(), Violation> {
    let source = trial.source(20).await?;
    let ids: Vec<String> = (0..20).map(|index| format!("m{index:02}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    trial.publish(&ids).await?;
    let held = [trial.any(&source, "first").await?, trial.any(&source, "second").await?];
    trial.close(&source).await?;
    let other = trial.source(20).await?;
    trial.all(&other, &ids, "from a new source after the old one was closed").await?;
    drop(held);
    Ok(())
}

/// What was received and not settled goes back when the source is dropped without having been closed.
pub async fn a_dropped_source_gives_back_what_was_not_settled<H: Harness>(
    trial: &Trial<H>,
) -> Result<(), Violation> {
    let source = trial.source(4).await?;
    let ids = ["a", "b", "c", "d"];
    trial.publish(&ids).await?;
    let held = [trial.any(&source, "first").await?, trial.any(&source, "second").await?];
    drop(source);
    let other = trial.source(4).await?;
    trial.all(&other, &ids, "from a new source after the old one was dropped").await?;
    drop(held);
    Ok(())
}

/// Closing a source that was closed does nothing, and is no error.
pub async fn closing_twice_is_harmless<H: Harness>(trial: &Trial<H>) -> Result<(), Violation> {
    let source = trial.source(1).await?;
    trial.publish(&["a"]).await?;
    let _held = trial.next(&source, "a", "after it was published").await?;
    trial.close(&source).await?;
    let other = trial.source(1).await?;
    let delivery = trial.next(&other, "a", "from a new source after the old one was closed").await?;
    for _ in 0..3 {
        trial.close(&source).await?;
    }
    trial.nothing(&other, "after the old source was closed once more, while `a` is in hand").await?;
    trial.ack(&other, delivery).await
}

/// Several tasks may close a source at the same time, and each of them comes back.
pub async fn several_tasks_may_close_at_once<H: Harness>(trial: &Trial<H>) -> Result<(), Violation> {
    let source = Arc::new(trial.source(4).await?);
    trial.publish(&["a", "b"]).await?;
    let _held = trial.any(&*source, "after it was published").await?;
    let mut tasks = JoinSet::new();
    for _ in 0..8 {
        let source = Arc::clone(&source);
        tasks.spawn(async move { source.close().await });
    }
    let closed = trial.bounded("eight tasks that close to return", tasks.join_all()).await?;
    let closed: SourceResult<Vec<()>> = closed.into_iter().collect();
    trial.done("close from eight tasks", async { closed }).await?;
    let other = trial.source(2).await?;
    trial.all(&other, &["a", "b"], "from a new source after the old one was closed").await.map(drop)
}

/// A source that was never used can be closed.
pub async fn an_unused_source_can_be_closed<H: Harness>(trial: &Trial<H>) -> Result<(), Violation> {
    trial.publish(&["a"]).await?;
    let source = trial.source(4).await?;
    trial.close(&source).await?;
    let other = trial.source(1).await?;
    let delivery = trial.next(&other, "a", "from a new source after an unused one was closed").await?;
    trial.ack(&other, delivery).await
}

/// A `receive` that waits ends promptly with `Closed` when the source is closed.
pub async fn a_waiting_receive_ends_when_the_source_is_closed<H: Harness>(
    trial: &Trial<H>,
) -> Result<(), Violation> {
    for polls in 0..5 {
        let source = trial.source(1).await?;
        let cancel = CancellationToken::new();
        let mut waiting = pin!(received(&source, &cancel));
        let early = polled(waiting.as_mut(), polls).await;
        trial
            .expect(early.is_none(), "receive to wait on an empty queue", || "that it did not".to_owned())?;
        trial.close(&source).await?;
        trial.refused("a receive that waited", &[ErrorKind::Closed], waiting).await?;
    }
    Ok(())
}

/// A `receive` after close is refused as `Closed`, even if messages are there, and takes none.
pub async fn a_receive_after_close_is_refused<H: Harness>(trial: &Trial<H>) -> Result<(), Violation> {
    let source = trial.source(2).await?;
    trial.publish(&["a"]).await?;
    trial.close(&source).await?;
    let cancel = CancellationToken::new();
    for _ in 0..3 {
        trial.refused("a receive after close", &[ErrorKind::Closed], source.receive(&cancel)).await?;
    }
    let other = trial.source(1).await?;
    let delivery: Delivery<_> = trial.next(&other, "a", "from a source that is open").await?;
    trial.ack(&other, delivery).await
}

/// The health is `Ready` while the source is open and messages come, and `Closed` once it was closed.
pub async fn the_health_tells_open_from_closed<H: Harness>(trial: &Trial<H>) -> Result<(), Violation> {
    let source = trial.source(1).await?;
    trial.publish(&["a"]).await?;
    let delivery = trial.next(&source, "a", "after it was published").await?;
    let open = source.health();
    trial.expect(open == Health::Ready, "the health Ready of an open source", || format!("{open:?}"))?;
    trial.ack(&source, delivery).await?;
    trial.close(&source).await?;
    let closed = source.health();
    trial.expect(closed == Health::Closed, "the health Closed of a closed source", || format!("{closed:?}"))
}
