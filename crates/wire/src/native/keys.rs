//! Requests to read and write the records of keyed streams by their keys.

use bytes::Bytes;
use kafka_protocol::protocol::StrBytes;
use millstream_base::{ByteSize, Offset, Timestamp};

use uuid::Uuid;

use super::{Field, SecondaryKey, SharedMemory, native, nullable};
use crate::error::Malformed;
use crate::input::Input;
use crate::pieces::Output;

/// A condition on a key, which must hold for a change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(i8)]
pub enum KeyCondition {
    /// Nothing.
    #[default]
    None = 0,
    /// The key has no value.
    Absent = 1,
    /// The newest version of the key is a certain one, and has a value.
    Version = 2,
    /// The key has a value.
    Present = 3,
}

impl Field for KeyCondition {
    fn decode(input: &mut Input, name: &str) -> Result<KeyCondition, Malformed> {
        match input.int8(name)? {
            0 => Ok(KeyCondition::None),
            1 => Ok(KeyCondition::Absent),
            2 => Ok(KeyCondition::Version),
            3 => Ok(KeyCondition::Present),
            other => Err(input.malformed(format!("{name} is {other}, but must be from 0 to 3"))),
        }
    }

    fn encode(&self, output: &mut Output) {
        output.int8(*self as i8);
    }

    #[cfg(test)]
    fn type_name() -> String {
        "int8".to_owned()
    }

    #[cfg(any(test, feature = "forge"))]
    fn forge(forge: &mut crate::forge::Forge) -> KeyCondition {
        let all = [
            KeyCondition::None,
            KeyCondition::Absent,
            KeyCondition::Version,
            KeyCondition::Present,
        ];
        all[forge.below(4) as usize]
    }
}

native! {
    /// A committed version of a key.
    KeyVersion {
        /// The version: the offset of the record in its partition.
        version: Offset,
        /// The time of the record, in milliseconds since 1970.
        timestamp: Timestamp,
        /// The value.
        value: Bytes,
        /// When the value ends, in milliseconds since 1970; null if it has no end.
        expires_at: Option<Timestamp>,
    }

    /// Returns the newest committed versions of keys, or those that they had at earlier versions.
    GetKeysRequest {
        /// The name of the stream.
        stream: StrBytes,
        /// The keys; at most 1,024, each of at most 1 MiB.
        keys: Vec<Bytes>,
        /// One version for each key, in their order: the answer has the newest version of the key that is not behind it. Empty for
        /// the newest versions of all.
        at: Vec<Offset>,
        /// A hold of the stream: the answer has the versions that the keys had when it was made. Null without one, and else `at` is
        /// empty.
        hold: Option<StrBytes>,
        /// Whether the answer has the headers of the records; from version 1 on.
        with_headers: bool [1, false],
    }

    /// Answers [`GetKeysRequest`].
    GetKeysResponse: Answer {
        /// One element for each key, in their order. They are fewer than the keys if the values fill the
        /// answer, or if older versions take long to find; the client asks again for the other keys. Empty if the whole
        /// request failed.
        keys: Vec<GotKey>,
    }

    /// The result for a key.
    GotKey {
        /// 0, or one of Kafka's error codes.
        error_code: i16,
        /// The description of the error.
        error_message: Option<StrBytes>,
        /// The partition of the key.
        partition: u32,
        /// The newest version, or the newest one that is not behind the version of the request; null if the key is absent there.
        newest: Option<KeyVersion>,
        /// The headers of its record in the producer's order, if the request asked for them; from version 1 on.
        headers: Vec<KeyHeader> [1, Vec::new()],
    }

    /// A header of a record.
    KeyHeader {
        /// The name; by convention UTF-8.
        name: Bytes,
        /// The value.
        value: Option<Bytes>,
    }

    /// Returns the stored, committed versions of a key, newest first.
    KeyHistoryRequest {
        /// The name of the stream.
        stream: StrBytes,
        /// The key.
        key: Bytes,
        /// Only versions before this one; null for all.
        before: Option<Offset>,
        /// The most versions in the answer.
        versions_max: u32,
        /// About how many bytes of values the answer may have; the first version always comes.
        bytes_max: u32,
    }

    /// Answers [`KeyHistoryRequest`].
    KeyHistoryResponse: Answer {
        /// The partition of the key.
        partition: u32,
        /// The versions, newest first; perhaps none although older ones follow, where a part of the partition has none.
        versions: Vec<PastVersion>,
        /// The `before` of the request that goes on; null at the end.
        next: Option<Offset>,
        /// Whether there may have been further versions that are not stored any more; only known at the end, and else false.
        lacks_older: bool,
    }

    /// A stored version of a key.
    PastVersion {
        /// The version: the offset of the record in its partition.
        version: Offset,
        /// The time of the record, in milliseconds since 1970.
        timestamp: Timestamp,
        /// The value; null if the version deletes the key.
        value: Option<Bytes>,
        /// When the value ends or has ended, in milliseconds since 1970; null if it has no end.
        expires_at: Option<Timestamp>,
    }

    /// Returns the newest committed versions of the keys of a partition, in the order of the keys' bytes.
    ScanKeysRequest {
        /// The name of the stream.
        stream: StrBytes,
        /// The partition.
        partition: u32,
        /// The first key of the range; empty for the first key of all.
        from: Bytes,
        /// The key behind the range; null if the range has no end.
        until: Option<Bytes>,
        /// The most keys in the answer.
        keys_max: u32,
        /// About how many bytes of keys and values the answer may have; the first key always comes.
        bytes_max: u32,
    }

    /// Answers [`ScanKeysRequest`].
    ScanKeysResponse: Answer {
        /// The keys, in the order of their bytes.
        keys: Vec<ScannedKey>,
        /// The key to continue from; null at the end of the range.
        next: Option<Bytes>,
    }

    /// A key of a partition.
    ScannedKey {
        /// The key.
        key: Bytes,
        /// Its newest version.
        newest: KeyVersion,
    }

    /// Appends a new version of each key whose condition holds.
    PutKeysRequest {
        /// The name of the stream.
        stream: StrBytes,
        /// The keys, at most 1,024; the broker appends them in this order.
        entries: Vec<KeyToPut>,
        /// Whether all entries are stored or none. They are of different keys then.
        all_or_none: bool,
    }

    /// A key and its new value.
    #[derive(Default)]
    KeyToPut {
        /// The key, of at most 1 MiB; it may be empty.
        key: Bytes,
        /// The value; null deletes the key, unless there is a number to add.
        value: Option<Bytes>,
        /// The number to add to the value, which is a whole number as decimal text; an absent key counts as 0. Null for no
        /// addition; else `value` is null.
        add: Option<i64>,
        /// The condition of the change: 0 for none, 1 for a key without a value, 2 for a key whose newest version is
        /// `version` and has a value, 3 for a key that has a value.
        condition: KeyCondition,
        /// The version of condition 2, and else 0.
        version: Offset,
        /// How long the new value lives, in milliseconds from 1 on; null for as long as the stream's setting says. A number that
        /// is added to a value leaves its end as it is. Null where the key is deleted.
        ttl_ms: Option<i64>,
        /// The secondary keys of the new version, at most 64; they take the place of the older version's. None where the key is
        /// deleted.
        secondary: Vec<SecondaryKey>,
    }

    /// Answers [`PutKeysRequest`] after all versions are as durable as the stream's setting requires.
    PutKeysResponse: Answer {
        /// One element for each entry, in their order; empty if the whole request failed.
        entries: Vec<StoredKey>,
    }

    /// The result for an entry.
    #[derive(Default)]
    StoredKey {
        /// 0, or one of Kafka's error codes.
        error_code: i16,
        /// The description of the error.
        error_message: Option<StrBytes>,
        /// The partition of the key.
        partition: u32,
        /// The new version: the offset of the record in its partition.
        version: Offset,
        /// The new value of an entry with a number to add; null for other entries.
        sum: Option<i64>,
        /// If the condition did not hold, the newest version of the key; null if the key has no value, and for other entries.
        newest: Option<Offset>,
    }

    /// Begins a subscription to the changes of keys: the server delivers the records of these keys as they are committed, in
    /// shared memory or as answers to [`ReceiveRequest`](super::ReceiveRequest). The subscription ends with its connection.
    WatchKeysRequest {
        /// The name of the stream.
        stream: StrBytes,
        /// The id of the stream that the positions are of; null without positions.
        stream_id: Option<Uuid>,
        /// The first key of the range; empty for the first key of all.
        from: Bytes,
        /// The key behind the range; null if the range has no end.
        until: Option<Bytes>,
        /// The partitions to watch; empty for all of the stream.
        partitions: Vec<WatchedPartition>,
        /// About how many bytes the server delivers at once; a larger chunk comes whole.
        bytes_max: u32,
        /// About how many unfinished bytes the client may hold in shared memory. Over the network the Receive requests are the
        /// bound instead.
        ahead_bytes: ByteSize,
        /// The layout version of shared memory that the client supports; 0 if it wants none.
        layout: u32,
    }

    /// A partition to watch.
    WatchedPartition {
        /// The partition.
        partition: u32,
        /// The first offset that the client wants; null to begin with the next change.
        position: Option<Offset>,
        /// The epoch with which the client got the position; else -1.
        epoch: i32,
    }

    /// Answers [`WatchKeysRequest`].
    WatchKeysResponse: Answer {
        /// The number of the subscription on this connection.
        subscription: u32,
        /// The id of the stream. A stream that is deleted and made again has another one.
        stream_id: Uuid,
        /// How long values live that name no end of their own, in milliseconds; null for ever.
        ttl_ms: Option<i64>,
        /// The lanes of the subscription, in their order.
        lanes: Vec<WatchStart>,
        /// The shared memory that delivers the chunks; null if the client must use Receive.
        shared: Option<SharedMemory>,
        /// Why the server shares no memory, if the client asked for it.
        not_shared: Option<StrBytes>,
    }

    /// A watched partition, and where the watch begins.
    WatchStart {
        /// The partition.
        partition: u32,
        /// The first offset that is delivered.
        position: Offset,
        /// The epoch of this position, and of all that the subscription delivers.
        epoch: i32,
    }
}

nullable!(KeyVersion, Offset, Timestamp, Uuid, i64);
