//! Streams whose records are found by key.

mod change;
mod find;
mod history;
mod hold;
mod scan;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use millstream_base::{KeyRange, Offset, Timestamp};
use millstream_wire::Question;
use millstream_wire::native::{self, GetKeysRequest, GotKey, KeyHeader, KeyToPut};

use crate::client::{Client, text};
use crate::error::ClientError;

pub use change::{ChangedKey, Expected, KeyChange, NewValue};
pub use find::{FoundKey, SecondaryScan};
pub use history::{KeyHistory, PastVersion};
pub use hold::Hold;
pub use scan::{KeyEntry, KeyScan};
pub use watch::{KeyWatch, WatchEvent, WatchFrom, WatchedChange};

/// The most keys of one request.
const KEYS_MAX: usize = 1024;

/// About the most bytes of keys and values in one request; a larger entry is sent alone.
const REQUEST_BYTES: usize = 1 << 20;

/// The rights that requests need.
const READ: &str = "Read";
const WRITE: &str = "Write";
const ALTER: &str = "Alter";
const DESCRIBE: &str = "Describe";

/// The least time for an answer: the first look-up after a start of the server reads whole partitions.
const ANSWER_TIME: Duration = Duration::from_secs(120);

/// A stream whose setting `cleanup.policy` contains `compact`: a table of keys and their newest values.
///
/// ```no_run
/// # async fn example(client: millstream_client::Client) -> Result<(), millstream_client::ClientError> {
/// use millstream_client::KeyRange;
///
/// let users = client.keyed("users");
/// users.put("ann", r#"{"plan":"free"}"#).await?;
/// let ann = users.get("ann").await?.expect("it was put");
/// assert_eq!(&ann.value[..], br#"{"plan":"free"}"#);
///
/// let mut scan = users.scan(KeyRange::prefix("a"));
/// while let Some(entry) = scan.next().await? {
///     println!("{:?}: {:?}", entry.key, entry.newest.value);
/// }
/// users.delete("ann").await?;
/// # Ok(())
/// # }
/// ```
///
/// A look-up returns the newest *committed* version, and sees all earlier acknowledged writes, unless a transaction that
/// began before them is open. The server answers the requests of a client in their order, so a program with slow requests
/// uses [`Client::separate`] for them. No request is repeated: after a lost connection, a value may be stored or not.
#[derive(Debug, Clone)]
pub struct KeyedStream {
    client: Client,
    name: Arc<str>,
}

/// The newest version of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyVersion {
    /// The partition of the key.
    pub partition: u32,
    /// The version: the offset of the record in its partition.
    pub version: Offset,
    /// The time of the record.
    pub timestamp: Timestamp,
    /// The value: a slice of the server's answer.
    pub value: Bytes,
    /// When the value ends; `None` if it has no end.
    pub expires_at: Option<Timestamp>,
}

/// The newest version of a key, with the headers of its record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRecord {
    /// The newest version.
    pub newest: KeyVersion,
    /// The headers, in the producer's order.
    pub headers: Vec<KeyHeader>,
}

/// Further wishes of a look-up of keys.
#[derive(Debug, Clone, Copy, Default)]
struct LookUp<'a> {
    /// The version of each key at which to look; empty for the newest ones.
    at: &'a [Offset],
    /// The hold at which to look.
    hold: Option<&'a str>,
    with_headers: bool,
}

/// The place of a stored version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredVersion {
    /// The partition of the key.
    pub partition: u32,
    /// The version: the offset of the record in its partition.
    pub version: Offset,
}

impl Client {
    /// Returns the records of a stream by their keys. Sends nothing yet.
    pub fn keyed(&self, stream: &str) -> KeyedStream {
        KeyedStream {
            client: self.clone(),
            name: stream.into(),
        }
    }
}

impl KeyedStream {
    /// Returns the stream's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the newest version of a key; `None` if the key is absent.
    ///
    /// # Errors
    /// When the stream does not exist or is not keyed, the key is longer than 1 MiB, or the server does not answer.
    pub async fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<KeyVersion>, ClientError> {
        let found = self.get_many(&[key]).await?;
        Ok(found.into_iter().next().flatten())
    }

    /// Returns the newest versions of keys, in their order; `None` for absent keys.
    ///
    /// # Errors
    /// As [`get`](Self::get), for the first key that has an error.
    pub async fn get_many<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
    ) -> Result<Vec<Option<KeyVersion>>, ClientError> {
        self.get_versions(keys, LookUp::default()).await
    }

    /// As [`get_many`](Self::get_many), with the headers of the records.
    ///
    /// # Errors
    /// As [`get_many`](Self::get_many), and when the server does not know version 1 of GetKeys.
    pub async fn get_many_records<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
    ) -> Result<Vec<Option<KeyRecord>>, ClientError> {
        let look_up = LookUp {
            with_headers: true,
            ..LookUp::default()
        };
        let found = self.get_batch(keys, look_up).await?;
        let records = found.into_iter().map(|got| {
            Some(KeyRecord {
                newest: version(got.partition, got.newest?),
                headers: got.headers,
            })
        });
        Ok(records.collect())
    }

    async fn get_versions<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        look_up: LookUp<'_>,
    ) -> Result<Vec<Option<KeyVersion>>, ClientError> {
        let found = self.get_batch(keys, look_up).await?.into_iter();
        let versions = found.map(|got| Some(version(got.partition, got.newest?)));
        Ok(versions.collect())
    }

    /// Looks up keys with as few requests as they fit into.
    async fn get_batch<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        look_up: LookUp<'_>,
    ) -> Result<Vec<GotKey>, ClientError> {
        let LookUp {
            at,
            hold,
            with_headers,
        } = look_up;
        let mut found = Vec::with_capacity(keys.len());
        while found.len() < keys.len() {
            let rest = &keys[found.len()..];
            let count = batch(rest.iter().map(|key| key.as_ref().len()));
            let keys = rest[..count].iter();
            let request = GetKeysRequest {
                stream: text(&self.name),
                keys: keys
                    .map(|key| Bytes::copy_from_slice(key.as_ref()))
                    .collect(),
                at: at.iter().skip(found.len()).take(count).copied().collect(),
                hold: hold.map(text),
                with_headers,
            };
            let answer = self.ask(request).await?;
            self.check(READ, answer.error_code, answer.error_message.as_deref())?;
            // The answer may have fewer keys, if their values are large.
            self.check_count(answer.keys.len(), 1..=count)?;
            for got in answer.keys {
                self.check(READ, got.error_code, got.error_message.as_deref())?;
                found.push(got);
            }
        }
        Ok(found)
    }

    /// Stores a new version of a key, and returns when it is as durable as the stream's setting asks for.
    ///
    /// # Errors
    /// When the stream does not exist or is not keyed, the key or the value is too large, or the server does not answer.
    pub async fn put(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<StoredVersion, ClientError> {
        self.put_one(key.as_ref(), Some(value.as_ref())).await
    }

    /// Deletes a key: stores a version without a value. An absent key is no error.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub async fn delete(&self, key: impl AsRef<[u8]>) -> Result<StoredVersion, ClientError> {
        self.put_one(key.as_ref(), None).await
    }

    async fn put_one(
        &self,
        key: &[u8],
        value: Option<&[u8]>,
    ) -> Result<StoredVersion, ClientError> {
        let stored = self.put_many(&[(key, value)]).await?;
        stored
            .into_iter()
            .next()
            .unwrap_or(Err(ClientError::Closed))
    }

    /// Stores a new version of each key, in their order; `None` deletes a key. Returns the outcome of each entry: some may
    /// be stored although others are refused.
    ///
    /// # Errors
    /// When the stream does not exist or is not keyed, or the server does not answer. Entries may be stored even so.
    pub async fn put_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        entries: &[(K, Option<V>)],
    ) -> Result<Vec<Result<StoredVersion, ClientError>>, ClientError> {
        let size = |place: usize| {
            let (key, value) = &entries[place];
            key.as_ref().len() + value.as_ref().map_or(0, |value| value.as_ref().len())
        };
        let entry = |place: usize| {
            let (key, value) = &entries[place];
            let value = value.as_ref();
            KeyToPut {
                key: Bytes::copy_from_slice(key.as_ref()),
                value: value.map(|value| Bytes::copy_from_slice(value.as_ref())),
                ..KeyToPut::default()
            }
        };
        let outcomes = self.put_entries(entries.len(), size, entry).await?;
        let stored = outcomes.into_iter().map(|outcome| Ok(outcome?.stored));
        Ok(stored.collect())
    }

    /// Returns the keys of a range, over all partitions in the order of the keys' bytes.
    pub fn scan(&self, range: KeyRange) -> KeyScan {
        KeyScan::new(self.clone(), range)
    }

    async fn ask<Q: Question>(&self, question: Q) -> Result<Q::Answer, ClientError> {
        let after = self.client.config().request_timeout.max(ANSWER_TIME);
        self.client.any().await?.ask_within(question, after).await
    }

    /// Fails with the server's error; `right` is the right that the request needs.
    fn check(&self, right: &str, code: i16, message: Option<&str>) -> Result<(), ClientError> {
        ClientError::check(code, message, format!("stream {}", self.name))
            .map_err(|error| error.needing(right))
    }

    /// Fails if an answer has another number of elements than it may.
    fn check_count(
        &self,
        count: usize,
        expected: std::ops::RangeInclusive<usize>,
    ) -> Result<(), ClientError> {
        match expected.contains(&count) {
            true => Ok(()),
            false => Err(self.violation(format!(
                "it answers for {count} keys, but was asked for {}",
                expected.end()
            ))),
        }
    }

    fn violation(&self, what: String) -> ClientError {
        let address = self.client.config().servers.join(",");
        ClientError::Protocol { address, what }
    }
}

fn version(partition: u32, newest: native::KeyVersion) -> KeyVersion {
    KeyVersion {
        partition,
        version: newest.version,
        timestamp: newest.timestamp,
        value: newest.value,
        expires_at: newest.expires_at,
    }
}

/// Returns how many entries of these sizes go with one request: at least one.
fn batch(sizes: impl Iterator<Item = usize>) -> usize {
    let mut bytes = 0;
    let fitting = sizes.take(KEYS_MAX).take_while(|size| {
        bytes += size;
        bytes <= REQUEST_BYTES
    });
    fitting.count().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_few_keys_and_few_bytes_but_at_least_one_key() {
        assert_eq!(batch([1; 2000].into_iter()), KEYS_MAX);
        assert_eq!(batch([REQUEST_BYTES / 3; 5].into_iter()), 3);
        assert_eq!(batch([2 * REQUEST_BYTES, 1].into_iter()), 1);
    }
}
