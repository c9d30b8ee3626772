//! Checkpoints as objects of a log.

use std::io::Read;

use millstream_flow::{BoxError, Checkpoints, PartKey};
use millstream_log::{Log, LogError};

use super::{check_len, named_part, part_name};

/// Keeps the checkpoints of a flow as objects of a log: `<flow>.checkpoint.<number>.<rank>`.
#[derive(Clone)]
pub struct LogCheckpoints {
    log: Log,
    prefix: String,
}

impl LogCheckpoints {
    /// For the flow of this name.
    pub fn new(log: &Log, flow: &str) -> LogCheckpoints {
        LogCheckpoints {
            log: log.clone(),
            prefix: prefix(flow),
        }
    }

    fn name(&self, key: PartKey) -> String {
        format!("{}{}", self.prefix, part_name(key))
    }
}

/// Returns the prefix of the names of a flow's parts.
pub fn prefix(flow: &str) -> String {
    format!("{flow}.checkpoint.")
}

/// The part that an object is, by its name.
pub fn part_of(prefix: &str, object: &str) -> Result<PartKey, BoxError> {
    let key = object.strip_prefix(prefix).and_then(named_part);
    key.ok_or_else(|| {
        format!("object {object} is not a part of a checkpoint; delete it, or give it another name")
            .into()
    })
}

impl Checkpoints for LogCheckpoints {
    fn put(&self, key: PartKey, part: &[u8]) -> Result<(), BoxError> {
        check_len("it", part.len() as u64)?;
        let name = self.name(key);
        let mut put = self.log.put_object(&name, &mut &*part);
        if let Err(LogError::Exists { .. }) = put {
            // Of an attempt that came to its end after all.
            self.log.delete_object(&name)?;
            put = self.log.put_object(&name, &mut &*part);
        }
        put?;
        Ok(())
    }

    fn get(&self, key: PartKey) -> Result<Vec<u8>, BoxError> {
        let name = self.name(key);
        let mut object = self.log.get_object(&name, None)?;
        let bytes = object.info().bytes;
        check_len(&format!("object {name}"), bytes)?;
        let mut part = vec![0; usize::try_from(bytes)?];
        object.read_exact(&mut part)?;
        Ok(part)
    }

    fn list(&self) -> Result<Vec<PartKey>, BoxError> {
        let objects = self.log.objects(&self.prefix)?.into_iter();
        objects
            .map(|object| part_of(&self.prefix, &object.name))
            .collect()
    }

    fn remove(&self, key: PartKey) -> Result<(), BoxError> {
        Ok(self.log.delete_object(&self.name(key))?)
    }

    fn describe(&self, key: PartKey) -> String {
        format!("object {}", self.name(key))
    }
}
