//! `dlq redrive`.

use serde_json::json;
use windlass::message::Message;
use windlass::source::Cause;

use crate::desk::{Desk, Ran};
use crate::rabbit::{Proxy, bounded, until};

async fn with(name: &str, count: usize) -> Desk {
    let desk = Desk::new(name).await;
    let cause = |nth: usize| if nth.is_multiple_of(2) { "terminal" } else { "validation:input" };
    let message = |nth: usize| Message::new("x").with_id(format!("m-{nth}"));
    desk.give_up("orders", (0..count).map(|nth| (message(nth), Cause::new(cause(nth)))).collect()).await;
    desk
}

async fn ready(desk: &Desk, queue: &str) -> u32 {
    let raw = desk.raw().await;
    let count = raw.count(queue).await.map_or(0, |(ready, _)| ready);
    raw.close().await;
    count
}

#[tokio::test]
async fn what_is_asked_for_is_counted_sent_back_and_starts_again() {
    let desk = with("redrive", 6).await;
    let redrive = ["dlq", "redrive", "orders.dlq", "--json"];
    let run = async |more: &[&str]| desk.run(&[&redrive[..], more].concat()).await;
    let dry = run(&["--dry-run", "--cause", "terminal"]).await.ends(0).json();
    assert_eq!(
        (&dry["matched"], &dry["moved"], &dry["dry_run"]),
        (&json!(3), &json!(0), &json!(true)),
        "{dry}"
    );
    assert_eq!(
        dry["flows"],
        json!([{ "from": "orders", "to": "orders", "cause": "terminal", "messages": 3 }])
    );
    assert_eq!((ready(&desk, "orders.dlq").await, ready(&desk, "orders").await), (6, 0));

    let one = run(&["--id", "m-3"]).await.ends(0).json();
    assert_eq!((&one["moved"], &one["stayed"]["not_matched"]), (&json!(1), &json!(5)), "{one}");
    let none = run(&["--older-than", "1h"]).await.ends(0).json();
    assert_eq!(none["moved"], 0, "{none}");
    let two = run(&["-n", "2", "--younger-than", "1h"]).await.ends(0).json();
    assert_eq!((&two["moved"], &two["ended"]), (&json!(2), &json!("limit")), "{two}");
    let rest = run(&["--rate", "1000"]).await.ends(0).json();
    assert_eq!(
        (&rest["moved"], &rest["maybe_twice"], &rest["ended"]),
        (&json!(3), &json!(0), &json!("done")),
        "{rest}"
    );
    assert_eq!((ready(&desk, "orders.dlq").await, ready(&desk, "orders").await), (0, 6));

    let raw = desk.raw().await;
    let first = raw.get("orders").await.expect("a message");
    assert_eq!(first.id(), "m-3");
    assert!(first.header("windlass-cause").is_none() && first.header("windlass-attempt").is_none());
    raw.close().await;
}

#[tokio::test]
async fn what_has_nowhere_to_go_stays_and_is_told() {
    let desk = with("nowhere", 2).await;
    let to = ["dlq", "redrive", "orders.dlq", "--to", "no such queue"];
    let ran = desk.run(&to).await.ends(10);
    assert!(
        ran.out.contains("0 of 2 in orders.dlq sent back\n2 stayed: not taken where they were sent"),
        "{ran:?}"
    );
    assert!(ran.out.contains("no such queue"), "{ran:?}");
    assert_eq!(ready(&desk, "orders.dlq").await, 2);
    // One that was put there by hand says nothing of where it came from.
    let raw = desk.raw().await;
    raw.publish("orders.dlq", "by-hand", b"x").await;
    raw.close().await;
    let ran = desk.run(&["dlq", "redrive", "orders.dlq"]).await.ends(10);
    assert!(
        ran.out.contains("2 of 3 in orders.dlq sent back\n1 stayed: nothing says where they came from"),
        "{ran:?}"
    );
    desk.run(&["dlq", "redrive", "orders.dlq", "--to", "orders"]).await.ends(0);
    assert_eq!((ready(&desk, "orders.dlq").await, ready(&desk, "orders").await), (0, 3));
}

/// A slow one, that is told to stop: what it has in hand is finished, the rest stays, and the next run goes on.
#[tokio::test]
async fn a_redrive_that_is_told_to_stop_can_be_run_again() {
    let desk = with("stopped", 150).await;
    let mut command = desk.windlass(&["dlq", "redrive", "orders.dlq", "--rate", "10", "--json"]);
    let child = command.spawn().expect("it can be run");
    until("it has moved something", || async { (ready(&desk, "orders").await >= 2).then_some(()) }).await;
    let process = child.id().expect("it runs").to_string();
    assert!(std::process::Command::new("kill").args(["-TERM", &process]).status().unwrap().success());
    let ran = Ran::of(bounded("its end", child.wait_with_output()).await.expect("it ends")).ends(8);
    let report = ran.json();
    let moved = report["moved"].as_u64().expect("a number");
    assert_eq!((&report["ended"], &report["maybe_twice"]), (&json!("cancelled"), &json!(0)), "{report}");
    assert!((2..150).contains(&moved), "{report}");
    assert_eq!(u64::from(ready(&desk, "orders").await), moved);
    assert_eq!(u64::from(ready(&desk, "orders.dlq").await), 150 - moved);
    let rest = desk.run(&["dlq", "redrive", "orders.dlq", "--json"]).await.ends(0).json();
    assert_eq!(rest["moved"], 150 - moved);
    assert_eq!((ready(&desk, "orders").await, ready(&desk, "orders.dlq").await), (150, 0));
}

/// Nothing is lost, and how many may be there twice is said.
#[tokio::test]
async fn a_redrive_whose_connection_goes_says_what_was_done_and_can_be_run_again() {
    let desk = with("cut", 150).await;
    let proxy = Proxy::start(desk.node.amqp_port());
    let mut command = desk.windlass(&["dlq", "redrive", "orders.dlq", "--rate", "10", "--json"]);
    let uri = desk.amqp_uri().replace(&desk.node.amqp_port().to_string(), &proxy.port().to_string());
    let child = command.env("WINDLASS_AMQP_URI", uri).spawn().expect("it can be run");
    until("it has moved something", || async { (ready(&desk, "orders").await >= 2).then_some(()) }).await;
    proxy.refuse(true).await;
    proxy.cut().await;
    let ran = Ran::of(bounded("its end", child.wait_with_output()).await.expect("it ends")).ends(8);
    let (report, err) = (ran.json(), ran.err);
    assert_eq!(report["ended"], "failed", "{report}");
    assert_eq!(report["error"]["kind"], "disconnected", "{report}");
    assert!(err.contains("disconnected"), "{err}");
    let count = |field: &str| report[field].as_u64().expect("a number");
    let (moved, maybe_twice) = (count("moved"), count("maybe_twice"));
    assert!(moved + maybe_twice >= 2, "{report}");
    // What was unsettled goes back once the broker has noticed; then every message is in one of the two, or in both.
    let all = until("nothing is with the connection that went", || async {
        let (back, dead) = (ready(&desk, "orders").await, ready(&desk, "orders.dlq").await);
        (back + dead >= 150).then_some((u64::from(back), u64::from(dead)))
    });
    let (back, dead) = all.await;
    assert!(back + dead - 150 <= maybe_twice, "{back} + {dead}: {report}");
    assert!((moved..=moved + maybe_twice).contains(&back), "{back}: {report}");
    let rest = desk.run(&["dlq", "redrive", "orders.dlq", "--json"]).await.ends(0).json();
    assert_eq!(rest["moved"], dead);
    assert_eq!(ready(&desk, "orders.dlq").await, 0);
}
