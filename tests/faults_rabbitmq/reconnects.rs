//! Many reconnects, and what they leave behind: nothing.

use windlass::backoff::Backoff;
use windlass::clock::{Clock, SystemClock};
use windlass::codec;
use windlass::consumer::{ConsumerHandle, QueueConsumer};
use windlass::handler::{Context, HandlerError};
use windlass::message::Message;
use windlass::publisher::Publisher;
use windlass::rabbitmq::{RabbitMq, dead_letter_queue};

use bytes::Bytes;
use lapin::types::FieldTable;

use crate::alone::{Place, alone};
use crate::broker_bench::{KINDS, Told, at_most, config, consuming, ms};
use crate::flow::{ROLES, by_proxy, connected, finish, until_done, until_ready};
use crate::flow::{Sender, idle};
use crate::rabbit::{
    Direction, Ledger, Management, Measures, Node, Proxy, QueueType, Raw, bounded, until, until_at_most,
};

const QUEUE: &str = "twenty";

/// What must be the same after each reconnect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held {
    process: Measures,
    consumers: u32,
    connections: usize,
    channels: usize,
}

struct Twenty {
    proxy: Proxy,
    raw: Raw,
    management: Management,
    rabbit: RabbitMq,
    told: Told,
    ledger: Ledger,
    handle: ConsumerHandle,
}

impl Twenty {
    async fn new(place: Place) -> Self {
        let (proxy, raw) = (Proxy::start(place.amqp), Raw::connect(&place.uri_at(place.amqp)).await);
        for queue in [QUEUE, &dead_letter_queue(QUEUE)] {
            raw.declare(queue, QueueType::Quorum, FieldTable::default()).await;
        }
        let config = config(&place.uri_at(proxy.port())).with_connection_name(QUEUE);
        // lapin's task for the heartbeat of a connection that is gone ends at the next one.
        let config = config.with_heartbeat(ms(2_000));
        let rabbit = RabbitMq::connect(config).await.unwrap();
        let told = Told::new(&rabbit);
        let source = rabbit.source(QUEUE).open().await.unwrap();
        let ledger = Ledger::new();
        let handler = {
            let ledger = ledger.clone();
            move |_: Bytes, context: Context| {
                ledger.handled(context.message().id());
                async { Ok::<_, HandlerError>(()) }
            }
        };
        let consumer = QueueConsumer::with_decoder(source, codec::bytes, handler);
        let handle = consumer.max_concurrent(at_most(4)).start().unwrap();
        Self { proxy, raw, management: place.management(), rabbit, told, ledger, handle }
    }

    /// One message through both connections.
    async fn works(&self, round: usize) {
        let id = format!("m-{round}");
        self.ledger.published(&id);
        let message = Message::new("x").with_id(&id);
        bounded("publish", self.rabbit.publisher().publish(QUEUE, message)).await.unwrap();
        self.ledger.confirmed(&id);
        let handled = || async { (self.ledger.handled_count() == round).then_some(()) };
        until(&format!("{id} is handled"), handled).await;
    }

    async fn held(&self) -> Held {
        let ours = |name: Option<&str>| name.is_some_and(|name| name.starts_with(QUEUE));
        let mut connections = self.management.connections().await;
        connections.retain(|found| ours(found.connection_name.as_deref()));
        let mut channels = self.management.channels().await;
        channels.retain(|channel| connections.iter().any(|found| found.name == channel.connection));
        let (_, consumers) = self.raw.count(QUEUE).await.expect("the queue is there");
        Held { process: Measures::now(), consumers, connections: connections.len(), channels: channels.len() }
    }

    /// Waits until both connections stood again, and the source consumed again, so often.
    async fn back(&self, often: usize) {
        for role in ROLES {
            self.told.until("says that it stands again", often, connected(role)).await;
        }
        // The first time is that of the start, which nobody listened to.
        self.told.until("says that it consumes again", often, consuming(QUEUE)).await;
    }

    /// Ends both connections, in another way each round.
    async fn end(&self, round: usize) {
        match round % 4 {
            0 => self.proxy.cut().await,
            1 => self.proxy.close().await,
            2 => self.proxy.half_close(Direction::ToClient),
            _ => {
                for found in self.management.connections().await {
                    if found.connection_name.is_some_and(|name| name.starts_with(QUEUE)) {
                        self.management.close_connection(&found.name, "round").await;
                    }
                }
            }
        }
    }
}

// BC-05. Alone, since what the process holds is counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_reconnects_leave_as_much_of_everything_as_there_was() {
    let test = "reconnects::twenty_reconnects_leave_as_much_of_everything_as_there_was";
    let Some(place) = alone(test).await else { return };
    let twenty = Twenty::new(place).await;
    twenty.works(1).await;
    let first = Measures::now();
    // What is made once, at the first loss of a connection, and kept is made now: files, and neither threads nor tasks.
    twenty.end(0).await;
    twenty.back(1).await;
    twenty.works(2).await;
    // The figures of the broker lag, and what a connection had ends a moment after it: this is how it is then.
    let steady = || async {
        let held = twenty.held().await;
        let process = (held.process.threads, held.process.tasks) == (first.threads, first.tasks);
        (process && held.consumers == 1 && held.connections == 2 && held.channels == 2).then_some(held)
    };
    let before = until("one consumer, two connections, a channel on each", steady).await;
    for round in 1..=20 {
        twenty.end(round).await;
        twenty.back(round + 1).await;
        twenty.works(round + 2).await;
        let same = || async { (twenty.held().await == before).then_some(()) };
        if until_at_most(ms(15_000), same).await.is_none() {
            panic!("after reconnect {round}: {:?}, and not {before:?}", twenty.held().await);
        }
    }
    let report = bounded("stop", twenty.handle.stop()).await;
    assert!(report.is_clean(), "{report:?}");
    twenty.rabbit.disconnect().await;
    let account = twenty.ledger.account();
    assert_eq!((account.confirmed, account.handled), (22, 22), "{account}");
    assert_eq!(twenty.raw.count(QUEUE).await, Some((0, 0)));
    // Nothing of the connections is left: two fewer, at least, of files and threads.
    let gone = || async {
        let now = Measures::now();
        let process = before.process;
        (now.fds < process.fds && now.threads + 2 <= process.threads && now.tasks < process.tasks)
            .then_some(())
    };
    until("the connections are gone from the process", gone).await;
}

/// How long a message may take through a consumer that is connected: no time, on a machine that is not busy.
const QUICK: std::time::Duration = ms(3_000);

// BC-05: the consumer waits after each receive that failed, longer each time in a row. On a queue where nothing comes,
// all the losses that there ever were are in a row.
#[tokio::test]
async fn a_consumer_that_had_nothing_to_do_through_many_reconnects_is_as_quick_after_them() {
    let node = Node::shared().await;
    for kind in KINDS {
        let (proxy, bench) = by_proxy(node, "quiet", kind, |config| config).await;
        let consumer = idle(&bench, bench.source().await);
        let handle = consumer.receive_backoff(Backoff::new(ms(10)).with_factor(30.0)).start().unwrap();
        // The waits would be 10 ms, 300 ms and 9 s.
        until("three receives have failed", || async {
            until_ready(&bench, &handle).await;
            proxy.cut().await;
            (handle.stats().receive_errors >= 3).then_some(())
        })
        .await;
        let began = SystemClock.now();
        Sender::new(&bench).deliver("m").await;
        until_done(&bench, "m").await;
        let time = SystemClock.now() - began;
        assert!(time < QUICK, "{time:?}");
        let account = finish(bench, handle).await;
        assert_eq!((account.acked, account.queued), (1, 0), "{account}");
    }
}
