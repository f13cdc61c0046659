//! The same services behind a consumer: what becomes of the message.

use std::convert::Infallible;
use std::future::{Ready, pending, ready};
use std::task::{Context as TaskContext, Poll};

use tower::{BoxError, Service, ServiceBuilder, service_fn};
use windlass::clock::ControlledClock;
use windlass::codec;
use windlass::consumer::{ConsumerHandle, QueueConsumer};
use windlass::handler::{Handler, HandlerError, ServiceHandler};
use windlass::memory::MemoryQueue;
use windlass::message::Message;
use windlass::source::{Cause, NackReason};

use super::services::{Unready, While};
use super::support::{Events, SECOND, at_most, ids, ms, prompt, publish, queue};

/// A consumer of numbers, with what it tells of them.
fn consume<H: Handler<u32>>(
    (clock, queue): &(ControlledClock, MemoryQueue),
    most: usize,
    handler: H,
) -> (ConsumerHandle, Events) {
    let events = Events::new();
    let number = |message: &Message| std::str::from_utf8(message.body())?.parse().map_err(BoxError::from);
    let consumer = QueueConsumer::with_decoder(queue.source(), number, handler)
        .max_concurrent(at_most(most))
        .on_event(events.observer())
        .clock(clock.clone());
    (consumer.start().unwrap(), events)
}

/// The nack that the number 7 leads to, the name of its outcome, and the queue.
async fn nack_by<H: Handler<u32>>(handler: H) -> (NackReason, &'static str, MemoryQueue) {
    let queues = queue();
    let (handle, events) = consume(&queues, 1, handler);
    let (_, queue) = queues;
    queue.publish(Message::new("7").with_id("m-1"));
    queue.until(|queue| queue.counts().nacked == 1).await.unwrap();
    let reason = queue.nacked()[0].1.clone();
    drop(handle);
    (reason, events.outcomes()[0], queue)
}

#[tokio::test]
async fn a_message_that_the_service_took_is_acked() {
    let queues = queue();
    let service = service_fn(|number: u32| async move { Ok::<_, Infallible>(number) });
    let (handle, events) = consume(&queues, 1, ServiceHandler::new(service));
    queues.1.publish(Message::new("7"));
    queues.1.until(|queue| queue.counts().acked == 1).await.unwrap();
    assert_eq!(prompt(handle.stop()).await.stats.acked, 1);
    assert_eq!(events.outcomes(), ["done"]);
}

#[tokio::test(start_paused = true)]
async fn a_timeout_of_tower_is_a_counted_retry_with_its_time() {
    let never = service_fn(|_: u32| async move { pending::<Result<(), Infallible>>().await });
    let service = ServiceBuilder::new().timeout(ms(1_500)).service(never);
    let (reason, outcome, queue) = nack_by(ServiceHandler::new(service)).await;
    assert_eq!((reason, outcome), (NackReason::retry_after(SECOND, "timeout:1500ms"), "timeout"));
    assert_eq!(queue.delayed()[0].attempt(), 2);
}

#[tokio::test]
async fn what_a_full_service_sheds_goes_back_and_is_done_later_as_the_same_attempt() {
    let limited = While::new();
    let service = ServiceBuilder::new().load_shed().concurrency_limit(1).service(limited.service());
    let queues = queue();
    let (handle, events) = consume(&queues, 2, ServiceHandler::new(service));
    let (_, queue) = queues;
    for number in ["1", "2"] {
        queue.publish(Message::new(number).with_id(format!("m-{number}")));
    }
    queue.until(|queue| queue.counts().nacked == 1).await.unwrap();
    assert_eq!(queue.nacked()[0].1, NackReason::requeue_now("queue_full"));
    assert_eq!((events.outcomes(), queue.pending()[0].attempt()), (vec!["backpressure_reject"], 1));
    limited.open();
    // The loop that put it back waits on the clock, which stands still; the other one takes it.
    queue.until(|queue| queue.counts().acked == 2).await.unwrap();
    assert_eq!(limited.called.len(), 2, "each was called once");
    assert!(prompt(handle.stop()).await.is_clean());
}

#[tokio::test(start_paused = true)]
async fn what_is_above_the_rate_goes_back() {
    let service = service_fn(|number: u32| async move { Ok::<_, BoxError>(number) });
    let service = ServiceBuilder::new().buffer(4).load_shed().rate_limit(1, 60 * SECOND).service(service);
    let queues = queue();
    let (handle, events) = consume(&queues, 1, ServiceHandler::new(service));
    for number in ["1", "2"] {
        queues.1.publish(Message::new(number));
    }
    queues.1.until(|queue| queue.counts().nacked == 1).await.unwrap();
    assert_eq!(queues.1.nacked()[0].1, NackReason::requeue_now("queue_full"));
    assert_eq!(events.outcomes(), ["done", "backpressure_reject"]);
    drop(handle);
}

#[tokio::test]
async fn a_buffer_whose_worker_died_loses_and_dead_letters_nothing() {
    // Its call panics in the worker's task, which ends with it; the other's fails to get ready.
    let service = service_fn(|_: u32| async move { Ok::<_, BoxError>(()) });
    let panicking =
        ServiceBuilder::new().buffer(4).map_request(|number: u32| 1 / (number - 7)).service(service);
    let failing = ServiceBuilder::new().buffer(4).service(Unready::because(|| "no route".into()));
    let (reason, outcome, queue) = nack_by(ServiceHandler::new(panicking)).await;
    assert_eq!((reason, outcome), (NackReason::requeue_now("shutting_down"), "not_running"));
    assert_eq!(queue.pending()[0].attempt(), 1);
    let (reason, outcome, queue) = nack_by(ServiceHandler::new(failing)).await;
    assert_eq!((reason, outcome), (NackReason::requeue_now("shutting_down"), "not_running"));
    assert_eq!(queue.pending()[0].attempt(), 1);
}

#[tokio::test]
async fn what_the_service_calls_terminal_is_dead_lettered_and_what_it_does_not_class_is_tried_again() {
    let service =
        service_fn(|_: u32| async move { Err::<(), BoxError>(HandlerError::terminal("declined").into()) });
    let service = ServiceBuilder::new().buffer(1).load_shed().timeout(SECOND).service(service);
    let (reason, outcome, _) = nack_by(ServiceHandler::new(service)).await;
    let cause = Cause::new("terminal").with_detail("declined");
    assert_eq!((reason, outcome), (NackReason::dead_letter(cause), "terminal"));

    let (reason, outcome, _) = nack_by(ServiceHandler::new(Unready::because(|| "no route".into()))).await;
    let cause = Cause::new("handler_error").with_detail("no route");
    assert_eq!((reason, outcome), (NackReason::retry_after(SECOND, cause), "failed"));
}

/// Panics where it is told to.
#[derive(Clone, Copy, PartialEq)]
enum Panics {
    Ready,
    Call,
    Response,
}

impl Service<u32> for Panics {
    type Response = ();
    type Error = Infallible;
    type Future = futures::future::Either<Ready<Result<(), Infallible>>, PanicsLater>;

    fn poll_ready(&mut self, _: &mut TaskContext<'_>) -> Poll<Result<(), Infallible>> {
        assert!(*self != Self::Ready, "in poll_ready");
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: u32) -> Self::Future {
        assert!(*self != Self::Call, "in call");
        match self {
            Self::Response => futures::future::Either::Right(PanicsLater),
            Self::Ready | Self::Call => futures::future::Either::Left(ready(Ok(()))),
        }
    }
}

struct PanicsLater;

impl Future for PanicsLater {
    type Output = Result<(), Infallible>;

    fn poll(self: std::pin::Pin<&mut Self>, _: &mut TaskContext<'_>) -> Poll<Self::Output> {
        panic!("in the response")
    }
}

#[tokio::test]
async fn a_service_that_panics_anywhere_is_a_failed_attempt() {
    for (service, detail) in
        [(Panics::Ready, "in poll_ready"), (Panics::Call, "in call"), (Panics::Response, "in the response")]
    {
        let (reason, outcome, queue) = nack_by(ServiceHandler::new(service)).await;
        let cause = Cause::new("panic").with_detail(detail);
        assert_eq!((reason, outcome), (NackReason::retry_after(SECOND, cause), "panicked"));
        assert_eq!(queue.delayed()[0].attempt(), 2);
    }
    let mapped = ServiceHandler::mapped(Panics::Ready, |_: u32, _| -> u32 { panic!("in the mapping") });
    let (reason, outcome, _) = nack_by(mapped).await;
    let cause = Cause::new("panic").with_detail("in the mapping");
    assert_eq!((reason, outcome), (NackReason::retry_after(SECOND, cause), "panicked"));
}

#[tokio::test]
async fn a_drain_calls_no_service_that_was_not_ready_in_time_and_puts_the_message_back() {
    let limited = While::new();
    let service = ServiceBuilder::new().concurrency_limit(1).service(limited.service());
    let (clock, queue) = queue();
    let consumer = QueueConsumer::with_decoder(queue.source(), codec::bytes, {
        ServiceHandler::mapped(service, |_: bytes::Bytes, _| 7)
    });
    let handle = consumer
        .max_concurrent(at_most(2))
        .drain_timeout(SECOND)
        .drain_grace(SECOND)
        .clock(clock.clone())
        .start()
        .unwrap();
    publish(&queue, 2);
    queue.until(|queue| queue.counts().in_flight == 2).await.unwrap();
    clock.settle().await;
    let (report, _) = super::support::stop_on(&clock, &handle).await;
    // Of the two, one waits for the other's place, and answers when it is cancelled; the one in its call is dropped.
    assert_eq!((report.finished, report.requeued, report.abandoned), (1, 1, 0));
    assert_eq!((limited.called.len(), report.stats.requeued), (1, 2));
    assert_eq!(ids(&queue.pending()).len(), 2);
    assert!(queue.nacked().iter().all(|(_, reason)| *reason == NackReason::requeue_now("shutting_down")));
}
