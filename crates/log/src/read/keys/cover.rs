//! Makes sure that groups of a lane have key files. A missing or damaged one is made when it is needed.

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
use crate::keys::kind::KeyKind;
use crate::keys::table::KeyStats;
use crate::lane::LaneState;
use crate::read::context::ReadContext;
use crate::read::keys::build::build_key_file;
use crate::read::keys::files::{Unreadable, is_out_of_files, named};
use crate::read::keys::update::note_left_out;

/// The pause before key files of a lane are made again after a failure.
const RETRY_AFTER: Duration = Duration::from_secs(15);

/// The most times that one lookup has key files rebuilt.
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

/// Makes sure that a group has the key file of an index. Returns its counts; `None` if it cannot be made now, which is logged.
pub fn ensure_key_file(
    reads: &ReadContext,
    lane: &LaneState,
    index: &KeyIndex,
    group: &Arc<Group>,
    end: &GroupEnd,
) -> Option<KeyCounts> {
    let kind = index.kind();
    if let Some(counts) = group.counts_of(kind) {
        return Some(counts);
    }
    let _building = index.build();
    // Another thread may have made it meanwhile.
    if let Some(counts) = group.counts_of(kind) {
        return Some(counts);
    }
    let mut is_lost = group.has_damaged_keys(kind);
    if !is_lost {
        match group.read_key_counts(&reads.dir, kind, end) {
            Ok(counts) => {
                note_file(reads, lane, group, kind, counts);
                warn_of_lost(lane, group, index.count_found());
                return Some(counts);
            }
            Err(KeyFileError::Io(error)) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if is_out_of_files(&error) => return None,
            Err(error) => {
                warn_of_damage(reads, lane, group, kind, error);
                is_lost = true;
            }
        }
    }
    let now = reads.clock.monotonic();
    if !index.may_build(now) {
        return None;
    }
    match build_key_file(reads, lane, kind, group, end) {
        Ok(counts) => {
            note_file(reads, lane, group, kind, counts);
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

fn note_file(
    reads: &ReadContext,
    lane: &LaneState,
    group: &Group,
    kind: &KeyKind,
    counts: KeyCounts,
) {
    group.note_key_file(kind, counts);
    // Compaction uses the file of the primary keys.
    if *kind == KeyKind::Primary {
        reads.compaction_marks.add(lane.id);
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
            let stats = KeyStats {
                misplaced: counts.misplaced,
                without_key: counts.without_key,
                ..KeyStats::default()
            };
            note_left_out(lane, index.kind(), &stats);
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
        return Err(named(&reads.dir, &group, index.kind(), error));
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
        return Err(named(&reads.dir, group, index.kind(), error));
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
    let (update, kind) = (index.update(), index.kind());
    if group.lose_key_file(kind, used) {
        warn_of_damage(reads, lane, group, kind, error);
        update.uncover(group.first_offset);
    } else if let Some(first) = first_without_file(lane, kind, update.covered()) {
        update.uncover(first.first_offset);
    }
}

/// Returns the first group before an offset that is not known to have a key file. Compaction writes no file of secondary keys
/// for a group that it puts in the place of others.
pub fn first_without_file(lane: &LaneState, kind: &KeyKind, covered: Offset) -> Option<Arc<Group>> {
    let earliest = lane.earliest_offset();
    let is_stored = |group: &Group| group.end().is_some_and(|end| end.offset > earliest);
    let groups = lane.groups().into_iter();
    let mut before = groups.take_while(|group| group.first_offset < covered);
    before.find(|group| is_stored(group) && group.counts_of(kind).is_none())
}

/// Returns how many groups of a lane could have a key file and are not known to have one.
pub fn groups_without_file(lane: &LaneState, kind: &KeyKind) -> u64 {
    if lane.is_memory_only() {
        return 0;
    }
    let (earliest, stable) = (lane.earliest_offset(), lane.stable_for_good());
    let is_ready = |end: &GroupEnd| end.offset > earliest && end.offset <= stable;
    let is_left = |group: &&Arc<Group>| {
        let is_whole = group.is_settled() && group.damage().is_none();
        is_whole && group.end().as_ref().is_some_and(is_ready) && group.counts_of(kind).is_none()
    };
    lane.groups().iter().filter(is_left).count() as u64
}

fn warn_of_damage(
    reads: &ReadContext,
    lane: &LaneState,
    group: &Group,
    kind: &KeyKind,
    error: KeyFileError,
) {
    let path = reads.dir.key_file_path(&group.name(), kind);
    tracing::warn!(stream = %lane.stream.name, partition = lane.partition, path = %path.display(), %error,
        "a key file is damaged or lost; it is made anew from its group");
}

fn warn_of_lost(lane: &LaneState, before: &Group, lost: u64) {
    if lost > 0 {
        tracing::warn!(stream = %lane.stream.name, partition = lane.partition, files = lost,
            "key files of groups before group {} were missing, and were made anew", before.id);
    }
}
