//! Tests that need a process of their own, since they count what it holds or take all of its logs: the test runs the
//! program that it is in once more, for itself alone.

use std::env;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use windlass::clock::{SystemClock, within};

use crate::rabbit::{Management, Node};

/// Tells the process that it is the test's own, and where the node is: the ports of AMQP and of the management API.
const ALONE: &str = "WINDLASS_TEST_ALONE";

/// How long such a test takes at most.
const TEST_BOUND: Duration = Duration::from_secs(120);

/// A node of the process that started this one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) amqp: u16,
    management: u16,
}

impl Place {
    pub(crate) fn uri_at(self, port: u16) -> String {
        format!("amqp://guest:guest@127.0.0.1:{port}/%2f")
    }

    pub(crate) fn management(self) -> Management {
        Management::new(self.management, "guest", "guest")
    }

    fn read(text: &str) -> Option<Self> {
        let (amqp, management) = text.split_once(',')?;
        Some(Self { amqp: amqp.parse().ok()?, management: management.parse().ok()? })
    }
}

/// In the test's own process: where the node is. Elsewhere it starts that process, waits for it, and returns `None`.
///
/// # Panics
///
/// Where the test fails there, with all that it printed.
// What it prints is this test's: the harness takes it.
#[allow(clippy::print_stdout)]
pub(crate) async fn alone(test: &str) -> Option<Place> {
    if let Ok(place) = env::var(ALONE) {
        return Some(Place::read(&place).expect("two ports"));
    }
    let node = Node::shared().await;
    let mut command = Command::new(env::current_exe().expect("this program has a path"));
    command
        .args(["--exact", test, "--test-threads", "1", "--nocapture"])
        .env(ALONE, format!("{},{}", node.amqp_port(), node.management().port()))
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = within(&SystemClock, TEST_BOUND, command.output()).await;
    let output = output.unwrap_or_else(|| panic!("{test} alone: not within {TEST_BOUND:?}")).unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    // A name that no test has would pass, too.
    let passed = output.status.success() && printed.contains("1 passed");
    assert!(passed, "{test} alone: {}\n{printed}{said}", output.status);
    print!("{printed}");
    None
}
