//! Metrics: what is counted, under which labels, and that there are only so many of them.

#![cfg(feature = "metrics")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use windlass::clock::{Clock, ControlledClock};
use windlass::codec;
use windlass::consumer::{
    CalledFrom, ChangeKind, ConsumerChange, ConsumerEvent, ConsumerHandle, ConsumerSample, Observer,
    Obstacle, Outcome, QueueConsumer, Report, Status,
};
use windlass::error::{Error, ErrorKind};
use windlass::handler::{Context, Handler, HandlerError};
use windlass::memory::{MemoryBroker, MemoryQueue};
use windlass::message::Message;
use windlass::metrics::Metrics;
use windlass::source::{NackReason, Settlement};

use support::{SECOND, at_most, ms, publish, stop_on};

fn recorder() -> (PrometheusRecorder, PrometheusHandle) {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    (recorder, handle)
}

/// The lines of all series whose names begin like this, sorted.
fn series(page: &PrometheusHandle, name: &str) -> Vec<String> {
    let page = page.render();
    let mut lines: Vec<String> =
        page.lines().filter(|line| line.starts_with(name)).map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

fn event(queue: &str, outcome: Outcome, settlement: impl Into<Settlement>) -> ConsumerEvent {
    ConsumerEvent::new(queue, Message::new("").with_id("m-1"), outcome, settlement.into())
}

/// A consumer's metrics that a test can also call itself.
#[derive(Clone)]
struct Shared(Arc<Metrics>);

impl Observer for Shared {
    fn on_message(&self, event: &ConsumerEvent) {
        self.0.on_message(event);
    }

    fn on_change(&self, change: &ConsumerChange) {
        self.0.on_change(change);
    }

    fn called_from(&self) -> CalledFrom {
        self.0.called_from()
    }
}

impl Shared {
    fn new(metrics: Metrics) -> Self {
        Self(Arc::new(metrics))
    }

    /// Gives it a sample of how the consumer stands.
    fn sample(&self, queue: &MemoryQueue, handle: &ConsumerHandle) {
        let mut sample = ConsumerSample::new(queue.name(), handle.status(), handle.in_flight());
        sample.stats = handle.stats();
        self.0.on_sample(&sample);
    }
}

fn start<H: Handler<Bytes>>(
    queue: &MemoryQueue,
    clock: &ControlledClock,
    handler: H,
    metrics: &Shared,
) -> ConsumerHandle {
    let consumer = QueueConsumer::with_decoder(queue.source(), codec::bytes, handler);
    consumer.observer(metrics.clone()).clock(clock.clone()).start().unwrap()
}

/// Fails with the body as the error's text, in a way that the number in it chooses.
async fn fails_as_told(body: Bytes, _: Context) -> Result<(), HandlerError> {
    let text = String::from_utf8(body.to_vec()).unwrap();
    match text.rsplit(' ').next().unwrap().parse::<u32>().unwrap() % 4 {
        0 => Err(HandlerError::failed(text)),
        1 => Err(HandlerError::terminal(text)),
        2 => Err(HandlerError::invalid_output(text)),
        _ => panic!("{text}"),
    }
}

#[tokio::test]
async fn ids_error_texts_codes_and_made_up_queue_names_add_no_series() {
    const QUEUES: usize = 50;
    const EACH: usize = 200;
    const TEXTS: usize = 1_000;
    let (recorder, page) = recorder();
    let _local = metrics::set_default_local_recorder(&recorder);
    let clock = ControlledClock::new();
    let broker = MemoryBroker::new(clock.clone());
    let mut counts = Vec::new();
    let mut number = 0;
    for _ in 0..QUEUES {
        let queue = broker.queue(&format!("reply.{}", Message::new("").id()));
        for _ in 0..EACH {
            number += 1;
            let text = format!("{} {}", "no route to host", number % TEXTS);
            queue.publish(Message::new(text).with_id(format!("order-{number}")));
        }
        let metrics = Shared::new(Metrics::new());
        let consumer = QueueConsumer::with_decoder(queue.source(), codec::bytes, fails_as_told);
        let coded = move |result: &Result<(), HandlerError>, message: &Message| match message.attempt() {
            3 => NackReason::dead_letter(format!("code-of-{}", message.id())).into(),
            _ => windlass::consumer::default_on_result(result),
        };
        let consumer = consumer.on_result(coded).observer(metrics.clone()).clock(clock.clone());
        let handle = consumer.max_concurrent(at_most(8)).start().unwrap();
        clock.advance(10 * SECOND).await;
        metrics.sample(&queue, &handle);
        assert_eq!(queue.counts().dead_lettered, EACH);
        let _ = stop_on(&clock, &handle).await;
        counts.push(page.render().lines().filter(|line| line.starts_with("windlass_")).count());
    }
    assert_eq!(number, 10_000);
    let text = page.render();
    // messages: failed and panicked, retried and given up; invalid and terminal, given up. attempts: 1 to 3. causes:
    // terminal, validation, other. faults: panics. Histograms: four of handlers, two others, of 7 quantiles and 2 each.
    // The status, in flight; the end, and what was drained.
    let expected = 6 + 3 + 3 + 1 + 6 * 9 + 6 + 1 + 1 + 3;
    assert_eq!(counts, [expected; QUEUES], "{text}");
    for never in ["order-", "no route", "code-of", "reply."] {
        assert!(!text.contains(never), "{never} in {text}");
    }
    assert_eq!(
        series(&page, "windlass_dead_letters_total"),
        [
            r#"windlass_dead_letters_total{queue="generated",cause="other"} 5000"#,
            r#"windlass_dead_letters_total{queue="generated",cause="terminal"} 2500"#,
            r#"windlass_dead_letters_total{queue="generated",cause="validation"} 2500"#,
        ]
    );
}

/// One hangs in a handler, one works: nothing but the page is looked at.
#[tokio::test]
async fn a_stuck_consumer_is_told_from_a_busy_one_by_the_page_alone() {
    let (recorder, page) = recorder();
    let _local = metrics::set_default_local_recorder(&recorder);
    let clock = ControlledClock::new();
    let broker = MemoryBroker::new(clock.clone());
    let (stuck, busy) = (broker.queue("stuck"), broker.queue("busy"));
    let (of_stuck, of_busy) = (Shared::new(Metrics::new()), Shared::new(Metrics::new()));
    let hangs = async |_: Bytes, _: Context| pending::<Result<(), HandlerError>>().await;
    let works = {
        let clock = clock.clone();
        move |_: Bytes, _: Context| {
            let nap = clock.sleep(ms(500));
            async move {
                nap.await;
                Ok::<_, HandlerError>(())
            }
        }
    };
    publish(&stuck, 100);
    publish(&busy, 100);
    let stuck_handle = start(&stuck, &clock, hangs, &of_stuck);
    let busy_handle = start(&busy, &clock, works, &of_busy);
    let mut pages = Vec::new();
    for _ in 0..2 {
        clock.advance(20 * SECOND + ms(250)).await;
        of_stuck.sample(&stuck, &stuck_handle);
        of_busy.sample(&busy, &busy_handle);
        pages.push((
            series(&page, "windlass_in_flight"),
            series(&page, "windlass_messages_total"),
            series(&page, "windlass_last_success_timestamp_seconds"),
            series(&page, "windlass_status"),
        ));
    }
    // Both have one in flight and run; but only one gets anything done.
    let in_flight = [r#"windlass_in_flight{queue="busy"} 1"#, r#"windlass_in_flight{queue="stuck"} 1"#];
    for ((flying, messages, success, status), (acked, at)) in
        pages.iter().zip([(40, "1767225620"), (81, "1767225640.5")])
    {
        assert_eq!(*flying, in_flight);
        assert_eq!(
            *messages,
            [format!(r#"windlass_messages_total{{queue="busy",outcome="done",settlement="ack"}} {acked}"#)]
        );
        assert_eq!(*success, [format!(r#"windlass_last_success_timestamp_seconds{{queue="busy"}} {at}"#)]);
        for queue in ["busy", "stuck"] {
            let running = format!(r#"windlass_status{{queue="{queue}",status="running"}} 1"#);
            assert!(status.contains(&running), "{status:?}");
        }
        assert_eq!(status.iter().filter(|line| line.ends_with(" 0")).count(), 10, "{status:?}");
    }
    drop((stuck_handle, busy_handle));
}

#[tokio::test]
async fn two_consumers_of_one_queue_are_told_apart_by_labels_of_their_own() {
    let (recorder, page) = recorder();
    let _local = metrics::set_default_local_recorder(&recorder);
    let clock = ControlledClock::new();
    let queue = MemoryBroker::new(clock.clone()).queue("orders");
    let (one, two) = (Shared::new(Metrics::labelled("one")), Shared::new(Metrics::labelled("two")));
    let hangs = async |_: Bytes, _: Context| pending::<Result<(), HandlerError>>().await;
    let stuck = start(&queue, &clock, hangs, &one);
    publish(&queue, 1);
    clock.settle().await;
    let busy = start(&queue, &clock, async |_: Bytes, _: Context| Ok::<_, HandlerError>(()), &two);
    publish(&queue, 3);
    clock.settle().await;
    one.sample(&queue, &stuck);
    two.sample(&queue, &busy);
    assert_eq!(
        series(&page, "windlass_in_flight"),
        [r#"windlass_in_flight{queue="one"} 1"#, r#"windlass_in_flight{queue="two"} 0"#]
    );
    assert_eq!(
        series(&page, "windlass_messages_total"),
        [r#"windlass_messages_total{queue="two",outcome="done",settlement="ack"} 3"#]
    );
    drop((stuck, busy));
}

async fn by_id(_: Bytes, context: Context) -> Result<(), HandlerError> {
    match (context.message().id(), context.attempt()) {
        ("m-1", 1) => Err(HandlerError::failed("reset")),
        ("m-2", _) => Err(HandlerError::terminal("no")),
        ("m-3", _) => Err(HandlerError::Timeout { after: ms(250) }),
        ("m-4", 1) => panic!("divided by zero"),
        ("m-5", _) => Err(HandlerError::CircuitOpen { closes_in: 30 * SECOND }),
        ("m-6", _) => Err(HandlerError::Dropped),
        _ => Ok(()),
    }
}

#[tokio::test]
async fn every_delivery_is_counted_once_under_what_became_of_it() {
    let (recorder, page) = recorder();
    let _local = metrics::set_default_local_recorder(&recorder);
    let clock = ControlledClock::new();
    let queue = MemoryBroker::new(clock.clone()).queue("orders");
    publish(&queue, 6);
    let metrics = Shared::new(Metrics::new());
    let consumer = QueueConsumer::with_decoder(queue.source(), codec::bytes, by_id)
        .requeue_backoff(windlass::backoff::Backoff::new(20 * SECOND).with_max(20 * SECOND));
    let handle = consumer.observer(metrics.clone()).clock(clock.clone()).start().unwrap();
    clock.advance(10 * SECOND).await;
    let delivered: u64 = series(&page, "windlass_messages_total")
        .iter()
        .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
        .sum();
    assert_eq!(delivered, queue.counts().delivered, "{}", page.render());
    assert_eq!(
        series(&page, "windlass_messages_total"),
        [
            r#"windlass_messages_total{queue="orders",outcome="circuit_open",settlement="postpone"} 1"#,
            r#"windlass_messages_total{queue="orders",outcome="dropped",settlement="requeue"} 1"#,
            r#"windlass_messages_total{queue="orders",outcome="failed",settlement="retry"} 1"#,
            r#"windlass_messages_total{queue="orders",outcome="panicked",settlement="retry"} 1"#,
            r#"windlass_messages_total{queue="orders",outcome="terminal",settlement="dead_letter"} 1"#,
            r#"windlass_messages_total{queue="orders",outcome="timeout",settlement="retry"} 1"#,
        ]
    );
    drop(handle);
}

#[test]
fn what_was_delivered_before_is_counted() {
    let (recorder, page) = recorder();
    metrics::with_local_recorder(&recorder, || {
        let metrics = Metrics::new();
        metrics.on_message(&event("orders", Outcome::Done, Settlement::Ack));
        let mut again = event("orders", Outcome::Done, Settlement::Ack);
        again.message = again.message.with_redelivered(true);
        metrics.on_message(&again);
    });
    assert_eq!(
        series(&page, "windlass_redelivered"),
        [r#"windlass_redelivered_messages_total{queue="orders"} 1"#]
    );
}

#[tokio::test]
async fn what_the_broker_does_not_take_is_an_error_of_a_kind_and_no_success() {
    let (recorder, page) = recorder();
    let _local = metrics::set_default_local_recorder(&recorder);
    let metrics = Metrics::new();
    let mut lost = event("orders", Outcome::Done, Settlement::Ack);
    lost.settle_error = Some(Error::new(ErrorKind::Disconnected, "ack"));
    metrics.on_message(&lost);
    let mut dead = event("orders", Outcome::Done, NackReason::dead_letter("terminal"));
    dead.settle_error = Some(Error::new(ErrorKind::Stale, "nack").with_context("queue", "orders"));
    metrics.on_message(&dead);
    assert_eq!(
        series(&page, "windlass_messages_total"),
        [r#"windlass_messages_total{queue="orders",outcome="done",settlement="not_taken"} 2"#]
    );
    assert_eq!(
        series(&page, "windlass_settle_errors_total"),
        [
            r#"windlass_settle_errors_total{queue="orders",kind="disconnected"} 1"#,
            r#"windlass_settle_errors_total{queue="orders",kind="stale"} 1"#,
        ]
    );
    assert!(series(&page, "windlass_dead_letters_total").is_empty());
    assert!(series(&page, "windlass_last_success").is_empty());
}

#[test]
fn times_are_in_seconds_and_none_is_made_up() {
    let (recorder, page) = recorder();
    metrics::with_local_recorder(&recorder, || {
        let metrics = Metrics::new();
        let mut done = event("orders", Outcome::Done, Settlement::Ack);
        done.timings.received_at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
        (done.timings.waited, done.timings.handling) = (ms(500), ms(1_250));
        done.timings.settling = ms(250);
        metrics.on_message(&done);
        // Its source does not say when it took it: this must not be the time of the last success.
        let mut undated = event("undated", Outcome::Done, Settlement::Ack);
        undated.timings.handling = SECOND;
        metrics.on_message(&undated);
        // Neither was handled, and the second had not even a loop.
        metrics.on_message(&event("orders", Outcome::HandedBack, NackReason::requeue_now("paused")));
        metrics.on_message(&event("orders", Outcome::CutShort, NackReason::requeue_now("loop_panic")));
    });
    let sums = |name: &str| {
        let mut lines = series(&page, &format!("{name}_sum{{queue=\"orders\""));
        lines.extend(series(&page, &format!("{name}_count{{queue=\"orders\"")));
        lines
    };
    assert_eq!(
        sums("windlass_handler_duration_seconds"),
        [
            r#"windlass_handler_duration_seconds_sum{queue="orders",outcome="done"} 1.25"#,
            r#"windlass_handler_duration_seconds_count{queue="orders",outcome="done"} 1"#,
        ]
    );
    assert_eq!(
        sums("windlass_queue_to_handler_seconds"),
        [
            r#"windlass_queue_to_handler_seconds_sum{queue="orders"} 0.5"#,
            r#"windlass_queue_to_handler_seconds_count{queue="orders"} 2"#,
        ]
    );
    assert_eq!(
        sums("windlass_settle_duration_seconds"),
        [
            r#"windlass_settle_duration_seconds_sum{queue="orders"} 0.25"#,
            r#"windlass_settle_duration_seconds_count{queue="orders"} 2"#,
        ]
    );
    assert_eq!(
        series(&page, "windlass_last_success_timestamp_seconds"),
        [r#"windlass_last_success_timestamp_seconds{queue="orders"} 1002"#]
    );
}

#[test]
fn changes_drains_and_faults_are_counted() {
    let (recorder, page) = recorder();
    metrics::with_local_recorder(&recorder, || {
        let metrics = Metrics::new();
        let change = |kind| metrics.on_change(&ConsumerChange::new("orders", kind));
        let mut sample = ConsumerSample::new("orders", Status::Paused, 3);
        (sample.stats.receive_errors, sample.stats.panics) = (5, 1);
        metrics.on_sample(&sample);
        sample.stats.receive_errors = 7;
        metrics.on_sample(&sample);
        change(ChangeKind::Idle { after: SECOND });
        change(ChangeKind::Waiting { obstacle: Obstacle::Readiness });
        change(ChangeKind::Waiting { obstacle: Obstacle::Circuit });
        change(ChangeKind::Waiting { obstacle: Obstacle::Circuit });
        change(ChangeKind::Ready);
        change(ChangeKind::Tripped { failed: 9, of: 10, pause: SECOND });
        let mut report = Report::default();
        (report.finished, report.requeued, report.abandoned) = (3, 2, 1);
        report.stats = sample.stats;
        report.stats.leases_lost = 4;
        change(ChangeKind::Stopped { report });
    });
    let counted = |name: &str| -> Vec<String> {
        let lines = series(&page, name);
        lines.iter().map(|line| line.split_once("{queue=\"orders\",").unwrap().1.to_owned()).collect()
    };
    assert_eq!(
        counted("windlass_changes_total"),
        [
            r#"change="idle"} 1"#,
            r#"change="ready"} 1"#,
            r#"change="stopped"} 1"#,
            r#"change="tripped"} 1"#,
            r#"change="waiting_circuit"} 2"#,
            r#"change="waiting_readiness"} 1"#,
        ]
    );
    assert_eq!(
        counted("windlass_drained_messages_total"),
        [r#"result="abandoned"} 1"#, r#"result="finished"} 3"#, r#"result="requeued"} 2"#]
    );
    assert_eq!(
        counted("windlass_faults_total"),
        [r#"kind="handler_panic"} 1"#, r#"kind="lease_lost"} 4"#, r#"kind="receive_error"} 7"#]
    );
    assert_eq!(
        counted("windlass_status"),
        [
            r#"status="idle"} 0"#,
            r#"status="paused"} 0"#,
            r#"status="running"} 0"#,
            r#"status="stopped"} 1"#,
            r#"status="stopping"} 0"#,
            r#"status="waiting"} 0"#,
        ]
    );
    assert_eq!(series(&page, "windlass_in_flight"), [r#"windlass_in_flight{queue="orders"} 0"#]);
}

#[test]
fn the_queue_is_labelled_by_its_name_or_as_the_user_says() {
    for (metrics, name, label) in [
        (Metrics::new(), "orders", "orders"),
        (Metrics::new(), "amq.gen-JzTY20BRgKO-HjmUJj0wLg", "generated"),
        (Metrics::new(), "", "unnamed"),
        (Metrics::labelled("replies"), "amq.gen-JzTY20BRgKO-HjmUJj0wLg", "replies"),
        (Metrics::labelled(""), "orders", "unnamed"),
        (Metrics::mapped(|name| name.split('.').next().unwrap().to_owned()), "reply.7", "reply"),
        (Metrics::mapped(|_| String::new()), "reply.7", "unnamed"),
    ] {
        let (recorder, page) = recorder();
        metrics::with_local_recorder(&recorder, || {
            metrics.on_message(&event(name, Outcome::Done, Settlement::Ack));
            metrics.on_change(&ConsumerChange::new(name, ChangeKind::Paused));
            metrics.on_sample(&ConsumerSample::new(name, Status::Running, 0));
        });
        let text = page.render();
        let labelled = format!("{{queue=\"{label}\"");
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("windlass_")).collect();
        assert!(lines.len() > 10 && lines.iter().all(|line| line.contains(&labelled)), "{text}");
    }
}

/// Two queues, though there should be one for each consumer.
#[test]
fn one_for_two_queues_labels_each_with_its_own_name() {
    let (recorder, page) = recorder();
    metrics::with_local_recorder(&recorder, || {
        let metrics = Metrics::new();
        for queue in ["one", "two", "one"] {
            metrics.on_message(&event(queue, Outcome::Done, Settlement::Ack));
        }
    });
    assert_eq!(
        series(&page, "windlass_attempts_total"),
        [
            r#"windlass_attempts_total{queue="one",attempt="1"} 2"#,
            r#"windlass_attempts_total{queue="two",attempt="1"} 1"#,
        ]
    );
}

#[test]
fn each_metric_is_described_also_to_a_recorder_that_comes_late() {
    let metrics = Metrics::new();
    let (recorder, page) = recorder();
    metrics::with_local_recorder(&recorder, || {
        metrics.on_message(&event("orders", Outcome::Done, NackReason::dead_letter("terminal")));
        metrics.on_message(&event("orders", Outcome::Done, Settlement::Ack));
        metrics.on_change(&ConsumerChange::new("orders", ChangeKind::Stopped { report: Report::default() }));
    });
    let text = page.render();
    let names: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .map(|line| line.split(' ').next().unwrap())
        .collect();
    assert!(names.len() >= 10, "{text}");
    for name in names {
        assert!(text.contains(&format!("# HELP {name} ")), "{name} is not described:\n{text}");
    }
}

#[test]
fn a_sample_is_wanted_every_five_seconds_unless_another_interval_is_given() {
    assert_eq!(Metrics::new().sample_every(), Some(5 * SECOND));
    assert_eq!(Metrics::new().sampled_every(SECOND).sample_every(), Some(SECOND));
    assert_eq!(Metrics::default().called_from(), CalledFrom::Loop);
}

/// As above, by the samples that the consumers take themselves.
#[tokio::test]
async fn consumers_take_their_samples_themselves_also_while_nothing_happens() {
    let (recorder, page) = recorder();
    let _local = metrics::set_default_local_recorder(&recorder);
    let clock = ControlledClock::new();
    let broker = MemoryBroker::new(clock.clone());
    let (stuck, idle) = (broker.queue("stuck"), broker.queue("idle"));
    let hangs = async |_: Bytes, _: Context| pending::<Result<(), HandlerError>>().await;
    let start = |queue: &MemoryQueue| {
        let consumer = QueueConsumer::with_decoder(queue.source(), codec::bytes, hangs);
        consumer.observer(Metrics::new()).clock(clock.clone()).start().unwrap()
    };
    let handles = [start(&stuck), start(&idle)];
    clock.settle().await;
    publish(&stuck, 1);
    clock.advance(4 * SECOND).await;
    let flying = || series(&page, "windlass_in_flight");
    assert_ne!(flying().last().map(String::as_str), Some(r#"windlass_in_flight{queue="stuck"} 1"#));
    clock.advance(SECOND).await;
    assert_eq!(flying(), [r#"windlass_in_flight{queue="idle"} 0"#, r#"windlass_in_flight{queue="stuck"} 1"#]);
    let running = series(&page, "windlass_status").iter().filter(|line| line.ends_with(" 1")).count();
    assert_eq!(running, 2, "{}", page.render());
    drop(handles);
}
