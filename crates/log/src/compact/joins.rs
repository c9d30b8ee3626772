//! Selects neighbouring groups to join although no pass must rewrite them, so that a lookup reads few key files.
//!
//! Groups are joined by their sizes: a run has several times the bytes of its largest group. So each rewrite takes a record to a
//! group that is several times larger, and a record is rewritten for joins only as often as the logarithm of the largest group's
//! bytes: hardly twice where groups were closed for their size. Groups that cannot be joined shrink quickly from the oldest to
//! the newest, up to the largest size of a run.

use std::ops::Range;

use millstream_base::Offset;

use crate::compact::live::FILES_MAX;
use crate::compact::runs::RUN_BYTES_MAX;
use crate::settings::memory::Memory;

/// The most keys of a run: of most, one merge finds all live records.
const KEYS_MAX: u64 = Memory::MAX.live_offsets as u64;

/// The most groups of a run, whose key files are merged at once.
const GROUPS_MAX: usize = FILES_MAX;

/// A run has at least this many times the bytes of its largest group.
const GROWTH: u64 = 4;

/// The same where the next group does not fit into the run, which is then as large as joins can make it.
const LAST_GROWTH: u64 = 2;

/// Fewer groups than this are not joined: a lookup meets few files, and a pass may come soon.
pub const KEPT_GROUPS: usize = 16;

/// A group that a pass could take.
#[derive(Debug, Clone, Copy)]
pub struct JoinGroup {
    pub first_offset: Offset,
    pub end: Offset,
    /// Whether a hold divides it from the group before.
    pub begins_stretch: bool,
    /// The bytes of its chunks.
    pub bytes: u64,
    pub keys: u64,
    pub tombstones: u64,
}

/// Returns the runs of groups to join, oldest first, as indexes of the groups. `compacted_to` is the end of the last pass.
///
/// Groups before and behind that are not joined with each other, since the share of dirty bytes is counted in groups. Those
/// behind it that have tombstones stay as they are: a rewrite begins the time of tombstones, which only a pass may do, since
/// it removes the older records of their keys.
pub fn joins(groups: &[JoinGroup], compacted_to: Offset) -> Vec<Range<usize>> {
    let seen = groups.partition_point(|group| group.end <= compacted_to);
    let mut runs = Vec::new();
    for part in [0..seen, seen..groups.len()] {
        if part.len() < KEPT_GROUPS {
            continue;
        }
        let is_seen = part.end == seen;
        let mut at = part.start;
        while at < part.end {
            let length = run_length(&groups[at..part.end], is_seen);
            if length > 1 {
                runs.push(at..at + length);
            }
            at += length;
        }
    }
    runs
}

/// Returns the length of the longest run that begins with the first group; 1 without one.
fn run_length(groups: &[JoinGroup], is_seen: bool) -> usize {
    let mut length = 1;
    let (mut bytes, mut keys, mut largest) = (0, 0, 0);
    for (n, group) in groups.iter().enumerate().take(GROUPS_MAX) {
        // A repair may have left a gap.
        let follows = n == 0 || (groups[n - 1].end == group.first_offset && !group.begins_stretch);
        if !follows || (!is_seen && group.tombstones > 0) {
            break;
        }
        let fits = bytes + group.bytes <= RUN_BYTES_MAX && keys + group.keys <= KEYS_MAX;
        if !fits {
            if n > 1 && largest * LAST_GROWTH <= bytes {
                length = n;
            }
            break;
        }
        bytes += group.bytes;
        keys += group.keys;
        largest = largest.max(group.bytes);
        if n > 0 && largest * GROWTH <= bytes {
            length = n + 1;
        }
    }
    length
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// Adjacent groups of these bytes.
    fn groups(bytes: &[u64]) -> Vec<JoinGroup> {
        let numbered = bytes.iter().zip(0..);
        let group = |(bytes, number): (&u64, u64)| JoinGroup {
            first_offset: Offset(100 * number),
            end: Offset(100 * number + 100),
            begins_stretch: false,
            bytes: *bytes,
            keys: 100,
            tombstones: 0,
        };
        numbered.map(group).collect()
    }

    fn of(groups: &[JoinGroup], compacted_to: u64) -> Vec<(usize, usize)> {
        let runs = joins(groups, Offset(compacted_to)).into_iter();
        runs.map(|run| (run.start, run.end)).collect()
    }

    #[test]
    fn many_groups_of_similar_size_are_joined() {
        assert_eq!(of(&groups(&[MIB; 15]), 0), []);
        assert_eq!(of(&groups(&[MIB; 16]), 0), [(0, 16)]);
        let mut old = vec![200 * MIB, 60 * MIB, 16 * MIB, 4 * MIB];
        old.extend([MIB; 12]);
        assert_eq!(of(&groups(&old), 0), [(3, 16)]);
        old.truncate(4);
        old.extend([1; 12]);
        assert_eq!(of(&groups(&old), 0), [(4, 16)], "not with much larger ones");
    }

    #[test]
    fn the_groups_bytes_and_keys_of_a_join_are_bounded() {
        assert_eq!(of(&groups(&[16 * MIB; 33]), 0), [(0, 16), (16, 32)]);
        assert_eq!(of(&groups(&[80 * MIB; 17]), 0).len(), 5);
        assert_eq!(of(&groups(&[129 * MIB; 20]), 0), []);
        let many: Vec<(usize, usize)> = (0..3).map(|n| (64 * n, 64 * n + 64)).collect();
        assert_eq!(of(&groups(&[1; 192]), 0), many);
        let mut of_keys = groups(&[MIB; 16]);
        of_keys
            .iter_mut()
            .for_each(|group| group.keys = KEYS_MAX / 8);
        assert_eq!(of(&of_keys, 0), [(0, 8), (8, 16)]);
    }

    #[test]
    fn groups_are_not_joined_across_a_passs_end_or_a_gap() {
        let mut lane = groups(&[MIB; 40]);
        assert_eq!(of(&lane, 0), [(0, 40)]);
        assert_eq!(of(&lane, 2_000), [(0, 20), (20, 40)]);
        assert_eq!(of(&lane, 3_000), [(0, 30)], "few are behind the pass");
        assert_eq!(of(&lane, 4_000), [(0, 40)]);
        lane[30..]
            .iter_mut()
            .for_each(|group| group.first_offset.0 += 1);
        lane[30..].iter_mut().for_each(|group| group.end.0 += 1);
        assert_eq!(of(&lane, 0), [(0, 30), (30, 40)]);
    }

    #[test]
    fn groups_with_tombstones_that_no_pass_has_seen_are_not_joined() {
        let mut lane = groups(&[MIB; 40]);
        lane[25].tombstones = 1;
        assert_eq!(of(&lane, 2_000), [(0, 20), (20, 25), (26, 40)]);
        assert_eq!(of(&lane, 4_000), [(0, 40)]);
    }

    /// Lanes that only grow, whose groups have these sizes: the number of groups and the bytes that joins write.
    #[test]
    fn joining_keeps_groups_few_and_rewrites_each_byte_few_times() {
        let mut rng = Rng::with_seed(1);
        let tiny = [1 << 10; 20_000];
        let full = [16 * MIB; 640];
        let almost_full: Vec<u64> = (0..640).map(|_| rng.u64(15 * MIB..17 * MIB)).collect();
        let any: Vec<u64> = (0..1_500).map(|_| rng.u64(1..16 * MIB)).collect();
        let two = (0..1_500).map(|_| rng.choice([1 << 10, 16 * MIB]).unwrap_or_default());
        let two: Vec<u64> = two.collect();
        let shapes: [(&[u64], f64, f64); 5] = [
            (&tiny, 20.0, 5.5),
            (&full, 16.0, 2.0),
            (&almost_full, 16.0, 2.0),
            (&any, 20.0, 2.0),
            (&two, 24.0, 2.0),
        ];
        for (closed, more_max, writes_max) in shapes {
            let (mut lane, mut total, mut written) = (Vec::new(), 0, 0);
            for bytes in closed {
                lane.push(*bytes);
                total += bytes;
                while let [.., last] = &joins(&groups(&lane), Offset(0))[..] {
                    let joined = lane[last.clone()].iter().sum();
                    lane.splice(last.clone(), [joined]);
                    written += joined;
                }
                let few = total as f64 / RUN_BYTES_MAX as f64 + more_max;
                assert!(
                    lane.len() as f64 <= few * 1.1,
                    "{} groups of {total}",
                    lane.len()
                );
            }
            let writes = written as f64 / total as f64;
            assert!(writes <= writes_max, "{writes} times");
        }
    }
}
