//! The errors of the log. Each names the fault, its place and the remedy.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use millstream_base::{
    ByteSize, Cursor, GroupId, Offset, Position, ProducerEpoch, ProducerId, Sequence, Timestamp,
};
use millstream_record::ChunkError;

use crate::keys::secondary::name::SECONDARY;

fn oldest_version(oldest: Option<Offset>) -> String {
    match oldest {
        Some(oldest) => format!("its oldest version behind that offset is {oldest}"),
        None => "it has no version behind that offset".to_owned(),
    }
}

/// An error of the log.
#[derive(Clone, thiserror::Error)]
pub enum LogError {
    /// Another process has the data directory open.
    #[error("data directory {dir} is in use by another process; stop it first")]
    Locked {
        /// The data directory.
        dir: PathBuf,
    },
    /// The folder is not empty, and is no data directory.
    #[error(
        "{path} is not part of a Millstream data directory; name an empty or new folder, or move it away"
    )]
    ForeignFile {
        /// The first foreign file or folder.
        path: PathBuf,
    },
    /// A table that the log needs to open is damaged.
    #[error(
        "{error}; `millstream repair --cut {table}` writes {table} anew with all of its entries that are whole"
    )]
    DamagedTable {
        /// The table's name.
        table: String,
        /// Its damage.
        error: Box<LogError>,
    },
    /// The list of all files is damaged or missing.
    #[error(
        "{error}; `millstream repair --cut __manifest` makes the list anew of the files that are there"
    )]
    DamagedManifest {
        /// Its damage.
        error: Box<LogError>,
    },
    /// The disk is full, and the data directory has an earlier format.
    #[error(
        "disk is full, and data directory {dir} of format {found} becomes one of format {known} with this program, which \
         takes {bytes}: make room, and start again; nothing has changed"
    )]
    NoRoomToUpgrade {
        /// The data directory.
        dir: PathBuf,
        /// The format that its marker names.
        found: u32,
        /// The format known here.
        known: u32,
        /// The size of the list of files.
        bytes: ByteSize,
    },
    /// The data was written by a later version.
    #[error(
        "data directory {dir} has format {found}, this program reads {known}; use a newer program"
    )]
    NewerFormat {
        /// The data directory.
        dir: PathBuf,
        /// The format that its marker names.
        found: u32,
        /// The format known here.
        known: u32,
    },
    /// The data was written by an earlier version.
    #[error(
        "data directory {dir} has format {found}, this program reads {known}; use the program that wrote it, or an empty folder"
    )]
    OlderFormat {
        /// The data directory.
        dir: PathBuf,
        /// The format that its marker names.
        found: u32,
        /// The format known here.
        known: u32,
    },
    /// The journal was written by an earlier version that did not end cleanly.
    #[error(
        "{path} was left by an older program, and this one does not read it; start that program once more and end it cleanly"
    )]
    OlderJournal {
        /// The journal's first file.
        path: PathBuf,
    },
    /// A call of the operating system failed.
    #[error("cannot {action} {path}: {error}")]
    Io {
        /// The operation.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system.
        error: Arc<io::Error>,
    },
    /// Stored bytes differ from the written ones.
    #[error(
        "{path} is corrupted at byte {position}: {what}; restore it from a copy, or see `millstream repair`"
    )]
    Corrupted {
        /// The file.
        path: PathBuf,
        /// The first corrupted byte.
        position: u64,
        /// The damage.
        what: String,
    },
    /// A write or sync failed; the content of the disk is unknown until it is read again.
    #[error("partition refuses writes since {what}; check the disk and restart")]
    PartitionFault {
        /// The failure.
        what: String,
    },
    /// The disk is full.
    #[error(
        "disk is full: writes to {dir} are refused until there is room, and the journal's next file takes {bytes} (setting journal_file); reads go on"
    )]
    DiskFull {
        /// The data directory.
        dir: PathBuf,
        /// The size of the journal's next file.
        bytes: ByteSize,
    },
    /// The disk is full, and the journal's runs do not fit the pool.
    #[error(
        "disk is full, and the pool of {pool} is too small to start without writing: make room for at least {bytes} at {dir}, or set a larger pool"
    )]
    NoRoomToStart {
        /// The data directory.
        dir: PathBuf,
        /// The bytes to be written that recovery has found so far.
        bytes: ByteSize,
        /// The size of the pool.
        pool: ByteSize,
    },
    /// No memory came free in time.
    #[error(
        "no free buffer in the pool of {pool} within {waited_ms} ms: the disk is slower than the appends, or slices are held for too long; retry, or set a larger pool"
    )]
    PoolExhausted {
        /// The size of the pool.
        pool: ByteSize,
        /// The time that the append waited.
        waited_ms: u64,
    },
    /// The chunk is no valid record batch.
    #[error("chunk refused: {0}")]
    Chunk(#[from] ChunkError),
    /// The chunk holds no records.
    #[error("chunk refused: it holds no records")]
    EmptyChunk,
    /// The chunk is larger than any segment.
    #[error("chunk of {bytes} refused: the largest is {bytes_max}")]
    ChunkTooLarge {
        /// Its size.
        bytes: ByteSize,
        /// The bound.
        bytes_max: ByteSize,
    },
    /// The stream refuses records of this time.
    #[error(
        "a record of time {timestamp} is refused: the stream takes records of {least} to {most}, as its settings \
         message.timestamp.before.max.ms and message.timestamp.after.max.ms demand"
    )]
    TimestampOutOfRange {
        /// The record's time.
        timestamp: Timestamp,
        /// The oldest accepted time.
        least: Timestamp,
        /// The newest accepted time.
        most: Timestamp,
    },
    /// A compacted stream takes only records with a key, of at most [`KEY_BYTES_MAX`].
    #[error(
        "record {} of the chunk is refused: it has no key, or one of more than {KEY_BYTES_MAX} bytes, and stream {stream} keeps the last record of each key (cleanup.policy has compact); send it with a key",
        records.first().copied().unwrap_or_default()
    )]
    NoKey {
        /// The stream's name.
        stream: String,
        /// The numbers of the first of these records in the chunk, from 0; at most [`NAMED_RECORDS_MAX`].
        records: Vec<u32>,
    },
    /// A newer incarnation of the producer has appended.
    #[error("producer {producer} with epoch {epoch} is fenced off by epoch {current}")]
    ProducerFenced {
        /// The producer.
        producer: ProducerId,
        /// The value in the chunk.
        epoch: ProducerEpoch,
        /// The last value that the lane has seen.
        current: ProducerEpoch,
    },
    /// A newer incarnation of the coordinator has ended a transaction of this producer.
    #[error(
        "marker for producer {producer} by the coordinator of epoch {epoch} is fenced off by epoch {current}"
    )]
    CoordinatorFenced {
        /// The producer.
        producer: ProducerId,
        /// The value in the marker.
        epoch: i32,
        /// The last value that the lane has seen.
        current: i32,
    },
    /// The chunk contradicts itself about its producer.
    #[error("chunk of producer {producer} refused: {why}")]
    BadProducer {
        /// The producer.
        producer: ProducerId,
        /// The rule that it breaks.
        why: &'static str,
    },
    /// Too many producers are in a transaction.
    #[error("no more transactions in this partition: {most} have not ended; end some of them")]
    TooManyTransactions {
        /// The bound.
        most: usize,
    },
    /// Only the broker itself writes markers.
    #[error("chunk refused: clients do not write control records")]
    ControlChunk,
    /// A chunk is missing between the last and this one.
    #[error("producer {producer}: sequence {found} is out of order, {expected} comes next")]
    OutOfOrderSequence {
        /// The producer.
        producer: ProducerId,
        /// The value in the chunk.
        found: Sequence,
        /// The sequence that follows the last chunk.
        expected: Sequence,
    },
    /// The stream does not exist.
    #[error("unknown stream {name}")]
    UnknownStream {
        /// Its name or id.
        name: String,
    },
    /// The name is taken.
    #[error("{name} exists already")]
    Exists {
        /// The stream or object.
        name: String,
    },
    /// The name cannot be used.
    #[error("name {name:?} refused: {why}")]
    BadName {
        /// The name.
        name: String,
        /// The rule that it breaks.
        why: &'static str,
    },
    /// A setting is out of its bounds.
    #[error("setting {setting} refused: {why}")]
    BadSetting {
        /// The setting.
        setting: &'static str,
        /// The bound that it breaks.
        why: String,
    },
    /// The node has as many partitions as it may have.
    #[error(
        "{more} more partitions refused: the node has {has}, and at most {most}; delete streams or objects, or raise the setting partitions_max"
    )]
    TooManyPartitions {
        /// The number that the caller asked for.
        more: u64,
        /// The node's number of partitions.
        has: u64,
        /// The bound.
        most: u64,
    },
    /// A filter cannot be applied.
    #[error("the chunk at {cursor} cannot be filtered: {error}; read the stream without a filter")]
    NotFiltered {
        /// The cursor of the chunk, or of a chunk before it.
        cursor: Cursor,
        /// The reason.
        error: ChunkError,
    },
    /// The stream is not keyed.
    #[error(
        "records of stream {stream} are not found by key, since its setting cleanup.policy does not contain compact; \
         set it with `millstream config set stream/{stream} cleanup.policy=compact`"
    )]
    NotKeyed {
        /// The stream's name.
        stream: String,
    },
    /// The stream has no index of these secondary keys.
    #[error(
        "stream {stream} has no index of secondary keys named {name:?}; it has {known}; add the name with \
         `millstream config set stream/{stream} {SECONDARY}=NAME,...`"
    )]
    NoSecondaryIndex {
        /// The stream's name.
        stream: String,
        /// The name that was asked for.
        name: String,
        /// The names that the stream has.
        known: String,
    },
    /// A keyed stream gets no more partitions: most of its keys would get other owners.
    #[error(
        "stream {stream} gets no more partitions, since its records are found by key (cleanup.policy contains compact) \
         and the number of partitions decides which one owns a key; copy it into a larger stream: \
         `millstream stream create NEW --keyed --partitions N`, then `millstream stream copy {stream} NEW`"
    )]
    KeyedNotGrown {
        /// The stream's name.
        stream: String,
    },
    /// The index of keys cannot read the records of a chunk.
    #[error(
        "partition {partition} of stream {stream} is not searched by key, since its chunk at offset {offset} cannot be \
         read: {error}; read it by offset, or delete the records up to this chunk"
    )]
    KeysUnreadable {
        /// The stream's name.
        stream: String,
        /// The partition.
        partition: u32,
        /// The chunk's first offset.
        offset: Offset,
        /// The reason.
        error: Box<ChunkError>,
    },
    /// A record is not the one that the index of keys has read.
    #[error(
        "partition {partition} of stream {stream} holds another record at offset {offset} than before: its files were \
         changed; restart, and see `millstream repair`"
    )]
    KeysChanged {
        /// The stream's name.
        stream: String,
        /// The partition.
        partition: u32,
        /// The record's offset.
        offset: Offset,
    },
    /// The keys of records that do not count yet fill their memory.
    #[error(
        "conditional changes of keys are refused in partition {partition} of stream {stream}, since too many of its records \
         are not durable yet or are of transactions that have not ended: try again when they have (`millstream transaction \
         list`)"
    )]
    TooManyUndecided {
        /// The stream's name.
        stream: String,
        /// The partition.
        partition: u32,
    },
    /// Concurrent changes of the same keys prevented this one too many times.
    #[error(
        "the keys in partition {partition} of stream {stream} were not changed, since other producers write them too fast; \
         try again"
    )]
    KeysBusy {
        /// The stream's name.
        stream: String,
        /// The partition.
        partition: u32,
    },
    /// Another partition owns the key.
    #[error(
        "partition {partition} of stream {stream} does not own the key: partition {owner} does, by the hash of the key"
    )]
    NotTheOwner {
        /// The stream's name.
        stream: String,
        /// The partition.
        partition: u32,
        /// The partition that owns the key.
        owner: u32,
    },
    /// Two changes of one call have the same key.
    #[error(
        "changes {first} and {second} for stream {stream} are of the same key: changes that are made together must have different ones"
    )]
    SameKey {
        /// The stream's name.
        stream: String,
        /// The number of a change, from 0 on.
        first: u32,
        /// The number of the other one.
        second: u32,
    },
    /// The streamlet or lane does not exist.
    #[error("stream {stream} has no {what}")]
    UnknownPartition {
        /// The stream's name.
        stream: String,
        /// The streamlet or lane.
        what: String,
    },
    /// Retention has removed the chunk at the cursor.
    #[error("cursor {cursor} is no longer stored; the earliest is {earliest}")]
    CursorRemoved {
        /// The consumer's cursor.
        cursor: Cursor,
        /// The earliest cursor from which it can read on.
        earliest: Cursor,
    },
    /// No stored chunk starts at the cursor.
    #[error("cursor {cursor} refused: {why}")]
    BadCursor {
        /// The cursor.
        cursor: Cursor,
        /// The reason.
        why: String,
    },
    /// The offset is not stored.
    #[error("offset {offset} is not stored: the partition holds {earliest} up to {end}")]
    OffsetOutOfRange {
        /// The offset that the caller asked for.
        offset: Offset,
        /// The first stored.
        earliest: Offset,
        /// The offset behind the last one that can be read.
        end: Offset,
    },
    /// A watch cannot go on: changes are missing from its position on, or the records before it are not those that it has read.
    #[error(
        "the changes in partition {partition} of stream {stream} from offset {offset} on are not complete: {why}; begin again \
         with a snapshot"
    )]
    ChangesLost {
        /// The stream's name.
        stream: String,
        /// The partition.
        partition: u32,
        /// The position of the watch.
        offset: Offset,
        /// The reason.
        why: &'static str,
    },
    /// The version of a key at an offset is not known: the log no longer has all older versions.
    #[error(
        "partition {partition} of stream {stream} no longer has the version of the key at offset {at}: {why}; {}",
        oldest_version(*.oldest)
    )]
    VersionNotKept {
        /// The stream's name.
        stream: String,
        /// The partition.
        partition: u32,
        /// The offset that the caller asked for.
        at: Offset,
        /// The oldest version behind that offset; `None` if there is none.
        oldest: Option<Offset>,
        /// The reason.
        why: &'static str,
    },
    /// There is no hold of this name, or its time is over.
    #[error(
        "stream {stream} has no hold {name}; `millstream kv hold list {stream}` shows its holds"
    )]
    UnknownHold {
        /// The stream's name.
        stream: String,
        /// The hold's name.
        name: String,
    },
    /// An open transaction hides records of a committed one in some partition.
    #[error(
        "stream {stream} cannot be held now: in a partition, an open transaction began before records of a committed one, which \
         a hold would have only in other partitions; try again, or end the transaction that `millstream transaction list` shows"
    )]
    HoldSplits {
        /// The stream's name.
        stream: String,
    },
    /// The stream has as many holds as it may have.
    #[error(
        "stream {stream} has {} holds, which is the most; delete one with `millstream kv hold delete {stream} NAME`",
        crate::hold::HOLDS_MAX
    )]
    TooManyHolds {
        /// The stream's name.
        stream: String,
    },
    /// The stream has more partitions than when the hold was made, so keys may have other owners.
    #[error(
        "stream {stream} had {then} partitions when hold {name} was made, and has {now}: nothing is found by the hold any more"
    )]
    HoldOutgrown {
        /// The stream's name.
        stream: String,
        /// The hold's name.
        name: String,
        /// How many partitions it had.
        then: u32,
        /// How many it has.
        now: u32,
    },
    /// The group was not handed to this consumer.
    #[error(
        "group {group} is not handed out to consumer {consumer} of shared group {shared_group}"
    )]
    NotHandedOut {
        /// The group.
        group: GroupId,
        /// The consumer.
        consumer: String,
        /// The shared group.
        shared_group: String,
    },
    /// All memory for catch-up reads is in use.
    #[error("all memory for catch-up reads is in use; retry when earlier slices are dropped")]
    ReadBudget,
    /// All memory for decompression is in use.
    #[error(
        "all memory for decompressing records ({budget}) was in use for {waited_ms} ms; retry, or raise the setting decompression"
    )]
    DecompressionBusy {
        /// The budget.
        budget: ByteSize,
        /// The time that the caller waited for it.
        waited_ms: u64,
    },
    /// The object does not exist.
    #[error("unknown object {name}")]
    UnknownObject {
        /// Its name.
        name: String,
    },
    /// The range is not part of the object.
    #[error("range {start}..{end} is not within object {name} of {bytes} bytes")]
    BadRange {
        /// The object.
        name: String,
        /// First byte.
        start: u64,
        /// The position behind the last byte.
        end: u64,
        /// The object's size.
        bytes: u64,
    },
    /// The log is being closed.
    #[error("the log is closed")]
    Closed,
}

millstream_base::debug_as_display!(LogError);

impl LogError {
    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>, error: io::Error) -> LogError {
        LogError::Io {
            action,
            path: path.into(),
            error: Arc::new(error),
        }
    }

    pub(crate) fn corrupted(
        path: impl Into<PathBuf>,
        position: Position,
        what: impl ToString,
    ) -> LogError {
        LogError::Corrupted {
            path: path.into(),
            position: position.0,
            what: what.to_string(),
        }
    }

    /// Returns whether the disk is full.
    pub(crate) fn is_disk_full(&self) -> bool {
        match self {
            LogError::Io { error, .. } => matches!(
                error.kind(),
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
            ),
            LogError::DiskFull { .. } => true,
            _ => false,
        }
    }

    /// Returns the error of appends to a lane whose file or journal failed with this error.
    pub(crate) fn to_lane_fault(&self) -> LogError {
        match self {
            LogError::PartitionFault { .. } => self.clone(),
            other => LogError::PartitionFault {
                what: other.to_string(),
            },
        }
    }
}

/// The longest key of a record in a compacted stream, in bytes.
pub const KEY_BYTES_MAX: usize = 1 << 20;

/// The most records of a chunk that one error names.
pub const NAMED_RECORDS_MAX: usize = 100;

/// The result of an operation on the log.
pub type Result<T, E = LogError> = std::result::Result<T, E>;
