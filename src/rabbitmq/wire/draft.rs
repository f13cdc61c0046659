//! A message that is being written: what it takes to make it fit into a frame.

use bytes::Bytes;
use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};

use super::Outgoing;
use super::broker::tells_of_death;
use super::headers::{Table, Unsendable, name, to_wire};
use super::properties::{Properties, invalid, write};
use super::size::{entry_len, header_frame_len};
use crate::error::{Error, Result};
use crate::message::{HeaderValue, Headers, Message};
use crate::source::Cause;

/// How many headers were left out of a dead letter, because they did not fit into a frame.
pub(super) const DROPPED: &str = "windlass-headers-dropped";

const DETAIL: &str = "windlass-cause-detail";

/// A detail that is cut shorter than this says nothing; then other headers have to go.
const SHORTEST_DETAIL: usize = 64;

/// A header frame that has more bytes than the broker takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::rabbitmq) struct TooLarge {
    pub(in crate::rabbitmq) len: usize,
    pub(in crate::rabbitmq) frame_max: u32,
}

impl TooLarge {
    /// `headers_too_large`, with both numbers.
    pub(in crate::rabbitmq) fn cause(self) -> Cause {
        let Self { len, frame_max } = self;
        Cause::new("headers_too_large")
            .with_detail(format!("a copy has {len} bytes of headers and properties; a frame has {frame_max}"))
    }
}

pub(super) struct Draft {
    properties: BasicProperties,
    headers: Table,
    body: Bytes,
}

impl Draft {
    /// # Errors
    ///
    /// `Invalid`, by name, for what AMQP cannot carry.
    pub(super) fn new<'a>(
        message: &Message,
        properties: &Properties,
        headers: impl Iterator<Item = (&'a str, &'a HeaderValue)>,
    ) -> Result<Self> {
        let properties = write(message, properties)?;
        let headers = headers.map(|(key, value)| entry(key, value).map_err(|why| unsendable(key, why)));
        Ok(Self { properties, headers: headers.collect::<Result<_>>()?, body: message.body().clone() })
    }

    /// For what was read from the wire: whatever cannot be sent all the same is left out, with a warning.
    pub(super) fn of_received(message: &Message, properties: &Properties, headers: &Headers) -> Result<Self> {
        let mut sendable = Table::new();
        for (key, value) in headers.iter() {
            match entry(key, value) {
                Ok((name, value)) => {
                    sendable.insert(name, value);
                }
                Err(why) => {
                    let why = why.fix();
                    tracing::warn!(
                        header = key,
                        message_id = message.id(),
                        why,
                        "a header is left out of the copy"
                    );
                }
            }
        }
        Ok(Self { properties: write(message, properties)?, headers: sendable, body: message.body().clone() })
    }

    /// How much the header frame is too long, and its length; `None` where it fits. A `frame_max` of zero is no limit.
    fn excess(&self, frame_max: u32) -> Option<(usize, TooLarge)> {
        let len = header_frame_len(&self.properties, &self.headers);
        let most = usize::try_from(frame_max).ok().filter(|most| *most > 0)?;
        len.checked_sub(most).filter(|excess| *excess > 0).map(|excess| (excess, TooLarge { len, frame_max }))
    }

    pub(super) fn finish(self, frame_max: u32) -> Result<Outgoing, TooLarge> {
        match self.excess(frame_max) {
            Some((_, too_large)) => Err(too_large),
            None => Ok(self.into_outgoing()),
        }
    }

    fn into_outgoing(self) -> Outgoing {
        let Self { mut properties, headers, body } = self;
        if !headers.is_empty() {
            properties = properties.with_headers(FieldTable::from(headers));
        }
        Outgoing { properties, body }
    }

    /// Gives up, of a message that is too large, what nobody sent: what the broker noted of its deaths, and then the
    /// end of the detail of a cause, where that is enough.
    pub(super) fn trim(&mut self, frame_max: u32) {
        if self.excess(frame_max).is_some() {
            self.headers.retain(|name, _| !tells_of_death(name.as_str()));
        }
        let Some((excess, _)) = self.excess(frame_max) else { return };
        let Some(AMQPValue::LongString(detail)) = self.headers.get(DETAIL) else { return };
        let Some(longest) = detail.len().checked_sub(excess).filter(|longest| *longest >= SHORTEST_DETAIL)
        else {
            return;
        };
        let Ok(text) = std::str::from_utf8(detail.as_bytes()) else { return };
        let end = (0..=longest).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        let shortened = AMQPValue::LongString(LongString::from(&text.as_bytes()[..end]));
        self.headers.entry(DETAIL.into()).and_modify(|detail| *detail = shortened);
    }

    /// Leaves out the largest headers until the rest fits, and notes how many; `kept` stay. A dead letter must go
    /// somewhere: it is worth more without some of its headers than not at all.
    pub(super) fn shed(&mut self, frame_max: u32, kept: &Headers) {
        if self.excess(frame_max).is_none() {
            return;
        }
        self.note_dropped(0);
        let mut sizes: Vec<(usize, ShortString)> = self
            .headers
            .iter()
            .filter(|(name, _)| name.as_str() != DROPPED && kept.get(name.as_str()).is_none())
            .map(|(name, value)| (entry_len(name, value), name.clone()))
            .collect();
        sizes.sort_unstable();
        let mut excess = self.excess(frame_max).map_or(0, |(excess, _)| excess);
        let mut dropped = 0;
        while excess > 0
            && let Some((len, largest)) = sizes.pop()
        {
            self.headers.remove(largest.as_str());
            excess = excess.saturating_sub(len);
            dropped += 1;
        }
        self.note_dropped(dropped);
    }

    fn note_dropped(&mut self, dropped: u32) {
        self.headers.insert(DROPPED.into(), AMQPValue::LongUInt(dropped));
    }
}

fn entry(key: &str, value: &HeaderValue) -> Result<(ShortString, AMQPValue), Unsendable> {
    Ok((name(key)?, to_wire(value)?))
}

fn unsendable(header: &str, why: Unsendable) -> Error {
    // A name that is too long would fill the line; its beginning tells which it is.
    let shown: String = header.chars().take(64).collect();
    invalid(&format!("header `{shown}`"), &why.fix())
}
