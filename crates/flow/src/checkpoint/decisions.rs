//! Decisions about checkpoints that are complete on all ranks: then the results prepared for them count.
//!
//! A rank announces each shard that it has stored to all others. A checkpoint whose shards all ranks have announced is
//! *complete*: the flow will never resume from an older one. In a store with records, rank 0 first stores the record that
//! names these shards, and then announces that the checkpoint is complete: so one write decides for all ranks, and the
//! store refuses it to a run in whose place another one has begun. Then sinks [commit](crate::Sink::commit) the results
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
//! A rank also announces that it wants a checkpoint, where not every rank may get a barrier from it: see
//! [`coordinator`](crate::checkpoint::coordinator).
//!
//! Rank 0 also decides the [interval](crate::checkpoint::pace) of checkpoints: it learns their costs from the
//! announcements, and announces the interval to all others.
//!
//! The announcements also have the times of state elements. The ranks share the streams of changelogs, so these drop changes
//! by the least time of all ranks: a rank that is ahead drops none that a slower one needs when it resumes.
//!
//! This is so in all flows that take checkpoints, also where neither sinks nor changelogs wait for them: by the
//! announcements a rank knows which of its shards are of no use any more.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use millstream_exchange::{Ranks, Receiver};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::checkpoint::decision_signal::{DecisionSignal, Own, StoredShard, Waiting};
use crate::checkpoint::pace::Pace;
use crate::checkpoint::participants::Committer;
use crate::checkpoint::passed_time::PassedTime;
use crate::checkpoint::record::Record;
use crate::checkpoint::record_writer::RecordWriter;
use crate::checkpoint::shard::Head;
use crate::doorbell::Doorbell;
use crate::error::{BoxError, Failure};
use crate::ranks::outbox::Outbox;

/// Bytes on their way from one rank to another; each message has about twenty, and up to eleven for each state element. The
/// channel admits a longer message alone.
const CREDIT_BYTES: u64 = 16 << 10;

/// An announcement of a rank to all others.
#[derive(Debug, Clone, Serialize, Deserialize)]
enum Announcement {
    /// The shard of this checkpoint is stored, and stays. The numbers of a rank rise.
    Stored(u64, StoredShard),
    /// The record of this checkpoint is stored. Only rank 0 sends it.
    Complete(u64),
    /// The interval of checkpoints from now on. Only rank 0 sends it.
    Interval(Duration),
    /// The rank has ended; this was its last checkpoint.
    Ended(u64),
    /// The rank pauses for this checkpoint, and needs it from all others.
    Wanted(u64),
}

/// The checkpoints of all ranks, as far as this one knows.
pub struct Decisions {
    committers: Vec<Arc<dyn Committer>>,
    signal: Arc<DecisionSignal>,
    state: Mutex<State>,
}

/// The way in which ranks learn that a checkpoint is complete.
pub enum Completion {
    /// Each rank, by the shards: the store has no records.
    Shards,
    /// Rank 0, which is this one, by the record that it stores.
    Writer(Arc<RecordWriter>, Head),
    /// Rank 0, which is another one.
    Announced,
}

struct State {
    /// In the order of their ranks.
    peers: Vec<Peer>,
    /// By state element, in the order of [`StoredShard::passed`].
    passed: Vec<Arc<PassedTime>>,
    completion: Completion,
    /// On rank 0.
    pace: Option<Pace>,
    /// The newest checkpoint that rank 0 has announced as complete.
    announced: u64,
    /// The newest complete checkpoint, and whether all sinks have committed it.
    complete: u64,
    is_committed: bool,
}

/// Another rank.
struct Peer {
    /// A few messages for each checkpoint that is not complete.
    outbox: Outbox,
    receiver: Receiver,
    stored: BTreeMap<u64, StoredShard>,
    ended: Option<u64>,
    /// The newest checkpoint that this rank has announced to it as wanted.
    told: u64,
}

impl Decisions {
    /// Makes the channels between the ranks; called before these agree. `committers` get the decisions, and `passed` the times
    /// of complete checkpoints. `pace` is the same on all ranks.
    pub fn new(
        ranks: &Ranks,
        doorbell: &Arc<Doorbell>,
        committers: Vec<Arc<dyn Committer>>,
        passed: Vec<Arc<PassedTime>>,
        waiting: Waiting,
        pace: Pace,
    ) -> Decisions {
        let signal = Arc::new(DecisionSignal::new(doorbell, waiting, ranks.count() == 1));
        signal.set_interval(pace.interval());
        let channel = ranks.next_channel();
        let others = (0..ranks.count()).filter(|rank| *rank != ranks.rank());
        let peers = others.map(|rank| {
            let mut outbox = Outbox::new(ranks.sender(rank, channel, CREDIT_BYTES));
            let mut receiver = ranks.receiver(rank, channel, CREDIT_BYTES);
            outbox.set_waker(Waker::from(Arc::clone(&signal)));
            receiver.set_waker(Waker::from(Arc::clone(&signal)));
            Peer {
                outbox,
                receiver,
                stored: BTreeMap::new(),
                ended: None,
                told: 0,
            }
        });
        let state = State {
            peers: peers.collect(),
            passed,
            completion: Completion::Shards,
            pace: (ranks.rank() == 0).then_some(pace),
            announced: 0,
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
    pub fn begin(&self, number: u64, is_committed: bool, completion: Completion) {
        let state = &mut *self.state.lock();
        (state.complete, state.is_committed) = (number, is_committed);
        (state.announced, state.completion) = (number, completion);
        *self.signal.own.lock() = Own {
            announced: BTreeMap::from([(number, StoredShard::default())]),
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
        state.receive(&self.signal).map_err(failure)?;
        state.announce_wanted(&self.signal).map_err(failure)?;
        loop {
            let own = &mut *self.signal.own.lock();
            state.complete_newest(own).map_err(failure)?;
            state.notice_failures(own);
            let Some((number, shard)) = own.next() else {
                break;
            };
            state
                .announce(Announcement::Stored(number, shard))
                .map_err(failure)?;
        }
        state.announce_interval(&self.signal).map_err(failure)?;
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

    /// Returns the checkpoint to take behind `last`, the last one of this rank, for others that have stored it: of each other
    /// rank the newest one, and the oldest of these. Any before it would be of no use: each rank keeps its newest one until
    /// another is complete.
    pub fn wanted(&self, last: u64) -> Option<u64> {
        let state = self.state.lock();
        let newest = state
            .peers
            .iter()
            .filter_map(|peer| peer.stored.keys().last());
        newest.filter(|number| **number > last).copied().min()
    }

    /// Returns the number behind the highest last checkpoint of all ranks, once all have ended; `last` is this rank's last
    /// checkpoint.
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
            peer.outbox.put(message.clone());
            peer.outbox.send()?;
        }
        Ok(())
    }

    fn receive(&mut self, signal: &DecisionSignal) -> Result<(), BoxError> {
        for peer in &mut self.peers {
            peer.outbox.send()?;
            while let Some(message) = peer.receiver.take()? {
                match postcard::from_bytes(&message)? {
                    Announcement::Stored(number, shard) => {
                        peer.stored.insert(number, shard);
                        signal.want_like_others(number);
                    }
                    Announcement::Complete(number) => self.announced = number,
                    Announcement::Interval(interval) => signal.set_interval(interval),
                    Announcement::Ended(last) => peer.ended = Some(last),
                    Announcement::Wanted(number) => {
                        signal.want_like_others(number);
                    }
                }
            }
        }
        Ok(())
    }

    /// Announces the newest checkpoint that this rank wants. A rank that reads nothing learns it later, and only the newest.
    fn announce_wanted(&mut self, signal: &DecisionSignal) -> Result<(), BoxError> {
        let wanted = signal.wanted_here();
        for peer in &mut self.peers {
            if peer.told < wanted && peer.outbox.is_empty() {
                peer.told = wanted;
                let message = postcard::to_stdvec(&Announcement::Wanted(wanted))?;
                peer.outbox.put(message);
                peer.outbox.send()?;
            }
        }
        Ok(())
    }

    /// Finds the newest checkpoint that has become complete, and forgets shards whose checkpoints never get complete.
    fn complete_newest(&mut self, own: &mut Own) -> Result<(), BoxError> {
        let number = self.newest_complete(own)?;
        if number > self.complete {
            let cost = self.cost(number, own);
            if let Some(pace) = &mut self.pace {
                pace.completed(cost);
            }
            self.raise_passed(number, own);
            self.complete = number;
            self.is_committed = false;
            own.announced = own.announced.split_off(&number);
            for peer in &mut self.peers {
                peer.stored = peer.stored.split_off(&number);
            }
        }
        let (complete, peers) = (self.complete, &self.peers);
        own.announced.retain(|number, _| {
            *number == complete || peers.iter().all(|peer| peer.may_have(*number))
        });
        Ok(())
    }

    /// Returns the announced shards of each rank, the own ones first.
    fn shards<'a>(
        &'a self,
        own: &'a Own,
    ) -> impl Iterator<Item = &'a BTreeMap<u64, StoredShard>> + Clone {
        let peers = self.peers.iter().map(|peer| &peer.stored);
        [&own.announced].into_iter().chain(peers)
    }

    /// Raises the time of each state element to the least one of all ranks at a complete checkpoint. The time stays if a rank
    /// has none, or if its announcement has not arrived. The latter happens only where rank 0 announces complete checkpoints;
    /// rank 0 has all announcements then, so it raises the clock of the changelog, which the ranks share.
    fn raise_passed(&self, number: u64, own: &Own) {
        let shards = self.shards(own).map(|stored| stored.get(&number));
        for (index, passed) in self.passed.iter().enumerate() {
            let times = shards.clone().map(|shard| *shard?.passed.get(index)?);
            // `None` is the least.
            if let Some(time) = times.min().flatten() {
                passed.raise(time);
            }
        }
    }

    /// Returns the time that a complete checkpoint took from the slowest rank and from the writer of records.
    fn cost(&self, number: u64, own: &Own) -> Duration {
        let costs = self
            .shards(own)
            .filter_map(|stored| Some(stored.get(&number)?.cost));
        let record = match &self.completion {
            Completion::Writer(writer, _) => writer.took(),
            Completion::Shards | Completion::Announced => Duration::ZERO,
        };
        costs.max().unwrap_or_default() + record
    }

    /// Makes the interval longer for checkpoints that have failed.
    fn notice_failures(&mut self, own: &mut Own) {
        let failed = std::mem::take(&mut own.failed);
        if let Some(pace) = &mut self.pace {
            (0..failed).for_each(|_| pace.failed());
        }
    }

    /// Announces the interval that this rank has decided, if it is another one than before.
    fn announce_interval(&mut self, signal: &DecisionSignal) -> Result<(), BoxError> {
        let interval = self.pace.as_ref().map(Pace::interval);
        match interval.filter(|interval| *interval != signal.interval()) {
            Some(interval) => {
                signal.set_interval(interval);
                self.announce(Announcement::Interval(interval))
            }
            None => Ok(()),
        }
    }

    /// Returns the newest complete checkpoint; has its record written first, if this rank does that.
    fn newest_complete(&mut self, own: &Own) -> Result<u64, BoxError> {
        let stored = self.newest_stored(own);
        let complete = match &self.completion {
            Completion::Shards => return Ok(stored.unwrap_or(self.complete)),
            Completion::Announced => return Ok(self.announced),
            Completion::Writer(writer, head) => {
                // First: a record that is stored from now on is for the next time.
                let complete = writer.stored().max(self.complete);
                if let Some(number) = stored.filter(|number| *number > complete) {
                    let digests = self.shards(own).map(|stored| stored[&number].digest);
                    writer.start(Record {
                        head: head.clone(),
                        checkpoint: number,
                        shards: digests.collect(),
                    })?;
                }
                complete
            }
        };
        if complete > self.announced {
            self.announced = complete;
            self.announce(Announcement::Complete(complete))?;
        }
        Ok(complete)
    }

    /// Returns the newest checkpoint behind the last complete one whose shards all ranks have stored.
    fn newest_stored(&self, own: &Own) -> Option<u64> {
        let mut numbers = own.announced.keys().rev();
        let is_stored = |number: &&u64| {
            let mut peers = self.peers.iter();
            **number > self.complete && peers.all(|peer| peer.stored.contains_key(number))
        };
        numbers.find(is_stored).copied()
    }
}

impl Peer {
    /// Whether it has announced this shard, or may do so yet.
    fn may_have(&self, number: u64) -> bool {
        let last = self.stored.keys().last();
        last.is_none_or(|last| *last < number) || self.stored.contains_key(&number)
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
    use crate::checkpoint::decision_signal::WAITING_MAX;
    use crate::checkpoint::pace::INTERVAL_MIN;

    /// The decisions of two ranks that begin behind the first checkpoint.
    fn two() -> (Vec<Ranks>, Vec<Decisions>) {
        several(2)
    }

    /// The same of several ones, each with two state elements.
    fn several(ranks: u32) -> (Vec<Ranks>, Vec<Decisions>) {
        let ranks = Ranks::threads(ranks);
        let decisions = ranks.iter().map(|ranks| {
            let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
            let waiting = Waiting {
                are_sinks: true,
                is_any: true,
                has_records: false,
            };
            let doorbell = Arc::new(Doorbell::new(clock));
            let pace = Pace::new(None, INTERVAL_MIN);
            let passed = vec![Arc::default(), Arc::default()];
            let decisions = Decisions::new(ranks, &doorbell, Vec::new(), passed, waiting, pace);
            decisions.begin(1, true, Completion::Shards);
            decisions
        });
        let decisions = decisions.collect();
        (ranks, decisions)
    }

    /// A rank stores a shard; then both ranks process the announcement.
    fn store(decisions: &[Decisions], rank: usize, number: u64) {
        let shard = StoredShard {
            cost: Duration::from_millis(number),
            ..StoredShard::default()
        };
        decisions[rank].signal.stored(number, shard);
        for rank in [rank, 1 - rank, rank] {
            assert!(decisions[rank].decide().is_ok());
        }
    }

    #[test]
    fn rank_0_decides_the_interval_by_the_slowest_rank_and_by_incomplete_checkpoints() {
        let (_ranks, both) = two();
        let intervals = || [0, 1].map(|rank| both[rank].signal.interval().as_millis());
        assert_eq!(intervals(), [10, 10]);
        // Shards of the test cost as many milliseconds as their number.
        store(&both, 0, 20);
        assert_eq!(intervals(), [10, 10], "it is not complete");
        store(&both, 1, 20);
        assert_eq!(intervals(), [100, 100]);
        for (number, expected) in [(21, 100), (22, 200), (23, 400)] {
            store(&both, 0, number);
            assert_eq!(intervals(), [expected; 2]);
        }
        // A rank that is slow alone does not decide.
        both[1].signal.given_up();
        assert!(both[1].decide().is_ok());
        assert_eq!(intervals(), [400, 400]);
        both[0].signal.given_up();
        assert!(both[0].decide().is_ok() && both[1].decide().is_ok());
        assert_eq!(intervals(), [800, 800]);
        store(&both, 1, 23);
        assert_eq!(intervals(), [400, 400]);
    }

    /// A rank stores a shard with these times of its elements.
    fn store_at(decisions: &Decisions, number: u64, passed: [Option<i64>; 2]) {
        let shard = StoredShard {
            passed: passed.to_vec(),
            ..StoredShard::default()
        };
        decisions.signal.stored(number, shard);
        assert!(decisions.decide().is_ok());
    }

    fn passed(decisions: &Decisions) -> [Option<i64>; 2] {
        assert!(decisions.decide().is_ok());
        let state = decisions.state.lock();
        [0, 1].map(|element| state.passed[element].get())
    }

    #[test]
    fn elements_get_the_least_time_of_all_ranks_at_a_complete_checkpoint() {
        let (_ranks, both) = two();
        let found = || [0, 1].map(|rank| passed(&both[rank]));
        store_at(&both[0], 2, [Some(20), Some(5)]);
        assert_eq!(found(), [[None; 2]; 2], "it is not complete");
        store_at(&both[1], 2, [Some(10), None]);
        assert_eq!(found(), [[Some(10), None]; 2]);
        store_at(&both[1], 3, [Some(30), Some(40)]);
        store_at(&both[0], 3, [Some(25), Some(50)]);
        assert_eq!(found(), [[Some(25), Some(40)]; 2]);
        store_at(&both[1], 4, [Some(50), Some(60)]);
        store_at(&both[0], 4, [None, Some(30)]);
        assert_eq!(found(), [[Some(25), Some(40)]; 2], "none goes back");
    }

    #[test]
    fn a_rank_alone_has_the_least_time() {
        let (_ranks, alone) = several(1);
        store_at(&alone[0], 2, [Some(20), None]);
        assert_eq!(passed(&alone[0]), [Some(20), None]);
    }

    /// The announcements of two ranks reach a third one in any order.
    #[test]
    fn a_time_stays_while_the_announcement_of_a_rank_is_on_its_way() {
        let (_ranks, all) = several(3);
        all[1].begin(1, true, Completion::Announced);
        for number in [2, 3] {
            store_at(&all[1], number, [Some(20 + number as i64), None]);
            store_at(&all[0], number, [Some(30), None]);
            let late = number == 2;
            if !late {
                store_at(&all[2], number, [Some(10), None]);
            }
            let complete = Announcement::Complete(number);
            all[0].state.lock().announce(complete).unwrap();
            let expected = (!late).then_some(10);
            assert_eq!(passed(&all[1]), [expected, None]);
            assert!(all[1].is_committed(number));
        }
    }

    #[test]
    fn a_rank_that_is_behind_wants_the_oldest_of_the_newest_shards_of_others() {
        let (_ranks, all) = several(3);
        for (rank, number) in [(1, 2), (1, 3), (1, 4), (2, 2), (2, 3)] {
            store_at(&all[rank], number, [None; 2]);
        }
        assert!(all[0].decide().is_ok());
        assert_eq!(all[0].signal.wanted(), 4);
        let wanted = [1, 2, 3, 4].map(|last| all[0].wanted(last));
        assert_eq!(wanted, [Some(3), Some(3), Some(4), None]);
    }

    #[test]
    fn a_rank_that_read_nothing_for_long_learns_the_newest_checkpoint_that_another_one_wants() {
        const WANTED: u64 = 100_000;
        let (_ranks, both) = two();
        for number in 2..=WANTED {
            both[0].signal.want(number);
            assert!(both[0].decide().is_ok());
        }
        let is_full = || !both[0].state.lock().peers[0].outbox.is_empty();
        assert!(is_full(), "there was room for all");
        // An older one is not news.
        both[0].signal.want(2);
        for _ in 0..4 {
            assert!(both.iter().all(|rank| rank.decide().is_ok()));
        }
        assert!(!is_full());
        assert_eq!(both[1].signal.wanted(), WANTED);
        // The other rank does not announce it again.
        both[1].signal.want(WANTED);
        assert_eq!(both[1].signal.wanted_here(), 0);
        both[1].signal.want(WANTED + 1);
        assert!([1, 0].iter().all(|rank| both[*rank].decide().is_ok()));
        assert_eq!(both[0].signal.wanted(), WANTED + 1);
    }

    fn kept(decisions: &Decisions) -> Vec<u64> {
        decisions.signal.kept().into_iter().collect()
    }

    #[test]
    fn announced_shards_stay_while_their_checkpoints_can_become_complete() {
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
