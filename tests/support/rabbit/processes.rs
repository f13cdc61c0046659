//! Processes, as `/proc` shows them.

use std::fs;

/// A process and its state, as `ps` writes it: `S` sleeps, `R` runs, `T` is stopped, `Z` is dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) group: u32,
    pub(crate) state: char,
}

impl Process {
    /// `None` once there is no such process, or it is dead and only not yet collected. A process whose first thread is
    /// dead is not: while others of its threads die, its ports are still open.
    pub(crate) fn alive(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name stands in parentheses and may hold anything.
        let (_, rest) = stat.rsplit_once(") ")?;
        let mut fields = rest.split(' ');
        let state = fields.next()?.chars().next()?;
        let group = fields.nth(1)?.parse().ok()?;
        let threads = || fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
        (!matches!(state, 'Z' | 'X') || threads() > 1).then_some(Self { pid, group, state })
    }
}

fn pids() -> Vec<u32> {
    let entries = fs::read_dir("/proc").expect("/proc can be read");
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// The living processes of a process group.
pub(crate) fn processes_of_group(group: u32) -> Vec<Process> {
    pids().into_iter().filter_map(Process::alive).filter(|process| process.group == group).collect()
}

/// The living processes that have `text` in their environment or arguments, but for epmd, which all nodes share.
pub(crate) fn processes_that_name(text: &str) -> Vec<Process> {
    let names = |pid: u32| {
        let read = |file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let has = |bytes: &[u8]| bytes.windows(text.len()).any(|window| window == text.as_bytes());
        let arguments = read("cmdline");
        let program = arguments.split(|byte| *byte == 0).next().unwrap_or_default();
        !program.ends_with(b"epmd") && (has(&arguments) || has(&read("environ")))
    };
    pids().into_iter().filter_map(Process::alive).filter(|process| names(process.pid)).collect()
}
