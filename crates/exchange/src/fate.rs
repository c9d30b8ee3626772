//! Whether a rank goes on, and why not.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{ExchangeError, Failure};

/// What has become of the ranks, as one of them knows it. Its channels look at it before they do
/// anything.
#[derive(Debug, Default)]
pub struct Fate {
    /// Set once, by whoever learns of a failure first.
    failure: OnceLock<Failure>,
    /// Whether this rank has begun to leave. Goes from false to true.
    is_leaving: AtomicBool,
}

impl Fate {
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.get()
    }

    /// Whether this is the first failure that this rank learns of.
    pub fn fail(&self, failure: Failure) -> bool {
        self.failure.set(failure).is_ok()
    }

    /// Whether this rank begins to leave now, and has not before.
    pub fn leave(&self) -> bool {
        !self.is_leaving.swap(true, Ordering::AcqRel)
    }

    pub fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::Acquire)
    }

    /// Whether messages may be received.
    pub fn check(&self) -> Result<(), ExchangeError> {
        self.failure()
            .map_or(Ok(()), |failure| Err(failure.clone().into()))
    }

    /// Whether messages may be sent.
    pub fn check_sending(&self) -> Result<(), ExchangeError> {
        self.check()?;
        if self.is_leaving() {
            Err(ExchangeError::Left)
        } else {
            Ok(())
        }
    }
}
