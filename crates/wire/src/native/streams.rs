//! Requests to create, describe, list, grow and delete streams.

use kafka_protocol::protocol::StrBytes;
use millstream_base::{ByteSize, LaneIndex, Offset, StreamId, StreamletIndex, Timestamp};
use uuid::Uuid;

use super::{Field, native, nullable};
use crate::error::Malformed;
use crate::input::Input;
use crate::pieces::Output;

/// When the broker answers a producer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(i8)]
pub enum Durability {
    /// After the chunk is synced to disk.
    #[default]
    Sync = 0,
    /// After the append; the broker makes the chunk durable soon after.
    Async = 1,
    /// After the append; the broker never writes the chunk to disk.
    Memory = 2,
    /// After the chunk is in the system's page cache; the broker syncs it within about a second.
    Written = 3,
}

impl Field for Durability {
    fn decode(input: &mut Input, name: &str) -> Result<Durability, Malformed> {
        match input.int8(name)? {
            0 => Ok(Durability::Sync),
            1 => Ok(Durability::Async),
            2 => Ok(Durability::Memory),
            3 => Ok(Durability::Written),
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
    fn forge(forge: &mut crate::forge::Forge) -> Durability {
        let all = [
            Durability::Sync,
            Durability::Async,
            Durability::Memory,
            Durability::Written,
        ];
        all[forge.below(4) as usize]
    }
}

native! {
    /// Settings of a stream.
    #[derive(Default)]
    StreamSettings {
        /// The number of logical partitions, the streamlets (M).
        streamlets: u32,
        /// The number of lanes of each streamlet (Q), where producers append in parallel.
        lanes: u32,
        /// The number of virtual logs that the stream's lanes share.
        virtual_logs: u32,
        /// When the broker answers a producer: one of the values of durability.
        durability: Durability,
        /// The size of a group, in segments of the largest size (P).
        group_segments: u32,
        /// The size of the largest segment of a lane.
        segment_bytes: ByteSize,
        /// The broker removes closed groups whose newest record is older than this.
        retention_ms: Option<u64>,
        /// The broker removes closed groups, oldest first, while the later ones of the lane hold at least this.
        retention_bytes: Option<ByteSize>,
        /// The largest chunk that the broker accepts, if that is less than a segment can hold.
        chunk_bytes_max: Option<ByteSize>,
        /// Further settings, under Kafka's names. The log applies those about compression and timestamps,
        /// and stores the others.
        further: Vec<FurtherSetting>,
    }

    /// A setting without its own field.
    FurtherSetting {
        /// The name of the setting.
        name: StrBytes,
        /// Its value.
        value: StrBytes,
    }

    /// Creates a stream (createStream of kera, table 6.1).
    CreateStreamRequest {
        /// The name of the stream.
        name: StrBytes,
        /// Its settings.
        settings: StreamSettings,
        /// Whether an existing stream of this name is a success, as it is, instead of an error.
        or_existing: bool,
    }

    /// Answers [`CreateStreamRequest`] after the creation is durable.
    CreateStreamResponse: Answer {
        /// The stream's id, which other requests use.
        stream: StreamId,
        /// Whether this request created the stream.
        is_new: bool,
    }

    /// Returns a stream's id, settings and lanes (getStreamId of kera, table 6.1).
    DescribeStreamRequest {
        /// The name of the stream; null to name it by its id.
        name: Option<StrBytes>,
        /// Its id, if the name is null.
        stream: StreamId,
        /// Whether the answer includes the lanes.
        with_lanes: bool,
    }

    /// Answers [`DescribeStreamRequest`].
    DescribeStreamResponse: Answer {
        /// The name of the stream.
        name: StrBytes,
        /// Its id.
        stream: StreamId,
        /// Its identity, which no other stream ever has: the topic id for Kafka's clients.
        uuid: Uuid,
        /// Its settings.
        settings: StreamSettings,
        /// The largest chunk that the broker accepts now, by the settings and its memory.
        chunk_bytes_max: ByteSize,
        /// Its lanes in the order of their partition numbers, if the request asked for them.
        lanes: Vec<LaneDescription>,
        /// The names of its holds.
        holds: Vec<StrBytes>,
    }

    /// A lane.
    LaneDescription {
        /// The number of the lane among all lanes of the stream: the partition for Kafka's clients.
        partition: u32,
        /// The streamlet of the lane.
        streamlet: StreamletIndex,
        /// The number of the lane in the streamlet.
        lane: LaneIndex,
        /// The offset of the first stored record.
        earliest: Offset,
        /// The offset behind the last durable record.
        durable: Offset,
        /// The offset before which all transactions have ended. Readers of committed records go no further.
        stable: Offset,
        /// When the oldest open transaction began, in milliseconds since 1970; -1 without one.
        oldest_transaction: Timestamp,
        /// The number of stored groups.
        groups: u32,
        /// The number of durable bytes.
        bytes: ByteSize,
        /// The number of incomplete bytes that the server's start truncated from the end of the lane after
        /// a crash.
        cut_bytes: ByteSize,
        /// Why the lane refuses writes; null if it accepts them.
        fault: Option<StrBytes>,
        /// The number of records whose keys other partitions own, so that they are not found by key: those that lookups have
        /// come across since the server's start.
        misplaced: u64,
        /// Its compaction; null if it is not compacted, or the server has not looked at it yet.
        compaction: Option<LaneCompaction>,
    }

    /// The compaction of a lane. Counts are since the server's start.
    LaneCompaction {
        /// The bytes of the groups that could be compacted when the server looked last.
        total_bytes: ByteSize,
        /// The bytes of `total_bytes` that were written since the last compaction.
        dirty_bytes: ByteSize,
        /// The lane is compacted up to this offset; 0 if it never was.
        compacted_to: Offset,
        /// When the last compaction ended, in milliseconds since 1970; -1 if there was none.
        compacted_at: Timestamp,
        /// The number of compactions.
        passes: u64,
        /// The bytes of the groups that they have replaced.
        bytes_before: ByteSize,
        /// The bytes of the groups in their place.
        bytes_after: ByteSize,
        /// The number of compactions that have failed.
        failed: u64,
        /// Why the last compaction has failed; null if it has not.
        fault: Option<StrBytes>,
    }

    /// Lists streams.
    ListStreamsRequest {
        /// The prefix of the names.
        prefix: StrBytes,
        /// The last name of the previous answer; null for the first request.
        after: Option<StrBytes>,
        /// The most streams in the answer.
        streams_max: u32,
    }

    /// Answers [`ListStreamsRequest`].
    ListStreamsResponse: Answer {
        /// The streams, in the order of their names.
        streams: Vec<ListedStream>,
        /// Whether more streams follow.
        has_more: bool,
    }

    /// A stream of the list.
    ListedStream {
        /// The name of the stream.
        name: StrBytes,
        /// Its id.
        stream: StreamId,
        /// Its identity, which no other stream ever has.
        uuid: Uuid,
        /// The number of its streamlets (M).
        streamlets: u32,
        /// The number of lanes of each streamlet (Q).
        lanes: u32,
    }

    /// Adds streamlets or lanes to a stream, while it is in use.
    GrowStreamRequest {
        /// The name of the stream.
        name: StrBytes,
        /// The new number of streamlets (M); never less than before.
        streamlets: u32,
        /// The new number of lanes of each streamlet (Q); never less than before.
        lanes: u32,
    }

    /// Answers [`GrowStreamRequest`] after the change is durable.
    GrowStreamResponse: Answer {
    }

    /// Deletes a stream with all of its records.
    DeleteStreamRequest {
        /// The name of the stream.
        name: StrBytes,
    }

    /// Answers [`DeleteStreamRequest`] after the deletion is durable.
    DeleteStreamResponse: Answer {
    }
}

nullable!(LaneCompaction);
