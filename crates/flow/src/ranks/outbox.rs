//! Messages to another rank that may wait for credit.

use std::collections::VecDeque;
use std::task::Waker;

use bytes::Bytes;
use millstream_exchange::{SendError, Sender};

/// A sender with the messages for which there was no credit yet. The user bounds their number.
pub struct Outbox {
    sender: Sender,
    unsent: VecDeque<Bytes>,
}

impl Outbox {
    pub fn new(sender: Sender) -> Outbox {
        Outbox {
            sender,
            unsent: VecDeque::new(),
        }
    }

    /// Sets the waker to wake when [`send`](Self::send) may have something to do.
    pub fn set_waker(&mut self, waker: Waker) {
        self.sender.set_waker(waker);
    }

    /// Adds a message behind the others.
    pub fn put(&mut self, message: impl Into<Bytes>) {
        self.unsent.push_back(message.into());
    }

    /// Whether all messages are sent.
    pub fn is_empty(&self) -> bool {
        self.unsent.is_empty()
    }

    /// Sends as many messages as there is credit for. Never waits.
    pub fn send(&mut self) -> Result<(), SendError> {
        while let Some(message) = self.unsent.pop_front() {
            match self.sender.send(message) {
                Ok(()) => {}
                Err(SendError::Full(message)) => {
                    self.unsent.push_front(message);
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
