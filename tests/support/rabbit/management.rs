//! A client of the management API.
//!
//! Its figures are up to a second old, and longer when the machine is busy: wait for them with the `until_…` methods.
//! For exact counts there are [`Node::queue_counts`](super::Node::queue_counts) and
//! [`Raw::count`](super::Raw::count).

use serde_json::{Value, json};

use super::http::{Request, basic, segment};
use super::{bounded, until};

/// A queue.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct QueueInfo {
    pub(crate) name: String,
    /// `classic`, `quorum` or `stream`.
    pub(crate) kind: String,
    pub(crate) durable: bool,
    pub(crate) arguments: Value,
    pub(crate) ready: u64,
    pub(crate) unacked: u64,
    pub(crate) consumers: u64,
}

/// A connection of AMQP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConnInfo {
    /// The broker's name for it, of the form `127.0.0.1:<port> -> 127.0.0.1:<port>`.
    pub(crate) name: String,
    /// The client's own name for it.
    pub(crate) connection_name: Option<String>,
    pub(crate) user: String,
    pub(crate) vhost: String,
    /// `running`, `blocked`, `blocking`, ...
    pub(crate) state: String,
    pub(crate) channels: u64,
    pub(crate) peer_port: u64,
}

/// A channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChannelInfo {
    /// The name of its connection.
    pub(crate) connection: String,
    pub(crate) number: u64,
    /// For each new consumer; 0 for no limit.
    pub(crate) prefetch: u64,
    pub(crate) consumers: u64,
    pub(crate) unacked: u64,
    pub(crate) confirms: bool,
}

/// A consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConsumerInfo {
    pub(crate) queue: String,
    pub(crate) tag: String,
    /// The name of its connection.
    pub(crate) connection: String,
    pub(crate) prefetch: u64,
    /// Whether it needs acknowledgements.
    pub(crate) acks: bool,
    pub(crate) exclusive: bool,
}

/// A client of the management API of one node, as one user.
#[derive(Debug, Clone)]
pub(crate) struct Management {
    port: u16,
    authorization: String,
}

impl Management {
    pub(crate) fn new(port: u16, user: &str, password: &str) -> Self {
        Self { port, authorization: basic(user, password) }
    }

    /// The port of the API.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The status and what was answered, [`Value::Null`] for nothing.
    ///
    /// # Panics
    ///
    /// Where there is no answer.
    pub(crate) async fn request(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        self.send(method, path, &[], body).await
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&Value>,
    ) -> (u16, Value) {
        let body = body.map(Value::to_string).unwrap_or_default();
        let mut all =
            vec![("Authorization", self.authorization.as_str()), ("Content-Type", "application/json")];
        all.extend(headers);
        let request = Request { port: self.port, method, path, headers: &all, body: &body };
        match bounded(&format!("{method} {path}"), request.send()).await {
            Ok((status, text)) => (status, serde_json::from_str(&text).unwrap_or(Value::Null)),
            Err(error) => panic!("{method} {path}: {error}"),
        }
    }

    /// `None` where nothing or not 200 is answered.
    pub(crate) async fn try_get(&self, path: &str) -> Option<Value> {
        let headers = [("Authorization", self.authorization.as_str())];
        let request = Request { port: self.port, method: "GET", path, headers: &headers, body: "" };
        let (status, text) = bounded(&format!("GET {path}"), request.send()).await.ok()?;
        if status != 200 {
            return None;
        }
        serde_json::from_str(&text).ok()
    }

    /// `None` for 404.
    async fn get(&self, path: &str) -> Option<Value> {
        match self.request("GET", path, None).await {
            (200, answer) => Some(answer),
            (404, _) => None,
            (status, answer) => panic!("GET {path}: {status} {answer}"),
        }
    }

    async fn list<T>(&self, path: &str, read: impl Fn(&Value) -> Option<T>) -> Vec<T> {
        let answer = self.get(path).await.unwrap_or_else(|| panic!("GET {path}: 404"));
        let things = answer.as_array().unwrap_or_else(|| panic!("GET {path}: {answer}"));
        // A thing that is just going has no details left.
        things.iter().filter_map(read).collect()
    }

    async fn done(&self, method: &str, path: &str, headers: &[(&str, &str)], body: Option<&Value>) {
        let (status, answer) = self.send(method, path, headers, body).await;
        assert!((200..300).contains(&status), "{method} {path}: {status} {answer}");
    }

    pub(crate) async fn queue(&self, vhost: &str, name: &str) -> Option<QueueInfo> {
        let answer = self.get(&format!("/api/queues/{}/{}", segment(vhost), segment(name))).await?;
        QueueInfo::read(&answer)
    }

    pub(crate) async fn queues(&self, vhost: &str) -> Vec<QueueInfo> {
        self.list(&format!("/api/queues/{}", segment(vhost)), QueueInfo::read).await
    }

    /// Waits until the queue is there and is as `wanted`.
    pub(crate) async fn until_queue(
        &self,
        vhost: &str,
        name: &str,
        wanted: impl Fn(&QueueInfo) -> bool,
    ) -> QueueInfo {
        let ask = || async { self.queue(vhost, name).await.filter(&wanted) };
        until(&format!("the queue {name} as the test wants it"), ask).await
    }

    /// Deletes a queue with all that is in it, under whoever uses it.
    pub(crate) async fn delete_queue(&self, vhost: &str, name: &str) {
        self.done("DELETE", &format!("/api/queues/{}/{}", segment(vhost), segment(name)), &[], None).await;
    }

    pub(crate) async fn connections(&self) -> Vec<ConnInfo> {
        self.list("/api/connections", ConnInfo::read).await
    }

    /// Waits until the connections are as `wanted`.
    pub(crate) async fn until_connections(&self, wanted: impl Fn(&[ConnInfo]) -> bool) -> Vec<ConnInfo> {
        let ask = || async { Some(self.connections().await).filter(|found| wanted(found)) };
        until("the connections as the test wants them", ask).await
    }

    /// Waits until there is a connection to which the client gave this name.
    pub(crate) async fn connection_named(&self, connection_name: &str) -> ConnInfo {
        let named = |found: &ConnInfo| found.connection_name.as_deref() == Some(connection_name);
        let ask = || async { self.connections().await.into_iter().find(named) };
        until(&format!("a connection named {connection_name}"), ask).await
    }

    /// Closes a connection, by the broker's name for it, with code 320 and the reason.
    pub(crate) async fn close_connection(&self, name: &str, reason: &str) {
        let path = format!("/api/connections/{}", segment(name));
        self.done("DELETE", &path, &[("X-Reason", reason)], None).await;
    }

    pub(crate) async fn channels(&self) -> Vec<ChannelInfo> {
        self.list("/api/channels", ChannelInfo::read).await
    }

    pub(crate) async fn consumers(&self, vhost: &str) -> Vec<ConsumerInfo> {
        self.list(&format!("/api/consumers/{}", segment(vhost)), ConsumerInfo::read).await
    }

    /// Makes a virtual host in which `guest` may do all.
    pub(crate) async fn put_vhost(&self, vhost: &str) {
        self.done("PUT", &format!("/api/vhosts/{}", segment(vhost)), &[], None).await;
        self.put_permissions(vhost, "guest", [".*"; 3]).await;
    }

    pub(crate) async fn delete_vhost(&self, vhost: &str) {
        self.done("DELETE", &format!("/api/vhosts/{}", segment(vhost)), &[], None).await;
    }

    /// Makes a user, who may do nothing yet, or gives one a new password.
    pub(crate) async fn put_user(&self, name: &str, password: &str) {
        let body = json!({"password": password, "tags": ""});
        self.done("PUT", &format!("/api/users/{}", segment(name)), &[], Some(&body)).await;
    }

    pub(crate) async fn delete_user(&self, name: &str) {
        self.done("DELETE", &format!("/api/users/{}", segment(name)), &[], None).await;
    }

    /// What a user may configure, write and read: three patterns of names, `.*` for all and the empty one for none.
    pub(crate) async fn put_permissions(&self, vhost: &str, user: &str, [configure, write, read]: [&str; 3]) {
        let body = json!({"configure": configure, "write": write, "read": read});
        let path = format!("/api/permissions/{}/{}", segment(vhost), segment(user));
        self.done("PUT", &path, &[], Some(&body)).await;
    }

    /// Sets a policy for the queues whose names match the pattern.
    pub(crate) async fn put_policy(&self, vhost: &str, name: &str, pattern: &str, definition: Value) {
        let body = json!({"pattern": pattern, "apply-to": "queues", "definition": definition});
        let path = format!("/api/policies/{}/{}", segment(vhost), segment(name));
        self.done("PUT", &path, &[], Some(&body)).await;
    }
}

fn text(value: &Value, field: &str) -> Option<String> {
    value[field].as_str().map(str::to_owned)
}

fn number(value: &Value, field: &str) -> u64 {
    value[field].as_u64().unwrap_or_default()
}

fn flag(value: &Value, field: &str) -> bool {
    value[field].as_bool().unwrap_or_default()
}

impl QueueInfo {
    fn read(value: &Value) -> Option<Self> {
        Some(Self {
            name: text(value, "name")?,
            kind: text(value, "type")?,
            durable: flag(value, "durable"),
            arguments: value["arguments"].clone(),
            ready: number(value, "messages_ready"),
            unacked: number(value, "messages_unacknowledged"),
            consumers: number(value, "consumers"),
        })
    }
}

impl ConnInfo {
    fn read(value: &Value) -> Option<Self> {
        Some(Self {
            name: text(value, "name")?,
            connection_name: text(value, "user_provided_name")
                .or_else(|| text(&value["client_properties"], "connection_name")),
            user: text(value, "user")?,
            vhost: text(value, "vhost")?,
            state: text(value, "state").unwrap_or_default(),
            channels: number(value, "channels"),
            peer_port: number(value, "peer_port"),
        })
    }
}

impl ChannelInfo {
    fn read(value: &Value) -> Option<Self> {
        Some(Self {
            connection: text(&value["connection_details"], "name")?,
            number: number(value, "number"),
            prefetch: number(value, "prefetch_count"),
            consumers: number(value, "consumer_count"),
            unacked: number(value, "messages_unacknowledged"),
            confirms: flag(value, "confirm"),
        })
    }
}

impl ConsumerInfo {
    fn read(value: &Value) -> Option<Self> {
        Some(Self {
            queue: text(&value["queue"], "name")?,
            tag: text(value, "consumer_tag")?,
            connection: text(&value["channel_details"], "connection_name").unwrap_or_default(),
            prefetch: number(value, "prefetch_count"),
            acks: flag(value, "ack_required"),
            exclusive: flag(value, "exclusive"),
        })
    }
}
