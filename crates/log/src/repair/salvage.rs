//! Repairing the log's own tables and its journal, without which it does not open.
//!
//! Blocks of the journal that are damaged are taken out: lanes that miss their runs are damaged then, and the others
//! whole. A stream is truncated where it is damaged first. The catalog that way would forget all streams that were made
//! later, so each whole chunk of a table stays, those behind the damage too.

use std::collections::BTreeMap;
use std::sync::Arc;

use millstream_base::disk::Access;
use millstream_base::{
    Disk, GroupId, LaneIndex, Offset, Position, Random, StreamId, StreamletIndex, Timestamp,
};
use millstream_record::{ChunkBuilder, Chunks, Compression, Decompressor, set_base_offset};
use serde::de::IgnoredAny;

use crate::catalog::{CATALOG, POSITIONS, SALVAGED};
use crate::error::{LogError, Result};
use crate::files::group_head::GroupHead;
use crate::files::manifest::Record;
use crate::files::{DataDir, FORMAT};
use crate::ids::{GroupName, LaneId};
use crate::journal::old::OldJournal;
use crate::recovery::foreign::foreign_file;
use crate::repair::deletions::list_deletions;
use crate::repair::epochs::list_epochs;
use crate::repair::{FilesAside, Repair};
use crate::settings::config::LogConfig;

/// A file that is larger is none of a table's, which is written anew long before.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// More than a chunk has records.
const OFFSETS_LEFT_OUT: u64 = 1 << 32;

/// The position of the format's version in a chunk, and the version.
const VERSION_AT: usize = 16;
const VERSION: u8 = 2;

/// A part of the log that it keeps for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InternalStore {
    /// `__catalog`: which streams and objects there are.
    Catalog,
    /// `__positions`: the positions that shared groups have committed.
    Positions,
    /// `__journal`: chunks that are durable and not in the streams' files yet.
    Journal,
    /// `__manifest`: the list of all files.
    Manifest,
}

impl InternalStore {
    /// The part of this name.
    pub fn named(name: &str) -> Option<InternalStore> {
        match name {
            "__catalog" => Some(InternalStore::Catalog),
            "__positions" => Some(InternalStore::Positions),
            "__journal" => Some(InternalStore::Journal),
            "__manifest" => Some(InternalStore::Manifest),
            _ => None,
        }
    }
}

/// Repairs a part of the log that it keeps for itself. Returns the files that it took away; `None` if nothing of the journal is
/// damaged.
///
/// A table is written anew with all of its entries that are whole, in its files and in the journal; the repair takes away
/// the files as they were. A change whose chunk is damaged is lost, so the table has the former value of its key. The
/// next start moves the files of streams that the catalog does not name to the folder `aside`.
///
/// Of the journal damaged blocks are taken away, and missing files are taken out of the list. The next start reports lanes that have a gap there; it cannot report
/// lanes whose last records were in a damaged block.
///
/// The list of files is made anew from the names of the files that are there. So the next start does not miss files that
/// are missing by then.
///
/// # Errors
/// When no part of the catalog is whole, a log has the data directory open, or the files cannot be changed.
pub fn salvage(
    config: &LogConfig,
    disk: Arc<dyn Disk>,
    random: Arc<dyn Random>,
    part: InternalStore,
) -> Result<Option<FilesAside>> {
    config.check()?;
    if part == InternalStore::Manifest {
        return remake_manifest(config, disk, random).map(Some);
    }
    let dir = DataDir::open(disk, random, &config.dir)?;
    let has_forgotten = part == InternalStore::Journal && OldJournal::forget_missing(&dir)?;
    let journal = OldJournal::find(&dir)?;
    let mut repair = Repair::new(config, dir, journal)?;
    match part {
        InternalStore::Manifest => {}
        InternalStore::Catalog => salvage_table(&mut repair, CATALOG)?,
        InternalStore::Positions => salvage_table(&mut repair, POSITIONS)?,
        InternalStore::Journal => {
            repair.take_from_journal()?;
            // They may depend on ends of transactions that the repair removes.
            for stream in repair.dir.list_streams()? {
                repair.dir.remove_key_files(stream, |_, _| true)?;
            }
        }
    }
    let taken = repair.finish();
    let is_whole = part == InternalStore::Journal && !has_forgotten && taken.files.is_empty();
    Ok((!is_whole).then_some(taken))
}

/// Rebuilds the list of files, and moves the former one aside.
fn remake_manifest(
    config: &LogConfig,
    disk: Arc<dyn Disk>,
    random: Arc<dyn Random>,
) -> Result<FilesAside> {
    let (dir, format) = DataDir::lock(disk, &config.dir)?;
    if format < FORMAT {
        dir.find_manifest(random, format)?;
        return Ok(FilesAside::default());
    }
    let mut repair = Repair::new(config, dir, OldJournal::default())?;
    repair.copy_manifest()?;
    repair.dir.remake_manifest(random, |dir, listed| {
        list_deletions(listed);
        list_epochs(dir, listed)
    })?;
    Ok(repair.finish())
}

fn salvage_table(repair: &mut Repair, stream: StreamId) -> Result<()> {
    let lane = LaneId {
        stream,
        streamlet: StreamletIndex(0),
        lane: LaneIndex(0),
    };
    // It may have lost its folder.
    repair.dir.create_stream_dir(lane.stream)?;
    let (mut groups, indexes) = repair.dir.list_groups(lane.stream)?;
    let mut last_group = repair.last_group(stream, lane.streamlet)?;
    groups.sort_unstable();
    let mut found = Found::default();
    for name in &groups {
        found.add_file(&repair.dir, name)?;
    }
    repair.journal.replay(&repair.dir, |run, data| {
        if run.lane == lane {
            found.add_all(data);
            last_group = last_group.max(run.group);
        }
        Ok(())
    })?;
    if found.chunks.is_empty() && stream == CATALOG {
        let what = "no entry of the catalog is whole: restore it from a copy";
        let folder = repair.dir.stream_dir(lane.stream);
        return Err(LogError::corrupted(folder, Position(0), what));
    }
    let last = found.chunks.last_key_value();
    let last_offset = last.map_or(Offset(0), |(offset, _)| *offset);

    // Behind all that there was, so that an interrupted repair can be done again: until the groups before are
    // gone, the gap between them and this one shows the damage.
    let first_offset = last_offset.plus(OFFSETS_LEFT_OUT);
    let mut chunks = found.chunks.into_values().collect::<Vec<_>>();
    if stream == CATALOG {
        chunks.push(salvaged_entry()?);
    }
    let name = GroupName::of_new(lane, GroupId(last_group.0 + 1), first_offset);
    let path = repair.dir.group_path(&name);
    let bytes = renumbered(chunks, first_offset);
    let head = GroupHead::of_first(name, repair.dir.identity_of(stream), 0);
    let written = repair.dir.create_group(&head);
    written
        .and_then(|file| {
            file.write_at(&bytes, 0)?;
            file.sync()
        })
        .map_err(|error| LogError::io("write", &path, error))?;
    repair.dir.sync_stream_dir(lane.stream)?;
    // From here on the files before are not the table's any more.
    repair.dir.manifest().change(|listed| {
        listed.forget_from(lane, GroupId(0));
        let replaced = listed.apply(Record::Group(name));
        replaced.expect("it is behind all others");
    })?;
    for name in groups.into_iter().chain(indexes) {
        repair.take_group(&name)?;
    }
    Ok(())
}

/// The whole chunks of a table, by their first offsets.
#[derive(Default)]
struct Found {
    chunks: BTreeMap<Offset, Vec<u8>>,
}

impl Found {
    /// Adds those in a group's file, unless that is another group's.
    fn add_file(&mut self, dir: &DataDir, name: &GroupName) -> Result<()> {
        let path = dir.group_path(name);
        if foreign_file(dir, name)?.is_some() {
            return Ok(());
        }
        let read = |error| LogError::io("read", &path, error);
        let file = dir.open_group(name, Access::Read).map_err(read)?;
        let len = file.len().map_err(read)?;
        if len > FILE_BYTES_MAX {
            return Ok(());
        }
        let mut bytes = vec![0; len as usize];
        let count = file.read_full_at(&mut bytes, 0).map_err(read)?;
        self.add_all(&bytes[..count]);
        Ok(())
    }

    /// Adds those in `bytes`, wherever they begin.
    fn add_all(&mut self, bytes: &[u8]) {
        let mut decompressor = Decompressor::default();
        let mut at = 0;
        while let Some(version) = bytes.get(at + VERSION_AT) {
            let rest = &bytes[at..];
            let chunk = (*version == VERSION).then(|| Chunks::new(rest).next());
            let Some(Some(Ok(chunk))) = chunk else {
                at += 1;
                continue;
            };
            let mut entries = chunk.records(&mut decompressor).into_iter().flatten();
            let is_table = entries.all(|entry| {
                entry.is_ok_and(|entry| {
                    let key = entry.key.map(std::str::from_utf8);
                    let value = entry.value.map(serde_json::from_slice::<IgnoredAny>);
                    matches!(key, Some(Ok(_))) && !matches!(value, Some(Err(_)))
                })
            });
            if is_table {
                let offset = chunk.header().base_offset;
                let known = self.chunks.entry(offset);
                known.or_insert_with(|| chunk.bytes().to_vec());
            }
            at += chunk.bytes().len();
        }
    }
}

fn salvaged_entry() -> Result<Vec<u8>> {
    let mut builder = ChunkBuilder::new(Compression::None);
    builder.push(Timestamp(0), Some(SALVAGED.as_bytes()), Some(b"true"), &[])?;
    Ok(builder.finish(None)?.to_vec())
}

/// The content of a group that begins with an offset.
fn renumbered(chunks: Vec<Vec<u8>>, first_offset: Offset) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut offset = first_offset;
    for mut chunk in chunks {
        set_base_offset(&mut chunk, offset);
        if let Some(Ok(chunk)) = Chunks::trusted(&chunk).next() {
            offset = chunk.header().next_offset();
        }
        bytes.extend_from_slice(&chunk);
    }
    bytes
}
