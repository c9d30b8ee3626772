//! The limit of threads: channels of the standard library.

use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use anyhow::Result;
use bytes::Bytes;

use super::link::{self, Figure, Link, Plan};

struct Channels {
    sender: Sender<Bytes>,
    receiver: Receiver<Bytes>,
}

impl Link for Channels {
    fn send(&mut self, message: Bytes) {
        self.sender.send(message).expect("the other end is there");
    }

    fn receive(&mut self) -> usize {
        loop {
            if let Ok(message) = self.receiver.try_recv() {
                return message.len();
            }
            thread::yield_now();
        }
    }
}

/// Both ends in this process.
pub fn threads(plan: Plan) -> Result<Option<Vec<Figure>>> {
    let (to_second, from_first) = mpsc::channel();
    let (to_first, from_second) = mpsc::channel();
    let first = Channels {
        sender: to_second,
        receiver: from_second,
    };
    let second = Channels {
        sender: to_first,
        receiver: from_first,
    };
    let thread = thread::spawn(move || link::run(second, false, plan));
    let figures = link::run(first, true, plan);
    match thread.join() {
        Ok(_) => Ok(figures),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}
