//! No user and no password in what is said, whatever goes wrong with the login.

use std::fmt;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use windlass::error::{Chain, Error};
use windlass::rabbitmq::{RabbitMq, RabbitMqConfig, Role};
use windlass::source::MessageSource;

use crate::alone::alone;
use crate::broker_bench::{Told, config, ms};
use crate::flow::retrying;
use crate::rabbit::{Management, Proxy, QueueType, Raw, basic, bounded, until};

/// With letters that are written otherwise in a URI, in Debug and in JSON.
const USER: &str = "wind@läss \"user\"";
const PASSWORD: &str = "p@ss:/#%?\"wörd\\";

/// All that is logged in the process: level, target and text.
#[derive(Debug, Clone, Default)]
struct Logged(Arc<Mutex<Vec<(Level, String, String)>>>);

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0 += &format!("{}={value:?} ", field.name());
    }
}

impl<S: Subscriber> Layer<S> for Logged {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        let metadata = event.metadata();
        self.0.lock().unwrap().push((*metadata.level(), metadata.target().to_owned(), text.0));
    }
}

/// A text as it might be written.
fn spellings(text: &str) -> Vec<String> {
    let escaped: String = text.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let encoded: String =
        text.bytes()
            .map(|byte| {
                if byte.is_ascii_alphanumeric() {
                    char::from(byte).to_string()
                } else {
                    format!("%{byte:02X}")
                }
            })
            .collect();
    let base64 = basic(text, "").trim_start_matches("Basic ").trim_end_matches('=').to_owned();
    // The last letter of it depends on what follows.
    let base64 = base64[..base64.len() - 2].to_owned();
    let bytes = format!("{:?}", text.as_bytes());
    let bytes = bytes.trim_matches(['[', ']']).to_owned();
    vec![text.to_owned(), format!("{text:?}").trim_matches('"').to_owned(), escaped, encoded, base64, bytes]
}

fn holds(said: &str, secret: &str) -> bool {
    let said = said.to_lowercase();
    spellings(secret).iter().any(|spelling| said.contains(&spelling.to_lowercase()))
}

fn clean(what: &str, said: &str) {
    assert!(!holds(said, USER), "{what} shows the user: {said}");
    assert!(!holds(said, PASSWORD), "{what} shows the password: {said}");
}

fn clean_error(what: &str, error: &Error) {
    clean(what, &format!("{error} {error:?} {error:#?} {}", Chain(error)));
}

async fn refused(what: &str, config: RabbitMqConfig) {
    clean(what, &format!("{config:?} {config:#?}"));
    clean_error(what, &bounded("connect", RabbitMq::connect(config)).await.expect_err("it is refused"));
}

/// Connected, then refused: the password is another one now.
async fn refused_later(management: &Management, raw: &Raw, proxy: &Proxy, config: RabbitMqConfig) {
    let rabbit = bounded("connect", RabbitMq::connect(config)).await.unwrap();
    let told = Told::new(&rabbit);
    raw.declare("secrets", QueueType::Classic, Default::default()).await;
    let source = rabbit.source("secrets").open().await.unwrap();
    clean("Debug", &format!("{rabbit:?} {source:?} {:?} {:?}", rabbit.publisher(), rabbit.source("x")));
    management.put_user(USER, "another").await;
    proxy.cut().await;
    let (error, _) = told.until("says that the login is refused", 3, retrying(Role::Consume)).await;
    clean_error("an event", &error);
    clean("health", &format!("{:?} {:?} {rabbit:?}", rabbit.health(), source.health()));
    clean("a state", &format!("{:?}", rabbit.state(Role::Publish)));
    rabbit.disconnect().await;
}

// BC-41 b and c. Alone, since the logs of all threads are taken: lapin has some of its own.
#[tokio::test]
async fn no_user_and_no_password_is_shown_by_an_error_an_event_a_state_or_a_log() {
    let test = "secrets::no_user_and_no_password_is_shown_by_an_error_an_event_a_state_or_a_log";
    let Some(place) = alone(test).await else { return };
    let logged = Logged::default();
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(logged.clone())).unwrap();
    let (management, proxy) = (place.management(), Proxy::start(place.amqp));
    let raw = Raw::connect(&place.uri_at(place.amqp)).await;
    management.put_user(USER, PASSWORD).await;
    management.put_permissions("/", USER, [".*"; 3]).await;
    let right = config(&place.uri_at(proxy.port())).with_user(USER).with_password(PASSWORD);
    let right = right.with_reconnect_max_delay(ms(50));
    refused("a missing virtual host", right.clone().with_vhost("no-such")).await;
    management.put_vhost("not-yours").await;
    refused("a virtual host without a right to it", right.clone().with_vhost("not-yours")).await;
    management.put_user(USER, "another").await;
    refused("a wrong password", right.clone()).await;
    management.put_user(USER, PASSWORD).await;
    refused_later(&management, &raw, &proxy, right).await;
    management.delete_user(USER).await;
    let logs = || logged.0.lock().unwrap().clone();
    until("lapin logs, too", || async {
        logs().iter().any(|(_, target, _)| target.starts_with("lapin")).then_some(())
    })
    .await;
    let mut ours = 0;
    for (level, target, text) in logs() {
        if target.starts_with("windlass") {
            ours += 1;
            clean("our log", &text);
        }
        if target.starts_with("lapin") && holds(&text, PASSWORD) {
            // lapin writes every frame to its trace, the login among them: as it is sent, or, where the connection ends
            // first, as it is thrown away.
            assert_eq!(level, Level::TRACE, "{target}: {text}");
        }
        if target.starts_with("lapin") && level <= Level::INFO && holds(&text, USER) {
            println!("lapin shows the user: {level} {target}: {text}");
        }
    }
    assert!(ours >= 3, "{:?}", logs());
}
