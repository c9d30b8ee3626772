//! One share-partition: the states of its records.

mod acknowledge;
mod order;
mod transactions;

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use millstream_base::{Offset, ProducerId};

use super::ShareSettings;
use super::keys::Keys;
use crate::groups::MemberId;

/// A read of a group that is ordered by key skips up to this many blocked records, which lie among available ones.
const GAP_MAX: u64 = 64;

/// A share-partition. Times are those of the clock that never goes back.
#[derive(Debug, Clone)]
pub struct SharePartition {
    /// Kafka's share-partition start offset: all records before it are finished.
    start: Offset,
    /// The runs from `start` to `end`, by first offset. All records behind them are available, never delivered.
    runs: BTreeMap<Offset, Run>,
    /// The offset behind the last run.
    end: Offset,
    /// Records in `runs` that are not finished.
    unfinished: u64,
    /// Records in `runs` that are dead.
    dead: u64,
    /// Records in `runs` that are part of an open transaction.
    prepared: u64,
    /// No lock times out before this; `None` if there are no locks.
    lock_ends: Option<Duration>,
    /// The keys of the records in `runs`, if the group is ordered by key.
    keys: Option<Keys>,
    /// The records that were finished or given back since the keys were settled.
    changed: Vec<Range<Offset>>,
    /// Records that became available since another one of their key is finished.
    unblocked: u64,
}

/// Records that follow each other and have the same state.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Run {
    /// Behind the last record.
    end: Offset,
    state: State,
}

/// The state of a record. Delivery counts begin with 1.
#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    /// A member may get it. It was delivered before, except in a group that is ordered by key.
    Available { deliveries: u16 },
    /// An earlier record of its key is not finished.
    Blocked { deliveries: u16 },
    /// A member has it.
    Acquired {
        member: MemberId,
        until: Duration,
        deliveries: u16,
    },
    /// Its acknowledgement is part of a transaction, and counts when that is committed.
    Prepared {
        /// `None` if the start restored it.
        member: Option<MemberId>,
        acknowledged: Prepared,
    },
    /// It is to be archived when its dead letter is durable.
    Dead { deliveries: u16, why: Death },
    /// Acknowledged or archived.
    Finished,
}

/// An acknowledgement that is part of an open transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prepared {
    pub producer: ProducerId,
    pub deliveries: u16,
    /// The record is accepted, or rejected.
    pub is_accepted: bool,
}

/// The reason why no member gets a record any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Death {
    /// A member rejected it.
    Rejected,
    /// It was delivered as often as may be.
    Exhausted,
}

/// A record that is dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeadRecord {
    pub offset: Offset,
    pub deliveries: u16,
    pub why: Death,
}

/// Records that a member acquired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AcquiredRun {
    /// The first record.
    pub first: Offset,
    /// The last record.
    pub last: Offset,
    /// How often they were delivered, this time included.
    pub deliveries: u16,
}

/// Records in the same state as they are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredRun {
    pub records: u64,
    pub state: StoredState,
}

/// The state of a record as it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredState {
    Finished,
    Unfinished { deliveries: u16 },
    Prepared(Prepared),
    Dead { deliveries: u16, why: Death },
}

impl State {
    fn is_finished(&self) -> bool {
        *self == State::Finished
    }

    /// The state of a record that a member gives back unfinished.
    fn given_back(deliveries: u16, settings: &ShareSettings) -> State {
        match deliveries < settings.deliveries_max {
            true => State::Available { deliveries },
            false => State::dead(deliveries, Death::Exhausted, settings),
        }
    }

    fn dead(deliveries: u16, why: Death, settings: &ShareSettings) -> State {
        match settings.dead_letter_topic {
            Some(_) => State::Dead { deliveries, why },
            None => State::Finished,
        }
    }
}

impl SharePartition {
    /// A share-partition with no record delivered from `start` on.
    pub fn new(start: Offset) -> SharePartition {
        SharePartition {
            start,
            runs: BTreeMap::new(),
            end: start,
            unfinished: 0,
            dead: 0,
            prepared: 0,
            lock_ends: None,
            keys: None,
            changed: Vec::new(),
            unblocked: 0,
        }
    }

    /// The first record that is not finished.
    pub fn start(&self) -> Offset {
        self.start
    }

    /// The first record that was never delivered.
    pub fn end(&self) -> Offset {
        self.end
    }

    /// How many records before `end`, where the log ends, are not finished.
    pub fn lag(&self, end: Offset) -> u64 {
        end.0.saturating_sub(self.end.0) + self.unfinished
    }

    /// The number of runs.
    pub fn run_count(&self) -> usize {
        self.runs.len()
    }

    /// Whether there are records whose dead letters have to be written.
    pub fn has_dead(&self) -> bool {
        self.dead > 0
    }

    /// The records whose dead letters have to be written.
    pub fn dead(&self) -> impl Iterator<Item = DeadRecord> {
        let runs = self.runs.iter().filter(|_| self.has_dead());
        runs.flat_map(|(first, run)| {
            let (deliveries, why) = match run.state {
                State::Dead { deliveries, why } => (deliveries, Some(why)),
                _ => (0, None),
            };
            why.into_iter().flat_map(move |why| {
                let offsets = first.0..run.end.0;
                offsets.map(move |offset| DeadRecord {
                    offset: Offset(offset),
                    deliveries,
                    why,
                })
            })
        })
    }

    /// Finishes a dead record.
    pub fn bury(&mut self, record: Offset) {
        let range = record..Offset(record.0 + 1);
        self.change(range.clone(), |range, state| {
            let is_dead = matches!(state, State::Dead { .. });
            is_dead.then_some((range.end, State::Finished))
        });
        self.tidy(range);
    }

    /// The earliest time at which a lock may time out.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.lock_ends
    }

    /// The number of records before `end` that are not finished.
    pub fn unfinished(&self) -> u64 {
        self.unfinished
    }

    /// The number of records that were never delivered and may be in flight, too.
    pub fn room(&self, settings: &ShareSettings) -> u64 {
        settings.record_locks_max.saturating_sub(self.unfinished)
    }

    /// The next records from `from` on, and before `limit`, that a member may get.
    pub fn available(
        &self,
        from: Offset,
        limit: Offset,
        settings: &ShareSettings,
    ) -> Option<Range<Offset>> {
        let from = from.max(self.start);
        let mut runs = self.runs_from(from);
        let is_available = |run: &Run| matches!(run.state, State::Available { .. });
        let found = match runs.find(|(_, run)| is_available(run)) {
            Some((first, run)) => {
                let mut end = run.end;
                let near = runs.take_while(|_| self.keys.is_some());
                for (next, run) in near {
                    if next.0 - end.0 >= GAP_MAX {
                        break;
                    }
                    if is_available(run) {
                        end = run.end;
                    }
                }
                from.max(*first)..end.min(limit)
            }
            // Never-delivered records are available whenever there is room.
            None if from <= self.end && self.room(settings) > 0 => self.end..limit,
            None => return None,
        };
        (found.start < found.end).then_some(found)
    }

    /// The runs that end behind an offset.
    fn runs_from(&self, from: Offset) -> impl Iterator<Item = (&Offset, &Run)> {
        let before = self.runs.range(..from).next_back();
        let before = before.filter(move |(_, run)| run.end > from);
        before.into_iter().chain(self.runs.range(from..))
    }

    /// Acquires the available records of a range for a member, up to `records_max`. The caller [expires](Self::expire)
    /// locks before. Acquires never-delivered records only if the range reaches the first of them.
    pub fn acquire(
        &mut self,
        range: Range<Offset>,
        records_max: u64,
        member: &MemberId,
        now: Duration,
        settings: &ShareSettings,
    ) -> Vec<AcquiredRun> {
        let until = now.saturating_add(settings.record_lock);
        let mut acquired: Vec<AcquiredRun> = Vec::new();
        let mut left = records_max;
        let mut take = |range: Range<Offset>, deliveries: u16| match acquired.last_mut() {
            Some(last) if last.last.0 + 1 == range.start.0 && last.deliveries == deliveries => {
                last.last = Offset(range.end.0 - 1);
            }
            _ => acquired.push(AcquiredRun {
                first: range.start,
                last: Offset(range.end.0 - 1),
                deliveries,
            }),
        };
        let known = range.start..range.end.min(self.end);
        self.change(known, |range, state| {
            let State::Available { deliveries } = state else {
                return None;
            };
            if *deliveries >= settings.deliveries_max {
                // The process ended during its last delivery, or the limit is lower now.
                return Some((range.end, State::given_back(*deliveries, settings)));
            }
            let count = left.min(range.end.0 - range.start.0);
            if count == 0 {
                return None;
            }
            left -= count;
            let end = Offset(range.start.0 + count);
            let deliveries = *deliveries + 1;
            take(range.start..end, deliveries);
            let state = State::Acquired {
                member: member.clone(),
                until,
                deliveries,
            };
            Some((end, state))
        });
        // Records of a group that is ordered by key enter with their keys.
        if self.keys.is_none() && range.start <= self.end && self.end < range.end {
            let fresh = range.end.0 - self.end.0;
            let count = fresh.min(left).min(self.room(settings));
            if count > 0 {
                let fresh = self.end..Offset(self.end.0 + count);
                take(fresh.clone(), 1);
                self.push(
                    fresh.end,
                    State::Acquired {
                        member: member.clone(),
                        until,
                        deliveries: 1,
                    },
                );
            }
        }
        if !acquired.is_empty() {
            self.lock_ends = Some(self.lock_ends.map_or(until, |before| before.min(until)));
        }
        self.tidy(range);
        acquired
    }

    /// Finishes the available records of a range, since no member is to get them: markers, records of aborted
    /// transactions, offsets without record. Finishes never-delivered records only if the range reaches the first of
    /// them.
    pub fn skip(&mut self, range: Range<Offset>) {
        let known = range.start..range.end.min(self.end);
        self.change(known, |range, state| {
            let is_with_none = matches!(state, State::Available { .. } | State::Blocked { .. });
            is_with_none.then_some((range.end, State::Finished))
        });
        if range.start <= self.end && self.end < range.end {
            self.push(range.end, State::Finished);
        }
        self.tidy(range);
    }

    /// Releases all records that a member holds; returns whether it held any.
    pub fn release(&mut self, member: &MemberId, settings: &ShareSettings) -> bool {
        let mut has_held = false;
        self.change(self.start..self.end, |range, state| match state {
            State::Acquired {
                member: holder,
                deliveries,
                ..
            } if holder == member => {
                has_held = true;
                Some((range.end, State::given_back(*deliveries, settings)))
            }
            _ => None,
        });
        self.tidy(self.start..self.end);
        has_held
    }

    /// Releases the locks that have timed out; returns whether there was any.
    pub fn expire(&mut self, now: Duration, settings: &ShareSettings) -> bool {
        if self.lock_ends.is_none_or(|ends| now < ends) {
            return false;
        }
        let mut next: Option<Duration> = None;
        let mut has_expired = false;
        self.change(self.start..self.end, |range, state| {
            let State::Acquired {
                until, deliveries, ..
            } = state
            else {
                return None;
            };
            if now < *until {
                next = Some(next.map_or(*until, |next| next.min(*until)));
                return None;
            }
            has_expired = true;
            Some((range.end, State::given_back(*deliveries, settings)))
        });
        self.lock_ends = next;
        self.tidy(self.start..self.end);
        has_expired
    }

    /// Finishes all records before an offset: they are removed from the log. Returns whether `start` has moved.
    pub fn advance(&mut self, start: Offset) -> bool {
        if start <= self.start {
            return false;
        }
        if start >= self.end {
            let keys = self.keys.as_ref().map(|_| Keys::new(start));
            *self = SharePartition {
                keys,
                unblocked: self.unblocked,
                ..SharePartition::new(start)
            };
            return true;
        }
        self.change(self.start..start, |range, _| {
            Some((range.end, State::Finished))
        });
        self.tidy(self.start..start);
        true
    }

    /// The state to store for a restart: the runs from [`start`](Self::start) on, without those behind the last record
    /// that was ever delivered.
    pub fn to_store(&self) -> Vec<StoredRun> {
        let mut stored: Vec<StoredRun> = Vec::new();
        for (first, run) in &self.runs {
            let records = run.end.0 - first.0;
            let state = match run.state {
                State::Available { deliveries }
                | State::Blocked { deliveries }
                | State::Acquired { deliveries, .. } => StoredState::Unfinished { deliveries },
                State::Prepared { acknowledged, .. } => StoredState::Prepared(acknowledged),
                State::Dead { deliveries, why } => StoredState::Dead { deliveries, why },
                State::Finished => StoredState::Finished,
            };
            match stored.last_mut() {
                Some(last) if last.state == state => last.records += records,
                _ => stored.push(StoredRun { records, state }),
            }
        }
        stored.pop_if(|last| last.state == StoredState::Unfinished { deliveries: 0 });
        stored
    }

    /// Restores a share-partition from the ledger. Records that were acquired become available.
    pub fn restore(start: Offset, stored: impl IntoIterator<Item = StoredRun>) -> SharePartition {
        let mut restored = SharePartition::new(start);
        for StoredRun { records, state } in stored {
            let end = Offset(restored.end.0.saturating_add(records));
            if end > restored.end {
                let state = match state {
                    StoredState::Finished => State::Finished,
                    StoredState::Unfinished { deliveries } => State::Available { deliveries },
                    StoredState::Prepared(acknowledged) => State::Prepared {
                        member: None,
                        acknowledged,
                    },
                    StoredState::Dead { deliveries, why } => State::Dead { deliveries, why },
                };
                restored.push(end, state);
            }
        }
        restored.tidy(start..restored.end);
        restored
    }

    /// Forgets the records from an offset on, which the log has lost; returns whether there were any. Called at a start: no
    /// member holds a record.
    pub fn truncate(&mut self, end: Offset) -> bool {
        let has_lost = end < self.end;
        if has_lost {
            let mut left = end.0.saturating_sub(self.start.0);
            let runs = self.to_store().into_iter().map(|run| {
                let records = run.records.min(left);
                left -= records;
                StoredRun { records, ..run }
            });
            *self = SharePartition::restore(self.start.min(end), runs);
        }
        has_lost
    }

    /// Adds a run behind all others.
    fn push(&mut self, end: Offset, state: State) {
        self.add(end.0 - self.end.0, &state);
        if let Some(keys) = &mut self.keys
            && keys.known_to == self.end
        {
            keys.known_to = end;
        }
        self.runs.insert(self.end, Run { end, state });
        self.end = end;
    }

    /// Asks `change` for the new state of each run that overlaps a range, and the offset up to which it applies;
    /// `None` leaves the run as it is. Asks again for the rest of a run only if the new state ended within the run.
    fn change(
        &mut self,
        range: Range<Offset>,
        mut change: impl FnMut(Range<Offset>, &State) -> Option<(Offset, State)>,
    ) {
        let range = range.start.max(self.start)..range.end.min(self.end);
        if range.start >= range.end {
            return;
        }
        self.split(range.start);
        self.split(range.end);
        let mut at = range.start;
        while at < range.end {
            // The runs have no gaps.
            let Some(run) = self.runs.get_mut(&at) else {
                break;
            };
            let end = run.end;
            let Some((to, state)) = change(at..end, &run.state) else {
                at = end;
                continue;
            };
            let is_out = matches!(state, State::Acquired { .. } | State::Prepared { .. });
            if self.keys.is_some() && !is_out {
                self.changed.push(at..to);
            }
            let records = to.0 - at.0;
            let rest = std::mem::replace(&mut run.state, state.clone());
            run.end = to;
            if to < end {
                let state = rest.clone();
                self.runs.insert(to, Run { end, state });
            }
            self.remove(records, &rest);
            self.add(records, &state);
            at = to;
        }
    }

    /// Counts records with a state.
    fn add(&mut self, records: u64, state: &State) {
        for count in self.counts_of(state) {
            *count += records;
        }
    }

    fn remove(&mut self, records: u64, state: &State) {
        for count in self.counts_of(state) {
            *count -= records;
        }
    }

    /// The counts that include records of a state.
    fn counts_of(&mut self, state: &State) -> impl Iterator<Item = &mut u64> {
        let special = match state {
            State::Dead { .. } => Some(&mut self.dead),
            State::Prepared { .. } => Some(&mut self.prepared),
            _ => None,
        };
        let unfinished = (!state.is_finished()).then_some(&mut self.unfinished);
        unfinished.into_iter().chain(special)
    }

    /// Makes a run begin at an offset, if one lies around it.
    fn split(&mut self, at: Offset) {
        let Some((_, run)) = self.runs.range_mut(..at).next_back() else {
            return;
        };
        if run.end > at {
            let rest = run.clone();
            run.end = at;
            self.runs.insert(at, rest);
        }
    }

    /// Settles the keys after a change of a range, merges neighbours with the same state in and around it, and moves the
    /// start behind the finished runs.
    fn tidy(&mut self, range: Range<Offset>) {
        self.settle();
        self.merge(range);
        while let Some(first) = self.runs.first_entry()
            && first.get().state.is_finished()
        {
            self.start = first.remove().end;
        }
        if self.runs.is_empty() {
            self.start = self.end;
            self.lock_ends = None;
        }
    }

    /// Merges neighbours with the same state in and around a range.
    fn merge(&mut self, range: Range<Offset>) {
        let before = self.runs.range(..range.start).next_back();
        let first = before.or_else(|| self.runs.range(range.start..).next());
        let Some(mut at) = first.map(|(first, _)| *first) else {
            return;
        };
        while let Some(run) = self.runs.get(&at) {
            let next = run.end;
            if next > range.end {
                break;
            }
            let is_same = |behind: &Run| behind.state == run.state;
            if !self.runs.get(&next).is_some_and(is_same) {
                at = next;
                continue;
            }
            let behind = self.runs.remove(&next);
            if let (Some(run), Some(behind)) = (self.runs.get_mut(&at), behind) {
                run.end = behind.end;
            }
        }
    }

    /// Panics unless all invariants of the module hold.
    #[cfg(test)]
    pub(super) fn check_invariants(&self, settings: &ShareSettings) {
        let mut at = self.start;
        let (mut unfinished, mut dead, mut prepared) = (0, 0, 0);
        let mut last: Option<&State> = None;
        for (first, run) in &self.runs {
            assert_eq!(*first, at, "a gap or an overlap");
            assert!(run.end > at, "an empty run");
            assert_ne!(last, Some(&run.state), "two neighbours with the same state");
            assert!(last.is_some() || !run.state.is_finished(), "the start lags");
            if !run.state.is_finished() {
                unfinished += run.end.0 - at.0;
            }
            if matches!(run.state, State::Dead { .. }) {
                dead += run.end.0 - at.0;
            }
            if matches!(run.state, State::Prepared { .. }) {
                prepared += run.end.0 - at.0;
            }
            if let State::Acquired { until, .. } = &run.state {
                assert!(self.lock_ends.is_some_and(|ends| ends <= *until));
            }
            at = run.end;
            last = Some(&run.state);
        }
        assert_eq!(at, self.end);
        assert_eq!(
            (unfinished, dead, prepared),
            (self.unfinished, self.dead, self.prepared)
        );
        assert!(unfinished <= settings.record_locks_max);
        assert!(self.runs.len() as u64 <= 2 * settings.record_locks_max + 1);
        self.check_order();
    }
}
