//! What a result means for the message, unless the user says otherwise.

use crate::error::Chain;
use crate::handler::{Direction, HandlerError};
use crate::source::{Cause, NackReason, Settlement};

/// The settlement of each result, where the user gives no `on_result` of their own.
///
/// | result | settlement | code of the cause |
/// |---|---|---|
/// | `Ok` | ack | |
/// | `Validation` of the input, an undecodable payload included | dead-letter | `validation:input` |
/// | `Validation` of the output | dead-letter | `validation:output` |
/// | `Terminal` | dead-letter | `terminal` |
/// | `Timeout` | retry | `timeout:<N>ms` |
/// | `Failed` | retry | `handler_error` |
/// | `Panicked` | retry | `panic` |
/// | `RetryExhausted` | dead-letter | `retry_exhausted:<N>` |
/// | `CircuitOpen` | retry once the breaker closes; not a counted attempt | `circuit_open` |
/// | `BackpressureReject` | requeue now | `queue_full` |
/// | `Dropped` | requeue now | `dropped` |
/// | `NotRunning` | requeue now | `shutting_down` |
///
/// The detail of the cause is the error and all that is behind it. A retry whose delay is left open is completed by
/// the [`RetryPolicy`](super::RetryPolicy).
pub fn default_on_result<T>(result: &Result<T, HandlerError>) -> Settlement {
    let Err(error) = result else { return Settlement::Ack };
    Settlement::Nack(match error {
        HandlerError::Validation { direction, .. } => NackReason::dead_letter(explain(
            match direction {
                Direction::Input => "validation:input".into(),
                Direction::Output => "validation:output".into(),
            },
            error,
        )),
        HandlerError::Terminal(_) => NackReason::dead_letter(explain("terminal".into(), error)),
        HandlerError::Timeout { after } => NackReason::retry(format!("timeout:{}ms", after.as_millis())),
        HandlerError::Failed(_) => NackReason::retry(explain("handler_error".into(), error)),
        HandlerError::Panicked { message } => {
            NackReason::retry(Cause::new("panic").with_detail(message.clone()))
        }
        HandlerError::RetryExhausted { attempts, .. } => {
            NackReason::dead_letter(explain(format!("retry_exhausted:{attempts}").into(), error))
        }
        HandlerError::CircuitOpen { closes_in } => NackReason::postpone(*closes_in, "circuit_open"),
        HandlerError::BackpressureReject => NackReason::requeue_now("queue_full"),
        HandlerError::Dropped => NackReason::requeue_now("dropped"),
        HandlerError::NotRunning => NackReason::requeue_now("shutting_down"),
    })
}

/// The code already says what class it is: the detail begins at the user's own error.
fn explain(cause: Cause, error: &HandlerError) -> Cause {
    match error.failure() {
        Some(failure) => cause.with_detail(Chain(failure.error()).to_string()),
        None => cause,
    }
}
