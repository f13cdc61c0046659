//! Users: passwords, tags, permissions; and who may bootstrap.

use serde_json::json;
use windlass::ErrorKind;
use windlass::bootstrap::Bootstrapper;
use windlass::management::Management;
use windlass::rabbitmq::Secret;

use crate::desk::{Desk, PASSWORD, config, lines, segment};
use crate::rabbit::bounded;

#[tokio::test]
async fn an_unchanged_password_is_no_change_and_another_one_is_set() {
    let desk = Desk::new("password").await;
    let topology = desk.topology();
    desk.made(&topology).await;
    let hash = async || {
        desk.ask("GET", &format!("/api/users/{}", segment(&desk.user)), None).await["password_hash"].clone()
    };
    let before = hash().await;
    desk.apply(&topology).await;
    assert_eq!(hash().await, before, "it was left alone");

    let other = desk.bootstrapper(&topology).user_password("another one");
    let plan = other.plan().await.unwrap();
    assert_eq!(lines(&plan)[0], format!("~ update user {:?}: password", desk.user));
    bounded("apply", other.apply()).await.expect("it is set");
    assert!(other.plan().await.unwrap().is_clean());
    let user = desk.management.user(&desk.user).await.unwrap().expect("it is there");
    assert_eq!(user.has_password(&Secret::from("another one")), Some(true));
    assert_eq!(user.has_password(&Secret::from(PASSWORD)), Some(false));
    // The user itself can tell: it has no tag, and so is known but not let in.
    let login = |password: &str| {
        Management::new(config(desk.node).with_user(&desk.user).with_password(password)).unwrap()
    };
    let error = login("another one").overview().await.expect_err("no tag");
    assert!(error.to_string().contains("management user"), "{error}");
}

#[tokio::test]
async fn without_a_password_a_user_keeps_its_own_and_none_is_made() {
    let desk = Desk::new("keeps").await;
    let mut topology = desk.topology();
    let without = Bootstrapper::new(desk.management.clone(), topology.clone());
    let plan = without.plan().await.expect("a plan can be made");
    assert!(plan.warnings.iter().any(|warning| warning.contains("no password was given")), "{plan}");
    let error = without.apply().await.expect_err("no password");
    assert_eq!(error.error.kind(), ErrorKind::Invalid);
    assert!(error.done.is_empty());
    let (status, _) = desk.raw.request("GET", &format!("/api/vhosts/{}", desk.vhost), None).await;
    assert_eq!(status, 404, "nothing was made");

    desk.made(&topology).await;
    if let Some(user) = topology.user.as_mut() {
        user.tags = vec!["monitoring".to_owned(), "policymaker".to_owned()];
    }
    let without = Bootstrapper::new(desk.management.clone(), topology.clone());
    let applied = bounded("apply", without.apply()).await.expect("the tags can change");
    let expected = format!("~ updated user {:?}: tags [] -> [\"monitoring\",\"policymaker\"]", desk.user);
    assert_eq!(lines(&applied)[0], expected);
    // It logs in with the password that it had.
    let config = config(desk.node).with_user(&desk.user).with_password(PASSWORD);
    Management::new(config).unwrap().overview().await.expect("the password is the same");
    assert!(without.plan().await.unwrap().is_clean());
}

#[tokio::test]
async fn permissions_that_differ_are_set() {
    let desk = Desk::new("permissions").await;
    let topology = desk.topology();
    desk.made(&topology).await;
    let path = format!("/api/permissions/{{vhost}}/{}", segment(&desk.user));
    let narrow = json!({"configure": "^x", "write": ".*", "read": ""});
    desk.ask("PUT", &path, Some(&narrow)).await;
    let plan = desk.plan(&topology).await;
    let expected =
        format!("~ update permissions of {:?}: configure \"^x\" -> \".*\", read \"\" -> \".*\"", desk.user);
    assert_eq!(lines(&plan)[0], expected);
    desk.made(&topology).await;
    assert_eq!(desk.ask("GET", &path, None).await["configure"], ".*");
    // A pattern that is none is refused by the broker, whose reason is told.
    let mut bad = topology.clone();
    if let Some(user) = bad.user.as_mut() {
        user.configure = "(".to_owned();
    }
    let error = desk.bootstrapper(&bad).apply().await.expect_err("no pattern");
    let text = error.to_string();
    assert!(text.contains("permissions of") || text.contains("user.configure"), "{text}");
}

#[tokio::test]
async fn who_may_not_is_told_so_once_and_nothing_is_made() {
    let desk = Desk::new("rights").await;
    let topology = desk.topology();
    let user = format!("looker of {}", desk.vhost);
    for (tags, password, expected) in [
        ("", "right", ErrorKind::Refused),
        ("monitoring", "right", ErrorKind::Refused),
        ("management", "right", ErrorKind::Refused),
        ("administrator", "wrong", ErrorKind::Unauthorized),
    ] {
        let body = json!({"password": "right", "tags": tags});
        desk.ask("PUT", &format!("/api/users/{}", segment(&user)), Some(&body)).await;
        let config = config(desk.node).with_user(&user).with_password(password);
        let bootstrapper =
            Bootstrapper::new(Management::new(config).unwrap(), topology.clone()).user_password(PASSWORD);
        let error = bounded("apply", bootstrapper.apply()).await.expect_err("it may not");
        assert_eq!(error.error.kind(), expected, "{tags}: {error}");
        assert!(!error.error.is_transient());
        assert!(error.done.is_empty(), "{tags}: {error}");
    }
    let (status, _) = desk.raw.request("GET", &format!("/api/vhosts/{}", desk.vhost), None).await;
    assert_eq!(status, 404, "nothing was made");
}

/// The virtual host was made by somebody else, and this administrator has no rights in it.
#[tokio::test]
async fn an_administrator_without_rights_in_the_virtual_host_says_that_it_takes_them() {
    let desk = Desk::new("own-rights").await;
    desk.raw.put_vhost(&desk.vhost).await;
    let admin = format!("admin of {}", desk.vhost);
    let body = json!({"password": "right", "tags": "administrator"});
    desk.ask("PUT", &format!("/api/users/{}", segment(&admin)), Some(&body)).await;
    let config = config(desk.node).with_user(&admin).with_password("right");
    let management = Management::new(config).unwrap();
    let bootstrapper = Bootstrapper::new(management, desk.topology()).user_password(PASSWORD);
    let plan = bootstrapper.plan().await.unwrap();
    assert_eq!(
        lines(&plan)[0],
        format!("+ create permissions of {admin:?}: configure \".*\", read \".*\", write \".*\"")
    );
    bounded("apply", bootstrapper.apply()).await.expect("it may now");
    assert!(bootstrapper.plan().await.unwrap().is_clean());
}

/// Rights that it has are left as they are, also where they are not enough.
#[tokio::test]
async fn an_administrator_with_too_few_rights_is_told_what_it_may_not_do() {
    let desk = Desk::new("few-rights").await;
    desk.raw.put_vhost(&desk.vhost).await;
    let admin = format!("admin of {}", desk.vhost);
    let body = json!({"password": "right", "tags": "administrator"});
    desk.ask("PUT", &format!("/api/users/{}", segment(&admin)), Some(&body)).await;
    let path = format!("/api/permissions/{{vhost}}/{}", segment(&admin));
    let few = json!({"configure": "^$", "write": ".*", "read": ".*"});
    desk.ask("PUT", &path, Some(&few)).await;
    let config = config(desk.node).with_user(&admin).with_password("right");
    let management = Management::new(config).unwrap();
    let bootstrapper = Bootstrapper::new(management, desk.topology()).user_password(PASSWORD);
    let error = bounded("apply", bootstrapper.apply()).await.expect_err("it may not");
    assert_eq!(error.error.kind(), ErrorKind::Refused, "{error}");
    assert!(!error.error.is_transient(), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("exchange \"all\"") && text.contains("lacks a tag, or a right in the virtual host"),
        "{text}"
    );
    assert_eq!(error.done.len(), 2, "the user and its permissions are not within the virtual host");
    assert_eq!(desk.ask("GET", &path, None).await["configure"], "^$");
}
