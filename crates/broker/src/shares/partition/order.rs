//! The order of a share-partition by key, as `share.order=key` asks for it.
//!
//! The records of a key form a queue. A record is [blocked](State::Blocked) until its turn comes: until all earlier
//! records of its key are finished. A group that was switched to this order may have several records of one key out:
//! these have the first turns, so that the key's next record waits for all of them.

use std::ops::Range;

use millstream_base::Offset;

use super::{SharePartition, State};
use crate::shares::ShareSettings;
use crate::shares::keys::{KeyHash, Keys, Turn};
use crate::shares::settings::Order;

impl SharePartition {
    /// Orders the records as the group's settings say. After a change to the order by key, no record may be acquired
    /// until their keys are [known](Self::knows_keys).
    pub fn set_order(&mut self, order: Order) {
        match (order, &self.keys) {
            (Order::Key, None) => {
                self.keys = Some(Keys::new(self.start));
                self.arrange();
            }
            (Order::None, Some(_)) => self.forget_keys(),
            _ => {}
        }
    }

    /// A copy to change. The keys move into it, since it mostly takes the place of the original, which otherwise has to
    /// [forget](Self::forget_keys) that they were known.
    pub fn draft(&mut self) -> SharePartition {
        let keys = self.keys.take();
        SharePartition {
            keys,
            ..self.clone()
        }
    }

    /// The keys are to be learnt again.
    pub fn forget_keys(&mut self) {
        self.keys = None;
        self.change(self.start..self.end, |range, state| match state {
            State::Blocked { deliveries } => {
                let deliveries = *deliveries;
                Some((range.end, State::Available { deliveries }))
            }
            _ => None,
        });
        self.tidy(self.start..self.end);
    }

    /// Whether the broker knows all keys that it needs to acquire records.
    pub fn knows_keys(&self) -> bool {
        let keys = self.keys.as_ref();
        keys.is_none_or(|keys| keys.known_to >= self.end)
    }

    /// The number of records whose keys are in memory.
    pub fn key_count(&self) -> usize {
        self.keys.as_ref().map_or(0, Keys::len)
    }

    /// How many records became available since another one of their key is finished.
    pub fn unblocked_count(&self) -> u64 {
        self.unblocked
    }

    /// The next records whose keys the broker has to read; `None` if it knows all keys.
    pub fn unknown(&self) -> Option<Range<Offset>> {
        let keys = self.keys.as_ref()?;
        let from = keys.known_to.max(self.start);
        let mut runs = self.runs_from(from);
        let (first, run) = runs.find(|(_, run)| !run.state.is_finished())?;
        Some(from.max(*first)..run.end)
    }

    /// Learns the keys of the records before an offset. `keys` has those with a key, in their order; the other ones have
    /// none.
    pub fn learn(&mut self, to: Offset, keys: &[(Offset, KeyHash)]) {
        let Some(known_to) = self.keys.as_ref().map(|keys| keys.known_to) else {
            return;
        };
        let to = to.min(self.end);
        for (record, key) in keys {
            if !(known_to.max(self.start)..to).contains(record) {
                continue;
            }
            let turn = match self.state_of(*record) {
                None | Some(State::Finished) => continue,
                Some(State::Acquired { .. } | State::Prepared { .. }) => Turn::Out,
                Some(State::Available { .. } | State::Blocked { .. } | State::Dead { .. }) => {
                    Turn::Waiting
                }
            };
            if let Some(keys) = &mut self.keys {
                keys.insert(*record, *key, turn);
            }
        }
        if let Some(keys) = &mut self.keys {
            keys.known_to = known_to.max(to);
        }
        if self.unknown().is_none() {
            self.arrange();
        }
    }

    /// All keys are known: blocks the records whose turn has not come.
    fn arrange(&mut self) {
        if self.unknown().is_some() {
            return;
        }
        let (start, end) = (self.start, self.end);
        let Some(keys) = &mut self.keys else {
            return;
        };
        keys.known_to = end;
        let records = keys.within(start..end);
        let is_early = |(record, key): &(Offset, KeyHash)| {
            let first = keys.first(*key);
            first.is_some_and(|(_, first)| first != *record)
        };
        let early: Vec<Offset> = records.filter(is_early).map(|(record, _)| record).collect();
        for record in early {
            self.block(record);
        }
    }

    /// Takes records that were never delivered into the part in flight, as many as there is room for, so that their keys
    /// stay known. `keys` has those with a key, in their order.
    pub fn enter(&mut self, to: Offset, keys: &[(Offset, KeyHash)], settings: &ShareSettings) {
        let from = self.end;
        let to = to.min(Offset(from.0.saturating_add(self.room(settings))));
        if to <= from || !self.knows_keys() {
            return;
        }
        let fresh = || State::Available { deliveries: 0 };
        for (record, key) in keys {
            let Some(known) = &mut self.keys else {
                return;
            };
            if !(from..to).contains(record) {
                continue;
            }
            let is_blocked = known.first(*key).is_some();
            known.insert(*record, *key, Turn::Waiting);
            if is_blocked {
                if self.end < *record {
                    self.push(*record, fresh());
                }
                self.push(Offset(record.0 + 1), State::Blocked { deliveries: 0 });
            }
        }
        if self.end < to {
            self.push(to, fresh());
        }
        self.merge(from..to);
    }

    /// Gives each key whose records have changed its next turn.
    pub(super) fn settle(&mut self) {
        let changed = std::mem::take(&mut self.changed);
        let mut touched: Vec<(Offset, KeyHash)> = Vec::new();
        for range in changed {
            let begin = touched.len();
            if let Some(keys) = &self.keys {
                touched.extend(keys.within(range));
            }
            for (record, _) in &touched[begin..] {
                let is_unfinished = self.is_unfinished(*record);
                if let Some(keys) = &mut self.keys {
                    match is_unfinished {
                        true => keys.give_back(*record),
                        false => keys.remove(*record),
                    }
                }
            }
        }
        if !self.knows_keys() {
            return;
        }
        for (record, key) in touched {
            let first = self.keys.as_ref().and_then(|keys| keys.first(key));
            let Some((turn, first)) = first else {
                continue;
            };
            if record != first {
                self.block(record);
            }
            if turn == Turn::Waiting {
                self.unblock(first);
            }
        }
    }

    /// Blocks an available record.
    fn block(&mut self, record: Offset) {
        if let Some(State::Available { deliveries }) = self.state_of(record) {
            let deliveries = *deliveries;
            self.set(record, State::Blocked { deliveries });
        }
    }

    fn unblock(&mut self, record: Offset) {
        if let Some(State::Blocked { deliveries }) = self.state_of(record) {
            let deliveries = *deliveries;
            self.set(record, State::Available { deliveries });
            self.unblocked += 1;
        }
    }

    /// Replaces the state of one unfinished record by another one that is unfinished.
    fn set(&mut self, record: Offset, state: State) {
        let next = Offset(record.0 + 1);
        self.split(record);
        self.split(next);
        if let Some(run) = self.runs.get_mut(&record) {
            run.state = state;
        }
        self.merge(record..next);
    }

    fn state_of(&self, record: Offset) -> Option<&State> {
        let (_, run) = self.runs.range(..=record).next_back()?;
        (record < run.end).then_some(&run.state)
    }

    fn is_unfinished(&self, record: Offset) -> bool {
        let state = self.state_of(record);
        state.is_some_and(|state| !state.is_finished())
    }

    /// Panics unless a record is blocked exactly if another one of its key has the turn.
    #[cfg(test)]
    pub(super) fn check_order(&self) {
        assert!(self.changed.is_empty(), "changes that are not settled");
        let blocked = self
            .runs
            .iter()
            .filter(|(_, run)| matches!(run.state, State::Blocked { .. }));
        let blocked: u64 = blocked.map(|(first, run)| run.end.0 - first.0).sum();
        let Some(keys) = self.keys.as_ref().filter(|_| self.knows_keys()) else {
            assert_eq!(blocked, 0, "records are blocked without an order");
            return;
        };
        let mut expected = 0;
        for (record, key) in keys.within(Offset(0)..Offset(u64::MAX)) {
            let (turn, first) = keys.first(key).expect("the record is in the queue");
            match self.state_of(record) {
                Some(State::Acquired { .. } | State::Prepared { .. }) => {
                    assert!(turn == Turn::Out || record == first);
                }
                Some(State::Available { .. }) => assert_eq!((turn, first), (Turn::Waiting, record)),
                Some(State::Blocked { .. }) => {
                    expected += 1;
                    assert_ne!(first, record, "a record is blocked whose turn it is");
                }
                Some(State::Dead { .. }) => {}
                Some(State::Finished) | None => panic!("a finished record has a key"),
            }
        }
        assert_eq!(blocked, expected, "a record without a key is blocked");
    }
}
