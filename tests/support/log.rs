//! What several write to and a test reads.

// Each test file uses its part of this.
#![allow(dead_code, clippy::unwrap_used)]

use std::sync::{Arc, Mutex};

/// A list that handlers and observers write to.
#[derive(Debug)]
pub(crate) struct Log<T>(Arc<Mutex<Vec<T>>>);

impl<T> Clone for Log<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Default for Log<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T: Clone> Log<T> {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn add(&self, entry: T) {
        self.0.lock().unwrap().push(entry);
    }

    pub(crate) fn all(&self) -> Vec<T> {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}
