//! The management API of RabbitMQ: what there is on a broker, and how it stands.
//!
//! ```no_run
//! # async fn depths() -> windlass::Result<()> {
//! use windlass::management::{Management, ManagementConfig};
//!
//! let management = Management::new(ManagementConfig::from_env("ORDERS_MANAGEMENT")?)?;
//! for queue in management.queues("/").await? {
//!     match queue.ready {
//!         Some(ready) => println!("{}: {ready}", queue.name),
//!         None => println!("{}: not known yet", queue.name),
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The API leaves out the figures of a queue that is new, and changes the shape of what is empty. So every figure is an
//! `Option`: unknown is not zero.
//!
//! Each request is bounded by [`timeout`](ManagementConfig::timeout), from looking up the host to the last byte of the
//! answer, on the [`Clock`] of the client; an answer by 16 MiB. No redirect is followed, and no proxy of the environment
//! is used: both would be given the password. Names may have anything in them but that they be `.` or `..`, which no URL
//! can carry.
//!
//! # Errors
//!
//! | kind | when |
//! |---|---|
//! | `Disconnected` | nobody listens there, or the connection ended before the answer |
//! | `Timeout` | no whole answer within the time-out |
//! | `Unauthorized` | 401: the user or the password is wrong. Not transient |
//! | `Refused` | 400, 403 and the like, with the broker's reason; 401 for a right that is missing; a certificate that is not trusted. Not transient |
//! | `NotFound` | 404: no such thing, or, on 4.3, no right to its virtual host. Not transient |
//! | `Other` | 500 and above; or what answers is no management API, which is not transient |
//! | `Invalid` | a field of the configuration; a name that no URL can carry |

mod answer;
mod config;
mod http;
mod password;
mod things;
mod tls;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use reqwest::Method;
use serde_json::Value;

pub use config::ManagementConfig;
pub use things::{
    Binding, EffectivePolicy, Exchange, Overview, Permissions, PolicyStatus, QueueStatus, User, Vhost,
};

pub(crate) use http::Path;

use self::answer::{Fields, list};
use self::http::Http;
use crate::clock::{Clock, SystemClock};
use crate::error::{Error, ErrorKind, Result};

/// How many queues are asked for at once; the API gives 500 at most.
const PAGE: usize = 500;

/// A client of the management API. Cheap to clone.
#[derive(Clone)]
pub struct Management(Arc<Http>);

impl Management {
    /// A client. Nothing is sent yet; the files that `tls` names are read, which blocks for as long as that takes.
    ///
    /// # Errors
    ///
    /// `Invalid`, with the field: see [`ManagementConfig::validate`]; a file that cannot be read or used.
    pub fn new(config: ManagementConfig) -> Result<Self> {
        Self::new_on(config, SystemClock)
    }

    /// As [`new`](Self::new), with the time-out on another clock.
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new).
    pub fn new_on(config: ManagementConfig, clock: impl Clock) -> Result<Self> {
        Ok(Self(Arc::new(Http::new(config, Arc::new(clock))?)))
    }

    /// The version of the broker and the name of the cluster. Any user of the API may ask.
    ///
    /// # Errors
    ///
    /// See the [module](self).
    ///
    /// # Cancel safety
    ///
    /// Safe, as all that only asks.
    pub async fn overview(&self) -> Result<Overview> {
        let path = Path::new("get overview", &["overview"])?;
        let answer = self.0.get("get overview", &path).await?;
        if !answer.is_object() {
            return Err(self.odd("get overview"));
        }
        Ok(Overview::read(Fields::of(&answer)))
    }

    /// The virtual hosts that this user may see.
    ///
    /// # Errors
    ///
    /// See the [module](self).
    ///
    /// # Cancel safety
    ///
    /// Safe.
    pub async fn vhosts(&self) -> Result<Vec<Vhost>> {
        self.list("list virtual hosts", &["vhosts"], Vhost::read).await
    }

    /// A virtual host; `None` where there is none of this name.
    ///
    /// # Errors
    ///
    /// See the [module](self).
    ///
    /// # Cancel safety
    ///
    /// Safe.
    pub async fn vhost(&self, name: &str) -> Result<Option<Vhost>> {
        let read = |fields: Fields<'_>| Vhost::read(fields);
        self.find("get virtual host", &["vhosts", name], read).await
    }

    /// The users. For administrators.
    ///
    /// # Errors
    ///
    /// See the [module](self).
    ///
    /// # Cancel safety
    ///
    /// Safe.
    pub async fn users(&self) -> Result<Vec<User>> {
        self.list("list users", &["users"], User::read).await
    }

    /// A user; `None` where there is none of this name. For administrators.
    ///
    /// # Errors
    ///
    /// See the [module](self).
    ///
    /// # Cancel safety
    ///
    /// Safe.
    pub async fn user(&self, name: &str) -> Result<Option<User>> {
        self.find("get user", &["users", name], User::read).await
    }

    /// What users may do in a virtual host.
    ///
    /// # Errors
    ///
    /// See the [module](self).
    ///
    /// # Cancel safety
    ///
    /// Safe.
    pub async fn permissions(&self, vhost: &str) -> Result<Vec<Permissions>> {
        self.list("list permissions", &["vhosts", vhost, "permissions"], Permissions::read).await
    }

    /// What a user may do in a virtual host; `None` where that is nothing. For administrators.
    ///
    /// # Errors
    ///
    /// See the [module](self).
    ///
    /// # Cancel safety
    ///
    /// Safe.
    pub async fn permissions_of(&self, vhost: &str, user: &str) -> Result<Option<Permissions>> {
        self.find("get permissions", &["permissions", vhost, user], Permissions::read).await
    }

    /// The exchanges of a virtual host, the broker's own among them.
    ///
    /// # Errors
    ///
    /// See the [module](self).
    ///
    /// # Cancel safety
    ///
    /// Safe.
    pub async fn exchanges(&self, vhost: &str) -> Result<Vec<Exchange>> {
        self.list("list exchanges", &["exchanges", vhost], Exchange::read).await
    }

    /// An exchange; `None` where there is none of this name.
    ///
    /// # Errors
    ///
    /// See the [module](self).
    ///
    /// # Cancel safety
    ///
    /// Safe.
    pub async fn exchange(&self, vhost: &str, name: &str) -> Result<Option<Exchange>> {
        self.find("get exchange", &["exchanges", vhost, name], Exchange::read).await
    }

    /// The queues of a virtual host, by name. They are asked for in pages, so that one which is made or deleted
    /// meanwhile may or may not be there.
    ///
    /// # Errors
    ///
    /// See the [module](self).
    ///
    /// # Cancel safety
    ///
    /// Safe.
    pub async fn queues(&self, vhost: &str) -> Result<Vec<QueueStatus>> {
        const OPERATION: &str = "list queues";
        let path = Path::new(OPERATION, &["queues", vhost])?;
        let mut all = BTreeMap::new();
        for page in 1_u64.. {
            let columns = QueueStatus::COLUMNS;
            let query = format!("page={page}&page_size={PAGE}&sort=name&columns={columns}");
            let answer = match self.0.get(OPERATION, &path.clone().query(&query)).await {
                // There were more pages when the one before was made.
                Err(error) if page > 1 && error.kind() == ErrorKind::Refused => break,
                answer => answer?,
            };
            let found = list(&answer, QueueStatus::read).ok_or_else(|| self.odd(OPERATION))?;
            let before = all.len();
            all.extend(found.into_iter().map(|queue| (queue.name.clone(), queue)));
            let pages = Fields::of(&answer).number("page_count").unwrap_or_default();
            // A page with nothing new would be one of an API that gives the same for ever.
            if page >= pages || all.len() == before {
                break;
            }
        }
        Ok(all.into_values().collect())
    }

    /// A queue; `None` where there is none of this name.
    ///
    /// # Errors
    ///
    /// See the [module](self).
    ///
    /// # Cancel safety
    ///
    /// Safe.
    pub async fn queue(&self, vhost: &str, name: &str) -> Result<Option<QueueStatus>> {
        let read = |fields: Fields<'_>| Some(QueueStatus::named(name.to_owned(), fields));
        self.find("get queue", &["queues", vhost, name], read).await
    }

    /// The bindings from an exchange to a queue.
    ///
    /// # Errors
    ///
    /// See the [module](self).
    ///
    /// # Cancel safety
    ///
    /// Safe.
    pub async fn bindings(&self, vhost: &str, exchange: &str, queue: &str) -> Result<Vec<Binding>> {
        let parts = ["bindings", vhost, "e", exchange, "q", queue];
        self.list("list bindings", &parts, Binding::read).await
    }

    /// The policies of a virtual host.
    ///
    /// # Errors
    ///
    /// See the [module](self).
    ///
    /// # Cancel safety
    ///
    /// Safe.
    pub async fn policies(&self, vhost: &str) -> Result<Vec<PolicyStatus>> {
        self.list("list policies", &["policies", vhost], PolicyStatus::read).await
    }

    /// The operator policies of a virtual host, which apply beside the others.
    ///
    /// # Errors
    ///
    /// See the [module](self).
    ///
    /// # Cancel safety
    ///
    /// Safe.
    pub async fn operator_policies(&self, vhost: &str) -> Result<Vec<PolicyStatus>> {
        self.list("list operator policies", &["operator-policies", vhost], PolicyStatus::read).await
    }

    /// What policies make of a queue; `None` where there is no such queue, or where the broker does not know yet, as up
    /// to some seconds after the queue was made or a policy was changed.
    ///
    /// # Errors
    ///
    /// See the [module](self).
    ///
    /// # Cancel safety
    ///
    /// Safe.
    pub async fn effective_policy(&self, vhost: &str, queue: &str) -> Result<Option<EffectivePolicy>> {
        let Some(queue) = self.queue(vhost, queue).await? else { return Ok(None) };
        let QueueStatus { policy, operator_policy, effective_policy, .. } = queue;
        Ok(effective_policy.map(|definition| EffectivePolicy { policy, operator_policy, definition }))
    }

    /// The user that this logs in as.
    pub(crate) fn own_user(&self) -> &str {
        self.0.user()
    }

    pub(crate) async fn put(&self, operation: &'static str, path: &Path, body: &Value) -> Result<()> {
        self.0.change(operation, Method::PUT, path, body).await
    }

    pub(crate) async fn post(&self, operation: &'static str, path: &Path, body: &Value) -> Result<()> {
        self.0.change(operation, Method::POST, path, body).await
    }

    async fn list<T>(
        &self,
        operation: &'static str,
        parts: &[&str],
        read: impl Fn(Fields<'_>) -> Option<T>,
    ) -> Result<Vec<T>> {
        let answer = self.0.get(operation, &Path::new(operation, parts)?).await?;
        list(&answer, read).ok_or_else(|| self.odd(operation))
    }

    async fn find<T>(
        &self,
        operation: &'static str,
        parts: &[&str],
        read: impl Fn(Fields<'_>) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(answer) = self.0.find(operation, &Path::new(operation, parts)?).await? else {
            return Ok(None);
        };
        // Without its fields it is there all the same, but cannot be read.
        read(Fields::of(&answer)).map(Some).ok_or_else(|| self.odd(operation))
    }

    fn odd(&self, operation: &'static str) -> Error {
        Error::new(ErrorKind::Other, operation)
            .with_message("the answer is JSON, but not what a management API of RabbitMQ answers")
            .with_context("url", self.0.shown())
            .with_transient(false)
    }
}

/// Without user and password.
impl fmt::Debug for Management {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Management")
            .field("url", &self.0.shown())
            .field("timeout", &self.0.timeout())
            .finish_non_exhaustive()
    }
}
