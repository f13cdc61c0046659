//! What windlass costs on RabbitMQ beside lapin alone: consuming with an ack for each message, and publishing with a
//! confirm for each. The same broker, kind of queue, prefetch and bodies, in turns in one run; what counts is the ratio.
//!
//! Beside the rates stands the CPU time for each message, of this process and of the broker: on a machine that others
//! use too, it says more.
//!
//! The broker is a node of the bench's own, of the series that `RABBITMQ_BIN` chooses. `cargo bench --bench rabbitmq`;
//! words after `--` choose a part: `classic`, `quorum`, `consume`, `publish`, `single`.

#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

#[path = "../tests/support/rabbit/mod.rs"]
mod rabbit;

use std::fs;
use std::num::{NonZeroU16, NonZeroUsize};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, ConfirmSelectOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel};
use rabbit::{Node, Raw};
use tokio::sync::Notify;
use windlass::clock::{Clock, SystemClock};
use windlass::consumer::QueueConsumer;
use windlass::handler::{Context, HandlerError};
use windlass::message::Message;
use windlass::publisher::Publisher;
use windlass::rabbitmq::{QueueType, RabbitMq, RabbitMqConfig, RabbitPublisher};

const MESSAGES: usize = 60_000;
const PREFETCH: u16 = 1_000;
const TASKS: usize = 100;
const TURNS: usize = 3;
const ROUNDS: usize = 1_000;
const IN_FLIGHT: usize = 256;
const PUBLISHES: usize = 40_000;

const KINDS: [(&str, rabbit::QueueType, QueueType); 2] = [
    ("classic", rabbit::QueueType::Classic, QueueType::Classic),
    ("quorum", rabbit::QueueType::Quorum, QueueType::Quorum),
];

fn main() {
    // `cargo test --benches` runs this without the flag: then it only has to start.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let bench = Bench::start().await;
        println!(
            "RabbitMQ {:?}, medians of {TURNS} turns; CPU time for each message: client + broker",
            bench.series
        );
        println!("\nconsuming {MESSAGES} messages of 200 bytes, prefetch {PREFETCH}");
        for (name, raw, ours) in KINDS {
            if wanted(["classic", "quorum"], name) && wanted(PARTS, "consume") {
                bench.consume(name, raw, ours).await;
            }
        }
        println!("\npublishing 200 bytes, persistent, confirmed");
        for (name, raw, _) in KINDS {
            if wanted(["classic", "quorum"], name) {
                bench.publish(name, raw).await;
            }
        }
        bench.rabbit.disconnect().await;
    });
}

const PARTS: [&str; 3] = ["consume", "publish", "single"];

/// Whether `part` was asked for, or none of `parts` was.
fn wanted<const N: usize>(parts: [&str; N], part: &str) -> bool {
    let asked: Vec<String> = std::env::args().filter(|argument| parts.contains(&argument.as_str())).collect();
    asked.is_empty() || asked.iter().any(|argument| argument == part)
}

/// What a number of messages took.
#[derive(Clone, Copy)]
struct Cost {
    messages: usize,
    time: Duration,
    /// CPU time, of this process and of the broker.
    client: Duration,
    broker: Duration,
}

impl Cost {
    /// Thousands a second.
    fn rate(&self) -> f64 {
        self.messages as f64 / self.time.as_secs_f64() / 1_000.0
    }

    fn micros(&self, time: Duration) -> f64 {
        time.as_secs_f64() * 1e6 / self.messages as f64
    }

    fn many(&self) -> String {
        let (client, broker) = (self.micros(self.client), self.micros(self.broker));
        format!("{:5.1} k/s ({client:4.1} + {broker:4.1} us)", self.rate())
    }
}

/// The one of the median time.
fn median(mut costs: Vec<Cost>) -> Cost {
    costs.sort_by_key(|cost| cost.time);
    costs[costs.len() / 2]
}

struct Meter<'a> {
    bench: &'a Bench,
    start: Instant,
    client: Duration,
    broker: Duration,
}

impl Meter<'_> {
    fn stop(self, messages: usize) -> Cost {
        let (client, broker) = self.bench.cpu();
        let time = SystemClock.now() - self.start;
        Cost { messages, time, client: client - self.client, broker: broker - self.broker }
    }
}

/// The CPU time of a process so far, of all its threads.
fn cpu_of(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields).split(' ');
    let ticks: u64 = fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    // Linux shows hundredths of a second on all machines.
    Duration::from_millis(ticks * 10)
}

struct Bench {
    node: &'static Node,
    raw: Raw,
    rabbit: RabbitMq,
    series: rabbit::Series,
}

impl Bench {
    async fn start() -> Self {
        let node = Node::shared().await;
        let rabbit = RabbitMq::connect(RabbitMqConfig::from_uri(&node.uri()).unwrap()).await.unwrap();
        Self { node, raw: Raw::connect(&node.uri()).await, rabbit, series: node.series() }
    }

    fn meter(&self) -> Meter<'_> {
        let (client, broker) = self.cpu();
        Meter { bench: self, start: SystemClock.now(), client, broker }
    }

    fn cpu(&self) -> (Duration, Duration) {
        let group = self.node.process_group().unwrap();
        let broker = rabbit::processes_of_group(group).into_iter().map(|process| cpu_of(process.pid)).sum();
        (cpu_of(std::process::id()), broker)
    }

    async fn consume(&self, name: &str, kind: rabbit::QueueType, ours: QueueType) {
        let queue = format!("bench-{name}");
        let (mut serial, mut tasks, mut windlass) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..TURNS {
            self.fill(&queue, kind).await;
            serial.push(self.raw_loops(&queue, 1).await);
            self.fill(&queue, kind).await;
            tasks.push(self.raw_loops(&queue, TASKS).await);
            self.fill(&queue, kind).await;
            windlass.push(self.windlass(&queue, ours).await);
        }
        let (serial, tasks, windlass) = (median(serial), median(tasks), median(windlass));
        println!("{name:>8}: lapin serial           {}", serial.many());
        println!("{:>8}  lapin {TASKS} tasks        {}", "", tasks.many());
        let (to_tasks, to_serial) = (windlass.rate() / tasks.rate(), windlass.rate() / serial.rate());
        println!(
            "{:>8}  windlass {TASKS} at once   {}, to tasks {to_tasks:.2}, to serial {to_serial:.2}",
            "",
            windlass.many()
        );
    }

    async fn fill(&self, queue: &str, kind: rabbit::QueueType) {
        self.raw.delete(queue).await;
        self.raw.declare(queue, kind, FieldTable::default()).await;
        publish_raw(&self.confirming().await, queue, MESSAGES, 1_000).await;
    }

    async fn confirming(&self) -> Arc<Channel> {
        let channel = self.raw.channel().await;
        channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
        Arc::new(channel)
    }

    /// As many tasks as given share a consumer, and ack each message alone; one is the main task, as in lapin's own
    /// examples.
    async fn raw_loops(&self, queue: &str, loops: usize) -> Cost {
        let channel = self.raw.channel().await;
        channel.basic_qos(PREFETCH, BasicQosOptions::default()).await.unwrap();
        let meter = self.meter();
        let (options, arguments) = (BasicConsumeOptions::default(), FieldTable::default());
        let consumer = channel.basic_consume(queue.into(), "bench".into(), options, arguments).await.unwrap();
        let left = Arc::new(AtomicUsize::new(MESSAGES));
        let done = Arc::new(Notify::new());
        let work = || {
            let (mut consumer, left, done) = (consumer.clone(), Arc::clone(&left), Arc::clone(&done));
            async move {
                while let Some(delivery) = consumer.next().await {
                    delivery.unwrap().ack(BasicAckOptions::default()).await.unwrap();
                    if left.fetch_sub(1, Ordering::Relaxed) == 1 {
                        done.notify_one();
                        return;
                    }
                }
            }
        };
        let mut tasks = Vec::new();
        if loops == 1 {
            work().await;
        } else {
            tasks.extend((0..loops).map(|_| tokio::spawn(work())));
            done.notified().await;
        }
        let took = meter.stop(MESSAGES);
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
        channel.close(200, "done".into()).await.unwrap();
        took
    }

    async fn windlass(&self, queue: &str, queue_type: QueueType) -> Cost {
        let prefetch = NonZeroU16::new(PREFETCH).unwrap();
        let source =
            self.rabbit.source(queue).queue_type(queue_type).prefetch(prefetch).open().await.unwrap();
        let length = |message: &Message| Ok::<_, HandlerError>(message.body().len());
        let meter = self.meter();
        let (left, done) = (Arc::new(AtomicUsize::new(MESSAGES)), Arc::new(Notify::new()));
        let handled = Arc::clone(&done);
        let handle = move |_: usize, _: Context| {
            if left.fetch_sub(1, Ordering::Relaxed) == 1 {
                handled.notify_one();
            }
            std::future::ready(Ok::<_, HandlerError>(()))
        };
        let consumer = QueueConsumer::with_decoder(source, length, handle)
            .max_concurrent(NonZeroUsize::new(TASKS).unwrap())
            .start()
            .unwrap();
        done.notified().await;
        // Acks are counted once they are written, as lapin's are.
        while consumer.stats().acked < MESSAGES as u64 {
            SystemClock.sleep(Duration::from_millis(1)).await;
        }
        let took = meter.stop(MESSAGES);
        assert!(consumer.stop().await.is_clean());
        took
    }

    async fn publish(&self, name: &str, kind: rabbit::QueueType) {
        let queue = format!("bench-publish-{name}");
        let publisher = self.rabbit.publisher();
        let (mut raw_single, mut single, mut raw_many, mut many) = (vec![], vec![], vec![], vec![]);
        for _ in 0..TURNS {
            self.raw.delete(&queue).await;
            self.raw.declare(&queue, kind, FieldTable::default()).await;
            let channel = self.confirming().await;
            if wanted(PARTS, "single") {
                raw_single.push(self.cost(ROUNDS, publish_raw(&channel, &queue, ROUNDS, 1)).await);
                single.push(self.cost(ROUNDS, publish(&publisher, &queue, ROUNDS, 1)).await);
            }
            if wanted(PARTS, "publish") {
                let publishes = PUBLISHES / IN_FLIGHT * IN_FLIGHT;
                raw_many
                    .push(self.cost(publishes, publish_raw(&channel, &queue, PUBLISHES, IN_FLIGHT)).await);
                many.push(self.cost(publishes, publish(&publisher, &queue, PUBLISHES, IN_FLIGHT)).await);
            }
            channel.close(200, "done".into()).await.unwrap();
        }
        if wanted(PARTS, "single") {
            let (raw, ours) = (median(raw_single), median(single));
            let (raw, ours) = (raw.micros(raw.time), ours.micros(ours.time));
            println!(
                "{name:>8}: one at a time: lapin {raw:.0} us, windlass {ours:.0} us, ratio {:.2}",
                ours / raw
            );
        }
        if wanted(PARTS, "publish") {
            let (raw, ours) = (median(raw_many), median(many));
            println!("{name:>8}: lapin {IN_FLIGHT} in flight    {}", raw.many());
            println!(
                "{:>8}  windlass {IN_FLIGHT} in flight {}, ratio {:.2}",
                "",
                ours.many(),
                ours.rate() / raw.rate()
            );
        }
    }

    async fn cost(&self, messages: usize, work: impl Future<Output = ()>) -> Cost {
        let meter = self.meter();
        work.await;
        meter.stop(messages)
    }
}

/// `count` publishes by as many tasks as are to be in flight at once, as handlers do it.
async fn publish_raw(channel: &Arc<Channel>, queue: &str, count: usize, in_flight: usize) {
    let (channel, queue) = (Arc::clone(channel), Arc::<str>::from(queue));
    let one = move || {
        let (channel, queue) = (Arc::clone(&channel), Arc::clone(&queue));
        async move {
            // Of the length of those that windlass gives.
            let id = "9f1c6a60-3b0f-4c53-9a55-3f1f0a8f2b11";
            let properties = BasicProperties::default().with_delivery_mode(2).with_message_id(id.into());
            let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
            let publish = channel.basic_publish("".into(), (&*queue).into(), options, &BODY, properties);
            assert!(publish.await.unwrap().await.unwrap().is_ack());
        }
    };
    all(count, in_flight, one).await
}

async fn publish(publisher: &RabbitPublisher, queue: &str, count: usize, in_flight: usize) {
    let (publisher, queue) = (publisher.clone(), Arc::<str>::from(queue));
    let one = move || {
        let (publisher, queue) = (publisher.clone(), Arc::clone(&queue));
        async move { publisher.publish(&queue, Message::new(&BODY[..])).await.unwrap() }
    };
    all(count, in_flight, one).await
}

const BODY: [u8; 200] = [b'x'; 200];

async fn all<F>(count: usize, in_flight: usize, one: impl Fn() -> F + Clone + Send + 'static)
where
    F: Future<Output = ()> + Send + 'static,
{
    let tasks: Vec<_> = (0..in_flight)
        .map(|_| {
            let one = one.clone();
            tokio::spawn(async move {
                for _ in 0..count / in_flight {
                    one().await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}
