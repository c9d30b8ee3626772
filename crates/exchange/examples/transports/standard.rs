//! The limit of threads: channels of the standard library.

use std::error::Error;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use bytes::Bytes;

use super::cases::{self, Link};

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

pub fn threads() -> Result<(), Box<dyn Error>> {
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
    let thread = thread::spawn(move || cases::run(second, false));
    cases::run(first, true);
    thread.join().map_err(|_| "the other end panicked")?;
    Ok(())
}
