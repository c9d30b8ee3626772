//! Checkpoints as objects of a log.

use std::io::Read;

use millstream_flow::{BoxError, Checkpoints, ShardKey};
use millstream_log::{Log, LogError};

use super::{check_len, named_shard, shard_name};

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

    fn name(&self, key: ShardKey) -> String {
        format!("{}{}", self.prefix, shard_name(key))
    }
}

/// Returns the prefix of the names of a flow's shards.
pub fn prefix(flow: &str) -> String {
    format!("{flow}.checkpoint.")
}

/// Returns the key of the shard in the object of this name.
pub fn shard_of(prefix: &str, object: &str) -> Result<ShardKey, BoxError> {
    let key = object.strip_prefix(prefix).and_then(named_shard);
    key.ok_or_else(|| {
        format!(
            "object {object} is not a shard of a checkpoint; delete it, or give it another name"
        )
        .into()
    })
}

impl Checkpoints for LogCheckpoints {
    fn put(&self, key: ShardKey, shard: &[u8]) -> Result<(), BoxError> {
        check_len("it", shard.len() as u64)?;
        let name = self.name(key);
        let mut put = self.log.put_object(&name, &mut &*shard);
        if let Err(LogError::Exists { .. }) = put {
            // An earlier attempt has stored it after all.
            self.log.delete_object(&name)?;
            put = self.log.put_object(&name, &mut &*shard);
        }
        put?;
        Ok(())
    }

    fn get(&self, key: ShardKey) -> Result<Vec<u8>, BoxError> {
        let name = self.name(key);
        let mut object = self.log.get_object(&name, None)?;
        let bytes = object.info().bytes;
        check_len(&format!("object {name}"), bytes)?;
        let mut shard = vec![0; usize::try_from(bytes)?];
        object.read_exact(&mut shard)?;
        Ok(shard)
    }

    fn list(&self) -> Result<Vec<ShardKey>, BoxError> {
        let objects = self.log.objects(&self.prefix)?.into_iter();
        objects
            .map(|object| shard_of(&self.prefix, &object.name))
            .collect()
    }

    fn remove(&self, key: ShardKey) -> Result<(), BoxError> {
        Ok(self.log.delete_object(&self.name(key))?)
    }

    fn describe(&self, key: ShardKey) -> String {
        format!("object {}", self.name(key))
    }
}
