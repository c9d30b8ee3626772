//! The ends of a lane's last reads: where its readers are. Eviction leaves the bytes behind these places in memory.

use std::time::Duration;

use millstream_base::{GroupId, Position};
use parking_lot::Mutex;

use crate::group::Group;
use crate::lane::LaneState;

/// The number of readers that a lane remembers. Where there are more, those nearest to the head are forgotten: they need
/// nothing that the others do not need.
const READS_REMEMBERED: usize = 16;

/// A reader that has not read for this long keeps nothing in memory: it has ended, or it waits at the end of the lane. A
/// rebalance of a consumer group takes less time.
const ACTIVE_FOR: Duration = Duration::from_secs(10);

/// The ends of the last reads. Readers write them, eviction reads them.
#[derive(Debug, Default)]
pub struct RecentReads {
    ends: Mutex<Vec<ReadEnd>>,
}

#[derive(Debug, Clone, Copy)]
struct ReadEnd {
    /// The next read of this reader begins here, or where the next group begins if this one ends here.
    place: Place,
    /// The monotonic time of the read.
    at: Duration,
}

/// A position in a group.
pub type Place = (GroupId, Position);

/// The part of a lane that a read has returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadSpan {
    pub(crate) from: Place,
    pub(crate) to: Place,
}

impl ReadSpan {
    /// A span within a group.
    pub(crate) fn within(group: &Group, from: Position, to: Position) -> ReadSpan {
        ReadSpan {
            from: (group.id, from),
            to: (group.id, to),
        }
    }

    /// Returns the span from the end of another one of the same reader to the end of this one.
    pub fn behind(self, last: ReadSpan) -> ReadSpan {
        ReadSpan {
            from: last.to,
            to: self.to,
        }
    }
}

impl RecentReads {
    /// Notes that a reader goes on at a place in memory; `None` if it reads from the file. Its last read ended at one of `from`.
    fn note(&self, from: &[Place], to: Option<Place>, at: Duration) {
        let mut ends = self.ends.lock();
        if let Some(known) = ends.iter().position(|end| from.contains(&end.place)) {
            ends.swap_remove(known);
        }
        let Some(place) = to else {
            return;
        };
        if ends.len() == READS_REMEMBERED {
            ends.retain(|end| end.is_active(at));
        }
        ends.push(ReadEnd { place, at });
        if ends.len() > READS_REMEMBERED {
            ends.sort_unstable_by_key(|end| end.place);
            ends.pop();
        }
    }

    /// Returns where the readers are that have read within the last moment.
    fn active(&self, now: Duration) -> Vec<Place> {
        let ends = self.ends.lock();
        let active = ends.iter().filter(|end| end.is_active(now));
        active.map(|end| end.place).collect()
    }
}

impl ReadEnd {
    fn is_active(&self, now: Duration) -> bool {
        now.saturating_sub(self.at) <= ACTIVE_FOR
    }
}

impl LaneState {
    /// Notes a read, at a monotonic time, of a reader that goes on behind it. Others do not note theirs: look-ups, compaction and
    /// the makers of key files.
    pub fn note_read(&self, span: ReadSpan, now: Duration) {
        let (group, position) = span.from;
        let before = (position == Position(0)).then(|| self.group_before(group));
        // A reader at the end of a group goes on where the next one begins.
        let end_before = before.flatten().and_then(|before| {
            let end = before.end()?;
            Some((before.id, end.position))
        });
        let to = Some(span.to).filter(|to| self.is_in_memory(*to));
        let from = [span.from, end_before.unwrap_or(span.from)];
        self.recent_reads.note(&from, to, now);
    }

    /// Returns the first place that a reader needs which reads from memory; `None` without one. A reader whose next bytes are
    /// only in the file needs nothing: it reads them from there in any case.
    pub fn needed_from(&self, now: Duration) -> Option<Place> {
        let active = self.recent_reads.active(now).into_iter();
        active.filter(|place| self.is_in_memory(*place)).min()
    }

    /// Forgets all readers: no byte of the lane is in memory.
    pub fn forget_reads(&self) {
        *self.recent_reads.ends.lock() = Vec::new();
    }

    /// Whether the bytes behind a place are not only in the file.
    fn is_in_memory(&self, (id, position): Place) -> bool {
        let group = self.group(id);
        group.is_some_and(|group| !group.is_evicted(position))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn place(group: u64, position: u64) -> Place {
        (GroupId(group), Position(position))
    }

    #[test]
    fn a_read_takes_the_place_of_the_one_before() {
        let reads = RecentReads::default();
        let note = |from: &[Place], to, time| reads.note(from, Some(to), at(time));
        note(&[place(1, 0)], place(1, 50), 1);
        note(&[place(1, 0)], place(1, 30), 1);
        note(&[place(1, 50)], place(1, 90), 9);
        note(&[place(2, 0), place(1, 90)], place(2, 10), 10);
        let mut active = reads.active(at(11));
        active.sort_unstable();
        assert_eq!(active, [place(1, 30), place(2, 10)]);
        // The other one reads no more.
        assert_eq!(reads.active(at(12)), [place(2, 10)]);
        assert!(reads.active(at(21)).is_empty());
        // One that falls behind needs no memory.
        reads.note(&[place(2, 10)], None, at(12));
        assert!(reads.active(at(12)).is_empty());
    }

    #[test]
    fn of_many_readers_those_that_lag_are_remembered() {
        let reads = RecentReads::default();
        let count = 2 * READS_REMEMBERED as u64;
        for round in 0..4 {
            for n in 0..count {
                // Each reader has a group; the one with the largest number is next to the head.
                let (from, to) = (place(n, round), place(n, round + 1));
                reads.note(&[from], Some(to), at(round));
            }
        }
        let remembered = || {
            let mut active = reads.active(at(4));
            active.sort_unstable();
            active
        };
        let lagging = (0..READS_REMEMBERED as u64).map(|n| place(n, 4));
        assert_eq!(remembered(), lagging.collect::<Vec<_>>());
        // When they have stopped, others take their slots.
        reads.note(&[], Some(place(count, 1)), at(14));
        assert_eq!(reads.active(at(14)), [place(count, 1)]);
    }
}
