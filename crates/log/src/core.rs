//! What the parts of a log share, and the two kinds of background work: syncers make appended
//! chunks durable, the persistence manager moves them to their groups' files and gives memory back.
//!
//! Both are plain functions that do one step. Threads call them in a loop (see `threads`), tests
//! call them one by one.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use event_listener::Listener as _;
use hashbrown::HashMap;
use millstream_base::disk::Access;
use millstream_base::{ByteSize, Clock, Offset, Position, StreamId, Timestamp};
use parking_lot::{Mutex, RwLock};
use uuid::Uuid;

use crate::catalog::table::Table;
use crate::error::{LogError, Result};
use crate::files::DataDir;
use crate::files::disk_space::DiskSpace;
use crate::group::{Group, KeepOpen, Through};
use crate::ids::LaneId;
use crate::index::places::KeptPlaces;
use crate::journal::{Journal, OldJournal, PROBE, Run, WriteOutcome};
use crate::lane::LaneState;
use crate::lane::context::{AppendContext, POOL_FREE_MIN};
use crate::lane::residents::Resident;
use crate::lane::shared::StreamShared;
use crate::lane::sync_queue::SyncWork;
use crate::lane::virtual_log::{COMMIT_BYTES_MAX, PendingRun, VirtualLog};
use crate::memory::decompression::Decompression;
use crate::memory::pool::{Arena, Pool};
use crate::read::catch_up::CatchUp;
use crate::read::damage_reports::DamageTold;
use crate::settings::config::{Background, Durability, LogConfig, StreamConfig};
use crate::settings::defaults::StreamDefaults;
use crate::settings::intake::Intake;
use crate::settings::limits::Limits;
use crate::stream::partitions::{PartitionCount, Reserved};
use crate::stream::{StreamKind, StreamState};

/// The journal is emptied into group files when it is fuller than this.
const JOURNAL_FILL_MAX: f64 = 0.5;

/// … until this part is.
const POOL_FREE_GOAL: f64 = 0.375;

/// Up to so many files are synced one by one; more are synced together.
pub const SINGLE_SYNCS_MAX: usize = 4;

/// How often the persistence manager looks for idle lanes, retention, and room on a full disk.
pub const TICK: Duration = Duration::from_millis(200);

/// The part of the pool for which streams that are never written to disk give their open groups.
const SCRATCH_FREE_MIN: usize = 16;

/// So many groups of a stream that is never written to disk fit the pool.
const SCRATCH_GROUPS_MIN: u64 = 8;

/// Neighbouring chunks of a lane are joined up to this size.
const RUN_BYTES_MAX: usize = 1 << 20;

/// Room that must be free before a disk no longer counts as full.
const PROBE_BYTES: u64 = 1 << 20;

pub struct Core {
    pub config: LogConfig,
    pub dir: DataDir,
    pub clock: Arc<dyn Clock>,
    pub pool: Arc<Pool>,
    pub catch_up: CatchUp,
    /// What lanes need to append.
    pub appends: AppendContext,
    pub journal: Journal,
    pub streams: RwLock<Streams>,
    pub partitions: PartitionCount,
    pub decompression: Arc<Decompression>,
    /// What users' streams have where they have no setting of their own. Set by the broker, read by retention and when
    /// limits are set.
    pub defaults: RwLock<StreamDefaults>,
    /// Where it is noted which lanes have data; set when the start is over.
    pub catalog: OnceLock<Weak<Table>>,
    pub kept_places: KeptPlaces,
    /// Virtual logs that cannot go on before the disk or the journal has room.
    stalled: Mutex<Vec<Arc<VirtualLog>>>,
    /// When it was looked for room on a full disk; held while that takes the room.
    probed_at: Mutex<Duration>,
    /// What the last run left, until the files hold all of it for good.
    old_journal: Mutex<Option<Replayed>>,
    /// Recovery could not be finished on a full disk. Taken by the persistence manager.
    recovery_waits: AtomicBool,
    /// One reclaims at a time.
    reclaiming: Mutex<()>,
    /// An append found no block of its size. Set by appends, taken by the persistence manager.
    starved: AtomicBool,
    pub counters: Counters,
    pub damage_told: DamageTold,
}

/// The streams of the log.
#[derive(Debug, Default)]
pub struct Streams {
    pub by_id: HashMap<StreamId, Arc<StreamState>>,
    pub by_name: HashMap<String, StreamId>,
    /// Of users' streams.
    pub by_uuid: HashMap<Uuid, StreamId>,
    pub next_id: u64,
}

impl Streams {
    pub fn add(&mut self, stream: Arc<StreamState>) {
        let shared = &stream.shared;
        self.by_name.insert(shared.name.clone(), shared.id);
        if stream.kind == StreamKind::Stream {
            self.by_uuid.insert(shared.uuid, shared.id);
        }
        self.by_id.insert(shared.id, stream);
    }

    /// Makes a stream that is deleted unknown to those who ask for it.
    pub fn forget_names(&mut self, shared: &StreamShared) {
        self.by_name.remove(&shared.name);
        self.by_uuid.remove(&shared.uuid);
    }
}

/// The journal of the last run.
struct Replayed {
    journal: OldJournal,
    /// The groups that it holds something of, and how far; also those whose indexes lack marks.
    groups: Vec<(Arc<Group>, Position)>,
    /// It holds chunks that cannot be appended, since some before them are missing: it stays until a
    /// repair.
    is_kept: bool,
}

/// What the log has done so far.
#[derive(Debug, Default)]
pub struct Counters {
    pub direct_commits: AtomicU64,
    pub direct_bytes: AtomicU64,
    pub persisted_groups: AtomicU64,
    pub evicted_segments: AtomicU64,
}

impl Core {
    pub fn new(
        config: LogConfig,
        dir: DataDir,
        clock: Arc<dyn Clock>,
        pool: Arc<Pool>,
        journal: Journal,
    ) -> Core {
        let disk = DiskSpace::new(dir.root.clone(), config.journal_file);
        let appends = AppendContext::new(Arc::clone(&pool), disk);
        Core {
            decompression: Decompression::new(config.decompression),
            defaults: RwLock::default(),
            catch_up: CatchUp::new(Arc::clone(&pool), config.background),
            config,
            dir,
            clock,
            pool,
            appends: appends,
            journal,
            streams: RwLock::default(),
            partitions: PartitionCount::default(),
            catalog: OnceLock::new(),
            kept_places: KeptPlaces::default(),
            stalled: Mutex::default(),
            probed_at: Mutex::default(),
            old_journal: Mutex::default(),
            recovery_waits: AtomicBool::new(false),
            reclaiming: Mutex::default(),
            starved: AtomicBool::new(false),
            counters: Counters::default(),
            damage_told: DamageTold::default(),
        }
    }

    /// Reserves room for `more` partitions; see [`LogConfig::partitions_max`].
    pub fn reserve_partitions(&self, more: u64) -> Result<Reserved<'_>> {
        self.partitions.reserve(more, self.config.partitions_max)
    }

    pub fn stream(&self, id: StreamId) -> Option<Arc<StreamState>> {
        self.streams.read().by_id.get(&id).cloned()
    }

    /// The settings that a stream has, with the node's where it has none of its own.
    pub fn effective(&self, kind: StreamKind, config: StreamConfig) -> StreamConfig {
        match kind {
            StreamKind::Stream => self.defaults.read().complete(config),
            StreamKind::Object | StreamKind::Internal => config,
        }
    }

    /// What bounds a stream: its chunks must fit a segment, and a block of the journal.
    pub fn limits(&self, kind: StreamKind, config: &StreamConfig) -> Limits {
        let config = &self.effective(kind, config.clone());
        let segment = config.segment.as_usize();
        let chunk_bytes_max = segment
            .min(self.pool.block_bytes_max(Arena::Segments))
            .min(self.pool.block_bytes_max(Arena::Windows))
            .min(self.journal.block_bytes_max());
        let group_bytes = u64::from(config.group_segments) * config.segment.0;
        let group_bytes_max = match config.durability {
            // Its memory comes back group by group.
            Durability::Memory => group_bytes.min(self.config.pool.0 / SCRATCH_GROUPS_MIN),
            Durability::Sync | Durability::Written | Durability::Async => group_bytes,
        };
        let wanted = config
            .chunk_bytes_max
            .map_or(usize::MAX, ByteSize::as_usize);
        Limits {
            chunk_bytes_max: chunk_bytes_max.min(wanted),
            segment_bytes_max: segment,
            group_bytes_max,
            run_bytes_max: RUN_BYTES_MAX.min(self.journal.block_bytes_max() / 2),
            intake: Intake::of(|name| config.settings.get(name).map(String::as_str)),
        }
    }

    fn tick(&self) -> Duration {
        let now = self.clock.monotonic();
        self.appends.set_recently(now);
        now
    }

    pub fn lane(&self, id: LaneId) -> Option<Arc<LaneState>> {
        self.stream(id.stream)?.lane(id.streamlet, id.lane)
    }

    /// The groups of a group's lane that come before it, oldest first.
    pub fn groups_before(&self, group: &Group) -> Vec<Arc<Group>> {
        let mut groups = self
            .lane(group.lane)
            .map_or_else(Vec::new, |lane| lane.groups());
        groups.retain(|other| other.id < group.id);
        groups
    }

    // ---- Syncing -------------------------------------------------------------------------------

    /// Makes one commit, if anything waits for it. `true` when it did something.
    pub fn sync_step(&self) -> bool {
        match self.appends.queue.try_take() {
            Some(work) => {
                self.commit(work);
                true
            }
            None => false,
        }
    }

    /// Makes one commit.
    pub fn commit(&self, work: SyncWork) {
        match work {
            SyncWork::Direct(log) if log.durability == Durability::Written => {
                self.commit_written(&log);
            }
            SyncWork::Direct(log) => self.commit_direct(&log),
            SyncWork::Unsynced(lanes) => {
                self.sync_written(lanes);
                self.appends.queue.unsynced_done();
            }
            SyncWork::Journal(logs) => {
                self.commit_to_journal(logs);
                self.appends.queue.journal_done();
            }
        }
    }

    /// Writes the runs of a virtual log that has one busy lane straight into the groups' files.
    fn commit_direct(&self, log: &Arc<VirtualLog>) {
        let mut runs = log.take(COMMIT_BYTES_MAX);
        self.drop_faulted(&mut runs);
        while let Some(first) = runs.first() {
            let lane = Arc::clone(&first.lane);
            let group = Arc::clone(&first.run.group);
            // Other lanes may have come in since the virtual log was put in this line.
            let is_same = |pending: &&PendingRun| Arc::ptr_eq(&pending.run.group, &group);
            let count = runs.iter().take_while(is_same).count();
            let end = runs[count - 1].run.end();
            match self.sync_group(&lane, &group, end) {
                Ok(()) => {
                    let done: Vec<PendingRun> = runs.drain(..count).collect();
                    let bytes: usize = done.iter().map(|done| done.run.slice.len()).sum();
                    self.counters.direct_commits.fetch_add(1, Ordering::Relaxed);
                    self.counters
                        .direct_bytes
                        .fetch_add(bytes as u64, Ordering::Relaxed);
                    settle_durable(done);
                }
                Err(error) => {
                    self.settle_failed(vec![(Arc::clone(log), runs)], &error);
                    return;
                }
            }
        }
        self.go_on(log);
    }

    /// Brings a group's file up to `to` and syncs it, its lane's earlier groups before it: the files
    /// of a lane are a gapless series.
    fn sync_group(&self, lane: &LaneState, group: &Group, to: Position) -> Result<()> {
        for earlier in lane.unsettled_before(group.id) {
            let end = earlier.end().expect("only the last group is open");
            earlier.write_back(&self.dir, end.position, Through::PastCache, KeepOpen::Yes)?;
            earlier.sync(&self.dir, KeepOpen::No)?;
        }
        group.write_back(&self.dir, to, Through::PastCache, KeepOpen::Yes)?;
        group.sync(&self.dir, KeepOpen::Yes)
    }

    /// Writes what fits of several virtual logs as one block of the journal.
    fn commit_to_journal(&self, logs: Vec<Arc<VirtualLog>>) {
        let mut room = COMMIT_BYTES_MAX.min(self.journal.block_bytes_max());
        let mut taken: Vec<(Arc<VirtualLog>, Vec<PendingRun>)> = Vec::with_capacity(logs.len());
        for log in logs {
            if room == 0 || log.is_direct() {
                self.appends.queue.add_now(log);
                continue;
            }
            let mut runs = log.take(room);
            self.drop_faulted(&mut runs);
            let bytes: usize = runs.iter().map(|pending| pending.run.slice.len()).sum();
            room = room.saturating_sub(bytes);
            taken.push((log, runs));
        }

        // Where there are very many small runs, the directory may leave no room for all.
        let all: Vec<&Run> = taken
            .iter()
            .flat_map(|(_, runs)| runs.iter().map(|pending| &pending.run))
            .collect();
        let fitting = self.journal.fitting(all.iter().copied());
        let mut count = 0;
        let mut left = Vec::new();
        if fitting < all.len() {
            for (log, runs) in &mut taken {
                let keep = (fitting - count).min(runs.len());
                count += keep;
                left.push((Arc::clone(log), runs.split_off(keep)));
            }
        }
        for (log, runs) in left {
            log.put_back(runs);
        }
        let runs: Vec<&Run> = taken
            .iter()
            .flat_map(|(_, runs)| runs.iter().map(|pending| &pending.run))
            .collect();
        let outcome = if runs.is_empty() {
            Ok(WriteOutcome::Durable)
        } else {
            self.journal.write(&self.dir, &runs)
        };
        match outcome {
            Ok(WriteOutcome::Durable) => {
                for (log, runs) in taken {
                    settle_durable(runs);
                    self.go_on(&log);
                }
            }
            Ok(WriteOutcome::NoFile) => {
                for (log, runs) in taken {
                    log.put_back(runs);
                    self.stalled.lock().push(log);
                }
                self.appends.persister.notify();
            }
            Err(error) => self.settle_failed(taken, &error),
        }
        if self.journal.fill() > JOURNAL_FILL_MAX {
            self.appends.persister.notify();
        }
    }

    /// Chunks behind one that failed must never become durable.
    fn drop_faulted(&self, runs: &mut Vec<PendingRun>) {
        runs.retain(|pending| pending.lane.fault().is_none());
    }

    /// After a failed commit: a full disk is waited for, anything else is final for the lanes.
    pub fn settle_failed(&self, taken: Vec<(Arc<VirtualLog>, Vec<PendingRun>)>, error: &LogError) {
        if error.is_disk_full() {
            self.set_disk_full(error);
            for (log, runs) in taken {
                let lanes: Vec<Arc<LaneState>> = runs
                    .iter()
                    .map(|pending| Arc::clone(&pending.lane))
                    .collect();
                log.put_back(runs);
                self.stalled.lock().push(log);
                for lane in lanes {
                    lane.durable_moved.notify(usize::MAX);
                }
            }
            return;
        }
        let fault = fault_of(error);
        for (log, runs) in taken {
            for pending in runs {
                pending.lane.set_fault(&fault);
            }
            self.go_on(&log);
        }
    }

    /// Puts a virtual log in line again if more came in the meantime.
    pub fn go_on(&self, log: &Arc<VirtualLog>) {
        if log.committed() {
            self.appends.queue.add_again(Arc::clone(log));
        }
    }

    /// The lanes of all streams that have a state at this moment.
    pub fn made_lanes(&self) -> Vec<Arc<LaneState>> {
        let streams: Vec<Arc<StreamState>> = self.streams.read().by_id.values().cloned().collect();
        let lanes = streams.iter().flat_map(|stream| stream.made_lanes());
        lanes.collect()
    }

    // ---- Full disk -----------------------------------------------------------------------------

    fn set_disk_full(&self, error: &LogError) {
        if !self.appends.disk.set_full() {
            tracing::warn!(%error, "disk is full: writes are refused until there is room");
            // Appends that wait to become durable learn of it, in every lane.
            for lane in self.made_lanes() {
                lane.durable_moved.notify(usize::MAX);
            }
        }
        self.appends.persister.notify();
    }

    /// Looks whether a full disk has room again.
    fn probe_disk(&self, now: Duration) {
        let mut probed_at = self.probed_at.lock();
        let is_early =
            self.config.background == Background::Threads && now.saturating_sub(*probed_at) < TICK;
        if is_early || !self.appends.disk.is_full() {
            return;
        }
        *probed_at = now;
        let path = self.dir.journal_dir().join(PROBE);
        let probe = |path: &Path| {
            let file = self.dir.disk.open(path, Access::Create)?;
            file.write_at(&vec![0; PROBE_BYTES as usize], 0)
        };
        let result = probe(&path);
        let removed = self.dir.disk.remove_file(&path);
        if result.and(removed).is_ok() {
            tracing::info!("disk has room again: writes are accepted");
            self.appends.disk.clear_full();
        }
    }

    fn release_stalled(&self) {
        for log in std::mem::take(&mut *self.stalled.lock()) {
            self.appends.queue.add(log);
        }
    }

    // ---- Persistence ---------------------------------------------------------------------------

    /// One round of the persistence manager. `true` when it did something.
    pub fn persist_step(&self) -> bool {
        let now = self.tick();
        let mut worked = false;
        if self.appends.disk.is_full() {
            self.probe_disk(now);
            if self.appends.disk.is_full() {
                return false;
            }
            worked = true;
        }
        if self.recovery_waits.swap(false, Ordering::Relaxed) {
            self.try_to_finish_recovery();
            if self.appends.disk.is_full() {
                return false;
            }
            worked = true;
        }
        self.note_data();
        let stalled = !self.stalled.lock().is_empty();
        if self.journal.fill() > JOURNAL_FILL_MAX || stalled {
            worked |= self.release_journal(JOURNAL_FILL_MAX);
        }
        if !self.appends.disk.is_full() && self.journal.has_room() {
            worked |= !self.stalled.lock().is_empty();
            self.release_stalled();
        }
        let goal = |share: f64| (self.pool.size_bytes(Arena::Segments) as f64 * share) as usize;
        let starved = self.starved.swap(false, Ordering::Relaxed);
        if self.appends.free_bytes() < goal(POOL_FREE_MIN) {
            worked |= self.reclaim(goal(POOL_FREE_GOAL));
        } else if starved {
            // What is free lies in pieces that are too small.
            worked |= self.reclaim(usize::MAX);
        }
        worked
    }

    /// Takes over what recovery found, once all streams are there.
    pub fn take_over(&self, journal: OldJournal, is_kept: bool) {
        let lanes = self.made_lanes();
        let mut groups: Vec<(Arc<Group>, Position)> = Vec::new();
        for group in lanes.iter().flat_map(|lane| lane.groups()) {
            for segment in group.segments_in_memory() {
                self.appends.residents.add(Resident {
                    lane: group.lane,
                    group: Arc::clone(&group),
                    segment,
                });
            }
            let durable = group.durable();
            if group.synced() < durable || (group.has_marks() && durable > Position(0)) {
                groups.push((group, durable));
            }
        }
        *self.old_journal.lock() = Some(Replayed {
            journal,
            groups,
            is_kept,
        });
    }

    /// Finishes recovery, if that can be done now.
    pub fn try_to_finish_recovery(&self) {
        if let Err(error) = self.finish_recovery() {
            tracing::warn!(%error, "what the last run left in the journal stays there for now");
        }
    }

    /// The last step of recovery: persists what was replayed, and removes the old journal. On a full
    /// disk it is tried again when there is room.
    pub fn finish_recovery(&self) -> Result<()> {
        let mut old_journal = self.old_journal.lock();
        let Some(Replayed {
            journal,
            groups,
            is_kept,
        }) = &*old_journal
        else {
            return Ok(());
        };
        self.persist(groups.iter().map(|(group, _)| Arc::clone(group)).collect());
        let is_live =
            |(group, to): &&(Arc<Group>, Position)| !group.is_removed() && group.synced() < *to;
        // Those that failed stay in the journal until the next start.
        let (failed, waiting): (Vec<_>, Vec<_>) = groups
            .iter()
            .filter(is_live)
            .partition(|(group, _)| group.has_failed());
        self.recovery_waits
            .store(!waiting.is_empty(), Ordering::Relaxed);
        if let Some((group, _)) = failed.first().or(waiting.first()) {
            let lane = self.lane(group.lane).filter(|_| group.has_failed());
            let fault = lane.and_then(|lane| lane.fault().cloned());
            return Err(fault.unwrap_or_else(|| self.appends.disk.full_error()));
        }
        if !journal.is_empty() && !is_kept {
            journal.remove(&self.dir)?;
        }
        *old_journal = None;
        Ok(())
    }

    /// Persists what holds back the oldest `share` of the journal's files, and frees them.
    pub fn release_journal(&self, share: f64) -> bool {
        let groups = self.journal.groups_to_persist(share);
        let groups = groups.into_iter().map(|(group, _)| group).collect();
        self.persist(groups);
        self.journal.release_obsolete()
    }

    /// Brings groups' files up to their durable heads and syncs them. Groups of lanes that fail are
    /// left as they are: their lanes refuse writes.
    pub fn persist(&self, groups: Vec<Arc<Group>>) {
        // Step 1: the lanes' earlier groups go first.
        let mut last_of_lane: HashMap<LaneId, Arc<Group>> = HashMap::new();
        for group in groups {
            let last = last_of_lane.entry(group.lane).or_insert(group.clone());
            if last.id < group.id {
                *last = group;
            }
        }
        let mut all: Vec<Arc<Group>> = Vec::with_capacity(last_of_lane.len());
        for group in last_of_lane.into_values() {
            if let Some(lane) = self.lane(group.lane).filter(|lane| !lane.is_scratch()) {
                all.extend(lane.unsettled_before(group.id));
                all.push(group);
            }
        }
        all.sort_unstable_by_key(|group| (group.lane, group.id));
        all.dedup_by_key(|group| (group.lane, group.id));

        // Step 2: write. Files that are synced together need not stay open for that, and may be more
        // than can be open.
        let keep_open = if all.len() <= SINGLE_SYNCS_MAX {
            KeepOpen::Yes
        } else {
            KeepOpen::No
        };
        let mut written: Vec<(Arc<Group>, Position)> = Vec::with_capacity(all.len());
        let mut failed_lane = None;
        for group in all {
            // The files of a lane are a gapless series: what is behind a failed group fails too.
            if failed_lane == Some(group.lane) {
                self.fail_behind(&group);
                continue;
            }
            if group.has_failed() {
                failed_lane = Some(group.lane);
                continue;
            }
            match group.write_back(&self.dir, group.durable(), Through::PastCache, keep_open) {
                Ok(to) if to > group.synced() => written.push((group, to)),
                Ok(_) => {
                    // Nothing to write; its end may still be missing in the index.
                    if let Err(error) = group.sync(&self.dir, KeepOpen::No) {
                        self.fail(&group, &error);
                    }
                }
                Err(error) if error.is_disk_full() => {
                    self.set_disk_full(&error);
                    break;
                }
                Err(error) => {
                    failed_lane = Some(group.lane);
                    self.fail(&group, &error);
                }
            }
        }

        // Step 3: sync.
        if written.len() <= SINGLE_SYNCS_MAX {
            let mut failed_lane = None;
            for (group, _) in &written {
                if failed_lane == Some(group.lane) {
                    self.fail_behind(group);
                    continue;
                }
                if let Err(error) = group.sync(&self.dir, KeepOpen::No) {
                    failed_lane = Some(group.lane);
                    self.fail(group, &error);
                }
            }
        } else {
            match self.dir.sync_streams() {
                Ok(()) => {
                    for (group, to) in &written {
                        group.synced_with_all(&self.dir, *to);
                    }
                }
                Err(error) => {
                    for (group, _) in &written {
                        self.fail(group, &error);
                    }
                }
            }
        }
        self.counters
            .persisted_groups
            .fetch_add(written.len() as u64, Ordering::Relaxed);
    }

    /// Gives up a group behind one that failed.
    fn fail_behind(&self, group: &Group) {
        if let Some(lane) = self.lane(group.lane)
            && let Some(fault) = lane.fault()
        {
            group.fail(fault);
        }
    }

    pub fn fail(&self, group: &Group, error: &LogError) {
        let fault = fault_of(error);
        group.fail(&fault);
        if let Some(lane) = self.lane(group.lane) {
            lane.set_fault(&fault);
        }
    }

    // ---- Memory --------------------------------------------------------------------------------

    /// Gives buffers back until `goal` bytes are free, in this order: segments that all their
    /// readers have passed, other persisted ones, those that first must be written to their files,
    /// and at last the heads of the lanes that were idle for longest.
    pub fn reclaim(&self, goal: usize) -> bool {
        let _one = self.reclaiming.lock();
        let before = self.appends.free_bytes();
        let mut residents = std::mem::take(&mut *self.appends.residents.lock());

        self.evict(&mut residents, goal, true);
        self.evict(&mut residents, goal, false);
        if self.appends.free_bytes() < goal {
            self.sync_written(self.appends.queue.drain_unsynced());
            self.persist_closed(&residents, goal);
            self.evict(&mut residents, goal, false);
        }
        if self.appends.free_bytes() < goal {
            self.close_idlest(&residents, goal);
            self.persist_closed(&residents, goal);
            self.evict(&mut residents, goal, false);
        }
        let least = self.pool.size_bytes(Arena::Segments) / SCRATCH_FREE_MIN;
        if self.appends.free_bytes() < goal.min(least) {
            self.close_scratch(&residents);
            self.evict(&mut residents, goal.min(least), false);
        }

        let mut current = self.appends.residents.lock();
        residents.append(&mut current);
        *current = residents;
        self.appends.free_bytes() > before
    }

    /// Gives the buffers of persisted segments back, oldest first.
    fn evict(&self, residents: &mut VecDeque<Resident>, goal: usize, passed_only: bool) {
        residents.retain(|resident| {
            if self.appends.free_bytes() >= goal {
                return true;
            }
            let Some(lane) = self.lane(resident.lane) else {
                // The stream was deleted, and its buffers with it.
                return false;
            };
            if lane.is_scratch() {
                return !self.evict_scratch(&lane, resident);
            }
            let passed = || {
                resident
                    .group
                    .segment_end(resident.segment)
                    .is_some_and(|end| lane.readers_passed(resident.group.id, end))
            };
            if passed_only && !passed() {
                return true;
            }
            let evicted = resident.group.evict(resident.segment);
            if evicted {
                self.counters
                    .evicted_segments
                    .fetch_add(1, Ordering::Relaxed);
            }
            !evicted
        });
    }

    /// A stream that is never written to disk loses its oldest closed group instead.
    fn evict_scratch(&self, lane: &LaneState, resident: &Resident) -> bool {
        if resident.group.end().is_some()
            && let Some(group) = lane.remove_first(resident.group.id)
        {
            // It has no files, so nothing can fail.
            let _ = group.remove(&self.dir);
        }
        resident.group.is_removed()
    }

    /// Persists the groups of closed segments, oldest first, as far as `goal` asks for.
    fn persist_closed(&self, residents: &VecDeque<Resident>, goal: usize) {
        let mut missing = goal.saturating_sub(self.appends.free_bytes()) as u64;
        let mut groups: Vec<Arc<Group>> = Vec::new();
        for resident in residents {
            if missing == 0 {
                break;
            }
            let group = &resident.group;
            let Some(end) = group.segment_end(resident.segment) else {
                continue;
            };
            if group.synced() < end && end <= group.durable() {
                let base = group.segment_base(resident.segment).unwrap_or(end);
                missing = missing.saturating_sub(end.0 - base.0);
                groups.push(Arc::clone(group));
            }
        }
        if !groups.is_empty() {
            self.persist(groups);
        }
    }

    /// Closes the head segments of the lanes that were idle for longest.
    fn close_idlest(&self, residents: &VecDeque<Resident>, goal: usize) {
        let mut heads: Vec<(Duration, Arc<LaneState>)> = residents
            .iter()
            .filter(|resident| resident.group.segment_end(resident.segment).is_none())
            .filter_map(|resident| self.lane(resident.lane))
            .filter(|lane| !lane.is_scratch())
            .map(|lane| (lane.appended_at(), lane))
            .collect();
        heads.sort_unstable_by_key(|(appended_at, _)| *appended_at);
        let mut missing = goal.saturating_sub(self.appends.free_bytes()) as u64;
        for (_, lane) in heads {
            if missing == 0 {
                break;
            }
            if lane.close_head_segment() {
                missing = missing.saturating_sub(crate::memory::pool::BLOCK_BYTES_MIN as u64);
            }
        }
    }

    /// Closes the open groups of streams that are never written to disk: their memory comes back
    /// group by group, and their lanes alone may fill the pool.
    fn close_scratch(&self, residents: &VecDeque<Resident>) {
        for resident in residents {
            if let Some(lane) = self.lane(resident.lane).filter(|lane| lane.is_scratch()) {
                lane.close_scratch_group();
            }
        }
    }

    /// Takes the buffers of lanes that had no appends for a while.
    pub fn release_idle(&self) {
        let now = self.tick();
        let _one = self.reclaiming.lock();
        let heads: Vec<Resident> = self
            .appends
            .residents
            .lock()
            .iter()
            .filter(|resident| resident.group.segment_end(resident.segment).is_none())
            .cloned()
            .collect();
        let mut closed = Vec::new();
        for resident in heads {
            if let Some(lane) = self.lane(resident.lane).filter(|lane| !lane.is_scratch())
                && now.saturating_sub(lane.appended_at()) >= self.config.idle_after
                && lane.close_head_segment()
            {
                closed.push(resident);
            }
        }
        if closed.is_empty() {
            return;
        }
        closed.sort_unstable_by_key(|idle| (idle.lane, idle.group.id));
        self.persist(closed.iter().map(|idle| Arc::clone(&idle.group)).collect());
        self.appends.residents.lock().retain(|resident| {
            let idle = closed
                .binary_search_by_key(&(resident.lane, resident.group.id), |idle| {
                    (idle.lane, idle.group.id)
                })
                .is_ok();
            !(idle && resident.group.evict(resident.segment))
        });
    }

    /// Waits until a buffer may be free.
    ///
    /// # Errors
    /// When none came free by `deadline`.
    pub fn wait_for_buffer(&self, started: Instant) -> Result<()> {
        let exhausted = || LogError::PoolExhausted {
            pool: ByteSize(self.pool.size_bytes(Arena::Segments) as u64),
            waited_ms: started.elapsed().as_millis() as u64,
        };
        if self.config.background == Background::Manual {
            let step = || self.sync_step() | self.persist_step();
            let starved = || {
                self.starved.store(true, Ordering::Relaxed);
                step()
            };
            return if step() || starved() {
                Ok(())
            } else {
                Err(exhausted())
            };
        }
        let freed = self.pool.freed().listen();
        if started.elapsed() > TICK {
            self.starved.store(true, Ordering::Relaxed);
        }
        self.appends.persister.notify();
        let left = self
            .config
            .append_wait_max
            .checked_sub(started.elapsed())
            .ok_or_else(exhausted)?;
        freed.wait_timeout(left.min(TICK));
        Ok(())
    }

    // ---- Retention -----------------------------------------------------------------------------

    /// Removes groups that retention no longer keeps. Answers how many.
    pub fn retain(&self, now: Timestamp) -> Result<u64> {
        let streams: Vec<Arc<StreamState>> = self.streams.read().by_id.values().cloned().collect();
        let mut removed = 0;
        // A lane that was given up does not stop the others.
        let mut result = Ok(());
        for stream in streams {
            let config = self.effective(stream.kind, stream.shared.config.read().clone());
            let is_bounded = config.retention.is_some() || config.retention_ms.is_some();
            for lane in stream.made_lanes() {
                let mut retained = self.remove_deleted(&lane);
                if is_bounded {
                    let retain = |count| Ok(count + self.retain_lane(&lane, &config, now)?);
                    retained = retained.and_then(retain);
                }
                match retained {
                    Ok(count) => removed += count,
                    Err(error) => result = result.and(Err(error)),
                }
            }
        }
        result.map(|()| removed)
    }

    /// Removes the groups of which all was deleted.
    pub fn remove_deleted(&self, lane: &LaneState) -> Result<u64> {
        let start = lane.start.offset();
        if start == Offset(0) {
            return Ok(0);
        }
        if lane.is_emptied() {
            // The last group would stay.
            lane.roll();
        }
        let groups = lane.groups();
        let is_deleted = |group: &&Arc<Group>| group.end().is_some_and(|end| end.offset <= start);
        let deleted = groups.iter().take_while(is_deleted).count();
        // The last group says where the lane goes on.
        let deleted = deleted.min(groups.len().saturating_sub(1));
        if deleted > 0 {
            self.remove_groups_before(lane, &groups[deleted])?;
        }
        Ok(deleted as u64)
    }

    fn retain_lane(&self, lane: &LaneState, config: &StreamConfig, now: Timestamp) -> Result<u64> {
        let is_old = |newest: Timestamp| {
            config.retention_ms.is_some_and(|keep_ms| {
                let keep_ms = i64::try_from(keep_ms).unwrap_or(i64::MAX);
                newest.0 < now.0.saturating_sub(keep_ms)
            })
        };
        // A lane without further appends would keep its last group for ever.
        if lane.open_max_timestamp().is_some_and(is_old)
            && config.durability != Durability::Memory
            && let Some(next) = lane.roll()
        {
            // The next group's file carries the lane's offset on: it must be there before the
            // last group goes.
            self.persist(vec![Arc::clone(&next)]);
            self.found(lane, &next)?;
        }
        let groups = lane.groups();
        let mut bytes: u64 = groups.iter().map(|group| group.durable().0).sum();
        let mut removed = 0;
        // The last group stays: it says where the lane goes on.
        for (group, next) in groups.iter().zip(groups.iter().skip(1)) {
            let Some(end) = group.end() else {
                break;
            };
            let too_large = config.retention.is_some_and(|keep| bytes > keep.0);
            let written = config.durability == Durability::Memory || end.position <= group.synced();
            if !(too_large || is_old(end.max_timestamp)) || !written {
                break;
            }
            if config.durability != Durability::Memory {
                // It says where the lane goes on, when the journal holds only some of this one.
                self.found(lane, next)?;
            }
            bytes -= end.position.0;
            // Where a file cannot be removed, those behind it stay too: a lane has no holes.
            self.remove_first(lane, group)?;
            removed += 1;
        }
        Ok(removed)
    }

    /// Removes a lane's first group.
    fn remove_first(&self, lane: &LaneState, group: &Group) -> Result<()> {
        // Its index is gone before its file: one that is alone tells of a file that was lost.
        self.remove_index(lane, group)?;
        group.remove(&self.dir)?;
        lane.remove_first(group.id);
        // Before the next one goes: what is left of a lane has no holes.
        self.sync_names(lane)
    }

    /// Removes the index of a group for good.
    fn remove_index(&self, lane: &LaneState, group: &Group) -> Result<()> {
        if let Some(fault) = lane.fault().filter(|_| group.has_failed()) {
            return Err(fault.clone());
        }
        group.remove_index(&self.dir)?;
        self.sync_names(lane)
    }

    /// Makes the names of a lane's files durable.
    fn sync_names(&self, lane: &LaneState) -> Result<()> {
        if lane.is_scratch() {
            return Ok(());
        }
        let synced = self.dir.sync_dir(&self.dir.stream_dir(lane.id.stream));
        synced.inspect_err(|error| self.fail_all(lane, error))
    }

    /// Gives up a lane: which files it has is unknown.
    fn fail_all(&self, lane: &LaneState, error: &LogError) {
        let fault = fault_of(error);
        lane.set_fault(&fault);
        for group in lane.groups() {
            group.fail(&fault);
        }
    }

    /// Removes a lane's groups before `group`.
    pub fn remove_groups_before(&self, lane: &LaneState, group: &Arc<Group>) -> Result<()> {
        if !lane.is_scratch() {
            self.persist(vec![Arc::clone(group)]);
            self.found(lane, group)?;
        }
        for old in lane.groups() {
            if old.id >= group.id {
                break;
            }
            self.remove_first(lane, &old)?;
        }
        Ok(())
    }

    /// Removes a lane's groups before `group`, so that a full disk has room.
    pub fn make_room_before(&self, lane: &LaneState, group: &Arc<Group>) -> Result<()> {
        let _no_probe = self.probed_at.lock();
        self.remove_groups_before(lane, group)?;
        // Whether it is enough, the next write finds out.
        self.appends.disk.clear_full();
        self.appends.persister.notify();
        Ok(())
    }

    /// Takes away what a stream holds, as retention would, so that a full disk has room to note that it
    /// is deleted. Chunks that wait for that room to become durable are given up: no producer was told that
    /// they are durable.
    pub fn make_room_of(&self, stream: &StreamState) -> Result<()> {
        let _no_probe = self.probed_at.lock();
        let fault = LogError::LaneFault {
            what: "its stream was emptied to make room for its deletion".to_owned(),
        };
        let lanes = stream.made_lanes().into_iter();
        for lane in lanes.filter(|lane| !lane.is_scratch()) {
            lane.set_fault(&fault);
            // What producers of a `written` stream were answered becomes durable: the lane goes on behind it.
            self.sync_written(vec![Arc::clone(&lane)]);
            let last = lane.give_up();
            let groups = lane.groups();
            let Some(with_file) = groups.iter().rposition(|group| group.has_file()) else {
                continue;
            };
            for group in &groups[..with_file] {
                self.remove_first(&lane, group)?;
            }
            // The last file stays, empty, to say where the lane goes on.
            let first = &groups[with_file];
            if first.id == last.id {
                continue;
            }
            self.remove_index(&lane, first)?;
            lane.remove_first(first.id);
            first
                .hand_file_over(&self.dir, &last)
                .inspect_err(|error| self.fail_all(&lane, error))?;
            for group in &groups[with_file + 1..groups.len() - 1] {
                group.remove(&self.dir)?;
                lane.remove_first(group.id);
            }
        }
        self.try_to_finish_recovery();
        // Whether it is enough, the next write finds out.
        self.appends.disk.clear_full();
        self.appends.persister.notify();
        Ok(())
    }

    /// Makes sure that an empty group has a file with a durable name.
    fn found(&self, lane: &LaneState, group: &Group) -> Result<()> {
        if let Some(damage) = group.damage() {
            // What is known of the damage stays until a repair.
            return Err(damage.clone());
        }
        for earlier in lane.unsettled_before(group.id) {
            if earlier
                .end()
                .is_some_and(|end| earlier.synced() < end.position)
            {
                let fault = lane.fault().cloned();
                return Err(fault.unwrap_or_else(|| self.appends.disk.full_error()));
            }
        }
        if group.has_file() {
            return Ok(());
        }
        let founded = group
            .write_back(&self.dir, Position(0), Through::PastCache, KeepOpen::Yes)
            .and_then(|_| group.sync(&self.dir, KeepOpen::No));
        if let Err(error) = &founded
            && !error.is_disk_full()
        {
            self.fail(group, error);
        }
        founded
    }

    // ---- The persistence manager's thread ------------------------------------------------------
}

/// Moves the durable heads behind runs that are on all replicas, and wakes the threads that wait for them.
fn settle_durable(runs: Vec<PendingRun>) {
    for pending in &runs {
        pending.run.group.set_durable(pending.run.end());
    }
    // A lane's offset moves once, to behind its last run.
    let mut runs = runs.into_iter().peekable();
    while let Some(pending) = runs.next() {
        let last_of_lane = runs
            .peek()
            .is_none_or(|next| !Arc::ptr_eq(&next.lane, &pending.lane));
        if last_of_lane {
            pending.lane.set_durable_offset(pending.next_offset);
        }
    }
}

pub fn fault_of(error: &LogError) -> LogError {
    match error {
        LogError::LaneFault { .. } => error.clone(),
        other => LogError::LaneFault {
            what: other.to_string(),
        },
    }
}
