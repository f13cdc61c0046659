//! The program `windlass`, run as a person or a script would, on a real broker.

#![cfg(all(unix, feature = "cli"))]
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "cli_rabbitmq/desk.rs"]
mod desk;
#[path = "cli_rabbitmq/failures.rs"]
mod failures;
#[path = "cli_rabbitmq/letters.rs"]
mod letters;
#[path = "support/rabbit/mod.rs"]
mod rabbit;
#[path = "cli_rabbitmq/readme.rs"]
mod readme;
#[path = "cli_rabbitmq/redrive.rs"]
mod redrive;
#[path = "cli_rabbitmq/topology.rs"]
mod topology;
