//! Records of ledgers.

use std::fmt;

use bytes::Bytes;

/// The new state of a key. The state may be secret, so `Debug` does not print it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Record {
    /// The key.
    pub key: Bytes,
    /// The state; `None` removes the key.
    pub value: Option<Bytes>,
}

impl Record {
    /// The bytes of key and value.
    pub(super) fn len(&self) -> usize {
        self.key.len() + self.value.as_ref().map_or(0, Bytes::len)
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record")
            .field("key", &self.key)
            .field("value_bytes", &self.value.as_ref().map(Bytes::len))
            .finish()
    }
}

/// The reason why stored bytes are not a valid record of a ledger. Never repeats the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The bytes end too early.
    #[error("a record is cut off at {field}")]
    CutOff {
        /// The missing field.
        field: &'static str,
    },
    /// There are more bytes than there should be.
    #[error("a record has {bytes} bytes too many")]
    TooLong {
        /// The number of extra bytes.
        bytes: usize,
    },
    /// A text field is not UTF-8.
    #[error("a record's {field} is not UTF-8")]
    NotText {
        /// The field.
        field: &'static str,
    },
    /// A field is out of its bounds.
    #[error("a record's {field} is invalid")]
    Invalid {
        /// The field.
        field: &'static str,
    },
    /// A number has no meaning here; perhaps a later program wrote it.
    #[error("a record's {field} is {value}, which this program does not know")]
    Unknown {
        /// The field that holds the number.
        field: &'static str,
        /// The number.
        value: i64,
    },
    /// A tombstone removes a record that must never be removed.
    #[error("a tombstone removes the record of {field}, which must stay")]
    Removed {
        /// The record's kind.
        field: &'static str,
    },
}

impl RecordError {
    pub(crate) fn unknown(field: &'static str, value: impl Into<i64>) -> RecordError {
        let value = value.into();
        RecordError::Unknown { field, value }
    }
}
