//! A redrive whose broker is killed, or whose connections are cut, in the middle: nothing is lost, and what is there twice
//! was said.

use lapin::types::{AMQPValue, FieldTable};
use tokio_util::sync::CancellationToken;
use windlass::rabbitmq::RabbitMq;
use windlass::rabbitmq::dead_letters::{Ended, RedriveOptions, Redriven};

use crate::bench::{Bench, HIGH, config, names, table};
use crate::rabbit::{Ledger, Node, Options, Proxy, QueueType, Raw, until};

const MANY: usize = 10_000;

fn arguments(kind: QueueType) -> (FieldTable, FieldTable) {
    let high = match kind {
        QueueType::Quorum => table([("x-delivery-limit", AMQPValue::LongUInt(HIGH))]),
        QueueType::Classic => FieldTable::default(),
    };
    (FieldTable::default(), high)
}

/// What a person who redrives may know of it: nothing of a classic queue.
fn type_of(kind: QueueType) -> windlass::rabbitmq::QueueType {
    match kind {
        QueueType::Quorum => windlass::rabbitmq::QueueType::Quorum,
        QueueType::Classic => windlass::rabbitmq::QueueType::Unknown,
    }
}

/// Whether so much was reached before it was over.
async fn first(reached: &CancellationToken, over: &CancellationToken) -> bool {
    // Only waits are lost here.
    tokio::select! {
        biased;
        () = reached.cancelled() => true,
        () = over.cancelled() => false,
    }
}

/// Redrives until nothing is left, over whatever ends it; says what each run reported.
async fn redrive_to_the_end(
    bench: &Bench,
    queue_type: windlass::rabbitmq::QueueType,
    ended: impl AsyncFn(usize),
    mut on_moved: impl FnMut(usize, u64) + Send,
    over: &CancellationToken,
) -> Vec<Redriven> {
    let _over = over.clone().drop_guard();
    let mut reports = Vec::new();
    loop {
        let run = reports.len();
        let never = CancellationToken::new();
        let letters = bench.letters().delivery_limit(Some(HIGH)).queue_type(queue_type);
        let redrive = letters.redrive(RedriveOptions::new(), &never, |progress| {
            on_moved(run, progress.moved);
        });
        match redrive.await {
            Ok(report) => {
                let is_over = report.ready == 0;
                reports.push(report);
                if is_over {
                    return reports;
                }
            }
            Err(error) => {
                assert!(
                    error.error().is_transient() || error.kind() == windlass::ErrorKind::Unconfirmed,
                    "{error}"
                );
                assert_eq!(error.report().ended, Ended::Failed);
                reports.push(error.report().clone());
                ended(run).await;
            }
        }
        assert!(reports.len() < 50, "it does not come to an end: {reports:?}");
    }
}

/// Every message is in the target, none in the dead letters, and no more are there twice than was said.
async fn assert_all_there(raw: &Raw, bench: &Bench, reports: &[Redriven], what: &str) {
    let ledger = Ledger::new();
    for id in names(1..=MANY) {
        ledger.published(&id);
        ledger.confirmed(&id);
    }
    let found = raw.take_all(&bench.queue).await;
    for message in &found {
        ledger.handled(message.id());
    }
    for message in raw.take_all(&bench.dlq).await {
        ledger.dead_lettered(message.id());
    }
    let account = ledger.account();
    let said: u64 = reports.iter().map(|report| report.maybe_twice).sum();
    let moved: u64 = reports.iter().map(|report| report.moved).sum();
    assert_eq!((account.handled, account.dead_lettered), (MANY, 0), "{what}: {account}");
    assert!(account.duplicates <= said, "{what}: {said} said; {account}");
    // What was surely moved, and what may have been, is all that arrived.
    assert!(moved <= MANY as u64 && moved + said >= found.len() as u64, "{what}: {moved} {said}");
}

async fn killed(kind: QueueType) {
    let node = Node::start(Options::new()).await;
    let rabbit = RabbitMq::connect(config(&node.uri())).await.unwrap();
    let bench = Bench::connected(&node, rabbit, "killed", kind, arguments(kind)).await;
    node.flush().await;
    bench.put_many(MANY).await;
    // Twice, at different places.
    let reached = [CancellationToken::new(), CancellationToken::new()];
    let over = CancellationToken::new();
    let kills = async {
        for reached in &reached {
            if !first(reached, &over).await {
                return;
            }
            node.kill().await;
        }
    };
    let restart = async |_: usize| {
        node.kill().await;
        node.restart().await;
    };
    let on_moved = |run: usize, moved: u64| {
        if let Some(reached) = reached.get(run).filter(|_| moved >= [3_000, 1_000][run]) {
            reached.cancel();
        }
    };
    let (reports, ()) =
        futures::future::join(redrive_to_the_end(&bench, type_of(kind), restart, on_moved, &over), kills)
            .await;
    assert_eq!(reports.iter().filter(|report| report.ended == Ended::Failed).count(), 2);
    let raw = Raw::connect(&node.uri()).await;
    assert_all_there(&raw, &bench, &reports, &format!("killed, {kind}")).await;
}

#[tokio::test]
async fn a_killed_broker_loses_no_message_of_a_quorum_queue() {
    killed(QueueType::Quorum).await;
}

#[tokio::test]
async fn a_killed_broker_loses_no_message_of_a_classic_queue() {
    killed(QueueType::Classic).await;
}

async fn cut(kind: QueueType) {
    let node = Node::shared().await;
    let proxy = Proxy::start(node.amqp_port());
    let rabbit = RabbitMq::connect(config(&node.uri_at(proxy.port()))).await.unwrap();
    let bench = Bench::connected(node, rabbit, "cut", kind, arguments(kind)).await;
    bench.put_many(MANY).await;
    let reached = [CancellationToken::new(), CancellationToken::new(), CancellationToken::new()];
    let over = CancellationToken::new();
    let cuts = async {
        for reached in &reached {
            if !first(reached, &over).await {
                return;
            }
            proxy.cut().await;
        }
    };
    let again = async |_: usize| {
        // The broker gives back what the cut connections had once it notices.
        until("nothing is unacked", || async {
            let counts = node.queue_counts("/", &bench.dlq).await?;
            (counts.unacked == 0).then_some(())
        })
        .await;
    };
    let on_moved = |run: usize, moved: u64| {
        if let Some(reached) = reached.get(run).filter(|_| moved >= [1_000, 500, 500][run]) {
            reached.cancel();
        }
    };
    let (reports, ()) =
        futures::future::join(redrive_to_the_end(&bench, type_of(kind), again, on_moved, &over), cuts).await;
    assert_eq!(reports.iter().filter(|report| report.ended == Ended::Failed).count(), 3);
    assert_all_there(&bench.raw, &bench, &reports, &format!("cut, {kind}")).await;
}

#[tokio::test]
async fn cut_connections_lose_no_message_of_a_quorum_queue() {
    cut(QueueType::Quorum).await;
}

#[tokio::test]
async fn cut_connections_lose_no_message_of_a_classic_queue() {
    cut(QueueType::Classic).await;
}
