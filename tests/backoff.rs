//! The backoff, for any setting that there is.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Duration;

use proptest::num::f64 as any_f64;
use proptest::prelude::{
    Just, ProptestConfig, Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest,
};
use windlass::backoff::Backoff;

fn durations() -> impl Strategy<Value = Duration> {
    prop_oneof![
        Just(Duration::ZERO),
        Just(Duration::from_nanos(1)),
        Just(Duration::MAX),
        (any::<u64>(), 0_u32..1_000_000_000).prop_map(|(seconds, nanos)| Duration::new(seconds, nanos)),
        (0_u64..100_000).prop_map(Duration::from_millis),
    ]
}

fn floats() -> impl Strategy<Value = f64> {
    prop_oneof![
        any_f64::ANY,
        Just(f64::NAN),
        Just(f64::INFINITY),
        Just(f64::NEG_INFINITY),
        Just(f64::MIN_POSITIVE),
        Just(f64::MAX),
        Just(0.0),
        Just(-0.0),
        0.0..4.0,
    ]
}

fn attempts() -> impl Strategy<Value = u32> {
    prop_oneof![any::<u32>(), Just(u32::MAX), Just(0), Just(1), 1_u32..100]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_delay_is_never_zero_never_above_the_maximum_and_always_the_same(
        first in durations(), max in durations(), factor in floats(), jitter in floats(),
        attempt in attempts(), seed in any::<u64>(),
    ) {
        let backoff = Backoff::new(first).with_factor(factor).with_max(max).with_jitter(jitter);
        let delay = backoff.delay(attempt, seed);
        prop_assert!(delay >= Backoff::SHORTEST);
        prop_assert!(delay <= max.clamp(Backoff::SHORTEST, Backoff::LONGEST));
        prop_assert_eq!(delay, backoff.delay(attempt, seed));
        prop_assert_eq!(backoff.delay(0, seed), backoff.delay(1, seed));
    }

    #[test]
    fn without_jitter_a_growing_delay_never_shrinks(
        first in durations(), max in durations(), factor in 1.0..10.0_f64, attempt in 1_u32..2_000,
    ) {
        let backoff = Backoff::new(first).with_factor(factor).with_max(max).with_jitter(0.0);
        prop_assert!(backoff.delay(attempt, 0) <= backoff.delay(attempt + 1, 0));
        prop_assert_eq!(backoff.delay(attempt, 1), backoff.delay(attempt, 2), "the seed picks the jitter alone");
    }

    #[test]
    fn jitter_stays_within_its_share(
        millis in 10_u64..1_000_000, jitter in 0.0..=1.0_f64, seed in any::<u64>(),
    ) {
        let first = Duration::from_millis(millis);
        let backoff = Backoff::new(first).with_max(Duration::MAX).with_jitter(jitter);
        let share = backoff.delay(1, seed).as_secs_f64() / first.as_secs_f64();
        prop_assert!(share >= (1.0 - jitter) - 1e-6 && share <= (1.0 + jitter) + 1e-6, "{share}");
    }
}

#[test]
fn the_defaults_are_as_documented() {
    let backoff = Backoff::new(Duration::from_secs(1)).with_jitter(0.0);
    let seconds: Vec<u64> = (1..=7).map(|attempt| backoff.delay(attempt, 0).as_secs()).collect();
    assert_eq!(seconds, [1, 2, 4, 8, 16, 30, 30]);
    let with_jitter = Backoff::new(Duration::from_secs(1));
    for seed in 0..1_000 {
        let delay = with_jitter.delay(1, seed);
        assert!((Duration::from_millis(900)..=Duration::from_millis(1_100)).contains(&delay), "{delay:?}");
    }
}

#[test]
fn jitter_spreads_over_its_whole_share() {
    let backoff = Backoff::new(Duration::from_secs(1)).with_jitter(0.5);
    let mut tenths = [0_u32; 10];
    for seed in 0..10_000 {
        let share = backoff.delay(1, seed).as_secs_f64() - 0.5;
        tenths[((share * 10.0) as usize).min(9)] += 1;
    }
    assert!(tenths.iter().all(|count| (800..1_200).contains(count)), "{tenths:?}");
}

#[test]
fn odd_factors_do_as_documented() {
    let second = Duration::from_secs(1);
    let delays = |factor: f64| {
        let backoff = Backoff::new(second).with_factor(factor).with_jitter(0.0);
        [1, 2, u32::MAX].map(|attempt| backoff.delay(attempt, 0))
    };
    let max = Duration::from_secs(30);
    for factor in [0.0, -0.0, -3.0, f64::NAN, f64::NEG_INFINITY] {
        assert_eq!(delays(factor), [second, Backoff::SHORTEST, Backoff::SHORTEST], "{factor}");
    }
    assert_eq!(delays(f64::INFINITY), [second, max, max]);
    assert_eq!(delays(0.5), [second, Duration::from_millis(500), Backoff::SHORTEST]);
    assert_eq!(delays(1.0), [second; 3]);
}

#[test]
fn a_maximum_below_the_shortest_delay_is_read_as_that() {
    let backoff = Backoff::new(Duration::from_secs(1)).with_max(Duration::ZERO);
    assert_eq!(backoff.delay(1, 0), Backoff::SHORTEST);
    assert_eq!(backoff.delay(u32::MAX, u64::MAX), Backoff::SHORTEST);
}

#[test]
fn the_longest_delay_can_be_added_to_a_time() {
    let backoff = Backoff::new(Duration::MAX).with_max(Duration::MAX);
    let delay = backoff.delay(u32::MAX, 0);
    assert_eq!(delay, Backoff::LONGEST);
    assert!(std::time::SystemTime::UNIX_EPOCH.checked_add(delay).is_some());
}
