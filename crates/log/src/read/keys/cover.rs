//! Which groups of a lane have key files. One that is missing or damaged is made where it is needed.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use millstream_base::Offset;

use crate::error::{LogError, Result};
use crate::group::Group;
use crate::group::end::GroupEnd;
use crate::keys::file::read::KeyFile;
use crate::keys::file::{KeyCounts, KeyFileError};
use crate::keys::index::{KeyIndex, Update};
use crate::lane::LaneState;
use crate::read::context::ReadContext;
use crate::read::keys::build::build_key_file;
use crate::read::keys::files::{Unreadable, is_out_of_files, named};
use crate::read::keys::update::note_misplaced;

/// How long no key files of a lane are made after that has failed.
const RETRY_AFTER: Duration = Duration::from_secs(15);

/// How often one lookup lets key files be made anew.
const LOSSES_MAX: usize = 100;

/// Returns the group behind the key files of a lane, if it may have one, too: it is closed and whole on disk, and all of its
/// transactions have ended for good.
pub fn next_group(lane: &LaneState, covered: Offset) -> Option<(Arc<Group>, GroupEnd)> {
    if lane.is_memory_only() {
        return None;
    }
    let from = covered.max(lane.earliest_offset());
    let group = lane.group_of_offset(from)?;
    let end = group.end()?;
    let is_whole = group.is_settled() && group.damage().is_none() && !group.is_removed();
    let is_ready = end.offset > from && is_whole && end.offset <= lane.stable_for_good();
    is_ready.then_some((group, end))
}

/// Makes sure that a group has a key file. Returns its counts; `None` if it cannot be made now, which is logged.
pub fn ensure_key_file(
    reads: &ReadContext,
    lane: &LaneState,
    index: &KeyIndex,
    group: &Arc<Group>,
    end: &GroupEnd,
) -> Option<KeyCounts> {
    if let Some(counts) = group.key_counts() {
        return Some(counts);
    }
    let _building = index.build();
    // Another thread may have made it meanwhile.
    if let Some(counts) = group.key_counts() {
        return Some(counts);
    }
    let mut is_lost = group.has_damaged_keys();
    if !is_lost {
        match group.read_key_counts(&reads.dir, end) {
            Ok(counts) => {
                group.note_key_file(counts);
                reads.compaction_marks.add(lane.id);
                warn_of_lost(lane, group, index.count_found());
                return Some(counts);
            }
            Err(KeyFileError::Io(error)) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if is_out_of_files(&error) => return None,
            Err(error) => {
                warn_of_damage(reads, lane, group, error);
                is_lost = true;
            }
        }
    }
    let now = reads.clock.monotonic();
    if !index.may_build(now) {
        return None;
    }
    match build_key_file(reads, lane, group, end) {
        Ok(counts) => {
            group.note_key_file(counts);
            reads.compaction_marks.add(lane.id);
            index.count_built(is_lost);
            Some(counts)
        }
        Err(LogError::Closed | LogError::UnknownStream { .. }) => None,
        Err(_) if group.is_removed_for_good() => None,
        Err(error) => {
            tracing::warn!(stream = %lane.stream.name, partition = lane.partition, group = %group.id, %error,
                "the key file of a group cannot be made now; lookups read the group's keys into memory instead");
            index.note_failure(reads.clock.now(), now + RETRY_AFTER);
            None
        }
    }
}

/// Lets the key file of the next group stand for the records of that group. `false` if there is none, or if the index has
/// records of it already, or if it ends behind `until`: then the thread that makes key files in the background does that.
pub fn cover_next(
    reads: &ReadContext,
    lane: &LaneState,
    index: &KeyIndex,
    update: &Update<'_>,
    until: Offset,
) -> bool {
    let covered = update.covered();
    let first = covered.max(lane.earliest_offset());
    if update.next() > first {
        return false;
    }
    let next = next_group(lane, covered);
    let Some((group, end)) = next.filter(|(_, end)| end.offset <= until) else {
        return false;
    };
    match ensure_key_file(reads, lane, index, &group, &end) {
        Some(counts) => {
            note_misplaced(lane, counts.misplaced);
            update.cover(end.offset, &counts);
            true
        }
        None => false,
    }
}

/// Gives up a key file that cannot be read, so that it is made anew. A lookup calls this before it tries again; `losses`
/// counts how often.
///
/// # Errors
/// When trying again does not help.
pub fn give_up_file(
    reads: &ReadContext,
    lane: &LaneState,
    index: &KeyIndex,
    unreadable: Unreadable,
    losses: &mut usize,
) -> Result<()> {
    let Unreadable { group, used, error } = unreadable;
    *losses += 1;
    if *losses > LOSSES_MAX || is_out_of_files(&error) {
        return Err(named(&reads.dir, &group, error));
    }
    if group.is_removed_for_good() {
        std::thread::yield_now();
        return Ok(());
    }
    lose_file(reads, lane, index, &group, used.as_ref(), error);
    Ok(())
}

/// Gives up the key file of a group that a compaction cannot read, so that it is made anew.
///
/// # Errors
/// When the process has too many open files, so the file need not be damaged.
pub fn give_up_found(
    reads: &ReadContext,
    lane: &LaneState,
    index: &KeyIndex,
    group: &Arc<Group>,
    error: KeyFileError,
) -> Result<()> {
    if is_out_of_files(&error) {
        return Err(named(&reads.dir, group, error));
    }
    lose_file(reads, lane, index, group, None, error);
    Ok(())
}

fn lose_file(
    reads: &ReadContext,
    lane: &LaneState,
    index: &KeyIndex,
    group: &Arc<Group>,
    used: Option<&Arc<KeyFile>>,
    error: KeyFileError,
) {
    let update = index.update();
    if group.lose_key_file(used) {
        warn_of_damage(reads, lane, group, error);
        update.uncover(group.first_offset);
    }
}

fn warn_of_damage(reads: &ReadContext, lane: &LaneState, group: &Group, error: KeyFileError) {
    let path = reads.dir.keys_path(&group.name());
    tracing::warn!(stream = %lane.stream.name, partition = lane.partition, path = %path.display(), %error,
        "a key file is damaged or lost; it is made anew from its group");
}

fn warn_of_lost(lane: &LaneState, before: &Group, lost: u64) {
    if lost > 0 {
        tracing::warn!(stream = %lane.stream.name, partition = lane.partition, files = lost,
            "key files of groups before group {} were missing, and were made anew", before.id);
    }
}
