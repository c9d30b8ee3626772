//! Reads older versions of a key: from the newest group to the oldest, and within a group from its end.
//!
//! A group whose key file lacks the key is passed over. One that has it is read from the position of its newest version back to
//! the group's beginning, some chunks at a time. A rewritten group has one version of each key, so no more of it is read. Groups
//! behind the key files are read whole, unless the table in memory lacks the key.

use std::collections::VecDeque;
use std::sync::Arc;

use millstream_base::{Offset, Position};
use millstream_record::{Chunk, Chunks, Records};

use crate::error::{LogError, Result};
use crate::group::Group;
use crate::keys::file::read::key_hash;
use crate::lane::LaneState;
use crate::read::aborted::AbortedIndex;
use crate::read::catch_up::Purpose;
use crate::read::context::ReadContext;
use crate::read::group::read_up_to;
use crate::read::keys::cover::give_up_file;
use crate::read::keys::files::Unreadable;
use crate::read::keys::find::find_in_group;
use crate::read::keys::update::{
    TRIES_MAX, check_stored, in_chunk, look_at_keys, may_be_removed, not_stored,
};
use crate::read::keys::version::{KeyVersion, copy_of};

/// The bytes of chunks that one read fetches, about.
const READ_BYTES: u64 = 1 << 20;

/// A version of a key, which may be a deletion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredVersion {
    /// Its record. Of a deletion, the value is empty.
    pub version: KeyVersion,
    /// Whether the record has no value.
    pub is_deletion: bool,
}

/// The bounds of a read of older versions.
#[derive(Debug, Clone, Copy)]
pub struct OlderBounds {
    /// The most versions.
    pub versions: usize,
    /// About the most bytes of values and headers; one version always comes.
    pub bytes: usize,
    /// About the most bytes of chunks to read.
    pub read_bytes: u64,
}

/// Older versions of a key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Older {
    /// Newest first.
    pub versions: Vec<StoredVersion>,
    /// All stored versions from here on are there, and older ones may follow; `None` if there are no others.
    pub next: Option<Offset>,
}

/// Returns the stored, committed versions of a key before an offset, newest first. Finds none if another partition owns the key.
///
/// # Errors
/// When chunks or key files cannot be read, the stream is deleted, or the log ends.
pub fn older_versions(
    reads: &ReadContext,
    lane: &LaneState,
    partitions: impl Fn() -> u32,
    key: &[u8],
    before: Offset,
    bounds: &OlderBounds,
) -> Result<Older> {
    let before = before.min(lane.last_stable_offset());
    let (newest, covered, is_owned) = look_at_keys(reads, lane, &partitions, |table| {
        (table.newest(key), table.covered(), table.owns(key))
    })?;
    if !is_owned {
        return Ok(Older::default());
    }
    let from = match newest {
        Some(newest) => Offset(newest.offset.0 + 1),
        // A table without key files forgets deletions.
        None if lane.is_memory_only() => before,
        None => covered,
    };
    let mut walk = Walk {
        reads,
        lane,
        key,
        hash: key_hash(key),
        at: before.min(from),
        left: *bounds,
        older: Older::default(),
    };
    let (mut losses, mut tries) = (0, 0);
    while walk.at > lane.earliest_offset() && !walk.is_full() {
        check_stored(lane)?;
        let offset = Offset(walk.at.0 - 1);
        let Some(group) = lane.group_of_offset(offset) else {
            break;
        };
        match walk.look_into(&group) {
            Ok(true) => tries = 0,
            Err(Failed::Keys(unreadable)) if !group.is_removed_for_good() => {
                let index = lane.key_index(partitions());
                give_up_file(reads, lane, index, unreadable, &mut losses)?;
            }
            Err(Failed::Log(error)) if !may_be_removed(lane, offset, &error) => {
                return Err(check_stored(lane).err().unwrap_or(error));
            }
            // Removed or replaced meanwhile, which other threads see in several steps.
            _ if tries < TRIES_MAX => {
                tries += 1;
                std::thread::yield_now();
            }
            _ => return Err(not_stored(lane, offset)),
        }
    }
    Ok(walk.finish())
}

/// Why a group cannot be read.
enum Failed {
    Keys(Unreadable),
    Log(LogError),
}

impl From<LogError> for Failed {
    fn from(error: LogError) -> Failed {
        Failed::Log(error)
    }
}

/// A read of older versions while it goes on.
struct Walk<'a> {
    reads: &'a ReadContext,
    lane: &'a LaneState,
    key: &'a [u8],
    hash: u64,
    /// The offset from which on all versions up to the read's beginning were examined.
    at: Offset,
    /// The rest of the bounds.
    left: OlderBounds,
    older: Older,
}

impl Walk<'_> {
    fn is_full(&self) -> bool {
        let has_some = !self.older.versions.is_empty();
        self.left.versions == 0 || self.left.read_bytes == 0 || (has_some && self.left.bytes == 0)
    }

    fn finish(mut self) -> Older {
        let is_end = self.at <= self.lane.earliest_offset() || !self.is_full();
        self.older.next = (!is_end).then_some(self.at);
        self.older
    }

    /// Reads the group that has the offset before `at`, or passes over it. `false` if it was taken away.
    fn look_into(&mut self, group: &Arc<Group>) -> std::result::Result<bool, Failed> {
        if group.key_counts().is_none() {
            return Ok(self.read_group(group)?);
        }
        let found = find_in_group(self.reads, group, self.key, self.hash).map_err(Failed::Keys)?;
        let version = match found {
            Some(newest) if newest.offset < self.at => newest.offset,
            // A rewritten group has no other one.
            Some(_) if !group.is_rewritten() => return Ok(self.read_group(group)?),
            _ => {
                self.at = group.first_offset;
                return Ok(true);
            }
        };
        self.at = Offset(version.0 + 1);
        if !group.is_rewritten() {
            return Ok(self.read_group(group)?);
        }
        let is_there = self.read_window(group)?;
        if is_there && !self.is_full() {
            self.at = self.at.min(group.first_offset);
        }
        Ok(is_there)
    }

    /// Reads a group from `at` back to its beginning, or until the read is full. `false` if the group was taken away.
    fn read_group(&mut self, group: &Arc<Group>) -> Result<bool> {
        let first = group.first_offset.max(self.lane.earliest_offset());
        while self.at > first && !self.is_full() {
            check_stored(self.lane)?;
            if self.reads.key_files.is_closing() {
                return Err(LogError::Closed);
            }
            if !self.read_window(group)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads some chunks of a group that end at `at`, and moves `at` to their beginning, or to the oldest version that is
    /// taken. `false` if the group was taken away.
    fn read_window(&mut self, group: &Arc<Group>) -> Result<bool> {
        let (from, first) = self.window(group)?;
        let first = first.max(self.lane.earliest_offset());
        let aborted = AbortedIndex::read(self.reads, self.lane, first, self.at)?;
        let mut found = Newest::new(&self.left, self.older.versions.is_empty());
        let (mut at, mut next) = (from, Offset(0));
        while next < self.at {
            let (head, purpose) = (Group::high_watermark, Purpose::ReadOn);
            let bytes = READ_BYTES as usize;
            let slice = read_up_to(self.reads, self.lane, group, at, bytes, head, purpose)?;
            let Some(slice) = slice else {
                // A repair may have left a gap behind the group.
                let is_end = group.end().is_some_and(|end| at >= end.position);
                match is_end && !group.is_removed() {
                    true => break,
                    false => return Ok(false),
                }
            };
            for chunk in Chunks::trusted(&slice) {
                let chunk = chunk
                    .map_err(|error| LogError::corrupted(group.path(&self.reads.dir), at, error))?;
                if next >= self.at {
                    break;
                }
                self.look(&chunk, first, &aborted, &mut found)?;
                next = chunk.header().next_offset();
                at = at.plus(chunk.bytes().len() as u64);
            }
        }
        let read = at.0.saturating_sub(from.0).max(1);
        self.left.read_bytes = self.left.read_bytes.saturating_sub(read);
        self.take(found, first);
        Ok(true)
    }

    /// Returns the position and the offset at which a window begins that ends at `at`.
    fn window(&self, group: &Arc<Group>) -> Result<(Position, Offset)> {
        let (before, bytes) = (self.at, READ_BYTES.min(self.left.read_bytes));
        let point = self.reads.indexes.look_at(self.lane, group, |index| {
            let last = index.last_before(|point| point.offset < before)?;
            let from = last.position.0.saturating_sub(bytes);
            index.last_before(|point| point.position.0 <= from)
        })?;
        let (position, first) = match point {
            Some(point) => (point.position, point.offset),
            None => (Position(0), group.first_offset),
        };
        // Deleted records may be damaged.
        let start = self.lane.start.place().filter(|start| start.is_in(group));
        Ok(match start {
            Some(start) if start.position > position => (start.position, first),
            _ => (position, first),
        })
    }

    /// Looks for the key in a chunk.
    fn look(
        &self,
        chunk: &Chunk<'_>,
        first: Offset,
        aborted: &AbortedIndex,
        found: &mut Newest,
    ) -> Result<()> {
        let header = chunk.header();
        let is_control = header.attributes.is_control();
        if is_control || aborted.holds(header) {
            return Ok(());
        }
        let wait_max = self.reads.decompression_wait_max;
        let looked = |records: Records<'_>| {
            for record in records {
                let record = record?;
                let is_in = (first..self.at).contains(&record.offset);
                if is_in && record.key == Some(self.key) {
                    found.add(StoredVersion {
                        version: copy_of(&record, record.value.unwrap_or_default()),
                        is_deletion: record.value.is_none(),
                    });
                }
            }
            Ok(())
        };
        let looked = self
            .reads
            .decompression
            .with_records(chunk, wait_max, looked);
        let looked = looked.and_then(|looked| looked.map_err(LogError::Chunk));
        looked.map_err(|error| in_chunk(self.lane, chunk, error))
    }

    /// Takes the versions found in a window that begins at `first`.
    fn take(&mut self, found: Newest, first: Offset) {
        self.left.versions -= found.versions.len();
        self.left.bytes = self.left.bytes.saturating_sub(found.bytes);
        match found.has_dropped {
            // The next read begins with those that did not fit.
            true => {
                let oldest = found.versions.front();
                self.at = oldest.map_or(self.at, |oldest| oldest.version.offset);
                self.left.bytes = 0;
            }
            false => self.at = self.at.min(first),
        }
        self.older.versions.extend(found.versions.into_iter().rev());
    }
}

/// The newest versions of a window that fit into bounds.
struct Newest {
    /// Oldest first.
    versions: VecDeque<StoredVersion>,
    bytes: usize,
    versions_max: usize,
    bytes_max: usize,
    /// Whether one stays, however large it is.
    keeps_one: bool,
    /// Whether older ones did not fit.
    has_dropped: bool,
}

impl Newest {
    fn new(left: &OlderBounds, keeps_one: bool) -> Newest {
        Newest {
            versions: VecDeque::new(),
            bytes: 0,
            versions_max: left.versions,
            bytes_max: left.bytes,
            keeps_one,
            has_dropped: false,
        }
    }

    fn add(&mut self, version: StoredVersion) {
        self.bytes += bytes_of(&version);
        self.versions.push_back(version);
        let least = usize::from(self.keeps_one);
        while self.versions.len() > self.versions_max
            || (self.bytes > self.bytes_max && self.versions.len() > least)
        {
            let Some(oldest) = self.versions.pop_front() else {
                break;
            };
            self.bytes -= bytes_of(&oldest);
            self.has_dropped = true;
        }
    }
}

/// The bytes of a version's value and headers.
fn bytes_of(stored: &StoredVersion) -> usize {
    let headers = stored.version.headers.iter().map(|header| {
        let value = header.value.as_ref().map_or(0, |value| value.len());
        header.name.len() + value
    });
    stored.version.value.len() + headers.sum::<usize>()
}
