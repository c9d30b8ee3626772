//! The command line, parsed into flags and values.

mod administration;
mod kv;
mod streams;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{
    ArgGroup, Args, Command as Clap, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum,
};
use millstream_base::ByteSize;
use millstream_client::{AclOperation, Compression, DeliveryMode, Permission, ResourceType};
use millstream_log::Durability;
use millstream_record::Filter;

pub use self::administration::{
    CompletionArgs, ConfigCommand, DecideArgs, GroupCommand, HealthArgs, ManArgs, ProfileCommand,
    QuotaCommand, TransactionCommand,
};
pub use self::kv::{
    DeleteArgs, FindArgs, GetArgs, HistoryArgs, HoldCommand, IncrArgs, KeyArgs, KvCommand, PutArgs,
    RangeArgs, ScanArgs, WatchArgs,
};
pub use self::streams::{CopyArgs, ExportArgs, ImportArgs, PurgeArgs};
use crate::console::{CANNOT_WRITE, tell};
use crate::exit;
use crate::help::{unused_flag, with_used_settings};
use crate::settings::{HTTP_DEFAULT, Settings};
use crate::values::{
    ByteRange, Kills, Limit, Place, Rate, limit, new_name, number, partitions, principal,
    record_size, rule_host, size, some_bytes, some_time, text, time, virtual_logs,
};

/// Stores streams of records, runs dataflows next to the data, and serves the results.
#[derive(Debug, Parser)]
#[command(name = "millstream", version = env!("PROGRAM_VERSION"), arg_required_else_help = true)]
pub struct LowArgs {
    #[command(subcommand)]
    pub command: Command,
    /// Print one JSON document on stdout
    #[arg(long, global = true)]
    pub json: bool,
    #[command(flatten)]
    pub settings: Settings,
}

impl LowArgs {
    /// Parses the command line. On an error, prints it and exits.
    pub fn from_command_line() -> LowArgs {
        let command = negative_numbers_are_values(with_used_settings(LowArgs::command()));
        LowArgs::parse_with(command).unwrap_or_else(|error| end(&error))
    }

    /// Returns all commands, as their help shows them.
    pub fn commands() -> Clap {
        with_used_settings(LowArgs::command())
    }

    fn parse_with(mut command: Clap) -> Result<LowArgs, clap::Error> {
        let matches = command.try_get_matches_from_mut(std::env::args_os());
        let matches = matches.map_err(without_unused_flags)?;
        if let Some(flag) = unused_flag(&command, &matches) {
            let why = format!(
                "this command does not use {flag}; in the environment and in the settings' file it may be set for others"
            );
            return Err(command.error(ErrorKind::ArgumentConflict, why));
        }
        LowArgs::from_arg_matches(&matches)
    }
}

/// Prints the requested help, or the error, and exits.
fn end(error: &clap::Error) -> ! {
    let printed = error.print().and_then(|()| io::stdout().flush());
    let code = match printed {
        Err(cause) if !error.use_stderr() && cause.kind() != io::ErrorKind::BrokenPipe => {
            tell(format_args!("error: {CANNOT_WRITE}: {cause}"));
            exit::FAILED.into()
        }
        _ => error.exit_code(),
    };
    process::exit(code)
}

/// Removes suggestions of flags that the command does not use, and that its help therefore hides.
fn without_unused_flags(mut error: clap::Error) -> clap::Error {
    let is_unused = match error.get(ContextKind::SuggestedArg) {
        Some(ContextValue::String(flag)) => is_hidden_flag(flag),
        _ => false,
    };
    if is_unused {
        error.remove(ContextKind::SuggestedArg);
    }
    error
}

/// Returns whether the command accepts this flag only because every command parses every setting.
fn is_hidden_flag(flag: &str) -> bool {
    let typed: Vec<_> = std::env::args().skip(1).collect();
    let mut command = with_used_settings(LowArgs::command());
    command.build();
    let mut at = &command;
    for word in &typed {
        if let Some(below) = at.find_subcommand(word) {
            at = below;
        }
    }
    let flag = flag.trim_start_matches('-');
    at.get_arguments()
        .any(|arg| arg.get_long() == Some(flag) && arg.is_hide_set())
}

/// Parses negative numbers as values. No flag is a number, so `-1` is a value out of range and the error says so.
fn negative_numbers_are_values(command: Clap) -> Clap {
    command
        .mut_args(|arg| match arg.get_action().takes_values() {
            true => arg.allow_negative_numbers(true),
            false => arg,
        })
        .mut_subcommands(negative_numbers_are_values)
}

impl Command {
    /// Returns whether the command may connect to the server of a profile.
    pub fn uses_profiles(&self) -> bool {
        !matches!(
            self,
            Command::Start(_)
                | Command::Quickstart(_)
                | Command::Repair(_)
                | Command::Profile(_)
                | Command::Completion(_)
                | Command::Man(_)
                | Command::Flow(FlowCommand::Run(_) | FlowCommand::List | FlowCommand::Describe(_))
                | Command::User(UserCommand::Init { .. })
        )
    }
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Generate events or read files, store them, compute on them and serve the results
    ///
    /// Without --file: an ads pipeline, until Ctrl-C. A producer generates events and sends them over the network to
    /// the stream `ads`; a flow counts views and clicks by campaign in windows of 10 seconds and writes the counts to
    /// the stream `campaign_counts`; an HTTP server shows the newest counts.
    ///
    /// With --file: every line becomes a record of the stream `lines`, and a flow counts the words of that stream.
    /// White space separates words.
    ///
    /// With --data, the next run continues from the last checkpoint: the counts cover the events of all runs. The stream
    /// `ads` keeps the newest 4 GiB of events, and the other streams keep all records; `stream alter STREAM
    /// --retain-bytes SIZE` changes that. The generator pauses while more than a quarter of the kept bytes lies behind
    /// the last checkpoint.
    ///
    /// The fields of --json: ingested_records, the records that this run ingested, and ingested_bytes, the bytes of
    /// their values; durable_records, the records in the stream; seconds; retain_bytes, the bytes that each stream
    /// keeps, null for all. With --file: words, prefixed_words, and in top the 20 most frequent words with their counts.
    /// Without: events, views and clicks that the flow has read, windows of all campaigns, counted, the sum over these
    /// windows, and dead_letters, the records that are no events, are of the far future, or came too late, and
    /// went to the stream `ads.dead_letters`; late_dead_letters are the late ones.
    Quickstart(QuickstartArgs),
    /// Serve the streams over the network, to Kafka clients and to Millstream clients
    ///
    /// Runs until Ctrl-C or SIGTERM. Kafka clients see each stream as a topic. The server listens on this machine only, unless
    /// --listen names other addresses.
    ///
    /// With --json, prints one document as soon as the server listens: listen, the first address; listeners, all
    /// addresses; http, the address of the HTTP server, if any; and data, the data directory.
    Start(StartArgs),
    /// Create, list, describe, alter and delete streams; purge, copy, export and import their records
    ///
    /// A stream is a topic for Kafka's clients.
    #[command(subcommand, visible_alias = "topic")]
    Stream(StreamCommand),
    /// Append lines to a stream, each as a record
    Produce(ProduceArgs),
    /// Print the records of a stream
    Consume(ConsumeArgs),
    /// Get, put, delete and scan the records of a keyed stream, by their keys
    ///
    /// A stream is keyed if its setting `cleanup.policy` contains `compact`: the last record of each key is its value.
    ///
    /// Example: millstream stream create users --keyed && millstream kv put users ann '{"plan":"free"}'
    #[command(subcommand)]
    Kv(KvCommand),
    /// Put, get, list and delete objects
    #[command(subcommand)]
    Object(ObjectCommand),
    /// List, describe, reset and delete groups: consumer groups, share groups and groups of Kafka Streams
    #[command(subcommand)]
    Group(GroupCommand),
    /// List and describe transactions, and commit or abort those that their producers have left open
    #[command(subcommand)]
    Transaction(TransactionCommand),
    /// List, set and remove limits (quotas) of users, client ids and addresses
    #[command(subcommand)]
    Quota(QuotaCommand),
    /// Show and change settings of a broker, a stream or a group
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Check a server: streams, disk, transactions and groups
    ///
    /// Prints a line for each check, and ends with the exit code 1 if a check fails:
    ///   server        a server answers
    ///   streams       all partitions accept writes; a damaged one does not
    ///   disk          the server's disk has the free space of --free
    ///   transactions  no transaction has been open for longer than --transaction-age
    ///   groups        with --watch-groups: no group stands still
    ///
    /// A group stands still if it has a lag during the whole watch and its position stays the same in all partitions.
    /// The position is the committed offset, and in a share group the first record that is not processed. The check
    /// leaves out groups whose lag is unknown, such as those that have never committed, and names them.
    ///
    /// The checks cover the streams, transactions and groups that the user may describe.
    ///
    /// Example: millstream health --free 10GiB --watch-groups 30s
    ///
    /// The fields of --json: is_healthy, and checks, each with check, is_ok and text.
    #[command(verbatim_doc_comment)]
    Health(HealthArgs),
    /// Add, list, choose and remove profiles: servers with their logins, by name
    ///
    /// A command takes its server and login from the profile that --profile names, or else MILLSTREAM_PROFILE, or else
    /// `profile use`, unless the same place or one before it names a server or a data directory. The file
    /// `millstream/profiles.toml` in XDG_CONFIG_HOME, or else in ~/.config, holds the profiles.
    #[command(subcommand)]
    Profile(ProfileCommand),
    /// Print a script that completes commands and flags in a shell
    ///
    /// Example: millstream completion bash > ~/.local/share/bash-completion/completions/millstream
    Completion(CompletionArgs),
    /// Write manual pages, one for each command
    ///
    /// Example: millstream man ~/.local/share/man/man1
    ///
    /// The fields of --json: directory, and the names of the pages.
    Man(ManArgs),
    /// Set passwords of users; list and delete users
    #[command(subcommand)]
    User(UserCommand),
    /// Add, list and remove access rules (ACLs)
    #[command(subcommand)]
    Acl(AclCommand),
    /// List damaged data in a data directory, or remove it
    ///
    /// No server may run on the data directory. The command reads and checks all records of all streams. A damaged
    /// stream refuses writes, and readers get its records up to the damage; `--cut` truncates the stream there and
    /// lets it accept writes again, and `--quarantine` removes the stream. `--cut __catalog` and `--cut __positions`
    /// rewrite the node's own tables without the damaged entries; the next start moves the files of streams that the
    /// catalog no longer names to `aside`. `--cut __journal` removes damaged blocks from the journal: streams that
    /// miss records of these blocks are then damaged. `--cut __manifest` makes the list of all files anew, from the files
    /// that are there. The command moves all that it removes to the folder `aside` of
    /// the data directory. Copy the data directory first if the data matters.
    ///
    /// The fields of --json: without a flag damaged, each with stream, partition, offset, the first that cannot be
    /// read, and what, the kind of damage; with one stream, files, which hold the removed data, and bytes.
    Repair(RepairArgs),
    /// Measure a server's throughput and latency, as Kafka's own performance tools do
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Run the built-in applications, and describe the flows of running programs
    #[command(subcommand)]
    Flow(FlowCommand),
}

#[derive(Debug, Args)]
pub struct StartArgs {
    /// Listen on addresses that other machines can reach, although clients do not have to log in
    #[arg(long)]
    pub insecure: bool,
}

#[derive(Debug, Subcommand)]
pub enum UserCommand {
    /// Set a user's password in the data directory itself, while no server runs on it
    ///
    /// This creates the first user, which a server with --authentication requires. The command asks for the password,
    /// or reads it from the first line of stdin.
    Init {
        /// The user's name
        name: String,
    },
    /// Set a user's password at the server, and create the user if there is none
    ///
    /// The command asks for the password, or reads it from the first line of stdin.
    Set {
        /// The user's name
        name: String,
    },
    /// List the users of the server
    List,
    /// Delete a user of the server
    Delete {
        /// The user's name
        name: String,
    },
}

#[derive(Debug, Args)]
pub struct QuickstartArgs {
    /// Count the words of this file, or of stdin for `-`; can be repeated
    #[arg(long, value_name = "PATH")]
    pub file: Vec<PathBuf>,
    /// With --file: also count the words that start with this prefix
    #[arg(long, value_name = "TEXT", default_value = "a", requires = "file")]
    pub prefix: String,
    /// End after this time, for instance 20s
    #[arg(long = "for", value_name = "TIME", value_parser = time)]
    pub duration: Option<Duration>,
    /// Events per second, or `max` for the highest rate that the machine can store
    #[arg(
        long,
        value_name = "N",
        default_value = "100000",
        conflicts_with = "file"
    )]
    pub rate: Rate,
    /// Drop the checkpoint and the results of earlier runs, and count all stored records again
    #[arg(long)]
    pub anew: bool,
}

#[derive(Debug, Subcommand)]
pub enum StreamCommand {
    /// Create a stream
    Create {
        /// The stream's name: letters, digits and . _ - / :
        #[arg(value_parser = new_name)]
        name: String,
        /// Partitions, where producers append in parallel [default: 1]
        #[arg(long, value_name = "N", value_parser = partitions, conflicts_with_all = ["streamlets", "lanes"])]
        partitions: Option<u32>,
        /// Streamlets: groups of partitions; 1 without it
        #[arg(long, value_name = "N", value_parser = partitions, hide = true)]
        streamlets: Option<u32>,
        /// Partitions of each streamlet; 1 without it
        #[arg(long, value_name = "N", value_parser = partitions, hide = true)]
        lanes: Option<u32>,
        /// Virtual logs that the partitions share
        #[arg(long, value_name = "N", default_value_t = 1, value_parser = virtual_logs)]
        virtual_logs: u32,
        /// When the server acknowledges records: sync, written, async or memory
        #[arg(long, value_name = "WHEN", default_value = "sync")]
        durability: Durability,
        /// Find records by key (`millstream kv`): sets cleanup.policy=compact
        #[arg(long)]
        keyed: bool,
        #[command(flatten)]
        retention: RetentionArgs,
    },
    /// List all streams
    ///
    /// The column `offsets` counts the offsets from the first record to the last one. These are the records, the markers
    /// that end transactions, and the records that compaction has removed.
    List,
    /// Show a stream's settings and partitions
    Describe {
        /// The stream's name
        name: String,
    },
    /// Add partitions to a stream, or change its retention
    ///
    /// `millstream config set stream/NAME` changes other settings. The durability of a stream cannot change.
    #[command(group = ArgGroup::new("change").required(true).multiple(true)
        .args(["partitions", "streamlets", "lanes", "retain_for", "retain_bytes"]))]
    Alter {
        /// The stream's name
        name: String,
        /// Partitions, never fewer than before
        #[arg(long, value_name = "N", value_parser = partitions, conflicts_with_all = ["streamlets", "lanes"])]
        partitions: Option<u32>,
        /// Streamlets, never fewer than before
        #[arg(long, value_name = "N", value_parser = partitions, hide = true)]
        streamlets: Option<u32>,
        /// Partitions of each streamlet, never fewer than before
        #[arg(long, value_name = "N", value_parser = partitions, hide = true)]
        lanes: Option<u32>,
        #[command(flatten)]
        retention: RetentionArgs,
    },
    /// Delete a stream and all its records
    Delete {
        /// The stream's name
        name: String,
    },
    /// Remove the oldest records of a stream, for all readers
    ///
    /// Examples:
    ///   millstream stream purge orders --before -7d
    ///   millstream stream purge orders --before end
    ///
    /// The fields of --json: stream, removed_records, the number of offsets removed, and partitions, each with its new
    /// earliest offset.
    #[command(verbatim_doc_comment)]
    Purge(PurgeArgs),
    /// Copy the records of a stream to another stream, of this server or of another
    ///
    /// The copies have the keys, values, headers and timestamps of the records, and offsets of their own. The command
    /// copies the committed records that exist at its start. If it is interrupted, some records may be copied already.
    ///
    /// Examples:
    ///   millstream stream copy orders orders.test --create --from -1h
    ///   millstream stream copy orders orders --to-profile staging --keep-partitions
    ///
    /// The fields of --json: stream, target and records.
    #[command(verbatim_doc_comment)]
    Copy(CopyArgs),
    /// Write the records of a stream to a file, as JSON lines
    ///
    /// Writes the committed records that exist at its start, each as a line as `consume --format json` prints it.
    /// `stream import` reads these lines. If a signal stops the command, the file stays as it was.
    ///
    /// Example: millstream stream export orders orders.jsonl
    ///
    /// The fields of --json: stream, file and records. With `-`, stdout has the lines alone.
    Export(ExportArgs),
    /// Append records from a file of JSON lines
    ///
    /// A line is an object with any of key, value, headers (each with name and value), timestamp (milliseconds since
    /// 1970) and partition; bytes that are not UTF-8 are in key_base64, value_base64 and name_base64. Other fields have
    /// no effect.
    ///
    /// If a line is wrong, or the server refuses its record, the error names the first line that is not stored. All
    /// lines before it are stored. Some lines behind a refused one may be stored, too. The server refuses records that
    /// it gets together as a whole, so the named line may be in order, and one of the next lines at fault.
    ///
    /// Example: millstream stream import orders orders.jsonl
    ///
    /// The fields of --json: stream and records.
    Import(ImportArgs),
}

#[derive(Debug, Args)]
pub struct RetentionArgs {
    /// Remove a partition's files whose newest record is older than this, for instance 7days; `none` removes none
    #[arg(long, value_name = "TIME", value_parser = limit(some_time))]
    pub retain_for: Option<Limit<Duration>>,
    /// Remove a partition's oldest files while the others hold at least this size, for instance 10GiB; `none` removes none
    #[arg(long, value_name = "SIZE", value_parser = limit(some_bytes))]
    pub retain_bytes: Option<Limit<ByteSize>>,
}

#[derive(Debug, Args)]
pub struct ProduceArgs {
    /// The stream's name
    pub stream: String,
    /// Read this file instead of stdin
    #[arg(
        long,
        value_name = "PATH",
        default_value = "-",
        hide_default_value = true
    )]
    pub file: PathBuf,
    /// Separator between the key and the value in a line; without it, lines have no keys
    #[arg(long, value_name = "TEXT")]
    pub key_separator: Option<String>,
    /// Number the lines under this producer ID, so that a run with the same input after a crash does not store lines
    /// twice
    #[arg(long, value_name = "ID", value_parser = number(0_i64, None))]
    pub producer: Option<i64>,
    /// Print the number of durable lines each time that it grows, one number per line
    #[arg(long, conflicts_with = "json")]
    pub acks: bool,
}

#[derive(Debug, Args)]
pub struct ConsumeArgs {
    /// The stream's name
    pub stream: String,
    /// Where to start: earliest, latest, or an offset; with several partitions, an offset needs --partition
    #[arg(long, value_name = "PLACE", default_value = "earliest")]
    pub from: Place,
    /// Only this partition
    #[arg(long, value_name = "N", value_parser = number(0_u32, None), conflicts_with = "group")]
    pub partition: Option<u32>,
    /// Share the partitions with the other members of this group, and continue at its committed offsets; --from says
    /// where to start in partitions without one
    #[arg(long, value_name = "NAME", value_parser = text)]
    pub group: Option<String>,
    /// Only records that match this filter: key = "a" and value contains "b", for instance
    #[arg(long = "where", value_name = "FILTER", value_parser = Filter::parse)]
    pub filter: Option<Filter>,
    /// How records come from a server [default: push]
    #[arg(long, value_enum, value_name = "HOW")]
    pub delivery: Option<Delivery>,
    /// Skip damaged records of a server, and print their offsets; without it, damage is an error
    #[arg(long)]
    pub skip_damaged: bool,
    /// Stop after this many records
    #[arg(long, value_name = "N", value_parser = number(0_u64, None))]
    pub limit: Option<u64>,
    /// Wait for more records at the end, also in partitions that are added, until Ctrl-C; without it, the command
    /// ends after the records that exist at its start
    #[arg(long)]
    pub follow: bool,
    /// How to print records
    #[arg(long, value_enum, default_value_t = RecordFormat::Value, conflicts_with = "json")]
    pub format: RecordFormat,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Delivery {
    /// The server sends them as they become durable: through shared memory if it runs on this machine as the same
    /// user and the client may read all records; else over the network
    #[default]
    Push,
    /// The client asks for them
    Pull,
}

impl From<Delivery> for DeliveryMode {
    fn from(delivery: Delivery) -> DeliveryMode {
        match delivery {
            Delivery::Push => DeliveryMode::Push,
            Delivery::Pull => DeliveryMode::Pull,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RecordFormat {
    /// The value and a line end
    Value,
    /// One JSON object per line, with partition, offset, timestamp, key, value and headers; keys and values that are
    /// not UTF-8 are in key_base64 and value_base64 instead
    Json,
}

#[derive(Debug, Args)]
pub struct RepairArgs {
    /// Truncate the partitions of this stream at the damage: the next record gets the first offset that cannot be
    /// read
    #[arg(long, value_name = "STREAM", conflicts_with = "quarantine")]
    pub cut: Option<String>,
    /// Remove this stream, with all its records in the journal
    #[arg(long, value_name = "STREAM")]
    pub quarantine: Option<String>,
}

#[derive(Debug, Subcommand)]
pub enum ObjectCommand {
    /// Store a file, or stdin, as an object
    Put {
        /// The object's name: letters, digits and . _ - / :
        #[arg(value_parser = new_name)]
        name: String,
        /// The content; stdin without it
        #[arg(value_name = "FILE", default_value = "-", hide_default_value = true)]
        file: PathBuf,
    },
    /// Write an object to stdout or to a file
    ///
    /// With --json, prints one document to stdout: the fields that `put` prints and, unless the content goes to a
    /// file, the content in content_base64.
    Get {
        /// The object's name
        name: String,
        /// Only these bytes, counted from 0, both ends included: 0-99, or 100- for the rest
        #[arg(long, value_name = "FIRST-LAST")]
        range: Option<ByteRange>,
        /// Write to this file
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// List the objects whose names start with a prefix
    List {
        /// Prefix of the names; all objects without it
        #[arg(default_value = "", hide_default_value = true)]
        prefix: String,
    },
    /// Delete an object
    Delete {
        /// The object's name
        name: String,
    },
}

#[derive(Debug, Subcommand)]
pub enum AclCommand {
    /// List rules: all, or those that match the given fields
    List {
        #[command(flatten)]
        filter: AclFilterArgs,
    },
    /// Add a rule
    Add {
        /// allow or deny
        permission: Permission,
        /// The user: User:alice, or User:* for all users
        #[arg(long, value_name = "User:NAME", value_parser = principal)]
        principal: String,
        /// The operation: all, read, write, create, delete, alter, describe and others
        #[arg(long, value_name = "WHAT")]
        operation: AclOperation,
        /// The kind of resource: stream, group, cluster, transactional-id or user
        #[arg(long, value_name = "KIND")]
        resource: ResourceType,
        /// The resource's name; all resources of the kind without it
        #[arg(long, value_name = "NAME", value_parser = text)]
        name: Option<String>,
        /// Match all names that begin with --name
        #[arg(long, requires = "name")]
        prefixed: bool,
        /// Only from this address
        #[arg(long, value_name = "ADDRESS", value_parser = rule_host)]
        host: Option<String>,
    },
    /// Remove the rules that match the given fields
    #[command(group = ArgGroup::new("which").required(true).multiple(true)
        .args(["permission", "principal", "operation", "resource", "name", "host"]))]
    Remove {
        #[command(flatten)]
        filter: AclFilterArgs,
    },
}

#[derive(Debug, Args)]
pub struct AclFilterArgs {
    /// allow or deny
    #[arg(long, value_name = "WHICH")]
    pub permission: Option<Permission>,
    /// The user, as the rule has it
    #[arg(long, value_name = "User:NAME", value_parser = principal)]
    pub principal: Option<String>,
    /// The operation
    #[arg(long, value_name = "WHAT")]
    pub operation: Option<AclOperation>,
    /// The kind of resource: stream, group, cluster, transactional-id or user
    #[arg(long, value_name = "KIND")]
    pub resource: Option<ResourceType>,
    /// The resource's name, as the rule has it
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// The client's address
    #[arg(long, value_name = "ADDRESS", value_parser = rule_host)]
    pub host: Option<String>,
}

#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Measure how many records per second a producer stores, and the latency of each
    Produce(BenchProduceArgs),
    /// Measure how many records per second a consumer reads
    Consume(BenchConsumeArgs),
    /// Measure the latency of a record from a producer to a consumer, one at a time
    Latency(BenchLatencyArgs),
}

#[derive(Debug, Args)]
pub struct BenchProduceArgs {
    /// The stream's name
    pub stream: String,
    /// How many records
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = number(1_u64, None))]
    pub records: u64,
    /// The size of each
    #[arg(long, value_name = "SIZE", default_value = "100", value_parser = record_size)]
    pub record_bytes: ByteSize,
    /// Records per second, or `max` for no limit
    #[arg(long, value_name = "N", default_value = "max")]
    pub rate: Rate,
    /// How chunks are compressed: none, gzip, snappy, lz4 or zstd
    #[arg(long, value_name = "NAME", default_value = "none")]
    pub compression: Compression,
    /// Close a chunk when it reaches this size
    #[arg(long, value_name = "SIZE", default_value = "16KiB", value_parser = size)]
    pub batch_bytes: ByteSize,
    /// How long a chunk waits for more records
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = time)]
    pub linger: Duration,
}

#[derive(Debug, Args)]
pub struct BenchConsumeArgs {
    /// The stream's name
    pub stream: String,
    /// How many records; the command ends earlier if no record arrives for 10 seconds
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = number(1_u64, None))]
    pub records: u64,
    /// How records come from a server [default: push]
    #[arg(long, value_enum, value_name = "HOW")]
    pub delivery: Option<Delivery>,
}

#[derive(Debug, Args)]
pub struct BenchLatencyArgs {
    /// The stream's name; no other producer may append to its partition 0 meanwhile
    pub stream: String,
    /// How many records
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = number(1_u64, None))]
    pub records: u64,
    /// The size of each
    #[arg(long, value_name = "SIZE", default_value = "100", value_parser = record_size)]
    pub record_bytes: ByteSize,
    /// How records come from a server [default: push]
    #[arg(long, value_enum, value_name = "HOW")]
    pub delivery: Option<Delivery>,
}

#[derive(Debug, Subcommand)]
pub enum FlowCommand {
    /// Run an application to its end, or until Ctrl-C
    #[command(subcommand)]
    Run(Application),
    /// List the applications
    List,
    /// Show the checkpoints and the state of the flows of a running program
    ///
    /// The program has to serve HTTP, as `quickstart`, `flow run --http` and programs with `--http` do. For each flow,
    /// and for each of its ranks in that program: the number, age, length and size of the last checkpoint, the time
    /// between checkpoints, failures, and the state elements with their entries, their memory by estimate, and how
    /// checkpoints store them.
    ///
    /// Example: millstream flow describe totals --at 127.0.0.1:8081
    ///
    /// The fields of --json: flows, each with flow, rank, the ranks in the program, is_finished, workers,
    /// lag_records, checkpoints, null if it takes none, and elements. checkpoints has the number of those kept and
    /// failed, the last error, interval_seconds, and last, with number, kept_at_ms, age_seconds, seconds,
    /// pause_seconds, bytes, changes and change_bytes. An element has name, kind, entries, memory_bytes and stored:
    /// changelog, whole or nowhere.
    Describe(DescribeFlowArgs),
    /// List the items that flows could not process, and replay them
    #[command(subcommand)]
    DeadLetters(DeadLettersCommand),
}

#[derive(Debug, Args)]
pub struct DescribeFlowArgs {
    /// The flow's name; all flows of the program without it
    pub flow: Option<String>,
    /// The address at which the program serves HTTP
    #[arg(long, value_name = "ADDRESS", default_value_t = HTTP_DEFAULT, value_parser = crate::values::http_address)]
    pub at: SocketAddr,
}

#[derive(Debug, Subcommand)]
pub enum DeadLettersCommand {
    /// List dead letters, the oldest of each flow first
    ///
    /// A dead letter is an item for which an operator of the flow panicked twice or returned an error, or whose event
    /// time is too late for its windows or too far ahead of the clock. The dead letters of a flow are in the stream
    /// `<flow>.dead_letters`, unless the flow names another: then name it with --stream. Several flows may share a
    /// named stream.
    ///
    /// The fields of --json: stream, partition and offset of the letter, timestamp, flow, operator, error, item, the
    /// value of the record as text, or the operator's input where the flow does not know the record, origin, the stream, partition and offset of the record from which the item was made, or
    /// null, bytes of its key and value, can_be_replayed and is_replayed.
    List(ListDeadLettersArgs),
    /// Write the records of dead letters back to their source streams, so that the flow reads them again
    ///
    /// The command replays each letter once: the next replay starts after the last replayed letter. The group
    /// `<flow>.dead_letters.replay` holds this position, committed in one transaction with the records. The records
    /// have the headers replay.of, the letter, and replay.times.
    ///
    /// The fields of --json: flow, replayed records, streams, each with its number of records, and without_record,
    /// the letters whose record the flow did not know.
    Replay(ReplayDeadLettersArgs),
}

#[derive(Debug, Args)]
pub struct ListDeadLettersArgs {
    /// The flow's name; all flows without it
    pub flow: Option<String>,
    /// The stream of the dead letters, if flows name one for them [default: <flow>.dead_letters]
    #[arg(long, value_name = "NAME")]
    pub stream: Option<String>,
    /// Stop after this many letters
    #[arg(long, value_name = "N", value_parser = number(0_u64, None))]
    pub limit: Option<u64>,
}

#[derive(Debug, Args)]
pub struct ReplayDeadLettersArgs {
    /// The flow's name
    pub flow: String,
    /// The stream of the dead letters, if the flow names one for them [default: <flow>.dead_letters]
    #[arg(long, value_name = "NAME")]
    pub stream: Option<String>,
    /// Stop after this many letters
    #[arg(long, value_name = "N", value_parser = number(0_u64, None))]
    pub limit: Option<u64>,
    /// Start at the first letter, even if it was replayed before
    #[arg(long)]
    pub again: bool,
}

#[derive(Debug, Subcommand)]
pub enum Application {
    /// Count the words of files that start with a prefix
    ///
    /// White space separates words. The workers read the files in parallel, and store nothing of them. After Ctrl-C,
    /// the command prints the counts so far.
    ///
    /// In the table, an item is a block of lines; after the stage split, a run of words.
    ///
    /// The fields of --json: count of the words with the prefix, all words and bytes, bytes_before, the bytes before
    /// the checkpoint from which the run resumed, seconds, is_stopped if the run ended early, cpu_seconds, joules if
    /// the machine reports them, workers_replaced, throughput as pairs of second and MB/s for every 100 ms, latency
    /// from source to end, and stages with all metrics of each.
    Logparser(LogparserArgs),
    /// Count how often each word of files occurs
    ///
    /// White space separates words. Each rank reads a part of the files. After Ctrl-C, the command prints the counts
    /// so far.
    ///
    /// The fields of --json: top, the most frequent words, each with word and count; all words, how many are
    /// different, bytes, seconds, and is_stopped if the run ended early.
    Words(WordsArgs),
    /// Count generated ad events by ad, in windows
    ///
    /// One windowed count: the benchmark SWA of the paper on AIR. Every instance generates events of 136 bytes on
    /// average, and checks each result against the generated events.
    ///
    /// The fields of --json: application, ranks, instances, events, seconds, events_per_second, results of windows,
    /// those that are missing or wrong, is_on_time if the instances reached the requested rate, and latency_ms of
    /// results: mean, p50 and p99 from the last event of a window on.
    Swa(AdsArgs),
    /// Count views of ads by campaign, in windows
    ///
    /// The Yahoo streaming benchmark with a generator in every instance: a filter, a table of campaigns, a
    /// windowed count. Otherwise as swa.
    Ysb(AdsArgs),
    /// Count clicks for each view by campaign, in windows
    ///
    /// The Yahoo streaming benchmark as the paper on AIR extends it: views and clicks are split, counted in
    /// windows by themselves, and joined by window. Otherwise as swa.
    YsbStar(AdsArgs),
}

#[derive(Debug, Args)]
pub struct AdsArgs {
    /// Events per second, of all instances together [default: no limit]
    #[arg(long, value_name = "N", value_parser = number(1_u64, Some(1_000_000_000_000)))]
    pub rate: Option<u64>,
    /// How long the instances generate events
    #[arg(long = "for", value_name = "TIME", default_value = "30s", value_parser = crate::values::span)]
    pub duration: Duration,
    /// Length of the windows
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = crate::values::span)]
    pub window: Duration,
    #[command(flatten)]
    pub ranks: RankArgs,
    #[command(flatten)]
    pub run: RunArgs,
}

#[derive(Debug, Args)]
pub struct WordsArgs {
    /// Count the words of this file, which must be a regular one, the same for all ranks; can be repeated
    #[arg(long, value_name = "PATH", required = true)]
    pub file: Vec<PathBuf>,
    /// Count only the words that start with this prefix
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub prefix: String,
    /// How many of the most frequent words to show
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub top: u32,
    #[command(flatten)]
    pub ranks: RankArgs,
    #[command(flatten)]
    pub run: RunArgs,
}

/// The ranks on which an application runs.
#[derive(Debug, Args)]
pub struct RankArgs {
    /// Number of ranks, each a thread of this process [default: the processes that mpirun or srun has started, or
    /// else one]
    #[arg(long, value_name = "N", value_parser = number(1_u32, Some(1024)))]
    pub ranks: Option<u32>,
    /// Instances of each operator on a rank, and as many workers; may be more than cores [default: the
    /// workers, shared by the ranks of this process]
    #[arg(long, value_name = "K", value_parser = crate::values::workers)]
    pub instances: Option<NonZeroUsize>,
    /// The rank that gathers the results
    #[arg(long, value_name = "RANK", default_value_t = 0)]
    pub gather_at: u32,
}

#[derive(Debug, Args)]
pub struct LogparserArgs {
    /// Count the words of this file, which must be a regular one; can be repeated
    #[arg(long, value_name = "PATH", required = true)]
    pub file: Vec<PathBuf>,
    /// Count the words that start with this prefix
    #[arg(long, value_name = "TEXT", default_value = "a")]
    pub prefix: String,
    /// How the work is divided into stages
    #[arg(long, value_enum, value_name = "HOW", default_value_t = Stages::Fused)]
    pub stages: Stages,
    #[command(flatten)]
    pub ranks: RankArgs,
    #[command(flatten)]
    pub run: RunArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Stages {
    /// One loop
    Fused,
    /// Four stages, connected by queues: read, split, filter, count
    Separate,
}

/// How any application runs and is observed.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// How a worker chooses its next stage
    #[arg(long, value_enum, value_name = "HOW", default_value_t = SchedulerName::Priority)]
    pub scheduler: SchedulerName,
    /// Whether items keep their order from stage to stage [default: kept if the result depends on it]
    #[arg(long, value_enum, value_name = "HOW")]
    pub order: Option<OrderName>,
    /// Kill a share of the workers from time to time, for instance 60%/4s, to test recovery
    #[arg(long, value_name = "SHARE/TIME")]
    pub kill_workers: Option<Kills>,
    /// Write all metrics of the stages to this file every 100 ms, as CSV
    #[arg(long, value_name = "PATH")]
    pub record: Option<PathBuf>,
    #[command(flatten)]
    pub checkpoints: CheckpointArgs,
}

/// The checkpoints from which an application resumes after it has ended early or crashed.
#[derive(Debug, Args)]
pub struct CheckpointArgs {
    /// Write checkpoints to this directory, which must be the same for all ranks and hold nothing else; it is created
    /// if it is missing
    #[arg(long, value_name = "DIR", value_parser = crate::values::path)]
    pub checkpoints: Option<PathBuf>,
    /// Time between checkpoints [default: from 1s to 10s, at least five times as long as the last one took]
    #[arg(long, value_name = "TIME", value_parser = some_time, requires = "checkpoints")]
    pub checkpoint_interval: Option<Duration>,
    /// Resume from the last complete checkpoint, with the same number of ranks and all other arguments unchanged
    #[arg(long, value_enum, value_name = "WHEN", num_args = 0..=1, require_equals = true,
        default_missing_value = "always", requires = "checkpoints")]
    pub resume: Option<ResumeWhen>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ResumeWhen {
    /// Fail if there is no checkpoint
    Always,
    /// Start from the beginning if there is no checkpoint
    IfAny,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SchedulerName {
    /// The stage that the other stages wait for most
    Priority,
    /// All stages in turn
    RoundRobin,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OrderName {
    /// In the order of the source
    Kept,
    /// As they arrive
    Free,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_help(command: &Clap) {
        for arg in command.get_arguments() {
            assert!(arg.get_help().is_some(), "{command} {arg}");
        }
        command.get_subcommands().for_each(check_help);
    }

    #[test]
    fn every_argument_has_a_help_text() {
        check_help(&LowArgs::command());
        LowArgs::command().debug_assert();
    }
}
