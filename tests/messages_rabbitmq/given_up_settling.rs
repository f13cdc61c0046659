//! A settlement that takes too long is given up by the consumer: the message comes again, and holds up no other.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use windlass::codec;
use windlass::consumer::{QueueConsumer, RetryPolicy};
use windlass::handler::Context;
use windlass::rabbitmq::DeadLetterTo;

use super::desk::{BOTH, Desk, SOON, connect};
use super::props::Props;
use super::rabbit::{Direction, Node, Proxy, bounded, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_whose_confirm_does_not_come_in_time_holds_up_no_other_message() {
    let node = Node::shared().await;
    for kind in BOTH {
        let mut desk = Desk::on(node, "given-up", kind).await;
        let proxy = Proxy::start(node.amqp_port());
        let by_proxy = connect(&node.uri_at(proxy.port())).await;
        bounded("disconnect", std::mem::replace(&mut desk.rabbit, by_proxy).disconnect()).await;
        // So that the channel that publishes is open.
        desk.publish(&Props::of("warm up"), b"x").await;
        desk.publish(&Props::of("first"), b"x").await;
        desk.publish(&Props::of("behind"), b"x").await;
        let source = desk.source(1, DeadLetterTo::Queue).await;
        let ledger = desk.ledger.clone();
        let proxy = Arc::new(proxy);
        let stalled = Arc::clone(&proxy);
        let handler = move |_, context: Context| {
            let id = context.message().id().to_owned();
            let count = ledger.handled(&id);
            if id == "first" && count == 1 {
                // Neither the confirm of the copy nor anything else comes from here on.
                stalled.stall(Direction::ToClient, true);
            }
            async move { if id != "behind" && context.attempt() == 1 { Err("not this time") } else { Ok(()) } }
        };
        let consumer = QueueConsumer::with_decoder(source.clone(), codec::bytes, handler)
            .max_concurrent(NonZeroUsize::MIN)
            .retry_policy(RetryPolicy::schedule([SOON]))
            .settle_timeout(Duration::from_millis(500))
            .start()
            .expect("it starts");
        until("the settlement is given up", || async { (consumer.stats().settle_errors > 0).then_some(()) })
            .await;
        proxy.stall(Direction::ToClient, false);
        until("the others are handled", || async { (desk.ledger.handled_count() == 3).then_some(()) }).await;
        until("all are done", || async {
            let (ready, _) = desk.raw.count(&desk.queue).await.expect("it is there");
            (ready == 0 && consumer.in_flight() == 0 && consumer.stats().acked >= 3).then_some(())
        })
        .await;
        let report = bounded("stop", consumer.stop()).await;
        assert_eq!(report.stats.loop_panics, 0, "{report:?}");
        assert!(desk.finish(source).await.is_empty());
    }
}
