//! Who may log in, and what becomes of it while the service runs.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use windlass::clock::{Clock, SystemClock};
use windlass::error::ErrorKind;
use windlass::message::Message;
use windlass::publisher::Publisher;
use windlass::rabbitmq::{ConfigProvider, ConnectionState, RabbitEvent, RabbitMq, RabbitMqConfig};
use windlass::source::Health;

use crate::broker_bench::{Bench, Told, config, ms};
use crate::closed::close;
use crate::flow::{ROLES, Sender, by_proxy, connected, consume, finish, retrying, until_done};
use crate::rabbit::{Management, Node, Proxy, QueueType, bounded, until_at_most};

/// A refusal that no wait can change is told without waiting.
const AT_ONCE: Duration = ms(5_000);

/// Connects in vain; returns the kind of the error, and how many connections it took.
async fn refused(node: &Node, change: impl FnOnce(RabbitMqConfig) -> RabbitMqConfig) -> (ErrorKind, u64) {
    let proxy = Proxy::start(node.amqp_port());
    let began = SystemClock.now();
    let tried = RabbitMq::connect(change(config(&node.uri_at(proxy.port()))));
    let error = bounded("connect", tried).await.expect_err("it is refused");
    assert!(SystemClock.now() - began < AT_ONCE);
    assert!(!error.is_transient(), "{error}");
    (error.kind(), proxy.counts().accepted)
}

// BC-41 b and c
#[tokio::test]
async fn a_wrong_password_and_a_missing_virtual_host_are_refused_at_once_when_the_service_starts() {
    let node = Node::shared().await;
    let (kind, tries) = refused(node, |config| config.with_password("wrong")).await;
    assert_eq!(kind, ErrorKind::Unauthorized);
    assert!(tries <= 2, "one for each of the two connections, not {tries}");
    let (kind, tries) = refused(node, |config| config.with_vhost("no-such-vhost")).await;
    assert_eq!(kind, ErrorKind::NotFound);
    assert!(tries <= 2, "one for each of the two connections, not {tries}");
}

/// A user of one test, whose password the test changes, on the virtual host `/`.
struct User {
    name: String,
    management: Management,
    /// What the provider of the configuration says.
    known: Arc<Mutex<String>>,
}

impl User {
    async fn new(node: &Node, name: &str) -> Self {
        let management = node.management();
        let user =
            Self { name: name.to_owned(), management, known: Arc::new(Mutex::new("first".to_owned())) };
        user.set_password("first").await;
        user.management.put_permissions("/", name, [".*"; 3]).await;
        user
    }

    async fn set_password(&self, password: &str) {
        self.management.put_user(&self.name, password).await;
    }

    /// A bench that logs in as this user, and asks for the password at each try.
    async fn bench(&self, node: &Node, refusal_patience: Duration) -> (Proxy, Bench) {
        let (proxy, mut bench) = by_proxy(node, &self.name, QueueType::Quorum, |config| config).await;
        bench.rabbit.disconnect().await;
        let base = config(&node.uri_at(proxy.port()))
            .with_connection_name(bench.queue.as_str())
            .with_user(self.name.as_str())
            .with_refusal_patience(refusal_patience);
        let known = Arc::clone(&self.known);
        let provider = ConfigProvider::new(move || {
            let config = base.clone().with_password(known.lock().unwrap().as_str());
            async { Ok(config) }
        });
        bench.rabbit = bounded("connect", RabbitMq::connect(provider)).await.unwrap();
        bench.told = Told::new(&bench.rabbit);
        (proxy, bench)
    }
}

#[tokio::test]
async fn a_password_that_is_rotated_is_asked_for_at_the_next_try_and_nothing_is_lost() {
    let node = Node::shared().await;
    let user = User::new(node, "rotated").await;
    let (_proxy, bench) = user.bench(node, Duration::from_secs(60)).await;
    let handle = consume(&bench).await;
    let sender = Sender::new(&bench);
    sender.deliver("before").await;
    until_done(&bench, "before").await;
    // The broker has the new one before the service has: the tries in between are refused, and that is no end.
    user.set_password("second").await;
    for role in ROLES {
        close(&user.management, &bench, role).await;
    }
    for role in ROLES {
        let refused = |event: &RabbitEvent| {
            retrying(role)(event).filter(|(error, _)| error.kind() == ErrorKind::Unauthorized)
        };
        bench.told.until("says that the login is refused", 2, refused).await;
        assert!(matches!(
            bench.rabbit.state(role),
            ConnectionState::Retrying { .. } | ConnectionState::Connecting
        ));
    }
    let Health::NotReady { reason } = bench.rabbit.health() else { panic!("ready without a login") };
    assert!(!reason.contains("rotated"), "{reason}");
    *user.known.lock().unwrap() = "second".to_owned();
    for role in ROLES {
        bench.told.until("says that it stands again", 1, connected(role)).await;
    }
    sender.deliver("after").await;
    until_done(&bench, "after").await;
    let account = finish(bench, handle).await;
    assert_eq!((account.acked, account.queued), (2, 0), "{account}");
    user.management.delete_user(&user.name).await;
}

#[tokio::test]
async fn a_login_that_stays_refused_is_fatal_once_the_patience_is_over_and_not_before() {
    let node = Node::shared().await;
    let user = User::new(node, "revoked").await;
    let patience = Duration::from_secs(1);
    let (proxy, bench) = user.bench(node, patience).await;
    let handle = consume(&bench).await;
    Sender::new(&bench).deliver("before").await;
    until_done(&bench, "before").await;
    user.set_password("second").await;
    let began = SystemClock.now();
    for role in ROLES {
        close(&user.management, &bench, role).await;
    }
    for role in ROLES {
        let fatal = |event: &RabbitEvent| match event {
            RabbitEvent::Fatal { role: of, error } if *of == role => Some(error.clone()),
            _ => None,
        };
        let error = bench.told.until("says that it is over", 1, fatal).await;
        assert_eq!((error.kind(), error.is_transient()), (ErrorKind::Unauthorized, false), "{error}");
        assert!(matches!(bench.rabbit.state(role), ConnectionState::Fatal(_)));
    }
    let time = SystemClock.now() - began;
    assert!(time >= patience, "{time:?}");
    // The consumer ends by itself, and says why.
    let report = bounded("the consumer ends", handle.wait()).await;
    let kind = report.error.as_ref().map(windlass::Error::kind);
    assert_eq!(kind, Some(ErrorKind::Unauthorized), "{report:?}");
    let publisher = bench.rabbit.publisher();
    let error = publisher.publish(&bench.queue, Message::new("x"));
    let error = bounded("publish", error).await.expect_err("there is no connection any more");
    assert_eq!(error.kind(), ErrorKind::Unauthorized, "{error}");
    let accepted = proxy.counts().accepted;
    let again = || async { (proxy.counts().accepted > accepted).then_some(()) };
    assert_eq!(until_at_most(ms(1_000), again).await, None, "it tries no more");
    let account = bench.account().await;
    assert_eq!((account.acked, account.queued), (1, 0), "{account}");
    user.management.delete_user(&user.name).await;
}
