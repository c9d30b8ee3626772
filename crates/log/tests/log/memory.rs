//! Memory: what stays in the pool, and what goes back to the system.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use millstream_base::{ByteSize, Offset, SystemDisk, SystemRandom, Timestamp};
use millstream_log::{
    Arena, AtLeast, Background, CLEANUP_POLICY, COMPACT, Durability, Log, LogConfig, LogError,
    ReadStart, Stream, StreamConfig, StreamReader,
};
use millstream_record::ChunkBuilder;
use millstream_sim::SimClock;
use tempfile::TempDir;

const POOL_BYTES: usize = 64 << 20;

/// The bytes that the log uses for longer than it must.
const GOAL_BYTES: usize = POOL_BYTES / 4;

/// The bytes that it uses at most while its readers are at the head: trimming begins a quarter behind the goal, and the
/// bytes that are not persisted yet are beside it.
const BYTES_MAX: usize = GOAL_BYTES + GOAL_BYTES / 4 + (12 << 20);

struct Machine {
    log: Log,
    clock: SimClock,
    _dir: TempDir,
}

impl Machine {
    fn new() -> Machine {
        let dir = tempfile::tempdir().unwrap();
        let clock = SimClock::new(Timestamp(0));
        let config = LogConfig {
            background: Background::Manual,
            ..LogConfig::with_pool(dir.path(), ByteSize(POOL_BYTES as u64))
        };
        let (disk, random) = (Arc::new(SystemDisk), Arc::new(SystemRandom));
        let log = Log::open_on(config, disk, Arc::new(clock.clone()), random).unwrap();
        Machine {
            log,
            clock,
            _dir: dir,
        }
    }

    fn stream(&self, durability: Durability, streamlets: u32) -> Stream {
        let config = StreamConfig {
            durability,
            streamlets,
            ..StreamConfig::default()
        };
        self.log.create_stream("s", config).unwrap()
    }

    fn used_bytes(&self) -> usize {
        self.log.stats().pool_used_bytes as usize
    }

    fn resident_bytes(&self) -> usize {
        self.log.stats().pool_resident_bytes as usize
    }

    /// Appends chunks with consecutive numbers to the partitions in turn.
    fn append(&self, stream: &Stream, numbers: std::ops::Range<u64>) {
        for number in numbers {
            let partition = (number % u64::from(stream.partition_count())) as u32;
            let lane = stream.partition(partition).unwrap();
            lane.append(&chunk(number)).unwrap();
            if number % 8 == 7 {
                while self.log.step() {}
            }
        }
        while self.log.step() {}
    }

    /// Lets times pass in which nothing happens.
    fn rest(&self) {
        for _ in 0..4 {
            self.clock.advance(Duration::from_secs(10));
            self.log.release_idle();
        }
    }
}

/// 64 KiB in one record, with a number as its key.
fn chunk(number: u64) -> Vec<u8> {
    let mut builder = ChunkBuilder::new(Default::default());
    let value = vec![7; 64 << 10];
    builder
        .push(Timestamp(0), Some(&number.to_be_bytes()), Some(&value), &[])
        .unwrap();
    builder.finish(None).unwrap().to_vec()
}

/// Reads on to the end. Returns how many chunks there were in memory, and how many in files.
fn read_on(reader: &mut StreamReader) -> (u64, u64) {
    let (mut in_memory, mut in_files) = (0, 0);
    while let Some(read) = reader.read(1 << 20).unwrap() {
        let count = read
            .chunks()
            .map(|chunk| chunk.map(|_| 1).unwrap())
            .sum::<u64>();
        match read.bytes.arena() {
            Arena::Segments => in_memory += count,
            Arena::Windows => in_files += count,
        }
    }
    (in_memory, in_files)
}

/// A stream of one partition whose reader has read its only chunk.
fn reader_at_the_head() -> (Machine, Stream, StreamReader) {
    let machine = Machine::new();
    let stream = machine.stream(Durability::Sync, 1);
    let mut reader = stream.reader(ReadStart::Earliest);
    machine.append(&stream, 0..1);
    assert_eq!(read_on(&mut reader), (1, 0));
    (machine, stream, reader)
}

#[test]
fn a_reader_at_the_head_needs_little_memory() {
    for (durability, streamlets) in [
        (Durability::Sync, 1),
        (Durability::Written, 1),
        (Durability::Async, 1),
        (Durability::Sync, 8),
        (Durability::Async, 16),
    ] {
        let machine = Machine::new();
        let stream = machine.stream(durability, streamlets);
        let mut reader = stream.reader(ReadStart::Earliest);
        let mut read = (0, 0);
        // Twice the pool.
        for round in 0..128 {
            machine.append(&stream, round * 16..(round + 1) * 16);
            machine.clock.advance(Duration::from_millis(40));
            let (in_memory, in_files) = read_on(&mut reader);
            read = (read.0 + in_memory, read.1 + in_files);
            let resident = machine.resident_bytes();
            assert!(
                resident <= BYTES_MAX,
                "{resident} bytes, {durability:?}, {streamlets}, {round}"
            );
        }
        for partition in 0..streamlets {
            let lane = stream.partition(partition).unwrap();
            lane.wait_durable(lane.next_offset()).unwrap();
        }
        let last = read_on(&mut reader);
        let read = (read.0 + last.0, read.1 + last.1);
        assert_eq!(read, (2048, 0), "{durability:?}, {streamlets}");
    }
}

#[test]
fn a_consumer_at_the_head_reads_from_memory() {
    let machine = Machine::new();
    let stream = machine.stream(Durability::Sync, 1);
    let lane = stream.partition(0).unwrap();
    let mut next = lane.earliest_offset();
    for round in 0..64 {
        machine.append(&stream, round * 16..(round + 1) * 16);
        while next < lane.high_watermark() {
            assert!(lane.is_in_memory(next));
            let fetched = lane
                .fetch(next, lane.high_watermark(), 1 << 20, AtLeast::OneChunk)
                .unwrap();
            lane.note_read(fetched.span.unwrap());
            next = fetched.next;
        }
        assert!(machine.resident_bytes() <= BYTES_MAX);
    }
    assert_eq!(machine.log.pool().resident_bytes(Arena::Windows), 0);
}

/// One half of the pool is less than all of it, and more than the goal.
const HALF: u64 = 512;

#[test]
fn a_reader_near_the_head_keeps_the_records_that_it_reads_next() {
    let (machine, stream, mut reader) = reader_at_the_head();
    machine.append(&stream, 1..HALF);
    let used = machine.used_bytes();
    assert!(used > GOAL_BYTES + GOAL_BYTES / 2, "{used}");
    assert_eq!(read_on(&mut reader), (HALF - 1, 0));
    // It has passed them.
    machine.append(&stream, HALF..HALF + 160);
    let used = machine.used_bytes();
    assert!(used <= BYTES_MAX, "{used}");
}

#[test]
fn a_reader_that_stops_keeps_no_memory_and_reads_everything_later() {
    let (machine, stream, mut reader) = reader_at_the_head();
    machine.clock.advance(Duration::from_secs(11));
    machine.append(&stream, 1..HALF);
    assert!(machine.resident_bytes() <= BYTES_MAX);
    let (in_memory, in_files) = read_on(&mut reader);
    assert_eq!(in_memory + in_files, HALF - 1);
    assert!(in_files > 0 && in_memory > 0, "{in_memory} and {in_files}");
    // It reads from memory again.
    machine.append(&stream, HALF..HALF + 64);
    assert_eq!(read_on(&mut reader), (64, 0));
}

#[test]
fn a_reader_that_lags_by_more_than_the_pool_reads_everything() {
    let (machine, stream, mut reader) = reader_at_the_head();
    machine.append(&stream, 1..3 * HALF);
    machine.log.release_idle();
    // It keeps nothing any more.
    assert!(machine.used_bytes() <= BYTES_MAX);
    let (in_memory, in_files) = read_on(&mut reader);
    assert_eq!(in_memory + in_files, 3 * HALF - 1);
    assert!(in_files > HALF, "{in_files}");
}

#[test]
fn freed_memory_is_used_again_before_other_memory() {
    let machine = Machine::new();
    let stream = machine.stream(Durability::Sync, 1);
    machine.append(&stream, 0..HALF);
    let before = machine.resident_bytes();
    machine.append(&stream, HALF..4 * HALF);
    let more = machine.resident_bytes() - before;
    assert!(more <= 4 << 20, "{more} bytes after {before}");
}

#[test]
fn idle_memory_goes_back_to_the_system() {
    let machine = Machine::new();
    let stream = machine.stream(Durability::Sync, 1);
    machine.append(&stream, 0..HALF);
    assert!(machine.resident_bytes() > 1 << 20);
    machine.rest();
    assert_eq!(machine.resident_bytes(), 0);
    assert_eq!(read_on(&mut stream.reader(ReadStart::Earliest)), (0, HALF));
    let windows = || machine.log.pool().resident_bytes(Arena::Windows);
    assert!(windows() > 0);
    machine.rest();
    assert_eq!(windows(), 0);
    // The next records need memory again.
    let mut reader = stream.reader(ReadStart::Latest);
    machine.append(&stream, HALF..HALF + 1);
    assert_eq!(read_on(&mut reader), (1, 0));
}

#[test]
fn records_of_keyed_streams_stay_in_memory_while_there_is_enough() {
    let machine = Machine::new();
    let settings = [(CLEANUP_POLICY.to_owned(), COMPACT.to_owned())].into();
    let config = StreamConfig {
        settings,
        ..StreamConfig::default()
    };
    let stream = machine.log.create_stream("s", config).unwrap();
    machine.append(&stream, 0..HALF);
    machine.clock.advance(Duration::from_secs(11));
    while machine.log.step() {}
    assert_eq!(read_on(&mut stream.reader(ReadStart::Earliest)), (HALF, 0));
    // Of the idle stream, only the head goes.
    machine.log.release_idle();
    let (in_memory, in_files) = read_on(&mut stream.reader(ReadStart::Earliest));
    assert_eq!(in_memory + in_files, HALF);
    let head_chunks = (2 << 20) / (64 << 10);
    assert!((1..=head_chunks).contains(&in_files), "{in_files}");
}

#[test]
fn a_fetch_keeps_the_records_behind_it_once_it_is_answered() {
    for is_answered in [false, true] {
        let machine = Machine::new();
        let stream = machine.stream(Durability::Sync, 1);
        let lane = stream.partition(0).unwrap();
        machine.append(&stream, 0..1);
        // It waits for more, and reads again and again.
        for round in 0..32 {
            let fetched = lane.fetch(
                Offset(0),
                lane.high_watermark(),
                usize::MAX,
                AtLeast::OneChunk,
            );
            let fetched = fetched.unwrap();
            assert_eq!(fetched.next, Offset(round + 1));
            if is_answered && round == 31 {
                lane.note_read(fetched.span.unwrap());
            }
            machine.append(&stream, round + 1..round + 2);
        }
        machine.append(&stream, 33..HALF);
        let used = machine.used_bytes();
        match is_answered {
            true => assert!(used > GOAL_BYTES + GOAL_BYTES / 2, "{used}"),
            false => assert!(used <= BYTES_MAX, "{used}"),
        }
        assert_eq!(lane.is_in_memory(Offset(32)), is_answered);
    }
}

#[test]
fn a_consumer_that_waits_for_the_last_stable_offset_keeps_its_records_for_a_while() {
    let machine = Machine::new();
    let stream = machine.stream(Durability::Sync, 1);
    let lane = stream.partition(0).unwrap();
    let fetch = |from, end| {
        let fetched = lane.fetch(Offset(from), Offset(end), 1 << 20, AtLeast::OneChunk);
        fetched.unwrap()
    };
    machine.append(&stream, 0..1);
    lane.note_read(fetch(0, 1).span.unwrap());
    machine.append(&stream, 1..HALF);
    machine.clock.advance(Duration::from_secs(5));
    machine.append(&stream, HALF..HALF + 64);
    assert!(fetch(1, 1).span.is_none());
    assert!(lane.is_in_memory(Offset(1)));
    machine.clock.advance(Duration::from_secs(6));
    machine.append(&stream, HALF + 64..HALF + 192);
    assert!(!lane.is_in_memory(Offset(1)));
    assert_eq!(fetch(1, HALF).pieces[0].arena(), Arena::Windows);
}

#[test]
fn an_idle_lane_keeps_the_records_that_a_reader_needs() {
    let (machine, stream, mut reader) = reader_at_the_head();
    machine.append(&stream, 1..HALF);
    machine.clock.advance(Duration::from_secs(5));
    assert!(reader.read(1).unwrap().is_some());
    machine.clock.advance(Duration::from_secs(6));
    machine.log.release_idle();
    assert_eq!(read_on(&mut reader), (HALF - 2, 0));
    machine.log.release_idle();
    assert_eq!(machine.used_bytes(), 0);
}

#[test]
fn groups_with_little_to_write_stay_in_the_journal() {
    const PARTITIONS: u64 = 96;
    let machine = Machine::new();
    let stream = machine.stream(Durability::Sync, PARTITIONS as u32);
    machine.append(&stream, 0..2 * PARTITIONS);
    assert!(machine.used_bytes() > GOAL_BYTES + GOAL_BYTES / 2);
    assert_eq!(machine.log.stats().persisted_groups, 0);
    machine.append(&stream, 2 * PARTITIONS..16 * PARTITIONS);
    assert!(machine.log.stats().persisted_groups > 0);
    let mut reader = stream.reader(ReadStart::Earliest);
    let (in_memory, in_files) = read_on(&mut reader);
    assert_eq!(in_memory + in_files, 16 * PARTITIONS);
}

/// 32 KiB that all depend on a number.
fn bytes_of(number: u64) -> Vec<u8> {
    let seed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (0..4096)
        .flat_map(|word: u64| (seed ^ word).to_le_bytes())
        .collect()
}

#[test]
fn records_stay_whole_while_threads_evict_them_and_give_memory_back() {
    const COUNT: u64 = 2048;
    let dir = tempfile::tempdir().unwrap();
    let config = LogConfig::with_pool(dir.path(), ByteSize(16 << 20));
    let log = Log::open(config).unwrap();
    let streams = [Durability::Sync, Durability::Async].map(|durability| {
        let config = StreamConfig {
            durability,
            ..StreamConfig::default()
        };
        log.create_stream(&format!("{durability:?}").to_lowercase(), config)
            .unwrap()
    });
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                log.pool().give_back_idle();
                thread::yield_now();
            }
        });
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                log.evict();
                thread::sleep(Duration::from_millis(10));
            }
        });
        let append = |stream: &Stream| {
            let lane = stream.partition(0).unwrap();
            for number in 0..COUNT {
                let mut builder = ChunkBuilder::new(Default::default());
                let bytes = bytes_of(number);
                builder.push(Timestamp(0), None, Some(&bytes), &[]).unwrap();
                let appended = lane.append(builder.finish(None).unwrap()).unwrap();
                if number % 16 == 0 {
                    lane.wait_durable(appended.next_offset).unwrap();
                }
            }
        };
        let read = |stream: &Stream, pause: Duration| {
            let mut reader = stream.reader(ReadStart::Earliest);
            let mut next = 0;
            let started_at = Instant::now();
            while next < COUNT {
                assert!(started_at.elapsed() < Duration::from_secs(120));
                let read = match reader.read(256 << 10) {
                    Ok(Some(read)) => read,
                    // The other readers hold the memory for reads of files.
                    Ok(None) | Err(LogError::ReadBudget) => {
                        thread::yield_now();
                        continue;
                    }
                    Err(error) => panic!("{error}"),
                };
                // Longer than a block may stay out of the arena.
                thread::sleep(pause);
                for chunk in read.chunks() {
                    let chunk = chunk.unwrap();
                    let bytes = chunk.bytes();
                    let value = bytes_of(next);
                    let has_value = bytes.windows(value.len()).any(|window| window == value);
                    assert!(has_value, "record {next}");
                    next += 1;
                }
            }
        };
        let readers = streams.each_ref().map(|stream| {
            scope.spawn(move || append(stream));
            [Duration::ZERO, Duration::from_millis(2)]
                .map(|pause| scope.spawn(move || read(stream, pause)))
        });
        for reader in readers.into_iter().flatten() {
            let read = reader.join();
            if read.is_err() {
                ends.store(true, Ordering::Relaxed);
            }
            read.unwrap();
        }
        ends.store(true, Ordering::Relaxed);
    });
    // The log's own threads bring the rest to the goal, and idle memory back to the system.
    let started_at = Instant::now();
    while log.stats().pool_resident_bytes > 8 << 20 {
        assert!(started_at.elapsed() < Duration::from_secs(30));
        thread::sleep(Duration::from_millis(20));
    }
}
