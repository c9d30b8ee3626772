//! The end of a stage whose results all come together on one rank.

use std::sync::Arc;

use crate::error::Failure;
use crate::ranks::exchange::Exchange;
use crate::ranks::message::Message;
use crate::ranks::outlets::Outlets;
use crate::ranks::owners::Owner;
use crate::stage::attempt::Attempt;
use crate::stage::terminal::{End, InputEnd, Slice, Terminal};
use crate::stage::user_code::Label;
use crate::time::control_event::ControlEvent;

/// To one rank, in whose only ring all meet.
pub struct ToRank<T> {
    pub exchange: Exchange<T>,
    pub owner: Owner,
    pub label: Label,
    pub has_ended: bool,
}

impl<T: Message + Clone> End for ToRank<T> {
    fn reserve(&mut self, results: usize) -> Result<Option<usize>, Failure> {
        self.exchange.reserve(results)
    }

    fn cancel(&mut self) {
        self.exchange.cancel();
    }

    fn commit(&mut self, stamp: u64, event: Option<ControlEvent>) -> Result<usize, Failure> {
        self.exchange.commit(stamp, event)
    }

    fn pause(&mut self) -> Result<bool, Failure> {
        self.exchange.pause()
    }

    fn take_progress(&mut self) -> bool {
        self.exchange.take_progress()
    }

    fn waits_outside(&self) -> bool {
        self.exchange.waits_outside()
    }

    fn is_at_rest(&self) -> bool {
        self.exchange.is_at_rest()
    }

    fn outlets(&self) -> Vec<Arc<Outlets>> {
        self.exchange.outlets()
    }

    fn finish(&mut self, end: InputEnd) -> Result<Option<usize>, Failure> {
        let is_finished = self.exchange.finish(end, &mut self.has_ended)?;
        Ok(is_finished.then_some(0))
    }
}

impl<T: Message + Clone> Terminal<T> for ToRank<T> {
    type Slice<'a> = &'a mut Self;

    fn begin(&mut self) -> &mut Self {
        self
    }
}

impl<T: Message + Clone> Slice<T> for &mut ToRank<T> {
    fn take<A: Attempt>(&mut self, attempt: &A, item: &T) {
        if let Err(error) = self.exchange.put(self.owner, item.clone()) {
            attempt.reject(
                &self.label,
                "an item that cannot be sent to another rank",
                error,
            );
        }
    }
}
