//! Documents, by serde, and their schema.

use std::num::NonZeroU16;
use std::time::Duration;

use serde_json::{Value, json};
use windlass::rabbitmq::config::{Host, Pem, RabbitMqConfig, Tls};

fn read(document: Value) -> Result<RabbitMqConfig, String> {
    serde_json::from_value(document).map_err(|error| error.to_string())
}

/// A document with every field that there is.
fn full() -> Value {
    json!({
        "hosts": ["h1:1", "[::1]"],
        "user": "u",
        "password": "p",
        "vhost": "v",
        "tls": {
            "ca": { "text": "CA" },
            "client": { "certificate": { "file": "/cert.pem" }, "key": { "file": "/key.pem" } },
            "server_name": "rabbit.example",
        },
        "heartbeat_seconds": 5,
        "connect_timeout_ms": 2_500,
        "prefetch": 7,
        "publish_timeout_ms": 1_500,
        "connection_name": "orders",
        "reconnect_delay_ms": 100,
        "reconnect_max_delay_ms": 2_000,
        "refusal_patience_seconds": 0,
    })
}

#[test]
fn a_document_sets_every_field_and_leaves_the_rest_at_the_default() {
    assert_eq!(read(json!({})).unwrap(), RabbitMqConfig::default());
    assert_eq!(read(json!({ "vhost": "v" })).unwrap(), RabbitMqConfig::default().with_vhost("v"));
    assert_eq!(read(json!({ "tls": {} })).unwrap(), RabbitMqConfig::default().with_tls(Tls::default()));
    let tls = Tls::default()
        .with_ca(Pem::text("CA"))
        .with_client(Pem::file("/cert.pem"), Pem::file("/key.pem"))
        .with_server_name("rabbit.example");
    let expected = RabbitMqConfig::default()
        .with_hosts([Host::new("h1").with_port(1), Host::new("::1")])
        .with_user("u")
        .with_password("p")
        .with_vhost("v")
        .with_tls(tls)
        .with_heartbeat(Duration::from_secs(5))
        .with_connect_timeout(Duration::from_millis(2_500))
        .with_prefetch(NonZeroU16::new(7).unwrap())
        .with_publish_timeout(Duration::from_millis(1_500))
        .with_connection_name("orders")
        .with_reconnect_delay(Duration::from_millis(100))
        .with_reconnect_max_delay(Duration::from_secs(2))
        .with_refusal_patience(Duration::ZERO);
    assert_eq!(read(full()).unwrap(), expected);
}

#[test]
fn what_does_not_fit_is_refused() {
    for document in [
        json!({ "heartbeat": 5 }),
        json!({ "passwrod": "p" }),
        json!({ "tls": { "cafile": "x" } }),
        json!({ "heartbeat_seconds": 1.5 }),
        json!({ "heartbeat_seconds": -1 }),
        json!({ "heartbeat_seconds": "10s" }),
        json!({ "prefetch": 0 }),
        json!({ "prefetch": 65_536 }),
        json!({ "hosts": "h" }),
        json!({ "hosts": ["::1"] }),
        json!({ "tls": { "client": { "certificate": { "file": "x" } } } }),
        json!({ "tls": { "ca": {} } }),
        json!({ "tls": { "ca": { "text": "x", "file": "y" } } }),
        json!({ "tls": { "ca": { "path": "x" } } }),
    ] {
        assert!(read(document.clone()).is_err(), "{document}");
    }
}

#[test]
fn no_error_of_a_document_quotes_what_may_be_secret() {
    for document in [
        json!({ "password": 7_777 }),
        json!({ "password": -7_777 }),
        json!({ "password": 7_777.5 }),
        json!({ "password": ["7777"] }),
        json!({ "password": { "text": "7777" } }),
        json!({ "user": 7_777 }),
        json!({ "hosts": ["u:7777@host"] }),
        json!({ "hosts": "amqp://u:7777@host" }),
        json!({ "tls": { "client": { "certificate": "7777", "key": "7777" } } }),
        json!({ "tls": { "client": { "certificate": { "text": 7_777 }, "key": { "text": "7777" } } } }),
        json!({ "tls": { "client": { "certificate": { "7777": "x" }, "key": { "7777": "x" } } } }),
    ] {
        let error = read(document.clone()).unwrap_err();
        assert!(!error.contains("7777"), "{document}: {error}");
    }
    assert!(read(json!({ "password": true })).unwrap_err().contains("expected text; put a number in quotes"));
}

#[cfg(feature = "schema")]
mod schema {
    use super::{RabbitMqConfig, Value, full, json, read};

    fn properties(of: &Value) -> Vec<(&str, &Value)> {
        of["properties"].as_object().unwrap().iter().map(|(name, value)| (name.as_str(), value)).collect()
    }

    /// The schemas of objects, by name: the document's own, and those it refers to.
    fn objects(schema: &Value) -> Vec<(&str, &Value)> {
        let own = std::iter::once(("RabbitMqConfig", schema));
        let referred =
            schema["$defs"].as_object().unwrap().iter().map(|(name, value)| (name.as_str(), value));
        own.chain(referred).filter(|(_, schema)| schema["properties"].is_object()).collect()
    }

    #[test]
    fn it_has_the_fields_of_the_document_and_no_others() {
        let (schema, full) = (RabbitMqConfig::json_schema(), full());
        let names = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&schema["properties"]), names(&full));
        assert_eq!(names(&schema["$defs"]["Tls"]["properties"]), names(&full["tls"]));
        assert_eq!(names(&schema["$defs"]["ClientCertificate"]["properties"]), names(&full["tls"]["client"]));
        assert_eq!(schema["required"], Value::Null, "every field has a default");
        for (name, object) in objects(&schema) {
            assert_eq!(object["additionalProperties"], json!(false), "{name}");
            for (field, property) in properties(object) {
                assert!(
                    property["description"].as_str().is_some_and(|text| text.len() > 15),
                    "{name}.{field}"
                );
            }
        }
    }

    #[test]
    fn its_defaults_are_those_of_the_code_and_hold_no_password() {
        let schema = RabbitMqConfig::json_schema();
        assert_eq!(schema["properties"]["password"]["default"], Value::Null);
        assert_eq!(schema["properties"]["password"]["writeOnly"], json!(true));
        let mut defaults = serde_json::Map::new();
        for (name, property) in properties(&schema) {
            if let Some(default) = property.get("default") {
                defaults.insert(name.to_owned(), default.clone());
            }
        }
        for name in
            ["hosts", "user", "vhost", "heartbeat_seconds", "publish_timeout_ms", "refusal_patience_seconds"]
        {
            assert!(defaults.contains_key(name), "{name}: {schema:#}");
        }
        assert_eq!(defaults["heartbeat_seconds"], json!(10));
        assert_eq!(defaults["connect_timeout_ms"], json!(10_000));
        assert_eq!(read(Value::Object(defaults)).unwrap(), RabbitMqConfig::default());
    }

    #[test]
    fn its_bounds_are_those_that_are_enforced() {
        let schema = RabbitMqConfig::json_schema();
        let accepts = |name: &str, value: i64| {
            // The two are bounded by each other as well.
            let mut document = json!({ "reconnect_delay_ms": 1, "reconnect_max_delay_ms": 3_600_000 });
            document[name] = json!(value);
            read(document).and_then(|config| config.validate().map_err(|error| error.to_string()))
        };
        let mut bounded = 0;
        for (name, property) in properties(&schema) {
            if let Some(min) = property["minimum"].as_i64() {
                accepts(name, min).unwrap();
                accepts(name, min - 1).unwrap_err();
            }
            if let Some(max) = property["maximum"].as_i64() {
                accepts(name, max).unwrap();
                accepts(name, max + 1).unwrap_err();
                bounded += 1;
            }
        }
        assert_eq!(bounded, 6, "{schema:#}");
    }

    #[test]
    fn it_describes_texts_and_hosts() {
        let schema = RabbitMqConfig::json_schema();
        let host = &schema["$defs"]["Host"];
        for example in host["examples"].as_array().unwrap() {
            read(json!({ "hosts": [example] })).unwrap().validate().unwrap();
        }
        assert_eq!(schema["properties"]["hosts"]["minItems"], json!(1));
        for name in ["user", "vhost"] {
            let property = &schema["properties"][name];
            assert_eq!((&property["minLength"], &property["maxLength"]), (&json!(1), &json!(255)), "{name}");
        }
    }
}
