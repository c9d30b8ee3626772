//! The arguments of commands that get and put records by key.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, Subcommand};
use millstream_client::WatchPositions;

use crate::values::{number, time};

#[derive(Debug, Subcommand)]
pub enum KvCommand {
    /// Print the value of a key
    ///
    /// Prints the bytes of the value as they are, with a line break behind them on a terminal only. An absent key is an
    /// error, and the exit code is 1.
    ///
    /// The fields of --json: key, partition, version, the offset of its record, timestamp, in milliseconds since 1970,
    /// value, and expires_at, when the value ends, if it does. Bytes that are not UTF-8 are in key_base64 and value_base64.
    Get(GetArgs),
    /// Print the versions of a key that are stored, newest first
    ///
    /// Prints a line for each version: the version, the time of its record, the value or `deleted`, and the time when the value
    /// ends, if it does, with tabs between them. The last line says if older versions may have been dropped. Compaction keeps the
    /// newest version of each key, and drops older ones some time.
    ///
    /// The fields of --json: versions, and lacks_older, whether older versions may have been dropped, which is null if --limit
    /// has ended the list. A version has the fields of `kv get`, with a value of null for a deletion.
    History(HistoryArgs),
    /// Hold a stream as it is now, so that compaction keeps what `kv get --hold` prints
    #[command(subcommand)]
    Hold(HoldCommand),
    /// Set the value of a key, or of several keys together
    ///
    /// Returns when the new version is as durable as the stream's setting asks for. With a condition that does not hold,
    /// nothing is stored, the error names the newest version, and the exit code is 1. Several keys are all set or none, also if
    /// the server is killed meanwhile.
    ///
    /// The fields of --json: key, partition and version, the offset of its record; with several keys entries, each with these.
    Put(PutArgs),
    /// Delete a key
    ///
    /// Stores a version of the key without a value, also if the key is absent, unless there is a condition. If that does not hold,
    /// the error names the newest version, and the exit code is 1.
    ///
    /// The fields of --json: key, partition and version, the offset of that record.
    Delete(DeleteArgs),
    /// Add to the value of a key, and print the sum
    ///
    /// The value is a whole number of 64 bits, as text; an absent key counts as 0. Of several clients that add at the same time,
    /// none misses the number of another.
    ///
    /// The fields of --json: key, partition, version, the offset of the new record, and value, the sum.
    Incr(IncrArgs),
    /// Print keys and values, in the order of the keys' bytes
    ///
    /// Prints a line for each key: the key, a tab, and the value.
    ///
    /// The fields of --json: entries, each with the fields of `kv get`.
    Scan(ScanArgs),
    /// Find keys by their secondary keys
    ///
    /// Prints a line for each key whose newest version has one of the secondary keys: the secondary key, a tab, the key, a tab, and
    /// the value. They come in the order of the secondary keys, then of the keys. The stream's setting
    /// millstream.keyed.secondary must have the name of the index. A key with several secondary keys comes once for each.
    ///
    /// The fields of --json: entries, each with secondary and the fields of `kv get`.
    Find(FindArgs),
    /// Print changes of keys as they are committed
    ///
    /// Prints a line for each change: the key, a tab, and the new value; the key alone if it was deleted. It runs until a
    /// signal or --limit, and then prints the position at which --after goes on, to stderr. Changes of a key come in their order;
    /// compaction may leave out older ones, but not the newest. A removal by retention and the expiry of a value cause no
    /// change.
    ///
    /// The fields of --json: events and position. An event has event, position, and for `change` the fields of `kv get`, with a
    /// value of null for a deletion. With --snapshot, the event `snapshot` says that all events before are void, and `current`
    /// that the snapshot is complete. A position is null from `snapshot` to `current`.
    Watch(WatchArgs),
}

#[derive(Debug, Args)]
pub struct KeyArgs {
    /// The stream's name
    pub stream: String,
    /// The key
    pub key: OsString,
}

#[derive(Debug, Args)]
pub struct GetArgs {
    #[command(flatten)]
    pub key: KeyArgs,
    /// The value that the key had at this version: that of the newest version that is not behind it
    #[arg(long, value_name = "N")]
    pub version: Option<u64>,
    /// The value that the key had when this hold was made
    #[arg(long, value_name = "NAME", conflicts_with = "version")]
    pub hold: Option<String>,
}

#[derive(Debug, Subcommand)]
pub enum HoldCommand {
    /// Make a hold: each key can be printed as it is now until the hold ends
    ///
    /// Returns when the hold is durable. Of changes that were made together it has all or none. Values end as they do without
    /// the hold, and retention removes old records all the same. A stream has at most 16 holds.
    ///
    /// The fields of --json: those of `list`.
    Create {
        #[command(flatten)]
        hold: HoldArgs,
        /// How long the hold stays: 366 days at most
        #[arg(long = "for", value_name = "TIME", value_parser = time, default_value = "7days")]
        life: Duration,
    },
    /// List the holds of a stream
    ///
    /// The fields of --json: holds, each with name, owner, the user that made it, created and until, in milliseconds since 1970,
    /// is_whole, whether retention has removed nothing of it, and ends, for each partition the offset behind the versions that
    /// it holds.
    List {
        /// The stream's name
        stream: String,
    },
    /// End a hold before its time
    ///
    /// A later compaction removes the versions that only this hold retained.
    ///
    /// The fields of --json: name.
    Delete {
        #[command(flatten)]
        hold: HoldArgs,
    },
}

#[derive(Debug, Args)]
pub struct HoldArgs {
    /// The stream's name
    pub stream: String,
    /// The name of the hold
    pub name: String,
}

#[derive(Debug, Args)]
pub struct HistoryArgs {
    #[command(flatten)]
    pub key: KeyArgs,
    /// At most this many versions
    #[arg(long, value_name = "N", value_parser = number(1_u64, None))]
    pub limit: Option<u64>,
}

#[derive(Debug, Args)]
pub struct PutArgs {
    /// The stream's name
    pub stream: String,
    /// The key
    pub key: OsString,
    /// The value; all bytes of stdin for `-`
    pub value: OsString,
    /// More keys, each with its value, which are set together with the first one
    #[arg(value_names = ["KEY", "VALUE"], num_args = 2.., conflicts_with = "if_version")]
    pub more: Vec<OsString>,
    /// Only if this is the newest version of the key
    #[arg(long, value_name = "N", conflicts_with = "if_absent")]
    pub if_version: Option<u64>,
    /// Only if the key has no value; of several keys, none of them
    #[arg(long)]
    pub if_absent: bool,
    /// The time after which the value ends: from then on the key is absent
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub ttl: Option<Duration>,
    /// A secondary key, by which `kv find` finds the key; up to 64 times
    #[arg(long, value_name = "NAME=KEY", value_parser = secondary)]
    pub secondary: Vec<(String, OsString)>,
}

fn secondary(text: &str) -> Result<(String, OsString), String> {
    let pair = text.split_once('=').filter(|(name, _)| !name.is_empty());
    let (name, key) = pair.ok_or("must be a name and a key, such as city=Namur")?;
    Ok((name.to_owned(), key.into()))
}

#[derive(Debug, Args)]
pub struct FindArgs {
    /// The stream's name
    pub stream: String,
    /// The name of the index
    pub index: String,
    /// The secondary keys; without them, those of the range
    #[arg(conflicts_with_all = ["prefix", "from", "to"])]
    pub secondary: Vec<OsString>,
    #[command(flatten)]
    pub range: RangeArgs,
    /// At most this many keys
    #[arg(long, value_name = "N", value_parser = number(1_u64, None))]
    pub limit: Option<u64>,
}

#[derive(Debug, Args)]
pub struct DeleteArgs {
    #[command(flatten)]
    pub key: KeyArgs,
    /// Only if this is the newest version of the key
    #[arg(long, value_name = "N")]
    pub if_version: Option<u64>,
}

#[derive(Debug, Args)]
pub struct IncrArgs {
    #[command(flatten)]
    pub key: KeyArgs,
    /// The number to add; it may be negative
    #[arg(default_value_t = 1, allow_negative_numbers = true)]
    pub by: i64,
    /// The time after which the value ends, if the key is absent before; the end of an older value stays
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub ttl: Option<Duration>,
}

#[derive(Debug, Args)]
pub struct ScanArgs {
    /// The stream's name
    pub stream: String,
    #[command(flatten)]
    pub range: RangeArgs,
    /// At most this many keys
    #[arg(long, value_name = "N", value_parser = number(1_u64, None))]
    pub limit: Option<u64>,
}

#[derive(Debug, Args)]
pub struct RangeArgs {
    /// Only keys that begin with this text
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["from", "to"], allow_hyphen_values = true)]
    pub prefix: Option<OsString>,
    /// Start at this key
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    pub from: Option<OsString>,
    /// End before this key
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    pub to: Option<OsString>,
}

#[derive(Debug, Args)]
pub struct WatchArgs {
    /// The stream's name
    pub stream: String,
    /// Only this key
    #[arg(conflicts_with_all = ["prefix", "from", "to"])]
    pub key: Option<OsString>,
    #[command(flatten)]
    pub range: RangeArgs,
    /// Go on at this position, which an earlier watch of the same keys has printed
    #[arg(long, value_name = "POSITION")]
    pub after: Option<WatchPositions>,
    /// Begin with the keys that have a value; with --after only where the server no longer has all changes
    #[arg(long)]
    pub snapshot: bool,
    /// At most this many changes
    #[arg(long, value_name = "N", value_parser = number(1_u64, None))]
    pub limit: Option<u64>,
}
