//! What the policies add to the cost of a message: a consumer on a queue in memory, its handler bare and behind each
//! policy.
//!
//! Two handlers: one that is done at once, and one that waits once, which sets the timer of a time-out. After
//! criterion's own measurements all are run in turns, and the difference of each to the bare handler of its turn is
//! taken; the medians are printed, and beside them the least of each and its difference, which a busy machine moves
//! less.

#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

use std::hint::black_box;
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, Throughput};
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use windlass::clock::{Clock, SystemClock};
use windlass::consumer::QueueConsumer;
use windlass::handler::{CircuitBreaker, Concurrency, Context, Handler, HandlerError, Policies, Retry};
use windlass::memory::MemorySource;
use windlass::message::Message;

const LOOPS: [usize; 2] = [1, 16];
/// Few, in many turns: on a busy machine some turns then have it to themselves.
const MESSAGES: usize = 20_000;
const TURNS: usize = 51;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Around {
    Nothing,
    /// Built, with no policy set.
    Built,
    /// No policies: the handler has tokio's own time-out in it, for comparison.
    Tokio,
    Timeout,
    Breaker,
    Concurrency,
    Retry,
    All,
}

const ALL: [Around; 8] = [
    Around::Nothing,
    Around::Built,
    Around::Tokio,
    Around::Timeout,
    Around::Breaker,
    Around::Concurrency,
    Around::Retry,
    Around::All,
];

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut criterion = Criterion::default().configure_from_args().sample_size(10);
    let mut group = criterion.benchmark_group("policies");
    group.throughput(Throughput::Elements(MESSAGES as u64));
    for around in ALL {
        group.bench_function(BenchmarkId::new(format!("{around:?}"), 1), |bencher| {
            bencher.iter_custom(|rounds| (0..rounds).map(|_| run(&runtime, 1, false, around)).sum());
        });
    }
    group.finish();
    criterion.final_summary();
    if std::env::args().any(|argument| argument == "--bench") {
        print_differences(&runtime);
    }
}

fn print_differences(runtime: &Runtime) {
    println!("\nmedians of {TURNS} turns, {MESSAGES} messages each, in ns per message");
    for waits in [false, true] {
        let handler = if waits { "waits once" } else { "is done at once" };
        for loops in LOOPS {
            println!("\nhandler {handler}, {loops} loops");
            println!("{:>12} {:>8} {:>8} {:>8} {:>8}", "", "median", "added", "least", "added");
            let mut times: Vec<Vec<f64>> = vec![Vec::new(); ALL.len()];
            for _ in 0..TURNS {
                for (times, around) in times.iter_mut().zip(ALL) {
                    times.push(per_message(run(runtime, loops, waits, around)));
                }
            }
            for (index, around) in ALL.iter().enumerate() {
                let added = times[index].iter().zip(&times[0]).map(|(with, bare)| with - bare).collect();
                let name = format!("{around:?}");
                let (all, added) = (median(times[index].clone()), median(added));
                let (least, more) = (least(&times[index]), least(&times[index]) - least(&times[0]));
                println!("{name:>12} {all:>8.0} {added:>8.0} {least:>8.0} {more:>8.0}");
            }
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

fn per_message(time: Duration) -> f64 {
    time.as_nanos() as f64 / MESSAGES as f64
}

fn run(runtime: &Runtime, loops: usize, waits: bool, around: Around) -> Duration {
    let done = Arc::new(Notify::new());
    let last = Arc::clone(&done);
    let handler = move |length: usize, _: Context| {
        if black_box(length) == 0 {
            last.notify_one();
        }
        async move {
            let work = async {
                if waits {
                    tokio::task::yield_now().await;
                }
            };
            if around == Around::Tokio {
                #[allow(clippy::disallowed_methods)]
                tokio::time::timeout(Duration::from_secs(60), work).await.unwrap();
            } else {
                work.await;
            }
            Ok::<_, HandlerError>(())
        }
    };
    if matches!(around, Around::Nothing | Around::Tokio) {
        return work_off(runtime, loops, handler, &done);
    }
    let is = |policy| around == policy || around == Around::All;
    let mut policies = Policies::around(handler);
    if is(Around::Timeout) {
        policies = policies.timeout(Duration::from_secs(60));
    }
    if is(Around::Breaker) {
        policies = policies
            .circuit_breaker(CircuitBreaker::new(NonZeroU32::new(5).unwrap(), Duration::from_secs(30)));
    }
    if is(Around::Concurrency) {
        policies = policies.concurrency(Concurrency::new(NonZeroUsize::new(loops).unwrap(), 16));
    }
    if is(Around::Retry) {
        policies = policies.retry(Retry::new(NonZeroU32::new(3).unwrap()));
    }
    work_off(runtime, loops, policies.build().unwrap(), &done)
}

/// The last message has no body: its handler tells that the work is done.
fn work_off<H: Handler<usize>>(runtime: &Runtime, loops: usize, handler: H, done: &Notify) -> Duration {
    let source = MemorySource::new(SystemClock);
    for index in 0..MESSAGES {
        let body = if index + 1 == MESSAGES { Bytes::new() } else { Bytes::from(vec![b'x'; 200]) };
        source.queue().publish(Message::new(body));
    }
    let length = |message: &Message| Ok::<_, HandlerError>(message.body().len());
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
