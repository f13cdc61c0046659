//! A consumer whose handler has a circuit breaker: it does not burn through its queue while the circuit is open.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use windlass::clock::ControlledClock;
use windlass::codec;
use windlass::consumer::{ConsumerHandle, Obstacle, QueueConsumer, RetryPolicy, Status};
use windlass::handler::{CircuitBreaker, CircuitState, Context, HandlerError, Policies};
use windlass::memory::MemoryQueue;

use support::{SECOND, at_most, prompt, publish, queue, stop_on};

const RESET: Duration = Duration::from_secs(30);

struct Service {
    clock: ControlledClock,
    queue: MemoryQueue,
    down: Arc<AtomicBool>,
    calls: Arc<AtomicUsize>,
    breaker: CircuitBreaker,
    handle: ConsumerHandle,
}

/// A service whose dependency is down, with a breaker that opens after three failures. `holds` is whether the consumer
/// is given the breaker as its readiness, too.
fn service(loops: usize, holds: bool) -> Service {
    let (clock, queue) = queue();
    let (down, calls) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
    let call = {
        let (down, calls) = (Arc::clone(&down), Arc::clone(&calls));
        move |_: Bytes, _: Context| {
            calls.fetch_add(1, Ordering::Relaxed);
            let down = down.load(Ordering::Relaxed);
            async move { if down { Err(HandlerError::failed("connection refused")) } else { Ok(()) } }
        }
    };
    let breaker = CircuitBreaker::new(NonZeroU32::new(3).unwrap(), RESET);
    let handler =
        Policies::around(call).clock(clock.clone()).circuit_breaker(breaker.clone()).build().unwrap();
    let mut consumer = QueueConsumer::with_decoder(queue.source(), codec::bytes, handler)
        .max_concurrent(at_most(loops))
        .retry_policy(RetryPolicy::schedule([SECOND; 100]))
        .clock(clock.clone());
    if holds {
        consumer = consumer.readiness(breaker.clone());
    }
    let handle = consumer.start().unwrap();
    Service { clock, queue, down, calls, breaker, handle }
}

impl Service {
    fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }
}

#[tokio::test]
async fn an_outage_costs_a_call_for_each_reset_and_no_attempts_of_those_not_called() {
    for loops in [1, 4] {
        let service = service(loops, false);
        publish(&service.queue, 100);
        service.clock.settle().await;
        let opened = service.calls();
        assert_eq!(opened, 3, "{loops} loops");
        assert_eq!(
            (service.handle.status(), service.handle.waiting_for()),
            (Status::Waiting, Some(Obstacle::Circuit))
        );
        for trial in 1..=10 {
            service.clock.advance(RESET).await;
            assert_eq!(service.calls(), opened + trial, "{loops} loops");
        }
        // Only what was called has lost an attempt.
        let waiting = [service.queue.pending(), service.queue.delayed()].concat();
        assert_eq!(waiting.len(), 100);
        let attempts: u32 = waiting.iter().map(|message| message.attempt() - 1).sum();
        assert_eq!(attempts as usize, service.calls());
        service.down.store(false, Ordering::Relaxed);
        service.clock.advance(RESET).await;
        service.clock.advance(RESET).await;
        prompt(service.queue.until(|queue| queue.counts().acked == 100)).await.unwrap();
        assert_eq!(service.breaker.state(), CircuitState::Closed { failures: 0 });
    }
}

#[tokio::test]
async fn a_breaker_that_is_the_readiness_too_spends_no_attempt_on_the_failures_that_opened_it_either() {
    let service = service(1, true);
    publish(&service.queue, 20);
    service.clock.settle().await;
    // The third failure opened it: that message is held. The two before came when all seemed well.
    assert_eq!((service.calls(), service.handle.in_flight(), service.queue.nacked().len()), (3, 1, 2));
    service.clock.advance(4 * RESET).await;
    assert_eq!((service.calls(), service.handle.in_flight(), service.queue.nacked().len()), (7, 1, 2));
    service.down.store(false, Ordering::Relaxed);
    service.clock.advance(RESET).await;
    service.clock.advance(SECOND).await;
    prompt(service.queue.until(|queue| queue.counts().acked == 20)).await.unwrap();
    assert_eq!(service.queue.nacked().len(), 2);
}

#[tokio::test]
async fn an_open_circuit_does_not_delay_a_stop() {
    let service = service(4, false);
    publish(&service.queue, 20);
    service.clock.settle().await;
    let (report, took) = stop_on(&service.clock, &service.handle).await;
    assert!(report.is_clean() && took < SECOND, "{report:?} {took:?}");
}
