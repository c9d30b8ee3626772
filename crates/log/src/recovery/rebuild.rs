//! The index of a closed group, rebuilt from its chunks.

use millstream_base::disk::Access;

use crate::error::{LogError, Result};
use crate::files::DataDir;
use crate::group::Group;
use crate::index::file::Index;
use crate::index::sparse::SparseIndex;
use crate::lane::LaneState;
use crate::producers::Producers;
use crate::recovery::producers::producers_behind;
use crate::recovery::scan::{open, scan};
use crate::recovery::tail::Tail;

/// Rebuilds the index in memory of a closed group whose index file is torn or lost, as far as its chunks are whole: from
/// `index`, and behind that from the group's file.
pub fn rebuild_index(
    dir: &DataDir,
    lane: &LaneState,
    group: &Group,
    index: Index,
) -> Result<SparseIndex> {
    let Some(end) = group.end().filter(|_| !group.is_removed()) else {
        return Ok(SparseIndex::of(&index));
    };
    let mut producers = Producers::default();
    if index.entries.is_empty() {
        let before = lane.groups().into_iter();
        let before = before.filter(|other| other.id < group.id);
        let before = before.filter_map(|group| {
            let end = group.end()?;
            Some((group.name(), end.position))
        });
        producers = producers_behind(dir, &before.collect::<Vec<_>>())?;
    }
    let mut tail = Tail::begin(group.name(), producers);
    if !index.entries.is_empty() {
        tail.sparse_index = SparseIndex::default();
    }
    index
        .entries
        .into_iter()
        .for_each(|entry| tail.restore(entry));
    let path = group.path(dir);
    let file = open(dir, &group.name(), Access::Read)?;
    let from = tail.position;
    let broken = scan(&*file, &path, from, end.position, |chunk| {
        tail.note(chunk);
        Ok(true)
    })?;
    if let Some(what) = broken {
        let damage = LogError::corrupted(&path, tail.position, what);
        tail.sparse_index.set_damage(damage);
    }
    Ok(tail.sparse_index)
}
