//! The encoding of entries: in changelogs a canonical key and a value, in shards of checkpoints postcard's format.

use millstream_base::key::{decode_key, encode_key};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;

use crate::error::BoxError;
use crate::state::lifetimes::{LifetimeHead, Lifetimes};
use crate::state::value_table::{Dated, LifetimeSpec};
use crate::state::values::{Shared, Value};
use crate::windows::{Key, text_of};

/// The format of the values in a changelog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// Other programs read it, and the type of the values may change as long as it reads the stored ones.
    Json,
    /// Postcard's format, which costs less: for state that an operator keeps for itself.
    Postcard,
}

impl Encoding {
    /// Appends a value.
    fn write<T: Serialize>(self, value: &T, bytes: Vec<u8>) -> Result<Vec<u8>, BoxError> {
        Ok(match self {
            Encoding::Json => {
                let mut bytes = bytes;
                serde_json::to_writer(&mut bytes, value)?;
                bytes
            }
            Encoding::Postcard => postcard::to_extend(value, bytes)?,
        })
    }

    /// Reads a value, of which nothing may be left over.
    fn read<T: DeserializeOwned>(self, bytes: &[u8]) -> Result<T, BoxError> {
        Ok(match self {
            Encoding::Json => serde_json::from_slice(bytes)?,
            Encoding::Postcard => match postcard::take_from_bytes(bytes)? {
                (value, []) => value,
                (_, rest) => {
                    return Err(format!("{} bytes follow behind the value", rest.len()).into());
                }
            },
        })
    }
}

impl<K: Key, V: Value> Shared<K, V> {
    /// Reads a change as a run does that resumes from it.
    pub(super) fn read_change(
        &self,
        key: &K,
        key_bytes: &[u8],
        value: Option<&[u8]>,
    ) -> Result<(), BoxError> {
        check_key(key, decode_key(key_bytes).map_err(BoxError::from))?;
        let value = value.map(|value| self.decode(value));
        value.transpose().map(drop).map_err(not_read)
    }

    /// Decodes a value of the changelog.
    pub(super) fn decode(&self, value: &[u8]) -> Result<Dated<V>, BoxError> {
        Ok(match self.lifetime {
            Some(_) => {
                let (time, value) = self.encoding.read(value)?;
                dated(value, time)
            }
            None => self.encoding.read::<V>(value)?.into(),
        })
    }

    /// Returns the JSON of a value of the changelog, without the time of its last change.
    pub(super) fn decode_json(&self, value: &[u8]) -> Result<Json, BoxError> {
        Ok(match (self.encoding, &self.lifetime) {
            (Encoding::Json, Some(_)) => serde_json::from_slice::<(i64, Json)>(value)?.1,
            (Encoding::Json, None) => serde_json::from_slice(value)?,
            (Encoding::Postcard, _) => serde_json::to_value(self.decode(value)?.value)?,
        })
    }
}

pub(super) fn dated<V>(value: V, time: i64) -> Dated<V> {
    Dated {
        value,
        changed_at: Some(time),
    }
}

/// Reads an entry of a shard as a run does that resumes from it.
pub(super) fn read_saved<K: Key, V: Value>(key: &K, value: &V) -> Result<(), BoxError> {
    let saved = postcard::to_stdvec(&(key, value))?;
    let (read, rest) = postcard::take_from_bytes(&saved).map_err(not_read)?;
    check_key(key, Ok(read))?;
    postcard::from_bytes::<V>(rest).map(drop).map_err(not_read)
}

fn check_key<K: Key>(key: &K, read: Result<K, BoxError>) -> Result<(), BoxError> {
    match read {
        Ok(read) if read == *key => Ok(()),
        Ok(_) => Err(
            "it is another key when it is read again: let the type be read as it is written".into(),
        ),
        Err(error) => Err(not_read(error)),
    }
}

fn not_read(error: impl std::fmt::Display) -> BoxError {
    format!(
        "it was written and cannot be read again: {error}; let its type be read as it is written"
    )
    .into()
}

pub(super) fn of_key<K: Key>(key: &K, error: &BoxError) -> BoxError {
    let text = text_of(key).unwrap_or_else(|| "without a text".to_owned());
    format!("key \"{text}\": {error}").into()
}

/// The JSON text of a floating-point number that is not finite; it equals the text of an absent value.
const NULL: &[u8] = b"null";

/// Reads what a checkpoint has of an element with a lifetime. Earlier versions had the time alone.
pub(super) fn former_head(head: &[u8], spec: &LifetimeSpec) -> Result<LifetimeHead, BoxError> {
    let (time, rest) = postcard::take_from_bytes(head)?;
    if rest.is_empty() {
        let lifetimes = Lifetimes::of(spec.length());
        return Ok(LifetimeHead { time, lifetimes });
    }
    Ok(postcard::from_bytes(head)?)
}

/// A shard of an element with a lifetime: its time, and entries with the times of their last changes.
pub(super) type Saved<E> = (i64, Vec<(i64, E)>);

/// An encoded key, and its encoded value, if it has one.
pub(super) type Encoded = (Vec<u8>, Option<Vec<u8>>);

pub(super) fn encode<K: Key, V: Value>(
    encoding: Encoding,
    (key, value): &(K, Option<Dated<V>>),
) -> Result<Encoded, BoxError> {
    let named = |error: BoxError| of_key(key, &error);
    let mut bytes = Vec::new();
    encode_key(key, &mut bytes).map_err(|error| named(error.into()))?;
    let value = value.as_ref().map(|value| encode_value(encoding, value));
    Ok((bytes, value.transpose().map_err(named)?))
}

fn encode_value<V: Value>(
    encoding: Encoding,
    Dated { value, changed_at }: &Dated<V>,
) -> Result<Vec<u8>, BoxError> {
    let bytes = match changed_at {
        Some(time) => encoding.write(&(time, value), Vec::new())?,
        None => encoding.write(value, Vec::new())?,
    };
    if encoding == Encoding::Json && memchr::memmem::find(&bytes, NULL).is_some() {
        let read = match changed_at {
            Some(_) => encoding.read::<(i64, V)>(&bytes).map(drop),
            None => encoding.read::<V>(&bytes).map(drop),
        };
        read.map_err(|error| format!("its value changes on the way through JSON: {error}"))?;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check<V: Value>(value: V, expected: Result<&str, &str>) {
        let encoded = encode(Encoding::Json, &("tea".to_owned(), Some(value.into())));
        let encoded = encoded.map(|(_, value)| String::from_utf8(value.unwrap()).unwrap());
        match (encoded, expected) {
            (Ok(json), Ok(expected)) => assert_eq!(json, expected),
            (Err(error), Err(expected)) => {
                let error = error.to_string();
                assert!(error.starts_with(expected), "{error}");
            }
            (encoded, _) => panic!("{encoded:?}, not {expected:?}"),
        }
    }

    #[test]
    fn values_are_json_and_values_that_would_not_round_trip_are_refused() {
        check(7_u64, Ok("7"));
        check((1, None::<u64>), Ok("[1,null]"));
        check("null".to_owned(), Ok("\"null\""));
        check(0.1 + 0.2, Ok("0.30000000000000004"));
        check(
            f64::NAN,
            Err("key \"tea\": its value changes on the way through JSON: "),
        );
        check(
            std::collections::BTreeMap::from([((1, 2), 3)]),
            Err("key \"tea\": "),
        );
    }
}
