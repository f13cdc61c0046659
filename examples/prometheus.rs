//! A consumer whose metrics Prometheus can scrape: two queues in memory, one that is worked off and one whose consumer
//! hangs, and a page on the loopback interface.
//!
//! ```text
//! cargo run --features metrics --example prometheus                  a short load, the page, the end
//! cargo run --features metrics --example prometheus -- --serve 9187  serves http://127.0.0.1:9187/metrics
//! ```
//!
//! Without `--serve` it scrapes itself over a socket and prints what it got. With it, it works until SIGTERM or Ctrl-C;
//! without a port the system chooses one, and the first line says which.

// It tells people what it does.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use windlass::clock::{Clock, SystemClock, within};
use windlass::error::BoxError;
use windlass::memory::{MemoryBroker, MemoryQueue};
use windlass::metrics::{Metrics, SECONDS_BUCKETS};
use windlass::{ConsumerHandle, Context, HandlerError, Message, QueueConsumer};

const USAGE: &str = "usage: prometheus [--serve [PORT]]";

#[derive(Deserialize)]
struct Order {
    item: String,
    count: u32,
}

async fn ship(order: Order, context: Context) -> Result<(), HandlerError> {
    SystemClock.sleep(Duration::from_millis(1)).await;
    match (order.count, context.attempt()) {
        (0, _) => Err(HandlerError::terminal(format!("no {} to ship", order.item))),
        (7, 1) => Err(HandlerError::failed("the carrier does not answer")),
        _ => Ok(()),
    }
}

/// What nobody should write: it waits for something that never comes, and nothing bounds it.
async fn hang(_: Order, context: Context) -> Result<(), HandlerError> {
    context.cancellation().cancelled().await;
    Err(HandlerError::NotRunning)
}

enum Mode {
    Short,
    Serve { port: u16 },
}

fn mode() -> Result<Mode, String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => Ok(Mode::Short),
        ["--serve"] => Ok(Mode::Serve { port: 0 }),
        ["--serve", port] => {
            let port = port.parse().map_err(|error| format!("no port: {port}: {error}\n{USAGE}"))?;
            Ok(Mode::Serve { port })
        }
        _ => Err(USAGE.to_owned()),
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let mode = match mode() {
        Ok(mode) => mode,
        Err(problem) => {
            eprintln!("prometheus: {problem}");
            return ExitCode::from(2);
        }
    };
    match run(mode).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("prometheus: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(mode: Mode) -> Result<(), BoxError> {
    // Before the consumers: what is counted without a recorder is counted nowhere.
    let page = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS_BUCKETS)?
        .install_recorder()?;
    let port = if let Mode::Serve { port } = mode { port } else { 0 };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    let address = listener.local_addr()?;
    let server = tokio::spawn(serve(listener, page));

    let broker = MemoryBroker::new(SystemClock);
    let (orders, stuck) = (broker.queue("orders"), broker.queue("stuck"));
    let often = || Metrics::new().sampled_every(Duration::from_millis(100));
    let busy_one = QueueConsumer::new(orders.source(), ship).observer(often()).start()?;
    let stuck_one =
        QueueConsumer::new(stuck.source(), hang).drain_timeout(Duration::ZERO).observer(often()).start()?;
    publish(&stuck, 0..5);
    match mode {
        Mode::Short => {
            publish(&orders, 0..100);
            orders.until(|queue| queue.counts().acked + queue.counts().dead_lettered as u64 == 100).await?;
            // The event of a message comes after its answer: once it has stopped, all are told. The other one has been
            // sampled by then.
            let _ = stop(&busy_one).await;
            SystemClock.sleep(Duration::from_millis(300)).await;
            print!("{}", scrape(address).await?);
        }
        Mode::Serve { .. } => {
            println!("serving http://{address}/metrics");
            tokio::select! {
                biased;
                () = stop_signal() => {}
                // A round that is cut leaves its messages in the queue.
                () = load(&orders) => {}
            }
        }
    }
    for (queue, consumer) in [("orders", busy_one), ("stuck", stuck_one)] {
        eprintln!("{queue}: {}", stop(&consumer).await);
    }
    server.abort();
    Ok(())
}

async fn stop(consumer: &ConsumerHandle) -> String {
    let report = consumer.stop().await;
    format!("stopped, {} acked, {} put back", report.stats.acked, report.stats.requeued)
}

fn publish(queue: &MemoryQueue, orders: std::ops::Range<u64>) {
    for number in orders {
        let body = format!(r#"{{"item": "lamp", "count": {}}}"#, number % 10);
        queue.publish(Message::new(body).with_id(format!("order-{number}")));
    }
}

/// Ten orders each 100 ms, for ever.
async fn load(orders: &MemoryQueue) {
    for round in 0_u64.. {
        publish(orders, round * 10..round * 10 + 10);
        SystemClock.sleep(Duration::from_millis(100)).await;
    }
}

/// Answers one request at a time, each within 5 s: whoever scrapes is one.
async fn serve(listener: TcpListener, page: PrometheusHandle) {
    loop {
        match listener.accept().await {
            Ok((client, _)) => {
                // A client that goes, or takes its time, has no answer.
                let answered = within(&SystemClock, Duration::from_secs(5), answer(client, &page)).await;
                if let Some(Err(error)) = answered {
                    eprintln!("a scrape failed: {error}");
                }
            }
            Err(error) => {
                eprintln!("cannot accept: {error}");
                SystemClock.sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn answer(mut client: TcpStream, page: &PrometheusHandle) -> std::io::Result<()> {
    const LONGEST_REQUEST: usize = 8_192;
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        if request.len() > LONGEST_REQUEST || client.read_buf(&mut request).await? == 0 {
            return respond(&mut client, "400 Bad Request", "no request\n").await;
        }
    }
    let line = request.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ');
    match (words.next(), words.next()) {
        (Some(b"GET"), Some(b"/metrics")) => respond(&mut client, "200 OK", &page.render()).await,
        (Some(b"GET"), Some(_)) => respond(&mut client, "404 Not Found", "see /metrics\n").await,
        _ => respond(&mut client, "405 Method Not Allowed", "GET only\n").await,
    }
}

async fn respond(client: &mut TcpStream, status: &str, body: &str) -> std::io::Result<()> {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    client.write_all(head.as_bytes()).await?;
    client.write_all(body.as_bytes()).await?;
    client.shutdown().await
}

/// What Prometheus would get.
async fn scrape(address: std::net::SocketAddr) -> Result<String, BoxError> {
    let mut server = TcpStream::connect(address).await?;
    server.write_all(format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes()).await?;
    let mut answer = String::new();
    server.read_to_string(&mut answer).await?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 200 ") => Ok(body.to_owned()),
        _ => Err(format!("not the page: {answer}").into()),
    }
}

#[cfg(unix)]
async fn stop_signal() {
    use tokio::signal::unix::{SignalKind, signal};

    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => tokio::select! {
            biased;
            _ = terminate.recv() => {}
            // Only waits are lost here.
            _ = tokio::signal::ctrl_c() => {}
        },
        Err(error) => eprintln!("cannot wait for SIGTERM: {error}"),
    }
}

#[cfg(not(unix))]
async fn stop_signal() {
    let _ = tokio::signal::ctrl_c().await;
}
