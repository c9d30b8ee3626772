//! Recovery: a start completes each lane from its files and from the journal of the last run.
//!
//! 1. For each lane, list its groups' files. All but the last are whole; the last is read from its
//!    last index entry on, up to its last whole chunk. A file or an index of another group is not read.
//!    Bytes that were read back may never have reached the medium (a sync that failed before the process
//!    ended), so the part behind the last entry is written again, and everything is synced.
//! 2. Replay the journal: chunks that the files lack go into segments in the pool, as they lay there before
//!    the end of the last run. Only where the pool is too small for them they go to the files now.
//! 3. The torn end of a write behind the whole chunks, which the journal did not bring back, is
//!    moved aside. More bytes than such a write can leave are damage: the file stays as it is. So are any bytes
//!    after a clean stop ([`clean_stop`]), which leaves no torn ends.
//! 4. The log is ready. In the background the segments of step 2 are persisted as any others, as soon
//!    as the disk has room for them; then the old journal, which holds them until then, is removed.
//!
//! Each step can be interrupted and done again, and none but the last needs room on a full disk: without room a torn end is
//! truncated without a copy.
//!
//! Recovery knows files, groups and the journal, and neither the catalog nor the pool's eviction.

pub mod clean_stop;
pub mod closed;
pub mod foreign;
pub mod lane;
pub mod producers;
pub mod rebuild;
pub mod scan;
pub mod tail;
pub mod truncated;
pub mod unfinished;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hashbrown::HashMap;
use millstream_base::{ByteSize, GroupId, LaneIndex, StreamId, StreamletIndex};

use crate::error::{LogError, Result};
use crate::files::DataDir;
use crate::ids::{GroupName, LaneId};
use crate::journal::old::OldJournal;
use crate::journal::run::RecoveredRun;
use crate::lane::stored::StoredLane;
use crate::lane::virtual_log::COMMIT_BYTES_MAX;
use crate::memory::pool::{Arena, Pool};
use crate::recovery::clean_stop::CleanStop;
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
        for stream in dir.list_streams()? {
            let mut by_lane: HashMap<LaneId, Vec<GroupName>> = HashMap::new();
            let (groups, indexes) = dir.list_groups(stream)?;
            // A group's index is made after its file, and gone for good before that is removed: one that
            // is alone means that its file was lost.
            for name in groups.into_iter().chain(indexes) {
                by_lane.entry(name.lane).or_default().push(name);
            }
            for (lane, mut groups) in by_lane {
                groups.sort_unstable();
                let recovered_lane = RecoveredLane::read(dir, &groups, clean_stop.covers(lane))?;
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
        Ok(recovered)
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

    /// Takes out a lane.
    pub fn take(&mut self, lane: LaneId) -> StoredLane {
        match self.lanes.remove(&lane) {
            Some(recovered) => recovered.into_stored(),
            None => StoredLane::default(),
        }
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
