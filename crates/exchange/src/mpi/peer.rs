//! What the messenger knows of one other rank.

use std::collections::VecDeque;

use bytes::Bytes;

use super::world::Kind;
use crate::frame::{BadFrame, Unpacker, pack};
use crate::parcel::Parcel;

/// So many sends to one rank are under way at once. What is posted meanwhile goes together.
const SENDS_UNDER_WAY_MAX: usize = 4;

#[derive(Default)]
pub struct Peer {
    /// What is to be sent.
    queue: VecDeque<Parcel>,
    /// How many sends are under way.
    sending: usize,
    /// Whether this rank has said to it that it leaves.
    was_left: bool,
    /// What it has begun to send, in order; `None` is not complete.
    arrivals: VecDeque<Option<(Kind, Vec<u8>)>>,
    /// The number of the first of the arrivals, counted from the beginning.
    first: u64,
    unpacker: Unpacker,
    /// Whether it has said that it leaves.
    pub has_left: bool,
}

impl Peer {
    /// Puts something into line. Nothing goes to whom this rank has left.
    pub fn enqueue(&mut self, parcel: Parcel) {
        if !self.was_left {
            self.was_left = parcel == Parcel::Leave;
            self.queue.push_back(parcel);
        }
    }

    /// What can be sent now: a frame, and perhaps the bytes of a long message.
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

    /// The number of what it has begun to send.
    pub fn expect(&mut self) -> u64 {
        self.arrivals.push_back(None);
        self.first + self.arrivals.len() as u64 - 1
    }

    pub fn arrived(&mut self, number: u64, kind: Kind, bytes: Vec<u8>) {
        if let Some(arrival) = self.arrivals.get_mut((number - self.first) as usize) {
            *arrival = Some((kind, bytes));
        }
    }

    /// Hands on what is complete, in the order in which it was sent, up to what is wrong.
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

    /// Whether there is nothing more to send to it, and nothing more comes from it.
    pub fn is_done(&self) -> bool {
        self.was_left && self.has_left && self.queue.is_empty() && self.sending == 0
    }
}
