//! How long tombstones and the markers of transactions stay.

use std::time::Duration;

use millstream_base::{Clock, Offset, ProducerEpoch, ProducerId, Timestamp, partition_of_key};
use millstream_log::{AtLeast, DELETE_RETENTION, FILE_DELETE_DELAY, StreamConfig};
use millstream_record::{Chunks, Compression, Decompressor, EndMarker, TransactionEnd};

use super::{KEYS, ROUNDS, create, fill, filled, offsets_in, read_on, table};
use crate::machine::{self, Machine};
use crate::{append, chunk, small_groups, sync};

#[test]
fn tombstones_are_removed_after_the_delete_retention() {
    let mut machine = filled(&[(DELETE_RETENTION, "1000"), (FILE_DELETE_DELAY, "0")]);
    let partition = machine.partition();
    append(&partition, &[(Some(b"key 0"), None)]);
    let tombstone = partition.next_offset().0 - 1;
    fill(&machine, 1..ROUNDS);
    let before = table(&machine);
    assert_eq!(before.len() as u64, KEYS - 1);
    let has_tombstone = |machine: &Machine| {
        let partition = machine.partition();
        let found = read_on(&mut partition.reader(partition.earliest()));
        found.contains(&tombstone)
    };
    for is_over in [false, false, true] {
        machine.log().compact().unwrap();
        sync(machine.log());
        assert_eq!(has_tombstone(&machine), !is_over);
        assert_eq!(table(&machine), before);
        if !is_over {
            machine.clock.advance(Duration::from_millis(600));
        }
    }
    machine.restart(|_| ());
    assert_eq!(table(&machine), before);
}

/// Groups that have nothing but tombstones, each the newest record of its key, are not joined with others where a shared
/// group or other lanes name the groups.
#[test]
fn expired_tombstones_are_removed_from_a_group_without_superseded_records() {
    let machine = Machine::new();
    let stream = StreamConfig {
        lanes: 2,
        ..small_groups("compact")
    };
    let settings = [(DELETE_RETENTION, "1000"), (FILE_DELETE_DELAY, "0")];
    let owned = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let mut with_settings = stream;
    with_settings.settings.extend(owned);
    machine.log().create_stream("s", with_settings).unwrap();
    let partition = machine.partition();
    let keys = (0u64..).map(|n| format!("{n:0500}").into_bytes());
    let keys: Vec<Vec<u8>> = keys
        .filter(|key| partition_of_key(key, 2) == 0)
        .take(500)
        .collect();
    for value in [Some(&b"v"[..]), None] {
        for keys in keys.chunks(10) {
            let records: Vec<_> = keys.iter().map(|key| (Some(&key[..]), value)).collect();
            append(&partition, &records);
            sync(machine.log());
        }
    }
    fill(&machine, 0..ROUNDS);
    let before = table(&machine);
    let tombstones = || {
        let found = read_on(&mut partition.reader(partition.earliest()));
        found
            .iter()
            .filter(|offset| (500..1_000).contains(*offset))
            .count()
    };
    machine.log().compact().unwrap();
    assert_eq!(tombstones(), 500);
    machine.clock.advance(Duration::from_millis(1_200));
    machine.log().compact().unwrap();
    assert_eq!(tombstones(), 0);
    assert_eq!(table(&machine), before);
}

/// A marker as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stored {
    offset: Offset,
    marker: EndMarker,
    timestamp: Timestamp,
    key: Vec<u8>,
    value: Vec<u8>,
}

fn marker(producer: i64, end: TransactionEnd) -> EndMarker {
    EndMarker {
        producer_id: ProducerId(producer),
        producer_epoch: ProducerEpoch(0),
        end,
        coordinator_epoch: 7,
    }
}

/// The markers of a partition, and when each may be removed.
fn markers(machine: &Machine) -> Vec<(Stored, Option<Timestamp>)> {
    let partition = machine.partition();
    let mut reader = partition.reader(partition.earliest());
    let (mut markers, mut decompressor) = (Vec::new(), Decompressor::default());
    while let Some(chunks) = reader.read(3_000).unwrap() {
        for chunk in chunks.chunks() {
            let chunk = chunk.unwrap();
            let Some(marker) = EndMarker::of(&chunk) else {
                continue;
            };
            let record = chunk.records(&mut decompressor).unwrap().next();
            let record = record.unwrap().unwrap();
            let stored = Stored {
                offset: record.offset,
                marker,
                timestamp: record.timestamp,
                key: record.key.unwrap().to_vec(),
                value: record.value.unwrap().to_vec(),
            };
            markers.push((stored, chunk.header().delete_horizon()));
        }
    }
    markers
}

#[test]
fn markers_stay_for_the_delete_retention_and_while_a_reader_needs_them() {
    let mut machine = Machine::new();
    create(
        &machine,
        &[(DELETE_RETENTION, "1000"), (FILE_DELETE_DELAY, "0")],
    );
    machine.clock.advance(Duration::from_secs(5));
    let sent = |key, producer| {
        chunk(
            &[(Some(key), Some(b"v"))],
            Compression::None,
            Some((producer, 0)),
        )
    };
    for (producer, key, end) in [
        (1, &b"committed"[..], TransactionEnd::Commit),
        (2, b"aborted", TransactionEnd::Abort),
    ] {
        machine.partition().append(&sent(key, producer)).unwrap();
        machine
            .partition()
            .append_marker(&marker(producer, end))
            .unwrap();
    }
    fill(&machine, 0..ROUNDS);
    let (partition, before) = (machine.partition(), table(&machine));
    let (stored, horizons): (Vec<Stored>, Vec<_>) = markers(&machine).into_iter().unzip();
    assert_eq!((stored.len(), horizons), (2, vec![None, None]));
    let compact = || {
        machine.log().compact().unwrap();
        sync(machine.log());
        markers(&machine)
    };

    // The reader has chunks of transactions, and needs their ends.
    machine.log().evict();
    let mut reader = partition.reader(partition.earliest());
    reader.read(1).unwrap();
    let horizon = Some(Timestamp(machine.clock.now().0 + 1_000));
    let marked: Vec<_> = stored
        .iter()
        .map(|stored| (stored.clone(), horizon))
        .collect();
    assert_eq!(compact(), marked, "all but the horizon is as it was");
    let (fetched, end) = (
        partition
            .fetch(Offset(0), Offset(4), 1 << 20, AtLeast::OneChunk)
            .unwrap(),
        Offset(4),
    );
    let first = Chunks::new(&fetched.pieces[0]).next().unwrap().unwrap();
    assert!(!first.header().attributes.is_transactional());
    assert_eq!(first.header().producer_id, ProducerId::NONE);
    let offsets = offsets_in(&fetched.pieces[0]);
    assert!(
        offsets.contains(&0) && !offsets.contains(&2),
        "the aborted record is gone"
    );
    assert_eq!(
        partition
            .aborted_transactions(Offset(0), end)
            .unwrap()
            .len(),
        1
    );
    drop(fetched);
    assert_eq!(compact(), marked, "it is not over");
    machine.clock.advance(Duration::from_millis(1_200));
    assert_eq!(compact(), marked, "a reader may need them");
    drop(reader);
    sync(machine.log());
    assert_eq!(compact(), []);
    assert_eq!(partition.aborted_transactions(Offset(0), end).unwrap(), []);
    assert_eq!(table(&machine), before);

    // The producers stay.
    machine.restart(|_| ());
    for (producer, offset) in [(1, 0), (2, 2)] {
        let repeated = machine.partition().append(&sent(b"k", producer)).unwrap();
        assert!(repeated.duplicate && repeated.base_offset == Offset(offset));
    }
    assert_eq!(table(&machine), before);
}

/// A start reads from key files when markers may be removed, since their groups may have no other dirty record.
#[test]
fn markers_are_removed_after_the_delete_retention_and_a_restart() {
    let mut machine = Machine::new();
    let settings = [(DELETE_RETENTION, "1000"), (FILE_DELETE_DELAY, "0")];
    create(&machine, &settings);
    let sent = chunk(&[(Some(b"k"), Some(b"v"))], Compression::None, Some((1, 0)));
    machine.partition().append(&sent).unwrap();
    let commit = marker(1, TransactionEnd::Commit);
    machine.partition().append_marker(&commit).unwrap();
    fill(&machine, 0..ROUNDS);
    machine.log().compact().unwrap();
    sync(machine.log());
    let before = table(&machine);
    for lose_keys in [false, true] {
        machine.restart(|disk| {
            if lose_keys {
                let keys = machine::files(disk, "keys").into_iter();
                keys.for_each(|path| disk.remove(path).unwrap());
            }
        });
        sync(machine.log());
        machine.log().compact().unwrap();
        assert_eq!(markers(&machine).len(), 1, "it is not over");
    }
    machine.clock.advance(Duration::from_millis(1_200));
    machine.log().compact().unwrap();
    assert_eq!(markers(&machine), []);
    assert_eq!(table(&machine), before);
}

#[test]
fn markers_stay_while_chunks_of_their_transactions_are_held() {
    let machine = Machine::new();
    create(
        &machine,
        &[(DELETE_RETENTION, "0"), (FILE_DELETE_DELAY, "0")],
    );
    machine.clock.advance(Duration::from_secs(5));
    let partition = machine.partition();
    let sent = chunk(&[(Some(b"k"), Some(b"v"))], Compression::None, Some((1, 0)));
    partition.append(&sent).unwrap();
    partition
        .append_marker(&marker(1, TransactionEnd::Abort))
        .unwrap();
    fill(&machine, 0..ROUNDS);
    machine.log().evict();
    let fetched = partition
        .fetch(Offset(0), Offset(2), 1 << 20, AtLeast::OneChunk)
        .unwrap();
    let aborted = || {
        partition
            .aborted_transactions(Offset(0), fetched.next)
            .unwrap()
    };
    assert_eq!(aborted().len(), 1);
    for _ in 0..3 {
        machine.log().compact().unwrap();
        sync(machine.log());
        assert_eq!(aborted().len(), 1);
    }
    drop(fetched);
    sync(machine.log());
    machine.log().compact().unwrap();
    assert_eq!(markers(&machine), []);
}
