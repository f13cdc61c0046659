//! The names of all metrics, what each says, and in which unit.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

pub(super) const MESSAGES: &str = "windlass_messages_total";
pub(super) const ATTEMPTS: &str = "windlass_attempts_total";
pub(super) const REDELIVERED: &str = "windlass_redelivered_messages_total";
pub(super) const DEAD_LETTERS: &str = "windlass_dead_letters_total";
pub(super) const SETTLE_ERRORS: &str = "windlass_settle_errors_total";
pub(super) const HANDLER_DURATION: &str = "windlass_handler_duration_seconds";
pub(super) const QUEUE_TO_HANDLER: &str = "windlass_queue_to_handler_seconds";
pub(super) const SETTLE_DURATION: &str = "windlass_settle_duration_seconds";
pub(super) const LAST_SUCCESS: &str = "windlass_last_success_timestamp_seconds";
pub(super) const IN_FLIGHT: &str = "windlass_in_flight";
pub(super) const STATUS: &str = "windlass_status";
pub(super) const CHANGES: &str = "windlass_changes_total";
pub(super) const DRAINED: &str = "windlass_drained_messages_total";
pub(super) const FAULTS: &str = "windlass_faults_total";

/// Buckets for the histograms, all of which are in seconds, from 100 µs to a minute: for a recorder that wants them, as
/// that of Prometheus does.
pub const SECONDS_BUCKETS: [f64; 14] =
    [0.000_1, 0.000_5, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0, 60.0];

/// Tells the current recorder what each metric is. A [`Metrics`](super::Metrics) does that when it is made and when it
/// is first used; twice is as once.
pub fn describe() {
    describe_counter!(MESSAGES, Unit::Count, "deliveries answered, by how the work ended and by the answer");
    describe_counter!(ATTEMPTS, Unit::Count, "deliveries answered, by which try it was");
    describe_counter!(REDELIVERED, Unit::Count, "deliveries answered that the broker had made before");
    describe_counter!(DEAD_LETTERS, Unit::Count, "messages given up, by the class of the cause");
    describe_counter!(
        SETTLE_ERRORS,
        Unit::Count,
        "answers that the broker did not take; the messages come again"
    );
    describe_counter!(CHANGES, Unit::Count, "changes of a consumer beside its messages");
    describe_counter!(DRAINED, Unit::Count, "messages in flight when a drain began, by what became of them");
    describe_counter!(FAULTS, Unit::Count, "what went wrong around the messages");
    describe_histogram!(HANDLER_DURATION, Unit::Seconds, "how long decoding and handling took");
    describe_histogram!(
        QUEUE_TO_HANDLER,
        Unit::Seconds,
        "from when the source took a message from the broker until a loop had it"
    );
    describe_histogram!(
        SETTLE_DURATION,
        Unit::Seconds,
        "from the end of the handler until the broker had the answer"
    );
    describe_gauge!(LAST_SUCCESS, Unit::Seconds, "when a message was last handled and acked, in Unix time");
    describe_gauge!(IN_FLIGHT, Unit::Count, "messages being handled or settled");
    describe_gauge!(STATUS, "1 where the consumer is in its life, 0 elsewhere");
}
