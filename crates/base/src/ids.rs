//! Identifiers. Each is a type of its own, so that an offset is never taken for a position.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(
            Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

number! {
    /// A stream of one node; not used again while any data of the stream is stored.
    StreamId(u64)
}
number! {
    /// A streamlet within its stream, from 0.
    StreamletIndex(u32)
}
number! {
    /// A lane within its streamlet, from 0.
    LaneIndex(u32)
}
number! {
    /// A group within its streamlet, from 1, in the order of creation; never reused.
    GroupId(u64)
}
number! {
    /// A segment within its group, from 0.
    SegmentIndex(u32)
}
number! {
    /// A byte position, counted from the start of a group.
    Position(u64)
}
number! {
    /// The number of a record in its lane, from 0: Kafka's offset.
    Offset(u64)
}
number! {
    /// Milliseconds since 1970-01-01 UTC; may be negative.
    Timestamp(i64)
}
number! {
    /// A producer, as in Kafka's record batches; -1 is "none".
    ProducerId(i64)
}
number! {
    /// The incarnation of a producer; a lower one is fenced off.
    ProducerEpoch(i16)
}
number! {
    /// The sequence number of a record among those that one producer sent to one lane; wraps from `i32::MAX` to 0.
    Sequence(i32)
}

impl ProducerId {
    /// The value in chunks of producers without duplicate detection.
    pub const NONE: ProducerId = ProducerId(-1);

    /// From here on, ids are of sinks of flows that write to a log in their own process: no coordinator knows them. Servers
    /// assign ids below.
    pub const IN_PROCESS: ProducerId = ProducerId(1 << 62);
}

impl Sequence {
    /// The sequence `count` records further on.
    ///
    /// ```
    /// use millstream_base::Sequence;
    /// assert_eq!(Sequence(i32::MAX).plus(1), Sequence(0));
    /// ```
    pub fn plus(self, count: u32) -> Sequence {
        // The sum fits into 64 bits; the sequence has 2^31 values.
        let sum = i64::from(self.0) + i64::from(count);
        Sequence((sum % (1 << 31)) as i32)
    }
}

impl Offset {
    /// The offset `count` records further on.
    pub fn plus(self, count: u64) -> Offset {
        Offset(self.0 + count)
    }
}

impl Position {
    /// The position `bytes` further on.
    pub fn plus(self, bytes: u64) -> Position {
        Position(self.0 + bytes)
    }
}

/// A consumer's place in storage: before the byte at `position` of a group.
///
/// `segment` is the segment that held the position when the cursor was made, and only a hint for the search.
/// The position decides, so a cursor stays valid when segment boundaries change.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Cursor {
    /// The stream.
    pub stream: StreamId,
    /// The streamlet in the stream.
    pub streamlet: StreamletIndex,
    /// The group in the streamlet.
    pub group: GroupId,
    /// The segment in the group.
    pub segment: SegmentIndex,
    /// The byte position in the group.
    pub position: Position,
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "[{}, {}, {}, {}, {}]",
            self.stream, self.streamlet, self.group, self.segment, self.position
        )
    }
}
