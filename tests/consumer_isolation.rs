//! What one message, or one part of a consumer, must not do to another: contexts, leases, panics, wakers.

#![allow(clippy::unwrap_used)]

mod support;

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context as TaskContext, Wake, Waker};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use tokio_util::sync::CancellationToken;
use tracing::field::{Field, Visit};
use tracing_subscriber::layer::{Context as LayerContext, Layer, SubscriberExt};
use windlass::clock::{Clock, ControlledClock, Sleep};
use windlass::codec;
use windlass::consumer::{ConsumerHandle, Status};
use windlass::memory::{MemoryQueue, MemoryReceipt, MemorySource, QueueOptions};
use windlass::source::{Capabilities, Delivery, Health, MessageSource, NackReason, RequeueOrder};
use windlass::{Context, Error, ErrorKind, HandlerError, Message, QueueConsumer, Result};

use support::faulty::{Act, Faulty, Op};
use support::{Events, Log, SECOND, at_most, ms, prompt, publish, queue, queue_with, stop_on};

#[tokio::test]
async fn a_lost_lease_does_not_cancel_the_next_message() {
    let options = QueueOptions::new().with_lease(3 * SECOND).with_requeue_order(RequeueOrder::Back);
    let (clock, queue) = queue_with(options);
    publish(&queue, 2);
    let cancelled = Log::new();
    let handler = {
        let (clock, cancelled) = (clock.clone(), cancelled.clone());
        move |_: Bytes, context: Context| {
            let (clock, cancelled) = (clock.clone(), cancelled.clone());
            async move {
                // The first does not look at its token.
                if context.message().id() == "m-1" {
                    clock.sleep(2 * SECOND).await;
                } else {
                    cancelled.add(context.cancellation().is_cancelled());
                }
                Ok::<_, HandlerError>(())
            }
        }
    };
    let consumer = QueueConsumer::with_decoder(queue.source(), codec::bytes, handler);
    let handle = consumer.clock(clock.clone()).start().unwrap();
    clock.settle().await;
    queue.cut();
    clock.advance(4 * SECOND).await;
    assert_eq!((handle.stats().leases_lost, cancelled.all()), (1, vec![false]));
}

#[tokio::test]
async fn a_context_that_outlives_its_handler_cancels_nobody_else() {
    let (clock, queue) = queue();
    publish(&queue, 2);
    let kept: Arc<Mutex<Option<Context>>> = Arc::default();
    let cancelled = Log::new();
    let handler = {
        let (kept, cancelled, clock) = (Arc::clone(&kept), cancelled.clone(), clock.clone());
        move |_: Bytes, context: Context| {
            let (kept, cancelled, clock) = (Arc::clone(&kept), cancelled.clone(), clock.clone());
            async move {
                if context.message().id() == "m-1" {
                    *kept.lock().unwrap() = Some(context);
                } else {
                    clock.sleep(ms(100)).await;
                    cancelled.add(context.cancellation().is_cancelled());
                }
                Ok::<_, HandlerError>(())
            }
        }
    };
    let consumer = QueueConsumer::with_decoder(queue.source(), codec::bytes, handler);
    let _handle = consumer.clock(clock.clone()).start().unwrap();
    clock.settle().await;
    kept.lock().unwrap().as_ref().unwrap().cancellation().cancel();
    clock.advance(SECOND).await;
    assert_eq!(cancelled.all(), [false]);
}

/// The lease begins at the hand-over, so that what waits in a buffer loses none of it.
#[tokio::test]
async fn leases_of_prefetched_messages_are_kept() {
    let (clock, queue) = queue_with(QueueOptions::new().with_lease(30 * SECOND));
    publish(&queue, 5);
    let handler = {
        let clock = clock.clone();
        move |_: Bytes, _: Context| {
            let nap = clock.sleep(12 * SECOND);
            async move {
                nap.await;
                Ok::<_, HandlerError>(())
            }
        }
    };
    // Those behind the second one outlive their lease in the buffer, and are delivered when it has come back.
    let source = queue.source().with_prefetch(2);
    let handle =
        QueueConsumer::with_decoder(source, codec::bytes, handler).clock(clock.clone()).start().unwrap();
    clock.advance(200 * SECOND).await;
    assert_eq!((handle.stats().leases_lost, queue.counts().acked, queue.counts().delivered), (0, 5, 5));
}

#[tokio::test]
async fn a_handler_that_has_a_handle_does_not_keep_the_source_alive() {
    let (clock, queue) = queue();
    let source = Arc::new(queue.source());
    let weak = Arc::downgrade(&source);
    let cell: Arc<Mutex<Option<ConsumerHandle>>> = Arc::default();
    let handler = {
        let cell = Arc::clone(&cell);
        move |_: Bytes, _: Context| {
            let _own = cell.lock().unwrap().clone();
            async { Ok::<_, HandlerError>(()) }
        }
    };
    let consumer = QueueConsumer::with_decoder(source, codec::bytes, handler).clock(clock.clone());
    *cell.lock().unwrap() = Some(consumer.handle());
    drop(cell);
    let handle = consumer.start().unwrap();
    let _ = stop_on(&clock, &handle).await;
    assert_eq!(handle.health(), Health::Closed);
    clock.settle().await;
    assert!(weak.upgrade().is_none());
}

/// A source whose methods panic when they are called, before there is a future to poll.
struct Eager {
    inner: MemorySource,
    panics_in: Op,
}

impl Eager {
    fn call(&self, op: Op) {
        assert!(op != self.panics_in, "{op:?} panics when it is called");
    }
}

impl MessageSource for Eager {
    type Receipt = MemoryReceipt;

    fn queue_name(&self) -> &str {
        self.inner.queue_name()
    }

    fn system(&self) -> &'static str {
        self.inner.system()
    }

    async fn receive(&self, cancel: &CancellationToken) -> Result<Option<Delivery<MemoryReceipt>>> {
        self.inner.receive(cancel).await
    }

    fn ack(&self, receipt: MemoryReceipt) -> impl Future<Output = Result<()>> + Send {
        self.call(Op::Ack);
        self.inner.ack(receipt)
    }

    fn nack(&self, receipt: MemoryReceipt, reason: NackReason) -> impl Future<Output = Result<()>> + Send {
        self.inner.nack(receipt, reason)
    }

    async fn extend(&self, receipt: &MemoryReceipt) -> Result<()> {
        self.inner.extend(receipt).await
    }

    fn release(&self) -> impl Future<Output = Result<()>> + Send {
        self.call(Op::Release);
        self.inner.release()
    }

    fn close(&self) -> impl Future<Output = Result<()>> + Send {
        self.call(Op::Close);
        self.inner.close()
    }

    fn health(&self) -> Health {
        self.inner.health()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
}

#[tokio::test]
async fn a_source_that_panics_when_it_is_called_stays_usable_and_is_told_of() {
    for op in [Op::Release, Op::Close, Op::Ack] {
        let (clock, queue) = queue();
        publish(&queue, 1);
        let events = Events::new();
        let source = Eager { inner: queue.source(), panics_in: op };
        let consumer = QueueConsumer::with_decoder(source, codec::bytes, async |_: Bytes, _: Context| {
            Ok::<_, HandlerError>(())
        });
        let handle = consumer.on_event(events.observer()).clock(clock.clone()).start().unwrap();
        clock.advance(SECOND).await;
        prompt(handle.pause()).await;
        assert_eq!((handle.status(), events.len()), (Status::Paused, 1), "{op:?}");
        assert_eq!(handle.stats().settle_errors, u64::from(op == Op::Ack), "{op:?}");
        let report = prompt(handle.stop()).await;
        assert_eq!(report.close_error.is_some(), op != Op::Ack, "{op:?}: {report:?}");
    }
}

/// An error that panics when it is printed.
#[derive(Debug)]
struct Unprintable;

impl fmt::Display for Unprintable {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        panic!("an error panics when it is printed")
    }
}

impl StdError for Unprintable {}

#[tokio::test]
async fn an_error_that_panics_when_it_is_printed_still_drains() {
    let printing = tracing_subscriber::registry().with(Prints);
    let _guard = tracing::subscriber::set_default(printing);
    let (clock, queue) = queue();
    publish(&queue, 1);
    let source = Faulty::new(queue.source(), |op, nth| match (op, nth) {
        (Op::Receive, 2) => {
            Act::Fail(Error::new(ErrorKind::Unauthorized, "receive").with_source(Unprintable))
        }
        _ => Act::Pass,
    });
    let (calls, ended) = (source.calls(), Arc::new(AtomicBool::new(false)));
    let handler = {
        let (ended, clock) = (Arc::clone(&ended), clock.clone());
        move |_: Bytes, _: Context| {
            let (ended, nap) = (Arc::clone(&ended), clock.sleep(ms(500)));
            async move {
                nap.await;
                ended.store(true, Ordering::SeqCst);
                Ok::<_, HandlerError>(())
            }
        }
    };
    let consumer = QueueConsumer::with_decoder(source, codec::bytes, handler).max_concurrent(at_most(2));
    let handle = consumer.clock(clock.clone()).start().unwrap();
    clock.advance(30 * SECOND).await;
    let report = prompt(handle.wait()).await;
    assert_eq!(report.error.map(|error| error.kind()), Some(ErrorKind::Unauthorized));
    assert_eq!((calls.of(Op::Close), ended.load(Ordering::SeqCst), queue.counts().acked), (1, true, 1));
}

/// Prints the fields of every event, as a subscriber that writes logs does.
struct Prints;

impl<S: tracing::Subscriber> Layer<S> for Prints {
    fn on_event(&self, event: &tracing::Event<'_>, _: LayerContext<'_, S>) {
        struct Print;
        impl Visit for Print {
            fn record_debug(&mut self, _: &Field, value: &dyn fmt::Debug) {
                let _ = format!("{value:?}");
            }
        }
        event.record(&mut Print);
    }
}

/// What a handler returned and what it does when it is dropped is no reason to tell of nothing.
#[tokio::test]
async fn an_output_that_panics_when_it_is_dropped_is_told_of_and_settled_once() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                panic!("an output panics when it is dropped");
            }
        }
    }
    let (clock, queue) = queue();
    publish(&queue, 1);
    let events = Events::new();
    let consumer = QueueConsumer::with_decoder(queue.source(), codec::bytes, async |_: Bytes, _: Context| {
        Ok::<_, HandlerError>(Bomb)
    });
    let _handle = consumer.on_event(events.observer()).clock(clock.clone()).start().unwrap();
    clock.advance(SECOND).await;
    assert_eq!((queue.counts().acked, queue.counts().delivered, events.len()), (1, 1, 1));
}

/// Runs `work` on a thread of its own: one that dead-locks must not hang the test.
fn ends(work: impl FnOnce() + Send + 'static) -> bool {
    let (done, waits) = mpsc::channel();
    std::thread::spawn(move || {
        work();
        let _ = done.send(());
    });
    waits.recv_timeout(Duration::from_secs(10)).is_ok()
}

#[test]
fn a_waker_may_look_at_the_queue() {
    struct Looks(MemoryQueue);
    impl Wake for Looks {
        fn wake(self: Arc<Self>) {
            let _ = self.0.counts();
        }
    }
    assert!(ends(|| {
        let source = MemorySource::new(ControlledClock::new());
        let queue = source.queue().clone();
        let token = CancellationToken::new();
        let mut receive = Box::pin(source.receive(&token));
        let waker = Waker::from(Arc::new(Looks(queue.clone())));
        assert!(receive.as_mut().poll(&mut TaskContext::from_waker(&waker)).is_pending());
        queue.publish(Message::new("x"));
    }));
}

#[test]
fn a_waker_may_own_a_sleep_of_the_same_clock() {
    struct Holds(#[allow(dead_code, reason = "it is there to be dropped")] Mutex<Sleep>);
    impl Wake for Holds {
        fn wake(self: Arc<Self>) {}
    }
    assert!(ends(|| {
        let clock = ControlledClock::new();
        let mut inner = clock.sleep(SECOND);
        assert!((&mut inner).now_or_never().is_none());
        let mut outer = clock.sleep(SECOND);
        let waker = Waker::from(Arc::new(Holds(Mutex::new(inner))));
        assert!(outer.as_mut().poll(&mut TaskContext::from_waker(&waker)).is_pending());
        drop(waker);
        drop(outer);
    }));
}
