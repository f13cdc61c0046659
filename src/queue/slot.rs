//! Which of a family's queues to claim.

use std::fmt;
use std::num::NonZeroU32;

/// Which slot of a family of queues to claim: its queue is `<family>_<n>`, and belongs to whoever claimed it.
///
/// Slots are counted from 1; a number that is asked for by name may be any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Slot {
    /// This one, and no other.
    Number(u32),
    /// The first from 1 on that nobody has.
    FirstFree {
        /// How many are tried at most.
        most: NonZeroU32,
    },
}

impl Slot {
    /// The name of the queue of slot `n` of `family`.
    pub fn queue(family: &str, n: u32) -> String {
        format!("{family}_{n}")
    }

    /// For adapters: the numbers to try, in their order.
    pub fn candidates(self) -> impl Iterator<Item = u32> + Send {
        match self {
            Self::Number(n) => n..=n,
            Self::FirstFree { most } => 1..=most.get(),
        }
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(n) => write!(f, "slot {n}"),
            Self::FirstFree { most } => write!(f, "the first free slot of {most}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::Slot;

    #[test]
    fn the_candidates_are_the_number_or_all_from_one_on() {
        assert_eq!(Slot::Number(0).candidates().collect::<Vec<_>>(), [0]);
        let most = NonZeroU32::new(3).unwrap();
        assert_eq!(Slot::FirstFree { most }.candidates().collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(Slot::Number(u32::MAX).candidates().count(), 1);
    }
}
