//! The producers that a lane knows behind its closed groups, where an index is lost.

use millstream_base::Position;
use millstream_base::disk::Access;

use crate::error::Result;
use crate::files::DataDir;
use crate::ids::GroupName;
use crate::index::entry::EntryKind;
use crate::producers::Producers;
use crate::recovery::closed::ClosedGroup;
use crate::recovery::foreign::read_index;
use crate::recovery::scan::{open, scan};

/// The producers that a lane knows behind its closed groups. A group's index begins with all of
/// them; this is for one whose index is lost.
pub fn producers_after(dir: &DataDir, closed: &[ClosedGroup]) -> Result<Producers> {
    let ends = closed.iter().map(|group| (group.name, group.end.position));
    producers_behind(dir, &ends.collect::<Vec<_>>())
}

/// The producers that a lane knows behind groups of it, each with its end.
pub fn producers_behind(dir: &DataDir, groups: &[(GroupName, Position)]) -> Result<Producers> {
    let mut producers = Producers::default();
    let mut from = Position(0);
    let mut unread = groups;
    for (at, (name, _)) in groups.iter().enumerate().rev() {
        unread = &groups[at..];
        let index = read_index(dir, name)?;
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
    for (name, end) in unread {
        let path = dir.group_path(name);
        let file = open(dir, name, Access::Read)?;
        scan(&*file, &path, from, *end, |chunk| {
            producers.stored(chunk);
            Ok(true)
        })?;
        from = Position(0);
    }
    Ok(producers)
}
