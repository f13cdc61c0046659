//! Ships orders: reads them as JSON, one a line, and runs a handler for each on the in-memory broker.
//!
//! ```text
//! cargo run --example quickstart                    the sample beside this file, broken lines included
//! cargo run --example quickstart -- orders.jsonl    a file
//! cargo run --example quickstart -- -               standard input
//! ```
//!
//! Ends with 0 when every line is accounted for, with 1 when one is not, and with 2 when the input cannot be read.

#![allow(clippy::print_stderr)]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::io::{self, Read, Write};
use std::num::NonZeroUsize;
use std::panic;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;
use windlass::clock::SystemClock;
use windlass::consumer::{ConsumerEvent, RetryPolicy};
use windlass::memory::{MemoryBroker, MemoryQueue};
use windlass::{Context, HandlerError, Message, NackReason, QueueConsumer, Settlement};

const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/quickstart.jsonl");
const USAGE: &str = "usage: quickstart [FILE | -]";

#[derive(Deserialize)]
struct Order {
    ship_to: String,
    grams: u64,
    boxes: u64,
    /// On how many attempts the carrier does not answer.
    #[serde(default)]
    carrier_down_for: u32,
}

/// The service. What it returns decides what becomes of the message.
async fn ship(order: Order, context: Context) -> Result<u64, HandlerError> {
    if order.ship_to == "Atlantis" {
        // No other attempt can help: to the dead letters at once.
        return Err(HandlerError::terminal("no carrier goes to Atlantis"));
    }
    if context.attempt() <= order.carrier_down_for {
        // Any other error is a failed attempt: it is tried again later, until the retries are used up.
        return Err(HandlerError::failed("the carrier does not answer"));
    }
    // The bug of this service: an order without boxes divides by zero. A panic is a failed attempt, too.
    Ok(order.grams / order.boxes)
}

const AT_ONCE: NonZeroUsize = NonZeroUsize::new(4).unwrap();

async fn run(input: Bytes) -> anyhow::Result<()> {
    let queue = MemoryBroker::new(SystemClock).queue("orders");
    let (orders, blank) = publish(&input, &queue);

    // Fires once the last order has its final answer; a service would fire it on SIGTERM.
    let done = CancellationToken::new();
    if orders == 0 {
        done.cancel();
    }
    let tally = Arc::new(Mutex::new(Tally::default()));
    let consumer = QueueConsumer::new(queue.source(), ship)
        .max_concurrent(AT_ONCE)
        // A service keeps the default (1 s, 2 s, 4 s) or waits longer. These waits are short so that nobody has to
        // sit through them; on the real clock all the same, since that is what a service runs on. The example
        // `controlled_clock` has the other way: a clock that the program moves.
        .retry_policy(RetryPolicy::schedule([10, 20, 40].map(Duration::from_millis)))
        .on_event({
            let (tally, done) = (Arc::clone(&tally), done.clone());
            move |event| {
                let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
                tally.add(event);
                say(format_args!(
                    "{:<8} attempt {}  {:<9} {}",
                    event.message.id(),
                    event.message.attempt(),
                    event.outcome.name(),
                    event.settlement
                ));
                if tally.total().final_answers() == orders {
                    done.cancel();
                }
            }
        });

    // Rust prints each panic before anybody can catch it. Here each is an event already, with the same text, so that
    // printing it once more would only tear the list apart. The hook is put back: panics elsewhere are bugs.
    let print_panics = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let report = consumer.run(done).await;
    panic::set_hook(print_panics);
    let report = report?;

    let tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
    say(format_args!("\n{tally}"));
    tell_dead_letters(&queue);
    let total = tally.total();
    say(format_args!(
        "\n{} lines: {blank} blank, {orders} orders; {} shipped, {} dead letters",
        blank + orders,
        total.acked,
        total.dead_lettered
    ));

    anyhow::ensure!(report.is_clean(), "the consumer did not end cleanly: {report:?}");
    tally.check(orders, &queue)
}

/// One message for each line. Blank lines hold no order, and many tools end a file with one: they are counted, so that
/// every line is accounted for, and passed over.
fn publish(input: &Bytes, queue: &MemoryQueue) -> (u64, u64) {
    let (mut orders, mut blank) = (0, 0);
    // Bytes, not text: a line that is not UTF-8 is one bad order, and no reason to stop.
    for (line, number) in input.split_inclusive(|byte| *byte == b'\n').zip(1..) {
        let line = line.trim_ascii();
        if line.is_empty() {
            blank += 1;
        } else {
            orders += 1;
            queue.publish(Message::new(input.slice_ref(line)).with_id(format!("line-{number}")));
        }
    }
    (orders, blank)
}

/// How many events there were, by outcome and answer.
#[derive(Default)]
struct Tally(BTreeMap<&'static str, Row>);

#[derive(Default, Clone, Copy)]
struct Row {
    events: u64,
    acked: u64,
    retried: u64,
    dead_lettered: u64,
}

impl Tally {
    fn add(&mut self, event: &ConsumerEvent) {
        let row = self.0.entry(event.outcome.name()).or_default();
        row.events += 1;
        match &event.settlement {
            // The broker did not take the answer, and the message comes again. This broker always does.
            _ if event.settle_error.is_some() => {}
            Settlement::Ack => row.acked += 1,
            Settlement::Nack(NackReason::Retry { .. }) => row.retried += 1,
            Settlement::Nack(NackReason::DeadLetter { .. }) => row.dead_lettered += 1,
            Settlement::Nack(_) => {}
        }
    }

    fn total(&self) -> Row {
        self.0.values().fold(Row::default(), |sum, row| Row {
            events: sum.events + row.events,
            acked: sum.acked + row.acked,
            retried: sum.retried + row.retried,
            dead_lettered: sum.dead_lettered + row.dead_lettered,
        })
    }

    /// Whether every order has one final answer, and the broker has counted the same.
    fn check(&self, orders: u64, queue: &MemoryQueue) -> anyhow::Result<()> {
        let (total, counts) = (self.total(), queue.counts());
        for (what, one, other) in [
            ("orders and final answers", orders, total.final_answers()),
            ("events and answers", total.events, total.final_answers() + total.retried),
            ("events and deliveries", total.events, counts.delivered),
            ("acks here and at the broker", total.acked, counts.acked),
            ("dead letters here and at the broker", total.dead_lettered, counts.dead_lettered as u64),
        ] {
            anyhow::ensure!(one == other, "{what} do not add up: {one} and {other}");
        }
        Ok(())
    }
}

impl Row {
    fn final_answers(self) -> u64 {
        self.acked + self.dead_lettered
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:<10}{:>10}{:>10}{:>10}{:>15}",
            "outcome", "events", "acked", "retried", "dead-lettered"
        )?;
        for (outcome, row) in self.0.iter().map(|(name, row)| (*name, *row)).chain([("total", self.total())])
        {
            let Row { events, acked, retried, dead_lettered } = row;
            write!(f, "\n{outcome:<10}{events:>10}{acked:>10}{retried:>10}{dead_lettered:>15}")?;
        }
        Ok(())
    }
}

/// What an operator would find: the first few, since each has been printed as an event.
fn tell_dead_letters(queue: &MemoryQueue) {
    const SHOWN: usize = 10;
    let dead = queue.dead_lettered();
    say(format_args!("\nin {}: {}", queue.dead_letter_queue().name(), dead.len()));
    for (message, letter) in dead.iter().take(SHOWN) {
        say(format_args!("{:<8} after attempt {}  {}", message.id(), letter.attempts, letter.cause));
    }
    if dead.len() > SHOWN {
        say(format_args!("and {} more", dead.len() - SHOWN));
    }
}

/// Prints a line. Ends the program when nobody reads it (`quickstart | head`), where `println!` would panic.
fn say(line: fmt::Arguments<'_>) {
    if writeln!(io::stdout(), "{line}").is_err() {
        std::process::exit(1);
    }
}

fn read_input(mut arguments: impl Iterator<Item = OsString>) -> Result<Bytes, String> {
    let path = arguments.next().unwrap_or_else(|| SAMPLE.into());
    if arguments.next().is_some() {
        return Err(format!("one file at most\n{USAGE}"));
    }
    let read = if path == "-" {
        let mut input = Vec::new();
        io::stdin().lock().read_to_end(&mut input).map(|_| input)
    } else {
        std::fs::read(&path)
    };
    read.map(Bytes::from).map_err(|error| format!("cannot read {}: {error}\n{USAGE}", path.display()))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let input = match read_input(std::env::args_os().skip(1)) {
        Ok(input) => input,
        Err(problem) => {
            eprintln!("quickstart: {problem}");
            return ExitCode::from(2);
        }
    };
    match run(input).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("quickstart: {problem:#}");
            ExitCode::FAILURE
        }
    }
}
