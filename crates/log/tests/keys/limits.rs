//! Keys, values and chunks of the least and the largest sizes, and streams whose records are not found by key.

use std::collections::BTreeMap;

use millstream_base::{ByteSize, Offset, Timestamp};
use millstream_log::{
    CLEANUP_POLICY, Durability, KeyRange, Log, LogConfig, LogError, StreamConfig, StreamDefaults,
};
use millstream_record::{Chunk, ChunkBuilder, Chunks, Compression, Decompressor, Header};

use super::machine::Machine;
use super::{append, chunk, config, get, keyed, scan, small_groups, sync, while_not_keyed};

#[test]
fn a_stream_that_is_not_keyed_is_refused_with_the_setting_to_change() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(config(dir.path())).unwrap();
    for (name, policy) in [("none", None), ("delete", Some("delete"))] {
        let stream = match policy {
            Some(policy) => log.create_stream(name, keyed(policy)).unwrap(),
            None => log.create_stream(name, StreamConfig::default()).unwrap(),
        };
        let partition = stream.partition(0).unwrap();
        append(&partition, &[(Some(b"a"), Some(b"1"))]);
        sync(&log);
        let refusals = [
            stream.get(b"a").unwrap_err(),
            partition.get(b"a").unwrap_err(),
            partition.scan(&KeyRange::all(), 1, 1).unwrap_err(),
        ];
        for refusal in refusals {
            assert!(matches!(refusal, LogError::NotKeyed { .. }), "{refusal}");
            let text = refusal.to_string();
            let command = format!("millstream config set stream/{name} cleanup.policy=compact");
            assert!(text.contains(&command), "{text}");
        }
        assert!(!stream.is_keyed());

        // The change takes effect at once, also for records that are there.
        let keyed = |config: &mut StreamConfig| {
            let policy = (CLEANUP_POLICY.to_owned(), "compact".to_owned());
            config.settings.extend([policy]);
        };
        log.alter_stream(name, keyed).unwrap();
        assert!(stream.is_keyed());
        assert_eq!(get(&partition, b"a"), Some((0, b"1".to_vec())));
    }
}

#[test]
fn the_nodes_default_policy_makes_streams_keyed() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(config(dir.path())).unwrap();
    let stream = log.create_stream("s", StreamConfig::default()).unwrap();
    assert!(!stream.is_keyed());
    let policy = (CLEANUP_POLICY.to_owned(), "compact,delete".to_owned());
    log.set_defaults(StreamDefaults {
        settings: BTreeMap::from([policy]),
        ..StreamDefaults::default()
    });
    assert!(stream.is_keyed());
    assert_eq!(stream.get(b"a").unwrap(), None);
    log.create_stream("own", keyed("delete")).unwrap();
    assert!(!log.stream("own").unwrap().is_keyed());
}

#[test]
fn keys_of_no_bytes_and_of_a_megabyte_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let config = LogConfig::with_pool(dir.path(), ByteSize(64 << 20));
    let log = Log::open(config).unwrap();
    // Once the policy is set, records without a key are refused.
    let stream = log.create_stream("s", keyed("delete")).unwrap();
    let partition = stream.partition(0).unwrap();
    let long = vec![b'k'; 1 << 20];
    let mut longer = long.clone();
    longer.push(0);
    append(
        &partition,
        &[
            (Some(&long), Some(b"long")),
            (Some(b""), Some(b"empty")),
            (Some(&longer), Some(b"longer")),
            (None, Some(b"none")),
        ],
    );
    let compacted = |config: &mut StreamConfig| {
        let policy = (CLEANUP_POLICY.to_owned(), "compact".to_owned());
        config.settings.extend([policy]);
    };
    log.alter_stream("s", compacted).unwrap();
    assert_eq!(get(&partition, b""), Some((1, b"empty".to_vec())));
    assert_eq!(get(&partition, &long), Some((0, b"long".to_vec())));
    assert_eq!(get(&partition, &longer), Some((2, b"longer".to_vec())));
    assert_eq!(get(&partition, &long[1..]), None);
    let found = scan(&partition, KeyRange::prefix("k"), 10, 1 << 20);
    let offsets: Vec<u64> = found.iter().map(|(_, offset, _)| *offset).collect();
    assert_eq!(offsets, [0, 2]);
    let stats = partition.key_stats();
    assert_eq!((stats.keys, stats.without_key), (3, 1));
    assert!(
        (2 << 20..(2 << 20) + 1_000).contains(&stats.bytes),
        "{stats:?}"
    );

    append(&partition, &[(Some(b""), None), (Some(&long), None)]);
    assert_eq!(get(&partition, b""), None);
    assert_eq!(get(&partition, &long), None);
    let stats = partition.key_stats();
    assert_eq!((stats.keys, stats.indexed_to), (1, Offset(6)));
}

/// A stream that had no keys until it became keyed loses none of its records, and its keys are found.
#[test]
fn lookups_skip_records_without_a_key_from_before_the_stream_was_keyed() {
    let mut machine = Machine::new();
    let stream = small_groups("delete");
    machine.log().create_stream("s", stream).unwrap();
    let plain = |n: u32| format!("plain {n:0500}").into_bytes();
    for n in 0..400 {
        let (value, new) = (plain(n), n.to_string());
        let records = [
            (None, Some(&value[..])),
            (Some(&b"k"[..]), Some(new.as_bytes())),
            (None, None),
        ];
        append(&machine.partition(), &records);
        sync(machine.log());
    }
    let error = machine.partition().get(b"k").unwrap_err();
    assert!(matches!(error, LogError::NotKeyed { .. }), "{error}");
    let compacted = |config: &mut StreamConfig| {
        let policy = (CLEANUP_POLICY.to_owned(), "compact".to_owned());
        config.settings.extend([policy]);
    };
    machine.log().alter_stream("s", compacted).unwrap();
    let found = Some((3 * 399 + 1, b"399".to_vec()));
    for is_compacted in [false, true] {
        let partition = machine.partition();
        assert_eq!(get(&partition, b"k"), found);
        assert_eq!(scan(&partition, KeyRange::all(), 10, 1 << 20).len(), 1);
        assert_eq!(partition.key_stats().without_key, 800);
        let mut reader = partition.reader(partition.earliest());
        let (mut kept, mut keys, mut decompressor) = (0, 0, Decompressor::default());
        while let Some(chunks) = reader.read(100_000).unwrap() {
            for chunk in Chunks::new(&chunks.bytes) {
                for record in chunk.unwrap().records(&mut decompressor).unwrap() {
                    let record = record.unwrap();
                    match (record.key, record.value) {
                        (None, Some(value)) => {
                            assert_eq!(value, plain(kept));
                            kept += 1;
                        }
                        (key, _) => keys += u32::from(key.is_some()),
                    }
                }
            }
        }
        assert_eq!(kept, 400, "compacted: {is_compacted}");
        assert_eq!(keys < 400, is_compacted, "{keys} records with a key");
        if !is_compacted {
            machine.log().persist();
            sync(machine.log());
            machine.log().compact().unwrap();
            machine.restart(|_| ());
        }
    }
    let refused =
        machine
            .partition()
            .append(&chunk(&[(None, Some(b"v"))], Compression::None, None));
    let error = refused.unwrap_err().to_string();
    assert!(
        error.contains("stream s") && error.contains("send it with a key"),
        "{error}"
    );
}

#[test]
fn large_values_are_found_in_memory_and_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let config = || LogConfig::with_pool(dir.path(), ByteSize(64 << 20));
    let log = Log::open(config()).unwrap();
    let stream = log.create_stream("s", keyed("compact")).unwrap();
    let partition = stream.partition(0).unwrap();
    let large = vec![7; 6 << 20];
    append(
        &partition,
        &[(Some(b"plain"), Some(&large)), (Some(b"small"), Some(b"1"))],
    );
    let records: [super::Record<'_>; 2] =
        [(Some(b"packed"), Some(&large)), (Some(b"two"), Some(b"2"))];
    let packed = chunk(&records, Compression::Zstd, None);
    assert!(packed.len() < 100_000);
    partition.append(&packed).unwrap();
    partition.wait_durable(partition.next_offset()).unwrap();
    for is_evicted in [false, true] {
        if is_evicted {
            log.persist();
            log.evict();
        }
        for (key, offset, value) in [
            (&b"plain"[..], 0, &large[..]),
            (b"small", 1, b"1"),
            (b"packed", 2, &large),
            (b"two", 3, b"2"),
        ] {
            let found = get(&partition, key).unwrap();
            assert!(found.0 == offset && found.1 == value, "{key:?}");
        }
        // The bound is for the records, and not for the chunks that hold them.
        let scan = partition.scan(&KeyRange::all(), 10, 1 << 20).unwrap();
        assert_eq!(
            (scan.entries.len(), scan.next),
            (1, Some(b"plain".to_vec()))
        );
        let scan = partition.scan(&KeyRange::prefix("s"), 10, 1 << 20).unwrap();
        assert_eq!((scan.entries.len(), scan.next), (1, None));
    }
}

#[test]
fn a_version_has_the_timestamp_and_the_headers_of_its_record() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(config(dir.path())).unwrap();
    let stream = log.create_stream("s", keyed("compact")).unwrap();
    let header = |name, value| Header { name, value };
    let headers = [
        header(&b"k.city"[..], Some(&b"Paris"[..])),
        header(b"k.city", None),
        header(b"", Some(b"")),
    ];
    let mut builder = ChunkBuilder::new(Compression::None);
    let (time, key) = (Timestamp(1_234), Some(&b"a"[..]));
    builder.push(time, key, Some(b""), &headers).unwrap();
    let partition = stream.partition(0).unwrap();
    partition.append(builder.finish(None).unwrap()).unwrap();
    let version = stream.get(b"a").unwrap().unwrap();
    assert_eq!((version.timestamp, version.value.len()), (time, 0));
    let found: Vec<Header<'_>> = version
        .headers
        .iter()
        .map(|header| Header {
            name: &header.name,
            value: header.value.as_deref(),
        })
        .collect();
    assert_eq!(found, headers);
}

#[test]
fn a_chunk_whose_records_cannot_be_read_fails_lookups_until_it_is_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(config(dir.path())).unwrap();
    let config = StreamConfig {
        durability: Durability::Memory,
        ..keyed("compact")
    };
    let stream = log.create_stream("s", config).unwrap();
    let partition = stream.partition(0).unwrap();
    append(&partition, &[(Some(b"a"), Some(b"1"))]);
    assert!(get(&partition, b"a").is_some());
    // The header says that the records are compressed.
    let mut broken = chunk(&[(Some(b"a"), Some(b"2"))], Compression::Zstd, None);
    let end = broken.len();
    broken[61..end].fill(0xee);
    let crc = millstream_base::crc32c(&broken[21..]);
    broken[17..21].copy_from_slice(&crc.to_be_bytes());
    assert!(Chunk::parse(&broken).is_ok());
    // A keyed stream checks its records.
    assert!(partition.append(&broken).is_err());
    while_not_keyed(&log, || partition.append(&broken).unwrap());
    append(&partition, &[(Some(b"b"), Some(b"3"))]);
    for _ in 0..2 {
        let error = partition.get(b"b").unwrap_err();
        let LogError::KeysUnreadable { offset, .. } = error else {
            panic!("{error}");
        };
        assert_eq!(offset, Offset(1));
    }
    let deleted = log.delete_before(&[(partition.clone(), Offset(2))]);
    assert_eq!(deleted[0].clone().unwrap(), Offset(2));
    assert_eq!(get(&partition, b"a"), None);
    assert_eq!(get(&partition, b"b"), Some((2, b"3".to_vec())));
}

#[test]
fn a_deleted_stream_has_no_keys() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(config(dir.path())).unwrap();
    let stream = log.create_stream("s", keyed("compact")).unwrap();
    let partition = stream.partition(0).unwrap();
    append(&partition, &[(Some(b"a"), Some(b"1"))]);
    assert!(get(&partition, b"a").is_some());
    log.delete_stream("s").unwrap();
    let error = partition.get(b"a").unwrap_err();
    assert!(matches!(error, LogError::UnknownStream { .. }), "{error}");
}
