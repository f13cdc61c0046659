//! The example pipeline in memory: every line that was confirmed to whoever wrote it reaches its client and the sink.

#![cfg(all(unix, feature = "bootstrap", feature = "json"))]
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "support/example.rs"]
mod example;
#[path = "../examples/pipeline/mod.rs"]
mod pipeline;
mod support;

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use windlass::broker::Broker;
use windlass::clock::ControlledClock;
use windlass::memory::{FaultPoint, MemoryBroker};
use windlass::{Error, ErrorKind};

use example::cargo_run;
use pipeline::{Pipeline, Post, Settings, Sink, Tally};
use support::{SECOND, prompt};

fn settings(arguments: &[&str]) -> Settings {
    Settings::read(arguments.iter().map(|each| (*each).to_owned()), |_| None).unwrap()
}

async fn start(settings: &Settings) -> (ControlledClock, MemoryBroker, Pipeline) {
    let clock = ControlledClock::new();
    let memory = MemoryBroker::new(clock.clone());
    memory.apply(&pipeline::topology(settings)).unwrap();
    let broker = Broker::from(memory.clone());
    let pipeline = Pipeline::start(broker, settings, Arc::new(clock.clone())).await.unwrap();
    (clock, memory, pipeline)
}

fn post(number: u32) -> Post {
    Post { client: number % 7, text: format!("{number}: the word is swordfish") }
}

async fn write(pipeline: &Pipeline, numbers: std::ops::RangeInclusive<u32>) -> Vec<String> {
    let mut lines = Vec::new();
    for number in numbers {
        let line = format!("line-{number}");
        pipeline.write(&line, &post(number)).await.unwrap();
        lines.push(line);
    }
    lines
}

fn has_all(lines: &[String]) -> impl Fn(&Tally) -> bool {
    let lines = lines.to_vec();
    move |tally| {
        lines.iter().all(|line| tally.delivered.contains_key(line) && tally.sunk.contains(line))
            && tally.heard.values().sum::<u64>() >= lines.len() as u64
    }
}

fn nothing_is_left(memory: &MemoryBroker, stages: &[&str]) {
    for stage in stages {
        let counts = memory.queue(stage).counts();
        let left = (counts.pending, counts.delayed, counts.in_flight, counts.dead_lettered);
        assert_eq!(left, (0, 0, 0, 0), "{stage}");
    }
}

#[tokio::test]
async fn every_line_reaches_its_client_and_the_sink_and_is_heard() {
    let (_, memory, pipeline) = start(&settings(&["--transports", "3"])).await;
    let lines = write(&pipeline, 1..=100).await;
    prompt(pipeline.board().until(has_all(&lines))).await;
    let board = Arc::clone(pipeline.board());
    let ended = prompt(pipeline.stop()).await;
    assert!(ended.iter().all(|(_, report)| report.is_clean()), "{ended:?}");
    let tally = board.tally();
    assert_eq!((tally.delivered.len(), tally.sunk.len(), tally.sunk_before), (100, 100, 0));
    for number in 1..=100 {
        let got = &tally.delivered[&format!("line-{number}")];
        assert_eq!((&got.post, got.times), (&post(number), 1));
        assert_eq!(got.slot, got.post.client % 3 + 1, "each client has its node");
    }
    nothing_is_left(&memory, &["writer", "transport-manager", "sink"]);
    assert!(!memory.queue_exists("redaction") && !memory.queue_exists("websockets-transport_1"));
}

#[tokio::test]
async fn a_redaction_stage_comes_into_the_middle_by_its_name_alone() {
    let settings = settings(&["--stages", "writer, redaction, transport-manager"]);
    let (_, memory, pipeline) = start(&settings).await;
    let lines = write(&pipeline, 1..=50).await;
    prompt(pipeline.board().until(has_all(&lines))).await;
    let tally = pipeline.board().tally();
    for (line, got) in &tally.delivered {
        assert_eq!(got.post.text, format!("{}: the word is *********", &line["line-".len()..]));
    }
    let ended = prompt(pipeline.stop()).await;
    let handled: Vec<(&str, u64)> =
        ended.iter().map(|(name, report)| (name.as_str(), report.stats.acked)).collect();
    assert_eq!(handled[..3], [("writer", 50), ("redaction", 50), ("transport-manager", 50)]);
    nothing_is_left(&memory, &["writer", "redaction", "transport-manager", "sink"]);
}

#[tokio::test]
async fn what_is_for_a_node_that_is_gone_waits_until_its_slot_is_claimed_again() {
    let (clock, memory, mut pipeline) = start(&settings(&[])).await;
    let mut lines = write(&pipeline, 1..=10).await;
    prompt(pipeline.board().until(has_all(&lines))).await;
    let report = prompt(pipeline.lose_transport(1)).await.expect("it is there");
    assert!(report.is_clean());

    let (here, gone): (Vec<u32>, Vec<u32>) = (11..=30).partition(|number| (number % 7) % 2 == 1);
    lines.extend(write(&pipeline, 11..=30).await);
    let of_node_2: Vec<String> = here.iter().map(|number| format!("line-{number}")).collect();
    prompt(pipeline.board().until(has_all(&of_node_2))).await;
    let manager = memory.queue("transport-manager");
    manager.until(|manager| manager.counts().delayed == gone.len()).await.unwrap();
    let board = pipeline.board();
    assert!(gone.iter().all(|number| !board.tally().delivered.contains_key(&format!("line-{number}"))));
    assert!(lines.iter().all(|line| board.tally().sunk.contains(line)), "the sink has them meanwhile");
    for _ in 0..20 {
        clock.advance(SECOND).await;
    }
    manager.until(|manager| manager.counts().delayed == gone.len()).await.unwrap();

    assert_eq!(pipeline.join_transport().await.unwrap(), 1, "the first that is free");
    for _ in 0..4 {
        clock.advance(SECOND).await;
    }
    prompt(pipeline.board().until(has_all(&lines))).await;
    let tally = pipeline.board().tally();
    assert_eq!((tally.delivered.len(), tally.sunk.len()), (30, 30));
    assert!(tally.delivered.values().all(|got| got.times == 1));
    assert!(tally.sunk_before > 0, "each try told the sink again, which knew it by its id");
    assert!(prompt(pipeline.stop()).await.iter().all(|(_, report)| report.is_clean()));
    nothing_is_left(&memory, &["writer", "transport-manager", "sink"]);
}

#[tokio::test]
async fn faults_on_the_way_cost_duplicates_and_no_line() {
    let settings = settings(&["--stages", "writer,redaction,transport-manager"]);
    let (clock, memory, pipeline) = start(&settings).await;
    for name in ["writer", "redaction", "transport-manager", "sink"] {
        let queue = memory.queue(name);
        for _ in 0..5 {
            queue.fail_next(FaultPoint::Ack, Error::new(ErrorKind::Disconnected, "ack"));
        }
        if name != "writer" {
            for kind in [ErrorKind::Unconfirmed, ErrorKind::Refused, ErrorKind::Disconnected] {
                queue.fail_next(FaultPoint::Publish, Error::new(kind, "publish"));
            }
        }
    }
    let lines = write(&pipeline, 1..=40).await;
    memory.queue("redaction").cut();
    let arrived = tokio::spawn({
        let board = Arc::clone(pipeline.board());
        let lines = lines.clone();
        async move { board.until(has_all(&lines)).await }
    });
    for _ in 0..200 {
        clock.advance(SECOND).await;
        if arrived.is_finished() {
            break;
        }
    }
    prompt(arrived).await.unwrap();
    let tally = pipeline.board().tally();
    assert_eq!(
        (tally.delivered.len(), tally.sunk.len()),
        (40, 40),
        "none is lost, and none comes from nowhere"
    );
    let again: u64 = tally.delivered.values().map(|got| got.times - 1).sum();
    assert!(again > 0, "an ack that failed sends a line again");
    // The sink wrote none of them twice: it was told so often more.
    assert!(tally.sunk_before >= again, "{} {again}", tally.sunk_before);
    prompt(pipeline.stop()).await;
}

#[tokio::test]
async fn a_post_without_a_word_is_a_dead_letter_and_goes_nowhere() {
    let (_, memory, pipeline) = start(&settings(&[])).await;
    pipeline.write("line-1", &Post { client: 1, text: String::new() }).await.unwrap();
    let lines = write(&pipeline, 2..=3).await;
    prompt(pipeline.board().until(has_all(&lines))).await;
    let letters = memory.queue("writer").dead_lettered();
    assert_eq!(
        (letters[0].0.id(), letters[0].1.cause.to_string().as_str()),
        ("line-1", "terminal: nothing was said")
    );
    let tally = pipeline.board().tally();
    assert_eq!((tally.delivered.len(), tally.sunk.len()), (2, 2));
    prompt(pipeline.stop()).await;
}

fn file(name: &str) -> PathBuf {
    let file =
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("pipeline-{name}-{}", std::process::id()));
    // One of an earlier run with the same number.
    let _ = std::fs::remove_file(&file);
    file
}

#[test]
fn the_sink_writes_each_id_once_also_after_it_was_cut_short() {
    let file = file("sink");
    let sink = Sink::open(&file).unwrap();
    assert!(sink.write("a", &post(1)).unwrap() && sink.write("b", &post(2)).unwrap());
    assert!(!sink.write("a", &post(1)).unwrap());
    drop(sink);
    // A crash in the middle of a line: the line does not count.
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, &text[..text.len() - 5]).unwrap();
    let sink = Sink::open(&file).unwrap();
    assert!(!sink.write("a", &post(1)).unwrap());
    assert!(sink.write("b", &post(2)).unwrap());
    let text = std::fs::read_to_string(&file).unwrap();
    let whole: Vec<&str> = text
        .lines()
        .filter_map(|line| line.split_once('\t'))
        .filter(|(_, json)| serde_json::from_str::<Post>(json).is_ok())
        .map(|(id, _)| id)
        .collect();
    assert_eq!(whole, ["a", "b"]);
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn settings_come_from_variables_and_arguments_and_say_what_is_wrong() {
    let variable = |name: &str| match name {
        "PIPELINE_BROKER" => Some("memory:x".to_owned()),
        "PIPELINE_STAGES" => Some("transport-manager".to_owned()),
        _ => None,
    };
    let read = |arguments: &[&str]| Settings::read(arguments.iter().map(|each| (*each).to_owned()), variable);
    let settings = read(&["--lines", "3"]).unwrap_or_else(|wrong| panic!("{wrong}"));
    assert_eq!((settings.broker.as_str(), settings.stages.len(), settings.lines), ("memory:x", 1, 3));
    assert_eq!(read(&["memory:"]).unwrap_or_else(|wrong| panic!("{wrong}")).broker, "memory:");
    for (arguments, said) in [
        (
            &["--stages", "writer,nobody"][..],
            r#"--stages: no stage is called "nobody": there are writer, redaction, transport-manager"#,
        ),
        (&["--stages", "transport-manager,writer"], "--stages: the last stage must be transport-manager"),
        (&["--stages", ""], r#"--stages: no stage is called """#),
        (&["--stages", "writer,writer,transport-manager"], "--stages: writer is named twice"),
        (&["--transports", "0"], "--transports: a whole number from 1 on is needed"),
        (&["--lines", "many"], "--lines: a whole number is needed"),
        (&["--lines"], "--lines needs a value"),
        (&["--colour", "red"], "--colour: there is no such option"),
    ] {
        let wrong = read(arguments).err().expect("it is wrong").to_string();
        assert!(wrong.starts_with(said), "{wrong}");
    }
}

fn example() -> Command {
    let mut command = cargo_run("pipeline", "bootstrap");
    for name in ["PIPELINE_BROKER", "PIPELINE_MANAGEMENT", "PIPELINE_STAGES"] {
        command.env_remove(name);
    }
    command
}

/// The number behind this text at the start of a line.
fn figure(output: &str, what: &str) -> Option<u64> {
    output.lines().find_map(|line| line.strip_prefix(what)?.split_whitespace().next()?.parse().ok())
}

#[test]
fn the_program_ends_by_itself_with_a_table() {
    let file = file("program");
    for (run, (stages, legible)) in
        [("writer,transport-manager", 12), ("writer,redaction,transport-manager", 0)].into_iter().enumerate()
    {
        let output = example().args(["--stages", stages, "--sink"]).arg(&file).output().unwrap();
        let (text, problems) =
            (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert_eq!((output.status.code(), problems.as_str()), (Some(0), ""), "{text}");
        for (what, count) in [
            ("writer ", 60),
            ("transport-manager ", 60),
            ("lines written ", 60),
            ("delivered to clients ", 60),
            ("delivered with the word ", legible),
            ("in the sink ", 60),
            ("heard by the metrics ", 60),
            ("missing ", 0),
        ] {
            assert_eq!(figure(&text, what), Some(count), "{what} in\n{text}");
        }
        let lines = std::fs::read_to_string(&file).unwrap().lines().count();
        assert_eq!(lines, 60 * (run + 1), "each run has lines of its own");
    }
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn the_program_stops_in_order_when_it_is_told() {
    let mut child = example().args(["--lines", "1000000"]).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "running\n");
    // cargo has become the program.
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    let mut text = String::new();
    output.read_to_string(&mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{text}");
    assert!(figure(&text, "still under way ").is_some(), "{text}");
}

#[test]
fn the_program_names_what_it_cannot_do() {
    for (arguments, said) in [
        (&["--stages", "nobody"][..], "pipeline: --stages: no stage is called \"nobody\""),
        (&["kafka://user:hunter2@host"], "pipeline: "),
        (&["--sink", "/nowhere/at/all"], "pipeline: open sink: failed: No such file or directory"),
    ] {
        let output = example().args(arguments).output().unwrap();
        let problems = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{problems}");
        assert!(problems.starts_with(said) && !problems.contains("hunter2"), "{problems}");
    }
}
