//! The command line as it was typed.

use std::io::{self, Write};
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

use crate::console::{CANNOT_WRITE, tell};
use crate::exit;
use crate::help::{unused_flag, with_used_settings};
use crate::settings::Settings;
use crate::values::{
    ByteRange, Kills, Limit, Place, Rate, lanes, limit, new_name, number, principal, record_size,
    rule_host, size, some_bytes, some_time, text, time, virtual_logs,
};

/// Keeps streams of records, computes on them where they lie, and serves the results.
#[derive(Debug, Parser)]
#[command(name = "millstream", version, arg_required_else_help = true)]
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
    /// Parses what was typed, or says what is wrong with it and ends the program.
    pub fn from_command_line() -> LowArgs {
        let command = negative_numbers_are_values(with_used_settings(LowArgs::command()));
        LowArgs::parse_with(command).unwrap_or_else(|error| end(&error))
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

/// Prints the help that was asked for, or what is wrong, and ends the program.
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

/// Leaves out suggestions of flags that the command's help does not show, for it does not use them.
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

/// Whether the command that was typed has this flag only since settings are flags everywhere.
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

/// No flag is a number: `-1` is a value that is out of range, and is refused as such.
fn negative_numbers_are_values(command: Clap) -> Clap {
    command
        .mut_args(|arg| match arg.get_action().takes_values() {
            true => arg.allow_negative_numbers(true),
            false => arg,
        })
        .mut_subcommands(negative_numbers_are_values)
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Generate events or read files, store them, compute on them and serve the results
    ///
    /// Without --file: an ads pipeline, until Ctrl-C. Events are generated and sent to the stream `ads`
    /// through the network door;
    /// views and clicks are counted by campaign in windows of 10 seconds into the stream
    /// `campaign_counts`; the newest counts are served over HTTP.
    ///
    /// With --file: every line becomes a record of the stream `lines`, and the words of that stream
    /// are counted. A word is what stands between white space.
    ///
    /// With --data, the next run goes on with what is stored: it counts all of that, and
    /// `campaign_counts` is made anew.
    ///
    /// The fields of --json: ingested_records, and ingested_bytes of their values, are what this run
    /// took in; durable_records is what the stream holds; seconds. With --file: words,
    /// prefixed_words, and in top the 20 most frequent words with their counts. Without: events,
    /// views and clicks that the flow has read, windows of all campaigns, counted, which is the sum
    /// over these windows, and dead_letters, records that are no events: they go to the stream
    /// `ads.dead_letters`.
    Quickstart(QuickstartArgs),
    /// Serve the streams over the network, to clients of Kafka and our own
    ///
    /// Until Ctrl-C or SIGTERM. A topic is a stream, and each lane one of its partitions. It listens on
    /// this machine only, unless --listen says otherwise.
    ///
    /// With --json, one document is printed when it listens: listen, the first address; listeners, all addresses;
    /// http, the address of HTTP if it is served; and data, the folder.
    Start(StartArgs),
    /// Create, list, describe, alter and delete streams
    #[command(subcommand)]
    Stream(StreamCommand),
    /// Append lines to a stream, each as a record
    Produce(ProduceArgs),
    /// Print the records of a stream
    Consume(ConsumeArgs),
    /// Put, get, list and delete objects
    #[command(subcommand)]
    Object(ObjectCommand),
    /// List, describe, reset and delete groups of consumers
    #[command(subcommand)]
    Group(GroupCommand),
    /// List open transactions, and decide those that nothing else decides
    #[command(subcommand)]
    Transaction(TransactionCommand),
    /// Users of the network door
    #[command(subcommand)]
    User(UserCommand),
    /// Add, list and remove rules of who may do what
    #[command(subcommand)]
    Acl(AclCommand),
    /// List what is damaged in a data directory, and take it away
    ///
    /// No server may run on it. All that streams hold is read and checked. A stream that is damaged refuses
    /// writes, and is read up to the damage; `--cut` lets it go on there, and `--quarantine` removes it.
    /// `--cut __catalog` and `--cut __positions` write the node's own tables anew, without the damaged entries;
    /// a start moves the files of streams that the catalog does not name any more to `aside`. `--cut __journal` takes
    /// damaged blocks out of the journal: streams that miss what was in them are damaged then.
    /// What is taken away goes to the folder `aside` of the data directory. Copy the data directory first
    /// where it matters.
    ///
    /// The fields of --json: without a flag damaged, each with stream, partition, offset, which is the first
    /// that cannot be read, and what; with one stream, files, which have what was taken away, and bytes.
    Repair(RepairArgs),
    /// Measure a server, as the tools that come with Kafka do
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Run the applications that come along
    #[command(subcommand)]
    Flow(FlowCommand),
}

#[derive(Debug, Args)]
pub struct StartArgs {
    /// Listen on an address that others can reach, though nobody is asked who they are
    #[arg(long)]
    pub insecure: bool,
}

#[derive(Debug, Subcommand)]
pub enum UserCommand {
    /// Set a user's password in the data directory itself, while nothing serves it
    ///
    /// This is how the first user is made, who is let in when --authentication is on. The password is
    /// asked for, or is the first line of stdin.
    Init {
        /// The user's name
        name: String,
    },
    /// Give a user a password at the server, and make the user if there is none
    ///
    /// The password is asked for, or is the first line of stdin.
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
    /// With --file: also count the words that start with this
    #[arg(long, value_name = "TEXT", default_value = "a", requires = "file")]
    pub prefix: String,
    /// End after this time, for instance 20s
    #[arg(long = "for", value_name = "TIME", value_parser = time)]
    pub duration: Option<Duration>,
    /// Events a second, or `max` for as many as the machine can store
    #[arg(
        long,
        value_name = "N",
        default_value = "100000",
        conflicts_with = "file"
    )]
    pub rate: Rate,
    /// Forget the checkpoint and the results of earlier runs, and count all that is stored again
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
        /// Logical partitions
        #[arg(long, value_name = "N", default_value_t = 1, value_parser = lanes)]
        streamlets: u32,
        /// Lanes of each streamlet, where producers append in parallel
        #[arg(long, value_name = "N", default_value_t = 1, value_parser = lanes)]
        lanes: u32,
        /// Virtual logs that the lanes share
        #[arg(long, value_name = "N", default_value_t = 1, value_parser = virtual_logs)]
        virtual_logs: u32,
        /// When producers are answered: sync, written, async or memory
        #[arg(long, value_name = "WHEN", default_value = "sync")]
        durability: Durability,
        #[command(flatten)]
        retention: RetentionArgs,
    },
    /// List all streams
    List,
    /// Show a stream's settings and lanes
    Describe {
        /// The stream's name
        name: String,
    },
    /// Give a stream more streamlets or lanes, or another retention
    #[command(group = ArgGroup::new("change").required(true).multiple(true)
        .args(["streamlets", "lanes", "retain_for", "retain_bytes"]))]
    Alter {
        /// The stream's name
        name: String,
        /// Logical partitions, never fewer than before
        #[arg(long, value_name = "N", value_parser = lanes)]
        streamlets: Option<u32>,
        /// Lanes of each streamlet, never fewer than before
        #[arg(long, value_name = "N", value_parser = lanes)]
        lanes: Option<u32>,
        #[command(flatten)]
        retention: RetentionArgs,
    },
    /// Delete a stream with all that it holds
    Delete {
        /// The stream's name
        name: String,
    },
}

#[derive(Debug, Args)]
pub struct RetentionArgs {
    /// Remove groups whose newest record is older, for instance 7days, or `none`
    #[arg(long, value_name = "TIME", value_parser = limit(some_time))]
    pub retain_for: Option<Limit<Duration>>,
    /// Remove the oldest groups of a lane beyond this size, for instance 10GiB, or `none`
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
    /// What stands before the first of these in a line is the record's key
    #[arg(long, value_name = "TEXT")]
    pub key_separator: Option<String>,
    /// Number the lines as this producer: run again with the same input after a crash, the lines
    /// that are stored already are not stored twice
    #[arg(long, value_name = "ID", value_parser = number(0_i64, None))]
    pub producer: Option<i64>,
    /// Print how many lines are durable so far, a number a line, as it grows
    #[arg(long, conflicts_with = "json")]
    pub acks: bool,
}

#[derive(Debug, Args)]
pub struct ConsumeArgs {
    /// The stream's name
    pub stream: String,
    /// Where to start: earliest, latest, or an offset (of one partition)
    #[arg(long, value_name = "PLACE", default_value = "earliest")]
    pub from: Place,
    /// Only this partition
    #[arg(long, value_name = "N", value_parser = number(0_u32, None), conflicts_with = "group")]
    pub partition: Option<u32>,
    /// Share the records with the others of this group, and go on where it was; where it was not yet,
    /// --from says where to start
    #[arg(long, value_name = "NAME", value_parser = text)]
    pub group: Option<String>,
    /// Only records that this keeps: key = "a" and value contains "b", for instance
    #[arg(long = "where", value_name = "FILTER", value_parser = Filter::parse)]
    pub filter: Option<Filter>,
    /// How records come from a server [default: push]
    #[arg(long, value_enum, value_name = "HOW")]
    pub delivery: Option<Delivery>,
    /// Skip damaged records of a server, and tell their offsets; without it, damage is an error
    #[arg(long)]
    pub skip_damaged: bool,
    /// Stop after so many records
    #[arg(long, value_name = "N", value_parser = number(0_u64, None))]
    pub limit: Option<u64>,
    /// Wait for more records at the end, also of partitions that are added, until Ctrl-C; without it, what is there now
    /// is printed
    #[arg(long)]
    pub follow: bool,
    /// How to print records
    #[arg(long, value_enum, default_value_t = RecordFormat::Value, conflicts_with = "json")]
    pub format: RecordFormat,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Delivery {
    /// It sends them as they become durable: through shared memory if it is on this machine, of the same
    /// user, and may show all; else over the network
    #[default]
    Push,
    /// It is asked for them
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
    /// A JSON object a line, with partition, offset, timestamp, key, value and headers; bytes that
    /// are no UTF-8 stand in key_base64 and value_base64 instead
    Json,
}

#[derive(Debug, Args)]
pub struct RepairArgs {
    /// Cut the partitions of this stream where they are damaged: the next record gets the first offset that
    /// cannot be read
    #[arg(long, value_name = "STREAM", conflicts_with = "quarantine")]
    pub cut: Option<String>,
    /// Take this stream away, with all that the journal holds of it
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
    /// With --json, stdout gets one document: what `put` tells of the object, and, unless they go to
    /// a file, in content_base64 the bytes.
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
        /// What the names start with; all objects without it
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
pub enum GroupCommand {
    /// List all groups
    List,
    /// Show a group's members, and where it stands in each partition
    Describe {
        /// The group's name
        #[arg(value_parser = text)]
        group: String,
    },
    /// Set where a group goes on in a stream; it must have no members
    Reset {
        /// The group's name
        #[arg(value_parser = text)]
        group: String,
        /// The stream's name
        stream: String,
        /// Where: earliest, latest, or an offset (of one partition)
        #[arg(long, value_name = "PLACE")]
        to: Place,
        /// Only in this partition
        #[arg(long, value_name = "N", value_parser = number(0_u32, None))]
        partition: Option<u32>,
    },
    /// Delete a group with its positions; it must have no members
    Delete {
        /// The group's name
        #[arg(value_parser = text)]
        group: String,
    },
}

#[derive(Debug, Subcommand)]
pub enum TransactionCommand {
    /// List open transactions: the flow that each is of, its age and its partitions
    ///
    /// Readers of what is committed wait at an open transaction. One without a timeout waits for its flow, which decides it
    /// when it is resumed.
    ///
    /// The fields of --json: id, state, flow, sink and rank if a flow has made it, age_ms, timeout_ms (null for none) and
    /// partitions.
    List {
        /// Also transactional ids without an open transaction
        #[arg(long)]
        all: bool,
    },
    /// Commit an open transaction, in place of its producer
    ///
    /// A flow decides its own transactions when it is resumed. If it goes on from a checkpoint that does not name this one, its
    /// results come again: they are there twice then.
    Commit(DecideArgs),
    /// Abort an open transaction, in place of its producer
    ///
    /// A flow decides its own transactions when it is resumed. If it goes on from a checkpoint that names this one, its results
    /// are lost.
    Abort(DecideArgs),
}

#[derive(Debug, Args)]
pub struct DecideArgs {
    /// The transaction, as `transaction list` shows it
    #[arg(value_name = "ID", value_parser = text)]
    pub id: String,
    /// Do it, whatever its producer may do
    #[arg(long)]
    pub force: bool,
}

#[derive(Debug, Subcommand)]
pub enum AclCommand {
    /// List rules: all, or those that agree with what is said
    List {
        #[command(flatten)]
        filter: AclFilterArgs,
    },
    /// Add a rule
    Add {
        /// allow or deny
        permission: Permission,
        /// Who: User:alice, or User:* for everybody
        #[arg(long, value_name = "User:NAME", value_parser = principal)]
        principal: String,
        /// What: all, read, write, create, delete, alter, describe and others
        #[arg(long, value_name = "WHAT")]
        operation: AclOperation,
        /// With what: stream, group, cluster, transactional-id or user
        #[arg(long, value_name = "KIND")]
        resource: ResourceType,
        /// Its name; all without it
        #[arg(long, value_name = "NAME", value_parser = text)]
        name: Option<String>,
        /// All names that begin with this one
        #[arg(long, requires = "name")]
        prefixed: bool,
        /// Only from this address
        #[arg(long, value_name = "ADDRESS", value_parser = rule_host)]
        host: Option<String>,
    },
    /// Remove the rules that agree with what is said
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
    /// Whom they are about
    #[arg(long, value_name = "User:NAME", value_parser = principal)]
    pub principal: Option<String>,
    /// Which operation
    #[arg(long, value_name = "WHAT")]
    pub operation: Option<AclOperation>,
    /// What they are about: stream, group, cluster, transactional-id or user
    #[arg(long, value_name = "KIND")]
    pub resource: Option<ResourceType>,
    /// Its name, as the rule has it
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// From which address
    #[arg(long, value_name = "ADDRESS", value_parser = rule_host)]
    pub host: Option<String>,
}

#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// How many records a producer stores in a second, and how long each takes
    Produce(BenchProduceArgs),
    /// How many records a consumer reads in a second
    Consume(BenchConsumeArgs),
    /// How long a record takes from a producer to a consumer, one at a time
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
    /// Records a second, or `max` for as many as are stored
    #[arg(long, value_name = "N", default_value = "max")]
    pub rate: Rate,
    /// How chunks are compressed: none, gzip, snappy, lz4 or zstd
    #[arg(long, value_name = "NAME", default_value = "none")]
    pub compression: Compression,
    /// A chunk takes no more records beyond this size
    #[arg(long, value_name = "SIZE", default_value = "16KiB", value_parser = size)]
    pub batch_bytes: ByteSize,
    /// A chunk waits for more records for so long
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = time)]
    pub linger: Duration,
}

#[derive(Debug, Args)]
pub struct BenchConsumeArgs {
    /// The stream's name
    pub stream: String,
    /// How many records; it ends earlier when nothing comes for 10 seconds
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = number(1_u64, None))]
    pub records: u64,
    /// How records come from a server [default: push]
    #[arg(long, value_enum, value_name = "HOW")]
    pub delivery: Option<Delivery>,
}

#[derive(Debug, Args)]
pub struct BenchLatencyArgs {
    /// The stream's name; nobody else may append to its partition 0 meanwhile
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
    /// List what flows could not process, and give it to them again
    #[command(subcommand)]
    DeadLetters(DeadLettersCommand),
}

#[derive(Debug, Subcommand)]
pub enum DeadLettersCommand {
    /// List dead letters, the oldest of each flow first
    ///
    /// A dead letter is an item that makes code of a flow panic twice, or for which it answers an error. Those of a
    /// flow are in the stream `<flow>.dead_letters`.
    ///
    /// The fields of --json: stream, partition and offset of the letter, timestamp, flow, operator, error, item, which
    /// is what the operator was given, origin, the stream, partition and offset of the record that the item was made
    /// of, or null, bytes of its key and value, can_be_replayed and is_replayed.
    List(ListDeadLettersArgs),
    /// Write the records of dead letters to the streams that they come from, so that the flow reads them again
    ///
    /// Each letter is replayed once: the next replay goes on behind the last one. How far it is, is the position
    /// of the group `<flow>.dead_letters.replay`, committed together with the records. The records have the headers
    /// replay.of, the letter, and replay.times.
    ///
    /// The fields of --json: flow, replayed records, streams, each with its number of records, and without_record,
    /// letters of which the flow did not know the record.
    Replay(ReplayDeadLettersArgs),
}

#[derive(Debug, Args)]
pub struct ListDeadLettersArgs {
    /// The flow's name; all flows without it
    pub flow: Option<String>,
    /// Stop after so many letters
    #[arg(long, value_name = "N", value_parser = number(0_u64, None))]
    pub limit: Option<u64>,
}

#[derive(Debug, Args)]
pub struct ReplayDeadLettersArgs {
    /// The flow's name
    pub flow: String,
    /// Stop after so many letters
    #[arg(long, value_name = "N", value_parser = number(0_u64, None))]
    pub limit: Option<u64>,
    /// Begin with the first letter, also if it was replayed
    #[arg(long)]
    pub again: bool,
}

#[derive(Debug, Subcommand)]
pub enum Application {
    /// Count the words of files that start with a prefix
    ///
    /// A word is what stands between white space. The files are read in parallel, and nothing of
    /// them is stored. Ctrl-C ends it with what was counted so far.
    ///
    /// The items that the table counts are blocks of lines; behind the stage split, runs of words.
    ///
    /// The fields of --json: count of the words with the prefix, all words and bytes, bytes_before, which
    /// are those before the checkpoint that it went on from, seconds, is_stopped if that was before the
    /// end, cpu_seconds, joules where the machine tells, workers_replaced, throughput as pairs of second
    /// and MB/s for every 100 ms, latency from source to end, and stages with all that is measured of each.
    Logparser(LogparserArgs),
    /// Count how often each word of files occurs
    ///
    /// A word is what stands between white space. Each rank reads a part of the files. Ctrl-C ends it with
    /// what was counted so far.
    ///
    /// The fields of --json: top, the most frequent words, each with word and count; all words, how many
    /// are different, bytes, seconds, and is_stopped if that was before the end.
    Words(WordsArgs),
    /// Count made-up events of ads by ad, in windows
    ///
    /// One windowed count: the benchmark SWA of the paper on AIR. Events of 136 bytes on average are made by every
    /// instance, and each result is checked against what was made.
    ///
    /// The fields of --json: application, ranks, instances, events, seconds, events_per_second, results of
    /// windows, those that are missing or wrong, is_on_time if as many events were made as asked for, and
    /// latency_ms of results: mean, p50 and p99 from the last event of a window on.
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
    /// Events per second, of all instances together [default: as many as can be]
    #[arg(long, value_name = "N", value_parser = number(1_u64, Some(1_000_000_000_000)))]
    pub rate: Option<u64>,
    /// How long events are made
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
    /// Count the words that start with this alone
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub prefix: String,
    /// Show so many of the most frequent words
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub top: u32,
    #[command(flatten)]
    pub ranks: RankArgs,
    #[command(flatten)]
    pub run: RunArgs,
}

/// On which ranks an application runs.
#[derive(Debug, Args)]
pub struct RankArgs {
    /// Run on so many ranks, which are threads of this process [default: the processes that mpirun or srun
    /// has started, or else one]
    #[arg(long, value_name = "N", value_parser = number(1_u32, Some(1024)))]
    pub ranks: Option<u32>,
    /// Instances of each operator on a rank, and as many workers; may be more than cores [default: the
    /// workers, shared by the ranks of this process]
    #[arg(long, value_name = "K", value_parser = crate::values::workers)]
    pub instances: Option<NonZeroUsize>,
    /// The rank on which results come together
    #[arg(long, value_name = "RANK", default_value_t = 0)]
    pub gather_at: u32,
}

#[derive(Debug, Args)]
pub struct LogparserArgs {
    /// Count the words of this file, which must be a regular one; can be repeated
    #[arg(long, value_name = "PATH", required = true)]
    pub file: Vec<PathBuf>,
    /// Count the words that start with this
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
    /// Four stages, joined by queues: read, split, filter, count
    Separate,
}

/// How any application is run and looked at.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Who decides what the workers do next
    #[arg(long, value_enum, value_name = "WHO", default_value_t = SchedulerName::Priority)]
    pub scheduler: SchedulerName,
    /// Whether items keep their order from stage to stage; only if the result depends on it, unless
    /// this says otherwise
    #[arg(long, value_enum, value_name = "HOW")]
    pub order: Option<OrderName>,
    /// Kill a share of the workers from time to time, for instance 60%/4s, to see what happens
    #[arg(long, value_name = "SHARE/TIME")]
    pub kill_workers: Option<Kills>,
    /// Write all that is measured of the stages to this file every 100 ms, as CSV
    #[arg(long, value_name = "PATH")]
    pub record: Option<PathBuf>,
    #[command(flatten)]
    pub checkpoints: CheckpointArgs,
}

/// What an application keeps to go on from when it has ended early, however that was.
#[derive(Debug, Args)]
pub struct CheckpointArgs {
    /// Keep checkpoints in this directory, which is made if it is missing, and has to be the same for all
    /// ranks. Nothing else may be in it
    #[arg(long, value_name = "DIR", value_parser = crate::values::path)]
    pub checkpoints: Option<PathBuf>,
    /// Keep one so often
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = some_time, requires = "checkpoints")]
    pub checkpoint_interval: Duration,
    /// Go on from the last checkpoint that is complete, with as many ranks as before and all else the same
    #[arg(long, value_enum, value_name = "WHEN", num_args = 0..=1, require_equals = true,
        default_missing_value = "always", requires = "checkpoints")]
    pub resume: Option<ResumeWhen>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ResumeWhen {
    /// There must be one
    Always,
    /// Begin at the start if there is none
    IfAny,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SchedulerName {
    /// The stage that others wait for most
    Priority,
    /// All stages in turn
    RoundRobin,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OrderName {
    /// In the order of the source
    Kept,
    /// As they come
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
