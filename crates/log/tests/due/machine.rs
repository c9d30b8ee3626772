//! A simulated machine with a log whose background work the test does.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use millstream_base::{ByteSize, Timestamp};
use millstream_log::{
    Background, CLEANUP_POLICY, CompactionStats, DELETE_RETENTION, DIRTY_RATIO_MIN,
    FILE_DELETE_DELAY, Log, LogConfig, StreamConfig,
};
use millstream_record::{ChunkBuilder, Compression, Decompressor};
use millstream_sim::{SimClock, SimDisk, SimRandom};

/// The settings of the streams of these tests, unless a test has others: a group is due when it is closed.
const SETTINGS: [(&str, &str); 4] = [
    (CLEANUP_POLICY, "compact"),
    (DIRTY_RATIO_MIN, "0.5"),
    (DELETE_RETENTION, "100000"),
    (FILE_DELETE_DELAY, "0"),
];

/// Records of the size of [`VALUE`] that fill more than two groups.
pub const MANY: u64 = 400;

const VALUE: [u8; 500] = [7; 500];

/// The steps after which a log must be at rest.
const STEPS_MAX: usize = 10_000;

pub struct Machine {
    pub disk: SimDisk,
    pub clock: SimClock,
    pub log: Option<Log>,
}

impl Machine {
    pub fn new() -> Machine {
        let mut machine = Machine {
            disk: SimDisk::new(1),
            clock: SimClock::new(Timestamp(1_000_000)),
            log: None,
        };
        machine.open();
        machine
    }

    /// A machine with the stream "s" of these settings beside [`SETTINGS`].
    pub fn with(settings: &[(&str, &str)]) -> Machine {
        let machine = Machine::new();
        machine.create("s", settings);
        machine
    }

    pub fn open(&mut self) {
        let config = LogConfig {
            journal: ByteSize(4 << 20),
            journal_file: ByteSize(1 << 20),
            background: Background::Manual,
            ..LogConfig::with_pool(Path::new("/data"), ByteSize(4 << 20))
        };
        let (disk, clock) = (self.disk.clone(), self.clock.clone());
        let random = SimRandom::new(1);
        let log = Log::open_on(config, Arc::new(disk), Arc::new(clock), Arc::new(random));
        self.log = Some(log.unwrap());
    }

    pub fn restart(&mut self) {
        self.log.take().unwrap().close().unwrap();
        self.open();
        self.rest();
    }

    pub fn log(&self) -> &Log {
        self.log.as_ref().unwrap()
    }

    pub fn create(&self, name: &str, settings: &[(&str, &str)]) {
        let all = SETTINGS.iter().chain(settings);
        let config = StreamConfig {
            segment: ByteSize(64 << 10),
            group_segments: 1,
            settings: all
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            ..StreamConfig::default()
        };
        self.log().create_stream(name, config).unwrap();
    }

    pub fn set(&self, stream: &str, name: &str, value: &str) {
        let set = |config: &mut StreamConfig| {
            config.settings.insert(name.to_owned(), value.to_owned());
        };
        self.log().alter_stream(stream, set).unwrap();
        self.rest();
    }

    /// Does all pending background work.
    pub fn rest(&self) {
        let log = self.log();
        while log.sync_step() {}
        let rests = |_| !(log.step() | log.compact_step());
        assert!((0..STEPS_MAX).any(rests), "the log comes to no rest");
    }

    pub fn wait(&self, ms: u64) {
        self.clock.advance(Duration::from_millis(ms));
        self.rest();
    }

    /// Appends a record with each of these numbers modulo `keys` as its key, of this moment.
    pub fn put(&self, stream: &str, numbers: std::ops::Range<u64>, keys: u64) {
        self.append(stream, numbers, keys, Some(&VALUE[..]));
    }

    pub fn append(
        &self,
        stream: &str,
        numbers: std::ops::Range<u64>,
        keys: u64,
        value: Option<&[u8]>,
    ) {
        use millstream_base::Clock;
        let now = self.clock.now();
        let partition = self.log().stream(stream).unwrap().partition(0).unwrap();
        let numbers: Vec<u64> = numbers.collect();
        for numbers in numbers.chunks(10) {
            let mut builder = ChunkBuilder::new(Compression::None);
            for number in numbers {
                let key = format!("{}", number % keys).into_bytes();
                builder.push(now, Some(&key), value, &[]).unwrap();
            }
            partition.append(builder.finish(None).unwrap()).unwrap();
            self.rest();
        }
    }

    pub fn stats(&self, stream: &str) -> CompactionStats {
        let info = self.log().stream(stream).unwrap().info();
        info.partitions[0].compaction.clone().unwrap_or_default()
    }

    /// The number of records of a stream that are stored.
    pub fn stored(&self, stream: &str) -> u64 {
        let stream = self.log().stream(stream).unwrap();
        let partition = stream.partition(0).unwrap();
        let mut reader = partition.reader(partition.earliest());
        let (mut count, mut decompressor) = (0, Decompressor::default());
        while let Some(chunks) = reader.read(1 << 20).unwrap() {
            for chunk in chunks.chunks() {
                let chunk = chunk.unwrap();
                count += chunk.records(&mut decompressor).unwrap().count() as u64;
            }
        }
        count
    }
}
