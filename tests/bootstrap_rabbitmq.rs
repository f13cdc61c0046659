//! The bootstrapper on a real broker: what it makes, what it leaves, what it finds, and what then works.

#![cfg(all(feature = "bootstrap", feature = "rabbitmq"))]
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "bootstrap_rabbitmq/again.rs"]
mod again;
#[path = "bootstrap_rabbitmq/dead_letters.rs"]
mod dead_letters;
#[path = "bootstrap_rabbitmq/desk.rs"]
mod desk;
#[path = "bootstrap_rabbitmq/drift.rs"]
mod drift;
#[path = "bootstrap_rabbitmq/fresh.rs"]
mod fresh;
#[path = "bootstrap_rabbitmq/meddler.rs"]
mod meddler;
#[path = "bootstrap_rabbitmq/names.rs"]
mod names;
#[path = "bootstrap_rabbitmq/numbers.rs"]
mod numbers;
#[path = "bootstrap_rabbitmq/policies.rs"]
mod policies;
#[path = "support/rabbit/mod.rs"]
mod rabbit;
#[path = "bootstrap_rabbitmq/runtime.rs"]
mod runtime;
#[path = "bootstrap_rabbitmq/status.rs"]
mod status;
#[path = "bootstrap_rabbitmq/tls.rs"]
mod tls;
#[path = "bootstrap_rabbitmq/users.rs"]
mod users;
