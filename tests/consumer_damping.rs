//! Loops that would run hot: requeues for ever, in either order and with any number of loops; and clocks that jump.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::time::{Duration, Instant};

use bytes::Bytes;
use windlass::backoff::Backoff;
use windlass::clock::{Clock, ControlledClock};
use windlass::codec;
use windlass::consumer::{ConsumerHandle, QueueConsumer};
use windlass::handler::{Context, HandlerError};
use windlass::memory::{MemoryQueue, QueueOptions};
use windlass::message::Message;
use windlass::source::{Capabilities, MessageSource, NackReason, RequeueOrder, Settlement};

use support::faulty::{Act, Faulty};
use support::{Log, SECOND, at_most, ids, millis_after, ms, prompt, publish, queue, queue_with, stop_on};

/// A consumer that requeues the messages whose body is `bad` for ever, and acks the others.
struct Requeues {
    clock: ControlledClock,
    queue: MemoryQueue,
    bad: Log<Instant>,
    handle: ConsumerHandle,
}

impl Requeues {
    fn new(order: RequeueOrder, loops: usize) -> Self {
        let (clock, queue) = queue_with(QueueOptions::new().with_requeue_order(order));
        let bad = Log::new();
        let handler = {
            let (clock, bad) = (clock.clone(), bad.clone());
            move |body: Bytes, _: Context| {
                let requeues = body == "bad";
                if requeues {
                    bad.add(clock.now());
                }
                async move { if requeues { Err(HandlerError::BackpressureReject) } else { Ok(()) } }
            }
        };
        let handle = QueueConsumer::with_decoder(queue.source(), codec::bytes, handler)
            .max_concurrent(at_most(loops))
            .clock(clock.clone())
            .start()
            .unwrap();
        Self { clock, queue, bad, handle }
    }

    /// The most deliveries of bad messages in any second.
    fn busiest_second(&self) -> usize {
        let times = self.bad.all();
        let within_a_second = |start: &Instant| {
            times.iter().filter(|time| **time >= *start && **time < *start + SECOND).count()
        };
        times.iter().map(within_a_second).max().unwrap_or(0)
    }
}

const SETTINGS: [(RequeueOrder, usize); 6] = [
    (RequeueOrder::Front, 1),
    (RequeueOrder::Front, 16),
    (RequeueOrder::Back, 1),
    (RequeueOrder::Back, 16),
    (RequeueOrder::Unknown, 1),
    (RequeueOrder::Unknown, 16),
];

/// BC-25 (ThreeDotsLabs/watermill#414): one message that is requeued for ever, alone for 10 s.
#[tokio::test]
async fn a_message_that_is_requeued_for_ever_comes_ever_more_slowly() {
    for (order, loops) in SETTINGS {
        let bench = Requeues::new(order, loops);
        bench.queue.publish(Message::new("bad").with_id("bad"));
        bench.clock.advance(10 * SECOND).await;
        let times = bench.bad.all();
        // Each loop waits for a second in the end; a message that goes to the back finds another loop meanwhile.
        let waiting = if order == RequeueOrder::Back { loops } else { 1 };
        let most = 12 + 10 * waiting + 8;
        assert!((10..=most).contains(&times.len()), "{order:?} {loops}: {} deliveries", times.len());
        let late = times.iter().filter(|time| **time > bench.clock.now() - SECOND).count();
        assert!(late <= waiting + 1, "{order:?} {loops}: {late} in the last second");
        let (report, _) = stop_on(&bench.clock, &bench.handle).await;
        let stats = report.stats;
        assert_eq!(stats.requeued + stats.retried, times.len() as u64, "the loop shows in the numbers");
        let left: Vec<_> = bench.queue.pending().into_iter().chain(bench.queue.delayed()).collect();
        assert_eq!((ids(&left), left[0].attempt()), (vec!["bad"], 1));
    }
}

/// BC-25 (ThreeDotsLabs/watermill#414): the same message, and 100 good ones.
#[tokio::test]
async fn good_messages_are_handled_beside_one_that_is_requeued_for_ever() {
    for (order, loops) in SETTINGS {
        let bench = Requeues::new(order, loops);
        bench.queue.publish(Message::new("bad").with_id("bad"));
        publish(&bench.queue, 100);
        bench.clock.advance(10 * SECOND).await;
        assert_eq!(bench.queue.counts().acked, 100, "{order:?} {loops}");
        assert!(bench.busiest_second() <= 20 + 4 * loops, "{order:?} {loops}: {}", bench.busiest_second());
        drop(bench.handle);
    }
}

#[tokio::test]
async fn good_messages_get_through_among_many_that_are_requeued_for_ever() {
    for (order, loops) in SETTINGS {
        let bench = Requeues::new(order, loops);
        for number in 0..20 {
            bench.queue.publish(Message::new("bad").with_id(format!("bad-{number}")));
        }
        publish(&bench.queue, 20);
        bench.clock.advance(120 * SECOND).await;
        assert_eq!(bench.queue.counts().acked, 20, "{order:?} {loops}: {:?}", bench.queue.counts());
        drop(bench.handle);
    }
}

#[tokio::test]
async fn a_steady_flow_of_good_messages_does_not_let_the_requeued_one_run_hot() {
    for (order, loops) in SETTINGS {
        let bench = Requeues::new(order, loops);
        bench.queue.publish(Message::new("bad").with_id("bad"));
        for _ in 0..1_000 {
            publish(&bench.queue, 1);
            bench.clock.advance(ms(10)).await;
        }
        // Each good message starts the row of requeues anew: the shortest wait of each loop is what bounds the rate.
        assert!(bench.busiest_second() <= 110 * loops, "{order:?} {loops}: {}", bench.busiest_second());
        bench.clock.advance(SECOND).await;
        assert_eq!(bench.queue.counts().acked, 1_000, "{order:?} {loops}");
        drop(bench.handle);
    }
}

#[tokio::test]
async fn the_waits_are_those_of_the_requeue_backoff() {
    let (clock, queue) = queue_with(QueueOptions::new().with_requeue_order(RequeueOrder::Back));
    let start = clock.now();
    let times = Log::new();
    let handler = {
        let (clock, times) = (clock.clone(), times.clone());
        move |_: Bytes, _: Context| {
            times.add(clock.now());
            async { Err::<(), _>(HandlerError::Dropped) }
        }
    };
    let handle = QueueConsumer::with_decoder(queue.source(), codec::bytes, handler)
        .requeue_backoff(Backoff::new(ms(100)).with_max(ms(500)).with_jitter(0.0))
        .clock(clock.clone())
        .start()
        .unwrap();
    publish(&queue, 1);
    clock.advance(SECOND).await;
    clock.advance(ms(700)).await;
    assert_eq!(millis_after(start, &times.all()), [0, 100, 300, 700, 1_200, 1_700]);
    drop(handle);
}

#[tokio::test]
async fn a_success_ends_the_row_of_requeues() {
    let bench = Requeues::new(RequeueOrder::Back, 1);
    bench.queue.publish(Message::new("bad").with_id("bad"));
    bench.clock.advance(10 * SECOND).await;
    let slow = bench.bad.len();
    publish(&bench.queue, 1);
    bench.clock.advance(3 * SECOND).await;
    assert_eq!(bench.queue.counts().acked, 1);
    let waits: Vec<Duration> = bench.bad.all().windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(waits[slow - 2] >= ms(900), "{waits:?}");
    assert!(waits[slow..].iter().any(|wait| *wait <= ms(11)), "{waits:?}");
    drop(bench.handle);
}

/// Where the broker cannot delay, a retry comes back at once: it must be damped like a requeue.
#[tokio::test]
async fn retries_are_damped_where_the_broker_cannot_delay() {
    let (clock, queue) = queue();
    let source = Faulty::new(queue.source(), |_, _| Act::Pass)
        .with_capabilities(Capabilities::new().with_dead_letter(true));
    // The queue in memory can delay; a zero delay makes it do what such a broker does.
    let consumer = QueueConsumer::with_decoder(source, codec::bytes, async |_: Bytes, _: Context| {
        Ok::<_, HandlerError>(())
    });
    let consumer =
        consumer.on_result(|_, _| NackReason::retry_after(Duration::from_nanos(1), "again").into());
    publish(&queue, 1);
    let handle = consumer.clock(clock.clone()).start().unwrap();
    clock.advance(10 * SECOND).await;
    assert!((10..=30).contains(&queue.counts().delivered), "{:?}", queue.counts());
    drop(handle);
}

#[tokio::test]
async fn a_message_kept_from_the_front_keeps_its_attempt_and_says_why() {
    let bench = Requeues::new(RequeueOrder::Front, 1);
    bench.queue.publish(Message::new("bad").with_id("bad"));
    bench.clock.advance(5 * SECOND).await;
    let nacked = bench.queue.nacked();
    let reasons: Vec<&NackReason> = nacked.iter().map(|(_, reason)| reason).collect();
    assert!(reasons.iter().all(|reason| reason.cause().code() == "queue_full"), "{reasons:?}");
    assert!(reasons[..2].iter().all(|reason| matches!(reason, NackReason::RequeueNow { .. })));
    let postponed = |reason: &&NackReason| matches!(reason, NackReason::Retry { delay: Some(delay), counted: false, .. } if *delay <= SECOND);
    assert!(reasons[2..].iter().all(postponed), "{reasons:?}");
    assert!(nacked.iter().all(|(message, _)| message.attempt() == 1));
    drop(bench.handle);
}

/// BC-56 (nats-io/nats.java#1332): 100 retries are pending at 5 s, and the wall clock jumps an hour ahead, and an hour
/// back.
#[tokio::test]
async fn a_jump_of_the_wall_clock_fires_no_retry_early_or_late() {
    const HOUR: Duration = Duration::from_secs(3_600);
    for ahead in [true, false] {
        let (clock, queue) = queue();
        let start = clock.now();
        let times = Log::new();
        let handler = {
            let (clock, times) = (clock.clone(), times.clone());
            move |_: Bytes, context: Context| {
                times.add(clock.now());
                let again = context.attempt() == 1;
                async move { if again { Err("again") } else { Ok(()) } }
            }
        };
        let consumer = QueueConsumer::with_decoder(queue.source(), codec::bytes, handler)
            .max_concurrent(at_most(4))
            .on_result(|result, _| match result {
                Ok(()) => Settlement::Ack,
                Err(_) => NackReason::retry_after(5 * SECOND, "again").into(),
            });
        publish(&queue, 100);
        let handle = consumer.clock(clock.clone()).start().unwrap();
        clock.advance(2 * SECOND).await;
        assert_eq!(queue.counts().delayed, 100);
        clock.jump_wall(if ahead { clock.wall() + HOUR } else { clock.wall() - HOUR });
        clock.settle().await;
        assert_eq!(times.len(), 100, "nothing early");
        clock.advance(ms(2_999)).await;
        assert_eq!(times.len(), 100, "nothing early");
        clock.advance(ms(1)).await;
        let times = millis_after(start, &times.all());
        assert_eq!((times[..100].to_vec(), times[100..].to_vec()), (vec![0; 100], vec![5_000; 100]));
        assert_eq!(queue.counts().acked, 100);
        drop(handle);
    }
}

/// BC-56 (nats-io/nats.java#1332): leases and waits after errors follow monotonic time as well.
#[tokio::test]
async fn a_jump_of_the_wall_clock_ends_no_lease() {
    let (clock, queue) = queue_with(QueueOptions::new().with_lease(30 * SECOND));
    let handler = {
        let clock = clock.clone();
        move |_: Bytes, context: Context| {
            let nap = clock.sleep(60 * SECOND);
            async move {
                nap.await;
                assert!(!context.cancellation().is_cancelled());
                Ok::<_, HandlerError>(())
            }
        }
    };
    let consumer = QueueConsumer::with_decoder(queue.source(), codec::bytes, handler);
    assert_eq!(queue.source().capabilities().lease, Some(30 * SECOND));
    let handle = consumer.clock(clock.clone()).start().unwrap();
    publish(&queue, 1);
    clock.advance(SECOND).await;
    clock.jump_wall(clock.wall() + Duration::from_secs(86_400));
    clock.advance(20 * SECOND).await;
    clock.jump_wall(clock.wall() - Duration::from_secs(2 * 86_400));
    clock.advance(40 * SECOND).await;
    let counts = queue.counts();
    assert_eq!((counts.acked, counts.delivered, counts.returned), (1, 1, 0));
    assert_eq!(prompt(handle.stop()).await.stats.leases_lost, 0);
}
