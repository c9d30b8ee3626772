//! The format of a shard: one rank's share of a checkpoint.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::checkpoint::writer_bell::WriterBell;
use crate::error::BoxError;

/// A rank's shard of a checkpoint: for each element of the flow the bytes that it resumes from.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    elements: BTreeMap<String, Vec<u8>>,
}

impl Saved {
    pub fn put(&mut self, element: String, bytes: Vec<u8>) {
        self.elements.insert(element, bytes);
    }

    /// # Errors
    /// When there is no such element.
    pub fn get(&self, element: &str) -> Result<&[u8], BoxError> {
        let bytes = self.elements.get(element);
        bytes.map(Vec::as_slice).ok_or_else(|| {
            format!("it holds nothing of \"{element}\": it is of another flow").into()
        })
    }
}

/// Makes the bytes of an element on the thread that writes the shard. It waits on the bell.
pub type Deferred = Box<dyn FnOnce(&Arc<WriterBell>) -> Result<Vec<u8>, BoxError> + Send>;

/// A shard of which some elements are made while the flow goes on.
#[derive(Default)]
pub struct PendingShard {
    pub saved: Saved,
    deferred: Vec<(String, Deferred)>,
}

impl PendingShard {
    pub fn defer(&mut self, element: String, bytes: Deferred) {
        self.deferred.push((element, bytes));
    }

    /// Makes the deferred elements.
    ///
    /// # Errors
    /// The first error of them; those behind it are not made.
    pub fn complete(mut self, bell: &Arc<WriterBell>) -> Result<Saved, BoxError> {
        for (element, bytes) in self.deferred {
            self.saved.put(element, bytes(bell)?);
        }
        Ok(self.saved)
    }
}

/// The identity of the flow that a shard is of.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Head {
    pub flow: String,
    pub ranks: u32,
    /// The run that stored it: a number that its ranks agreed on.
    pub run: u64,
}

/// The same in the version before, where a random seed chose the owners of keys.
#[derive(Serialize, Deserialize)]
struct SeededHead {
    flow: String,
    ranks: u32,
    run: u64,
    seed: u64,
}

/// Version of the format.
const VERSION: u8 = 5;

/// The version of shards whose keys have other owners. One rank owns all keys all the same, so its shards are read.
const SEEDED_VERSION: u8 = 4;

/// `VERSION`, the CRC-32C of all that follows (little-endian), then [`Head`] and [`Saved`], each as postcard writes it.
pub fn encode(head: &Head, saved: &Saved) -> Result<Vec<u8>, BoxError> {
    let mut bytes = vec![VERSION, 0, 0, 0, 0];
    postcard::to_io(head, &mut bytes)?;
    postcard::to_io(saved, &mut bytes)?;
    let checksum = millstream_base::crc32c(&bytes[5..]);
    bytes[1..5].copy_from_slice(&checksum.to_le_bytes());
    Ok(bytes)
}

pub fn decode(bytes: &[u8]) -> Result<(Head, Saved), BoxError> {
    let [version, a, b, c, d, body @ ..] = bytes else {
        return Err("it is cut short".into());
    };
    if ![VERSION, SEEDED_VERSION].contains(version) {
        return Err(
            format!("its format has version {version}, and this program reads {VERSION}").into(),
        );
    }
    if u32::from_le_bytes([*a, *b, *c, *d]) != millstream_base::crc32c(body) {
        return Err("its checksum is wrong".into());
    }
    let (head, rest) = match *version {
        SEEDED_VERSION => seeded_head(body)?,
        _ => postcard::take_from_bytes(body)?,
    };
    Ok((head, postcard::from_bytes(rest)?))
}

fn seeded_head(body: &[u8]) -> Result<(Head, &[u8]), BoxError> {
    let (head, rest) = postcard::take_from_bytes::<SeededHead>(body)?;
    let SeededHead {
        flow, ranks, run, ..
    } = head;
    if ranks > 1 {
        return Err(format!(
            "its format has version {SEEDED_VERSION}, whose keys are on other ranks than those of version {VERSION}; \
             only a flow on one rank resumes from it"
        )
        .into());
    }
    Ok((Head { flow, ranks, run }, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard() -> Vec<u8> {
        let head = Head {
            flow: "ads".to_owned(),
            ranks: 3,
            run: 5,
        };
        let mut saved = Saved::default();
        saved.put("state/counts".to_owned(), vec![1, 2, 3]);
        encode(&head, &saved).unwrap()
    }

    #[test]
    fn a_shard_is_read_as_it_was_written() {
        let (head, saved) = decode(&shard()).unwrap();
        assert_eq!((head.flow.as_str(), head.ranks), ("ads", 3));
        assert_eq!(head.run, 5);
        assert_eq!(saved.get("state/counts").unwrap(), [1, 2, 3]);
        assert!(saved.get("state/others").is_err());
    }

    #[test]
    fn a_shard_with_a_seed_is_read_on_one_rank_and_refused_on_several() {
        let shard = |ranks| {
            let head = SeededHead {
                flow: "ads".to_owned(),
                ranks,
                run: 5,
                seed: 7,
            };
            let mut saved = Saved::default();
            saved.put("state/counts".to_owned(), vec![1, 2, 3]);
            let mut bytes = vec![SEEDED_VERSION, 0, 0, 0, 0];
            postcard::to_io(&head, &mut bytes).unwrap();
            postcard::to_io(&saved, &mut bytes).unwrap();
            let checksum = millstream_base::crc32c(&bytes[5..]);
            bytes[1..5].copy_from_slice(&checksum.to_le_bytes());
            bytes
        };
        let (head, saved) = decode(&shard(1)).unwrap();
        assert_eq!((head.flow.as_str(), head.ranks, head.run), ("ads", 1, 5));
        assert_eq!(saved.get("state/counts").unwrap(), [1, 2, 3]);
        let error = decode(&shard(2)).unwrap_err().to_string();
        assert!(error.contains("version 4"), "{error}");
    }

    #[test]
    fn a_truncated_or_damaged_shard_is_refused() {
        let shard = shard();
        for len in 0..shard.len() {
            assert!(decode(&shard[..len]).is_err());
        }
        for index in 0..shard.len() {
            let mut damaged = shard.clone();
            damaged[index] ^= 1;
            assert!(decode(&damaged).is_err());
        }
    }
}
