//! Messages of any length, which go in parts, so that a long one needs little credit.

use std::marker::PhantomData;
use std::mem;

use millstream_exchange::Receiver;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::BoxError;
use crate::ranks::outbox::Outbox;

/// The bytes of a part, but for its head.
pub const PART_BYTES: usize = 64 << 10;

/// A part of a message. The next part from the same rank is the next one of the same message.
#[derive(Serialize, Deserialize)]
struct Part<'a, H> {
    /// Says what the message is; the same in all of its parts.
    head: H,
    is_last: bool,
    bytes: &'a [u8],
}

/// Puts a message with this head into the box.
pub fn put<H: Serialize + Copy>(outbox: &mut Outbox, head: H, bytes: &[u8]) {
    let count = bytes.len().div_ceil(PART_BYTES).max(1);
    for place in 0..count {
        let from = place * PART_BYTES;
        let part = Part {
            head,
            is_last: place + 1 == count,
            bytes: &bytes[from..bytes.len().min(from + PART_BYTES)],
        };
        let part = postcard::to_stdvec(&part).expect("bytes and numbers can be written");
        outbox.put(part);
    }
}

/// Receives messages with heads `H` from another rank.
pub struct Arriving<H> {
    pub receiver: Receiver,
    /// The parts that have come of the next message.
    bytes: Vec<u8>,
    head: PhantomData<fn() -> H>,
}

impl<H: DeserializeOwned> Arriving<H> {
    pub fn new(receiver: Receiver) -> Self {
        Arriving {
            receiver,
            bytes: Vec::new(),
            head: PhantomData,
        }
    }

    /// Returns the next message that has come whole, if there is one. Never waits.
    ///
    /// # Errors
    /// When a rank has failed, or the message cannot be read.
    pub fn take(&mut self) -> Result<Option<(H, Vec<u8>)>, BoxError> {
        while let Some(message) = self.receiver.take()? {
            let part: Part<'_, H> = postcard::from_bytes(&message).map_err(|error| {
                let from = self.receiver.from();
                format!("the message of rank {from} cannot be read: {error}")
            })?;
            self.bytes.extend_from_slice(part.bytes);
            if part.is_last {
                return Ok(Some((part.head, mem::take(&mut self.bytes))));
            }
        }
        Ok(None)
    }
}
