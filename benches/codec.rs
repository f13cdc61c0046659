//! What decoding lz4 and JSON costs through the codec, beside calling lz4_flex and serde_json directly.
//!
//! The same bodies, of 200 bytes, 4 KiB and 256 KiB unpacked. The two are run in turns, and the ratio of their medians is
//! printed; it is to be at most 1.05.

#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use windlass::clock::{Clock, SystemClock};
use windlass::codec::{Json, Lz4};
use windlass::message::Message;
use windlass::queue::Queue;

const SIZES: [usize; 3] = [200, 4 * 1024, 256 * 1024];
const TURNS: usize = 3001;
/// How many bytes are unpacked in a turn: short, so that most turns are not cut in the middle on a machine that has more to
/// do.
const PER_TURN: usize = 32 * 1024;

#[derive(Serialize, Deserialize)]
struct Event {
    kind: String,
    shard: u32,
    entries: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    id: u64,
    name: String,
    price: f64,
    tags: Vec<String>,
}

const QUEUE: Queue<Event, Lz4<Json>> = Queue::with_codec("bench", Lz4::new(Json).compress_above(0).always());
/// As a consumer has it: made once.
static BY_LABEL: Queue<Event, Lz4<Json>> = Queue::with_codec("bench", Lz4::new(Json));

/// An event whose JSON is of about this size.
fn event(size: usize) -> Event {
    let mut event = Event { kind: "writer.created".to_owned(), shard: 7, entries: Vec::new() };
    let mut seed = 1_u64;
    while serde_json::to_vec(&event).unwrap().len() < size {
        for _ in 0..=event.entries.len() / 8 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            event.entries.push(Entry {
                id: seed >> 11,
                name: format!("lamp {}", seed >> 48),
                price: (seed >> 40) as f64 / 100.0,
                tags: vec!["new".to_owned(), format!("t{}", seed >> 60)],
            });
        }
    }
    event
}

fn main() {
    // `cargo test` runs it too, once over.
    let turns = if std::env::args().any(|argument| argument == "--bench") { TURNS } else { 3 };
    println!("medians of {turns} turns, lz4 block and JSON");
    println!("{:>9} {:>9} {:>12} {:>12} {:>7}", "unpacked", "packed", "direct ns", "codec ns", "ratio");
    for size in SIZES {
        let event = event(size);
        let plain = serde_json::to_vec(&event).unwrap().len();
        let message = QUEUE.message(&event).unwrap();
        let rounds = (PER_TURN / plain).max(1);
        let (mut direct, mut codec) = (Vec::new(), Vec::new());
        for turn in 0..turns {
            // Who comes second finds warmer caches: they take turns at that, too.
            if turn % 2 == 0 {
                direct.push(time(rounds, || directly(&message)));
                codec.push(time(rounds, || through_the_codec(&message)));
            } else {
                codec.push(time(rounds, || through_the_codec(&message)));
                direct.push(time(rounds, || directly(&message)));
            }
        }
        let (direct, codec) = (median(direct), median(codec));
        let packed = message.body().len();
        println!("{plain:>9} {packed:>9} {direct:>12.0} {codec:>12.0} {:>7.3}", codec / direct);
    }
}

#[inline(never)]
fn directly(message: &Message) -> Event {
    let body = lz4_flex::block::decompress_size_prepended(message.body()).unwrap();
    serde_json::from_slice(&body).unwrap()
}

#[inline(never)]
fn through_the_codec(message: &Message) -> Event {
    BY_LABEL.decode(message).unwrap()
}

fn time(rounds: usize, mut decode: impl FnMut() -> Event) -> f64 {
    let start = now();
    for _ in 0..rounds {
        black_box(decode());
    }
    per_round(now() - start, rounds)
}

fn per_round(time: Duration, rounds: usize) -> f64 {
    time.as_nanos() as f64 / rounds as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn now() -> Instant {
    SystemClock.now()
}
