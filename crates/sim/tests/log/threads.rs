//! Runs producers and consumers in threads, with the log's own threads.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use millstream_base::{
    ByteSize, Cursor, GroupId, Offset, ProducerEpoch, ProducerId, Sequence, StreamletIndex,
    SystemClock, SystemRandom, Timestamp,
};
use millstream_log::{Background, Log, LogConfig, LogError, StreamConfig};
use millstream_record::{ChunkBuilder, Compression, Decompressor, Producer};
use millstream_sim::{OperationKind, Rng, SimDisk};
use parking_lot::Mutex;

use crate::world::config;

const PRODUCERS: u64 = 4;
const CONSUMERS: u64 = 4;
const CHUNKS: u64 = 300;
const STREAMLET: StreamletIndex = StreamletIndex(0);
/// A step that takes longer hangs.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A record that a consumer got: producer, number, and place.
type Seen = Mutex<Vec<(u64, u64, GroupId)>>;

fn open(disk: &SimDisk) -> Result<Log, LogError> {
    let config = LogConfig {
        background: Background::Threads,
        pool: ByteSize(4 << 20),
        ..config()
    };
    Log::open_on(
        config,
        Arc::new(disk.clone()),
        Arc::new(SystemClock::default()),
        Arc::new(SystemRandom),
    )
}

fn chunk(producer: u64, number: u64) -> Vec<u8> {
    let mut builder = ChunkBuilder::new(Compression::None);
    let mut value = format!("{producer} {number} ").into_bytes();
    value.resize(20 + (number as usize * 37) % 5_000, b'.');
    let pushed = builder.push(Timestamp(number as i64), None, Some(&value), &[]);
    pushed.expect("far below the format's bound");
    let producer = Producer {
        id: ProducerId(producer as i64),
        epoch: ProducerEpoch(0),
        sequence: Sequence(number as i32),
    };
    builder
        .finish(Some(producer))
        .expect("it has a record")
        .to_vec()
}

/// Sends the remaining records, up to the first error. Returns the number of acknowledged records.
fn produce(log: &Log, producer: u64, from: u64) -> (u64, Option<LogError>) {
    let stream = log.stream("a").expect("it was created");
    for number in from..CHUNKS {
        let sent = stream.append(STREAMLET, &chunk(producer, number));
        let acknowledged = sent.and_then(|(lane, appended)| lane.acknowledge(&appended));
        if let Err(error) = acknowledged {
            return (number, Some(error));
        }
    }
    (CHUNKS, None)
}

/// Reads and commits records, until all consumers together have got `goal` records.
fn consume(
    log: &Log,
    name: &str,
    seen: &Seen,
    count: &AtomicU64,
    goal: u64,
) -> Result<(), LogError> {
    let application = log.shared_group("a", "app")?;
    let mut mine: BTreeMap<GroupId, Cursor> = BTreeMap::new();
    let mut decompressor = Decompressor::default();
    let started = Instant::now();
    while count.load(Ordering::Relaxed) < goal {
        assert!(
            started.elapsed() < TIMEOUT,
            "{name} waits for {goal} records"
        );
        for cursor in application.next_groups(STREAMLET, name, 1)? {
            mine.insert(cursor.group, cursor);
        }
        let mut idle = true;
        for (group, cursor) in std::mem::take(&mut mine) {
            let Some(read) = log.read(&cursor, 10_000)? else {
                match application.commit(name, &cursor) {
                    Err(LogError::NotHandedOut { .. }) => continue,
                    committed => committed?,
                }
                mine.insert(group, cursor);
                continue;
            };
            idle = false;
            let mut records = Vec::new();
            for chunk in read.chunks() {
                for record in chunk.expect("checked").records(&mut decompressor)? {
                    let value = record?.value.expect("each has one");
                    let text = std::str::from_utf8(value).expect("digits and dots");
                    let mut numbers = text.split(' ').map(|number| number.parse().unwrap_or(0));
                    let producer = numbers.next().expect("the first");
                    let number = numbers.next().expect("the second");
                    records.push((producer, number, group));
                }
            }
            application.commit(name, &read.next)?;
            count.fetch_add(records.len() as u64, Ordering::Relaxed);
            seen.lock().extend(records);
            mine.insert(group, read.next);
        }
        if idle {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    Ok(())
}

/// Checks that consumers got each record once, and the records of a producer in order, within and across groups.
fn check(seen: &[(u64, u64, GroupId)]) {
    let mut by_producer: BTreeMap<u64, Vec<(GroupId, u64)>> = BTreeMap::new();
    for (producer, number, group) in seen {
        by_producer
            .entry(*producer)
            .or_default()
            .push((*group, *number));
    }
    assert_eq!(by_producer.len() as u64, PRODUCERS);
    for (producer, mut records) in by_producer {
        // The sort is stable, so records of a group stay in their order.
        records.sort_by_key(|(group, _)| *group);
        let numbers: Vec<u64> = records.into_iter().map(|(_, number)| number).collect();
        assert_eq!(
            numbers,
            (0..CHUNKS).collect::<Vec<_>>(),
            "producer {producer}"
        );
    }
}

#[test]
fn four_producers_and_four_consumers_lose_and_repeat_nothing() {
    for round in 0..3 {
        let disk = SimDisk::new(round);
        let log = open(&disk).expect("an empty disk");
        let config = StreamConfig {
            lanes: 2,
            group_segments: 1,
            segment: ByteSize(64 << 10),
            ..StreamConfig::default()
        };
        log.create_stream("a", config).expect("an empty log");
        let (seen, count) = (Seen::default(), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for producer in 0..PRODUCERS {
                let log = log.clone();
                scope.spawn(move || {
                    let (sent, error) = produce(&log, producer, 0);
                    assert_eq!(sent, CHUNKS, "{error:?}");
                });
            }
            for consumer in 0..CONSUMERS {
                let (log, seen, count) = (log.clone(), &seen, &count);
                scope.spawn(move || {
                    let name = format!("consumer-{consumer}");
                    consume(&log, &name, seen, count, PRODUCERS * CHUNKS).expect("no faults");
                });
            }
            while count.load(Ordering::Relaxed) < CHUNKS {
                std::thread::sleep(Duration::from_millis(1));
            }
            log.grow_stream("a", 1, 4).expect("no faults");
        });
        check(&seen.lock());
        log.close().expect("no faults");
    }
}

#[test]
fn a_failed_sync_and_a_restart_neither_lose_nor_repeat_records() {
    for round in 0..6 {
        let mut disk = SimDisk::new(round);
        let log = open(&disk).expect("an empty disk");
        let config = StreamConfig {
            lanes: 2,
            ..StreamConfig::default()
        };
        log.create_stream("a", config).expect("an empty log");
        disk.fail_next_sync(move |path| {
            let place = if round % 2 == 0 {
                "journal"
            } else {
                "streams/16"
            };
            path.to_string_lossy().contains(place)
        });
        let (seen, count) = (Seen::default(), AtomicU64::new(0));
        let acknowledged: Vec<AtomicU64> = (0..PRODUCERS).map(AtomicU64::new).collect();
        std::thread::scope(|scope| {
            for producer in 0..PRODUCERS {
                let (log, acknowledged) = (log.clone(), &acknowledged);
                scope.spawn(move || {
                    let (sent, error) = produce(&log, producer, 0);
                    let is_fault =
                        |error: &LogError| matches!(error, LogError::PartitionFault { .. });
                    assert!(error.as_ref().is_none_or(is_fault), "{error:?}");
                    acknowledged[producer as usize].store(sent, Ordering::Relaxed);
                });
            }
        });
        disk = match round % 3 {
            0 => disk.kill(),
            _ => disk.crash(&mut millstream_sim::Rng::with_seed(round)),
        };
        drop(log);

        let log = open(&disk).expect("the fault is over");
        std::thread::scope(|scope| {
            for producer in 0..PRODUCERS {
                let (log, acknowledged) = (log.clone(), &acknowledged);
                scope.spawn(move || {
                    let from = acknowledged[producer as usize].load(Ordering::Relaxed);
                    let (sent, error) = produce(&log, producer, from);
                    assert_eq!(sent, CHUNKS, "{error:?}");
                });
            }
            for consumer in 0..CONSUMERS {
                let (log, seen, count) = (log.clone(), &seen, &count);
                scope.spawn(move || {
                    let name = format!("consumer-{consumer}");
                    consume(&log, &name, seen, count, PRODUCERS * CHUNKS).expect("no faults");
                });
            }
        });
        check(&seen.lock());
    }
}

/// Appends to a stream of its own until an error, and returns the error.
fn append_until_refused(log: &Log, name: &str) -> LogError {
    let stream = log.stream(name).expect("it was created");
    let mut builder = ChunkBuilder::new(Compression::None);
    let pushed = builder.push(Timestamp(0), None, Some(&[b'.'; 3_000]), &[]);
    pushed.expect("far below the format's bound");
    let chunk = builder.finish(None).expect("it has a record");
    loop {
        let sent = stream.append(STREAMLET, chunk);
        if let Err(error) = sent.and_then(|(lane, appended)| lane.acknowledge(&appended)) {
            return error;
        }
    }
}

#[test]
fn a_new_log_on_a_small_disk_reports_how_much_it_needs() {
    let disk = SimDisk::new(0);
    // The list of files takes most of it.
    disk.set_capacity((1 << 20) + (64 << 10));
    let log = open(&disk).expect("the journal is begun with the first stream");
    let created = log.create_stream("s", StreamConfig::default());
    let error = created.expect_err("there is no room for the journal");
    let needed = config().journal_file.to_string();
    assert!(error.to_string().contains(&needed), "{error}");
}

#[test]
fn producers_get_an_error_on_a_full_disk_and_continue_when_there_is_room() {
    let disk = SimDisk::new(0);
    let log = open(&disk).expect("no faults");
    let names: Vec<String> = (0..PRODUCERS).map(|n| format!("s{n}")).collect();
    for name in &names {
        log.create_stream(name, StreamConfig::default())
            .expect("no faults");
    }
    // The disk has room for the journal's files, but not for the groups' files.
    for capacity in [2 << 20, 3 << 20] {
        disk.set_capacity(capacity);
        std::thread::scope(|scope| {
            let log = &log;
            let threads: Vec<_> = names
                .iter()
                .map(|name| scope.spawn(move || append_until_refused(log, name)))
                .collect();
            let started = Instant::now();
            while threads.iter().any(|thread| !thread.is_finished()) {
                assert!(started.elapsed() < TIMEOUT, "a producer hangs");
                std::thread::sleep(Duration::from_millis(5));
            }
            for thread in threads {
                let error = thread.join().expect("no panic");
                assert!(matches!(error, LogError::DiskFull { .. }), "{error}");
            }
        });
        let reader = log.stream("s0").expect("it is there");
        let mut reader = reader.reader(millstream_log::ReadStart::Earliest);
        assert!(reader.read(1).expect("reads go on").is_some());
    }
    disk.set_capacity(64 << 20);
    let started = Instant::now();
    loop {
        let stream = log.stream("s0").expect("it is there");
        let sent = stream.append(STREAMLET, &chunk(9, 0));
        match sent.and_then(|(lane, appended)| lane.acknowledge(&appended)) {
            Ok(()) => break,
            Err(LogError::DiskFull { .. }) => assert!(started.elapsed() < TIMEOUT),
            Err(error) => panic!("{error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    log.close().expect("there is room");
}

#[test]
fn a_start_on_a_full_disk_serves_reads_and_deletions() {
    let disk = SimDisk::new(0);
    let log = open(&disk).expect("no faults");
    let send = |log: &Log, name: &str, number: u64| {
        let stream = log.stream(name)?;
        let (lane, appended) = stream.append(STREAMLET, &chunk(0, number))?;
        lane.acknowledge(&appended)
    };
    let read = |log: &Log, name: &str| {
        let stream = log.stream(name).expect("it was created");
        let mut reader = stream.reader(millstream_log::ReadStart::Earliest);
        let mut count = 0;
        while let Some(read) = reader.read(10_000).expect("reads go on") {
            count += read.chunks().count();
        }
        count
    };
    for name in ["kept", "deleted"] {
        log.create_stream(name, StreamConfig::default())
            .expect("no faults");
    }
    for number in 0..300 {
        send(&log, "deleted", number).expect("no faults");
    }
    log.persist();
    for number in 0..20 {
        send(&log, "kept", number).expect("no faults");
    }
    let disk = disk.kill();
    drop(log);
    disk.set_capacity(disk.used_bytes());

    for _ in 0..2 {
        let log = open(&disk).expect("it needs no room");
        assert_eq!((read(&log, "kept"), read(&log, "deleted")), (20, 300));
        let error = send(&log, "kept", 20).expect_err("there is no room");
        assert!(matches!(error, LogError::DiskFull { .. }), "{error}");
        assert_eq!(read(&log, "kept"), 20);
        // An accepted chunk waits for room.
        let closed = log.close();
        assert!(
            matches!(closed, Err(LogError::DiskFull { .. }) | Ok(())),
            "{closed:?}"
        );
    }
    let log = open(&disk).expect("it needs no room");
    log.delete_stream("deleted")
        .expect("its own data makes room");
    assert_eq!(read(&log, "kept"), 20);
    send(&log, "kept", 20).expect("there is room");
    log.close().expect("there is room");
    let log = open(&disk).expect("no faults");
    assert_eq!((read(&log, "kept"), log.stream_names().len()), (21, 1));
}

#[test]
fn a_second_crash_before_the_first_is_recovered_loses_nothing() {
    let send = |log: &Log, number: u64| {
        let stream = log.stream("a").expect("it was created");
        let sent = stream.append(STREAMLET, &chunk(0, number));
        let (lane, appended) = sent.expect("no faults");
        lane.acknowledge(&appended).expect("no faults");
    };
    let disk = SimDisk::new(0);
    let log = open(&disk).expect("no faults");
    log.create_stream("a", StreamConfig::default())
        .expect("no faults");
    send(&log, 0);
    let killed = disk.kill();
    drop(log);

    // The gate holds the replayed records back from the group's file until the second crash.
    let gate = Arc::new(Mutex::new(()));
    let closed = gate.lock();
    let gate_of_writes = Arc::clone(&gate);
    killed.before_file_operations(move |path, kind| {
        let is_group = path.extension().is_some_and(|kind| kind == "log");
        if is_group && matches!(kind, OperationKind::Write { .. }) {
            drop(gate_of_writes.lock());
        }
    });
    let log = open(&killed).expect("no faults");
    send(&log, 1);
    let mut rng = Rng::with_seed(0);
    let images: Vec<SimDisk> = (0..20).map(|_| killed.crash(&mut rng)).collect();
    drop(closed);
    drop(log);

    for image in images {
        let log = open(&image).expect("no faults");
        let stream = log.stream("a").expect("it was created");
        assert_eq!(stream.info().partitions[0].durable, Offset(2));
    }
}
