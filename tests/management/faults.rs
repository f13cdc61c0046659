//! Down, slow, and whatever else is no management API.

use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use serde_json::json;
use windlass::clock::ControlledClock;
use windlass::management::{Management, ManagementConfig};
use windlass::{Error, ErrorKind};

use crate::server::{Reply, Server, bounded};

async fn asked(reply: Reply) -> Error {
    let server = Server::always(reply).await;
    let error = bounded(server.management().overview()).await.expect_err("no such API");
    assert_eq!(server.seen().len(), 1, "nothing is tried twice: {error}");
    error
}

#[tokio::test]
async fn each_refusal_has_its_kind_and_the_brokers_reason() {
    let reply =
        |status, error: &str, reason: &str| Reply::json(status, &json!({"error": error, "reason": reason}));
    for (status, kind, transient) in [
        (400, ErrorKind::Refused, false),
        (401, ErrorKind::Unauthorized, false),
        (403, ErrorKind::Refused, false),
        (404, ErrorKind::NotFound, false),
        (405, ErrorKind::Refused, false),
        (429, ErrorKind::Refused, true),
        (500, ErrorKind::Other, true),
        (503, ErrorKind::Other, true),
    ] {
        let error = asked(reply(status, "some_word", "inequivalent arg 'x-max-length'")).await;
        assert_eq!((error.kind(), error.is_transient()), (kind, transient), "{error}");
        let text = error.to_string();
        assert!(text.contains(&format!("{status} inequivalent arg 'x-max-length'")), "{text}");
        assert!(text.contains("url http://127.0.0.1:"), "{text}");
    }
}

/// Both are 401; the API tells them apart by the spelling of one word.
#[tokio::test]
async fn a_wrong_password_and_a_missing_right_are_told_apart() {
    for (word, kind) in [
        ("not_authorized", ErrorKind::Unauthorized),
        ("not_authorised", ErrorKind::Refused),
        ("anything else", ErrorKind::Unauthorized),
    ] {
        let error = asked(Reply::json(401, &json!({"error": word, "reason": "no"}))).await;
        assert_eq!((error.kind(), error.is_transient()), (kind, false), "{error}");
        assert_eq!(error.to_string().contains("lacks a tag"), kind == ErrorKind::Refused, "{error}");
    }
}

#[tokio::test]
async fn a_server_that_is_no_management_api_is_told_as_such_and_not_asked_again() {
    let hint = "is there a management API of RabbitMQ at this URL?";
    for (reply, kind) in [
        (Reply::html(200), ErrorKind::Other),
        (Reply::html(404), ErrorKind::NotFound),
        (Reply::html(401), ErrorKind::Unauthorized),
        (Reply::Body(200, "application/json", String::new()), ErrorKind::Other),
        (Reply::Body(200, "application/json", "{\"rabbitmq_version\":".to_owned()), ErrorKind::Other),
        (Reply::Endless, ErrorKind::Other),
    ] {
        let error = asked(reply.clone()).await;
        assert_eq!((error.kind(), error.is_transient()), (kind, false), "{reply:?}: {error}");
        assert!(error.to_string().contains(hint), "{reply:?}: {error}");
        assert!(!error.to_string().contains("router"), "nothing of a body that is not the API's: {error}");
    }
    // 500 without a word is what 4.0 says to what it stumbles over.
    let error = asked(Reply::Body(500, "application/json", String::new())).await;
    assert_eq!((error.kind(), error.is_transient()), (ErrorKind::Other, true), "{error}");
}

/// A 404 that is not the API's would have the bootstrapper make what is there already.
#[tokio::test]
async fn a_404_of_somebody_else_is_not_that_a_thing_is_missing() {
    let server = Server::always(Reply::html(404)).await;
    let error = bounded(server.management().queue("/", "orders")).await.expect_err("no API");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let body = json!({"error": "Object Not Found", "reason": "Not Found"});
    let server = Server::always(Reply::json(404, &body)).await;
    assert_eq!(bounded(server.management().queue("/", "orders")).await.expect("it is the API's"), None);
}

#[tokio::test]
async fn a_port_without_a_listener_and_a_connection_that_ends_are_disconnected() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let config = ManagementConfig::default().with_url(format!("http://127.0.0.1:{port}"));
    let error = bounded(Management::new(config).unwrap().overview()).await.expect_err("nobody listens");
    assert_eq!((error.kind(), error.is_transient()), (ErrorKind::Disconnected, true), "{error}");
    for reply in [Reply::Close, Reply::Half] {
        let error = asked(reply).await;
        assert_eq!((error.kind(), error.is_transient()), (ErrorKind::Disconnected, true), "{error}");
    }
}

/// On the clock of the client, so that this takes no time.
#[tokio::test]
async fn an_answer_that_does_not_end_in_time_is_a_time_out() {
    for reply in [Reply::Silence, Reply::Drip] {
        let server = Server::always(reply.clone()).await;
        let clock = ControlledClock::new();
        let config = server.config().with_timeout(Duration::from_secs(30));
        let management = Management::new_on(config, clock.clone()).unwrap();
        let asking = tokio::spawn(async move { management.overview().await });
        bounded(clock.until_sleepers(1)).await.expect("it waits on the clock");
        clock.advance(Duration::from_millis(29_999)).await;
        assert!(!asking.is_finished(), "{reply:?}: too early");
        clock.advance(Duration::from_millis(1)).await;
        let error = bounded(asking).await.unwrap().expect_err("no answer");
        assert_eq!((error.kind(), error.is_transient()), (ErrorKind::Timeout, true), "{reply:?}: {error}");
        assert!(error.to_string().contains("no answer within 30s"), "{error}");
    }
}

/// It would be given the password.
#[tokio::test]
async fn a_redirect_is_not_followed() {
    let other = Server::always(Reply::json(200, &json!({}))).await;
    let server = Server::always(Reply::Redirect(format!("{}/api/overview", other.url()))).await;
    let error = bounded(server.management().overview()).await.expect_err("elsewhere");
    assert_eq!((error.kind(), error.is_transient()), (ErrorKind::Other, false), "{error}");
    assert!(error.to_string().contains("302"), "{error}");
    assert!(other.seen().is_empty());
}

#[tokio::test]
async fn a_prefix_of_the_url_stands_before_the_path_and_names_are_one_segment_each() {
    let server = Server::always(Reply::json(200, &json!({"name": "x"}))).await;
    let config = ManagementConfig::from_url(&format!("{}/broker/api/", server.url())).unwrap();
    let management = Management::new(config).unwrap();
    bounded(management.queue("/", "a/b ö%2f?#")).await.unwrap();
    let seen = server.seen();
    assert_eq!(seen[0].line, "GET /broker/api/queues/%2F/a%2Fb%20%C3%B6%252f%3F%23 HTTP/1.1");
    // Of guest and guest.
    let login = "authorization: basic z3vlc3q6z3vlc3q=";
    assert!(seen[0].head.to_lowercase().contains(login), "{}", seen[0].head);
    assert!(seen[0].body.is_empty());
}
