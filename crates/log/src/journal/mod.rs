//! The journal: where chunks of many lanes become durable with one write.
//!
//! A series of files of fixed size. A file is a header and *blocks*, one for each group commit: a
//! directory of *runs* (neighbouring chunks of one group) and their bytes. A file whose runs are all
//! in synced group files is used again under a later number, since overwriting blocks that a file
//! has is several times cheaper to sync than growing a new one.
//!
//! A block is written after the one before it is synced. So a block that is not whole is the torn
//! end of the journal if nothing valid follows it, and lost data if something does. What is valid
//! no producer can make up and send in a chunk: each block carries a secret of the run, which the
//! file's name gives.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hashbrown::HashMap;
use millstream_base::disk::Access;
use millstream_base::{
    DiskFile, GroupId, LaneIndex, Offset, Position, StreamId, StreamletIndex, Timestamp, crc32c,
};
use parking_lot::Mutex;

use crate::error::{LogError, Result};
use crate::files::{DataDir, LOST_AND_FOUND};
use crate::group::Group;
use crate::ids::LaneId;
use crate::memory::pool::Slice;

/// The smallest journal file: a few blocks of the smallest segments.
pub const FILE_BYTES_MIN: u64 = 256 << 10;

/// A file that is written to see whether a full disk has room again, and removed at once.
pub const PROBE: &str = "probe";

const FILE_MAGIC: [u8; 8] = *b"MSJRNAL2";
/// The header has a page of its own, so that it is never rewritten with a block.
const FILE_HEADER_BYTES: u64 = 4096;
/// What of it is written.
const FILE_HEADER_USED: usize = 28;

const BLOCK_MAGIC: [u8; 4] = *b"MSBK";
const BLOCK_HEADER_BYTES: usize = 40;
const RUN_BYTES: usize = 48;
/// More runs than this go into the next block: a bound for recovery's directory.
const RUNS_MAX: usize = 65_536;

/// Neighbouring chunks of one group that wait to be made durable.
#[derive(Debug)]
pub struct Run {
    pub group: Arc<Group>,
    pub position: Position,
    pub slice: Slice,
}

impl Run {
    pub fn end(&self) -> Position {
        self.position.plus(self.slice.len() as u64)
    }
}

/// What came of a block.
#[derive(Debug)]
pub enum WriteOutcome {
    /// It is durable.
    Durable,
    /// All files are in use: obsolete ones must be released first.
    NoFile,
}

pub struct Journal {
    file_bytes: u64,
    files_max: usize,
    /// In the name of each file of this run, and in each block.
    secret: u64,
    state: Mutex<State>,
}

struct State {
    active: Option<Active>,
    /// Full files, oldest first.
    full: VecDeque<Full>,
    /// Obsolete files that wait for a new number.
    spare: Vec<PathBuf>,
    next_sequence: u64,
    /// Where the last file ends: written into the header of the next.
    previous_end: u64,
    blocks: u64,
    bytes: u64,
}

struct Active {
    path: PathBuf,
    file: Box<dyn DiskFile>,
    sequence: u64,
    /// End of the last durable block.
    end: u64,
    next_block: u64,
    groups: Groups,
}

struct Full {
    path: PathBuf,
    groups: Groups,
}

/// The groups that a file has runs of, with the end of the last one.
type Groups = HashMap<(LaneId, GroupId), (Arc<Group>, Position)>;

/// How much the journal has been used.
#[derive(Debug, Clone, Copy, Default)]
pub struct JournalUse {
    pub blocks: u64,
    pub bytes: u64,
    pub files: usize,
}

impl Journal {
    /// A journal without files; those of a former life must have been replayed and removed.
    /// `secret` is random.
    pub fn new(next_sequence: u64, secret: u64, journal_bytes: u64, file_bytes: u64) -> Journal {
        Journal {
            file_bytes,
            files_max: ((journal_bytes / file_bytes) as usize).max(2),
            secret,
            state: Mutex::new(State {
                active: None,
                full: VecDeque::new(),
                spare: Vec::new(),
                next_sequence,
                previous_end: FILE_HEADER_BYTES,
                blocks: 0,
                bytes: 0,
            }),
        }
    }

    /// The most bytes of runs that one block takes, whatever they are cut into.
    pub fn block_bytes_max(&self) -> usize {
        let overhead = FILE_HEADER_BYTES as usize + BLOCK_HEADER_BYTES + 1024 * RUN_BYTES;
        self.file_bytes as usize - overhead
    }

    /// How many of the first `runs` fit into one block; at least one.
    pub fn fitting<'a>(&self, runs: impl Iterator<Item = &'a Run>) -> usize {
        let room = self.file_bytes as usize - FILE_HEADER_BYTES as usize - BLOCK_HEADER_BYTES;
        let mut bytes = 0;
        let count = runs
            .take(RUNS_MAX)
            .take_while(|run| {
                bytes += RUN_BYTES + run.slice.len();
                bytes <= room
            })
            .count();
        count.max(1)
    }

    /// Writes `runs` as one block and syncs it.
    ///
    /// # Errors
    /// A full disk leaves the journal as it was, to be tried again. After a failed sync the file is
    /// given up: later blocks go to the next one, whose header says where this one ends.
    pub fn write(&self, dir: &DataDir, runs: &[&Run]) -> Result<WriteOutcome> {
        let mut state = self.state.lock();
        let directory_bytes = BLOCK_HEADER_BYTES + RUN_BYTES * runs.len();
        let data_bytes: usize = runs.iter().map(|run| run.slice.len()).sum();
        let block_bytes = (directory_bytes + data_bytes) as u64;
        assert!(
            FILE_HEADER_BYTES + block_bytes <= self.file_bytes,
            "block fits a file"
        );
        if let Some(active) = &state.active
            && active.end + block_bytes > self.file_bytes
        {
            state.retire_active();
        }
        if state.active.is_none() {
            if state.persistable_files() >= self.files_max {
                return Ok(WriteOutcome::NoFile);
            }
            state.open_next(dir, self.file_bytes, self.secret)?;
        }
        let active = state.active.as_mut().expect("opened above");
        let place = BlockPlace {
            file: active.sequence,
            secret: self.secret,
            number: active.next_block,
        };
        let head = encode_head(&place, runs, block_bytes);
        let mut parts = Vec::with_capacity(runs.len() + 1);
        parts.push(IoSlice::new(&head));
        parts.extend(runs.iter().map(|run| IoSlice::new(&run.slice)));
        active
            .file
            .write_past_cache_at(&mut parts, active.end)
            .map_err(|error| LogError::io("write", &active.path, error))?;
        if let Err(error) = active.file.sync() {
            let error = LogError::io("sync", &active.path, error);
            // The durable blocks stay valid; nothing more is written to this file.
            state.retire_active();
            return Err(LogError::LaneFault {
                what: error.to_string(),
            });
        }
        active.end += block_bytes;
        active.next_block += 1;
        for run in runs {
            let entry = active
                .groups
                .entry((run.group.lane, run.group.id))
                .or_insert_with(|| (Arc::clone(&run.group), run.end()));
            entry.1 = entry.1.max(run.end());
        }
        state.blocks += 1;
        state.bytes += data_bytes as u64;
        Ok(WriteOutcome::Durable)
    }

    /// Whether another block can be written before files are released.
    pub fn has_room(&self) -> bool {
        let state = self.state.lock();
        state.active.is_some() || state.persistable_files() < self.files_max
    }

    /// Full files, as a part of those that there may be.
    pub fn fill(&self) -> f64 {
        let state = self.state.lock();
        state.full.len() as f64 / self.files_max as f64
    }

    /// The groups that keep the oldest `share` of the files that there may be (at least one full
    /// file, and all when `share` is 1) from being used again, with how far each must be synced.
    pub fn groups_to_persist(&self, share: f64) -> Vec<(Arc<Group>, Position)> {
        let state = self.state.lock();
        let count = ((self.files_max as f64 * share) as usize).max(1);
        let mut groups = Groups::new();
        let active = state.active.iter().map(|active| &active.groups);
        // Files that no write-back makes obsolete must not stand before the others.
        let full = state.full.iter().filter(|full| full.is_persistable());
        let all = full.map(|full| &full.groups).take(count);
        let active = active.take(if share >= 1.0 { 1 } else { 0 });
        for (key, (group, end)) in all.chain(active).flatten() {
            let entry = groups
                .entry(*key)
                .or_insert_with(|| (Arc::clone(group), *end));
            entry.1 = entry.1.max(*end);
        }
        let mut groups: Vec<_> = groups.into_values().filter(is_live).collect();
        groups.sort_unstable_by_key(|(group, _)| (group.lane, group.id));
        groups
    }

    /// Frees the files whose runs are all in synced group files. `true` when it freed one.
    pub fn release_obsolete(&self) -> bool {
        let mut state = self.state.lock();
        let before = state.full.len();
        for full in std::mem::take(&mut state.full) {
            if full.groups.values().any(is_live) {
                state.full.push_back(full);
            } else {
                state.spare.push(full.path);
            }
        }
        state.full.len() < before
    }

    /// Removes all files, at a clean stop: everything must be persisted.
    pub fn remove_files(&self, dir: &DataDir) -> Result<()> {
        let mut state = self.state.lock();
        let live = state
            .full
            .iter()
            .map(|full| &full.groups)
            .chain(state.active.iter().map(|active| &active.groups))
            .flat_map(HashMap::values)
            .any(is_live);
        if live {
            // Some lane cannot be persisted (its disk failed): the journal still holds its data.
            return Ok(());
        }
        let active = state.active.take().map(|active| active.path);
        let full: Vec<Full> = state.full.drain(..).collect();
        let mut paths: Vec<PathBuf> = full.into_iter().map(|full| full.path).collect();
        paths.extend(active);
        paths.append(&mut state.spare);
        for path in paths {
            dir.disk
                .remove_file(&path)
                .map_err(|error| LogError::io("remove", path, error))?;
        }
        dir.sync_dir(&dir.journal_dir())
    }

    pub fn usage(&self) -> JournalUse {
        let state = self.state.lock();
        JournalUse {
            blocks: state.blocks,
            bytes: state.bytes,
            files: state.full.len() + state.spare.len() + usize::from(state.active.is_some()),
        }
    }
}

impl Full {
    fn is_persistable(&self) -> bool {
        !self
            .groups
            .values()
            .any(|entry| is_live(entry) && entry.0.has_failed())
    }
}

fn is_live((group, end): &(Arc<Group>, Position)) -> bool {
    !group.is_removed() && group.synced() < *end
}

impl State {
    /// Full files that write-back can make obsolete. Those that hold data of a lane whose disk
    /// failed stay until the next start, and must not stop the others.
    fn persistable_files(&self) -> usize {
        let persistable = |full: &&Full| full.is_persistable();
        self.full.iter().filter(persistable).count()
    }

    fn retire_active(&mut self) {
        if let Some(active) = self.active.take() {
            self.previous_end = active.end;
            self.full.push_back(Full {
                path: active.path,
                groups: active.groups,
            });
        }
    }

    fn open_next(&mut self, dir: &DataDir, file_bytes: u64, secret: u64) -> Result<()> {
        let sequence = self.next_sequence;
        let path = file_path(dir, sequence, secret);
        // One that was begun under this number before must not stay among the spare ones.
        if let Some(n) = self.spare.iter().position(|spare| *spare == path) {
            self.spare.swap_remove(n);
        } else if let Some(spare) = self.spare.last() {
            dir.disk
                .rename(spare, &path)
                .map_err(|error| LogError::io("rename", spare, error))?;
            self.spare.pop();
        }
        let file = dir
            .disk
            .open(&path, Access::Create)
            .map_err(|error| LogError::io("open", &path, error))?;
        // The header is durable before the first block is written, so that a damaged one is told
        // from one that never was; and the name before the header, so that a torn header never
        // stands before blocks of the name's number.
        let header = encode_file_header(sequence, self.previous_end);
        let begun = file
            .reserve(file_bytes)
            .and_then(|()| dir.disk.sync_dir(&dir.journal_dir()))
            .and_then(|()| file.write_at(&header, 0))
            .and_then(|()| file.sync());
        if let Err(error) = begun {
            // It holds no blocks of this number, so it can be begun again.
            self.spare.push(path.clone());
            return Err(LogError::io("begin journal file", path, error));
        }
        self.next_sequence += 1;
        self.active = Some(Active {
            path,
            file,
            sequence,
            end: FILE_HEADER_BYTES,
            next_block: 0,
            groups: Groups::new(),
        });
        Ok(())
    }
}

fn file_path(dir: &DataDir, sequence: u64, secret: u64) -> PathBuf {
    let name = format!("{sequence:016}-{secret:016x}.journal");
    dir.journal_dir().join(name)
}

/// Sequence and secret of the file of this name.
fn parse_name(dir: &DataDir, path: &Path) -> Option<(u64, u64)> {
    let (sequence, secret) = path.file_stem()?.to_str()?.split_once('-')?;
    let sequence = sequence.parse().ok()?;
    let secret = u64::from_str_radix(secret, 16).ok()?;
    (file_path(dir, sequence, secret) == path).then_some((sequence, secret))
}

/// Whether a program wrote the file that did not have the secret in the name.
fn is_of_format_1(path: &Path) -> bool {
    let stem = path.file_stem().and_then(|stem| stem.to_str());
    let is_number = stem.is_some_and(|stem| stem.bytes().all(|byte| byte.is_ascii_digit()));
    is_number && path.extension().is_some_and(|kind| kind == "journal")
}

fn encode_file_header(sequence: u64, previous_end: u64) -> Vec<u8> {
    let mut header = FILE_MAGIC.to_vec();
    header.extend_from_slice(&sequence.to_le_bytes());
    header.extend_from_slice(&previous_end.to_le_bytes());
    let crc = crc32c(&header);
    header.extend_from_slice(&crc.to_le_bytes());
    header
}

/// What a block says of where it is.
struct BlockPlace {
    /// The sequence of its file.
    file: u64,
    /// That of the file's name.
    secret: u64,
    /// Counts the file's blocks from 0.
    number: u64,
}

/// Writes which bytes a run has, and where they belong.
pub fn encode_run(run: &RecoveredRun, data: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&run.lane.stream.0.to_le_bytes());
    out.extend_from_slice(&run.group.0.to_le_bytes());
    out.extend_from_slice(&run.position.0.to_le_bytes());
    out.extend_from_slice(&run.group_first_offset.0.to_le_bytes());
    out.extend_from_slice(&run.lane.streamlet.0.to_le_bytes());
    out.extend_from_slice(&run.lane.lane.0.to_le_bytes());
    out.extend_from_slice(&(data.len() as u32).to_le_bytes());
    out.extend_from_slice(&crc32c(data).to_le_bytes());
}

/// The block's header and directory. The checksum in the header covers the rest of both; each run's
/// bytes have one of their own.
fn encode_head(place: &BlockPlace, runs: &[&Run], block_bytes: u64) -> Vec<u8> {
    let mut head = Vec::with_capacity(BLOCK_HEADER_BYTES + RUN_BYTES * runs.len());
    head.extend_from_slice(&BLOCK_MAGIC);
    head.extend_from_slice(&[0; 4]);
    head.extend_from_slice(&place.file.to_le_bytes());
    head.extend_from_slice(&place.secret.to_le_bytes());
    head.extend_from_slice(&place.number.to_le_bytes());
    head.extend_from_slice(&(block_bytes as u32).to_le_bytes());
    head.extend_from_slice(&(runs.len() as u32).to_le_bytes());
    for run in runs {
        let group = &run.group;
        let place = RecoveredRun {
            lane: group.lane,
            group: group.id,
            group_first_offset: group.first_offset,
            position: run.position,
        };
        encode_run(&place, &run.slice, &mut head);
    }
    let crc = crc32c(&head[8..]);
    head[4..8].copy_from_slice(&crc.to_le_bytes());
    head
}

/// A run as recovery finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecoveredRun {
    pub lane: LaneId,
    pub group: GroupId,
    pub group_first_offset: Offset,
    pub position: Position,
}

/// The journal files of a former life, in order.
pub struct OldJournal {
    files: Vec<OldFile>,
}

struct OldFile {
    sequence: u64,
    secret: u64,
    path: PathBuf,
}

impl OldJournal {
    /// Finds the files.
    pub fn find(dir: &DataDir) -> Result<OldJournal> {
        let folder = dir.journal_dir();
        let mut files = Vec::new();
        for entry in dir
            .disk
            .list(&folder)
            .map_err(|error| LogError::io("list", &folder, error))?
        {
            let path = folder.join(&entry.name);
            if entry.name == LOST_AND_FOUND {
                continue;
            }
            if entry.name == PROBE {
                dir.disk
                    .remove_file(&path)
                    .map_err(|error| LogError::io("remove", &path, error))?;
                continue;
            }
            let (sequence, secret) = match parse_name(dir, &path) {
                Some(name) => name,
                None if is_of_format_1(&path) => return Err(LogError::OlderJournal { path }),
                None => return Err(LogError::ForeignFile { path }),
            };
            files.push(OldFile {
                sequence,
                secret,
                path,
            });
        }
        files.sort_unstable_by_key(|file| file.sequence);
        Ok(OldJournal { files })
    }

    /// Whether there are none: the last run ended cleanly, or there was none.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// A number for the next file. One is left out: what the next file says of where the file before
    /// it ends is not about the last of these. And it is at least the time in milliseconds, so
    /// that blocks of an older journal, stored as data, are never taken for this one's.
    pub fn next_sequence(&self, now: Timestamp) -> u64 {
        let last = self.files.last().map_or(0, |file| file.sequence);
        (last + 2).max(u64::try_from(now.0).unwrap_or(0))
    }

    /// Gives every durable run to `each`, in the order of their writing. What was read may never have
    /// reached the medium; it has when this returns.
    pub fn replay(
        &self,
        dir: &DataDir,
        mut each: impl FnMut(RecoveredRun, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut readers = Vec::with_capacity(self.files.len());
        for file in &self.files {
            readers.push(FileReader::open(dir, file)?);
        }
        for n in 0..readers.len() {
            readers[n].replay(end_of(&readers, n), &mut each)?;
        }
        Ok(())
    }

    /// Takes damaged blocks out of the files, so that those behind them are read: lanes whose runs are missing then
    /// have a gap. `keep` is given each range of bytes before it is changed.
    pub fn take_damage_out(
        &self,
        dir: &DataDir,
        mut keep: impl FnMut(&dyn DiskFile, &Path, Range<Position>) -> Result<()>,
    ) -> Result<()> {
        let mut readers = Vec::with_capacity(self.files.len());
        for file in &self.files {
            readers.push(FileReader::open(dir, file)?);
        }
        let mut previous_end = 0;
        for n in 0..readers.len() {
            let end = end_of(&readers, n);
            let reader = &readers[n];
            let (damage, found_end) = reader.find_damage(end)?;
            let has_blocks = found_end > FILE_HEADER_BYTES;
            if reader.previous_end.is_none() && has_blocks {
                let header = Position(0)..Position(FILE_HEADER_USED as u64);
                keep(&*reader.file, &reader.name.path, header)?;
                reader.write(&encode_file_header(reader.name.sequence, previous_end), 0)?;
            }
            for Damage { bytes, blocks } in damage {
                let range = Position(bytes.start)..Position(bytes.end);
                keep(&*reader.file, &reader.name.path, range)?;
                reader.write_empty_blocks(bytes, blocks)?;
            }
            reader
                .file
                .sync()
                .map_err(|error| LogError::io("sync", &reader.name.path, error))?;
            previous_end = found_end;
        }
        Ok(())
    }

    /// Removes the files, after what they hold is in synced group files. Each stays at least as long
    /// as the one before it, whose end it tells.
    pub fn remove(&self, dir: &DataDir) -> Result<()> {
        for OldFile { path, .. } in &self.files {
            dir.disk
                .remove_file(path)
                .map_err(|error| LogError::io("remove", path, error))?;
            dir.sync_dir(&dir.journal_dir())?;
        }
        Ok(())
    }
}

/// Where a file ends, says its successor; the files in between may have been used again.
fn end_of(readers: &[FileReader<'_>], n: usize) -> Option<u64> {
    let next = readers.get(n + 1)?;
    let is_next = next.name.sequence == readers[n].name.sequence + 1;
    next.previous_end.filter(|_| is_next)
}

/// A part of a file that holds no whole blocks, though some should be there.
struct Damage {
    bytes: Range<u64>,
    /// The numbers of the blocks that are missing.
    blocks: Range<u64>,
}

struct FileReader<'a> {
    name: &'a OldFile,
    file: Box<dyn DiskFile>,
    len: u64,
    /// Where the file before ends, says the header. `None` where that is not valid: the file was not
    /// begun under its number, or is damaged.
    previous_end: Option<u64>,
}

/// Header and directory of a block.
struct BlockHead {
    number: u64,
    directory: Vec<u8>,
    block_bytes: u64,
}

/// One block, checked.
struct Block {
    runs: Vec<(RecoveredRun, usize)>,
    data: Vec<u8>,
}

impl<'a> FileReader<'a> {
    fn open(dir: &DataDir, name: &'a OldFile) -> Result<Self> {
        let path = &name.path;
        let error = |error| LogError::io("read", path, error);
        let file = dir.disk.open(path, Access::Write);
        let file = file.map_err(|error| LogError::io("open", path, error))?;
        let len = file.len().map_err(error)?;
        let mut header = [0; FILE_HEADER_USED];
        let count = file.read_full_at(&mut header, 0).map_err(error)?;
        let previous_end = u64_at(&header, 16);
        let encoded = encode_file_header(name.sequence, previous_end);
        let valid = count == header.len() && header[..] == encoded;
        Ok(FileReader {
            name,
            file,
            len,
            previous_end: valid.then_some(previous_end),
        })
    }

    /// Replays the blocks up to `end`, if it is known, or up to the torn end.
    fn replay(
        &self,
        end: Option<u64>,
        each: &mut impl FnMut(RecoveredRun, &[u8]) -> Result<()>,
    ) -> Result<()> {
        if self.previous_end.is_none() {
            // The header is synced before the first block is written.
            return match end {
                Some(end) if end > FILE_HEADER_BYTES => Err(self.corrupted(0, "file header")),
                _ => self.check_nothing_follows(0, "file header", 0),
            };
        }
        let mut at = FILE_HEADER_BYTES;
        let mut last_written = 0..FILE_HEADER_USED as u64;
        let mut next_block = 0;
        while end.is_none_or(|end| at < end) {
            let Some((block, bytes)) = self.block(at, next_block)? else {
                if end.is_some() {
                    return Err(self.corrupted(at, "block"));
                }
                self.check_nothing_follows(at, "block", next_block)?;
                return self.write_again(last_written);
            };
            let mut data = &block.data[..];
            for (run, len) in block.runs {
                let (run_data, rest) = data.split_at(len);
                each(run, run_data)?;
                data = rest;
            }
            last_written = at..at + bytes;
            at += bytes;
            next_block += 1;
        }
        Ok(())
    }

    /// Writes and syncs again what was written last, a block or the header: its sync may have failed,
    /// or never come. What is before it was synced before it was written.
    fn write_again(&self, last: Range<u64>) -> Result<()> {
        let mut bytes = vec![0; (last.end - last.start) as usize];
        self.file
            .read_full_at(&mut bytes, last.start)
            .and_then(|_| self.file.write_at(&bytes, last.start))
            .and_then(|()| self.file.sync())
            .map_err(|error| LogError::io("write again", &self.name.path, error))
    }

    /// The block at `at`, if it is whole and in its turn.
    fn block(&self, at: u64, number: u64) -> Result<Option<(Block, u64)>> {
        let head = self.block_head(at)?;
        let head = head.filter(|head| head.number == number);
        let Some(BlockHead {
            directory,
            block_bytes,
            ..
        }) = head
        else {
            return Ok(None);
        };
        let head_bytes = (BLOCK_HEADER_BYTES + directory.len()) as u64;
        let mut data = vec![0; (block_bytes - head_bytes) as usize];
        let count = self
            .file
            .read_full_at(&mut data, at + head_bytes)
            .map_err(|error| LogError::io("read", &self.name.path, error))?;
        if count < data.len() {
            return Ok(None);
        }
        let mut runs = Vec::with_capacity(directory.len() / RUN_BYTES);
        let mut rest = &data[..];
        for entry in directory.chunks_exact(RUN_BYTES) {
            let run = RecoveredRun {
                lane: LaneId {
                    stream: StreamId(u64_at(entry, 0)),
                    streamlet: StreamletIndex(u32_at(entry, 32)),
                    lane: LaneIndex(u32_at(entry, 36)),
                },
                group: GroupId(u64_at(entry, 8)),
                position: Position(u64_at(entry, 16)),
                group_first_offset: Offset(u64_at(entry, 24)),
            };
            let len = u32_at(entry, 40) as usize;
            let Some((run_data, others)) = rest.split_at_checked(len) else {
                return Ok(None);
            };
            if crc32c(run_data) != u32_at(entry, 44) {
                return Ok(None);
            }
            rest = others;
            runs.push((run, len));
        }
        // A block without runs stands where a repair took damaged ones out.
        if !rest.is_empty() && !runs.is_empty() {
            return Ok(None);
        }
        Ok(Some((Block { runs, data }, block_bytes)))
    }

    /// Header and directory at `at`, if the checksum holds and they are of this file.
    fn block_head(&self, at: u64) -> Result<Option<BlockHead>> {
        let error = |error| LogError::io("read", &self.name.path, error);
        let mut head = vec![0; BLOCK_HEADER_BYTES];
        let count = self.file.read_full_at(&mut head, at).map_err(error)?;
        if count < head.len() || head[..4] != BLOCK_MAGIC {
            return Ok(None);
        }
        let place = BlockPlace {
            file: u64_at(&head, 8),
            secret: u64_at(&head, 16),
            number: u64_at(&head, 24),
        };
        let block_bytes = u64::from(u32_at(&head, 32));
        let run_count = u32_at(&head, 36) as usize;
        let head_bytes = BLOCK_HEADER_BYTES + run_count.min(RUNS_MAX + 1) * RUN_BYTES;
        if run_count > RUNS_MAX
            || (head_bytes as u64) > block_bytes
            || at + block_bytes > self.len
            || (place.file, place.secret) != (self.name.sequence, self.name.secret)
        {
            return Ok(None);
        }
        head.resize(head_bytes, 0);
        let count = self.file.read_full_at(&mut head, at).map_err(error)?;
        if count < head.len() || crc32c(&head[8..]) != u32_at(&head, 4) {
            return Ok(None);
        }
        Ok(Some(BlockHead {
            number: place.number,
            directory: head.split_off(BLOCK_HEADER_BYTES),
            block_bytes,
        }))
    }

    /// Finds the parts that are damaged, and where the file ends.
    fn find_damage(&self, end: Option<u64>) -> Result<(Vec<Damage>, u64)> {
        let mut damage = Vec::new();
        let (mut at, mut next_block) = (FILE_HEADER_BYTES, 0);
        while end.is_none_or(|end| at < end) {
            if let Some((_, bytes)) = self.block(at, next_block)? {
                at += bytes;
                next_block += 1;
                continue;
            }
            let mut following = None;
            self.find_head(at + 1, |start, head| {
                let is_whole =
                    head.number > next_block && self.block(start, head.number)?.is_some();
                following = is_whole.then_some((start, head.number));
                Ok(is_whole)
            })?;
            let (start, number) = match (following, end) {
                (Some(following), _) => following,
                (None, Some(end)) => (end, next_block + 1),
                (None, None) => break,
            };
            damage.push(Damage {
                bytes: at..start,
                blocks: next_block..number,
            });
            (at, next_block) = (start, number);
        }
        Ok((damage, at))
    }

    /// Writes blocks without runs, which have these numbers and take these bytes.
    fn write_empty_blocks(&self, bytes: Range<u64>, blocks: Range<u64>) -> Result<()> {
        let mut at = bytes.start;
        for number in blocks.clone() {
            let is_last = number + 1 == blocks.end;
            let block_bytes = match is_last {
                true => bytes.end.saturating_sub(at),
                false => BLOCK_HEADER_BYTES as u64,
            };
            let is_block = (BLOCK_HEADER_BYTES as u64..=u64::from(u32::MAX)).contains(&block_bytes);
            if !is_block {
                return Err(self.corrupted(at, "block"));
            }
            let place = BlockPlace {
                file: self.name.sequence,
                secret: self.name.secret,
                number,
            };
            self.write(&encode_head(&place, &[], block_bytes), at)?;
            at += block_bytes;
        }
        Ok(())
    }

    fn write(&self, bytes: &[u8], at: u64) -> Result<()> {
        let written = self.file.write_at(bytes, at);
        written.map_err(|error| LogError::io("write", &self.name.path, error))
    }

    /// Nothing valid may follow the place where the journal seems to end.
    fn check_nothing_follows(&self, at: u64, what: &str, next_block: u64) -> Result<()> {
        self.find_head(at + 1, |_, head| match head.number >= next_block {
            true => Err(self.corrupted(at, what)),
            false => Ok(false),
        })
    }

    /// Gives the heads of blocks that begin from `start` on, with where they are, until `is_wanted` says that one is
    /// wanted.
    fn find_head(
        &self,
        mut start: u64,
        mut is_wanted: impl FnMut(u64, BlockHead) -> Result<bool>,
    ) -> Result<()> {
        const WINDOW_BYTES: usize = 1 << 20;
        let mut window = vec![0; WINDOW_BYTES];
        while start < self.len {
            let count = self
                .file
                .read_full_at(&mut window, start)
                .map_err(|error| LogError::io("read", &self.name.path, error))?;
            let magics = window[..count]
                .windows(BLOCK_MAGIC.len())
                .enumerate()
                .filter(|(_, bytes)| *bytes == BLOCK_MAGIC);
            for (n, _) in magics {
                let at = start + n as u64;
                if let Some(head) = self.block_head(at)?
                    && is_wanted(at, head)?
                {
                    return Ok(());
                }
            }
            if count < window.len() {
                break;
            }
            // A magic may lie across two windows.
            start += (count - BLOCK_MAGIC.len() + 1) as u64;
        }
        Ok(())
    }

    fn corrupted(&self, at: u64, what: &str) -> LogError {
        LogError::corrupted(
            &self.name.path,
            Position(at),
            format!(
                "this {what} of the journal is damaged, and valid ones follow it; `millstream repair --cut __journal` \
                 takes out only damaged blocks"
            ),
        )
    }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}
