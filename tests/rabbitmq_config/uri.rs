//! `amqp://` and `amqps://`.

use std::time::Duration;

use windlass::rabbitmq::config::{Host, Pem, RabbitMqConfig, Tls};

use crate::assert_refused;

fn parse(uri: &str) -> RabbitMqConfig {
    RabbitMqConfig::from_uri(uri).unwrap_or_else(|error| panic!("{uri}: {error}"))
}

/// User, password, hosts and virtual host, with a port for each host.
fn parts(uri: &str) -> (String, String, Vec<String>, String) {
    let config = parse(uri);
    let tls = config.tls.is_some();
    let hosts = config.hosts.iter().map(|host| host.clone().with_port(host.port_or_default(tls)).to_string());
    (config.user, config.password.expose().to_owned(), hosts.collect(), config.vhost)
}

#[test]
fn the_table_of_the_specification_holds() {
    #[rustfmt::skip]
    let table = [
        ("amqp://user:pass@host:10000/vhost", "user", "pass", "host:10000", "vhost"),
        ("amqp://user%61:%61pass@ho%61st:10000/v%2fhost", "usera", "apass", "hoast:10000", "v/host"),
        ("amqp://", "guest", "guest", "localhost:5672", "/"),
        ("amqp://:@/", "", "", "localhost:5672", ""),
        ("amqp://user@", "user", "guest", "localhost:5672", "/"),
        ("amqp://user:pass@", "user", "pass", "localhost:5672", "/"),
        ("amqp://host", "guest", "guest", "host:5672", "/"),
        ("amqp://:10000", "guest", "guest", "localhost:10000", "/"),
        ("amqp:///vhost", "guest", "guest", "localhost:5672", "vhost"),
        ("amqp://host/", "guest", "guest", "host:5672", ""),
        ("amqp://host/%2f", "guest", "guest", "host:5672", "/"),
        ("amqp://host/%2F", "guest", "guest", "host:5672", "/"),
        ("amqp://[::1]", "guest", "guest", "[::1]:5672", "/"),
        ("amqp://[2001:db8::10]:5673/x", "guest", "guest", "[2001:db8::10]:5673", "x"),
        ("amqp://[fe80::1%25eth0]:5673", "guest", "guest", "[fe80::1%eth0]:5673", "/"),
        ("amqps://host", "guest", "guest", "host:5671", "/"),
        ("amqps://[::1]/", "guest", "guest", "[::1]:5671", ""),
        ("AMQPS://host:1", "guest", "guest", "host:1", "/"),
        ("amqp://host:", "guest", "guest", "host:5672", "/"),
        ("amqp://host:/v", "guest", "guest", "host:5672", "v"),
        ("amqp://host?heartbeat=5", "guest", "guest", "host:5672", "/"),
        ("amqp://host/?heartbeat=5", "guest", "guest", "host:5672", ""),
        // A ':' in the password needs no escape, one in the user does.
        ("amqp://us%3Aer:pa:ss@host", "us:er", "pa:ss", "host:5672", "/"),
        ("amqp://u:p%40ss%3A%2F%23%25%3F@host", "u", "p@ss:/#%?", "host:5672", "/"),
        ("amqp://u:%25t@host", "u", "%t", "host:5672", "/"),
        ("amqp://%C3%BCser:p%C3%A4ss@host/%C3%B6", "\u{fc}ser", "p\u{e4}ss", "host:5672", "\u{f6}"),
        ("amqp://\u{fc}ser:p\u{e4}ss@host/\u{f6}", "\u{fc}ser", "p\u{e4}ss", "host:5672", "\u{f6}"),
        // No form: a '+' is a plus.
        ("amqp://u:a+b@host/a+b", "u", "a+b", "host:5672", "a+b"),
        ("amqp://u:a,b[c]@host", "u", "a,b[c]", "host:5672", "/"),
    ];
    for (uri, user, password, host, vhost) in table {
        let expected = (user.to_owned(), password.to_owned(), vec![host.to_owned()], vhost.to_owned());
        assert_eq!(parts(uri), expected, "{uri}");
    }
}

#[test]
fn any_text_survives_as_user_password_and_vhost_once_it_is_encoded() {
    for text in ["p@ss:/#%?", "%t", "us:er", "\u{fc}\u{df}\u{1f510}", "a b\n", "[::1]", "a,b", "%2f", "&=+;"]
    {
        let encoded: String = text.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let config = parse(&format!("amqp://{encoded}:{encoded}@host/{encoded}"));
        assert_eq!((config.user.as_str(), config.password.expose()), (text, text));
        assert_eq!(config.vhost, text);
    }
}

#[test]
fn several_hosts_keep_their_order_and_their_ports() {
    let config = parse("amqp://u:p@h1:1,h2,[::1]:3,10.0.0.4/v");
    let expected =
        [Host::new("h1").with_port(1), Host::new("h2"), Host::new("::1").with_port(3), Host::new("10.0.0.4")];
    assert_eq!(config.hosts, expected);
    let shown: Vec<String> = config.hosts.iter().map(ToString::to_string).collect();
    assert_eq!(shown, ["h1:1", "h2", "[::1]:3", "10.0.0.4"]);
    assert!(config.hosts.iter().all(|host| host.to_string().parse::<Host>().unwrap() == *host));
}

#[test]
fn parameters_are_those_of_rabbitmqs_own_clients() {
    let config = parse("amqp://h?heartbeat=5&connection_timeout=10000");
    assert_eq!(config.heartbeat, Duration::from_secs(5));
    assert_eq!(config.connect_timeout, Duration::from_secs(10));

    let config = parse(
        "amqps://h/v?cacertfile=%2Fetc%2Fca.pem&certfile=/etc/cert.pem&keyfile=/etc/key.pem&verify=verify_peer\
         &server_name_indication=rabbit.example",
    );
    let tls = Tls::default()
        .with_ca(Pem::file("/etc/ca.pem"))
        .with_client(Pem::file("/etc/cert.pem"), Pem::file("/etc/key.pem"))
        .with_server_name("rabbit.example");
    assert_eq!(config.tls, Some(tls));
    config.validate().unwrap();
}

#[test]
fn what_is_malformed_is_refused_with_the_fix() {
    let table = [
        ("", "amqp://"),
        ("host", "amqp://"),
        ("amqp:host", "amqp://"),
        ("http://host", "amqp://"),
        ("amqp://u:p@ss@host", "%40"),
        ("amqp://u:p/ss@host", "%2F"),
        ("amqp://u:1/ss@host", "%2F"),
        ("amqp://u:p?ss@host", "%3F"),
        ("amqp://u:p#ss@host", "%23"),
        ("amqp://u:p%ss@host", "the password holds a '%' without two hex digits"),
        ("amqp://u:%t@host", "write '%' as %25"),
        ("amqp://u:p%@host", "write '%' as %25"),
        ("amqp://u%2:p@host", "the user holds a '%' without two hex digits"),
        ("amqp://u:%ff@host", "the password is not UTF-8"),
        ("amqp://h%zz", "a host holds a '%' without two hex digits"),
        ("amqp://h/%2", "the virtual host holds a '%' without two hex digits"),
        ("amqp://h/v\n", "line end"),
        ("amqp://h /v", "a space"),
        ("amqp://h/a/b", "a '/' in the virtual host"),
        ("amqp://h//", "amqp://host/%2F"),
        ("amqp://h:port", "host 1 has a port that is not a number"),
        ("amqp://h:0", "host 1 has a port that is not a number"),
        ("amqp://h:+1", "host 1 has a port that is not a number"),
        ("amqp://h:65536", "host 1 has a port that is not a number"),
        ("amqp://h1,h2:x", "host 2 has a port that is not a number"),
        ("amqp://h1,,h2", "host 2 has no name"),
        ("amqp://h1,", "host 2 has no name"),
        ("amqp://::1", "brackets"),
        ("amqp://a%3a%3a1", "brackets"),
        ("amqp://[::1", "host 1 has a '['"),
        ("amqp://[::1]5672", "host 1 has something other than a port"),
        ("amqp://[h]", "host 1 has no IPv6 address"),
        ("amqp://h%20x", "host 1 is neither a name nor an address"),
        ("amqp://h?heartbeat", "the parameter heartbeat has no value"),
        ("amqp://h?heartbeat=1.5", "heartbeat must be a whole number of seconds"),
        ("amqp://h?heartbeat=-1", "heartbeat must be a whole number of seconds"),
        ("amqp://h?heartbeat=1&heartbeat=2", "heartbeat is given twice"),
        ("amqp://h?connection_timeout=10s", "connection_timeout must be a whole number of milliseconds"),
        ("amqp://h?channel_max=10", "the parameter channel_max is not taken"),
        ("amqp://h?frame_max=4096", "headers must fit into one frame"),
        ("amqp://h?auth_mechanism=external", "the parameter auth_mechanism is not taken"),
        ("amqp://h?hartbeat=5", "the parameter hartbeat is not known"),
        ("amqp://h?cacertfile=/ca.pem", "the parameter cacertfile needs amqps://"),
        ("amqps://h?certfile=/cert.pem", "the parameter certfile needs keyfile"),
        ("amqps://h?keyfile=/key.pem", "the parameter keyfile needs certfile"),
        ("amqps://h?verify=verify_none", "the broker is always checked"),
    ];
    for (uri, expected) in table {
        assert_refused(RabbitMqConfig::from_uri(uri), expected);
        assert_refused(uri.parse::<RabbitMqConfig>(), expected);
    }
}

#[test]
fn an_empty_vhost_stays_empty_and_is_refused_before_the_broker_does() {
    let config = parse("amqp://host/");
    assert_eq!(config.vhost, "");
    assert_refused(config.validate(), "%2f");
    assert_refused(parse("amqp://:@host").validate(), "user: is empty");
    assert_refused(
        parse("amqp://host?heartbeat=0").validate(),
        "heartbeat: must be whole seconds from 1 to 600",
    );
}

#[test]
fn a_host_alone_is_read_as_in_a_uri_but_not_decoded() {
    for (text, name, port) in [
        ("h", "h", None),
        ("h:1", "h", Some(1)),
        ("[::1]", "::1", None),
        ("[::1]:1", "::1", Some(1)),
        ("[fe80::1%eth0]:1", "fe80::1%eth0", Some(1)),
    ] {
        let host: Host = text.parse().unwrap();
        assert_eq!((host.name.as_str(), host.port), (name, port));
        assert_eq!(host.to_string(), text);
    }
    for text in ["", ":1", "::1", "h%61", "u@h", "amqp://h", "a,b", "h/v", "[::1%]", "[::1]:x"] {
        assert_refused(text.parse::<Host>(), "hosts: a host ");
    }
    assert_eq!(Host::new("[::1]"), Host::new("::1"));
}
