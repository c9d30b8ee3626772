//! The bytes of a score within the key of an entry.

use std::fmt;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use smallvec::SmallVec;

use super::Rank;

/// Bytes that compare as scores do. Two numbers need no memory beside it.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScoreBytes(SmallVec<[u8; 16]>);

impl ScoreBytes {
    pub fn of(score: &impl Rank) -> ScoreBytes {
        let mut bytes = Vec::new();
        score.encode(&mut bytes);
        ScoreBytes(SmallVec::from_slice(&bytes))
    }
}

impl Serialize for ScoreBytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for ScoreBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ScoreBytes, D::Error> {
        struct Bytes;

        impl<'de> Visitor<'de> for Bytes {
            type Value = ScoreBytes;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("the bytes of a score")
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<ScoreBytes, E> {
                Ok(ScoreBytes(SmallVec::from_slice(bytes)))
            }

            // JSON has bytes as a list.
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<ScoreBytes, A::Error> {
                let mut bytes = SmallVec::new();
                while let Some(byte) = seq.next_element()? {
                    bytes.push(byte);
                }
                Ok(ScoreBytes(bytes))
            }
        }

        deserializer.deserialize_bytes(Bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;

    use millstream_base::key::{decode_key, encode_key};

    use super::*;

    #[test]
    fn bytes_of_scores_are_read_as_they_are_written() {
        let scores = [
            ScoreBytes::default(),
            ScoreBytes::of(&(7_u64, Reverse(0_i64))),
            ScoreBytes::of(&"a text of more than sixteen bytes".to_owned()),
        ];
        for score in scores {
            let key = (score.clone(), 3_u32);
            let mut bytes = Vec::new();
            encode_key(&key, &mut bytes).unwrap();
            assert_eq!(decode_key(&bytes), Ok(key));
            let saved = postcard::to_stdvec(&score).unwrap();
            assert_eq!(postcard::from_bytes(&saved), Ok(score.clone()));
            let json = serde_json::to_string(&score).unwrap();
            assert_eq!(serde_json::from_str::<ScoreBytes>(&json).unwrap(), score);
        }
    }
}
