//! windlass
pub mod backoff;
pub mod clock;
pub mod codec;
pub mod consumer;
pub mod deliveries;
pub mod error;
pub mod handler;
pub mod memory;
pub mod message;
pub mod publisher;
pub mod source;

pub use error::{Error, ErrorKind, Result};
