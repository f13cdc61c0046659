//! Which publish a `basic.return` belongs to. No waiting, no channel.
//!
//! RabbitMQ returns a mandatory message that it cannot route just before it confirms it. lapin keeps returned messages in
//! a queue, and attaches the first of it to whichever confirm it sees next: where one ack stands for many publishes, that
//! is any of them. What can be relied on is that returns come in the order of publishing, and that the one of a message is
//! in lapin's queue before its confirm.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::{Error, ErrorKind, Result};

/// What tells one publish from another in a return.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) exchange: String,
    pub(super) routing_key: String,
    /// Only those that are can be returned: one that is not must not be taken for one that looks like it.
    pub(super) mandatory: bool,
    pub(super) message_id: Option<String>,
    /// Of the body. The body itself would stay here for as long as a queue does not confirm.
    pub(super) len: usize,
}

/// What the broker said to one publish, as lapin tells it.
#[derive(Debug)]
pub(super) struct Confirmed {
    pub(super) sequence: u64,
    /// Not acked: the broker did not take it.
    pub(super) nacked: bool,
    /// A return that lapin attached, of this publish or another.
    pub(super) returned: Option<Identity>,
}

#[derive(Debug)]
struct Entry<W> {
    identity: Identity,
    waiter: W,
    returned: bool,
}

/// The publishes of one channel that have no outcome yet.
#[derive(Debug)]
pub(super) struct Publishes<W> {
    entries: BTreeMap<u64, Entry<W>>,
    /// Those that are acked, but their own return may be behind others in lapin's queue.
    undecided: BTreeSet<u64>,
    /// The latest publish that was returned: the returns of all before it have been seen.
    returned_up_to: u64,
}

impl<W> Default for Publishes<W> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), undecided: BTreeSet::new(), returned_up_to: 0 }
    }
}

impl<W> Publishes<W> {
    pub(super) fn sent(&mut self, sequence: u64, identity: Identity, waiter: W) {
        self.entries.insert(sequence, Entry { identity, waiter, returned: false });
    }

    /// Takes out one that got no confirm.
    pub(super) fn remove(&mut self, sequence: u64) -> Option<(Identity, W)> {
        self.undecided.remove(&sequence);
        self.entries.remove(&sequence).map(|entry| (entry.identity, entry.waiter))
    }

    /// The last one that is as wanted.
    pub(super) fn last(&self, wanted: impl Fn(&Identity) -> bool) -> Option<u64> {
        self.entries.iter().rev().find(|(_, entry)| wanted(&entry.identity)).map(|(sequence, _)| *sequence)
    }

    /// Takes note of all confirms that lapin has told up to now; returns what is decided.
    pub(super) fn confirm(&mut self, confirms: Vec<Confirmed>) -> Vec<(W, Result<()>)> {
        for returned in confirms.iter().filter_map(|confirm| confirm.returned.as_ref()) {
            self.mark_returned(returned);
        }
        // lapin's queue was empty at that time, so all returns of before have been seen. Within this round the order is
        // not known; what was undecided before it is.
        let seen_all = confirms.iter().any(|confirm| confirm.returned.is_none());
        let mut decided = Vec::new();
        if seen_all {
            let before = std::mem::take(&mut self.undecided);
            decided.extend(before.into_iter().filter_map(|sequence| self.decide(sequence)));
        }
        for Confirmed { sequence, nacked, returned } in confirms {
            if nacked {
                let refused = Error::new(ErrorKind::Refused, "publish")
                    .with_message("the broker did not take it: is the queue full?");
                decided.extend(self.remove(sequence).map(|(_, waiter)| (waiter, Err(refused))));
            } else if returned.is_none() {
                decided.extend(self.decide(sequence));
            } else if self.entries.contains_key(&sequence) {
                self.undecided.insert(sequence);
            }
        }
        // Once nothing is on its way, all returns have been seen: each came with a confirm of its own.
        let quiet = self.undecided.len() == self.entries.len();
        let is_seen = |sequence: &u64| {
            quiet
                || *sequence < self.returned_up_to
                || self.entries.get(sequence).is_some_and(|entry| entry.returned)
        };
        let seen: Vec<u64> = self.undecided.iter().copied().filter(is_seen).collect();
        decided.extend(seen.into_iter().filter_map(|sequence| self.decide(sequence)));
        decided
    }

    /// The outcome of one that was acked, and whose return would have been seen.
    fn decide(&mut self, sequence: u64) -> Option<(W, Result<()>)> {
        self.undecided.remove(&sequence);
        let Entry { identity, waiter, returned } = self.entries.remove(&sequence)?;
        Some((waiter, if returned { Err(unroutable(&identity)) } else { Ok(()) }))
    }

    /// The earliest that looks like it: equal ones are returned in the order in which they were sent.
    fn mark_returned(&mut self, returned: &Identity) {
        let found = self.entries.iter_mut().find(|(_, entry)| !entry.returned && entry.identity == *returned);
        match found {
            Some((sequence, entry)) => {
                entry.returned = true;
                self.returned_up_to = self.returned_up_to.max(*sequence);
            }
            // Its outcome was told already: the connection had gone, for one.
            None => tracing::debug!(routing_key = returned.routing_key, "a return of no publish that waits"),
        }
    }
}

fn unroutable(identity: &Identity) -> Error {
    let error = Error::new(ErrorKind::Unroutable, "publish");
    if identity.exchange.is_empty() {
        return error.with_context("queue", &identity.routing_key);
    }
    error
        .with_message("nothing is bound to the exchange for this routing key")
        .with_context("exchange", &identity.exchange)
        .with_context("routing key", &identity.routing_key)
}

#[cfg(test)]
mod tests {
    use super::{Confirmed, Identity, Publishes};
    use crate::error::{ErrorKind, Result};

    fn identity(key: &str) -> Identity {
        let (exchange, routing_key) = (String::new(), key.to_owned());
        Identity { exchange, routing_key, mandatory: true, message_id: None, len: 1 }
    }

    fn confirmed(sequence: u64, returned: Option<&str>) -> Confirmed {
        Confirmed { sequence, nacked: false, returned: returned.map(identity) }
    }

    fn outcomes(decided: Vec<(u64, Result<()>)>) -> Vec<(u64, Option<ErrorKind>)> {
        let mut outcomes: Vec<_> = decided
            .into_iter()
            .map(|(sequence, outcome)| (sequence, outcome.err().map(|error| error.kind())))
            .collect();
        outcomes.sort_by_key(|(sequence, _)| *sequence);
        outcomes
    }

    fn sent(keys: &[&str]) -> Publishes<u64> {
        let mut publishes = Publishes::default();
        for (sequence, key) in (1..).zip(keys) {
            publishes.sent(sequence, identity(key), sequence);
        }
        publishes
    }

    const UNROUTABLE: Option<ErrorKind> = Some(ErrorKind::Unroutable);

    #[test]
    fn a_return_that_lapin_attached_to_another_confirm_finds_its_own() {
        let mut publishes = sent(&["there", "gone", "there"]);
        let round = vec![confirmed(1, Some("gone")), confirmed(3, None), confirmed(2, None)];
        assert_eq!(outcomes(publishes.confirm(round)), [(1, None), (2, UNROUTABLE), (3, None)]);
    }

    #[test]
    fn an_ack_that_took_anothers_return_waits_until_its_own_would_have_been_seen() {
        let mut publishes = sent(&["gone", "also gone", "there"]);
        assert_eq!(outcomes(publishes.confirm(vec![confirmed(2, Some("gone"))])), []);
        let round = vec![confirmed(1, Some("also gone"))];
        assert_eq!(outcomes(publishes.confirm(round)), [(1, UNROUTABLE), (2, UNROUTABLE)]);
        assert_eq!(outcomes(publishes.confirm(vec![confirmed(3, None)])), [(3, None)]);
    }

    #[test]
    fn nothing_stays_undecided_once_nothing_is_on_its_way() {
        let mut publishes = sent(&["gone", "there"]);
        let round = vec![confirmed(2, Some("gone")), confirmed(1, None)];
        assert_eq!(outcomes(publishes.confirm(round)), [(1, UNROUTABLE), (2, None)]);
    }

    #[test]
    fn equal_messages_are_returned_in_their_order() {
        let mut publishes = sent(&["gone", "gone"]);
        let first = publishes.confirm(vec![confirmed(1, Some("gone"))]);
        assert_eq!(outcomes(first), [(1, UNROUTABLE)]);
        assert_eq!(outcomes(publishes.confirm(vec![confirmed(2, None)])), [(2, None)], "made in between");
    }

    #[test]
    fn a_return_is_never_that_of_a_message_to_whom_it_may_concern() {
        let mut publishes = Publishes::default();
        publishes.sent(1, Identity { mandatory: false, ..identity("gone") }, 1);
        publishes.sent(2, identity("gone"), 2);
        let round = vec![confirmed(1, Some("gone")), confirmed(2, None)];
        assert_eq!(outcomes(publishes.confirm(round)), [(1, None), (2, UNROUTABLE)]);
    }

    #[test]
    fn a_nack_is_a_refusal() {
        let mut publishes = sent(&["full"]);
        let nack = Confirmed { sequence: 1, nacked: true, returned: None };
        assert_eq!(outcomes(publishes.confirm(vec![nack])), [(1, Some(ErrorKind::Refused))]);
    }

    /// Every way in which lapin can attach the returns, for every pattern of five publishes, in one round and in five.
    #[test]
    fn however_returns_are_attached_each_publish_gets_its_own_outcome() {
        for pattern in 0..32_u32 {
            let gone = |sequence: u64| pattern >> (sequence - 1) & 1 == 1;
            let keys: Vec<String> =
                (1..=5).map(|at| if gone(at) { format!("gone-{at}") } else { "there".to_owned() }).collect();
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            for order in orders(5) {
                for rounds in [1, 2, 5] {
                    let mut publishes = sent(&keys);
                    let mut queue = (1..=5).filter(|at| gone(*at)).map(|at| keys[at as usize - 1]);
                    let confirms: Vec<_> = order.iter().map(|at| confirmed(*at, queue.next())).collect();
                    let mut decided = Vec::new();
                    let mut left = confirms.into_iter().peekable();
                    while left.peek().is_some() {
                        let round = left.by_ref().take(5 / rounds).collect();
                        decided.extend(publishes.confirm(round));
                    }
                    let wanted: Vec<_> =
                        (1..=5).map(|at| (at, gone(at).then_some(ErrorKind::Unroutable))).collect();
                    assert_eq!(outcomes(decided), wanted, "{keys:?} confirmed as {order:?} in {rounds}");
                }
            }
        }
    }

    fn orders(count: u64) -> Vec<Vec<u64>> {
        (1..=count).fold(vec![Vec::new()], |orders, next| {
            let longer = orders.iter().flat_map(|order| {
                (0..=order.len()).map(move |at| {
                    let mut longer = order.clone();
                    longer.insert(at, next);
                    longer
                })
            });
            longer.collect()
        })
    }
}
