//! The source of a serving flow.

use std::sync::Arc;
use std::task::Waker;

use crate::error::BoxError;
use crate::serving::call::Call;
use crate::serving::queue::Shared;
use crate::sources::source::{Output, Source, SourceStatus};
use crate::time::partitions::SourcePartitions;

/// Gives a flow the requests of a queue: see [`Requests::sources`](super::Requests::sources). Checkpoints hold nothing of
/// it, since requests are not repeated.
pub struct RequestSource {
    shared: Arc<Shared>,
    is_open: bool,
}

impl RequestSource {
    pub(super) fn new(shared: &Arc<Shared>) -> RequestSource {
        shared.open_source();
        RequestSource {
            shared: Arc::clone(shared),
            is_open: true,
        }
    }
}

impl Source for RequestSource {
    type Item = Call;

    fn poll(
        &mut self,
        out: &mut Output<Call>,
        budget: usize,
        waker: &Waker,
    ) -> Result<SourceStatus, BoxError> {
        Ok(self.shared.take(out, budget, waker))
    }

    fn partitions(&self) -> SourcePartitions<'_, Call> {
        SourcePartitions::One
    }

    fn save(&mut self) -> Result<Vec<u8>, BoxError> {
        Ok(Vec::new())
    }

    fn restore(&mut self, _: &[u8]) -> Result<(), BoxError> {
        Ok(())
    }

    fn shares_position(&self) -> bool {
        true
    }

    fn close(&mut self) {
        if self.is_open {
            self.is_open = false;
            self.shared.close_source();
        }
    }
}

impl Drop for RequestSource {
    fn drop(&mut self) {
        self.close();
    }
}
