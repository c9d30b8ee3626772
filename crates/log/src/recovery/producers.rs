//! The producers that a lane knows behind its closed groups, where an index is lost.

use millstream_base::disk::Access;
use millstream_base::{GroupId, Offset, Position};

use crate::error::Result;
use crate::files::DataDir;
use crate::ids::LaneId;
use crate::index::entry::EntryKind;
use crate::producers::Producers;
use crate::recovery::closed::ClosedGroup;
use crate::recovery::foreign::read_index;
use crate::recovery::scan::{open, scan};

/// The producers that a lane knows behind its closed groups. A group's index begins with all of
/// them; this is for one whose index is lost.
pub fn producers_after(dir: &DataDir, lane: LaneId, closed: &[ClosedGroup]) -> Result<Producers> {
    let ends = closed.iter();
    let ends = ends.map(|group| (group.id, group.first_offset, group.end.position));
    producers_behind(dir, lane, &ends.collect::<Vec<_>>())
}

/// The producers that a lane knows behind groups, each with its first offset and its end.
pub fn producers_behind(
    dir: &DataDir,
    lane: LaneId,
    groups: &[(GroupId, Offset, Position)],
) -> Result<Producers> {
    let mut producers = Producers::default();
    let mut from = Position(0);
    let mut unread = groups;
    for (at, (id, first_offset, _)) in groups.iter().enumerate().rev() {
        unread = &groups[at..];
        let index = read_index(dir, &(lane, *id, *first_offset))?;
        if index.entries.is_empty() {
            continue;
        }
        let entries = index.entries.into_iter();
        for entry in entries.filter(|entry| entry.kind != EntryKind::GroupEnd) {
            from = entry.position;
            for (id, state) in entry.producers {
                producers.restore(id, state);
            }
        }
        break;
    }
    for (id, first_offset, end) in unread {
        let path = dir.group_path(lane, *id, *first_offset);
        let file = open(dir, &path, Access::Read)?;
        scan(&*file, &path, from, *end, |chunk| {
            producers.stored(chunk);
            Ok(true)
        })?;
        from = Position(0);
    }
    Ok(producers)
}
