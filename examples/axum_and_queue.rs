//! One handler behind an HTTP route and behind a queue: its errors are answers there and settlements here.
//!
//! ```text
//! cargo run --example axum_and_queue                 # sends itself orders both ways, and prints what became of them
//! cargo run --example axum_and_queue -- --serve 8080 # serves on 127.0.0.1 until Ctrl-C or SIGTERM; without a port, any
//! ```
//!
//! `POST /orders` handles an order and answers; `POST /orders/queued` puts it into the queue; `GET /outcomes` shows what
//! became of both, by the header `x-correlation-id`. An order is JSON: `{"item": "lamp", "carrier": "north"}`. How the
//! work on it ends is up to the carrier, see `ship`. The queue is in memory: what is queued and not handled is gone with
//! the process, which a broker would keep.

// It tells people what it does.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header::RETRY_AFTER};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use windlass::clock::{SystemClock, within};
use windlass::consumer::{ConsumerEvent, Report, RetryPolicy};
use windlass::error::{BoxError, Chain};
use windlass::handler::{Concurrency, Guarded, Handler, Policies};
use windlass::memory::{MemoryBroker, MemoryQueue};
use windlass::source::{Cause, NackReason, Settlement};
use windlass::{ConsumerHandle, Context, HandlerError, Message, QueueConsumer, codec};

#[derive(Deserialize)]
struct Order {
    item: String,
    carrier: String,
}

/// The carriers, and whom they turned away once: the next time they take the same message.
#[derive(Default)]
struct Carriers(Mutex<VecDeque<String>>);

/// How many messages and outcomes are remembered.
const REMEMBERED: usize = 1_000;

impl Carriers {
    fn once(&self, message: &Message, error: HandlerError) -> Result<(), HandlerError> {
        let mut turned_away = locked(&self.0);
        if let Some(known) = turned_away.iter().position(|id| id == message.id()) {
            turned_away.remove(known);
            return Ok(());
        }
        turned_away.truncate(REMEMBERED - 1);
        turned_away.push_front(message.id().to_owned());
        Err(error)
    }

    /// The handler. It knows nothing of HTTP, and nothing of queues.
    async fn ship(&self, order: Order, context: Context) -> Result<String, HandlerError> {
        let (message, attempt) = (context.message(), context.attempt());
        match order.carrier.as_str() {
            "north" => {}
            "nowhere" => return Err(HandlerError::terminal("no carrier goes there")),
            // A shipment without a number, which the validation around this finds.
            "misprint" => return Ok(String::new()),
            "moody" if attempt == 1 => return Err(HandlerError::failed("connection reset")),
            "down" => return Err(HandlerError::failed("connection refused")),
            "slow" if attempt == 1 => std::future::pending().await,
            "buggy" if attempt == 1 => panic!("index out of bounds"),
            "stubborn" => return Err(HandlerError::retry_exhausted(3, "connection refused")),
            "tired" => self.once(message, HandlerError::CircuitOpen { closes_in: RECOVERY })?,
            "full" => self.once(message, HandlerError::BackpressureReject)?,
            "fuller" => self.once(message, HandlerError::Dropped)?,
            "closing" => self.once(message, HandlerError::NotRunning)?,
            "moody" | "slow" | "buggy" => {}
            other => return Err(HandlerError::invalid_input(format!("no carrier is called {other}"))),
        }
        Ok(format!("{} by {}", order.item, order.carrier))
    }
}

const RECOVERY: Duration = Duration::from_millis(150);

/// What stands around the handler whichever way the order came; clones are one handler, with one limit. The carriers
/// say themselves what a circuit breaker or a full queue behind them would: those cannot be had on demand.
fn guarded<H: Handler<Order, Output = String>>(handler: H) -> windlass::Result<Guarded<H, Order>> {
    let numbered =
        |shipment: &String| if shipment.is_empty() { Err("a shipment without a number") } else { Ok(()) };
    Policies::around(handler)
        .validate_output(numbered)
        .concurrency(Concurrency::new(NonZeroUsize::MIN.saturating_add(63), 64))
        .timeout(Duration::from_millis(250))
        .build()
}

/// What became of orders, the newest first.
struct Ledger {
    entries: Mutex<VecDeque<Entry>>,
    /// How many messages of the queue are through.
    settled: watch::Sender<usize>,
}

#[derive(Serialize, Clone)]
struct Entry {
    correlation_id: String,
    /// The last answer over HTTP.
    http: Option<Value>,
    /// The settlements of the queue, the newest first.
    queue: VecDeque<Value>,
}

impl Ledger {
    fn new() -> Self {
        Self { entries: Mutex::default(), settled: watch::Sender::new(0) }
    }

    fn write(&self, correlation_id: &str, write: impl FnOnce(&mut Entry)) {
        let mut entries = locked(&self.entries);
        if let Some(entry) = entries.iter_mut().find(|entry| entry.correlation_id == correlation_id) {
            return write(entry);
        }
        let mut entry =
            Entry { correlation_id: correlation_id.to_owned(), http: None, queue: VecDeque::new() };
        write(&mut entry);
        entries.truncate(REMEMBERED - 1);
        entries.push_front(entry);
    }

    fn settled(&self, event: &ConsumerEvent) {
        let id = event.message.correlation_id();
        let (settlement, cause) = match &event.settlement {
            Settlement::Ack => ("ack", None),
            Settlement::Nack(reason @ NackReason::Retry { .. }) => ("retry", Some(reason.cause())),
            Settlement::Nack(reason @ NackReason::DeadLetter { .. }) => ("dead_letter", Some(reason.cause())),
            Settlement::Nack(reason) => ("requeue", Some(reason.cause())),
        };
        let settled = json!({
            "attempt": event.message.attempt(), "class": event.outcome.name(), "settlement": settlement,
            "cause": cause.map(Cause::code), "detail": cause.and_then(Cause::detail),
        });
        self.write(id, |entry| {
            // One id may be sent again and again.
            entry.queue.truncate(REMEMBERED - 1);
            entry.queue.push_front(settled);
        });
        println!("queue: {id} attempt {}: {}", event.message.attempt(), event.settlement);
        if event.is_final() {
            self.settled.send_modify(|settled| *settled += 1);
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the routes share.
struct App<H> {
    handler: H,
    queue: MemoryQueue,
    ledger: Arc<Ledger>,
}

type AppState<H> = State<Arc<App<H>>>;

/// The same message that the queue would have.
fn message_of(headers: &HeaderMap, body: Bytes) -> Message {
    let message = Message::new(body);
    match headers.get("x-correlation-id").and_then(|id| id.to_str().ok()) {
        Some(id) if !id.is_empty() => message.with_correlation_id(id),
        _ => message,
    }
}

async fn order<H>(State(app): AppState<H>, headers: HeaderMap, body: Bytes) -> Response
where
    H: Handler<Order, Output = String>,
{
    let message = message_of(&headers, body);
    let cancelled = CancellationToken::new();
    // Who hangs up drops this future, and what the handler may have started is told.
    let _hung_up = cancelled.clone().drop_guard();
    let result = match codec::json::<Order>(&message) {
        Ok(order) => app.handler.handle(order, Context::new(message.clone(), cancelled)).await,
        Err(error) => Err(HandlerError::invalid_input(error)),
    };
    let id = message.correlation_id();
    let (status, retry_after, body) = answer(&result);
    app.ledger.write(id, |entry| {
        let class = result.as_ref().map_or_else(HandlerError::class_name, |_| "done");
        entry.http = Some(json!({"status": status.as_u16(), "class": class, "retry_after": retry_after}));
    });
    match retry_after {
        Some(seconds) => (status, [(RETRY_AFTER, seconds.to_string())], Json(body)).into_response(),
        None => (status, Json(body)).into_response(),
    }
}

/// What a result is over HTTP: the status, after how many seconds to ask again, and the body.
fn answer(result: &Result<String, HandlerError>) -> (StatusCode, Option<u64>, Value) {
    let error = match result {
        Ok(shipment) => return (StatusCode::OK, None, json!({ "shipment": shipment })),
        Err(error) => error,
    };
    let status = StatusCode::from_u16(error.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    // Rounded up: who comes too early is turned away again.
    let retry_after = error.retry_after().map(|wait| wait.as_secs() + u64::from(wait.subsec_nanos() > 0));
    // What is wrong with the order is for the caller; what is wrong in here is not.
    let detail = error.failure().filter(|_| status.is_client_error());
    let detail = detail.map(|failure| Chain(failure.error()).to_string());
    (status, retry_after, json!({"error": error.class_name(), "detail": detail}))
}

async fn queued<H>(State(app): AppState<H>, headers: HeaderMap, body: Bytes) -> impl IntoResponse {
    let message = message_of(&headers, body);
    let id = message.correlation_id().to_owned();
    app.queue.publish(message);
    (StatusCode::ACCEPTED, Json(json!({ "correlation_id": id })))
}

async fn outcomes<H>(State(app): AppState<H>) -> Json<Vec<Entry>> {
    let entries = locked(&app.ledger.entries);
    Json(entries.iter().rev().cloned().collect())
}

struct Service {
    address: SocketAddr,
    ledger: Arc<Ledger>,
    consumer: ConsumerHandle,
    server: JoinHandle<std::io::Result<()>>,
    stop: CancellationToken,
}

impl Service {
    async fn start(port: u16) -> Result<Self, BoxError> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        let address = listener.local_addr()?;
        let carriers = Arc::new(Carriers::default());
        let ship = move |order, context| {
            let carriers = Arc::clone(&carriers);
            async move { carriers.ship(order, context).await }
        };
        let handler = guarded(ship)?;
        let ledger = Arc::new(Ledger::new());
        let queue = MemoryBroker::new(SystemClock).queue("orders");
        let consumer = QueueConsumer::new(queue.source(), handler.clone())
            .retry_policy(RetryPolicy::schedule([10, 20].map(Duration::from_millis)))
            .on_event({
                let ledger = Arc::clone(&ledger);
                move |event: &ConsumerEvent| ledger.settled(event)
            })
            .start()?;
        let app = Arc::new(App { handler, queue, ledger: Arc::clone(&ledger) });
        let routes = Router::new()
            .route("/orders", post(order))
            .route("/orders/queued", post(queued))
            .route("/outcomes", get(outcomes))
            .with_state(app);
        let stop = CancellationToken::new();
        let server = axum::serve(listener, routes).with_graceful_shutdown(stop.clone().cancelled_owned());
        Ok(Self { address, ledger, consumer, server: tokio::spawn(server.into_future()), stop })
    }

    /// No order is taken any more, neither way; those under way are finished.
    async fn stop(mut self) -> Result<Report, BoxError> {
        self.stop.cancel();
        // A caller who never sends the rest of a request would keep the server for ever.
        match within(&SystemClock, LONGEST_ANSWER, &mut self.server).await {
            Some(ended) => ended??,
            None => self.server.abort(),
        }
        // Last, since an order may be queued until the server has ended.
        Ok(self.consumer.stop().await)
    }
}

const LONGEST_ANSWER: Duration = Duration::from_secs(2);

/// The carriers of the orders that it sends itself; the first order is no JSON.
const CARRIERS: [&str; 14] = [
    "no-json", "north", "nobody", "nowhere", "misprint", "moody", "down", "slow", "buggy", "stubborn",
    "tired", "full", "fuller", "closing",
];

/// Sends one request on a connection of its own, and returns the body of the answer.
async fn request(to: SocketAddr, line: &str, id: &str, body: &str) -> Result<String, BoxError> {
    let mut connection = TcpStream::connect(to).await?;
    let length = body.len();
    let head = format!(
        "{line} HTTP/1.1\r\nhost: {to}\r\nx-correlation-id: {id}\r\ncontent-length: {length}\r\nconnection: close\r\n"
    );
    connection.write_all(format!("{head}\r\n{body}").as_bytes()).await?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await?;
    let (_, body) = answer.split_once("\r\n\r\n").ok_or("an answer without a head")?;
    Ok(body.to_owned())
}

async fn demonstrate() -> Result<(), BoxError> {
    // Each panic is an outcome in the table.
    std::panic::set_hook(Box::new(|_| {}));
    let service = Service::start(0).await?;
    for carrier in CARRIERS {
        let body = match carrier {
            "no-json" => "lamp".to_owned(),
            carrier => json!({"item": "lamp", "carrier": carrier}).to_string(),
        };
        for way in ["POST /orders", "POST /orders/queued"] {
            request(service.address, way, carrier, &body).await?;
        }
    }
    let mut settled = service.ledger.settled.subscribe();
    let all = settled.wait_for(|settled| *settled == CARRIERS.len());
    within(&SystemClock, Duration::from_secs(10), all).await.ok_or("the queue is not through in 10 s")??;
    let outcomes: Value = serde_json::from_str(&request(service.address, "GET /outcomes", "", "").await?)?;
    let report = service.stop().await?;
    println!("\n{}", table(&outcomes));
    println!("{} acked, {} dead letters", report.stats.acked, report.stats.dead_lettered);
    Ok(())
}

fn table(outcomes: &Value) -> String {
    let mut table = format!("{:<11} {:<36} from the queue\n", "order", "over HTTP");
    for outcome in outcomes.as_array().into_iter().flatten() {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let http = &outcome["http"];
        let mut answer = format!("{} {}", http["status"], text(&http["class"]));
        if let Some(seconds) = http["retry_after"].as_u64() {
            let _ = write!(answer, ", again after {seconds} s");
        }
        let settlements = outcome["queue"].as_array().into_iter().flatten().rev();
        let settlements = settlements.map(|each| text(&each["settlement"]) + " " + &text(&each["cause"]));
        let queue: Vec<_> = settlements.map(|each| each.trim_end().to_owned()).collect();
        let _ = writeln!(table, "{:<11} {answer:<36} {}", text(&outcome["correlation_id"]), queue.join(", "));
    }
    table
}

async fn serve(port: u16) -> Result<(), BoxError> {
    // Before anybody is told that it is there, or the first signal might end it without a drain.
    let stop = stop_signal()?;
    let service = Service::start(port).await?;
    println!("listening on http://{}", service.address);
    stop.await;
    let report = service.stop().await?;
    println!("{report:?}");
    if report.is_clean() { Ok(()) } else { Err("the drain was not clean".into()) }
}

#[cfg(unix)]
fn stop_signal() -> std::io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        // Only waits are lost here.
        tokio::select! {
            biased;
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

#[cfg(not(unix))]
fn stop_signal() -> std::io::Result<impl Future<Output = ()>> {
    Ok(async {
        let _ = tokio::signal::ctrl_c().await;
    })
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let ended = match arguments[..] {
        [] => demonstrate().await,
        ["--serve"] => serve(0).await,
        ["--serve", port] if port.parse::<u16>().is_ok() => serve(port.parse().unwrap_or_default()).await,
        _ => {
            eprintln!("usage: axum_and_queue [--serve [PORT]]");
            return ExitCode::from(2);
        }
    };
    let Err(problem) = ended else { return ExitCode::SUCCESS };
    eprintln!("axum_and_queue: {problem}");
    ExitCode::FAILURE
}
