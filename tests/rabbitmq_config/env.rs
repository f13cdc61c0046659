//! Environment variables, given as pairs.

use std::num::NonZeroU16;
use std::time::Duration;

use windlass::Result;
use windlass::rabbitmq::config::{Host, Pem, RabbitMqConfig, Tls};

use crate::assert_refused;

fn read(vars: &[(&str, &str)]) -> Result<RabbitMqConfig> {
    read_with("ORDERS_MQ", vars)
}

fn read_with(prefix: &str, vars: &[(&str, &str)]) -> Result<RabbitMqConfig> {
    let vars = vars.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    RabbitMqConfig::from_vars(prefix, vars)
}

#[test]
fn nothing_set_is_the_default() {
    let others = [("USER", "root"), ("ORDERS", "x"), ("ORDERS_MQUEUE", "x"), ("orders_mq_vhost", "x")];
    assert_eq!(read(&others).unwrap(), RabbitMqConfig::default());
    assert_eq!(RabbitMqConfig::from_env("NOBODY_HAS_THIS_PREFIX").unwrap(), RabbitMqConfig::default());
}

#[test]
fn every_variable_sets_its_field_and_overrides_the_uri() {
    let config = read(&[
        ("ORDERS_MQ_HEARTBEAT_SECONDS", "5"),
        ("ORDERS_MQ_URI", "amqp://a:b@c:1/d?heartbeat=9"),
        ("ORDERS_MQ_HOSTS", "h1:1, h2,[::1]:3"),
        ("ORDERS_MQ_USER", "us:er"),
        ("ORDERS_MQ_PASSWORD", "p@ss:/#%?%41"),
        ("ORDERS_MQ_VHOST", "/"),
        ("ORDERS_MQ_TLS", "true"),
        ("ORDERS_MQ_TLS_CA_FILE", "/ca.pem"),
        ("ORDERS_MQ_TLS_CERT_FILE", "/cert.pem"),
        ("ORDERS_MQ_TLS_KEY_FILE", "/key.pem"),
        ("ORDERS_MQ_TLS_SERVER_NAME", "rabbit.example"),
        ("ORDERS_MQ_CONNECT_TIMEOUT_MS", "2500"),
        ("ORDERS_MQ_PREFETCH", "65535"),
        ("ORDERS_MQ_PUBLISH_TIMEOUT_MS", "1500"),
        ("ORDERS_MQ_CONNECTION_NAME", "orders"),
        ("ORDERS_MQ_RECONNECT_DELAY_MS", "100"),
        ("ORDERS_MQ_RECONNECT_MAX_DELAY_MS", "2000"),
        ("ORDERS_MQ_REFUSAL_PATIENCE_SECONDS", "0"),
    ])
    .unwrap();
    let tls = Tls::default()
        .with_ca(Pem::file("/ca.pem"))
        .with_client(Pem::file("/cert.pem"), Pem::file("/key.pem"))
        .with_server_name("rabbit.example");
    let expected = RabbitMqConfig::default()
        .with_hosts([Host::new("h1").with_port(1), Host::new("h2"), Host::new("::1").with_port(3)])
        .with_user("us:er")
        .with_password("p@ss:/#%?%41")
        .with_vhost("/")
        .with_tls(tls)
        .with_heartbeat(Duration::from_secs(5))
        .with_connect_timeout(Duration::from_millis(2_500))
        .with_prefetch(NonZeroU16::MAX)
        .with_publish_timeout(Duration::from_millis(1_500))
        .with_connection_name("orders")
        .with_reconnect_delay(Duration::from_millis(100))
        .with_reconnect_max_delay(Duration::from_secs(2))
        .with_refusal_patience(Duration::ZERO);
    assert_eq!(config, expected);
}

#[test]
fn what_a_variable_leaves_alone_stays_as_the_uri_says() {
    let uri = ("ORDERS_MQ_URI", "amqps://a:b@c:1/d?cacertfile=/ca.pem&server_name_indication=x");
    let config = read(&[uri, ("ORDERS_MQ_PASSWORD", "p"), ("ORDERS_MQ_TLS_SERVER_NAME", "y")]).unwrap();
    let expected = RabbitMqConfig::from_uri(uri.1).unwrap().with_password("p");
    let tls = Tls::default().with_ca(Pem::file("/ca.pem")).with_server_name("y");
    assert_eq!(config, expected.with_tls(tls));
    assert_eq!(read(&[uri, ("ORDERS_MQ_TLS", "false")]).unwrap().tls, None);
    assert_eq!(read(&[("ORDERS_MQ_TLS", "true")]).unwrap().tls, Some(Tls::default()));
}

#[test]
fn the_prefix_may_end_in_an_underscore_and_must_be_there() {
    let var = [("ORDERS_MQ_USER", "u"), ("USER", "root")];
    assert_eq!(read_with("ORDERS_MQ_", &var).unwrap().user, "u");
    for prefix in ["", "_", "A-B", "A=B", "A B"] {
        assert_refused(read_with(prefix, &var), "prefix: ");
        assert_refused(RabbitMqConfig::from_env(prefix), "prefix: ");
    }
}

#[test]
fn a_typo_is_refused_with_the_names_that_there_are() {
    for name in ["USERNAME", "HOST", "PORT", "HEARTBEAT", "_USER", "", "PUBLISH_TIMEOUT"] {
        let full = format!("ORDERS_MQ_{name}");
        assert_refused(
            read(&[(&full, "5672")]),
            &format!("{full}: is not known; behind ORDERS_MQ_ can stand: URI, "),
        );
    }
}

#[test]
fn the_variables_that_kubernetes_makes_for_a_service_are_left_alone() {
    let links = [
        ("ORDERS_MQ_SERVICE_HOST", "10.0.0.1"),
        ("ORDERS_MQ_SERVICE_PORT", "5672"),
        ("ORDERS_MQ_SERVICE_PORT_AMQP", "5672"),
        ("ORDERS_MQ_PORT", "tcp://10.0.0.1:5672"),
        ("ORDERS_MQ_PORT_5672_TCP", "tcp://10.0.0.1:5672"),
        ("ORDERS_MQ_PORT_5672_TCP_ADDR", "10.0.0.1"),
    ];
    assert_eq!(read(&links).unwrap(), RabbitMqConfig::default());
}

#[test]
fn a_bad_value_is_refused_with_its_variable() {
    for (name, value, expected) in [
        ("USER", "", "ORDERS_MQ_USER: is set but empty"),
        ("PASSWORD", "", "ORDERS_MQ_PASSWORD: is set but empty"),
        ("URI", "amqp://h:x", "ORDERS_MQ_URI: host 1 has a port that is not a number"),
        ("HOSTS", "h1,::1", "ORDERS_MQ_HOSTS: must be one host or several"),
        ("HOSTS", "h1,", "ORDERS_MQ_HOSTS: must be one host or several"),
        ("TLS", "yes", "ORDERS_MQ_TLS: must be true or false"),
        ("TLS_CERT_FILE", "/c", "ORDERS_MQ_TLS_CERT_FILE: needs TLS_KEY_FILE"),
        ("TLS_KEY_FILE", "/k", "ORDERS_MQ_TLS_KEY_FILE: needs TLS_CERT_FILE"),
        ("HEARTBEAT_SECONDS", "10s", "ORDERS_MQ_HEARTBEAT_SECONDS: must be a whole number"),
        ("HEARTBEAT_SECONDS", "+1", "ORDERS_MQ_HEARTBEAT_SECONDS: must be a whole number"),
        ("PUBLISH_TIMEOUT_MS", "1.5", "ORDERS_MQ_PUBLISH_TIMEOUT_MS: must be a whole number"),
        ("CONNECT_TIMEOUT_MS", "-1", "ORDERS_MQ_CONNECT_TIMEOUT_MS: must be a whole number"),
        ("REFUSAL_PATIENCE_SECONDS", "99999999999999999999", "must be a whole number"),
        ("PREFETCH", "0", "ORDERS_MQ_PREFETCH: must be a whole number from 1 to 65535"),
        ("PREFETCH", "65536", "ORDERS_MQ_PREFETCH: must be a whole number from 1 to 65535"),
    ] {
        assert_refused(read(&[(&format!("ORDERS_MQ_{name}"), value)]), expected);
    }
    assert_refused(
        read(&[("ORDERS_MQ_TLS", "false"), ("ORDERS_MQ_TLS_CA_FILE", "/ca.pem")]),
        "ORDERS_MQ_TLS: is false, but other TLS variables are set",
    );
    assert_refused(
        read(&[("ORDERS_MQ_PASSWORD", "p"), ("ORDERS_MQ_PASSWORD_FILE", "/p")]),
        "ORDERS_MQ_PASSWORD_FILE: cannot stand beside PASSWORD",
    );
}

#[test]
fn a_password_file_is_read_less_its_last_line_end() {
    let folder = std::env::temp_dir().join(format!("windlass-env-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("password");
    let read = || read(&[("ORDERS_MQ_PASSWORD_FILE", path.to_str().unwrap())]);
    assert_refused(read(), "ORDERS_MQ_PASSWORD_FILE: names a file that cannot be read");
    for (content, password) in
        [("p", "p"), ("p\n", "p"), ("p\r\n", "p"), (" p \n\n", " p \n"), ("\u{e4}\n", "\u{e4}")]
    {
        std::fs::write(&path, content).unwrap();
        assert_eq!(read().unwrap().password.expose(), password);
    }
    std::fs::write(&path, "\n").unwrap();
    assert_refused(read(), "ORDERS_MQ_PASSWORD_FILE: names a file that is empty");
    std::fs::write(&path, [0xff]).unwrap();
    assert_refused(read(), "ORDERS_MQ_PASSWORD_FILE: names a file that is not UTF-8");
    std::fs::remove_dir_all(&folder).unwrap();
}
