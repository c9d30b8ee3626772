//! One bound for the memory that the values of all flows of a process take.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use millstream_base::machine::memory_bytes;

/// The part that the state of all flows may take, at most, of the memory beyond [`OTHER_BYTES`].
const SHARE: u64 = 4;

/// The memory of a small process that its code, the log's indexes and compaction, and the allocator's unused parts take.
const OTHER_BYTES: u64 = 128 << 20;

/// The bound is never lower, so that values which are needed at once have room.
const BYTES_MIN: u64 = 64 << 10;

/// The memory for the values of state elements that can leave it, since they are in changelogs, too. Flows that share it share
/// its bound.
#[derive(Debug)]
pub struct StateMemory {
    bytes_max: u64,
    used: AtomicU64,
}

impl StateMemory {
    /// A bound of its own, in bytes; 64 KiB at least.
    pub fn new(bytes_max: u64) -> StateMemory {
        StateMemory {
            bytes_max: bytes_max.max(BYTES_MIN),
            used: AtomicU64::new(0),
        }
    }

    /// The bound of all flows of the process: a quarter of the machine's memory beyond 128 MiB.
    pub fn of_process() -> Arc<StateMemory> {
        static OF_PROCESS: LazyLock<Arc<StateMemory>> = LazyLock::new(|| {
            let bytes = memory_bytes().saturating_sub(OTHER_BYTES);
            Arc::new(StateMemory::new(bytes / SHARE))
        });
        Arc::clone(&OF_PROCESS)
    }

    /// Returns the bound in bytes.
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Returns the bytes that are used now, by estimate.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
}

/// The memory that one element uses.
pub struct UsedMemory {
    memory: Arc<StateMemory>,
    bytes: AtomicU64,
}

impl UsedMemory {
    pub fn new(memory: &Arc<StateMemory>) -> UsedMemory {
        UsedMemory {
            memory: Arc::clone(memory),
            bytes: AtomicU64::new(0),
        }
    }

    /// Notes the bytes that the element uses now, and returns how many of them have to go: where all elements together use too
    /// much, each gives back the same part, and a bit more, so that it does not do so at once again.
    pub fn note(&self, bytes: u64) -> u64 {
        let before = self.bytes.swap(bytes, Ordering::Relaxed);
        // Wraps, if it is less than before.
        let change = bytes.wrapping_sub(before);
        let all = self.memory.used.fetch_add(change, Ordering::Relaxed);
        let all = all.wrapping_add(change);
        if all <= self.memory.bytes_max {
            return 0;
        }
        let target = self.memory.bytes_max - self.memory.bytes_max / 16;
        let kept = u128::from(bytes) * u128::from(target) / u128::from(all);
        bytes - kept as u64
    }

    /// Returns the bound of all elements together.
    pub fn bytes_max(&self) -> u64 {
        self.memory.bytes_max
    }

    /// Whether more is used than the bound.
    pub fn is_exceeded(&self) -> bool {
        self.memory.used() > self.memory.bytes_max
    }

    /// Whether values may soon have to leave.
    pub fn is_scarce(&self) -> bool {
        self.memory.used() > self.memory.bytes_max / 4 * 3
    }
}

impl Drop for UsedMemory {
    fn drop(&mut self) {
        let bytes = *self.bytes.get_mut();
        self.memory.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_give_back_equal_parts_of_memory_beyond_the_bound() {
        let memory = Arc::new(StateMemory::new(16 << 20));
        let [small, large] = [(); 2].map(|()| UsedMemory::new(&memory));
        assert_eq!((small.note(4 << 20), large.note(12 << 20)), (0, 0));
        assert!(small.is_scarce());
        // All together may keep 15 of 32 MiB.
        assert_eq!(large.note(28 << 20), (28 << 20) * 17 / 32);
        assert_eq!(small.note(4 << 20), (4 << 20) * 17 / 32);
        assert_eq!((small.note(0), memory.used()), (0, 28 << 20));
        drop(large);
        assert_eq!((memory.used(), small.is_scarce()), (0, false));
    }
}
