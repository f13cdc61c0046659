//! How to reach RabbitMQ, log in, and how long to wait for what.
//!
//! A [`RabbitMqConfig`] is made by hand, from a [URI](RabbitMqConfig::from_uri), from
//! [environment variables](RabbitMqConfig::from_env), or from a document by serde. All of them start from the same
//! defaults, and none of them looks further than at what it reads: [`validate`](RabbitMqConfig::validate) does, which
//! connecting calls.
//!
//! ```
//! use std::time::Duration;
//! use windlass::rabbitmq::config::{Host, RabbitMqConfig, Tls};
//!
//! let config = RabbitMqConfig::default()
//!     .with_hosts([Host::new("rabbit-1"), Host::new("rabbit-2").with_port(5673)])
//!     .with_user("orders")
//!     .with_password("s3cret")
//!     .with_tls(Tls::default());
//! config.validate()?;
//!
//! let same = RabbitMqConfig::from_uri("amqps://orders:s3cret@rabbit-1,rabbit-2:5673")?;
//! assert_eq!(config, same);
//! # Ok::<(), windlass::Error>(())
//! ```

/// Shared with the client of the management API, which is configured by variables too.
pub(crate) mod env;
mod host;
mod secret;
pub(crate) mod tls;
mod units;
mod uri;
mod validate;

use std::fmt;
use std::num::NonZeroU16;
use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;

pub use host::Host;
pub use secret::Secret;
pub use tls::{ClientCertificate, Pem, Tls};

use crate::error::{Error, ErrorKind, Result};

/// Everything about a connection to RabbitMQ.
///
/// In a document, durations are whole numbers whose name ends in their unit, such as `heartbeat_seconds`; a field that
/// does not exist is refused. `Debug` shows neither user nor password, nor does any error.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(
    feature = "schema",
    schemars(description = "How to reach RabbitMQ, and how long to wait for what.")
)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct RabbitMqConfig {
    /// The nodes of the broker, tried in this order. Default: localhost.
    #[serde(deserialize_with = "host::list")]
    #[cfg_attr(feature = "schema", schemars(with = "Vec<Host>", length(min = 1)))]
    pub hosts: Vec<Host>,
    /// The user to log in as. Default: guest, who can log in only from the broker's own machine.
    #[serde(deserialize_with = "secret::unquoted")]
    #[cfg_attr(feature = "schema", schemars(with = "String", length(min = 1, max = 255)))]
    pub user: String,
    /// The user's password. Default: that of the user guest on a new broker.
    pub password: Secret,
    /// The virtual host. Default: "/".
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 255)))]
    pub vhost: String,
    /// TLS. Default: none, the connection is not encrypted.
    pub tls: Option<Tls>,
    /// How often each side must hear from the other, in whole seconds from 1 to 600; a connection that is silent for
    /// twice that is lost. The broker may ask for less. Default: 10 s.
    #[serde(rename = "heartbeat_seconds", deserialize_with = "units::seconds::deserialize")]
    #[cfg_attr(feature = "schema", serde(serialize_with = "units::seconds::serialize"))]
    #[cfg_attr(feature = "schema", schemars(with = "u64", range(min = 1, max = 600)))]
    pub heartbeat: Duration,
    /// How long one host may take until the connection is up, TLS and login included: from 1 ms to 5 min. Default:
    /// 10 s.
    #[serde(rename = "connect_timeout_ms", deserialize_with = "units::millis::deserialize")]
    #[cfg_attr(feature = "schema", serde(serialize_with = "units::millis::serialize"))]
    #[cfg_attr(feature = "schema", schemars(with = "u64", range(min = 1, max = 300_000)))]
    pub connect_timeout: Duration,
    /// How many messages a source takes from the broker ahead of their settlement, from 1 to 65535. Default: derived
    /// from how many messages the consumer handles at once.
    pub prefetch: Option<NonZeroU16>,
    /// How long a publisher waits for the broker's confirm, from 1 s to 30 s. Default: 5 s.
    #[serde(rename = "publish_timeout_ms", deserialize_with = "units::millis::deserialize")]
    #[cfg_attr(feature = "schema", serde(serialize_with = "units::millis::serialize"))]
    #[cfg_attr(feature = "schema", schemars(with = "u64", range(min = 1_000, max = 30_000)))]
    pub publish_timeout: Duration,
    /// The name that the broker's management page shows for the connection, of at most 255 bytes. Default: the name of
    /// the program.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 255)))]
    pub connection_name: Option<String>,
    /// How long to wait before connecting again, the first time: from 1 ms to 1 h. Each further wait is twice as long,
    /// give or take a fifth at random. Default: 500 ms.
    #[serde(rename = "reconnect_delay_ms", deserialize_with = "units::millis::deserialize")]
    #[cfg_attr(feature = "schema", serde(serialize_with = "units::millis::serialize"))]
    #[cfg_attr(feature = "schema", schemars(with = "u64", range(min = 1, max = 3_600_000)))]
    pub reconnect_delay: Duration,
    /// The longest wait before connecting again: from 1 ms to 1 h, and not shorter than the first. Default: 30 s.
    #[serde(rename = "reconnect_max_delay_ms", deserialize_with = "units::millis::deserialize")]
    #[cfg_attr(feature = "schema", serde(serialize_with = "units::millis::serialize"))]
    #[cfg_attr(feature = "schema", schemars(with = "u64", range(min = 1, max = 3_600_000)))]
    pub reconnect_max_delay: Duration,
    /// For how long a refused login, or a virtual host that is not there, is tried again once the connection had been
    /// up; then it is fatal. 0 is at once, as it is on the first connect. Default: 60 s.
    #[serde(rename = "refusal_patience_seconds", deserialize_with = "units::seconds::deserialize")]
    #[cfg_attr(feature = "schema", serde(serialize_with = "units::seconds::serialize"))]
    #[cfg_attr(feature = "schema", schemars(with = "u64"))]
    pub refusal_patience: Duration,
}

impl RabbitMqConfig {
    /// Reads an `amqp://` or `amqps://` URI, by
    /// [RabbitMQ's specification](https://www.rabbitmq.com/docs/uri-spec), with several hosts where there are several:
    /// `amqp://user:password@host-1:5672,host-2/vhost`.
    ///
    /// What is missing is the default: user and password guest, localhost, port 5672 (5671 with TLS), virtual host
    /// "/". What is there but empty is empty: `amqp://host/` names the virtual host with the empty name, which
    /// [`validate`](Self::validate) refuses; "/" is `amqp://host/%2f`. User, password, hosts and virtual host are
    /// percent-decoded; in them `%`, `/`, `?`, `#` and `@` must be encoded, and `:` in the user.
    ///
    /// | [parameter](https://www.rabbitmq.com/docs/uri-query-parameters) | sets |
    /// |---|---|
    /// | `heartbeat` | [`heartbeat`](Self::heartbeat), in seconds |
    /// | `connection_timeout` | [`connect_timeout`](Self::connect_timeout), in milliseconds |
    /// | `cacertfile` | [`Tls::ca`] |
    /// | `certfile`, `keyfile` | [`Tls::client`] |
    /// | `server_name_indication` | [`Tls::server_name`] |
    /// | `verify` | nothing: `verify_peer` is what is done, and any other value is refused |
    ///
    /// # Errors
    ///
    /// `Invalid`, with what is wrong and how to write it; never with a part of the URI that may be a piece of the user
    /// or the password. Other parameters are refused, `frame_max` and `channel_max` among them: a smaller frame would
    /// not hold the headers that a larger one did, and closes the connection.
    pub fn from_uri(uri: &str) -> Result<Self> {
        uri::parse(uri)
    }

    /// Reads the environment variables of this process whose names start with `prefix` and `_`.
    ///
    /// | variable | sets |
    /// |---|---|
    /// | `…_URI` | all that [a URI](Self::from_uri) holds; the others override it |
    /// | `…_HOSTS` | [`hosts`](Self::hosts), with commas between |
    /// | `…_USER`, `…_VHOST` | [`user`](Self::user), [`vhost`](Self::vhost), as they are: not encoded |
    /// | `…_PASSWORD`, or `…_PASSWORD_FILE` | [`password`](Self::password), as it is; or a file that holds it, less the last line end |
    /// | `…_TLS` | `true`: [`tls`](Self::tls), `false`: none |
    /// | `…_TLS_CA_FILE`, `…_TLS_CERT_FILE`, `…_TLS_KEY_FILE`, `…_TLS_SERVER_NAME` | the fields of [`Tls`], and turn it on |
    /// | `…_HEARTBEAT_SECONDS`, `…_CONNECT_TIMEOUT_MS`, `…_PUBLISH_TIMEOUT_MS` | the time-outs, whole numbers |
    /// | `…_RECONNECT_DELAY_MS`, `…_RECONNECT_MAX_DELAY_MS`, `…_REFUSAL_PATIENCE_SECONDS` | the waits, whole numbers |
    /// | `…_PREFETCH`, `…_CONNECTION_NAME` | [`prefetch`](Self::prefetch), [`connection_name`](Self::connection_name) |
    ///
    /// Any other name with the prefix is refused, since a typo would otherwise be a default; so take a prefix that
    /// nothing else has, such as `ORDERS_RABBITMQ`. `RABBITMQ` is the broker's own. Left alone are the names that
    /// Kubernetes makes for a service (`…_SERVICE_HOST`, `…_PORT_5672_TCP`). A variable that is set but empty is
    /// refused too.
    ///
    /// # Errors
    ///
    /// `Invalid`, with the variable and the fix, never with a value.
    pub fn from_env(prefix: &str) -> Result<Self> {
        env::parse(prefix, env::of_process(prefix)?)
    }

    /// As [`from_env`](Self::from_env), from variables that are given by name and value. Those without the prefix are
    /// passed over.
    ///
    /// ```
    /// use windlass::rabbitmq::config::RabbitMqConfig;
    ///
    /// let vars = [("ORDERS_MQ_URI", "amqp://rabbit-1"), ("ORDERS_MQ_PASSWORD", "p@ss:/#%?")];
    /// let vars = vars.map(|(name, value)| (name.to_owned(), value.to_owned()));
    /// let config = RabbitMqConfig::from_vars("ORDERS_MQ", vars)?;
    /// assert_eq!(config.password.expose(), "p@ss:/#%?");
    /// # Ok::<(), windlass::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`from_env`](Self::from_env).
    pub fn from_vars(prefix: &str, vars: impl IntoIterator<Item = (String, String)>) -> Result<Self> {
        env::parse(prefix, vars)
    }

    /// Whether this can be right. Reads no file and asks no name server; [`Tls::check`] reads the files.
    ///
    /// # Errors
    ///
    /// `Invalid`, with the field and the fix: a value out of the range that its field documents; no host, or one that
    /// is no name or address; an empty user or virtual host, or one of more than 255 bytes; a NUL character in user or
    /// password; PEM text without a certificate or key.
    pub fn validate(&self) -> Result<()> {
        validate::validate(self)
    }

    /// The JSON schema of a document that [deserializes](Deserialize) into this, with each field's description,
    /// default and bounds. It holds no default password.
    #[cfg(feature = "schema")]
    pub fn json_schema() -> serde_json::Value {
        schemars::schema_for!(Self).to_value()
    }
}

/// guest at localhost, on the virtual host "/": a broker on the developer's own machine, as it comes.
impl Default for RabbitMqConfig {
    fn default() -> Self {
        Self {
            hosts: vec![Host::new("localhost")],
            user: "guest".to_owned(),
            password: Secret::from("guest"),
            vhost: "/".to_owned(),
            tls: None,
            heartbeat: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(10),
            prefetch: None,
            publish_timeout: Duration::from_secs(5),
            connection_name: None,
            reconnect_delay: Duration::from_millis(500),
            reconnect_max_delay: Duration::from_secs(30),
            refusal_patience: Duration::from_secs(60),
        }
    }
}

impl FromStr for RabbitMqConfig {
    type Err = Error;

    /// As [`from_uri`](Self::from_uri).
    fn from_str(uri: &str) -> Result<Self> {
        Self::from_uri(uri)
    }
}

macro_rules! setters {
    ($($field:ident $setter:ident($value:ident: $type:ty) $set:expr;)+) => {
        impl RabbitMqConfig {
            $(
                #[doc = concat!("Sets [`", stringify!($field), "`](Self::", stringify!($field), ").")]
                #[must_use]
                pub fn $setter(mut self, $value: $type) -> Self {
                    self.$field = $set;
                    self
                }
            )+
        }
    };
}

setters! {
    hosts with_hosts(hosts: impl IntoIterator<Item = Host>) hosts.into_iter().collect();
    user with_user(user: impl Into<String>) user.into();
    password with_password(password: impl Into<Secret>) password.into();
    vhost with_vhost(vhost: impl Into<String>) vhost.into();
    tls with_tls(tls: Tls) Some(tls);
    heartbeat with_heartbeat(heartbeat: Duration) heartbeat;
    connect_timeout with_connect_timeout(timeout: Duration) timeout;
    prefetch with_prefetch(prefetch: NonZeroU16) Some(prefetch);
    publish_timeout with_publish_timeout(timeout: Duration) timeout;
    connection_name with_connection_name(name: impl Into<String>) Some(name.into());
    reconnect_delay with_reconnect_delay(delay: Duration) delay;
    reconnect_max_delay with_reconnect_max_delay(delay: Duration) delay;
    refusal_patience with_refusal_patience(patience: Duration) patience;
}

/// Without user and password.
impl fmt::Debug for RabbitMqConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts: Vec<String> = self.hosts.iter().map(ToString::to_string).collect();
        f.debug_struct("RabbitMqConfig")
            .field("hosts", &hosts)
            .field("user", &format_args!("[hidden]"))
            .field("password", &self.password)
            .field("vhost", &self.vhost)
            .field("tls", &self.tls)
            .field("heartbeat", &self.heartbeat)
            .field("connect_timeout", &self.connect_timeout)
            .field("prefetch", &self.prefetch)
            .field("publish_timeout", &self.publish_timeout)
            .field("connection_name", &self.connection_name)
            .field("reconnect_delay", &self.reconnect_delay)
            .field("reconnect_max_delay", &self.reconnect_max_delay)
            .field("refusal_patience", &self.refusal_patience)
            .finish()
    }
}

/// A value that cannot be right; the text never holds a user or a password.
fn invalid(field: &str, fix: impl fmt::Display) -> Error {
    Error::new(ErrorKind::Invalid, "configure RabbitMQ").with_message(format!("{field}: {fix}"))
}
