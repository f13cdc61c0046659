//! Runs the example that serves metrics, as a reader and as a service would, and looks at the page.

#![cfg(all(unix, feature = "metrics", feature = "json"))]
// Clippy takes the helpers of a test for code that is shipped.
#![allow(clippy::expect_used)]

#[path = "support/example.rs"]
mod example;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command};
use std::time::Duration;

use example::cargo_run;

fn example() -> Command {
    cargo_run("prometheus", "json,metrics")
}

/// The exit code, and what it printed to standard output and to standard error.
fn run(command: &mut Command) -> (Option<i32>, String, String) {
    let output = command.output().expect("cargo can be run");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it prints text");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// Ends with the test, however that ends.
struct Serving(Child);

impl Drop for Serving {
    fn drop(&mut self) {
        // It has ended by itself where the test went well.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Each line is a comment or a series with a number, as the text format has it.
fn assert_is_a_page(page: &str) {
    for line in page.lines().filter(|line| !line.is_empty() && !line.starts_with("# ")) {
        let (series, value) = line.rsplit_once(' ').expect("a value");
        assert!(value.parse::<f64>().is_ok(), "{line}");
        assert!(series.starts_with("windlass_") && series.ends_with('}'), "{line}");
    }
}

/// The status line and the body.
fn ask(address: &str, request: &str) -> (String, String) {
    let mut server = TcpStream::connect(address).expect("it listens");
    server.set_read_timeout(Some(Duration::from_secs(10))).expect("a bound can be set");
    server.write_all(request.as_bytes()).expect("it reads");
    let mut answer = String::new();
    server.read_to_string(&mut answer).expect("it answers within 10 s");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    (head.lines().next().unwrap_or_default().to_owned(), body.to_owned())
}

#[test]
fn without_an_argument_it_prints_the_page_of_a_short_load_and_ends() {
    let (code, page, problems) = run(&mut example());
    assert_eq!(code, Some(0), "{problems}");
    assert_is_a_page(&page);
    for line in [
        r#"windlass_messages_total{queue="orders",outcome="done",settlement="ack"} 90"#,
        r#"windlass_messages_total{queue="orders",outcome="failed",settlement="retry"} 10"#,
        r#"windlass_messages_total{queue="orders",outcome="terminal",settlement="dead_letter"} 10"#,
        r#"windlass_attempts_total{queue="orders",attempt="2"} 10"#,
        r#"windlass_dead_letters_total{queue="orders",cause="terminal"} 10"#,
        r#"windlass_handler_duration_seconds_bucket{queue="orders",outcome="done",le="60"} 90"#,
        r#"windlass_queue_to_handler_seconds_count{queue="orders"} 110"#,
        r#"windlass_status{queue="orders",status="stopped"} 1"#,
        r#"windlass_status{queue="stuck",status="running"} 1"#,
        r#"windlass_in_flight{queue="orders"} 0"#,
        r#"windlass_in_flight{queue="stuck"} 1"#,
        "# TYPE windlass_handler_duration_seconds histogram",
    ] {
        assert!(page.lines().any(|printed| printed == line), "no line {line} in\n{page}");
    }
    assert!(!page.contains(r#"windlass_messages_total{queue="stuck""#), "{page}");
    assert!(problems.ends_with("stuck: stopped, 0 acked, 1 put back\n"), "{problems}");
}

#[test]
fn it_serves_until_it_is_told_to_stop() {
    let mut child = example().arg("--serve").spawn().expect("cargo can be run");
    let mut lines = BufReader::new(child.stdout.take().expect("it was asked for")).lines();
    let child = &mut Serving(child).0;
    let first = lines.next().expect("it says where").expect("in text");
    let address = first
        .strip_prefix("serving http://")
        .and_then(|rest| rest.strip_suffix("/metrics"))
        .unwrap_or_else(|| panic!("{first}"));
    let get = |path: &str| ask(address, &format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n"));

    // It answers while it works: the count grows from one scrape to another.
    let acked = || {
        let (status, page) = get("/metrics");
        assert_eq!(status, "HTTP/1.1 200 OK");
        assert_is_a_page(&page);
        let line = r#"windlass_messages_total{queue="orders",outcome="done",settlement="ack"} "#;
        let count = page.lines().find_map(|each| each.strip_prefix(line));
        count.map_or(0, |count| count.parse::<u64>().expect("a number"))
    };
    let scrapes: Vec<u64> = (0..10_000).map(|_| acked()).take_while(|acked| *acked < 20).collect();
    assert!(scrapes.len() < 10_000, "it does no work");

    assert_eq!(get("/").0, "HTTP/1.1 404 Not Found");
    assert_eq!(ask(address, "POST /metrics HTTP/1.1\r\n\r\n").0, "HTTP/1.1 405 Method Not Allowed");
    assert_eq!(ask(address, &"x".repeat(10_000)).0, "HTTP/1.1 400 Bad Request");
    assert_eq!(get("/metrics").0, "HTTP/1.1 200 OK");

    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().expect("there is kill").success());
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}

#[test]
fn it_names_what_it_cannot_do() {
    for (arguments, problem) in [
        (&["--serve", "http"][..], "prometheus: no port: http: "),
        (&["--serve", "70000"], "prometheus: no port: 70000: "),
        (&["--help"], "usage: prometheus [--serve [PORT]]"),
        (&["--serve", "1", "2"], "usage: prometheus [--serve [PORT]]"),
    ] {
        let (code, output, problems) = run(example().args(arguments));
        assert_eq!((code, output.as_str()), (Some(2), ""), "{problems}");
        assert!(problems.contains(problem), "{problems}");
    }
}
