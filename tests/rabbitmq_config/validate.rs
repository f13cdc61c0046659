//! What cannot be right is refused before anything is connected to.

use std::num::NonZeroU16;
use std::time::Duration;

use windlass::rabbitmq::config::{Host, Pem, RabbitMqConfig, Tls};

use crate::assert_refused;
use crate::tls::Certificates;

fn config() -> RabbitMqConfig {
    RabbitMqConfig::default()
}

#[test]
fn the_default_is_a_local_broker_as_it_comes() {
    let default = config();
    default.validate().unwrap();
    assert_eq!(default.hosts, [Host::new("localhost")]);
    assert_eq!(default.hosts[0].port_or_default(false), 5672);
    assert_eq!(default.hosts[0].port_or_default(true), 5671);
    assert_eq!(
        (default.user.as_str(), default.password.expose(), default.vhost.as_str()),
        ("guest", "guest", "/")
    );
    assert_eq!(default, RabbitMqConfig::from_uri("amqp://").unwrap());
}

#[test]
fn every_setter_sets_its_field() {
    let second = Duration::from_secs(1);
    let set = config()
        .with_hosts([Host::new("h").with_port(1)])
        .with_user("u")
        .with_password("p")
        .with_vhost("v")
        .with_tls(Tls::default())
        .with_heartbeat(2 * second)
        .with_connect_timeout(3 * second)
        .with_prefetch(NonZeroU16::MIN)
        .with_publish_timeout(4 * second)
        .with_connection_name("n")
        .with_reconnect_delay(5 * second)
        .with_reconnect_max_delay(6 * second)
        .with_refusal_patience(Duration::ZERO);
    set.validate().unwrap();
    let text = format!("{set:?}");
    assert_eq!(
        text,
        "RabbitMqConfig { hosts: [\"h:1\"], user: [hidden], password: [hidden], vhost: \"v\", tls: Some(Tls { ca: \
         None, client: None, server_name: None }), heartbeat: 2s, connect_timeout: 3s, prefetch: Some(1), \
         publish_timeout: 4s, connection_name: Some(\"n\"), reconnect_delay: 5s, reconnect_max_delay: 6s, \
         refusal_patience: 0ns }"
    );
    assert_eq!((set.user.as_str(), set.password.expose()), ("u", "p"));
}

#[test]
fn what_is_out_of_bounds_is_refused_and_the_bounds_are_not() {
    let (ms, s) = (Duration::from_millis, Duration::from_secs);
    let good = [
        config().with_heartbeat(s(1)),
        config().with_heartbeat(s(600)),
        config().with_connect_timeout(ms(1)),
        config().with_connect_timeout(s(300)),
        config().with_publish_timeout(s(1)),
        config().with_publish_timeout(s(30)),
        config().with_reconnect_delay(ms(1)).with_reconnect_max_delay(ms(1)),
        config().with_reconnect_delay(s(3_600)).with_reconnect_max_delay(s(3_600)),
        config().with_refusal_patience(Duration::MAX),
        config().with_vhost("v".repeat(255)).with_user("u".repeat(255)).with_connection_name("n".repeat(255)),
        config().with_password(""),
        config().with_hosts([Host::new("fe80::1%eth0"), Host::new("rabbit_1"), Host::new("10.0.0.1")]),
    ];
    for config in good {
        config.validate().unwrap_or_else(|error| panic!("{error}: {config:?}"));
    }
    let bad = [
        (config().with_heartbeat(s(0)), "heartbeat: must be whole seconds from 1 to 600, not 0ns"),
        (config().with_heartbeat(s(601)), "heartbeat: "),
        (config().with_heartbeat(ms(1_500)), "heartbeat: must be whole seconds from 1 to 600, not 1.5s"),
        (config().with_connect_timeout(s(0)), "connect_timeout: must be from 1ms to 300s, not 0ns"),
        (config().with_connect_timeout(s(301)), "connect_timeout: "),
        (config().with_publish_timeout(ms(999)), "publish_timeout: must be from 1s to 30s, not 999ms"),
        (config().with_publish_timeout(ms(30_001)), "publish_timeout: "),
        (config().with_reconnect_delay(s(0)), "reconnect_delay: must be from 1ms to 3600s"),
        (config().with_reconnect_delay(Duration::MAX), "reconnect_delay: "),
        (config().with_reconnect_max_delay(s(3_601)), "reconnect_max_delay: "),
        (config().with_reconnect_max_delay(ms(499)), "reconnect_max_delay: must not be shorter"),
        (config().with_user(""), "user: is empty"),
        (config().with_user("u\0"), "user: holds a NUL"),
        (config().with_user("u".repeat(256)), "user: has 256 bytes"),
        (config().with_password("p\0"), "password: holds a NUL"),
        (config().with_vhost(""), "vhost: is empty"),
        (config().with_vhost("\u{fc}".repeat(128)), "vhost: has 256 bytes; at most 255"),
        (config().with_connection_name(""), "connection_name: is empty"),
        (config().with_connection_name("n".repeat(256)), "connection_name: has 256 bytes"),
        (config().with_hosts([]), "hosts: is empty"),
        (config().with_hosts([Host::new("h"), Host::new("")]), "hosts: host 2 has no name"),
        (config().with_hosts([Host::new("h:5672")]), "hosts: host 1 is neither a name nor an address"),
        (config().with_hosts([Host::new("amqp://h")]), "hosts: host 1 "),
        (config().with_hosts([Host::new("h").with_port(0)]), "hosts: host 1 has port 0"),
        (config().with_hosts([Host::new("h".repeat(254))]), "hosts: host 1 "),
    ];
    for (config, expected) in bad {
        assert_refused(config.validate(), expected);
    }
}

#[test]
fn tls_is_looked_at_without_reading_files() {
    let made = Certificates::make();
    let (ca, key) = (made.ca.as_str(), made.client_key.as_str());
    let with = |tls| config().with_tls(tls).validate();
    with(Tls::default().with_ca(Pem::text(ca)).with_client(Pem::text(ca), Pem::text(key))).unwrap();
    with(Tls::default().with_ca(Pem::file("/no/such/file"))).unwrap();
    with(Tls::default().with_server_name("10.0.0.1")).unwrap();
    let refused = [
        (Tls::default().with_ca(Pem::text("")), "tls.ca: holds no certificate"),
        (Tls::default().with_ca(Pem::text(key)), "tls.ca: holds no certificate"),
        (Tls::default().with_ca(Pem::text(ca.replace("END", "OND"))), "tls.ca: is not PEM"),
        (Tls::default().with_client(Pem::text(key), Pem::text(key)), "tls.client.certificate: holds no cert"),
        (Tls::default().with_client(Pem::text(ca), Pem::text(ca)), "tls.client.key: holds no private key"),
        (Tls::default().with_server_name("not a name"), "tls.server_name: must be"),
        (Tls::default().with_server_name(""), "tls.server_name: must be"),
    ];
    for (tls, expected) in refused {
        assert_refused(with(tls), expected);
    }
    let zone = config().with_hosts([Host::new("fe80::1%eth0")]);
    assert_refused(zone.clone().with_tls(Tls::default()).validate(), "set tls.server_name");
    zone.with_tls(Tls::default().with_server_name("rabbit.example")).validate().unwrap();
}
