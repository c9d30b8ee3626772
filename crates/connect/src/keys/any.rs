//! The records of a keyed stream by their keys, in the process or of a server.

use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use millstream_base::{KeyRange, Timestamp};
use millstream_flow::{BoxError, KeyLookup};
use millstream_log::{KeyVersion, SecondaryPosition};
use millstream_record::SECONDARY_KEY_PREFIX;

use super::log::{LogKeys, again};
use super::server::ServerKeys;

/// The most bytes of one page of keys, about.
const PAGE_BYTES: u32 = 1 << 20;

/// Looks up keys of a keyed stream of a log in the process, or of a server.
pub struct AnyKeys(Place);

enum Place {
    Log(LogKeys),
    Server(ServerKeys),
}

/// The newest version of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Newest {
    /// The time of its record.
    pub time: Timestamp,
    /// The value.
    pub value: Bytes,
    /// The value of the first header of the name that was asked for.
    pub header: Option<Bytes>,
}

impl Newest {
    fn of(version: KeyVersion, header: &[u8]) -> Newest {
        let mut headers = version.headers.into_iter();
        Newest {
            time: version.timestamp,
            value: version.value,
            header: headers.find(|it| it.name == header).and_then(|it| it.value),
        }
    }
}

/// Some keys that have a secondary key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyPage {
    /// The keys in their order, each with its newest version, whose header is the first one of the index. A server does not
    /// return headers here: its keys come without a version.
    pub keys: Vec<(Vec<u8>, Option<Newest>)>,
    /// The key from which the next page goes on; `None` at the end. A page may have no keys and a `next`.
    pub next: Option<Vec<u8>>,
}

impl From<LogKeys> for AnyKeys {
    fn from(keys: LogKeys) -> AnyKeys {
        AnyKeys(Place::Log(keys))
    }
}

impl From<ServerKeys> for AnyKeys {
    fn from(keys: ServerKeys) -> AnyKeys {
        AnyKeys(Place::Server(keys))
    }
}

impl AnyKeys {
    /// Returns the number of partitions of the stream.
    ///
    /// # Errors
    /// When the server does not answer.
    pub fn partition_count(&self) -> Result<u32, BoxError> {
        let count = match &self.0 {
            Place::Log(keys) => Ok(keys.partitions().len() as u32),
            Place::Server(keys) => keys.wait(&AtomicBool::new(false), keys.partition_count()),
        };
        count.map_err(|error| self.error(&error))
    }

    /// Returns the newest committed version of each key, with its first header of this name; `None` for a key that has none.
    ///
    /// # Errors
    /// When it cannot be read, or `is_stopped` is set before; the error names the stream.
    pub fn newest(
        &self,
        keys: &[Vec<u8>],
        header: &[u8],
        is_stopped: &AtomicBool,
    ) -> Result<Vec<Option<Newest>>, BoxError> {
        let found = match &self.0 {
            Place::Log(log) => log.get(keys, |_, version| Ok(Newest::of(version, header))),
            Place::Server(server) => server.wait(is_stopped, server.get(keys)).map(|found| {
                let found = found.into_iter().map(|found| {
                    let found = found?;
                    let mut headers = found.headers.into_iter();
                    Some(Newest {
                        time: found.newest.timestamp,
                        header: headers.find(|it| it.name == header).and_then(|it| it.value),
                        value: found.newest.value,
                    })
                });
                found.collect()
            }),
        };
        found.map_err(|error| self.error(&error))
    }

    /// Returns the keys of a partition whose newest version has a secondary key, by the index of this name: at most `limit` of them,
    /// and only those from the key `from` on.
    ///
    /// # Errors
    /// When they cannot be read, or `is_stopped` is set before; the error names the stream.
    pub fn find(
        &self,
        partition: u32,
        (index, secondary): (&str, &[u8]),
        from: &[u8],
        limit: usize,
        is_stopped: &AtomicBool,
    ) -> Result<KeyPage, BoxError> {
        let page = match &self.0 {
            Place::Log(keys) => {
                let range = KeyRange::key(secondary);
                let from = SecondaryPosition {
                    secondary: secondary.to_vec(),
                    key: from.to_vec(),
                };
                let partition = &keys.partitions()[partition as usize];
                let bytes_max = PAGE_BYTES as usize;
                let found =
                    again(|| partition.find_by(index, &range, Some(&from), limit, bytes_max));
                let header = format!("{SECONDARY_KEY_PREFIX}{index}");
                let newest = |version| Some(Newest::of(version, header.as_bytes()));
                found.map_err(BoxError::from).map(|found| {
                    let keys = found.entries.into_iter();
                    KeyPage {
                        keys: keys.map(|it| (it.key, newest(it.version))).collect(),
                        next: found.next.map(|it| it.key),
                    }
                })
            }
            Place::Server(keys) => {
                let found = keys.find(
                    partition,
                    (index, secondary),
                    from,
                    limit as u32,
                    PAGE_BYTES,
                );
                keys.wait(is_stopped, found)
            }
        };
        page.map_err(|error| self.error(&error))
    }

    fn error(&self, error: &BoxError) -> BoxError {
        format!("{}: {error}", self.name()).into()
    }
}

impl KeyLookup for AnyKeys {
    fn name(&self) -> String {
        match &self.0 {
            Place::Log(keys) => format!("stream {}", keys.stream().name()),
            Place::Server(keys) => format!("stream {}", keys.stream()),
        }
    }

    fn get(
        &self,
        keys: &[Vec<u8>],
        is_stopped: &AtomicBool,
    ) -> Result<Vec<Option<Vec<u8>>>, BoxError> {
        let found = self.newest(keys, b"", is_stopped)?.into_iter();
        Ok(found
            .map(|found| found.map(|found| found.value.into()))
            .collect())
    }
}
