//! The management API over TLS, with an authority of our own.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};

use windlass::ErrorKind;
use windlass::management::{Management, ManagementConfig};
use windlass::rabbitmq::config::{Pem, Tls};

use crate::rabbit::{Authority, Identity, Node, Options, bounded, until};

#[tokio::test]
async fn the_certificate_is_checked_and_ours_is_shown() {
    let authority = Authority::new("windlass tests");
    let Identity { certificate, key } = authority.server(&["rabbit.test"]);
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    let folder = std::env::temp_dir().join(format!("windlass-management-tls-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    for (name, text) in
        [("ca.pem", authority.certificate()), ("server.pem", certificate), ("server.key", key)]
    {
        fs::write(folder.join(name), text).unwrap();
    }
    let shown = folder.display();
    let options = Options::new()
        .config("management.ssl.ip = 127.0.0.1")
        .config(format!("management.ssl.port = {port}"))
        .config(format!("management.ssl.cacertfile = {shown}/ca.pem"))
        .config(format!("management.ssl.certfile = {shown}/server.pem"))
        .config(format!("management.ssl.keyfile = {shown}/server.key"))
        .config("management.ssl.verify = verify_peer")
        .config("management.ssl.fail_if_no_peer_cert = true");
    let _node = Node::start(options).await;
    let client = authority.client("orders");
    let ours = Tls::default()
        .with_ca(Pem::text(authority.certificate()))
        .with_client(Pem::text(client.certificate), Pem::text(client.key));
    let ask = async |tls: Tls| {
        let url = format!("https://127.0.0.1:{port}");
        let management = Management::new(ManagementConfig::default().with_url(url).with_tls(tls)).unwrap();
        bounded("ask", management.overview()).await
    };
    // The name that the certificate carries is not the host.
    let named = ours.clone().with_server_name("rabbit.test");
    let overview = until("the listener", || async { ask(named.clone()).await.ok() }).await;
    assert!(overview.version.is_some());

    for (tls, what) in [
        (ours.clone(), "another name"),
        (
            Tls::default()
                .with_ca(Pem::text(Authority::new("another").certificate()))
                .with_server_name("rabbit.test"),
            "another authority",
        ),
    ] {
        let error = ask(tls).await.expect_err(what);
        assert_eq!(error.kind(), ErrorKind::Refused, "{what}: {error}");
        assert!(!error.is_transient());
        assert!(error.to_string().contains("certificate is not trusted"), "{what}: {error}");
    }
    let bare = Tls::default().with_ca(Pem::text(authority.certificate())).with_server_name("rabbit.test");
    let error = ask(bare).await.expect_err("no certificate of ours");
    assert_eq!(error.kind(), ErrorKind::Disconnected, "{error}");
    fs::remove_dir_all(&folder).unwrap();
}
