//! Reads sequences, maps, tuples and structs of keys.

use serde::de::{DeserializeSeed, MapAccess, SeqAccess};

use super::decode::Decoder;
use super::error::KeyError;

/// The parts of a tuple or struct.
pub struct Parts<'a, 'b> {
    pub decoder: Decoder<'a, 'b>,
    pub left: usize,
}

impl<'de> SeqAccess<'de> for Parts<'_, '_> {
    type Error = KeyError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, KeyError> {
        let Some(left) = self.left.checked_sub(1) else {
            return Ok(None);
        };
        self.left = left;
        seed.deserialize(self.decoder.inner(left == 0, false))
            .map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

/// The elements of a sequence, or the entries of a map.
pub struct Sequence<'a, 'b> {
    pub decoder: Decoder<'a, 'b>,
    pub has_ended: bool,
    /// The encoded key of the last entry of a map; empty before the first one.
    pub key: &'a [u8],
}

impl Sequence<'_, '_> {
    /// Returns whether the sequence has ended here or before.
    pub fn ends(&mut self) -> bool {
        self.has_ended = self.has_ended || self.decoder.input.ends(self.decoder.is_last);
        self.has_ended
    }
}

impl<'de> SeqAccess<'de> for Sequence<'_, '_> {
    type Error = KeyError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, KeyError> {
        if self.ends() {
            return Ok(None);
        }
        let start = self.decoder.input.at;
        let element = seed.deserialize(self.decoder.inner(true, true))?;
        // A type that reads nothing would have elements without end.
        match self.decoder.input.at > start {
            true => Ok(Some(element)),
            false => Err(KeyError::Parts),
        }
    }
}

impl<'de> MapAccess<'de> for Sequence<'_, '_> {
    type Error = KeyError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, KeyError> {
        if self.ends() {
            return Ok(None);
        }
        let start = self.decoder.input.at;
        let mut entry = self.decoder.inner(false, true);
        entry.begin()?;
        let key = seed.deserialize(entry)?;
        let input = &*self.decoder.input;
        // With its mark, so that no key is empty.
        let encoded = &input.bytes[start..input.at];
        if encoded <= self.key {
            return Err(KeyError::Unexpected {
                at: start,
                expected: "the entries of a map in the order of their keys",
            });
        }
        self.key = encoded;
        Ok(Some(key))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, KeyError> {
        seed.deserialize(self.decoder.inner(false, false))
    }
}
