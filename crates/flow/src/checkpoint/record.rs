//! The format of the record that makes a checkpoint complete, in stores that keep one.

use serde::{Deserialize, Serialize};

use crate::checkpoint::shard::{Head, OtherVersion};
use crate::error::BoxError;

/// The digest that a rank announces for a stored shard: it identifies the shard's bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardDigest {
    /// The shard's size.
    pub bytes: u64,
    /// Its CRC-32C.
    pub crc32c: u32,
}

impl ShardDigest {
    pub fn of(shard: &[u8]) -> ShardDigest {
        ShardDigest {
            bytes: shard.len() as u64,
            crc32c: millstream_base::crc32c(shard),
        }
    }
}

/// A checkpoint that is complete: its shards, one of each rank.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    pub head: Head,
    pub checkpoint: u64,
    /// By rank.
    pub shards: Vec<ShardDigest>,
}

/// Version of the format.
const VERSION: u8 = 1;

/// `VERSION`, the CRC-32C of all that follows (little-endian), then [`Record`] as postcard writes it.
pub fn encode(record: &Record) -> Result<Vec<u8>, BoxError> {
    let mut bytes = vec![VERSION, 0, 0, 0, 0];
    postcard::to_io(record, &mut bytes)?;
    let checksum = millstream_base::crc32c(&bytes[5..]);
    bytes[1..5].copy_from_slice(&checksum.to_le_bytes());
    Ok(bytes)
}

pub fn decode(bytes: &[u8]) -> Result<Record, BoxError> {
    let [version, a, b, c, d, body @ ..] = bytes else {
        return Err("it is cut short".into());
    };
    if *version != VERSION {
        return Err(OtherVersion::new(*version, VERSION).into());
    }
    if u32::from_le_bytes([*a, *b, *c, *d]) != millstream_base::crc32c(body) {
        return Err("its checksum is wrong".into());
    }
    let record: Record = postcard::from_bytes(body)?;
    match record.shards.len() == record.head.ranks as usize {
        true => Ok(record),
        false => Err(format!(
            "it names {} shards of {} ranks",
            record.shards.len(),
            record.head.ranks
        )
        .into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record {
            head: Head {
                flow: "ads".to_owned(),
                ranks: 2,
                run: 5,
            },
            checkpoint: 7,
            shards: vec![ShardDigest::of(b"one"), ShardDigest::of(b"another")],
        }
    }

    #[test]
    fn a_checkpoint_record_round_trips() {
        assert_eq!(decode(&encode(&record()).unwrap()).unwrap(), record());
    }

    #[test]
    fn a_damaged_record_and_one_of_another_version_are_refused() {
        let bytes = encode(&record()).unwrap();
        for len in 0..bytes.len() {
            assert!(decode(&bytes[..len]).is_err());
        }
        for index in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[index] ^= 1;
            assert!(decode(&damaged).is_err());
        }
        let mut newer = bytes;
        newer[0] = VERSION + 1;
        let error = decode(&newer).unwrap_err();
        assert!(error.is::<OtherVersion>(), "{error}");
    }

    #[test]
    fn a_record_that_does_not_name_a_shard_of_each_rank_is_refused() {
        let mut short = record();
        short.shards.pop();
        let error = decode(&encode(&short).unwrap()).unwrap_err().to_string();
        assert_eq!(error, "it names 1 shards of 2 ranks");
    }
}
