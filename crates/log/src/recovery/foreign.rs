//! Files and indexes of another group, copied to this one's name: found by their heads, or, without one, by checksums.

use std::io::ErrorKind;
use std::path::PathBuf;

use millstream_base::disk::Access;
use millstream_base::{DiskFile, Offset, Position};
use millstream_record::ChunkHeader;
use uuid::Uuid;

use crate::error::{LogError, Result};
use crate::files::DataDir;
use crate::files::group_head::GroupHead;
use crate::group::end::GroupEnd;
use crate::ids::GroupName;
use crate::index::entry::{Fingerprint, IndexEntry};
use crate::index::file::Index;
use crate::recovery::scan::{read_header, scan};

/// Returns the end of a closed group, if its index names it and the file has that length; and the identity of the stream
/// that its head names.
pub fn indexed_end(dir: &DataDir, name: &GroupName) -> Result<Option<(GroupEnd, Option<Uuid>)>> {
    let path = dir.group_path(name);
    let index_path = dir.index_path(name);
    let entry = Index::read_end(&*dir.disk, &index_path, name)
        .map_err(|error| LogError::io("read", &index_path, error))?;
    let Some((entry, identity)) = entry else {
        return Ok(None);
    };
    let (file, head) = match dir.open_with_head(name, Access::Read) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file.map_err(|error| LogError::io("open", &path, error))?,
    };
    let len = file
        .len()
        .map_err(|error| LogError::io("read", &path, error))?;
    let is_this = match name.has_head() {
        true => head.is_some_and(|head| head.name == *name && Some(head.identity) == identity),
        false => other_file(&*file, &path, name.first_offset, &entry)?.is_none(),
    };
    let is_whole = len >= entry.position.0 && is_this;
    Ok(is_whole.then(|| (GroupEnd::of(&entry), identity)))
}

pub fn read_index(dir: &DataDir, name: &GroupName) -> Result<Index> {
    let path = dir.index_path(name);
    Index::read(&*dir.disk, &path, name).map_err(|error| LogError::io("read", &path, error))
}

/// Compares a group's file with its name and its index. Returns the difference if the file is another group's. Behind a
/// damaged head may be this group's chunks.
pub fn foreign_file(dir: &DataDir, name: &GroupName) -> Result<Option<String>> {
    let path = dir.group_path(name);
    let (file, head) = dir
        .open_with_head(name, Access::Read)
        .map_err(|error| LogError::io("open", &path, error))?;
    if head.is_none() && name.has_head() {
        return Ok(None);
    }
    foreign(&*file, head.as_ref(), &path, name, &read_index(dir, name)?)
}

/// Returns the difference if head, file and index do not belong to the same group.
pub fn foreign(
    file: &dyn DiskFile,
    head: Option<&GroupHead>,
    path: &PathBuf,
    name: &GroupName,
    index: &Index,
) -> Result<Option<String>> {
    let of = |name: &GroupName| {
        format!(
            "stream {}, streamlet {}, lane {}, group {} from offset {}, generation {}",
            name.lane.stream,
            name.lane.streamlet,
            name.lane.lane,
            name.id,
            name.first_offset,
            name.generation.0
        )
    };
    match head {
        None if name.has_head() => {
            return Ok(Some("the head of this file is damaged".to_owned()));
        }
        Some(head) if head.name != *name => {
            return Ok(Some(format!(
                "the head of this file belongs to {}: another file was copied here",
                of(&head.name)
            )));
        }
        _ => {}
    }
    if let Some(other) = &index.foreign {
        return Ok(Some(format!(
            "the index beside this file belongs to {}; one of the two was copied here",
            of(other)
        )));
    }
    if let (Some(head), Some(identity)) = (head, index.identity)
        && head.identity != identity
    {
        return Ok(Some(format!(
            "the head of this file has the stream identity {}, and the index beside it {identity}; one of the two was copied \
             here from another data directory",
            head.identity
        )));
    }
    match index.entries.last() {
        Some(entry) if !name.has_head() => other_file(file, path, name.first_offset, entry),
        _ => Ok(None),
    }
}

/// Returns the damage of a file whose head names another identity than the stream has.
pub fn foreign_identity(
    dir: &DataDir,
    name: &GroupName,
    found: Option<Uuid>,
    expected: Uuid,
) -> Option<LogError> {
    let found = found.filter(|found| *found != expected)?;
    let what = format!(
        "the head of this file has the stream identity {found}, and stream {} has {expected}: the file was copied here from \
         another data directory",
        name.lane.stream
    );
    Some(LogError::corrupted(dir.group_path(name), Position(0), what))
}

/// Returns why this is not the file that the entry was made for, if whole chunks of another one are in it: they may reach
/// beyond the entry. One that is damaged is left to the readers.
fn other_file(
    file: &dyn DiskFile,
    path: &PathBuf,
    first_offset: Offset,
    entry: &IndexEntry,
) -> Result<Option<String>> {
    let Fingerprint {
        first_crc,
        last_crc,
        last_bytes,
    } = entry.fingerprint;
    if last_bytes == 0 {
        return Ok(None);
    }
    let last = entry.position.0.saturating_sub(u64::from(last_bytes));
    let len = file
        .len()
        .map_err(|error| LogError::io("read", path, error))?;
    let mut what = None;
    for (at, crc) in [(0, first_crc), (last, last_crc)] {
        let header = read_header(file, path, at)?;
        let is_same = |header: &ChunkHeader| header.crc == crc;
        if header.as_ref().is_some_and(is_same) {
            continue;
        }
        let Some(header) = header else {
            continue;
        };
        scan(file, path, Position(at), Position(len), |_| {
            what = Some(format!(
                "a chunk at byte {at} is not the one that was written there, though it is whole \
                 (offset {}, the group begins with {first_offset}): another file was copied here",
                header.base_offset
            ));
            Ok(false)
        })?;
    }
    Ok(what)
}
