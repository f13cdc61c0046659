//! What a configuration must be, said in words that name the field and the fix.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::tls::can_be_certified;
use super::{RabbitMqConfig, invalid};
use crate::error::Result;

/// A short string of AMQP 0-9-1.
const SHORT_STRING: usize = 255;

const HEARTBEAT: RangeInclusive<u64> = 1..=600;
const CONNECT_TIMEOUT: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(5 * 60);
const PUBLISH_TIMEOUT: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(30);
const RECONNECT: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(60 * 60);

pub(super) fn validate(config: &RabbitMqConfig) -> Result<()> {
    hosts(config)?;
    login(config)?;
    if let Some(tls) = &config.tls {
        tls.validate()?;
    }
    if config.heartbeat.subsec_nanos() != 0 || !HEARTBEAT.contains(&config.heartbeat.as_secs()) {
        return Err(invalid(
            "heartbeat",
            format!(
                "must be whole seconds from 1 to 600, not {:?}; without it a cut connection may go unnoticed",
                config.heartbeat
            ),
        ));
    }
    within("connect_timeout", config.connect_timeout, &CONNECT_TIMEOUT)?;
    within("publish_timeout", config.publish_timeout, &PUBLISH_TIMEOUT)?;
    within("reconnect_delay", config.reconnect_delay, &RECONNECT)?;
    within("reconnect_max_delay", config.reconnect_max_delay, &RECONNECT)?;
    if config.reconnect_max_delay < config.reconnect_delay {
        return Err(invalid("reconnect_max_delay", "must not be shorter than reconnect_delay"));
    }
    match &config.connection_name {
        Some(name) if name.is_empty() => {
            Err(invalid("connection_name", "is empty; leave it out for the default"))
        }
        Some(name) => short("connection_name", name),
        None => Ok(()),
    }
}

fn hosts(config: &RabbitMqConfig) -> Result<()> {
    if config.hosts.is_empty() {
        return Err(invalid("hosts", "is empty; name at least one host"));
    }
    for (host, nth) in config.hosts.iter().zip(1..) {
        host.check().map_err(|wrong| invalid("hosts", format!("host {nth} {wrong}")))?;
        let by_host = config.tls.as_ref().is_some_and(|tls| tls.server_name.is_none());
        if by_host && !can_be_certified(&host.name) {
            let fix = format!("host {nth} has a name that no certificate can carry; set tls.server_name");
            return Err(invalid("hosts", fix));
        }
    }
    Ok(())
}

fn login(config: &RabbitMqConfig) -> Result<()> {
    if config.user.is_empty() {
        return Err(invalid("user", "is empty; name the user to log in as"));
    }
    short("user", &config.user)?;
    // The login is sent as NUL, user, NUL, password (RFC 4616).
    if config.user.contains('\0') {
        return Err(invalid("user", "holds a NUL character, which a login cannot carry"));
    }
    if config.password.expose().contains('\0') {
        return Err(invalid("password", "holds a NUL character, which a login cannot carry"));
    }
    if config.vhost.is_empty() {
        return Err(invalid(
            "vhost",
            "is empty, and RabbitMQ has no such virtual host; the default one is \"/\", in a URI amqp://host/%2f or \
             amqp://host",
        ));
    }
    short("vhost", &config.vhost)
}

fn short(field: &str, text: &str) -> Result<()> {
    if text.len() <= SHORT_STRING {
        return Ok(());
    }
    Err(invalid(field, format!("has {} bytes; at most {SHORT_STRING} can be sent", text.len())))
}

fn within(field: &str, value: Duration, range: &RangeInclusive<Duration>) -> Result<()> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(invalid(field, format!("must be from {:?} to {:?}, not {value:?}", range.start(), range.end())))
}
