//! The messenger's state of one other rank.

use std::collections::VecDeque;

use bytes::Bytes;

use super::world::Kind;
use crate::frame::{BadFrame, Unpacker, pack};
use crate::parcel::Parcel;

/// The most sends to one rank in flight. Parcels that are posted meanwhile are sent together.
const SENDS_UNDER_WAY_MAX: usize = 4;

#[derive(Default)]
pub struct Peer {
    /// The parcels to send.
    queue: VecDeque<Parcel>,
    /// The number of sends in flight.
    sending: usize,
    /// Whether this rank has announced to it that it leaves.
    was_left: bool,
    /// The messages that it has begun to send, in order; `None` is not complete.
    arrivals: VecDeque<Option<(Kind, Vec<u8>)>>,
    /// The number of the first of the arrivals, counted from the beginning.
    first: u64,
    unpacker: Unpacker,
    /// Whether it has announced that it leaves.
    pub has_left: bool,
}

impl Peer {
    /// Queues a parcel; drops it if this rank has already left the peer.
    pub fn enqueue(&mut self, parcel: Parcel) {
        if !self.was_left {
            self.was_left = parcel == Parcel::Leave;
            self.queue.push_back(parcel);
        }
    }

    /// Returns the next transfers: a frame, and perhaps the bytes of a long message.
    pub fn next_to_send(&mut self) -> Option<(Bytes, Option<Bytes>)> {
        if self.queue.is_empty() || self.sending >= SENDS_UNDER_WAY_MAX {
            return None;
        }
        let (frame, long) = pack(&mut self.queue);
        self.sending += 1 + usize::from(long.is_some());
        Some((frame.into(), long))
    }

    pub fn sent(&mut self) {
        self.sending -= 1;
    }

    pub fn has_more_to_send(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Adds an incoming message; returns its number.
    pub fn expect(&mut self) -> u64 {
        self.arrivals.push_back(None);
        self.first + self.arrivals.len() as u64 - 1
    }

    pub fn arrived(&mut self, number: u64, kind: Kind, bytes: Vec<u8>) {
        if let Some(arrival) = self.arrivals.get_mut((number - self.first) as usize) {
            *arrival = Some((kind, bytes));
        }
    }

    /// Passes on the complete messages, in the order in which they were sent, up to the first
    /// fault.
    pub fn unpack(&mut self, mut to: impl FnMut(Parcel)) -> Result<(), BadFrame> {
        while let Some(Some((kind, bytes))) = self.arrivals.pop_front_if(|first| first.is_some()) {
            self.first += 1;
            match kind {
                Kind::Frame => self.unpacker.frame(&bytes, &mut to)?,
                Kind::Long => to(self.unpacker.long(bytes.into())?),
            }
        }
        Ok(())
    }

    /// Returns whether there is nothing more to send to it or to receive from it.
    pub fn is_done(&self) -> bool {
        self.was_left && self.has_left && self.queue.is_empty() && self.sending == 0
    }
}
