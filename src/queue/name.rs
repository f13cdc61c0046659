//! Names that brokers take.

use crate::error::{Error, ErrorKind, Result};

/// What brokers take as a name, in bytes of UTF-8; AMQP 0-9-1 has one byte for the length.
const LONGEST: usize = 255;

/// The longest suffix that is put behind the name of a queue: that of a wait queue of RabbitMQ, for the longest delay.
const LONGEST_SUFFIX: usize = ".wait.315360000000".len();

/// The longest name of a queue, 237 bytes of UTF-8: it leaves room, within the 255 bytes that brokers take, for the
/// names that are made of it, `<queue>.dlq` and those of its wait queues.
pub const LONGEST_NAME: usize = LONGEST - LONGEST_SUFFIX;

/// Whether brokers take `name`, and the names that are made of it.
///
/// # Errors
///
/// `Invalid` where it is empty, or longer than [`LONGEST_NAME`]; the text has `field` and the byte length.
pub fn check_name(operation: &'static str, field: &str, name: &str) -> Result<()> {
    let text = match name.len() {
        0 => format!("`{field}` is empty (0 bytes): name the queue"),
        bytes if bytes > LONGEST => {
            format!("`{field}` is {bytes} bytes long: a broker takes at most {LONGEST}")
        }
        bytes if bytes > LONGEST_NAME => {
            let (letters, waits) = (bytes + ".dlq".len(), bytes + LONGEST_SUFFIX);
            format!(
                "`{field}` is {bytes} bytes long, and the names made of it, `.dlq` and `.wait.…`, up to {} and {}: \
                 a broker takes at most {LONGEST}, so that {LONGEST_NAME} are left for it",
                letters, waits
            )
        }
        _ => return Ok(()),
    };
    Err(Error::new(ErrorKind::Invalid, operation).with_message(text))
}
