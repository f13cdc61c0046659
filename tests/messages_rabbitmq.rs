//! What happens to a message on a real broker: what it carries through retries and dead letters, what is read of it,
//! and what becomes of one that no handler could be given.

#![cfg(feature = "rabbitmq")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "messages_rabbitmq/bad_payloads.rs"]
mod bad_payloads;
#[path = "messages_rabbitmq/counting.rs"]
mod counting;
#[path = "messages_rabbitmq/deaths.rs"]
mod deaths;
#[path = "messages_rabbitmq/delays.rs"]
mod delays;
#[path = "messages_rabbitmq/desk.rs"]
mod desk;
#[path = "messages_rabbitmq/empty_body.rs"]
mod empty_body;
#[path = "messages_rabbitmq/field_types.rs"]
mod field_types;
#[path = "messages_rabbitmq/frame_size.rs"]
mod frame_size;
#[path = "messages_rabbitmq/given_up_settling.rs"]
mod given_up_settling;
#[path = "messages_rabbitmq/odd_headers.rs"]
mod odd_headers;
#[path = "messages_rabbitmq/props.rs"]
mod props;
#[path = "support/rabbit/mod.rs"]
mod rabbit;
#[path = "messages_rabbitmq/same_message.rs"]
mod same_message;
#[path = "messages_rabbitmq/senders.rs"]
mod senders;
#[path = "messages_rabbitmq/wire.rs"]
mod wire;
