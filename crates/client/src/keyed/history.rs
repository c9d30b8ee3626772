//! Older versions of keys.

use std::collections::VecDeque;

use bytes::Bytes;
use millstream_base::{Offset, Timestamp};
use millstream_wire::native::KeyHistoryRequest;

use super::{KeyVersion, KeyedStream, LookUp, READ};
use crate::client::text;
use crate::error::ClientError;

/// The most versions of one answer.
const PAGE_VERSIONS: u32 = 1_000;

/// About the bytes that a history holds ahead.
const PAGE_BYTES: u32 = 1 << 20;

/// A stored version of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PastVersion {
    /// The partition of the key.
    pub partition: u32,
    /// The version: the offset of the record in its partition.
    pub version: Offset,
    /// The time of the record.
    pub timestamp: Timestamp,
    /// The value; `None` if the version deletes the key.
    pub value: Option<Bytes>,
    /// When the value ends or has ended; `None` if it has no end.
    pub expires_at: Option<Timestamp>,
}

/// The stored versions of a key, newest first, page by page.
#[derive(Debug)]
pub struct KeyHistory {
    stream: KeyedStream,
    key: Bytes,
    /// The versions of the last page that were not returned yet.
    ready: VecDeque<PastVersion>,
    /// Where the next page begins; `None` at the end.
    next: Option<Option<Offset>>,
    lacks_older: bool,
}

impl KeyedStream {
    /// Returns the version that a key had at a version: the newest one that is not behind it. `None` if the key was absent there.
    ///
    /// ```no_run
    /// # async fn example(client: millstream_client::Client) -> Result<(), millstream_client::ClientError> {
    /// let prices = client.keyed("prices");
    /// let sold = prices.put("tea", "4.20").await?;
    /// prices.put("tea", "4.50").await?;
    /// let price = prices.get_at("tea", sold.version).await?.expect("compaction has not dropped it");
    /// assert_eq!(&price.value[..], b"4.20");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`get`](Self::get), and with [`ResponseError::OffsetOutOfRange`](crate::ResponseError::OffsetOutOfRange) if the server
    /// no longer has the version: compaction has dropped it, or retention has removed it.
    pub async fn get_at(
        &self,
        key: impl AsRef<[u8]>,
        version: Offset,
    ) -> Result<Option<KeyVersion>, ClientError> {
        let look_up = LookUp {
            at: &[version],
            ..LookUp::default()
        };
        let found = self.get_versions(&[key], look_up).await?;
        Ok(found.into_iter().next().flatten())
    }

    /// Returns the stored versions of a key, newest first, with its deletions. Sends nothing yet.
    pub fn history(&self, key: impl AsRef<[u8]>) -> KeyHistory {
        KeyHistory {
            stream: self.clone(),
            key: Bytes::copy_from_slice(key.as_ref()),
            ready: VecDeque::new(),
            next: Some(None),
            lacks_older: false,
        }
    }
}

impl KeyHistory {
    /// Returns the next older version; `None` at the end. After an error, the next call goes on behind the last version.
    ///
    /// # Errors
    /// When the stream does not exist or is not keyed, or the server does not answer.
    pub async fn next(&mut self) -> Result<Option<PastVersion>, ClientError> {
        while self.ready.is_empty()
            && let Some(before) = self.next
        {
            self.read(before).await?;
        }
        Ok(self.ready.pop_front())
    }

    /// Returns whether there may have been further versions that are not stored any more. Only known at the end, and else `false`.
    pub fn lacks_older(&self) -> bool {
        self.lacks_older && self.ready.is_empty()
    }

    async fn read(&mut self, before: Option<Offset>) -> Result<(), ClientError> {
        let stream = &self.stream;
        let request = KeyHistoryRequest {
            stream: text(&stream.name),
            key: self.key.clone(),
            before,
            versions_max: PAGE_VERSIONS,
            bytes_max: PAGE_BYTES,
        };
        let answer = stream.ask(request).await?;
        stream.check(READ, answer.error_code, answer.error_message.as_deref())?;
        let goes_back = match (answer.next, before) {
            (Some(next), Some(before)) => next < before,
            _ => true,
        };
        if !goes_back {
            return Err(stream.violation(
                "a page of a history ends at the version that it begins with".to_owned(),
            ));
        }
        let partition = answer.partition;
        let versions = answer.versions.into_iter();
        self.ready.extend(versions.map(|found| PastVersion {
            partition,
            version: found.version,
            timestamp: found.timestamp,
            value: found.value,
            expires_at: found.expires_at,
        }));
        self.next = answer.next.map(Some);
        self.lacks_older = answer.lacks_older;
        Ok(())
    }
}
