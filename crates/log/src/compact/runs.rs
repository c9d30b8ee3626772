//! Selects neighbouring groups of a range to rewrite into one.

use std::ops::Range;

use millstream_base::Offset;

use crate::compact::live::GroupLive;
use crate::keys::file::KeyCounts;

/// The most live bytes of a rewritten group that has more than one group's records.
pub const RUN_BYTES_MAX: u64 = 256 << 20;

/// A group with fewer live bytes is rewritten with a neighbour that is.
pub const SMALL_BYTES: u64 = 4 << 20;

/// The bytes that a record takes beside its key, value and headers, about.
const RECORD_OVERHEAD_BYTES: u64 = 16;

/// A group of the range.
#[derive(Debug, Clone, Copy)]
pub struct RangeGroup {
    pub first_offset: Offset,
    pub end: Offset,
    /// The counts of its key file.
    pub counts: KeyCounts,
    pub live: GroupLive,
    /// Whether a compaction has made it: then its offsets have gaps, and it has one record of each key.
    pub is_rewritten: bool,
    /// Whether it has tombstones whose time begins with its next rewrite.
    pub has_new_tombstones: bool,
    /// Whether it has tombstones or markers that are no longer needed.
    pub has_expired: bool,
}

impl RangeGroup {
    /// The number of its records, as [`records_of`].
    pub fn records(&self) -> u64 {
        records_of(self.is_rewritten, &self.counts, self.first_offset..self.end)
    }

    /// Whether it has a record that need not stay, or a tombstone whose time has not begun.
    fn is_dirty(&self) -> bool {
        let has_dead = self.live.records + self.counts.without_key < self.records();
        has_dead || self.has_new_tombstones || self.has_expired
    }

    fn bytes(&self) -> u64 {
        self.live.bytes + self.live.records * RECORD_OVERHEAD_BYTES
    }
}

/// Returns the number of a group's records. In a group that was never rewritten, markers and aborted records count, too.
pub fn records_of(is_rewritten: bool, counts: &KeyCounts, offsets: Range<Offset>) -> u64 {
    match is_rewritten {
        true => counts.keys + counts.without_key,
        false => offsets.end.0 - offsets.start.0,
    }
}

/// The bounds of runs.
#[derive(Debug, Clone, Copy)]
pub struct RunBounds {
    /// See [`RUN_BYTES_MAX`].
    pub bytes_max: u64,
    /// See [`SMALL_BYTES`].
    pub small_bytes: u64,
    /// Whether groups may be joined. They may not if a shared group reads the stream, since its positions name groups.
    pub may_join: bool,
}

impl RunBounds {
    /// The bounds of a lane whose groups may be joined, or may not.
    pub fn new(may_join: bool) -> RunBounds {
        RunBounds {
            bytes_max: RUN_BYTES_MAX,
            small_bytes: SMALL_BYTES,
            may_join,
        }
    }
}

/// Returns the runs of a range, oldest first, as indexes of its groups. Each has a group with a record that need not stay.
pub fn runs(groups: &[RangeGroup], bounds: &RunBounds) -> Vec<Range<usize>> {
    let mut runs = Vec::new();
    let mut run = 0..0;
    let mut run_bytes = 0;
    let mut end_run = |run: Range<usize>| {
        if groups[run.clone()].iter().any(RangeGroup::is_dirty) {
            runs.push(run);
        }
    };
    for (n, group) in groups.iter().enumerate() {
        let takes_part = group.is_dirty() || group.bytes() < bounds.small_bytes;
        // A repair may have left a gap.
        let follows = !run.is_empty() && groups[run.end - 1].end == group.first_offset;
        let fits = run_bytes + group.bytes() <= bounds.bytes_max;
        if takes_part && follows && fits && bounds.may_join {
            run.end = n + 1;
            run_bytes += group.bytes();
            continue;
        }
        end_run(run);
        run = match takes_part {
            true => n..n + 1,
            false => n..n,
        };
        run_bytes = group.bytes();
    }
    end_run(run);
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A group of 100 offsets with `live` live records of 10 bytes each.
    fn group(number: u64, live: u64) -> RangeGroup {
        RangeGroup {
            first_offset: Offset(100 * number),
            end: Offset(100 * number + 100),
            counts: KeyCounts {
                keys: 100,
                ..KeyCounts::default()
            },
            live: GroupLive {
                records: live,
                bytes: 10 * live,
                tombstones: 0,
            },
            is_rewritten: false,
            has_new_tombstones: false,
            has_expired: false,
        }
    }

    const BOUNDS: RunBounds = RunBounds {
        bytes_max: 26 * 200,
        small_bytes: 26 * 10,
        may_join: true,
    };

    /// The first group of each run, and the one behind it.
    fn of_groups(groups: &[RangeGroup], bounds: &RunBounds) -> Vec<(usize, usize)> {
        let runs = runs(groups, bounds).into_iter();
        runs.map(|run| (run.start, run.end)).collect()
    }

    fn of(live: &[u64]) -> Vec<(usize, usize)> {
        let groups = live.iter().enumerate();
        let groups: Vec<RangeGroup> = groups.map(|(n, live)| group(n as u64, *live)).collect();
        of_groups(&groups, &BOUNDS)
    }

    #[test]
    fn neighbouring_groups_with_dead_records_are_joined_while_they_fit() {
        assert_eq!(of(&[]), []);
        assert_eq!(of(&[100, 100]), []);
        assert_eq!(of(&[99]), [(0, 1)]);
        assert_eq!(of(&[50, 50, 50, 50, 50]), [(0, 4), (4, 5)]);
        assert_eq!(of(&[90, 100, 90, 90]), [(0, 1), (2, 4)]);
        assert_eq!(of(&[0, 0, 0]), [(0, 3)]);
    }

    #[test]
    fn small_groups_are_rewritten_only_beside_groups_with_dead_records() {
        let small = |number| RangeGroup {
            counts: KeyCounts {
                keys: 5,
                ..KeyCounts::default()
            },
            is_rewritten: true,
            ..group(number, 5)
        };
        assert_eq!(of_groups(&[small(0), small(1)], &BOUNDS), []);
        let groups = [small(0), group(1, 99), small(2), group(3, 100), small(4)];
        assert_eq!(of_groups(&groups, &BOUNDS), [(0, 3)]);
        let expired = RangeGroup {
            has_expired: true,
            ..small(1)
        };
        assert_eq!(of_groups(&[small(0), expired], &BOUNDS), [(0, 2)]);
    }

    #[test]
    fn a_rewritten_group_has_dead_records_only_after_a_key_was_written_again() {
        let rewritten = |live| RangeGroup {
            is_rewritten: true,
            counts: KeyCounts {
                keys: 40,
                ..KeyCounts::default()
            },
            ..group(0, live)
        };
        assert_eq!(of_groups(&[rewritten(40)], &BOUNDS), []);
        assert_eq!(of_groups(&[rewritten(39)], &BOUNDS), [(0, 1)]);
    }

    /// Otherwise the tombstones of a large deletion would stay for ever.
    #[test]
    fn a_group_of_live_tombstones_is_rewritten_once() {
        let tombstones = RangeGroup {
            has_new_tombstones: true,
            ..group(0, 100)
        };
        assert_eq!(of_groups(&[tombstones], &BOUNDS), [(0, 1)]);
        let rewritten = RangeGroup {
            is_rewritten: true,
            has_new_tombstones: false,
            ..tombstones
        };
        assert_eq!(of_groups(&[rewritten], &BOUNDS), []);
    }

    #[test]
    fn groups_behind_a_gap_and_groups_of_shared_groups_are_not_joined() {
        let mut groups = [group(0, 10), group(1, 10), group(2, 10)];
        assert_eq!(of_groups(&groups, &BOUNDS), [(0, 3)]);
        groups[2].first_offset = Offset(201);
        assert_eq!(of_groups(&groups, &BOUNDS), [(0, 2), (2, 3)]);
        let single = RunBounds {
            may_join: false,
            ..BOUNDS
        };
        assert_eq!(of_groups(&groups, &single), [(0, 1), (1, 2), (2, 3)]);
    }
}
