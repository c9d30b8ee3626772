//! Which checkpoints are complete on all ranks: from then on results that were prepared for them count.
//!
//! A rank announces each shard that it has stored to all others. A checkpoint whose shards all ranks have announced is
//! *complete*: the flow will never resume from an older one. Then sinks [commit](crate::Sink::commit) the results
//! that they have prepared for it, and for those before it. Meanwhile the flow works at the next checkpoint.
//!
//! An announcement is a promise: the shard stays until a later checkpoint is complete, or until another rank has
//! announced a later shard and not that one, so that this checkpoint never gets complete. Where other ranks are far
//! behind or cannot store their shards, few are announced; of those that come then only the last one stays, and is
//! announced when there is room again.
//!
//! At the end each rank announces its last checkpoint. One more follows, with the next number behind all of these, so
//! that the last results are committed, too. A rank that has ended stores its shard of each checkpoint that another
//! rank takes, until all have ended: nothing changes in it any more.
//!
//! This is so in all flows that take checkpoints, also where neither sinks nor changelogs wait for them: by the
//! announcements a rank knows which of its shards are of no use any more.

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

/// The shards that a rank has announced and that wait for those of other ranks, at most.
const WAITING_MAX: usize = 4;

/// The shards in a row that a rank gives up although sinks have prepared results for them: sinks do not have much room.
const GIVEN_UP_MAX: usize = 4;

/// An announcement of a rank to all others.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum Announcement {
    /// The shard of this checkpoint is stored, and stays. The numbers of a rank rise.
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
    /// Locked for a moment only: also while sinks commit, a shard is written.
    own: Mutex<Own>,
    doorbell: Arc<Doorbell>,
    waiting: Waiting,
    is_alone: bool,
}

/// The parts of a flow that wait for complete checkpoints.
#[derive(Debug, Clone, Copy)]
pub struct Waiting {
    /// Whether there are sinks that have prepared results for them, and little room for more.
    pub are_sinks: bool,
    /// Whether there are any.
    pub is_any: bool,
}

/// The shards of this rank that stay.
#[derive(Default)]
struct Own {
    /// The last one, if it is not announced yet.
    last: Option<u64>,
    /// Those that are announced, from the last complete one on.
    announced: BTreeSet<u64>,
    /// Shards that were given up since the last one that is stored.
    given_up: usize,
    /// The rank has ended: nothing changes in it any more.
    has_ended: bool,
    /// Ends the flow.
    error: Option<BoxError>,
}

struct State {
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
    pub fn waiting(&self) -> Waiting {
        self.waiting
    }

    /// A shard was stored. It takes the place of the one before, if that is not announced yet. [`wake`](Wake::wake)
    /// follows.
    pub fn stored(&self, number: u64) {
        let mut own = self.own.lock();
        own.last = Some(number);
        own.given_up = 0;
    }

    /// A shard was given up. [`wake`](Wake::wake) follows.
    pub fn given_up(&self) {
        self.own.lock().given_up += 1;
    }

    /// Whether a shard is the last one that can be given up without a stop of the flow: sinks have prepared results for
    /// those before it, or the rank has ended, so that the next one would be the same.
    pub fn is_last_chance(&self) -> bool {
        let own = self.own.lock();
        self.waiting.are_sinks && (own.has_ended || own.given_up >= GIVEN_UP_MAX)
    }

    /// Ends the flow with an error. [`wake`](Wake::wake) follows.
    pub fn fail(&self, error: BoxError) {
        self.own.lock().error.get_or_insert(error);
    }

    /// Returns the checkpoints whose shards stay, all others being of no use any more. For the thread that writes them:
    /// those that join later come by [`stored`](Self::stored).
    pub fn kept(&self) -> BTreeSet<u64> {
        let own = self.own.lock();
        let kept = own.announced.iter().copied().chain(own.last);
        match self.is_alone {
            // Without other ranks each checkpoint is complete when its shard is stored.
            true => kept.max().into_iter().collect(),
            false => kept.collect(),
        }
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
    /// Makes the channels between the ranks; called before these agree. `committers` get the decisions.
    pub fn new(
        ranks: &Ranks,
        doorbell: &Arc<Doorbell>,
        committers: Vec<Arc<dyn Committer>>,
        waiting: Waiting,
    ) -> Decisions {
        let signal = Arc::new(DecisionSignal {
            is_there: AtomicBool::new(false),
            own: Mutex::default(),
            doorbell: Arc::clone(doorbell),
            waiting,
            is_alone: ranks.count() == 1,
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

    /// Begins a run behind the checkpoint `number`, which all ranks have stored; `is_committed` if sinks have recovered
    /// from it.
    pub fn begin(&self, number: u64, is_committed: bool) {
        let state = &mut *self.state.lock();
        (state.complete, state.is_committed) = (number, is_committed);
        *self.signal.own.lock() = Own {
            announced: BTreeSet::from([number]),
            ..Own::default()
        };
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
        if let Some(error) = self.signal.own.lock().error.take() {
            return Err(failure(error));
        }
        state.receive().map_err(failure)?;
        loop {
            let own = &mut *self.signal.own.lock();
            state.complete_newest(own);
            let Some(number) = own.next() else { break };
            state
                .announce(Announcement::Stored(number))
                .map_err(failure)?;
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
        self.signal.own.lock().has_ended = true;
        let mut state = self.state.lock();
        state.announce(Announcement::Ended(last)).map_err(failure)
    }

    /// Returns the newest checkpoint behind `last`, the last one of this rank, that another rank has stored.
    pub fn wanted(&self, last: u64) -> Option<u64> {
        let state = self.state.lock();
        let stored = state.peers.iter().flat_map(|peer| &peer.stored);
        stored.filter(|number| **number > last).copied().max()
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

    /// Finds the newest checkpoint that has become complete, and forgets shards whose checkpoints never get complete.
    fn complete_newest(&mut self, own: &mut Own) {
        let is_complete = |number: &&u64| {
            let mut peers = self.peers.iter();
            **number > self.complete && peers.all(|peer| peer.stored.contains(number))
        };
        if let Some(number) = own.announced.iter().rev().find(is_complete).copied() {
            self.complete = number;
            self.is_committed = false;
            own.announced = own.announced.split_off(&number);
            for peer in &mut self.peers {
                peer.stored = peer.stored.split_off(&number);
            }
        }
        let (complete, peers) = (self.complete, &self.peers);
        own.announced.retain(|number| {
            *number == complete || peers.iter().all(|peer| peer.may_have(*number))
        });
    }
}

impl Own {
    /// Takes the shard to announce, if there is one and room for it.
    fn next(&mut self) -> Option<u64> {
        // One of them is the last complete one.
        let number = self.last.take_if(|_| self.announced.len() <= WAITING_MAX)?;
        self.announced.insert(number);
        Some(number)
    }
}

impl Peer {
    /// Whether it has announced this shard, or may do so yet.
    fn may_have(&self, number: u64) -> bool {
        let last = self.stored.last();
        last.is_none_or(|last| *last < number) || self.stored.contains(&number)
    }

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

#[cfg(test)]
mod tests {
    use millstream_base::{Clock, SystemClock};

    use super::*;

    /// Those of two ranks that begin behind the first checkpoint.
    fn two() -> (Vec<Ranks>, Vec<Decisions>) {
        let ranks = Ranks::threads(2);
        let decisions = ranks.iter().map(|ranks| {
            let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
            let waiting = Waiting {
                are_sinks: true,
                is_any: true,
            };
            let doorbell = Arc::new(Doorbell::new(clock));
            let decisions = Decisions::new(ranks, &doorbell, Vec::new(), waiting);
            decisions.begin(1, true);
            decisions
        });
        let decisions = decisions.collect();
        (ranks, decisions)
    }

    /// A rank stores a shard; then both find out what that means.
    fn store(decisions: &[Decisions], rank: usize, number: u64) {
        decisions[rank].signal.stored(number);
        for rank in [rank, 1 - rank, rank] {
            assert!(decisions[rank].decide().is_ok());
        }
    }

    fn kept(decisions: &Decisions) -> Vec<u64> {
        decisions.signal.kept().into_iter().collect()
    }

    #[test]
    fn announced_shards_stay_as_long_as_their_checkpoints_can_get_complete() {
        let (_ranks, both) = two();
        for number in 2..20 {
            store(&both, 0, number);
            assert!(kept(&both[0]).len() <= 1 + WAITING_MAX + 1);
        }
        assert_eq!(kept(&both[0]), [1, 2, 3, 4, 5, 19]);
        assert_eq!(both[1].wanted(1), Some(5), "others are not announced");
        store(&both, 1, 3);
        assert!(both.iter().all(|it| it.is_committed(3)));
        assert_eq!(kept(&both[0]), [3, 4, 5, 19]);
        assert_eq!(both[1].wanted(3), Some(19), "there was room");
        // 4 and 5 do not come any more.
        store(&both, 1, 6);
        assert_eq!(kept(&both[0]), [3, 19]);
        store(&both, 1, 19);
        assert!(both.iter().all(|it| it.is_committed(19)));
        assert_eq!([kept(&both[0]), kept(&both[1])], [[19], [19]]);
    }
}
