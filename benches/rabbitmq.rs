//! What windlass costs on RabbitMQ beside lapin alone: consuming with an ack for each message, and publishing with a
//! confirm for each. The same broker, kind of queue, prefetch and bodies, in turns in one run; what counts is the ratio.
//!
//! The broker is a node of the bench's own, of the series that `RABBITMQ_BIN` chooses. `cargo bench --bench rabbitmq`.

#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

#[path = "../tests/support/rabbit/mod.rs"]
mod rabbit;

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
            "RabbitMQ {:?}, {MESSAGES} messages of 200 bytes, prefetch {PREFETCH}, medians of {TURNS} turns",
            bench.series
        );
        for (name, raw, ours) in KINDS {
            bench.consume(name, raw, ours).await;
        }
        println!("\npublishing 200 bytes, persistent, confirmed; medians of {TURNS} turns");
        for (name, raw, _) in KINDS {
            bench.publish(name, raw).await;
        }
        bench.rabbit.disconnect().await;
    });
}

struct Bench {
    raw: Raw,
    rabbit: RabbitMq,
    series: rabbit::Series,
}

impl Bench {
    async fn start() -> Self {
        let node = Node::shared().await;
        let rabbit = RabbitMq::connect(RabbitMqConfig::from_uri(&node.uri()).unwrap()).await.unwrap();
        Self { raw: Raw::connect(&node.uri()).await, rabbit, series: node.series() }
    }

    async fn consume(&self, name: &str, kind: rabbit::QueueType, ours: QueueType) {
        let queue = format!("bench-{name}");
        let (mut serial, mut tasks, mut windlass) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..TURNS {
            self.fill(&queue, kind).await;
            serial.push(rate(self.raw_loops(&queue, 1).await));
            self.fill(&queue, kind).await;
            tasks.push(rate(self.raw_loops(&queue, TASKS).await));
            self.fill(&queue, kind).await;
            windlass.push(rate(self.windlass(&queue, ours).await));
        }
        let (serial, tasks, windlass) = (median(serial), median(tasks), median(windlass));
        println!(
            "{name:>8}: lapin serial {serial:.1} k/s, lapin {TASKS} tasks {tasks:.1} k/s, windlass {TASKS} at once {windlass:.1} k/s"
        );
        println!(
            "{:>8}  windlass to {TASKS} tasks {:.2}, to serial {:.2}",
            "",
            windlass / tasks,
            windlass / serial
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
    async fn raw_loops(&self, queue: &str, loops: usize) -> Duration {
        let channel = self.raw.channel().await;
        channel.basic_qos(PREFETCH, BasicQosOptions::default()).await.unwrap();
        let start = now();
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
        let took = now() - start;
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
        channel.close(200, "done".into()).await.unwrap();
        took
    }

    async fn windlass(&self, queue: &str, queue_type: QueueType) -> Duration {
        let prefetch = NonZeroU16::new(PREFETCH).unwrap();
        let source =
            self.rabbit.source(queue).queue_type(queue_type).prefetch(prefetch).open().await.unwrap();
        let length = |message: &Message| Ok::<_, HandlerError>(message.body().len());
        let start = now();
        let consumer = QueueConsumer::with_decoder(source, length, async |_: usize, _: Context| {
            Ok::<_, HandlerError>(())
        })
        .max_concurrent(NonZeroUsize::new(TASKS).unwrap())
        .start()
        .unwrap();
        // Acks are counted once they are written, as lapin's are.
        while consumer.stats().acked < MESSAGES as u64 {
            SystemClock.sleep(Duration::from_millis(1)).await;
        }
        let took = now() - start;
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
            raw_single.push(micros(publish_raw(&channel, &queue, ROUNDS, 1).await, ROUNDS));
            single.push(micros(publish(&publisher, &queue, ROUNDS, 1).await, ROUNDS));
            raw_many.push(rate_of(publish_raw(&channel, &queue, PUBLISHES, IN_FLIGHT).await, PUBLISHES));
            many.push(rate_of(publish(&publisher, &queue, PUBLISHES, IN_FLIGHT).await, PUBLISHES));
            channel.close(200, "done".into()).await.unwrap();
        }
        let (raw_single, single, raw_many, many) =
            (median(raw_single), median(single), median(raw_many), median(many));
        println!(
            "{name:>8}: one at a time: lapin {raw_single:.0} us, windlass {single:.0} us, ratio {:.2}",
            single / raw_single
        );
        println!(
            "{:>8}  {IN_FLIGHT} in flight: lapin {raw_many:.1} k/s, windlass {many:.1} k/s, ratio {:.2}",
            "",
            many / raw_many
        );
    }
}

/// `count` publishes by as many tasks as are to be in flight at once, as handlers do it.
async fn publish_raw(channel: &Arc<Channel>, queue: &str, count: usize, in_flight: usize) -> Duration {
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

async fn publish(publisher: &RabbitPublisher, queue: &str, count: usize, in_flight: usize) -> Duration {
    let (publisher, queue) = (publisher.clone(), Arc::<str>::from(queue));
    let one = move || {
        let (publisher, queue) = (publisher.clone(), Arc::clone(&queue));
        async move { publisher.publish(&queue, Message::new(&BODY[..])).await.unwrap() }
    };
    all(count, in_flight, one).await
}

const BODY: [u8; 200] = [b'x'; 200];

async fn all<F>(count: usize, in_flight: usize, one: impl Fn() -> F + Clone + Send + 'static) -> Duration
where
    F: Future<Output = ()> + Send + 'static,
{
    let start = now();
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
    now() - start
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn rate(time: Duration) -> f64 {
    rate_of(time, MESSAGES)
}

/// Thousands a second.
fn rate_of(time: Duration, count: usize) -> f64 {
    count as f64 / time.as_secs_f64() / 1_000.0
}

fn micros(time: Duration, count: usize) -> f64 {
    time.as_secs_f64() * 1e6 / count as f64
}

fn now() -> Instant {
    SystemClock.now()
}
