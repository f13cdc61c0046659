//! No secret in anything that is printed, in any encoding.

use std::error::Error as _;
use std::fmt::Write as _;

use proptest::collection::vec;
use proptest::prelude::{
    Just, ProptestConfig, Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest,
};
use windlass::error::Chain;
use windlass::rabbitmq::config::{Host, Pem, RabbitMqConfig, Secret, Tls};

/// Pieces that stand in no message of this crate. A piece in hex stands for itself in any encoding.
const PIECES: [&str; 4] = ["zQ7x", "Kw9v", "J8jq", "vX3k"];

/// What is printed of a result, all of it.
fn printed(result: &windlass::Result<RabbitMqConfig>) -> String {
    match result {
        Ok(config) => {
            let mut text = format!("{config:?} {config:#?}");
            if let Err(error) = config.validate() {
                write!(text, "{error} {error:?} {error:#?} {}", Chain(&error)).unwrap();
            }
            text
        }
        Err(error) => format!("{error} {error:?} {error:#?} {} {:?}", Chain(error), error.source()),
    }
}

/// Every piece, raw and percent-encoded in either case.
fn leaks(text: &str) -> Option<String> {
    let text = text.to_lowercase();
    PIECES.into_iter().find_map(|piece| {
        let encoded: String = piece.bytes().map(|byte| format!("%{byte:02x}")).collect();
        [piece.to_lowercase(), encoded].into_iter().find(|form| text.contains(form))
    })
}

/// A user or a password as somebody may write it: pieces, encoded or not, and between them whatever breaks a URI.
fn written() -> impl Strategy<Value = String> {
    let piece = (0..PIECES.len(), any::<bool>(), any::<bool>()).prop_map(|(nth, encoded, upper)| {
        let piece = PIECES[nth];
        let hex = |byte: u8| if upper { format!("%{byte:02X}") } else { format!("%{byte:02x}") };
        if encoded { piece.bytes().map(hex).collect() } else { piece.to_owned() }
    });
    let between = prop_oneof![
        prop_oneof![
            Just("@"),
            Just("/"),
            Just("?"),
            Just("#"),
            Just(":"),
            Just("%"),
            Just("%t"),
            Just("["),
            Just("]"),
            Just(","),
            Just("&"),
            Just("="),
            Just(" "),
            Just("\n"),
            Just("%00"),
            Just("%ff"),
            Just("%40"),
            Just("1"),
            Just("://"),
            Just("?heartbeat="),
            Just(""),
            Just("\\"),
            Just("5672/"),
            Just(":5672?"),
        ]
        .prop_map(str::to_owned),
        any::<char>().prop_map(String::from),
    ];
    vec((between, piece), 1..5)
        .prop_map(|parts| parts.into_iter().map(|(between, piece)| between + &piece).collect())
}

fn schemes() -> impl Strategy<Value = &'static str> {
    prop_oneof![Just("amqp://"), Just("amqps://"), Just("http://"), Just("amqp:/"), Just("")]
}

fn behind() -> impl Strategy<Value = &'static str> {
    prop_oneof![
        Just("host"),
        Just("host/"),
        Just("host/v%2f"),
        Just("host:x"),
        Just("[::1"),
        Just("h?heartbeat=x"),
        Just("h?cacertfile=x"),
        Just("h#"),
        Just(""),
        Just("%"),
        Just("h/a/b"),
        Just("a,b:1/v?frame_max=1"),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_uri_shows_its_user_or_password(
        scheme in schemes(), user in written(), password in written(), behind in behind(),
    ) {
        let uri = format!("{scheme}{user}:{password}@{behind}");
        let result = RabbitMqConfig::from_uri(&uri);
        let text = printed(&result);
        prop_assert_eq!(leaks(&text), None, "{} printed {}", uri, text);

        let name = "MQ_URI".to_owned();
        let result = RabbitMqConfig::from_vars("MQ", [(name, uri.clone())]);
        let text = printed(&result);
        prop_assert_eq!(leaks(&text), None, "{} printed {}", uri, text);
    }

    /// Where a raw character cuts the password, nothing is connected to: what is read is all of it or nothing.
    #[test]
    fn a_uri_is_read_whole_or_not_at_all(password in written(), behind in behind()) {
        let uri = format!("amqp://user:{password}@{behind}");
        if let Ok(config) = RabbitMqConfig::from_uri(&uri) {
            let read = config.password.expose().to_lowercase();
            prop_assert!(PIECES.iter().any(|piece| read.contains(&piece.to_lowercase())), "{}", uri);
            let rest = format!("{:?} {}", config.hosts, config.vhost);
            prop_assert_eq!(leaks(&rest), None, "{} gave {}", uri, rest);
        }
    }

    #[test]
    fn no_text_makes_a_parser_panic(text in ".*") {
        let _ = RabbitMqConfig::from_uri(&text);
        let _ = RabbitMqConfig::from_uri(&format!("amqp://{text}"));
        let _ = RabbitMqConfig::from_uri(&format!("amqps://h?{text}"));
        if let Ok(host) = text.parse::<Host>() {
            prop_assert_eq!(host.to_string().parse::<Host>().unwrap(), host);
        }
    }
}

#[test]
fn a_user_without_a_password_is_not_shown_either() {
    for uri in [
        "amqp://zQ7x@host",
        "amqp://zQ7x@ho st",
        "amqp://zQ7x@host:x",
        "amqp://zQ7x@@host",
        "amqp://%zQ7x@host",
        // No name of a parameter: a password with a raw '?', and the '@' behind it encoded by mistake.
        "amqp://user:1?zQ7x%40host",
    ] {
        let text = printed(&RabbitMqConfig::from_uri(uri));
        assert_eq!(leaks(&text), None, "{uri} printed {text}");
    }
}

#[test]
fn neither_variables_nor_hosts_are_quoted() {
    for name in
        ["USER", "PASSWORD", "PASSWORD_FILE", "HOSTS", "TLS", "PREFETCH", "HEARTBEAT_SECONDS", "URI", "NONE"]
    {
        for value in ["zQ7x", "zQ7x@host", "amqp://zQ7x:zQ7x@zQ7x:zQ7x", "u:zQ7x@h:1"] {
            let var = (format!("MQ_{name}"), value.to_owned());
            let result = RabbitMqConfig::from_vars("MQ", [var]);
            if name == "HOSTS" && result.is_ok() {
                continue;
            }
            let text = printed(&result);
            assert_eq!(leaks(&text), None, "{name}={value} printed {text}");
        }
    }
}

#[test]
fn keys_and_setters_are_hidden_too() {
    let tls = Tls::default().with_ca(Pem::text("zQ7x")).with_client(Pem::text("Kw9v"), Pem::text("J8jq"));
    let config = RabbitMqConfig::default().with_user("zQ7x").with_password("vX3k").with_tls(tls);
    let text = printed(&Ok(config));
    assert_eq!(leaks(&text), None, "{text}");
    assert!(text.contains("user: [hidden], password: [hidden]"), "{text}");
    assert_eq!(format!("{:?}", Secret::from("zQ7x")), "[hidden]");

    let long = "zQ7x".repeat(100);
    for config in [
        RabbitMqConfig::default().with_user(&long),
        RabbitMqConfig::default().with_user("zQ7x\0"),
        RabbitMqConfig::default().with_password("zQ7x\0"),
    ] {
        assert!(config.validate().is_err());
        let text = printed(&Ok(config));
        assert_eq!(leaks(&text), None, "{text}");
    }
}
