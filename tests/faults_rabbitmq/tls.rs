//! TLS with a node that demands a certificate, and IPv6.

use std::net::Ipv6Addr;
use std::time::Duration;

use lapin::types::FieldTable;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::OnceCell;
use windlass::clock::{Clock, SystemClock};
use windlass::error::{Chain, Error, ErrorKind};
use windlass::rabbitmq::config::{Host, Pem, Tls};
use windlass::rabbitmq::{RabbitMq, RabbitMqConfig};

use crate::broker_bench::{Bench, config, ms};
use crate::flow::{Sender, consume, finish, until_done};
use crate::rabbit::{self, Authority, Identity, Node, Options, QueueType, bounded};

/// A node with TLS whose certificate is for `localhost` and for `rabbit.test`, and which demands one of clients.
struct Secured {
    node: Node,
    authority: String,
    client: Identity,
}

async fn secured() -> &'static Secured {
    static SECURED: OnceCell<Secured> = OnceCell::const_new();
    SECURED
        .get_or_init(async || {
            let authority = Authority::new("windlass tests");
            let tls = rabbit::Tls {
                authority: authority.certificate(),
                server: authority.server(&["localhost", "rabbit.test"]),
                demand_certificate: true,
            };
            let node = Node::start(Options::new().tls(tls)).await;
            Secured { node, authority: authority.certificate(), client: authority.client("orders") }
        })
        .await
}

impl Secured {
    fn tls(&self) -> Tls {
        let client = self.client.clone();
        Tls::default()
            .with_ca(Pem::text(self.authority.as_str()))
            .with_client(Pem::text(client.certificate), Pem::text(client.key))
    }

    fn config(&self, host: &str, tls: Tls) -> RabbitMqConfig {
        let host = Host::new(host).with_port(self.node.amqps_port());
        config(&self.node.uri()).with_hosts([host]).with_tls(tls)
    }
}

/// One message over both connections.
async fn works(node: &Node, name: &str, config: RabbitMqConfig) {
    let bench = Bench::connected(node, config, name, QueueType::Quorum, FieldTable::default()).await;
    let handle = consume(&bench).await;
    Sender::new(&bench).deliver("m").await;
    until_done(&bench, "m").await;
    let account = finish(bench, handle).await;
    assert_eq!((account.acked, account.queued), (1, 0), "{account}");
}

#[tokio::test]
async fn an_authority_of_our_own_and_a_client_certificate_connect() {
    let secured = secured().await;
    works(&secured.node, "tls", secured.config("localhost", secured.tls())).await;
    // By its address, which the certificate does not carry, under the name that it does.
    let named = secured.tls().with_server_name("rabbit.test");
    works(&secured.node, "tls-named", secured.config("127.0.0.1", named)).await;
}

/// What a certificate that cannot be trusted says, at once and for good.
async fn distrusted(config: RabbitMqConfig) -> Error {
    let began = SystemClock.now();
    let error = bounded("connect", RabbitMq::connect(config)).await.expect_err("it is not trusted");
    assert!(SystemClock.now() - began < Duration::from_secs(5));
    assert_eq!((error.kind(), error.is_transient()), (ErrorKind::Refused, false), "{error}");
    error
}

#[tokio::test]
async fn an_authority_that_did_not_sign_the_certificate_is_a_clear_error_at_once() {
    let secured = secured().await;
    let other = secured.tls().with_ca(Pem::text(Authority::new("somebody else").certificate()));
    let error = distrusted(secured.config("localhost", other)).await;
    let text = Chain(&error).to_string();
    assert!(text.contains("certificate") && text.contains("UnknownIssuer"), "{text}");
}

#[tokio::test]
async fn a_certificate_for_another_name_is_a_clear_error_at_once() {
    let secured = secured().await;
    let other = secured.tls().with_server_name("elsewhere.test");
    let error = distrusted(secured.config("localhost", other)).await;
    let text = Chain(&error).to_string();
    assert!(text.contains("certificate") && text.contains("elsewhere.test"), "{text}");
    let error = distrusted(secured.config("127.0.0.1", secured.tls())).await;
    let text = Chain(&error).to_string();
    assert!(text.contains("certificate") && text.contains("127.0.0.1"), "{text}");
}

// The node takes the handshake for good, and ends the connection after it.
#[tokio::test]
async fn a_missing_client_certificate_that_the_node_demands_is_a_clear_error_at_once() {
    let secured = secured().await;
    let none = Tls::default().with_ca(Pem::text(secured.authority.as_str()));
    let error = distrusted(secured.config("localhost", none)).await;
    let text = Chain(&error).to_string();
    assert!(text.to_lowercase().contains("certificate"), "{text}");
}

/// Passes connections on from `[::1]` to this port of the node; `None` where the machine has no IPv6.
async fn from_ipv6(port: u16) -> Option<u16> {
    let listener = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).await.ok()?;
    let own = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut broker = TcpStream::connect(("127.0.0.1", port)).await?;
                copy_bidirectional(&mut client, &mut broker).await
            });
        }
    });
    Some(own)
}

// BC-52
#[tokio::test]
async fn an_ipv6_address_in_brackets_connects() {
    let node = Node::shared().await;
    let Some(port) = from_ipv6(node.amqp_port()).await else {
        println!("not run: this machine has no IPv6 loopback address");
        return;
    };
    let uri = format!("amqp://guest:guest@[::1]:{port}/%2f");
    works(node, "ipv6", config(&uri).with_connect_timeout(ms(5_000))).await;
}
