//! Names of lanes and groups.

use std::fmt;

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

/// The number of a rewrite of a group's file. A later one replaces the earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Generation(pub u32);

impl Generation {
    /// The files of format 2, whose names have no generation. They have no head.
    pub const FORMAT_2: Generation = Generation(0);

    /// The file that a group gets first.
    pub const FIRST: Generation = Generation(1);

    /// Returns the generation of the file that replaces files of which the latest has this one.
    pub fn rewritten(self) -> Generation {
        Generation(self.0.max(Generation::FIRST.0) + 1)
    }

    /// Whether a compaction has made the file.
    pub fn is_rewritten(self) -> bool {
        self > Generation::FIRST
    }
}

/// The parts of the name of a group's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupName {
    pub lane: LaneId,
    pub id: GroupId,
    /// The offset of its first record.
    pub first_offset: Offset,
    pub generation: Generation,
}

impl GroupName {
    /// Returns the name of the file that a new group gets.
    pub fn of_new(lane: LaneId, id: GroupId, first_offset: Offset) -> GroupName {
        GroupName {
            lane,
            id,
            first_offset,
            generation: Generation::FIRST,
        }
    }

    /// Returns whether the file begins with a head.
    pub fn has_head(&self) -> bool {
        self.generation != Generation::FORMAT_2
    }

    /// Returns the group of a file in the stream's folder, from the file's name without its ending.
    pub fn parse(stream: StreamId, stem: &str) -> Option<GroupName> {
        let mut numbers = stem.split('-');
        let name = GroupName {
            lane: LaneId {
                stream,
                streamlet: StreamletIndex(numbers.next()?.parse().ok()?),
                lane: LaneIndex(numbers.next()?.parse().ok()?),
            },
            id: GroupId(numbers.next()?.parse().ok()?),
            first_offset: Offset(numbers.next()?.parse().ok()?),
            generation: match numbers.next() {
                Some(number) => Generation(number.parse().ok()?),
                None => Generation::FORMAT_2,
            },
        };
        // Each group has one name, so that no second file counts as the group's.
        (name.to_string() == stem).then_some(name)
    }
}

/// The name of the file in the stream's folder, without its ending.
impl fmt::Display for GroupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LaneId {
            streamlet, lane, ..
        } = self.lane;
        let (id, first_offset) = (self.id.0, self.first_offset.0);
        write!(f, "{streamlet}-{lane}-{id:010}-{first_offset:020}")?;
        match self.generation {
            Generation::FORMAT_2 => Ok(()),
            Generation(number) => write!(f, "-{number:04}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: StreamId = StreamId(16);

    fn name(generation: u32) -> GroupName {
        GroupName {
            lane: LaneId {
                stream: STREAM,
                streamlet: StreamletIndex(1),
                lane: LaneIndex(20),
            },
            id: GroupId(3),
            first_offset: Offset(400),
            generation: Generation(generation),
        }
    }

    #[test]
    fn a_group_name_round_trips_through_its_text() {
        let names = [
            (0, "1-20-0000000003-00000000000000000400"),
            (1, "1-20-0000000003-00000000000000000400-0001"),
            (12_345, "1-20-0000000003-00000000000000000400-12345"),
        ];
        for (generation, text) in names {
            assert_eq!(name(generation).to_string(), text);
            assert_eq!(GroupName::parse(STREAM, text), Some(name(generation)));
        }
    }

    #[test]
    fn non_canonical_and_malformed_group_names_are_refused() {
        for text in [
            "",
            "1",
            "1-20-0000000003",
            "1-20-3-00000000000000000400",
            "01-20-0000000003-00000000000000000400",
            "+1-20-0000000003-00000000000000000400",
            "1-20-0000000003-00000000000000000400-",
            "1-20-0000000003-00000000000000000400-0000",
            "1-20-0000000003-00000000000000000400-1",
            "1-20-0000000003-00000000000000000400-00001",
            "1-20-0000000003-00000000000000000400-0001-0001",
            "1-20-0000000003-00000000000000000400-4294967296",
        ] {
            assert_eq!(GroupName::parse(STREAM, text), None, "{text}");
        }
    }
}
