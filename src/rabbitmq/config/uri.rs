//! `amqp://` and `amqps://`, by RabbitMQ's URI specification.
//!
//! By hand, since a general URL parser leaves the host of such a scheme encoded, and tells a missing virtual host from
//! an empty one only by accident. No error quotes a part of the URI that may be a piece of the user or the password:
//! where one of them has a raw `@`, `/`, `?` or `#` in it, that piece stands where a host, port or path should be.

use std::fmt;
use std::time::Duration;

use percent_encoding::percent_decode_str;

use super::tls::{ClientCertificate, Pem, Tls};
use super::{Host, RabbitMqConfig, Secret, invalid};
use crate::error::{Error, Result};

/// Parameters of RabbitMQ's own clients that are refused, and why.
const REFUSED: &[(&str, &str)] = &[
    ("auth_mechanism", "is not taken; the login is PLAIN, over TLS too"),
    ("channel_max", "is not taken; the broker's limit holds, and few channels are opened"),
    ("depth", "is not taken; how long a chain of certificates may be is up to rustls"),
    ("fail_if_no_peer_cert", "is for servers"),
    ("frame_max", "is not taken; the broker's limit holds, since headers must fit into one frame"),
    ("password", "is not taken; give a key that is not encrypted"),
];

pub(super) fn parse(uri: &str) -> Result<RabbitMqConfig> {
    let (tls, rest) = match uri.split_once("://") {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("amqp") => (false, rest),
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("amqps") => (true, rest),
        _ => return Err(wrong("must start with amqp:// or amqps://")),
    };
    if rest.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err(wrong(
            "holds a space, a line end or the like; write them percent-encoded, or take them out",
        ));
    }
    if rest.contains('#') {
        return Err(wrong("holds a '#'; in user, password and virtual host write it as %23"));
    }
    let (authority, tail) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    if tail.contains('@') {
        return Err(wrong(
            "holds a '@' behind the host; write '/' as %2F and '?' as %3F in user and password, and '@' as %40 in all",
        ));
    }
    let (path, query) = match tail.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (tail, None),
    };
    let mut config = RabbitMqConfig { tls: tls.then(Tls::default), ..RabbitMqConfig::default() };
    read_authority(authority, &mut config)?;
    read_path(path, &mut config)?;
    read_query(query.unwrap_or_default(), &mut config)?;
    Ok(config)
}

/// `user:password@host:port,host:port`, each of them optional. Missing is the default; empty is empty.
fn read_authority(authority: &str, config: &mut RabbitMqConfig) -> Result<()> {
    let (login, hosts) = match authority.rsplit_once('@') {
        Some((login, hosts)) => (Some(login), hosts),
        None => (None, authority),
    };
    if let Some(login) = login {
        if login.contains('@') {
            return Err(wrong(
                "holds more than one '@'; write it as %40 in user and password, which stand once for all hosts",
            ));
        }
        let (user, password) = match login.split_once(':') {
            Some((user, password)) => (user, Some(password)),
            None => (login, None),
        };
        config.user = decode("the user", user)?;
        if let Some(password) = password {
            config.password = Secret::from(decode("the password", password)?);
        }
    }
    let texts: Vec<&str> = hosts.split(',').collect();
    config.hosts = match texts.as_slice() {
        [only] if only.is_empty() || only.starts_with(':') => {
            vec![read_host(&format!("localhost{only}"), 1)?]
        }
        texts => texts.iter().zip(1..).map(|(text, nth)| read_host(text, nth)).collect::<Result<_>>()?,
    };
    Ok(())
}

fn read_host(text: &str, nth: usize) -> Result<Host> {
    Host::read(text, |name| decode("a host", name).map_err(Unread::Escape)).map_err(|unread| match unread {
        Unread::Escape(error) => error,
        Unread::Host(what) => wrong(format!(
            "host {nth} {what}; or is it a piece of user or password, where '@', '/', '?' and '#' must be written as \
             %40, %2F, %3F and %23"
        )),
    })
}

/// Why a host could not be read.
enum Unread {
    Escape(Error),
    Host(&'static str),
}

impl From<&'static str> for Unread {
    fn from(what: &'static str) -> Self {
        Self::Host(what)
    }
}

/// Nothing is the default virtual host; `/` is the one with the empty name, which `validate` refuses.
fn read_path(path: &str, config: &mut RabbitMqConfig) -> Result<()> {
    let Some(vhost) = path.strip_prefix('/') else { return Ok(()) };
    if vhost.contains('/') {
        return Err(wrong("holds a '/' in the virtual host; write it as %2F, as in amqp://host/%2F"));
    }
    config.vhost = decode("the virtual host", vhost)?;
    Ok(())
}

/// The parameters that RabbitMQ's own clients take, as far as there is something here that they can set.
fn read_query(query: &str, config: &mut RabbitMqConfig) -> Result<()> {
    let mut seen: Vec<String> = Vec::new();
    let (mut certificate, mut key) = (None, None);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (name, value) = (decode("a parameter", name)?, decode("a parameter", value)?);
        if value.is_empty() {
            return Err(parameter(&name, "has no value"));
        }
        match name.as_str() {
            "heartbeat" => config.heartbeat = Duration::from_secs(number(&name, &value, "seconds")?),
            "connection_timeout" => {
                config.connect_timeout = Duration::from_millis(number(&name, &value, "milliseconds")?);
            }
            "cacertfile" => tls(config, &name)?.ca = Some(Pem::file(value)),
            "certfile" => {
                tls(config, &name)?;
                certificate = Some(Pem::file(value));
            }
            "keyfile" => {
                tls(config, &name)?;
                key = Some(Pem::file(value));
            }
            "server_name_indication" => tls(config, &name)?.server_name = Some(value),
            // What we do anyhow.
            "verify" if value == "verify_peer" => {
                tls(config, &name)?;
            }
            "verify" => {
                return Err(parameter(&name, "can only be verify_peer; the broker is always checked"));
            }
            _ => {
                let refused = REFUSED.iter().find(|(refused, _)| *refused == name);
                return Err(parameter(&name, refused.map_or("is not known", |(_, why)| *why)));
            }
        }
        if seen.contains(&name) {
            return Err(parameter(&name, "is given twice"));
        }
        seen.push(name);
    }
    match (certificate, key) {
        (None, None) => Ok(()),
        (Some(certificate), Some(key)) => {
            tls(config, "certfile")?.client = Some(ClientCertificate { certificate, key });
            Ok(())
        }
        (Some(_), None) => Err(parameter("certfile", "needs keyfile beside it")),
        (None, Some(_)) => Err(parameter("keyfile", "needs certfile beside it")),
    }
}

fn tls<'a>(config: &'a mut RabbitMqConfig, name: &str) -> Result<&'a mut Tls> {
    config.tls.as_mut().ok_or_else(|| parameter(name, "needs amqps://"))
}

fn number(name: &str, value: &str, unit: &str) -> Result<u64> {
    let digits = value.bytes().all(|byte| byte.is_ascii_digit());
    let number = if digits { value.parse().ok() } else { None };
    number.ok_or_else(|| parameter(name, &format!("must be a whole number of {unit}")))
}

/// Strict, where the crate would let `%t` pass as it is: whoever wrote that forgot to encode the `%`.
fn decode(what: &str, text: &str) -> Result<String> {
    for (at, _) in text.match_indices('%') {
        let digits = text.as_bytes().get(at + 1..at + 3);
        if !digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)) {
            return Err(wrong(format!(
                "{what} holds a '%' without two hex digits behind it; write '%' as %25"
            )));
        }
    }
    match percent_decode_str(text).decode_utf8() {
        Ok(text) => Ok(text.into_owned()),
        Err(_) => Err(wrong(format!("{what} is not UTF-8 once it is decoded"))),
    }
}

/// The name is quoted only where it looks like one.
fn parameter(name: &str, what: &str) -> Error {
    let plain =
        !name.is_empty() && name.len() <= 40 && name.bytes().all(|c| c.is_ascii_lowercase() || c == b'_');
    if plain { wrong(format!("the parameter {name} {what}")) } else { wrong(format!("a parameter {what}")) }
}

fn wrong(what: impl fmt::Display) -> Error {
    invalid("uri", what)
}
