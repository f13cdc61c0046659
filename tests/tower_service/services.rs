//! Services with habits that the tests need.

use std::fmt;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use tokio::sync::Semaphore;
use tower::{BoxError, Service, service_fn};
use tracing::field::{Field, Visit};
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::layer::{Context as LayerContext, Layer, SubscriberExt};

use super::support::Log;

/// Must be asked a number of times before it is ready, and panics when it is called before that. Clones begin anew.
pub(crate) struct OnlyWhenReady {
    questions: usize,
    left: usize,
    pub(crate) asked: Log<()>,
    pub(crate) called: Log<u32>,
}

impl OnlyWhenReady {
    pub(crate) fn after(questions: usize) -> Self {
        Self { questions, left: questions, asked: Log::new(), called: Log::new() }
    }
}

impl Clone for OnlyWhenReady {
    fn clone(&self) -> Self {
        let (asked, called) = (self.asked.clone(), self.called.clone());
        Self { left: self.questions, questions: self.questions, asked, called }
    }
}

impl Service<u32> for OnlyWhenReady {
    type Response = u32;
    type Error = BoxError;
    type Future = Ready<Result<u32, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.asked.add(());
        self.left -= 1;
        if self.left == 0 {
            return Poll::Ready(Ok(()));
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn call(&mut self, request: u32) -> Self::Future {
        assert_eq!(self.left, 0, "called before it was ready");
        self.called.add(request);
        ready(Ok(request))
    }
}

/// Fails to get ready.
#[derive(Clone)]
pub(crate) struct Unready(Arc<dyn Fn() -> BoxError + Send + Sync>);

impl Unready {
    pub(crate) fn because(error: impl Fn() -> BoxError + Send + Sync + 'static) -> Self {
        Self(Arc::new(error))
    }
}

impl<R> Service<R> for Unready {
    type Response = ();
    type Error = BoxError;
    type Future = Ready<Result<(), BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Err((self.0)()))
    }

    fn call(&mut self, _: R) -> Self::Future {
        unreachable!("it is never ready")
    }
}

/// Calls that last until they are let go.
pub(crate) struct While {
    gate: Arc<Semaphore>,
    pub(crate) called: Log<u32>,
}

impl While {
    pub(crate) fn new() -> Self {
        Self { gate: Arc::new(Semaphore::new(0)), called: Log::new() }
    }

    /// Lets all go, those that come later too.
    pub(crate) fn open(&self) {
        self.gate.close();
    }

    pub(crate) fn service(
        &self,
    ) -> impl Service<u32, Response = (), Error = BoxError, Future = BoxFuture<'static, Result<(), BoxError>>>
    + Clone
    + Send
    + Sync
    + 'static {
        let (gate, called) = (Arc::clone(&self.gate), self.called.clone());
        service_fn(move |number| -> BoxFuture<'static, Result<(), BoxError>> {
            called.add(number);
            let gate = Arc::clone(&gate);
            Box::pin(async move {
                // A closed gate lets everybody through.
                let _ = gate.acquire().await;
                Ok(())
            })
        })
    }
}

/// Keeps the errors of this crate that are logged on this thread, each as one line.
pub(crate) fn errors_logged(log: &Log<String>) -> DefaultGuard {
    tracing::subscriber::set_default(tracing_subscriber::registry().with(Errors(log.clone())))
}

struct Errors(Log<String>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0 += &format!("{}={value:?} ", field.name());
    }
}

impl<S: tracing::Subscriber> Layer<S> for Errors {
    fn on_event(&self, event: &tracing::Event<'_>, _: LayerContext<'_, S>) {
        if *event.metadata().level() == tracing::Level::ERROR
            && event.metadata().target().starts_with("windlass")
        {
            let mut line = Line(String::new());
            event.record(&mut line);
            self.0.add(line.0);
        }
    }
}
