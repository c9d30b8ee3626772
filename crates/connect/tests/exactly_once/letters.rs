//! Dead letters of a flow that is killed: each is there once.

use std::path::Path;
use std::sync::Arc;
use std::task::Waker;
use std::thread;
use std::time::Duration;

use millstream_base::{ByteSize, ProducerId, SystemRandom, TcpNetwork, Timestamp};
use millstream_broker::{BrokerConfig, Server};
use millstream_client::ClientConfig;
use millstream_connect::{
    CheckpointDir, DeadLetterStream, StoredLetter, StreamProducer, StreamSource,
};
use millstream_exchange::Ranks;
use millstream_flow::sources::Generator;
use millstream_flow::windows::{Count, Windows};
use millstream_flow::{
    Checkpointing, DeadLetters, Emit, Flow, FlowError, FlowSettings, Output, Parts, Resume,
    Running, Source, SourceStatus, Watermarks, Windowed,
};
use millstream_log::{Log, LogConfig, LogError, Stream, StreamConfig};

use crate::world::{Into, wait_until};

pub const RECORDS: u64 = 5_000;

/// One record in this many becomes a dead letter.
pub const ONE_OF: u64 = 100;

pub const LETTERS: u64 = RECORDS / ONE_OF;

/// Opens a log, and serves it.
pub fn serve(dir: &Path) -> (Log, Server) {
    let config = LogConfig::with_pool(dir.join("log"), ByteSize(16 << 20));
    let log = Log::open(config).unwrap();
    let (clock, random) = (Arc::clone(log.clock()), Arc::new(SystemRandom));
    let config = BrokerConfig::new(([127, 0, 0, 1], 0).into());
    let server = Server::start(&TcpNetwork, config, log.clone(), clock, random).unwrap();
    (log, server)
}

/// Keeps the letters of the flow `letters` in the log, or at its server.
pub fn letters(into: Into, log: &Log, server: &Server) -> DeadLetterStream {
    match into {
        Into::Log => DeadLetterStream::new(log, "letters"),
        Into::Server => {
            let server = ClientConfig::new(server.local_address().to_string());
            DeadLetterStream::of_server(&server, "letters").unwrap()
        }
    }
}

pub fn produce(stream: &Stream) {
    let mut producer = StreamProducer::new(stream, ProducerId::NONE).unwrap();
    for number in 0..RECORDS {
        let value = number.to_string();
        producer
            .push(Timestamp(0), None, Some(value.as_bytes()), &[])
            .unwrap();
    }
    producer.flush().unwrap();
}

/// A flow over all numbers; one that is not bounded goes on for ever.
pub fn start(
    stream: &Stream,
    letters: DeadLetterStream,
    checkpoints: &Path,
    is_bounded: bool,
) -> Running {
    let settings = FlowSettings {
        dead_letters: Some(Arc::new(letters) as Arc<dyn DeadLetters>),
        checkpoints: Some(Checkpointing {
            store: Arc::new(CheckpointDir::open(checkpoints).unwrap()),
            // The first one and the last one are the only ones.
            interval: Some(Duration::from_secs(3600)),
            resume: Resume::IfAny,
        }),
        ..FlowSettings::default()
    };
    let source = match is_bounded {
        true => StreamSource::bounded(stream),
        false => StreamSource::new(stream),
    };
    let flow = Flow::with_settings("letters", settings);
    let sum = flow.partial::<u64>("sum");
    flow.source("numbers", source)
        .each(|record, emit: &mut Emit<u64>| {
            let number: u64 = str::from_utf8(record.value.unwrap_or_default())?.parse()?;
            if number.is_multiple_of(ONE_OF) {
                return Err("round".into());
            }
            emit(&number);
            Ok(())
        })
        .fold_local(&sum, |sum, number| *sum += number);
    flow.run().unwrap()
}

/// Returns the numbers of the letters that readers of committed records see.
pub fn found(log: &Log) -> Vec<u64> {
    let numbers = stored(log).into_iter().map(|letter| {
        let original = letter.original.unwrap();
        original.offset.0
    });
    let mut numbers: Vec<u64> = numbers.collect();
    numbers.sort_unstable();
    numbers
}

/// Returns the letters that readers of committed records see.
pub fn stored(log: &Log) -> Vec<StoredLetter> {
    let stream = match log.stream("letters.dead_letters") {
        Ok(stream) => stream,
        Err(LogError::UnknownStream { .. }) => return Vec::new(),
        Err(error) => panic!("{error}"),
    };
    let mut source = StreamSource::bounded(&stream);
    let mut output = Output::default();
    while source.poll(&mut output, 1, Waker::noop()).unwrap() == SourceStatus::Ready {}
    let mut letters = Vec::new();
    for chunks in output.items() {
        chunks.for_each_part(|record| letters.push(StoredLetter::read(record)));
    }
    letters
}

/// A rank's part of a flow over numbers of its own.
fn start_rank(
    ranks: &Ranks,
    letters: Arc<DeadLetterStream>,
    checkpoints: &Path,
    resume: Resume,
    limit: u64,
) -> Result<Running, FlowError> {
    let settings = FlowSettings {
        dead_letters: Some(letters),
        ranks: ranks.clone(),
        checkpoints: Some(Checkpointing {
            store: Arc::new(CheckpointDir::open(checkpoints).unwrap()),
            interval: Some(Duration::from_millis(20)),
            resume,
        }),
        ..FlowSettings::default()
    };
    let rank = ranks.rank();
    let flow = Flow::with_settings("letters", settings);
    let sum = flow.partial::<u64>("sum");
    flow.source("numbers", Generator::new(|number| number).limit(limit))
        .map(move |number| {
            assert!(!number.is_multiple_of(ONE_OF), "rank {rank}");
            *number
        })
        .fold_local(&sum, |sum, number| *sum += number);
    flow.run()
}

#[test]
fn dead_letters_of_each_rank_are_written_once_and_ranks_cannot_share_a_keeper() {
    let dir = tempfile::tempdir().unwrap();
    let config = LogConfig::with_pool(dir.path().join("log"), ByteSize(64 << 20));
    let log = Log::open(config).unwrap();
    let checkpoints = dir.path().join("checkpoints");
    let run = |is_killed: bool| {
        let rank = |ranks: Ranks| {
            let letters = Arc::new(DeadLetterStream::new(&log, "letters"));
            let started = start_rank(&ranks, letters, &checkpoints, Resume::IfAny, RECORDS);
            let running = match started {
                Ok(running) => running,
                // Another rank was killed by now.
                Err(error) => return assert!(is_killed, "{error}"),
            };
            match is_killed {
                true => wait_until("some letters are written", || {
                    running.is_finished() || running.metrics()[0].dead_letters > 5
                }),
                false => {
                    running.join().unwrap();
                    ranks.leave().unwrap();
                }
            }
        };
        let rank = &rank;
        thread::scope(|scope| {
            for ranks in Ranks::threads(2) {
                scope.spawn(move || rank(ranks));
            }
        });
    };
    run(true);
    run(false);
    let numbers = stored(&log).into_iter().map(|letter| {
        assert_eq!((letter.place, letter.original), (None, None));
        (letter.error, letter.item.parse::<u64>().unwrap())
    });
    let mut found: Vec<_> = numbers.collect();
    found.sort_unstable();
    let of_rank =
        |rank: u32| (0..LETTERS).map(move |number| (format!("rank {rank}"), number * ONE_OF));
    assert_eq!(found, of_rank(0).chain(of_rank(1)).collect::<Vec<_>>());

    // The ranks could not distinguish their transactions.
    let others = dir.path().join("others");
    let letters = Arc::new(DeadLetterStream::new(&log, "same"));
    let start = |ranks: Ranks| {
        let started = start_rank(&ranks, Arc::clone(&letters), &others, Resume::Never, 10);
        started.err().map(|error| error.to_string())
    };
    let start = &start;
    let errors: Vec<String> = thread::scope(|scope| {
        let threads: Vec<_> = Ranks::threads(2)
            .into_iter()
            .map(|ranks| scope.spawn(move || start(ranks)))
            .collect();
        let errors = threads.into_iter().map(|it| it.join().unwrap());
        errors.flatten().collect()
    });
    let told = "make one for each rank";
    assert!(
        errors.iter().any(|error| error.contains(told)),
        "{errors:?}"
    );
}

#[test]
fn dead_letters_of_a_killed_flow_are_written_once() {
    for into in [Into::Log, Into::Server] {
        let dir = tempfile::tempdir().unwrap();
        let (log, server) = serve(dir.path());
        let stream = log
            .create_stream("numbers", StreamConfig::default())
            .unwrap();
        produce(&stream);
        let checkpoints = dir.path().join("checkpoints");
        let letters = || letters(into, &log, &server);
        // Killed before the stream is there, and when it was.
        for _ in 0..2 {
            let running = start(&stream, letters(), &checkpoints, false);
            wait_until("all letters are written", || {
                running.metrics()[0].dead_letters == LETTERS
            });
            drop(running);
            assert!(found(&log).is_empty(), "nothing is committed");
        }
        start(&stream, letters(), &checkpoints, true)
            .join()
            .unwrap();
        // A server may report a commit before readers see it.
        wait_until("all letters are there", || {
            found(&log).len() as u64 >= LETTERS
        });
        let expected: Vec<u64> = (0..LETTERS).map(|number| number * ONE_OF).collect();
        assert_eq!(found(&log), expected, "{into:?}");
    }
}

/// Starts a flow that counts all numbers in windows, each number being its own time; one in [`ONE_OF`] is late.
fn start_counting(
    stream: &Stream,
    letters: DeadLetterStream,
    checkpoints: &Path,
    is_bounded: bool,
) -> (Running, Windowed<u32, Count>) {
    let settings = FlowSettings {
        dead_letters: Some(Arc::new(letters) as Arc<dyn DeadLetters>),
        checkpoints: Some(Checkpointing {
            store: Arc::new(CheckpointDir::open(checkpoints).unwrap()),
            interval: Some(Duration::from_millis(5)),
            resume: Resume::IfAny,
        }),
        ..FlowSettings::default()
    };
    let source = match is_bounded {
        true => StreamSource::bounded(stream),
        false => StreamSource::new(stream),
    };
    let time = |number: &u64| match number.is_multiple_of(ONE_OF) {
        true => Timestamp(0),
        false => Timestamp(*number as i64),
    };
    let flow = Flow::with_settings("letters", settings);
    let counts = flow.windowed("counts", Windows::tumbling(10), Count);
    let sum = flow.partial::<u64>("sum");
    flow.source("numbers", source)
        .each(|record, emit: &mut Emit<u64>| {
            emit(&str::from_utf8(record.value.unwrap_or_default())?.parse()?);
            Ok(())
        })
        .watermarks(time, Watermarks::bounded(Duration::ZERO))
        .key_by(|_| 0)
        .aggregate("count", &counts, time)
        .fold_local(&sum, |sum, window| *sum += window.value);
    (flow.run().unwrap(), counts)
}

#[test]
fn late_records_of_a_killed_flow_become_dead_letters_once() {
    // The first is in time: nothing was before it.
    const LATE: u64 = LETTERS - 1;
    let dir = tempfile::tempdir().unwrap();
    let config = LogConfig::with_pool(dir.path().join("log"), ByteSize(64 << 20));
    let log = Log::open(config).unwrap();
    let stream = log
        .create_stream("numbers", StreamConfig::default())
        .unwrap();
    produce(&stream);
    let checkpoints = dir.path().join("checkpoints");
    let letters = || DeadLetterStream::new(&log, "letters");
    for letters_seen in [1, LATE] {
        let (running, counts) = start_counting(&stream, letters(), &checkpoints, false);
        wait_until("records are late", || counts.late_events() >= letters_seen);
        drop(running);
    }
    let (running, counts) = start_counting(&stream, letters(), &checkpoints, true);
    running.join().unwrap();
    assert_eq!(counts.late_events(), LATE);
    assert_eq!(counts.totals().closed_events, RECORDS - LATE);
    let expected: Vec<u64> = (1..LETTERS).map(|number| number * ONE_OF).collect();
    assert_eq!(found(&log), expected);
}
