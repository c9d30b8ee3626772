//! Checkpoints as objects of a log.

use std::collections::BTreeSet;
use std::io::Read;
use std::sync::Arc;

use millstream_base::partition_of_key;
use millstream_flow::{
    BoxError, Changelog, CheckpointRecords, Checkpoints, ShardKey, StoreLock, WatchedChangelog,
};
use millstream_log::{CLEANUP_POLICY, COMPACT, Log, LogError, StreamConfig};
use millstream_record::{ChunkBuilder, Compression};
use parking_lot::Mutex;

use super::changelog::{self, check_stream};
use super::log_changelog::LogChangelog;
use super::log_watch::LogWatched;
use super::record_stream::{RECORD, stream_name};
use super::{check_len, named_shard, shard_name};
use crate::flow_name::check_flow_name;

/// The stores that runs in this process hold: the log, by the address of its pool, and the prefix of the shards' names.
/// Only one process at a time has a log open.
static LOCKED: Mutex<BTreeSet<(usize, String)>> = Mutex::new(BTreeSet::new());

/// Keeps the checkpoints of a flow in a log: the shards as objects, `<flow>.checkpoint.<number>.<rank>.<run>`, and in the
/// keyed stream `<flow>.checkpoints` the record that names the shards of the last complete checkpoint. The changes of state
/// elements are in the keyed streams `<flow>.state.<element>`.
#[derive(Clone)]
pub struct LogCheckpoints {
    log: Log,
    flow: String,
    prefix: String,
    /// The name of the stream of records.
    records: String,
}

impl LogCheckpoints {
    /// For the flow of this name.
    pub fn new(log: &Log, flow: &str) -> LogCheckpoints {
        LogCheckpoints {
            log: log.clone(),
            flow: flow.to_owned(),
            prefix: prefix(flow),
            records: stream_name(flow),
        }
    }

    /// Returns whether there is a checkpoint to resume from.
    ///
    /// # Errors
    /// When the log refuses.
    pub fn has_checkpoint(&self) -> Result<bool, BoxError> {
        // Earlier programs stored no records.
        let is_former = |key: &ShardKey| key.run == 0;
        Ok(self.last()?.is_some() || self.list()?.iter().any(is_former))
    }

    /// Removes all checkpoints, so that the flow begins anew. It must not run.
    ///
    /// # Errors
    /// When the log refuses.
    pub fn forget(&self) -> Result<(), BoxError> {
        // First: shards without a record do not count.
        match self.log.delete_stream(&self.records) {
            Ok(()) | Err(LogError::UnknownStream { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        self.list()?
            .into_iter()
            .try_for_each(|key| self.remove(key))
    }

    fn name(&self, key: ShardKey) -> String {
        format!("{}{}", self.prefix, shard_name(key))
    }
}

/// Returns the prefix of the names of a flow's shards.
pub fn prefix(flow: &str) -> String {
    format!("{flow}.checkpoint.")
}

/// Returns the key of the shard in the object of this name.
pub fn shard_of(prefix: &str, object: &str) -> Result<ShardKey, BoxError> {
    let key = object.strip_prefix(prefix).and_then(named_shard);
    key.ok_or_else(|| {
        format!(
            "object {object} is not a shard of a checkpoint; delete it, or give it another name"
        )
        .into()
    })
}

/// Whether an object of this size and checksum holds the shard.
pub fn is_of(shard: &[u8], bytes: u64, crc32c: u32) -> bool {
    bytes == shard.len() as u64 && crc32c == millstream_base::crc32c(shard)
}

/// Holds a store until it is dropped.
struct Lock {
    key: (usize, String),
    /// Keeps the address of the pool its own.
    _log: Log,
}

impl Drop for Lock {
    fn drop(&mut self) {
        LOCKED.lock().remove(&self.key);
    }
}

impl Checkpoints for LogCheckpoints {
    fn lock(&self) -> Result<Option<StoreLock>, BoxError> {
        check_flow_name(&self.flow)?;
        let key = (Arc::as_ptr(self.log.pool()).addr(), self.prefix.clone());
        if !LOCKED.lock().insert(key.clone()) {
            return Err(format!(
                "the checkpoints {}* are in use by another run in this process; wait for its end or stop it, or give this flow another name",
                self.prefix
            )
            .into());
        }
        let lock = Lock {
            key,
            _log: self.log.clone(),
        };
        // At the start, and not at the first record of a flow that resumes.
        match self.log.stream(&self.records) {
            Ok(stream) => check_stream(&stream)?,
            Err(LogError::UnknownStream { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Some(Box::new(lock)))
    }

    fn records(&self) -> Option<&dyn CheckpointRecords> {
        Some(self)
    }

    fn put(&self, key: ShardKey, shard: &[u8]) -> Result<(), BoxError> {
        check_len("it", shard.len() as u64)?;
        let name = self.name(key);
        let mut put = self.log.put_object(&name, &mut &*shard);
        if let Err(LogError::Exists { .. }) = put {
            let object = self.log.get_object(&name, None)?;
            if is_of(shard, object.info().bytes, object.info().crc32c) {
                // An earlier attempt has stored it after all. It is not removed: a record may name it.
                return Ok(());
            }
            self.log.delete_object(&name)?;
            put = self.log.put_object(&name, &mut &*shard);
        }
        put?;
        Ok(())
    }

    fn get(&self, key: ShardKey) -> Result<Vec<u8>, BoxError> {
        let name = self.name(key);
        let mut object = self.log.get_object(&name, None)?;
        let bytes = object.info().bytes;
        check_len(&format!("object {name}"), bytes)?;
        let mut shard = vec![0; usize::try_from(bytes)?];
        object.read_exact(&mut shard)?;
        Ok(shard)
    }

    fn list(&self) -> Result<Vec<ShardKey>, BoxError> {
        let objects = self.log.objects(&self.prefix)?.into_iter();
        objects
            .map(|object| shard_of(&self.prefix, &object.name))
            .collect()
    }

    fn remove(&self, key: ShardKey) -> Result<(), BoxError> {
        Ok(self.log.delete_object(&self.name(key))?)
    }

    fn changelog(&self, flow: &str, element: &str) -> Result<Option<Box<dyn Changelog>>, BoxError> {
        let changelog = LogChangelog::open(&self.log, flow, element)?;
        Ok(Some(Box::new(changelog)))
    }

    fn watched_changelog(&self, flow: &str, element: &str) -> Option<Arc<dyn WatchedChangelog>> {
        let stream = changelog::stream_name(flow, element);
        Some(Arc::new(LogWatched::new(&self.log, stream)))
    }

    fn describe(&self, key: ShardKey) -> String {
        format!("object {}", self.name(key))
    }
}

impl CheckpointRecords for LogCheckpoints {
    fn last(&self) -> Result<Option<Vec<u8>>, BoxError> {
        match self.log.stream(&self.records) {
            Ok(stream) => Ok(stream.get(RECORD)?.map(|record| record.value.to_vec())),
            Err(LogError::UnknownStream { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn append(&self, record: &[u8]) -> Result<(), BoxError> {
        let policy = (CLEANUP_POLICY.to_owned(), COMPACT.to_owned());
        let config = StreamConfig {
            streamlets: 1,
            settings: [policy].into(),
            ..StreamConfig::default()
        };
        let stream = self.log.stream_or_create(&self.records, config)?;
        check_stream(&stream)?;
        let mut chunk = ChunkBuilder::new(Compression::None);
        chunk.push(self.log.clock().now(), Some(RECORD), Some(record), &[])?;
        // A stream that was made by hand may have more than one.
        let count = stream.partition_count();
        let partition = stream.partition(partition_of_key(RECORD, count as usize) as u32)?;
        let appended = partition.append(chunk.finish(None)?)?;
        Ok(partition.wait_durable(appended.next_offset)?)
    }

    fn describe(&self) -> String {
        format!("in stream {}", self.records)
    }
}
