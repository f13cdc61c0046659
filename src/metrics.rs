//! Metrics of a consumer, by the facade of the crate [`metrics`](https://docs.rs/metrics): which recorder takes them, be
//! it Prometheus, OpenTelemetry, StatsD or none, is the service's choice.
//!
//! Install the recorder, then give each consumer a [`Metrics`] of its own:
//!
//! ```
//! # use windlass::{clock::SystemClock, codec, memory::MemoryBroker, Context, HandlerError};
//! use windlass::consumer::QueueConsumer;
//! use windlass::metrics::Metrics;
//!
//! # let source = MemoryBroker::new(SystemClock).queue("orders").source();
//! # let handler = async |_: bytes::Bytes, _: Context| Ok::<_, HandlerError>(());
//! let consumer = QueueConsumer::with_decoder(source, codec::bytes, handler).observer(Metrics::new());
//! # drop(consumer);
//! ```
//!
//! # What there is
//!
//! | name | kind | labels | what |
//! |---|---|---|---|
//! | `windlass_messages_total` | counter | `queue`, `outcome`, `settlement` | deliveries that were answered |
//! | `windlass_attempts_total` | counter | `queue`, `attempt` | the same, by which try it was: `1` to `4`, `5-9`, `10+` |
//! | `windlass_redelivered_messages_total` | counter | `queue` | the same, of those that the broker had delivered before without an answer |
//! | `windlass_dead_letters_total` | counter | `queue`, `cause` | messages given up |
//! | `windlass_settle_errors_total` | counter | `queue`, `kind` | answers that the broker did not take |
//! | `windlass_handler_duration_seconds` | histogram | `queue`, `outcome` | decoding and handling |
//! | `windlass_queue_to_handler_seconds` | histogram | `queue` | from when the source took a message until a loop had it |
//! | `windlass_settle_duration_seconds` | histogram | `queue` | from the end of the handler until the broker had the answer |
//! | `windlass_last_success_timestamp_seconds` | gauge | `queue` | when a message was last handled and acked, in Unix time; where the source says when it took it |
//! | `windlass_in_flight` | gauge | `queue` | messages that are being handled or settled |
//! | `windlass_status` | gauge | `queue`, `status` | 1 where the consumer is in its life, 0 elsewhere |
//! | `windlass_changes_total` | counter | `queue`, `change` | what else happened: idle, waiting and for what, tripped, paused, … |
//! | `windlass_drained_messages_total` | counter | `queue`, `result` | what a drain did with what was in flight |
//! | `windlass_faults_total` | counter | `queue`, `kind` | receives that failed, panics, lost leases, what a slow observer was not told |
//! | `windlass_reconnects_total` | counter | `role` | connections to RabbitMQ that were lost and stand again (feature `rabbitmq`) |
//!
//! The gauges, and the faults, are sampled, every 5 s unless [`Metrics::sampled_every`] says otherwise: a consumer that
//! is stuck in a handler sends no event, and is seen all the same, by an `in_flight` that stays up while
//! `messages_total` stands still. When a message was sent is not known to all brokers; so the time before the handler
//! starts where the source took it.
//!
//! # Labels are bounded
//!
//! Every label is of a fixed list, but for `queue`. No id, no text of an error and no code of the user's own becomes one:
//! a cause is the class of a [default code](crate::consumer::default_on_result) (`retry_exhausted:4` is
//! `retry_exhausted`), or `other`. A queue whose name is made up for a connection, by the broker (`amq.gen-…`) or by
//! the service (with a UUID or the like in it), is labelled `generated`; give it a name by [`Metrics::labelled`]. So
//! should two consumers of one queue in one process, whose gauges would overwrite each other's.

mod labels;
mod names;

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use metrics::{SharedString, counter, gauge, histogram};

use crate::consumer::{
    CalledFrom, ChangeKind, ConsumerChange, ConsumerEvent, ConsumerSample, Observer, Outcome, Report, Stats,
    Status,
};
use crate::source::{NackReason, Settlement};

pub use names::{SECONDS_BUCKETS, describe};

/// How often a consumer is sampled, unless the user says otherwise.
const SAMPLE_EVERY: Duration = Duration::from_secs(5);

/// Turns what a consumer tells into metrics; see [the module](self). One for each consumer.
///
/// It is called in the consumer's loops and never moved out of them, so that nothing is ever missing from a counter; a
/// recorder that blocks makes them wait. The recorder is the one that is current at each call: where none is
/// installed, next to nothing is done.
pub struct Metrics {
    labelling: Labelling,
    sample_every: Duration,
    /// The first queue that it was told of, and its label: there is one for each consumer.
    known: OnceLock<(String, SharedString)>,
    /// What has been counted in `faults_total`.
    counted: Mutex<Stats>,
}

enum Labelling {
    ByName,
    Fixed(SharedString),
    Map(Arc<dyn Fn(&str) -> String + Send + Sync>),
}

impl Metrics {
    /// Labels the queue by its name, or `generated` where that is made up for a connection.
    pub fn new() -> Self {
        Self::with(Labelling::ByName)
    }

    /// Labels the queue with this, whatever its name.
    pub fn labelled(label: impl Into<String>) -> Self {
        Self::with(Labelling::Fixed(labels::named(label.into()).into()))
    }

    /// Labels the queue with what `label` makes of its name. That there is a bounded number of labels is its business.
    pub fn mapped(label: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        Self::with(Labelling::Map(Arc::new(label)))
    }

    fn with(labelling: Labelling) -> Self {
        describe();
        let counted = Mutex::new(Stats::default());
        Self { labelling, sample_every: SAMPLE_EVERY, known: OnceLock::new(), counted }
    }

    /// How often the gauges are set, also while nothing happens; every 5 s by default, and 10 ms at least.
    #[must_use]
    pub fn sampled_every(mut self, interval: Duration) -> Self {
        self.sample_every = interval;
        self
    }

    /// The label for a queue.
    fn label(&self, queue: &str) -> SharedString {
        let label = || match &self.labelling {
            Labelling::ByName => labels::queue(queue).to_owned().into(),
            Labelling::Fixed(label) => label.clone(),
            Labelling::Map(label) => labels::named(label(queue)).into(),
        };
        // What is told first may come before a recorder is installed, and so may `new`.
        let (known, known_label) = self.known.get_or_init(|| {
            describe();
            (queue.to_owned(), shared(label()))
        });
        if known == queue { known_label.clone() } else { label() }
    }

    /// Adds to `faults_total` what was counted since it was last looked at.
    fn count_faults(&self, queue: &SharedString, stats: Stats) {
        let before =
            std::mem::replace(&mut *self.counted.lock().unwrap_or_else(PoisonError::into_inner), stats);
        for (kind, count) in labels::FAULTS {
            let new = count(&stats).saturating_sub(count(&before));
            if new > 0 {
                counter!(names::FAULTS, "queue" => queue.clone(), "kind" => *kind).increment(new);
            }
        }
    }

    fn count_drained(queue: &SharedString, report: &Report) {
        let Report { finished, requeued, abandoned, .. } = *report;
        for (result, count) in [("finished", finished), ("requeued", requeued), ("abandoned", abandoned)] {
            counter!(names::DRAINED, "queue" => queue.clone(), "result" => result).increment(count);
        }
    }
}

/// So that it is shared and not copied from here on.
fn shared(label: SharedString) -> SharedString {
    SharedString::from_shared(Arc::from(&*label))
}

fn set_status(queue: &SharedString, status: Status) {
    for each in
        [Status::Idle, Status::Running, Status::Waiting, Status::Paused, Status::Stopping, Status::Stopped]
    {
        let name = labels::status(each);
        let is = if each == status { 1.0 } else { 0.0 };
        gauge!(names::STATUS, "queue" => queue.clone(), "status" => name).set(is);
    }
}

impl Observer for Metrics {
    fn on_message(&self, event: &ConsumerEvent) {
        let queue = self.label(&event.queue);
        let (outcome, timings) = (event.outcome.name(), event.timings);
        let settlement = labels::settlement(&event.settlement, event.settle_error.is_none());
        counter!(
            names::MESSAGES, "queue" => queue.clone(), "outcome" => outcome, "settlement" => settlement
        )
        .increment(1);
        let attempt = labels::attempt(event.message.attempt());
        counter!(names::ATTEMPTS, "queue" => queue.clone(), "attempt" => attempt).increment(1);
        if event.message.redelivered() {
            counter!(names::REDELIVERED, "queue" => queue.clone()).increment(1);
        }
        // What was put back after its loop was lost has no times.
        let timed = !matches!(event.outcome, Outcome::CutShort) || !timings.handling.is_zero();
        if timed {
            histogram!(names::QUEUE_TO_HANDLER, "queue" => queue.clone()).record(timings.waited);
            histogram!(names::SETTLE_DURATION, "queue" => queue.clone()).record(timings.settling);
        }
        if timed && !matches!(event.outcome, Outcome::HandedBack) {
            histogram!(names::HANDLER_DURATION, "queue" => queue.clone(), "outcome" => outcome)
                .record(timings.handling);
        }
        // Else the sum below would be of the first days of 1970.
        let knows_when = timings.received_at != SystemTime::UNIX_EPOCH;
        match (&event.settlement, &event.settle_error) {
            (_, Some(error)) => {
                let kind = labels::error_kind(error.kind());
                counter!(names::SETTLE_ERRORS, "queue" => queue, "kind" => kind).increment(1);
            }
            (Settlement::Nack(NackReason::DeadLetter { cause }), None) => {
                let cause = labels::cause(cause);
                counter!(names::DEAD_LETTERS, "queue" => queue, "cause" => cause).increment(1);
            }
            (Settlement::Ack, None) if matches!(event.outcome, Outcome::Done) && knows_when => {
                let took = timings.waited + timings.handling + timings.settling;
                gauge!(names::LAST_SUCCESS, "queue" => queue)
                    .set(unix(timings.received_at) + took.as_secs_f64());
            }
            _ => {}
        }
    }

    fn on_change(&self, change: &ConsumerChange) {
        let queue = self.label(&change.queue);
        let name = labels::change(&change.kind);
        counter!(names::CHANGES, "queue" => queue.clone(), "change" => name).increment(1);
        // There is no sample after the last.
        if let ChangeKind::Stopped { report } = &change.kind {
            Self::count_drained(&queue, report);
            self.count_faults(&queue, report.stats);
            set_status(&queue, Status::Stopped);
            gauge!(names::IN_FLIGHT, "queue" => queue).set(0.0);
        }
    }

    fn sample_every(&self) -> Option<Duration> {
        Some(self.sample_every)
    }

    fn on_sample(&self, sample: &ConsumerSample) {
        let queue = self.label(&sample.queue);
        self.count_faults(&queue, sample.stats);
        set_status(&queue, sample.status);
        // At most a million loops, each with one.
        let in_flight = u32::try_from(sample.in_flight).unwrap_or(u32::MAX);
        gauge!(names::IN_FLIGHT, "queue" => queue).set(in_flight);
    }

    fn called_from(&self) -> CalledFrom {
        CalledFrom::Loop
    }
}

fn unix(at: SystemTime) -> f64 {
    at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let labelling = match &self.labelling {
            Labelling::ByName => "by name",
            Labelling::Fixed(label) => label,
            Labelling::Map(_) => "mapped",
        };
        f.debug_struct("Metrics")
            .field("labelling", &labelling)
            .field("sample_every", &self.sample_every)
            .finish_non_exhaustive()
    }
}
