//! Signals to the decisions about complete checkpoints, and the shards of this rank that they are about.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Wake;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::checkpoint::record::ShardDigest;
use crate::doorbell::Doorbell;
use crate::error::BoxError;

/// The most shards that a rank has announced and that wait for shards of other ranks.
pub const WAITING_MAX: usize = 4;

/// The shards in a row that a rank gives up although sinks have prepared results for them: sinks do not have much room.
const GIVEN_UP_MAX: usize = 4;

/// Signals that a shard was stored, an announcement arrived, or a sink made progress. Workers look at it between any
/// two activations.
pub struct DecisionSignal {
    pub is_there: AtomicBool,
    /// Locked for a moment only: also while sinks commit, a shard is written.
    pub own: Mutex<Own>,
    /// The interval of checkpoints, in nanoseconds. Written with the decisions locked, read by workers.
    interval_ns: AtomicU64,
    /// The newest checkpoint that any rank wants, or that another one has stored, as far as this one knows.
    wanted: AtomicU64,
    /// The newest one that this rank has wanted first.
    wanted_here: AtomicU64,
    doorbell: Arc<Doorbell>,
    waiting: Waiting,
    is_alone: bool,
}

/// A shard that is stored.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct StoredShard {
    pub digest: ShardDigest,
    /// The pause of the sources, and the time to store it.
    pub cost: Duration,
    /// The times that the state elements have [passed](crate::state::logged::StateHead::passed) on this rank, in the order of
    /// `Graph::logged`, which is the same on all ranks; `None` for an element without a time.
    pub passed: Vec<Option<i64>>,
}

/// The parts of a flow that wait for complete checkpoints.
#[derive(Debug, Clone, Copy)]
pub struct Waiting {
    /// Whether there are sinks that have prepared results for them, and little room for more.
    pub are_sinks: bool,
    /// Whether there are any. Records count, too.
    pub is_any: bool,
    /// Whether the store has records.
    pub has_records: bool,
}

/// The shards of this rank that stay.
#[derive(Default)]
pub struct Own {
    /// The last one, if it is not announced yet.
    pub last: Option<(u64, StoredShard)>,
    /// The announced shards, from the last complete checkpoint on.
    pub announced: BTreeMap<u64, StoredShard>,
    /// The shards that the writer has given up since the last stored one.
    pub given_up: usize,
    /// The checkpoints that have failed and that the interval does not take into account yet: those of shards that were given
    /// up, and those that were not complete when the next shard was stored, since another rank or the writer of records
    /// could not store them or was slow.
    pub failed: usize,
    /// The rank has ended: nothing changes in it any more.
    pub has_ended: bool,
    /// Ends the flow.
    pub error: Option<BoxError>,
}

impl DecisionSignal {
    pub fn new(doorbell: &Arc<Doorbell>, waiting: Waiting, is_alone: bool) -> DecisionSignal {
        DecisionSignal {
            is_there: AtomicBool::new(false),
            own: Mutex::default(),
            interval_ns: AtomicU64::new(0),
            wanted: AtomicU64::new(0),
            wanted_here: AtomicU64::new(0),
            doorbell: Arc::clone(doorbell),
            waiting,
            is_alone,
        }
    }

    pub fn waiting(&self) -> Waiting {
        self.waiting
    }

    /// The time from one checkpoint to the next.
    pub fn interval(&self) -> Duration {
        Duration::from_nanos(self.interval_ns.load(Ordering::Relaxed))
    }

    /// Sets the interval of checkpoints.
    pub fn set_interval(&self, interval: Duration) {
        let ns = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
        self.interval_ns.store(ns, Ordering::Relaxed);
    }

    /// Returns the newest checkpoint that any rank wants, or that another one has stored; 0 before the first one of the run.
    pub fn wanted(&self) -> u64 {
        self.wanted.load(Ordering::SeqCst)
    }

    /// This rank wants a checkpoint. The others learn that, if none has wanted it before.
    pub fn want(self: &Arc<Self>, number: u64) {
        if !self.is_alone && self.want_like_others(number) {
            self.wanted_here.fetch_max(number, Ordering::SeqCst);
            self.wake_by_ref();
        }
    }

    /// Another rank wants a checkpoint, or has stored it. Returns whether that is new.
    pub fn want_like_others(&self, number: u64) -> bool {
        self.wanted.fetch_max(number, Ordering::SeqCst) < number
    }

    /// Returns the newest checkpoint that the others learn to be wanted from this rank.
    pub fn wanted_here(&self) -> u64 {
        self.wanted_here.load(Ordering::SeqCst)
    }

    /// A shard was stored. It takes the place of the one before, if that is not announced yet. [`wake`](Wake::wake)
    /// follows.
    pub fn stored(&self, number: u64, shard: StoredShard) {
        let mut own = self.own.lock();
        // One of the announced ones is the last complete one.
        let is_incomplete = own.last.is_some() || own.announced.len() > 1;
        own.failed += usize::from(is_incomplete);
        own.last = Some((number, shard));
        own.given_up = 0;
    }

    /// A shard was given up. [`wake`](Wake::wake) follows.
    pub fn given_up(&self) {
        let mut own = self.own.lock();
        own.given_up += 1;
        own.failed += 1;
    }

    /// Whether a shard is the last one that can be given up without a stop of the flow: sinks have prepared results for
    /// those before it, or the rank has ended, so that the next one would be the same.
    pub fn is_last_chance(&self) -> bool {
        let own = self.own.lock();
        self.waiting.are_sinks && (own.has_ended || own.given_up >= GIVEN_UP_MAX)
    }

    /// Whether the rank has ended: no later shard differs from the present one.
    pub fn has_ended(&self) -> bool {
        self.own.lock().has_ended
    }

    /// Ends the flow with an error. [`wake`](Wake::wake) follows.
    pub fn fail(&self, error: BoxError) {
        self.own.lock().error.get_or_insert(error);
    }

    /// Returns the checkpoints whose shards stay, all others being of no use any more. For the thread that writes them:
    /// those that join later come by [`stored`](Self::stored).
    pub fn kept(&self) -> BTreeSet<u64> {
        let own = self.own.lock();
        let last = own.last.as_ref().map(|(number, _)| *number);
        let kept = own.announced.keys().copied().chain(last);
        match self.is_alone && !self.waiting.has_records {
            // Without other ranks and records each checkpoint is complete when its shard is stored.
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

impl Own {
    /// Takes the shard to announce, if there is one and room for it.
    pub fn next(&mut self) -> Option<(u64, StoredShard)> {
        // One of them is the last complete one.
        let (number, shard) = self.last.take_if(|_| self.announced.len() <= WAITING_MAX)?;
        self.announced.insert(number, shard.clone());
        Some((number, shard))
    }
}
