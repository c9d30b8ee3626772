//! Recovery: a start completes each lane from its files and from the journal of the last run.
//!
//! 1. For each lane, compare its groups' files with the manifest ([`listed`]). All but the last are whole; the last is read
//!    from its last index entry on, up to its last whole chunk. A file or an index of another group is not read.
//!    Bytes that were read back may never have reached the medium (a sync that failed before the process
//!    ended), so the part behind the last entry is written again, and everything is synced.
//! 2. Replay the journal: chunks that the files lack go into segments in the pool, as they lay there before
//!    the end of the last run. Only where the pool is too small for them they go to the files now.
//! 3. The torn end of a write behind the whole chunks, which the journal did not bring back, is
//!    moved aside. More bytes than a torn write can leave are damage: the file stays as it is. So are any bytes
//!    after a clean stop ([`clean_stop`](crate::files::clean_stop)), which leaves no torn ends.
//! 4. The log is ready. In the background the segments of step 2 are persisted as any others, as soon
//!    as the disk has room for them; then the old journal, which holds them until then, is removed.
//!
//! Each step can be interrupted and done again, and none but the last needs room on a full disk: without room a torn end is
//! truncated without a copy.
//!
//! Recovery knows files, groups and the journal, and neither the catalog nor the pool's eviction.

pub mod closed;
pub mod foreign;
pub mod lane;
pub mod listed;
pub mod producers;
pub mod rebuild;
pub mod scan;
pub mod stored;
pub mod tail;
pub mod truncated;
pub mod unfinished;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use millstream_base::{ByteSize, GroupId, LaneIndex, StreamId, StreamletIndex};
use uuid::Uuid;

use crate::error::{LogError, Result};
use crate::files::DataDir;
use crate::files::clean_stop::CleanStop;
use crate::files::manifest::{Listed, Record};
use crate::ids::{GroupName, LaneId};
use crate::journal::old::OldJournal;
use crate::journal::run::RecoveredRun;
use crate::lane::stored::StoredLane;
use crate::lane::virtual_log::COMMIT_BYTES_MAX;
use crate::memory::pool::{Arena, Pool};
use crate::recovery::closed::Replayed;
use crate::recovery::lane::{RecoveredLane, ReplayStep};
use crate::recovery::truncated::TruncatedTails;

/// Bytes that wait to be written again to their files, over all lanes.
const BUFFERED_BYTES_MAX: usize = 64 << 20;

/// The lanes that recovery found on disk.
#[derive(Default)]
pub struct Recovered {
    lanes: BTreeMap<LaneId, RecoveredLane>,
    buffered_bytes: usize,
    /// Files were written that are not synced yet.
    is_unsynced: bool,
    /// Damaged lanes whose files no write can have torn.
    damaged_untorn: BTreeSet<LaneId>,
    has_foreign: bool,
    /// Groups whose files the manifest needs no more.
    leftovers: Vec<GroupName>,
    /// Paths of other files that nothing needs.
    unfinished: Vec<(StreamId, PathBuf)>,
}

impl Recovered {
    /// Does steps 1 to 3. The journal stays until the caller removes it, and `clean_stop` until the caller stores
    /// [`Recovered::still_untorn`].
    pub fn read(
        dir: &DataDir,
        pool: &Arc<Pool>,
        journal: &OldJournal,
        clean_stop: &CleanStop,
    ) -> Result<Recovered> {
        let mut recovered = Recovered::default();
        let mut is_unsynced = false;
        let listed = dir.manifest().look_at(Listed::clone);
        for (stream, listed_lanes) in listed::streams(dir, &listed)? {
            let files = listed::compare(dir, stream, &listed_lanes, &listed)?;
            recovered.leftovers.extend(files.leftovers);
            let unfinished = files.unfinished.into_iter();
            let unfinished = unfinished.map(|name| (stream, dir.stream_dir(stream).join(name)));
            recovered.unfinished.extend(unfinished);
            for files in files.lanes {
                if files.is_empty() {
                    continue;
                }
                let lane = files.lane;
                let recovered_lane = RecoveredLane::read(dir, files, clean_stop.covers(lane))?;
                recovered.buffered_bytes += recovered_lane.tail.buffer.len();
                is_unsynced |= recovered_lane.is_unsynced;
                recovered.lanes.insert(lane, recovered_lane);
                if recovered.buffered_bytes > BUFFERED_BYTES_MAX {
                    recovered.flush(dir)?;
                }
            }
        }
        if !journal.is_empty() || is_unsynced {
            recovered.flush(dir)?;
            dir.sync_streams()?;
        }
        for recovered_lane in recovered.lanes.values_mut() {
            recovered_lane.is_unsynced = false;
            // The index of a damaged group stays: it shows the next start the missing bytes.
            if recovered_lane.damage.is_none() {
                recovered_lane.tail.write_entries(dir);
            }
        }
        journal.replay(dir, |run, data| recovered.replay(dir, pool, run, data))?;
        let mut torn =
            TruncatedTails::new(COMMIT_BYTES_MAX.max(pool.block_bytes_max(Arena::Segments)));
        for (lane, recovered_lane) in &mut recovered.lanes {
            recovered_lane.skip_missing(dir, GroupId(u64::MAX))?;
            recovered_lane.truncate_tail(dir, &mut torn)?;
            recovered.is_unsynced |= recovered_lane.is_unsynced;
            if recovered_lane.is_untorn && recovered_lane.damage.is_some() {
                recovered.damaged_untorn.insert(*lane);
            }
        }
        torn.sync(dir)?;
        if recovered.is_unsynced {
            dir.sync_streams()?;
        }
        recovered.list_files(dir, &listed)?;
        Ok(recovered)
    }

    /// Lists files that were begun, or that the replay has made; they are synced with their names. Files of damaged
    /// lanes stay unlisted.
    fn list_files(&self, dir: &DataDir, listed: &Listed) -> Result<()> {
        let whole = self.lanes.values().filter(|lane| lane.damage.is_none());
        let is_new = |name: &GroupName| {
            let lane = listed.lane(name.lane);
            !lane.is_some_and(|lane| lane.contains(name))
        };
        let new = whole.flat_map(|lane| lane.with_files()).filter(is_new);
        let records: Vec<Record> = new.map(Record::Group).collect();
        if records.is_empty() {
            return Ok(());
        }
        let appended = dir.manifest().append(&records)?;
        dir.manifest().sync_to(appended)
    }

    /// Removes the files of existing streams that the manifest needs no more. Those that stay are found by the next
    /// start.
    pub fn remove_leftovers(&mut self, dir: &DataDir, exists: impl Fn(StreamId) -> bool) {
        let removed = |path: &Path, removed: Result<()>| match removed {
            Ok(()) => {
                tracing::info!(path = %path.display(), "removed a file that a crash has left")
            }
            Err(error) => tracing::warn!(%error, "a file that a crash has left stays for now"),
        };
        let mut streams = BTreeSet::new();
        for name in std::mem::take(&mut self.leftovers) {
            if exists(name.lane.stream) {
                removed(&dir.group_path(&name), dir.remove_group_files(&name));
                streams.insert(name.lane.stream);
            }
        }
        // After a clean stop they must not be there again.
        for stream in streams {
            if let Err(error) = dir.sync_dir(&dir.stream_dir(stream)) {
                tracing::warn!(%error, "files that a crash has left may be there again at the next start");
            }
        }
        for (stream, path) in std::mem::take(&mut self.unfinished) {
            if exists(stream) {
                let result = dir.disk.remove_file(&path);
                let result = result.map_err(|error| LogError::io("remove", &path, error));
                removed(&path, result);
            }
        }
    }

    /// The record of the lanes whose files no write of this run can tear.
    pub fn still_untorn(&self) -> CleanStop {
        CleanStop::Only(self.damaged_untorn.clone())
    }

    /// Whether the journal holds chunks of the stream that cannot be appended: removing it would lose
    /// them.
    pub fn has_gap(&self, stream: StreamId) -> bool {
        let damages = self.of_stream(stream);
        let mut damages = damages.filter_map(|lane| lane.damage.as_ref());
        damages.any(|damage| damage.has_gap)
    }

    fn of_stream(&self, stream: StreamId) -> impl Iterator<Item = &RecoveredLane> {
        let first = LaneId {
            stream,
            streamlet: StreamletIndex(0),
            lane: LaneIndex(0),
        };
        let lanes = self.lanes.range(first..);
        lanes
            .take_while(move |(lane, _)| lane.stream == stream)
            .map(|(_, lane)| lane)
    }

    /// Whether the stream lost bytes that looked like the torn end of a write, and that the journal
    /// did not bring back.
    pub fn was_truncated(&self, stream: StreamId) -> bool {
        self.of_stream(stream).any(|lane| lane.truncated_bytes > 0)
    }

    /// The streams of which something was found that is not taken out.
    pub fn streams(&self) -> BTreeSet<StreamId> {
        self.lanes.keys().map(|lane| lane.stream).collect()
    }

    /// Takes out a lane of a stream with this identity.
    pub fn take(&mut self, dir: &DataDir, lane: LaneId, identity: Uuid) -> StoredLane {
        let listed = |listed: &Listed| {
            let [deletions, versions] = [listed.deletions_from(lane), listed.versions_from(lane)];
            (listed.epochs(lane), deletions, versions)
        };
        let (epochs, deletions_from, versions_from) = dir.manifest().look_at(listed);
        let Some(recovered) = self.lanes.remove(&lane) else {
            return StoredLane {
                epochs,
                ..StoredLane::default()
            };
        };
        let was_whole = recovered.damage.is_none();
        let is_untorn = recovered.is_untorn;
        let mut stored = recovered.into_stored(dir, identity, epochs);
        // A repair may have taken the records from an earlier offset on away.
        stored.deletions_from = deletions_from.min(stored.next_offset);
        stored.versions_from = versions_from.min(stored.next_offset);
        if was_whole && stored.fault.is_some() {
            self.has_foreign = true;
            if is_untorn {
                self.damaged_untorn.insert(lane);
            }
        }
        stored
    }

    /// Returns whether a lane that was taken out has files of another data directory: the journal may hold chunks
    /// that their files should.
    pub fn has_foreign(&self) -> bool {
        self.has_foreign
    }

    /// Moves the replayed runs of the lanes that are left into their files.
    pub fn write_out_left(&mut self, dir: &DataDir) -> Result<()> {
        for recovered in self.lanes.values_mut() {
            recovered.write_out(dir)?;
        }
        dir.sync_streams()
    }

    fn replay(
        &mut self,
        dir: &DataDir,
        pool: &Arc<Pool>,
        run: RecoveredRun,
        data: &[u8],
    ) -> Result<()> {
        let mut emptied_at = None;
        loop {
            let begin = || {
                let (group, first_offset) = (run.group, run.group_first_offset);
                RecoveredLane::begin(GroupName::of_new(run.lane, group, first_offset))
            };
            let lane = self.lanes.entry(run.lane).or_insert_with(begin);
            if let ReplayStep::Done = lane.replay(dir, pool, run, data)? {
                return Ok(());
            }
            // A run may be longer than the pool, but each time it is empty some of it fits.
            let at = lane.tail.position;
            if emptied_at.replace(at) == Some(at) {
                let block = ByteSize(pool.block_bytes_max(Arena::Segments) as u64);
                return Err(LogError::BadSetting {
                    setting: "pool",
                    why: format!(
                        "the journal holds a chunk larger than the pool's largest block, {block}; set a larger pool"
                    ),
                });
            }
            self.empty_pool(dir, pool)?;
        }
    }

    /// Moves the replayed runs into the files: the pool is smaller than it was, or fragmented.
    fn empty_pool(&mut self, dir: &DataDir, pool: &Pool) -> Result<()> {
        let of_lane = |lane: &RecoveredLane| {
            let closed = lane.closed.iter().map(|group| &group.replayed);
            let all = closed.chain([&lane.tail.replayed]);
            all.map(Replayed::bytes).sum::<u64>()
        };
        let bytes = self.lanes.values().map(of_lane).sum();
        self.is_unsynced = true;
        for recovered in self.lanes.values_mut() {
            recovered
                .write_out(dir)
                .map_err(|error| match error.is_disk_full() {
                    true => LogError::NoRoomToStart {
                        dir: dir.root.clone(),
                        bytes: ByteSize(bytes),
                        pool: ByteSize(pool.size_bytes(Arena::Segments) as u64),
                    },
                    false => error,
                })?;
        }
        Ok(())
    }

    fn flush(&mut self, dir: &DataDir) -> Result<()> {
        for recovered in self.lanes.values_mut() {
            recovered.tail.flush(dir)?;
        }
        self.buffered_bytes = 0;
        Ok(())
    }
}
