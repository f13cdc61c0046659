//! The configuration of RabbitMQ: from URIs, from the environment, from documents; what is refused, and that no secret
//! is ever in what is printed.

#![cfg(feature = "rabbitmq")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "rabbitmq_config/document.rs"]
mod document;
#[path = "rabbitmq_config/env.rs"]
mod env;
#[path = "rabbitmq_config/secrets.rs"]
mod secrets;
#[path = "rabbitmq_config/tls.rs"]
mod tls;
#[path = "rabbitmq_config/uri.rs"]
mod uri;
#[path = "rabbitmq_config/validate.rs"]
mod validate;

use windlass::{Error, ErrorKind};

/// Every bad configuration is the same kind of error: what is wrong is in its text.
#[track_caller]
fn assert_refused<T: std::fmt::Debug>(result: windlass::Result<T>, expected: &str) {
    let error: Error = result.expect_err(expected);
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(!error.is_transient(), "{error}");
    assert!(error.to_string().contains(expected), "wanted {expected:?} in: {error}");
}
