//! Streams: created, described, listed, grown, deleted.

use kafka_protocol::protocol::StrBytes;
use millstream_base::{ByteSize, LaneIndex, Offset, StreamId, StreamletIndex};
use uuid::Uuid;

use super::{Field, native};
use crate::error::Malformed;
use crate::input::Input;
use crate::pieces::Output;

/// When a producer is answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(i8)]
pub enum Durability {
    /// When it is synced to disk.
    #[default]
    Sync = 0,
    /// After the append; made durable soon after.
    Async = 1,
    /// After the append; never written to disk.
    Memory = 2,
    /// When it is in the file, in the system's cache; synced to disk within about a second.
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

    #[cfg(test)]
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
        /// Logical partitions (M).
        streamlets: u32,
        /// Lanes of each streamlet (Q), where producers append in parallel.
        lanes: u32,
        /// Virtual logs that the stream's lanes share.
        virtual_logs: u32,
        /// When a producer is answered.
        durability: Durability,
        /// The size of a group, in segments of the largest size (P).
        group_segments: u32,
        /// The largest segment of a lane.
        segment_bytes: ByteSize,
        /// Closed groups whose newest record is older are removed.
        retention_ms: Option<u64>,
        /// Closed groups are removed, oldest first, while a lane holds more than this.
        retention_bytes: Option<ByteSize>,
        /// The largest chunk that is taken in, where that is less than what fits a segment.
        chunk_bytes_max: Option<ByteSize>,
        /// Further settings, which are kept for others: Kafka's, for instance.
        further: Vec<FurtherSetting>,
    }

    /// A setting that the log keeps and does not read.
    FurtherSetting {
        /// What it is called.
        name: StrBytes,
        /// What it is set to.
        value: StrBytes,
    }

    /// Creates a stream (createStream of kera, table 6.1).
    CreateStreamRequest {
        /// What it is called.
        name: StrBytes,
        /// How it is made.
        settings: StreamSettings,
        /// Whether a stream of this name is taken as it is, rather than refused.
        or_existing: bool,
    }

    /// Answers [`CreateStreamRequest`], when the stream's existence is durable.
    #[derive(Default)]
    CreateStreamResponse {
        /// How long the client is to wait before it goes on.
        throttle_time_ms: u32,
        /// 0, or one of Kafka's error codes.
        error_code: i16,
        /// What is wrong.
        error_message: Option<StrBytes>,
        /// The stream's id, which other requests name it by.
        stream: StreamId,
        /// Whether it was created now.
        is_new: bool,
    }

    /// Asks for a stream's id (getStreamId of kera, table 6.1), and for what else is known of it.
    DescribeStreamRequest {
        /// What it is called; or null, where its id is known.
        name: Option<StrBytes>,
        /// Its id, where the name is null.
        stream: StreamId,
        /// Whether its lanes are asked for.
        with_lanes: bool,
    }

    /// Answers [`DescribeStreamRequest`].
    #[derive(Default)]
    DescribeStreamResponse {
        /// How long the client is to wait before it goes on.
        throttle_time_ms: u32,
        /// 0, or one of Kafka's error codes.
        error_code: i16,
        /// What is wrong.
        error_message: Option<StrBytes>,
        /// What the stream is called.
        name: StrBytes,
        /// Its id.
        stream: StreamId,
        /// What tells it from all other streams that there have been or will be: its topic id for
        /// Kafka's clients.
        uuid: Uuid,
        /// Its settings.
        settings: StreamSettings,
        /// Its lanes by partition, if they were asked for.
        lanes: Vec<LaneDescription>,
    }

    /// What is known of a lane.
    LaneDescription {
        /// Its number among all of the stream: its partition for Kafka's clients.
        partition: u32,
        /// The streamlet that it belongs to.
        streamlet: StreamletIndex,
        /// Its number in the streamlet.
        lane: LaneIndex,
        /// The offset of the first record that is stored.
        earliest: Offset,
        /// The offset behind the last durable record.
        durable: Offset,
        /// Groups that are stored.
        groups: u32,
        /// Durable bytes.
        bytes: ByteSize,
        /// Bytes that the server's start cut from its end, which a crash had left incomplete.
        cut_bytes: ByteSize,
        /// Why it refuses writes, if it does.
        fault: Option<StrBytes>,
    }

    /// Asks which streams there are.
    ListStreamsRequest {
        /// What their names start with.
        prefix: StrBytes,
        /// The last name of the answer before, if there was one.
        after: Option<StrBytes>,
        /// How many at most.
        streams_max: u32,
    }

    /// Answers [`ListStreamsRequest`].
    #[derive(Default)]
    ListStreamsResponse {
        /// How long the client is to wait before it goes on.
        throttle_time_ms: u32,
        /// 0, or one of Kafka's error codes.
        error_code: i16,
        /// What is wrong.
        error_message: Option<StrBytes>,
        /// Streams, by name.
        streams: Vec<ListedStream>,
        /// Whether there are more behind them.
        has_more: bool,
    }

    /// A stream, in a list of them.
    ListedStream {
        /// What it is called.
        name: StrBytes,
        /// Its id.
        stream: StreamId,
        /// What tells it from all other streams that there have been or will be.
        uuid: Uuid,
        /// Its streamlets (M).
        streamlets: u32,
        /// The lanes of each streamlet (Q).
        lanes: u32,
    }

    /// Gives a stream more streamlets or lanes, while it is in use.
    GrowStreamRequest {
        /// What it is called.
        name: StrBytes,
        /// How many streamlets it shall have (M); never less than it has.
        streamlets: u32,
        /// How many lanes each streamlet shall have (Q); never less than it has.
        lanes: u32,
    }

    /// Answers [`GrowStreamRequest`], when the change is durable.
    #[derive(Default)]
    GrowStreamResponse {
        /// How long the client is to wait before it goes on.
        throttle_time_ms: u32,
        /// 0, or one of Kafka's error codes.
        error_code: i16,
        /// What is wrong.
        error_message: Option<StrBytes>,
    }

    /// Deletes a stream with all that it holds.
    DeleteStreamRequest {
        /// What it is called.
        name: StrBytes,
    }

    /// Answers [`DeleteStreamRequest`], when the deletion is durable.
    #[derive(Default)]
    DeleteStreamResponse {
        /// How long the client is to wait before it goes on.
        throttle_time_ms: u32,
        /// 0, or one of Kafka's error codes.
        error_code: i16,
        /// What is wrong.
        error_message: Option<StrBytes>,
    }
}
