//! One call of a handler, behind a net and within a time.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use futures::FutureExt;

use super::{Context, Handler, HandlerError, panic_text};
use crate::clock::Clock;

/// Calls the handler; a panic is an error, be it in the call, before the first wait, later, or when its future is
/// dropped at the end.
pub(super) async fn call<H: Handler<T>, T: Send>(
    handler: &H,
    payload: T,
    context: Context,
) -> Result<H::Output, HandlerError> {
    // The call is made within the block, since it may panic as well.
    let called = async { handler.handle(payload, context).await };
    AssertUnwindSafe(called).catch_unwind().await.unwrap_or_else(|panic| Err(HandlerError::from_panic(panic)))
}

/// As [`call`], for at most `limit` from when the handler first waits: one that need not wait sets no timer.
pub(super) async fn call_within<H: Handler<T>, T: Send>(
    handler: &H,
    payload: T,
    context: Context,
    clock: &dyn Clock,
    limit: Duration,
) -> Result<H::Output, HandlerError> {
    let (context, cancellation) = context.child();
    let mut slot = pin!(Some(call(handler, payload, context)));
    let mut timer = None;
    let ended = poll_fn(|wake| {
        // The handler is looked at first: one that is done is never timed out.
        if let Some(called) = slot.as_mut().as_pin_mut()
            && let Poll::Ready(result) = called.poll(wake)
        {
            return Poll::Ready(Some(result));
        }
        timer.get_or_insert_with(|| clock.sleep(limit)).poll_unpin(wake).map(|()| None)
    });
    if let Some(result) = ended.await {
        return result;
    }
    // Before the future is dropped, so that what it drops can tell that it was cut short.
    quietly(|| cancellation.cancel());
    quietly(|| slot.set(None));
    Err(HandlerError::Timeout { after: limit })
}

/// Runs what may run somebody's `Drop` or waker; a panic there changes nothing any more, and is logged.
pub(super) fn quietly(run: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
        tracing::warn!(panic = panic_text(panic), "what a handler left behind panicked when it was dropped");
    }
}
