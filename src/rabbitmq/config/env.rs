//! The configuration from environment variables that share a prefix.
//!
//! Takes the variables as pairs, so that it can be tested without the process's own. No error holds a value.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::num::NonZeroU16;
use std::time::Duration;

use super::tls::{ClientCertificate, Pem, Tls};
use super::{RabbitMqConfig, Secret, invalid, uri};
use crate::error::{Error, Result};

/// Every variable of the adapter, without its prefix.
const KNOWN: &[&str] = &[
    "URI",
    "HOSTS",
    "USER",
    "PASSWORD",
    "PASSWORD_FILE",
    "VHOST",
    "TLS",
    "TLS_CA_FILE",
    "TLS_CERT_FILE",
    "TLS_KEY_FILE",
    "TLS_SERVER_NAME",
    "HEARTBEAT_SECONDS",
    "CONNECT_TIMEOUT_MS",
    "PREFETCH",
    "PUBLISH_TIMEOUT_MS",
    "CONNECTION_NAME",
    "RECONNECT_DELAY_MS",
    "RECONNECT_MAX_DELAY_MS",
    "REFUSAL_PATIENCE_SECONDS",
];

/// The variables of the process that carry the prefix.
pub(crate) fn of_process(prefix: &str) -> Result<Vec<(String, String)>> {
    let prefix = checked(prefix)?;
    let mut found = Vec::new();
    for (name, value) in std::env::vars_os() {
        let Some(name) = name.to_str().filter(|name| name.starts_with(prefix)) else { continue };
        match value.into_string() {
            Ok(value) => found.push((name.to_owned(), value)),
            Err(_) => return Err(invalid(name, "is not UTF-8")),
        }
    }
    Ok(found)
}

pub(super) fn parse(
    prefix: &str,
    vars: impl IntoIterator<Item = (String, String)>,
) -> Result<RabbitMqConfig> {
    let mut vars = Vars::new(prefix, KNOWN, vars)?;
    let mut config = match vars.take("URI") {
        Some(text) => uri::parse(&text).map_err(|error| vars.wrong("URI", said_of("uri", &error)))?,
        None => RabbitMqConfig::default(),
    };
    if let Some(hosts) = vars.take("HOSTS") {
        let hosts = hosts.split(',').map(|host| host.trim().parse()).collect::<Result<_>>();
        let fix = "must be one host or several with commas between: host, host:port or [IPv6 address]:port";
        config.hosts = hosts.map_err(|_| vars.wrong("HOSTS", fix))?;
    }
    set(&mut config.user, vars.take("USER"));
    set(&mut config.vhost, vars.take("VHOST"));
    set(&mut config.password, password(&mut vars)?);
    set_tls(&mut config.tls, &mut vars)?;
    set(&mut config.heartbeat, vars.number("HEARTBEAT_SECONDS")?.map(Duration::from_secs));
    set(&mut config.connect_timeout, vars.number("CONNECT_TIMEOUT_MS")?.map(Duration::from_millis));
    set(&mut config.publish_timeout, vars.number("PUBLISH_TIMEOUT_MS")?.map(Duration::from_millis));
    set(&mut config.reconnect_delay, vars.number("RECONNECT_DELAY_MS")?.map(Duration::from_millis));
    set(&mut config.reconnect_max_delay, vars.number("RECONNECT_MAX_DELAY_MS")?.map(Duration::from_millis));
    set(&mut config.refusal_patience, vars.number("REFUSAL_PATIENCE_SECONDS")?.map(Duration::from_secs));
    if let Some(prefetch) = vars.number("PREFETCH")? {
        let prefetch = u16::try_from(prefetch).ok().and_then(NonZeroU16::new);
        let fix = "must be a whole number from 1 to 65535";
        config.prefetch = Some(prefetch.ok_or_else(|| vars.wrong("PREFETCH", fix))?);
    }
    if let Some(name) = vars.take("CONNECTION_NAME") {
        config.connection_name = Some(name);
    }
    Ok(config)
}

pub(crate) fn set<T>(field: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *field = value;
    }
}

/// What was said of a field, without its name, in whose place the variable is named.
pub(crate) fn said_of(field: &str, error: &Error) -> String {
    let message = error.message().unwrap_or_default();
    let said = message.strip_prefix(field).and_then(|rest| rest.strip_prefix(": "));
    said.unwrap_or(message).to_owned()
}

/// The file's last line end is no part of the password: editors and `echo` put one there.
pub(crate) fn password(vars: &mut Vars) -> Result<Option<Secret>> {
    let password = vars.take("PASSWORD");
    let Some(path) = vars.take("PASSWORD_FILE") else { return Ok(password.map(Secret::from)) };
    if password.is_some() {
        return Err(vars.wrong("PASSWORD_FILE", "cannot stand beside PASSWORD; unset one of them"));
    }
    // Reading as text would put the bytes that are no text into the error.
    let bytes = fs::read(path).map_err(|error| {
        vars.wrong("PASSWORD_FILE", "names a file that cannot be read").with_source(error)
    })?;
    let Ok(text) = std::str::from_utf8(&bytes) else {
        return Err(vars.wrong("PASSWORD_FILE", "names a file that is not UTF-8"));
    };
    let text = text.strip_suffix('\n').unwrap_or(text);
    let text = text.strip_suffix('\r').unwrap_or(text);
    if text.is_empty() {
        return Err(vars.wrong("PASSWORD_FILE", "names a file that is empty"));
    }
    Ok(Some(Secret::from(text)))
}

/// Each of the variables turns TLS on, whatever the URI says; `TLS=false` turns it off.
pub(crate) fn set_tls(tls: &mut Option<Tls>, vars: &mut Vars) -> Result<()> {
    let wanted = match vars.take("TLS").as_deref() {
        None => None,
        Some("true") => Some(true),
        Some("false") => Some(false),
        Some(_) => return Err(vars.wrong("TLS", "must be true or false")),
    };
    let ca = vars.take("TLS_CA_FILE").map(Pem::file);
    let client = match (vars.take("TLS_CERT_FILE"), vars.take("TLS_KEY_FILE")) {
        (Some(certificate), Some(key)) => {
            Some(ClientCertificate { certificate: Pem::file(certificate), key: Pem::file(key) })
        }
        (None, None) => None,
        (Some(_), None) => return Err(vars.wrong("TLS_CERT_FILE", "needs TLS_KEY_FILE beside it")),
        (None, Some(_)) => return Err(vars.wrong("TLS_KEY_FILE", "needs TLS_CERT_FILE beside it")),
    };
    let server_name = vars.take("TLS_SERVER_NAME");
    let details = ca.is_some() || client.is_some() || server_name.is_some();
    if wanted == Some(false) {
        if details {
            return Err(vars.wrong("TLS", "is false, but other TLS variables are set; unset them or it"));
        }
        *tls = None;
        return Ok(());
    }
    if wanted.is_none() && !details {
        return Ok(());
    }
    let before = tls.take().unwrap_or_default();
    *tls = Some(Tls {
        ca: ca.or(before.ca),
        client: client.or(before.client),
        server_name: server_name.or(before.server_name),
    });
    Ok(())
}

/// The variables with the prefix, by their name behind it.
pub(crate) struct Vars {
    prefix: String,
    known: &'static [&'static str],
    values: BTreeMap<String, String>,
}

impl Vars {
    pub(crate) fn new(
        prefix: &str,
        known: &'static [&'static str],
        vars: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self> {
        let mut all = Self { prefix: checked(prefix)?.to_owned(), known, values: BTreeMap::new() };
        for (full, value) in vars {
            let Some(name) = full.strip_prefix(&all.prefix).and_then(|rest| rest.strip_prefix('_')) else {
                continue;
            };
            if is_service_link(name, &value) {
                continue;
            }
            if !known.contains(&name) {
                return Err(all.unknown(name));
            }
            if value.is_empty() {
                return Err(all.wrong(name, "is set but empty; give it a value, or unset it"));
            }
            all.values.insert(name.to_owned(), value);
        }
        Ok(all)
    }

    pub(crate) fn take(&mut self, name: &str) -> Option<String> {
        self.values.remove(name)
    }

    pub(crate) fn number(&mut self, name: &str) -> Result<Option<u64>> {
        let Some(text) = self.take(name) else { return Ok(None) };
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        match text.parse() {
            Ok(number) if digits => Ok(Some(number)),
            _ => Err(self.wrong(name, "must be a whole number, without a unit")),
        }
    }

    pub(crate) fn wrong(&self, name: &str, fix: impl fmt::Display) -> Error {
        invalid(&format!("{}_{name}", self.prefix), fix.to_string())
    }

    fn unknown(&self, name: &str) -> Error {
        let known = self.known.join(", ");
        let fix = format!("is not known; behind {}_ can stand: {known}", self.prefix);
        self.wrong(name, fix)
    }
}

/// Without its last `_`. An empty prefix would read the user of the machine (`USER`) as that of the broker.
fn checked(prefix: &str) -> Result<&str> {
    let name = prefix.strip_suffix('_').unwrap_or(prefix);
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_empty() || !name.chars().all(fits) {
        return Err(invalid("prefix", "must be letters, digits and '_', such as ORDERS_RABBITMQ"));
    }
    Ok(name)
}

/// Kubernetes sets variables for each service, by the service's name: `RABBITMQ_SERVICE_HOST`,
/// `RABBITMQ_PORT=tcp://10.0.0.1:5672`, `RABBITMQ_PORT_5672_TCP_ADDR`. Nobody wrote those, so they are no typos.
fn is_service_link(name: &str, value: &str) -> bool {
    let port = name.strip_prefix("PORT_").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    let link = name == "PORT" && value.contains("://");
    port || link || name == "SERVICE_HOST" || name == "SERVICE_PORT" || name.starts_with("SERVICE_PORT_")
}
