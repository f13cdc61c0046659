//! The broker's own limit for how long a delivery may stay unsettled (`consumer_timeout`).

use lapin::types::FieldTable;
use tokio::sync::OnceCell;
use windlass::ErrorKind;
use windlass::clock::{Clock, SystemClock};
use windlass::rabbitmq::{RabbitEvent, Role};
use windlass::source::Health;

use crate::broker_bench::{Bench, Gate, KINDS, lost, ms, prefetch};
use crate::rabbit::{Node, Options, QueueType, Series};

/// A node that gives deliveries 3 s, and looks once a second. The second setting has no name in `rabbitmq.conf`.
async fn impatient() -> &'static Node {
    static NODE: OnceCell<Node> = OnceCell::const_new();
    NODE.get_or_init(|| async {
        let node = Node::start(Options::new().config("consumer_timeout = 3000")).await;
        node.ctl(&["eval", "application:set_env(rabbit, channel_tick_interval, 1000)."]).await;
        node
    })
    .await
}

/// The kinds of queue that have the limit on this node: RabbitMQ 4.3 has none for classic queues.
fn kinds(node: &Node) -> &'static [QueueType] {
    if node.series() < Series(4, 3) { &KINDS } else { &[QueueType::Quorum] }
}

// BC-08
#[tokio::test]
async fn a_delivery_that_is_acked_too_late_costs_a_channel_and_no_message() {
    let node = impatient().await;
    for &kind in kinds(node) {
        let bench = Bench::new(node, "late", kind).await;
        let queue = bench.queue.as_str();
        // Another source on the same connection.
        let beside = format!("{queue}-beside");
        bench.raw.declare(&beside, kind, FieldTable::default()).await;
        bench.raw.declare(&format!("{beside}.dlq"), kind, FieldTable::default()).await;
        let other = bench.consumer(bench.rabbit.source(&beside).open().await.unwrap(), |_| async { Ok(()) });
        let other = other.start().unwrap();

        let gate = Gate::closed();
        let source = bench.options().prefetch(prefetch(2)).open().await.unwrap();
        let handle = bench.held_consumer(source, &gate, |id| id == "m-1").start().unwrap();
        bench.publish(1..=3).await;
        bench.starts.until(1).await;
        let began = SystemClock.now();

        let error = bench.told.until("says that the consumer is lost", 1, lost(queue)).await;
        let after = SystemClock.now() - began;
        assert!(after > ms(2_500), "{after:?}");
        // Up to 4.2 the broker closes the channel (406); 4.3 cancels the consumer, without a reason.
        let why = if node.series() < Series(4, 3) { "406" } else { "consumer_timeout" };
        assert!(error.to_string().contains(why), "{error}");
        assert_eq!(bench.done.len(), 0, "noticed while the handler runs, not by its answer");
        gate.open();
        bench.until_acked(3).await;
        let late = bench.done.all().remove(0);
        assert_eq!(late.message.id(), "m-1");
        let stale = late.settle_error.expect("its channel is gone");
        assert_eq!(stale.kind(), ErrorKind::Stale, "{stale}");
        assert!(late.timings.settling < ms(1_000), "{:?}", late.timings);
        let again = bench.starts.of("m-1");
        assert_eq!(again.len(), 2);
        assert!(again[1].redelivered && again[1].attempt == 1, "{again:?}");
        assert_eq!(handle.stop().await.stats.settle_errors, 1, "counted");

        assert_eq!(bench.told.all(lost(&beside)).len(), 0, "the other source is undisturbed");
        assert_eq!(other.health(), Health::Ready);
        assert!(other.stop().await.is_clean());
        assert_eq!(bench.account().await.acked, 3);
    }
}

// BC-59: it holds nothing that could be late.
#[tokio::test]
async fn a_paused_consumer_holds_nothing_and_no_reconnect_resumes_it() {
    let node = impatient().await;
    let kind = QueueType::Quorum;
    let (bench, proxy) = Bench::proxied(node, "paused", kind, FieldTable::default()).await;
    let first = Gate::closed();
    let source = bench.options().prefetch(prefetch(10)).open().await.unwrap();
    let handle = bench.held_consumer(source, &first, |id| id == "m-1").start().unwrap();
    bench.publish(1..=10).await;
    bench.starts.until(1).await;
    handle.pause().await;
    handle.pause().await;
    bench.until_ready(9).await;
    first.open();
    bench.until_acked(1).await;

    // Another consumer, on another connection, that is late: once it is, the limit is over for what is paused, too.
    let (timer, gate) = (Bench::new(node, "timer", kind).await, Gate::closed());
    let late = timer.held_consumer(timer.source().await, &gate, |_| true).start().unwrap();
    timer.publish(1..=1).await;
    timer.told.until("says that the late one is lost", 1, lost(&timer.queue)).await;
    assert_eq!(bench.told.all(lost(&bench.queue)).len(), 0, "nothing was late here");
    assert_eq!(bench.count().await, (9, 0));

    // A connection that comes back brings no consumer back.
    proxy.cut().await;
    for which in [Role::Consume, Role::Publish] {
        let connected = |event: &RabbitEvent| {
            matches!(event, RabbitEvent::Connected { role, .. } if *role == which).then_some(())
        };
        bench.told.until("says that it is connected again", 1, connected).await;
    }
    bench.publish(11..=20).await;
    assert_eq!((bench.count().await, bench.starts.len()), ((19, 0), 1));
    handle.resume().await;
    bench.until_acked(20).await;
    assert!(handle.stop().await.is_clean());
    let mut ids = bench.starts.ids();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!((ids.len(), bench.starts.len()), (20, 20), "each once");
    assert_eq!(bench.account().await.acked, 20);

    gate.open();
    timer.until_acked(1).await;
    assert_eq!(late.stop().await.abandoned, 0);
    assert_eq!(timer.account().await.acked, 1);
}
