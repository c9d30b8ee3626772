//! The ways of one operator to all other ranks, which its instances share.
//!
//! Elements of several slices go together in one message, until there are enough of them or they have waited for a
//! millisecond.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use millstream_base::Clock;
use millstream_exchange::{SendError, Sender};
use parking_lot::Mutex;

use crate::error::{BoxError, Failure};
use crate::ranks::message::Element;
use crate::ranks::references::References;
use crate::time::control_event::{ControlEvent, RingEvents, WriterId};

/// Bytes that are enough for a message.
const BATCH_BYTES: usize = 64 << 10;

/// The time that elements wait for others at most.
const BATCH_WAIT: Duration = Duration::from_millis(1);

/// The ways to every other rank, which the instances of a stage share.
pub struct Outlets {
    /// By rank; none to this one.
    outlets: Vec<Option<Mutex<Outlet>>>,
    /// The control events of the instances. Locked until their combination is handed over, so that combinations are
    /// sent in their order.
    events: Mutex<RingEvents>,
    /// Instances of the stage that have not ended.
    live: AtomicUsize,
    clock: Arc<dyn Clock>,
    operator: Arc<str>,
    /// Of the flow, if its items may refer to values of other ranks.
    references: Option<Arc<References>>,
}

struct Outlet {
    sender: Sender,
    /// Elements that are not sent yet.
    batch: Vec<u8>,
    /// When the first of them came.
    since: Duration,
    /// The end of a barrier that is among them: a message of its own begins behind it.
    barrier: Option<usize>,
    /// A message for which there was no credit.
    unsent: Option<Bytes>,
}

impl Outlets {
    /// Sends through these outlets; there is one for each other rank.
    pub fn new(
        senders: impl Iterator<Item = Option<Sender>>,
        clock: Arc<dyn Clock>,
        operator: Arc<str>,
        references: Option<Arc<References>>,
    ) -> Outlets {
        let outlet = |sender| {
            Mutex::new(Outlet {
                sender,
                batch: Vec::new(),
                since: Duration::ZERO,
                barrier: None,
                unsent: None,
            })
        };
        Outlets {
            outlets: senders.map(|sender| sender.map(outlet)).collect(),
            events: Mutex::default(),
            live: AtomicUsize::new(0),
            clock,
            operator,
            references,
        }
    }

    /// The operator's name.
    pub fn operator(&self) -> &Arc<str> {
        &self.operator
    }

    /// The flow's values that items on other ranks refer to, if there may be some.
    pub fn references(&self) -> Option<&Arc<References>> {
        self.references.as_ref()
    }

    /// Returns the number of ranks, with this one.
    pub fn ranks(&self) -> usize {
        self.outlets.len()
    }

    /// A further instance uses the ways, and emits control events as this writer.
    pub fn add_instance(&self, writer: WriterId) {
        self.live.fetch_add(1, Ordering::Relaxed);
        self.events.lock().add_writer(writer);
    }

    /// Adds the elements that an instance has staged by rank, as far as they are whole, and clears them.
    pub fn add(&self, staged: &mut [(Vec<u8>, usize)]) {
        let now = self.clock.monotonic();
        for ((staged, whole), outlet) in staged.iter_mut().zip(&self.outlets) {
            if let Some(outlet) = outlet.as_ref().filter(|_| *whole > 0) {
                outlet.lock().add(&staged[..*whole], now);
            }
            staged.clear();
            *whole = 0;
        }
    }

    /// An instance emits a control event behind its elements.
    pub fn emit(&self, writer: WriterId, event: ControlEvent) -> Result<(), Failure> {
        let events = self.events.lock();
        events.emit(0, writer, event);
        match events.observe(0) {
            Some(sum) => self.put(&Element::Event(sum)),
            None => Ok(()),
        }
    }

    /// An instance has ended, or was stopped: the last one sends the end.
    pub fn end_instance(&self, is_stopped: bool) -> Result<(), Failure> {
        match self.live.fetch_sub(1, Ordering::AcqRel) {
            1 => self.put(&Element::End { is_stopped }),
            _ => Ok(()),
        }
    }

    fn others(&self) -> impl Iterator<Item = &Mutex<Outlet>> {
        self.outlets.iter().flatten()
    }

    fn failure(&self, error: impl Into<BoxError>) -> Failure {
        Failure::Error {
            operator: Arc::clone(&self.operator),
            error: error.into(),
        }
    }

    /// Sends to each rank the elements that are enough for a message or have waited long enough, or `all` of them.
    /// Returns whether nothing of that is left.
    fn send(&self, all: bool) -> Result<bool, Failure> {
        let now = self.clock.monotonic();
        let mut is_sent = true;
        for outlet in self.others() {
            let mut outlet = outlet.lock();
            let sent = outlet.send(all, now).map_err(|error| self.failure(error))?;
            is_sent &= sent;
        }
        Ok(is_sent)
    }

    /// Sends the elements that are enough for a message or have waited long enough. Returns whether nothing of that
    /// is left.
    pub fn send_due(&self) -> Result<bool, Failure> {
        self.send(false)
    }

    /// Sends all elements; those without credit go when it is called again.
    pub fn send_all(&self) -> Result<bool, Failure> {
        self.send(true)
    }

    /// Emits a barrier: everything that was handed over so far is part of the snapshot `number`.
    pub fn emit_barrier(&self, number: u64) -> Result<(), Failure> {
        match self.live.load(Ordering::Acquire) {
            // The end is sent.
            0 => Ok(()),
            _ => {
                let now = self.clock.monotonic();
                let encoded = self.encode(&Element::Barrier(number))?;
                for outlet in self.others() {
                    let outlet = &mut *outlet.lock();
                    outlet.add(&encoded, now);
                    outlet.barrier = Some(outlet.batch.len());
                }
                Ok(())
            }
        }
    }

    /// Sends the end on a rank where the stage has no instance that could send it.
    pub fn end_if_unused(&self) -> Result<(), Failure> {
        if self.live.load(Ordering::Acquire) == 0 {
            self.put(&Element::End { is_stopped: false })?;
            self.send_all()?;
        }
        Ok(())
    }

    pub fn is_at_rest(&self) -> bool {
        self.others().all(|outlet| {
            let outlet = outlet.lock();
            outlet.batch.is_empty() && outlet.unsent.is_none()
        })
    }

    fn put(&self, element: &Element<()>) -> Result<(), Failure> {
        let now = self.clock.monotonic();
        let encoded = self.encode(element)?;
        for outlet in self.others() {
            outlet.lock().add(&encoded, now);
        }
        Ok(())
    }

    fn encode(&self, element: &Element<()>) -> Result<Vec<u8>, Failure> {
        postcard::to_stdvec(element).map_err(|error| self.failure(error))
    }
}

impl Outlet {
    fn add(&mut self, elements: &[u8], now: Duration) {
        if self.batch.is_empty() {
            self.since = now;
        }
        self.batch.extend_from_slice(elements);
    }

    /// Takes the bytes of the next message.
    fn next(&mut self, all: bool, now: Duration) -> Option<Bytes> {
        let len = self.batch.len();
        let is_due = all || len >= BATCH_BYTES || now.saturating_sub(self.since) >= BATCH_WAIT;
        if len == 0 || (self.barrier.is_none() && !is_due) {
            return None;
        }
        let rest = self.batch.split_off(self.barrier.take().unwrap_or(len));
        Some(std::mem::replace(&mut self.batch, rest).into())
    }

    fn send(&mut self, all: bool, now: Duration) -> Result<bool, SendError> {
        while let Some(message) = self.unsent.take().or_else(|| self.next(all, now)) {
            match self.sender.send(message) {
                Ok(()) => {}
                Err(SendError::Full(message)) => {
                    self.unsent = Some(message);
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}
