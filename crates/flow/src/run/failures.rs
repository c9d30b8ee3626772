//! Failures: the first one counts, and ends the flow on all ranks.

use std::any::Any;
use std::sync::atomic::Ordering;

use millstream_exchange::ExchangeError;

use crate::error::{Failure, FlowError};
use crate::run::workers::Workers;
use crate::stage::user_code::{Label, panic_message};
use crate::state::lookups::LookupElement;

impl Workers {
    pub(super) fn error(&self, failure: Failure) -> FlowError {
        let flow = self.name.clone();
        match failure {
            Failure::Error { operator, error } => FlowError::Operator {
                flow,
                operator: operator.to_string(),
                error: error.into(),
            },
            Failure::Panicked { operator, message } => FlowError::Panicked {
                flow,
                operator: operator.to_string(),
                message,
            },
        }
    }

    pub(super) fn panicked(&self, place: &str, panic: &(dyn Any + Send)) -> FlowError {
        FlowError::Panicked {
            flow: self.name.clone(),
            operator: Label::take_panicked().map_or(place.to_owned(), |label| label.to_string()),
            message: panic_message(panic),
        }
    }

    pub(super) fn fail(&self, error: FlowError) {
        // The consequences of a failure are not reported: neither consequences of a failure on another rank, nor errors that
        // other workers find once the ranks know of this one.
        let error = self.failure_elsewhere().unwrap_or(error);
        let message = error.to_string();
        let mut first = self.error.lock();
        let is_first = first.is_none();
        first.get_or_insert(error);
        drop(first);
        if is_first && self.ranks.count() > 1 {
            self.ranks.fail(&message);
        }
        self.leaving.store(true, Ordering::Relaxed);
        self.coordinator.cancel();
        self.doorbell.ring_all();
    }

    /// Returns a failure that no worker has found: on another rank, or beside the workers.
    pub(super) fn failure_outside(&self) -> Option<FlowError> {
        self.failure_elsewhere().or_else(|| {
            let mut logged = self.logged.iter();
            let failure = logged.find_map(|element| element.loading_failure());
            let mut lookups = self.lookups.iter();
            let failure = failure.or_else(|| lookups.find_map(LookupElement::failure));
            failure.map(|failure| self.error(failure))
        })
    }

    /// Returns the failure that has ended all ranks, if it was on another one.
    fn failure_elsewhere(&self) -> Option<FlowError> {
        let (rank, message) = self.ranks.failure()?;
        (rank != self.ranks.rank()).then(|| FlowError::Ranks {
            flow: self.name.clone(),
            error: ExchangeError::Failed { rank, message },
        })
    }
}
