//! Dead letters on a real RabbitMQ: looked at, sent back, purged, and what must not be lost on the way. The broker is a node
//! of the tests' own; which series it runs is chosen by `RABBITMQ_BIN`.

#![cfg(feature = "rabbitmq")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "dead_letters_rabbitmq/bench.rs"]
mod bench;
#[path = "dead_letters_rabbitmq/chosen.rs"]
mod chosen;
#[path = "dead_letters_rabbitmq/killed.rs"]
mod killed;
#[path = "dead_letters_rabbitmq/limits.rs"]
mod limits;
#[path = "dead_letters_rabbitmq/looked_at.rs"]
mod looked_at;
#[path = "support/rabbit/mod.rs"]
mod rabbit;
#[path = "dead_letters_rabbitmq/sent_back.rs"]
mod sent_back;
#[path = "dead_letters_rabbitmq/stays.rs"]
mod stays;
#[path = "dead_letters_rabbitmq/stopped.rs"]
mod stopped;
