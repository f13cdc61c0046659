//! The RabbitMQ source keeps every promise of the contract on a real broker, on classic and on quorum queues.
//!
//! The broker is a node of the tests' own; which series it runs is chosen by `RABBITMQ_BIN`.

#![cfg(feature = "rabbitmq")]
// Clippy takes the helpers of a test for code that is shipped.
#![allow(clippy::expect_used)]

#[path = "support/rabbit/mod.rs"]
mod rabbit;

use std::marker::PhantomData;
use std::num::{NonZeroU16, NonZeroUsize};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures::StreamExt;
use lapin::types::FieldTable;
use tokio_util::sync::CancellationToken;
use windlass::clock::{Clock, SystemClock};
use windlass::conformance::{Cut, Harness};
use windlass::message::Message;
use windlass::publisher::Publisher;
use windlass::rabbitmq::{
    QueueType, RabbitEvent, RabbitMq, RabbitMqConfig, RabbitSource, Role, dead_letter_queue,
};
use windlass::source::{Capabilities, MessageSource, RequeueOrder};
use windlass::{Error, ErrorKind, Result};

use rabbit::{Direction, Node, Proxy, Raw};

/// Which kind of queue.
trait Kind: Send + Sync + 'static {
    const HERE: QueueType;
    const THERE: rabbit::QueueType;
    const ORDER: RequeueOrder;
    /// Whether the broker counts deliveries.
    const COUNTS: bool;
}

struct Classic;

impl Kind for Classic {
    const HERE: QueueType = QueueType::Classic;
    const THERE: rabbit::QueueType = rabbit::QueueType::Classic;
    const ORDER: RequeueOrder = RequeueOrder::Front;
    const COUNTS: bool = false;
}

struct Quorum;

impl Kind for Quorum {
    const HERE: QueueType = QueueType::Quorum;
    const THERE: rabbit::QueueType = rabbit::QueueType::Quorum;
    // It differs from series to series.
    const ORDER: RequeueOrder = RequeueOrder::Unknown;
    const COUNTS: bool = true;
}

/// A queue with its dead-letter queue. The sources connect by way of a proxy that can cut them off; the publisher does
/// not.
struct OnRabbitMq<K> {
    queue: String,
    proxy: Proxy,
    sources: RabbitMq,
    publisher: RabbitMq,
    raw: Raw,
    kind: PhantomData<K>,
}

async fn connect(uri: &str) -> Result<RabbitMq> {
    let config = RabbitMqConfig::from_uri(uri)?.with_reconnect_delay(Duration::from_millis(20));
    RabbitMq::connect(config).await
}

impl<K: Kind> Harness for OnRabbitMq<K> {
    type Source = RabbitSource;

    async fn set_up(case: &'static str) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let queue = format!("{case}-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let node = Node::shared().await;
        let raw = Raw::connect(&node.uri()).await;
        raw.declare(&queue, K::THERE, FieldTable::default()).await;
        raw.declare(&dead_letter_queue(&queue), K::THERE, FieldTable::default()).await;
        let proxy = Proxy::start(node.amqp_port());
        let sources = connect(&node.uri_at(proxy.port())).await?;
        let publisher = connect(&node.uri()).await?;
        Ok(Self { queue, proxy, sources, publisher, raw, kind: PhantomData })
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new()
            .with_delayed_retry(true)
            .with_counts_attempts(true)
            .with_dead_letter(true)
            .with_counts_deliveries(K::COUNTS)
            .with_flags_redelivery(true)
            .with_requeue_order(K::ORDER)
    }

    async fn source(&self, window: NonZeroUsize) -> Result<RabbitSource> {
        let prefetch = u16::try_from(window.get()).ok().and_then(NonZeroU16::new).unwrap_or(NonZeroU16::MAX);
        self.sources.source(&self.queue).queue_type(K::HERE).prefetch(prefetch).open().await
    }

    async fn publish(&self, message: Message) -> Result<()> {
        self.publisher.publisher().publish(&self.queue, message).await
    }

    async fn dead_letters(&self) -> Result<Vec<Message>> {
        let queue = dead_letter_queue(&self.queue);
        let (ready, _) = self.raw.count(&queue).await.expect("the dead-letter queue is there");
        let source = self.publisher.source(&queue).prefetch(NonZeroU16::MAX).open().await?;
        let (mut letters, mut receipts) = (Vec::new(), Vec::new());
        let cancel = CancellationToken::new();
        for _ in 0..ready {
            let Some(delivery) = source.receive(&cancel).await? else { break };
            letters.push(delivery.message);
            receipts.push(delivery.receipt);
        }
        // What was looked at goes back.
        source.close().await?;
        Ok(letters)
    }

    async fn cut(&self) -> Result<Cut> {
        let mut events = self.sources.watch();
        // What was written before still reaches the broker: AMQP confirms no acks, so that nothing else tells which of
        // them a cut has undone.
        self.proxy.half_close(Direction::ToClient);
        // Until it is noticed, what was buffered before may still be received.
        while let Some(event) = events.next().await {
            if matches!(event, RabbitEvent::Lost { role: Role::Consume, .. }) {
                return Ok(Cut::Done);
            }
        }
        Err(Error::new(ErrorKind::Closed, "cut"))
    }

    async fn pass(&self, time: Duration) {
        SystemClock.sleep(time).await;
    }

    fn clock(&self) -> &dyn Clock {
        &SystemClock
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(30)
    }

    async fn tear_down(self) -> Result<()> {
        self.sources.disconnect().await;
        self.publisher.disconnect().await;
        self.raw.close().await;
        Ok(())
    }
}

mod classic {
    windlass::conformance_tests!(
        super::OnRabbitMq<super::Classic>,
        flavor = "multi_thread",
        worker_threads = 2
    );
}

mod quorum {
    windlass::conformance_tests!(
        super::OnRabbitMq<super::Quorum>,
        flavor = "multi_thread",
        worker_threads = 2
    );
}
