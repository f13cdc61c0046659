//! What has a default; the setters of `QueueConsumer` document each.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use super::MOST_CONCURRENT;
use super::kill_switch::KillSwitch;
use super::ordering::KeyOf;
use super::retry_policy::RetryPolicy;
use crate::backoff::Backoff;
use crate::error::{Error, ErrorKind, Result};
use crate::handler::Readiness;
use crate::queue::check_name;

#[derive(Clone)]
pub(super) struct Options {
    /// The queue that the source must be of, where the consumer was made for one.
    pub(super) queue: Option<String>,
    pub(super) max_concurrent: NonZeroUsize,
    pub(super) retry: RetryPolicy,
    pub(super) receive_backoff: Backoff,
    pub(super) requeue_backoff: Backoff,
    pub(super) drain_timeout: Duration,
    pub(super) grace: Duration,
    pub(super) settle_timeout: Duration,
    pub(super) close_timeout: Duration,
    pub(super) hold_timeout: Duration,
    pub(super) idle_after: Option<Duration>,
    pub(super) kill_switch: Option<KillSwitch>,
    pub(super) readiness: Option<Arc<dyn Readiness>>,
    pub(super) key_of: Option<KeyOf>,
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("queue", &self.queue)
            .field("max_concurrent", &self.max_concurrent)
            .field("retry", &self.retry)
            .field("receive_backoff", &self.receive_backoff)
            .field("requeue_backoff", &self.requeue_backoff)
            .field("drain_timeout", &self.drain_timeout)
            .field("grace", &self.grace)
            .field("settle_timeout", &self.settle_timeout)
            .field("close_timeout", &self.close_timeout)
            .field("hold_timeout", &self.hold_timeout)
            .field("idle_after", &self.idle_after)
            .field("kill_switch", &self.kill_switch)
            .field("readiness", &self.readiness.is_some())
            .field("ordered", &self.key_of.is_some())
            .finish()
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            queue: None,
            max_concurrent: NonZeroUsize::MIN,
            retry: RetryPolicy::default(),
            receive_backoff: Backoff::new(Duration::from_millis(100)),
            requeue_backoff: Backoff::new(Duration::from_millis(10)).with_max(Duration::from_secs(1)),
            drain_timeout: Duration::from_secs(10),
            grace: Duration::from_secs(1),
            settle_timeout: Duration::from_secs(30),
            close_timeout: Duration::from_secs(5),
            hold_timeout: Duration::from_secs(600),
            idle_after: None,
            kill_switch: None,
            readiness: None,
            key_of: None,
        }
    }
}

impl Options {
    pub(super) fn validate(&self, source_of: &str) -> Result<()> {
        if let Some(queue) = &self.queue {
            check_name("start consumer", "queue", queue)?;
            if queue != source_of {
                let fix = format!(
                    "it is of `{source_of}`, and the consumer of `{queue}`; give it one of that queue"
                );
                return Err(invalid("source", &fix));
            }
        }
        self.retry.validate()?;
        self.kill_switch.as_ref().map_or(Ok(()), KillSwitch::validate)?;
        if self.max_concurrent.get() > MOST_CONCURRENT {
            return Err(invalid(
                "max_concurrent",
                &format!("at most {MOST_CONCURRENT}; each is a task of its own"),
            ));
        }
        let times = [
            ("settle_timeout", Some(self.settle_timeout)),
            ("close_timeout", Some(self.close_timeout)),
            ("hold_timeout", Some(self.hold_timeout)),
            ("idle_after", self.idle_after),
        ];
        match times.iter().find(|(_, time)| time.is_some_and(|time| time.is_zero())) {
            None => Ok(()),
            Some((name, _)) => {
                Err(invalid(name, "it is zero, so that nothing could be done in time; give it a duration"))
            }
        }
    }
}

pub(super) fn invalid(option: &'static str, fix: &str) -> Error {
    Error::new(ErrorKind::Invalid, "start consumer").with_message(format!("{option}: {fix}"))
}
