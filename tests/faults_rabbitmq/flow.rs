//! What the tests of the connections share beyond the bench: a way to the broker that can be cut, messages that flow
//! meanwhile, and the events of the connections.

use std::time::Duration;

use bytes::Bytes;
use lapin::types::FieldTable;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use windlass::backoff::Backoff;
use windlass::clock::{Clock, SystemClock, within};
use windlass::consumer::{ConsumerHandle, QueueConsumer};
use windlass::error::{Error, ErrorKind};
use windlass::handler::Handler;
use windlass::message::Message;
use windlass::publisher::Publisher;
use windlass::rabbitmq::{RabbitEvent, RabbitMq, RabbitMqConfig, RabbitPublisher, RabbitSource, Role};
use windlass::source::Settlement;

use crate::broker_bench::{Bench, at_most, config};
use crate::rabbit::{Account, BOUND, Ledger, Node, Proxy, QueueType, bounded, until};

pub(crate) const ROLES: [Role; 2] = [Role::Consume, Role::Publish];

/// A bench whose connections go by way of a proxy. They are named as the queue is: `<name>-<kind>`.
pub(crate) async fn by_proxy(
    node: &Node,
    name: &str,
    kind: QueueType,
    change: impl FnOnce(RabbitMqConfig) -> RabbitMqConfig,
) -> (Proxy, Bench) {
    let proxy = Proxy::start(node.amqp_port());
    let queue = format!("{name}-{kind}");
    let config = config(&node.uri_at(proxy.port())).with_connection_name(queue.as_str());
    let bench = Bench::connected(node, change(config), &queue, kind, FieldTable::default()).await;
    (proxy, bench)
}

/// A consumer whose handler does nothing, with four loops; one that is quick to receive again.
pub(crate) async fn consume(bench: &Bench) -> ConsumerHandle {
    let consumer = idle(bench, bench.source().await).receive_backoff(Backoff::new(Duration::from_millis(5)));
    consumer.max_concurrent(at_most(4)).start().unwrap()
}

/// A consumer whose handler does nothing.
pub(crate) fn idle(
    bench: &Bench,
    source: RabbitSource,
) -> QueueConsumer<RabbitSource, impl Handler<Bytes, Output = ()> + use<>, Bytes> {
    bench.consumer(source, |_| async { Ok(()) })
}

/// Sends to the queue of a bench, and writes down what came of it.
#[derive(Clone)]
pub(crate) struct Sender {
    ledger: Ledger,
    queue: String,
    publisher: RabbitPublisher,
}

impl Sender {
    /// Over the connections of the bench.
    pub(crate) fn new(bench: &Bench) -> Self {
        Self::over(bench, &bench.rabbit)
    }

    /// Over others.
    pub(crate) fn over(bench: &Bench, rabbit: &RabbitMq) -> Self {
        Self { ledger: bench.ledger.clone(), queue: bench.queue.clone(), publisher: rabbit.publisher() }
    }

    /// Sends once.
    pub(crate) async fn send(&self, id: &str) -> Result<(), Error> {
        self.ledger.published(id);
        let sent = Box::pin(self.publisher.publish(&self.queue, Message::new("x").with_id(id)));
        let sent = bounded("publish", sent).await;
        match &sent {
            Ok(()) => self.ledger.confirmed(id),
            // It says that nothing was sent, which the ledger holds it to.
            Err(error) if error.kind() == ErrorKind::Disconnected => self.ledger.refused(id),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unconfirmed, "{error}"),
        }
        sent
    }

    /// Sends until the broker has confirmed it.
    pub(crate) async fn deliver(&self, id: &str) {
        until(&format!("{id} is confirmed"), || async { self.send(id).await.ok() }).await;
    }
}

/// Publishes one message after the other, in two tasks, until it is ended.
pub(crate) struct Flow {
    stop: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
}

impl Flow {
    pub(crate) fn start(bench: &Bench) -> Self {
        let stop = CancellationToken::new();
        let tasks = ["a", "b"].map(|name| {
            let (sender, stop) = (Sender::new(bench), stop.clone());
            tokio::spawn(async move {
                for number in 0.. {
                    if stop.is_cancelled() {
                        return;
                    }
                    // What came of it stands in the ledger.
                    let _ = sender.send(&format!("{name}-{number}")).await;
                    // A pace, not a wait for something.
                    SystemClock.sleep(Duration::from_millis(2)).await;
                }
            })
        });
        Self { stop, tasks: tasks.into() }
    }

    pub(crate) async fn end(self) {
        self.stop.cancel();
        for task in self.tasks {
            bounded("the flow ends", task).await.unwrap();
        }
    }
}

/// Waits until this message was handled and its ack taken.
pub(crate) async fn until_done(bench: &Bench, id: &str) {
    let acked = || {
        bench.done.all().iter().any(|event| {
            event.message.id() == id
                && matches!(event.settlement, Settlement::Ack)
                && event.settle_error.is_none()
        })
    };
    until(&format!("{id} is handled in {}", bench.queue), || async { acked().then_some(()) }).await;
}

/// Waits until everything that was confirmed so far is handled.
pub(crate) async fn until_all_done(bench: &Bench) {
    let missing = || bench.ledger.add_up().missing;
    let done = within(&SystemClock, BOUND, async {
        until("all is handled", || async { missing().is_empty().then_some(()) }).await;
    });
    assert!(done.await.is_some(), "not handled: {:?}", missing());
}

/// Waits until both connections stand and the source consumes.
pub(crate) async fn until_ready(bench: &Bench, handle: &ConsumerHandle) {
    let ready = || bench.rabbit.health().is_ready() && handle.health().is_ready();
    until("both connections and the source are ready", || async { ready().then_some(()) }).await;
}

/// Waits until all is handled, stops, and adds up.
pub(crate) async fn finish(bench: Bench, handle: ConsumerHandle) -> Account {
    until_all_done(&bench).await;
    let report = bounded("the consumer stops", handle.stop()).await;
    assert!(report.is_clean(), "{report:?}");
    bench.account().await
}

/// For [`Told`](crate::broker_bench::Told): the loss of this connection.
pub(crate) fn lost(role: Role) -> impl Fn(&RabbitEvent) -> Option<Error> {
    move |event| match event {
        RabbitEvent::Lost { role: of, error } if *of == role => Some(error.clone()),
        _ => None,
    }
}

/// For `Told`: a try for this connection that failed, and the wait after it.
pub(crate) fn retrying(role: Role) -> impl Fn(&RabbitEvent) -> Option<(Error, Duration)> {
    move |event| match event {
        RabbitEvent::Retrying { role: of, error, delay, .. } if *of == role => Some((error.clone(), *delay)),
        _ => None,
    }
}

/// For `Told`: this connection stands; to which host.
pub(crate) fn connected(role: Role) -> impl Fn(&RabbitEvent) -> Option<String> {
    move |event| match event {
        RabbitEvent::Connected { role: of, host } if *of == role => Some(host.clone()),
        _ => None,
    }
}
