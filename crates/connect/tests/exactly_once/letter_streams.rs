//! Streams of dead letters that are deleted, or that take small records only: the same in a log and at a server.

use std::sync::Arc;
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use millstream_base::{ByteSize, Offset, ProducerId, Timestamp};
use millstream_connect::{StoredLetter, StreamProducer};
use millstream_flow::{DeadLetter, DeadLetters, Origin, SinkStart};
use millstream_log::{Log, ReadStart, StreamConfig};

use crate::letters::{LETTERS, ONE_OF, RECORDS, found, letters, produce, serve, start, stored};
use crate::world::{Into, wait_until};

const STREAM: &str = "letters.dead_letters";

/// More than the operator's input as text, which is in the letter, too.
const SMALL_CHUNK_BYTES: u64 = 100 << 10;

/// Counts the durable letters of the present stream, committed or not.
fn written(log: &Log) -> u64 {
    let Ok(stream) = log.stream(STREAM) else {
        return 0;
    };
    let mut reader = stream.reader(ReadStart::Earliest);
    let mut records = 0;
    while let Ok(Some(read)) = reader.read(1 << 20) {
        let chunks = read.chunks().map(|chunk| chunk.unwrap());
        let letters = chunks.filter(|chunk| !chunk.header().attributes.is_control());
        records += letters
            .map(|chunk| u64::from(chunk.header().record_count))
            .sum::<u64>();
    }
    records
}

#[test]
fn dead_letters_go_to_a_new_stream_when_their_stream_is_deleted() {
    for into in [Into::Log, Into::Server] {
        let dir = tempfile::tempdir().unwrap();
        let (log, server) = serve(dir.path());
        let stream = log
            .create_stream("numbers", StreamConfig::default())
            .unwrap();
        let checkpoints = dir.path().join("checkpoints");
        let letters = letters(into, &log, &server);
        let running = start(&stream, letters, &checkpoints, false);
        for round in 1..4 {
            produce(&stream);
            wait_until("all letters are written", || {
                assert!(!running.is_finished(), "{into:?}: the flow goes on");
                running.metrics()[0].dead_letters == round * LETTERS && written(&log) == LETTERS
            });
            if round < 3 {
                log.delete_stream(STREAM).unwrap();
            }
        }
        running.stop();
        running.join().unwrap();
        // A server may report a commit before readers see it.
        wait_until("all letters are there", || !found(&log).is_empty());
        let expected: Vec<u64> = (0..LETTERS)
            .map(|number| 2 * RECORDS + number * ONE_OF)
            .collect();
        assert_eq!(found(&log), expected, "{into:?}");
    }
}

#[test]
fn a_flow_whose_dead_letters_are_deleted_ends_and_resumes() {
    for into in [Into::Log, Into::Server] {
        let dir = tempfile::tempdir().unwrap();
        let (log, server) = serve(dir.path());
        let stream = log
            .create_stream("numbers", StreamConfig::default())
            .unwrap();
        let checkpoints = dir.path().join("checkpoints");
        for round in 1..3 {
            let letters = letters(into, &log, &server);
            let running = start(&stream, letters, &checkpoints, false);
            produce(&stream);
            wait_until("all letters are written", || {
                running.metrics()[0].dead_letters == LETTERS && written(&log) == LETTERS
            });
            // The last checkpoint finds no letters.
            log.delete_stream(STREAM).unwrap();
            running.stop();
            let ended = running.join();
            assert!(ended.is_ok(), "{into:?}, round {round}: {ended:?}");
        }
        assert!(found(&log).is_empty(), "{into:?}");
    }
}

#[test]
fn a_dead_letter_omits_a_record_that_is_too_large_for_the_stream() {
    for into in [Into::Log, Into::Server] {
        for bytes_max in [Some(SMALL_CHUNK_BYTES), None] {
            let dir = tempfile::tempdir().unwrap();
            let (log, server) = serve(dir.path());
            let config = StreamConfig {
                chunk_bytes_max: bytes_max.map(ByteSize),
                ..StreamConfig::default()
            };
            log.create_stream(STREAM, config).unwrap();
            let stream = log
                .create_stream("numbers", StreamConfig::default())
                .unwrap();
            let mut producer = StreamProducer::new(&stream, ProducerId::NONE).unwrap();
            // It fills a chunk, as large as the stream of letters takes them.
            let large = log.stream(STREAM).unwrap().chunk_bytes_max() - 100;
            assert!(large < 7 << 20, "larger ones are always left out");
            for bytes in [1, 10, large, 100] {
                let value = vec![b'x'; bytes];
                producer
                    .push(Timestamp(0), None, Some(&value), &[])
                    .unwrap();
            }
            producer.flush().unwrap();
            let letters = letters(into, &log, &server);
            let running = start(&stream, letters, &dir.path().join("checkpoints"), true);
            let ended = running.join();
            assert!(ended.is_ok(), "{into:?}, {bytes_max:?}: {ended:?}");
            wait_until("all letters are there", || !stored(&log).is_empty());
            let places = |letter: &StoredLetter| {
                let (_, _, offset) = letter.place.clone().unwrap();
                (offset, letter.original.is_some())
            };
            let mut found: Vec<_> = stored(&log).iter().map(places).collect();
            found.sort_unstable();
            let expected = [(0, true), (1, true), (2, false), (3, true)];
            let expected = expected.map(|(offset, is_there)| (Offset(offset), is_there));
            assert_eq!(found, expected, "{into:?}, {bytes_max:?}");
        }
    }
}

fn flow_start(takes_checkpoints: bool) -> SinkStart<'static> {
    SinkStart {
        flow: "letters",
        sink: "dead letters",
        rank: 0,
        ranks: 1,
        takes_checkpoints,
        prepared: None,
    }
}

/// A letter of the record at this offset, which is larger the later it comes.
fn letter(number: usize) -> DeadLetter {
    DeadLetter {
        operator: "numbers/1.each".into(),
        item: "x".repeat(number),
        error: "no".to_owned(),
        origin: Some(Arc::new(Origin {
            stream: "numbers".to_owned(),
            partition: 0,
            offset: Offset(number as u64),
            timestamp: Timestamp(0),
            key: None,
            value: Some(vec![b'y'; 10 * number]),
            headers: Vec::new(),
        })),
    }
}

#[test]
fn letters_of_one_batch_share_chunks_up_to_the_streams_chunk_size() {
    for into in [Into::Log, Into::Server] {
        for takes_checkpoints in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let (log, server) = serve(dir.path());
            let config = StreamConfig {
                chunk_bytes_max: Some(ByteSize(700)),
                ..StreamConfig::default()
            };
            log.create_stream(STREAM, config).unwrap();
            let keeper = letters(into, &log, &server);
            keeper.recover(&flow_start(takes_checkpoints)).unwrap();
            let batch: Vec<_> = (0..100).map(letter).collect();
            let put = keeper.put(&batch);
            assert!(put.is_ok(), "{into:?}, {takes_checkpoints}: {put:?}");
            keeper.prepare(1).unwrap();
            let waker = Waker::noop();
            wait_until("the letters count", || keeper.commit(1, waker).unwrap());
            wait_until("they are there", || stored(&log).len() == batch.len());
            let held = stored(&log);
            let held = held.iter().filter(|letter| letter.original.is_some());
            let held = held.count();
            assert!((30..60).contains(&held), "{into:?}: {held} hold the record");
        }
    }
}

#[test]
fn workers_store_dead_letters_concurrently() {
    for into in [Into::Log, Into::Server] {
        for takes_checkpoints in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let (log, server) = serve(dir.path());
            let keeper = letters(into, &log, &server);
            keeper.recover(&flow_start(takes_checkpoints)).unwrap();
            // Less than the minute after which one that waits in vain gives up.
            let started_at = Instant::now();
            thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        for number in 0..25 {
                            keeper.put(&[letter(number)]).unwrap();
                        }
                    });
                }
            });
            assert!(started_at.elapsed() < Duration::from_secs(50));
            keeper.prepare(1).unwrap();
            let waker = Waker::noop();
            wait_until("the letters count", || keeper.commit(1, waker).unwrap());
            wait_until("they are there", || stored(&log).len() == 100);
        }
    }
}

#[test]
fn a_flow_name_that_cannot_begin_a_stream_name_is_refused_at_the_start() {
    for into in [Into::Log, Into::Server] {
        let dir = tempfile::tempdir().unwrap();
        let (log, server) = serve(dir.path());
        let keeper = letters(into, &log, &server);
        let start = SinkStart {
            flow: "a/b",
            ..flow_start(false)
        };
        let refused = keeper.recover(&start).unwrap_err().to_string();
        let told = "a flow cannot be called \"a/b\"";
        assert!(refused.contains(told), "{into:?}: {refused}");
    }
}
