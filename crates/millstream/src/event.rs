//! Events: the items of a stream with their times and keys.

use std::fmt::{self, Debug};

use millstream_base::Timestamp;
use millstream_base::key::encode_key;
use millstream_connect::EncodedRecord;
use millstream_flow::Parts;
use millstream_flow::windows::Key;
use serde::{Deserialize, Serialize};

/// An item of a stream, with its event time and the key that it is written with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event<T> {
    /// The event time: the record's, unless the stream has its own.
    pub time: Timestamp,
    /// The bytes of the key; `None` for an item that has none.
    pub key: Option<Box<[u8]>>,
    /// The item.
    pub item: T,
}

/// An event is its own single part, since an operator that may fail processes parts.
impl<T: Debug + 'static> Parts for Event<T> {
    type Part<'a> = Event<T>;

    fn for_each_part(&self, mut visit: impl FnMut(&Event<T>)) {
        visit(self);
    }

    /// Without the time and the bytes of the key.
    fn show(event: &Event<T>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        event.item.fmt(f)
    }
}

/// An event whose item is encoded.
pub(crate) type EncodedEvent = Event<Vec<u8>>;

/// Makes a record of an encoded event.
pub(crate) fn record_of(event: &EncodedEvent, record: &mut EncodedRecord) {
    set_time_and_key(event, record);
    record.value.extend_from_slice(&event.item);
}

/// Makes a record of an event whose item is encoded, or of one without an item, which deletes its key.
pub(crate) fn upsert_of(event: &Event<Option<Vec<u8>>>, record: &mut EncodedRecord) {
    set_time_and_key(event, record);
    match &event.item {
        Some(value) => record.value.extend_from_slice(value),
        None => record.is_deletion = true,
    }
}

fn set_time_and_key<T>(event: &Event<T>, record: &mut EncodedRecord) {
    record.timestamp = event.time;
    if let Some(key) = &event.key {
        record.key.extend_from_slice(key);
        record.has_empty_key = key.is_empty();
    }
}

/// Returns the canonical bytes of a key, by which records of it are found.
pub(crate) fn key_bytes<K: Key>(key: &K) -> Option<Box<[u8]>> {
    let mut bytes = Vec::new();
    encode_key(key, &mut bytes).ok()?;
    Some(bytes.into())
}
