//! Results that go where their key lives: into a ring of this rank, or to another rank.

use std::hash::{BuildHasher, Hash};
use std::sync::{Arc, OnceLock};

use foldhash::fast::FixedState;

use crate::error::{BoxError, Failure};
use crate::ranks::remote::{Message, Outlets, Remote};
use crate::stage::attempt::{Attempt, Label};
use crate::stage::ends::outbox::Outbox;
use crate::stage::ends::to_rings::Way;
use crate::stage::terminal::{End, InputEnd, Slice, Terminal};
use crate::time::control_events::Mark;
use crate::windows::Partial;

/// Where keys live. All ranks agree on it when they begin.
#[derive(Clone, Default)]
pub struct Homes {
    /// Set before the flow runs.
    hasher: Arc<OnceLock<FixedState>>,
}

/// The place of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Home {
    pub rank: u32,
    /// Of the rank.
    pub partition: usize,
}

impl Homes {
    pub fn settle(&self, seed: u64) {
        self.hasher.get_or_init(|| FixedState::with_seed(seed));
    }

    /// The home of a key, with so many ranks, each of which has so many partitions.
    #[inline]
    pub fn of<K: Hash>(&self, key: &K, ranks: u32, partitions: usize) -> Home {
        let hasher = self.hasher.get_or_init(|| FixedState::with_seed(0));
        let hash = hasher.hash_one(key);
        // Of different bits: else a rank would use only some of its partitions.
        Home {
            rank: ((hash >> 32) % u64::from(ranks)) as u32,
            partition: ((hash & 0xFFFF_FFFF) % partitions as u64) as usize,
        }
    }
}

/// Into the partitions, or the only ring, of this rank and of all others.
pub struct Routed<T> {
    pub local: Outbox<T>,
    pub remote: Option<Remote<T>>,
    pub rank: u32,
    pub ranks: u32,
}

impl<T: Message> Routed<T> {
    pub fn reserve(&mut self, results: usize) -> Result<Option<usize>, Failure> {
        if let Some(remote) = &mut self.remote
            && !remote.reserve()?
        {
            return Ok(None);
        }
        Ok(self.local.reserve(results))
    }

    pub fn cancel(&mut self) {
        self.local.cancel();
        if let Some(remote) = &mut self.remote {
            remote.cancel();
        }
    }

    #[inline]
    pub fn put(&mut self, home: Home, item: T) -> Result<(), BoxError> {
        match &mut self.remote {
            Some(remote) if home.rank != self.rank => remote.put(home.rank, &item),
            _ => {
                self.local.put(home.partition, item);
                Ok(())
            }
        }
    }

    pub fn commit(&mut self, stamp: u64, mark: Option<Mark>) -> Result<usize, Failure> {
        if let Some(remote) = &mut self.remote {
            // Who goes by event time does so on all ranks.
            remote.commit(mark.filter(|_| self.local.wants_marks()))?;
        }
        Ok(self.local.commit(stamp, mark))
    }

    /// Sends what waits for more; `false` when there is no room.
    pub fn pause(&mut self) -> Result<bool, Failure> {
        self.remote.as_mut().map_or(Ok(true), Remote::pause)
    }

    pub fn outlets(&self) -> Vec<Arc<Outlets>> {
        self.remote.iter().map(Remote::outlets).collect()
    }

    pub fn is_at_rest(&self) -> bool {
        self.remote.as_ref().is_none_or(Remote::is_at_rest)
    }

    /// Says that nothing more will come; `false` when there is no room for that. What it has not said
    /// yet, it says when it is called again.
    pub fn finish(&mut self, end: InputEnd, has_ended: &mut bool) -> Result<bool, Failure> {
        if !self.local.finish(end) {
            return Ok(false);
        }
        let Some(remote) = &mut self.remote else {
            return Ok(true);
        };
        if !std::mem::replace(has_ended, true) {
            remote.end(end)?;
        }
        remote.pause()
    }
}

/// To one rank, in whose only ring all meet.
pub struct ToRank<T> {
    pub routed: Routed<T>,
    pub home: Home,
    pub label: Label,
    pub has_ended: bool,
}

impl<T: Message + Clone> End for ToRank<T> {
    fn reserve(&mut self, results: usize) -> Result<Option<usize>, Failure> {
        self.routed.reserve(results)
    }

    fn cancel(&mut self) {
        self.routed.cancel();
    }

    fn commit(&mut self, stamp: u64, mark: Option<Mark>) -> Result<usize, Failure> {
        self.routed.commit(stamp, mark)
    }

    fn pause(&mut self) -> Result<bool, Failure> {
        self.routed.pause()
    }

    fn is_at_rest(&self) -> bool {
        self.routed.is_at_rest()
    }

    fn outlets(&self) -> Vec<Arc<Outlets>> {
        self.routed.outlets()
    }

    fn finish(&mut self, end: InputEnd) -> Result<Option<usize>, Failure> {
        let is_finished = self.routed.finish(end, &mut self.has_ended)?;
        Ok(is_finished.then_some(0))
    }
}

impl<T: Message + Clone> Terminal<T> for ToRank<T> {
    type Slice<'a> = &'a mut Self;

    fn begin(&mut self) -> &mut Self {
        self
    }
}

impl<T: Message + Clone> Slice<T> for &mut ToRank<T> {
    fn take<A: Attempt>(&mut self, attempt: &A, item: &T) {
        if let Err(error) = self.routed.put(self.home, item.clone()) {
            attempt.reject(
                &self.label,
                "an item that cannot be sent to another rank",
                error,
            );
        }
    }
}

/// To the partition where the key lives, which is at home on this rank.
pub struct ToHome {
    pub homes: Homes,
    pub ranks: u32,
    pub label: Label,
}

impl<K, S> Way<Partial<K, S>> for ToHome
where
    K: Hash + Clone,
    S: Clone,
{
    #[inline]
    fn put<A: Attempt>(
        &self,
        attempt: &A,
        item: &Partial<K, S>,
        outbox: &mut Outbox<Partial<K, S>>,
    ) {
        // It is what many items add up to: no dead letter could say what was lost with it.
        attempt.change(&self.label, || {
            let home = self.homes.of(&item.key, self.ranks, outbox.len());
            outbox.put(home.partition, item.clone());
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_spread_evenly_over_ranks_and_partitions() {
        let homes = Homes::default();
        homes.settle(7);
        let (ranks, partitions) = (4, 4);
        let mut counts = vec![0; 16];
        for key in 0..16_000u32 {
            let home = homes.of(&key, ranks, partitions);
            counts[home.rank as usize * partitions + home.partition] += 1;
        }
        assert!(
            counts.iter().all(|count| (800..1200).contains(count)),
            "{counts:?}"
        );
    }
}
