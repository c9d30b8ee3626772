//! The end of a channel that sends.

use std::sync::Arc;
use std::task::Waker;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::credit::{Credit, MESSAGE_BYTES_MAX};
use crate::error::SendError;
use crate::fate::Fate;
use crate::parcel::{ChannelId, Parcel, Transport};

/// Sends on one channel, as long as its receiver has room.
pub struct Sender {
    outlet: Arc<Outlet>,
}

impl Sender {
    pub(crate) fn new(outlet: Arc<Outlet>) -> Sender {
        Sender { outlet }
    }

    /// The rank that receives.
    pub fn to(&self) -> u32 {
        self.outlet.to
    }

    /// The bytes of the largest message for which there is credit now; 0 if there is none, or for an empty one only. A
    /// message that is larger than the whole credit is sent all the same when there is nearly nothing else under way.
    pub fn room(&self) -> usize {
        self.outlet.credit.room(self.outlet.state.lock().taken)
    }

    /// Sends a message, which may be empty. It never waits.
    ///
    /// # Errors
    /// When there is no credit for it, it is too long, this rank has left, or a rank has failed. It sends nothing then.
    pub fn send(&mut self, message: impl Into<Bytes>) -> Result<(), SendError> {
        self.outlet.send(message.into())
    }

    /// Sets the waker to wake when credit has come back, or a rank has failed; at once, if one has. Credit that came
    /// back before does not wake it, so try to send after setting it.
    pub fn set_waker(&mut self, waker: Waker) {
        self.outlet.state.lock().waker = Some(waker.clone());
        if self.outlet.fate.failure().is_some() {
            waker.wake();
        }
    }
}

/// A rank's state of a channel on which it sends.
pub struct Outlet {
    to: u32,
    channel: ChannelId,
    credit: Credit,
    transport: Arc<dyn Transport>,
    fate: Arc<Fate>,
    state: Mutex<OutletState>,
}

#[derive(Default)]
struct OutletState {
    /// The credit in use. The sender adds to it; credit that the receiver gives back is subtracted.
    taken: u64,
    waker: Option<Waker>,
    messages: u64,
    bytes: u64,
}

impl Outlet {
    pub fn new(
        to: u32,
        channel: ChannelId,
        credit: Credit,
        transport: Arc<dyn Transport>,
        fate: Arc<Fate>,
    ) -> Outlet {
        Outlet {
            to,
            channel,
            credit,
            transport,
            fate,
            state: Mutex::default(),
        }
    }

    fn send(&self, bytes: Bytes) -> Result<(), SendError> {
        self.fate.check_sending()?;
        if bytes.len() > MESSAGE_BYTES_MAX {
            return Err(SendError::TooLong(bytes));
        }
        let cost = Credit::cost(bytes.len());
        {
            let mut state = self.state.lock();
            if !self.credit.admits(state.taken, cost) {
                return Err(SendError::Full(bytes));
            }
            state.taken += cost;
            state.messages += 1;
            state.bytes += bytes.len() as u64;
        }
        self.transport.post(
            self.to,
            Parcel::Message {
                channel: self.channel,
                bytes,
            },
        );
        Ok(())
    }

    /// Takes credit back.
    ///
    /// # Errors
    /// When it is more than is in use.
    pub fn give_back(&self, bytes: u64) -> Result<(), String> {
        let mut state = self.state.lock();
        let Some(taken) = state.taken.checked_sub(bytes) else {
            return Err(format!(
                "it gave back {bytes} bytes of credit on the channel {}, where {} were taken",
                self.channel, state.taken
            ));
        };
        state.taken = taken;
        let waker = state.waker.clone();
        drop(state);
        waker.inspect(Waker::wake_by_ref);
        Ok(())
    }

    pub fn waker(&self) -> Option<Waker> {
        self.state.lock().waker.clone()
    }

    /// Messages and bytes that were sent.
    pub fn counts(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.messages, state.bytes)
    }
}
