//! The configuration: from URLs and from the environment, and what is refused.

use std::fs;
use std::time::Duration;

use windlass::ErrorKind;
use windlass::management::{Management, ManagementConfig};
use windlass::rabbitmq::config::{Pem, Tls};

#[track_caller]
fn refused<T: std::fmt::Debug>(result: windlass::Result<T>, expected: &str) {
    let error = result.expect_err(expected);
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains(expected), "wanted {expected:?} in: {error}");
}

fn vars<const N: usize>(vars: [(&str, &str); N]) -> windlass::Result<ManagementConfig> {
    ManagementConfig::from_vars("X", vars.map(|(name, value)| (name.to_owned(), value.to_owned())))
}

#[test]
fn a_url_is_split_into_its_fields() {
    let config = ManagementConfig::from_url("https://us%2Fer:p%40%3Ass:%23@[::1]:15671/a/b/api/").unwrap();
    assert_eq!(config.url, "https://[::1]:15671/a/b");
    assert_eq!((config.user.as_str(), config.password.expose()), ("us/er", "p@:ss:#"));
    let config = ManagementConfig::from_url("http://rabbit").unwrap();
    assert_eq!((config.url.as_str(), config.user.as_str()), ("http://rabbit", "guest"));
    assert_eq!(config.timeout, Duration::from_secs(10));
}

#[test]
fn urls_that_cannot_be_right_are_refused() {
    for (url, expected) in [
        ("rabbit:15672", "http:// or https://"),
        ("amqp://rabbit", "http:// or https://"),
        ("http://", "URL"),
        ("http://rabbit:port", "URL"),
        ("http://u:p/w@rabbit", "percent-encoded"),
        ("http://rabbit?x=1", "`?`"),
        ("http://rabbit#x", "`#`"),
        ("http://%ff:x@rabbit", "the user is not UTF-8"),
    ] {
        refused(ManagementConfig::from_url(url), expected);
    }
}

#[test]
fn values_that_cannot_be_right_are_refused_before_anything_is_sent() {
    let config = ManagementConfig::default;
    for (config, expected) in [
        (config().with_url("http://u:p@rabbit"), "url: holds an `@`"),
        (config().with_user(""), "user: is empty"),
        (config().with_user("a:b"), "user: holds a `:`"),
        (config().with_tls(Tls::default()), "tls: is set, but `url` is not https://"),
        (config().with_timeout(Duration::ZERO), "timeout"),
        (config().with_timeout(Duration::from_secs(301)), "timeout"),
        (config().with_url("https://rabbit").with_tls(Tls::default().with_ca(Pem::text("x"))), "tls.ca"),
    ] {
        refused(config.validate(), expected);
        refused(Management::new(config), expected);
    }
    let authority = Tls::default().with_ca(Pem::file("/nowhere/ca.pem"));
    refused(Management::new(config().with_url("https://rabbit").with_tls(authority)), "tls.ca");
    let named = Tls::default().with_server_name("10.0.0.1");
    let error = Management::new(config().with_url("https://rabbit").with_tls(named)).expect_err("an address");
    assert!(error.to_string().contains("tls."), "{error}");
}

#[test]
fn variables_set_fields_and_others_are_refused() {
    let config = vars([
        ("X_URL", "https://a:b@rabbit:15671/prefix"),
        ("X_USER", "ops"),
        ("X_PASSWORD", "p@ss:/#%?"),
        ("X_TLS_CA_FILE", "/ca.pem"),
        ("X_TIMEOUT_MS", "2500"),
        ("Y_USER", "somebody else's"),
    ])
    .unwrap();
    assert_eq!(config.url, "https://rabbit:15671/prefix");
    assert_eq!((config.user.as_str(), config.password.expose()), ("ops", "p@ss:/#%?"));
    assert_eq!(config.timeout, Duration::from_millis(2500));
    assert_eq!(config.tls.unwrap().ca, Some(Pem::file("/ca.pem")));

    let file = std::env::temp_dir().join(format!("windlass-management-{}", std::process::id()));
    fs::write(&file, "from a file\n").unwrap();
    let config = vars([("X_PASSWORD_FILE", file.to_str().unwrap())]).unwrap();
    fs::remove_file(&file).unwrap();
    assert_eq!(config.password.expose(), "from a file");

    refused(vars([("X_URI", "http://rabbit")]), "X_URI: is not known; behind X_ can stand: URL, USER");
    refused(vars([("X_URL", "")]), "X_URL: is set but empty");
    refused(vars([("X_URL", "ftp://rabbit")]), "X_URL: must begin with http://");
    refused(vars([("X_PASSWORD", "a"), ("X_PASSWORD_FILE", "b")]), "X_PASSWORD_FILE");
    refused(vars([("X_TIMEOUT_MS", "10s")]), "X_TIMEOUT_MS");
}
