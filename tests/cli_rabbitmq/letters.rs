//! `dlq list`, `peek` and `purge`.

use std::process::Stdio;

use lapin::options::QueueDeclareOptions;
use lapin::types::{AMQPValue, FieldTable};
use serde_json::json;
use tokio::process::Command;
use windlass::message::{HeaderValue, Message};
use windlass::source::Cause;

use crate::desk::{Desk, finished};
use crate::rabbit::{QueueType, Sent, until};

async fn with_three(name: &str) -> Desk {
    let desk = Desk::new(name).await;
    let messages = vec![
        (
            Message::new(r#"{"item": "lamp"}"#)
                .with_id("o-1")
                .with_content_type("application/json")
                .with_header("shard", 7_i32)
                .with_header("raw", HeaderValue::Bytes(vec![0, 255].into())),
            Cause::new("terminal").with_detail("no carrier"),
        ),
        (
            Message::new(vec![0_u8, 0xff, 0x10]).with_id("o-2").with_attempt(4),
            Cause::new("retry_exhausted:4"),
        ),
        (Message::new("steer\u{1b}[2J").with_id("o-3"), Cause::new("terminal")),
    ];
    desk.give_up("orders", messages).await;
    desk
}

#[tokio::test]
async fn dead_letters_are_listed_and_shown_and_stay() {
    let desk = with_three("peek").await;
    let list = desk.run(&["dlq", "list", "--json"]).await.ends(0).json();
    assert_eq!(list["queues"].as_array().map(Vec::len), Some(1), "{list}");
    assert_eq!(
        (&list["queues"][0]["queue"], &list["queues"][0]["messages"]),
        (&json!("orders.dlq"), &json!(3))
    );
    assert!(list["queues"][0]["oldest_age_seconds"].as_u64().is_some_and(|age| age < 60), "{list}");
    let people = desk.run(&["dlq", "list"]).await.ends(0);
    assert!(
        people.out.lines().nth(1).is_some_and(|row| row.starts_with("orders.dlq         3")),
        "{people:?}"
    );

    let peek = ["dlq", "peek", "orders.dlq"];
    let shown = desk.run(&[&peek[..], &["--json"]].concat()).await.ends(0).json();
    assert_eq!(shown["ready"], 3);
    let letters = shown["messages"].as_array().expect("a list");
    let field = |name: &str| letters.iter().map(|letter| letter[name].clone()).collect::<Vec<_>>();
    assert_eq!(field("id"), ["o-1", "o-2", "o-3"]);
    assert_eq!(field("cause"), ["terminal", "retry_exhausted:4", "terminal"]);
    assert_eq!(letters[0]["detail"], "no carrier");
    assert_eq!(field("origin"), ["orders"; 3]);
    assert_eq!(field("attempts"), [1, 4, 1]);
    assert_eq!(letters[0]["headers"]["shard"], 7);
    assert_eq!(letters[0]["headers"]["raw"], json!({ "hex": "00ff" }));
    assert_eq!(letters[0]["body"]["text"], r#"{"item": "lamp"}"#);
    assert_eq!(letters[1]["body"], json!({ "bytes": 3, "text": null, "hex": "00ff10", "cut": false }));

    let people = desk.run(&peek).await.ends(0);
    for line in [
        "  cause     terminal: no carrier",
        "  attempts  1",
        "  from      orders",
        "  type      application/json",
        "            shard = 7",
        "            {\"item\": \"lamp\"}",
        "            00ff10",
        // What a publisher wrote does not steer the terminal.
        "            steer\\u{1b}[2J",
        "3 of 3 in orders.dlq; all of them are still there",
    ] {
        assert!(people.out.contains(line), "no {line:?} in {}", people.out);
    }
    let first = desk.run(&[&peek[..], &["-n", "1", "--body-bytes", "4"]].concat()).await.ends(0);
    assert!(first.out.contains("16 bytes, its beginning\n            {\"it\n"), "{first:?}");
    assert!(first.out.ends_with("1 of 3 in orders.dlq; all of them are still there\n"), "{first:?}");
    // However often it is looked at.
    for _ in 0..25 {
        assert_eq!(desk.run(&[&peek[..], &["--json"]].concat()).await.ends(0).json()["ready"], 3);
    }
}

#[tokio::test]
async fn queues_without_dead_letters_are_listed_only_when_asked_for() {
    let desk = Desk::new("list").await;
    desk.give_up("empty", Vec::new()).await;
    assert_eq!(desk.run(&["dlq", "list"]).await.ends(0).out, "no dead letters\n");
    let all = desk.run(&["dlq", "list", "--all", "--json"]).await.ends(0).json();
    assert_eq!(all["queues"].as_array().map(Vec::len), Some(1), "{all}");
    let empty = &all["queues"][0];
    assert_eq!((&empty["queue"], &empty["messages"]), (&json!("empty.dlq"), &json!(0)));
    assert_eq!((&empty["oldest"], &empty["error"]), (&json!(null), &json!(null)));
}

/// One of them belongs to a connection alone.
#[tokio::test]
async fn a_queue_that_cannot_be_looked_at_does_not_hide_the_others() {
    let desk = with_three("hidden").await;
    let raw = desk.raw().await;
    let options = QueueDeclareOptions { exclusive: true, ..QueueDeclareOptions::default() };
    let declared = raw.channel().await;
    declared.queue_declare("a.dlq".into(), options, FieldTable::default()).await.expect("it is made");
    // The list of the management API lags.
    let list = until("both are listed", || async {
        let ran = desk.run(&["dlq", "list", "--json"]).await;
        (ran.json()["queues"].as_array().map(Vec::len) == Some(2)).then_some(ran)
    });
    let list = list.await.ends(1).json();
    assert_eq!(
        (&list["queues"][0]["queue"], &list["queues"][0]["messages"]),
        (&json!("a.dlq"), &json!(null))
    );
    assert!(list["queues"][0]["error"].as_str().is_some_and(|error| error.contains("a.dlq")), "{list}");
    assert_eq!(
        (&list["queues"][1]["queue"], &list["queues"][1]["messages"]),
        (&json!("orders.dlq"), &json!(3))
    );
    raw.close().await;
}

/// Each look counts against it, and what is over it is gone.
#[tokio::test]
async fn a_queue_is_not_looked_at_where_its_delivery_limit_is_not_known_or_would_lose_messages() {
    let desk = with_three("limit").await;
    let blind = || {
        let mut command = desk.windlass(&["dlq", "peek", "orders.dlq", "--json"]);
        command.env("WINDLASS_MANAGEMENT_URL", "http://127.0.0.1:1");
        command
    };
    let ran = finished(&mut blind()).await.ends(5);
    assert!(ran.err.contains("--delivery-limit"), "{ran:?}");
    let shown = finished(blind().args(["--delivery-limit", "20"])).await.ends(0).json();
    assert_eq!(shown["ready"], 3);

    let raw = desk.raw().await;
    let mut arguments = FieldTable::default();
    arguments.insert("x-delivery-limit".into(), AMQPValue::LongLongInt(0));
    raw.declare("once.dlq", QueueType::Quorum, arguments).await;
    assert_eq!(raw.publish("once.dlq", "1", b"x").await, Sent::Confirmed);
    for arguments in [&["dlq", "peek", "once.dlq"][..], &["dlq", "redrive", "once.dlq", "--dry-run"]] {
        let ran = desk.run(arguments).await.ends(6);
        assert!(ran.err.contains("delivery limit of [0]"), "{ran:?}");
    }
    assert_eq!(raw.count("once.dlq").await.map(|(ready, _)| ready), Some(1));
    raw.close().await;
}

#[tokio::test]
async fn a_purge_asks_for_the_name_and_deletes_nothing_without_it() {
    let desk = with_three("purge").await;
    let purge = ["dlq", "purge", "orders.dlq"];
    let refused = desk.run(&purge).await.ends(2);
    assert!(refused.err.contains("--yes"), "{refused:?}");
    // Somebody has forgotten the ending.
    let refused = desk.run(&["dlq", "purge", "orders", "--yes"]).await.ends(2);
    assert!(refused.err.contains("--any-queue"), "{refused:?}");
    // At a terminal, which `script` makes; it ends as its command does.
    for (answer, code) in [("no", 9), ("", 9), ("orders", 9)] {
        let ran = at_a_terminal(&desk, &purge, answer).await;
        assert_eq!(ran.code, Some(code), "{ran:?}");
        assert!(ran.out.contains("This deletes 3 messages in orders.dlq for good."), "{ran:?}");
    }
    let raw = desk.raw().await;
    assert_eq!(raw.count("orders.dlq").await.map(|(ready, _)| ready), Some(3));
    let ran = at_a_terminal(&desk, &purge, "orders.dlq").await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(raw.count("orders.dlq").await.map(|(ready, _)| ready), Some(0));
    let again = desk.run(&["--json", "dlq", "purge", "orders.dlq", "--yes"]).await.ends(0);
    assert_eq!(again.json(), json!({ "queue": "orders.dlq", "deleted": 0 }));
    let work = desk.run(&["--json", "dlq", "purge", "orders", "--yes", "--any-queue"]).await.ends(0);
    assert_eq!(work.json(), json!({ "queue": "orders", "deleted": 0 }));
    raw.close().await;
}

/// By `script` of util-linux: it gives its command a terminal, and passes on what it is told.
async fn at_a_terminal(desk: &Desk, arguments: &[&str], answer: &str) -> crate::desk::Ran {
    let program = desk.windlass(arguments);
    let program = program.as_std();
    let mut command = Command::new("script");
    let line = std::iter::once(program.get_program()).chain(program.get_args());
    let line = line.map(|word| format!("'{}'", word.to_str().expect("text"))).collect::<Vec<_>>().join(" ");
    command.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    for (name, value) in program.get_envs() {
        command.env(name, value.expect("none is taken away"));
    }
    let file = desk.folder.join("answer");
    std::fs::write(&file, format!("{answer}\n")).expect("a file of the test's own");
    command
        .stdin(std::fs::File::open(&file).expect("it is there"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.kill_on_drop(true);
    finished(&mut command).await
}
