//! The secondary keys of keys that are put.

use millstream_log::refuse_secondary_keys;
use millstream_record::{Header, secondary_key};
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
    let keys = entry.secondary.iter();
    let keys = keys.map(|key| (&*key.name, &key.key[..]));
    match refuse_secondary_keys(keys) {
        Some(why) => refused(why),
        None if entry.secondary.is_empty() || entry.value.is_some() || entry.add.is_some() => {
            Ok(())
        }
        None => refused("the entry deletes its key, so it cannot have secondary keys".to_owned()),
    }
}
