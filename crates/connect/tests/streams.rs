//! Streams as sources and sinks of flows.

mod malformed;
mod numbers;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use millstream_base::{
    ByteSize, Offset, ProducerEpoch, ProducerId, Sequence, StreamletIndex, Timestamp,
};
use millstream_connect::{
    DeadLetterStream, EncodedRecord, Ending, IN_FLIGHT_BYTES_MAX, StoredChunks, StoredLetter,
    StreamProducer, StreamSink, StreamSource,
};
use millstream_flow::sources::Generator;
use millstream_flow::windows::{Count, Windows};
use millstream_flow::{
    BoxError, Emit, Flow, FlowSettings, Origin, Output, Parts, Running, Sink, Source, SourceStatus,
    Watermarks,
};
use millstream_log::{
    Background, Durability, Log, LogConfig, LogError, ReadStart, Stream, StreamConfig,
};
use millstream_record::{
    ChunkBuilder, Compression, Decompressor, EndMarker, Filter, Header, Producer, TransactionEnd,
};
use tempfile::{TempDir, tempdir};

use numbers::produce;

fn open(streamlets: u32) -> (TempDir, Log, Stream) {
    let dir = tempdir().unwrap();
    let log = Log::open(LogConfig::with_pool(dir.path(), ByteSize(16 << 20))).unwrap();
    let config = StreamConfig {
        streamlets,
        ..StreamConfig::default()
    };
    let stream = log.create_stream("s", config).unwrap();
    (dir, log, stream)
}

/// A flow that sums up the numbers in a stream.
fn sum(sources: Vec<StreamSource>) -> (Running, Arc<AtomicU64>) {
    let sum = Arc::new(AtomicU64::new(0));
    let total = Arc::clone(&sum);
    let flow = Flow::new("sum");
    let state = flow.partial::<u64>("sum");
    flow.sources("numbers", sources)
        .each(|record, emit: &mut Emit<u64>| {
            let value = record.value.unwrap_or_default();
            emit(&u64::from_le_bytes(value.try_into()?));
            Ok(())
        })
        .fold_local(&state, move |_, number| {
            total.fetch_add(*number, Ordering::Relaxed);
        });
    (flow.run().unwrap(), sum)
}

#[test]
fn a_bounded_source_ends_at_the_high_watermark_of_its_start() {
    let (_dir, _log, stream) = open(3);
    produce(&stream, 0, 0..100_000);
    produce(&stream, 2, 0..10);
    let source = StreamSource::bounded(&stream);
    produce(&stream, 0, 0..1000);
    produce(&stream, 1, 0..1000);
    let (running, total) = sum(source.split(3));
    running.join().unwrap();
    assert_eq!(total.load(Ordering::Relaxed), 99_999 * 50_000 + 45);
}

#[test]
fn a_filtered_source_gives_only_matching_records() {
    let (_dir, log, stream) = open(2);
    produce(&stream, 0, 0..10_000);
    produce(&stream, 1, 0..10_000);
    // Numbers are little-endian: the low byte is 7.
    let filter = || Filter::parse(r#"value starts with "\x07""#).unwrap();
    let expected: u64 = 2 * (0..10_000u64).filter(|n| n % 256 == 7).sum::<u64>();
    let (running, total) = sum(StreamSource::bounded(&stream).filtered(filter()).split(2));
    running.join().unwrap();
    assert_eq!(total.load(Ordering::Relaxed), expected);

    let source = StreamSource::of_application(&log, "s", "app").unwrap();
    let source = source.filtered(filter());
    source.ending().end_at_durable_head();
    let (running, total) = sum(source.split(2));
    running.join().unwrap();
    assert_eq!(total.load(Ordering::Relaxed), expected);
}

/// Flows were given the records of aborted transactions, and the markers at their ends.
#[test]
fn flows_read_only_committed_records() {
    let (_dir, log, stream) = open(1);
    let lane = stream.partition(0).unwrap();
    let mut builder = ChunkBuilder::new(Compression::None);
    for (producer, outcome) in [
        (1, Some(TransactionEnd::Commit)),
        (2, Some(TransactionEnd::Abort)),
        (3, None),
    ] {
        let value = 10_u64.pow(producer).to_le_bytes();
        builder.set_transactional(true);
        builder.push(Timestamp(0), None, Some(&value), &[]).unwrap();
        let producer_id = ProducerId(producer.into());
        let producer = Producer {
            id: producer_id,
            epoch: ProducerEpoch(0),
            sequence: Sequence(0),
        };
        let appended = lane
            .append(builder.finish(Some(producer)).unwrap())
            .unwrap();
        let appended = match outcome {
            None => appended,
            Some(end) => {
                let marker = EndMarker {
                    producer_id,
                    producer_epoch: ProducerEpoch(0),
                    end,
                    coordinator_epoch: 0,
                };
                lane.append_marker(&marker).unwrap()
            }
        };
        lane.acknowledge(&appended).unwrap();
    }
    let of_application = StreamSource::of_application(&log, "s", "app").unwrap();
    of_application.ending().end_at_durable_head();
    for source in [StreamSource::bounded(&stream), of_application] {
        let (running, total) = sum(source.split(2));
        running.join().unwrap();
        assert_eq!(total.load(Ordering::Relaxed), 10);
    }
}

#[test]
fn a_source_of_an_empty_stream_ends_at_once_when_asked_to() {
    let (_dir, _log, stream) = open(1);
    let (running, total) = sum(StreamSource::bounded(&stream).split(2));
    running.join().unwrap();
    assert_eq!(total.load(Ordering::Relaxed), 0);
}

#[test]
fn a_sleeping_source_is_woken_by_records_and_by_its_end() {
    let (_dir, log, stream) = open(1);
    let source = StreamSource::new(&stream);
    let ending = source.ending();
    let (running, total) = sum(source.split(2));
    for round in 1..=20 {
        thread::sleep(Duration::from_millis(5));
        // A partition that is added later is read as well.
        if round == 10 {
            log.grow_stream("s", 2, 1).unwrap();
        }
        produce(&stream, round / 10 % 2, 1..2);
        let started_at = Instant::now();
        while total.load(Ordering::Relaxed) < u64::from(round) {
            assert!(
                started_at.elapsed() < Duration::from_secs(60),
                "round {round}"
            );
            thread::yield_now();
        }
    }
    thread::sleep(Duration::from_millis(20));
    ending.end_at_durable_head();
    running.join().unwrap();
}

#[test]
fn a_record_that_an_operator_rejects_fails_the_flow() {
    let (_dir, _log, stream) = open(1);
    produce(&stream, 0, 0..10);
    let mut producer = StreamProducer::new(&stream, ProducerId::NONE).unwrap();
    producer
        .push(Timestamp(0), None, Some(b"short"), &[])
        .unwrap();
    producer.flush().unwrap();
    let (running, _) = sum(StreamSource::bounded(&stream).split(2));
    let message = running.join().unwrap_err().to_string();
    let given = "it was given short, at offset 10 of partition 0 of stream s";
    assert!(message.contains(given), "{message}");
}

#[test]
fn all_results_of_a_flow_are_durable_when_it_ends() {
    const ITEMS: u64 = 1_000_000;
    let (dir, log, stream) = open(1);
    let flow = Flow::new("numbers");
    let encode = |number: &u64, record: &mut EncodedRecord| {
        record.value.extend_from_slice(&number.to_le_bytes());
        record.value.resize(100, 0);
    };
    let sink = StreamSink::new(&stream, encode).unwrap();
    flow.source("numbers", Generator::new(|number| number).limit(ITEMS))
        .sink("stream", sink);
    flow.run().unwrap().join().unwrap();
    // The sink had to wait for the disk meanwhile.
    assert!(ITEMS * 100 > IN_FLIGHT_BYTES_MAX as u64);
    log.close().unwrap();
    drop(stream);

    let log = Log::open(LogConfig::new(dir.path())).unwrap();
    let stream = log.stream("s").unwrap();
    let flow = Flow::new("check");
    let state = flow.partial::<u64>("next");
    flow.source("numbers", StreamSource::bounded(&stream))
        .fold_local(&state, |next, chunks: &StoredChunks| {
            chunks.for_each_part(|record| {
                assert_eq!(record.value.unwrap()[..8], next.to_le_bytes());
                *next += 1;
            });
        });
    flow.run().unwrap().join().unwrap();
    assert_eq!(state.merged(), ITEMS);
}

#[test]
fn a_restarted_producer_appends_only_missing_records() {
    let (_dir, _log, stream) = open(1);
    for (count, known) in [(5000_u64, 0), (3000, 3000), (5001, 5000), (20_000, 5001)] {
        let mut producer = StreamProducer::new(&stream, ProducerId(3)).unwrap();
        for number in 0..count {
            let value = number.to_le_bytes();
            producer
                .push(Timestamp(0), None, Some(&value), &[])
                .unwrap();
        }
        producer.flush().unwrap();
        let totals = producer.totals();
        assert_eq!(
            (totals.known_records, totals.durable_records),
            (known, count)
        );
        assert_eq!(totals.appended_records, count - known);
    }
    let (running, total) = sum(StreamSource::bounded(&stream).split(1));
    running.join().unwrap();
    assert_eq!(total.load(Ordering::Relaxed), 19_999 * 10_000);
}

#[test]
fn a_producer_keeps_the_records_of_a_chunk_until_a_buffer_is_free() {
    let dir = tempdir().unwrap();
    let log = Log::open(LogConfig {
        append_wait_max: Duration::from_millis(10),
        ..LogConfig::with_pool(dir.path(), ByteSize(1 << 20))
    })
    .unwrap();
    let stream = log.create_stream("s", StreamConfig::default()).unwrap();
    let in_memory = StreamConfig {
        durability: Durability::Memory,
        ..StreamConfig::default()
    };
    let filler = log.create_stream("filler", in_memory).unwrap();
    let mut fill = StreamProducer::new(&filler, ProducerId::NONE).unwrap();
    let mut producer = StreamProducer::new(&stream, ProducerId(5)).unwrap();
    let push = |producer: &mut StreamProducer| {
        producer.push(Timestamp(0), None, Some(&[7; 1000]), &[])?;
        producer.send()
    };
    // The reader of the other stream holds all buffers.
    let mut reader = filler.reader(ReadStart::Earliest);
    let mut held = Vec::new();
    let mut taken = 0;
    let error = loop {
        assert!(taken < 1000, "there is no end of buffers");
        while push(&mut fill).is_ok() {
            match reader.read(1) {
                Ok(chunks) => held.push(chunks),
                // It went before it was read.
                Err(LogError::CursorRemoved { .. }) => reader = filler.reader(ReadStart::Earliest),
                Err(error) => panic!("{error}"),
            }
        }
        taken += 1;
        if let Err(error) = push(&mut producer) {
            break error;
        }
    };
    assert!(matches!(error, LogError::PoolExhausted { .. }), "{error}");
    drop(held);
    log.delete_stream("filler").unwrap();
    let started_at = Instant::now();
    while let Err(error) = producer.flush() {
        assert!(started_at.elapsed() < Duration::from_secs(60), "{error}");
    }
    let totals = producer.totals();
    assert_eq!(
        (totals.appended_records, totals.durable_records),
        (taken, taken)
    );
    assert_eq!(producer.partition().durable_offset(), Offset(taken));
}

#[test]
fn a_producer_drops_only_the_record_that_is_too_large() {
    let (_dir, _log, stream) = open(1);
    let mut producer = StreamProducer::new(&stream, ProducerId(5)).unwrap();
    let large = vec![0; stream.partition(0).unwrap().chunk_bytes_max() + 1];
    for value in [&[0; 8][..], &large, &[1; 8]] {
        let result = producer.push(Timestamp(0), None, Some(value), &[]);
        match value.len() {
            8 => result.unwrap(),
            _ => assert!(
                matches!(result, Err(LogError::ChunkTooLarge { .. })),
                "{result:?}"
            ),
        }
    }
    producer.flush().unwrap();
    assert_eq!(producer.totals().durable_records, 2);
}

#[test]
fn a_flush_covers_duplicates_that_a_dropped_producer_had_sent() {
    let dir = tempdir().unwrap();
    let log = Log::open(LogConfig {
        background: Background::Manual,
        ..LogConfig::with_pool(dir.path(), ByteSize(4 << 20))
    })
    .unwrap();
    let stream = log.create_stream("s", StreamConfig::default()).unwrap();
    for records in [10, 5] {
        let mut producer = StreamProducer::new(&stream, ProducerId(3)).unwrap();
        for _ in 0..records {
            producer
                .push(Timestamp(0), None, Some(b"value"), &[])
                .unwrap();
        }
        producer.send().unwrap();
        if records == 5 {
            assert_eq!(producer.totals().durable_records, 0);
            producer.flush().unwrap();
            assert_eq!(producer.totals().durable_records, 5);
            assert!(producer.partition().durable_offset() >= Offset(5));
        }
    }
}

#[test]
fn a_source_started_on_an_empty_stream_ends_while_one_partition_stays_empty() {
    let (_dir, _log, stream) = open(2);
    let source = StreamSource::new(&stream);
    let ending = source.ending();
    let (running, total) = sum(source.split(2));
    thread::sleep(Duration::from_millis(5));
    produce(&stream, 1, 1..2);
    ending.end_at_durable_head();
    // It comes too late to be seen, and must not be waited for.
    thread::sleep(Duration::from_millis(50));
    produce(&stream, 0, 0..1);
    join_in_time(running);
    assert_eq!(total.load(Ordering::Relaxed), 1);
}

#[test]
fn a_source_ends_at_its_end_inside_a_group_that_it_has_not_opened() {
    let (_dir, log, _) = open(1);
    let config = StreamConfig {
        group_segments: 1,
        segment: ByteSize(64 << 10),
        ..StreamConfig::default()
    };
    let stream = log.create_stream("groups", config).unwrap();
    for _ in 0..6 {
        produce(&stream, 0, 0..1000);
    }
    assert_eq!(stream.info().partitions[0].groups, 2);
    let source = StreamSource::bounded(&stream);
    produce(&stream, 0, 0..10);
    assert_eq!(stream.info().partitions[0].groups, 2);
    let (running, total) = sum(source.split(2));
    join_in_time(running);
    assert_eq!(total.load(Ordering::Relaxed), 6 * 999 * 500);
}

fn join_in_time(running: Running) {
    let joined = thread::spawn(move || running.join());
    let started_at = Instant::now();
    while !joined.is_finished() {
        assert!(
            started_at.elapsed() < Duration::from_secs(60),
            "the flow does not end"
        );
        thread::sleep(Duration::from_millis(1));
    }
    joined.join().unwrap().unwrap();
}

#[derive(Default)]
struct Wakes(AtomicU64);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_source_without_read_memory_sleeps_until_some_is_free() {
    let dir = tempdir().unwrap();
    let log = Log::open(LogConfig::with_pool(dir.path(), ByteSize(1 << 20))).unwrap();
    let stream = log.create_stream("s", StreamConfig::default()).unwrap();
    for _ in 0..20 {
        produce(&stream, 0, 0..15_000);
    }
    let mut held = Vec::new();
    let error = loop {
        match stream.reader(ReadStart::Earliest).read(1 << 20) {
            Ok(chunks) => held.push(chunks),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, LogError::ReadBudget), "{error}");

    let wakes = Arc::new(Wakes::default());
    let waker = Waker::from(Arc::clone(&wakes));
    let mut source = StreamSource::bounded(&stream);
    let mut out = Output::default();
    let status = source.poll(&mut out, 1, &waker).unwrap();
    assert_eq!(status, SourceStatus::Idle);
    held.clear();
    assert!(wakes.0.load(Ordering::Relaxed) > 0);
    let status = source.poll(&mut out, 1, &waker).unwrap();
    assert_eq!((status, out.items().len()), (SourceStatus::Ready, 1));
}

#[test]
fn records_that_an_operator_rejects_go_to_the_dead_letter_stream() {
    let (_dir, log, stream) = open(1);
    let mut producer = StreamProducer::new(&stream, ProducerId::NONE).unwrap();
    let header = |name, value| Header { name, value };
    let headers = [header(&b"k.city"[..], Some(&b"Ulm"[..])), header(b"", None)];
    for (key, value) in [
        ("", "1"),
        ("key", "two"),
        ("", "3"),
        ("", "panic"),
        ("", "5"),
    ] {
        let key = (!key.is_empty()).then_some(key.as_bytes());
        let value = Some(value.as_bytes());
        producer.push(Timestamp(7), key, value, &headers).unwrap();
    }
    // Neither key nor value, and both empty.
    producer.push(Timestamp(8), None, None, &[]).unwrap();
    producer
        .push(Timestamp(8), Some(b""), Some(b""), &[])
        .unwrap();
    producer.flush().unwrap();

    let settings = FlowSettings {
        dead_letters: Some(Arc::new(DeadLetterStream::new(&log, "sum"))),
        ..FlowSettings::default()
    };
    let flow = Flow::with_settings("sum", settings);
    let sum = flow.partial::<u64>("sum");
    flow.source("numbers", StreamSource::bounded(&stream))
        .each(|record, emit: &mut Emit<u64>| {
            let text = str::from_utf8(record.value.unwrap_or_default())?;
            assert_ne!(text, "panic", "as the record demands");
            emit(&text.parse()?);
            Ok(())
        })
        .fold_local(&sum, |sum, number| *sum += number);
    flow.run().unwrap().join().unwrap();
    assert_eq!(sum.merged(), 1 + 3 + 5);

    let letters = log.stream("sum.dead_letters").unwrap();
    let mut reader = letters.reader(ReadStart::Earliest);
    let chunks = reader.read(1 << 20).unwrap().unwrap();
    let mut found = Vec::new();
    let mut decompressor = Decompressor::default();
    for chunk in chunks.chunks() {
        for record in chunk.unwrap().records(&mut decompressor).unwrap() {
            let record = record.unwrap();
            let (_, operator) = record.secondary_keys().next().unwrap();
            assert_eq!(operator, b"numbers/1.each");
            found.push(StoredLetter::read(&record));
        }
    }
    let [two, panic, nothing, empty] = &found[..] else {
        panic!("{found:?}");
    };
    assert_eq!(two.item, "two");
    assert_eq!(two.error, "invalid digit found in string");
    assert_eq!(panic.item, "panic");
    assert!(panic.error.contains("as the record demands"), "{panic:?}");
    let original = |offset, timestamp, key: Option<&str>, value: Option<&str>| Origin {
        stream: "s".to_owned(),
        partition: 0,
        offset: Offset(offset),
        timestamp: Timestamp(timestamp),
        key: key.map(|key| key.as_bytes().to_vec()),
        value: value.map(|value| value.as_bytes().to_vec()),
        headers: match timestamp {
            7 => vec![
                (b"k.city".to_vec(), Some(b"Ulm".to_vec())),
                (Vec::new(), None),
            ],
            _ => Vec::new(),
        },
    };
    let expected = [
        (two, original(1, 7, Some("key"), Some("two"))),
        (panic, original(3, 7, None, Some("panic"))),
        (nothing, original(5, 8, None, None)),
        (empty, original(6, 8, Some(""), Some(""))),
    ];
    for (letter, original) in expected {
        assert_eq!(letter.original.as_ref(), Some(&original));
        let place = (original.stream, original.partition, original.offset);
        assert_eq!(letter.place.as_ref(), Some(&place));
        assert_eq!(
            (letter.flow.as_str(), letter.operator.as_str()),
            ("sum", "numbers/1.each")
        );
        assert!(letter.timestamp > Timestamp(8), "when it was written");
    }
}

#[test]
fn a_dead_letter_names_a_record_that_is_too_large_and_omits_it() {
    let (_dir, log, stream) = open(1);
    let mut producer = StreamProducer::new(&stream, ProducerId::NONE).unwrap();
    // It fills a chunk, as large as chunks may be here.
    let large = vec![b'x'; (4 << 20) - 100];
    producer
        .push(Timestamp(0), None, Some(&large), &[])
        .unwrap();
    producer.flush().unwrap();
    let settings = FlowSettings {
        dead_letters: Some(Arc::new(DeadLetterStream::new(&log, "large"))),
        ..FlowSettings::default()
    };
    let flow = Flow::with_settings("large", settings);
    let none = flow.partial::<u64>("none");
    flow.source("records", StreamSource::bounded(&stream))
        .each(|_, _: &mut Emit<u64>| Err("no".into()))
        .fold_local(&none, |_, _| ());
    flow.run().unwrap().join().unwrap();
    let letters = log.stream("large.dead_letters").unwrap();
    let mut reader = letters.reader(ReadStart::Earliest);
    let chunks = reader.read(1 << 20).unwrap().unwrap();
    let chunk = chunks.chunks().next().unwrap().unwrap();
    let mut decompressor = Decompressor::default();
    let record = chunk.records(&mut decompressor).unwrap().next().unwrap();
    let letter = StoredLetter::read(&record.unwrap());
    assert_eq!(letter.place, Some(("s".to_owned(), 0, Offset(0))));
    assert_eq!(letter.original, None);
    assert!(letter.item.starts_with("xxx"), "{}", letter.item);
}

/// A flow that copies the numbers that an application has not seen yet, in two stages.
fn copy(log: &Log, to: &Stream, name: &str) -> (Running, Ending) {
    let settings = FlowSettings {
        workers: NonZeroUsize::new(3).unwrap(),
        commit_interval: Duration::from_millis(5),
        ..FlowSettings::default()
    };
    let source = StreamSource::of_application(log, "s", "copy").unwrap();
    let ending = source.ending();
    let encode = |number: &u64, record: &mut EncodedRecord| {
        record.value.extend_from_slice(&number.to_le_bytes());
    };
    let flow = Flow::with_settings(name, settings);
    flow.sources("numbers", source.split(3))
        .each(|record, emit: &mut Emit<u64>| {
            emit(&u64::from_le_bytes(record.value.unwrap().try_into()?));
            Ok(())
        })
        .boundary("copy")
        .sink("sink", StreamSink::new(to, encode).unwrap());
    (flow.run().unwrap(), ending)
}

/// Returns the number of times that each number is in a stream.
fn counts(stream: &Stream) -> BTreeMap<u64, u64> {
    let counts = Arc::new(parking_lot::Mutex::new(BTreeMap::new()));
    let all = Arc::clone(&counts);
    let flow = Flow::new("counts");
    let seen = flow.partial::<u64>("seen");
    flow.source("numbers", StreamSource::bounded(stream))
        .each(|record, emit: &mut Emit<u64>| {
            emit(&u64::from_le_bytes(record.value.unwrap().try_into()?));
            Ok(())
        })
        .fold_local(&seen, move |seen, number| {
            *all.lock().entry(*number).or_default() += 1;
            *seen += 1;
        });
    flow.run().unwrap().join().unwrap();
    let counts = counts.lock();
    counts.clone()
}

/// Streams of small groups, so that there are many.
fn open_for_copies() -> (TempDir, Log, Stream, Stream) {
    let dir = tempdir().unwrap();
    let log = Log::open(LogConfig::with_pool(dir.path(), ByteSize(64 << 20))).unwrap();
    let small = StreamConfig {
        streamlets: 2,
        lanes: 2,
        group_segments: 1,
        segment: ByteSize(64 << 10),
        ..StreamConfig::default()
    };
    let stream = log.create_stream("s", small).unwrap();
    let copies = log
        .create_stream("copies", StreamConfig::default())
        .unwrap();
    (dir, log, stream, copies)
}

/// Chunks of a hundred numbers each, into all lanes.
fn produce_everywhere(stream: &Stream, numbers: std::ops::Range<u64>) {
    for (index, begin) in numbers.clone().step_by(100).enumerate() {
        let mut builder = ChunkBuilder::new(Compression::None);
        for number in begin..numbers.end.min(begin + 100) {
            let value = number.to_le_bytes();
            builder.push(Timestamp(0), None, Some(&value), &[]).unwrap();
        }
        let chunk = builder.finish(None).unwrap().to_vec();
        let lane = stream.partition(index as u32 % 4).unwrap();
        lane.append(&chunk).unwrap();
    }
    for partition in 0..4 {
        let lane = stream.partition(partition).unwrap();
        lane.wait_durable(lane.next_offset()).unwrap();
    }
}

#[test]
fn a_stopped_and_restarted_flow_reads_each_record_once() {
    const ITEMS: u64 = 60_000;
    let (_dir, log, stream, copies) = open_for_copies();
    for run in 0..6 {
        let numbers = run * ITEMS / 6..(run + 1) * ITEMS / 6;
        produce_everywhere(&stream, numbers);
        let (running, ending) = copy(&log, &copies, "copy");
        if run == 5 {
            ending.end_at_durable_head();
        } else {
            thread::sleep(Duration::from_millis(run * 7));
            running.stop();
        }
        running.join().unwrap();
    }
    let counts = counts(&copies);
    assert_eq!(counts.len() as u64, ITEMS);
    assert!(counts.values().all(|count| *count == 1));
}

#[test]
fn a_flow_dropped_midway_loses_no_record_and_repeats_few() {
    const ITEMS: u64 = 400_000;
    let (_dir, log, stream, copies) = open_for_copies();
    produce_everywhere(&stream, 0..ITEMS);
    let mut runs = 0;
    loop {
        let (running, ending) = copy(&log, &copies, "copy");
        ending.end_at_durable_head();
        let is_killed = runs < 6;
        if is_killed {
            thread::sleep(Duration::from_millis(15 << runs));
            drop(running);
        } else {
            running.join().unwrap();
            break;
        }
        runs += 1;
    }
    let counts = counts(&copies);
    assert_eq!(counts.len() as u64, ITEMS);
    let most = counts.values().max().unwrap();
    assert!(
        *most < 9,
        "some were read {most} times: nothing is committed on the way"
    );
}

#[test]
fn flows_of_one_application_divide_its_groups() {
    const ITEMS: u64 = 50_000;
    let (_dir, log, stream, copies) = open_for_copies();
    let flows = [copy(&log, &copies, "one"), copy(&log, &copies, "other")];
    let mut produced = 0;
    let began_at = Instant::now();
    while flows
        .iter()
        .any(|(flow, _)| flow.metrics()[0].items_out == 0)
    {
        produce_everywhere(&stream, produced..produced + ITEMS);
        produced += ITEMS;
        let waited = began_at.elapsed();
        assert!(waited < Duration::from_secs(20), "one flow gets nothing");
    }
    for (_, ending) in &flows {
        ending.end_at_durable_head();
    }
    for (running, _) in &flows {
        running.join().unwrap();
    }
    let counts = counts(&copies);
    assert_eq!(counts.len() as u64, produced);
    assert!(counts.values().all(|count| *count == 1));
}

#[test]
fn a_flow_takes_over_the_earlier_groups_that_another_gave_back() {
    const ITEMS: u64 = 50_000;
    let (_dir, log, stream, copies) = open_for_copies();
    let (first, ending_of_first) = copy(&log, &copies, "first");
    produce_everywhere(&stream, 0..ITEMS);
    let (second, ending) = copy(&log, &copies, "second");
    produce_everywhere(&stream, ITEMS..2 * ITEMS);
    // It holds no group any more, though a handle of it still exists.
    first.stop();
    first.join().unwrap();
    produce_everywhere(&stream, 2 * ITEMS..3 * ITEMS);
    ending.end_at_durable_head();
    second.join().unwrap();
    drop(ending_of_first);
    let counts = counts(&copies);
    assert_eq!(counts.len() as u64, 3 * ITEMS);
    assert!(counts.values().all(|count| *count == 1));
}

#[test]
fn no_source_commits_a_position_behind_a_malformed_chunk() {
    let (_dir, log, stream, copies) = open_for_copies();
    produce_everywhere(&stream, 0..1000);
    let chunk = malformed::chunk(0);
    // It comes when the next commit is long due: at once after the chunk.
    let (running, _) = copy(&log, &copies, "copy");
    thread::sleep(Duration::from_millis(50));
    let lane = stream.partition(0).unwrap();
    let appended = lane.append(&chunk).unwrap();
    lane.acknowledge(&appended).unwrap();
    let check = |running: Running| {
        let error = running.join().unwrap_err().to_string();
        assert!(error.contains("stored as its producer sent it"), "{error}");
    };
    check(running);
    for _ in 0..2 {
        let (running, ending) = copy(&log, &copies, "copy");
        ending.end_at_durable_head();
        check(running);
    }
}

#[test]
fn reading_one_partition_ahead_makes_no_item_of_another_late() {
    let (_dir, _log, stream) = open(3);
    // Each streamlet has an hour in order, in chunks of a minute, and the source reads one after the other.
    let minutes = 60;
    for streamlet in 0..3 {
        for minute in 0..minutes {
            let mut chunk = ChunkBuilder::new(Compression::None);
            for second in 0..60 {
                let time = Timestamp((minute * 60 + second) * 1000);
                chunk.push(time, None, Some(b"x"), &[]).unwrap();
            }
            let chunk = chunk.finish(None).unwrap();
            let (lane, appended) = stream.append(StreamletIndex(streamlet), chunk).unwrap();
            lane.acknowledge(&appended).unwrap();
        }
    }
    let flow = Flow::new("late");
    let counts = flow.windowed("counts", Windows::tumbling(60_000), Count);
    flow.source("records", StreamSource::bounded(&stream))
        .each(|record, emit: &mut Emit<Timestamp>| {
            emit(&record.timestamp);
            Ok(())
        })
        .watermarks(|time| *time, Watermarks::bounded(Duration::ZERO))
        .aggregate("count", &counts, |time| *time)
        .filter(|result| result.value != 180)
        .sink("wrong", Nothing);
    flow.run().unwrap().join().unwrap();
    assert_eq!(counts.late_events(), 0);
    assert_eq!(counts.totals().closed_windows, minutes as u64);
}

/// Takes nothing.
struct Nothing;

impl<T> Sink<T> for Nothing {
    fn push(&mut self, _: &[T], _: &Waker) -> Result<usize, BoxError> {
        panic!("nothing should come");
    }

    fn flush(&mut self, _: &Waker) -> Result<bool, BoxError> {
        Ok(true)
    }
}
