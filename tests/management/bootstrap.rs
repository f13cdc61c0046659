//! The bootstrapper, where the management API is not as it should be.

use serde_json::json;
use windlass::ErrorKind;
use windlass::bootstrap::{Bootstrapper, EXIT_CHANGES};
use windlass::topology::{Stage, Topology};

use crate::server::{Reply, Request, Server, bounded};

fn topology() -> Topology {
    Topology::default().with_wait_steps([]).with_stage(Stage::new("orders"))
}

fn bootstrapper(server: &Server, topology: Topology) -> Bootstrapper {
    Bootstrapper::new(server.management(), topology).user_password("secret")
}

/// The virtual host is there, and nothing else; each change is taken, unless `other` says something.
fn bare(request: &Request, other: impl Fn(&Request) -> Option<Reply>) -> Reply {
    if let Some(reply) = other(request) {
        return reply;
    }
    let found = match request.line.as_str() {
        line if !line.starts_with("GET ") => json!(null),
        line if line.contains("/overview") => json!({"rabbitmq_version": "4.0.5"}),
        line if line.contains("/vhosts/") => json!({"name": "/"}),
        line if line.contains("/permissions/") => {
            json!({"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"})
        }
        line if line.contains("policies") || line.contains("/bindings/") => json!([]),
        _ => return Reply::json(404, &json!({"error": "Object Not Found", "reason": "Not Found"})),
    };
    Reply::json(200, &found)
}

fn changes(server: &Server) -> Vec<String> {
    server.seen().into_iter().map(|request| request.line).filter(|line| !line.starts_with("GET ")).collect()
}

#[tokio::test]
async fn a_broker_that_is_down_or_says_no_is_told_and_nothing_is_changed() {
    for (reply, kind) in [
        (Reply::Close, ErrorKind::Disconnected),
        (
            Reply::json(401, &json!({"error": "not_authorized", "reason": "Login failed"})),
            ErrorKind::Unauthorized,
        ),
        (Reply::json(403, &json!({"error": "access_refused", "reason": "no"})), ErrorKind::Refused),
        (Reply::json(404, &json!({"error": "Object Not Found", "reason": "Not Found"})), ErrorKind::NotFound),
        (Reply::html(200), ErrorKind::Other),
    ] {
        let server = Server::always(reply).await;
        let bootstrapper = bootstrapper(&server, topology());
        assert_eq!(bounded(bootstrapper.plan()).await.expect_err("it says no").kind(), kind);
        let error = bounded(bootstrapper.apply()).await.expect_err("it says no");
        assert_eq!(error.error.kind(), kind, "{error}");
        assert!(error.done.is_empty() && error.not_done.is_empty());
        assert_eq!(server.seen().len(), 2, "one request each, and none again");
    }
}

#[tokio::test]
async fn a_plan_only_asks() {
    let server = Server::start(|request| bare(request, |_| None)).await;
    let plan = bounded(bootstrapper(&server, topology()).plan()).await.unwrap();
    assert_eq!(plan.exit_code(), EXIT_CHANGES);
    assert!(changes(&server).is_empty());
    assert!(server.seen().iter().all(|request| request.body.is_empty()));
}

/// BC-41: a refusal is final, whatever it is; what came before it is told.
#[tokio::test]
async fn a_change_that_is_refused_is_not_tried_again_and_the_rest_is_not_tried() {
    for (status, kind) in [
        (400, ErrorKind::Refused),
        (401, ErrorKind::Unauthorized),
        (403, ErrorKind::Refused),
        (404, ErrorKind::NotFound),
        (500, ErrorKind::Other),
    ] {
        let server = Server::start(move |request| {
            bare(request, |request| {
                let refused = request.line.starts_with("PUT /api/queues/%2F/orders.dlq ");
                refused
                    .then(|| Reply::json(status, &json!({"error": "x", "reason": "inequivalent arg 'x-y'"})))
            })
        })
        .await;
        let error = bounded(bootstrapper(&server, topology()).apply()).await.expect_err("refused");
        assert_eq!(error.error.kind(), kind, "{error}");
        let text = error.to_string();
        assert!(text.contains("queue \"orders.dlq\"") && text.contains("inequivalent arg 'x-y'"), "{text}");
        assert_eq!(
            changes(&server),
            [
                "PUT /api/exchanges/%2F/dead-letters HTTP/1.1",
                "PUT /api/policies/%2F/windlass.dlq.orders HTTP/1.1",
                "PUT /api/queues/%2F/orders.dlq HTTP/1.1",
            ]
        );
        let names = |changes: &[windlass::bootstrap::Change]| -> Vec<String> {
            changes.iter().map(|change| change.entity.name.clone()).collect()
        };
        assert_eq!(names(&error.done), ["dead-letters", "windlass.dlq.orders"]);
        let left = ["orders.dlq", "dead-letters -> orders.dlq (orders)", "windlass.stage.orders", "orders"];
        assert_eq!(names(&error.not_done), left);
    }
}

/// BC-43: without `durable` the broker makes a queue that is gone after a restart.
#[tokio::test]
async fn durable_and_auto_delete_are_always_sent() {
    let server = Server::start(|request| bare(request, |_| None)).await;
    bounded(bootstrapper(&server, topology()).apply()).await.expect("all is taken");
    let queues: Vec<Request> = server
        .seen()
        .into_iter()
        .filter(|request| {
            request.line.starts_with("PUT /api/queues/") || request.line.starts_with("PUT /api/exchanges/")
        })
        .collect();
    assert_eq!(queues.len(), 3);
    for request in queues {
        let body: serde_json::Value = serde_json::from_str(&request.body).unwrap();
        assert_eq!((&body["durable"], &body["auto_delete"]), (&json!(true), &json!(false)), "{body}");
    }
}

/// What an answer leaves out is unknown, and no difference: nothing is reported that nobody can see.
#[tokio::test]
async fn a_queue_whose_fields_are_not_told_is_no_drift() {
    for queue in
        [json!([]), json!({"name": "orders"}), json!({"name": "orders", "type": "quorum", "arguments": []})]
    {
        let server = Server::start(move |request| {
            bare(request, |request| request.line.contains("/queues/").then(|| Reply::json(200, &queue)))
        })
        .await;
        let plan = bounded(bootstrapper(&server, topology()).plan()).await.unwrap();
        assert!(plan.drift.is_empty(), "{plan}");
        assert!(plan.changes.iter().all(|change| change.entity.name != "orders"), "{plan}");
    }
}

/// A user whose hash is not shown: what nobody can compare is left, and said.
#[tokio::test]
async fn a_password_that_cannot_be_compared_is_left_and_said() {
    for (user, drift) in [
        (json!({"name": "nodes", "tags": ""}), 0),
        (
            json!({"name": "nodes", "tags": [], "password_hash": "AAAAAAAA", "hashing_algorithm": "of the future"}),
            0,
        ),
        // Setting the tags would take the password away.
        (json!({"name": "nodes", "tags": ["monitoring"]}), 1),
    ] {
        let server = Server::start(move |request| {
            bare(request, |request| request.line.contains("/users/").then(|| Reply::json(200, &user)))
        })
        .await;
        let topology = Topology::default().with_user("nodes");
        let plan = bounded(bootstrapper(&server, topology).plan()).await.unwrap();
        assert!(plan.warnings.iter().any(|text| text.contains("cannot be told")), "{plan}");
        assert_eq!(plan.drift.len(), drift, "{plan}");
        assert!(plan.changes.iter().all(|change| change.entity.to_string() != "user \"nodes\""), "{plan}");
    }
}
