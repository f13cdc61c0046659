//! Slots: queues that belong to one source. Who gets one, when it is free again, and what a connection that goes does to
//! it. The broker is a node of the tests' own; which series it runs is chosen by `RABBITMQ_BIN`.

#![cfg(feature = "rabbitmq")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

// Each test file uses its part of this.
#[allow(dead_code)]
#[path = "faults_rabbitmq/broker_bench.rs"]
mod broker_bench;
#[path = "slots_rabbitmq/claims.rs"]
mod claims;
#[path = "slots_rabbitmq/connections.rs"]
mod connections;
#[path = "slots_rabbitmq/desk.rs"]
mod desk;
#[path = "slots_rabbitmq/freed.rs"]
mod freed;
#[path = "support/log.rs"]
mod log;
#[path = "slots_rabbitmq/messages.rs"]
mod messages;
#[path = "support/rabbit/mod.rs"]
mod rabbit;
