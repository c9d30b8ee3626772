//! The state that all of a log shares.
//!
//! Its parts use it through narrower contexts: lanes through [`AppendContext`], reads through [`ReadContext`]. Commits,
//! persistence and recovery add their steps to [`Core`] in folders of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use millstream_base::{ByteSize, Clock, StreamId, Timestamp};
use parking_lot::{Mutex, RwLock};

use crate::compact::compactor::Compactor;
use crate::error::Result;
use crate::files::DataDir;
use crate::files::disk_space::DiskSpace;
use crate::ids::LaneId;
use crate::journal::writer::Journal;
use crate::lane::LaneState;
use crate::lane::context::AppendContext;
use crate::lane::persist_signal::PersistSignal;
use crate::lane::replaced::Replaced;
use crate::lane::shared::StreamShared;
use crate::lane::virtual_log::VirtualLog;
use crate::memory::pool::{Arena, Pool};
use crate::persist::key_turn::KeyTurn;
use crate::read::context::ReadContext;
use crate::recovery::unfinished::UnfinishedRecovery;
use crate::settings::compaction::{
    KEYED_GROUP_BYTES_MAX, is_compacted, keyed_clock, secondary, ttl,
};
use crate::settings::config::{Durability, LogConfig, StreamConfig};
use crate::settings::defaults::{CLEANUP_POLICY, COMPACT, StreamDefaults, has_policy};
use crate::settings::intake::Intake;
use crate::settings::limits::Limits;
use crate::stream::partitions::{PartitionCount, Reserved};
use crate::stream::registry::Streams;
use crate::stream::{StreamKind, StreamState};

/// The least number of groups of a `memory` stream that fit the pool.
const MEMORY_ONLY_GROUPS_MIN: u64 = 8;

/// Neighbouring chunks of a lane are joined up to this size.
const RUN_BYTES_MAX: usize = 1 << 20;

pub struct Core {
    pub config: LogConfig,
    pub dir: Arc<DataDir>,
    pub clock: Arc<dyn Clock>,
    /// A number of this run of the log, which other runs hardly have: the milliseconds at which it began.
    pub run: i32,
    pub pool: Arc<Pool>,
    /// The parts that reads need.
    pub reads: ReadContext,
    /// The parts that appends need.
    pub appends: AppendContext,
    pub journal: Journal,
    pub streams: RwLock<Streams>,
    pub partitions: PartitionCount,
    /// Settings of users' streams that have none of their own. Set by the broker, read by retention and when
    /// limits are set.
    pub defaults: RwLock<StreamDefaults>,
    /// Virtual logs that cannot go on before the disk or the journal has room.
    pub stalled: Mutex<Vec<Arc<VirtualLog>>>,
    /// The time of the last check for room on a full disk; locked while the check takes the room.
    pub probed_at: Mutex<Duration>,
    /// The journal of the last run, until the files hold all of it durably.
    pub unfinished_recovery: Mutex<Option<UnfinishedRecovery>>,
    /// Recovery could not be finished on a full disk. Taken by the persistence manager.
    pub recovery_waits: AtomicBool,
    /// Wakes the thread that makes key files.
    pub key_builder: PersistSignal,
    /// The lanes that this thread looks at.
    pub key_turn: KeyTurn,
    /// The thread that compacts.
    pub compactor: Compactor,
    /// Held by the thread that reclaims: one at a time.
    pub reclaiming: Mutex<()>,
    /// An append found no block of its size. Set by appends, taken by the persistence manager.
    pub starved: AtomicBool,
    /// A syncer could not trim the memory to its goal. Stored by syncers, taken by the persistence manager.
    pub exceeds_goal: AtomicBool,
    pub counters: Counters,
    /// When the first hold of a stream ends, about, in milliseconds. Lowered when a hold is made, taken by the thread that ends
    /// holds.
    hold_end: AtomicI64,
    /// The groups that compaction has replaced, until their files are removed.
    pub replaced: Replaced,
}

/// Counts of finished work.
#[derive(Debug, Default)]
pub struct Counters {
    pub direct_commits: AtomicU64,
    pub direct_bytes: AtomicU64,
    pub persisted_groups: AtomicU64,
    pub evicted_segments: AtomicU64,
}

/// Returns when an earlier run has compacted a lane, most recently.
fn last_compaction(dir: &DataDir) -> Option<Timestamp> {
    dir.manifest().look_at(|listed| {
        let lanes = listed.lanes();
        let compacted = lanes.filter_map(|(_, lane)| Some(lane.compacted()?.1));
        compacted.max()
    })
}

impl Core {
    pub fn new(
        config: LogConfig,
        dir: Arc<DataDir>,
        clock: Arc<dyn Clock>,
        pool: Arc<Pool>,
        journal: Journal,
    ) -> Core {
        let disk = DiskSpace::new(dir.root.clone(), config.journal_file);
        let appends = AppendContext::new(Arc::clone(&pool), disk);
        Core {
            defaults: RwLock::default(),
            reads: ReadContext::new(
                &config,
                Arc::clone(&dir),
                Arc::clone(&clock),
                Arc::clone(&pool),
                Arc::clone(&appends.compaction_marks),
            ),
            compactor: Compactor::new(&config, &*clock, last_compaction(&dir)),
            config,
            dir,
            run: (clock.now().0 & i64::from(i32::MAX)) as i32,
            clock,
            pool,
            appends,
            journal,
            streams: RwLock::default(),
            partitions: PartitionCount::default(),
            stalled: Mutex::default(),
            probed_at: Mutex::default(),
            unfinished_recovery: Mutex::default(),
            recovery_waits: AtomicBool::new(false),
            key_builder: PersistSignal::default(),
            key_turn: KeyTurn::default(),
            reclaiming: Mutex::default(),
            starved: AtomicBool::new(false),
            exceeds_goal: AtomicBool::new(false),
            counters: Counters::default(),
            hold_end: AtomicI64::new(i64::MAX),
            replaced: Replaced::default(),
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

    /// Returns whether records of a stream are found by key.
    pub fn is_keyed(&self, stream: &StreamShared) -> bool {
        if let Some(policy) = stream.config.read().settings.get(CLEANUP_POLICY) {
            return has_policy(policy, COMPACT);
        }
        let default = self.defaults.read().settings.get(CLEANUP_POLICY).cloned();
        let is_users = |stream: Arc<StreamState>| stream.kind == StreamKind::Stream;
        default.is_some_and(|policy| has_policy(&policy, COMPACT))
            && self.stream(stream.id).is_some_and(is_users)
    }

    /// Returns the bounds of a stream: its chunks must fit a segment, and a block of the journal.
    pub fn limits(&self, kind: StreamKind, config: &StreamConfig) -> Limits {
        let config = &self.effective(kind, config.clone());
        let segment = config.segment.as_usize();
        let chunk_bytes_max = segment
            .min(self.pool.block_bytes_max(Arena::Segments))
            .min(self.pool.block_bytes_max(Arena::Windows))
            .min(self.journal.block_bytes_max());
        let needs_keys = kind == StreamKind::Stream && is_compacted(&config.settings);
        let mut group_bytes = u64::from(config.group_segments) * config.segment.0;
        if needs_keys {
            group_bytes = group_bytes.min(KEYED_GROUP_BYTES_MAX);
        }
        let group_bytes_max = match config.durability {
            // Its memory comes back group by group.
            Durability::Memory => group_bytes.min(self.config.pool.0 / MEMORY_ONLY_GROUPS_MIN),
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
            needs_keys,
            ttl: ttl(&config.settings),
            keyed_clock: keyed_clock(&config.settings),
            secondary: match needs_keys {
                true => secondary(&config.settings),
                false => Arc::default(),
            },
            intake: Intake::of(|name| config.settings.get(name).map(String::as_str)),
        }
    }

    /// Takes note that a hold ends at a time.
    pub fn note_hold_end(&self, until: Timestamp) {
        self.hold_end.fetch_min(until.0, Ordering::AcqRel);
    }

    /// Whether a hold may have ended by now. The caller notes the ends of those that have not.
    pub fn take_hold_end(&self, now: Timestamp) -> bool {
        self.hold_end.load(Ordering::Relaxed) <= now.0
            && self.hold_end.swap(i64::MAX, Ordering::AcqRel) <= now.0
    }

    /// Returns how many lanes refuse writes, or have damage that a read has found.
    pub fn faulted_lanes(&self) -> u64 {
        let lanes = self.made_lanes();
        let faulted = lanes
            .iter()
            .filter(|lane| lane.fault().or(lane.read_fault()).is_some());
        faulted.count() as u64
    }

    pub fn lane(&self, id: LaneId) -> Option<Arc<LaneState>> {
        self.stream(id.stream)?.lane(id.streamlet, id.lane)
    }

    /// The lanes of all streams that have a state at this moment.
    pub fn made_lanes(&self) -> Vec<Arc<LaneState>> {
        let streams: Vec<Arc<StreamState>> = self.streams.read().by_id.values().cloned().collect();
        let lanes = streams.iter().flat_map(|stream| stream.made_lanes());
        lanes.collect()
    }
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core")
            .field("dir", &self.dir.root)
            .finish_non_exhaustive()
    }
}
