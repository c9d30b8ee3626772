//! The values of a partition's keys at earlier checkpoints, back to the last complete one.

use std::collections::VecDeque;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hashbrown::HashMap;

/// Segments that are kept apart. Usually there are two: since the complete checkpoint, and since the one that is being
/// stored. Beyond this bound, after failures, older ones are joined.
const SEGMENTS_MAX: usize = 8;

/// Former values, so that readers find the values of the last complete checkpoint. Each checkpoint ends a segment. A segment has
/// the keys that changed in it, each with its value from the segment's beginning.
pub struct ValueHistory<K, V> {
    /// The oldest first; never empty.
    segments: VecDeque<Segment<K, V>>,
    /// The number of the last segment, which is never 0.
    number: u32,
    /// The number of keys in the last segment.
    changed: Arc<AtomicUsize>,
}

struct Segment<K, V> {
    /// The checkpoint at which it begins; 0 for the beginning of the run.
    since: u64,
    former: HashMap<K, Option<V>>,
    /// Keys that have lost their value in it. They may be there more than once, and may have one again.
    removed: Vec<K>,
}

impl<K, V> Segment<K, V> {
    fn new(since: u64) -> Self {
        Segment {
            since,
            former: HashMap::new(),
            removed: Vec::new(),
        }
    }
}

impl<K: Hash + Eq + Clone, V> ValueHistory<K, V> {
    /// An empty history, which shows in `changed` how many keys have changed in the present segment.
    pub fn new(changed: &Arc<AtomicUsize>) -> Self {
        ValueHistory {
            segments: VecDeque::from([Segment::new(0)]),
            number: 1,
            changed: Arc::clone(changed),
        }
    }

    /// Returns the number of the segment that changes belong to now.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns the checkpoint whose values [`former`](Self::former) leads to; 0 for the beginning of the run.
    pub fn checkpoint(&self) -> u64 {
        self.segments.front().map_or(0, |segment| segment.since)
    }

    /// Notes the value of a key that has not changed yet in the present segment.
    pub fn note(&mut self, key: &K, former: Option<V>) {
        let last = self.segments.back_mut().expect("there is a segment");
        last.former.insert(key.clone(), former);
        self.changed.store(last.former.len(), Ordering::Relaxed);
    }

    /// Notes that a key has lost its value.
    pub fn note_removed(&mut self, key: &K) {
        let last = self.segments.back_mut().expect("there is a segment");
        last.removed.push(key.clone());
    }

    /// Returns the value at the last complete checkpoint of a key that has changed since then; `None` for other keys.
    pub fn former(&self, key: &K) -> Option<&Option<V>> {
        let mut segments = self.segments.iter();
        segments.find_map(|segment| segment.former.get(key))
    }

    /// Returns the keys that have changed in the present segment.
    pub fn changed(&self) -> impl Iterator<Item = &K> {
        let last = self.segments.back().into_iter();
        last.flat_map(|segment| segment.former.keys())
    }

    /// Ends the present segment with a checkpoint.
    pub fn cut(&mut self, checkpoint: u64) {
        self.number = self.number.wrapping_add(1).max(1);
        self.segments.push_back(Segment::new(checkpoint));
        self.changed.store(0, Ordering::Relaxed);
        if self.segments.len() > SEGMENTS_MAX {
            self.join_oldest();
        }
    }

    /// Drops all values older than a complete checkpoint. Returns keys that have lost their value, and may no longer be in any
    /// segment.
    pub fn complete(&mut self, checkpoint: u64) -> Vec<K> {
        let mut removed = Vec::new();
        while self
            .segments
            .get(1)
            .is_some_and(|next| next.since <= checkpoint)
        {
            let oldest = self.segments.pop_front();
            removed.extend(oldest.into_iter().flat_map(|oldest| oldest.removed));
        }
        removed
    }

    /// Joins the two oldest segments: their checkpoint in the middle is not readable any more, even if it is completed.
    fn join_oldest(&mut self) {
        let (Some(oldest), Some(mut next)) = (self.segments.pop_front(), self.segments.pop_front())
        else {
            return;
        };
        next.since = oldest.since;
        next.former.extend(oldest.former);
        next.removed.extend(oldest.removed);
        self.segments.push_front(next);
    }
}
