//! Publishing from many tasks while the connection is cut again and again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::future::join_all;
use windlass::ErrorKind;

use super::desk::{Desk, kind, message, publish};
use super::rabbit::{Direction, QueueType, bounded, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_confirmed_is_there_and_what_was_not_sent_is_not_however_often_the_connection_is_cut() {
    let desk = Desk::new("cuts").await;
    let queue = desk.queue("queue", QueueType::Quorum).await;
    let stop = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..8)
        .map(|task| {
            let (publisher, ledger, stop) = (desk.publisher.clone(), desk.ledger.clone(), Arc::clone(&stop));
            let queue = queue.clone();
            tokio::spawn(async move {
                for number in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let outcome =
                        publish(&publisher, &ledger, &queue, message(format!("{task}-{number}"))).await;
                    let expected = [None, Some(ErrorKind::Unconfirmed), Some(ErrorKind::Disconnected)];
                    assert!(expected.contains(&kind(&outcome)), "{outcome:?}");
                }
            })
        })
        .collect();
    for cut in 0..10_u64 {
        let before = desk.ledger.confirmed_count();
        until("it goes on", || async { (desk.ledger.confirmed_count() >= before + 50).then_some(()) }).await;
        match cut % 3 {
            0 => desk.proxy.cut().await,
            // In the middle of what is sent, and of what is answered.
            1 => desk.proxy.cut_after(cut * 777, Direction::ToBroker),
            _ => desk.proxy.cut_after(cut * 13, Direction::ToClient),
        }
        let connections = 2 * (cut + 2);
        desk.proxy.until(|counts| counts.accepted >= connections).await;
    }
    let before = desk.ledger.confirmed_count();
    until("it goes on", || async { (desk.ledger.confirmed_count() >= before + 50).then_some(()) }).await;
    stop.store(true, Ordering::Relaxed);
    bounded("the tasks end", join_all(tasks))
        .await
        .into_iter()
        .for_each(|task| task.expect("it does not panic"));
    desk.account(&[&queue]).await;
    desk.end().await;
}
