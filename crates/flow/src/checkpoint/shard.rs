//! The format of a shard: one rank's share of a checkpoint.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::checkpoint::writer_bell::WriterBell;
use crate::error::BoxError;
use crate::stage::saved::Saved;

/// An element that is made on the thread that writes the shard.
pub trait Deferred: Send {
    /// Writes the element's changes to its changelog. It waits on the bell. The writer calls it again after an error, also
    /// after an error of another element.
    fn write(&self, bell: &Arc<WriterBell>) -> Result<(), BoxError>;

    /// Prepares the written changes for the checkpoint, and returns the bytes that name them.
    fn prepare(&self) -> Result<(Vec<u8>, Written), BoxError>;
}

/// The changes that were written for a checkpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Written {
    pub changes: u64,
    /// Of their keys and values.
    pub bytes: u64,
}

/// A shard of which some elements are made while the flow goes on.
#[derive(Default)]
pub struct PendingShard {
    pub saved: Saved,
    /// The deferred elements that are not prepared yet.
    deferred: VecDeque<(String, Box<dyn Deferred>)>,
    has_prepared: bool,
    /// The sum over the prepared ones.
    pub written: Written,
    /// As in [`StoredShard`](crate::checkpoint::decision_signal::StoredShard::passed).
    pub passed: Vec<Option<i64>>,
}

impl PendingShard {
    pub fn defer(&mut self, element: String, deferred: Box<dyn Deferred>) {
        self.deferred.push_back((element, deferred));
    }

    /// Writes all deferred elements, and then prepares them: so one that cannot be written leaves none prepared that
    /// waits for this checkpoint. After an error it continues with those that are not prepared.
    ///
    /// # Errors
    /// The first error of them; those behind it are not made.
    pub fn complete(&mut self, bell: &Arc<WriterBell>) -> Result<(), BoxError> {
        for (_, deferred) in &self.deferred {
            deferred.write(bell)?;
        }
        while let Some((element, deferred)) = self.deferred.front() {
            let (name, Written { changes, bytes }) = deferred.prepare()?;
            self.written.changes += changes;
            self.written.bytes += bytes;
            self.saved.put(element.clone(), name);
            self.deferred.pop_front();
            self.has_prepared = true;
        }
        Ok(())
    }

    /// Whether a deferred element is prepared, and waits for this checkpoint; also if there is none.
    pub fn is_prepared(&self) -> bool {
        self.has_prepared || self.deferred.is_empty()
    }
}

/// The identity of the flow that a shard is of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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

/// A shard of a format that this program does not read; older shards of the flow have it, too.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct OtherVersion(String);

impl OtherVersion {
    pub fn new(found: u8, read: u8) -> OtherVersion {
        OtherVersion(format!(
            "its format has version {found}, and this program reads {read}"
        ))
    }
}

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
        return Err(OtherVersion::new(*version, VERSION).into());
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
        return Err(OtherVersion(format!(
            "its format has version {SEEDED_VERSION}, whose keys are on other ranks than those of version {VERSION}; \
             only a flow on one rank resumes from it"
        ))
        .into());
    }
    Ok((Head { flow, ranks, run }, rest))
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

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
    fn a_shard_round_trips() {
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

    /// Fails once in a call.
    struct Failing {
        name: &'static str,
        calls: Arc<Mutex<Vec<String>>>,
        fails: Mutex<Option<&'static str>>,
    }

    impl Failing {
        fn call(&self, call: &'static str) -> Result<(), BoxError> {
            self.calls.lock().push(format!("{call} {}", self.name));
            match self.fails.lock().take_if(|fails| *fails == call) {
                Some(_) => Err("trouble".into()),
                None => Ok(()),
            }
        }
    }

    impl Deferred for Failing {
        fn write(&self, _: &Arc<WriterBell>) -> Result<(), BoxError> {
            self.call("write")
        }

        fn prepare(&self) -> Result<(Vec<u8>, Written), BoxError> {
            let written = Written {
                changes: 1,
                bytes: 10,
            };
            self.call("prepare").map(|()| (self.name.into(), written))
        }
    }

    #[test]
    fn sinks_are_prepared_once_and_after_all_sinks_are_written() {
        for (fails, is_prepared, expected) in [
            (
                "write",
                false,
                "write a, write b, write a, write b, prepare a, prepare b",
            ),
            (
                "prepare",
                true,
                "write a, write b, prepare a, prepare b, write b, prepare b",
            ),
        ] {
            let calls = Arc::new(Mutex::default());
            let mut shard = PendingShard::default();
            for (name, fails) in [("a", None), ("b", Some(fails))] {
                let failing = Failing {
                    name,
                    calls: Arc::clone(&calls),
                    fails: Mutex::new(fails),
                };
                shard.defer(name.to_owned(), Box::new(failing));
            }
            let bell = Arc::default();
            shard.complete(&bell).unwrap_err();
            assert_eq!(shard.is_prepared(), is_prepared);
            shard.complete(&bell).unwrap();
            assert_eq!(calls.lock().join(", "), expected);
            assert_eq!(shard.saved.get("b").unwrap(), b"b");
            assert_eq!((shard.written.changes, shard.written.bytes), (2, 20));
        }
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
