//! Look-ups by secondary keys: the keys of all partitions, merged.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use millstream_base::KeyRange;
use millstream_wire::native::{
    self, FindKeysRequest, FindKeysResponse, SecondaryPlace, SecondaryRange,
};

use super::{KeyVersion, KeyedStream, READ, version};
use crate::client::text;
use crate::error::ClientError;

/// The most keys of one answer.
const PAGE_KEYS: u32 = 1_000;

/// About the bytes that a look-up holds ahead, over all partitions.
const AHEAD_BYTES: usize = 4 << 20;

/// The fewest bytes that one request asks for.
const PAGE_BYTES_MIN: usize = 64 << 10;

/// The most ranges of one request.
const RANGES_MAX: usize = 256;

/// A key that has a secondary key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundKey {
    /// The secondary key.
    pub secondary: Bytes,
    /// The key.
    pub key: Bytes,
    /// Its newest version.
    pub newest: KeyVersion,
}

/// A look-up of keys by their secondary keys, page by page of each partition.
///
/// Each key is returned in the version that was its newest when the page was read. A key that has the secondary key from the
/// beginning to the end is returned. One whose secondary key changes meanwhile may be missing or returned twice.
#[derive(Debug)]
pub struct SecondaryScan {
    stream: KeyedStream,
    index: String,
    /// Those to come, the next ones last.
    ranges: Vec<Vec<KeyRange>>,
    /// The pages in the present ranges; none before the partitions are known.
    partitions: Vec<Pages>,
    /// The partitions whose next key is not among the heads yet.
    to_fill: Vec<usize>,
    /// The first key of each partition that has one, behind its secondary key.
    heads: BTreeMap<(Bytes, Bytes, usize), native::KeyVersion>,
    present: Vec<KeyRange>,
}

/// The pages of one partition.
#[derive(Debug)]
struct Pages {
    /// The keys of the last page that are not among the heads.
    keys: VecDeque<native::FoundKey>,
    next: Next,
}

/// Where a partition's next page begins.
#[derive(Debug)]
enum Next {
    Begin,
    At(SecondaryPlace),
    End,
}

impl KeyedStream {
    /// Returns the keys that have one of these secondary keys, from the index of this name, which the stream's setting
    /// `millstream.keyed.secondary` must have. They come in the order of the secondary keys, then of the keys, over all partitions.
    ///
    /// ```no_run
    /// # async fn example(client: millstream_client::Client) -> Result<(), millstream_client::ClientError> {
    /// let users = client.keyed("users");
    /// users.put_with("ann", "{}", &[("city", b"Namur")]).await?;
    /// let mut found = users.find("city", &["Namur", "Turin"]);
    /// while let Some(user) = found.next().await? {
    ///     println!("{:?} lives in {:?}", user.key, user.secondary);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn find<K: AsRef<[u8]>>(&self, index: &str, secondary: &[K]) -> SecondaryScan {
        let mut keys: Vec<&[u8]> = secondary.iter().map(AsRef::as_ref).collect();
        keys.sort_unstable();
        keys.dedup();
        SecondaryScan::new(
            self.clone(),
            index,
            keys.into_iter().map(KeyRange::key).collect(),
        )
    }

    /// Returns a page of the keys of one partition that have a secondary key of an index, from the key `from` on: `limit` of them at
    /// most, and about `bytes_max` bytes. Beside the page, the key from which the next one goes on; `None` at the end. A page may
    /// be empty and not the last one.
    ///
    /// # Errors
    /// As [`SecondaryScan::next`].
    pub async fn find_page(
        &self,
        partition: u32,
        (index, secondary): (&str, &[u8]),
        from: &[u8],
        limit: u32,
        bytes_max: u32,
    ) -> Result<(Vec<FoundKey>, Option<Bytes>), ClientError> {
        let range = KeyRange::key(secondary);
        let from = SecondaryPlace {
            secondary: Bytes::copy_from_slice(secondary),
            key: Bytes::copy_from_slice(from),
        };
        let request = FindKeysRequest {
            stream: text(&self.name),
            partition,
            index: text(index),
            ranges: vec![range_of(&range)],
            from: Some(from),
            keys_max: limit,
            bytes_max,
        };
        let answer = self.find_keys(request).await?;
        let keys = answer.keys.into_iter().map(|found| FoundKey {
            secondary: found.secondary,
            key: found.key,
            newest: version(partition, found.newest),
        });
        Ok((keys.collect(), answer.next.map(|next| next.key)))
    }

    /// Asks for a page, which makes progress.
    async fn find_keys(&self, request: FindKeysRequest) -> Result<FindKeysResponse, ClientError> {
        let from = request.from.clone();
        let answer = self.ask(request).await?;
        self.check(READ, answer.error_code, answer.error_message.as_deref())?;
        let place = |place: &SecondaryPlace| (place.secondary.clone(), place.key.clone());
        let next = answer.next.as_ref().map(place);
        if answer.keys.is_empty() && next.is_some() && next <= from.as_ref().map(place) {
            let what = "a page of a look-up by secondary key is empty, and the next one begins at the same key";
            return Err(self.violation(what.to_owned()));
        }
        Ok(answer)
    }

    /// As [`find`](Self::find), for a range of secondary keys.
    pub fn scan_by(&self, index: &str, range: KeyRange) -> SecondaryScan {
        let ranges = Some(range).filter(|range| !range.is_empty());
        SecondaryScan::new(self.clone(), index, ranges.into_iter().collect())
    }
}

impl SecondaryScan {
    fn new(stream: KeyedStream, index: &str, ranges: Vec<KeyRange>) -> SecondaryScan {
        let parts = ranges.chunks(RANGES_MAX).rev().map(<[KeyRange]>::to_vec);
        SecondaryScan {
            stream,
            index: index.to_owned(),
            ranges: parts.collect(),
            partitions: Vec::new(),
            to_fill: Vec::new(),
            heads: BTreeMap::new(),
            present: Vec::new(),
        }
    }

    /// Returns the next key; `None` at the end. After an error, the next call goes on behind the last key.
    ///
    /// # Errors
    /// When the stream does not exist, is not keyed or lacks the index, or the server does not answer.
    pub async fn next(&mut self) -> Result<Option<FoundKey>, ClientError> {
        loop {
            self.fill().await?;
            if let Some(((secondary, key, partition), newest)) = self.heads.pop_first() {
                self.to_fill.push(partition);
                return Ok(Some(FoundKey {
                    secondary,
                    key,
                    newest: version(partition as u32, newest),
                }));
            }
            if self.ranges.is_empty() {
                return Ok(None);
            }
            self.begin().await?;
        }
    }

    /// Begins with the next ranges, in the partitions that the stream has now.
    async fn begin(&mut self) -> Result<(), ClientError> {
        let (client, name) = (&self.stream.client, &self.stream.name);
        client.refresh(&[name]).await?;
        let count = client.topic(name).await?.leaders.len();
        self.present = self.ranges.pop().unwrap_or_default();
        let pages = (0..count).map(|_| Pages {
            keys: VecDeque::new(),
            next: Next::Begin,
        });
        self.partitions = pages.collect();
        self.to_fill = (0..count).collect();
        Ok(())
    }

    /// Makes the first key of each partition a head.
    async fn fill(&mut self) -> Result<(), ClientError> {
        while let Some(&partition) = self.to_fill.last() {
            while self.partitions[partition].keys.is_empty() {
                let from = match &self.partitions[partition].next {
                    Next::End => break,
                    Next::Begin => None,
                    Next::At(place) => Some(place.clone()),
                };
                self.partitions[partition] = self.read(partition, from).await?;
            }
            if let Some(found) = self.partitions[partition].keys.pop_front() {
                let place = (found.secondary, found.key, partition);
                self.heads.insert(place, found.newest);
            }
            self.to_fill.pop();
        }
        Ok(())
    }

    /// Reads a page of a partition.
    async fn read(
        &self,
        partition: usize,
        from: Option<SecondaryPlace>,
    ) -> Result<Pages, ClientError> {
        let stream = &self.stream;
        let bytes_max = (AHEAD_BYTES / self.partitions.len()).max(PAGE_BYTES_MIN);
        let ranges = self.present.iter().map(range_of);
        let request = FindKeysRequest {
            stream: text(&stream.name),
            partition: partition as u32,
            index: text(&self.index),
            ranges: ranges.collect(),
            from,
            keys_max: PAGE_KEYS,
            bytes_max: bytes_max as u32,
        };
        let answer = stream.find_keys(request).await?;
        Ok(Pages {
            keys: answer.keys.into(),
            next: answer.next.map_or(Next::End, Next::At),
        })
    }
}

fn range_of(range: &KeyRange) -> SecondaryRange {
    SecondaryRange {
        from: Bytes::copy_from_slice(&range.from),
        until: range.until.as_deref().map(Bytes::copy_from_slice),
    }
}
