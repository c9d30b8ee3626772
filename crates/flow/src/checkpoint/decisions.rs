//! Which checkpoints are complete on all ranks: from then on results that were prepared for them count.
//!
//! A rank announces each shard that it has stored to all others. A checkpoint whose shards all ranks have stored is
//! *complete*: the flow will never resume from an older one. Then sinks [commit](crate::Sink::commit) the results
//! that they have prepared for it, and for those before it. Meanwhile the flow works at the next checkpoint.
//!
//! At the end each rank announces its last checkpoint. One more follows, with the next number behind all of these, so
//! that the last results are committed, too. A rank that has ended stores its shard of each checkpoint that another
//! rank takes, until all have ended: nothing changes in it any more.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use bytes::Bytes;
use millstream_exchange::{Ranks, Receiver, SendError, Sender};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::checkpoint::participants::Committer;
use crate::error::{BoxError, Failure};
use crate::run::doorbell::Doorbell;

/// Bytes on their way from one rank to another; each message has about ten.
const CREDIT_BYTES: u64 = 16 << 10;

/// An announcement of a rank to all others.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum Announcement {
    /// The shard of this checkpoint is stored.
    Stored(u64),
    /// The rank has ended; this was its last checkpoint.
    Ended(u64),
}

/// The checkpoints of all ranks, as far as this one knows.
pub struct Decisions {
    committers: Vec<Arc<dyn Committer>>,
    signal: Arc<DecisionSignal>,
    state: Mutex<State>,
}

/// Signals that a shard was stored, an announcement arrived, or a sink made progress. Workers look at it between any
/// two activations.
pub struct DecisionSignal {
    is_there: AtomicBool,
    /// Shards that were stored and not announced yet.
    stored: Mutex<Vec<u64>>,
    doorbell: Arc<Doorbell>,
}

struct State {
    /// Checkpoints of which this rank has stored its shard, from the last complete one on.
    own: BTreeSet<u64>,
    peers: Vec<Peer>,
    /// The newest complete checkpoint, and whether all sinks have committed it.
    complete: u64,
    is_committed: bool,
}

/// Another rank.
struct Peer {
    sender: Sender,
    receiver: Receiver,
    stored: BTreeSet<u64>,
    ended: Option<u64>,
    /// Messages for which there was no credit; a few for each checkpoint that is not complete.
    unsent: VecDeque<Bytes>,
}

impl DecisionSignal {
    /// A shard was stored. [`wake`](Wake::wake) follows.
    pub fn stored(&self, number: u64) {
        self.stored.lock().push(number);
    }
}

impl Wake for DecisionSignal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // The flag first: a worker that the bell wakes sees it.
        self.is_there.store(true, Ordering::SeqCst);
        self.doorbell.wake_by_ref();
    }
}

impl Decisions {
    /// Makes the channels between the ranks; called before these agree. `committers` are those that wait for decisions.
    pub fn new(
        ranks: &Ranks,
        doorbell: &Arc<Doorbell>,
        committers: Vec<Arc<dyn Committer>>,
    ) -> Decisions {
        let signal = Arc::new(DecisionSignal {
            is_there: AtomicBool::new(false),
            stored: Mutex::default(),
            doorbell: Arc::clone(doorbell),
        });
        let channel = ranks.next_channel();
        let others = (0..ranks.count()).filter(|rank| *rank != ranks.rank());
        let peers = others.map(|rank| {
            let mut sender = ranks.sender(rank, channel, CREDIT_BYTES);
            let mut receiver = ranks.receiver(rank, channel, CREDIT_BYTES);
            sender.set_waker(Waker::from(Arc::clone(&signal)));
            receiver.set_waker(Waker::from(Arc::clone(&signal)));
            Peer {
                sender,
                receiver,
                stored: BTreeSet::new(),
                ended: None,
                unsent: VecDeque::new(),
            }
        });
        let state = State {
            own: BTreeSet::new(),
            peers: peers.collect(),
            complete: 0,
            is_committed: true,
        };
        Decisions {
            committers,
            state: Mutex::new(state),
            signal,
        }
    }

    pub fn signal(&self) -> &Arc<DecisionSignal> {
        &self.signal
    }

    /// Whether [`decide`](Self::decide) has something to do.
    pub fn are_due(&self) -> bool {
        self.signal.is_there.load(Ordering::Relaxed)
    }

    /// Processes stored shards and announcements, and has sinks commit complete checkpoints. Never waits.
    pub fn decide(&self) -> Result<(), Failure> {
        let state = &mut *self.state.lock();
        // First: a signal from now on is for the next time.
        self.signal.is_there.store(false, Ordering::SeqCst);
        for number in std::mem::take(&mut *self.signal.stored.lock()) {
            state.own.insert(number);
            state
                .announce(Announcement::Stored(number))
                .map_err(failure)?;
        }
        state.receive().map_err(failure)?;
        if let Some(complete) = state.newest_complete() {
            state.complete = complete;
            state.is_committed = false;
            state.forget_before(complete);
        }
        if !state.is_committed {
            let waker = Waker::from(Arc::clone(&self.signal));
            let mut is_committed = true;
            for committer in &self.committers {
                is_committed &= committer.commit(state.complete, &waker)?;
            }
            state.is_committed = is_committed;
        }
        Ok(())
    }

    /// Announces that this rank has ended, `last` being its last checkpoint.
    pub fn end(&self, last: u64) -> Result<(), Failure> {
        let mut state = self.state.lock();
        state.announce(Announcement::Ended(last)).map_err(failure)
    }

    /// Returns the newest checkpoint behind `last` that another rank has stored and this one has not.
    pub fn wanted(&self, last: u64) -> Option<u64> {
        let state = self.state.lock();
        let stored = state.peers.iter().flat_map(|peer| &peer.stored);
        let missing = stored.filter(|number| **number > last && !state.own.contains(number));
        missing.copied().max()
    }

    /// Returns the number of the checkpoint behind the last one of all ranks, once all have ended; `last` is that of
    /// this one.
    pub fn final_number(&self, last: u64) -> Option<u64> {
        let state = self.state.lock();
        let ended: Option<Vec<u64>> = state.peers.iter().map(|peer| peer.ended).collect();
        let newest = ended?.into_iter().max().unwrap_or(0).max(last);
        Some(newest + 1)
    }

    /// Whether this checkpoint is complete, and committed by all sinks.
    pub fn is_committed(&self, number: u64) -> bool {
        let state = self.state.lock();
        state.complete >= number && state.is_committed
    }
}

impl State {
    fn announce(&mut self, announcement: Announcement) -> Result<(), BoxError> {
        let message = Bytes::from(postcard::to_stdvec(&announcement)?);
        for peer in &mut self.peers {
            peer.unsent.push_back(message.clone());
            peer.send()?;
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<(), BoxError> {
        for peer in &mut self.peers {
            peer.send()?;
            while let Some(message) = peer.receiver.take()? {
                match postcard::from_bytes(&message)? {
                    Announcement::Stored(number) => drop(peer.stored.insert(number)),
                    Announcement::Ended(last) => peer.ended = Some(last),
                }
            }
        }
        Ok(())
    }

    /// The newest checkpoint that has become complete.
    fn newest_complete(&self) -> Option<u64> {
        let is_complete = |number: &&u64| {
            let mut peers = self.peers.iter();
            **number > self.complete && peers.all(|peer| peer.stored.contains(number))
        };
        self.own.iter().rev().find(is_complete).copied()
    }

    fn forget_before(&mut self, number: u64) {
        self.own = self.own.split_off(&number);
        for peer in &mut self.peers {
            peer.stored = peer.stored.split_off(&number);
        }
    }
}

impl Peer {
    fn send(&mut self) -> Result<(), SendError> {
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

fn failure(error: BoxError) -> Failure {
    Failure::Error {
        operator: "checkpoints".into(),
        error,
    }
}
