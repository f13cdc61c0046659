//! What goes wrong, and how a script can tell.

use serde_json::Value;

use crate::desk::{Desk, PASSWORD, Ran, bare, finished};
use crate::rabbit::Proxy;

const BROKER: [&[&str]; 5] = [
    &["status"],
    &["dlq", "list"],
    &["dlq", "peek", "orders.dlq"],
    &["dlq", "redrive", "orders.dlq"],
    &["dlq", "purge", "orders.dlq", "--yes"],
];

#[track_caller]
fn kind(ran: &Ran) -> String {
    assert_eq!(ran.out, "", "{ran:?}");
    let error: Value = serde_json::from_str(&ran.err).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
    assert!(error["error"]["message"].as_str().is_some_and(|text| !text.is_empty()), "{error}");
    error["error"]["kind"].as_str().expect("a word").to_owned()
}

#[tokio::test]
async fn a_broker_that_cannot_be_reached_is_told_at_once() {
    let desk = Desk::new("unreachable").await;
    desk.write("topology.toml", &format!("vhost = {:?}\n[[stages]]\nname = \"orders\"\n", desk.vhost));
    let proxy = Proxy::start(desk.node.amqp_port());
    proxy.refuse(true).await;
    let amqp = desk.amqp_uri().replace(&desk.node.amqp_port().to_string(), &proxy.port().to_string());
    let all = BROKER
        .into_iter()
        .chain([&["plan", "-t", "topology.toml"][..], &["bootstrap", "-t", "topology.toml"]]);
    for arguments in all {
        let mut command = desk.windlass(&[arguments, &["--json"]].concat());
        let url = format!("http://127.0.0.1:{}", proxy.port());
        let ran = finished(command.env("WINDLASS_AMQP_URI", &amqp).env("WINDLASS_MANAGEMENT_URL", url)).await;
        assert_eq!(kind(&ran), "disconnected", "{arguments:?}");
        ran.ends(5);
    }
}

#[tokio::test]
async fn credentials_that_are_refused_have_a_code_of_their_own() {
    let desk = Desk::new("refused").await;
    for arguments in BROKER {
        let mut command = desk.windlass(&[arguments, &["--json"]].concat());
        let ran = finished(
            command.env("WINDLASS_AMQP_PASSWORD", "wrong").env("WINDLASS_MANAGEMENT_PASSWORD", "wrong"),
        );
        let ran = ran.await;
        assert_eq!(kind(&ran), "unauthorized", "{arguments:?}");
        ran.ends(6);
    }
}

#[tokio::test]
async fn a_queue_or_a_virtual_host_that_is_not_there_has_a_code_of_its_own() {
    let desk = Desk::new("missing").await;
    for arguments in &BROKER[2..] {
        let ran = desk.run(&[arguments, &["--json"][..]].concat()).await;
        assert_eq!(kind(&ran), "not_found", "{arguments:?}");
        ran.ends(7);
    }
    let desk = Desk::without_vhost("no-vhost").await;
    for arguments in BROKER {
        let ran = desk.run(&[arguments, &["--json"]].concat()).await;
        assert_eq!(kind(&ran), "not_found", "{arguments:?}");
        ran.ends(7);
    }
}

#[tokio::test]
async fn what_cannot_be_right_is_named_and_asks_no_broker() {
    let desk = Desk::without_vhost("invalid").await;
    desk.write("ttl.toml", "[[stages]]\nname = \"orders\"\nmessage_ttl_ms = 5\n");
    desk.write("typo.toml", "[[stages]]\nnmae = \"orders\"\n");
    desk.write("not.json", "{");
    desk.write("secret.toml", &format!("user = {{ name = \"node\", password = \"{PASSWORD}\" }}\n"));
    desk.write("elsewhere.toml", "vhost = \"elsewhere\"\n");
    desk.write("env", &format!("WINDLASS_AMQP_PASSWORD={PASSWORD}\n{PASSWORD}\n"));
    for (arguments, word) in [
        (&["plan", "-t", "ttl.toml"][..], "stages[0].message_ttl_ms"),
        (&["plan", "-t", "typo.toml"], "nmae"),
        (&["plan", "-t", "not.json"], "not.json"),
        (&["plan", "-t", "secret.toml"], "line 1, column 25: unknown field `password`"),
        (&["bootstrap", "-t", "elsewhere.toml"], "\"elsewhere\""),
        (&["bootstrap", "-t", "gone.toml"], "gone.toml"),
        (&["--env-file", "env", "status"], "line 2 is no NAME=value"),
        (&["--env-file", "gone", "status"], "gone"),
        (&["dlq", "redrive", "a.dlq", "--to", "a.dlq"], "`to`"),
    ] {
        let ran = desk.run(arguments).await.ends(2);
        assert!(ran.err.starts_with("windlass: ") && ran.err.contains(word), "{ran:?}");
    }
    for arguments in [
        &["dlq", "redrive", "a.dlq", "--rate", "0"][..],
        &["dlq", "redrive", "a.dlq", "--older-than", "soon"],
        &["dlq", "peek", "a.dlq", "-n", "0"],
        &["dlq"],
        &["status", "--password", "x"],
    ] {
        desk.run(arguments).await.ends(2);
    }
    for (name, value) in
        [("WINDLASS_AMQP_URL", "x"), ("WINDLASS_AMQP_URI", PASSWORD), ("WINDLASS_MANAGEMENT_TIMEOUT_MS", "0")]
    {
        let ran = finished(bare(&["status"]).env(name, value)).await.ends(2);
        assert!(ran.err.contains(name) || ran.err.contains("timeout"), "{ran:?}");
    }
}

#[tokio::test]
async fn the_help_says_what_the_exit_codes_mean_and_takes_no_password() {
    let help = finished(&mut bare(&["--help"])).await.ends(0);
    for code in 0..=9 {
        assert!(help.out.contains(&format!("\n  {code}  ")), "{}", help.out);
    }
    for command in ["bootstrap", "plan", "dlq", "status"] {
        let help = finished(&mut bare(&[command, "--help"])).await.ends(0);
        assert!(!help.out.contains("--password"), "{}", help.out);
    }
}

/// A file has the same words as the environment, which goes first.
#[tokio::test]
async fn credentials_can_come_from_a_file() {
    let desk = Desk::new("env-file").await;
    let url = format!("http://127.0.0.1:{}", desk.node.management().port());
    let text =
        format!("# of the test\n\nWINDLASS_AMQP_URI={}\nWINDLASS_MANAGEMENT_URL={url}\n", desk.amqp_uri());
    desk.write("env", &text);
    let run = |more: Option<(&'static str, &'static str)>| {
        let mut command = bare(&["--env-file", "env", "status"]);
        command.current_dir(&desk.folder).envs(more);
        async move { finished(&mut command).await }
    };
    run(None).await.ends(0);
    run(Some(("WINDLASS_MANAGEMENT_PASSWORD", "wrong"))).await.ends(6);
    desk.write("password", &format!("{PASSWORD}\n"));
    let mut command = desk.windlass(&["dlq", "list"]);
    let amqp = desk.amqp_uri().replace(":s3cret%2Fp%40ss%3A%25", "");
    command.env("WINDLASS_AMQP_URI", amqp).env("WINDLASS_AMQP_PASSWORD_FILE", "password");
    finished(&mut command).await.ends(0);
}
