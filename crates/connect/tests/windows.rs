//! Windows that have all of their events, over streams: these lie in the log.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use millstream_base::{ByteSize, ProducerId, StreamletIndex, Timestamp};
use millstream_connect::{StoredChunks, StreamProducer, StreamSource};
use millstream_flow::windows::{WindowEvents, Windows};
use millstream_flow::{BoxError, Emit, Flow, FlowSettings, Parts, Sink, Watermarks};
use millstream_log::{Log, LogConfig, LogError, Stream, StreamConfig};
use proptest::prelude::*;
use tempfile::{TempDir, tempdir};

/// The longest run of a flow that is not blocked.
const PATIENCE: Duration = Duration::from_secs(30);

const POOL: ByteSize = ByteSize(4 << 20);

/// Start of a window, its events as it says and as they were counted, and the sum of their numbers.
type Sum = (i64, u64, u64, u64);

#[derive(Clone, Default)]
struct Sums(Arc<Mutex<Vec<Sum>>>);

impl Sink<Sum> for Sums {
    fn push(&mut self, items: &[Sum], _: &Waker) -> Result<usize, BoxError> {
        self.0.lock().unwrap().extend_from_slice(items);
        Ok(items.len())
    }

    fn flush(&mut self, _: &Waker) -> Result<bool, BoxError> {
        Ok(true)
    }
}

fn sum(window: &WindowEvents<StoredChunks>, emit: &mut Emit<Sum>) {
    let (mut events, mut sum) = (0, 0);
    window.for_each_part(|record| {
        let number = record.value.unwrap_or_default().first_chunk();
        events += 1;
        sum += u64::from_le_bytes(*number.expect("a number"));
    });
    emit(&(window.start.0, window.events, events, sum));
}

fn open(pool: ByteSize) -> (TempDir, Log, Stream) {
    let dir = tempdir().unwrap();
    let config = LogConfig {
        append_wait_max: Duration::from_secs(3),
        ..LogConfig::with_pool(dir.path(), pool)
    };
    let log = Log::open(config).unwrap();
    let stream = log.create_stream("s", StreamConfig::default()).unwrap();
    (dir, log, stream)
}

/// Appends numbers at their times, as values of `bytes` bytes.
fn produce(stream: &Stream, times: &[i64], bytes: usize) -> Result<(), LogError> {
    let mut producer = StreamProducer::for_streamlet(stream, StreamletIndex(0), ProducerId::NONE)?;
    let mut value = vec![0; bytes];
    for (number, time) in times.iter().enumerate() {
        value[..8].copy_from_slice(&(number as u64).to_le_bytes());
        producer.push(Timestamp(*time), None, Some(&value), &[])?;
    }
    producer.flush()
}

fn settings(workers: usize) -> FlowSettings {
    FlowSettings {
        workers: NonZeroUsize::new(workers).unwrap(),
        ..FlowSettings::default()
    }
}

/// Returns the windows of operators over the same stream, while numbers come in at some times.
fn run(
    times: &[i64],
    bytes: usize,
    (size_ms, slides_ms): (i64, &[i64]),
    bound_ms: u64,
    workers: usize,
) -> Vec<Vec<Sum>> {
    let (_dir, _log, stream) = open(POOL);
    let source = StreamSource::new(&stream);
    let ending = source.ending();
    let flow = Flow::with_settings("sums", settings(workers));
    let channels: Vec<_> = slides_ms
        .iter()
        .map(|slide_ms| flow.channel::<StoredChunks>(&format!("by {slide_ms}")))
        .collect();
    let disorder = Watermarks::bounded(Duration::from_millis(bound_ms)).ahead_max(None);
    flow.sources("read", source.split(workers))
        .watermarks(StoredChunks::latest, disorder)
        .to_all(&channels);
    let mut sinks = Vec::new();
    for (channel, slide_ms) in channels.iter().zip(slides_ms) {
        let name = |what: &str| format!("{what} by {slide_ms}");
        let windows = Windows::sliding(size_ms, *slide_ms);
        let recent = flow.collected(&name("recent"), windows);
        let sums = Sums::default();
        flow.stage(&name("collect"), channel)
            .over(&recent)
            .collect(&name("windows"), |record| record.timestamp)
            .flat_map(sum)
            .sink(&name("sums"), sums.clone());
        sinks.push((recent, sums));
    }
    let running = flow.run().unwrap();
    produce(&stream, times, bytes).unwrap();
    ending.end_at_durable_head();
    running.join().unwrap();
    let outcomes = sinks.into_iter().map(|(recent, sums)| {
        assert_eq!(recent.late_events(), 0);
        sums.0.lock().unwrap().clone()
    });
    outcomes.collect()
}

fn model(times: &[i64], size_ms: i64, slide_ms: i64) -> Vec<Sum> {
    let mut windows: BTreeMap<i64, (u64, u64)> = BTreeMap::new();
    for (number, time) in times.iter().enumerate() {
        let last = time.div_euclid(slide_ms) * slide_ms;
        let starts = (0..).map(|n| last - n * slide_ms);
        for start in starts.take_while(|start| start + size_ms > *time) {
            let (events, sum) = windows.entry(start).or_default();
            *events += 1;
            *sum += number as u64;
        }
    }
    let sums = windows.into_iter();
    sums.map(|(start, (events, sum))| (start, events, events, sum))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn windows_over_a_stream_hold_all_of_their_events(
        steps in prop::collection::vec((0i64..3, -20i64..20), 1..20_000),
        bytes in 8usize..400,
        size_ms in 50i64..4000,
        workers in 1usize..4,
    ) {
        let mut now = 0;
        let mut time = |(step, disorder)| {
            now += step;
            now + disorder
        };
        let times: Vec<i64> = steps.into_iter().map(&mut time).collect();
        let slides_ms = [size_ms, size_ms / 2, size_ms / 25];
        let outcomes = run(&times, bytes, (size_ms, &slides_ms), 40, workers);
        for (sums, slide_ms) in outcomes.into_iter().zip(slides_ms) {
            prop_assert_eq!(sums, model(&times, size_ms, slide_ms));
        }
    }
}

/// Windows held segments of the pool until no producer could append any more.
#[test]
fn a_window_larger_than_the_pool_does_not_block_producers() {
    const RECORDS: i64 = 40_000;
    let (_dir, _log, stream) = open(POOL);
    let source = StreamSource::new(&stream);
    let ending = source.ending();
    let (is_copied, is_in_place) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let (copied, in_place) = (Arc::clone(&is_copied), Arc::clone(&is_in_place));
    let flow = Flow::with_settings("all", settings(2));
    let all = flow.collected("all", Windows::tumbling(2 * RECORDS));
    let sums = Sums::default();
    flow.source("read", source)
        .watermarks(StoredChunks::latest, Watermarks::bounded(Duration::ZERO))
        .map(move |chunks| {
            let seen = if chunks.is_in_place() {
                &in_place
            } else {
                &copied
            };
            seen.store(true, Ordering::Relaxed);
            chunks.clone()
        })
        .over(&all)
        .collect("windows", |record| record.timestamp)
        .flat_map(sum)
        .sink("sums", sums.clone());
    let running = flow.run().unwrap();
    let times: Vec<i64> = (0..RECORDS).collect();
    // Ten times the pool. Nothing is closed yet, and there is room for as much again.
    let produced = (0..2).try_for_each(|_| produce(&stream, &times, 1000));
    ending.end_at_durable_head();
    let started_at = Instant::now();
    while produced.is_ok() && !running.is_finished() && started_at.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(1));
    }
    let has_ended = running.is_finished();
    running.stop();
    produced.unwrap();
    assert!(
        has_ended,
        "the source waits for memory that the window keeps"
    );
    running.join().unwrap();
    let twice = |n: i64| 2 * n as u64;
    assert_eq!(
        *sums.0.lock().unwrap(),
        [(
            0,
            twice(RECORDS),
            twice(RECORDS),
            twice(RECORDS * (RECORDS - 1) / 2)
        )]
    );
    assert!(is_copied.load(Ordering::Relaxed) && is_in_place.load(Ordering::Relaxed));
}
