//! A version of a key: a copy of its record.

use bytes::Bytes;
use millstream_base::{Offset, Timestamp};
use millstream_record::{Life, Record};

/// The newest committed version of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyVersion {
    /// The offset of its record. Of two versions of a key, the newer one has the higher offset.
    pub offset: Offset,
    /// The timestamp of its record.
    pub timestamp: Timestamp,
    /// The value.
    pub value: Bytes,
    /// The headers of its record, in the producer's order.
    pub headers: Vec<KeyHeader>,
    /// When the value expires; `None` if it never does.
    pub expires_at: Option<Timestamp>,
}

/// A header of a key's record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyHeader {
    /// The name; by convention UTF-8, which is not checked.
    pub name: Bytes,
    /// The value.
    pub value: Option<Bytes>,
}

impl KeyVersion {
    /// The life of the value. Of a [copy](copy_of).
    pub(crate) fn life(&self) -> Life {
        Life {
            timestamp: self.timestamp,
            expires: self.expires_at,
        }
    }
}

/// Copies a record that has this value. The copy has the expiry that the record names.
pub fn copy_of(record: &Record<'_>, value: &[u8]) -> KeyVersion {
    let headers = record.headers().map(|header| KeyHeader {
        name: Bytes::copy_from_slice(header.name),
        value: header.value.map(Bytes::copy_from_slice),
    });
    KeyVersion {
        offset: record.offset,
        timestamp: record.timestamp,
        value: Bytes::copy_from_slice(value),
        headers: headers.collect(),
        expires_at: Life::of(record).expires,
    }
}
