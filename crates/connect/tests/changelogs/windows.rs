//! Flows whose windows are in changelogs.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use millstream_base::Timestamp;
use millstream_connect::{EncodedRecord, StreamSink, StreamSource};
use millstream_flow::sources::Generator;
use millstream_flow::windows::{Count, Trigger, WindowResult, Windows};
use millstream_flow::{
    Checkpointing, Checkpoints, Flow, FlowSettings, Output, Parts as _, Resume, Running, Source,
    SourceStatus, Watermarks,
};
use millstream_log::{Stream, StreamConfig};

use crate::flows::wait_for_checkpoints;
use crate::support::{World, for_both};

const NUMBERS: u64 = 40_000;
const KEYS: u64 = 50;

/// The most by which an item is behind an earlier one, in milliseconds.
const DISORDER: u64 = 40;

fn time(number: &u64) -> Timestamp {
    Timestamp((number ^ (number * 7 % DISORDER)) as i64)
}

fn encode(result: &WindowResult<u64, u64>, record: &mut EncodedRecord) {
    for number in [
        result.end.0,
        result.start.0,
        result.key as i64,
        result.value as i64,
    ] {
        record.value.extend(number.to_be_bytes());
    }
}

/// Counts numbers in windows, slowly enough to be interrupted.
fn start(windows: Windows, store: Option<&Arc<dyn Checkpoints>>, results: &Stream) -> Running {
    let checkpoints = store.map(|store| Checkpointing {
        store: Arc::clone(store),
        interval: Some(Duration::from_millis(5)),
        resume: Resume::IfAny,
    });
    let settings = FlowSettings {
        checkpoints,
        ..FlowSettings::default()
    };
    let flow = Flow::with_settings("shop", settings);
    let counts = flow.windowed::<u64, _>("counts", windows, Count);
    let numbers = Generator::new(|number| {
        if number % 128 == 0 {
            thread::sleep(Duration::from_micros(500));
        }
        number
    });
    let disorder = Duration::from_millis(2 * DISORDER);
    flow.source("numbers", numbers.limit(NUMBERS))
        .watermarks(time, Watermarks::bounded(disorder))
        .key_by(|number| number * number % KEYS)
        .aggregate("count", &counts, time)
        .sink("results", StreamSink::new(results, encode).unwrap());
    flow.run().unwrap()
}

/// The results that readers of committed records see, in order.
fn read(results: &Stream) -> Vec<Vec<u8>> {
    let mut source = StreamSource::bounded(results);
    let mut output = Output::default();
    let waker = std::task::Waker::noop();
    while source.poll(&mut output, 1, waker).unwrap() == SourceStatus::Ready {}
    let mut values = Vec::new();
    for chunks in output.items() {
        chunks.for_each_part(|record| values.push(record.value.unwrap_or_default().to_vec()));
    }
    values.sort_unstable();
    values
}

#[track_caller]
fn check(windows: Windows) {
    for_both(|world| {
        let stream = |name| {
            let stream = world.log.create_stream(name, StreamConfig::default());
            stream.unwrap()
        };
        let (results, undisturbed) = (stream("results"), stream("undisturbed"));
        for _ in 0..3 {
            let running = start(windows, Some(&world.store), &results);
            wait_for_checkpoints(&running, 3);
            drop(running);
        }
        start(windows, Some(&world.store), &results).join().unwrap();
        start(windows, None, &undisturbed).join().unwrap();
        assert_eq!(read(&results), read(&undisturbed));
        assert!(has_records(world), "the windows are in a changelog");
    });
}

fn has_records(world: &World) -> bool {
    let stream = world.log.stream("shop.state.counts").unwrap();
    (0..stream.partition_count()).any(|partition| {
        let partition = stream.partition(partition).unwrap();
        partition.next_offset() > partition.earliest_offset()
    })
}

#[test]
fn tumbling_windows_count_each_number_once_although_the_flow_stops_and_resumes() {
    check(Windows::tumbling(100));
}

#[test]
fn sliding_windows_count_each_number_once_although_the_flow_stops_and_resumes() {
    check(Windows::sliding(250, 100));
}

#[test]
fn sessions_count_each_number_once_although_the_flow_stops_and_resumes() {
    check(Windows::session(60));
}

#[test]
fn windows_without_an_end_count_each_number_once_although_the_flow_stops_and_resumes() {
    check(Windows::global(Trigger::every_events(7)));
}
