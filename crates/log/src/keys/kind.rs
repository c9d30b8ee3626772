//! The kinds of key indexes and key files.

use twox_hash::XxHash64;

use crate::keys::secondary::entry;
use crate::keys::secondary::name::SecondaryName;

/// The kind of keys in an index or a key file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyKind {
    /// The keys.
    Primary,
    /// The secondary keys of this name, each with the record's key: see [`entry`].
    Secondary(SecondaryName),
}

impl KeyKind {
    /// Returns the number that a key file has of it.
    pub fn id(&self) -> u64 {
        match self {
            KeyKind::Primary => 0,
            KeyKind::Secondary(name) => XxHash64::oneshot(0, name.as_bytes()),
        }
    }

    /// Returns the record's key of a key in the index; `None` if there is none.
    pub fn record_key<'a>(&self, key: &'a [u8]) -> Option<&'a [u8]> {
        match self {
            KeyKind::Primary => Some(key),
            KeyKind::Secondary(_) => entry::key_of(key),
        }
    }
}
