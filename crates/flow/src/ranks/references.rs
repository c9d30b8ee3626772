//! References from items on other ranks to values of this one, such as to calls that wait for their response.
//!
//! A value that is part of an item cannot go to another rank. It stays, and the item has a [`Reference`] to it there: the
//! number of the value. A reference sends messages to its value, and releases it when it is dropped. A reference that goes on
//! to a further rank is a value itself, of the rank that sends it on, so its messages go back the way that the item has come.
//!
//! An item is encoded in [`References::lend_in`], and decoded in [`References::refer_in`], which its code finds by
//! [`lend`] and [`refer`]. Anywhere else, as in a checkpoint, it has no encoded form.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::mem;
use std::sync::Arc;
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use millstream_base::Clock;
use millstream_exchange::Ranks;
use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};

use crate::error::BoxError;
use crate::ranks::long_messages::{self, Arriving};
use crate::ranks::outbox::Outbox;
use crate::ranks::unpark::unparks_this_thread;

/// Bytes on their way from one rank to another.
const CREDIT_BYTES: u64 = 1 << 20;

/// The time after which a thread that waits for messages also looks for values that were settled without one.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// A value of this rank that references on other ranks lead to.
pub trait Referent: Send + Sync {
    /// Receives a message of a reference.
    ///
    /// # Errors
    /// When it cannot be read.
    fn receive(&self, message: &[u8]) -> Result<(), BoxError>;

    /// Whether it needs no more messages.
    fn is_settled(&self) -> bool;
}

/// The values of one flow and rank that other ranks refer to, and its connection to those ranks.
pub struct References {
    rank: u32,
    clock: Arc<dyn Clock>,
    values: Mutex<Values>,
    /// Locked for no user code.
    peers: Mutex<Peers>,
    /// Notified when messages have come, or when no more come.
    changed: Condvar,
}

#[derive(Default)]
struct Values {
    next: u64,
    lent: HashMap<u64, Arc<dyn Referent>>,
}

struct Peers {
    peers: Vec<Peer>,
    phase: Phase,
    /// Receives messages, from the beginning of the flow to its end.
    thread: Option<Thread>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The flow has not begun, or is at work.
    Open,
    /// The flow has ended: its last messages are still sent.
    Closing,
    /// No message comes any more.
    Ended,
}

/// Another rank.
struct Peer {
    rank: u32,
    outbox: Outbox,
    arriving: Arriving<Head>,
}

/// The value that a message goes to, and the kind of the message.
type Head = (Kind, u64);

#[derive(Clone, Copy, Serialize, Deserialize)]
enum Kind {
    Message,
    /// The reference was dropped.
    Release,
}

/// A reference to a value of another rank.
pub struct Reference {
    references: Arc<References>,
    rank: u32,
    number: u64,
}

thread_local! {
    static CROSSING: RefCell<Option<Crossing>> = const { RefCell::new(None) };
}

/// An item that is being encoded or decoded.
struct Crossing {
    references: Arc<References>,
    /// The rank that has sent the item; `None` for an item that is being encoded.
    from: Option<u32>,
    lent: Vec<u64>,
}

/// Lends a value to the item that is being encoded for another rank; returns its number. `None` if no such item is.
pub fn lend(value: Arc<dyn Referent>) -> Option<u64> {
    CROSSING.with_borrow_mut(|crossing| {
        let crossing = crossing.as_mut().filter(|it| it.from.is_none())?;
        let number = crossing.references.insert(value);
        crossing.lent.push(number);
        Some(number)
    })
}

/// Returns a reference to the value of this number, for the item of another rank that is being decoded. `None` if no such item
/// is.
pub fn refer(number: u64) -> Option<Reference> {
    CROSSING.with_borrow(|crossing| {
        let crossing = crossing.as_ref()?;
        Some(Reference {
            references: Arc::clone(&crossing.references),
            rank: crossing.from?,
            number,
        })
    })
}

/// Ends an encoding or decoding, also one that has panicked.
struct Scope;

impl Scope {
    fn begin(crossing: Crossing) -> Scope {
        CROSSING.set(Some(crossing));
        Scope
    }

    /// Returns the numbers of the values that the item has borrowed.
    fn end(self) -> Vec<u64> {
        let crossing = CROSSING.take();
        mem::forget(self);
        crossing.map_or_else(Vec::new, |crossing| crossing.lent)
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        if let Some(crossing) = CROSSING.take() {
            crossing.references.take_back(crossing.lent);
        }
    }
}

impl References {
    /// Makes the channels; called before the ranks agree, and by all of them.
    pub fn new(ranks: &Ranks, clock: &Arc<dyn Clock>) -> Arc<References> {
        let channel = ranks.next_channel();
        let others = (0..ranks.count()).filter(|rank| *rank != ranks.rank());
        let peers = others.map(|rank| Peer {
            rank,
            outbox: Outbox::new(ranks.sender(rank, channel, CREDIT_BYTES)),
            arriving: Arriving::new(ranks.receiver(rank, channel, CREDIT_BYTES)),
        });
        let peers = Peers {
            peers: peers.collect(),
            phase: Phase::Open,
            thread: None,
        };
        Arc::new(References {
            rank: ranks.rank(),
            clock: Arc::clone(clock),
            values: Mutex::default(),
            peers: Mutex::new(peers),
            changed: Condvar::new(),
        })
    }

    /// Returns this rank.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Encodes an item. Returns the numbers of the values that it borrows; they are [taken back](Self::take_back) if `encode` fails
    /// or panics.
    pub fn lend_in<E>(
        self: &Arc<Self>,
        encode: impl FnOnce() -> Result<(), E>,
    ) -> Result<Vec<u64>, E> {
        let scope = self.crossing(None);
        encode()?;
        Ok(scope.end())
    }

    /// Decodes items that a rank has sent.
    pub fn refer_in<R>(self: &Arc<Self>, from: u32, decode: impl FnOnce() -> R) -> R {
        let _scope = self.crossing(Some(from));
        decode()
    }

    fn crossing(self: &Arc<Self>, from: Option<u32>) -> Scope {
        Scope::begin(Crossing {
            references: Arc::clone(self),
            from,
            lent: Vec::new(),
        })
    }

    fn insert(&self, value: Arc<dyn Referent>) -> u64 {
        let mut values = self.values.lock();
        let number = values.next;
        values.next += 1;
        values.lent.insert(number, value);
        number
    }

    /// Takes values back that no other rank has got.
    pub fn take_back(&self, numbers: impl IntoIterator<Item = u64>) {
        for number in numbers {
            let value = self.values.lock().lent.remove(&number);
            // Its drop may be other code.
            drop(value);
        }
    }

    /// Begins to receive messages; a further call does nothing.
    ///
    /// # Errors
    /// When there is no thread for it.
    pub fn begin(self: &Arc<Self>) -> io::Result<()> {
        let mut peers = self.peers.lock();
        if peers.thread.is_none() {
            let references = Arc::clone(self);
            let thread = thread::Builder::new()
                .name("millstream-calls".to_owned())
                .spawn(move || references.run())?;
            peers.thread = Some(thread.thread().clone());
        }
        Ok(())
    }

    fn run(&self) {
        let waker = unparks_this_thread();
        for peer in &mut self.peers.lock().peers {
            peer.outbox.set_waker(waker.clone());
            peer.arriving.receiver.set_waker(waker.clone());
        }
        loop {
            let mut peers = self.peers.lock();
            let exchanged = peers.exchange();
            if peers.phase == Phase::Closing && peers.are_sent() {
                peers.phase = Phase::Ended;
            }
            if let Err(error) = &exchanged {
                // The flow itself finds out that a rank has failed.
                tracing::debug!("references to other ranks end: {error}");
                peers.phase = Phase::Ended;
            }
            let has_ended = peers.phase == Phase::Ended;
            drop(peers);
            let messages = exchanged.unwrap_or_default();
            let is_idle = messages.is_empty();
            for message in messages {
                self.receive(message);
            }
            if !is_idle || has_ended {
                // Locked, so that no thread that is about to wait misses it.
                let _values = self.values.lock();
                self.changed.notify_all();
            }
            match (has_ended, is_idle) {
                (true, _) => return,
                (false, true) => thread::park(),
                (false, false) => {}
            }
        }
    }

    fn receive(&self, ((kind, number), bytes): (Head, Vec<u8>)) {
        let mut values = self.values.lock();
        // It is gone if the flow has ended.
        let value = match kind {
            Kind::Message => values.lent.get(&number).cloned(),
            Kind::Release => values.lent.remove(&number),
        };
        drop(values);
        if let (Kind::Message, Some(value)) = (kind, value)
            && let Err(error) = value.receive(&bytes)
        {
            tracing::error!("a message of another rank cannot be read: {error}");
        }
    }

    /// Sends a message to a value of another rank.
    fn send(&self, rank: u32, head: Head, message: &[u8]) {
        let mut peers = self.peers.lock();
        let mut others = peers.peers.iter_mut();
        if let Some(peer) = others.find(|peer| peer.rank == rank) {
            long_messages::put(&mut peer.outbox, head, message);
            // The thread finds out about a failure by itself.
            let _ = peer.outbox.send();
        }
    }

    /// Waits until all values are settled and all messages are sent, for at most this time, or until a rank fails.
    pub fn wait_until_settled(&self, time_max: Duration) {
        let since = Instant::now();
        let mut values = self.values.lock();
        while !values.lent.values().all(|value| value.is_settled()) || !self.peers.lock().are_sent()
        {
            let left = time_max.saturating_sub(since.elapsed());
            if left.is_zero() || !self.peers.lock().is_at_work() {
                return;
            }
            let wait = LOOK_INTERVAL.min(left);
            self.changed.wait_for(&mut values, wait);
        }
    }

    /// The flow has ended: drops all values that other ranks still refer to.
    pub fn close(&self) {
        let mut peers = self.peers.lock();
        if peers.phase == Phase::Open {
            peers.phase = Phase::Closing;
        }
        if let Some(thread) = &peers.thread {
            thread.unpark();
        }
        drop(peers);
        let values = mem::take(&mut self.values.lock().lent);
        // Their drops may be other code.
        drop(values);
    }
}

impl Peers {
    /// Sends pending messages, and returns those that have come.
    fn exchange(&mut self) -> Result<Vec<(Head, Vec<u8>)>, BoxError> {
        let mut messages = Vec::new();
        for peer in &mut self.peers {
            while let Some(message) = peer.arriving.take()? {
                messages.push(message);
            }
            peer.outbox.send()?;
        }
        Ok(messages)
    }

    /// Whether messages may still come.
    fn is_at_work(&self) -> bool {
        self.thread.is_some() && self.phase != Phase::Ended
    }

    fn are_sent(&self) -> bool {
        self.peers.iter().all(|peer| peer.outbox.is_empty())
    }
}

impl Reference {
    /// Sends a message to the value. It is lost if the value's flow has ended, or a rank has failed.
    pub fn send(&self, message: &[u8]) {
        let head = (Kind::Message, self.number);
        self.references.send(self.rank, head, message);
    }

    /// Returns the clock of the flow.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.references.clock
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        let head = (Kind::Release, self.number);
        self.references.send(self.rank, head, &[]);
    }
}
