//! Names of lanes and groups.

use millstream_base::{GroupId, LaneIndex, Offset, StreamId, StreamletIndex};

/// The lane that a group belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneId {
    /// The stream.
    pub stream: StreamId,
    /// The streamlet in it.
    pub streamlet: StreamletIndex,
    /// The lane in the streamlet.
    pub lane: LaneIndex,
}

impl LaneId {
    /// Returns the key of the lane's entry in a table of the catalog, behind `prefix`.
    pub(crate) fn to_key(self, prefix: &str) -> String {
        let LaneId {
            stream,
            streamlet,
            lane,
        } = self;
        format!("{prefix}{stream}/{streamlet}/{lane}")
    }

    /// Returns the lane of a key that [`LaneId::to_key`] has made.
    pub(crate) fn from_key(prefix: &str, key: &str) -> Option<LaneId> {
        let mut numbers = key.strip_prefix(prefix)?.split('/');
        let id = LaneId {
            stream: StreamId(numbers.next()?.parse().ok()?),
            streamlet: StreamletIndex(numbers.next()?.parse().ok()?),
            lane: LaneIndex(numbers.next()?.parse().ok()?),
        };
        numbers.next().is_none().then_some(id)
    }
}

/// The parts of the name of a group's file: lane, group, and the offset of its first record.
pub type GroupName = (LaneId, GroupId, Offset);
