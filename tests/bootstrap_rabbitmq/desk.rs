//! A virtual host of the test's own on the shared node, and what is asked of it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::Value;
use windlass::bootstrap::{Applied, Bootstrapper, Plan};
use windlass::management::{Management, ManagementConfig};
use windlass::rabbitmq::{RabbitMq, RabbitMqConfig};
use windlass::topology::{Broadcast, Stage, Topology};

use super::rabbit::{self, Node, bounded};

pub(crate) const PASSWORD: &str = "S3cret of the nodes";

pub(crate) struct Desk {
    pub(crate) node: &'static Node,
    pub(crate) vhost: String,
    pub(crate) user: String,
    /// As `guest`, an administrator.
    pub(crate) management: Management,
    /// By hand.
    pub(crate) raw: rabbit::Management,
}

impl Desk {
    /// Nothing is there yet.
    pub(crate) async fn new(name: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let node = Node::shared().await;
        let unique = format!("{name}-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        Self {
            node,
            user: format!("node of {unique}"),
            vhost: unique,
            management: management(node),
            raw: node.management(),
        }
    }

    /// The virtual host, the user, a broadcast, two stages and one that is per slot.
    pub(crate) fn topology(&self) -> Topology {
        Topology::default()
            .with_vhost(&self.vhost)
            .with_user(&self.user)
            .with_broadcast(Broadcast::new("all"))
            .with_wait_steps([Duration::from_millis(200)])
            .with_stage(Stage::new("orders"))
            .with_stage(Stage::new("bills").with_delivery_limit(5))
            .with_stage(Stage::per_slot("sockets").with_dead_letters(true))
    }

    pub(crate) fn bootstrapper(&self, topology: &Topology) -> Bootstrapper {
        Bootstrapper::new(self.management.clone(), topology.clone()).user_password(PASSWORD)
    }

    pub(crate) async fn plan(&self, topology: &Topology) -> Plan {
        bounded("plan", self.bootstrapper(topology).plan()).await.expect("the plan is made")
    }

    pub(crate) async fn apply(&self, topology: &Topology) -> Applied {
        bounded("apply", self.bootstrapper(topology).apply()).await.expect("the topology is made")
    }

    /// Applies it, and sees that there is nothing left to do.
    pub(crate) async fn made(&self, topology: &Topology) {
        self.apply(topology).await;
        let plan = self.plan(topology).await;
        assert!(plan.is_clean(), "{plan}");
    }

    /// Asks by hand, with `{vhost}` in the path.
    pub(crate) async fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Value {
        let path = path.replace("{vhost}", &segment(&self.vhost));
        let (status, answer) = self.raw.request(method, &path, body).await;
        assert!((200..300).contains(&status), "{method} {path}: {status} {answer}");
        answer
    }

    /// As the user that nodes log in as.
    pub(crate) async fn connect(&self) -> RabbitMq {
        let config = RabbitMqConfig::from_uri(&self.node.uri())
            .expect("a URI")
            .with_user(&self.user)
            .with_password(PASSWORD)
            .with_vhost(&self.vhost);
        bounded("connect", RabbitMq::connect(config)).await.expect("the node's user may connect")
    }

    /// The URI of this virtual host, as `guest`.
    pub(crate) fn uri(&self) -> String {
        self.node.uri().replace("%2f", &segment(&self.vhost))
    }
}

pub(crate) fn management(node: &Node) -> Management {
    Management::new(config(node)).expect("a configuration")
}

pub(crate) fn config(node: &Node) -> ManagementConfig {
    ManagementConfig::default().with_url(format!("http://127.0.0.1:{}", node.management().port()))
}

pub(crate) fn segment(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// The things that a plan would change, a line each.
pub(crate) fn lines(plan: &impl std::fmt::Display) -> Vec<String> {
    plan.to_string().lines().map(str::to_owned).collect()
}
