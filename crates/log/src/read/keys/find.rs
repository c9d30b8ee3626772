//! Finds the newest version of a key: in the table of the records behind the key files, then in these, from new to old.

use std::sync::Arc;

use millstream_base::{Offset, Position};

use crate::error::Result;
use crate::group::Group;
use crate::keys::file::Version;
use crate::keys::file::read::key_hash;
use crate::keys::kind::KeyKind;
use crate::lane::LaneState;
use crate::read::context::ReadContext;
use crate::read::keys::cover::give_up_file;
use crate::read::keys::files::Unreadable;
use crate::read::keys::update::look_at_keys;

/// The place of a key's newest version, which has a value.
#[derive(Debug, Clone)]
pub struct KeyPlace {
    pub offset: Offset,
    /// The group and the position of the record's chunk, if it was found in a key file.
    pub chunk: Option<(Arc<Group>, Position)>,
}

/// Returns the place of the newest committed version of a key; `None` if that has no value or is removed, or if another
/// partition owns the key. `partitions` returns how many partitions the stream has.
///
/// # Errors
/// When chunks or key files cannot be read, or the stream is deleted.
pub fn find_key(
    reads: &ReadContext,
    lane: &LaneState,
    partitions: impl Fn() -> u32,
    key: &[u8],
) -> Result<Option<KeyPlace>> {
    let mut losses = 0;
    loop {
        let swaps = lane.swaps();
        let (newest, covered, is_owned) = look_at_keys(reads, lane, &partitions, |table| {
            (table.newest(key), table.covered(), table.owns(key))
        })?;
        let earliest = lane.earliest_offset();
        if let Some(newest) = newest {
            let is_stored = !newest.is_tombstone && newest.offset >= earliest;
            return Ok(is_stored.then_some(KeyPlace {
                offset: newest.offset,
                chunk: None,
            }));
        }
        if !is_owned {
            return Ok(None);
        }
        match find_in_files(reads, lane, key, earliest..covered) {
            // The key may have gone to a later group meanwhile, from one that was then replaced.
            Ok(None) if lane.swaps() != swaps => {}
            Ok(found) => return Ok(found),
            Err(unreadable) => {
                let index = lane.key_index(partitions());
                give_up_file(reads, lane, index, unreadable, &mut losses)?;
            }
        }
    }
}

/// Looks for a key in the key files of a range of offsets.
fn find_in_files(
    reads: &ReadContext,
    lane: &LaneState,
    key: &[u8],
    offsets: std::ops::Range<Offset>,
) -> std::result::Result<Option<KeyPlace>, Unreadable> {
    let hash = key_hash(key);
    for group in groups_before(lane, &offsets) {
        match find_in_group(reads, &group, key, hash) {
            Ok(None) => {}
            Ok(Some(version)) => {
                let is_stored = !version.is_tombstone && version.offset >= offsets.start;
                return Ok(is_stored.then_some(KeyPlace {
                    offset: version.offset,
                    chunk: Some((group, version.chunk)),
                }));
            }
            // Earlier groups are, too.
            Err(_) if group.is_removed_for_good() => break,
            Err(unreadable) => return Err(unreadable),
        }
    }
    Ok(None)
}

/// The groups of a range of offsets, from new to old.
pub fn groups_before<'a>(
    lane: &'a LaneState,
    offsets: &std::ops::Range<Offset>,
) -> impl Iterator<Item = Arc<Group>> + use<'a> {
    let (first, mut at) = (offsets.start, offsets.end);
    std::iter::from_fn(move || {
        if at <= first {
            return None;
        }
        let group = lane.group_of_offset(Offset(at.0 - 1))?;
        at = group.first_offset;
        Some(group)
    })
}

/// Returns the newest version of a key in a group that has a key file.
pub fn find_in_group(
    reads: &ReadContext,
    group: &Arc<Group>,
    key: &[u8],
    hash: u64,
) -> std::result::Result<Option<Version>, Unreadable> {
    let file = reads.key_files.open(group, &KeyKind::Primary)?;
    let Some(block) = file.keys.block_with(key, hash) else {
        return Ok(None);
    };
    let found = file.keys.get(&file, block, key);
    found.map_err(|error| file.unreadable(error))
}
