//! The stages: each takes a post, and returns what goes onward. None of them publishes; `Onward` does, and the post is
//! acked once all of it is confirmed.

use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

use windlass::broker::Broker;
use windlass::clock::Clock;
use windlass::consumer::{ConsumerEvent, RetryPolicy};
use windlass::handler::{Onward, Outgoing};
use windlass::{ConsumerHandle, Context, HandlerError, Queue, QueueConsumer, Result};

use super::{ALL, Board, Post, SINK, TRANSPORT, queue_of};

/// What a stage does. Which of them there are, and in which order, is a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Takes what clients say, and tells everybody who listens.
    Writer,
    /// Blacks out what nobody should read.
    Redaction,
    /// Knows which transport node has which client. The last one.
    TransportManager,
}

/// How long a post waits whose transport node is not there, and how often.
pub(super) const WAIT: Duration = Duration::from_millis(250);
const TRIES: usize = 2_400;

const SECRET: &str = "swordfish";

impl Stage {
    pub(crate) const ALL: [Self; 3] = [Self::Writer, Self::Redaction, Self::TransportManager];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Writer => "writer",
            Self::Redaction => "redaction",
            Self::TransportManager => "transport-manager",
        }
    }
}

/// A stage in its place.
#[derive(Clone)]
pub(super) struct Work {
    pub(super) stage: Stage,
    pub(super) next: Option<Queue<Post>>,
    pub(super) slots: NonZeroU32,
}

impl Work {
    fn on(&self, mut post: Post) -> Result<Vec<Outgoing>, HandlerError> {
        match self.stage {
            Stage::Writer if post.text.is_empty() => Err(HandlerError::terminal("nothing was said")),
            Stage::Writer => {
                Ok([Outgoing::broadcast(&ALL, &post)].into_iter().chain(self.pass(&post)).collect())
            }
            Stage::Redaction => {
                post.text = post.text.replace(SECRET, &"*".repeat(SECRET.len()));
                Ok(self.pass(&post).collect())
            }
            Stage::TransportManager => {
                let node = TRANSPORT.slot(post.client % self.slots + 1);
                Ok(vec![Outgoing::to(&SINK, &post), Outgoing::to(&node, &post)])
            }
        }
    }

    fn pass(&self, post: &Post) -> impl Iterator<Item = Outgoing> {
        self.next.iter().map(|next| Outgoing::to(next, post))
    }
}

pub(super) async fn start(
    broker: &Broker,
    work: Work,
    board: &Arc<Board>,
    clock: &Arc<dyn Clock>,
) -> Result<ConsumerHandle> {
    let (stage, board) = (work.stage, Arc::clone(board));
    let queue = queue_of(stage);
    let source = broker.source(queue.name()).await?;
    let handler = move |post: Post, _: Context| std::future::ready(work.on(post));
    let onward = Onward::new(stage.name(), broker.publisher(), handler);
    QueueConsumer::of(&queue, source, onward)
        .max_concurrent(NonZeroUsize::new(8).unwrap_or(NonZeroUsize::MIN))
        .retry_policy(RetryPolicy::schedule(std::iter::repeat_n(WAIT, TRIES)))
        .clock(Arc::clone(clock))
        .on_event(move |event: &ConsumerEvent| {
            if stage == Stage::TransportManager && event.outcome.name() == "done" {
                let line = event.message.correlation_id().to_owned();
                board.write(|tally| tally.routed.insert(line));
            }
        })
        .start()
}
