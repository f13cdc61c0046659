//! The parts of the pipeline: what `examples/pipeline.rs` runs, and its tests too.

#![allow(dead_code, unused_imports, reason = "the program and its tests each use their part")]

mod board;
mod ends;
mod place;
mod settings;
mod stages;

use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use windlass::broker::{Broker, BrokerSource};
use windlass::clock::{Clock, within};
use windlass::consumer::Report;
use windlass::queue::Slot;
use windlass::{ConsumerHandle, PublisherExt, Queue, QueueFamily, Result};

pub(crate) use board::{Board, Delivered, Tally};
pub(crate) use ends::Sink;
pub(crate) use place::{prepare, topology};
pub(crate) use settings::{Settings, Wrong};
pub(crate) use stages::Stage;

/// What a client says, on its way to all who are in the same room.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Post {
    pub(crate) client: u32,
    pub(crate) text: String,
}

/// The queue of a stage has the stage's name.
const STAGE: Queue<Post> = Queue::new("stage");
/// Each transport node claims one of these.
pub(crate) const TRANSPORT: QueueFamily<Post> = QueueFamily::new("websockets-transport");
/// What goes to the sink.
pub(crate) const SINK: Queue<Post> = Queue::new("sink");
/// The exchange on which everybody may listen.
pub(crate) const ALL: Queue<Post> = Queue::new("chat.all");

/// For how long what is under way may take to arrive when the pipeline stops.
const TO_ARRIVE: Duration = Duration::from_secs(10);

/// All that runs.
pub(crate) struct Pipeline {
    broker: Broker,
    clock: Arc<dyn Clock>,
    board: Arc<Board>,
    head: Queue<Post>,
    slots: NonZeroU32,
    /// In the order in which a post passes them.
    stages: Vec<(String, ConsumerHandle)>,
    transports: Vec<(u32, ConsumerHandle)>,
    sink: ConsumerHandle,
    metrics: ConsumerHandle,
}

/// How one consumer ended, by the name of what it did.
pub(crate) type Ended = (String, Report);

impl Pipeline {
    /// Starts everything, the last first, so that whatever is sent has somewhere to go. The topology must be there.
    pub(crate) async fn start(broker: Broker, settings: &Settings, clock: Arc<dyn Clock>) -> Result<Self> {
        let board = Arc::new(Board::default());
        let metrics = ends::metrics(&broker, &board, &clock).await?;
        let sink = ends::sink(&broker, open_sink(settings.sink.as_deref())?, &board, &clock).await?;
        let mut stages = Vec::new();
        for (index, stage) in settings.stages.iter().enumerate() {
            let next = settings.stages.get(index + 1).map(|next| queue_of(*next));
            let work = stages::Work { stage: *stage, next, slots: settings.transports };
            let consumer = stages::start(&broker, work, &board, &clock).await?;
            stages.push((stage.name().to_owned(), consumer));
        }
        let head = queue_of(settings.stages[0]);
        let slots = settings.transports;
        let mut pipeline =
            Self { broker, clock, board, head, slots, stages, transports: Vec::new(), sink, metrics };
        for _ in 0..slots.get() {
            pipeline.join_transport().await?;
        }
        Ok(pipeline)
    }

    /// Another transport node: it claims the first slot that is free, and says which.
    pub(crate) async fn join_transport(&mut self) -> Result<u32> {
        let slot = Slot::FirstFree { most: self.slots };
        let source: BrokerSource = self.broker.claim(TRANSPORT.pattern(), slot).await?;
        let slot = source.slot().unwrap_or_default();
        let consumer = ends::transport(slot, source, &self.board, &self.clock)?;
        self.transports.push((slot, consumer));
        Ok(slot)
    }

    /// A transport node goes, with its clients. What is for them waits at the stage before, until a node has the slot
    /// again; what was in the slot's queue already is gone, and in the sink for whoever asks.
    pub(crate) async fn lose_transport(&mut self, slot: u32) -> Option<Report> {
        let index = self.transports.iter().position(|(has, _)| *has == slot)?;
        let (_, consumer) = self.transports.remove(index);
        Some(consumer.stop().await)
    }

    /// Sends a line into the first stage. The id says which line it is, all the way through: what it leads to carries it
    /// as its correlation id.
    pub(crate) async fn write(&self, id: &str, post: &Post) -> Result<()> {
        self.broker.publisher().send_with(&self.head, post, |message| message.with_id(id)).await
    }

    /// What was seen at the ends.
    pub(crate) fn board(&self) -> &Arc<Board> {
        &self.board
    }

    /// Stops one after the other, as a post passes them. What waits for a stage stays in its queue, for the next run; what
    /// the last stage has sent to the slots is waited for, since those end here.
    pub(crate) async fn stop(self) -> Vec<Ended> {
        let mut ended = Vec::new();
        for (name, stage) in self.stages {
            ended.push((name, stage.stop().await));
        }
        let arrived = self.board.until(|tally| tally.under_way().next().is_none());
        if within(&*self.clock, TO_ARRIVE, arrived).await.is_none() {
            let lost: Vec<String> = self.board.tally().under_way().map(str::to_owned).collect();
            tracing::warn!(?lost, "not arrived in time");
        }
        for (slot, transport) in self.transports {
            ended.push((TRANSPORT.slot(slot).name().to_owned(), transport.stop().await));
        }
        ended.push(("sink".to_owned(), self.sink.stop().await));
        ended.push(("metrics".to_owned(), self.metrics.stop().await));
        self.broker.close().await;
        ended
    }
}

fn queue_of(stage: Stage) -> Queue<Post> {
    STAGE.named(stage.name())
}

fn open_sink(file: Option<&Path>) -> Result<Sink> {
    let wrong = |error: std::io::Error| {
        windlass::Error::new(windlass::ErrorKind::Other, "open sink").with_source(error)
    };
    file.map_or_else(|| Ok(Sink::in_memory()), |file| Sink::open(file).map_err(wrong))
}
