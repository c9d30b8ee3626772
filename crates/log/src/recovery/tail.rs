//! The last group of a lane while it is recovered.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hashbrown::HashSet;
use millstream_base::disk::Access;
use millstream_base::{DiskFile, Offset, Position, ProducerId, Timestamp};
use millstream_record::Chunk;
use uuid::Uuid;

use crate::error::{LogError, Result};
use crate::files::DataDir;
use crate::group::end::GroupEnd;
use crate::ids::GroupName;
use crate::index::entry::{EntryKind, Fingerprint, IndexEntry};
use crate::index::file::IndexWriter;
use crate::index::sparse::SparseIndex;
use crate::lane::head::is_entry_due;
use crate::memory::pool::{Arena, Pool};
use crate::producers::transactions::AbortedTransaction;
use crate::producers::{ProducerState, Producers};
use crate::recovery::closed::{ClosedGroup, Replayed};
use crate::recovery::foreign::{foreign, read_index};
use crate::recovery::lane::Damage;
use crate::recovery::scan::{SCAN_BYTES, first_crc, open, scan};

/// The last group of a lane while it is recovered.
pub struct Tail {
    pub name: GroupName,
    pub position: Position,
    pub offset: Offset,
    pub max_timestamp: Timestamp,
    pub producers: Producers,
    /// Producers that appended behind the last entry.
    pub unindexed: HashSet<ProducerId>,
    /// Transactions that were aborted behind the last entry.
    pub aborted: Vec<AbortedTransaction>,
    pub fingerprint: Fingerprint,
    pub indexed_at: Position,
    pub segments: Vec<Position>,
    pub sparse_index: SparseIndex,
    pub end: Option<GroupEnd>,
    /// Bytes of the index that are valid.
    pub index_len: u64,
    /// Entries to add to it.
    pub entries: Vec<IndexEntry>,
    /// Bytes of the file that must be written again; they end at `replayed.from`.
    pub buffer: Vec<u8>,
    /// The length of the file, where it does not end behind a whole chunk.
    pub truncate_from: Position,
    pub replayed: Replayed,
    /// Why the bytes behind it are missing, if they are.
    pub damage: Option<LogError>,
    /// The file is missing, or another group's: nothing may be written to it.
    pub is_foreign: bool,
    /// The identity of the stream that the file's head names, if it has one.
    pub identity: Option<Uuid>,
}

/// The place of a group in its lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TailPlace {
    /// Other groups with files follow.
    Before,
    /// It is the last one, and no write can have torn it.
    Last,
    /// It is the last one, and may end within a write.
    LastMayBeTorn,
}

impl Tail {
    pub fn begin(name: GroupName, producers: Producers) -> Tail {
        let mut tail = Tail {
            name,
            position: Position(0),
            offset: name.first_offset,
            max_timestamp: Timestamp(i64::MIN),
            producers,
            unindexed: HashSet::new(),
            aborted: Vec::new(),
            fingerprint: Fingerprint::default(),
            indexed_at: Position(0),
            segments: Vec::new(),
            sparse_index: SparseIndex::default(),
            end: None,
            index_len: 0,
            entries: Vec::new(),
            buffer: Vec::new(),
            truncate_from: Position(0),
            replayed: Replayed::begin(),
            damage: None,
            is_foreign: false,
            identity: None,
        };
        tail.add_index_entry(EntryKind::SegmentStart);
        tail
    }

    /// Reads a group. The torn end is truncated from the last one of a lane. Producers that a lost index
    /// leaves unknown, `producers` gives: the lane's before this group.
    pub fn read(
        dir: &DataDir,
        name: GroupName,
        place: TailPlace,
        mut producers: impl FnMut() -> Result<Producers>,
    ) -> Result<(Tail, Option<Damage>)> {
        let path = dir.group_path(&name);
        let (file, head) = match dir.open_with_head(&name, Access::Write) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let what = "the file is in the list of files, and missing";
                let error = LogError::corrupted(path, Position(0), what);
                let mut tail = Tail::begin(name, producers()?);
                tail.is_foreign = true;
                return Ok((tail, Some(Damage::for_ever(error))));
            }
            file => file.map_err(|error| LogError::io("open", &path, error))?,
        };
        let len = file
            .len()
            .map_err(|error| LogError::io("read", &path, error))?;
        let index = read_index(dir, &name)?;
        let is_old = index.len == 0;
        let known = index
            .entries
            .last()
            .map_or(Position(0), |entry| entry.position);
        let begin = |producers| {
            let mut tail = Tail::begin(name, producers);
            tail.replayed.has_file = true;
            tail.identity = head.map(|head| head.identity);
            tail
        };

        // Step 0: whether file and index are this group's.
        if let Some(what) = foreign(&*file, head.as_ref(), &path, &name, &index)? {
            let error = LogError::corrupted(&path, Position(0), what);
            let mut tail = begin(producers()?);
            tail.is_foreign = true;
            return Ok((tail, Some(Damage::for_ever(error))));
        }

        // Step 1: the index entries. Entries of a file that lost its end do not count.
        let mut tail = match index.entries.is_empty() {
            true => begin(producers()?),
            false => Tail {
                index_len: index.len,
                entries: Vec::new(),
                ..begin(Producers::default())
            },
        };
        let mut end = None;
        for mut entry in index.entries {
            if entry.position.0 > len {
                break;
            }
            if entry.kind == EntryKind::GroupEnd {
                end = Some(entry);
                break;
            }
            if is_old {
                // Written anew, in the format of today.
                if entry.position > Position(0) {
                    entry.fingerprint.first_crc = first_crc(&*file, &path)?;
                }
                tail.entries.push(entry.clone());
            }
            tail.restore(entry);
        }

        // Step 2: the chunks of the file behind the last entry.
        let broken = tail.scan(&*file, &path, Position(len))?;
        let mut damage = None;
        if tail.position < known {
            let what = match broken {
                Some(what) if tail.position.0 < len => what,
                _ => format!("the file ends here, but {known} bytes of it were synced"),
            };
            damage = Some(Damage {
                error: LogError::corrupted(&path, tail.position, what),
                healed_at: known,
                has_gap: false,
            });
            // The index names more bytes than the file holds: if the journal heals that, the index is
            // written anew.
            tail = begin(producers()?);
            tail.scan(&*file, &path, Position(len))?;
        }

        // Step 3: the torn end is truncated when the journal was replayed; the rest of the bytes behind the last entry is
        // written again.
        if damage.is_none() && place != TailPlace::Before {
            if len > tail.position.0 {
                tail.truncate_from = Position(len);
            } else if place == TailPlace::LastMayBeTorn {
                // The sync behind a truncation may have failed: without this, the bytes could come back.
                file.set_len(len)
                    .map_err(|error| LogError::io("truncate", &path, error))?;
            }
        }
        if let Some(entry) = end
            && damage.is_none()
        {
            // Closed and synced, so there is nothing to write again.
            tail.buffer.clear();
            tail.end = Some(GroupEnd::of(&entry));
            tail.entries.clear();
        }
        tail.replayed.from = tail.position;
        Ok((tail, damage))
    }

    /// Returns whether there is neither a file nor a chunk of it.
    pub fn is_blank(&self) -> bool {
        self.position == Position(0) && !self.replayed.has_file
    }

    /// Adds the chunks of the group's file from here on to `to`. Returns the fault where it
    /// stopped early.
    pub fn scan(
        &mut self,
        file: &dyn DiskFile,
        path: &PathBuf,
        to: Position,
    ) -> Result<Option<String>> {
        scan(file, path, self.position, to, |chunk| {
            let fits = chunk.header().base_offset == self.offset;
            if fits {
                // Before the chunk is added: a buffer with something in it means a rewrite.
                if self.buffer.len() >= SCAN_BYTES {
                    self.write(file, path, self.position)?;
                }
                self.note(chunk);
                self.buffer.extend_from_slice(chunk.bytes());
            }
            Ok(fits)
        })
    }

    pub fn restore(&mut self, entry: IndexEntry) {
        self.sparse_index.add(&entry);
        for aborted in &entry.aborted {
            self.sparse_index.add_aborted(*aborted);
        }
        self.position = entry.position;
        self.offset = entry.offset;
        self.max_timestamp = entry.max_timestamp;
        self.fingerprint = entry.fingerprint;
        self.indexed_at = entry.position;
        if entry.kind == EntryKind::SegmentStart && entry.position > Position(0) {
            self.segments.push(entry.position);
        }
        for (id, state) in entry.producers {
            self.producers.restore(id, state);
        }
    }

    /// Makes room in memory for a chunk of `bytes`, in segments that grow like an append's:
    /// a pool that was large enough for the appends is large enough again. `false` when the pool has no room.
    pub fn make_room(&mut self, pool: &Arc<Pool>, bytes: usize) -> bool {
        let last = self.replayed.writer.as_ref();
        if last.is_some_and(|segment| segment.room() >= bytes) {
            return true;
        }
        if bytes > pool.block_bytes_max(Arena::Segments) {
            return false;
        }
        let wanted = last.map_or(0, |last| {
            pool.next_segment_bytes(last.buffer().capacity(), bytes)
        });
        let Some(segment) = pool.allocate_segment(wanted, bytes) else {
            return false;
        };
        if self.segments.last() != Some(&self.position) {
            self.add_index_entry(EntryKind::SegmentStart);
        }
        let buffer = Arc::clone(segment.buffer());
        self.replayed.segments.push(buffer);
        self.replayed.writer = Some(segment);
        true
    }

    /// Adds a chunk from the journal behind the others.
    pub fn replay(&mut self, chunk: &Chunk<'_>) {
        self.note(chunk);
        let chunk = chunk.bytes();
        let segment = self.replayed.writer.as_mut();
        segment
            .expect("room was made")
            .extend::<std::convert::Infallible>(chunk.len(), |free| {
                free.copy_from_slice(chunk);
                Ok(chunk.len())
            })
            .unwrap_or_else(|never| match never {});
    }

    /// Takes note of a chunk that comes behind the others.
    pub fn note(&mut self, chunk: &Chunk<'_>) {
        if is_entry_due(self.position, self.indexed_at) {
            self.add_index_entry(EntryKind::Within);
        }
        let header = chunk.header();
        let bytes = chunk.bytes().len();
        self.fingerprint.add(self.position, header.crc, bytes);
        self.position = self.position.plus(bytes as u64);
        let ended = self.producers.stored(chunk);
        if let Some(aborted) = ended.and_then(|ended| ended.aborted()) {
            self.sparse_index.add_aborted(aborted);
            self.aborted.push(aborted);
        }
        if header.producer_id != ProducerId::NONE {
            self.unindexed.insert(header.producer_id);
        }
        self.offset = header.next_offset();
        self.max_timestamp = self.max_timestamp.max(header.max_timestamp);
    }

    pub fn add_index_entry(&mut self, kind: EntryKind) {
        let producers = if self.position == Position(0) {
            let all = self.producers.iter();
            all.map(|(id, state)| (id, state.clone())).collect()
        } else {
            self.unindexed
                .drain()
                .filter_map(|id| self.producers.get(id).map(|state| (id, state.clone())))
                .collect()
        };
        if kind == EntryKind::SegmentStart {
            self.segments.push(self.position);
        }
        self.indexed_at = self.position;
        let aborted = std::mem::take(&mut self.aborted);
        let entry = self.make_entry(kind, producers, aborted);
        self.sparse_index.add(&entry);
        self.entries.push(entry);
    }

    /// Makes an entry for the end of the group as it is now.
    pub fn make_entry(
        &self,
        kind: EntryKind,
        producers: Vec<(ProducerId, ProducerState)>,
        aborted: Vec<AbortedTransaction>,
    ) -> IndexEntry {
        IndexEntry {
            kind,
            position: self.position,
            offset: self.offset,
            max_timestamp: self.max_timestamp,
            stable: self.producers.stable(self.offset),
            producers,
            aborted,
            fingerprint: self.fingerprint,
        }
    }

    pub fn close(&mut self) {
        if self.end.is_some() {
            return;
        }
        if !self.aborted.is_empty() {
            // The closing entry names no transactions, so that it is found from the file's end.
            self.add_index_entry(EntryKind::Within);
        }
        let end = self.make_entry(EntryKind::GroupEnd, Vec::new(), Vec::new());
        self.end = Some(GroupEnd::of(&end));
        self.entries.push(end);
    }

    /// Writes the buffered bytes again.
    pub fn flush(&mut self, dir: &DataDir) -> Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let path = dir.group_path(&self.name);
        let file = open(dir, &self.name, Access::Write)?;
        self.write(&*file, &path, self.replayed.from)
    }

    /// Writes the buffered bytes, which end at `to`.
    pub fn write(&mut self, file: &dyn DiskFile, path: &Path, to: Position) -> Result<()> {
        let start = to.0 - self.buffer.len() as u64;
        file.write_at(&self.buffer, start)
            .map_err(|error| LogError::io("write", path, error))?;
        self.buffer = Vec::new();
        Ok(())
    }

    /// Adds the entries to the index file; the group's file is synced.
    pub fn write_entries(&mut self, dir: &DataDir) {
        if self.entries.is_empty() || !self.replayed.has_file {
            return;
        }
        let path = dir.index_path(&self.name);
        // A file without a head has an index without it.
        let identity = self.identity.unwrap_or_default();
        let written = IndexWriter::open(&*dir.disk, &path, &self.name, identity, self.index_len)
            .and_then(|mut writer| writer.append(&self.entries).map(|()| writer.len()));
        match written {
            Ok(len) => {
                self.index_len = len;
                self.entries.clear();
            }
            // The group takes them over.
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "index not written yet");
            }
        }
    }

    /// The group, which is closed.
    pub fn into_closed(self) -> ClosedGroup {
        // The entries of other groups are in the index, and may never be needed. A lost file may have lost its index, too.
        let is_needed =
            !self.entries.is_empty() || !self.replayed.segments.is_empty() || self.damage.is_some();
        ClosedGroup {
            name: self.name,
            end: self.end.expect("closed before the next one begins"),
            index_len: self.index_len,
            entries: self.entries,
            segments: self.segments,
            sparse_index: is_needed.then_some(self.sparse_index),
            replayed: Replayed {
                writer: None,
                ..self.replayed
            },
            damage: self.damage,
            identity: self.identity,
        }
    }
}

#[cfg(test)]
mod tests {
    use millstream_base::{GroupId, LaneIndex, StreamId, StreamletIndex};

    use super::*;
    use crate::ids::LaneId;

    #[test]
    fn a_long_replay_takes_large_segments() {
        let pool = Pool::new(256 << 20, 16 << 20).unwrap();
        let lane = LaneId {
            stream: StreamId(1),
            streamlet: StreamletIndex(0),
            lane: LaneIndex(0),
        };
        let name = GroupName::of_new(lane, GroupId(0), Offset(0));
        let mut tail = Tail::begin(name, Producers::default());
        for _ in 0..(64 << 20) / (60 << 10) {
            assert!(tail.make_room(&pool, 60 << 10));
            tail.replayed.writer.as_mut().unwrap().skip(60 << 10);
        }
        let segments = &tail.replayed.segments;
        assert!(segments.len() < 50, "{}", segments.len());
        assert_eq!(segments.last().unwrap().capacity(), 2 << 20);
        // A chunk that is larger than most segments gets one with room for more of them.
        assert!(tail.make_room(&pool, 2 << 20));
        assert_eq!(tail.replayed.segments.last().unwrap().capacity(), 4 << 20);
    }
}
