//! Records of ledgers.

use std::fmt;

use bytes::Bytes;

/// What is so under a key from now on. It may be secret, and is not printed.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Record {
    /// What it is about.
    pub key: Bytes,
    /// What is so; `None` if there is nothing any more.
    pub value: Option<Bytes>,
}

impl Record {
    /// How much it says.
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

/// Why stored bytes are not what belongs in a ledger. Does not repeat them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The bytes end too early.
    #[error("a record is cut off at {field}")]
    CutOff {
        /// What is missing.
        field: &'static str,
    },
    /// There are more bytes than there should be.
    #[error("a record has {bytes} bytes behind its end")]
    TooLong {
        /// How many.
        bytes: usize,
    },
    /// What should be text is not.
    #[error("a record's {field} is not UTF-8")]
    NotText {
        /// What it is.
        field: &'static str,
    },
    /// Something is out of its bounds.
    #[error("a record's {field} is invalid")]
    Invalid {
        /// What it is.
        field: &'static str,
    },
    /// A number has no meaning here; perhaps a later program wrote it.
    #[error("a record's {field} is {value}, which this program does not know")]
    Unknown {
        /// What the number is.
        field: &'static str,
        /// The number.
        value: i64,
    },
    /// What must never be forgotten was removed.
    #[error("the record of {field} is removed")]
    Removed {
        /// What it is.
        field: &'static str,
    },
}

impl RecordError {
    pub(crate) fn unknown(field: &'static str, value: impl Into<i64>) -> RecordError {
        let value = value.into();
        RecordError::Unknown { field, value }
    }
}
