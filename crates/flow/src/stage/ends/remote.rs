//! One instance's connection to all other ranks.

use std::marker::PhantomData;
use std::mem;
use std::sync::Arc;

use crate::error::{BoxError, Failure};
use crate::ranks::message::{ByRef, Element, Message};
use crate::ranks::outlets::Outlets;
use crate::stage::terminal::InputEnd;
use crate::time::control_event::{ControlEvent, WriterId};

/// One instance's connection to the other ranks.
pub struct Remote<T> {
    outlets: Arc<Outlets>,
    writer: WriterId,
    /// By rank: elements of the slice that is worked on, and how many of the bytes are whole ones.
    /// User code may panic in the middle of an item.
    staged: Vec<(Vec<u8>, usize)>,
    /// The number of staged items.
    items: usize,
    /// The values of this rank that the staged items refer to.
    lent: Vec<u64>,
    item: PhantomData<fn(&T)>,
}

impl<T: Message> Remote<T> {
    /// The way of a further instance.
    pub fn new(outlets: &Arc<Outlets>, writer: WriterId) -> Self {
        outlets.add_instance(writer);
        Remote {
            staged: vec![Default::default(); outlets.ranks()],
            items: 0,
            lent: Vec::new(),
            outlets: Arc::clone(outlets),
            writer,
            item: PhantomData,
        }
    }

    /// Returns whether there is room for more: the messages that are due are sent.
    pub fn reserve(&mut self) -> Result<bool, Failure> {
        self.outlets.send_due()
    }

    pub fn put(&mut self, rank: u32, item: &T) -> Result<(), BoxError> {
        let (staged, whole) = &mut self.staged[rank as usize];
        staged.truncate(*whole);
        let mut encode = || postcard::to_io(&Element::Item(ByRef(item)), &mut *staged).map(drop);
        match self.outlets.references() {
            Some(references) => self.lent.extend(references.lend_in(encode)?),
            None => encode()?,
        }
        *whole = staged.len();
        self.items += 1;
        Ok(())
    }

    pub fn cancel(&mut self) {
        for (staged, whole) in &mut self.staged {
            staged.clear();
            *whole = 0;
        }
        self.items = 0;
        if let Some(references) = self.outlets.references() {
            references.take_back(self.lent.drain(..));
        }
    }

    /// Passes the staged items on, and emits `event` behind them; returns how many there were.
    pub fn commit(&mut self, event: Option<ControlEvent>) -> Result<usize, Failure> {
        self.outlets.add(&mut self.staged);
        // The other ranks release them.
        self.lent.clear();
        if let Some(event) = event {
            self.outlets.emit(self.writer, event)?;
        }
        self.outlets.send_due()?;
        Ok(mem::take(&mut self.items))
    }

    pub fn pause(&mut self) -> Result<bool, Failure> {
        self.outlets.send_all()
    }

    pub fn is_at_rest(&self) -> bool {
        self.outlets.is_at_rest()
    }

    pub fn outlets(&self) -> Arc<Outlets> {
        Arc::clone(&self.outlets)
    }

    /// Called by each instance, once: the last one sends the end.
    pub fn end(&mut self, end: InputEnd) -> Result<(), Failure> {
        // Windows stay open behind an input that was stopped.
        self.commit((end == InputEnd::Complete).then_some(ControlEvent::End))?;
        self.outlets.end_instance(end == InputEnd::Stopped)
    }
}
