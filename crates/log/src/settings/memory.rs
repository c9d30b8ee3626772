//! The memory of indexes, key files and compaction, which have no settings of their own.

/// The parts are those of a process with at least this much memory: with smaller ones a log would read its files again and again.
const BYTES_MIN: u64 = 64 << 20;

/// The parts are those of a process with at most this much memory.
const BYTES_MAX: u64 = 1 << 30;

/// The bytes of a point of an index in memory.
const POINT_BYTES: usize = 32;

/// The most memory of parts of a log, beside its pool. A process with 1 GiB or more has all of it; one with less has parts of
/// its memory, so that a log runs in a small container, too, and reads more often from its files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Points of the indexes that were read from files, over all groups.
    pub index_points: usize,
    /// Bytes of filters and block lists of key files, over all groups.
    pub key_files: usize,
    /// Bytes of the keys that are sorted into a key file.
    pub sorted_keys: usize,
    /// Live offsets of a compaction. With fewer, a pass merges the key files of a large partition more often.
    pub live_offsets: usize,
}

impl Memory {
    /// The most that any process takes.
    pub const MAX: Memory = Memory::parts_of(BYTES_MAX);

    /// The memory for a process that may use this many bytes.
    pub fn of(bytes: u64) -> Memory {
        Memory::parts_of(bytes.clamp(BYTES_MIN, BYTES_MAX))
    }

    const fn parts_of(bytes: u64) -> Memory {
        let bytes = bytes as usize;
        Memory {
            index_points: bytes / 32 / POINT_BYTES,
            key_files: bytes / 16,
            sorted_keys: bytes / 32,
            live_offsets: bytes / 32 / size_of::<u64>(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_process_has_less_of_each_part() {
        assert_eq!(Memory::of(u64::MAX), Memory::MAX);
        assert_eq!(Memory::MAX.key_files, 64 << 20);
        assert_eq!(Memory::MAX.sorted_keys, 32 << 20);
        let quarter = Memory::of(256 << 20);
        assert_eq!(quarter.sorted_keys, 8 << 20);
        assert_eq!(quarter.live_offsets, 1 << 20);
        assert_eq!(quarter.index_points, 1 << 18);
        assert_eq!(Memory::of(0), Memory::of(BYTES_MIN));
    }
}
