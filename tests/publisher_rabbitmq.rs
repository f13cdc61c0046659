//! What a publisher is told, on a real broker: each publish has one outcome, and that one is true.

#![cfg(feature = "rabbitmq")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "publisher_rabbitmq/cuts.rs"]
mod cuts;
#[path = "publisher_rabbitmq/desk.rs"]
mod desk;
#[path = "publisher_rabbitmq/in_flight.rs"]
mod in_flight;
#[path = "publisher_rabbitmq/later.rs"]
mod later;
#[path = "publisher_rabbitmq/names.rs"]
mod names;
#[path = "publisher_rabbitmq/outcomes.rs"]
mod outcomes;
#[path = "support/rabbit/mod.rs"]
mod rabbit;
#[path = "publisher_rabbitmq/returns.rs"]
mod returns;
