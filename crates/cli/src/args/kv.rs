//! The arguments of commands that get and put records by key.

use std::ffi::OsString;

use clap::{Args, Subcommand};

use crate::values::number;

#[derive(Debug, Subcommand)]
pub enum KvCommand {
    /// Print the value of a key
    ///
    /// Prints the bytes of the value as they are, with a line break behind them on a terminal only. An absent key is an
    /// error, and the exit code is 1.
    ///
    /// The fields of --json: key, partition, version, the offset of its record, timestamp, in milliseconds since 1970,
    /// and value. Bytes that are not UTF-8 are in key_base64 and value_base64.
    Get(KeyArgs),
    /// Set the value of a key
    ///
    /// Returns when the new version is as durable as the stream's setting asks for.
    ///
    /// The fields of --json: key, partition and version, the offset of its record.
    Put(PutArgs),
    /// Delete a key
    ///
    /// Stores a version of the key without a value, also if the key is absent.
    ///
    /// The fields of --json: key, partition and version, the offset of that record.
    Delete(KeyArgs),
    /// Print keys and values, in the order of the keys' bytes
    ///
    /// Prints a line for each key: the key, a tab, and the value.
    ///
    /// The fields of --json: entries, each with the fields of `kv get`.
    Scan(ScanArgs),
}

#[derive(Debug, Args)]
pub struct KeyArgs {
    /// The stream's name
    pub stream: String,
    /// The key
    pub key: OsString,
}

#[derive(Debug, Args)]
pub struct PutArgs {
    /// The stream's name
    pub stream: String,
    /// The key
    pub key: OsString,
    /// The value; all bytes of stdin for `-`
    pub value: OsString,
}

#[derive(Debug, Args)]
pub struct ScanArgs {
    /// The stream's name
    pub stream: String,
    /// Only keys that begin with this text
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["from", "to"], allow_hyphen_values = true)]
    pub prefix: Option<OsString>,
    /// Start at this key
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    pub from: Option<OsString>,
    /// End before this key
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    pub to: Option<OsString>,
    /// At most this many keys
    #[arg(long, value_name = "N", value_parser = number(1_u64, None))]
    pub limit: Option<u64>,
}
