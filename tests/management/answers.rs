//! Answers of other shapes: what is missing is unknown, and no zero.

use serde_json::{Value, json};
use windlass::ErrorKind;

use crate::server::{Reply, Server, bounded};

#[tokio::test]
async fn figures_that_are_missing_are_unknown() {
    for body in [
        json!({"name": "q"}),
        json!([]),
        json!({}),
        json!({"name": "q", "messages": null, "messages_ready": "many", "consumers": -1, "arguments": []}),
    ] {
        let server = Server::always(Reply::json(200, &body)).await;
        let queue = bounded(server.management().queue("/", "q")).await.unwrap().expect("it is there");
        assert_eq!(queue.name, "q");
        let figures = [queue.ready, queue.unacked, queue.messages, queue.consumers, queue.message_bytes];
        assert_eq!(figures, [None; 5], "{body}");
        assert!(queue.arguments.is_empty() && queue.policy.is_none() && queue.state.is_none(), "{body}");
        let effective = bounded(server.management().effective_policy("/", "q")).await.unwrap();
        assert_eq!(effective, None, "{body}");
    }
    let zero = json!({"name": "q", "messages": 0, "messages_ready": 0, "effective_policy_definition": []});
    let server = Server::always(Reply::json(200, &zero)).await;
    let queue = bounded(server.management().queue("/", "q")).await.unwrap().expect("it is there");
    assert_eq!((queue.messages, queue.unacked), (Some(0), None));
    let effective = bounded(server.management().effective_policy("/", "q")).await.unwrap().expect("known");
    assert!(effective.definition.is_empty() && effective.policy.is_none());
}

#[tokio::test]
async fn queues_are_listed_whole_or_by_pages() {
    let page = |number: u64, names: &[&str], pages: u64| {
        let items: Vec<Value> = names.iter().map(|name| json!({"name": name, "messages_ready": 1})).collect();
        json!({"items": items, "page": number, "page_count": pages, "total_count": 3})
    };
    let pages = [page(1, &["a", "b"], 3), page(2, &["b", "c"], 3), page(3, &["d"], 3)];
    let server = Server::start(move |request| {
        let number = (1..=3_usize).find(|number| request.line.contains(&format!("page={number}&"))).unwrap();
        Reply::json(200, &pages[number - 1])
    })
    .await;
    let names = async |server: &Server| -> Vec<String> {
        let queues = bounded(server.management().queues("/")).await.unwrap();
        queues.into_iter().map(|queue| queue.name).collect()
    };
    // One moved to the next page while the list was made.
    assert_eq!(names(&server).await, ["a", "b", "c", "d"]);
    assert_eq!(server.seen().len(), 3);

    // Queues went meanwhile, and with them a page.
    let first = page(1, &["a"], 2);
    let server = Server::start(move |request| {
        if request.line.contains("page=1&") {
            return Reply::json(200, &first);
        }
        Reply::json(400, &json!({"error": "page_out_of_range", "reason": "Page out of range, page: 2"}))
    })
    .await;
    assert_eq!(names(&server).await, ["a"]);

    // All at once, and one that is going has no name any more.
    let server = Server::always(Reply::json(200, &json!([{"name": "a"}, [], {"name": "b"}]))).await;
    assert_eq!(names(&server).await, ["a", "b"]);

    // The same page for ever.
    let same = json!({"items": [{"name": "a"}], "page_count": 1_000_000});
    let server = Server::always(Reply::json(200, &same)).await;
    assert_eq!(names(&server).await, ["a"]);
    assert_eq!(server.seen().len(), 2);
}

#[tokio::test]
async fn users_are_read_in_both_shapes() {
    for tags in [json!("administrator, monitoring"), json!(["administrator", "monitoring"])] {
        let body = json!({"name": "u", "tags": tags, "password_hash": "", "limits": []});
        let server = Server::always(Reply::json(200, &body)).await;
        let user = bounded(server.management().user("u")).await.unwrap().expect("it is there");
        assert_eq!(user.tags, ["administrator", "monitoring"]);
    }
    // Without its hash nothing is known of its password.
    let server = Server::always(Reply::json(200, &json!({"name": "u", "tags": []}))).await;
    let user = bounded(server.management().user("u")).await.unwrap().expect("it is there");
    assert_eq!(user.has_password(&"x".into()), None);
}

#[tokio::test]
async fn json_that_is_something_else_is_no_answer() {
    for body in [json!("hello"), json!({"items": 7}), json!(null), json!(5)] {
        let server = Server::always(Reply::json(200, &body)).await;
        let management = server.management();
        for error in [
            bounded(management.queues("/")).await.map(drop).expect_err("no list"),
            bounded(management.policies("/")).await.map(drop).expect_err("no list"),
            bounded(management.vhost("/")).await.map(drop).expect_err("no virtual host"),
        ] {
            assert_eq!((error.kind(), error.is_transient()), (ErrorKind::Other, false), "{body}: {error}");
        }
    }
    let server = Server::always(Reply::json(200, &json!([]))).await;
    bounded(server.management().overview()).await.expect_err("an overview is an object");
    // An API that leaves the version out is one all the same.
    let server = Server::always(Reply::json(200, &json!({"cluster_name": "c"}))).await;
    let overview = bounded(server.management().overview()).await.unwrap();
    assert_eq!((overview.series(), overview.cluster.as_deref()), (None, Some("c")));
}
