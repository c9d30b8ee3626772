//! The names of the files in a directory of checkpoints.

use std::fmt;

use millstream_flow::ShardKey;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::checkpoints::{named_shard, shard_name};

/// The file that a run locks. It stays, and names the process that locked it last.
pub const LOCK: &str = "lock";

/// The prefixes of the names of shards and of unfinished shards; each rank has one of the latter.
const SHARD: &str = "checkpoint.";
const UNFINISHED: &str = "unfinished.";

/// A file that the directory may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    Lock,
    /// A shard that was not renamed yet. By its name.
    Unfinished(String),
    Shard(ShardKey),
    State(StateFile),
}

/// A file of a state element on one rank. Its name is `<kind>.<rank>.<element>.<run>.<number>`, so no two runs write the same
/// file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateFile {
    pub kind: Kind,
    pub rank: u32,
    /// As [`element_name`] returns it.
    pub element: String,
    /// A random number that the rank has chosen for its run.
    pub run: u64,
    /// Counts the files of the run.
    pub number: u64,
}

/// The content of a file of a state element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The whole element, as of a checkpoint.
    Base,
    /// Its changes since a base, or since the last file of changes.
    Changes,
}

impl Entry {
    /// Returns the entry of this name; `None` if the directory has no such file.
    pub fn of(name: &str) -> Option<Entry> {
        match name {
            LOCK => Some(Entry::Lock),
            name if name.starts_with(UNFINISHED) => Some(Entry::Unfinished(name.to_owned())),
            name => match name.strip_prefix(SHARD) {
                Some(shard) => named_shard(shard).map(Entry::Shard),
                None => state_file(name).map(Entry::State),
            },
        }
    }
}

/// Returns the name of a shard.
pub fn shard(key: ShardKey) -> String {
    format!("{SHARD}{}", shard_name(key))
}

/// Returns the name of a rank's shard that is not whole yet.
pub fn unfinished(rank: u32) -> String {
    format!("{UNFINISHED}{rank}")
}

/// Returns a state element's name for names of files: bytes other than ASCII letters, digits, `-` and `_` are `%` and two
/// hexadecimal digits.
pub fn element_name(element: &str) -> String {
    const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_');
    utf8_percent_encode(element, ENCODED).to_string()
}

impl fmt::Display for StateFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StateFile {
            kind,
            rank,
            element,
            run,
            number,
        } = self;
        let kind = match kind {
            Kind::Base => "base",
            Kind::Changes => "changes",
        };
        write!(f, "{kind}.{rank}.{element}.{run:016x}.{number}")
    }
}

fn state_file(name: &str) -> Option<StateFile> {
    let parts: Vec<&str> = name.split('.').collect();
    let [kind, rank, element, run, number] = parts[..] else {
        return None;
    };
    let file = StateFile {
        kind: match kind {
            "base" => Kind::Base,
            "changes" => Kind::Changes,
            _ => return None,
        },
        rank: rank.parse().ok()?,
        element: element.to_owned(),
        run: u64::from_str_radix(run, 16).ok()?,
        number: number.parse().ok()?,
    };
    // "+1" and "01" are numbers, too.
    (file.to_string() == name).then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_round_trip_and_others_are_of_no_file() {
        let file = StateFile {
            kind: Kind::Base,
            rank: 12,
            element: element_name("müde/users.2"),
            run: 0xab,
            number: 3,
        };
        let name = "base.12.m%C3%BCde%2Fusers%2E2.00000000000000ab.3";
        assert_eq!(file.to_string(), name);
        assert_eq!(Entry::of(name), Some(Entry::State(file)));
        for other in [
            "base",
            "base.1.users.00000000000000ab",
            "base.01.users.00000000000000ab.3",
            "base.1.users.00000000000000AB.3",
            "base.1.users.ab.3",
            "base.1.users.00000000000000ab.+3",
            "base.1.us.ers.00000000000000ab.3",
            "bases.1.users.00000000000000ab.3",
            "checkpoint.1",
            "notes.txt",
        ] {
            assert_eq!(Entry::of(other), None, "{other}");
        }
    }
}
