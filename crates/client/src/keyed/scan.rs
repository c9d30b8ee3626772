//! Scans: the keys of all partitions, merged in the order of their bytes.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use millstream_base::KeyRange;
use millstream_wire::native::{self, ScanKeysRequest};

use super::{KeyVersion, KeyedStream, READ, version};
use crate::client::text;
use crate::error::ClientError;

/// The most keys of one answer.
const PAGE_KEYS: u32 = 1_000;

/// About the bytes that a scan holds ahead, over all partitions.
const AHEAD_BYTES: usize = 4 << 20;

/// The fewest bytes that one request asks for.
const PAGE_BYTES_MIN: usize = 64 << 10;

/// A key and its newest version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyEntry {
    /// The key.
    pub key: Bytes,
    /// Its newest version.
    pub newest: KeyVersion,
}

/// A scan of a range of keys, page by page of each partition.
///
/// A page has the newest versions of one moment, and the pages are read one after another: a key that changes during the
/// scan is returned once, in an older or a newer version.
#[derive(Debug)]
pub struct KeyScan {
    stream: KeyedStream,
    range: KeyRange,
    /// `None` until the partitions are known.
    partitions: Option<Vec<Pages>>,
    /// The partitions whose next entry is not among the heads yet.
    to_fill: Vec<usize>,
    /// The first entry of each partition that has one, by its key; the partition tells equal keys apart.
    heads: BTreeMap<(Bytes, usize), native::KeyVersion>,
}

/// The pages of one partition.
#[derive(Debug)]
struct Pages {
    /// The entries of the last page, behind the first one.
    entries: VecDeque<(Bytes, native::KeyVersion)>,
    /// The first key of the next page; `None` if there is none.
    next: Option<Bytes>,
}

impl KeyScan {
    pub(super) fn new(stream: KeyedStream, range: KeyRange) -> KeyScan {
        KeyScan {
            stream,
            range,
            partitions: None,
            to_fill: Vec::new(),
            heads: BTreeMap::new(),
        }
    }

    /// Returns the next entry; `None` at the end. After an error, the next call goes on behind the last entry.
    ///
    /// # Errors
    /// When the stream does not exist or is not keyed, or the server does not answer.
    pub async fn next(&mut self) -> Result<Option<KeyEntry>, ClientError> {
        self.fill().await?;
        let Some(((key, partition), newest)) = self.heads.pop_first() else {
            return Ok(None);
        };
        self.to_fill.push(partition);
        Ok(Some(KeyEntry {
            key,
            newest: version(partition as u32, newest),
        }))
    }

    /// Makes the first entry of each partition a head.
    async fn fill(&mut self) -> Result<(), ClientError> {
        let partitions = match &mut self.partitions {
            Some(partitions) => partitions,
            none => {
                let partitions = begin(&self.stream, &self.range).await?;
                self.to_fill = (0..partitions.len()).collect();
                none.insert(partitions)
            }
        };
        let count = partitions.len();
        while let Some(&partition) = self.to_fill.last() {
            let pages = &mut partitions[partition];
            while pages.entries.is_empty()
                && let Some(from) = pages.next.clone()
            {
                *pages = read(&self.stream, &self.range, partition, count, from).await?;
            }
            if let Some((key, newest)) = pages.entries.pop_front() {
                self.heads.insert((key, partition), newest);
            }
            self.to_fill.pop();
        }
        Ok(())
    }
}

/// Returns the partitions of the stream as it is now, each before its first page.
async fn begin(stream: &KeyedStream, range: &KeyRange) -> Result<Vec<Pages>, ClientError> {
    stream.client.refresh(&[&stream.name]).await?;
    let topic = stream.client.topic(&stream.name).await?;
    let from = Bytes::copy_from_slice(&range.from);
    let pages = topic.leaders.iter().map(|_| Pages {
        entries: VecDeque::new(),
        next: Some(from.clone()).filter(|_| !range.is_empty()),
    });
    Ok(pages.collect())
}

/// Reads a page of a partition, one of `count`.
async fn read(
    stream: &KeyedStream,
    range: &KeyRange,
    partition: usize,
    count: usize,
    from: Bytes,
) -> Result<Pages, ClientError> {
    let bytes_max = (AHEAD_BYTES / count).max(PAGE_BYTES_MIN);
    let request = ScanKeysRequest {
        stream: text(&stream.name),
        partition: partition as u32,
        from: from.clone(),
        until: range.until.as_deref().map(Bytes::copy_from_slice),
        keys_max: PAGE_KEYS,
        bytes_max: bytes_max as u32,
    };
    let answer = stream.ask(request).await?;
    stream.check(READ, answer.error_code, answer.error_message.as_deref())?;
    if answer.keys.is_empty() && answer.next.as_ref().is_some_and(|next| *next <= from) {
        return Err(ClientError::Protocol {
            address: stream.client.config().servers.join(","),
            what: "a page of a scan is empty, and the next one begins with the same key".to_owned(),
        });
    }
    let entries = answer.keys.into_iter().map(|key| (key.key, key.newest));
    Ok(Pages {
        entries: entries.collect(),
        next: answer.next,
    })
}
