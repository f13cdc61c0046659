//! A virtual host of a test's own, the program to look at it with, and dead letters to look at.

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};
use serde_json::Value;
use tokio::process::Command;
use tokio::sync::OnceCell;
use windlass::Publisher;
use windlass::message::Message;
use windlass::rabbitmq::{QueueType, RabbitMq, RabbitMqConfig};
use windlass::source::{Cause, MessageSource, NackReason};

use crate::rabbit::{Node, Raw, Sent, bounded};

/// Of the user of each test; it must be printed nowhere.
pub(crate) const PASSWORD: &str = "s3cret/p@ss:%";

pub(crate) struct Desk {
    pub(crate) node: &'static Node,
    pub(crate) vhost: String,
    pub(crate) folder: PathBuf,
}

/// How a run of the program ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    pub(crate) fn of(output: Output) -> Self {
        let ran = Self {
            code: code(output.status),
            out: String::from_utf8(output.stdout).expect("it prints text"),
            err: String::from_utf8(output.stderr).expect("it prints text"),
        };
        for text in [&ran.out, &ran.err] {
            for secret in [PASSWORD, "s3cret", "czNjcmV0"] {
                assert!(!text.contains(secret), "it prints a password: {text}");
            }
        }
        ran
    }

    #[track_caller]
    pub(crate) fn ends(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

fn code(status: ExitStatus) -> Option<i32> {
    status.code()
}

impl Desk {
    /// With a virtual host that is there, and the user `op`, who may do all.
    pub(crate) async fn new(name: &str) -> Self {
        let desk = Self::without_vhost(name).await;
        let management = desk.node.management();
        management.put_vhost(&desk.vhost).await;
        for user in ["op", "guest"] {
            management.put_permissions(&desk.vhost, user, [".*"; 3]).await;
        }
        desk
    }

    /// With the user `op`, and a virtual host that nobody has made yet.
    pub(crate) async fn without_vhost(name: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let node = Node::shared().await;
        // Once: RabbitMQ refuses one of two that make a user at the same time.
        static USER: OnceCell<()> = OnceCell::const_new();
        let make = async || {
            let user = serde_json::json!({ "password": PASSWORD, "tags": "administrator" });
            let (status, answer) = node.management().request("PUT", "/api/users/op", Some(&user)).await;
            assert!((200..300).contains(&status), "{status} {answer}");
        };
        USER.get_or_init(make).await;
        let vhost = format!("{name}-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = node.folder().join(&vhost);
        std::fs::create_dir(&folder).expect("a folder of the test's own");
        Self { node, vhost, folder }
    }

    pub(crate) fn amqp_uri(&self) -> String {
        let port = self.node.amqp_port();
        format!("amqp://op:s3cret%2Fp%40ss%3A%25@127.0.0.1:{port}/{}", self.vhost)
    }

    /// The program, with the environment that it needs and nothing else of ours.
    pub(crate) fn windlass(&self, arguments: &[&str]) -> Command {
        let mut command = bare(arguments);
        command.env("WINDLASS_AMQP_URI", self.amqp_uri());
        let url = format!("http://127.0.0.1:{}", self.node.management().port());
        command.env("WINDLASS_MANAGEMENT_URL", url).current_dir(&self.folder);
        command
    }

    pub(crate) async fn run(&self, arguments: &[&str]) -> Ran {
        finished(&mut self.windlass(arguments)).await
    }

    pub(crate) async fn raw(&self) -> Raw {
        Raw::connect(&self.amqp_uri()).await
    }

    pub(crate) async fn rabbit(&self) -> RabbitMq {
        let config = RabbitMqConfig::from_uri(&self.amqp_uri()).expect("a URI");
        bounded("connect", RabbitMq::connect(config)).await.expect("it connects")
    }

    /// Messages that a worker of `queue` gave up, with these causes, in this order. The queues are made where they are
    /// not there yet.
    pub(crate) async fn give_up(&self, queue: &str, messages: Vec<(Message, Cause)>) {
        let rabbit = self.rabbit().await;
        if !rabbit.queue_exists(queue).await.expect("it can be looked up") {
            rabbit.declare_queue(queue, QueueType::Quorum).await.expect("it can be made");
        }
        let source = rabbit.source(queue).queue_type(QueueType::Quorum).open().await.expect("it is there");
        for (message, cause) in messages {
            match message.attempt() {
                0 | 1 => rabbit.publisher().publish(queue, message).await.expect("it is confirmed"),
                attempt => self.publish_attempt(queue, &message, attempt).await,
            }
            let token = tokio_util::sync::CancellationToken::new();
            let received = bounded("the message", source.receive(&token)).await.expect("it comes");
            let delivery = received.expect("a message");
            source.nack(delivery.receipt, NackReason::DeadLetter { cause }).await.expect("it is moved");
        }
        source.close().await.expect("it closes");
        rabbit.disconnect().await;
    }

    /// As the adapter sends a copy that is tried again: what a service publishes begins at 1.
    async fn publish_attempt(&self, queue: &str, message: &Message, attempt: u32) {
        let mut headers = FieldTable::default();
        headers.insert("windlass-attempt".into(), AMQPValue::LongLongInt(attempt.into()));
        let mut properties = BasicProperties::default()
            .with_message_id(message.id().into())
            .with_delivery_mode(2)
            .with_headers(headers);
        if let Some(content_type) = message.content_type() {
            properties = properties.with_content_type(content_type.into());
        }
        let raw = self.raw().await;
        assert_eq!(raw.publish_with("", queue, message.body(), properties).await, Sent::Confirmed);
        raw.close().await;
    }

    pub(crate) fn write(&self, file: &str, text: &str) {
        std::fs::write(self.folder.join(file), text).expect("a file of the test's own");
    }
}

/// The program without any environment of ours.
pub(crate) fn bare(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
    command.args(arguments).env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.kill_on_drop(true);
    command
}

pub(crate) async fn finished(command: &mut Command) -> Ran {
    Ran::of(bounded("the program", command.output()).await.expect("it can be run"))
}

/// The path of a file at the top of the repository.
pub(crate) fn path_of(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(file)
}
