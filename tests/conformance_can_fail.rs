//! The conformance suite can fail: sources that are broken on purpose, each in one way, fail the cases that promise
//! just that, and no case is there that none of them fails.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "conformance_can_fail/closing.rs"]
mod closing;
#[path = "conformance_can_fail/content.rs"]
mod content;
#[path = "conformance_can_fail/delivering.rs"]
mod delivering;
#[path = "conformance_can_fail/faults.rs"]
mod faults;
#[path = "conformance_can_fail/retrying.rs"]
mod retrying;
#[path = "conformance_can_fail/settling.rs"]
mod settling;
#[path = "conformance_can_fail/source.rs"]
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::task::JoinSet;
use windlass::conformance::{Violation, cases};

use faults::Broken;
use source::{FaultyHarness, PLAN, Plan, Shape, Unbroken};

/// What a source that hangs is given: it decides how long this file takes.
const SHORT: Duration = Duration::from_millis(300);

/// Runs all cases side by side; what was broken, by case.
async fn violations(plan: Plan) -> BTreeMap<&'static str, Violation> {
    let mut runs = JoinSet::new();
    for case in cases::<FaultyHarness>() {
        runs.spawn(PLAN.scope(plan, async move { (case.name(), case.run().await) }));
    }
    let results = runs.join_all().await;
    results.into_iter().filter_map(|(name, result)| Some((name, result.err()?))).collect()
}

async fn each_is_found_out(broken: &[Broken]) {
    let mut missed = Vec::new();
    for Broken { what, shape, fault, breaks } in broken {
        let found = violations(Plan { shape: *shape, fault: *fault, patience: SHORT }).await;
        for case in breaks.iter().filter(|case| !found.contains_key(*case)) {
            missed.push(format!("{case} passes on a source that {what}"));
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

#[tokio::test]
async fn a_source_that_spoils_what_it_carries_is_found_out() {
    each_is_found_out(content::BROKEN).await;
}

#[tokio::test]
async fn a_source_that_hands_out_wrongly_is_found_out() {
    each_is_found_out(delivering::BROKEN).await;
}

#[tokio::test]
async fn a_source_that_settles_wrongly_is_found_out() {
    each_is_found_out(settling::BROKEN).await;
}

#[tokio::test]
async fn a_source_that_retries_wrongly_is_found_out() {
    each_is_found_out(retrying::BROKEN).await;
}

#[tokio::test]
async fn a_source_that_closes_wrongly_is_found_out() {
    each_is_found_out(closing::BROKEN).await;
}

#[tokio::test]
async fn a_source_that_is_not_broken_passes_every_case() {
    for shape in [Shape::Usual, Shape::Leased, Shape::Buffering, Shape::Plain] {
        let plan = Plan { shape, fault: || Box::new(Unbroken), patience: Duration::from_secs(10) };
        let found = violations(plan).await;
        assert!(found.is_empty(), "{shape:?}: {found:#?}");
    }
}

#[test]
fn every_case_is_failed_by_a_broken_source() {
    let all = [content::BROKEN, delivering::BROKEN, settling::BROKEN, retrying::BROKEN, closing::BROKEN];
    let failed: BTreeSet<&str> =
        all.iter().copied().flatten().flat_map(|broken| broken.breaks).copied().collect();
    let cases: BTreeSet<&str> = cases::<FaultyHarness>().iter().map(|case| case.name()).collect();
    assert_eq!(cases, failed, "cases on the left, what broken sources fail on the right");
}

/// Nothing else would tell: a case that is written and not listed compiles, and never runs.
#[test]
fn every_case_that_is_written_is_in_the_list() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/conformance");
    let mut written = BTreeSet::new();
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let topic = path.file_stem().unwrap().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).unwrap();
        let names = text.lines().filter_map(|line| line.strip_prefix("pub async fn ")?.split('<').next());
        written.extend(names.map(|name| format!("{topic}::{name}")));
    }
    // What runs a case is no case.
    written.remove("trial::run");
    let listed: BTreeSet<String> = cases::<FaultyHarness>().iter().map(|case| format!("{case:?}")).collect();
    assert_eq!(written, listed, "written on the left, listed on the right");
}

#[tokio::test]
async fn a_violation_says_what_was_expected_and_what_was_seen() {
    let nothing = || -> Box<dyn source::Fault> { Box::new(closing::AlwaysReady) };
    let found = violations(Plan { shape: Shape::Usual, fault: nothing, patience: SHORT }).await;
    let violation = &found["the_health_tells_open_from_closed"];
    let text = "the_health_tells_open_from_closed: expected the health Closed of a closed source; saw Ready";
    assert_eq!(violation.to_string(), text);
}
