//! Sources resume behind the records that they had returned.

use std::cell::RefCell;
use std::fmt::Debug;
use std::sync::Arc;
use std::task::Waker;

use millstream_base::{ByteSize, ProducerId, SystemRandom, TcpNetwork, Timestamp};
use millstream_broker::{BrokerConfig, Server};
use millstream_client::{ClientConfig, ConsumerConfig};
use millstream_connect::{CheckpointDir, ServerEnd, ServerSource, StreamProducer, StreamSource};
use millstream_flow::{
    BoxError, Counts, Emit, Flow, Output, Partial, Parts, Running, Source, SourceStatus,
};
use millstream_log::{
    CLEANUP_POLICY, COMPACTION_LAG_MAX, DIRTY_RATIO_MIN, Durability, Log, LogConfig, Stream,
    StreamConfig,
};
use millstream_record::{Header, Record};
use millstream_testing::lose_power;
use proptest::prelude::*;
use tempfile::{TempDir, tempdir};

use crate::numbers::produce;
use crate::support::{settings, wait_until};

fn open(streamlets: u32) -> (TempDir, Log, Stream) {
    let dir = tempdir().unwrap();
    let log = Log::open(LogConfig::with_pool(dir.path(), ByteSize(64 << 20))).unwrap();
    let config = StreamConfig {
        streamlets,
        group_segments: 1,
        ..StreamConfig::default()
    };
    let stream = log.create_stream("s", config).unwrap();
    (dir, log, stream)
}

/// A flow that counts each number of the sources.
fn count<S>(
    place: &Arc<CheckpointDir>,
    resume: bool,
    sources: Vec<S>,
) -> Result<(Running, Partial<Counts>), String>
where
    S: Source<Item: Debug + for<'a> Parts<Part<'a> = Record<'a>>>,
{
    let flow = Flow::with_settings("numbers", settings(place, resume));
    let counts = flow.partial::<Counts>("counts");
    flow.sources("numbers", sources)
        .each(|record, emit: &mut Emit<[u8]>| {
            emit(record.value.unwrap_or_default());
            Ok(())
        })
        .fold_local(&counts, |counts, number| counts.add(number, 1));
    let running = flow.run().map_err(|error| error.to_string())?;
    Ok((running, counts))
}

/// Returns the counts, by number.
fn counted(counts: &Partial<Counts>) -> Vec<(u64, u64)> {
    let counts = counts.merged();
    let mut numbers: Vec<(u64, u64)> = counts
        .iter()
        .map(|(number, count)| (u64::from_le_bytes(number.try_into().unwrap()), count))
        .collect();
    numbers.sort_unstable();
    numbers
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Flows are stopped at any point; the stream gets more records, and more lanes.
    #[test]
    fn flows_that_stop_and_resume_count_each_record_of_a_stream_once(
        runs in prop::collection::vec((1usize..4, 0u64..3000), 1..5),
    ) {
        let (_dir, log, stream) = open(1);
        let folder = tempdir().unwrap();
        let place = Arc::new(CheckpointDir::open(folder.path()).unwrap());
        let mut next = 0;
        let mut resume = false;
        for (instances, records) in runs {
            let (running, _) =
                count(&place, resume, StreamSource::new(&stream).split(instances)).unwrap();
            let streamlets = stream.config().streamlets;
            for streamlet in 0..streamlets {
                produce(&stream, streamlet, next..next + records);
                next += records;
            }
            if records > 0 {
                wait_until("a checkpoint is kept", || running.checkpoints().unwrap().kept > 0);
                resume = true;
            }
            drop(running);
            log.grow_stream("s", streamlets + 1, 1).unwrap();
        }
        let source = StreamSource::bounded(&stream);
        let (running, counts) = count(&place, resume, source.split(2)).unwrap();
        running.join().unwrap();
        let expected: Vec<_> = (0..next).map(|number| (number, 1)).collect();
        prop_assert!(counted(&counts) == expected);
    }
}

/// Returns the numbers that a source gives, and the position that it saves behind them.
fn give(source: &mut StreamSource) -> (Vec<u64>, Result<Vec<u8>, BoxError>) {
    let mut numbers = Vec::new();
    let mut out = Output::default();
    while source.poll(&mut out, 1, Waker::noop()).unwrap() == SourceStatus::Ready {}
    for chunks in out.items() {
        chunks.for_each_part(|record| {
            let value = record.value.unwrap_or_default();
            numbers.push(u64::from_le_bytes(value.try_into().unwrap()));
        });
    }
    (numbers, source.save())
}

#[test]
fn a_filtered_bounded_source_resumes_with_its_filter_and_end() {
    let (_dir, _log, stream) = open(1);
    produce(&stream, 0, 0..10);
    let (numbers, saved) = give(&mut StreamSource::new(&stream));
    assert_eq!(numbers, Vec::from_iter(0..10));
    produce(&stream, 0, 10..20);
    let filter = millstream_record::Filter::parse(r#"value starts with "\x0b""#).unwrap();
    let mut source = StreamSource::bounded(&stream).filtered(filter);
    produce(&stream, 0, 11..12);
    source.restore(&saved.unwrap()).unwrap();
    assert_eq!(give(&mut source).0, [11]);
}

#[test]
fn a_source_reports_records_that_retention_removed_behind_its_checkpoint() {
    let (_dir, log, stream) = open(1);
    produce(&stream, 0, 0..10);
    let (_, saved) = give(&mut StreamSource::new(&stream));
    produce(&stream, 0, 10..20);
    // The records are of 1970.
    log.set_retention("s", Some(1000), None).unwrap();
    log.persist();
    log.apply_retention().unwrap();
    let earliest = stream.partition(0).unwrap().earliest_offset();
    assert!(earliest.0 > 10);
    let error = StreamSource::new(&stream)
        .restore(&saved.unwrap())
        .unwrap_err();
    let start = format!(
        "stream s, partition 0: the records behind the checkpoint cannot be read: offset 10 is not stored: the partition holds {earliest} up to"
    );
    assert!(error.to_string().starts_with(&start), "{error}");
}

#[test]
fn a_source_resumes_behind_records_that_compaction_has_dropped() {
    let (_dir, log, stream) = open(1);
    let settings = [
        (CLEANUP_POLICY, "compact"),
        (COMPACTION_LAG_MAX, "1"),
        (DIRTY_RATIO_MIN, "0"),
    ];
    let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
    log.alter_stream("s", |config| config.settings.extend(settings))
        .unwrap();
    let append = |round: u64| {
        let mut producer = StreamProducer::new(&stream, ProducerId::NONE).unwrap();
        for key in 0..10_u64 {
            let value = (10 * round + key).to_le_bytes();
            let padding = vec![b'x'; 20 << 10];
            let padding = [Header {
                name: b"padding",
                value: Some(&padding),
            }];
            let key = key.to_le_bytes();
            producer
                .push(Timestamp(0), Some(&key), Some(&value), &padding)
                .unwrap();
        }
        producer.flush().unwrap();
    };
    append(0);
    let (_, saved) = give(&mut StreamSource::new(&stream));
    let saved = saved.unwrap();
    for round in 1..50 {
        append(round);
    }
    wait_until("records behind the checkpoint are dropped", || {
        log.persist();
        log.compact().unwrap();
        let mut source = StreamSource::new(&stream);
        source.restore(&saved).unwrap();
        let (numbers, _) = give(&mut source);
        assert!(numbers.ends_with(&Vec::from_iter(490..500)), "{numbers:?}");
        numbers.len() < 480
    });
}

#[test]
fn a_checkpoint_of_another_stream_or_of_an_application_is_refused() {
    let (_dir, log, stream) = open(1);
    let saved = StreamSource::new(&stream).save().unwrap();
    log.delete_stream("s").unwrap();
    let again = log.create_stream("s", StreamConfig::default()).unwrap();
    let error = StreamSource::new(&again)
        .restore(&saved)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("stream s is not the one that the checkpoint is of"),
        "{error}"
    );

    let mut source = StreamSource::of_application(&log, "s", "app").unwrap();
    let error = source.save().unwrap_err().to_string();
    assert!(
        error.contains("stream s is read as an application"),
        "{error}"
    );
}

/// It resumed at its position, and skipped the records that had taken the place of lost ones.
#[test]
fn a_source_of_a_server_reports_records_that_a_crash_took_back() {
    let dir = tempdir().unwrap();
    let start = || {
        let log = Log::open(LogConfig::with_pool(dir.path(), ByteSize(64 << 20))).unwrap();
        let config = BrokerConfig::new(([127, 0, 0, 1], 0).into());
        let (clock, random) = (Arc::clone(log.clock()), Arc::new(SystemRandom));
        let server = Server::start(&TcpNetwork, config, log.clone(), clock, random).unwrap();
        (server, log)
    };
    let source = |server: &Server| {
        let client = ClientConfig::new(server.local_address().to_string());
        let consumer = ConsumerConfig::default();
        let sources = ServerSource::of_stream(&client, &consumer, "s", 1, ServerEnd::Never);
        sources.unwrap().pop().unwrap()
    };
    let give = |source: &mut ServerSource, next: u64| {
        let positions = source.positions().unwrap();
        let source = RefCell::new(source);
        wait_until("the records are given", || {
            let mut out = Output::default();
            (source.borrow_mut().poll(&mut out, 1, Waker::noop())).unwrap();
            positions.read()[0].next == next
        });
        source.into_inner().save().unwrap()
    };
    let (server, log) = start();
    let config = StreamConfig {
        durability: Durability::Written,
        ..StreamConfig::default()
    };
    let stream = log.create_stream("s", config).unwrap();
    let mut first = source(&server);
    produce(&stream, 0, 0..9);
    let valid = give(&mut first, 9);
    produce(&stream, 0, 9..10);
    let lost = give(&mut first, 10);
    let id = stream.id().0;
    drop((first, stream, server, log));
    lose_power(dir.path(), id);
    let (server, log) = start();
    produce(&log.stream("s").unwrap(), 0, 20..24);
    let error = source(&server).restore(&lost).unwrap_err().to_string();
    assert!(
        error.contains("took back records before offset 10"),
        "{error}"
    );
    let mut again = source(&server);
    again.restore(&valid).unwrap();
    give(&mut again, 13);
}

/// Gives records up to a position, and returns the saved positions.
fn give_up_to(source: &mut StreamSource, next: u64) -> Vec<u8> {
    let positions = source.positions().unwrap();
    let mut out = Output::default();
    while source.poll(&mut out, 1, Waker::noop()).unwrap() == SourceStatus::Ready {
        if positions.read()[0].next == next {
            break;
        }
    }
    assert_eq!(positions.read()[0].next, next);
    source.save().unwrap()
}

/// It resumed at its position, and skipped the records that had taken the place of lost ones.
#[test]
fn a_source_reports_records_that_a_crash_took_back() {
    for durability in [Durability::Written, Durability::Memory] {
        let dir = tempdir().unwrap();
        let start = || Log::open(LogConfig::with_pool(dir.path(), ByteSize(64 << 20))).unwrap();
        let log = start();
        let config = StreamConfig {
            durability,
            ..StreamConfig::default()
        };
        let stream = log.create_stream("s", config).unwrap();
        let mut first = StreamSource::new(&stream);
        let none = first.save().unwrap();
        produce(&stream, 0, 0..9);
        let nine = give_up_to(&mut first, 9);
        produce(&stream, 0, 9..10);
        let lost = give_up_to(&mut first, 10);
        // Nothing was lost yet.
        StreamSource::new(&stream).restore(&lost).unwrap();
        let id = stream.id().0;
        drop((first, stream, log));
        // The memory's records are lost in any case.
        let (valid, appended, end) = match durability {
            Durability::Memory => (none, 14, 14),
            _ => {
                lose_power(dir.path(), id);
                (nine, 4, 13)
            }
        };
        let log = start();
        let stream = log.stream("s").unwrap();
        produce(&stream, 0, 20..20 + appended);
        let error = StreamSource::new(&stream).restore(&lost).unwrap_err();
        assert_eq!(
            error.to_string(),
            "stream s, partition 0: a crash took back records before offset 10, which were read before the checkpoint; \
             to leave them out, begin anew"
        );
        let mut again = StreamSource::new(&stream);
        again.restore(&valid).unwrap();
        give_up_to(&mut again, end);
    }
}

#[test]
fn sources_of_a_server_resume_behind_the_last_record_they_gave() {
    let (_dir, log, stream) = open(3);
    let config = BrokerConfig::new(([127, 0, 0, 1], 0).into());
    let (clock, random) = (Arc::clone(log.clock()), Arc::new(SystemRandom));
    let server = Server::start(&TcpNetwork, config, log.clone(), clock, random).unwrap();
    let server = ClientConfig::new(server.local_address().to_string());
    let begin = |end| {
        let consumer = ConsumerConfig::default();
        ServerSource::of_stream(&server, &consumer, "s", 2, end).unwrap()
    };
    let folder = tempdir().unwrap();
    let place = Arc::new(CheckpointDir::open(folder.path()).unwrap());
    produce(&stream, 0, 0..1000);
    produce(&stream, 1, 1000..2000);
    for resume in [false, true] {
        let (running, _) = count(&place, resume, begin(ServerEnd::Never)).unwrap();
        produce(&stream, 0, if resume { 2000..2500 } else { 2500..3000 });
        wait_until("checkpoints are kept", || {
            running.checkpoints().unwrap().kept > 0
        });
        drop(running);
    }
    produce(&stream, 2, 3000..4000);
    let (running, counts) = count(&place, true, begin(ServerEnd::Now)).unwrap();
    running.join().unwrap();
    assert!(counted(&counts) == Vec::from_iter((0..4000).map(|number| (number, 1))));

    log.delete_stream("s").unwrap();
    log.create_stream("s", stream.config()).unwrap();
    let error = count(&place, true, begin(ServerEnd::Now)).err().unwrap();
    assert!(
        error.contains("stream s is not the one that the checkpoint is of"),
        "{error}"
    );
    let one = ServerSource::of_stream(&server, &ConsumerConfig::default(), "s", 1, ServerEnd::Now);
    let error = count(&place, true, one.unwrap()).err().unwrap();
    assert!(
        error.contains("there were 2 sources and there are 1 now"),
        "{error}"
    );
}
