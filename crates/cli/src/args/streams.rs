//! The arguments of commands that remove, copy, export and import records.

use std::path::PathBuf;

use clap::Args;

use crate::values::{Position, new_name, number, server, text};

#[derive(Debug, Args)]
pub struct PurgeArgs {
    /// The stream's name
    pub stream: String,
    /// Remove the records before this position: end (all records), an offset (of one partition), a time in UTC such
    /// as 2026-05-01T12:30:00Z, or an age such as -7d
    #[arg(long, value_name = "POSITION", allow_hyphen_values = true)]
    pub before: Position,
    /// Only in this partition
    #[arg(long, value_name = "N", value_parser = number(0_u32, None))]
    pub partition: Option<u32>,
}

#[derive(Debug, Args)]
pub struct CopyArgs {
    /// The stream to copy
    pub stream: String,
    /// The stream that gets the records
    #[arg(value_parser = new_name)]
    pub target: String,
    /// The other server, without a login, as HOST:PORT
    #[arg(long, value_name = "HOST:PORT", value_parser = server, conflicts_with = "to_profile")]
    pub to_server: Option<String>,
    /// The other server, with the login of this profile
    #[arg(long, value_name = "NAME", value_parser = text)]
    pub to_profile: Option<String>,
    /// Create the target, with the settings of the stream
    #[arg(long)]
    pub create: bool,
    /// Copy each record to the partition of the same number; without it, the record's key chooses the partition
    #[arg(long)]
    pub keep_partitions: bool,
    /// Where to start: start, an offset (of a stream with one partition), a time in UTC, or an age such as -10m
    #[arg(
        long,
        value_name = "POSITION",
        default_value = "start",
        allow_hyphen_values = true
    )]
    pub from: Position,
}

#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The stream's name
    pub stream: String,
    /// The file, which appears when it is complete; stdout for `-`
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Where to start: start, an offset (of a stream with one partition), a time in UTC, or an age such as -10m
    #[arg(
        long,
        value_name = "POSITION",
        default_value = "start",
        allow_hyphen_values = true
    )]
    pub from: Position,
}

#[derive(Debug, Args)]
pub struct ImportArgs {
    /// The stream's name
    pub stream: String,
    /// The file; stdin for `-`
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Append each record to the partition that its line names; without it, the record's key chooses the partition
    #[arg(long)]
    pub keep_partitions: bool,
}
