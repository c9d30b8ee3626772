//! Transactions in a lane, as consumers of committed records see them.

use std::path::Path;

use millstream_base::{ByteSize, Offset, ProducerEpoch, ProducerId, Sequence, Timestamp};
use millstream_log::{
    Appended, Background, Durability, Log, LogConfig, LogError, StreamConfig, StreamPartition,
};
use millstream_record::{ChunkBuilder, Chunks, Compression, EndMarker, Producer, TransactionEnd};

use TransactionEnd::{Abort, Commit};

fn open(dir: &Path) -> Log {
    Log::open(LogConfig {
        background: Background::Manual,
        ..LogConfig::with_pool(dir, ByteSize(16 << 20))
    })
    .unwrap()
}

/// Groups of 64 KiB.
fn small_groups() -> StreamConfig {
    StreamConfig {
        segment: ByteSize(64 << 10),
        group_segments: 1,
        durability: Durability::Async,
        ..StreamConfig::default()
    }
}

fn chunk(producer: Option<(i64, i16, i32)>, is_transactional: bool, bytes: usize) -> Vec<u8> {
    let mut builder = ChunkBuilder::new(Compression::None);
    builder.set_transactional(is_transactional);
    let value = vec![7; bytes];
    builder.push(Timestamp(5), None, Some(&value), &[]).unwrap();
    let producer = producer.map(|(id, epoch, sequence)| Producer {
        id: ProducerId(id),
        epoch: ProducerEpoch(epoch),
        sequence: Sequence(sequence),
    });
    builder.finish(producer).unwrap().to_vec()
}

/// Appends one record of a transaction.
fn send(lane: &StreamPartition, id: i64, epoch: i16, sequence: i32) -> Result<Appended, LogError> {
    lane.append(&chunk(Some((id, epoch, sequence)), true, 100))
}

fn marker(id: i64, epoch: i16, end: TransactionEnd, coordinator_epoch: i32) -> EndMarker {
    EndMarker {
        producer_id: ProducerId(id),
        producer_epoch: ProducerEpoch(epoch),
        end,
        coordinator_epoch,
    }
}

fn end(lane: &StreamPartition, id: i64, end: TransactionEnd) -> Offset {
    let appended = lane.append_marker(&marker(id, 0, end, 0)).unwrap();
    appended.base_offset
}

/// Producer, first and last offset.
fn aborted(lane: &StreamPartition, from: u64, to: u64) -> Vec<(i64, u64, u64)> {
    let aborted = lane.aborted_transactions(Offset(from), Offset(to)).unwrap();
    aborted
        .iter()
        .map(|aborted| {
            let (first, last) = (aborted.first_offset.0, aborted.last_offset.0);
            (aborted.producer.0, first, last)
        })
        .collect()
}

#[test]
fn the_last_stable_offset_is_where_the_first_open_transaction_begins() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let stream = log.create_stream("s", StreamConfig::default()).unwrap();
    let lane = stream.partition(0).unwrap();
    let sync = || while log.step() {};
    assert_eq!(lane.last_stable_offset(), Offset(0));
    lane.append(&chunk(None, false, 10)).unwrap();
    send(&lane, 1, 0, 0).unwrap();
    send(&lane, 2, 0, 0).unwrap();
    assert_eq!(lane.last_stable_offset(), Offset(0), "nothing is durable");
    sync();
    assert_eq!(lane.last_stable_offset(), Offset(1));
    send(&lane, 1, 0, 1).unwrap();
    sync();

    assert_eq!(end(&lane, 1, Commit), Offset(4));
    assert_eq!(lane.last_stable_offset(), Offset(1), "not durable yet");
    sync();
    assert_eq!(lane.last_stable_offset(), Offset(2), "the other is open");
    assert_eq!(aborted(&lane, 0, 5), []);

    assert_eq!(end(&lane, 2, Abort), Offset(5));
    assert_eq!(lane.last_stable_offset(), Offset(2), "not durable yet");
    sync();
    assert_eq!(lane.last_stable_offset(), Offset(6));
    assert_eq!(lane.last_stable_offset(), lane.durable_offset());
    let all = [(2, 2, 5)];
    for (from, to, expected) in [(0, 6, &all[..]), (5, 6, &all), (0, 3, &all), (0, 2, &[])] {
        assert_eq!(aborted(&lane, from, to), expected, "{from} to {to}");
    }

    // A marker without a transaction ends nothing, and takes an offset.
    assert_eq!(end(&lane, 2, Abort), Offset(6));
    assert_eq!(end(&lane, 99, Abort), Offset(7));
    sync();
    assert_eq!(lane.last_stable_offset(), Offset(8));
    assert_eq!(aborted(&lane, 0, 8), all);

    let found = lane
        .fetch(
            Offset(4),
            Offset(5),
            1 << 20,
            millstream_log::AtLeast::Nothing,
        )
        .unwrap();
    let stored = Chunks::new(&found.pieces[0]).next().unwrap().unwrap();
    let expected = marker(1, 0, Commit, 0);
    assert_eq!(EndMarker::of(&stored), Some(expected));
}

#[test]
fn a_lane_refuses_chunks_that_break_a_transaction() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let stream = log.create_stream("s", StreamConfig::default()).unwrap();
    let lane = stream.partition(0).unwrap();
    let control = marker(1, 0, Commit, 0).to_chunk(Timestamp(0)).unwrap();
    let refused = lane.append(&control).unwrap_err();
    assert!(matches!(refused, LogError::ControlChunk), "{refused}");
    let refused = lane.append(&chunk(None, true, 10)).unwrap_err();
    assert!(matches!(refused, LogError::BadProducer { .. }), "{refused}");
    for negative in [(1, -1, 0), (1, 0, -1)] {
        let refused = lane.append(&chunk(Some(negative), false, 10)).unwrap_err();
        assert!(matches!(refused, LogError::BadProducer { .. }), "{refused}");
    }
    let first = send(&lane, 1, 0, 0).unwrap();
    let refused = lane.append(&chunk(Some((1, 0, 1)), false, 10)).unwrap_err();
    assert!(matches!(refused, LogError::BadProducer { .. }), "{refused}");
    assert_eq!(lane.next_offset(), Offset(1), "nothing of these is stored");
    let again = send(&lane, 1, 0, 0).unwrap();
    assert!(again.duplicate && again.base_offset == first.base_offset);
    end(&lane, 1, Commit);
    // Chunks before the marker still count as duplicates, and the next sequence continues.
    assert!(send(&lane, 1, 0, 0).unwrap().duplicate);
    assert!(
        !lane
            .append(&chunk(Some((1, 0, 1)), false, 10))
            .unwrap()
            .duplicate
    );
}

#[test]
fn a_new_producer_epoch_fences_earlier_epochs() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let stream = log.create_stream("s", StreamConfig::default()).unwrap();
    let lane = stream.partition(0).unwrap();
    let fenced =
        |result: Result<Appended, LogError>| matches!(result, Err(LogError::ProducerFenced { .. }));
    let out_of_order = |result: Result<Appended, LogError>, next: i32| matches!(result, Err(LogError::OutOfOrderSequence { expected, .. }) if expected.0 == next);
    for sequence in 0..7 {
        send(&lane, 1, 3, sequence).unwrap();
    }
    // The last five chunks are known; an older one is out of order, like one that leaves a gap.
    assert!(send(&lane, 1, 3, 2).unwrap().duplicate);
    assert!(out_of_order(send(&lane, 1, 3, 1), 7));
    assert!(out_of_order(send(&lane, 1, 3, 8), 7));
    assert!(fenced(send(&lane, 1, 2, 7)));
    assert!(fenced(lane.append_marker(&marker(1, 2, Abort, 5))));

    // The coordinator ends the transaction with a higher epoch: the producer of the old one is
    // fenced off, and the new one begins with sequence 0.
    lane.append_marker(&marker(1, 4, Abort, 5)).unwrap();
    assert!(fenced(send(&lane, 1, 3, 7)));
    assert!(fenced(send(&lane, 1, 3, 6)), "not even as a duplicate");
    assert!(out_of_order(send(&lane, 1, 4, 7), 0));
    assert!(!send(&lane, 1, 4, 0).unwrap().duplicate);
    assert!(send(&lane, 1, 4, 0).unwrap().duplicate);
    // A producer's own higher epoch does the same.
    assert!(out_of_order(send(&lane, 1, 6, 1), 0));
    assert!(!send(&lane, 1, 6, 0).unwrap().duplicate);
    assert!(fenced(send(&lane, 1, 4, 1)));

    // If only a marker is left of a producer, any sequence may come next.
    lane.append_marker(&marker(2, 6, Abort, 0)).unwrap();
    assert!(fenced(send(&lane, 2, 5, 0)));
    assert!(!send(&lane, 2, 6, 100).unwrap().duplicate);
    assert!(out_of_order(send(&lane, 2, 6, 102), 101));
    lane.append_marker(&marker(2, 6, Abort, 0)).unwrap();
    assert!(out_of_order(send(&lane, 2, 6, 102), 101));

    let older = lane.append_marker(&marker(1, 6, Commit, 4));
    let current = 5;
    assert!(
        matches!(older, Err(LogError::CoordinatorFenced { current: found, .. }) if found == current),
        "{older:?}"
    );
    lane.append_marker(&marker(1, 6, Commit, 6)).unwrap();
    let producers = lane.producers();
    assert_eq!(producers.len(), 2);
    assert_eq!(producers[0].epoch, ProducerEpoch(6));
    assert_eq!(producers[0].last_sequence, Some(Sequence(0)));
    assert_eq!(producers[0].coordinator_epoch, Some(6));
    assert_eq!(producers[0].transaction, None);
}

#[test]
fn open_transactions_are_listed() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let stream = log.create_stream("s", StreamConfig::default()).unwrap();
    let lane = stream.partition(0).unwrap();
    lane.append(&chunk(Some((9, 0, 0)), false, 10)).unwrap();
    send(&lane, 4, 2, 0).unwrap();
    send(&lane, 4, 2, 1).unwrap();
    let check = |lane: &StreamPartition| {
        let producers = lane.producers();
        let transactions: Vec<_> = producers
            .iter()
            .map(|info| {
                (
                    info.producer.0,
                    info.transaction.map(|open| open.first_offset),
                )
            })
            .collect();
        assert_eq!(transactions, [(4, Some(Offset(1))), (9, None)]);
        let info = producers[0];
        assert_eq!(
            (info.epoch, info.last_sequence),
            (ProducerEpoch(2), Some(Sequence(1)))
        );
        assert_eq!(
            (info.last_timestamp, info.coordinator_epoch),
            (Timestamp(5), None)
        );
        assert_eq!(info.transaction.unwrap().started, Timestamp(5));
    };
    check(&lane);
    drop((lane, stream));
    log.close().unwrap();
    let log = open(dir.path());
    let lane = log.stream("s").unwrap().partition(0).unwrap();
    check(&lane);
    assert_eq!(lane.last_stable_offset(), Offset(1));
}

/// Transactions of several producers over many groups: those that were aborted.
fn fill(log: &Log, lane: &StreamPartition) -> Vec<(i64, u64, u64)> {
    let mut aborted = Vec::new();
    let mut open: [Option<u64>; 5] = [None; 5];
    let mut sequences = [0; 5];
    for n in 0..3_000usize {
        let producer = n * 7 % 5;
        let first = &mut open[producer];
        // The last one is open for a long time.
        let ends = first.is_some() && n * 11 % 3 == 0 && (producer != 4 || n % 500 == 2);
        let id = producer as i64;
        if !ends {
            let sent = send(lane, id, 0, sequences[producer]).unwrap();
            first.get_or_insert(sent.base_offset.0);
            sequences[producer] += 1;
            continue;
        }
        let how = if n % 2 == 0 { Abort } else { Commit };
        let last = end(lane, id, how).0;
        let first = first.take().unwrap();
        if how == Abort {
            aborted.push((id, first, last));
        }
        if n % 100 == 0 {
            while log.step() {}
        }
    }
    for (id, open) in (0..).zip(open) {
        if let Some(first) = open {
            aborted.push((id, first, end(lane, id, Abort).0));
        }
    }
    while log.step() {}
    assert_eq!(lane.last_stable_offset(), lane.next_offset());
    aborted
}

fn check(lane: &StreamPartition, all: &[(i64, u64, u64)], earliest: u64, at: &str) {
    let durable = lane.durable_offset().0;
    assert_eq!(lane.last_stable_offset().0, durable, "{at}");
    for from in (earliest..=durable).step_by(97) {
        for to in [from + 1, from + 50, from + 700, durable] {
            let in_range = |aborted: &&(i64, u64, u64)| aborted.2 >= from && aborted.1 < to;
            let expected: Vec<_> = all.iter().filter(in_range).copied().collect();
            assert_eq!(aborted(lane, from, to), expected, "{at}: {from} to {to}");
        }
    }
}

fn remove_indexes(dir: &Path, every: usize) {
    let streams = std::fs::read_dir(dir.join("streams")).unwrap();
    let files = streams.flat_map(|stream| std::fs::read_dir(stream.unwrap().path()).unwrap());
    let mut indexes: Vec<_> = files
        .map(|file| file.unwrap().path())
        .filter(|path| path.extension().is_some_and(|kind| kind == "index"))
        .collect();
    indexes.sort_unstable();
    for (n, path) in indexes.iter().enumerate() {
        if n % every == 0 {
            std::fs::remove_file(path).unwrap();
        } else if n % every == 1 {
            // Its end is missing.
            let bytes = std::fs::read(path).unwrap();
            std::fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
        }
    }
}

#[test]
fn aborted_transactions_are_known_in_memory_on_disk_and_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let stream = log.create_stream("s", small_groups()).unwrap();
    let lane = stream.partition(0).unwrap();
    let all = fill(&log, &lane);
    assert!(stream.info().partitions[0].groups > 5, "several groups");
    assert!(all.len() > 200);
    check(&lane, &all, 0, "in memory");
    log.persist();
    log.evict();
    check(&lane, &all, 0, "on disk");
    drop((lane, stream));
    log.close().unwrap();

    let log = open(dir.path());
    let lane = log.stream("s").unwrap().partition(0).unwrap();
    check(&lane, &all, 0, "after a restart");
    drop(lane);
    log.close().unwrap();

    // Torn and lost indexes are made anew at the start …
    remove_indexes(dir.path(), 4);
    let log = open(dir.path());
    let lane = log.stream("s").unwrap().partition(0).unwrap();
    // … or, if they are lost while the log is open, at the first read that needs them.
    remove_indexes(dir.path(), 3);
    check(&lane, &all, 0, "without indexes");
}

#[test]
fn retention_removes_the_state_of_the_groups_that_it_removes() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let stream = log.create_stream("s", small_groups()).unwrap();
    let lane = stream.partition(0).unwrap();
    let all = fill(&log, &lane);
    send(&lane, 77, 0, 0).unwrap();
    while log.step() {}
    log.persist();
    let open_since = lane.last_stable_offset();
    let keep = |log: &Log, bytes| {
        log.set_retention("s", None, Some(ByteSize(bytes))).unwrap();
        assert!(log.apply_retention().unwrap() > 0);
    };
    keep(&log, 150_000);
    let earliest = stream.info().partitions[0].earliest;
    assert!(earliest > Offset(0));
    let left: Vec<_> = all
        .iter()
        .filter(|aborted| aborted.2 >= earliest.0)
        .collect();
    let found = aborted(&lane, earliest.0, open_since.0);
    assert_eq!(found.iter().collect::<Vec<_>>(), left);

    // All records of the open transaction are removed: later records become stable only when it
    // has ended.
    for n in 0..2_000 {
        lane.append(&chunk(Some((78, 0, n)), false, 100)).unwrap();
    }
    while log.step() {}
    log.persist();
    keep(&log, 0);
    let earliest = stream.info().partitions[0].earliest;
    assert!(earliest > open_since);
    assert_eq!(lane.last_stable_offset(), earliest);
    drop((lane, stream));
    log.close().unwrap();
    let log = open(dir.path());
    let lane = log.stream("s").unwrap().partition(0).unwrap();
    assert_eq!(lane.last_stable_offset(), earliest);
    end(&lane, 77, Commit);
    while log.step() {}
    assert_eq!(lane.last_stable_offset(), lane.next_offset());
}

#[test]
fn a_group_with_too_many_aborted_transactions_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let config = StreamConfig {
        durability: Durability::Async,
        ..StreamConfig::default()
    };
    let stream = log.create_stream("s", config).unwrap();
    let lane = stream.partition(0).unwrap();
    let count = 40_000;
    for sequence in 0..count {
        send(&lane, 1, 0, sequence).unwrap();
        end(&lane, 1, Abort);
        if sequence % 1_000 == 0 {
            while log.step() {}
        }
    }
    while log.step() {}
    assert_eq!(stream.info().partitions[0].groups, 3);
    let durable = lane.durable_offset().0;
    assert_eq!(aborted(&lane, 0, durable).len(), count as usize);
    assert_eq!(
        aborted(&lane, 40_001, 40_004),
        [(1, 40_000, 40_001), (1, 40_002, 40_003)]
    );
}

#[test]
fn open_transactions_are_bounded_and_never_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let config = StreamConfig {
        durability: Durability::Memory,
        ..StreamConfig::default()
    };
    let stream = log.create_stream("s", config).unwrap();
    let lane = stream.partition(0).unwrap();
    let mut id = 0;
    let most = loop {
        match send(&lane, id, 0, 0) {
            Ok(_) => id += 1,
            Err(LogError::TooManyTransactions { most }) => break most,
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(id as usize, most);
    // Others come and go.
    for id in 0..30_000 {
        let other = chunk(Some((1_000_000 + id, 0, 0)), false, 1);
        lane.append(&other).unwrap();
    }
    assert_eq!(lane.last_stable_offset(), Offset(0));
    assert!(lane.producers().len() <= 10_000);
    for id in 0..id {
        end(&lane, id, Commit);
    }
    assert_eq!(lane.last_stable_offset(), lane.next_offset());
    send(&lane, id, 0, 0).unwrap();
}
