//! What goes wrong with a real RabbitMQ, and what must not be lost by it. The broker is a node of the tests' own; which
//! series it runs is chosen by `RABBITMQ_BIN`.

#![cfg(feature = "rabbitmq")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "faults_rabbitmq/alone.rs"]
mod alone;
#[path = "faults_rabbitmq/broker_ack_timeout.rs"]
mod broker_ack_timeout;
#[path = "faults_rabbitmq/broker_alarm.rs"]
mod broker_alarm;
#[path = "faults_rabbitmq/broker_bench.rs"]
mod broker_bench;
#[path = "faults_rabbitmq/broker_dead_letters.rs"]
mod broker_dead_letters;
#[path = "faults_rabbitmq/broker_delays.rs"]
mod broker_delays;
#[path = "faults_rabbitmq/broker_order.rs"]
mod broker_order;
#[path = "faults_rabbitmq/broker_prefetch.rs"]
mod broker_prefetch;
#[path = "faults_rabbitmq/broker_queue_gone.rs"]
mod broker_queue_gone;
#[path = "faults_rabbitmq/broker_refusals.rs"]
mod broker_refusals;
#[path = "faults_rabbitmq/broker_requeue.rs"]
mod broker_requeue;
#[path = "faults_rabbitmq/broker_stop.rs"]
mod broker_stop;
#[path = "faults_rabbitmq/broker_wait_queues.rs"]
mod broker_wait_queues;
#[path = "faults_rabbitmq/closed.rs"]
mod closed;
#[path = "faults_rabbitmq/cut.rs"]
mod cut;
#[path = "faults_rabbitmq/disconnect.rs"]
mod disconnect;
#[path = "faults_rabbitmq/flow.rs"]
mod flow;
#[path = "faults_rabbitmq/hosts.rs"]
mod hosts;
#[path = "support/log.rs"]
mod log;
#[path = "faults_rabbitmq/login.rs"]
mod login;
#[path = "faults_rabbitmq/node.rs"]
mod node;
#[path = "faults_rabbitmq/pause.rs"]
mod pause;
#[path = "support/rabbit/mod.rs"]
mod rabbit;
#[path = "faults_rabbitmq/reconnects.rs"]
mod reconnects;
#[path = "faults_rabbitmq/secrets.rs"]
mod secrets;
#[path = "faults_rabbitmq/silent.rs"]
mod silent;
#[path = "faults_rabbitmq/stale.rs"]
mod stale;
#[path = "faults_rabbitmq/tls.rs"]
mod tls;
