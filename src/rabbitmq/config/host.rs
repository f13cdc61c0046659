//! Where a broker listens: a name or an address, and a port.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use serde::de::{Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

use super::invalid;
use crate::error::{Error, Result};

/// One node of the broker: `"rabbit-1"`, `"rabbit-1:5673"`, `"10.0.0.7"`, `"[::1]"`, `"[::1]:5673"`.
///
/// ```
/// use windlass::rabbitmq::config::Host;
///
/// let host: Host = "[2001:db8::10]:5673".parse()?;
/// assert_eq!((host.name.as_str(), host.port), ("2001:db8::10", Some(5673)));
/// assert_eq!(host.to_string(), "[2001:db8::10]:5673");
/// # Ok::<(), windlass::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
#[non_exhaustive]
pub struct Host {
    /// A name, an IPv4 address, or an IPv6 address without its brackets (with a zone, where it needs one:
    /// `fe80::1%eth0`).
    pub name: String,
    /// The TCP port; `None` is the protocol's own, see [`port_or_default`](Self::port_or_default).
    pub port: Option<u16>,
}

impl Host {
    /// The port of AMQP 0-9-1.
    pub const AMQP: u16 = 5672;

    /// The port of AMQP 0-9-1 over TLS.
    pub const AMQPS: u16 = 5671;

    /// A name or an address, on the protocol's own port. Nothing is looked at: brackets around an IPv6 address are
    /// taken off, and a text that holds a port is [parsed](FromStr) instead.
    pub fn new(name: impl Into<String>) -> Self {
        let name = name.into();
        let name = match name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(address) => address.to_owned(),
            None => name,
        };
        Self { name, port: None }
    }

    /// Sets the port.
    #[must_use]
    pub fn with_port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// The port to connect to: the one that is set, else 5672, or 5671 with TLS.
    pub fn port_or_default(&self, tls: bool) -> u16 {
        self.port.unwrap_or(if tls { Self::AMQPS } else { Self::AMQP })
    }

    /// Reads one host, and says what is wrong with it in words that do not hold its text: that may be a piece of a
    /// password, where the text comes from a URI that is not written right. `decode` is applied to the name.
    pub(super) fn read<E: From<&'static str>>(
        text: &str,
        decode: impl FnOnce(&str) -> Result<String, E>,
    ) -> Result<Self, E> {
        let (name, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (address, rest) = rest.split_once(']').ok_or("has a '[' without its ']'")?;
                let port = match rest.strip_prefix(':') {
                    Some(port) => port,
                    None if rest.is_empty() => "",
                    None => return Err("has something other than a port behind its ']'".into()),
                };
                let address = decode(address)?;
                if !is_ipv6(&address) {
                    return Err("has no IPv6 address between its brackets".into());
                }
                (address, port)
            }
            None => {
                let (name, port) = text.split_once(':').unwrap_or((text, ""));
                if port.contains(':') {
                    return Err(
                        "holds more than one ':'; an IPv6 address stands in brackets, as in [::1]:5672"
                            .into(),
                    );
                }
                let name = decode(name)?;
                if name.contains(':') {
                    return Err(
                        "holds an encoded ':'; an IPv6 address stands in brackets, as in [::1]".into()
                    );
                }
                (name, port)
            }
        };
        let port = if port.is_empty() { None } else { Some(read_port(port)?) };
        let host = Self { name, port };
        host.check()?;
        Ok(host)
    }

    /// What is wrong with this host, in words that do not hold it.
    pub(super) fn check(&self) -> Result<(), &'static str> {
        if self.port == Some(0) {
            return Err("has port 0; a port is a number from 1 to 65535");
        }
        if self.name.is_empty() {
            return Err("has no name");
        }
        let unfit = |c: char| c.is_whitespace() || c.is_control() || "/?#@[]:,%\\".contains(c);
        if is_ipv6(&self.name) || (self.name.len() <= 253 && !self.name.contains(unfit)) {
            return Ok(());
        }
        Err("is neither a name nor an address; write host, host:port or [IPv6 address]:port")
    }
}

/// Digits only: `u16` would also read `+5672`.
fn read_port(text: &str) -> Result<u16, &'static str> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let port = if digits { text.parse().unwrap_or(0) } else { 0 };
    if port == 0 { Err("has a port that is not a number from 1 to 65535") } else { Ok(port) }
}

fn is_ipv6(text: &str) -> bool {
    let (address, zone) = text.split_once('%').unwrap_or((text, "lo"));
    let fits = |c: char| c.is_ascii_alphanumeric() || "-._~".contains(c);
    address.parse::<Ipv6Addr>().is_ok() && !zone.is_empty() && zone.chars().all(fits)
}

impl FromStr for Host {
    type Err = Error;

    /// # Errors
    ///
    /// `Invalid`; the text that does not parse is not in the error.
    fn from_str(text: &str) -> Result<Self> {
        Self::read(text, |name| Ok::<_, &'static str>(name.to_owned()))
            .map_err(|wrong| invalid("hosts", format!("a host {wrong}")))
    }
}

impl TryFrom<String> for Host {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<Host> for String {
    fn from(host: Host) -> Self {
        host.to_string()
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name.contains(':') {
            write!(f, "[{}]", self.name)?;
        } else {
            f.write_str(&self.name)?;
        }
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => Ok(()),
        }
    }
}

/// A list of hosts, whose errors do not quote what stands in its place: that may be a URI with a password.
pub(super) fn list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Host>, D::Error> {
    deserializer.deserialize_any(List)
}

struct List;

impl<'de> Visitor<'de> for List {
    type Value = Vec<Host>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of hosts")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<Host>, A::Error> {
        let mut hosts = Vec::new();
        while let Some(host) = list.next_element()? {
            hosts.push(host);
        }
        Ok(hosts)
    }

    fn visit_str<E: serde::de::Error>(self, _: &str) -> Result<Vec<Host>, E> {
        Err(E::custom("expected a list of hosts, not text"))
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Host {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Host".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "minLength": 1,
            "description": "A node of the broker: a name or an address, and a port where it is not 5672 (5671 with \
                TLS). An IPv6 address stands in brackets.",
            "examples": ["rabbit-1", "rabbit-1:5673", "[::1]:5672"],
        })
    }
}
