//! What the tests of the broker's faults share: a queue of one test's own, what was told meanwhile, and a consumer that
//! writes down what it did.

use std::future::Future;
use std::num::{NonZeroU16, NonZeroUsize};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::StreamExt;
use lapin::types::FieldTable;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use windlass::clock::{Clock, SystemClock};
use windlass::codec;
use windlass::consumer::{ConsumerEvent, QueueConsumer};
use windlass::error::Error;
use windlass::handler::{Context, Handler, HandlerError};
use windlass::message::Message;
use windlass::publisher::Publisher;
use windlass::rabbitmq::{
    self, RabbitEvent, RabbitMq, RabbitMqConfig, RabbitSource, SourceOptions, dead_letter_queue,
};
use windlass::source::Settlement;

pub(crate) use crate::log::Log;
use crate::rabbit::{Account, BOUND, Ledger, Node, Proxy, QueueType, Raw, until, until_at_most};

pub(crate) const KINDS: [QueueType; 2] = [QueueType::Classic, QueueType::Quorum];

pub(crate) const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

pub(crate) fn prefetch(messages: u16) -> NonZeroU16 {
    NonZeroU16::new(messages).expect("not zero")
}

pub(crate) fn at_most(count: usize) -> NonZeroUsize {
    NonZeroUsize::new(count).expect("not zero")
}

/// Quick to try again.
pub(crate) fn config(uri: &str) -> RabbitMqConfig {
    RabbitMqConfig::from_uri(uri)
        .expect("the URI of a node")
        .with_reconnect_delay(ms(50))
        .with_reconnect_max_delay(ms(400))
}

/// A queue with its dead-letter queue, and what became of the messages.
pub(crate) struct Bench {
    pub(crate) queue: String,
    pub(crate) kind: QueueType,
    pub(crate) rabbit: RabbitMq,
    pub(crate) raw: Raw,
    /// A message counts as acked when the broker took a consumer's ack, and as handled never: a handler that has begun
    /// does not keep a message from being lost.
    pub(crate) ledger: Ledger,
    pub(crate) told: Told,
    pub(crate) starts: Starts,
    pub(crate) done: Log<ConsumerEvent>,
}

impl Bench {
    pub(crate) async fn new(node: &Node, queue: &str, kind: QueueType) -> Self {
        Self::with(node, queue, kind, FieldTable::default()).await
    }

    /// By way of a proxy that can cut the connections.
    pub(crate) async fn proxied(
        node: &Node,
        queue: &str,
        kind: QueueType,
        arguments: FieldTable,
    ) -> (Self, Proxy) {
        let proxy = Proxy::start(node.amqp_port());
        let settings = config(&node.uri_at(proxy.port()));
        (Self::connected(node, settings, &format!("{queue}-{kind}"), kind, arguments).await, proxy)
    }

    /// With these arguments of the queue.
    pub(crate) async fn with(node: &Node, queue: &str, kind: QueueType, arguments: FieldTable) -> Self {
        Self::connected(node, config(&node.uri()), &format!("{queue}-{kind}"), kind, arguments).await
    }

    pub(crate) async fn connected(
        node: &Node,
        config: RabbitMqConfig,
        queue: &str,
        kind: QueueType,
        arguments: FieldTable,
    ) -> Self {
        let raw = Raw::connect(&node.uri()).await;
        raw.declare(queue, kind, arguments).await;
        raw.declare(&dead_letter_queue(queue), kind, FieldTable::default()).await;
        let rabbit = RabbitMq::connect(config).await.expect("the node takes it");
        Self {
            queue: queue.to_owned(),
            kind,
            told: Told::new(&rabbit),
            rabbit,
            raw,
            ledger: Ledger::new(),
            starts: Starts::default(),
            done: Log::default(),
        }
    }

    /// Publishes `m-<number>`, all at once as far as the broker lets them, in this order.
    pub(crate) async fn publish(&self, numbers: RangeInclusive<usize>) {
        let ids: Vec<String> = numbers.map(|number| format!("m-{number}")).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        self.publish_ids(&ids, b"x").await;
    }

    pub(crate) async fn publish_ids(&self, ids: &[&str], body: &[u8]) {
        let publisher = self.rabbit.publisher();
        let publishes = ids.iter().map(|id| {
            let message = Message::new(body.to_vec()).with_id(*id);
            self.ledger.published(id);
            let (publisher, queue) = (&publisher, &self.queue);
            async move {
                publisher.publish(queue, message).await.expect("it is published");
                self.ledger.confirmed(id);
            }
        });
        futures::future::join_all(publishes).await;
    }

    pub(crate) fn options(&self) -> SourceOptions {
        self.rabbit.source(&self.queue).queue_type(match self.kind {
            QueueType::Classic => rabbitmq::QueueType::Classic,
            QueueType::Quorum => rabbitmq::QueueType::Quorum,
        })
    }

    pub(crate) async fn source(&self) -> RabbitSource {
        self.options().open().await.expect("the queue is there")
    }

    /// A consumer that writes down each start and what came of it.
    pub(crate) fn consumer<H, F>(
        &self,
        source: RabbitSource,
        handle: H,
    ) -> QueueConsumer<RabbitSource, impl Handler<Bytes, Output = ()> + use<H, F>, Bytes>
    where
        H: Fn(Context) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), HandlerError>> + Send,
    {
        let starts = self.starts.clone();
        let handler = move |_: Bytes, context: Context| {
            starts.begun(context.message());
            handle(context)
        };
        let (ledger, done) = (self.ledger.clone(), self.done.clone());
        QueueConsumer::with_decoder(source, codec::bytes, handler).on_event(move |event: &ConsumerEvent| {
            if matches!(event.settlement, Settlement::Ack) && event.settle_error.is_none() {
                ledger.acked(event.message.id());
            }
            done.add(event.clone());
        })
    }

    /// A consumer whose handlers of the messages that `held` names wait for the gate.
    pub(crate) fn held_consumer<P>(
        &self,
        source: RabbitSource,
        gate: &Gate,
        held: P,
    ) -> QueueConsumer<RabbitSource, impl Handler<Bytes, Output = ()> + use<P>, Bytes>
    where
        P: Fn(&str) -> bool + Send + Sync + 'static,
    {
        let gate = gate.clone();
        self.consumer(source, move |context| {
            let gate = held(context.message().id()).then(|| gate.clone());
            async move {
                if let Some(gate) = gate {
                    gate.passed().await;
                }
                Ok(())
            }
        })
    }

    /// How many messages are ready and how many consumers there are.
    pub(crate) async fn count(&self) -> (u32, u32) {
        self.raw.count(&self.queue).await.expect("the queue is there")
    }

    pub(crate) async fn until_count(&self, wanted: (u32, u32)) {
        if until_at_most(BOUND, || async { (self.count().await == wanted).then_some(()) }).await.is_none() {
            let found = self.count().await;
            panic!(
                "not within {BOUND:?}: {found:?} ready messages and consumers in {}, not {wanted:?}",
                self.queue
            );
        }
    }

    /// Waits until so many messages are ready, whoever consumes: a quorum queue counts a consumer that was cancelled until
    /// all that it had is settled.
    pub(crate) async fn until_ready(&self, wanted: u32) {
        let what = format!("{wanted} ready messages in {}", self.queue);
        until(&what, || async { (self.count().await.0 == wanted).then_some(()) }).await;
    }

    pub(crate) async fn until_acked(&self, count: usize) {
        let acked = || async { (self.ledger.add_up().acked >= count).then_some(()) };
        until(&format!("{count} messages are acked"), acked).await;
    }

    /// Disconnects, takes out what is left in the queue and with the dead letters, and adds up: each message that was
    /// confirmed is acked, dead-lettered or in the queue.
    pub(crate) async fn account(self) -> Account {
        self.account_but(&[]).await
    }

    /// As [`account`](Self::account), with exactly these messages gone: an operator or a limit of the broker's dropped
    /// them.
    pub(crate) async fn account_but(self, gone: &[String]) -> Account {
        self.rabbit.disconnect().await;
        let ledger = &self.ledger;
        // What a connection had goes back a moment after it was closed. Once it does not, `account` says what is gone.
        let all_found = || async {
            // A quorum queue with a single active consumer cannot be looked into: it is to be empty.
            if self.count().await.0 > 0 {
                while let Some(message) = self.raw.get(&self.queue).await {
                    ledger.queued(message.id());
                }
            }
            while let Some(message) = self.raw.get(&dead_letter_queue(&self.queue)).await {
                ledger.dead_lettered(message.id());
            }
            (ledger.add_up().missing.len() <= gone.len()).then_some(())
        };
        let _ = until_at_most(BOUND, all_found).await;
        assert_eq!(ledger.add_up().missing, gone, "{}", ledger.add_up());
        gone.iter().for_each(|id| ledger.queued(id));
        let mut account = ledger.account();
        account.queued -= gone.len();
        self.raw.close().await;
        account
    }
}

/// One start of a handler.
#[derive(Debug, Clone)]
pub(crate) struct Start {
    pub(crate) id: String,
    pub(crate) attempt: u32,
    pub(crate) redelivered: bool,
    pub(crate) at: Instant,
}

/// All starts of handlers, in order.
pub(crate) type Starts = Log<Start>;

impl Starts {
    fn begun(&self, message: &Message) {
        self.add(Start {
            id: message.id().to_owned(),
            attempt: message.attempt(),
            redelivered: message.redelivered(),
            at: SystemClock.now(),
        });
    }

    pub(crate) fn ids(&self) -> Vec<String> {
        self.all().into_iter().map(|start| start.id).collect()
    }

    pub(crate) fn of(&self, id: &str) -> Vec<Start> {
        self.all().into_iter().filter(|start| start.id == id).collect()
    }

    /// Waits until handlers have begun so often, all in all.
    pub(crate) async fn until(&self, count: usize) {
        let begun = || async { (self.len() >= count).then_some(()) };
        until(&format!("{count} handlers have begun"), begun).await;
    }
}

/// What was told of the connections and the sources.
pub(crate) struct Told {
    events: Log<RabbitEvent>,
    listener: JoinHandle<()>,
}

impl Told {
    pub(crate) fn new(rabbit: &RabbitMq) -> Self {
        let (mut stream, events) = (rabbit.watch(), Log::default());
        let listener = tokio::spawn({
            let events = events.clone();
            async move {
                while let Some(event) = stream.next().await {
                    events.add(event);
                }
            }
        });
        Self { events, listener }
    }

    /// All that `find` finds.
    pub(crate) fn all<T>(&self, find: impl Fn(&RabbitEvent) -> Option<T>) -> Vec<T> {
        self.events.all().iter().filter_map(find).collect()
    }

    /// Waits until `find` has found so many events; returns what it found last.
    pub(crate) async fn until<T>(
        &self,
        what: &str,
        count: usize,
        find: impl Fn(&RabbitEvent) -> Option<T>,
    ) -> T {
        let ask = || async { self.all(&find).into_iter().nth(count - 1) };
        match until_at_most(BOUND, ask).await {
            Some(found) => found,
            None => panic!("not within {BOUND:?}: event {count} that {what}, of {:#?}", self.events.all()),
        }
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

/// For [`Told`]: the loss of the consumer of `queue`.
pub(crate) fn lost(queue: &str) -> impl Fn(&RabbitEvent) -> Option<Error> + '_ {
    move |event| match event {
        RabbitEvent::ConsumerLost { queue: of, error } if of == queue => Some(error.clone()),
        _ => None,
    }
}

/// For [`Told`]: a set-up of the consumer of `queue` that was refused.
pub(crate) fn refused(queue: &str) -> impl Fn(&RabbitEvent) -> Option<(Error, Duration)> + '_ {
    move |event| match event {
        RabbitEvent::SetUpRefused { queue: of, error, delay } if of == queue => Some((error.clone(), *delay)),
        _ => None,
    }
}

/// For [`Told`]: the consumer of `queue` is confirmed.
pub(crate) fn consuming(queue: &str) -> impl Fn(&RabbitEvent) -> Option<()> + '_ {
    move |event| match event {
        RabbitEvent::Consuming { queue: of } => (of == queue).then_some(()),
        _ => None,
    }
}

/// What handlers wait for before they end: open or not.
#[derive(Debug, Clone)]
pub(crate) struct Gate(watch::Sender<bool>);

impl Gate {
    pub(crate) fn closed() -> Self {
        Self(watch::Sender::new(false))
    }

    pub(crate) fn open(&self) {
        self.0.send_replace(true);
    }

    pub(crate) async fn passed(&self) {
        let mut open = self.0.subscribe();
        // The sender lives as long as `self`.
        let _ = open.wait_for(|open| *open).await;
    }
}
