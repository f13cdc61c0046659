//! What the tests on a real broker share: private RabbitMQ nodes, a client of the management API, a proxy that makes
//! faults, a ledger of message ids, and lapin by hand.
//!
//! A test file that needs them says
//!
//! ```text
//! #[path = "support/rabbit/mod.rs"]
//! mod rabbit;
//! ```
//!
//! The commands of RabbitMQ come from the folder that `RABBITMQ_BIN` names, or else from the machine. Nothing here
//! touches a broker or an epmd that runs on the machine already.

// Each test file uses its part of this.
#![allow(dead_code, unused_imports, clippy::unwrap_used, clippy::expect_used)]

mod certificates;
mod commands;
mod http;
mod ledger;
mod management;
mod measure;
mod node;
mod options;
mod ports;
mod processes;
mod proxy;
mod pump;
mod raw;
mod supervisor;

use std::future::Future;
use std::time::Duration;

use windlass::clock::{Clock, SystemClock, within};

pub(crate) use certificates::{Authority, Identity};
pub(crate) use http::basic;
pub(crate) use ledger::{Account, Ledger};
pub(crate) use management::{ChannelInfo, ConnInfo, ConsumerInfo, Management, QueueInfo};
pub(crate) use measure::Measures;
pub(crate) use node::{Node, QueueCounts, Series};
pub(crate) use options::{Options, Tls};
pub(crate) use processes::{processes_of_group, processes_that_name};
pub(crate) use proxy::{Counts, Direction, Proxy};
pub(crate) use raw::{QueueType, Raw, RawMessage, Sent};

/// How long one operation, or a wait for a condition, takes at most, in real time: it bounds a test that would hang.
pub(crate) const BOUND: Duration = Duration::from_secs(20);

/// Asks until there is an answer.
///
/// # Panics
///
/// After [`BOUND`], with `what` it waited for.
pub(crate) async fn until<T, F>(what: &str, ask: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    match until_at_most(BOUND, ask).await {
        Some(answer) => answer,
        None => panic!("not within {BOUND:?}: {what}"),
    }
}

/// Asks until there is an answer; `None` when there was none for so long.
pub(crate) async fn until_at_most<T, F>(bound: Duration, mut ask: impl FnMut() -> F) -> Option<T>
where
    F: Future<Output = Option<T>>,
{
    within(&SystemClock, bound, async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            SystemClock.sleep(Duration::from_millis(20)).await;
        }
    })
    .await
}

/// What a real peer must do within [`BOUND`].
///
/// # Panics
///
/// After [`BOUND`], with `what` was asked of it.
pub(crate) async fn bounded<F: Future>(what: &str, work: F) -> F::Output {
    match within(&SystemClock, BOUND, work).await {
        Some(output) => output,
        None => panic!("not within {BOUND:?}: {what}"),
    }
}
