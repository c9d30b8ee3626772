//! Retractions of rows that were never inserted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// Counts the changes that take back a row which their operator does not have. They change nothing. A clone counts together
/// with the original. [`Flow::unmatched`](crate::Flow::unmatched) makes it.
#[derive(Clone)]
pub struct Unmatched {
    operator: Arc<str>,
    /// A share of the state element that readers see.
    count: Arc<Mutex<u64>>,
    has_warned: Arc<AtomicBool>,
}

impl Unmatched {
    pub(crate) fn new(operator: &str, count: Arc<Mutex<u64>>) -> Self {
        Unmatched {
            operator: operator.into(),
            count,
            has_warned: Arc::default(),
        }
    }

    /// Counts one, and logs a warning about the first.
    #[cold]
    pub(crate) fn add(&self) {
        *self.count.lock() += 1;
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            let operator = &self.operator;
            tracing::warn!(
                "{operator}: a change takes back a row that was never inserted. Changes like this are left out; the state \
                 element \"{operator}.unmatched\" counts them"
            );
        }
    }
}
