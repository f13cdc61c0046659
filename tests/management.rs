//! The client of the management API against a server that does what a real broker does not.

#![cfg(feature = "bootstrap")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "management/answers.rs"]
mod answers;
#[path = "management/bootstrap.rs"]
mod bootstrap;
#[path = "management/config.rs"]
mod config;
#[path = "management/faults.rs"]
mod faults;
#[path = "management/secrets.rs"]
mod secrets;
#[path = "management/server.rs"]
mod server;
