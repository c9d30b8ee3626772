//! The arguments of commands that administer a server: groups, transactions, quotas, settings and health.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand};
use clap_complete::Shell;
use millstream_base::ByteSize;

use crate::values::{
    Assignment, EntityPart, Limit, Owner, Position, connections, limit, number, size, some_bytes,
    some_time, text,
};

#[derive(Debug, Subcommand)]
pub enum GroupCommand {
    /// List all groups, each with its state, members and lag
    ///
    /// The lag is the number of offsets that the group has not processed yet, in the partitions in which it has
    /// committed offsets. Records have offsets, and so do the markers that end transactions.
    ///
    /// The fields of --json: group, kind (consumer, classic, share, streams or flow), state, members (null if the
    /// user may not see the group) and lag (null if it is unknown).
    List,
    /// Show a group's members, and its committed offset and lag in each partition
    ///
    /// Of a share group: the offset of its first record that is not processed.
    ///
    /// Example: millstream group show readers
    ///
    /// The fields of --json: group, kind, state, members, each with id, client and host, and positions, each with
    /// stream, partition, offset (null for none), end, lag (null if it is unknown) and member (null for none).
    #[command(visible_alias = "show")]
    Describe {
        /// The group's name
        #[arg(value_parser = text)]
        group: String,
    },
    /// Set a group's committed offsets, or the offsets from which a share group reads; the group must have no members
    ///
    /// Examples:
    ///   millstream group reset readers orders --to start
    ///   millstream group reset readers orders --to 2026-05-01T12:30:00Z
    ///   millstream group reset readers orders --partition 3 --by -100 --dry-run
    ///
    /// The fields of --json: group, is_dry_run, and offsets, each with stream, partition, the old offset (null for
    /// none) and the new one.
    #[command(verbatim_doc_comment, group = ArgGroup::new("where").required(true).args(["to", "by"]))]
    Reset {
        /// The group's name
        #[arg(value_parser = text)]
        group: String,
        /// The stream's name; all streams in which the group has offsets without it
        stream: Option<String>,
        /// Where: start, end, an offset (of one partition), a time in UTC such as 2026-05-01T12:30:00Z, or an age
        /// such as -10m; a time stands for the first record that is not older
        #[arg(long, value_name = "POSITION", allow_hyphen_values = true)]
        to: Option<Position>,
        /// Move each offset by this many records, forward or, with a minus sign, back; not beyond the
        /// records that exist
        #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = number(i64::MIN, None))]
        by: Option<i64>,
        /// Only in this partition
        #[arg(long, value_name = "N", value_parser = number(0_u32, None), requires = "stream")]
        partition: Option<u32>,
        /// Print the new offsets, and change nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Delete a group and its committed offsets; the group must have no members
    Delete {
        /// The group's name
        #[arg(value_parser = text)]
        group: String,
    },
}

#[derive(Debug, Subcommand)]
pub enum TransactionCommand {
    /// List open transactions: the flow, the age and the partitions of each
    ///
    /// Consumers that read only committed records wait at an open transaction. A transaction without a timeout stays
    /// open until its flow resumes and decides it.
    ///
    /// The fields of --json: id, state, flow, sink and rank if a flow has made it, age_ms, timeout_ms (null for none) and
    /// partitions.
    List {
        /// Also transactional ids without an open transaction
        #[arg(long)]
        all: bool,
    },
    /// Show a transactional id: its producer, its state, and the partitions of its transaction
    ///
    /// Example: millstream transaction describe payments-1
    ///
    /// The fields of --json: those of `list`, producer_id and producer_epoch.
    #[command(visible_alias = "show")]
    Describe {
        /// The transactional id, as `transaction list` shows it
        #[arg(value_name = "ID", value_parser = text)]
        id: String,
    },
    /// Commit an open transaction, in place of its producer
    ///
    /// A flow decides its own transactions when it resumes. If it resumes from a checkpoint that does not name this
    /// transaction, it writes the results again, and the stream holds them twice.
    Commit(DecideArgs),
    /// Abort an open transaction, in place of its producer
    ///
    /// A flow decides its own transactions when it resumes. If it resumes from a checkpoint that names this
    /// transaction, its results are lost.
    Abort(DecideArgs),
}

#[derive(Debug, Args)]
pub struct DecideArgs {
    /// The transaction, as `transaction list` shows it
    #[arg(value_name = "ID", value_parser = text)]
    pub id: String,
    /// Decide it even if its producer may still be running
    #[arg(long)]
    pub force: bool,
}

#[derive(Debug, Subcommand)]
pub enum QuotaCommand {
    /// List the limits of users, client ids and addresses
    ///
    /// The fields of --json: entity, with user, client-id or ip, each a name or `*`; and produce_bytes, consume_bytes
    /// and connections, each per second, or null without a limit.
    List,
    /// Set limits; the others of the entity stay
    ///
    /// The broker slows down clients that exceed a limit. If several entities match a client, the most specific one
    /// decides. Limits for all users need quotes: 'user=*'.
    ///
    /// Examples:
    ///   millstream quota set user=alice --produce 10MiB --consume none
    ///   millstream quota set user=alice client-id=import --produce 1MiB
    ///   millstream quota set 'ip=*' --connections 20
    #[command(verbatim_doc_comment, group = ArgGroup::new("limits").required(true).multiple(true)
        .args(["produce", "consume", "connections"]))]
    Set {
        /// The entity: user=NAME, client-id=NAME, both, or ip=ADDRESS; the name `*` stands for all that have no
        /// limits of their own
        #[arg(value_name = "ENTITY", required = true)]
        entity: Vec<EntityPart>,
        /// Bytes per second that producers may send, for instance 10MiB; `none` removes the limit
        #[arg(long, value_name = "SIZE", value_parser = limit(some_bytes))]
        produce: Option<Limit<ByteSize>>,
        /// Bytes per second that consumers may read, for instance 10MiB; `none` removes the limit
        #[arg(long, value_name = "SIZE", value_parser = limit(some_bytes))]
        consume: Option<Limit<ByteSize>>,
        /// New connections per second, for an ip; `none` removes the limit
        #[arg(long, value_name = "N", value_parser = limit(connections))]
        connections: Option<Limit<u32>>,
    },
    /// Remove all limits of an entity
    ///
    /// Example: millstream quota remove user=alice
    Remove {
        /// The entity, as `quota set` takes it
        #[arg(value_name = "ENTITY", required = true)]
        entity: Vec<EntityPart>,
    },
}

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Show the settings of a broker, a stream or a group, under Kafka's names
    ///
    /// Examples:
    ///   millstream config show stream/orders
    ///   millstream config show broker --changed
    ///   millstream config show group/readers consumer.session.timeout.ms
    ///
    /// The fields of --json: owner, and settings, each with name, value, is_default, is_read_only and documentation.
    #[command(verbatim_doc_comment)]
    Show {
        /// The owner of the settings: broker, broker/NUMBER, stream/NAME or group/NAME
        #[arg(value_name = "OWNER")]
        owner: Owner,
        /// Only these settings
        #[arg(value_name = "SETTING")]
        names: Vec<String>,
        /// Only settings that do not have their default
        #[arg(long)]
        changed: bool,
    },
    /// Change settings
    ///
    /// Example: millstream config set stream/orders retention.ms=86400000 cleanup.policy=compact
    Set {
        /// The owner of the settings: broker, broker/NUMBER, stream/NAME or group/NAME
        #[arg(value_name = "OWNER")]
        owner: Owner,
        /// The settings with their new values
        #[arg(value_name = "SETTING=VALUE", required = true)]
        settings: Vec<Assignment>,
        /// Let the server check the change, and change nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Return settings to their defaults
    ///
    /// Example: millstream config unset stream/orders retention.ms
    Unset {
        /// The owner of the settings: broker, broker/NUMBER, stream/NAME or group/NAME
        #[arg(value_name = "OWNER")]
        owner: Owner,
        /// The settings
        #[arg(value_name = "SETTING", required = true, value_parser = text)]
        names: Vec<String>,
        /// Let the server check the change, and change nothing
        #[arg(long)]
        dry_run: bool,
    },
}

#[derive(Debug, Args)]
pub struct HealthArgs {
    /// The least free space on the server's disk
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = size)]
    pub free: ByteSize,
    /// The greatest age of an open transaction
    #[arg(long, value_name = "TIME", default_value = "15min", value_parser = some_time)]
    pub transaction_age: Duration,
    /// Watch the groups for this time: a group that has a lag during all of it must commit; choose a longer time than
    /// the pauses between commits
    #[arg(long, value_name = "TIME", value_parser = some_time)]
    pub watch_groups: Option<Duration>,
}

#[derive(Debug, Args)]
pub struct CompletionArgs {
    /// The shell
    #[arg(value_enum)]
    pub shell: Shell,
}

#[derive(Debug, Args)]
pub struct ManArgs {
    /// The directory, which is created if it is missing
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}

#[derive(Debug, Subcommand)]
pub enum ProfileCommand {
    /// Add a profile with the server and the login that the flags name
    ///
    /// The profile holds the paths of files with passwords, tokens and keys, and not their content.
    ///
    /// Example: millstream profile add prod --server broker:9092 --user alice --password-file ~/prod.password
    Add {
        /// The profile's name
        #[arg(value_parser = text)]
        name: String,
    },
    /// List all profiles
    ///
    /// The fields of --json: profile, is_current and settings.
    List,
    /// Use a profile in all commands that name neither a profile, a server nor a data directory
    Use {
        /// The profile's name
        name: String,
    },
    /// Remove a profile
    Remove {
        /// The profile's name
        name: String,
    },
}
