//! The keyed streams of a node, over HTTP.

use std::sync::Arc;

use millstream_base::{KeyRange, partition_of_key};
use millstream_broker::KeyReads;
use millstream_log::{KeyScan, KeyVersion, Log, LogError, Stream, StreamPartition};
use millstream_serve::{KeyPage, KeyedStreams, KeyedValue, LookUp, LookUpError};

/// About the most bytes of keys and values in one page, over all partitions.
const PAGE_BYTES: usize = 2 << 20;

/// The keyed streams of a log.
pub struct NodeStreams {
    pub log: Log,
    pub reads: Arc<KeyReads>,
}

impl NodeStreams {
    fn stream(&self, name: &str) -> Result<Stream, LookUpError> {
        let stream = self.log.stream(name).map_err(failed)?;
        match stream.is_internal() {
            true => Err(LookUpError::UnknownStream(name.to_owned())),
            false => Ok(stream),
        }
    }
}

impl KeyedStreams for NodeStreams {
    fn get(&self, stream: &str, key: Vec<u8>) -> LookUp<Option<KeyedValue>> {
        let (stream, reads) = (self.stream(stream), Arc::clone(&self.reads));
        Box::pin(async move {
            let stream = stream?;
            let partition = partition_of_key(&key, stream.partition_count() as usize) as u32;
            let owner = stream.partition(partition).map_err(failed)?;
            reads.catch_up([&owner]).await;
            let found = reads.run(move || stream.get(&key)).await;
            let found = found.ok_or_else(ended)?.map_err(failed)?;
            Ok(found.map(|version| keyed_value(partition, version)))
        })
    }

    fn scan(&self, stream: &str, range: KeyRange, limit: usize) -> LookUp<KeyPage> {
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
}

/// Returns the first keys of a range over all partitions.
fn page(
    partitions: &[StreamPartition],
    range: &KeyRange,
    limit: usize,
) -> Result<KeyPage, LogError> {
    let bytes_max = PAGE_BYTES / partitions.len().max(1);
    let scans = partitions.iter().map(|partition| {
        let scan = partition.scan(range, limit, bytes_max)?;
        Ok((partition.index(), scan))
    });
    Ok(merge(scans.collect::<Result<_, LogError>>()?, limit))
}

/// Merges the first keys of each partition. A page ends before the first key that a partition has left out.
fn merge(scans: Vec<(u32, KeyScan)>, limit: usize) -> KeyPage {
    let end = scans.iter().filter_map(|(_, scan)| scan.next.clone()).min();
    let entries = scans.into_iter().flat_map(|(partition, scan)| {
        let entries = scan.entries.into_iter();
        entries.map(move |entry| (entry.key, keyed_value(partition, entry.version)))
    });
    let mut entries: Vec<(Vec<u8>, KeyedValue)> = entries.collect();
    entries.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
    let before_end = |(key, _): &(Vec<u8>, KeyedValue)| end.as_ref().is_none_or(|end| key < end);
    let count = entries.partition_point(before_end).min(limit);
    let left_out = entries.get(count).map(|(key, _)| key.clone());
    let next = left_out.into_iter().chain(end).min();
    entries.truncate(count);
    KeyPage { entries, next }
}

fn keyed_value(partition: u32, version: KeyVersion) -> KeyedValue {
    KeyedValue {
        partition,
        version: version.offset,
        timestamp: version.timestamp,
        value: version.value,
    }
}

fn failed(error: LogError) -> LookUpError {
    match error {
        LogError::UnknownStream { name } => LookUpError::UnknownStream(name),
        LogError::NotKeyed { .. } => LookUpError::NotKeyed(error.to_string()),
        LogError::ReadBudget | LogError::DecompressionBusy { .. } => {
            LookUpError::Busy(error.to_string())
        }
        error => LookUpError::Failed(error.to_string()),
    }
}

/// The error of a look-up that ended without a result.
fn ended() -> LookUpError {
    LookUpError::Failed("the key was not looked up: see the log of the node".to_owned())
}

#[cfg(test)]
mod tests {
    use millstream_base::{Offset, Timestamp};
    use millstream_log::KeyEntry;

    use super::*;

    fn scan(keys: &[&str], next: Option<&str>) -> KeyScan {
        let entries = keys.iter().map(|key| KeyEntry {
            key: key.as_bytes().to_vec(),
            version: KeyVersion {
                offset: Offset(0),
                timestamp: Timestamp(0),
                value: "v".into(),
                headers: Vec::new(),
            },
        });
        KeyScan {
            entries: entries.collect(),
            next: next.map(|key| key.as_bytes().to_vec()),
        }
    }

    #[track_caller]
    fn check(scans: [KeyScan; 2], limit: usize, keys: &[&str], next: Option<&str>) {
        let page = merge((0..).zip(scans).collect(), limit);
        let found: Vec<&[u8]> = page.entries.iter().map(|(key, _)| &key[..]).collect();
        let keys: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
        assert_eq!(
            (found, page.next.as_deref()),
            (keys, next.map(str::as_bytes))
        );
    }

    #[test]
    fn a_page_ends_before_the_first_key_that_is_not_in_it() {
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
}
