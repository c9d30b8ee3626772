//! When keyed streams are compacted in the background.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use millstream_base::{ByteSize, Offset, Timestamp};
use millstream_log::{
    Background, CLEANUP_POLICY, COMPACTION_LAG_MAX, COMPACTION_LAG_MIN, CompactionStats,
    DELETE_RETENTION, DIRTY_RATIO_MIN, FILE_DELETE_DELAY, Log, LogConfig, StreamConfig,
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
const MANY: u64 = 400;

const VALUE: [u8; 500] = [7; 500];

/// The steps after which a log must be at rest.
const STEPS_MAX: usize = 10_000;

struct Machine {
    disk: SimDisk,
    clock: SimClock,
    log: Option<Log>,
}

impl Machine {
    fn new() -> Machine {
        let mut machine = Machine {
            disk: SimDisk::new(1),
            clock: SimClock::new(Timestamp(1_000_000)),
            log: None,
        };
        machine.open();
        machine
    }

    /// A machine with the stream "s" of these settings beside [`SETTINGS`].
    fn with(settings: &[(&str, &str)]) -> Machine {
        let machine = Machine::new();
        machine.create("s", settings);
        machine
    }

    fn open(&mut self) {
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

    fn restart(&mut self) {
        self.log.take().unwrap().close().unwrap();
        self.open();
        self.rest();
    }

    fn log(&self) -> &Log {
        self.log.as_ref().unwrap()
    }

    fn create(&self, name: &str, settings: &[(&str, &str)]) {
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

    fn set(&self, stream: &str, name: &str, value: &str) {
        let set = |config: &mut StreamConfig| {
            config.settings.insert(name.to_owned(), value.to_owned());
        };
        self.log().alter_stream(stream, set).unwrap();
        self.rest();
    }

    /// Does all background work that there is.
    fn rest(&self) {
        let log = self.log();
        while log.sync_step() {}
        let rests = |_| !(log.step() | log.compact_step());
        assert!((0..STEPS_MAX).any(rests), "the log comes to no rest");
    }

    fn wait(&self, ms: u64) {
        self.clock.advance(Duration::from_millis(ms));
        self.rest();
    }

    /// Appends a record with each of these numbers modulo `keys` as its key, of this moment.
    fn put(&self, stream: &str, numbers: std::ops::Range<u64>, keys: u64) {
        self.append(stream, numbers, keys, Some(&VALUE[..]));
    }

    fn append(&self, stream: &str, numbers: std::ops::Range<u64>, keys: u64, value: Option<&[u8]>) {
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

    fn stats(&self, stream: &str) -> CompactionStats {
        let info = self.log().stream(stream).unwrap().info();
        info.partitions[0].compaction.clone().unwrap_or_default()
    }

    /// The number of records of a stream that are stored.
    fn stored(&self, stream: &str) -> u64 {
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

#[test]
fn a_partition_is_compacted_when_enough_of_it_is_dirty() {
    let machine = Machine::with(&[(DIRTY_RATIO_MIN, "0.6")]);
    machine.put("s", 0..MANY, 10);
    let first = machine.stats("s");
    assert!(first.passes > 0 && first.bytes_after < first.bytes_before / 2);
    assert!(first.compacted_to > Offset(0) && first.compacted_at.is_some());
    assert!(machine.stored("s") < MANY / 2);

    // Different keys stay, so more and more of the partition is clean.
    machine.put("s", 0..2 * MANY, 10 * MANY);
    let before = machine.stats("s");
    let groups_of = |stats: &CompactionStats| stats.passes - first.passes;
    let passes = groups_of(&before);
    assert!((1..10).contains(&passes), "{passes} passes");
    assert!(before.dirty_ratio() < 0.6);
    machine.wait(3_600_000);
    assert_eq!(machine.stats("s").passes, before.passes, "it is at rest");
    machine.set("s", DIRTY_RATIO_MIN, "0");
    let after = machine.stats("s");
    let is_dirty = before.dirty_bytes > 0;
    assert_eq!(after.passes - before.passes, u64::from(is_dirty));
    assert_eq!((after.dirty_bytes, after.failed, after.fault), (0, 0, None));
    let log = machine.log().stats().compaction;
    assert_eq!((log.passes, log.due_partitions), (after.passes, 0));
    assert_eq!(log.bytes_before, after.bytes_before);
    assert!(log.records_dropped > 0 && log.ended_at.is_some());
}

#[test]
fn a_record_waits_no_longer_than_the_largest_lag() {
    let machine = Machine::with(&[(COMPACTION_LAG_MAX, "10000")]);
    machine.put("s", 0..20, 5);
    machine.wait(9_000);
    assert_eq!((machine.stats("s").passes, machine.stored("s")), (0, 20));
    // The open group is closed for that.
    machine.wait(2_000);
    let stats = machine.stats("s");
    assert_eq!((stats.passes, machine.stored("s")), (1, 5));
    assert_eq!(stats.compacted_to, Offset(20));
    // Nothing is closed or compacted without new records.
    let groups = |machine: &Machine| machine.log().stream("s").unwrap().info().partitions[0].groups;
    let before = groups(&machine);
    for _ in 0..10 {
        machine.wait(10_000);
    }
    assert_eq!((groups(&machine), machine.stats("s").passes), (before, 1));
    machine.put("s", 0..20, 5);
    machine.wait(11_000);
    assert_eq!((machine.stats("s").passes, machine.stored("s")), (2, 5));
}

#[test]
fn records_of_old_times_do_not_close_groups_again_and_again() {
    let machine = Machine::with(&[(COMPACTION_LAG_MAX, "10000")]);
    let partition = machine.log().stream("s").unwrap().partition(0).unwrap();
    for _ in 0..100 {
        let mut builder = ChunkBuilder::new(Compression::None);
        builder
            .push(Timestamp(0), Some(b"key"), Some(b"value"), &[])
            .unwrap();
        partition.append(builder.finish(None).unwrap()).unwrap();
        machine.wait(1_000);
    }
    let passes = machine.stats("s").passes;
    assert!((8..=11).contains(&passes), "{passes} passes in 100 seconds");
}

#[test]
fn records_of_the_future_are_compacted_where_there_is_no_least_lag() {
    for (lag, is_compacted) in [("0", true), ("1", false)] {
        let machine = Machine::with(&[(CLEANUP_POLICY, "delete"), (COMPACTION_LAG_MIN, lag)]);
        machine.clock.advance(Duration::from_secs(3_600));
        machine.put("s", 0..MANY, 10);
        machine.clock.set(Timestamp(1_000_000));
        machine.set("s", CLEANUP_POLICY, "compact");
        assert_eq!(machine.stored("s") < MANY / 2, is_compacted, "{lag}");
    }
}

#[test]
fn a_record_stays_for_the_least_lag() {
    let machine = Machine::with(&[(COMPACTION_LAG_MIN, "60000")]);
    machine.put("s", 0..MANY, 10);
    machine.wait(59_000);
    assert_eq!((machine.stats("s").passes, machine.stored("s")), (0, MANY));
    // Then it needs no new record.
    machine.wait(1_000);
    assert_eq!(machine.stats("s").passes, 1);
    assert!(machine.stored("s") < MANY / 2);
}

#[test]
fn tombstones_go_without_new_records() {
    for is_restarted in [false, true] {
        let mut machine = Machine::with(&[(COMPACTION_LAG_MAX, "1000")]);
        machine.put("s", 0..MANY, 10);
        machine.append("s", 0..10, 10, None);
        machine.wait(2_000);
        assert_eq!(machine.stored("s"), 10, "the tombstones");
        machine.wait(90_000);
        if is_restarted {
            machine.restart();
        }
        assert_eq!(machine.stored("s"), 10, "the tombstones");
        machine.wait(20_000);
        assert_eq!(machine.stored("s"), 0);
        let passes = machine.stats("s").passes;
        machine.wait(1_000_000);
        assert_eq!(machine.stats("s").passes, passes, "it is at rest");
    }
}

#[test]
fn a_partition_that_cannot_be_compacted_holds_up_no_other() {
    let machine = Machine::with(&[]);
    machine.create("t", &[]);
    let id = machine.log().stream("s").unwrap().id();
    let is_rewrite = move |path: &Path| {
        let path = path.to_string_lossy();
        path.contains(&format!("streams/{id}/")) && path.contains("-0002.")
    };
    machine.disk.fail_writes(is_rewrite);
    machine.put("s", 0..MANY, 10);
    machine.put("t", 0..MANY, 10);
    let (failed, other) = (machine.stats("s"), machine.stats("t"));
    assert_eq!((failed.passes, failed.failed), (0, 1));
    assert!(failed.fault.is_some());
    assert!(other.passes > 0 && other.fault.is_none());
    assert_eq!(machine.stored("s"), MANY);
    let log = machine.log().stats();
    assert_eq!(
        (log.compaction.failed, log.compaction.failing_partitions),
        (1, 1)
    );
    assert_eq!((log.disk_full, log.faulted_lanes), (false, 0));
    machine.wait(14_000);
    assert_eq!(machine.stats("s").failed, 1, "it is left alone");
    machine.wait(1_000);
    assert_eq!(machine.stats("s").failed, 2);

    machine.disk.fail_writes(|_| false);
    machine.wait(15_000);
    let stats = machine.stats("s");
    assert_eq!((stats.passes, stats.failed, stats.fault), (1, 2, None));
    assert_eq!(machine.log().stats().compaction.failing_partitions, 0);
}

#[test]
fn a_full_disk_leaves_the_groups_as_they_are_and_compaction_is_tried_again() {
    let machine = Machine::with(&[(COMPACTION_LAG_MIN, "60000")]);
    machine.put("s", 0..MANY, 10);
    machine.disk.set_capacity(machine.disk.used_bytes() + 1_000);
    machine.wait(60_000);
    let stats = machine.stats("s");
    assert_eq!((stats.passes, stats.failed), (0, 1));
    let fault = stats.fault.unwrap();
    assert!(fault.contains("space"), "{fault}");
    assert_eq!(machine.stored("s"), MANY);
    let is_rewritten = |path: &Path| path.to_string_lossy().contains("-0002.");
    let files = machine.disk.files();
    assert!(!files.iter().any(|(path, _)| is_rewritten(path)));

    machine.disk.set_capacity(u64::MAX);
    machine.wait(15_000);
    let stats = machine.stats("s");
    assert_eq!((stats.passes, stats.fault), (1, None));
    assert!(machine.stored("s") < MANY / 2);
}

#[test]
fn a_stream_that_becomes_compacted_is_compacted_with_all_that_it_has() {
    let machine = Machine::with(&[(CLEANUP_POLICY, "delete")]);
    machine.put("s", 0..MANY, 10);
    assert_eq!(machine.stored("s"), MANY);
    machine.set("s", CLEANUP_POLICY, "compact,delete");
    assert!(machine.stored("s") < MANY / 2);
    let passes = machine.stats("s").passes;
    machine.set("s", CLEANUP_POLICY, "delete");
    machine.put("s", 0..MANY, 10);
    let info = machine.log().stream("s").unwrap().info();
    assert_eq!(info.partitions[0].compaction, None);
    let log = machine.log().stats().compaction;
    assert_eq!((log.passes, log.due_partitions), (passes, 0));
}

#[test]
fn a_deleted_stream_is_not_compacted() {
    let machine = Machine::with(&[(COMPACTION_LAG_MIN, "1000")]);
    machine.put("s", 0..MANY, 10);
    machine.log().delete_stream("s").unwrap();
    machine.wait(2_000);
    let log = machine.log().stats().compaction;
    assert_eq!((log.passes, log.failed, log.due_partitions), (0, 0, 0));
}

#[test]
fn a_start_compacts_what_is_due() {
    let mut machine = Machine::with(&[(COMPACTION_LAG_MIN, "60000")]);
    machine.put("s", 0..MANY, 10);
    machine.log.take().unwrap().close().unwrap();
    machine.clock.advance(Duration::from_secs(60));
    machine.open();
    machine.rest();
    assert!(machine.stats("s").passes > 0 && machine.stored("s") < MANY / 2);
    let compacted_to = machine.stats("s").compacted_to;
    machine.restart();
    let stats = machine.stats("s");
    assert_eq!((stats.passes, stats.compacted_to), (0, compacted_to));
}
