//! Where posts end: at the clients of a transport node, in the sink, and with the metrics worker, which only listens.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use windlass::broker::{Broker, BrokerSource};
use windlass::clock::Clock;
use windlass::{ConsumerHandle, Context, HandlerError, Message, QueueConsumer, Result};

use super::board::Delivered;
use super::{ALL, Board, Post, SINK, TRANSPORT};

/// A transport node, with the clients that are connected to it.
pub(super) fn transport(
    slot: u32,
    source: BrokerSource,
    board: &Arc<Board>,
    clock: &Arc<dyn Clock>,
) -> Result<ConsumerHandle> {
    let board = Arc::clone(board);
    let deliver = move |post: Post, context: Context| {
        board.write(|tally| {
            let line = context.correlation_id().to_owned();
            let first = || Delivered { slot, post, times: 0 };
            tally.delivered.entry(line).or_insert_with(first).times += 1;
        });
        std::future::ready(Ok::<_, HandlerError>(()))
    };
    QueueConsumer::of(&TRANSPORT.slot(slot), source, deliver).clock(Arc::clone(clock)).start()
}

/// Listens to copies: were it gone, nothing else would notice.
pub(super) async fn metrics(
    broker: &Broker,
    board: &Arc<Board>,
    clock: &Arc<dyn Clock>,
) -> Result<ConsumerHandle> {
    let board = Arc::clone(board);
    let source = broker.subscribe(ALL.name()).await?;
    let count = move |post: Post, _: Context| {
        board.write(|tally| *tally.heard.entry(post.client).or_default() += 1);
        std::future::ready(Ok::<_, HandlerError>(()))
    };
    QueueConsumer::with_decoder(source, |message: &Message| ALL.decode(message), count)
        .clock(Arc::clone(clock))
        .start()
}

pub(super) async fn sink(
    broker: &Broker,
    sink: Sink,
    board: &Arc<Board>,
    clock: &Arc<dyn Clock>,
) -> Result<ConsumerHandle> {
    let board = Arc::clone(board);
    let source = broker.source(SINK.name()).await?;
    let write = move |post: Post, context: Context| {
        let written = sink.write(context.message().id(), &post);
        if let Ok(first) = &written {
            board.write(|tally| {
                tally.sunk.insert(context.correlation_id().to_owned());
                tally.sunk_before += u64::from(!first);
            });
        }
        std::future::ready(written.map_err(HandlerError::failed))
    };
    QueueConsumer::of(&SINK, source, write).clock(Arc::clone(clock)).start()
}

/// Something outside, which knows nothing of queues: each id is written to it once.
///
/// The ids are those that `Onward` derives, so that a post which comes again after a crash has the id that it had. A file
/// is read when it is opened: what an earlier run has written is not written again.
pub(crate) struct Sink(Mutex<Written>);

struct Written {
    ids: HashSet<String>,
    /// `None` keeps the ids alone.
    file: Option<File>,
}

impl Sink {
    pub(crate) fn in_memory() -> Self {
        Self(Mutex::new(Written { ids: HashSet::new(), file: None }))
    }

    /// One line for each post: the id, a tab, and the post as JSON.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let mut file = File::options().read(true).append(true).create(true).open(path)?;
        let mut ids = HashSet::new();
        let mut reader = BufReader::new(&file);
        let (mut line, mut whole) = (String::new(), true);
        while reader.read_line(&mut line)? > 0 {
            whole = line.ends_with('\n');
            if let Some((id, _)) = line.split_once('\t').filter(|_| whole) {
                ids.insert(id.to_owned());
            }
            line.clear();
        }
        if !whole {
            // A crash in the middle of a line: its post was not acked, and comes again.
            file.write_all(b"\n")?;
        }
        Ok(Self(Mutex::new(Written { ids, file: Some(file) })))
    }

    /// False where it was there already. It is with the operating system when this returns, and so before the ack; a line
    /// is short enough to be written on the spot.
    pub(crate) fn write(&self, id: &str, post: &Post) -> io::Result<bool> {
        let mut written = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if written.ids.contains(id) {
            return Ok(false);
        }
        if let Some(file) = &mut written.file {
            let mut line = format!("{id}\t").into_bytes();
            serde_json::to_writer(&mut line, post)?;
            line.push(b'\n');
            file.write_all(&line)?;
        }
        written.ids.insert(id.to_owned());
        Ok(true)
    }
}
