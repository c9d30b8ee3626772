//! The exchange of results: into a ring of this rank, or to the rank that owns the key.

use std::sync::Arc;

use crate::error::{BoxError, Failure};
use crate::ranks::message::Message;
use crate::ranks::outlets::Outlets;
use crate::ranks::owners::Owner;
use crate::stage::ends::outbox::Outbox;
use crate::stage::ends::remote::Remote;
use crate::stage::terminal::InputEnd;
use crate::time::control_event::ControlEvent;

/// The way of one instance into the partitions, or the only ring, of this rank and of all others.
pub struct Exchange<T> {
    pub local: Outbox<T>,
    pub remote: Option<Remote<T>>,
    pub rank: u32,
    pub ranks: u32,
}

impl<T: Message> Exchange<T> {
    pub fn reserve(&mut self, results: usize) -> Result<Option<usize>, Failure> {
        if let Some(remote) = &mut self.remote
            && !remote.reserve()?
        {
            return Ok(None);
        }
        Ok(self.local.reserve(results))
    }

    pub fn cancel(&mut self) {
        self.local.cancel();
        if let Some(remote) = &mut self.remote {
            remote.cancel();
        }
    }

    #[inline]
    pub fn put(&mut self, owner: Owner, item: T) -> Result<(), BoxError> {
        match &mut self.remote {
            Some(remote) if owner.rank != self.rank => remote.put(owner.rank, &item),
            _ => {
                self.local.put(owner.partition, item);
                Ok(())
            }
        }
    }

    /// Passes the results on, also to other ranks; returns how many there were.
    pub fn commit(&mut self, stamp: u64, event: Option<ControlEvent>) -> Result<usize, Failure> {
        let mut count = 0;
        if let Some(remote) = &mut self.remote {
            // If a stage further on needs event time, it does so on all ranks.
            count += remote.commit(event.filter(|_| self.local.wants_events()))?;
        }
        Ok(count + self.local.commit(stamp, event))
    }

    /// Sends the messages that wait for more elements; `false` when there is no room.
    pub fn pause(&mut self) -> Result<bool, Failure> {
        self.remote.as_mut().map_or(Ok(true), Remote::pause)
    }

    pub fn take_progress(&mut self) -> bool {
        self.local.take_progress()
    }

    /// Whether messages wait for credit of other ranks.
    pub fn waits_outside(&self) -> bool {
        !self.is_at_rest()
    }

    pub fn outlets(&self) -> Vec<Arc<Outlets>> {
        self.remote.iter().map(Remote::outlets).collect()
    }

    pub fn is_at_rest(&self) -> bool {
        self.remote.as_ref().is_none_or(Remote::is_at_rest)
    }

    /// Emits the end; `false` when there is no room for that. The next call emits the rest.
    pub fn finish(&mut self, end: InputEnd, has_ended: &mut bool) -> Result<bool, Failure> {
        if !*has_ended {
            if !self.local.finish(end) {
                return Ok(false);
            }
            *has_ended = true;
            if let Some(remote) = &mut self.remote {
                remote.end(end)?;
            }
        }
        self.pause()
    }
}
