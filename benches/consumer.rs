//! What the consumer costs per message, beside the same number of bare loops on an `async-channel`.
//!
//! Both work off messages that wait already, with a handler that does nothing, on two threads. After criterion's own
//! measurements the two are run in turns, and the ratio of their medians is printed; so is that of a million pending
//! messages to ten thousand, for each. `cargo bench --bench consumer -- ratios` prints the first table alone.

#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

use std::hint::black_box;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, Throughput};
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use windlass::clock::{Clock, SystemClock};
use windlass::consumer::QueueConsumer;
use windlass::handler::{Context, HandlerError};
use windlass::memory::MemorySource;
use windlass::message::Message;

const LOOPS: [usize; 3] = [1, 16, 256];
const MESSAGES: usize = 100_000;
const TURNS: usize = 21;

fn main() {
    let asked_for = |word: &str| std::env::args().any(|argument| argument == word);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    if asked_for("ratios") {
        return print_ratios(&runtime);
    }
    let mut criterion = Criterion::default().configure_from_args().sample_size(10);
    let mut group = criterion.benchmark_group("per_message");
    group.throughput(Throughput::Elements(MESSAGES as u64));
    for loops in LOOPS {
        group.bench_function(BenchmarkId::new("channel", loops), |bencher| {
            bencher.iter_custom(|rounds| (0..rounds).map(|_| channel(&runtime, loops, MESSAGES)).sum());
        });
        group.bench_function(BenchmarkId::new("consumer", loops), |bencher| {
            bencher.iter_custom(|rounds| (0..rounds).map(|_| consumer(&runtime, loops, MESSAGES)).sum());
        });
    }
    group.finish();
    criterion.final_summary();
    if asked_for("--bench") {
        print_ratios(&runtime);
        print_depths(&runtime);
    }
}

fn print_ratios(runtime: &Runtime) {
    println!("\nmedians of {TURNS} turns, {MESSAGES} messages each");
    println!("{:>6} {:>16} {:>16} {:>8}", "loops", "channel ns/msg", "consumer ns/msg", "ratio");
    for loops in LOOPS {
        let (bare, ours) = in_turns(
            || per_message(channel(runtime, loops, MESSAGES), MESSAGES),
            || per_message(consumer(runtime, loops, MESSAGES), MESSAGES),
        );
        println!("{loops:>6} {bare:>16.0} {ours:>16.0} {:>8.2}", ours / bare);
    }
}

/// Whether a deep queue costs more. Memory that no cache holds any more does, for the bare channel too; so it stands
/// beside.
fn print_depths(runtime: &Runtime) {
    let (few, many) = (10_000, 1_000_000);
    // As many messages in total, so that both medians stand on the same work.
    let all = |run: fn(&Runtime, usize, usize) -> Duration, loops, pending| {
        per_message((0..many / pending).map(|_| run(runtime, loops, pending)).sum(), many)
    };
    println!("\n{:>6} {:>10} {:>16} {:>16} {:>8}", "loops", "", "10,000 pending", "1,000,000", "ratio");
    for loops in [1, 16] {
        let (name, run) = ("channel", channel as fn(&Runtime, usize, usize) -> Duration);
        let (short, long) = in_turns(|| all(run, loops, few), || all(run, loops, many));
        println!("{loops:>6} {name:>10} {short:>16.0} {long:>16.0} {:>8.2}", long / short);
        let (name, run) = ("consumer", consumer as fn(&Runtime, usize, usize) -> Duration);
        let (short, long) = in_turns(|| all(run, loops, few), || all(run, loops, many));
        println!("{loops:>6} {name:>10} {short:>16.0} {long:>16.0} {:>8.2}", long / short);
    }
}

fn in_turns(mut one: impl FnMut() -> f64, mut other: impl FnMut() -> f64) -> (f64, f64) {
    let (mut ones, mut others) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        ones.push(one());
        others.push(other());
    }
    (median(ones), median(others))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn per_message(time: Duration, messages: usize) -> f64 {
    time.as_nanos() as f64 / messages as f64
}

/// Messages as a publisher sends them: a random id, 200 bytes, a content type. The last one has no body: whoever gets it
/// tells that the work is done.
fn messages(count: usize) -> impl Iterator<Item = Message> {
    let body = move |index| if index + 1 == count { Bytes::new() } else { Bytes::from(vec![b'x'; 200]) };
    (0..count).map(move |index| Message::new(body(index)).with_content_type("application/json"))
}

fn channel(runtime: &Runtime, loops: usize, count: usize) -> Duration {
    let (sender, receiver) = async_channel::unbounded();
    messages(count).for_each(|message| sender.try_send(message).unwrap());
    let done = Arc::new(Notify::new());
    let start = now();
    runtime.block_on(async {
        for _ in 0..loops {
            let (receiver, done) = (receiver.clone(), Arc::clone(&done));
            tokio::spawn(async move {
                while let Ok(message) = receiver.recv().await {
                    if black_box(message).body().is_empty() {
                        done.notify_one();
                    }
                }
            });
        }
        done.notified().await;
    });
    now() - start
}

fn consumer(runtime: &Runtime, loops: usize, count: usize) -> Duration {
    let source = MemorySource::new(SystemClock);
    messages(count).for_each(|message| source.queue().publish(message));
    let done = Arc::new(Notify::new());
    let last = Arc::clone(&done);
    // The loops look at the body and no more, so the payload is its length: a decoder's cost is not the consumer's.
    let length = |message: &Message| Ok::<_, HandlerError>(message.body().len());
    let handler = move |length: usize, _: Context| {
        if black_box(length) == 0 {
            last.notify_one();
        }
        async { Ok::<_, HandlerError>(()) }
    };
    let consumer = QueueConsumer::with_decoder(source, length, handler)
        .max_concurrent(NonZeroUsize::new(loops).unwrap());
    let start = now();
    let (took, handle) = runtime.block_on(async {
        let handle = consumer.start().unwrap();
        done.notified().await;
        (now() - start, handle)
    });
    let _ = runtime.block_on(handle.stop());
    took
}

fn now() -> Instant {
    SystemClock.now()
}
