//! The content of sinks after flows that end early and resume.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use millstream_base::{ByteSize, SystemDisk, Timestamp};
use millstream_connect::{CheckpointDir, EncodedRecord, StreamSink, StreamSource};
use millstream_exchange::Ranks;
use millstream_flow::sinks::LinesFile;
use millstream_flow::sources::Generator;
use millstream_flow::windows::{Count, Windows};
use millstream_flow::{
    Checkpoints, Flow, FlowError, FlowSettings, Output, Parts, Running, Source, SourceStatus,
    Watermarks,
};
use millstream_log::{Log, LogConfig, Stream, StreamConfig};
use proptest::prelude::*;
use tempfile::tempdir;

use crate::support::{settings, wait_until};

const WINDOW_MS: i64 = 100;
const KEYS: u64 = 7;
const NUMBERS: u64 = 30_000;

/// Slow enough to be interrupted.
fn numbers(limit: u64) -> impl Source<Item = u64> {
    Generator::new(|number| {
        if number % 512 == 0 {
            thread::sleep(Duration::from_micros(300));
        }
        number
    })
    .limit(limit)
}

/// Counts numbers by key and window on one rank, into a file of its own.
fn start(
    ranks: &Ranks,
    place: &Arc<CheckpointDir>,
    resume: bool,
    dir: &Path,
) -> Result<Running, FlowError> {
    let flow = Flow::with_settings(
        "counted",
        FlowSettings {
            ranks: ranks.clone(),
            ..settings(place, resume)
        },
    );
    let counts = flow.windowed::<u64, _>("counts", Windows::tumbling(WINDOW_MS), Count);
    let file = LinesFile::open(&SystemDisk, dir.join(ranks.rank().to_string())).unwrap();
    flow.sources("numbers", [numbers(NUMBERS), numbers(NUMBERS)])
        .watermarks(
            |number| Timestamp(*number as i64),
            Watermarks::bounded(Duration::ZERO),
        )
        .key_by(|number| *number % KEYS)
        .aggregate("count", &counts, |number| Timestamp(*number as i64))
        .map(|result| (result.key, result.start.0, result.value))
        .sink("results", file);
    flow.run()
}

/// Runs on several ranks until the end, or until one of them dies. Whether they came to the end.
fn run(count: u32, place: &Arc<CheckpointDir>, dir: &Path, death: Option<(u32, Duration)>) -> bool {
    let parts = place.list().unwrap();
    let is_complete = |checkpoint: u64| {
        let ranks = parts.iter().filter(|key| key.checkpoint == checkpoint);
        ranks.count() as u32 == count
    };
    let resume = parts.iter().any(|key| is_complete(key.checkpoint));
    if !resume {
        parts.iter().for_each(|key| place.remove(*key).unwrap());
        for rank in 0..count {
            let _ = fs::remove_file(dir.join(rank.to_string()));
        }
    }
    let rank = |ranks: Ranks| {
        // Another rank may have died by now.
        let Ok(running) = start(&ranks, place, resume, dir) else {
            return false;
        };
        match death {
            Some((rank, after)) if rank == ranks.rank() => {
                thread::sleep(after);
                drop(running);
                false
            }
            _ => running.join().is_ok() && ranks.leave().is_ok(),
        }
    };
    let rank = &rank;
    thread::scope(|scope| {
        let threads: Vec<_> = Ranks::threads(count)
            .into_iter()
            .map(|ranks| scope.spawn(move || rank(ranks)))
            .collect();
        let ends: Vec<bool> = threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect();
        ends.iter().all(|is_end| *is_end)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4))]

    #[test]
    fn line_files_have_each_result_once_although_ranks_die(
        count in 1u32..4,
        deaths in prop::collection::vec((0u32..4, 0u64..40), 0..4),
    ) {
        let folder = tempdir().unwrap();
        let dir = folder.path();
        let place = Arc::new(CheckpointDir::open(dir.join("checkpoints")).unwrap());
        for (rank, after_ms) in deaths {
            run(count, &place, dir, Some((rank % count, Duration::from_millis(after_ms))));
        }
        prop_assert!(run(count, &place, dir, None));
        let mut found = BTreeMap::new();
        for rank in 0..count {
            let text = fs::read_to_string(dir.join(rank.to_string())).unwrap();
            for line in text.lines() {
                let line = line.trim_matches(['[', ']']);
                let result: Vec<i64> = line.split(',').map(|number| number.parse().unwrap()).collect();
                let former = found.insert((result[0] as u64, result[1]), result[2] as u64);
                prop_assert_eq!(former, None, "no window comes twice");
            }
        }
        let mut expected = BTreeMap::new();
        for number in 0..NUMBERS {
            let window = number as i64 / WINDOW_MS * WINDOW_MS;
            *expected.entry((number % KEYS, window)).or_default() += 2 * u64::from(count);
        }
        prop_assert_eq!(found, expected);
    }
}

#[test]
fn a_line_sink_does_not_overwrite_a_file_of_another_run() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("lines");
    let run = || {
        let flow = Flow::new("numbers");
        flow.source("numbers", Generator::new(|number| number).limit(2))
            .sink("file", LinesFile::open(&SystemDisk, &path).unwrap());
        flow.run().unwrap().join().map(drop)
    };
    run().unwrap();
    let error = run().unwrap_err().to_string();
    assert!(error.contains("lines holds 4 bytes already"), "{error}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "0\n1\n");
}

/// Numbers go into a stream, by a flow that ends early twice.
fn append() -> (Vec<u64>, u64) {
    let folder = tempdir().unwrap();
    let path = folder.path().join("log");
    let log = Log::open(LogConfig::with_pool(path, ByteSize(64 << 20))).unwrap();
    let stream = log.create_stream("s", StreamConfig::default()).unwrap();
    let place = Arc::new(CheckpointDir::open(folder.path().join("checkpoints")).unwrap());
    let highest = Arc::new(AtomicU64::new(0));
    let start = |resume: bool, limit: u64| {
        let sink = StreamSink::new(&stream, |number: &u64, record: &mut EncodedRecord| {
            record.value.extend(number.to_le_bytes());
        });
        let seen = Arc::clone(&highest);
        let numbers = Generator::new(move |number| {
            if number % 64 == 0 {
                thread::sleep(Duration::from_micros(300));
            }
            seen.fetch_max(number, Ordering::Relaxed);
            number
        });
        let flow = Flow::with_settings("numbers", settings(&place, resume));
        flow.source("numbers", numbers.limit(limit))
            .sink("stream", sink.unwrap());
        flow.run().unwrap()
    };
    for resume in [false, true] {
        let running = start(resume, u64::MAX);
        wait_until("a checkpoint is kept", || {
            running.checkpoints().unwrap().kept > 0
        });
        // More comes behind it.
        let before = highest.load(Ordering::Relaxed);
        wait_until("numbers come", || {
            highest.load(Ordering::Relaxed) > before + 500
        });
        drop(running);
    }
    let limit = highest.load(Ordering::Relaxed) + 1000;
    start(true, limit).join().unwrap();
    (read(&stream), limit)
}

pub fn read(stream: &Stream) -> Vec<u64> {
    let mut source = StreamSource::bounded(stream);
    let mut out = Output::default();
    let waker = std::task::Waker::noop();
    while source.poll(&mut out, 1, waker).unwrap() == SourceStatus::Ready {}
    let mut numbers = Vec::new();
    for chunks in out.items() {
        chunks.for_each_part(|record| {
            let value = record.value.unwrap_or_default();
            numbers.push(u64::from_le_bytes(value.try_into().unwrap()));
        });
    }
    numbers
}

#[test]
fn a_stream_has_each_result_exactly_once_and_in_order() {
    let (numbers, limit) = append();
    assert!(numbers.into_iter().eq(0..limit));
}
