//! The properties that RabbitMQ has beyond those of every broker, and how a message came.

use std::time::{Duration, SystemTime};

use lapin::BasicProperties;
use lapin::types::{MAX_SHORT_STRING_LENGTH, ShortString};

use crate::error::{Error, ErrorKind, Result};
use crate::message::Message;
use crate::rabbitmq::ladder::LONGEST_DELAY;

/// What the broker reads as persistent; every other delivery mode, and none, is transient.
const PERSISTENT: u8 = 2;

/// Names the channel that it is published on as the place for replies. The broker closes that channel where nobody
/// consumes replies on it.
const DIRECT_REPLY_TO: &str = "amq.rabbitmq.reply-to";

/// The properties of an AMQP 0-9-1 message that [`Message`] has no place for.
///
/// To publish with them, hand them over with [`Message::with_metadata`]; what came with a delivery is in
/// [`Delivered::properties`].
///
/// ```
/// use std::time::Duration;
/// use windlass::Message;
/// use windlass::rabbitmq::Properties;
///
/// let properties = Properties::default().with_priority(5).with_expiration(Duration::from_secs(60));
/// let message = Message::new("{}").with_metadata(properties);
/// assert_eq!(message.metadata::<Properties>().and_then(|properties| properties.priority), Some(5));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Properties {
    /// The priority, on queues that have priorities; higher ones come first.
    pub priority: Option<u8>,
    /// When the message was made, in seconds since the Unix epoch, as it came: some publishers write milliseconds, and
    /// any 64-bit number is possible. [`timestamp()`](Self::timestamp()) is the date.
    pub timestamp: Option<u64>,
    /// How long the message may lie in a queue before the broker drops or dead-letters it. Sent in whole milliseconds,
    /// rounded up; zero means at once, unless a consumer is waiting. At most
    /// [`LONGEST_DELAY`](crate::rabbitmq::ladder::LONGEST_DELAY). What came as text that is no whole number is `None`.
    pub expiration: Option<Duration>,
    /// What kind of message it is: AMQP's property `type`.
    pub kind: Option<String>,
    /// The application that sent it.
    pub app_id: Option<String>,
    /// Where the answer should go. `amq.rabbitmq.reply-to`, the broker's direct reply-to, cannot be sent: it means the
    /// publisher's own channel, on which nobody waits for answers.
    pub reply_to: Option<String>,
    /// The user that sent it. The broker refuses every other than the one that this connection logged in as.
    pub user_id: Option<String>,
    /// Of no use today; the broker carries it.
    pub cluster_id: Option<String>,
    /// Whether the message outlives a restart of the broker in a durable classic queue; in a quorum queue every message
    /// does. True by default.
    pub persistent: bool,
}

impl Default for Properties {
    /// Persistent, and nothing else set.
    fn default() -> Self {
        Self {
            priority: None,
            timestamp: None,
            expiration: None,
            kind: None,
            app_id: None,
            reply_to: None,
            user_id: None,
            cluster_id: None,
            persistent: true,
        }
    }
}

impl Properties {
    /// Sets the priority.
    #[must_use]
    pub fn with_priority(mut self, priority: u8) -> Self {
        self.priority = Some(priority);
        self
    }

    /// Says when the message was made, in seconds since the Unix epoch.
    #[must_use]
    pub fn with_timestamp(mut self, seconds: u64) -> Self {
        self.timestamp = Some(seconds);
        self
    }

    /// Sets how long the message may lie in a queue.
    #[must_use]
    pub fn with_expiration(mut self, expiration: Duration) -> Self {
        self.expiration = Some(expiration);
        self
    }

    /// Says what kind of message it is.
    #[must_use]
    pub fn with_kind(mut self, kind: impl Into<String>) -> Self {
        self.kind = Some(kind.into());
        self
    }

    /// Names the application that sends it.
    #[must_use]
    pub fn with_app_id(mut self, app_id: impl Into<String>) -> Self {
        self.app_id = Some(app_id.into());
        self
    }

    /// Says where the answer should go.
    #[must_use]
    pub fn with_reply_to(mut self, reply_to: impl Into<String>) -> Self {
        self.reply_to = Some(reply_to.into());
        self
    }

    /// Names the user that sends it.
    #[must_use]
    pub fn with_user_id(mut self, user_id: impl Into<String>) -> Self {
        self.user_id = Some(user_id.into());
        self
    }

    /// Sets the cluster id.
    #[must_use]
    pub fn with_cluster_id(mut self, cluster_id: impl Into<String>) -> Self {
        self.cluster_id = Some(cluster_id.into());
        self
    }

    /// Says whether the message outlives a restart of the broker.
    #[must_use]
    pub fn with_persistent(mut self, persistent: bool) -> Self {
        self.persistent = persistent;
        self
    }

    /// When the message was made; `None` where that was not said, or is no date that this machine can hold.
    pub fn timestamp(&self) -> Option<SystemTime> {
        SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(self.timestamp?))
    }

    fn read(wire: &BasicProperties) -> Self {
        Self {
            priority: *wire.priority(),
            timestamp: *wire.timestamp(),
            expiration: wire.expiration().as_ref().and_then(|text| expiration_of(text.as_str())),
            kind: text_of(wire.kind()),
            app_id: text_of(wire.app_id()),
            reply_to: text_of(wire.reply_to()),
            user_id: text_of(wire.user_id()),
            cluster_id: text_of(wire.cluster_id()),
            persistent: *wire.delivery_mode() == Some(PERSISTENT),
        }
    }
}

/// How a message came, beyond what [`Message`] says: on every message that a RabbitMQ source delivers, by
/// [`Message::metadata`].
///
/// A retried or dead-lettered message comes through the default exchange, with the name of its queue as routing key.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Delivered {
    /// The exchange that it was published to; empty for the default exchange.
    pub exchange: String,
    /// The routing key that it was published with.
    pub routing_key: String,
    /// Its properties, as they came.
    pub properties: Properties,
}

impl Delivered {
    pub(super) fn new(exchange: ShortString, routing_key: ShortString, wire: &BasicProperties) -> Self {
        Self {
            exchange: exchange.into(),
            routing_key: routing_key.into(),
            properties: Properties::read(wire),
        }
    }

    /// The properties that a copy has, or the message when it is published onward.
    ///
    /// Not the user: the broker refuses those that are not this connection's. Not the expiration: the copy would end
    /// in the wait queue, and whoever gave the message so long to live did not mean another one. Not the place for
    /// direct replies: it is another channel's. Persistent, whatever the original was: it can only be safer.
    pub(super) fn carried(&self) -> Properties {
        Properties {
            reply_to: self.properties.reply_to.clone().filter(|reply_to| reply_to != DIRECT_REPLY_TO),
            kind: self.properties.kind.clone(),
            app_id: self.properties.app_id.clone(),
            user_id: None,
            cluster_id: None,
            expiration: None,
            persistent: true,
            ..self.properties
        }
    }
}

/// The properties of `message` on the wire, with `more`; all but the headers. An error is one of `publish`.
pub(super) fn write(message: &Message, more: &Properties) -> Result<BasicProperties> {
    let mut wire = BasicProperties::default()
        .with_delivery_mode(if more.persistent { PERSISTENT } else { 1 })
        .with_message_id(short("message id", message.id())?);
    if let Some(text) = message.content_type() {
        wire = wire.with_content_type(short("content type", text)?);
    }
    if let Some(text) = message.content_encoding() {
        wire = wire.with_content_encoding(short("content encoding", text)?);
    }
    if let Some(text) = message.correlation_property() {
        wire = wire.with_correlation_id(short("correlation id", text)?);
    }
    if let Some(priority) = more.priority {
        wire = wire.with_priority(priority);
    }
    if let Some(seconds) = more.timestamp {
        wire = wire.with_timestamp(seconds);
    }
    if let Some(expiration) = more.expiration {
        wire = wire.with_expiration(expiration_text(expiration)?);
    }
    if let Some(text) = &more.kind {
        wire = wire.with_type(short("type", text)?);
    }
    if let Some(text) = &more.app_id {
        wire = wire.with_app_id(short("app id", text)?);
    }
    if let Some(text) = &more.reply_to {
        if text == DIRECT_REPLY_TO {
            let fix = format!("`{DIRECT_REPLY_TO}` means this publisher's own channel; name a queue");
            return Err(invalid("reply to", &fix));
        }
        wire = wire.with_reply_to(short("reply to", text)?);
    }
    if let Some(text) = &more.user_id {
        wire = wire.with_user_id(short("user id", text)?);
    }
    if let Some(text) = &more.cluster_id {
        wire = wire.with_cluster_id(short("cluster id", text)?);
    }
    Ok(wire)
}

/// A message that cannot be sent, by the field that is wrong.
pub(super) fn invalid(field: &str, fix: &str) -> Error {
    Error::new(ErrorKind::Invalid, "publish").with_message(format!("{field}: {fix}"))
}

fn short(field: &str, text: &str) -> Result<ShortString> {
    // `ShortString::from` panics on a long one.
    ShortString::try_new(text).map_err(|_| {
        let fix = format!("{} bytes; AMQP 0-9-1 takes {MAX_SHORT_STRING_LENGTH} at most", text.len());
        invalid(field, &fix)
    })
}

fn text_of(text: &Option<ShortString>) -> Option<String> {
    text.as_ref().map(|text| text.as_str().to_owned())
}

/// Digits alone: `u64`'s own parsing takes a sign.
fn expiration_of(text: &str) -> Option<Duration> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten().map(Duration::from_millis)
}

/// Rounded up: a message must not end earlier than it was told to.
fn expiration_text(expiration: Duration) -> Result<ShortString> {
    if expiration > LONGEST_DELAY {
        let fix = format!(
            "longer than {} ms (ten years), which is all that the broker takes",
            LONGEST_DELAY.as_millis()
        );
        return Err(invalid("expiration", &fix));
    }
    let ms = expiration.as_nanos().div_ceil(1_000_000);
    short("expiration", &ms.to_string())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use lapin::BasicProperties;

    use super::super::samples::short;
    use super::{Delivered, Properties, write};
    use crate::error::ErrorKind;
    use crate::message::Message;

    fn read(wire: &BasicProperties) -> Properties {
        Delivered::new(short(""), short("q"), wire).properties
    }

    fn expiration(expiration: Duration) -> Result<String, String> {
        let written = write(&Message::new(""), &Properties::default().with_expiration(expiration));
        let text = |wire: BasicProperties| wire.expiration().clone().expect("an expiration").to_string();
        written.map(text).map_err(|error| {
            assert_eq!(error.kind(), ErrorKind::Invalid);
            error.to_string()
        })
    }

    #[test]
    fn what_is_written_is_read_as_it_was() {
        let properties = Properties::default()
            .with_priority(5)
            .with_timestamp(1_700_000_000)
            .with_expiration(Duration::from_millis(1_500))
            .with_kind("order.made")
            .with_app_id("shop")
            .with_reply_to("answers")
            .with_user_id("guest")
            .with_cluster_id("one")
            .with_persistent(false);
        let message = Message::new("").with_id("m").with_content_type("text/plain").with_correlation_id("c");
        let wire = write(&message, &properties).expect("properties that can be sent");
        assert_eq!(read(&wire), properties);
        assert_eq!(wire.message_id(), &Some(short("m")));
        assert_eq!(wire.content_type(), &Some(short("text/plain")));
        assert_eq!(wire.correlation_id(), &Some(short("c")));
        assert_eq!(wire.content_encoding(), &None);
        let wire = write(&message, &Properties::default()).expect("nothing set");
        assert_eq!(wire.delivery_mode(), &Some(2));
        assert_eq!(read(&wire), Properties::default());
        // Whoever sent none did not ask for it.
        assert!(!read(&BasicProperties::default()).persistent);
    }

    #[test]
    fn a_timestamp_is_kept_as_it_came_and_never_panics() {
        let dates = [
            (0, true),
            (1_700_000_000, true),
            (1_700_000_000_000, true),
            ((1 << 63) - 1, false),
            (1 << 63, false),
            (u64::MAX, false),
        ];
        for (seconds, must_be_date) in dates {
            let properties = read(&BasicProperties::default().with_timestamp(seconds));
            assert_eq!(properties.timestamp, Some(seconds));
            let date = properties.timestamp();
            assert!(date.is_some() || !must_be_date, "{seconds}");
            if let Some(date) = date {
                let since = date.duration_since(SystemTime::UNIX_EPOCH).expect("after the epoch");
                assert_eq!(since.as_secs(), seconds);
            }
        }
        assert_eq!(Properties::default().timestamp(), None);
    }

    #[test]
    fn an_expiration_is_whole_milliseconds_rounded_up() {
        let day = 86_400;
        let sent = [
            (Duration::ZERO, "0"),
            (Duration::from_micros(400), "1"),
            (Duration::from_micros(1_500), "2"),
            (Duration::from_secs(day), "86400000"),
            (Duration::from_millis(1 << 32), "4294967296"),
            (Duration::from_secs(3_650 * day), "315360000000"),
        ];
        for (duration, text) in sent {
            assert_eq!(expiration(duration).as_deref(), Ok(text));
        }
        let longest = Duration::from_secs(3_650 * day);
        for duration in [longest + Duration::from_nanos(1), longest + Duration::from_millis(1), Duration::MAX]
        {
            let text = expiration(duration).expect_err("too long");
            assert!(text.contains("expiration") && text.contains("315360000000"), "{text}");
        }
    }

    #[test]
    fn an_expiration_that_is_no_whole_number_is_none() {
        for text in ["1.5", "-1", "+1", "", " 5", "5 ", "abc", "1000ms", "99999999999999999999", "\u{0663}"] {
            let properties = read(&BasicProperties::default().with_expiration(short(text)));
            assert_eq!(properties.expiration, None, "{text:?}");
        }
        for (text, ms) in [("0", 0), ("0100", 100), ("18446744073709551615", u64::MAX)] {
            let properties = read(&BasicProperties::default().with_expiration(short(text)));
            assert_eq!(properties.expiration, Some(Duration::from_millis(ms)));
        }
    }

    #[test]
    fn a_property_that_is_too_long_is_refused_by_its_name() {
        let long = || "ü".repeat(128);
        let plain = Properties::default;
        let message = || Message::new("");
        let tries = [
            ("message id", message().with_id(long()), plain()),
            ("content type", message().with_content_type(long()), plain()),
            ("content encoding", message().with_content_encoding(long()), plain()),
            ("correlation id", message().with_correlation_id(long()), plain()),
            ("type", message(), plain().with_kind(long())),
            ("app id", message(), plain().with_app_id(long())),
            ("reply to", message(), plain().with_reply_to(long())),
            ("user id", message(), plain().with_user_id(long())),
            ("cluster id", message(), plain().with_cluster_id(long())),
        ];
        for (field, message, properties) in tries {
            let error = write(&message, &properties).expect_err("256 bytes");
            assert_eq!(error.kind(), ErrorKind::Invalid);
            let text = error.to_string();
            assert!(text.contains(&format!("{field}: 256 bytes")), "{text}");
        }
        assert!(write(&message().with_id("i".repeat(255)), &plain()).is_ok());
    }

    #[test]
    fn direct_reply_to_is_refused_and_is_not_carried_on() {
        let properties = Properties::default().with_reply_to("amq.rabbitmq.reply-to");
        let error = write(&Message::new(""), &properties).expect_err("there is no such consumer");
        assert!(error.to_string().contains("reply to"), "{error}");
        let wire = BasicProperties::default().with_reply_to(short("amq.rabbitmq.reply-to"));
        assert_eq!(Delivered::new(short(""), short("q"), &wire).carried().reply_to, None);
        // What the broker makes of it names the channel that waits, and leads there from anywhere.
        let wire = BasicProperties::default().with_reply_to(short("amq.rabbitmq.reply-to.g2h"));
        assert!(Delivered::new(short(""), short("q"), &wire).carried().reply_to.is_some());
    }
}
