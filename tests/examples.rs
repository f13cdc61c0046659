//! Runs the examples as a reader would, with `cargo run`, and looks at what they print and how they end.

// The examples read JSON.
#![cfg(feature = "json")]
// Clippy takes the helpers of a test for code that is shipped.
#![allow(clippy::expect_used)]

#[path = "support/example.rs"]
mod example;

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use windlass::clock::{Clock, SystemClock};

const SAMPLE_TABLE: &str = "
outcome       events     acked   retried  dead-lettered
done               5         5         0              0
failed             6         0         5              1
invalid            4         0         0              4
panicked           4         0         3              1
terminal           1         0         0              1
total             20         5         8              7

in orders.dlq: 7
";

fn cargo_run(example: &str) -> Command {
    example::cargo_run(example, "json")
}

/// The exit code, and what it printed to standard output and to standard error.
type Ended = (Option<i32>, String, String);

fn ended(output: Output) -> Ended {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it prints text");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn run(command: &mut Command) -> Ended {
    ended(command.output().expect("cargo can be run"))
}

fn quickstart_of(input: &[u8]) -> Ended {
    let mut command = cargo_run("quickstart");
    command.arg("-").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("cargo can be run");
    // It reads all of its input before it prints anything, so that neither side waits for the other.
    child.stdin.take().expect("it was asked for").write_all(input).expect("it reads all");
    ended(child.wait_with_output().expect("it ends"))
}

fn path_of(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(file)
}

/// A row of the closing table: how many events, acks, retries and dead letters.
fn row(output: &str, outcome: &str) -> Vec<u64> {
    let rows = output.lines().skip_while(|line| !line.starts_with("outcome "));
    let row = rows.skip(1).find(|line| line.split_whitespace().next() == Some(outcome));
    let numbers = row.unwrap_or_default().split_whitespace().skip(1);
    numbers.map(|number| number.parse().expect("a number")).collect()
}

#[test]
fn the_quickstart_accounts_for_every_line_of_its_sample() {
    let (code, output, problems) = run(&mut cargo_run("quickstart"));
    assert_eq!((code, problems.as_str()), (Some(0), ""), "{output}");
    assert!(output.contains(SAMPLE_TABLE), "{output}");
    assert!(output.ends_with("\n13 lines: 1 blank, 12 orders; 5 shipped, 7 dead letters\n"), "{output}");
    for line in [
        "line-1   attempt 1  done      ack",
        "line-3   attempt 1  invalid   dead-letter: validation:input: not the expected JSON at the top",
        "line-4   attempt 1  invalid   dead-letter: validation:input: not the expected JSON at boxes: invalid type",
        "line-5   attempt 1  invalid   dead-letter: validation:input: not the expected JSON at the top: missing field",
        "line-6   attempt 1  failed    retry after 10ms: handler_error: the carrier does not answer",
        "line-6   attempt 2  failed    retry after 20ms: handler_error: the carrier does not answer",
        "line-6   attempt 3  done      ack",
        "line-7   attempt 1  panicked  retry after 10ms: panic: attempt to divide by zero",
        "line-7   attempt 4  panicked  dead-letter: retry_exhausted:4: panic: attempt to divide by zero",
        "line-8   attempt 1  terminal  dead-letter: terminal: no carrier goes to Atlantis",
        "line-8   after attempt 1  terminal: no carrier goes to Atlantis",
        "line-7   after attempt 4  retry_exhausted:4: panic: attempt to divide by zero",
    ] {
        assert!(output.lines().any(|printed| printed.starts_with(line)), "no line {line:?} in\n{output}");
    }
}

/// Retries that fall due together may swap places, so that the lines are compared without their order.
#[test]
fn the_readme_shows_what_the_quickstart_prints() {
    let readme = std::fs::read_to_string(path_of("README.md")).expect("there is a README");
    let shown =
        readme.split("```text\n").find(|block| block.starts_with("line-1 ")).expect("it shows the output");
    let shown = shown.split("```").next().unwrap_or_default();
    let (_, output, _) = run(&mut cargo_run("quickstart"));
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    };
    assert_eq!(sorted(shown), sorted(&output));
}

#[test]
fn the_quickstart_reads_standard_input() {
    let sample = std::fs::read(path_of("examples/quickstart.jsonl")).expect("there is a sample");
    let (code, output, problems) = quickstart_of(&sample);
    assert_eq!((code, problems.as_str()), (Some(0), ""), "{output}");
    assert!(output.contains(SAMPLE_TABLE), "{output}");
}

#[test]
fn the_quickstart_takes_what_is_no_text_and_what_is_nothing() {
    let order = br#"{"ship_to": "Oslo", "grams": 1, "boxes": 1}"#;
    let input = [&b"\xff\xfe\x00\r\n\r\n"[..], order, b"\r\n  \n", order].concat();
    let (code, output, problems) = quickstart_of(&input);
    assert_eq!((code, problems.as_str()), (Some(0), ""), "{output}");
    assert!(output.ends_with("\n5 lines: 2 blank, 3 orders; 2 shipped, 1 dead letters\n"), "{output}");

    let (code, output, problems) = quickstart_of(b"");
    assert_eq!((code, problems.as_str()), (Some(0), ""), "{output}");
    assert!(output.ends_with("\n0 lines: 0 blank, 0 orders; 0 shipped, 0 dead letters\n"), "{output}");
}

#[test]
fn the_quickstart_names_the_file_that_it_cannot_read() {
    for file in ["no-such-file.jsonl", "examples"] {
        let (code, output, problems) = run(cargo_run("quickstart").arg(file));
        assert_eq!((code, output.as_str()), (Some(2), ""));
        assert!(problems.contains(&format!("quickstart: cannot read {file}: ")), "{problems}");
        assert!(problems.contains("usage: quickstart [FILE | -]"), "{problems}");
    }
    let (code, _, problems) = run(cargo_run("quickstart").args(["one.jsonl", "two.jsonl"]));
    assert_eq!(code, Some(2));
    assert!(problems.contains("quickstart: one file at most"), "{problems}");
}

#[test]
fn the_quickstart_is_through_a_hundred_thousand_lines_in_seconds() {
    const EACH: usize = 10_000;
    const KINDS: [&str; 10] = [
        r#"{"ship_to": "Oslo", "grams": 900, "boxes": 2}"#,
        r#"{"ship_to": "Lima", "grams": 900, "boxes": 3}"#,
        r#"{"ship_to": "Hanoi", "grams": 900, "boxes": 4}"#,
        r#"{"ship_to": "Perth", "grams": 900, "boxes": 5}"#,
        r#"{"ship_to": "Quito", "grams": 900, "boxes": 1, "carrier_down_for": 1}"#,
        r#"{"ship_to": "Cairo", "grams": 900, "boxes": 0}"#,
        r#"{"ship_to": "Atlantis", "grams": 900, "boxes": 1}"#,
        r#"{"ship_to": "Kyoto", "grams": 900, "boxes": "two"}"#,
        "not JSON",
        "",
    ];
    let mut input = String::new();
    for kind in KINDS.iter().cycle().take(EACH * KINDS.len()) {
        writeln!(input, "{kind}").expect("a string takes all");
    }
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hundred-thousand.jsonl");
    std::fs::write(&file, input).expect("the file can be written");
    // Built before the time is taken.
    run(cargo_run("quickstart").arg("-"));

    let start = SystemClock.now();
    let (code, output, problems) = run(cargo_run("quickstart").arg(&file));
    let took = SystemClock.now() - start;
    assert_eq!((code, problems.as_str()), (Some(0), ""));
    let each = EACH as u64;
    assert_eq!(row(&output, "done"), [5 * each, 5 * each, 0, 0]);
    assert_eq!(row(&output, "failed"), [each, 0, each, 0]);
    assert_eq!(row(&output, "invalid"), [2 * each, 0, 0, 2 * each]);
    assert_eq!(row(&output, "panicked"), [4 * each, 0, 3 * each, each]);
    assert_eq!(row(&output, "terminal"), [each, 0, 0, each]);
    assert_eq!(row(&output, "total"), [13 * each, 5 * each, 4 * each, 4 * each]);
    assert!(
        output.ends_with("\n100000 lines: 10000 blank, 90000 orders; 50000 shipped, 40000 dead letters\n")
    );
    // One line per event, and the first ten dead letters.
    assert_eq!(output.lines().filter(|line| line.starts_with("line-")).count(), 130_000 + 10);
    // About 3 s on two cores without optimisation. Work that grew with the square of the lines would take minutes.
    assert!(took < Duration::from_secs(30), "it took {took:?}");
}

#[test]
fn the_stream_loop_gets_back_what_it_dropped() {
    let (code, output, problems) = run(&mut cargo_run("stream_loop"));
    assert_eq!((code, problems.as_str()), (Some(0), ""), "{output}");
    assert!(output.contains("left ") && output.contains("right"), "both loops have work:\n{output}");
    assert!(output.contains(": resize, attempt 1: forgotten\n"), "{output}");
    assert!(output.contains(": resize, attempt 1: done\n"), "{output}");
    assert!(output.contains(": upload, attempt 2: done\n"), "{output}");
    assert!(output.ends_with("5 acked, 1 dead-lettered, 1 dropped and back\n"), "{output}");
}

#[test]
fn the_custom_on_result_decides_and_leaves_the_rest_to_the_default() {
    let (code, output, problems) = run(&mut cargo_run("custom_on_result"));
    assert_eq!((code, problems.as_str()), (Some(0), ""), "{output}");
    assert!(output.contains("/busy         retry after 30s: http:429\n"), "{output}");
    assert!(output.contains("/always-busy  dead-letter: still_busy\n"), "{output}");
    assert!(output.contains("/down         dead-letter: retry_exhausted:4: "), "{output}");
    assert!(output.ends_with("2 acked, 9 retries, 4 dead letters\n"), "{output}");
}

#[test]
fn the_controlled_clock_needs_no_time_for_a_day() {
    let (code, output, problems) = run(&mut cargo_run("controlled_clock"));
    assert_eq!((code, problems.as_str()), (Some(0), ""), "{output}");
    assert!(output.starts_with("a schedule of 31 hours, checked in "), "{output}");
}
