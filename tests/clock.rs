//! The controlled clock, and the system's.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures::FutureExt;
use futures::future::join_all;
use windlass::ErrorKind;
use windlass::clock::{Clock, ControlledClock, LONGEST_WAIT, SystemClock, after, within};

use support::{Log, SECOND, millis_after, ms, prompt};

#[tokio::test]
async fn one_advance_goes_through_sleeps_in_a_row() {
    let clock = ControlledClock::new();
    let start = clock.now();
    let log = Log::new();
    let task = tokio::spawn({
        let (clock, log) = (clock.clone(), log.clone());
        async move {
            for _ in 0..3 {
                clock.sleep(SECOND).await;
                log.add(clock.now());
            }
        }
    });
    clock.advance(3 * SECOND).await;
    assert!(task.is_finished());
    assert_eq!(millis_after(start, &log.all()), [1_000, 2_000, 3_000], "each at its own time");
}

#[tokio::test]
async fn an_advance_ends_where_it_was_told_to_and_moves_both_clocks() {
    let clock = ControlledClock::new();
    let (start, wall) = (clock.now(), clock.wall());
    let _nap = tokio::spawn(clock.sleep(ms(700)));
    clock.advance(SECOND).await;
    assert_eq!((clock.now() - start, clock.wall().duration_since(wall).unwrap()), (SECOND, SECOND));
    clock.advance(Duration::ZERO).await;
    assert_eq!(clock.now() - start, SECOND);
}

#[tokio::test]
async fn sleepers_wake_in_the_order_of_their_deadlines_and_then_of_their_coming() {
    let clock = ControlledClock::new();
    let log = Log::new();
    let sleeper = |name: &'static str, time: Duration| {
        let (clock, log) = (clock.clone(), log.clone());
        tokio::spawn(async move {
            clock.sleep(time).await;
            log.add(name);
        })
    };
    let _tasks = [
        sleeper("c", ms(30)),
        sleeper("a", ms(10)),
        sleeper("b-1", ms(20)),
        sleeper("b-2", ms(20)),
        sleeper("b-3", ms(20)),
    ];
    clock.advance(SECOND).await;
    assert_eq!(log.all(), ["a", "b-1", "b-2", "b-3", "c"]);
}

#[tokio::test]
async fn nobody_wakes_a_nanosecond_early() {
    let clock = ControlledClock::new();
    let nap = tokio::spawn(clock.sleep(SECOND));
    clock.advance(SECOND - Duration::from_nanos(1)).await;
    assert!(!nap.is_finished());
    clock.advance(Duration::from_nanos(1)).await;
    assert!(nap.is_finished());
}

#[tokio::test]
async fn a_jump_of_the_wall_clock_wakes_nobody_and_moves_no_monotonic_time() {
    let clock = ControlledClock::new();
    let (start, wall) = (clock.now(), clock.wall());
    let nap = tokio::spawn(clock.sleep(SECOND));
    clock.settle().await;
    clock.jump_wall(wall + Duration::from_secs(3_600));
    clock.settle().await;
    assert!(!nap.is_finished() && clock.now() == start);
    clock.jump_wall(SystemTime::UNIX_EPOCH);
    clock.advance(SECOND).await;
    assert!(nap.is_finished());
    assert_eq!(clock.wall(), SystemTime::UNIX_EPOCH + SECOND);
}

#[tokio::test]
async fn sleepers_are_counted_from_their_first_poll_until_they_end_or_are_dropped() {
    let clock = ControlledClock::new();
    let start = clock.now();
    let mut one = clock.sleep(SECOND);
    let mut two = clock.sleep(2 * SECOND);
    assert_eq!((clock.sleepers(), clock.next_deadline()), (0, None));
    assert!((&mut one).now_or_never().is_none() && (&mut two).now_or_never().is_none());
    assert!((&mut one).now_or_never().is_none(), "polled twice, counted once");
    assert_eq!((clock.sleepers(), clock.next_deadline()), (2, Some(start + SECOND)));
    drop(one);
    assert_eq!((clock.sleepers(), clock.next_deadline()), (1, Some(start + 2 * SECOND)));
    clock.advance(2 * SECOND).await;
    assert_eq!(clock.sleepers(), 0);
    assert!((&mut two).now_or_never().is_some());
}

#[tokio::test]
async fn a_sleep_that_was_dropped_holds_up_nobody() {
    let clock = ControlledClock::new();
    let task = tokio::spawn({
        let clock = clock.clone();
        async move { within(&clock, SECOND, clock.sleep(3_600 * SECOND)).await }
    });
    clock.advance(SECOND).await;
    assert_eq!(task.await.unwrap(), None);
    assert_eq!(clock.sleepers(), 0);
}

#[tokio::test]
async fn a_sleep_of_no_time_or_of_the_past_is_over_at_once() {
    let clock = ControlledClock::new();
    clock.advance(10 * SECOND).await;
    assert!(clock.sleep(Duration::ZERO).now_or_never().is_some());
    assert!(clock.sleep_until(clock.now() - SECOND).now_or_never().is_some());
    assert_eq!(clock.sleepers(), 0);
}

#[tokio::test]
async fn a_sleep_made_early_and_polled_late_keeps_its_deadline() {
    let clock = ControlledClock::new();
    let nap = clock.sleep(SECOND);
    clock.advance(SECOND).await;
    assert!(nap.now_or_never().is_some());
}

#[tokio::test]
async fn huge_durations_overflow_nothing() {
    let clock = ControlledClock::new();
    let start = clock.now();
    let nap = tokio::spawn(clock.sleep(Duration::MAX));
    clock.advance(3_600 * SECOND).await;
    assert!(!nap.is_finished());
    clock.advance(Duration::MAX).await;
    assert!(nap.is_finished());
    assert!(clock.now() - start >= LONGEST_WAIT);
    assert!(after(start, Duration::MAX) > start);
}

/// "Adding never panics": nor may moving a wall clock that stands at the end of its range.
#[tokio::test]
async fn a_wall_clock_at_the_end_of_its_range_can_be_advanced() {
    let last = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(i64::MAX as u64)).unwrap();
    let clock = ControlledClock::starting_at(last);
    let start = clock.now();
    clock.advance(SECOND).await;
    assert_eq!(clock.now() - start, SECOND);
}

#[tokio::test]
async fn the_wall_clock_starts_where_it_is_told_to() {
    let wall = SystemTime::UNIX_EPOCH + Duration::from_secs(1_234_567_890);
    assert_eq!(ControlledClock::starting_at(wall).wall(), wall);
    let default = ControlledClock::default().wall();
    assert_eq!(default, SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600));
}

#[tokio::test]
async fn until_sleepers_waits_for_as_many_as_asked() {
    let clock = ControlledClock::new();
    prompt(clock.until_sleepers(0)).await.unwrap();
    let waiting = tokio::spawn({
        let clock = clock.clone();
        async move { clock.until_sleepers(3).await }
    });
    let _two = [tokio::spawn(clock.sleep(SECOND)), tokio::spawn(clock.sleep(SECOND))];
    clock.settle().await;
    assert!(!waiting.is_finished());
    let _third = tokio::spawn(clock.sleep(SECOND));
    prompt(waiting).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn until_sleepers_gives_up_and_says_how_many_sleep() {
    let clock = ControlledClock::new();
    let _one = tokio::spawn(clock.sleep(SECOND));
    let error = clock.until_sleepers(2).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.to_string().contains("1 sleep, waited for 2"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_many_threads_everybody_wakes_in_the_end() {
    let clock = ControlledClock::new();
    let naps: Vec<_> = (0..1_000_u64)
        .map(|number| {
            let clock = clock.clone();
            tokio::spawn(async move {
                clock.sleep(ms(number % 50)).await;
                clock.sleep(ms(number % 7)).await;
            })
        })
        .collect();
    let all = tokio::spawn(join_all(naps));
    prompt(async {
        while !all.is_finished() {
            clock.advance(ms(10)).await;
        }
    })
    .await;
    assert_eq!(clock.sleepers(), 0);
}

#[tokio::test]
async fn an_advance_dropped_in_the_middle_leaves_the_clock_at_a_deadline() {
    let clock = ControlledClock::new();
    let start = clock.now();
    let _naps = [tokio::spawn(clock.sleep(SECOND)), tokio::spawn(clock.sleep(2 * SECOND))];
    clock.settle().await;
    {
        let mut advance = Box::pin(clock.advance(10 * SECOND));
        while clock.now() == start {
            assert!(futures::poll!(&mut advance).is_pending());
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(clock.now(), start + SECOND);
    clock.advance(SECOND).await;
    assert_eq!((clock.now(), clock.sleepers()), (start + 2 * SECOND, 0));
}

#[tokio::test]
async fn a_clock_behind_an_arc_is_the_same_clock() {
    let clock = Arc::new(ControlledClock::new());
    let erased: Arc<dyn Clock> = clock.clone();
    let nap = tokio::spawn(erased.sleep(SECOND));
    clock.advance(SECOND).await;
    assert!(nap.is_finished());
    assert_eq!((erased.now(), erased.wall()), (clock.now(), clock.wall()));
}

#[tokio::test]
async fn work_that_is_done_at_once_sets_no_timer() {
    let clock = ControlledClock::new();
    assert_eq!(within(&clock, Duration::ZERO, async { 7 }).await, Some(7));
    assert_eq!(clock.sleepers(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_system_clock_follows_tokio_s_paused_time() {
    let start = SystemClock.now();
    SystemClock.sleep(Duration::from_secs(3_600)).await;
    assert_eq!(SystemClock.now() - start, Duration::from_secs(3_600));
    tokio::time::advance(5 * SECOND).await;
    assert_eq!(SystemClock.now() - start, Duration::from_secs(3_605));
    assert!(within(&SystemClock, SECOND, std::future::pending::<()>()).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn the_system_clock_takes_any_duration() {
    let mut far = SystemClock.sleep(Duration::MAX);
    assert!((&mut far).now_or_never().is_none());
    drop(far);
    SystemClock.sleep(Duration::ZERO).await;
    SystemClock.sleep_until(SystemClock.now() - Duration::from_nanos(1)).await;
}
