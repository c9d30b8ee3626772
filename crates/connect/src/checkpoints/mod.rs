//! Stores of checkpoints: a directory, a log, or a server.

mod changelog;
mod changelog_clock;
mod directory;
mod log_changelog;
mod log_reader;
mod log_watch;
mod objects;
mod record_stream;
mod server;
mod server_changelog;
mod server_reader;
mod server_records;
mod server_watch;

use millstream_flow::{BoxError, ShardKey};

pub use changelog::ChangelogError;
pub use directory::{CheckpointDir, CheckpointDirError};
pub use objects::LogCheckpoints;
pub use server::ServerCheckpoints;

/// The largest shard, in bytes, that a store writes or reads. No flow has a larger one, since each shard was in memory.
pub const SHARD_BYTES_MAX: u64 = 4 << 30;

/// Returns the name of a shard behind the common prefix of its flow's shards.
fn shard_name(key: ShardKey) -> String {
    let ShardKey {
        checkpoint,
        rank,
        run,
    } = key;
    match run {
        0 => format!("{checkpoint}.{rank}"),
        _ => format!("{checkpoint}.{rank}.{run:016x}"),
    }
}

/// Returns the key of the shard of this name; `None` if it is the name of none.
fn named_shard(name: &str) -> Option<ShardKey> {
    let (checkpoint, rank) = name.split_once('.')?;
    let (rank, run) = match rank.split_once('.') {
        Some((rank, run)) => (rank, u64::from_str_radix(run, 16).ok()?),
        None => (rank, 0),
    };
    let key = ShardKey {
        checkpoint: checkpoint.parse().ok()?,
        rank: rank.parse().ok()?,
        run,
    };
    // "+1" and "01" are numbers, too.
    (shard_name(key) == name).then_some(key)
}

fn check_len(what: &str, bytes: u64) -> Result<(), BoxError> {
    match bytes <= SHARD_BYTES_MAX {
        true => Ok(()),
        false => Err(format!(
            "{what} has {bytes} bytes, and a shard of a checkpoint {SHARD_BYTES_MAX} at most"
        )
        .into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parsing_accepts_only_the_file_names_of_shards() {
        let key = ShardKey {
            checkpoint: 12,
            rank: 300,
            run: 0,
        };
        let of_run = ShardKey { run: 0xab, ..key };
        for (key, name) in [(key, "12.300"), (of_run, "12.300.00000000000000ab")] {
            assert_eq!(shard_name(key), name);
            assert_eq!(named_shard(name), Some(key));
        }
        for other in [
            "",
            "12",
            "12.",
            ".1",
            "+1.0",
            "01.0",
            "1.2.3",
            "1.2.0000000000000000",
            "1.2.00000000000000AB",
            "1.2.00000000000000ab.1",
            "1.-1",
            "1.4294967296",
        ] {
            assert_eq!(named_shard(other), None, "{other}");
        }
    }
}
