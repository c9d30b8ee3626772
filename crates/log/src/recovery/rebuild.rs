//! The index of a closed group, rebuilt from its chunks.

use millstream_base::Position;
use millstream_base::disk::Access;

use crate::error::{LogError, Result};
use crate::files::DataDir;
use crate::group::Group;
use crate::ids::GroupName;
use crate::index::file::{Index, IndexWriter};
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
    if group.end().is_none() || group.is_removed() {
        return Ok(SparseIndex::of(&index));
    }
    let (mut tail, broken) = read_again(dir, group, index, || lane.ends_before(group.id))?;
    if let Some(damage) = broken {
        tail.sparse_index.set_damage(damage);
    }
    Ok(tail.sparse_index)
}

/// Writes the index file of a closed group anew, whose beginning is lost. `before` are the groups before it, with their
/// ends.
///
/// # Errors
/// When a chunk of the groups is damaged, or a file cannot be read or written.
pub fn rewrite_index(
    dir: &DataDir,
    group: &Group,
    before: Vec<(GroupName, Position)>,
) -> Result<()> {
    let (mut tail, broken) = read_again(dir, group, Index::default(), || before)?;
    if let Some(damage) = broken {
        return Err(damage);
    }
    tail.close();
    let path = dir.index_path(&group.name());
    IndexWriter::open(&*dir.disk, &path, &group.name(), group.identity(), 0)
        .and_then(|mut index| index.append(&tail.entries))
        .map_err(|error| LogError::io("write", path, error))
}

/// Reads a closed group again, behind the entries of an index. Returns the damage where it stopped early.
fn read_again(
    dir: &DataDir,
    group: &Group,
    index: Index,
    before: impl FnOnce() -> Vec<(GroupName, Position)>,
) -> Result<(Tail, Option<LogError>)> {
    let mut producers = Producers::default();
    if index.entries.is_empty() {
        producers = producers_behind(dir, &before())?;
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
    let (from, to) = (
        tail.position,
        group.end().map_or(Position(0), |end| end.position),
    );
    let broken = scan(&*file, &path, from, to, |chunk| {
        tail.note(chunk);
        Ok(true)
    })?;
    let damage = broken.map(|what| LogError::corrupted(&path, tail.position, what));
    Ok((tail, damage))
}
