//! No password in anything that is printed, in any encoding, also where the other end says what it was sent.

use std::fmt::Write as _;

use serde_json::json;
use windlass::bootstrap::Bootstrapper;
use windlass::error::Chain;
use windlass::management::{Management, ManagementConfig};
use windlass::topology::Topology;
use windlass::{Error, rabbitmq::Secret};

use crate::server::{Reply, Server, bounded};

const PASSWORD: &str = "zQ7x/Kw9v@J8jq";
const NODES: &str = "vX3k  \"pW8r\"";

/// The passwords as they are, percent-encoded, and in base64 together with each user.
fn forms() -> Vec<String> {
    vec![
        PASSWORD.to_owned(),
        "zQ7x".to_owned(),
        "Kw9v".to_owned(),
        "J8jq".to_owned(),
        "vX3k".to_owned(),
        "pW8r".to_owned(),
        // ops:zQ7x/Kw9v@J8jq
        "b3BzOnpRN3gvS3c5dkBKOGpx".to_owned(),
    ]
}

#[track_caller]
fn assert_silent(text: &str) {
    for form in forms() {
        assert!(!text.contains(&form), "{form} in {text}");
    }
}

fn printed(error: &Error) -> String {
    format!("{error} {error:?} {error:#?} {}", Chain(error))
}

fn config(server: &Server) -> ManagementConfig {
    server.config().with_user("ops").with_password(PASSWORD)
}

/// All of its head and body, as a reason.
fn echo(status: u16) -> impl Fn(&crate::server::Request) -> Reply {
    move |request| {
        let reason = format!("cannot do {} {}", request.head, request.body);
        Reply::json(status, &json!({"error": "echo", "reason": reason}))
    }
}

#[tokio::test]
async fn no_error_repeats_the_password_even_where_the_server_does() {
    let server = Server::start(echo(400)).await;
    // The test could not fail, were the password not sent.
    let management = Management::new(config(&server)).unwrap();
    let error = bounded(management.queues("/")).await.expect_err("refused");
    assert!(server.seen()[0].head.contains("b3BzOnpRN3gvS3c5dkBKOGpx"));
    assert!(error.to_string().contains("[hidden]"), "{error}");
    assert_silent(&printed(&error));

    for reply in
        [Reply::html(200), Reply::Close, Reply::Half, Reply::html(500), Reply::Redirect("http://x".into())]
    {
        let server = Server::always(reply).await;
        let error = bounded(Management::new(config(&server)).unwrap().queues("/")).await.expect_err("no API");
        assert_silent(&printed(&error));
    }
}

#[tokio::test]
async fn nothing_that_holds_a_password_prints_it() {
    let server = Server::always(Reply::Close).await;
    let config = config(&server);
    let management = Management::new(config.clone()).unwrap();
    let topology = Topology::default().with_vhost("v").with_user("nodes");
    let bootstrapper = Bootstrapper::new(management.clone(), topology).user_password(NODES);
    let mut text = String::new();
    write!(text, "{config:?} {config:#?} {management:?} {management:#?} {bootstrapper:?} {bootstrapper:#?}")
        .unwrap();
    // The user neither, as of a connection over AMQP.
    assert!(!text.contains("ops"), "{text}");
    assert_silent(&text);
}

/// A URL with a user in it, however it comes in.
#[test]
fn no_part_of_a_user_in_a_url_is_printed() {
    let encoded = "zQ7x%2FKw9v%40J8jq";
    for url in [
        format!("http://ops:{PASSWORD}@rabbit:15672"),
        format!("http://ops:{encoded}@rabbit:port"),
        format!("http://ops:{encoded}@rabbit?x"),
        format!("ftp://ops:{encoded}@rabbit"),
        format!("http:/ops:{encoded}@rabbit"),
        format!("http://ops:{PASSWORD}"),
        format!("http://ops:%ff{PASSWORD}@rabbit"),
    ] {
        match ManagementConfig::from_url(&url) {
            Ok(config) => assert_silent(&format!("{config:?} {config:#?}")),
            Err(error) => assert_silent(&printed(&error)),
        }
        let config = ManagementConfig::default().with_url(&url);
        if url.contains('@') {
            assert_silent(&format!("{config:?} {config:#?}"));
        }
        let error = Management::new(config).expect_err("a user has a field of its own, or it is no URL");
        assert_silent(&printed(&error));
        let vars = [("X_URL".to_owned(), url)];
        match ManagementConfig::from_vars("X", vars) {
            Ok(config) => assert_silent(&format!("{config:?}")),
            Err(error) => assert_silent(&printed(&error)),
        }
    }
}

/// The user's new password is in the body of a request.
#[tokio::test]
async fn the_password_of_the_nodes_is_in_no_error_plan_or_answer() {
    let server = Server::start(|request| {
        if request.line.starts_with("PUT /api/users/") {
            return echo(400)(request);
        }
        let found = match request.line.as_str() {
            line if line.contains("/overview") => json!({"rabbitmq_version": "4.0.5"}),
            line if line.contains("/vhosts/") => json!({"name": "/"}),
            line if line.contains("/permissions/") => {
                json!({"user": "ops", "vhost": "/", "configure": "", "write": "", "read": ""})
            }
            line if line.contains("policies") => json!([]),
            _ => return Reply::json(404, &json!({"error": "Object Not Found", "reason": "Not Found"})),
        };
        Reply::json(200, &found)
    })
    .await;
    let management = Management::new(config(&server)).unwrap();
    let topology = Topology::default().with_user("nodes");
    let bootstrapper = Bootstrapper::new(management, topology).user_password(Secret::from(NODES));
    let plan = bounded(bootstrapper.plan()).await.unwrap();
    assert!(plan.changes.iter().any(|change| change.entity.name == "nodes"), "{plan}");
    assert_silent(&format!("{plan} {plan:?} {}", serde_json::to_string(&plan).unwrap()));
    let error = bounded(bootstrapper.apply()).await.expect_err("refused");
    assert!(server.seen().iter().any(|request| request.body.contains("vX3k  ")), "it was sent");
    assert_silent(&format!("{error} {error:?} {}", printed(&error.error)));
}
