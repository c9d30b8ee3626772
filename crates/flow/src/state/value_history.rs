//! The values of a partition's keys at earlier checkpoints, back to the last complete one.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use foldhash::fast::RandomState;
use indexmap::IndexMap;

/// Segments that are kept apart. Usually there are two: since the complete checkpoint, and since the one that is being
/// stored. Beyond this bound, after failures, older ones are joined.
const SEGMENTS_MAX: usize = 8;

/// The number of the first segment.
const FIRST_NUMBER: u64 = 1;

/// Former values, so that readers find those of the last complete checkpoint, and a writer those of the checkpoint that it
/// stores while newer values replace them. Each checkpoint ends a segment. A segment has the keys that changed in it, each
/// with its value from the segment's beginning.
pub struct ValueHistory<K, V> {
    /// The oldest first; never empty.
    segments: VecDeque<Segment<K, V>>,
    /// The number of keys in the last segment.
    changed: Arc<AtomicUsize>,
    /// The number of the last segment.
    number: u64,
    /// The changelog has the changes up to this checkpoint. Stays 0 without a changelog.
    written: u64,
    /// Segments before the last complete checkpoint, until [`sweep`](Self::sweep) takes them.
    ended: Vec<Segment<K, V>>,
}

struct Segment<K, V> {
    /// Segments are numbered from 1 on. Where several were joined, it is the number of the first.
    number: u64,
    /// The checkpoint at which it begins; 0 for the beginning of the run.
    since: u64,
    /// In the order of the changes, so that a writer continues where it was.
    former: Former<K, V>,
    /// When former values were changed last, in a table with a lifetime.
    times: Times<K>,
    /// Keys that have lost their value in it. They may be there more than once, and may have one again.
    removed: Vec<K>,
}

/// Former values of keys. Most keys of a growing table had none, which takes no room for a value.
pub type Former<K, V> = IndexMap<K, Option<Box<V>>, RandomState>;

/// The times of former values, in milliseconds since 1970.
pub type Times<K> = HashMap<K, i64, RandomState>;

impl<K, V> Segment<K, V> {
    fn new(number: u64, since: u64) -> Self {
        Segment {
            number,
            since,
            former: Former::default(),
            times: Times::default(),
            removed: Vec::new(),
        }
    }
}

/// The place of a writer in the changes of a checkpoint: it begins at the default.
#[derive(Debug, Default)]
pub struct ChangeCursor {
    /// The checkpoint at which the segment of the next key begins.
    since: u64,
    /// The number of keys of the segment that were looked at.
    looked_at: usize,
}

/// Keys of segments that ended and have lost their value, and values that no reader finds any more. To drop them may take
/// long.
pub type Swept<K, V> = (Vec<K>, Option<(Former<K, V>, Times<K>)>);

impl<K: Hash + Eq + Clone, V> ValueHistory<K, V> {
    /// An empty history, which shows in `changed` how many keys have changed in the present segment.
    pub fn new(changed: &Arc<AtomicUsize>) -> Self {
        ValueHistory {
            segments: VecDeque::from([Segment::new(FIRST_NUMBER, 0)]),
            number: FIRST_NUMBER,
            changed: Arc::clone(changed),
            written: 0,
            ended: Vec::new(),
        }
    }

    /// Returns the number of the segment that changes belong to now.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the number of the segment that begins at a checkpoint, or before: all changes with lower numbers were made
    /// before the checkpoint. `None` if that segment was forgotten.
    pub fn number_at(&self, checkpoint: u64) -> Option<u64> {
        let segments = self.segments.iter().rev();
        let mut before = segments.skip_while(|segment| segment.since > checkpoint);
        before.next().map(|segment| segment.number)
    }

    /// Returns the checkpoint whose values [`former`](Self::former) leads to; 0 for the beginning of the run.
    pub fn checkpoint(&self) -> u64 {
        self.segments.front().map_or(0, |segment| segment.since)
    }

    /// Notes the value of a key that has not changed yet in the present segment.
    pub fn note(&mut self, key: K, former: Option<V>) {
        let last = self.segments.back_mut().expect("there is a segment");
        last.former.insert(key, former.map(Box::new));
        self.changed.store(last.former.len(), Ordering::Relaxed);
    }

    /// Notes when a value was changed last that is [noted](Self::note) next.
    pub fn note_time(&mut self, key: K, time: i64) {
        let last = self.segments.back_mut().expect("there is a segment");
        last.times.insert(key, time);
    }

    /// Notes that a key has lost its value.
    pub fn note_removed(&mut self, key: K) {
        let last = self.segments.back_mut().expect("there is a segment");
        last.removed.push(key);
    }

    /// Forgets a key that got its value in the present segment: no checkpoint and no changelog has it. Returns `false` if
    /// one may have it.
    pub fn forget_new(&mut self, key: &K) -> bool {
        // Before the first cut, keys are noted that the changelog alone may have.
        if self.number == FIRST_NUMBER {
            return false;
        }
        let mut older = self.segments.iter().rev().skip(1);
        if older.any(|segment| segment.former.contains_key(key)) {
            return false;
        }
        let last = self.segments.back_mut().expect("there is a segment");
        let is_new = matches!(last.former.get(key), Some(None));
        if is_new {
            // Writers read former segments only, so the order of this one may change.
            last.former.swap_remove(key);
            self.changed.store(last.former.len(), Ordering::Relaxed);
        }
        is_new
    }

    /// Returns the value at the last complete checkpoint of a key that has changed since then; `None` for other keys.
    pub fn former(&self, key: &K) -> Option<Option<&V>> {
        self.former_at(0, key)
    }

    /// Returns the time of the value that [`former`](Self::former) returns, if it has a lifetime.
    pub fn former_time(&self, key: &K) -> Option<i64> {
        let mut segments = self.segments.iter();
        let segment = segments.find(|segment| segment.former.contains_key(key))?;
        segment.times.get(key).copied()
    }

    /// The same for the value at the last cut of a key that has changed since then.
    pub fn time_at_cut(&self, key: &K) -> Option<i64> {
        self.segments.back()?.times.get(key).copied()
    }

    /// The same for the checkpoint at which the segment `first` begins.
    fn former_at(&self, first: usize, key: &K) -> Option<Option<&V>> {
        let mut segments = self.segments.iter().skip(first);
        let former = segments.find_map(|segment| segment.former.get(key))?;
        Some(former.as_deref())
    }

    /// Returns the next key that has changed before `checkpoint`, the last cut, and that the changelog has not as it is
    /// there; each key once. With it its value at the checkpoint, if it has changed since then.
    pub fn next_change(
        &self,
        checkpoint: u64,
        cursor: &mut ChangeCursor,
    ) -> Option<(&K, Option<Option<&V>>)> {
        let end = self.segments.len() - 1;
        assert_eq!(self.segments[end].since, checkpoint, "it is the last cut");
        let begin = self.segment_since(cursor.since).unwrap_or(0);
        for index in begin..end {
            let segment = &self.segments[index];
            if segment.since != cursor.since {
                *cursor = ChangeCursor {
                    since: segment.since,
                    looked_at: 0,
                };
            }
            if self.segments[index + 1].since <= self.written {
                continue;
            }
            while let Some((key, _)) = segment.former.get_index(cursor.looked_at) {
                cursor.looked_at += 1;
                let mut later = self.segments.range(index + 1..end);
                if !later.any(|segment| segment.former.contains_key(key)) {
                    return Some((key, self.former_at(end, key)));
                }
            }
        }
        None
    }

    fn segment_since(&self, checkpoint: u64) -> Option<usize> {
        let mut segments = self.segments.iter();
        segments.position(|segment| segment.since == checkpoint)
    }

    /// The changelog has the changes up to this checkpoint.
    pub fn written(&mut self, checkpoint: u64) {
        self.written = checkpoint;
    }

    /// Ends the present segment with a checkpoint.
    pub fn cut(&mut self, checkpoint: u64) {
        self.number += 1;
        self.segments
            .push_back(Segment::new(self.number, checkpoint));
        self.changed.store(0, Ordering::Relaxed);
        if self.segments.len() > SEGMENTS_MAX {
            self.join_oldest();
        }
    }

    /// Forgets the values from before a complete checkpoint.
    pub fn complete(&mut self, checkpoint: u64) {
        while self
            .segments
            .get(1)
            .is_some_and(|next| next.since <= checkpoint)
        {
            self.ended.extend(self.segments.pop_front());
        }
    }

    /// Takes up to `limit` keys of segments that have ended; `None` if there are no such segments.
    pub fn sweep(&mut self, limit: usize) -> Option<Swept<K, V>> {
        let last = self.ended.last_mut()?;
        let rest = last.removed.len().saturating_sub(limit);
        let removed = last.removed.split_off(rest);
        let former = match last.removed.is_empty() {
            true => self.ended.pop().map(|it| (it.former, it.times)),
            false => None,
        };
        Some((removed, former))
    }

    /// Joins the two oldest segments: their checkpoint in the middle is not readable any more, even if it is completed.
    fn join_oldest(&mut self) {
        let (Some(oldest), Some(mut next)) = (self.segments.pop_front(), self.segments.pop_front())
        else {
            return;
        };
        next.number = oldest.number;
        next.since = oldest.since;
        next.former.extend(oldest.former);
        next.times.extend(oldest.times);
        next.removed.extend(oldest.removed);
        self.segments.push_front(next);
    }
}
