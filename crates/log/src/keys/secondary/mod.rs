//! Secondary keys: an index of a lane for each name that the stream's setting [`SECONDARY`] has.
//!
//! The index is a [`KeyIndex`](crate::keys::index::KeyIndex) of its own, with a table and with key files of its own: its
//! keys are [`entry`] keys, a secondary key and the record's key. It follows from the log alone, as the index of keys does, so it
//! is made when the setting gets a name, and its files go when the setting loses it. Look-ups by key never wait for it.
//!
//! An index names candidates: it has entries of older versions, too. A look-up asks the index of keys for the newest version of
//! each candidate, and returns that one if it has the secondary key.

pub mod entry;
pub mod name;

use millstream_record::{Record, SECONDARY_KEYS_MAX};

use self::name::{SecondaryName, is_secondary_name};

/// The longest secondary key that an index has.
pub const SECONDARY_KEY_BYTES_MAX: usize = 4 << 10;

/// Returns why the secondary keys of a new record, with their names, are refused; `None` if they are right.
pub fn refuse_secondary_keys<'a>(
    keys: impl Iterator<Item = (&'a str, &'a [u8])>,
) -> Option<String> {
    let mut count = 0;
    let mut why = None;
    for (name, key) in keys {
        count += 1;
        if !is_secondary_name(name) {
            why.get_or_insert_with(|| {
                format!("{name:?} is no name of secondary keys: a name has 1 to 64 letters, digits, _ and -")
            });
        }
        let bytes = key.len();
        if bytes > SECONDARY_KEY_BYTES_MAX {
            why.get_or_insert_with(|| {
                format!(
                    "a secondary key named {name:?} has {bytes} bytes, and may have at most {SECONDARY_KEY_BYTES_MAX}"
                )
            });
        }
    }
    match count > SECONDARY_KEYS_MAX {
        true => Some(format!(
            "the entry has {count} secondary keys, and may have at most {SECONDARY_KEYS_MAX}"
        )),
        false => why,
    }
}

/// Returns the secondary keys of a record that an index of this name has: of the first [`SECONDARY_KEYS_MAX`] of the record,
/// whatever their names are.
pub fn indexed_keys<'a>(
    record: &Record<'a>,
    name: &SecondaryName,
) -> impl Iterator<Item = &'a [u8]> {
    let keys = record.secondary_keys().take(SECONDARY_KEYS_MAX);
    let named = keys.filter(move |(other, _)| *other == name.as_bytes());
    named
        .map(|(_, key)| key)
        .filter(|key| key.len() <= SECONDARY_KEY_BYTES_MAX)
}

/// Returns whether an index of this name leaves out secondary keys of a record: it has too many, or too long ones.
pub fn is_left_out(record: &Record<'_>, name: &SecondaryName) -> bool {
    let mut keys = record.secondary_keys().enumerate();
    keys.any(|(n, (other, key))| {
        other == name.as_bytes() && (n >= SECONDARY_KEYS_MAX || key.len() > SECONDARY_KEY_BYTES_MAX)
    })
}
