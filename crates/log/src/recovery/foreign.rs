//! Files and indexes of another group, copied to this one's name: found by checksums.

use std::io::ErrorKind;
use std::path::PathBuf;

use millstream_base::disk::Access;
use millstream_base::{DiskFile, Offset, Position};
use millstream_record::ChunkHeader;

use crate::error::{LogError, Result};
use crate::files::DataDir;
use crate::group::end::GroupEnd;
use crate::ids::GroupName;
use crate::index::entry::{Fingerprint, IndexEntry};
use crate::index::file::Index;
use crate::recovery::scan::{open, read_header, scan};

/// Returns the end of a closed group, if its index names it and the file has that length.
pub fn indexed_end(dir: &DataDir, name: &GroupName) -> Result<Option<GroupEnd>> {
    let path = dir.group_path(name);
    let index_path = dir.index_path(name);
    let entry = Index::read_end(&*dir.disk, &index_path, name)
        .map_err(|error| LogError::io("read", &index_path, error))?;
    let Some(entry) = entry else {
        return Ok(None);
    };
    let file = match dir.disk.open(&path, Access::Read) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file.map_err(|error| LogError::io("open", &path, error))?,
    };
    let len = file
        .len()
        .map_err(|error| LogError::io("read", &path, error))?;
    let is_whole =
        len >= entry.position.0 && other_file(&*file, &path, name.first_offset, &entry)?.is_none();
    Ok(is_whole.then_some(GroupEnd::of(&entry)))
}

pub fn read_index(dir: &DataDir, name: &GroupName) -> Result<Index> {
    let path = dir.index_path(name);
    Index::read(&*dir.disk, &path, name).map_err(|error| LogError::io("read", &path, error))
}

/// Compares a group's file with its index. Returns the difference if the file is another group's.
pub fn foreign_file(dir: &DataDir, name: &GroupName) -> Result<Option<String>> {
    let path = dir.group_path(name);
    let file = open(dir, &path, Access::Read)?;
    foreign(&*file, &path, name.first_offset, &read_index(dir, name)?)
}

/// Returns the difference if file and index are not those of one group.
pub fn foreign(
    file: &dyn DiskFile,
    path: &PathBuf,
    first_offset: Offset,
    index: &Index,
) -> Result<Option<String>> {
    if let Some(GroupName {
        lane,
        id,
        first_offset,
        ..
    }) = index.foreign
    {
        return Ok(Some(format!(
            "the index beside this file is that of stream {}, streamlet {}, lane {}, group {id} from \
             offset {first_offset}; one of the two was copied here",
            lane.stream, lane.streamlet, lane.lane
        )));
    }
    match index.entries.last() {
        Some(entry) => other_file(file, path, first_offset, entry),
        None => Ok(None),
    }
}

/// Why this is not the file that the entry was made for, if whole chunks of another one are in it: they may reach
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
