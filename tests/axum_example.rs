//! The example with one handler behind a route and a queue, run as a service manager would and talked to over a socket.

#![cfg(all(unix, feature = "json"))]
// Clippy takes the helpers of a test for code that is shipped.
#![allow(clippy::expect_used)]

#[path = "support/example.rs"]
mod example;

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStdout, Command};
use windlass::clock::{SystemClock, within};

use example::cargo_run;

fn example(arguments: &[&str]) -> Command {
    let features = if cfg!(feature = "tower") { "json,tower" } else { "json" };
    let mut command = Command::from(cargo_run("axum_and_queue", features));
    command.args(arguments).kill_on_drop(true);
    command
}

/// The exit code, and what it printed to standard output and to standard error.
async fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    // It may have to be built first.
    let ended = within(&SystemClock, Duration::from_secs(600), example(arguments).output()).await;
    let output = ended.expect("it ends by itself").expect("cargo can be run");
    let text = |bytes| String::from_utf8(bytes).expect("it prints text");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

async fn bounded<F: Future>(what: &str, work: F) -> F::Output {
    let done = within(&SystemClock, Duration::from_secs(30), work).await;
    done.unwrap_or_else(|| panic!("{what}: not within 30 s"))
}

struct Served {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
    address: String,
}

struct Answer {
    status: u16,
    retry_after: Option<String>,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("no JSON: {}", self.body))
    }
}

impl Served {
    async fn start() -> Self {
        let mut process = example(&["--serve"]).spawn().expect("cargo can be run");
        let mut lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        // It may have to be built first.
        let first = within(&SystemClock, Duration::from_secs(600), lines.next_line()).await;
        let first = first.expect("it starts").expect("it prints text").expect("it serves");
        let address = first.strip_prefix("listening on http://").expect("it says where").to_owned();
        assert!(address.starts_with("127.0.0.1:"), "{address}");
        Self { process, lines, address }
    }

    async fn line(&mut self) -> String {
        bounded("a line", self.lines.next_line()).await.expect("it prints text").expect("one more line")
    }

    async fn connect(&self) -> TcpStream {
        bounded("a connection", TcpStream::connect(&self.address)).await.expect("it listens")
    }

    async fn send(&self, line: &str, headers: &str, body: &[u8]) -> Answer {
        let mut connection = self.connect().await;
        let head = format!(
            "{line} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n{headers}\r\n",
            body.len()
        );
        connection.write_all(head.as_bytes()).await.expect("it reads the head");
        // It need not read a body that is too long.
        let _ = connection.write_all(body).await;
        let mut answer = Vec::new();
        // A connection that is closed before all of the body was sent ends in an error, behind the answer.
        let _ = bounded("an answer", connection.read_to_end(&mut answer)).await;
        let answer = String::from_utf8(answer).expect("it answers in text");
        let (head, body) = answer.split_once("\r\n\r\n").expect("an answer has a head");
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1)).expect("a status line");
        let retry_after = lines
            .filter_map(|line| line.split_once(": "))
            .find(|(name, _)| name.eq_ignore_ascii_case("retry-after"))
            .map(|(_, value)| value.to_owned());
        Answer { status: status.parse().expect("a number"), retry_after, body: body.to_owned() }
    }

    async fn order(&self, way: &str, id: &str, body: &[u8]) -> Answer {
        self.send(&format!("POST {way}"), &format!("x-correlation-id: {id}\r\n"), body).await
    }

    /// Waits until the queue is done with all of these.
    async fn until_done(&mut self, ids: impl IntoIterator<Item = &str>) {
        let mut left: BTreeSet<String> = ids.into_iter().map(str::to_owned).collect();
        while !left.is_empty() {
            let line = self.line().await;
            let (id, settlement) = line
                .strip_prefix("queue: ")
                .and_then(|line| line.split_once(" attempt "))
                .and_then(|(id, rest)| Some((id, rest.split_once(": ")?.1)))
                .unwrap_or_else(|| panic!("no event: {line}"));
            if settlement == "ack" || settlement.starts_with("dead-letter") {
                left.remove(id);
            }
        }
    }

    fn terminate(&self) {
        // cargo has become the example: it runs a program by replacing itself.
        let process = self.process.id().expect("it runs").to_string();
        let kill = std::process::Command::new("kill").args(["-TERM", &process]).status();
        assert!(kill.expect("kill can be run").success());
    }

    async fn ended(mut self) -> String {
        let report = self.line().await;
        assert!(bounded("the end", self.process.wait()).await.expect("it ends").success(), "{report}");
        report
    }
}

/// The carrier, the status, `Retry-After`, the class; and for each attempt of the queue: its number, the class, the
/// settlement and the code of its cause.
type Row =
    (&'static str, u16, Option<&'static str>, &'static str, &'static [(u32, &'static str, &'static str)]);

#[rustfmt::skip]
const ROWS: &[Row] = &[
    ("north", 200, None, "done", &[(1, "done", "ack")]),
    ("nobody", 400, None, "invalid", &[(1, "invalid", "dead_letter validation:input")]),
    ("nowhere", 422, None, "terminal", &[(1, "terminal", "dead_letter terminal")]),
    ("misprint", 500, None, "invalid", &[(1, "invalid", "dead_letter validation:output")]),
    ("moody", 500, None, "failed", &[(1, "failed", "retry handler_error"), (2, "done", "ack")]),
    ("down", 500, None, "failed", &[
        (1, "failed", "retry handler_error"),
        (2, "failed", "retry handler_error"),
        (3, "failed", "dead_letter retry_exhausted:3"),
    ]),
    ("slow", 504, None, "timeout", &[(1, "timeout", "retry timeout:250ms"), (2, "done", "ack")]),
    ("buggy", 500, None, "panicked", &[(1, "panicked", "retry panic"), (2, "done", "ack")]),
    ("stubborn", 500, None, "retry_exhausted", &[(1, "retry_exhausted", "dead_letter retry_exhausted:3")]),
    // Put back, or postponed: the attempt does not count.
    ("tired", 503, Some("1"), "circuit_open", &[(1, "circuit_open", "retry circuit_open"), (1, "done", "ack")]),
    ("full", 503, None, "backpressure_reject", &[
        (1, "backpressure_reject", "requeue queue_full"), (1, "done", "ack"),
    ]),
    ("fuller", 503, None, "dropped", &[(1, "dropped", "requeue dropped"), (1, "done", "ack")]),
    ("closing", 503, None, "not_running", &[(1, "not_running", "requeue shutting_down"), (1, "done", "ack")]),
];

#[tokio::test]
async fn each_class_of_error_is_an_answer_over_http_and_a_settlement_of_the_queue() {
    let mut served = Served::start().await;
    for (carrier, status, retry_after, class, _) in ROWS {
        let body = json!({"item": "lamp", "carrier": carrier}).to_string();
        let answer = served.order("/orders", carrier, body.as_bytes()).await;
        assert_eq!((answer.status, answer.retry_after.as_deref()), (*status, *retry_after), "{carrier}");
        let told = answer.json();
        if *status == 200 {
            assert_eq!(told, json!({"shipment": "lamp by north"}));
        } else {
            assert_eq!(told["error"], *class, "{carrier}");
            // What is wrong with the order is told, what is wrong with the service is not.
            assert_eq!(told["detail"].is_string(), (400..500).contains(status), "{carrier}: {told}");
        }
        let answer = served.order("/orders/queued", carrier, body.as_bytes()).await;
        assert_eq!((answer.status, answer.json()), (202, json!({"correlation_id": carrier})));
    }
    served.until_done(ROWS.iter().map(|row| row.0)).await;
    let outcomes = served.send("GET /outcomes", "", b"").await.json();
    assert_eq!(outcomes.as_array().map(Vec::len), Some(ROWS.len()), "{outcomes}");
    for (outcome, (carrier, status, _, class, attempts)) in
        outcomes.as_array().into_iter().flatten().zip(ROWS)
    {
        assert_eq!(outcome["correlation_id"], *carrier);
        assert_eq!((&outcome["http"]["status"], &outcome["http"]["class"]), (&json!(status), &json!(class)));
        let settled: Vec<_> = outcome["queue"].as_array().into_iter().flatten().rev().collect();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let settled = settled.iter().map(|each| {
            let settlement = format!("{} {}", text(&each["settlement"]), text(&each["cause"]));
            (each["attempt"].as_u64().unwrap_or(0), text(&each["class"]), settlement.trim_end().to_owned())
        });
        let expected = attempts.iter().map(|(attempt, class, settlement)| {
            (u64::from(*attempt), (*class).to_owned(), (*settlement).to_owned())
        });
        assert_eq!(settled.collect::<Vec<_>>(), expected.collect::<Vec<_>>(), "{carrier}");
    }
    served.terminate();
    let report = served.ended().await;
    assert!(report.starts_with("Report") && report.contains("acked: 8"), "{report}");
}

#[tokio::test]
async fn what_is_no_order_is_refused_and_dead_lettered_and_harms_nobody() {
    let mut served = Served::start().await;
    let bodies: [(&str, &[u8]); 4] = [
        ("empty", b""),
        ("no-text", b"\xff\xfe\0"),
        ("no-item", b"{\"carrier\": \"north\"}"),
        ("list", b"[[["),
    ];
    for (id, body) in bodies {
        let answer = served.order("/orders", id, body).await;
        assert_eq!((answer.status, answer.json()["error"].as_str()), (400, Some("invalid")), "{id}");
        assert_eq!(served.order("/orders/queued", id, body).await.status, 202);
    }
    served.until_done(bodies.map(|(id, _)| id)).await;

    assert_eq!(served.order("/orders", "long", &vec![b' '; 3 << 20]).await.status, 413);
    assert_eq!(served.send("GET /orders", "", b"").await.status, 405);
    assert_eq!(served.send("GET /nothing", "", b"").await.status, 404);
    // Without an id of the caller's, the message has one of its own.
    let queued =
        served.send("POST /orders/queued", "", b"{\"item\": \"lamp\", \"carrier\": \"north\"}").await;
    let id = queued.json()["correlation_id"].as_str().expect("an id").to_owned();
    assert!(!id.is_empty());
    served.until_done([id.as_str()]).await;
    served.terminate();
    let report = served.ended().await;
    assert!(report.contains("acked: 1,") && report.contains("dead_lettered: 4,"), "{report}");
}

#[tokio::test]
async fn sigterm_ends_it_with_a_report_whoever_is_connected() {
    let served = Served::start().await;
    let mut idle = served.connect().await;
    idle.write_all(b"GET /outcomes HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("it reads");
    let mut answer = [0; 12];
    bounded("an answer", idle.read_exact(&mut answer)).await.expect("it answers");
    assert_eq!(&answer, b"HTTP/1.1 200");
    // Kept open, the one without a request under way and the other in the middle of one.
    let mut stuck = served.connect().await;
    stuck
        .write_all(b"POST /orders HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{")
        .await
        .expect("it reads");
    let address = served.address.clone();
    served.terminate();
    let report = served.ended().await;
    assert!(report.starts_with("Report { finished: 0, requeued: 0, abandoned: 0"), "{report}");
    assert!(TcpStream::connect(&address).await.is_err(), "nobody listens any more");
}

#[tokio::test]
async fn by_itself_it_shows_both_ways_side_by_side_and_ends() {
    let (code, output, problems) = run(&[]).await;
    assert_eq!((code, problems.as_str()), (Some(0), ""), "{output}");
    for row in [
        "no-json     400 invalid                          dead_letter validation:input",
        "moody       500 failed                           retry handler_error, ack",
        "tired       503 circuit_open, again after 1 s    retry circuit_open, ack",
    ] {
        assert!(output.lines().any(|line| line == row), "no row {row:?} in\n{output}");
    }
    assert!(output.ends_with("\n8 acked, 6 dead letters\n"), "{output}");
}

#[tokio::test]
async fn it_says_how_it_is_used_and_why_it_cannot_start() {
    for arguments in [&["serve"][..], &["--serve", "x"], &["--serve", "65536"], &["--serve", "0", "0"]] {
        let (code, output, problems) = run(arguments).await;
        assert_eq!((code, output.as_str()), (Some(2), ""), "{arguments:?}");
        assert_eq!(problems, "usage: axum_and_queue [--serve [PORT]]\n");
    }
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("there is a port");
    let port = taken.local_addr().expect("it has an address").port().to_string();
    let (code, output, problems) = run(&["--serve", &port]).await;
    assert_eq!((code, output.as_str()), (Some(1), ""));
    assert!(problems.starts_with("axum_and_queue: "), "{problems}");
}
