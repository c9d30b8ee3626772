//! A small table that lives in a stream: how the log stores facts about itself.
//!
//! Each change is a record, key → JSON value or nothing. A start reads the stream from its
//! beginning. Now and then the whole table is written anew, into a group of its own, and the groups
//! before are removed.

pub mod write;

use std::collections::BTreeMap;
use std::sync::Arc;

use millstream_base::{Offset, Position, Timestamp};
use millstream_record::{ChunkBuilder, ChunkHeader, Chunks, Compression, Decompressor, check};
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{LogError, Result};
use crate::lane::LaneState;
use crate::lane::append::Appended;
use crate::read::catch_up::windows::WINDOW_BYTES;
use crate::read::context::ReadContext;
use crate::read::group::read_group;

#[derive(Debug)]
pub struct Table {
    lane: Arc<LaneState>,
    state: Mutex<TableState>,
}

#[derive(Debug, Default)]
struct TableState {
    entries: BTreeMap<String, Vec<u8>>,
    /// Bytes of keys and values in `entries`.
    live_bytes: u64,
    /// Bytes of the stream.
    stored_bytes: u64,
}

impl TableState {
    fn apply(&mut self, key: &str, value: Option<&[u8]>) {
        let size = |key: &str, value: &[u8]| (key.len() + value.len()) as u64;
        let old = match value {
            Some(value) => {
                self.live_bytes += size(key, value);
                self.entries.insert(key.to_owned(), value.to_owned())
            }
            None => self.entries.remove(key),
        };
        if let Some(old) = old {
            self.live_bytes -= size(key, &old);
        }
    }

    /// Changes an entry if `append` takes the chunk of the change. Returns the offset behind that chunk.
    fn put<T: Serialize>(
        &mut self,
        now: Timestamp,
        key: &str,
        value: Option<&T>,
        append: impl FnOnce(&ChunkHeader, &[u8]) -> Result<Appended>,
    ) -> Result<Offset> {
        let value = value.map(|value| {
            serde_json::to_vec(value).expect("the log's own entries have string keys")
        });
        let mut builder = ChunkBuilder::new(Compression::None);
        builder.push(now, Some(key.as_bytes()), value.as_deref(), &[])?;
        let chunk = builder.finish(None)?;
        let appended = append(&check(chunk)?, chunk)?;
        self.stored_bytes += chunk.len() as u64;
        self.apply(key, value.as_deref());
        Ok(appended.next_offset)
    }
}

impl Table {
    /// Reads the table from its lane.
    pub fn open(reads: &ReadContext, lane: Arc<LaneState>) -> Result<Table> {
        let mut state = TableState::default();
        let mut decompressor = Decompressor::default();
        for group in lane.groups() {
            let mut at = Position(0);
            while let Some(slice) = read_group(reads, &lane, &group, at, WINDOW_BYTES)? {
                let broken = |what: String| LogError::corrupted(group.path(&reads.dir), at, what);
                for chunk in Chunks::trusted(&slice) {
                    let chunk = chunk.map_err(|error| broken(error.to_string()))?;
                    let records = chunk
                        .records(&mut decompressor)
                        .map_err(|error| broken(error.to_string()))?;
                    for record in records {
                        let record = record.map_err(|error| broken(error.to_string()))?;
                        let key = record.key.and_then(|key| std::str::from_utf8(key).ok());
                        let key = key.ok_or_else(|| broken("a record has no key".to_owned()))?;
                        state.apply(key, record.value);
                    }
                }
                at = at.plus(slice.len() as u64);
                state.stored_bytes += slice.len() as u64;
            }
        }
        Ok(Table {
            lane,
            state: Mutex::new(state),
        })
    }

    /// The lane that holds it.
    pub fn lane(&self) -> &Arc<LaneState> {
        &self.lane
    }

    /// The value of a key.
    ///
    /// # Errors
    /// When the stored value is not a `T`.
    pub fn get<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>> {
        let state = self.state.lock();
        let value = state.entries.get(key);
        value.map(|value| self.decode(key, value)).transpose()
    }

    /// Entries whose keys start with `prefix`, in the order of the keys.
    ///
    /// # Errors
    /// When the stored value is not a `T`.
    pub fn list<T: DeserializeOwned>(&self, prefix: &str) -> Result<Vec<(String, T)>> {
        let state = self.state.lock();
        state
            .entries
            .range(prefix.to_owned()..)
            .take_while(|(key, _)| key.starts_with(prefix))
            .map(|(key, value)| Ok((key.clone(), self.decode(key, value)?)))
            .collect()
    }

    fn decode<T: DeserializeOwned>(&self, key: &str, value: &[u8]) -> Result<T> {
        serde_json::from_slice(value).map_err(|error| LogError::Corrupted {
            path: self.lane.stream.name.clone().into(),
            position: 0,
            what: format!("the entry {key} cannot be read: {error}"),
        })
    }
}
