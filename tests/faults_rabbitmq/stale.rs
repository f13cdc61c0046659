//! Answers that come after the channel of their delivery is gone.

use tokio_util::sync::CancellationToken;
use windlass::clock::{Clock, SystemClock};
use windlass::error::ErrorKind;
use windlass::handler::{Context, HandlerError};
use windlass::source::{Cause, MessageSource, NackReason};

use crate::broker_bench::{Bench, Gate, KINDS, at_most, consuming, ms, prefetch};
use crate::flow::{by_proxy, finish, until_done};
use crate::rabbit::{Node, bounded, until};

fn kept(error: Option<&windlass::Error>) -> Option<ErrorKind> {
    error.map(windlass::Error::kind)
}

// BC-01 a: both deliveries of the first message have tag 1, each on its own channel.
#[tokio::test]
async fn an_ack_of_a_handler_from_before_the_cut_is_stale_and_acks_nothing_on_the_new_channel() {
    let node = Node::shared().await;
    for kind in KINDS {
        let (proxy, bench) = by_proxy(node, "old-ack", kind, |config| config).await;
        bench.publish(1..=2).await;
        let source = bench.options().prefetch(prefetch(1)).open().await.unwrap();
        let (old, new) = (Gate::closed(), Gate::closed());
        let consumer = bench.consumer(source, {
            let (old, new, starts) = (old.clone(), new.clone(), bench.starts.clone());
            move |_| {
                let gate = if starts.len() == 1 { old.clone() } else { new.clone() };
                async move {
                    gate.passed().await;
                    Ok(())
                }
            }
        });
        let handle = consumer.max_concurrent(at_most(2)).start().unwrap();
        bench.starts.until(1).await;
        proxy.cut().await;
        // The first message comes again, to the other loop, while the old handler still runs.
        bench.starts.until(2).await;
        assert_eq!(bench.starts.ids(), ["m-1", "m-1"]);
        old.open();
        until("the old handler has ended", || async { (bench.done.len() == 1).then_some(()) }).await;
        let first = bench.done.all().remove(0);
        assert_eq!(kept(first.settle_error.as_ref()), Some(ErrorKind::Stale), "{first:?}");
        // One that was acked would have made room for the second. The figures of a quorum queue lag.
        until("the broker has one ready and one in hand", || async {
            let counts = node.queue_counts("/", &bench.queue).await?;
            ((counts.ready, counts.unacked) == (1, 1)).then_some(())
        })
        .await;
        assert_eq!(bench.count().await, (1, 1), "the message in hand was acked by the old handler");
        assert_eq!(bench.starts.ids(), ["m-1", "m-1"]);
        new.open();
        until_done(&bench, "m-2").await;
        assert_eq!(bench.starts.ids(), ["m-1", "m-1", "m-2"]);
        let account = finish(bench, handle).await;
        assert_eq!((account.acked, account.queued), (2, 0), "{account}");
    }
}

// BC-01 b
#[tokio::test]
async fn of_three_messages_in_hand_the_two_that_were_not_finished_come_back() {
    let node = Node::shared().await;
    for kind in KINDS {
        let (proxy, bench) = by_proxy(node, "third-first", kind, |config| config).await;
        bench.publish(1..=3).await;
        let source = bench.options().prefetch(prefetch(3)).open().await.unwrap();
        let rest = Gate::closed();
        let consumer = bench.consumer(source, {
            let rest = rest.clone();
            move |context: Context| {
                let rest = rest.clone();
                async move {
                    if context.message().id() != "m-3" {
                        rest.passed().await;
                    }
                    Ok(())
                }
            }
        });
        let handle = consumer.max_concurrent(at_most(3)).start().unwrap();
        bench.starts.until(3).await;
        until_done(&bench, "m-3").await;
        // The cut must not undo the ack of the third, which is written but may be on its way.
        until("the broker has the ack of the third", || async {
            node.queue_counts("/", &bench.queue).await.filter(|counts| counts.unacked == 2)
        })
        .await;
        proxy.cut().await;
        bench.told.until("says that it consumes again", 2, consuming(&bench.queue)).await;
        rest.open();
        until_done(&bench, "m-1").await;
        until_done(&bench, "m-2").await;
        let starts = |id| bench.starts.of(id).len();
        assert_eq!([starts("m-1"), starts("m-2"), starts("m-3")], [2, 2, 1]);
        let stale = bench.done.all().iter().filter(|event| event.settle_error.is_some()).count();
        assert_eq!(stale, 2, "the handlers from before the cut acked nothing");
        let account = finish(bench, handle).await;
        assert_eq!((account.acked, account.queued), (3, 0), "{account}");
    }
}

/// What a settle that cannot be sent may take.
const AT_ONCE: std::time::Duration = ms(1_000);

// BC-13 b, without a consumer around it. The runtime has one thread.
#[tokio::test(flavor = "current_thread")]
async fn settling_after_the_source_was_closed_fails_at_once_and_the_messages_are_back() {
    let node = Node::shared().await;
    for kind in KINDS {
        let bench = Bench::new(node, "late", kind).await;
        bench.publish(1..=4).await;
        let source = bench.options().prefetch(prefetch(4)).open().await.unwrap();
        let mut receipts = Vec::new();
        for _ in 0..4 {
            let delivery = bounded("receive", source.receive(&CancellationToken::new())).await.unwrap();
            receipts.push(delivery.expect("a message").receipt);
        }
        bounded("close", source.close()).await.unwrap();
        let cause = || Cause::new("test");
        let reasons = [
            NackReason::RequeueNow { cause: cause() },
            NackReason::Retry { delay: Some(ms(10)), counted: true, cause: cause() },
            NackReason::DeadLetter { cause: cause() },
        ];
        let began = SystemClock.now();
        for reason in reasons {
            let receipt = receipts.pop().unwrap();
            let settled = bounded("nack", source.nack(receipt, reason)).await;
            assert_eq!(kept(settled.as_ref().err()), Some(ErrorKind::Stale), "{settled:?}");
        }
        let settled = bounded("ack", source.ack(receipts.pop().unwrap())).await;
        assert_eq!(kept(settled.as_ref().err()), Some(ErrorKind::Stale), "{settled:?}");
        assert!(SystemClock.now() - began < AT_ONCE);
        bench.until_count((4, 0)).await;
        // No copy was published for the retry and the dead letter.
        let account = bench.account().await;
        assert_eq!((account.queued, account.dead_lettered), (4, 0), "{account}");
    }
}

// BC-13 b
#[tokio::test(flavor = "current_thread")]
async fn a_handler_that_fails_after_its_source_was_closed_is_done_with_at_once() {
    let node = Node::shared().await;
    for kind in KINDS {
        let bench = Bench::new(node, "late-handler", kind).await;
        bench.publish(1..=1).await;
        let source = bench.source().await;
        let gate = Gate::closed();
        let consumer = bench.consumer(source.clone(), {
            let gate = gate.clone();
            move |_| {
                let gate = gate.clone();
                async move {
                    gate.passed().await;
                    Err(HandlerError::failed("too late"))
                }
            }
        });
        let handle = consumer.start().unwrap();
        bench.starts.until(1).await;
        bounded("close", source.close()).await.unwrap();
        let began = SystemClock.now();
        gate.open();
        let report = bounded("the consumer ends", handle.wait()).await;
        assert!(SystemClock.now() - began < AT_ONCE);
        assert_eq!(kept(report.error.as_ref()), Some(ErrorKind::Closed), "{report:?}");
        let event = bench.done.all().remove(0);
        assert_eq!(kept(event.settle_error.as_ref()), Some(ErrorKind::Stale), "{event:?}");
        bench.until_count((1, 0)).await;
        let account = bench.account().await;
        assert_eq!((account.queued, account.dead_lettered), (1, 0), "{account}");
    }
}

// A copy goes to the queue of the source that is asked; so that must be the queue of the delivery.
#[tokio::test]
async fn a_nack_by_a_source_of_another_queue_is_refused_and_the_message_goes_back_to_its_own() {
    let node = Node::shared().await;
    for kind in KINDS {
        let own = Bench::new(node, "own-receipt", kind).await;
        let other = Bench::new(node, "other-receipt", kind).await;
        own.publish(1..=1).await;
        let (source, foreign) = (own.source().await, other.source().await);
        let cancel = CancellationToken::new();
        for reason in [NackReason::retry("moved"), NackReason::dead_letter("moved")] {
            let delivery = bounded("a message", source.receive(&cancel)).await.unwrap().unwrap();
            let refused = bounded("refused", foreign.nack(delivery.receipt, reason)).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Stale, "{refused}");
        }
        let again = bounded("the message again", source.receive(&cancel)).await.unwrap().unwrap();
        assert_eq!((again.message.id(), again.message.attempt()), ("m-1", 1));
        drop(again);
        bounded("closed", source.close()).await.unwrap();
        bounded("closed", foreign.close()).await.unwrap();
        assert_eq!(other.count().await, (0, 0), "nothing went to the other queue");
        own.until_count((1, 0)).await;
        assert_eq!(own.account().await.queued, 1);
        assert_eq!(other.account().await.queued, 0);
    }
}
