//! The stream of deliveries: for-await, settled by value.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use tokio_util::sync::CancellationToken;
use windlass::clock::{Clock, ControlledClock};
use windlass::deliveries::{Deliveries, SourceExt};
use windlass::memory::{FaultPoint, MemoryQueue, MemorySource, QueueOptions};
use windlass::message::Message;
use windlass::source::{Health, MessageSource, NackReason};
use windlass::{Error, ErrorKind};

use support::faulty::{Act, Faulty, Op};
use support::{Log, SECOND, ids, millis_after, ms, prompt, publish, queue, queue_with};

fn stream(queue: &MemoryQueue, clock: &ControlledClock) -> Deliveries<MemorySource> {
    queue.source().deliveries().clock(clock.clone())
}

fn gone() -> Error {
    Error::new(ErrorKind::Disconnected, "script")
}

#[tokio::test]
async fn a_loop_settles_each_message_by_value() {
    let (clock, queue) = queue();
    publish(&queue, 4);
    let token = CancellationToken::new();
    let mut deliveries = stream(&queue, &clock).stop_on(token.clone());
    while let Some(delivery) = prompt(deliveries.next()).await {
        let delivery = delivery.unwrap();
        match delivery.message().id() {
            "m-1" => delivery.ack().await.unwrap(),
            "m-2" => delivery.nack(NackReason::dead_letter("no")).await.unwrap(),
            "m-3" => delivery.nack(NackReason::retry_after(SECOND, "later")).await.unwrap(),
            _ => {
                delivery.ack().await.unwrap();
                token.cancel();
            }
        }
    }
    let counts = queue.counts();
    assert_eq!((counts.acked, counts.dead_lettered, counts.delayed, counts.in_flight), (2, 1, 1, 0));
    assert_eq!(queue.delayed()[0].attempt(), 2);
    assert_eq!(deliveries.dropped(), 0);
}

#[tokio::test]
async fn nothing_is_pulled_ahead_of_the_loop() {
    let (clock, queue) = queue();
    publish(&queue, 3);
    let mut deliveries = stream(&queue, &clock);
    clock.settle().await;
    assert_eq!(queue.counts().delivered, 0);
    let first = prompt(deliveries.next()).await.unwrap().unwrap();
    clock.settle().await;
    assert_eq!((queue.counts().delivered, queue.counts().in_flight), (1, 1));
    first.ack().await.unwrap();
}

#[tokio::test]
async fn a_retry_without_a_delay_comes_back_at_once() {
    let (clock, queue) = queue();
    publish(&queue, 1);
    let mut deliveries = stream(&queue, &clock);
    for attempt in 1..=5 {
        let delivery = prompt(deliveries.next()).await.unwrap().unwrap();
        assert_eq!(delivery.message().attempt(), attempt);
        delivery.nack(NackReason::retry("again")).await.unwrap();
    }
}

#[tokio::test]
async fn a_dropped_delivery_goes_back_and_is_counted() {
    let (clock, queue) = queue();
    publish(&queue, 2);
    let mut deliveries = stream(&queue, &clock);
    let (one, two) = (deliveries.next().await.unwrap().unwrap(), deliveries.next().await.unwrap().unwrap());
    drop(one);
    two.ack().await.unwrap();
    prompt(deliveries.all_put_back()).await;
    assert_eq!((deliveries.dropped(), ids(&queue.pending())), (1, vec!["m-1"]));
    assert_eq!(queue.nacked()[0].1, NackReason::requeue_now("dropped"));
    let again = prompt(deliveries.next()).await.unwrap().unwrap();
    assert!(again.message().redelivered() && again.message().attempt() == 1);
    drop(again);
    prompt(deliveries.all_put_back()).await;
    assert_eq!((deliveries.dropped(), queue.counts().pending), (2, 1));
}

#[tokio::test]
async fn an_answer_that_is_dropped_before_it_is_polled_puts_the_message_back() {
    let (clock, queue) = queue();
    publish(&queue, 1);
    let mut deliveries = stream(&queue, &clock);
    let delivery = deliveries.next().await.unwrap().unwrap();
    drop(delivery.ack());
    prompt(deliveries.all_put_back()).await;
    assert_eq!((deliveries.dropped(), queue.counts().pending, queue.counts().acked), (1, 1, 0));
}

#[tokio::test]
async fn a_delivery_dropped_on_a_thread_without_a_runtime_goes_back() {
    let (clock, queue) = queue();
    publish(&queue, 1);
    let mut deliveries = stream(&queue, &clock);
    let delivery = deliveries.next().await.unwrap().unwrap();
    std::thread::spawn(move || drop(delivery)).join().unwrap();
    queue.until(|queue| queue.counts().pending == 1).await.unwrap();
    prompt(deliveries.all_put_back()).await;
    assert_eq!(deliveries.dropped(), 1);
}

#[test]
fn a_delivery_of_a_stream_made_without_a_runtime_stays_until_the_source_closes() {
    let (clock, queue) = queue();
    publish(&queue, 1);
    let mut deliveries = stream(&queue, &clock);
    let delivery = deliveries.next().now_or_never().unwrap().unwrap().unwrap();
    drop(delivery);
    assert_eq!((deliveries.dropped(), queue.counts().in_flight), (1, 1));
    drop(deliveries);
    assert_eq!((queue.counts().in_flight, queue.counts().pending), (0, 1));
}

#[tokio::test]
async fn a_delivery_that_outlives_its_stream_can_still_be_settled() {
    let (clock, queue) = queue();
    publish(&queue, 2);
    let mut deliveries = stream(&queue, &clock);
    let one = deliveries.next().await.unwrap().unwrap();
    let two = deliveries.next().await.unwrap().unwrap();
    drop(deliveries);
    one.ack().await.unwrap();
    assert_eq!(queue.counts().acked, 1);
    drop(two);
    queue.until(|queue| queue.counts().pending == 1).await.unwrap();
}

#[tokio::test]
async fn dropping_the_stream_in_the_middle_of_a_receive_loses_nothing() {
    let (clock, queue) = queue();
    let source = queue.source();
    for number in 0..100 {
        let mut deliveries = source.clone().deliveries().clock(clock.clone());
        let mut next = Box::pin(deliveries.next());
        assert!(futures::poll!(&mut next).is_pending());
        publish(&queue, 1);
        // Woken, and gone before it looked.
        drop(next);
        drop(deliveries);
        assert_eq!((queue.counts().pending, queue.counts().in_flight), (1, 0), "round {number}");
        let mut deliveries = source.clone().deliveries();
        prompt(deliveries.next()).await.unwrap().unwrap().ack().await.unwrap();
    }
    assert_eq!((queue.counts().acked, source.health()), (100, Health::Ready));
}

#[tokio::test]
async fn several_loops_on_one_source_get_each_message_once() {
    let (clock, queue) = queue();
    let source = Arc::new(queue.source());
    let token = CancellationToken::new();
    let seen: Log<String> = Log::new();
    let loops: Vec<_> = (0..8)
        .map(|_| {
            let mut deliveries = Arc::clone(&source).deliveries().stop_on(token.clone()).clock(clock.clone());
            let seen = seen.clone();
            tokio::spawn(async move {
                while let Some(delivery) = deliveries.next().await {
                    let delivery = delivery.unwrap();
                    seen.add(delivery.message().id().to_owned());
                    delivery.ack().await.unwrap();
                }
            })
        })
        .collect();
    publish(&queue, 500);
    queue.until(|queue| queue.counts().acked == 500).await.unwrap();
    token.cancel();
    for ended in loops {
        prompt(ended).await.unwrap();
    }
    let mut seen = seen.all();
    seen.sort();
    seen.dedup();
    assert_eq!((seen.len(), queue.counts().delivered), (500, 500));
}

#[tokio::test]
async fn the_stream_ends_when_its_token_fires_and_takes_nothing_more() {
    let (clock, queue) = queue();
    let token = CancellationToken::new();
    let mut deliveries = stream(&queue, &clock).stop_on(token.clone());
    let ending = tokio::spawn(async move {
        let ended = deliveries.next().await.is_none();
        (ended, deliveries)
    });
    clock.settle().await;
    token.cancel();
    let (ended, _deliveries) = prompt(ending).await.unwrap();
    assert!(ended);
    publish(&queue, 1);
    clock.settle().await;
    assert_eq!(queue.counts().delivered, 0);
    let fired = CancellationToken::new();
    fired.cancel();
    assert!(prompt(stream(&queue, &clock).stop_on(fired).next()).await.is_none());
    assert_eq!(queue.counts().delivered, 0);
}

#[tokio::test]
async fn a_stream_that_has_ended_stays_ended_and_does_not_panic() {
    let (clock, queue) = queue();
    let token = CancellationToken::new();
    token.cancel();
    let mut deliveries = stream(&queue, &clock).stop_on(token);
    for _ in 0..3 {
        assert!(prompt(deliveries.next()).await.is_none());
    }
}

#[tokio::test]
async fn a_failed_receive_is_an_item_and_the_next_is_waited_for_on_the_clock() {
    let (clock, queue) = queue();
    let start = clock.now();
    publish(&queue, 1);
    for _ in 0..3 {
        queue.fail_next(FaultPoint::Receive, gone());
    }
    let times = Log::new();
    let mut deliveries = stream(&queue, &clock);
    let reading = tokio::spawn({
        let (clock, times) = (clock.clone(), times.clone());
        async move {
            loop {
                let item = deliveries.next().await.unwrap();
                times.add(clock.now());
                if let Ok(delivery) = item {
                    return delivery.ack().await;
                }
            }
        }
    });
    clock.advance(10 * SECOND).await;
    prompt(reading).await.unwrap().unwrap();
    let times = millis_after(start, &times.all());
    assert_eq!(times.len(), 4);
    let waits: Vec<u128> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    for (wait, planned) in waits.iter().zip([100, 200, 400]) {
        assert!((planned * 9 / 10..=planned * 11 / 10 + 1).contains(wait), "{waits:?}");
    }
}

#[tokio::test]
async fn a_stream_ends_after_an_error_that_cannot_be_helped() {
    let (clock, queue) = queue();
    publish(&queue, 1);
    queue.fail_next(FaultPoint::Receive, Error::new(ErrorKind::Unauthorized, "receive"));
    let mut deliveries = stream(&queue, &clock);
    let error = prompt(deliveries.next()).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthorized);
    assert!(prompt(deliveries.next()).await.is_none());
    assert_eq!(queue.counts().pending, 1);
}

#[tokio::test]
async fn a_closed_source_ends_the_stream_with_an_error() {
    let (clock, queue) = queue();
    let source = queue.source();
    let mut deliveries = source.clone().deliveries().clock(clock);
    source.close().await.unwrap();
    assert_eq!(prompt(deliveries.next()).await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    assert!(prompt(deliveries.next()).await.is_none());
}

#[tokio::test]
async fn a_token_that_fires_during_the_wait_after_an_error_ends_the_stream_at_once() {
    let (clock, queue) = queue();
    queue.fail_next(FaultPoint::Receive, gone());
    let token = CancellationToken::new();
    let mut deliveries = stream(&queue, &clock).stop_on(token.clone());
    assert!(prompt(deliveries.next()).await.unwrap().is_err());
    let ending = tokio::spawn(async move { deliveries.next().await.is_none() });
    clock.settle().await;
    assert!(!ending.is_finished());
    token.cancel();
    assert!(prompt(ending).await.unwrap());
}

#[tokio::test]
async fn a_loop_that_passes_over_errors_does_not_spin() {
    let (clock, queue) = queue();
    let source = Faulty::new(queue.source(), |op, _| match op {
        Op::Receive => Act::Fail(gone()),
        _ => Act::Pass,
    });
    let calls = source.calls();
    let mut deliveries = source.deliveries().clock(clock.clone());
    let reading = tokio::spawn(async move { while deliveries.next().await.is_some() {} });
    clock.advance(60 * SECOND).await;
    assert!((8..=20).contains(&calls.of(Op::Receive)), "{} calls in a minute", calls.of(Op::Receive));
    reading.abort();
}

#[tokio::test]
async fn a_source_that_has_nothing_at_once_and_for_ever_is_not_asked_at_full_speed() {
    let (clock, queue) = queue();
    let source = Faulty::new(queue.source(), |op, _| match op {
        Op::Receive => Act::Nothing,
        _ => Act::Pass,
    });
    let calls = source.calls();
    let mut deliveries = source.deliveries().clock(clock.clone());
    let reading = tokio::spawn(async move { deliveries.next().await.is_none() });
    clock.advance(60 * SECOND).await;
    assert!(calls.of(Op::Receive) <= 600, "{} calls in a minute", calls.of(Op::Receive));
    reading.abort();
}

/// "Ends the stream once `token` fires", as the consumer does after a grace.
#[tokio::test]
async fn a_source_that_ignores_its_token_does_not_hold_the_stream_for_ever() {
    let (clock, queue) = queue();
    let source = Faulty::new(queue.source(), |op, _| if op == Op::Receive { Act::Hang } else { Act::Pass });
    let token = CancellationToken::new();
    let mut deliveries = source.deliveries().clock(clock.clone()).stop_on(token.clone());
    let reading = tokio::spawn(async move { deliveries.next().await.is_none() });
    clock.settle().await;
    token.cancel();
    clock.advance(60 * SECOND).await;
    assert!(reading.is_finished());
}

#[tokio::test]
async fn an_answer_that_fails_or_never_comes_is_an_error_and_the_message_comes_again() {
    let (clock, queue) = queue();
    publish(&queue, 1);
    let mut deliveries = stream(&queue, &clock);
    let delivery = deliveries.next().await.unwrap().unwrap();
    queue.fail_next(FaultPoint::Ack, gone());
    assert_eq!(delivery.ack().await.unwrap_err().kind(), ErrorKind::Disconnected);
    let delivery = deliveries.next().await.unwrap().unwrap();
    queue.cut();
    assert_eq!(delivery.nack(NackReason::retry("x")).await.unwrap_err().kind(), ErrorKind::Stale);
    assert_eq!((queue.counts().pending, queue.pending()[0].attempt(), deliveries.dropped()), (1, 1, 0));
}

#[tokio::test]
async fn an_ack_that_never_returns_is_bounded() {
    let (clock, queue) = queue();
    publish(&queue, 1);
    let source = Faulty::new(queue.source(), |op, _| if op == Op::Ack { Act::Hang } else { Act::Pass });
    let mut deliveries = source.deliveries().clock(clock.clone());
    let delivery = deliveries.next().await.unwrap().unwrap();
    let acking = tokio::spawn(delivery.ack());
    clock.advance(Duration::from_secs(30)).await;
    assert_eq!(prompt(acking).await.unwrap().unwrap_err().kind(), ErrorKind::Timeout);
}

#[tokio::test]
async fn putting_back_that_never_returns_is_bounded() {
    let (clock, queue) = queue();
    publish(&queue, 1);
    let source = Faulty::new(queue.source(), |op, _| if op == Op::Nack { Act::Hang } else { Act::Pass });
    let mut deliveries = source.deliveries().clock(clock.clone());
    drop(deliveries.next().await.unwrap().unwrap());
    let half_a_minute = clock.advance(Duration::from_secs(30));
    prompt(futures::future::join(deliveries.all_put_back(), half_a_minute)).await;
}

#[tokio::test]
async fn a_lease_is_kept_by_hand() {
    let (clock, queue) = queue_with(QueueOptions::new().with_lease(10 * SECOND));
    publish(&queue, 1);
    let mut deliveries = stream(&queue, &clock);
    let delivery = prompt(deliveries.next()).await.unwrap().unwrap();
    for _ in 0..5 {
        clock.advance(ms(9_999)).await;
        delivery.extend().await.unwrap();
    }
    delivery.ack().await.unwrap();
    assert_eq!((queue.counts().acked, queue.counts().returned), (1, 0));
    queue.publish(Message::new("y"));
    let delivery = prompt(deliveries.next()).await.unwrap().unwrap();
    clock.advance(10 * SECOND).await;
    assert_eq!(delivery.extend().await.unwrap_err().kind(), ErrorKind::Stale);
    assert_eq!(delivery.ack().await.unwrap_err().kind(), ErrorKind::Stale);
    assert_eq!(queue.counts().pending, 1);
}
