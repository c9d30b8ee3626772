//! The layout of a subscription's shared file, version 1. Readers in other languages rely on this description, too. All
//! numbers are little-endian and at multiples of their size.
//!
//! The broker creates the file and seals it against shrinking and growing. All bytes are 0, except the header and each
//! `wanted` (never). The broker sends a consumer the path, the identity, the size of the pool and the number of
//! partitions of each source.
//!
//! | from | bytes | content | written by |
//! |---|---|---|---|
//! | 0 | 128 | header | broker, before it announces the path |
//! | 128 | 128 | state | broker, once, at the end |
//! | 256 | 128 | doorbell | both |
//! | 384 | 256 × S | for each source two control blocks: the broker's, the consumer's | their owners |
//! | 384 + 256 × S | 128 × E × S | for each source its E descriptors | broker |
//!
//! Header:
//!
//! | at | bytes | what |
//! |---|---|---|
//! | 0 | 8 | the letters `MILLRING` |
//! | 8 | 4 | version of the layout: 1 |
//! | 12 | 4 | S, number of sources, 1 to 4096 |
//! | 16 | 4 | E, descriptors of a source: a power of two, 1 to 65536 |
//! | 24 | 8 | identity of the subscription: the number that the broker also sent over the connection. A file of another identity means that the path was reused |
//!
//! State, at 128: 8 bytes. 0 while the subscription lasts; then 1 in the lower half and a code (a signed number of 4
//! bytes) in the upper half. It changes once. From then on the broker may reuse the pool's bytes that it has handed out.
//! A reader loads the state after reading them, and trusts the bytes only if the state is still 0.
//!
//! Bells: the doorbell, at 256, wakes the broker; each source has one that wakes its consumer. A bell is 4 bytes: 4 ×
//! the number of rings, modulo 2^32, plus flags: 1 while a waiter sleeps on the word as on a futex, 2 while a waiter
//! without futexes waits for the answer to a Receive request.
//!
//! - To ring: add 4, in one atomic step; if flag 1 was set, wake all waiters on the futex (not private). A consumer
//!   without futexes sends a Receive request instead, and the broker rings.
//! - To wait: note the number of rings; look if there is something to do; if not, set the flag, in one
//!   atomic step that also reads the word. If the number of rings is as noted, wait on the futex for a
//!   change of the word just written (or for the answer). Then clear the flag, in one atomic step, and
//!   begin again.
//!
//! The broker's control block of source I, at 384 + 256 × I:
//!
//! | at | bytes | what |
//! |---|---|---|
//! | 0 | 8 | tail: the number of descriptors ever published. Load it with acquire |
//! | 8 | 8 | wanted: the consumer rings the doorbell when its progress gets to this count or beyond; 2^64 - 1 for never |
//! | 16 | 4 | the consumer's bell: rung after the tail has moved, and after the state has changed |
//!
//! The consumer's control block, at 384 + 256 × I + 128:
//!
//! | at | bytes | what |
//! |---|---|---|
//! | 0 | 8 | progress: the number of finished descriptors, from the first on. Store it with release; then a sequentially consistent fence; then load `wanted`, and ring the doorbell if `wanted` is above the old progress and not above the new one. If the progress moves back or beyond the tail, the broker ends the subscription |
//!
//! Descriptor N of source I, at 384 + 256 × S + 128 × (I × E + N modulo E), is valid while progress
//! ≤ N < tail:
//!
//! | at | bytes | what |
//! |---|---|---|
//! | 0 | 4 | kind: 1 chunks, 2 partition refused, 3 only progress |
//! | 4 | 4 | place: the partition, as its index in the source's list |
//! | 8 | 8 | position of the first byte in the pool's file |
//! | 16 | 8 | bytes from there on: whole chunks |
//! | 24 | 8 | from: the first offset that is wanted |
//! | 32 | 8 | next: the offset behind |
//! | 40 | 8 | end: the offset behind the last readable record |
//! | 48 | 4 | code: the reason why the partition was refused, signed |
//! | 52 | 4 | cursor behind: streamlet |
//! | 56 | 4 | cursor behind: segment |
//! | 64 | 8 | cursor behind: group |
//! | 72 | 8 | cursor behind: bytes from the start of the group |
//! | 80 | 8 | group that holds the chunks |
//! | 88 | 8 | bytes from the start of that group to the first chunk |
//!
//! All other bytes are 0; neither side writes them.

use thiserror::Error;

pub use crate::descriptor::DESCRIPTOR_BYTES;

use crate::bell::Bell;
use crate::sync::{AtomicU32, AtomicU64, Slot};

/// The first 8 bytes, `MILLRING`.
pub const MAGIC: u64 = u64::from_le_bytes(*b"MILLRING");

/// The version of the layout that this crate writes and reads.
pub const VERSION: u32 = 1;

/// The most sources of a subscription.
pub const SOURCES_MAX: u32 = 4096;

/// The most descriptors of a source.
pub const ENTRIES_MAX: u32 = 65536;

/// The largest size of a shared file, which bounds the memory that a peer can make this process map.
pub const FILE_BYTES_MAX: u64 = 1 << 30;

/// The value of [`BrokerLine::wanted`] when the broker does not wait for progress.
pub(crate) const NEVER: u64 = u64::MAX;

/// The first three lines of a file.
#[repr(C)]
#[cfg_attr(loom, derive(Default))]
pub(crate) struct Header {
    pub constants: Constants,
    pub state: StateLine,
    pub doorbell: DoorbellLine,
}

/// Written by the broker before it announces the path; read by the consumer as it opens the file.
#[repr(C, align(128))]
#[cfg_attr(loom, derive(Default))]
pub(crate) struct Constants {
    pub magic: AtomicU64,
    pub version: AtomicU32,
    pub sources: AtomicU32,
    pub entries: AtomicU32,
    pub identity: AtomicU64,
}

/// 0, or the end's code in the upper half above a 1. Written once, by the broker; read by consumers.
#[repr(C, align(128))]
#[cfg_attr(loom, derive(Default))]
pub(crate) struct StateLine {
    pub word: AtomicU64,
}

/// The broker's bell: consumers and the log's events ring it, and the broker's push thread waits on it.
#[repr(C, align(128))]
#[cfg_attr(loom, derive(Default))]
pub(crate) struct DoorbellLine {
    pub bell: Bell,
}

/// The state that the two sides of a source exchange. Each side has a pair of cache lines, since processors fetch lines
/// in pairs.
#[repr(C)]
#[cfg_attr(loom, derive(Default))]
pub(crate) struct SourceControl {
    pub broker: BrokerLine,
    pub consumer: ConsumerLine,
}

/// Written by the broker and read by the consumer; the consumer also writes the flags of the bell.
#[repr(C, align(128))]
#[cfg_attr(loom, derive(Default))]
pub(crate) struct BrokerLine {
    /// The number of published descriptors. `Publisher::flush` stores it with release after it has written them;
    /// `SourceRing::try_take` acquires it.
    pub tail: AtomicU64,
    /// The progress at which the consumer rings the doorbell, or [`NEVER`]. `Publisher::want_progress` stores it and
    /// `Finished::finish` loads it, each beside a sequentially consistent fence.
    pub wanted: AtomicU64,
    /// Wakes the consumer.
    pub bell: Bell,
}

/// Written by the consumer and read by the broker.
#[repr(C, align(128))]
#[cfg_attr(loom, derive(Default))]
pub(crate) struct ConsumerLine {
    /// The number of finished descriptors. `Finished::finish` stores it with release after the last read of their bytes;
    /// `Publisher::progress` acquires it before the broker reuses them.
    pub progress: AtomicU64,
}

#[cfg(not(loom))]
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<Header>() == 384);
    assert!(offset_of!(Constants, version) == 8);
    assert!(offset_of!(Constants, sources) == 12);
    assert!(offset_of!(Constants, entries) == 16);
    assert!(offset_of!(Constants, identity) == 24);
    assert!(offset_of!(Header, state) == 128);
    assert!(offset_of!(Header, doorbell) == 256);
    assert!(size_of::<SourceControl>() == 256);
    assert!(offset_of!(BrokerLine, wanted) == 8);
    assert!(offset_of!(BrokerLine, bell) == 16);
    assert!(offset_of!(SourceControl, consumer) == 128);
    assert!(size_of::<Slot>() == DESCRIPTOR_BYTES);
};

/// The number of rings in a file, and their size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    sources: u32,
    entries: u32,
}

/// No file can have this shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "{sources} sources of {entries} descriptors: a file has 1 to {SOURCES_MAX} sources, each with a power of two of \
     descriptors up to {ENTRIES_MAX}, in at most {FILE_BYTES_MAX} bytes"
)]
pub struct BadShape {
    /// Number of sources.
    pub sources: u32,
    /// Descriptors of each.
    pub entries: u32,
}

impl Shape {
    pub fn new(sources: u32, entries: u32) -> Result<Shape, BadShape> {
        let shape = Shape { sources, entries };
        let is_in_bounds = (1..=SOURCES_MAX).contains(&sources)
            && entries <= ENTRIES_MAX
            && entries.is_power_of_two();
        if is_in_bounds && shape.bytes() as u64 <= FILE_BYTES_MAX {
            Ok(shape)
        } else {
            Err(BadShape { sources, entries })
        }
    }

    pub fn sources(&self) -> usize {
        self.sources as usize
    }

    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// The size of the file.
    pub fn bytes(&self) -> usize {
        self.slots_start() + self.sources() * self.entries as usize * size_of::<Slot>()
    }

    fn slots_start(&self) -> usize {
        size_of::<Header>() + self.sources() * size_of::<SourceControl>()
    }
}

/// Positions in the file, which models do not have.
#[cfg(not(loom))]
impl Shape {
    /// Returns the start of a source's control blocks.
    pub fn control_start(&self, index: usize) -> usize {
        assert!(index < self.sources(), "source {index} of {}", self.sources);
        size_of::<Header>() + index * size_of::<SourceControl>()
    }

    /// Returns the start of the descriptor of this sequence.
    pub fn slot_start(&self, index: usize, sequence: u64) -> usize {
        assert!(index < self.sources(), "source {index} of {}", self.sources);
        let entry = (sequence & u64::from(self.entries - 1)) as usize;
        self.slots_start() + (index * self.entries as usize + entry) * size_of::<Slot>()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_the_documented_size_and_positions() {
        let shape = Shape::new(3, 16).unwrap();
        assert_eq!(shape.bytes(), 384 + 256 * 3 + 128 * 16 * 3);
        assert_eq!(shape.control_start(2), 384 + 256 * 2);
        assert_eq!(shape.slot_start(2, 17), 384 + 256 * 3 + 128 * (2 * 16 + 1));
    }

    #[test]
    fn counts_of_sources_and_entries_out_of_bounds_are_refused() {
        for (sources, entries) in [
            (0, 16),
            (SOURCES_MAX + 1, 16),
            (1, 0),
            (1, 3),
            (1, ENTRIES_MAX * 2),
            (SOURCES_MAX, ENTRIES_MAX),
            (u32::MAX, u32::MAX),
        ] {
            assert_eq!(
                Shape::new(sources, entries),
                Err(BadShape { sources, entries })
            );
        }
    }
}
