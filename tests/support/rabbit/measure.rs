//! What this process holds.

use std::fs;

/// What must be the same after each of many reconnects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Measures {
    /// Open file descriptors of this process.
    pub(crate) fds: usize,
    /// Threads of this process.
    pub(crate) threads: usize,
    /// Living tasks of this runtime.
    pub(crate) tasks: usize,
}

impl Measures {
    /// Must be called on a tokio runtime. Other tests of the same process count, too, but for their tasks.
    pub(crate) fn now() -> Self {
        Self {
            fds: open_fds(),
            threads: threads(),
            tasks: tokio::runtime::Handle::current().metrics().num_alive_tasks(),
        }
    }
}

pub(crate) fn open_fds() -> usize {
    // Reading the folder takes one.
    fs::read_dir("/proc/self/fd").expect("/proc can be read").count() - 1
}

pub(crate) fn threads() -> usize {
    let status = fs::read_to_string("/proc/self/status").expect("/proc can be read");
    let count = status.lines().find_map(|line| line.strip_prefix("Threads:")).expect("it has that line");
    count.trim().parse().expect("a number")
}
