//! Makes the test data, with the program of format 2: a later one cannot.

use std::path::Path;

use millstream_base::{
    ByteSize, Offset, ProducerEpoch, ProducerId, Sequence, StreamletIndex, Timestamp,
};
use millstream_log::{
    Durability, FORMAT, Log, LogConfig, OBJECT_RECORD_BYTES, Stream, StreamConfig, StreamPartition,
};
use millstream_record::{ChunkBuilder, Compression, EndMarker, Header, Producer, TransactionEnd};

use crate::description::describe;
use crate::{assert_same, config, copy, copy_of, data};

/// The name of the shared group that has committed positions.
pub const SHARED_GROUP: &str = "readers";

/// A producer whose transaction a marker of a later epoch has ended.
pub const FENCED: ProducerId = ProducerId(14);

const S0: StreamletIndex = StreamletIndex(0);

/// Segments of 64 KiB, and groups of this many.
fn settings(durability: Durability, streamlets: u32, lanes: u32, segments: u32) -> StreamConfig {
    StreamConfig {
        streamlets,
        lanes,
        durability,
        segment: ByteSize(64 << 10),
        group_segments: segments,
        ..StreamConfig::default()
    }
}

/// A producer's id, epoch and sequence.
type From = Option<(i64, i16, i32)>;

/// Three records of `bytes` each; the values repeat themselves, so that git stores them in little room.
fn chunk(n: u64, bytes: usize, from: From, is_transactional: bool) -> Vec<u8> {
    let codecs = [Compression::None, Compression::Lz4, Compression::Zstd];
    let mut builder = ChunkBuilder::new(match n % 8 {
        6 => codecs[1],
        7 => codecs[2],
        _ => codecs[0],
    });
    builder.set_transactional(is_transactional);
    for record in 0..3 {
        let value = format!("{n}.{record} ").into_bytes();
        let value: Vec<u8> = value.into_iter().cycle().take(bytes).collect();
        let key = format!("key {}", n % 5);
        let header = |name, value| Header { name, value };
        let headers = [
            header(b"k.city".as_slice(), Some(b"Delft".as_slice())),
            header(b"trace".as_slice(), None),
        ];
        let headers = &headers[..record as usize];
        let key = (record != 0).then_some(key.as_bytes());
        let value = (n % 7 != 3 || record != 2).then_some(&value[..]);
        let time = Timestamp(1_700_000_000_000 + 1000 * n as i64 + record);
        builder.push(time, key, value, headers).unwrap();
    }
    let producer = from.map(|(id, epoch, sequence)| Producer {
        id: ProducerId(id),
        epoch: ProducerEpoch(epoch),
        sequence: Sequence(sequence),
    });
    builder.finish(producer).unwrap().to_vec()
}

fn sync(log: &Log) {
    while log.step() {}
}

/// Appends chunks without a producer, numbered.
fn append(log: &Log, stream: &Stream, partition: u32, numbers: std::ops::Range<u64>, bytes: usize) {
    let partition = stream.partition(partition).unwrap();
    for n in numbers {
        partition.append(&chunk(n, bytes, None, false)).unwrap();
        if n % 3 == 0 {
            sync(log);
        }
    }
    sync(log);
}

fn end(partition: &StreamPartition, id: i64, epoch: i16, end: TransactionEnd) {
    let marker = EndMarker {
        producer_id: ProducerId(id),
        producer_epoch: ProducerEpoch(epoch),
        end,
        coordinator_epoch: 3,
    };
    partition.append_marker(&marker).unwrap();
}

/// Makes all streams and objects, over several groups.
fn first_run(log: &Log) {
    let orders = settings(Durability::Sync, 2, 2, 2);
    let orders = log.create_stream("orders", orders).unwrap();
    append(log, &orders, 0, 0..50, 2_000);
    append(log, &orders, 2, 0..15, 2_000);
    append(log, &orders, 1, 0..2, 100);
    for sequence in 0..8 {
        let chunk = chunk(sequence, 50, Some((7, 0, 3 * sequence as i32)), false);
        orders.partition(0).unwrap().append(&chunk).unwrap();
    }

    let written = settings(Durability::Written, 1, 1, 1);
    append(
        log,
        &log.create_stream("written", written).unwrap(),
        0,
        0..30,
        2_000,
    );
    let early = settings(Durability::Async, 1, 2, 1);
    append(
        log,
        &log.create_stream("async", early).unwrap(),
        1,
        0..12,
        2_000,
    );
    let memory = settings(Durability::Memory, 1, 1, 1);
    append(
        log,
        &log.create_stream("memory", memory).unwrap(),
        0,
        0..3,
        100,
    );

    let grown = settings(Durability::Sync, 1, 1, 1);
    let grown = log.create_stream("grown", grown).unwrap();
    append(log, &grown, 0, 0..3, 100);
    log.grow_stream("grown", 2, 2).unwrap();
    append(log, &grown, 3, 0..3, 100);
    let gone = settings(Durability::Sync, 1, 1, 1);
    append(
        log,
        &log.create_stream("gone", gone).unwrap(),
        0,
        0..30,
        2_000,
    );
    log.delete_stream("gone").unwrap();

    // In the first group, in a later one, and all records.
    let deleted = settings(Durability::Sync, 1, 3, 1);
    let deleted = log.create_stream("deleted", deleted).unwrap();
    let before = [Offset(7), Offset(40), Offset(90)];
    for partition in 0..3 {
        append(log, &deleted, partition, 0..30, 2_000);
    }
    let deletions = [0, 1, 2].map(|lane| (deleted.partition(lane).unwrap(), before[lane as usize]));
    for begins_at in log.delete_before(&deletions) {
        begins_at.unwrap();
    }

    let transactions = settings(Durability::Sync, 1, 1, 1);
    let transactions = log.create_stream("transactions", transactions).unwrap();
    let partition = transactions.partition(0).unwrap();
    for n in 0..20 {
        for id in [11, 12, 13, FENCED.0] {
            let chunk = chunk(n, 500, Some((id, 0, 3 * n as i32)), true);
            partition.append(&chunk).unwrap();
        }
        if n % 3 == 2 {
            end(&partition, 12, 0, TransactionEnd::Abort);
        }
        if n % 5 == 4 {
            end(&partition, 13, 0, TransactionEnd::Commit);
        }
        sync(log);
    }
    end(&partition, FENCED.0, 1, TransactionEnd::Abort);
    append(log, &transactions, 0, 0..3, 100);

    let shared = settings(Durability::Sync, 1, 2, 1);
    let shared = log.create_stream("shared", shared).unwrap();
    for partition in [0, 1] {
        append(log, &shared, partition, 0..30, 2_000);
    }
    commit_positions(log, &[(0, usize::MAX), (1, 2), (3, 1)]);

    let content: Vec<u8> = (0..OBJECT_RECORD_BYTES + 77).map(|n| n as u8).collect();
    log.put_object("models/a", &mut &content[..]).unwrap();
    log.put_object("empty", &mut &b""[..]).unwrap();
    log.put_object("gone", &mut &b"gone"[..]).unwrap();
    log.delete_object("gone").unwrap();
}

/// Commits positions in groups of the stream "shared": those behind this many reads.
fn commit_positions(log: &Log, positions: &[(usize, usize)]) {
    let shared_group = log.shared_group("shared", SHARED_GROUP).unwrap();
    let handed = shared_group.next_groups(S0, "one", 100).unwrap();
    for (group, reads) in positions {
        let mut cursor = handed[*group];
        for _ in 0..*reads {
            match log.read(&cursor, 10_000).unwrap() {
                Some(chunks) if chunks.next.group == cursor.group => cursor = chunks.next,
                _ => break,
            }
        }
        shared_group.commit("one", &cursor).unwrap();
    }
    shared_group.release("one");
}

/// Goes on with the streams. Files have a part of this, and the journal the rest.
fn second_run(log: &Log) {
    let stream = |name| log.stream(name).unwrap();
    append(log, &stream("orders"), 0, 50..60, 2_000);
    append(log, &stream("async"), 1, 12..15, 2_000);
    log.persist();

    append(log, &stream("orders"), 0, 60..85, 2_000);
    append(log, &stream("orders"), 1, 2..4, 100);
    append(log, &stream("orders"), 2, 15..40, 2_000);
    append(log, &stream("written"), 0, 30..45, 2_000);
    append(log, &stream("async"), 0, 0..3, 100);
    append(log, &stream("deleted"), 2, 30..32, 100);
    let partition = stream("transactions").partition(0).unwrap();
    let chunk = chunk(20, 500, Some((12, 0, 60)), true);
    partition.append(&chunk).unwrap();
    end(&partition, 12, 0, TransactionEnd::Abort);
    let new = settings(Durability::Sync, 1, 2, 1);
    append(log, &log.create_stream("new", new).unwrap(), 1, 0..2, 100);
    commit_positions(log, &[(0, 1)]);
    log.put_object("small", &mut &b"small"[..]).unwrap();
    let deleted = stream("deleted").partition(0).unwrap();
    assert!(log.delete_before(&[(deleted, Offset(9))])[0].is_ok());
    sync(log);
}

/// Stores a directory with a description of the content that a start finds in it.
fn store(dir: &Path, name: &str) {
    copy(dir, &data(name));
    let copied = copy_of(name);
    let log = Log::open(config(copied.path())).unwrap();
    let description = describe(&log);
    std::fs::write(data(&format!("{name}.txt")), description).unwrap();
}

#[test]
#[ignore = "it replaces the test data, and only a program of format 2 can make that"]
fn make() {
    assert_eq!(FORMAT, 2);
    assert!(!data("").exists(), "remove the former data first");
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(config(dir.path())).unwrap();
    first_run(&log);
    log.close().unwrap();
    store(dir.path(), "clean");

    // So large that two of its files are in use.
    let log = Log::open(LogConfig {
        journal: ByteSize(2 << 20),
        ..config(dir.path())
    })
    .unwrap();
    second_run(&log);
    let killed = tempfile::tempdir().unwrap();
    copy(dir.path(), killed.path());
    let before = describe(&log);
    store(killed.path(), "killed");
    let stored = std::fs::read_to_string(data("killed.txt")).unwrap();
    assert_same(&stored, &before);
}
