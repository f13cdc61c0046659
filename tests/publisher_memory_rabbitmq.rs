//! What timed out is forgotten: neither its body nor a task of it stays. In a process of its own, whose memory it measures.

#![cfg(feature = "rabbitmq")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[allow(dead_code)]
#[path = "publisher_rabbitmq/desk.rs"]
mod desk;
#[path = "support/rabbit/mod.rs"]
mod rabbit;

use std::fs;
use std::time::Duration;

use futures::future::join_all;
use windlass::ErrorKind;

use desk::{Desk, kind, message};
use rabbit::{Direction, Measures, QueueType, bounded, until};

const BODY: usize = 64 * 1_024;
const AT_ONCE: usize = 500;
const ROUNDS: usize = 6;

/// How much memory may be more after the last round than after the second, where each round is 32 MB.
const GROWN: usize = 48_000_000;

/// Memory of this process, in bytes.
fn resident() -> usize {
    let status = fs::read_to_string("/proc/self/status").expect("/proc can be read");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it has that line");
    line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") * 1_024
}

/// All of these time out.
async fn time_out(desk: &Desk, queue: &str, round: &str) {
    let publishes = (0..AT_ONCE).map(|number| {
        let message = message(format!("{round}-{number}")).with_body(vec![b'x'; BODY]);
        desk.publish(queue, message)
    });
    for outcome in bounded("all time out", join_all(publishes)).await {
        let expected = [Some(ErrorKind::Unconfirmed), Some(ErrorKind::Disconnected)];
        assert!(expected.contains(&kind(&outcome)), "{outcome:?}");
    }
}

async fn until_taken(desk: &Desk, queue: &str) {
    let mut number = 0;
    until("it goes on", || {
        number += 1;
        let id = format!("after-{}-{number}", desk.ledger.add_up().published);
        async move { desk.publish(queue, message(id)).await.ok() }
    })
    .await;
}

/// A queue that takes no message and refuses none, as one whose majority is gone.
async fn suspend(desk: &Desk, queue: &str, on: bool) {
    let what = if on { "suspend" } else { "resume" };
    let code = format!(
        "{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<\"/\">>, queue, <<\"{queue}\">>)), \
         sys:{what}(amqqueue:get_pid(Q))."
    );
    desk.node.ctl(&["eval", &code]).await;
}

/// Some thousand that no confirm comes for on a connection that stands, and again on one that the broker does not read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_time_outs_leave_neither_memory_nor_tasks_behind() {
    let desk = Desk::with_timeout("time-outs", Duration::from_secs(1)).await;
    let queue = desk.queue("queue", QueueType::Classic).await;
    desk.publish(&queue, message("before")).await.expect("it is taken");
    // What is made once is made after the first time-outs.
    let mut tasks = None;
    for direction in [Direction::ToClient, Direction::ToBroker] {
        let mut after = Vec::new();
        for round in 0..ROUNDS {
            desk.proxy.stall(direction, true);
            time_out(&desk, &queue, &format!("{direction:?}-{round}")).await;
            desk.proxy.stall(direction, false);
            after.push(resident());
        }
        assert!(after[ROUNDS - 1] < after[1] + GROWN, "{direction:?}, bytes: {after:?}");
        until_taken(&desk, &queue).await;
        let before = *tasks.get_or_insert_with(|| Measures::now().tasks);
        until("there are as many tasks as before", || async {
            (Measures::now().tasks <= before).then_some(())
        })
        .await;
    }
    suspended(&desk).await;
    desk.account(&[&queue]).await;
    desk.end().await;
}

/// The same where the connection is fine, and one queue never answers.
async fn suspended(desk: &Desk) {
    let queue = desk.queue("never-confirms", QueueType::Classic).await;
    let other = desk.queue("other", QueueType::Classic).await;
    desk.publish(&queue, message("before it")).await.expect("it is taken");
    suspend(desk, &queue, true).await;
    let mut after = Vec::new();
    for round in 0..ROUNDS {
        time_out(desk, &queue, &format!("suspended-{round}")).await;
        after.push(resident());
    }
    suspend(desk, &queue, false).await;
    assert!(after[ROUNDS - 1] < after[1] + GROWN, "bytes: {after:?}");
    until_taken(desk, &other).await;
    for queue in [queue, other] {
        desk.raw.take_all(&queue).await.iter().for_each(|message| desk.ledger.queued(message.id()));
    }
}
