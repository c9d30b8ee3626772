//! Rewrites a run of groups into one group: its chunks, its index and its key file.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use millstream_base::{Offset, Position, ProducerId, Timestamp, partition_of_key};
use millstream_record::{
    Chunk, Chunks, EndMarker, Fate, Life, Record, RewriteRules, Rewriter, TransactionEnd,
};

use crate::compact::live::{LiveOffsets, LiveReader};
use crate::error::{LogError, Result};
use crate::group::Group;
use crate::group::end::GroupEnd;
use crate::ids::GroupName;
use crate::index::entry::{EntryKind, Fingerprint, IndexEntry};
use crate::keys::expiry::KeyedClock;
use crate::keys::file::sort::KeySorter;
use crate::keys::file::{KeyCounts, KeyFileError};
use crate::keys::kind::KeyKind;
use crate::lane::LaneState;
use crate::lane::head::is_entry_due;
use crate::producers::ProducerState;
use crate::producers::transactions::AbortedTransaction;
use crate::read::aborted::AbortedIndex;
use crate::read::context::ReadContext;
use crate::read::group::read_group;
use crate::read::keys::update::in_chunk;
use crate::recovery::foreign::read_index;
use crate::recovery::producers::producers_behind;
use crate::settings::limits::LiveLimits;

/// The bytes of chunks that one read fetches.
const READ_BYTES: usize = 1 << 20;

/// The place where a rewritten group goes.
pub trait RewriteOutput {
    /// Appends whole chunks behind those before.
    fn append(&mut self, chunks: &[u8]) -> Result<()>;

    /// Adds an entry to the index. All chunks before its position were appended.
    fn add_entry(&mut self, entry: IndexEntry) -> Result<()>;
}

/// The states of all producers of a lane at a position.
pub type ProducerStates = Vec<(ProducerId, ProducerState)>;

/// The expired values, and the fate of their records in a rewrite.
#[derive(Debug, Clone, Copy)]
pub struct EndedValues {
    /// The values have expired by this time.
    pub until: Timestamp,
    /// The lifetime of values without an expiry of their own.
    pub ttl: Option<Duration>,
    /// The fate of their records.
    pub fate: Fate,
}

impl EndedValues {
    /// Returns the values that have ended by the time of a pass, which drops tombstones after `retention`.
    pub fn of(limits: &LiveLimits, now: Timestamp, retention: i64) -> EndedValues {
        let (until, fate) = match limits.keyed_clock() {
            // The time is in the past, so that a clock that jumps destroys nothing. The tombstone tells readers that the
            // key is absent.
            KeyedClock::Wall => (Timestamp(now.0.saturating_sub(retention)), Fate::LosesValue),
            // The owner of the stream has set the time, and needs these values no more.
            KeyedClock::At(time) => (time, Fate::Expires),
        };
        EndedValues {
            until,
            ttl: limits.ttl(),
            fate,
        }
    }

    /// Returns the values that a rewrite may change although older records of their keys may stay. A tombstone hides those.
    /// Without a tombstone they would be found again, since an older record may end later, or never. So a value that goes
    /// without one stays as it is until a later pass leaves no older record; look-ups compare its end with the clock.
    pub fn above_older(self) -> Option<EndedValues> {
        (self.fate != Fate::Expires).then_some(self)
    }

    fn fate_of(&self, record: &Record<'_>) -> Fate {
        match record.value.is_some() && Life::of(record).is_over(self.ttl, self.until) {
            true => self.fate,
            false => Fate::Stays,
        }
    }
}

/// The groups to rewrite, and how.
pub struct Rewrite<'a> {
    pub reads: &'a ReadContext,
    pub lane: &'a LaneState,
    /// Adjacent closed groups, oldest first.
    pub groups: &'a [Arc<Group>],
    /// The name of the new group.
    pub name: GroupName,
    /// The path of the new group's key file, which is written and synced.
    pub keys_path: PathBuf,
    pub rules: RewriteRules,
    /// The expired values; `None` to keep all values.
    pub ended: Option<EndedValues>,
    /// The producer states before the first group and behind the last one: the new chunks no longer contain them.
    pub producers: [ProducerStates; 2],
    /// Called with the number of bytes of each read and write; fails if the rewrite must stop.
    pub pace: &'a dyn Fn(u64) -> Result<()>,
}

/// A group that was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rewritten {
    pub end: GroupEnd,
    /// The counts of its key file.
    pub keys: KeyCounts,
    /// The offset behind the last live tombstone or value that was dropped, if one was.
    pub dropped_to: Option<Offset>,
}

impl Rewrite<'_> {
    /// Writes the new group to `output`, with the records that `live` names and those without a key. Offsets stay as they
    /// are, and the new chunks cover the same ones.
    ///
    /// # Errors
    /// When the groups or their key files cannot be read, or the new files cannot be written. They are of no use then.
    pub fn run(
        self,
        live: &mut LiveReader<'_>,
        output: &mut dyn RewriteOutput,
    ) -> Result<Rewritten> {
        let (first, last) = (&self.groups[0], &self.groups[self.groups.len() - 1]);
        let last_end = last.end().ok_or(LogError::Closed)?;
        let range = first.first_offset..last_end.offset;
        let aborted = AbortedIndex::read(self.reads, self.lane, range.start, range.end)?;
        let [before, behind] = self.producers;
        let disk = &*self.reads.dir.disk;
        let path = self.keys_path.clone();
        let mut writer = GroupWriter {
            reads: self.reads,
            lane: self.lane,
            output,
            sorter: KeySorter::new(
                disk,
                path,
                self.name,
                KeyKind::Primary,
                range.end,
                self.reads.memory.sorted_keys,
            ),
            keys_path: &self.keys_path,
            aborted: &aborted,
            state: EntryState {
                position: Position(0),
                offset: range.start,
                max_timestamp: Timestamp(i64::MIN),
                fingerprint: Fingerprint::default(),
                indexed_at: Position(0),
                marked: Vec::new(),
            },
            end_stable: last_end.stable,
        };
        writer.add_entry(EntryKind::SegmentStart, before)?;
        let rest = Rest {
            aborted: &aborted,
            ended: self.ended,
        };
        let mut rewriter = Rewriter::new(range.start, self.rules);
        let mut out = Vec::new();
        for group in self.groups {
            let end = group.end().ok_or(LogError::Closed)?;
            let mut at = Position(0);
            while at < end.position {
                let slice = read_group(self.reads, self.lane, group, at, READ_BYTES)?;
                let slice = slice.ok_or_else(|| removed(self.lane, group))?;
                (self.pace)(slice.len() as u64)?;
                for chunk in Chunks::trusted(&slice) {
                    let path = || group.path(&self.reads.dir);
                    let chunk = chunk.map_err(|error| LogError::corrupted(path(), at, error))?;
                    push(
                        self.reads,
                        self.lane,
                        &chunk,
                        live,
                        &rest,
                        &mut rewriter,
                        &mut out,
                    )?;
                }
                at = at.plus(slice.len() as u64);
                writer.write(&mut out, self.pace)?;
            }
        }
        rewriter.finish(&mut out)?;
        writer.write(&mut out, self.pace)?;
        // One entry with all producers; the one that closes the group names none.
        writer.add_entry(EntryKind::Within, behind)?;
        let end = writer.add_entry(EntryKind::GroupEnd, Vec::new())?;
        let keys = writer.sorter.finish();
        let keys = keys.map_err(|error| unwritten(&self.keys_path, error))?;
        Ok(Rewritten {
            end,
            keys,
            dropped_to: rewriter.dropped_to(),
        })
    }
}

/// The facts about records of the old groups beside their keys.
struct Rest<'a> {
    aborted: &'a AbortedIndex,
    ended: Option<EndedValues>,
}

impl Rest<'_> {
    fn fate_of_live(&self, record: &Record<'_>) -> Fate {
        let ended = self.ended;
        ended.map_or(Fate::Stays, |ended| ended.fate_of(record))
    }
}

/// Takes a chunk of the old groups.
fn push(
    reads: &ReadContext,
    lane: &LaneState,
    chunk: &Chunk<'_>,
    live: &mut LiveReader<'_>,
    rest: &Rest<'_>,
    rewriter: &mut Rewriter,
    out: &mut Vec<u8>,
) -> Result<()> {
    let header = chunk.header();
    let earliest = lane.earliest_offset();
    let is_aborted = rest.aborted.holds(header);
    let live: &mut LiveOffsets = live.of_chunk(header.base_offset..header.next_offset())?;
    let wait_max = reads.decompression_wait_max;
    let pushed = reads
        .decompression
        .with_records(chunk, wait_max, |records| {
            let fate = |_: &_, record: &Record<'_>| match record.key {
                Some(_) if live.contains(record.offset) => rest.fate_of_live(record),
                // Stored before keys were demanded.
                None if !is_aborted && record.offset >= earliest => Fate::Stays,
                _ => Fate::Goes,
            };
            rewriter.push(chunk, records, fate, out)
        });
    let pushed = pushed.and_then(|pushed| pushed.map_err(LogError::Chunk));
    pushed.map_err(|error| in_chunk(lane, chunk, error))
}

/// The new group, as far as it was written.
struct GroupWriter<'a> {
    reads: &'a ReadContext,
    lane: &'a LaneState,
    output: &'a mut dyn RewriteOutput,
    sorter: KeySorter<'a>,
    keys_path: &'a PathBuf,
    /// The transactions of the run that were aborted.
    aborted: &'a AbortedIndex,
    state: EntryState,
    /// The last stable offset at the end of the run before the rewrite.
    end_stable: Offset,
}

/// The state at the position of the next chunk.
struct EntryState {
    position: Position,
    offset: Offset,
    max_timestamp: Timestamp,
    fingerprint: Fingerprint,
    indexed_at: Position,
    /// Aborted transactions whose markers were written since the last entry.
    marked: Vec<AbortedTransaction>,
}

impl GroupWriter<'_> {
    /// Appends new chunks, and takes note of them for index and key file.
    fn write(&mut self, out: &mut Vec<u8>, pace: &dyn Fn(u64) -> Result<()>) -> Result<()> {
        let (mut appended, mut at) = (0, 0);
        let mut chunks = Chunks::trusted(out);
        while let Some(chunk) = chunks.next() {
            let chunk = chunk?;
            if is_entry_due(self.state.position, self.state.indexed_at) {
                self.output.append(&out[appended..at])?;
                appended = at;
                self.add_entry(EntryKind::Within, Vec::new())?;
            }
            self.note(&chunk)?;
            at = chunks.position();
        }
        self.output.append(&out[appended..])?;
        pace(out.len() as u64)?;
        out.clear();
        Ok(())
    }

    fn note(&mut self, chunk: &Chunk<'_>) -> Result<()> {
        let header = chunk.header();
        self.sorter.note_chunk(header);
        if header.attributes.is_control() {
            let is_abort = |marker: EndMarker| marker.end == TransactionEnd::Abort;
            if EndMarker::of(chunk).is_some_and(is_abort) {
                let ended = self.aborted.ended_at(header.base_offset);
                self.state.marked.extend(ended);
            }
        } else if header.record_count > 0 {
            self.add_keys(chunk)?;
        }
        let (position, bytes) = (self.state.position, chunk.bytes().len());
        self.state.fingerprint.add(position, header.crc, bytes);
        self.state.position = position.plus(bytes as u64);
        self.state.offset = header.next_offset();
        self.state.max_timestamp = self.state.max_timestamp.max(header.max_timestamp);
        Ok(())
    }

    fn add_keys(&mut self, chunk: &Chunk<'_>) -> Result<()> {
        let partitions = self.lane.stream.partition_count() as usize;
        let partition = self.lane.partition as usize;
        let is_owned = |key: &[u8]| partition_of_key(key, partitions) == partition;
        let (position, sorter) = (self.state.position, &mut self.sorter);
        let wait_max = self.reads.decompression_wait_max;
        let added = self
            .reads
            .decompression
            .with_records(chunk, wait_max, |records| {
                for record in records {
                    let added = sorter.add_record(&record?, position, is_owned);
                    added.map_err(|error| unwritten(self.keys_path, error))?;
                }
                Ok::<(), LogError>(())
            });
        added.and_then(|added| added)
    }

    /// Adds an entry for the position of the next chunk. Returns it as an end of the group.
    fn add_entry(&mut self, kind: EntryKind, producers: ProducerStates) -> Result<GroupEnd> {
        let state = &mut self.state;
        state.indexed_at = state.position;
        let entry = IndexEntry {
            kind,
            position: state.position,
            offset: state.offset,
            max_timestamp: state.max_timestamp,
            stable: match kind {
                EntryKind::GroupEnd => self.end_stable,
                // No transaction that ends behind a position begins before its last stable offset.
                _ => self.aborted.stable_at(state.offset),
            },
            producers,
            aborted: std::mem::take(&mut state.marked),
            fingerprint: state.fingerprint,
        };
        let end = GroupEnd::of(&entry);
        self.output.add_entry(entry)?;
        Ok(end)
    }
}

/// Returns all producers of a lane at the beginning of a group: from the group's index, or where a crash has torn that, from
/// the groups before it.
///
/// # Errors
/// When a file cannot be read.
pub fn producers_at(
    reads: &ReadContext,
    lane: &LaneState,
    group: &Group,
) -> Result<ProducerStates> {
    if let Some(entry) = group.first_unwritten_entry() {
        return Ok(entry.producers);
    }
    let index = read_index(&reads.dir, &group.name())?;
    if let Some(producers) = index.producers_at_start() {
        return Ok(producers);
    }
    let producers = producers_behind(&reads.dir, &lane.ends_before(group.id))?;
    let states = producers.iter().map(|(id, state)| (id, state.clone()));
    Ok(states.collect())
}

fn removed(lane: &LaneState, group: &Group) -> LogError {
    LogError::OffsetOutOfRange {
        offset: group.first_offset,
        earliest: lane.earliest_offset(),
        end: lane.high_watermark(),
    }
}

fn unwritten(path: &PathBuf, error: KeyFileError) -> LogError {
    match error {
        KeyFileError::Io(error) => LogError::io("write", path, error),
        KeyFileError::Damaged { position, what } => {
            LogError::corrupted(path, Position(position), what)
        }
    }
}
