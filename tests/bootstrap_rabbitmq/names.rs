//! Names with whatever a name can have in it.

use lapin::options::{BasicGetOptions, BasicRejectOptions};
use windlass::bootstrap::Bootstrapper;
use windlass::topology::{Broadcast, Policy, Stage, Topology};

use crate::desk::{Desk, PASSWORD};
use crate::rabbit::{Raw, bounded, until};

const NAMES: [&str; 8] = [
    "a/b",
    "two words",
    "100%",
    "%2f",
    "Bestellungen für Łódź 注文",
    "a.b+c(x)|[d]{2}^$\\d*?",
    "#&=?;:@,'\"<>~!`",
    "…/../.",
];

#[tokio::test]
async fn every_name_is_made_found_again_and_dead_letters() {
    for (vhost, user) in [("names / % ä?#", "user / % ü@"), ("..names", "+ and &")] {
        let mut desk = Desk::new(vhost).await;
        desk.user = format!("{user} {}", desk.vhost);
        let mut topology = Topology::default()
            .with_vhost(&desk.vhost)
            .with_user(&desk.user)
            .with_broadcast(Broadcast::new("all / of % them ö"))
            .with_dead_letter_exchange("dead / letters % ß")
            .with_wait_steps([std::time::Duration::from_secs(1)]);
        for name in NAMES {
            topology = topology.with_stage(Stage::new(name));
            topology = topology.with_policy(Policy::new(name, "^nobody$").with("max-length", 1_u32));
        }
        desk.made(&topology).await;
        let raw = Raw::connect(&desk.uri()).await;
        let channel = raw.channel().await;
        for name in NAMES {
            raw.publish(name, "m-1", b"x").await;
            let got = channel.basic_get(name.into(), BasicGetOptions::default());
            let delivery = bounded("get", got).await.unwrap().expect("it is there").delivery;
            bounded("reject", delivery.acker.reject(BasicRejectOptions::default())).await.unwrap();
        }
        for name in NAMES {
            let letters = format!("{name}.dlq");
            let message = until(&letters, || raw.get(&letters)).await;
            assert_eq!(message.id(), "m-1");
        }
        raw.close().await;
    }
}

/// A pattern that is not quoted would put the policy of one stage on another.
#[tokio::test]
async fn the_policy_of_a_stage_applies_to_it_alone() {
    let desk = Desk::new("alone").await;
    let topology = Topology::default()
        .with_vhost(&desk.vhost)
        .with_wait_steps([])
        .with_stage(Stage::new("a.c").with_dead_letters(false).with_policy("max-length", 5_u32))
        .with_stage(Stage::new("abc").with_dead_letters(false))
        .with_stage(Stage::new("a+c").with_dead_letters(false).with_policy("max-length", 6_u32))
        .with_stage(Stage::new("aac").with_dead_letters(false))
        .with_stage(Stage::new("a|b").with_dead_letters(false).with_policy("max-length", 7_u32));
    desk.made(&topology).await;
    for (stage, length) in
        [("a.c", Some(5)), ("a+c", Some(6)), ("a|b", Some(7)), ("abc", None), ("aac", None)]
    {
        let effective = until("the broker knows its policy", || async {
            desk.management.effective_policy(&desk.vhost, stage).await.unwrap()
        })
        .await;
        assert_eq!(
            effective.definition.get("max-length").and_then(serde_json::Value::as_i64),
            length,
            "{stage}"
        );
        assert_eq!(effective.policy, length.map(|_| format!("windlass.stage.{stage}")));
    }
}

#[tokio::test]
async fn the_default_virtual_host_can_be_bootstrapped() {
    let desk = Desk::new("default").await;
    let stage = format!("of {}", desk.vhost);
    let topology =
        Topology::default().with_stage(Stage::new(&stage)).with_dead_letter_exchange(format!("{stage} dead"));
    assert_eq!(topology.vhost, "/");
    let bootstrapper = Bootstrapper::new(desk.management.clone(), topology).user_password(PASSWORD);
    let applied = bounded("apply", bootstrapper.apply()).await.expect("it is made");
    // The virtual host is there: it is neither made nor mentioned.
    assert_eq!(applied.changes[0].entity.name, format!("{stage} dead"), "{applied}");
    assert!(bootstrapper.plan().await.unwrap().is_clean());
    let raw = Raw::connect(&desk.node.uri()).await;
    assert!(raw.count(&format!("{stage}.dlq")).await.is_some());
    raw.close().await;
}

#[tokio::test]
async fn a_name_that_no_url_can_carry_is_refused_before_anything_is_made() {
    let desk = Desk::new("dots").await;
    for topology in [
        desk.topology().with_stage(Stage::new("..")),
        desk.topology().with_vhost("."),
        desk.topology().with_policy(Policy::new("..", "^x$").with("max-length", 1_u32)),
    ] {
        let error = desk.bootstrapper(&topology).apply().await.expect_err("no URL can carry it");
        assert_eq!(error.error.kind(), windlass::ErrorKind::Invalid);
        assert!(error.done.is_empty(), "{error}");
    }
    assert!(desk.management.vhost(&desk.vhost).await.unwrap().is_none(), "nothing was made");
}

#[tokio::test]
async fn the_longest_names_fit() {
    let desk = Desk::new("long").await;
    for name in ["q".repeat(237), format!("{}q", "é".repeat(118)), "%".repeat(237)] {
        let topology = Topology::default()
            .with_vhost(&desk.vhost)
            .with_wait_steps([std::time::Duration::from_secs(315_360_000)])
            .with_stage(Stage::new(name));
        desk.made(&topology).await;
    }
}
