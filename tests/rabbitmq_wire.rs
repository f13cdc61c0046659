//! What a user of the RabbitMQ adapter sees of the wire: the ladder of delays, and the properties of a message.

#![cfg(feature = "rabbitmq")]

use std::time::{Duration, SystemTime};

use windlass::Message;
use windlass::rabbitmq::{Properties, ladder};

#[test]
fn delays_that_share_a_step_share_a_wait_queue() {
    let (short, long) = (Duration::from_millis(57_000), Duration::from_secs(60));
    assert_eq!(ladder::wait_queue("orders", short), "orders.wait.60000");
    assert_eq!(ladder::wait_queue("orders", long), ladder::wait_queue("orders", short));
    assert_eq!(ladder::wait_queue("orders", Duration::ZERO), "orders.wait.1");
    assert_eq!(ladder::wait_queue("orders", Duration::MAX), "orders.wait.315360000000");
    assert_eq!(ladder::step(Duration::MAX), ladder::LONGEST_DELAY);
}

#[test]
fn the_longest_name_of_a_queue_has_room_for_every_wait_queue() {
    let longest = "q".repeat(ladder::LONGEST_QUEUE_NAME);
    for delay in [Duration::ZERO, Duration::from_secs(1), ladder::LONGEST_DELAY] {
        assert!(ladder::wait_queue(&longest, delay).len() <= 255);
    }
}

#[test]
fn properties_travel_with_a_message_and_are_persistent_unless_said_otherwise() {
    let properties =
        Properties::default().with_priority(5).with_kind("order.made").with_timestamp(1_700_000_000);
    let message = Message::new("{}").with_metadata(properties.clone());
    assert_eq!(message.metadata::<Properties>(), Some(&properties));
    assert!(properties.persistent && !properties.clone().with_persistent(false).persistent);
    let made = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    assert_eq!(properties.timestamp(), Some(made));
    assert_eq!(Properties::default().with_timestamp(u64::MAX).timestamp(), None);
}
