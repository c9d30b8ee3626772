//! The end of a channel that receives.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::task::Waker;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::credit::Credit;
use crate::error::ExchangeError;
use crate::fate::Fate;
use crate::parcel::{ChannelId, Parcel, Transport};

/// Receives on one channel. Messages that arrive after it is dropped are discarded, and their credit is given back.
pub struct Receiver {
    inlet: Arc<Inlet>,
}

impl Receiver {
    pub(crate) fn new(inlet: Arc<Inlet>) -> Receiver {
        Receiver { inlet }
    }

    /// The rank that sends.
    pub fn from(&self) -> u32 {
        self.inlet.from
    }

    /// Returns the next message, if there is one. It never waits. If there was none, the next arrival wakes the waker.
    ///
    /// # Errors
    /// When a rank has failed.
    pub fn take(&mut self) -> Result<Option<Message>, ExchangeError> {
        self.inlet.fate.check()?;
        let mut state = self.inlet.state.lock();
        let bytes = state.queue.pop_front();
        state.is_awaited = bytes.is_none();
        drop(state);
        Ok(bytes.map(|bytes| Message {
            bytes,
            inlet: self.inlet.clone(),
        }))
    }

    /// Sets the waker to wake when a message arrives after [`take`](Receiver::take) found none, or a rank has failed.
    /// Wakes it at once if there is a message, or a rank has failed.
    pub fn set_waker(&mut self, waker: Waker) {
        let mut state = self.inlet.state.lock();
        state.waker = Some(waker.clone());
        let is_filled = !state.queue.is_empty();
        drop(state);
        if is_filled || self.inlet.fate.failure().is_some() {
            waker.wake();
        }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let mut state = self.inlet.state.lock();
        state.is_closed = true;
        let queue = std::mem::take(&mut state.queue);
        let cost = queue.iter().map(|bytes| Credit::cost(bytes.len())).sum();
        let credit = state.free(cost, self.inlet.credit);
        drop(state);
        self.inlet.give_back(credit);
    }
}

/// Bytes that were received, as they were sent. When it is dropped, the sender gets the credit back.
pub struct Message {
    bytes: Bytes,
    inlet: Arc<Inlet>,
}

impl Deref for Message {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Message").field(&self.bytes).finish()
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        let cost = Credit::cost(self.bytes.len());
        let credit = self.inlet.state.lock().free(cost, self.inlet.credit);
        // Free the memory first: the credit stands for it.
        self.bytes = Bytes::new();
        self.inlet.give_back(credit);
    }
}

/// A rank's state of a channel on which it receives.
pub struct Inlet {
    from: u32,
    channel: ChannelId,
    credit: Credit,
    transport: Arc<dyn Transport>,
    fate: Arc<Fate>,
    state: Mutex<InletState>,
}

struct InletState {
    /// The messages that have arrived and were not taken yet.
    queue: VecDeque<Bytes>,
    /// The credit of messages that have arrived, and that was not given back yet.
    held: u64,
    /// The part of `held` whose messages were dropped, to be given back with the next batch.
    freed: u64,
    /// Whether the receiver found no message at its last look.
    is_awaited: bool,
    /// Whether the receiver is gone.
    is_closed: bool,
    waker: Option<Waker>,
    messages: u64,
    bytes: u64,
}

impl InletState {
    /// Adds the cost of a dropped message; returns the credit to give back, which may be 0.
    fn free(&mut self, cost: u64, credit: Credit) -> u64 {
        self.freed += cost;
        if self.freed < credit.batch() {
            return 0;
        }
        self.held -= self.freed;
        std::mem::take(&mut self.freed)
    }
}

impl Inlet {
    pub fn new(
        from: u32,
        channel: ChannelId,
        credit: Credit,
        transport: Arc<dyn Transport>,
        fate: Arc<Fate>,
    ) -> Inlet {
        let state = InletState {
            queue: VecDeque::new(),
            held: 0,
            freed: 0,
            is_awaited: true,
            is_closed: false,
            waker: None,
            messages: 0,
            bytes: 0,
        };
        Inlet {
            from,
            channel,
            credit,
            transport,
            fate,
            state: Mutex::new(state),
        }
    }

    /// Queues a message that has arrived.
    ///
    /// # Errors
    /// When it exceeds the credit.
    pub fn deliver(&self, bytes: Bytes) -> Result<(), String> {
        let cost = Credit::cost(bytes.len());
        let mut state = self.state.lock();
        if !self.credit.admits(state.held, cost) {
            return Err(format!(
                "it sent {} bytes on the channel {}, for which it had no credit",
                bytes.len(),
                self.channel
            ));
        }
        state.held += cost;
        state.messages += 1;
        state.bytes += bytes.len() as u64;
        if state.is_closed {
            let credit = state.free(cost, self.credit);
            drop(state);
            self.give_back(credit);
            return Ok(());
        }
        state.queue.push_back(bytes);
        let is_awaited = std::mem::take(&mut state.is_awaited);
        let waker = if is_awaited {
            state.waker.clone()
        } else {
            None
        };
        drop(state);
        waker.inspect(Waker::wake_by_ref);
        Ok(())
    }

    fn give_back(&self, credit: u64) {
        if credit > 0 {
            self.transport.post(
                self.from,
                Parcel::Credit {
                    channel: self.channel,
                    bytes: credit,
                },
            );
        }
    }

    pub fn waker(&self) -> Option<Waker> {
        self.state.lock().waker.clone()
    }

    /// Messages and bytes that have come.
    pub fn counts(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.messages, state.bytes)
    }
}
