//! Scans a range of keys: the table of the records behind the key files, and these, merged.

use std::cmp::Ordering;
use std::sync::Arc;

use millstream_base::{KeyRange, Offset, partition_of_key};

use crate::error::Result;
use crate::keys::file::merge::KeyMerge;
use crate::keys::index::KeyIndex;
use crate::keys::kind::KeyKind;
use crate::keys::scan::{Collector, Found};
use crate::keys::table::Newest;
use crate::lane::LaneState;
use crate::read::context::ReadContext;
use crate::read::keys::cover::give_up_file;
use crate::read::keys::files::{OpenKeyFile, Unreadable};
use crate::read::keys::find::{KeyPlace, groups_before};
use crate::read::keys::update::look_at_index;

/// The table's part of a scan, and the state that it depends on.
struct InMemory {
    /// The first keys of the range.
    keys: Vec<(Vec<u8>, Newest)>,
    /// The offset before which key files have all records.
    covered: Offset,
    earliest: Offset,
    partitions: u32,
}

/// Returns keys of an index, of a range, that have a value, with the places of their newest committed versions: at most `limit`, whose
/// records have at most `bytes_max` bytes, but at least one if `limit` allows it. `partitions` returns how many partitions
/// the stream has.
///
/// # Errors
/// When chunks or key files cannot be read, or the stream is deleted.
pub fn scan_index(
    reads: &ReadContext,
    lane: &LaneState,
    index: &KeyIndex,
    partitions: impl Fn() -> u32,
    range: &KeyRange,
    limit: usize,
    bytes_max: usize,
) -> Result<Found<KeyPlace>> {
    let mut losses = 0;
    loop {
        let swaps = lane.swaps();
        let in_memory = look_at_index(reads, lane, index, &partitions, |table| {
            let earliest = lane.earliest_offset();
            InMemory {
                keys: table.first_keys(range, earliest, limit),
                covered: table.covered(),
                earliest,
                partitions: table.partitions(),
            }
        })?;
        let offsets = in_memory.earliest..in_memory.covered;
        let files = open_files(reads, lane, index.kind(), range, offsets);
        let collector = Collector::new(limit, bytes_max);
        let found = files.and_then(|files| {
            let merged = Merged {
                lane,
                kind: index.kind(),
                range,
            };
            merged.collect(in_memory, &files, collector)
        });
        match found {
            // Keys may have gone to later groups meanwhile, from groups that were then replaced.
            Ok(_) if lane.swaps() != swaps => {}
            Ok(found) => return Ok(found),
            Err(unreadable) => {
                give_up_file(reads, lane, index, unreadable, &mut losses)?;
            }
        }
    }
}

/// Opens the key files of a range of offsets that may have keys of a range, from new to old.
fn open_files(
    reads: &ReadContext,
    lane: &LaneState,
    kind: &KeyKind,
    range: &KeyRange,
    offsets: std::ops::Range<Offset>,
) -> std::result::Result<Vec<OpenKeyFile>, Unreadable> {
    let mut files = Vec::new();
    if range.is_empty() {
        return Ok(files);
    }
    for group in groups_before(lane, &offsets) {
        match reads.key_files.open(&group, kind) {
            Ok(file) if file.keys.is_behind(range) => {}
            Ok(file) => files.push(file),
            // Earlier groups are, too.
            Err(_) if group.is_removed_for_good() => break,
            Err(unreadable) => return Err(unreadable),
        }
    }
    Ok(files)
}

/// The lane and the keys of a scan.
struct Merged<'a> {
    lane: &'a LaneState,
    kind: &'a KeyKind,
    range: &'a KeyRange,
}

impl Merged<'_> {
    /// Merges the table's part with key files.
    fn collect(
        &self,
        in_memory: InMemory,
        files: &[OpenKeyFile],
        mut collector: Collector<KeyPlace>,
    ) -> std::result::Result<Found<KeyPlace>, Unreadable> {
        let Merged { lane, kind, range } = self;
        let InMemory {
            keys,
            earliest,
            partitions,
            ..
        } = in_memory;
        let is_owned = |key: &[u8]| {
            kind.record_key(key).is_some_and(|key| {
                partition_of_key(key, partitions as usize) == lane.partition as usize
            })
        };
        let cursors = files.iter().map(|file| {
            let cursor = file.keys.cursor(file, &range.from);
            cursor.map_err(|error| file.unreadable(error))
        });
        let mut merge = KeyMerge::new(cursors.collect::<std::result::Result<_, _>>()?);
        let mut in_files = advance(&mut merge)?;
        let mut keys = keys.into_iter().peekable();
        loop {
            let in_files_key = in_files
                .map(|_| merge.key())
                .filter(|key| range.contains(key));
            let order = match (keys.peek(), in_files_key) {
                (None, None) => break,
                (Some((key, _)), Some(other)) => key.as_slice().cmp(other),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
            };
            let mut goes_on = true;
            if order == Ordering::Greater
                && let Some(version) = in_files
            {
                if !version.is_tombstone && version.offset >= earliest && is_owned(merge.key()) {
                    let place = KeyPlace {
                        offset: version.offset,
                        chunk: group_of(files, version.offset)
                            .map(|group| (Arc::clone(group), version.chunk)),
                    };
                    goes_on = collector.add(merge.key(), version.bytes, place);
                }
            } else if let Some((key, newest)) = keys.next()
                && !newest.is_tombstone
                && newest.offset >= earliest
            {
                let place = KeyPlace {
                    offset: newest.offset,
                    chunk: None,
                };
                goes_on = collector.add(&key, newest.bytes, place);
            }
            if !goes_on {
                break;
            }
            if order != Ordering::Less {
                // Behind a key that the table has, too: that one is newer.
                in_files = advance(&mut merge)?;
            }
        }
        Ok(collector.finish())
    }
}

fn advance(
    merge: &mut KeyMerge<'_, OpenKeyFile>,
) -> std::result::Result<Option<crate::keys::file::Version>, Unreadable> {
    match merge.advance() {
        Ok(version) => Ok(version),
        Err(error) => {
            let file = merge.file().expect("a cursor has failed, and stays first");
            Err(file.unreadable(error))
        }
    }
}

/// The group that has an offset. `files` are in the order from new to old.
fn group_of(files: &[OpenKeyFile], offset: Offset) -> Option<&Arc<crate::group::Group>> {
    let newer = files.partition_point(|file| file.group.first_offset > offset);
    files.get(newer).map(|file| &file.group)
}
