//! The end of a stage whose results go to partitions of this rank and of all others.

use std::sync::Arc;

use crate::error::Failure;
use crate::ranks::message::Message;
use crate::ranks::outlets::Outlets;
use crate::stage::attempt::Attempt;
use crate::stage::ends::exchange::Exchange;
use crate::stage::terminal::{End, InputEnd, Slice, Terminal};
use crate::time::control_event::ControlEvent;

/// The end in an exchange, as the router `R` chooses.
pub struct ToRanks<M, R> {
    pub exchange: Exchange<M>,
    pub router: R,
    pub has_ended: bool,
}

/// Sends results of the type `T` as messages `M`.
pub trait Router<T, M>: Send + 'static {
    fn put<A: Attempt>(&mut self, attempt: &A, item: &T, exchange: &mut Exchange<M>);
}

impl<M: Message, R> ToRanks<M, R> {
    pub fn new(exchange: Exchange<M>, router: R) -> Self {
        ToRanks {
            exchange,
            router,
            has_ended: false,
        }
    }
}

impl<M: Message, R: Send + 'static> End for ToRanks<M, R> {
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

impl<T, M: Message, R: Router<T, M>> Terminal<T> for ToRanks<M, R> {
    type Slice<'a> = &'a mut Self;

    fn begin(&mut self) -> &mut Self {
        self
    }
}

impl<T, M: Message, R: Router<T, M>> Slice<T> for &mut ToRanks<M, R> {
    #[inline]
    fn take<A: Attempt>(&mut self, attempt: &A, item: &T) {
        self.router.put(attempt, item, &mut self.exchange);
    }
}
