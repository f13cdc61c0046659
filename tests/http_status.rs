//! What a handler's error is as an HTTP answer.

use std::time::Duration;

use windlass::handler::HandlerError;

#[derive(Debug, thiserror::Error)]
#[error("while shipping")]
struct Wrapper(#[source] HandlerError);

#[test]
fn every_class_has_the_http_status_of_the_table() {
    let after = Duration::from_millis(1_500);
    let open = || HandlerError::CircuitOpen { closes_in: after };
    for (error, status, retry_after) in [
        (HandlerError::invalid_input("no id"), 400, None),
        (HandlerError::invalid_output("no total"), 500, None),
        (HandlerError::terminal("declined"), 422, None),
        (HandlerError::Timeout { after }, 504, None),
        (HandlerError::failed("reset"), 500, None),
        (HandlerError::failed(open()), 500, None),
        (HandlerError::Panicked { message: "oops".into() }, 500, None),
        (HandlerError::retry_exhausted(4, "reset"), 500, None),
        (HandlerError::retry_exhausted(4, HandlerError::Timeout { after }), 504, None),
        (HandlerError::retry_exhausted(4, Wrapper(HandlerError::terminal("declined"))), 422, None),
        (HandlerError::retry_exhausted(2, HandlerError::retry_exhausted(4, open())), 503, Some(after)),
        (open(), 503, Some(after)),
        (HandlerError::BackpressureReject, 503, None),
        (HandlerError::Dropped, 503, None),
        (HandlerError::NotRunning, 503, None),
    ] {
        assert_eq!((error.http_status(), error.retry_after()), (status, retry_after), "{error:?}");
    }
}
