//! The input of a stage that reads the messages of one other rank.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use millstream_base::Clock;
use millstream_exchange::Receiver;

use crate::error::{BoxError, Failure};
use crate::pause::Pause;
use crate::ranks::message::{Element, Message};
use crate::ranks::outlets::Outlets;
use crate::stage::input::{Input, Took};
use crate::stage::row::RowStart;
use crate::time::control_event::ControlEvent;

/// The messages of one other rank.
pub struct RemoteInput<T> {
    receiver: Receiver,
    /// The way on which this rank sends the same.
    outlets: Arc<Outlets>,
    clock: Arc<dyn Clock>,
    /// A rank that stops stops all.
    stopping: Arc<AtomicBool>,
    pause: Arc<Pause>,
    /// The last barrier: nothing behind it is read before that snapshot is taken.
    barrier: u64,
    items: Vec<T>,
    event: Option<ControlEvent>,
    stamp: u64,
    has_ended: bool,
}

impl<T: Message> RemoteInput<T> {
    pub fn new(
        receiver: Receiver,
        outlets: Arc<Outlets>,
        clock: Arc<dyn Clock>,
        stopping: Arc<AtomicBool>,
        pause: Arc<Pause>,
    ) -> Self {
        RemoteInput {
            receiver,
            outlets,
            clock,
            stopping,
            pause,
            barrier: 0,
            items: Vec::new(),
            event: None,
            stamp: 0,
            has_ended: false,
        }
    }

    fn read(&mut self, message: &[u8]) -> Result<(), BoxError> {
        let outlets = Arc::clone(&self.outlets);
        match outlets.references() {
            Some(references) => {
                references.refer_in(self.receiver.from(), || self.read_elements(message))
            }
            None => self.read_elements(message),
        }
    }

    fn read_elements(&mut self, message: &[u8]) -> Result<(), BoxError> {
        let mut rest = message;
        while !rest.is_empty() {
            let (element, behind) =
                postcard::take_from_bytes::<Element<T>>(rest).map_err(|error| {
                    format!(
                        "a message from rank {} is wrong: {error}",
                        self.receiver.from()
                    )
                })?;
            rest = behind;
            match element {
                Element::Item(item) => self.items.push(item),
                // Said a little later than it could be.
                Element::Event(event) => self.event = Some(event),
                Element::Barrier(number) => {
                    let next = self.pause.done.load(Ordering::SeqCst) + 1;
                    if number != next || !rest.is_empty() {
                        let from = self.receiver.from();
                        return Err(format!("rank {from} sent the barrier {number} where {next} is due, or elements behind it in one message").into());
                    }
                    self.barrier = number;
                    // This rank's snapshot is due as well.
                    self.pause.is_on.store(true, Ordering::SeqCst);
                }
                Element::End { is_stopped } => {
                    self.has_ended = true;
                    if is_stopped {
                        self.stopping.store(true, Ordering::Relaxed);
                    }
                }
            }
        }
        Ok(())
    }

    fn failure(&self, error: impl Into<BoxError>) -> Failure {
        Failure::Error {
            operator: Arc::clone(self.outlets.operator()),
            error: error.into(),
        }
    }
}

impl<T: Message> RowStart for RemoteInput<T> {
    type Item = T;

    const IS_SHARED: bool = false;
}

impl<T: Message> Input for RemoteInput<T> {
    const IS_REMOTE: bool = true;

    fn readable(&self) -> usize {
        let is_held = self.barrier > self.pause.done.load(Ordering::SeqCst);
        usize::from(!self.has_ended && !is_held)
    }

    fn is_at_rest(&self, number: u64) -> bool {
        self.has_ended || self.barrier == number
    }

    fn is_finished(&self) -> bool {
        self.has_ended
    }

    fn take(&mut self, _: usize) -> Result<Took, Failure> {
        let taken = self.receiver.take();
        let Some(message) = taken.map_err(|error| self.failure(error))? else {
            return Ok(Took::Idle);
        };
        self.stamp = self.clock.monotonic().as_nanos() as u64;
        self.read(&message).map_err(|error| self.failure(error))?;
        Ok(Took::Items)
    }

    fn observe_event(&mut self) -> Option<ControlEvent> {
        self.event.take()
    }

    fn inlet(&self) -> Option<Arc<Outlets>> {
        Some(Arc::clone(&self.outlets))
    }

    fn parts(&self) -> [&[T]; 2] {
        [&self.items, &[]]
    }

    fn stamp(&mut self) -> u64 {
        self.stamp
    }

    fn sample(&mut self, _: impl FnMut(u64, u64)) {}

    fn done(&mut self) {
        self.items.clear();
    }
}
