//! Places where flows keep their checkpoints.

mod directory;
mod objects;
mod server;

use millstream_flow::{BoxError, PartKey};

pub use directory::{CheckpointDir, CheckpointDirError};
pub use objects::LogCheckpoints;
pub use server::ServerCheckpoints;

/// The largest part, in bytes, that is written or read: no flow has a larger one, since a part was
/// in memory.
pub const PART_BYTES_MAX: u64 = 4 << 30;

/// Returns the name of a part behind the common prefix of its flow's parts.
fn part_name(key: PartKey) -> String {
    format!("{}.{}", key.checkpoint, key.rank)
}

/// The part of this name, if it is one.
fn named_part(name: &str) -> Option<PartKey> {
    let (checkpoint, rank) = name.split_once('.')?;
    let key = PartKey {
        checkpoint: checkpoint.parse().ok()?,
        rank: rank.parse().ok()?,
    };
    // "+1" and "01" are numbers, too.
    (part_name(key) == name).then_some(key)
}

fn check_len(what: &str, bytes: u64) -> Result<(), BoxError> {
    match bytes <= PART_BYTES_MAX {
        true => Ok(()),
        false => Err(format!(
            "{what} has {bytes} bytes, and a part of a checkpoint {PART_BYTES_MAX} at most"
        )
        .into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_known_by_their_names_and_nothing_else_is_taken_for_one() {
        let key = PartKey {
            checkpoint: 12,
            rank: 300,
        };
        assert_eq!(part_name(key), "12.300");
        assert_eq!(named_part("12.300"), Some(key));
        for other in [
            "",
            "12",
            "12.",
            ".1",
            "+1.0",
            "01.0",
            "1.2.3",
            "1.-1",
            "1.4294967296",
        ] {
            assert_eq!(named_part(other), None, "{other}");
        }
    }
}
