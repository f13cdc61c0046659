//! Brokers that are found by name within the process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::broker::{Broker, MemoryBroker};
use crate::clock::SystemClock;

static SHARED: Mutex<BTreeMap<String, Weak<Broker>>> = Mutex::new(BTreeMap::new());

impl MemoryBroker {
    /// The broker of this name, on the system's clock: the same for all in this process who ask for the name, for as long
    /// as one of them has it or a publisher of it. After that, the next one begins with nothing. A `MemorySource` alone
    /// keeps its queue, and not the broker.
    pub fn shared(name: &str) -> Self {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(broker) = shared.get(name).and_then(Weak::upgrade) {
            return Self(broker);
        }
        shared.retain(|_, broker| broker.strong_count() > 0);
        let broker = Self::new(SystemClock);
        shared.insert(name.to_owned(), Arc::downgrade(&broker.0));
        broker
    }
}
