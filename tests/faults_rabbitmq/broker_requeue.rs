//! A message that is put back for ever.

use std::time::Instant;

use windlass::handler::HandlerError;

use crate::broker_bench::{Bench, KINDS, Start, ms};
use crate::rabbit::{Node, until};

/// The most starts within any second.
fn busiest_second(starts: &[Start]) -> usize {
    let within =
        |from: Instant| starts.iter().filter(|start| start.at >= from && start.at < from + ms(1_000)).count();
    starts.iter().map(|start| within(start.at)).max().unwrap_or(0)
}

// BC-25
#[tokio::test]
async fn a_message_that_is_always_put_back_is_slow_and_lets_the_others_through() {
    for kind in KINDS {
        let bench = Bench::new(Node::shared().await, "put-back", kind).await;
        let consumer = bench.consumer(bench.source().await, |context| async move {
            if context.message().id() == "bad" { Err(HandlerError::BackpressureReject) } else { Ok(()) }
        });
        bench.publish_ids(&["bad"], b"x").await;
        let handle = consumer.start().unwrap();
        let of_bad = || bench.starts.of("bad");
        until("it came seven times", || async { (of_bad().len() >= 7).then_some(()) }).await;
        bench.publish(1..=100).await;
        bench.until_acked(100).await;
        let before = of_bad().len();
        until("it still comes", || async { (of_bad().len() >= before + 2).then_some(()) }).await;
        let times = of_bad();
        // 10 ms, then twice as long each time up to a second: seven in the first second, and one a second later on. A
        // good message between two of them starts the waits anew.
        let busiest = busiest_second(&times);
        assert!(busiest <= 60, "{busiest} deliveries in a second");
        assert!(times.iter().all(|start| start.attempt == 1), "putting back is no attempt");
        assert!(handle.stop().await.is_clean());
        // It may be in a wait queue still.
        bench.until_count((1, 0)).await;
        let account = bench.account().await;
        assert_eq!((account.acked, account.queued), (100, 1), "{account}");
    }
}
