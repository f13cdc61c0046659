//! How long to wait before the next try: a pure function of the try and a seed.

use std::time::Duration;

/// Exponential backoff with jitter.
///
/// [`delay`](Self::delay) is pure: the same try and seed give the same delay. The delay is clamped after the jitter,
/// to at least [`SHORTEST`](Self::SHORTEST) and at most the maximum, so that no setting gives zero or overflows.
///
/// ```
/// use std::time::Duration;
/// use windlass::backoff::Backoff;
///
/// let backoff = Backoff::new(Duration::from_secs(1)).with_jitter(0.0);
/// assert_eq!(backoff.delay(1, 0), Duration::from_secs(1));
/// assert_eq!(backoff.delay(4, 0), Duration::from_secs(8));
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Backoff {
    first: Duration,
    factor: f64,
    max: Duration,
    jitter: f64,
}

impl Backoff {
    /// The shortest delay that there is: a retry that never waits is a hot loop.
    pub const SHORTEST: Duration = Duration::from_millis(1);

    /// The longest delay that there is, about 136 years: it can be added to a time without an overflow.
    pub const LONGEST: Duration = Duration::from_secs(u32::MAX as u64);

    /// Starts at `first`, doubles, ends at 30 s, with a tenth of jitter.
    pub const fn new(first: Duration) -> Self {
        Self { first, factor: 2.0, max: Duration::from_secs(30), jitter: 0.1 }
    }

    /// By what the delay is multiplied from one try to the next; 2 by default. Below 1 it shrinks; zero, negative and
    /// NaN give the first delay only once and the shortest after it; infinite gives the maximum from the second on.
    #[must_use]
    pub const fn with_factor(mut self, factor: f64) -> Self {
        self.factor = factor;
        self
    }

    /// The longest delay, jitter included; 30 s by default. Below [`SHORTEST`](Self::SHORTEST) it is read as that.
    #[must_use]
    pub const fn with_max(mut self, max: Duration) -> Self {
        self.max = max;
        self
    }

    /// How far the delay is moved at random, as a share of it in either direction: 0.1 by default, which is 90 % to
    /// 110 %. Clamped to 0..=1; NaN is read as 0.
    #[must_use]
    pub const fn with_jitter(mut self, jitter: f64) -> Self {
        self.jitter = jitter;
        self
    }

    /// The delay before try number `attempt` is repeated: after the first failure `attempt` is 1. Zero is read as 1.
    /// The seed picks the jitter.
    pub fn delay(&self, attempt: u32, seed: u64) -> Duration {
        let tries = attempt.max(1);
        let growth = if tries == 1 { 1.0 } else { self.factor.max(0.0).powf(f64::from(tries - 1)) };
        self.clamp(self.first.as_secs_f64() * growth * self.jitter_factor(tries, seed))
    }

    fn jitter_factor(&self, attempt: u32, seed: u64) -> f64 {
        let jitter = if self.jitter.is_nan() { 0.0 } else { self.jitter.clamp(0.0, 1.0) };
        1.0 + jitter * (2.0 * unit(seed ^ u64::from(attempt).rotate_left(32)) - 1.0)
    }

    /// The only way from a float to a `Duration`: NaN (zero times infinity) is the shortest, infinity the maximum.
    fn clamp(&self, seconds: f64) -> Duration {
        let max = self.max.clamp(Self::SHORTEST, Self::LONGEST);
        let seconds = if seconds.is_nan() { 0.0 } else { seconds };
        if seconds >= max.as_secs_f64() {
            return max;
        }
        Duration::from_secs_f64(seconds.max(0.0)).clamp(Self::SHORTEST, max)
    }
}

/// A seed from a message's id, by FNV-1a (Fowler, Noll, Vo): the same on every machine, which the standard library's
/// hasher does not promise.
pub(crate) fn seed(id: &str) -> u64 {
    id.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// A number in 0..1 from a seed, by the finalizer of SplitMix64 (Steele, Lea and Flood, 2014): good enough to spread
/// waits, and the same on every machine.
fn unit(seed: u64) -> f64 {
    let mut mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^= mixed >> 31;
    (mixed >> 11) as f64 / (1_u64 << 53) as f64
}
