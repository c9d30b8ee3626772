//! Bounds on memory, open files and commits.

use std::sync::Arc;
use std::time::Duration;

use millstream_base::{ByteSize, Offset, SystemDisk, SystemRandom, Timestamp};
use millstream_log::{
    Background, Durability, Log, LogConfig, LogError, ReadStart, Stream, StreamConfig,
};
use millstream_record::{ChunkBuilder, Compression};
use millstream_sim::SimClock;

use crate::{S0, append, chunk, config, values};

#[test]
fn one_thousand_small_streams_take_far_fewer_commits_than_streams() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(LogConfig::with_pool(dir.path(), ByteSize(128 << 20))).unwrap();
    let create = |n: usize| {
        log.create_stream(&format!("s{n}"), StreamConfig::default())
            .unwrap()
    };
    let streams: Vec<Stream> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..16)
            .map(|t| scope.spawn(move || (0..1000).skip(t).step_by(16).map(create).collect()))
            .collect();
        let parts = threads.into_iter().map(|thread| thread.join().unwrap());
        parts.flat_map(|part: Vec<Stream>| part).collect()
    });
    let before = log.stats();
    let chunk = chunk(&["a"], None);
    let appended: Vec<_> = streams
        .iter()
        .map(|stream| stream.append(S0, &chunk).unwrap())
        .collect();
    for (lane, appended) in &appended {
        lane.wait_durable(appended.next_offset).unwrap();
    }
    let commits = log.stats().journal_blocks - before.journal_blocks;
    assert!(commits < 500, "{commits} commits for 1000 streams");
}

#[test]
fn memory_streams_are_never_written() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(config(dir.path())).unwrap();
    let in_memory = StreamConfig {
        durability: Durability::Memory,
        group_segments: 1,
        ..StreamConfig::default()
    };
    let stream = log.create_stream("in-memory", in_memory).unwrap();
    let before = log.stats();
    let value = "v".repeat(10_000);
    // Far more than the pool holds: the oldest groups go.
    for _ in 0..2000 {
        stream.append(S0, &chunk(&[&value], None)).unwrap();
    }
    // The background may still be taking groups away.
    let left = loop {
        let mut reader = stream.reader(ReadStart::Earliest);
        let mut chunks = 0;
        let error = loop {
            match reader.read(1) {
                Ok(Some(_)) => chunks += 1,
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        match error {
            None => break chunks,
            Some(LogError::CursorRemoved { .. }) => {}
            Some(error) => panic!("{error}"),
        }
    };
    assert!(left > 0 && left < 2000, "{left}");
    let stats = log.stats();
    assert_eq!(
        stats.journal_blocks + stats.direct_commits,
        before.journal_blocks + before.direct_commits
    );
}

#[test]
fn idle_lanes_give_their_buffers_back() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(LogConfig {
        idle_after: Duration::from_millis(100),
        ..config(dir.path())
    })
    .unwrap();
    let stream = log.create_stream("s", StreamConfig::default()).unwrap();
    append(&stream, &chunk(&["a"], None));
    assert!(log.stats().pool_used_bytes > 0);
    let started = std::time::Instant::now();
    while log.stats().pool_used_bytes > 0 {
        assert!(started.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(20));
    }
    append(&stream, &chunk(&["b"], None));
    assert_eq!(values(&stream), ["a", "b"]);
}

#[test]
fn segments_that_all_readers_have_passed_are_evicted_first() {
    let dir = tempfile::tempdir().unwrap();
    let config = LogConfig {
        // On threads of its own the log may take more memory before the test sees that it has taken some.
        background: Background::Manual,
        ..config(dir.path())
    };
    // A reader counts for a time only, and this clock stands still.
    let clock = Arc::new(SimClock::new(Timestamp(0)));
    let log = Log::open_on(config, Arc::new(SystemDisk), clock, Arc::new(SystemRandom)).unwrap();
    let unsynced = || StreamConfig {
        durability: Durability::Async,
        ..StreamConfig::default()
    };
    let value = "v".repeat(1000);
    let fill = |stream: &Stream| {
        for _ in 0..100 {
            append(stream, &chunk(&[value.as_str(); 10], None));
            log.step();
        }
    };
    // Both have closed segments in memory; one has a reader that still needs them.
    let needed = log.create_stream("needed", unsynced()).unwrap();
    append(&needed, &chunk(&["first"], None));
    log.step();
    let mut reader = needed.reader(ReadStart::Earliest);
    assert!(reader.read(1).unwrap().is_some());
    fill(&needed);
    fill(&log.create_stream("other", unsynced()).unwrap());
    log.persist();
    let evicted = log.stats().evicted_segments;
    // Memory gets short, and only some of it is needed.
    let third = log.create_stream("third", unsynced()).unwrap();
    while log.stats().evicted_segments == evicted {
        append(&third, &chunk(&[value.as_str(); 10], None));
        log.step();
    }
    // Without its files, the first stream can only be read from memory.
    let folder = dir.path().join("streams").join(needed.id().to_string());
    std::fs::remove_dir_all(folder).unwrap();
    let mut bytes = 0;
    while let Some(chunks) = reader.read(1 << 20).unwrap() {
        bytes += chunks.bytes.len();
    }
    assert!(bytes > 1_000_000, "{bytes}");
}

#[test]
fn lanes_of_memory_streams_do_not_fill_the_pool_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(config(dir.path())).unwrap();
    let in_memory = StreamConfig {
        durability: Durability::Memory,
        lanes: 128,
        ..StreamConfig::default()
    };
    let stream = log.create_stream("in-memory", in_memory).unwrap();
    // Twice as many heads as the pool of 4 MiB has blocks.
    for n in 0..1000 {
        let lane = stream.partition(n % 128).unwrap();
        lane.append(&chunk(&["a"], None)).unwrap();
    }
    append(
        &log.create_stream("synced", StreamConfig::default())
            .unwrap(),
        &chunk(&["b"], None),
    );
}

/// The log left the files of these lanes open until their next sync.
#[test]
fn lanes_that_are_written_and_not_synced_keep_few_files_open() {
    const LANES: u32 = 400;
    const OPEN_MAX: usize = 160;
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(LogConfig {
        background: Background::Manual,
        ..LogConfig::with_pool(dir.path(), ByteSize(64 << 20))
    })
    .unwrap();
    let config = StreamConfig {
        lanes: LANES,
        durability: Durability::Written,
        ..StreamConfig::default()
    };
    let stream = log.create_stream("s", config).unwrap();
    for partition in 0..LANES {
        let lane = stream.partition(partition).unwrap();
        let mut builder = ChunkBuilder::new(Compression::None);
        builder
            .push(Timestamp(0), None, Some(b"value"), &[])
            .unwrap();
        let appended = lane.append(builder.finish(None).unwrap()).unwrap();
        lane.acknowledge(&appended).unwrap();
        assert_eq!(lane.durable_offset(), Offset(0));
    }
    let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let open = open.filter_map(|file| std::fs::read_link(file.path()).ok());
    let open = open.filter(|path| path.starts_with(dir.path())).count();
    assert!(open < OPEN_MAX, "{open} files");
    while log.step() {}
    let lanes = stream.info().partitions;
    assert!(lanes.iter().all(|lane| lane.durable == Offset(1)));
}
