//! A memory alarm: the broker takes nothing from publishers, and does not even answer them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::join_all;
use windlass::ErrorKind;
use windlass::clock::{Clock, SystemClock};
use windlass::handler::HandlerError;
use windlass::message::Message;
use windlass::publisher::Publisher;
use windlass::rabbitmq::{ConnectionState, RabbitEvent, RabbitMq, Role};
use windlass::source::Health;

use crate::broker_bench::{Bench, KINDS, config, ms};
use crate::rabbit::{Node, Options, QueueCounts, until};
use lapin::types::FieldTable;

/// The time-out of the publishers here; what waits for it alone takes less than `SOON`.
const TIMEOUT: Duration = ms(1_000);
const SOON: Duration = ms(3_000);
/// Within it a drain and a disconnect end, whatever the broker does not answer.
const FEW_SECONDS: Duration = ms(8_000);

fn blocked(event: &RabbitEvent) -> Option<String> {
    match event {
        RabbitEvent::Blocked { role: Role::Publish, reason } => Some(reason.clone()),
        _ => None,
    }
}

async fn took<T>(work: impl Future<Output = T>) -> (T, Duration) {
    let began = SystemClock.now();
    let output = work.await;
    (output, SystemClock.now() - began)
}

// BC-38
#[tokio::test]
async fn a_blocked_broker_is_a_clear_error_and_what_consumes_goes_on() {
    let node = Node::start(Options::new()).await;
    let settings = config(&node.uri()).with_publish_timeout(TIMEOUT);
    let bench = Bench::connected(&node, settings.clone(), "alarm", KINDS[1], FieldTable::default()).await;
    let other = RabbitMq::connect(settings).await.unwrap();
    bench.publish(1..=20).await;
    bench.publish_ids(&["retried"], b"x").await;
    node.memory_alarm(true).await;

    // The first goes out, and is what the broker answers with the notice.
    let publisher = bench.rabbit.publisher();
    let send = async |id: &str| {
        bench.ledger.published(id);
        let (outcome, time) = took(publisher.publish("alarm", Message::new("x").with_id(id))).await;
        let error = outcome.expect_err("the broker takes nothing");
        assert!(time >= ms(900) && time < SOON, "{id}: {time:?}");
        if error.kind() == ErrorKind::Disconnected {
            bench.ledger.refused(id);
        }
        error
    };
    let error = send("first").await;
    assert!(matches!(error.kind(), ErrorKind::Unconfirmed | ErrorKind::Disconnected), "{error}");
    assert!(error.to_string().contains("block"), "{error}");
    let reason = bench.told.until("says that publishers are blocked", 1, blocked).await;
    let state = bench.rabbit.state(Role::Publish);
    assert!(matches!(&state, ConnectionState::Blocked { reason: why } if *why == reason), "{state:?}");
    assert!(matches!(bench.rabbit.state(Role::Consume), ConnectionState::Connected));
    let Health::NotReady { reason: health } = bench.rabbit.health() else { panic!("it is blocked") };
    assert!(health.contains("publish") && health.contains("block") && health.contains(&reason), "{health}");

    // Later ones are not sent at all: they may be sent again.
    let ids: Vec<String> = (0..10).map(|number| format!("later-{number}")).collect();
    for error in join_all(ids.iter().map(|id| send(id))).await {
        assert_eq!(error.kind(), ErrorKind::Disconnected, "{error}");
        assert!(error.to_string().contains("block") && error.is_transient(), "{error}");
    }

    // What is consumed and acked goes over the other connection. A retry needs a copy: it is kept.
    let over = Arc::new(AtomicBool::new(false));
    let consumer = |bench: &Bench, source| {
        let over = Arc::clone(&over);
        bench.consumer(source, move |context| {
            let fails = context.message().id() == "retried" && !over.load(Ordering::Relaxed);
            async move { if fails { Err(HandlerError::failed("not yet")) } else { Ok(()) } }
        })
    };
    let handle = consumer(&bench, bench.source().await).start().unwrap();
    bench.until_acked(20).await;
    let failed = || async {
        let done = bench.done.all();
        let kept: Vec<_> = done.into_iter().filter(|done| done.message.id() == "retried").collect();
        (kept.len() >= 2).then_some(kept)
    };
    for kept in until("the retry was refused twice", failed).await {
        let error = kept.settle_error.expect("there is no copy");
        assert!(error.to_string().contains("block"), "{error}");
        assert!(kept.timings.settling < SOON, "{:?}", kept.timings);
        assert_eq!(kept.message.attempt(), 1, "no attempt was made of it");
    }

    // Draining and disconnecting are bounded, in the middle of a retry, too.
    until("it is tried again", || async { (handle.in_flight() == 1).then_some(()) }).await;
    let (report, time) = took(handle.stop()).await;
    assert!(time < FEW_SECONDS, "{time:?}, {report:?}");
    until("the alarm lets the acks through", || async {
        let counts = node.queue_counts("/", "alarm").await;
        (counts == Some(QueueCounts { ready: 1, unacked: 0, consumers: 0 })).then_some(())
    })
    .await;
    let lost = other.publisher().publish("alarm", Message::new("x").with_id("other")).await;
    bench.ledger.published("other");
    assert!(lost.is_err());
    let ((), time) = took(other.disconnect()).await;
    assert!(time < FEW_SECONDS, "{time:?}");

    over.store(true, Ordering::Relaxed);
    node.memory_alarm(false).await;
    let unblocked =
        |event: &RabbitEvent| matches!(event, RabbitEvent::Unblocked { role: Role::Publish }).then_some(());
    bench.told.until("says that publishers are unblocked", 1, unblocked).await;
    until("it is ready", || async { (bench.rabbit.health() == Health::Ready).then_some(()) }).await;
    bench.publish(21..=30).await;
    let handle = consumer(&bench, bench.source().await).start().unwrap();
    bench.until_acked(31).await;
    bench.until_count((0, 1)).await;
    let report = handle.stop().await;
    assert!(report.is_clean(), "{report:?}");

    // Nothing was sent twice unannounced: all but the one that was kept were handled once, the two of unknown outcome
    // once at most.
    let mut ids = bench.starts.ids();
    ids.retain(|id| id != "retried");
    let all = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(all, ids.len());
    let account = bench.account().await;
    assert_eq!((account.confirmed, account.refused, account.queued), (31, 10, 0), "{account}");
    assert!((31..=33).contains(&account.acked), "{account}");
}
