//! One try to connect: ask for the configuration, go through the hosts, open the socket, shake hands. Every step is
//! bounded, and a try that is given up leaves neither a socket nor lapin's thread behind.

use std::fmt;
use std::io;
use std::net::Shutdown;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_compat::Compat;
use futures::future::BoxFuture;
use lapin::tcp::{AsyncTcpStream, RustlsConnector};
use lapin::uri::{AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo};
use tokio::net::TcpStream;

use super::config::{Host, RabbitMqConfig, Tls};
use super::event::Role;
use super::wire::{Guard, Guarded};
use super::{error, runtime};
use crate::clock::{Clock, within};
use crate::error::{Error, ErrorKind, Result};

/// Where the configuration comes from. It is asked again at each try to connect, so that rotated credentials and
/// certificates are used as soon as they are there.
#[derive(Clone)]
pub struct ConfigProvider(Arc<dyn Fn() -> BoxFuture<'static, Result<RabbitMqConfig>> + Send + Sync>);

impl ConfigProvider {
    /// Asks `ask` at each try. It is given as long as [`RabbitMqConfig::connect_timeout`] was at the try before, 10 s
    /// at first.
    pub fn new<F, A>(ask: F) -> Self
    where
        F: Fn() -> A + Send + Sync + 'static,
        A: Future<Output = Result<RabbitMqConfig>> + Send + 'static,
    {
        Self(Arc::new(move || Box::pin(ask())))
    }

    pub(super) fn ask(&self) -> BoxFuture<'static, Result<RabbitMqConfig>> {
        (self.0)()
    }
}

impl From<RabbitMqConfig> for ConfigProvider {
    fn from(config: RabbitMqConfig) -> Self {
        Self::new(move || {
            let config = config.clone();
            async { Ok(config) }
        })
    }
}

impl fmt::Debug for ConfigProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConfigProvider").finish_non_exhaustive()
    }
}

/// A connection, and the means to end it whatever its state.
pub(super) struct Connected {
    pub(super) connection: lapin::Connection,
    pub(super) socket: Socket,
    /// As `host:port`.
    pub(super) host: String,
}

/// A second handle on the socket of a connection. lapin's thread waits on the socket and has no time-out of its own:
/// shutting the socket down under it is what always ends it, for the broker too. Dropping this does.
pub(super) struct Socket(std::net::TcpStream);

impl Socket {
    pub(super) fn shut_down(&self) {
        // It fails where the socket is closed already.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.shut_down();
    }
}

/// Tries each host in turn, beginning with number `first`. The error is that of the last host; it is fatal only where
/// each host's is.
pub(super) async fn connect(
    config: &RabbitMqConfig,
    role: Role,
    first: usize,
    clock: &dyn Clock,
) -> Result<Connected> {
    // Read anew each time: certificates are rotated too.
    let tls = config.tls.as_ref().map(Tls::load).transpose()?;
    let mut hopeless = true;
    let mut last = None;
    for index in 0..config.hosts.len() {
        let host = &config.hosts[(first + index) % config.hosts.len()];
        let port = host.port_or_default(tls.is_some());
        let attempt = Attempt { config, role, host, port, tls: tls.as_ref() };
        match attempt.run(clock).await {
            Ok(connected) => return Ok(connected),
            Err(error) => {
                hopeless &= !error.is_transient();
                last = Some(error);
            }
        }
    }
    let last = last.unwrap_or_else(|| {
        Error::new(ErrorKind::Invalid, "connect").with_message("`hosts` is empty: name one host at least")
    });
    Err(last.with_transient(!hopeless))
}

struct Attempt<'a> {
    config: &'a RabbitMqConfig,
    role: Role,
    host: &'a Host,
    port: u16,
    tls: Option<&'a RustlsConnector>,
}

impl Attempt<'_> {
    async fn run(&self, clock: &dyn Clock) -> Result<Connected> {
        let host = self.address();
        let bound = self.config.connect_timeout;
        let connected = match within(clock, bound, self.dial(clock)).await {
            Some(connected) => connected,
            None => {
                Err(Error::new(ErrorKind::Timeout, "connect").with_message(format!("not within {bound:?}")))
            }
        };
        connected.map_err(|error| error.with_context("host", host))
    }

    fn address(&self) -> String {
        self.host.clone().with_port(self.port).to_string()
    }

    async fn dial(&self, clock: &dyn Clock) -> Result<Connected> {
        let io = |error: io::Error| disconnected(&error);
        let name = self.host.name.as_str();
        let stream = TcpStream::connect((name, self.port)).await.map_err(io)?;
        stream.set_nodelay(true).map_err(io)?;
        let stream = stream.into_std().map_err(io)?;
        // Dropped when this future is, which ends lapin's thread too.
        let socket = Socket(stream.try_clone().map_err(io)?);
        let stream = AsyncTcpStream::Plain(Compat::new(TcpStream::from_std(stream).map_err(io)?));
        let stream = match self.tls {
            None => stream,
            Some(connector) => {
                let server_name = self.config.tls.as_ref().and_then(|tls| tls.server_name.as_deref());
                let server_name = server_name.unwrap_or(name);
                stream.into_rustls(connector, server_name).await.map_err(|error| tls_failed(&error))?
            }
        };
        // The broker says how large a frame may be.
        let stream = Guarded::new(stream, Guard::new(0));
        let connection =
            runtime::connect(self.uri(), stream, self.properties(), clock).await.map_err(|error| {
                match error.kind() {
                    // By TLS 1.3 the broker says only after the handshake what it thinks of our certificate.
                    lapin::ErrorKind::IOError(error) if self.tls.is_some() => tls_failed(error),
                    _ => error::connecting(&error, &self.config.user),
                }
            })?;
        Ok(Connected { connection, socket, host: self.address() })
    }

    fn uri(&self) -> AMQPUri {
        let config = self.config;
        AMQPUri {
            scheme: if self.tls.is_some() { AMQPScheme::AMQPS } else { AMQPScheme::AMQP },
            authority: AMQPAuthority {
                userinfo: AMQPUserInfo {
                    username: config.user.clone(),
                    password: config.password.expose().to_owned(),
                },
                host: self.host.name.clone(),
                port: self.port,
            },
            vhost: config.vhost.clone(),
            query: AMQPQueryString {
                heartbeat: Some(u16::try_from(config.heartbeat.as_secs()).unwrap_or(u16::MAX)),
                ..AMQPQueryString::default()
            },
        }
    }

    fn properties(&self) -> lapin::ConnectionProperties {
        let name = self.config.connection_name.clone().unwrap_or_else(program);
        let name = format!("{name} ({})", self.role);
        lapin::ConnectionProperties::default()
            .with_connection_name(name.into())
            .with_client_property("product".into(), "windlass".into())
            .with_client_property("version".into(), env!("CARGO_PKG_VERSION").into())
    }
}

/// The name of this program, for people who look at the broker's list of connections.
fn program() -> String {
    let path = std::env::args_os().next().map(PathBuf::from);
    let name = path.as_deref().and_then(Path::file_stem).map(|name| name.to_string_lossy().into_owned());
    name.unwrap_or_else(|| "windlass".to_owned())
}

fn disconnected(error: &io::Error) -> Error {
    Error::new(ErrorKind::Disconnected, "connect").with_message(error.to_string())
}

/// A certificate that is not trusted or not for this host stays so: `InvalidData` is what rustls gives for all that is
/// wrong with what the peer sent.
fn tls_failed(error: &io::Error) -> Error {
    let hopeless = matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput);
    let kind = if hopeless { ErrorKind::Refused } else { ErrorKind::Disconnected };
    Error::new(kind, "connect").with_message(format!("TLS: {error}")).with_transient(!hopeless)
}
