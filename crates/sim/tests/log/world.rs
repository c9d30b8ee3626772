//! A log on a simulated machine, with the model of its expected content. All tests of the log use it.

mod appends;
mod keys;
mod lives;
mod model;
mod objects;
mod reads;
mod retention;
mod shared_group;
mod streams;

use std::collections::BTreeSet;
use std::sync::Arc;

use millstream_base::{ByteSize, LaneIndex, StreamletIndex, Timestamp};
use millstream_log::{Background, Durability, Log, LogConfig, LogError, Stream, StreamPartition};
use millstream_sim::{Notes, Rng, SimClock, SimDisk, SimRandom};

pub use self::model::*;

pub const DIR: &str = "/data";

/// The configuration of a small log whose background work the test runs.
pub fn config() -> LogConfig {
    config_with_pool(ByteSize(1 << 20))
}

pub fn config_with_pool(pool: ByteSize) -> LogConfig {
    LogConfig {
        journal: ByteSize(512 << 10),
        journal_file: ByteSize(256 << 10),
        background: Background::Manual,
        ..LogConfig::with_pool(DIR, pool)
    }
}

pub fn open(disk: &SimDisk, clock: &SimClock) -> Result<Log, LogError> {
    open_with(config(), disk, clock)
}

pub fn open_with(config: LogConfig, disk: &SimDisk, clock: &SimClock) -> Result<Log, LogError> {
    // Each life of a log draws other numbers, so its journal has a new name.
    let files = format!("{:?}", disk.files());
    let seed = disk.operations() << 32 | u64::from(millstream_base::crc32c(files.as_bytes()));
    Log::open_on(
        config,
        Arc::new(disk.clone()),
        Arc::new(clock.clone()),
        Arc::new(SimRandom::new(seed)),
    )
}

/// Faults in this life of the log, which excuse errors.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    pub failing: bool,
    pub full: bool,
}

pub struct World {
    pub rng: Rng,
    pub disk: SimDisk,
    pub clock: SimClock,
    /// The pool of the log's next life.
    pub pool: ByteSize,
    pub log: Option<Log>,
    pub model: Model,
    pub faults: Faults,
    /// The identities of all streams ever created.
    uuids: BTreeSet<u128>,
    /// Counts chunks, so that each has other bytes.
    chunks_made: u64,
    notes: Notes,
}

impl World {
    pub fn new(seed: u64) -> World {
        let mut rng = Rng::with_seed(seed);
        let disk = SimDisk::new(rng.u64(..));
        disk.start_trace();
        World {
            rng,
            disk,
            clock: SimClock::new(Timestamp(1_000_000_000_000)),
            pool: config().pool,
            log: None,
            model: Model::default(),
            faults: Faults::default(),
            uuids: BTreeSet::new(),
            chunks_made: 0,
            notes: Notes::default(),
        }
    }

    pub fn log(&self) -> &Log {
        self.log.as_ref().expect("the log is open")
    }

    pub fn stream(&self, name: &str) -> Stream {
        self.log().stream(name).expect("the model has it")
    }

    /// Checks that a fault of the disk explains an error.
    pub fn excuse(&self, error: &LogError) {
        let excused = match error {
            LogError::DiskFull { .. } | LogError::NoRoomToStart { .. } => self.faults.full,
            LogError::Io { .. } => {
                self.faults.failing || self.faults.full || self.disk.has_crashed()
            }
            LogError::PartitionFault { .. } => {
                let mut streams = self.model.streams.values();
                let may_be_emptied = streams.any(|stream| stream.maybe_emptied);
                self.faults.failing || self.disk.has_crashed() || may_be_emptied
            }
            LogError::PoolExhausted { .. } | LogError::Closed => {
                self.faults.failing
                    || self.faults.full
                    || self.disk.has_crashed()
                    || self.has_in_memory()
            }
            _ => false,
        };
        assert!(excused, "nothing excuses: {error} ({error:?})");
    }

    pub fn note(&mut self, note: String) {
        self.notes.add(&self.disk, note);
    }

    fn has_in_memory(&self) -> bool {
        let mut streams = self.model.streams.values();
        streams.any(|stream| stream.config.durability == Durability::Memory)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.notes.print(&self.disk);
        }
    }
}

/// The lane of this streamlet and number.
pub fn lane_of(stream: &Stream, (streamlet, lane): (u32, u32)) -> StreamPartition {
    let info = stream.info();
    let found = info
        .partitions
        .iter()
        .find(|info| (info.streamlet, info.lane) == (StreamletIndex(streamlet), LaneIndex(lane)));
    let partition = found.expect("the model has all lanes").partition;
    stream.partition(partition).expect("listed")
}
