//! The secondary keys of keys that are put.

use millstream_log::{SECONDARY_KEY_BYTES_MAX, is_secondary_name};
use millstream_record::{Header, SECONDARY_KEYS_MAX, secondary_key};
use millstream_wire::ResponseError;
use millstream_wire::native::KeyToPut;

use crate::native::refused::Refused;

/// The bytes of the lengths in a header, at most.
const LENGTHS_BYTES: usize = 10;

/// The secondary keys of an entry, with the names of their headers.
pub struct Secondary<'a>(Vec<(String, &'a [u8])>);

impl<'a> Secondary<'a> {
    pub fn of(entry: &'a KeyToPut) -> Secondary<'a> {
        let keys = entry.secondary.iter();
        let keys = keys.map(|key| (secondary_key(&key.name), &key.key[..]));
        Secondary(keys.collect())
    }

    /// Returns them as headers of the record.
    pub fn headers(&self) -> impl Iterator<Item = Header<'_>> {
        self.0.iter().map(|(name, key)| Header {
            name: name.as_bytes(),
            value: Some(key),
        })
    }

    /// Returns the bytes that they take in the record, at most.
    pub fn bytes(&self) -> usize {
        let keys = self.0.iter();
        keys.map(|(name, key)| LENGTHS_BYTES + name.len() + key.len())
            .sum()
    }
}

/// Checks the secondary keys of an entry.
pub fn check_secondary(entry: &KeyToPut) -> Result<(), Refused> {
    let refused = |why| Err(Refused::new(ResponseError::InvalidRequest, why));
    let count = entry.secondary.len();
    if count > SECONDARY_KEYS_MAX {
        return refused(format!(
            "the entry has {count} secondary keys, and may have at most {SECONDARY_KEYS_MAX}"
        ));
    }
    if count > 0 && entry.value.is_none() && entry.add.is_none() {
        return refused("the entry deletes its key, so it cannot have secondary keys".to_owned());
    }
    for key in &entry.secondary {
        if !is_secondary_name(&key.name) {
            return refused(format!(
                "{:?} is no name of secondary keys: a name has 1 to 64 letters, digits, _ and -",
                &*key.name
            ));
        }
        let bytes = key.key.len();
        if bytes > SECONDARY_KEY_BYTES_MAX {
            return refused(format!(
                "a secondary key named {:?} has {bytes} bytes, and may have at most {SECONDARY_KEY_BYTES_MAX}",
                &*key.name
            ));
        }
    }
    Ok(())
}
