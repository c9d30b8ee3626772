//! Whether a rank continues, and the reason if not.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{ExchangeError, Failure};

/// The state of the ranks, as one of them knows it. Its channels check it before each operation.
#[derive(Debug, Default)]
pub struct Fate {
    /// Set once, by the first thread that learns of a failure.
    failure: OnceLock<Failure>,
    /// Whether this rank has begun to leave. Goes from false to true.
    is_leaving: AtomicBool,
}

impl Fate {
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.get()
    }

    /// Sets the failure; returns whether it is the first one that this rank learns of.
    pub fn fail(&self, failure: Failure) -> bool {
        self.failure.set(failure).is_ok()
    }

    /// Marks this rank as leaving; returns whether it was not before.
    pub fn leave(&self) -> bool {
        !self.is_leaving.swap(true, Ordering::AcqRel)
    }

    pub fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::Acquire)
    }

    /// Fails unless messages may be received.
    pub fn check(&self) -> Result<(), ExchangeError> {
        self.failure()
            .map_or(Ok(()), |failure| Err(failure.clone().into()))
    }

    /// Fails unless messages may be sent.
    pub fn check_sending(&self) -> Result<(), ExchangeError> {
        self.check()?;
        if self.is_leaving() {
            Err(ExchangeError::Left)
        } else {
            Ok(())
        }
    }
}
