//! A broker on which nothing is there yet.

use serde_json::{Value, json};
use windlass::bootstrap::{Action, EXIT_CHANGES, EXIT_CLEAN, EntityKind};

use crate::desk::{Desk, lines};

#[tokio::test]
async fn a_plan_names_everything_in_order_and_changes_nothing() {
    let desk = Desk::new("plan").await;
    let topology = desk.topology();
    let plan = desk.plan(&topology).await;
    assert_eq!(plan.exit_code(), EXIT_CHANGES);
    let named: Vec<String> = plan.changes.iter().map(|change| change.entity.to_string()).collect();
    let vhost = format!("virtual host {:?}", desk.vhost);
    let user = format!("user {:?}", desk.user);
    let permissions = format!("permissions of {:?}", desk.user);
    let expected = [
        vhost.as_str(),
        &user,
        &permissions,
        "exchange \"all\"",
        "exchange \"dead-letters\"",
        "policy \"windlass.dlq.orders\"",
        "queue \"orders.dlq\"",
        "binding \"dead-letters -> orders.dlq (orders)\"",
        "policy \"windlass.dlq.bills\"",
        "queue \"bills.dlq\"",
        "binding \"dead-letters -> bills.dlq (bills)\"",
        "policy \"windlass.dlq.sockets\"",
        "queue \"sockets.dlq\"",
        "binding \"dead-letters -> sockets.dlq (sockets)\"",
        "policy \"windlass.stage.orders\"",
        "queue \"orders\"",
        "queue \"orders.wait.200\"",
        "policy \"windlass.stage.bills\"",
        "queue \"bills\"",
        "queue \"bills.wait.200\"",
    ];
    assert_eq!(named, expected);
    assert!(plan.changes.iter().all(|change| change.action == Action::Create));
    let (status, _) = desk.raw.request("GET", &format!("/api/vhosts/{}", desk.vhost), None).await;
    assert_eq!(status, 404, "a plan changes nothing");
    assert_eq!(desk.plan(&topology).await, plan, "a plan changes nothing");
}

#[tokio::test]
async fn a_plan_is_read_by_people_and_by_programs() {
    let desk = Desk::new("shown").await;
    let plan = desk.plan(&desk.topology()).await;
    let lines = lines(&plan);
    for line in [
        "+ create exchange \"all\": type \"fanout\"",
        "- skip stage \"sockets\": per slot, nodes make its queues; their dead letters go to \"sockets.dlq\"",
    ] {
        assert!(lines.iter().any(|found| found == line), "{line}\n{plan}");
    }
    let json: Value = serde_json::to_value(&plan).expect("a plan is data");
    let entity = json!({"kind": "exchange", "name": "all"});
    assert!(
        json["changes"]
            .as_array()
            .unwrap()
            .iter()
            .any(|change| change["entity"] == entity && change["action"] == "create"),
        "{json}"
    );
    assert_eq!(json["skipped"][0]["stage"], "sockets");
    assert!(!format!("{plan:?}{plan}{json}").contains("S3cret"), "no password in a plan");
}

#[tokio::test]
async fn what_was_planned_is_made_and_then_there_is_nothing_to_do() {
    let desk = Desk::new("fresh").await;
    let topology = desk.topology();
    let plan = desk.plan(&topology).await;
    let applied = desk.apply(&topology).await;
    assert_eq!(applied.changes, plan.changes);
    assert_eq!(applied.exit_code(), EXIT_CLEAN, "{applied}");

    let plan = desk.plan(&topology).await;
    assert!(plan.is_clean(), "{plan}");
    assert_eq!(plan.exit_code(), EXIT_CLEAN);
    assert_eq!(lines(&plan).last().map(String::as_str), Some("nothing to do"));
    let applied = desk.apply(&topology).await;
    assert!(applied.changes.is_empty(), "{applied}");

    let mut queues: Vec<String> =
        desk.raw.queues(&desk.vhost).await.into_iter().map(|queue| queue.name).collect();
    queues.sort();
    let expected =
        ["bills", "bills.dlq", "bills.wait.200", "orders", "orders.dlq", "orders.wait.200", "sockets.dlq"];
    assert_eq!(queues, expected);
    for queue in desk.raw.queues(&desk.vhost).await {
        assert!(queue.durable && queue.kind == "quorum", "{queue:?}");
    }
    let bills = desk.raw.queue(&desk.vhost, "bills").await.expect("it is there");
    assert_eq!(bills.arguments, json!({"x-queue-type": "quorum", "x-delivery-limit": 5}));
}

#[tokio::test]
async fn policies_lead_to_the_dead_letters_and_keep_them_for_a_while() {
    let desk = Desk::new("made").await;
    desk.made(&desk.topology()).await;
    let stage = desk.ask("GET", "/api/policies/{vhost}/windlass.stage.orders", None).await;
    assert_eq!(stage["pattern"], "^orders$");
    assert_eq!(stage["apply-to"], "queues");
    assert_eq!(
        stage["definition"],
        json!({
            "dead-letter-exchange": "dead-letters",
            "dead-letter-routing-key": "orders",
            "dead-letter-strategy": "at-least-once",
            "overflow": "reject-publish",
        })
    );
    let letters = desk.ask("GET", "/api/policies/{vhost}/windlass.dlq.orders", None).await;
    assert_eq!(letters["pattern"], "^orders\\.dlq$");
    assert_eq!(
        letters["definition"],
        json!({
            "message-ttl": 259_200_000,
            "max-length": 100,
            "overflow": "drop-head",
            "delivery-limit": 2_147_483_647,
        })
    );
}

#[tokio::test]
async fn what_cannot_be_right_is_refused_before_the_first_request() {
    use windlass::bootstrap::Bootstrapper;
    use windlass::management::{Management, ManagementConfig};
    use windlass::topology::{Stage, Topology};

    // Nobody listens there.
    let nowhere = ManagementConfig::default().with_url("http://127.0.0.1:1");
    let management = Management::new(nowhere).unwrap();
    let topology = Topology::default().with_stage(Stage::new("a")).with_stage(Stage::new("a"));
    let bootstrapper = Bootstrapper::new(management.clone(), topology);
    let error = bootstrapper.plan().await.expect_err("two stages of one name");
    assert_eq!(error.kind(), windlass::ErrorKind::Invalid);
    assert!(error.to_string().contains("stages[1].name"), "{error}");
    let error = bootstrapper.apply().await.expect_err("two stages of one name");
    assert_eq!(error.error.kind(), windlass::ErrorKind::Invalid);
    assert!(error.to_string().ends_with("nothing was changed"), "{error}");

    let own = Bootstrapper::new(management, Topology::default().with_user("guest"));
    let error = own.plan().await.expect_err("it would lose its own tags");
    assert!(error.to_string().contains("user.name"), "{error}");
}

#[tokio::test]
async fn changes_are_made_in_order_up_to_the_one_that_is_refused() {
    let desk = Desk::new("half").await;
    let mut topology = desk.topology();
    topology.policies.push(windlass::topology::Policy::new("odd", "^x$").with("no-such-key", 1_u32));
    topology.policies.push(windlass::topology::Policy::new("last", "^x$").with("max-length", 1_u32));
    let error = desk.bootstrapper(&topology).apply().await.expect_err("no such key");
    assert_eq!(error.error.kind(), windlass::ErrorKind::Refused, "{error}");
    assert!(!error.error.is_transient());
    assert!(
        error.to_string().contains("no-such-key") && error.to_string().contains("policy \"odd\""),
        "{error}"
    );
    assert_eq!(error.done.len(), 20);
    let left: Vec<&str> = error.not_done.iter().map(|change| change.entity.name.as_str()).collect();
    assert_eq!(left, ["odd", "last"]);
    assert!(error.not_done.iter().all(|change| change.entity.kind == EntityKind::Policy));
    // What was done is there, and the rest is what a plan has.
    topology.policies.remove(0);
    let plan = desk.plan(&topology).await;
    assert_eq!(
        lines(&plan)[0],
        "+ create policy \"last\": apply-to \"queues\", max-length 1, pattern \"^x$\", priority 0"
    );
    assert_eq!(plan.changes.len(), 1, "{plan}");
}
