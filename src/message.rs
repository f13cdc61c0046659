//! A message: what was sent, and how it came.

mod headers;
pub(crate) mod trace;

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use uuid::Uuid;

pub use headers::{HeaderValue, Headers};
pub use trace::TraceParent;

/// A message: what was sent (id, body, headers, properties) and, once delivered, how it came (attempt, redelivered,
/// delivery count, time of receipt, the broker's own data).
///
/// Cheap to clone: what was sent is shared. The `with_…` methods copy what they change and only that.
///
/// ```
/// use windlass::message::Message;
///
/// let message = Message::new("{}").with_id("order-7").with_content_type("application/json").with_header("shard",
/// 3_i32); assert_eq!(message.id(), "order-7"); assert_eq!(message.attempt(), 1);
/// ```
#[derive(Clone)]
pub struct Message {
    content: Arc<Content>,
    /// Behind one more pointer than need be: a message is moved often, and most have none.
    metadata: Option<Arc<Metadata>>,
    received_at: SystemTime,
    /// How often it was delivered; zero where the broker does not say.
    deliveries: u64,
    attempt: u32,
    redelivered: bool,
}

struct Metadata(Box<dyn Any + Send + Sync>);

/// What was sent: the part of a message that is the same at every delivery.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Content {
    id: String,
    body: Bytes,
    headers: Headers,
    content_type: Option<String>,
    content_encoding: Option<String>,
    correlation_id: Option<String>,
}

impl Message {
    /// A message with this body, a random id (UUID v4), and nothing else set.
    pub fn new(body: impl Into<Bytes>) -> Self {
        Self::with_known_id(Uuid::new_v4().to_string(), body)
    }

    /// As [`new`](Self::new), without the cost of an id that would be replaced.
    pub(crate) fn with_known_id(id: impl Into<String>, body: impl Into<Bytes>) -> Self {
        let content = Content {
            id: id.into(),
            body: body.into(),
            headers: Headers::new(),
            content_type: None,
            content_encoding: None,
            correlation_id: None,
        };
        Self::from_content(Arc::new(content))
    }

    pub(crate) fn from_content(content: Arc<Content>) -> Self {
        Self {
            content,
            metadata: None,
            received_at: SystemTime::UNIX_EPOCH,
            deliveries: 0,
            attempt: 1,
            redelivered: false,
        }
    }

    /// As the `with_…` methods would make it, in one step: those show in what a delivery costs.
    pub(crate) fn delivered(
        content: Arc<Content>,
        attempt: u32,
        deliveries: u64,
        received_at: SystemTime,
    ) -> Self {
        let redelivered = deliveries > 1;
        Self { content, metadata: None, received_at, deliveries, attempt: attempt.max(1), redelivered }
    }

    /// What was sent, as if it had never been delivered: attempt 1, no metadata. What a publisher in this process puts
    /// into a queue.
    #[must_use]
    pub fn as_sent(&self) -> Self {
        Self::from_content(Arc::clone(&self.content))
    }

    pub(crate) fn content(&self) -> &Arc<Content> {
        &self.content
    }

    /// The id that the publisher gave, or that the adapter gave where the publisher gave none.
    pub fn id(&self) -> &str {
        &self.content.id
    }

    /// The body, as bytes.
    pub fn body(&self) -> &Bytes {
        &self.content.body
    }

    /// The headers, typed.
    pub fn headers(&self) -> &Headers {
        &self.content.headers
    }

    /// What the body is, such as `application/json`, where the publisher said.
    pub fn content_type(&self) -> Option<&str> {
        self.content.content_type.as_deref()
    }

    /// How the body is packed, such as `lz4`, where the publisher said.
    pub fn content_encoding(&self) -> Option<&str> {
        self.content.content_encoding.as_deref()
    }

    /// The broker's own correlation-id property, where the publisher set it. What a handler should follow is
    /// [`correlation_id`](Self::correlation_id).
    pub fn correlation_property(&self) -> Option<&str> {
        self.content.correlation_id.as_deref()
    }

    /// What ties this message to the work that caused it: the header `x-correlation-id`, else the header
    /// `correlation-id`, else the broker's property, else the message id. Empty ones and ones that are not text are
    /// passed over.
    pub fn correlation_id(&self) -> &str {
        self.given_correlation_id().unwrap_or_else(|| self.id())
    }

    fn given_correlation_id(&self) -> Option<&str> {
        let header =
            |name| self.headers().get(name).and_then(HeaderValue::as_str).filter(|text| !text.is_empty());
        header("x-correlation-id")
            .or_else(|| header("correlation-id"))
            .or_else(|| self.correlation_property().filter(|text| !text.is_empty()))
    }

    /// Which try this is: 1 for the first. Only a settled, counted `Retry` adds one; crashes, cut connections,
    /// requeues and shutdowns do not.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Whether the broker says that it delivered this message before without an answer to that delivery.
    pub fn redelivered(&self) -> bool {
        self.redelivered
    }

    /// How often the broker says it delivered the message, this time included, where it says so. Not an attempt
    /// count: a crash counts here.
    pub fn delivery_count(&self) -> Option<u64> {
        (self.deliveries > 0).then_some(self.deliveries)
    }

    /// When the source took this delivery from the broker, by the source's wall clock; the Unix epoch on a message
    /// that was never delivered.
    pub fn received_at(&self) -> SystemTime {
        self.received_at
    }

    /// What the adapter keeps about this delivery beyond the common fields, where it is of type `T`. Each adapter
    /// documents its type.
    pub fn metadata<T: Any + Send + Sync>(&self) -> Option<&T> {
        self.metadata.as_ref().and_then(|metadata| metadata.0.downcast_ref())
    }

    /// Sets the id.
    #[must_use]
    pub fn with_id(self, id: impl Into<String>) -> Self {
        self.edit(|content| content.id = id.into())
    }

    /// Sets the body.
    #[must_use]
    pub fn with_body(self, body: impl Into<Bytes>) -> Self {
        self.edit(|content| content.body = body.into())
    }

    /// Sets one header, replacing one of the same name.
    #[must_use]
    pub fn with_header(self, name: impl Into<String>, value: impl Into<HeaderValue>) -> Self {
        self.edit(|content| {
            content.headers.insert(name, value);
        })
    }

    /// Sets all headers.
    #[must_use]
    pub fn with_headers(self, headers: Headers) -> Self {
        self.edit(|content| content.headers = headers)
    }

    /// Says what the body is.
    #[must_use]
    pub fn with_content_type(self, content_type: impl Into<String>) -> Self {
        self.edit(|content| content.content_type = Some(content_type.into()))
    }

    /// Says how the body is packed.
    #[must_use]
    pub fn with_content_encoding(self, encoding: impl Into<String>) -> Self {
        self.edit(|content| content.content_encoding = Some(encoding.into()))
    }

    /// Sets the broker's correlation-id property.
    #[must_use]
    pub fn with_correlation_id(self, id: impl Into<String>) -> Self {
        self.edit(|content| content.correlation_id = Some(id.into()))
    }

    /// For adapters: which try this is. Zero is read as 1.
    #[must_use]
    pub fn with_attempt(mut self, attempt: u32) -> Self {
        self.attempt = attempt.max(1);
        self
    }

    /// For adapters: whether the broker delivered it before without an answer.
    #[must_use]
    pub fn with_redelivered(mut self, redelivered: bool) -> Self {
        self.redelivered = redelivered;
        self
    }

    /// For adapters: how often the broker delivered it, this time included. Zero is read as not known.
    #[must_use]
    pub fn with_delivery_count(mut self, count: Option<u64>) -> Self {
        self.deliveries = count.unwrap_or(0);
        self
    }

    /// For adapters: when it was taken from the broker.
    #[must_use]
    pub fn with_received_at(mut self, at: SystemTime) -> Self {
        self.received_at = at;
        self
    }

    /// For adapters: what else is known about this delivery.
    #[must_use]
    pub fn with_metadata<T: Any + Send + Sync>(mut self, metadata: T) -> Self {
        self.metadata = Some(Arc::new(Metadata(Box::new(metadata))));
        self
    }

    fn edit(mut self, change: impl FnOnce(&mut Content)) -> Self {
        change(Arc::make_mut(&mut self.content));
        self
    }
}

/// Prints no body and no header values: they are the user's data, and end up in logs.
impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("id", &self.id())
            .field("bytes", &self.body().len())
            .field("headers", &self.headers().names().collect::<Vec<_>>())
            .field("attempt", &self.attempt)
            .field("redelivered", &self.redelivered)
            .field("delivery_count", &self.delivery_count())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::Message;

    #[test]
    fn the_correlation_id_is_looked_up_in_the_documented_order() {
        let message = Message::new("").with_id("m-1");
        assert_eq!(message.correlation_id(), "m-1");
        let message = message.with_correlation_id("property");
        assert_eq!(message.correlation_id(), "property");
        let message = message.with_header("correlation-id", "plain");
        assert_eq!(message.correlation_id(), "plain");
        let message = message.with_header("x-correlation-id", "x");
        assert_eq!(message.correlation_id(), "x");
        let message = message.with_header("x-correlation-id", 7_i32);
        assert_eq!(message.correlation_id(), "plain");
        assert_eq!(message.with_header("correlation-id", "").correlation_id(), "property");
    }

    #[test]
    fn a_clone_is_not_changed_with_the_original() {
        let one = Message::new("a").with_id("m-1");
        let two = one.clone().with_body("b");
        assert_eq!((one.body().as_ref(), two.body().as_ref()), (&b"a"[..], &b"b"[..]));
    }

    #[test]
    fn debug_shows_neither_body_nor_header_values() {
        let text = format!("{:?}", Message::new("secret-body").with_header("token", "secret-header"));
        assert!(text.contains("token") && !text.contains("secret"), "{text}");
    }

    #[test]
    fn metadata_is_found_by_its_type_alone() {
        let message = Message::new("").with_metadata(7_u64);
        assert_eq!(message.metadata::<u64>(), Some(&7));
        assert_eq!(message.metadata::<u32>(), None);
    }
}
