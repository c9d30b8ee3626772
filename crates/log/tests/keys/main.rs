//! Records of keyed streams, found by their keys.

mod alike;
mod changes;
mod clocks;
mod compaction;
mod files;
mod history;
mod hot;
mod lifetimes;
mod limits;
mod machine;
mod model;
mod owners;
mod secondary;
mod threads;
mod watch;

use std::path::Path;

use millstream_base::{ByteSize, ProducerEpoch, ProducerId, Sequence, Timestamp};
use millstream_log::{
    Background, CLEANUP_POLICY, Durability, KeyRange, Log, LogConfig, LogError, StreamConfig,
    StreamPartition,
};
use millstream_record::{ChunkBuilder, Compression, Header, Producer, end_header, secondary_key};

/// Key and value.
type Record<'a> = (Option<&'a [u8]>, Option<&'a [u8]>);

fn config(dir: &Path) -> LogConfig {
    LogConfig {
        journal: ByteSize(4 << 20),
        journal_file: ByteSize(1 << 20),
        background: Background::Manual,
        ..LogConfig::with_pool(dir, ByteSize(4 << 20))
    }
}

/// Groups of 64 KiB.
fn small_groups(policy: &str) -> StreamConfig {
    StreamConfig {
        segment: ByteSize(64 << 10),
        group_segments: 1,
        ..keyed(policy)
    }
}

fn keyed(policy: &str) -> StreamConfig {
    StreamConfig {
        durability: Durability::Async,
        settings: [(CLEANUP_POLICY.to_owned(), policy.to_owned())].into(),
        ..StreamConfig::default()
    }
}

fn chunk(
    records: &[Record<'_>],
    compression: Compression,
    producer: Option<(i64, i32)>,
) -> Vec<u8> {
    let producer = producer.map(|(id, sequence)| Producer {
        id: ProducerId(id),
        epoch: ProducerEpoch(0),
        sequence: Sequence(sequence),
    });
    let is_transactional = producer.is_some();
    chunk_of(
        records,
        compression,
        producer,
        is_transactional,
        Timestamp(5),
        None,
    )
}

fn chunk_of(
    records: &[Record<'_>],
    compression: Compression,
    producer: Option<Producer>,
    is_transactional: bool,
    timestamp: Timestamp,
    expires: Option<i64>,
) -> Vec<u8> {
    let transaction = (producer, is_transactional);
    tagged_chunk_of(records, &[], compression, transaction, timestamp, expires)
}

/// The name of an index, and a secondary key in it.
type Tag = (&'static str, Vec<u8>);

/// As [`chunk_of`], with secondary keys for the first records.
fn tagged_chunk_of(
    records: &[Record<'_>],
    tags: &[Vec<Tag>],
    compression: Compression,
    (producer, is_transactional): (Option<Producer>, bool),
    timestamp: Timestamp,
    expires: Option<i64>,
) -> Vec<u8> {
    let mut builder = ChunkBuilder::new(compression);
    builder.set_transactional(is_transactional);
    let expires = expires.map(|end| end.to_string());
    let end = expires.as_deref().map(end_header);
    let tags = tags
        .iter()
        .map(Vec::as_slice)
        .chain(std::iter::repeat(&[][..]));
    for ((key, value), tags) in records.iter().zip(tags) {
        let names: Vec<String> = tags.iter().map(|(name, _)| secondary_key(name)).collect();
        let tags = names.iter().zip(tags).map(|(name, (_, tag))| Header {
            name: name.as_bytes(),
            value: Some(tag),
        });
        let headers: Vec<Header<'_>> = end.into_iter().chain(tags).collect();
        let pushed = builder.push(timestamp, *key, *value, &headers);
        pushed.unwrap();
    }
    builder.finish(producer).unwrap().to_vec()
}

fn append(partition: &StreamPartition, records: &[Record<'_>]) {
    let chunk = chunk(records, Compression::None, None);
    partition.append(&chunk).unwrap();
}

/// Appends records that a keyed stream refuses, while the stream "s" is not keyed.
fn while_not_keyed<R>(log: &Log, act: impl FnOnce() -> R) -> R {
    let keyed = log.stream("s").unwrap().config().settings;
    let delete = |config: &mut StreamConfig| {
        let policy = (CLEANUP_POLICY.to_owned(), "delete".to_owned());
        config.settings.extend([policy]);
    };
    log.alter_stream("s", delete).unwrap();
    let done = act();
    log.alter_stream("s", |config| config.settings = keyed)
        .unwrap();
    done
}

fn sync(log: &Log) {
    while log.step() {}
}

fn get(partition: &StreamPartition, key: &[u8]) -> Option<(u64, Vec<u8>)> {
    try_get(partition, key).unwrap()
}

fn try_get(partition: &StreamPartition, key: &[u8]) -> Result<Option<(u64, Vec<u8>)>, LogError> {
    let version = partition.get(key)?;
    Ok(version.map(|version| (version.offset.0, version.value.to_vec())))
}

/// Offset and value of a key, if it has one.
type FoundVersion = Option<(u64, Vec<u8>)>;

/// Looks up all these keys at once.
fn get_many(partition: &StreamPartition, keys: &[Vec<u8>]) -> Result<Vec<FoundVersion>, LogError> {
    let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let versions = partition.get_many(&keys)?.into_iter();
    let found = versions.map(|version| Some((version.as_ref()?.offset.0, version?.value.to_vec())));
    Ok(found.collect())
}

/// Key, offset and value of each key of a range.
type Entries = Vec<(Vec<u8>, u64, Vec<u8>)>;

/// All keys of a range, by scans of at most `limit` keys and `bytes_max` bytes.
fn scan(partition: &StreamPartition, range: KeyRange, limit: usize, bytes_max: usize) -> Entries {
    try_scan(partition, range, limit, bytes_max).unwrap()
}

fn try_scan(
    partition: &StreamPartition,
    mut range: KeyRange,
    limit: usize,
    bytes_max: usize,
) -> Result<Entries, LogError> {
    let mut found = Vec::new();
    loop {
        let scan = partition.scan(&range, limit, bytes_max)?;
        assert!(scan.entries.len() <= limit);
        found.extend(scan.entries.into_iter().map(|entry| {
            let version = entry.version;
            (entry.key, version.offset.0, version.value.to_vec())
        }));
        match scan.next {
            Some(next) => {
                assert!(found.last().is_none_or(|(last, ..)| *last < next));
                range.from = next;
            }
            None => return Ok(found),
        }
    }
}

/// Secondary key, key, offset and value of each record of a range of secondary keys.
type Found = Vec<(Vec<u8>, Vec<u8>, u64, Vec<u8>)>;

/// All records of a range of secondary keys, by look-ups of at most `limit` records and `bytes_max` bytes.
fn try_find(
    partition: &StreamPartition,
    name: &str,
    range: &KeyRange,
    limit: usize,
    bytes_max: usize,
) -> Result<Found, LogError> {
    let mut found: Found = Vec::new();
    let mut from = None;
    loop {
        let page = partition.find_by(name, range, from.as_ref(), limit, bytes_max)?;
        assert!(page.entries.len() <= limit);
        found.extend(page.entries.into_iter().map(|entry| {
            let version = entry.version;
            (
                entry.secondary,
                entry.key,
                version.offset.0,
                version.value.to_vec(),
            )
        }));
        let Some(next) = page.next else {
            return Ok(found);
        };
        let is_behind = |last: &(Vec<u8>, Vec<u8>, u64, Vec<u8>)| {
            (&last.0, &last.1) < (&next.secondary, &next.key)
        };
        assert!(
            found.last().is_none_or(is_behind),
            "it continues behind the keys found"
        );
        assert!(from.is_none_or(|from| from < next), "it goes on");
        from = Some(next);
    }
}
