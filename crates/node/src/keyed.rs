//! The keyed streams of a node, over HTTP.

use std::collections::BTreeMap;
use std::future::ready;
use std::sync::Arc;

use millstream_base::{KeyRange, Offset, partition_of_key};
use millstream_broker::{KeyReads, KeyTransactions, OLDER_READ_BYTES_MAX, OwnedChange, Threads};
use millstream_log::{
    ChangeError, Changed, HistoryVersion, KEY_BYTES_MAX, KeyChange, KeyCondition, KeyEntry,
    KeyScan, KeyVersion, Log, LogError, NewValue, Stream, StreamPartition, refuse_secondary_keys,
};
use millstream_record::{Header, secondary_key};
use millstream_serve::{
    FoundPage, FoundPlace, KeyChange as Change, KeyChanged, KeyCondition as Condition, KeyPage,
    KeyWatch, KeyWrite, KeyedError, KeyedFuture, KeyedHistory, KeyedStreams, KeyedValue,
    KeyedVersion, PastVersion, WatchFrom,
};

use crate::found::found;
use crate::keyed_errors::{ended, failed, may_take_effect, not_made};
use crate::watch::{NodeWatch, WatchBounds};

/// About the most bytes of keys and values in one page, over all partitions.
pub const PAGE_BYTES: usize = 2 << 20;

/// The keyed streams of a log.
pub struct NodeStreams {
    pub log: Log,
    pub transactions: Arc<KeyTransactions>,
    pub reads: Arc<KeyReads>,
    pub writes: Threads,
    pub watches: Arc<WatchBounds>,
}

impl NodeStreams {
    fn stream(&self, name: &str) -> Result<Stream, KeyedError> {
        let stream = self.log.stream(name).map_err(failed)?;
        match stream.is_internal() {
            true => Err(KeyedError::UnknownStream(name.to_owned())),
            false => Ok(stream),
        }
    }

    /// Returns the partition that owns a key.
    fn owner(&self, name: &str, key: &[u8]) -> Result<StreamPartition, KeyedError> {
        let stream = self.stream(name)?;
        let partition = partition_of_key(key, stream.partition_count() as usize) as u32;
        stream.partition(partition).map_err(failed)
    }

    fn keyed_stream(&self, name: &str) -> Result<Stream, KeyedError> {
        let stream = self.stream(name)?;
        match stream.is_keyed() {
            true => Ok(stream),
            false => Err(failed(LogError::NotKeyed {
                stream: name.to_owned(),
            })),
        }
    }
}

impl KeyedStreams for NodeStreams {
    fn get(&self, stream: &str, key: Vec<u8>) -> KeyedFuture<Option<KeyedValue>> {
        let (stream, reads) = (self.stream(stream), Arc::clone(&self.reads));
        Box::pin(async move {
            let stream = stream?;
            let partition = partition_of_key(&key, stream.partition_count() as usize) as u32;
            let owner = stream.partition(partition).map_err(failed)?;
            if let Some(known) = owner.get_hot(&key).map_err(failed)? {
                return Ok(known.map(|version| keyed_value(partition, version)));
            }
            reads.catch_up([&owner]).await;
            let found = reads.run(move || stream.get(&key)).await;
            let found = found.ok_or_else(ended)?.map_err(failed)?;
            Ok(found.map(|version| keyed_value(partition, version)))
        })
    }

    fn get_at(&self, stream: &str, key: Vec<u8>, at: Offset) -> KeyedFuture<Option<KeyedValue>> {
        let (owner, reads) = (self.owner(stream, &key), Arc::clone(&self.reads));
        Box::pin(async move {
            let owner = owner?;
            let partition = owner.index();
            let found = look_up_older(&reads, owner, move |owner| owner.get_at(&key, at)).await?;
            Ok(found.map(|version| keyed_value(partition, version)))
        })
    }

    fn get_at_hold(
        &self,
        stream: &str,
        key: Vec<u8>,
        hold: String,
    ) -> KeyedFuture<Option<KeyedValue>> {
        let (owner, reads) = (self.owner(stream, &key), Arc::clone(&self.reads));
        let stream = self.stream(stream);
        Box::pin(async move {
            let (owner, stream) = (owner?, stream?);
            let partition = owner.index();
            let look_up = move |_: &StreamPartition| stream.get_at_hold(&key, &hold);
            let found = look_up_older(&reads, owner, look_up).await?;
            Ok(found.map(|version| keyed_value(partition, version)))
        })
    }

    fn history(
        &self,
        stream: &str,
        key: Vec<u8>,
        before: Offset,
        limit: usize,
    ) -> KeyedFuture<KeyedHistory> {
        let (owner, reads) = (self.owner(stream, &key), Arc::clone(&self.reads));
        Box::pin(async move {
            let owner = owner?;
            let partition = owner.index();
            let read = move |owner: &StreamPartition| {
                owner.key_history(&key, before, limit, PAGE_BYTES, OLDER_READ_BYTES_MAX)
            };
            let found = look_up_older(&reads, owner, read).await?;
            let versions = found.versions.into_iter();
            Ok(KeyedHistory {
                versions: versions
                    .map(|found| past_version(partition, found))
                    .collect(),
                next: found.next,
                lacks_older: found.lacks_older,
            })
        })
    }

    fn scan(&self, stream: &str, range: KeyRange, limit: usize) -> KeyedFuture<KeyPage> {
        let (stream, reads) = (self.stream(stream), Arc::clone(&self.reads));
        Box::pin(async move {
            let stream = stream?;
            let partitions = (0..stream.partition_count()).map(|index| stream.partition(index));
            let partitions = partitions.collect::<Result<Vec<_>, _>>().map_err(failed)?;
            reads.catch_up(&partitions).await;
            let page = reads.run(move || page(&partitions, &range, limit)).await;
            page.ok_or_else(ended)?.map_err(failed)
        })
    }

    fn find(
        &self,
        stream: &str,
        index: String,
        ranges: Vec<KeyRange>,
        from: Option<FoundPlace>,
        limit: usize,
    ) -> KeyedFuture<FoundPage> {
        let (stream, reads) = (self.keyed_stream(stream), Arc::clone(&self.reads));
        Box::pin(async move {
            let stream = stream?;
            let partitions = (0..stream.partition_count()).map(|index| stream.partition(index));
            let partitions = partitions.collect::<Result<Vec<_>, _>>().map_err(failed)?;
            reads.catch_up(&partitions).await;
            reads.catch_up_secondary(&partitions, &index).await;
            let find = move || found(&partitions, &index, &ranges, from, limit);
            reads.run(find).await.ok_or_else(ended)?.map_err(failed)
        })
    }

    fn value_bytes_max(&self, stream: &str) -> Result<usize, KeyedError> {
        Ok(self.keyed_stream(stream)?.chunk_bytes_max())
    }

    fn change(&self, stream: &str, key: Vec<u8>, write: KeyWrite) -> KeyedFuture<KeyChanged> {
        let stream = self.keyed_stream(stream);
        let (reads, writes) = (Arc::clone(&self.reads), self.writes.clone());
        let transactions = Arc::clone(&self.transactions);
        Box::pin(async move {
            let stream = stream?;
            check_keys(&key, &write)?;
            let partition = partition_of_key(&key, stream.partition_count() as usize) as u32;
            let owner = stream.partition(partition).map_err(failed)?;
            // Only these look up the key.
            if write.condition != Condition::Any || matches!(write.change, Change::Add(_)) {
                reads.catch_up([&owner]).await;
            }
            let changed = writes.run({
                let owner = owner.clone();
                move || {
                    let names: Vec<String> = names(&write);
                    let headers = headers(&names, &write);
                    owner.change(&[key_change(&key, &write, &headers)])
                }
            });
            let mut changed = changed.await.ok_or_else(ended)?.map_err(failed)?;
            // Also a version for which the condition does not hold is as durable then.
            let answered = owner.answered(changed.answer_at).await;
            let outcome = changed.outcomes.pop().ok_or_else(ended)?;
            answered.map_err(|error| match outcome {
                Ok(_) => may_take_effect(failed(error)),
                Err(_) => failed(error),
            })?;
            transactions.seen(&owner, changed.answer_at).await;
            key_changed(partition, outcome)
        })
    }

    fn change_together(
        &self,
        stream: &str,
        changes: Vec<(Vec<u8>, KeyWrite)>,
    ) -> KeyedFuture<Vec<KeyChanged>> {
        let stream = self.keyed_stream(stream);
        let transactions = Arc::clone(&self.transactions);
        Box::pin(async move {
            let stream = stream?;
            let count = stream.partition_count() as usize;
            for (number, (key, write)) in changes.iter().enumerate() {
                check_keys(key, write).map_err(|why| not_together(number, why))?;
            }
            let partitions: Vec<u32> = changes
                .iter()
                .map(|(key, _)| partition_of_key(key, count) as u32)
                .collect();
            let changes = changes.into_iter().map(owned_change).collect();
            let outcomes = transactions.change(&stream, changes).await;
            let outcomes = outcomes.map_err(not_made)?;
            let refused = outcomes.iter().position(
                |outcome| matches!(outcome, Err(why) if !matches!(why, ChangeError::NotAlone)),
            );
            let mut changed = partitions
                .into_iter()
                .zip(outcomes)
                .map(|(partition, outcome)| key_changed(partition, outcome));
            match refused {
                None => changed.collect(),
                Some(number) => {
                    let why = changed.nth(number).and_then(Result::err);
                    Err(not_together(number, why.unwrap_or_else(ended)))
                }
            }
        })
    }

    fn watch(
        &self,
        stream: &str,
        range: KeyRange,
        from: WatchFrom,
    ) -> KeyedFuture<Box<dyn KeyWatch>> {
        let (reads, bounds) = (Arc::clone(&self.reads), Arc::clone(&self.watches));
        let begun = self
            .keyed_stream(stream)
            .and_then(|stream| NodeWatch::begin(stream, range, from, reads, bounds));
        Box::pin(ready(
            begun.map(|watch| Box::new(watch) as Box<dyn KeyWatch>),
        ))
    }

    fn misplaced(&self, stream: &str) -> u64 {
        self.stream(stream).map_or(0, |stream| stream.misplaced())
    }
}

/// Looks up older versions, on a thread for that.
async fn look_up_older<R: Send + 'static>(
    reads: &KeyReads,
    owner: StreamPartition,
    read: impl FnOnce(&StreamPartition) -> Result<R, LogError> + Send + 'static,
) -> Result<R, KeyedError> {
    reads.catch_up([&owner]).await;
    let thread = reads.thread_for_older().await.ok_or_else(ended)?;
    let read = thread.run(move || read(&owner)).await;
    read.ok_or_else(ended)?.map_err(failed)
}

/// Returns the first keys of a range over all partitions.
fn page(
    partitions: &[StreamPartition],
    range: &KeyRange,
    limit: usize,
) -> Result<KeyPage, LogError> {
    let bytes_max = PAGE_BYTES / partitions.len().max(1);
    let mut merged = Merged::default();
    for partition in partitions {
        let scan = partition.scan(range, limit, bytes_max)?;
        merged.add(partition.index(), scan);
        merged.shorten(limit, PAGE_BYTES);
    }
    Ok(merged.page())
}

/// The first keys of the partitions so far. They end before the first key that a partition has left out.
#[derive(Default)]
struct Merged {
    entries: BTreeMap<Vec<u8>, KeyedValue>,
    /// The bytes of keys and values.
    bytes: usize,
    /// The first key that is left out.
    end: Option<Vec<u8>>,
}

impl Merged {
    fn add(&mut self, partition: u32, scan: KeyScan) {
        for KeyEntry { key, version } in scan.entries {
            self.bytes += key.len() + version.value.len();
            self.entries.insert(key, keyed_value(partition, version));
        }
        self.end = self.end.take().into_iter().chain(scan.next).min();
    }

    /// Leaves out keys from the first left out one on, then more until there are at most `limit` and about `bytes_max`
    /// bytes, but at least one key. Each partition has at least one, and its value may be large.
    fn shorten(&mut self, limit: usize, bytes_max: usize) {
        while let Some(last) = self.entries.last_entry() {
            let is_behind = self.end.as_ref().is_some_and(|end| last.key() >= end);
            let count = self.entries.len();
            if !is_behind && count <= limit && (self.bytes <= bytes_max || count == 1) {
                break;
            }
            let Some((key, left_out)) = self.entries.pop_last() else {
                break;
            };
            self.bytes -= key.len() + left_out.value.len();
            self.end = self.end.take().into_iter().chain([key]).min();
        }
    }

    fn page(self) -> KeyPage {
        KeyPage {
            entries: self.entries.into_iter().collect(),
            next: self.end,
        }
    }
}

fn names(write: &KeyWrite) -> Vec<String> {
    let names = write.secondary.iter();
    names.map(|(name, _)| secondary_key(name)).collect()
}

fn headers<'a>(names: &'a [String], write: &'a KeyWrite) -> Vec<Header<'a>> {
    let keys = names.iter().zip(&write.secondary);
    let headers = keys.map(|(name, (_, key))| Header {
        name: name.as_bytes(),
        value: Some(key),
    });
    headers.collect()
}

fn key_change<'a>(
    key: &'a [u8],
    write: &'a KeyWrite,
    secondary: &'a [Header<'a>],
) -> KeyChange<'a> {
    KeyChange {
        key,
        condition: log_condition(write.condition),
        value: match &write.change {
            Change::Put(value) => NewValue::Put(value),
            Change::Delete => NewValue::Delete,
            Change::Add(number) => NewValue::Add(*number),
        },
        ttl: write.ttl,
        secondary,
    }
}

/// Checks the key and the secondary keys of a write.
fn check_keys(key: &[u8], write: &KeyWrite) -> Result<(), KeyedError> {
    if key.len() > KEY_BYTES_MAX {
        return Err(KeyedError::LongKey {
            bytes: key.len(),
            bytes_max: KEY_BYTES_MAX,
        });
    }
    let keys = write.secondary.iter();
    let keys = keys.map(|(name, key)| (&**name, &**key));
    refuse_secondary_keys(keys).map_or(Ok(()), |why| Err(KeyedError::Secondary(why)))
}

fn not_together(number: usize, why: KeyedError) -> KeyedError {
    let why = Box::new(why);
    KeyedError::NotTogether { number, why }
}

fn log_condition(condition: Condition) -> KeyCondition {
    match condition {
        Condition::Any => KeyCondition::Any,
        Condition::Absent => KeyCondition::Absent,
        Condition::Present => KeyCondition::Present,
        Condition::Version(version) => KeyCondition::Version(version),
    }
}

fn owned_change((key, write): (Vec<u8>, KeyWrite)) -> OwnedChange {
    let condition = log_condition(write.condition);
    let secondary = write.secondary.into_iter();
    let secondary = secondary.map(|(name, key)| (secondary_key(&name), key.into()));
    let (value, add) = match write.change {
        Change::Put(value) => (Some(value), None),
        Change::Delete => (None, None),
        Change::Add(number) => (None, Some(number)),
    };
    OwnedChange {
        key: key.into(),
        condition,
        value,
        add,
        ttl: write.ttl,
        secondary: secondary.collect(),
    }
}

fn key_changed(
    partition: u32,
    outcome: Result<Changed, ChangeError>,
) -> Result<KeyChanged, KeyedError> {
    let version = |version| KeyedVersion { partition, version };
    match outcome {
        Ok(changed) => Ok(KeyChanged {
            version: version(changed.version),
            sum: changed.sum,
        }),
        Err(ChangeError::OtherVersion { newest }) => Err(KeyedError::OtherVersion {
            newest: newest.map(version),
        }),
        Err(ChangeError::Log(error)) => Err(failed(error)),
        Err(refused) => Err(KeyedError::NotChangeable(refused.to_string())),
    }
}

pub fn keyed_value(partition: u32, version: KeyVersion) -> KeyedValue {
    KeyedValue {
        version: KeyedVersion {
            partition,
            version: version.offset,
        },
        timestamp: version.timestamp,
        value: version.value,
        expires_at: version.expires_at,
    }
}

fn past_version(partition: u32, found: HistoryVersion) -> PastVersion {
    let HistoryVersion {
        version,
        is_deletion,
    } = found;
    PastVersion {
        version: KeyedVersion {
            partition,
            version: version.offset,
        },
        timestamp: version.timestamp,
        value: (!is_deletion).then_some(version.value),
        expires_at: version.expires_at,
    }
}

#[cfg(test)]
mod tests {
    use millstream_base::{Offset, Timestamp};

    use super::*;

    fn scan(keys: &[&str], next: Option<&str>) -> KeyScan {
        let entries = keys.iter().map(|key| KeyEntry {
            key: key.as_bytes().to_vec(),
            version: KeyVersion {
                offset: Offset(0),
                timestamp: Timestamp(0),
                value: "v".into(),
                headers: Vec::new(),
                expires_at: None,
            },
        });
        KeyScan {
            entries: entries.collect(),
            next: next.map(|key| key.as_bytes().to_vec()),
        }
    }

    #[track_caller]
    fn check(scans: [KeyScan; 2], limit: usize, keys: &[&str], next: Option<&str>) {
        check_bytes(scans, limit, usize::MAX, keys, next);
    }

    #[track_caller]
    fn check_bytes(
        scans: [KeyScan; 2],
        limit: usize,
        bytes_max: usize,
        keys: &[&str],
        next: Option<&str>,
    ) {
        let mut merged = Merged::default();
        for (partition, scan) in (0..).zip(scans) {
            merged.add(partition, scan);
            merged.shorten(limit, bytes_max);
        }
        let page = merged.page();
        let found: Vec<&[u8]> = page.entries.iter().map(|(key, _)| &key[..]).collect();
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
        assert_eq!(
            (found, page.next.as_deref()),
            (keys, next.map(str::as_bytes))
        );
    }

    #[test]
    fn a_page_ends_before_the_first_key_that_another_partition_may_precede() {
        let scans = || [scan(&["a", "d"], None), scan(&["b", "c"], None)];
        check(scans(), 9, &["a", "b", "c", "d"], None);
        check(scans(), 4, &["a", "b", "c", "d"], None);
        check(scans(), 2, &["a", "b"], Some("c"));
        // The second partition may have keys between c and d.
        let scans = || [scan(&["a", "e"], Some("f")), scan(&["b", "c"], Some("d"))];
        check(scans(), 9, &["a", "b", "c"], Some("d"));
        check(scans(), 1, &["a"], Some("b"));
        check(
            [scan(&[], None), scan(&["x"], Some("y"))],
            1,
            &["x"],
            Some("y"),
        );
        check([scan(&[], None), scan(&[], None)], 1, &[], None);
    }

    #[test]
    fn a_page_ends_when_it_has_enough_bytes() {
        // Each key and its value are 2 bytes.
        let scans = || [scan(&["a", "d"], None), scan(&["b", "c"], None)];
        check_bytes(scans(), 9, 8, &["a", "b", "c", "d"], None);
        check_bytes(scans(), 9, 5, &["a", "b"], Some("c"));
        check_bytes(scans(), 9, 0, &["a"], Some("b"));
        let scans = || [scan(&["x"], None), scan(&["a"], Some("b"))];
        check_bytes(scans(), 9, 0, &["a"], Some("b"));
    }
}
