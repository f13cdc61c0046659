//! A ledger of message ids.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

/// What the publisher was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Fate {
    /// Nothing yet, or that it cannot be known.
    #[default]
    Unconfirmed,
    Confirmed,
    /// That the broker has not got it.
    Refused,
}

#[derive(Debug, Clone, Default)]
struct Entry {
    /// `None` for an id that came from nowhere.
    published: Option<Fate>,
    handled: u64,
    acked: u64,
    dead_lettered: u64,
    queued: u64,
}

/// What became of each message, by its id. Clones share one ledger.
///
/// The test writes down what it published and what it was told; its handler, what it handled; and at the end, what it
/// finds in the queue and with the dead letters. [`account`](Self::account) then adds it all up.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ledger(Arc<Mutex<BTreeMap<String, Entry>>>);

/// What [`Ledger::account`] found: counts of messages, each id once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) published: usize,
    pub(crate) confirmed: usize,
    pub(crate) refused: usize,
    pub(crate) handled: usize,
    pub(crate) acked: usize,
    pub(crate) dead_lettered: usize,
    pub(crate) queued: usize,
    /// Handled more often than once, all in all: each further time counts.
    pub(crate) duplicates: u64,
    /// Confirmed, and nowhere to be found.
    pub(crate) missing: Vec<String>,
    /// Found, though the publisher was told that the broker has not got it.
    pub(crate) refused_yet_found: Vec<String>,
    /// Found, and never published.
    pub(crate) unknown: Vec<String>,
}

impl Ledger {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    fn note(&self, id: &str, note: impl FnOnce(&mut Entry)) {
        note(self.0.lock().unwrap().entry(id.to_owned()).or_default());
    }

    /// Is about to be sent, for the first time or again; written down before it is, or its handler may come first.
    pub(crate) fn published(&self, id: &str) {
        self.note(id, |entry| {
            if entry.published != Some(Fate::Confirmed) {
                entry.published = Some(Fate::Unconfirmed);
            }
        });
    }

    /// The publisher was told that the broker has it.
    pub(crate) fn confirmed(&self, id: &str) {
        self.note(id, |entry| entry.published = Some(Fate::Confirmed));
    }

    /// The publisher was told that the broker has not got it. Where an earlier copy was confirmed, that counts.
    pub(crate) fn refused(&self, id: &str) {
        self.note(id, |entry| {
            if entry.published != Some(Fate::Confirmed) {
                entry.published = Some(Fate::Refused);
            }
        });
    }

    /// A handler has it; how often that was, this time included.
    pub(crate) fn handled(&self, id: &str) -> u64 {
        let mut count = 0;
        self.note(id, |entry| {
            entry.handled += 1;
            count = entry.handled;
        });
        count
    }

    pub(crate) fn acked(&self, id: &str) {
        self.note(id, |entry| entry.acked += 1);
    }

    pub(crate) fn dead_lettered(&self, id: &str) {
        self.note(id, |entry| entry.dead_lettered += 1);
    }

    /// Lies in the queue at the end.
    pub(crate) fn queued(&self, id: &str) {
        self.note(id, |entry| entry.queued += 1);
    }

    /// How many different messages were handled so far.
    pub(crate) fn handled_count(&self) -> usize {
        self.0.lock().unwrap().values().filter(|entry| entry.handled > 0).count()
    }

    /// How many different messages were confirmed so far.
    pub(crate) fn confirmed_count(&self) -> usize {
        self.0.lock().unwrap().values().filter(|entry| entry.published == Some(Fate::Confirmed)).count()
    }

    /// Adds up, and asserts that nothing was lost: every confirmed message was handled, or is dead-lettered or queued;
    /// none that was refused, and none that was never published, came up. Duplicates are allowed, and counted.
    ///
    /// # Panics
    ///
    /// With the ids that are wrong, and the counts.
    pub(crate) fn account(&self) -> Account {
        let account = self.add_up();
        let wrong = [&account.missing, &account.refused_yet_found, &account.unknown];
        assert!(wrong.into_iter().all(Vec::is_empty), "the ledger does not add up: {account}");
        account
    }

    /// As [`account`](Self::account), without asserting anything.
    pub(crate) fn add_up(&self) -> Account {
        let mut account = Account::default();
        for (id, entry) in &*self.0.lock().unwrap() {
            account.add(id, entry);
        }
        account
    }
}

impl Account {
    fn add(&mut self, id: &str, entry: &Entry) {
        let found = entry.handled + entry.acked + entry.dead_lettered + entry.queued > 0;
        self.published += usize::from(entry.published.is_some());
        self.handled += usize::from(entry.handled > 0);
        self.acked += usize::from(entry.acked > 0);
        self.dead_lettered += usize::from(entry.dead_lettered > 0);
        self.queued += usize::from(entry.queued > 0);
        self.duplicates += entry.handled.saturating_sub(1);
        match entry.published {
            Some(Fate::Confirmed) => {
                self.confirmed += 1;
                if !found {
                    self.missing.push(id.to_owned());
                }
            }
            Some(Fate::Refused) => {
                self.refused += 1;
                if found {
                    self.refused_yet_found.push(id.to_owned());
                }
            }
            Some(Fate::Unconfirmed) => {}
            None => self.unknown.push(id.to_owned()),
        }
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} published, {} confirmed, {} refused, {} handled ({} times more), {} acked, {} dead-lettered, {} queued",
            self.published,
            self.confirmed,
            self.refused,
            self.handled,
            self.duplicates,
            self.acked,
            self.dead_lettered,
            self.queued
        )?;
        for (what, ids) in [
            ("confirmed and missing", &self.missing),
            ("refused, yet found", &self.refused_yet_found),
            ("never published", &self.unknown),
        ] {
            if !ids.is_empty() {
                writeln!(f, "{what} ({}): {}", ids.len(), ids.join(" "))?;
            }
        }
        Ok(())
    }
}
