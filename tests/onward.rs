//! Workers that send onward: what they return is confirmed before their message is acked, whatever fails on the way.

#![cfg(feature = "json")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use windlass::clock::ControlledClock;
use windlass::codec::Raw;
use windlass::consumer::RetryPolicy;
use windlass::handler::{Direction, Handler, Onward, Outgoing};
use windlass::memory::{FaultPoint, MemoryBroker, MemoryPublisher, MemoryQueue};
use windlass::message::{Message, TraceParent};
use windlass::{
    Context, Error, ErrorKind, HandlerError, Publisher, PublisherExt, Queue, QueueConsumer, QueueFamily,
};

use support::{SECOND, at_most, ids, prompt, stop_on};

const WORK: Queue<u32> = Queue::new("work");
const LEFT: Queue<u32> = Queue::new("left");
const RIGHT: QueueFamily<String> = QueueFamily::new("right");

struct Place {
    clock: ControlledClock,
    broker: MemoryBroker,
    work: MemoryQueue,
    left: MemoryQueue,
    right: MemoryQueue,
}

fn place() -> Place {
    let clock = ControlledClock::new();
    let broker = MemoryBroker::new(clock.clone());
    let (work, left, right) = (broker.queue("work"), broker.queue("left"), broker.queue("right_1"));
    Place { clock, broker, work, left, right }
}

/// As many to the left as the number says, and one to the right.
async fn split(number: u32, _: Context) -> Result<Vec<Outgoing>, HandlerError> {
    let lefts = (0..number).map(|each| Outgoing::to(&LEFT, &each));
    Ok(lefts.chain([Outgoing::to(&RIGHT.slot(1), &number.to_string())]).collect())
}

fn work(number: u32) -> Message {
    WORK.message(&number).unwrap().with_id(format!("w-{number}"))
}

/// Holds every publish until a permit is given, and counts.
#[derive(Clone)]
struct Gate {
    within: MemoryPublisher,
    permits: Arc<Semaphore>,
    begun: Arc<AtomicUsize>,
    now: Arc<AtomicUsize>,
    peak: Arc<AtomicUsize>,
}

impl Gate {
    fn new(within: MemoryPublisher) -> Self {
        let count = Arc::<AtomicUsize>::default;
        Self { within, permits: Arc::new(Semaphore::new(0)), begun: count(), now: count(), peak: count() }
    }

    fn begun(&self) -> usize {
        self.begun.load(Ordering::SeqCst)
    }
}

impl Publisher for Gate {
    async fn publish(&self, queue: &str, message: Message) -> windlass::Result<()> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        self.peak.fetch_max(self.now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        self.permits.acquire().await.unwrap().forget();
        self.now.fetch_sub(1, Ordering::SeqCst);
        self.within.publish(queue, message).await
    }
}

/// Fails each publish with this kind.
struct Fails(ErrorKind);

impl Publisher for Fails {
    async fn publish(&self, _: &str, _: Message) -> windlass::Result<()> {
        Err(Error::new(self.0, "publish"))
    }
}

#[tokio::test]
async fn the_message_is_acked_only_once_all_is_confirmed() {
    let place = place();
    let gate = Gate::new(place.broker.publisher());
    place.work.publish(work(2));
    let worker = Onward::new("split", gate.clone(), split);
    let consumer =
        QueueConsumer::of(&WORK, place.work.source(), worker).clock(place.clock.clone()).start().unwrap();
    for sent in 0..3 {
        place.clock.settle().await;
        assert_eq!((gate.begun(), place.work.counts().in_flight), (3, 1), "all are begun at once");
        assert_eq!(place.work.counts().acked, 0, "{sent} of 3 are confirmed");
        assert_eq!(place.left.counts().pending + place.right.counts().pending, sent);
        gate.permits.add_permits(1);
    }
    place.work.until(|work| work.counts().acked == 1).await.unwrap();
    assert_eq!((place.left.counts().pending, place.right.counts().pending), (2, 1));
    let (report, _) = stop_on(&place.clock, &consumer).await;
    assert!(report.is_clean());
}

#[tokio::test]
async fn a_publish_that_fails_is_a_failed_attempt_and_the_ids_are_the_same_next_time() {
    let place = place();
    place.right.fail_next(FaultPoint::Publish, Error::new(ErrorKind::Unconfirmed, "publish"));
    place.work.publish(work(2));
    let worker = Onward::new("split", place.broker.publisher(), split);
    let consumer =
        QueueConsumer::of(&WORK, place.work.source(), worker).clock(place.clock.clone()).start().unwrap();
    place.work.until(|work| work.counts().delayed == 1).await.unwrap();
    assert_eq!((place.work.counts().acked, place.right.counts().pending), (0, 0));
    let (_, reason) = place.work.nacked().remove(0);
    let cause = reason.cause().to_string();
    assert!(cause.starts_with("handler_error: send onward: not confirmed"), "{cause}");
    assert!(cause.contains("2 of 3 were confirmed (queue right_1)"), "{cause}");

    place.clock.advance(SECOND).await;
    place.work.until(|work| work.counts().acked == 1).await.unwrap();
    let left = place.left.pending();
    assert_eq!(left.len(), 4, "those that were confirmed are sent again");
    assert_eq!((left[0].id(), left[1].id()), (left[2].id(), left[3].id()));
    assert_ne!(left[0].id(), left[1].id());
    assert_eq!(place.right.pending().len(), 1);
    assert!(stop_on(&place.clock, &consumer).await.0.is_clean());
}

#[tokio::test]
async fn an_ack_that_fails_brings_the_message_back_and_the_duplicate_has_the_same_id() {
    let place = place();
    place.work.fail_next(FaultPoint::Ack, Error::new(ErrorKind::Disconnected, "ack"));
    place.work.publish(work(1));
    let worker = Onward::new("split", place.broker.publisher(), split);
    let consumer =
        QueueConsumer::of(&WORK, place.work.source(), worker).clock(place.clock.clone()).start().unwrap();
    place.work.until(|work| work.counts().acked == 1).await.unwrap();
    for queue in [&place.left, &place.right] {
        let messages = queue.pending();
        let ids = ids(&messages);
        assert_eq!((ids.len(), ids[0]), (2, ids[1]), "{queue:?}");
    }
    assert_eq!(place.work.acked()[0].attempt(), 1, "an answer that failed is no attempt");
    assert!(stop_on(&place.clock, &consumer).await.0.is_clean());
}

#[tokio::test]
async fn nothing_is_sent_where_the_handler_fails_or_panics() {
    let place = place();
    for number in 1..=3 {
        place.work.publish(work(number));
    }
    let worker =
        Onward::new("split", place.broker.publisher(), async |number: u32, context: Context| {
            match (number, context.attempt()) {
                (1, _) => Err(HandlerError::terminal("never")),
                (2, 1) => panic!("not yet"),
                _ => split(number, context).await,
            }
        });
    let consumer =
        QueueConsumer::of(&WORK, place.work.source(), worker).clock(place.clock.clone()).start().unwrap();
    place.work.until(|work| work.counts().acked == 1).await.unwrap();
    assert_eq!((place.left.counts().pending, place.right.counts().pending), (3, 1), "of the third alone");
    assert_eq!(place.work.dead_lettered()[0].1.cause.to_string(), "terminal: never");
    place.clock.advance(SECOND).await;
    place.work.until(|work| work.counts().acked == 2).await.unwrap();
    assert_eq!((place.left.counts().pending, place.right.counts().pending), (5, 2));
    assert!(stop_on(&place.clock, &consumer).await.0.is_clean());
}

#[tokio::test]
async fn a_drain_in_the_middle_puts_the_message_back_and_it_is_sent_again_with_the_same_ids() {
    let place = place();
    let gate = Gate::new(place.broker.publisher());
    place.work.publish(work(2));
    let worker = Onward::new("split", gate.clone(), split);
    let consumer =
        QueueConsumer::of(&WORK, place.work.source(), worker).clock(place.clock.clone()).start().unwrap();
    gate.permits.add_permits(1);
    place.left.until(|left| left.counts().pending == 1).await.unwrap();
    let (report, _) = stop_on(&place.clock, &consumer).await;
    assert_eq!((report.stats.acked, place.work.counts().pending), (0, 1), "{report:?}");

    gate.permits.add_permits(3);
    let worker = Onward::new("split", gate, split);
    let consumer =
        QueueConsumer::of(&WORK, place.work.source(), worker).clock(place.clock.clone()).start().unwrap();
    place.work.until(|work| work.counts().acked == 1).await.unwrap();
    let left = place.left.pending();
    assert_eq!((left.len(), left[0].id()), (3, left[1].id()));
    assert_eq!(place.work.acked()[0].attempt(), 1, "a drain is no attempt");
    assert!(stop_on(&place.clock, &consumer).await.0.is_clean());
}

async fn handle(handler: &impl Handler<u32, Output = usize>, number: u32) -> Result<usize, HandlerError> {
    prompt(handler.handle(number, Context::new(work(number), CancellationToken::new()))).await
}

#[tokio::test]
async fn no_more_than_asked_for_are_under_way_and_they_are_begun_in_order() {
    for (most, peak) in [(1, 1), (3, 3), (100, 11)] {
        let place = place();
        let gate = Gate::new(place.broker.publisher());
        let worker = Onward::new("split", gate.clone(), split).max_in_flight(at_most(most));
        gate.permits.add_permits(1_000);
        assert_eq!(handle(&worker, 10).await.unwrap(), 11);
        let sent: Vec<u32> = place.left.pending().iter().map(|each| LEFT.decode(each).unwrap()).collect();
        assert_eq!(sent, (0..10).collect::<Vec<_>>());

        let gate = Gate::new(place.broker.publisher());
        let worker = Onward::new("split", gate.clone(), split).max_in_flight(at_most(most));
        let running = tokio::spawn(async move { handle(&worker, 10).await });
        place.clock.settle().await;
        gate.permits.add_permits(11);
        assert_eq!(running.await.unwrap().unwrap(), 11);
        assert_eq!(gate.peak.load(Ordering::SeqCst), peak);
    }
}

#[tokio::test]
async fn after_one_has_failed_none_is_begun_and_those_under_way_are_waited_for() {
    let place = place();
    let gate = Gate::new(place.broker.publisher());
    place.left.fail_next(FaultPoint::Publish, Error::new(ErrorKind::Refused, "publish"));
    let worker = Onward::new("split", gate.clone(), split).max_in_flight(at_most(3));
    let running = tokio::spawn(async move { handle(&worker, 10).await });
    place.clock.settle().await;
    gate.permits.add_permits(2);
    place.left.until(|left| left.counts().pending == 1).await.unwrap();
    place.clock.settle().await;
    assert!(!running.is_finished(), "one is under way");
    gate.permits.add_permits(100);
    let error = running.await.unwrap().unwrap_err();
    assert!(matches!(error, HandlerError::Failed(_)), "{error:?}");
    assert_eq!((gate.begun(), place.left.counts().pending), (3, 2));
}

#[tokio::test]
async fn each_way_to_fail_has_its_class() {
    for kind in [
        ErrorKind::Disconnected,
        ErrorKind::Refused,
        ErrorKind::Unroutable,
        ErrorKind::Unconfirmed,
        ErrorKind::NotFound,
        ErrorKind::Timeout,
        ErrorKind::Other,
    ] {
        let error = handle(&Onward::new("split", Fails(kind), split), 1).await.unwrap_err();
        let HandlerError::Failed(failure) = &error else { panic!("{kind}: {error:?}") };
        let error: &Error = failure.downcast_ref().unwrap();
        assert_eq!(error.kind(), kind);
        assert!(error.to_string().contains("(queue left)"), "{error}");
    }
    let error = handle(&Onward::new("split", Fails(ErrorKind::Invalid), split), 1).await.unwrap_err();
    assert!(matches!(error, HandlerError::Validation { direction: Direction::Output, .. }), "{error:?}");
    let error = handle(&Onward::new("split", Fails(ErrorKind::Closed), split), 1).await.unwrap_err();
    assert!(matches!(error, HandlerError::NotRunning), "{error:?}");
    let shout = async |_: u32, _: Context| Ok::<_, HandlerError>(Outgoing::broadcast(&LEFT, &1));
    let error = handle(&Onward::new("shout", Fails(ErrorKind::Other), shout), 1).await.unwrap_err();
    assert!(matches!(error, HandlerError::Terminal(_)), "it cannot broadcast: {error:?}");
}

#[tokio::test]
async fn a_queue_that_nobody_made_is_named_with_the_dead_letter() {
    let place = place();
    place.work.publish(work(1));
    let nowhere = async |number: u32, _: Context| {
        Ok::<_, HandlerError>(Outgoing::to(&LEFT.clone().named("nowhere"), &number))
    };
    let worker = Onward::new("lost", place.broker.publisher(), nowhere);
    let consumer = QueueConsumer::of(&WORK, place.work.source(), worker)
        .clock(place.clock.clone())
        .retry_policy(RetryPolicy::never())
        .start()
        .unwrap();
    place.work.until(|work| work.counts().dead_lettered == 1).await.unwrap();
    let cause = place.work.dead_lettered()[0].1.cause.to_string();
    assert!(cause.contains("send onward: no such queue: 0 of 1 were confirmed (queue nowhere)"), "{cause}");
    assert!(stop_on(&place.clock, &consumer).await.0.is_clean());
}

#[tokio::test]
async fn nothing_is_sent_where_one_of_them_cannot_be() {
    const SMALL: Queue<bytes::Bytes, Raw> = Queue::with_codec("left", Raw).max_body_bytes(3);
    for (bad, text) in [
        (Outgoing::to(&SMALL, &bytes::Bytes::from_static(b"four")), "left"),
        (Outgoing::message_to("", Message::new("")), "`queue` is empty"),
        (Outgoing::broadcast_message("x".repeat(238), Message::new("")), "`exchange` is 238 bytes long"),
    ] {
        let place = place();
        let returned = Mutex::new(Some([Outgoing::to(&LEFT, &1), bad]));
        let worker = Onward::new("bad", place.broker.publisher(), move |_: u32, _: Context| {
            let returned = returned.lock().unwrap().take().unwrap();
            std::future::ready(Ok::<_, HandlerError>(returned))
        });
        let error = handle(&worker, 1).await.unwrap_err();
        let HandlerError::Validation { direction: Direction::Output, failure } = &error else {
            panic!("{error:?}")
        };
        let said = windlass::error::Chain(failure.error()).to_string();
        assert!(said.contains(text), "{said}");
        assert_eq!(place.left.counts().published, 0);
    }
}

#[tokio::test]
async fn ids_differ_by_worker_message_destination_and_number_and_by_nothing_else() {
    let sent_by = async |worker: &str, cause: &str, count: usize| {
        let place = place();
        let returned = move |_: u32, _: Context| {
            let one = |_| Outgoing::message_to("left", Message::new(""));
            let mut all: Vec<Outgoing> = (0..count).map(one).collect();
            all.insert(0, Outgoing::message_to("right_1", Message::new("")));
            std::future::ready(Ok::<_, HandlerError>(all))
        };
        let worker = Onward::new(worker, place.broker.publisher(), returned);
        let context = Context::new(Message::new("").with_id(cause), CancellationToken::new());
        worker.handle(1, context).await.unwrap();
        let messages = [place.left.pending(), place.right.pending()].concat();
        messages.iter().map(|each| each.id().to_owned()).collect::<Vec<_>>()
    };
    let first = sent_by("a", "m-1", 2).await;
    assert_eq!(first, sent_by("a", "m-1", 2).await);
    assert_eq!(first[0], sent_by("a", "m-1", 1).await[0]);
    let mut all = [
        first.clone(),
        sent_by("b", "m-1", 2).await,
        sent_by("a", "m-2", 2).await,
        vec!["m-1".to_owned(), "m-2".to_owned()],
    ]
    .concat();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 11, "{all:?}");
    // As its page says how it is made, others can make it too.
    let namespace = uuid::Uuid::parse_str("8d1c3f0e-27b5-4a6b-9c64-51e20b7af3d9").unwrap();
    assert_eq!(first[0], uuid::Uuid::new_v5(&namespace, b"a\0m-1\0queue\0left\x001").to_string());
}

#[tokio::test]
async fn the_correlation_id_and_the_trace_go_along_and_what_is_set_stays() {
    let parent: TraceParent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".parse().unwrap();
    let cause = work(1).with_correlation_id("request-9").with_trace_parent(parent);
    let place = place();
    let worker = Onward::new("carry", place.broker.publisher(), async |number: u32, _: Context| {
        let own = |message: Message| message.with_correlation_id("own").with_header("shard", 3_i32);
        Ok::<_, HandlerError>([
            Outgoing::to(&LEFT, &number),
            Outgoing::to(&LEFT, &number).with(own).with_id("own-id"),
        ])
    });
    worker.handle(7, Context::new(cause, CancellationToken::new())).await.unwrap();
    let left = place.left.pending();
    assert_eq!((left[0].correlation_id(), left[0].trace_parent()), ("request-9", Some(parent)));
    assert_eq!(left[0].content_type(), Some("application/json"));
    assert_eq!((left[1].correlation_id(), left[1].id()), ("own", "own-id"));
    assert_eq!(left[1].headers().get("shard").and_then(windlass::message::HeaderValue::as_i64), Some(3));
    assert_eq!(LEFT.decode(&left[1]).unwrap(), 7);
}

#[tokio::test]
async fn a_handler_may_return_none_one_some_or_many() {
    let place = place();
    let publisher = || place.broker.publisher();
    let none =
        Onward::new("w", publisher(), async |_: u32, _: Context| Ok::<Option<Outgoing>, HandlerError>(None));
    let one = Onward::new("w", publisher(), async |number: u32, _: Context| {
        Ok::<_, HandlerError>(Outgoing::to(&LEFT, &number))
    });
    let two = Onward::new("w", publisher(), async |number: u32, _: Context| {
        Ok::<_, HandlerError>([Outgoing::to(&LEFT, &number), Outgoing::to(&LEFT, &number)])
    });
    assert_eq!(handle(&none, 1).await.unwrap(), 0);
    assert_eq!(handle(&one, 1).await.unwrap(), 1);
    assert_eq!(handle(&two, 1).await.unwrap(), 2);
    assert_eq!(place.left.counts().pending, 3);
    place.broker.publisher().send(&WORK, &5).await.unwrap();
    assert_eq!(place.work.counts().pending, 1);
}
