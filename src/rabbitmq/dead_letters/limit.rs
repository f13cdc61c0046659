//! Messages that stand at the delivery limit of their queue. Handed back once more they would be dead-lettered again or
//! dropped, so a copy of each is put at the end of the queue, and the message acked once that is confirmed.

use super::report::Warning;
use crate::error::Error;
use crate::rabbitmq::wire::HandedBack;

/// What was seen of counts that come close to the limit.
pub(super) struct Limit {
    limit: Option<u64>,
    /// The highest count that was seen.
    highest: u64,
    moved: u64,
    over: u64,
    error: Option<Error>,
}

impl Limit {
    pub(super) fn new(limit: Option<u32>) -> Self {
        Self { limit: limit.map(u64::from), highest: 0, moved: 0, over: 0, error: None }
    }

    /// Whether a message may not be handed back once more. A count above the limit says that the limit is another one.
    pub(super) fn is_reached(&mut self, handed_back: HandedBack) -> bool {
        let HandedBack::Counted(count) = handed_back else { return false };
        self.highest = self.highest.max(count);
        Some(count) == self.limit
    }

    /// A copy is at the end of the queue, or was not taken.
    pub(super) fn moved(&mut self, outcome: Result<(), Error>) {
        match outcome {
            Ok(()) => self.moved += 1,
            Err(error) => {
                self.over += 1;
                self.error = Some(error);
            }
        }
    }

    pub(super) fn warnings(&self) -> Vec<Warning> {
        let mut warnings = Vec::new();
        if self.moved > 0 {
            warnings.push(Warning::MovedToTheEnd { messages: self.moved });
        }
        if let Some(error) = &self.error {
            warnings.push(Warning::OverDeliveryLimit { messages: self.over, error: error.to_string() });
        }
        let near = |limit: &u64| self.highest <= *limit && self.highest > limit / 2;
        if let Some(limit) = self.limit.filter(near)
            && warnings.is_empty()
        {
            warnings.push(Warning::NearDeliveryLimit { count: self.highest, limit });
        }
        warnings
    }
}

#[cfg(test)]
mod tests {
    use super::Limit;
    use crate::rabbitmq::dead_letters::Warning;
    use crate::rabbitmq::wire::HandedBack;

    #[test]
    fn only_a_count_that_stands_at_the_limit_reaches_it() {
        let mut limit = Limit::new(Some(20));
        for handed_back in
            [HandedBack::Unknown, HandedBack::Free, HandedBack::Counted(0), HandedBack::Counted(10)]
        {
            assert!(!limit.is_reached(handed_back), "{handed_back:?}");
        }
        assert!(limit.warnings().is_empty());
        assert!(!limit.is_reached(HandedBack::Counted(19)));
        assert_eq!(limit.warnings(), [Warning::NearDeliveryLimit { count: 19, limit: 20 }]);
        assert!(limit.is_reached(HandedBack::Counted(20)));
        limit.moved(Ok(()));
        assert_eq!(limit.warnings(), [Warning::MovedToTheEnd { messages: 1 }]);
        // So it is not the limit.
        assert!(!limit.is_reached(HandedBack::Counted(21)));
        assert!(!Limit::new(None).is_reached(HandedBack::Counted(20)));
    }
}
