//! A pipeline: what clients say goes through a chain of stages to the clients of transport nodes.
//!
//! ```text
//! writer -> [redaction] -> transport-manager -> websockets-transport_<n> -> clients
//!    |                             |
//!    +-> chat.all -> metrics       +-> sink
//! ```
//!
//! In memory, without a broker:
//!
//! ```text
//! cargo run --features bootstrap --example pipeline
//! cargo run --features bootstrap --example pipeline -- --stages writer,redaction,transport-manager
//! ```
//!
//! The same on RabbitMQ; what it needs there it makes first, over the management API:
//!
//! ```text
//! cargo run --features bootstrap --example pipeline -- amqp://guest:guest@localhost/%2f
//! ```
//!
//! Which stages there are, and in which order, is a setting (`--stages`, `PIPELINE_STAGES`), and so is the broker
//! (`PIPELINE_BROKER`). Each stage returns what goes onward, and its message is acked once that is confirmed. The metrics
//! worker listens to a copy. The sink stands for something outside and is written once for each id, to a file with
//! `--sink FILE`. The program ends by itself once every line has arrived, or on SIGTERM or Ctrl-C, with a table; the exit
//! code is 0 where nothing is missing, 1 where something is, and 2 where it could not run.

// It tells people what it does.
#![allow(clippy::print_stdout, clippy::print_stderr)]

#[path = "pipeline/mod.rs"]
mod pipeline;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use windlass::clock::{SystemClock, within};
use windlass::error::Chain;
use windlass::{Error, ErrorKind};

use pipeline::{Board, Ended, Pipeline, Post, Settings, Tally};

/// How long a line may take to arrive.
const BOUND: Duration = Duration::from_secs(60);
/// How many lines may be under way.
const AHEAD: usize = 1_000;
/// How much longer until the metrics worker has heard of it.
const TO_HEAR: Duration = Duration::from_secs(2);

const USAGE: &str =
    "usage: pipeline [URL] [--stages A,B,…] [--transports N] [--lines N] [--sink FILE] [--management URL]";

#[tokio::main]
async fn main() -> ExitCode {
    let settings = match Settings::read(std::env::args().skip(1), |name| std::env::var(name).ok()) {
        Ok(settings) => settings,
        Err(wrong) => {
            eprintln!("pipeline: {wrong}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(&settings).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("pipeline: {}", Chain(&error));
            ExitCode::from(2)
        }
    }
}

/// Whether everything that was written has arrived; or, told to stop, whether everything ended in order.
async fn run(settings: &Settings) -> Result<bool, Error> {
    let broker = pipeline::prepare(settings).await?;
    let pipeline = Pipeline::start(broker, settings, Arc::new(SystemClock)).await?;
    // Before anybody is told that it runs: a signal that comes at once is not to end it in the middle.
    let mut told = std::pin::pin!(stop_signal());
    if told.as_mut().now_or_never().is_some() {
        return Ok(true);
    }
    println!("running");
    let board = Arc::clone(pipeline.board());
    let mut written = Vec::new();
    let work = async {
        write_all(&pipeline, settings.lines, &mut written).await?;
        let enough = |tally: &Tally| tally.delivered.len().min(tally.sunk.len()) >= written.len();
        let arrived = board.until(|tally| enough(tally) && written.iter().all(|line| has(tally, line)));
        // What has not arrived by then is missing, and counted as that.
        let _ = within(&SystemClock, BOUND, arrived).await;
        // The metrics worker may have missed some, as whoever listens may.
        let heard = |tally: &Tally| tally.heard.values().sum::<u64>() >= u64::from(settings.lines);
        let _ = within(&SystemClock, TO_HEAR, board.until(heard)).await;
        Ok::<(), Error>(())
    };
    // A line that is lost here was not confirmed, and is not counted as written.
    let told_to_stop = tokio::select! {
        biased;
        () = told => Ok(true),
        worked = work => worked.map(|()| false),
    };
    // In order in any case: what runs is finished.
    let ended = pipeline.stop().await;
    let told_to_stop = told_to_stop?;
    Ok(report(&ended, &board, &written, told_to_stop))
}

/// Whether a line has arrived where it must.
fn has(tally: &Tally, line: &String) -> bool {
    tally.delivered.contains_key(line) && tally.sunk.contains(line)
}

/// Writes down each line that was confirmed.
async fn write_all(pipeline: &Pipeline, lines: u32, written: &mut Vec<String>) -> Result<(), Error> {
    // Lines of this run are told from those that an earlier one has left on the broker.
    let run = uuid::Uuid::new_v4().simple().to_string();
    for number in 1..=lines {
        let line = format!("{run}-{number}");
        let text = if number % 5 == 0 {
            format!("line {number}: the word is swordfish")
        } else {
            format!("line {number}: hello")
        };
        let post = Post { client: number % 7, text };
        // One that was sent and not confirmed may be there; sent again under the same id, it is known at the sink.
        let mut sent = pipeline.write(&line, &post).await;
        for _ in 0..10 {
            match &sent {
                Err(error) if error.is_transient() || error.kind() == ErrorKind::Unconfirmed => {
                    sent = pipeline.write(&line, &post).await;
                }
                _ => break,
            }
        }
        sent?;
        written.push(line);
        // Who writes waits for those who read, or memory fills; and lets others run, which publishing in memory does not.
        let so_far = written.len();
        let room = pipeline.board().until(|tally| so_far < tally.delivered.len() + AHEAD);
        if within(&SystemClock, BOUND, room).await.is_none() {
            break;
        }
        tokio::task::yield_now().await;
    }
    Ok(())
}

fn report(ended: &[Ended], board: &Board, written: &[String], told_to_stop: bool) -> bool {
    println!("{:<26}{:>8}{:>10}{:>10}", "where", "handled", "retried", "given up");
    for (name, report) in ended {
        let stats = &report.stats;
        println!("{name:<26}{:>8}{:>10}{:>10}", stats.acked, stats.retried, stats.dead_lettered);
    }
    let tally = board.tally();
    let legible = tally.delivered.values().filter(|each| each.post.text.contains("swordfish")).count();
    let times: u64 = tally.delivered.values().map(|each| each.times).sum();
    let missing = written.iter().filter(|line| !has(&tally, line)).count();
    println!();
    for (what, count) in [
        ("lines written", written.len() as u64),
        ("delivered to clients", tally.delivered.len() as u64),
        ("delivered again", times - tally.delivered.len() as u64),
        ("delivered with the word", legible as u64),
        ("in the sink", tally.sunk.len() as u64),
        ("given to the sink again", tally.sunk_before),
        ("heard by the metrics", tally.heard.values().sum()),
        (if told_to_stop { "still under way" } else { "missing" }, missing as u64),
    ] {
        println!("{what:<26}{count:>8}");
    }
    for (name, report) in ended.iter().filter(|(_, report)| !report.is_clean()) {
        eprintln!("pipeline: {name} did not end in order: {report:?}");
    }
    (told_to_stop || missing == 0) && ended.iter().all(|(_, report)| report.is_clean())
}

#[cfg(unix)]
async fn stop_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    // Only waits are lost here.
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => tokio::select! {
            biased;
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        },
        Err(error) => {
            eprintln!("pipeline: cannot listen for SIGTERM: {error}");
            std::future::pending().await
        }
    }
}

#[cfg(not(unix))]
async fn stop_signal() {
    // Where it cannot be listened to, the run ends by itself.
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending().await
    }
}
