//! Writing the journal: one block for each commit, and files that are used again when the groups' files hold their runs.

use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice};
use std::path::PathBuf;
use std::sync::Arc;

use hashbrown::HashMap;
use millstream_base::disk::Access;
use millstream_base::{DiskFile, GroupId, Position};
use parking_lot::Mutex;

use crate::error::{LogError, Result};
use crate::files::DataDir;
use crate::group::Group;
use crate::ids::LaneId;
use crate::journal::end::{self, EndFile, EndNote};
use crate::journal::format::{
    BLOCK_HEADER_BYTES, BlockId, FILE_HEADER_BYTES, RUN_BYTES, RUNS_MAX, encode_file_header,
    encode_head, file_path, parse_name,
};
use crate::journal::listed::{list_new, release};
use crate::journal::run::Run;

/// The outcome of writing a block.
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
    /// Obsolete files that wait for a new number. They are listed until they get it.
    spare: Vec<PathBuf>,
    /// The note of the last block, from the first file of this run on.
    end_file: Option<EndFile>,
    next_sequence: u64,
    /// The end of the last file, which the header of the next one holds.
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

/// Statistics of the journal's use.
#[derive(Debug, Clone, Copy, Default)]
pub struct JournalUse {
    pub blocks: u64,
    pub bytes: u64,
    pub files: usize,
}

impl Journal {
    /// Creates a journal without files; the files of the previous run must have been replayed and removed.
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
                end_file: None,
                next_sequence,
                previous_end: FILE_HEADER_BYTES,
                blocks: 0,
                bytes: 0,
            }),
        }
    }

    /// The most bytes of runs that one block takes, in up to 1,024 runs.
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

    /// Writes `runs` as one block and syncs it, then notes where it ends.
    ///
    /// # Errors
    /// A full disk leaves the journal as it was, to be tried again. After a failed sync the file is
    /// given up: later blocks go to the next one, whose header names the end of this one.
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
        let id = BlockId {
            file: active.sequence,
            secret: self.secret,
            number: active.next_block,
        };
        let head = encode_head(&id, runs, block_bytes);
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
            return Err(LogError::PartitionFault {
                what: error.to_string(),
            });
        }
        active.end += block_bytes;
        active.next_block += 1;
        let note = EndNote {
            sequence: active.sequence,
            secret: self.secret,
            blocks: active.next_block,
            end: active.end,
        };
        for run in runs {
            let entry = active
                .groups
                .entry((run.group.lane, run.group.id))
                .or_insert_with(|| (Arc::clone(&run.group), run.end()));
            entry.1 = entry.1.max(run.end());
        }
        let end_file = state.end_file.as_mut().expect("opened with the file");
        end_file.write(&note);
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

    /// Forgets a group that is whole in its synced file: no file of the journal is needed for it.
    pub fn forget_settled(&self, group: &Group) {
        let mut state = self.state.lock();
        let State { active, full, .. } = &mut *state;
        let active = active.iter_mut().map(|active| &mut active.groups);
        for groups in full.iter_mut().map(|full| &mut full.groups).chain(active) {
            let key = (group.lane, group.id);
            if groups.get(&key).is_some_and(|entry| !is_live(entry)) {
                groups.remove(&key);
            }
        }
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
        if let Err(error) = release_files(dir, &paths) {
            tracing::warn!(%error, "the journal stays, and the next start reads it once more");
            return Ok(());
        }
        let end = dir.journal_dir().join(end::NAME);
        state.end_file = None;
        for path in paths.into_iter().chain([end]) {
            match dir.disk.remove_file(&path) {
                // Only the note may be missing.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                removed => removed.map_err(|error| LogError::io("remove", path, error))?,
            }
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

/// Releases the listed ones of the files.
fn release_files(dir: &DataDir, paths: &[PathBuf]) -> Result<()> {
    let names = paths.iter().filter_map(|path| parse_name(dir, path));
    release(dir, names.map(|(sequence, _)| sequence))
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
        // A file that was begun under this number before must not stay among the spare ones.
        if let Some(n) = self.spare.iter().position(|spare| *spare == path) {
            self.spare.swap_remove(n);
        } else if let Some(spare) = self.spare.last() {
            release_files(dir, std::slice::from_ref(spare))?;
            dir.disk
                .rename(spare, &path)
                .map_err(|error| LogError::io("rename", spare, error))?;
            self.spare.pop();
        }
        let file = dir
            .disk
            .open(&path, Access::Create)
            .map_err(|error| LogError::io("open", &path, error))?;
        // The header is durable before the first block is written, so that recovery can distinguish a damaged one
        // from one that never was; and the name before the header, so that a torn header never
        // stands before blocks of the name's number. With all that it is listed, so that it is missed.
        if self.end_file.is_none() {
            self.end_file = Some(EndFile::open(dir)?);
        }
        let header = encode_file_header(sequence, self.previous_end);
        let begun = file
            .reserve(file_bytes)
            .and_then(|()| dir.disk.sync_dir(&dir.journal_dir()))
            .and_then(|()| file.write_at(&header, 0))
            .and_then(|()| file.sync())
            .map_err(|error| LogError::io("begin journal file", &path, error))
            .and_then(|()| list_new(dir, sequence, secret));
        if let Err(error) = begun {
            // It holds no blocks of this number, so it can be begun again.
            self.spare.push(path);
            return Err(error);
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
